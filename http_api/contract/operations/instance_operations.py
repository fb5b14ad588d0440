"""Operations on consumer instances, as in Confluent's REST Proxy v2."""

from __future__ import annotations

from typing import Any, Final

from http_api.contract import group_shapes as shapes
from http_api.contract.errors import RestCode
from http_api.contract.media_types import V2, V2_BINARY, V2_JSON, V2_TEXT
from http_api.contract.operations.declaration import (
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
    ClampedParameter,
    FlagParameter,
    TextParameter,
)
from http_api.contract.operations.schemas import AnyValue, nullable
from http_api.contract.operations.shared import (
    BASE_URL,
    FROM_COORDINATOR,
    GROUP,
    INSTANCE,
    ISOLATION,
    NAME_SCHEMA,
    TOPIC,
)

_TAG: Final = "Consumer instances"
_GROUP: Final = "/consumers/{group_name}"
_ONE: Final = _GROUP + "/instances/{instance}"
_ERRORS: Final = (
    RestCode.UNKNOWN_TOPIC_OR_PARTITION,
    RestCode.NOT_ACCEPTABLE,
    RestCode.ILLEGAL_STATE,
    RestCode.FENCED_INSTANCE_ID,
    *FROM_COORDINATOR,
)
_OF_A_BODY: Final = (
    RestCode.PARTITION_NOT_FOUND,
    RestCode.UNPROCESSABLE,
    RestCode.CONSUMER_CONFIG,
)

TIMEOUT: Final = ClampedParameter(
    "timeout",
    minimum=0,
    maximum="max_fetch_wait_ms",
    description="Milliseconds to wait for a first record; negative: the instance's default.",
    example=1_000,
)
MAX_BYTES: Final = ClampedParameter(
    "max_bytes",
    minimum=1,
    maximum="max_fetch_bytes",
    description="Bytes after which the answer is cut; negative: the default.",
    example=65_536,
)
AFTER: Final = TextParameter(
    "after",
    description=(
        "Token of an answer: everything up to it was received. `0`: on from the last commit."
    ),
    example="7-1",
)
ASYNC: Final = FlagParameter(
    "async",
    description="Confluent's; without an effect: every commit is answered when it is done.",
    example=False,
)
LEAVE: Final = FlagParameter(
    "leave", description="A static member gives its seat up at once.", example=True
)

