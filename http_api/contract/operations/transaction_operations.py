"""Operations on transactions: one shot, init, commit, abort, and the list of all ids.

Each stands twice: below the cluster, and below the group whose offsets the transactions may commit.
Staged chunks are produces, so their headers stand with those (`produce_operations`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from http_api.contract import transaction_shapes as shapes
from http_api.contract.errors import RestCode
from http_api.contract.group_shapes import GROUPS
from http_api.contract.operations.declaration import (
    CLUSTER,
    Body,
    Header,
    Operation,
    Reply,
    no_content,
    reply,
)
from http_api.contract.operations.parameters import (
    INT32_MAX,
    OFFSET_MAX,
    IntegerParameter,
    TextParameter,
    WordParameter,
)
from http_api.contract.operations.schemas import nullable
from http_api.contract.operations.shared import (
    BASE_URL,
    GROUP,
    LINKS,
    NAME_SCHEMA,
    TOPIC,
    TOPIC_ID,
    listing,
    resource,
)
from http_api.contract.transaction_headers import (
    ATTEMPT_ID,
    CHUNK_MAX,
    EPOCH_MAX,
    IDEMPOTENCY_KEY,
    KEY,
    NUMBER_MAX,
)
from http_api.contract.transaction_resources import (
    AttemptInfo,
    DecidedPosition,
    PlacedPartition,
    ProducerLife,
    TransactionInfo,
    TransactionResult,
    WaitingPartition,
)

_TAG: Final = "Transactions"
_PLAIN: Final = f"/{shapes.TRANSACTIONS}"
_OF_GROUP: Final = f"/{GROUPS}" + "/{consumer_group_id}" + _PLAIN
_ID: Final = "/{transactional_id}"

OFFSETS_MAX: Final = 10_000
"""Most offsets that a transaction commits: as many as a topic may have partitions."""
RUN_ID_CHARS_MAX: Final = 64
"""Longest `run_id` and `input` of a numbered transaction."""
TIMEOUT_MS_MAX: Final = 60_000

TIMEOUT: Final = IntegerParameter(
    "timeout",
    default=10_000,
    minimum=1,
    maximum=TIMEOUT_MS_MAX,
    description="Milliseconds after which the request is answered, whatever it waits for.",
    example=10_000,
)
STATES: Final = ("empty", "staging", "committing", "complete", "aborted")
STATE: Final = WordParameter(
    "state", words=STATES, description="Only ids in this state.", example="committing"
)
KEY_HEADER: Final = TextParameter(
    IDEMPOTENCY_KEY,
    description=(
        "Name of the write: a repeat with it hears what became of the first, and nothing is "
        "written twice."
    ),
    example="transfer-17",
    pattern=f"^{KEY.pattern}$",
)

LEADER_HEADERS: Final = (
    Header("Quorumlog-Leader", "Id of the broker that leads the transaction's home.", 2),
    Header("Quorumlog-Leader-Url", "URL of that broker.", BASE_URL),
)
_PLACED: Final = PlacedPartition(
    topic=TOPIC, topic_id=TOPIC_ID, partition=1, base_offset=812, rows=2
)
_WAITING: Final = WaitingPartition(
    topic=TOPIC, partition=1, reason="fewer in-sync replicas than min.insync.replicas"
)
_LAST: Final = DecidedPosition(3, 6, "complete")


def _examples(group: str | None) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return examples of a decided transaction, of one that waits, and of an id."""
    done = TransactionResult(
        transaction_id="key:transfer-17",
        group=group,
        epoch=0,
        number=0,
        state="complete",
        already=False,
        rows=2,
        partitions=(_PLACED,),
        pending=(),
        dropped=(),
        lost=(),
    )
    unplaced = replace(_PLACED, base_offset=None)
    waiting = replace(done, state="committing", partitions=(unplaced,), pending=(_WAITING,))
    info = TransactionInfo(
        transaction_id="billing-1",
        group=group,
        epoch=3,
        last=_LAST,
        state="staging",
        decided_ms=1_795_354_422_224,
        member_id=None,
        partitions=(_PLACED,),
        pending=(),
        dropped=(),
        lost=(),
        attempts=(
            AttemptInfo(
                attempt_id="3.7",
                epoch=3,
                number=7,
                chunks=5,
                rows=5_000,
                bytes=640_000,
                age_ms=1_200,
            ),
        ),
        home_topic="__consumer_offsets" if group else "__transaction_state",
        home_partition=4,
        leader=2,
    )
    return shapes.result(LINKS, done), shapes.result(LINKS, waiting), shapes.info(LINKS, info)


