"""Operations of the v2 API that read: the direct fetch, topics, partitions and brokers."""

from __future__ import annotations

from typing import Any, Final

from http_api.contract import v2
from http_api.contract.errors import RestCode
from http_api.contract.event_stream import EVENT_STREAM, LAST_EVENT_ID
from http_api.contract.media_types import (
    DECODED_LENGTH_HEADER,
    LINES,
    NDJSON,
    V2,
    V2_BINARY,
    V2_JSON,
)
from http_api.contract.operations.declaration import Header, Operation, Reply, reply
from http_api.contract.operations.parameters import (
    INT32_MAX,
    FlagParameter,
    IntegerParameter,
    TextParameter,
    WordParameter,
)
from http_api.contract.operations.schemas import AnyValue, ByName
from http_api.contract.operations.shared import (
    BASE_URL,
    FROM_LEADER,
    ISOLATION,
    NOT_PROVEN_MISSING,
    SEEN_EPOCH,
    TOPIC,
    TOPIC_ID,
)
from http_api.contract.tail_tokens import Place, ReadToken, encode_token

_TAG: Final = "Records"
_METADATA: Final = "Topics"
_TOPIC: Final = "/topics/{topic_name}"
_PARTITION: Final = "/topics/{topic_name}/partitions/{partition_id}"
RACK_CHARS_MAX: Final = 255

OFFSET: Final = TextParameter(
    "offset",
    description=(
        "Where the read begins: an offset, `-N` for the last N, `earliest`, `latest`, "
        "`@MILLISECONDS` or an ISO 8601 time. A page of a partition needs this, `timestamp` or "
        "`after`; all else begins at the end without."
    ),
    example="earliest",
)
TIMESTAMP: Final = IntegerParameter(
    "timestamp",
    description="The read begins at the first record at or after this time in milliseconds.",
    example=1_795_354_422_224,
)
END_OFFSET: Final = IntegerParameter(
    "end_offset", description="The read ends before this offset.", example=1_000
)
END_TIMESTAMP: Final = IntegerParameter(
    "end_timestamp",
    description="The read ends before the first record at or after this time in milliseconds.",
    example=1_795_354_482_224,
)
MAX_BYTES: Final = IntegerParameter(
    "max_bytes",
    default=1_048_576,
    minimum=1,
    maximum="max_fetch_bytes",
    description="Bytes after which the answer is cut, between records; it has at least one.",
    example=65_536,
)
TIMEOUT: Final = IntegerParameter(
    "timeout",
    default=1_000,
    maximum="max_fetch_wait_ms",
    description="Milliseconds to wait for a first record.",
    example=1_000,
)
INCLUDE: Final = WordParameter(
    "include",
    words=("timestamp", "batches", "tokens", "tokens,timestamp"),
    description=(
        "`timestamp`: stored lines have their time. `batches`: a line before the lines of each "
        f"batch has times and formats; only of a page as `{NDJSON}`. `tokens`: of a tail as "
        f"`{NDJSON}`, lines with the token to go on from."
    ),
    example="timestamp",
)
FRAMES: Final = WordParameter(
    "frames",
    words=("many",),
    description="`many`: the reader decodes several zstd frames in a row.",
    example="many",
)
RACK: Final = TextParameter(
    "rack",
    length_max=RACK_CHARS_MAX,
    description="Where the reader is: an in-sync replica there may serve it.",
    example="a",
)
RACK_HEADER: Final = TextParameter(
    "Quorumlog-Rack",
    length_max=RACK_CHARS_MAX,
    description="The same as the parameter `rack`.",
    example="a",
)

LEADER_EPOCH: Final = IntegerParameter(
    "leader_epoch",
    maximum=INT32_MAX,
    description=(
        "Epoch of the record before `offset`, as in `Quorumlog-Next-Leader-Epoch`: a log that was "
        "cut or replaced there is noticed."
    ),
    example=5,
)
READ_TOPIC_ID: Final = TextParameter(
    "topic_id",
    pattern="^[A-Za-z0-9_-]{22}$",
    description="Id of the topic that was read so far: another one of its name is noticed.",
    example=TOPIC_ID,
)

# Tails

TOKEN_EXAMPLE: Final = encode_token(ReadToken(TOPIC_ID, (Place(13, 5),), 0))
AFTER: Final = TextParameter(
    "after",
    description="Token behind which the read begins: from a tail, an `id` or `Quorumlog-Next`.",
    example=TOKEN_EXAMPLE,
)
FOLLOW: Final = FlagParameter(
    "follow",
    description=(
        "`true`: a tail, which sends records as they come and has no end of its own. "
        "`max_bytes`, `timeout`, `frames` and `rack` have no meaning for it."
    ),
    example=False,
)
HEARTBEAT_MS: Final = IntegerParameter(
    "heartbeat_ms",
    default=15_000,
    minimum=1_000,
    maximum=60_000,
    description="Milliseconds of silence of a tail after which it shows that it is alive.",
    example=15_000,
)
LAST_EVENT_ID_HEADER: Final = TextParameter(
    LAST_EVENT_ID,
    description="The token behind which a tail goes on; it goes before the URL's.",
    example=TOKEN_EXAMPLE,
)
TAIL_HEADERS: Final = (Header("Cache-Control", "`no-store` of a tail.", "no-store"),)
DIVERGING_HEADERS: Final = (
    Header("Quorumlog-Diverging-Offset", "Where the log differs from what was read.", 80),
    Header("Quorumlog-Diverging-Epoch", "Epoch of the log there.", 4),
)

