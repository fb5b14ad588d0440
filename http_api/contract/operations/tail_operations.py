"""Operations that read whole topics, and the tails of v2 and v3: parts and declarations.

What a tail takes and sends is declared once and used by the four paths that have tails; the
partition's path of v2 is in `fetch_operations.py`.
"""

from __future__ import annotations

from typing import Final

from http_api.contract.errors import RestCode
from http_api.contract.event_stream import EVENT_STREAM
from http_api.contract.media_types import JSON, LINES, NDJSON, V2_BINARY, V2_JSON
from http_api.contract.operations.declaration import CLUSTER, Header, Operation, Reply
from http_api.contract.operations.fetch_operations import (
    AFTER,
    DIVERGING_HEADERS,
    END_OFFSET,
    END_TIMESTAMP,
    FOLLOW,
    HEARTBEAT_MS,
    LAST_EVENT_ID_HEADER,
    LEADER_EPOCH,
    MAX_BYTES,
    OFFSET,
    RACK,
    RACK_HEADER,
    READ_TOPIC_ID,
    TAIL_HEADERS,
    TIMEOUT,
    TIMESTAMP,
    TOKEN_EXAMPLE,
)
from http_api.contract.operations.parameters import WordParameter
from http_api.contract.operations.schemas import AnyValue
from http_api.contract.operations.shared import (
    FROM_LEADER,
    ISOLATION,
    LINKS,
    SEEN_EPOCH,
    TOPIC,
    TOPIC_ID,
)

_TAG: Final = "Records"
_PARTITION: Final = "/topics/{topic_name}/partitions/{partition_id}/records"
_TOPIC: Final = "/topics/{topic_name}/records"
_TAIL: Final = (
    "With `follow=true`, or as Server-Sent Events, the answer has no end of its own: records are "
    "sent as they come."
)

INCLUDE: Final = WordParameter(
    "include",
    words=("timestamp", "tokens", "tokens,timestamp"),
    description=(
        "`timestamp`: stored lines have their time. `tokens`: of a tail in "
        f"`{NDJSON}`, lines with the token to go on from."
    ),
    example="timestamp",
)
V3_INCLUDE: Final = WordParameter(
    "include",
    words=("tokens",),
    description=f"`tokens`: of a tail in `{NDJSON}`, lines with the token to go on from.",
    example="tokens",
)
NEXT: Final = "Quorumlog-Next"

_NEXT: Final = Header(
    NEXT, "Token of what comes behind this page: send it as `after`.", TOKEN_EXAMPLE
)
_END_REACHED: Final = Header(
    "Quorumlog-End-Reached", "`true` where the read has reached its bound.", "true"
)
_TOPIC_ID: Final = Header("Quorumlog-Topic-Id", "Id of the topic.", TOPIC_ID, is_constant=True)
_ERRORS: Final = (RestCode.LOG_TRUNCATED, RestCode.TOPIC_CHANGED, *FROM_LEADER)
_STORED: Final = {
    "partition": 0,
    "offset": 12,
    "key": AnyValue("alice"),
    "value": AnyValue({"id": 1}),
}
_STORED_LINE: Final = '{"partition":0,"offset":12,"key":"alice","value":{"id":1}}'
_V2_RECORD: Final = {
    "topic": TOPIC,
    "key": AnyValue("alice"),
    "value": AnyValue({"id": 1}),
    "partition": 0,
    "offset": 12,
    "timestamp": 1_795_354_422_224,
}
_V3_RECORD: Final = {
    "partition_id": 0,
    "offset": 12,
    "leader_epoch": 5,
    "timestamp": "2026-01-31T12:00:00.000Z",
    "headers": [{"name": "trace", "value": "AQI="}],
    "key": {"type": "STRING", "data": AnyValue("alice")},
    "value": {"type": "JSON", "data": AnyValue({"id": 1})},
}
_V3_LINE: Final = '{"partition_id":0,"offset":12,"leader_epoch":5,…}'