_PLACE: Final = {
    "topic": NAME_SCHEMA,
    "partition": {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
}
_OFFSET: Final = {
    "type": "integer",
    "format": "int64",
    "minimum": 0,
    "maximum": OFFSET_MAX,
}
_EPOCH: Final = {
    "type": ["integer", "null"],
    "minimum": 0,
    "maximum": INT32_MAX,
    "description": "Leader epoch of the record right before the offset (KIP-320).",
}
_EXAMPLE_PLACE: Final = {"topic": TOPIC, "partition": 0}


def _rows(fields: dict[str, Any], *needed: str) -> dict[str, Any]:
    return {
        "type": "array",
        "maxItems": 10_000,
        "items": {
            "type": "object",
            "properties": {**_PLACE, **fields},
            "required": ["topic", "partition", *needed],
        },
    }


def _call(
    method: str,
    path: str,
    summary: str,
    *replies: Reply,
    body: Body | None = None,
    parameters: tuple[TextParameter | FlagParameter | ClampedParameter, ...] = (),
    description: str = "",
) -> Operation:
    """Return the declaration of a call of an instance; ``path`` lies below the instance's."""
    return Operation(
        method,
        _ONE + path,
        tag=_TAG,
        summary=summary,
        replies=replies or (no_content(content_type=V2),),
        parameters=parameters,
        body=body,
        errors=_ERRORS if body is None else (*_ERRORS, *_OF_A_BODY),
        description=description,
    )


_PARTITIONS_BODY: Final = Body(
    fields={"partitions": _rows({})},
    needed=("partitions",),
    example={"partitions": [_EXAMPLE_PLACE]},
    media_types=(V2,),
)
_TEXT: Final = {"type": ["string", "null"]}
_TEXT_OR_NUMBER: Final = {"type": ["string", "integer", "null"]}
_TEXT_OR_FLAG: Final = {"type": ["string", "boolean", "null"]}

CREATE: Final = Operation(
    "POST",
    _GROUP,
    tag=_TAG,
    summary="Create an instance of a group",
    description="Kafka's other settings are ignored, and named in an answer's header.",
    body=Body(
        fields={
            "id": _TEXT,
            "name": _TEXT,
            "format": {"enum": ["json", "binary", "text", "avro", "jsonschema", "protobuf", None]},
            "auto.offset.reset": _TEXT,
            "auto.commit.enable": _TEXT_OR_FLAG,
            "enable.auto.commit": _TEXT_OR_FLAG,
            "auto.commit.interval.ms": _TEXT_OR_NUMBER,
            "session.timeout.ms": _TEXT_OR_NUMBER,
            "fetch.min.bytes": _TEXT_OR_NUMBER,
            "unreadable.records": {"enum": ["stop", "mark", None]},
            "consumer.request.timeout.ms": _TEXT_OR_NUMBER,
            "max.poll.records": _TEXT_OR_NUMBER,
            "isolation.level": {"enum": [*ISOLATION.words, None]},
            "client.id": _TEXT,
            "client.rack": _TEXT,
            "group.instance.id": _TEXT,
            "partition.assignment.strategy": {"type": ["string", "array", "null"]},
        },
        example={"name": INSTANCE, "format": "json", "auto.offset.reset": "earliest"},
        media_types=(V2,),
        is_optional=True,
        is_open=True,
    ),
    replies=(
        reply(
            shapes.created_instance(INSTANCE, f"{BASE_URL}/consumers/{GROUP}/instances/{INSTANCE}"),
            content_type=V2,
            headers=(
                Header(shapes.IGNORED_HEADER, "Settings without an effect here.", "check.crcs"),
            ),
        ),
    ),
    errors=(*_ERRORS, *_OF_A_BODY, RestCode.INSTANCE_EXISTS, RestCode.INVALID_SCHEMA),
)
DELETE: Final = _call("DELETE", "", "Remove an instance", parameters=(AFTER, LEAVE))
SUBSCRIBE: Final = _call(
    "POST",
    "/subscription",
    "Subscribe to topics",
    body=Body(
        fields={
            "topics": {"type": ["array", "null"], "maxItems": 10_000, "items": NAME_SCHEMA},
            "topic_pattern": {"type": ["string", "null"], "minLength": 1},
        },
        example={"topics": [TOPIC]},
        media_types=(V2,),
    ),
    description="Exactly one of the two. Answered after the join.",
)
SUBSCRIPTION: Final = _call(
    "GET",
    "/subscription",
    "List the topics of the subscription",
    reply({"topics": [TOPIC]}, content_type=V2),
)
UNSUBSCRIBE: Final = _call("DELETE", "/subscription", "End the subscription")
ASSIGN: Final = _call("POST", "/assignments", "Assign partitions by hand", body=_PARTITIONS_BODY)
ASSIGNMENTS: Final = _call(
    "GET",
    "/assignments",
    "List the partitions that the instance owns",
    reply({"partitions": [_EXAMPLE_PLACE]}, content_type=V2),
)
RECORDS: Final = Operation(
    "GET",
    _ONE + "/records",
    tag=_TAG,
    summary="Read the next records of the group",
    carries_records=True,
    description="Moves positions, so it is no pure read. Waits for a first record.",
    parameters=(TIMEOUT, MAX_BYTES, AFTER, ISOLATION),
    replies=(
        Reply(
            200,
            "Records, in the instance's format.",
            {
                V2: [],
                V2_JSON: [
                    _EXAMPLE_PLACE
                    | {"key": AnyValue("alice"), "value": AnyValue({"id": 1}), "offset": 12}
                ],
                V2_BINARY: [_EXAMPLE_PLACE | {"key": "YQ==", "value": "MQ==", "offset": 12}],
                V2_TEXT: [_EXAMPLE_PLACE | {"key": "alice", "value": "1", "offset": 12}],
            },
            headers=(
                Header(shapes.READ_TOKEN_HEADER, "Token of this answer.", "7-1", is_constant=True),
                Header(
                    shapes.RESUMED_HEADER, "`commit`: the token was not known any more.", "commit"
                ),
                Header(
                    shapes.BLOCKED_HEADER,
                    "Records at which the instance stands: its format can't show them.",
                    "orders-0@17",
                ),
                Header(
                    shapes.MOVED_HEADER,
                    "Positions that were moved: the log does not hold them any more.",
                    "orders-0 100->80 truncated",
                ),
            ),
        ),
    ),
    errors=(
        *_ERRORS,
        RestCode.METHOD_NOT_ALLOWED,
        RestCode.FORMAT_MISMATCH,
        RestCode.INVALID_SCHEMA,
        RestCode.JSON_CONVERSION,
        RestCode.LOG_TRUNCATED,
    ),
)
COMMIT: Final = _call(
    "POST",
    "/offsets",
    "Commit offsets, or everything that was delivered",
    reply(
        [],
        "Done. An instance in Strimzi's dialect is answered 204 instead.",
        content_type=V2,
    ),
    no_content("Done, in Strimzi's dialect.", content_type=V2),
    parameters=(ASYNC, AFTER),
    body=Body(
        fields={
            "offsets": _rows(
                {"offset": _OFFSET, "leader_epoch": _EPOCH, "metadata": _TEXT}, "offset"
            )
        },
        example={"offsets": [_EXAMPLE_PLACE | {"offset": 12}]},
        media_types=(V2,),
        is_optional=True,
    ),
    description="Without a body, or with `{}`, everything delivered is committed.",
)
OFFSETS: Final = _call(
    "GET",
    "/offsets",
    "Read committed offsets",
    reply(
        {"offsets": [_EXAMPLE_PLACE | {"offset": 13, "metadata": ""}]},
        content_type=V2,
    ),
    description="A body with `partitions` names those to read; without one, those owned.",
)
SEEK: Final = _call(
    "POST",
    "/positions",
    "Set the next offsets to read, by offset or by time",
    body=Body(
        fields={
            "offsets": nullable(_rows({"offset": _OFFSET, "leader_epoch": _EPOCH}, "offset")),
            "timestamps": nullable(
                _rows({"timestamp": {"type": ["string", "integer"]}}, "timestamp")
            ),
        },
        example={"offsets": [_EXAMPLE_PLACE | {"offset": 12}]},
        media_types=(V2,),
    ),
)
POSITIONS: Final = _call(
    "GET",
    "/positions",
    "Read the next offset of each partition that the instance owns",
    reply({"offsets": [_EXAMPLE_PLACE | {"offset": 12, "leader_epoch": 3}]}, content_type=V2),
)
SEEK_TO_BEGINNING: Final = _call(
    "POST", "/positions/beginning", "Go on at the start of partitions", body=_PARTITIONS_BODY
)
SEEK_TO_END: Final = _call(
    "POST", "/positions/end", "Go on at the end of partitions", body=_PARTITIONS_BODY
)