_RECORD: Final = {
    "topic": TOPIC,
    "key": AnyValue("alice"),
    "value": AnyValue({"id": 1}),
    "partition": 0,
    "offset": 12,
    "timestamp": 1_795_354_422_224,
}
_LINE: Final = {"offset": 12, "key": AnyValue("alice"), "value": AnyValue({"id": 1})}
_STORED_LINE: Final = '{"offset":12,"key":"alice","value":{"id":1}}'
_HEADERS: Final = (
    Header("Quorumlog-High-Watermark", "The high watermark.", 13),
    Header("Quorumlog-Log-Start-Offset", "The first offset of the log.", 0),
    Header("Quorumlog-Next-Offset", "Where the next read goes on.", 13),
    Header("Quorumlog-Next-Leader-Epoch", "Epoch that belongs to the next offset.", 5),
    Header("Quorumlog-Leader", "Id of the leader.", 2),
    Header("Quorumlog-Leader-Epoch", "Epoch of the leader.", 5),
    Header("Quorumlog-Topic-Id", "Id of the topic; another one: made anew.", TOPIC_ID),
    Header("Quorumlog-Leader-Url", "URL of the leader.", BASE_URL),
    Header("Quorumlog-Served-By", "Id of the replica that served, with `rack`.", 1),
    Header("Quorumlog-Served-By-Url", "Its URL.", BASE_URL),
    Header("Quorumlog-End-Offset", "The bound of the read, as an offset.", 1_000),
    Header("Quorumlog-End-Reached", "`true` where the read has reached its bound.", "true"),
    Header(DECODED_LENGTH_HEADER, "Bytes of the body once decoded, with zstd.", 52),
)

RECORDS: Final = Operation(
    "GET",
    _PARTITION + "/records",
    tag=_TAG,
    summary="Read records from a position on",
    carries_records=True,
    description=(
        "Waits for a first record up to `timeout`, then the answer is empty. With `follow=true`, "
        "or as Server-Sent Events, the answer has no end of its own: records are sent as they come."
    ),
    parameters=(
        OFFSET,
        TIMESTAMP,
        END_OFFSET,
        END_TIMESTAMP,
        MAX_BYTES,
        TIMEOUT,
        INCLUDE,
        FRAMES,
        RACK,
        ISOLATION,
        LEADER_EPOCH,
        SEEN_EPOCH,
        READ_TOPIC_ID,
        AFTER,
        FOLLOW,
        HEARTBEAT_MS,
    ),
    headers=(RACK_HEADER, LAST_EVENT_ID_HEADER),
    replies=(
        Reply(
            200,
            "Records.",
            {
                V2_JSON: [_RECORD],
                V2_BINARY: [_RECORD | {"key": "YWxpY2U=", "value": "eyJpZCI6MX0="}],
                NDJSON: _STORED_LINE + "\n",
                LINES: [_LINE],
                EVENT_STREAM: f"id: {TOKEN_EXAMPLE}\ndata: {_STORED_LINE}\n\n",
            },
            headers=(*_HEADERS, *TAIL_HEADERS),
        ),
    ),
    errors=(
        RestCode.NOT_FOUND,
        RestCode.PARTITION_NOT_FOUND,
        RestCode.NOT_ACCEPTABLE,
        RestCode.JSON_CONVERSION,
        RestCode.LOG_TRUNCATED,
        RestCode.TOPIC_CHANGED,
        *FROM_LEADER,
    ),
    error_headers=DIVERGING_HEADERS,
)

# Topics, partitions, brokers

_PARTITION_EXAMPLE: Final = v2.partition(0, 2, [2, 3, 1], [2, 3, 1])


def _get(
    path: str,
    summary: str,
    example: Any,
    *errors: RestCode,
    tag: str = _METADATA,
    parameters: tuple[IntegerParameter, ...] = (),
) -> Operation:
    return Operation(
        "GET",
        path,
        tag=tag,
        summary=summary,
        replies=(reply(example, content_type=V2),),
        parameters=parameters,
        errors=(RestCode.NOT_ACCEPTABLE, *errors),
    )


BROKERS: Final = _get(
    "/brokers", "List the ids of the live brokers (v2)", v2.brokers([1, 2, 3]), tag="Brokers"
)
TOPICS: Final = _get("/topics", "List the names of the topics (v2)", [TOPIC])
DESCRIBE_TOPIC: Final = _get(
    _TOPIC,
    "Describe a topic, with its configs (v2)",
    v2.topic(TOPIC, {}, [_PARTITION_EXAMPLE]) | {"configs": ByName({"retention.ms": "3600000"})},
    RestCode.UNKNOWN_TOPIC_OR_PARTITION,
    NOT_PROVEN_MISSING,
)
PARTITIONS: Final = _get(
    _TOPIC + "/partitions",
    "List the partitions of a topic (v2)",
    [_PARTITION_EXAMPLE],
    RestCode.TOPIC_NOT_FOUND,
    NOT_PROVEN_MISSING,
    tag="Partitions",
)
DESCRIBE_PARTITION: Final = _get(
    _PARTITION,
    "Describe a partition (v2)",
    _PARTITION_EXAMPLE,
    RestCode.NOT_FOUND,
    RestCode.TOPIC_NOT_FOUND,
    RestCode.PARTITION_NOT_FOUND,
    NOT_PROVEN_MISSING,
    tag="Partitions",
)
OFFSETS: Final = _get(
    _PARTITION + "/offsets",
    "Read both ends of a partition's log (v2)",
    v2.offsets(0, 13),
    RestCode.NOT_FOUND,
    RestCode.TOPIC_NOT_FOUND,
    RestCode.PARTITION_NOT_FOUND,
    *FROM_LEADER,
    tag="Partitions",
    parameters=(SEEN_EPOCH,),
)