_ROWS: Final[dict[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "topic_name": NAME_SCHEMA,
            "format": {"enum": ["json", "binary"], "default": "json"},
            "records": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "object"},
                "description": "As in a v2 produce.",
            },
        },
        "required": ["topic_name", "records"],
        "additionalProperties": False,
    },
}
_COUNT: Final = {"type": "integer", "minimum": 1}
_ATTEMPTS: Final[dict[str, Any]] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "properties": {
            "attempt_id": {"type": "string", "pattern": f"^{ATTEMPT_ID.pattern}$"},
            "chunks": _COUNT | {"maximum": CHUNK_MAX + 1},
            "rows": _COUNT,
        },
        "required": ["attempt_id", "chunks", "rows"],
        "additionalProperties": False,
    },
    "description": "Staged attempts with all that they hold, in place of `topics`.",
}
_OFFSETS: Final[dict[str, Any]] = {
    "type": "array",
    "maxItems": OFFSETS_MAX,
    "items": {
        "type": "object",
        "properties": {
            "topic_name": NAME_SCHEMA,
            "partition_id": {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
            "offset": {"type": "integer", "minimum": 0, "maximum": OFFSET_MAX},
            "expected_offset": {
                "type": ["integer", "null"],
                "minimum": -1,
                "maximum": OFFSET_MAX,
                "description": "The committed offset that must be found; -1: none yet.",
            },
            "metadata": nullable({"type": "string"}),
            "leader_epoch": {"type": ["integer", "null"], "minimum": 0, "maximum": INT32_MAX},
        },
        "required": ["topic_name", "partition_id", "offset"],
        "additionalProperties": False,
    },
    "description": "Offsets to commit for the group of the path, the next ones to read.",
}
_CONTENT: Final[dict[str, Any]] = {
    "topics": _ROWS,
    "attempts": _ATTEMPTS,
    "offsets": _OFFSETS,
    "member_id": nullable(NAME_SCHEMA),
    "member_epoch": {"type": ["integer", "null"], "minimum": 0, "maximum": INT32_MAX},
}
_WORD: Final = {"type": ["string", "null"], "minLength": 1, "maxLength": RUN_ID_CHARS_MAX}
_EPOCH: Final = {"type": ["integer", "null"], "minimum": 0, "maximum": EPOCH_MAX}
_NUMBER: Final = {"type": ["integer", "null"], "minimum": 0, "maximum": NUMBER_MAX}
_RECORDS: Final = [{"topic_name": TOPIC, "records": [{"key": "alice", "value": {"amount": -5}}]}]

_UNAVAILABLE: Final = reply(
    {
        "error_code": int(RestCode.KAFKA_RETRIABLE_ERROR),
        "message": "the id's last decision is not complete yet",
        "retriable": True,
        "outcome": "not_written",
    },
    f"`{int(RestCode.KAFKA_RETRIABLE_ERROR)}`: no home, a target that is not able, or the id's "
    "last decision is not complete.",
    503,
)
_OF_HOME: Final = (RestCode.THROTTLED, RestCode.KAFKA_RETRIABLE_ERROR)
_FENCE: Final = (
    RestCode.PRODUCER_FENCED,
    RestCode.TRANSACTION_CONFLICT,
    RestCode.TRANSACTION_SUPERSEDED,
)
_COMMITTING: Final = (
    *_FENCE,
    RestCode.STAGE_INCOMPLETE,
    RestCode.DECIDED_ROWS_LOST,
    RestCode.TRANSACTION_ABORTED,
    RestCode.OFFSET_NOT_EXPECTED,
    RestCode.ILLEGAL_STATE,
    RestCode.FENCED_INSTANCE_ID,
    RestCode.TOPIC_NOT_FOUND,
    RestCode.PARTITION_NOT_FOUND,
    RestCode.UNKNOWN_TOPIC_OR_PARTITION,
    RestCode.UNPROCESSABLE,
    *_OF_HOME,
)


def _committed(path: str) -> tuple[Reply, ...]:
    done, waiting, _ = _examples(GROUP if path.startswith(f"/{GROUPS}") else None)
    return (
        reply(done, "All rows can be read.", headers=LEADER_HEADERS),
        reply(waiting, "Decided; not all rows can be read yet.", 202, headers=LEADER_HEADERS),
        _UNAVAILABLE,
    )


def _words(path: str) -> str:
    return "with offsets of a group" if path.startswith(f"/{GROUPS}") else "without a group"


def _one_shot(path: str) -> Operation:
    return Operation(
        "POST",
        CLUSTER + path,
        tag=_TAG,
        summary=f"Commit rows of many partitions at once, {_words(path)}",
        description=(
            "All or nothing. The content of a repeat is compared by the text of `topics`, "
            "`attempts` and `offsets`, so it is to be sent with the same bytes."
        ),
        parameters=(TIMEOUT,),
        headers=(KEY_HEADER,),
        body=Body(fields=_CONTENT, example={"topics": _RECORDS}),
        replies=_committed(path),
        errors=_COMMITTING,
    )


def _commit(path: str) -> Operation:
    return Operation(
        "POST",
        CLUSTER + path + _ID + ":commit",
        tag=_TAG,
        summary=f"Commit a transaction of an id, {_words(path)}",
        description=(
            "A producer names `epoch` and `number`; a numbered id `number` and `run_id`; a key "
            "none of them."
        ),
        parameters=(TIMEOUT,),
        body=Body(
            fields=_CONTENT | {"epoch": _EPOCH, "number": _NUMBER, "run_id": _WORD, "input": _WORD},
            example={
                "epoch": 3,
                "number": 7,
                "attempts": [{"attempt_id": "3.7", "chunks": 5, "rows": 5_000}],
            },
        ),
        replies=_committed(path),
        errors=_COMMITTING,
    )


def _init(path: str) -> Operation:
    group = GROUP if path.startswith(f"/{GROUPS}") else None
    example = ProducerLife(
        transaction_id="billing-1",
        group=group,
        epoch=4,
        last=_LAST,
        forgotten_to_epoch=0,
        chunk_max_bytes=1_048_576,
    )
    return Operation(
        "POST",
        CLUSTER + path + _ID + ":init",
        tag=_TAG,
        summary=f"Give a producer its next epoch, {_words(path)}",
        description=(
            "Fences what came before. A position behind `last`, of an epoch above "
            "`forgotten_to_epoch`, was never decided and never will be. The body of a staged "
            "request may have `chunk_max_bytes`."
        ),
        parameters=(TIMEOUT,),
        body=Body(fields={}, example={}, is_optional=True),
        replies=(reply(shapes.life(LINKS, example), headers=LEADER_HEADERS), _UNAVAILABLE),
        errors=(RestCode.TRANSACTION_CONFLICT, *_OF_HOME),
    )


def _abort(path: str) -> Operation:
    return Operation(
        "POST",
        CLUSTER + path + _ID + ":abort",
        tag=_TAG,
        summary=f"Abort a producer's transaction, {_words(path)}",
        description="What was decided before stands, and is the `state` of the answer.",
        parameters=(TIMEOUT,),
        body=Body(
            fields={"epoch": _EPOCH, "number": _NUMBER},
            needed=("epoch", "number"),
            example={"epoch": 3, "number": 7},
        ),
        replies=(reply({"state": "aborted"}, headers=LEADER_HEADERS), _UNAVAILABLE),
        errors=(*_FENCE, RestCode.DECIDED_ROWS_LOST, *_OF_HOME),
    )


def _describe(path: str) -> Operation:
    example = _examples(GROUP if path.startswith(f"/{GROUPS}") else None)[2]
    found = resource(
        path + _ID,
        _TAG,
        f"Describe a transactional id, {_words(path)}",
        example,
        errors=(RestCode.TRANSACTION_NOT_FOUND, RestCode.KAFKA_RETRIABLE_ERROR),
    )
    return replace(found, replies=(reply(example, headers=LEADER_HEADERS), _UNAVAILABLE))


def _list(path: str) -> Operation:
    of_group = path.startswith(f"/{GROUPS}")
    found = listing(
        path,
        _TAG,
        "List the transactional ids of a group" if of_group else "List all transactional ids",
        _examples(GROUP if of_group else None)[2],
        parameters=(STATE,),
        errors=(RestCode.KAFKA_RETRIABLE_ERROR,),
    )
    return replace(found, replies=(*found.replies, _UNAVAILABLE))


def _forget(path: str) -> Operation:
    return Operation(
        "DELETE",
        CLUSTER + path + _ID,
        tag=_TAG,
        summary=f"Forget a numbered id or a key, {_words(path)}",
        replies=(no_content("It is forgotten."), _UNAVAILABLE),
        errors=(
            RestCode.TRANSACTION_NOT_FOUND,
            RestCode.TRANSACTION_CONFLICT,
            RestCode.ILLEGAL_STATE,
            *_OF_HOME,
        ),
    )


ONE_SHOT: Final = _one_shot(_PLAIN), _one_shot(_OF_GROUP)
"""Without a group, and below a group; so are those that follow."""
INIT: Final = _init(_PLAIN), _init(_OF_GROUP)
COMMIT: Final = _commit(_PLAIN), _commit(_OF_GROUP)
ABORT: Final = _abort(_PLAIN), _abort(_OF_GROUP)
DESCRIBE: Final = _describe(_PLAIN), _describe(_OF_GROUP)
LIST: Final = _list(_PLAIN), _list(_OF_GROUP)
FORGET: Final = _forget(_PLAIN), _forget(_OF_GROUP)