RECORDS: Final = Operation(
    "GET",
    _TOPIC,
    tag=_TAG,
    carries_records=True,
    summary="Read records of a whole topic",
    description=(
        "A page holds some records of each partition in turn, and the token of what comes behind "
        f"it. {_TAIL} A topic with more than 256 partitions is read partition by partition."
    ),
    parameters=(
        OFFSET,
        TIMESTAMP,
        AFTER,
        END_TIMESTAMP,
        MAX_BYTES,
        TIMEOUT,
        INCLUDE,
        FOLLOW,
        HEARTBEAT_MS,
        ISOLATION,
    ),
    headers=(LAST_EVENT_ID_HEADER,),
    replies=(
        Reply(
            200,
            "Records.",
            {
                V2_JSON: [_V2_RECORD],
                V2_BINARY: [_V2_RECORD | {"key": "YWxpY2U=", "value": "eyJpZCI6MX0="}],
                NDJSON: _STORED_LINE + "\n",
                LINES: [_STORED],
                EVENT_STREAM: f"id: {TOKEN_EXAMPLE}\ndata: {_STORED_LINE}\n\n",
            },
            headers=(_NEXT, _END_REACHED, _TOPIC_ID, *TAIL_HEADERS),
        ),
    ),
    errors=(
        RestCode.NOT_ACCEPTABLE,
        RestCode.TOPIC_NOT_FOUND,
        RestCode.PARTITION_NOT_FOUND,
        RestCode.JSON_CONVERSION,
        *_ERRORS,
    ),
    error_headers=DIVERGING_HEADERS,
)


def _v3_reply(path: tuple[object, ...], *headers: Header) -> Reply:
    url = LINKS.url(*path)
    metadata = {"self": url, "next": f"{url}?after={TOKEN_EXAMPLE}"}
    return Reply(
        200,
        "Records.",
        {
            JSON: {"kind": "KafkaRecordList", "metadata": metadata, "data": [_V3_RECORD]},
            NDJSON: _V3_LINE + "\n",
            EVENT_STREAM: f"id: {TOKEN_EXAMPLE}\ndata: {_V3_LINE}\n\n",
        },
        headers=(_TOPIC_ID, *headers, *TAIL_HEADERS),
    )


V3_TOPIC: Final = Operation(
    "GET",
    CLUSTER + _TOPIC,
    tag=_TAG,
    carries_records=True,
    summary="List records of a whole topic (v3)",
    description=f"`metadata.next` is the next page, null where the bound is reached. {_TAIL}",
    parameters=(
        OFFSET,
        TIMESTAMP,
        AFTER,
        END_TIMESTAMP,
        MAX_BYTES,
        TIMEOUT,
        V3_INCLUDE,
        FOLLOW,
        HEARTBEAT_MS,
        ISOLATION,
    ),
    headers=(LAST_EVENT_ID_HEADER,),
    replies=(_v3_reply(("topics", TOPIC, "records"), _NEXT, _END_REACHED),),
    errors=(RestCode.TOPIC_NOT_FOUND, RestCode.PARTITION_NOT_FOUND, *_ERRORS),
    error_headers=DIVERGING_HEADERS,
)
V3_PARTITION: Final = Operation(
    "GET",
    CLUSTER + _PARTITION,
    tag=_TAG,
    carries_records=True,
    summary="List records of a partition (v3)",
    description=f"`metadata.next` is the next page, null where the bound is reached. {_TAIL}",
    parameters=(
        OFFSET,
        TIMESTAMP,
        AFTER,
        END_OFFSET,
        END_TIMESTAMP,
        MAX_BYTES,
        TIMEOUT,
        V3_INCLUDE,
        FOLLOW,
        HEARTBEAT_MS,
        ISOLATION,
        RACK,
        LEADER_EPOCH,
        SEEN_EPOCH,
        READ_TOPIC_ID,
    ),
    headers=(RACK_HEADER, LAST_EVENT_ID_HEADER),
    replies=(_v3_reply(("topics", TOPIC, "partitions", 0, "records")),),
    errors=(RestCode.PARTITION_NOT_FOUND, *_ERRORS),
    error_headers=DIVERGING_HEADERS,
)
