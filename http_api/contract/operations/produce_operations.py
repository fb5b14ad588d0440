"""Operations that write records: v2 produce, v3 streamed produce and batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from http_api.contract.errors import RestCode
from http_api.contract.idempotence import HEADER_LIMITS
from http_api.contract.media_types import V2, V2_BINARY, V2_JSON, V2_TEXT
from http_api.contract.operations.declaration import (
    CLUSTER,
    Body,
    Header,
    Operation,
    no_content,
    reply,
)
from http_api.contract.operations.parameters import (
    INT32_MAX,
    FlagParameter,
    IntegerParameter,
    TextParameter,
    WordParameter,
)
from http_api.contract.operations.schemas import Either, nullable
from http_api.contract.operations.shared import CLUSTER_ID, GROUP, TOPIC, TOPIC_ID
from http_api.contract.transaction_headers import (
    ATTEMPT,
    ATTEMPT_ID,
    CHUNK,
    CHUNK_MAX,
    EPOCH_MAX,
    IDEMPOTENCY_KEY,
    KEY,
    NUMBER_MAX,
    TRANSACTION,
    TRANSACTION_EPOCH,
    TRANSACTION_GROUP,
    TRANSACTION_NUMBER,
)
from raft_metadata.common.record_placement import Partitioner

_TAG: Final = "Records"

ACKS: Final = WordParameter(
    "acks",
    words=("all", "-1", "1", "0"),
    default="all",
    description=(
        "Who has the records before the answer: every in-sync replica (`all`, `-1`), the leader "
        "(`1`), nobody for sure (`0`)."
    ),
    example="all",
)
TIMEOUT: Final = IntegerParameter(
    "timeout",
    default=10_000,
    minimum=1,
    maximum="max_produce_timeout_ms",
    description="Milliseconds after which records count as not acknowledged.",
    example=10_000,
)
ASYNC: Final = FlagParameter(
    "async",
    description=(
        "The Strimzi bridge's. `true`: 204 without a body, where all records were written; every "
        "produce is answered when it is."
    ),
    example=False,
)
PARTITIONER: Final = WordParameter(
    "partitioner",
    words=tuple(one.value for one in Partitioner),
    default=Partitioner.STICKY.value,
    description=(
        "Where records without a partition and a key go, among the partitions with a leader. "
        "`sticky`: all of a request or batch to one, the next one's to the next. `round_robin`: "
        "each to the next one."
    ),
    example=Partitioner.ROUND_ROBIN.value,
)
KEY_FORMAT, VALUE_FORMAT = (
    WordParameter(
        f"{half}_format",
        words=("json", "string", "binary"),
        description=f"Format of each {half}, instead of the one that the Content-Type names.",
        example="string",
    )
    for half in ("key", "value")
)
ROWS: Final = WordParameter(
    "receipts",
    words=("all", "range"),
    default="all",
    description="`range`: where all records were written, ranges of offsets instead of rows.",
    example="range",
)
RECEIPTS: Final = WordParameter(
    "receipts",
    words=("all", "errors"),
    default="all",
    description="`errors`: only failures are answered, and a last line with the counts.",
    example="errors",
)
PRODUCER_HEADERS: Final = tuple(
    IntegerParameter(
        name,
        maximum=limit,
        description=f"{about} All three headers of an idempotent produce, or none.",
        example=0,
    )
    for (name, limit), about in zip(
        HEADER_LIMITS.items(),
        (
            "The producer's id, from `…/producer-ids`.",
            "The producer's epoch.",
            "Sequence of the first record; the next request's is this plus the count of records.",
        ),
        strict=True,
    )
)
KEY_HEADER: Final = TextParameter(
    IDEMPOTENCY_KEY,
    description=(
        "Name of the write: all rows are written or none, and a repeat with it gets the offsets of "
        "the first."
    ),
    example="order-4711",
    pattern=f"^{KEY.pattern}$",
)
TRANSACTION_HEADERS: Final = (
    TextParameter(
        TRANSACTION,
        description=(
            "Id of the transaction that these rows are staged for, `key:K` of a key: no reader "
            "sees them before it is committed."
        ),
        example="billing-1",
    ),
    TextParameter(
        TRANSACTION_GROUP,
        description="The group whose offsets the transaction may commit.",
        example=GROUP,
        pattern="^[A-Za-z0-9._-]{1,249}$",
    ),
    IntegerParameter(
        TRANSACTION_EPOCH,
        maximum=EPOCH_MAX,
        description="The producer's epoch; none with a numbered id or a key.",
        example=3,
    ),
    IntegerParameter(
        TRANSACTION_NUMBER,
        maximum=NUMBER_MAX,
        description="Number of the transaction; none with a key.",
        example=7,
    ),
    TextParameter(
        ATTEMPT,
        description="Name of the attempt; `EPOCH.NUMBER` of a producer if it is left out.",
        example="3.7",
        pattern=f"^{ATTEMPT_ID.pattern}$",
    ),
    IntegerParameter(
        CHUNK,
        maximum=CHUNK_MAX,
        description=(
            "Number of this chunk in its attempt: 0, 1, 2 and so on, in any order, below "
            "`transaction.max.chunks`."
        ),
        example=0,
    ),
)

TOPIC_ID_HEADER: Final = "Quorumlog-Topic-Id"
PARTITIONS_HEADER: Final = "Quorumlog-Partitions"
_TOPIC_HEADERS: Final = (
    Header(TOPIC_ID_HEADER, "Id of the topic that was written to.", TOPIC_ID),
    Header(PARTITIONS_HEADER, "Number of partitions over which keys are spread.", 6),
)
"""Headers of every answer about a topic that is there."""

_TEXT_OR_NULL: Final = nullable({"type": "string"})
_V2_RECORD: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "key": {},
        "value": {},
        "partition": {"type": ["integer", "null"], "minimum": 0, "maximum": INT32_MAX},
        "timestamp": {"type": ["integer", "null"], "minimum": 0},
        "headers": {
            "type": ["array", "null"],
            "items": {
                "type": "object",
                "properties": {"key": {"type": "string"}, "value": _TEXT_OR_NULL},
                "required": ["key"],
            },
        },
    },
    "additionalProperties": False,
}
_SCHEMA_FIELDS: Final[dict[str, Any]] = {
    name: {"description": "Refused: there are no schemas."}
    for name in ("key_schema", "key_schema_id", "value_schema", "value_schema_id")
}
_WRITING: Final = (
    RestCode.TOPIC_NOT_FOUND,
    RestCode.PARTITION_NOT_FOUND,
    RestCode.OUT_OF_ORDER_SEQUENCE,
    RestCode.INVALID_PRODUCER_EPOCH,
    RestCode.OLD_SEQUENCE,
    RestCode.BROKER_NOT_AVAILABLE,
)
_IN_TRANSACTION: Final = (
    RestCode.PRODUCER_FENCED,
    RestCode.TRANSACTION_CONFLICT,
    RestCode.STAGE_INCOMPLETE,
    RestCode.TRANSACTION_ABORTED,
    RestCode.TRANSACTION_SUPERSEDED,
    RestCode.THROTTLED,
    RestCode.KAFKA_RETRIABLE_ERROR,
)
"""Codes of a produce with a key, or of one that is staged."""


def _v2_produce(path: str, summary: str, *more: WordParameter) -> Operation:
    rows = {
        "offsets": [{"partition": 0, "offset": 12, "error_code": None, "error": None}],
        "key_schema_id": None,
        "value_schema_id": None,
    }
    ranges = {"ranges": [{"partition": 0, "base_offset": 12, "count": 1}]}
    return Operation(
        "POST",
        path,
        tag=_TAG,
        summary=summary,
        carries_records=True,
        description=(
            "One row for each record, in the order of the request. Rows of failed records have "
            "`error_code` and `error`; where the cluster failed, `retriable` and `outcome`, too."
        ),
        parameters=(ACKS, TIMEOUT, ASYNC, ROWS, KEY_FORMAT, VALUE_FORMAT, *more),
        headers=(*PRODUCER_HEADERS, KEY_HEADER, *TRANSACTION_HEADERS),
        body=Body(
            fields={
                "records": {"type": "array", "minItems": 1, "items": _V2_RECORD},
                **_SCHEMA_FIELDS,
            },
            needed=("records",),
            example={"records": [{"key": "alice", "value": {"id": 1}}]},
            media_types=(V2_JSON, V2_BINARY, V2_TEXT),
        ),
        replies=(
            reply(
                Either(rows, ranges),
                "Rows of the records, or ranges of their offsets.",
                headers=_TOPIC_HEADERS,
                content_type=V2,
            ),
            replace(
                no_content("All records are written, with `async=true`.", content_type=V2),
                headers=_TOPIC_HEADERS,
            ),
            reply(
                rows,
                "No record was written, and a retry may succeed.",
                503,
                headers=_TOPIC_HEADERS,
                content_type=V2,
            ),
        ),
        error_headers=_TOPIC_HEADERS,
        errors=(
            *_WRITING,
            RestCode.NOT_FOUND,
            RestCode.NOT_ACCEPTABLE,
            RestCode.UNPROCESSABLE,
            RestCode.KEY_SCHEMA_MISSING,
            RestCode.VALUE_SCHEMA_MISSING,
            RestCode.INVALID_SCHEMA,
            *_IN_TRANSACTION,
        ),
    )


TO_TOPIC: Final = _v2_produce("/topics/{topic_name}", "Write records to a topic", PARTITIONER)
TO_PARTITION: Final = _v2_produce(
    "/topics/{topic_name}/partitions/{partition_id}", "Write records to a partition"
)

# v3

_HALF: Final = {
    "type": ["object", "null"],
    "properties": {"type": {"enum": ["BINARY", "JSON", "STRING"]}, "data": {}},
    "additionalProperties": False,
}
_V3_FIELDS: Final[dict[str, Any]] = {
    "partition_id": {"type": ["integer", "null"], "minimum": 0, "maximum": INT32_MAX},
    "headers": {
        "type": ["array", "null"],
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "value": _TEXT_OR_NULL},
            "required": ["name"],
            "additionalProperties": False,
        },
    },
    "key": _HALF,
    "value": _HALF,
    "timestamp": {"type": ["string", "null"], "format": "date-time"},
}
_V3_RECORD: Final = {
    "key": {"type": "STRING", "data": "alice"},
    "value": {"type": "JSON", "data": {"id": 1}},
}
_RECEIPT: Final = {
    "cluster_id": CLUSTER_ID,
    "topic_name": TOPIC,
    "partition_id": 0,
    "offset": 12,
    "timestamp": "2026-01-31T12:00:00.000Z",
    "key": {"type": "STRING", "size": 5},
    "value": {"type": "JSON", "size": 8},
}
_PATH: Final = CLUSTER + "/topics/{topic_name}/records"

STREAM: Final = Operation(
    "POST",
    _PATH,
    tag=_TAG,
    summary="Write records as a stream, answered while it is sent",
    description=(
        "The body is any number of JSON objects, one behind the other, and the answer a receipt "
        "for each, in order. What is wrong with one record is said in its receipt; see the "
        "documentation for what ends the stream."
    ),
    parameters=(ACKS, TIMEOUT, PARTITIONER, RECEIPTS),
    headers=PRODUCER_HEADERS,
    body=Body(fields=_V3_FIELDS, example=_V3_RECORD, is_stream=True),
    replies=(
        reply(
            Either(
                {"error_code": 200, **_RECEIPT},
                {"error_code": 400, "message": 'Bad Request: data="x" is not a base64 string.'},
                {"error_code": 200, "records": 1_000, "failed": 0},
            ),
            "Receipts, each on a line: a document of its own for each record; with "
            "`receipts=errors` the counts in the last line.",
            headers=_TOPIC_HEADERS,
        ),
    ),
    error_headers=_TOPIC_HEADERS,
    errors=(*_WRITING, RestCode.PAYLOAD),
)
BATCH: Final = Operation(
    "POST",
    _PATH + ":batch",
    tag=_TAG,
    summary="Write up to a thousand records, each answered on its own",
    carries_records=True,
    parameters=(ACKS, TIMEOUT, PARTITIONER),
    headers=PRODUCER_HEADERS,
    body=Body(
        fields={
            "entries": {
                "type": "array",
                "minItems": 1,
                "maxItems": 1_000,
                "items": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "pattern": "^[0-9A-Za-z_-]{1,80}$"},
                        **_V3_FIELDS,
                    },
                    "required": ["id"],
                    "additionalProperties": False,
                },
            }
        },
        needed=("entries",),
        example={"entries": [{"id": "1", **_V3_RECORD}]},
    ),
    replies=(
        reply(
            {
                "successes": [{"id": "1", **_RECEIPT}],
                "failures": [{"id": "2", "error_code": 40402, "message": "Partition not found"}],
            },
            "Entries that were written, and those that were not.",
            207,
            headers=_TOPIC_HEADERS,
        ),
    ),
    error_headers=_TOPIC_HEADERS,
    errors=(*_WRITING, RestCode.BATCH),
)
