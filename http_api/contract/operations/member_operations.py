"""Operations of members that read for themselves: join, heartbeat, and the end of any member."""

from __future__ import annotations

from typing import Final

from http_api.contract import group_shapes as shapes
from http_api.contract.errors import RestCode
from http_api.contract.group_resources import AssignedPartition, GroupMembership
from http_api.contract.operations.declaration import (
    CLUSTER,
    Body,
    Header,
    Operation,
    no_content,
    reply,
)
from http_api.contract.operations.parameters import INT32_MAX, FlagParameter, TextParameter
from http_api.contract.operations.schemas import nullable
from http_api.contract.operations.shared import (
    BASE_URL,
    FROM_COORDINATOR,
    GROUP,
    INSTANCE,
    LINKS,
    NAME_SCHEMA,
    TOPIC,
)

_TAG: Final = "Consumer groups"
_CONSUMERS: Final = f"{CLUSTER}/{shapes.GROUPS}" + "/{consumer_group_id}/consumers"
_CONSUMER: Final = _CONSUMERS + "/{consumer_id}"
COORDINATOR: Final = Header(
    shapes.COORDINATOR_URL_HEADER, "URL of the broker that coordinates the group.", BASE_URL
)
OWNED_MAX: Final = 10_000
"""Most partitions that a heartbeat names: as many as a topic may have."""
TEXT_CHARS_MAX: Final = 249
"""Longest static id, client id and rack."""
SESSION_TIMEOUT_MS: Final = 45_000
"""Session time-out of a join that names none; Kafka's."""
REBALANCE_TIMEOUT_MS: Final = 300_000
"""Rebalance time-out of a join that names none; Kafka's."""

_TEXT: Final = {"type": ["string", "null"], "maxLength": TEXT_CHARS_MAX}
_TIMEOUT: Final = {"type": ["integer", "null"], "minimum": 1_000, "maximum": 3_600_000}
_SUBSCRIPTION: Final = {
    "topics": {"type": ["array", "null"], "items": NAME_SCHEMA, "maxItems": 1_000},
    "topic_pattern": {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": 256,
        "description": "Regular expression over whole names of topics, in place of `topics`.",
    },
}
_FOUND: Final = reply(
    shapes.membership(
        LINKS,
        GroupMembership(
            group=GROUP,
            member_id=INSTANCE,
            static_id="seat-1",
            member_epoch=4,
            group_epoch=4,
            assignor="uniform",
            heartbeat_interval_ms=5_000,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            assignment=(
                AssignedPartition(
                    topic=TOPIC,
                    topic_id="35asiJtYzHQGSYRuJbFriA",
                    partition=0,
                    offset=1_000,
                    leader_epoch=3,
                    is_committed=True,
                ),
            ),
            revoked=((TOPIC, 1),),
        ),
    ),
    "What the member is to own, and where its group stands there.",
    headers=(COORDINATOR,),
)
_ERRORS: Final = (
    RestCode.UNKNOWN_TOPIC_OR_PARTITION,
    RestCode.ILLEGAL_STATE,
    RestCode.FENCED_INSTANCE_ID,
    *FROM_COORDINATOR,
)

JOIN: Final = Operation(
    "POST",
    _CONSUMERS,
    tag=_TAG,
    summary="Join a group as a member that reads for itself",
    description="An equal join gets the same answer while the first one may be lost.",
    body=Body(
        fields={
            "consumer_id": NAME_SCHEMA,
            "instance_id": _TEXT,
            "client_id": _TEXT,
            "rack": _TEXT,
            **_SUBSCRIPTION,
            "assignor": nullable({"type": "string"}),
            "auto_offset_reset": {"type": "string", "enum": ["earliest", "latest", "none"]},
            "session_timeout_ms": _TIMEOUT,
            "rebalance_timeout_ms": _TIMEOUT,
        },
        needed=("consumer_id",),
        example={"consumer_id": INSTANCE, "topics": [TOPIC]},
    ),
    replies=(_FOUND,),
    errors=(RestCode.INSTANCE_EXISTS, RestCode.CONSUMER_CONFIG, *_ERRORS),
)
HEARTBEAT: Final = Operation(
    "POST",
    _CONSUMER + ":heartbeat",
    tag=_TAG,
    summary="Report what a member owns, and read what it is to own",
    description=(
        "Answered at once if both differ, else after `wait_ms`. A revoked partition is given up by "
        "a heartbeat whose `owned` does not name it."
    ),
    body=Body(
        fields={
            "member_epoch": {"type": "integer", "minimum": -INT32_MAX, "maximum": INT32_MAX},
            "owned": {
                "type": "array",
                "maxItems": OWNED_MAX,
                "items": {
                    "type": "object",
                    "properties": {
                        "topic_name": NAME_SCHEMA,
                        "partitions": {
                            "type": "array",
                            "maxItems": OWNED_MAX,
                            "items": {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
                        },
                    },
                    "required": ["topic_name", "partitions"],
                },
            },
            **_SUBSCRIPTION,
            "wait_ms": {
                "type": ["integer", "null"],
                "minimum": 0,
                "maximum": 1_200_000,
                "description": "At most a third of the session time-out.",
            },
        },
        needed=("member_epoch", "owned"),
        example={
            "member_epoch": 4,
            "owned": [{"topic_name": TOPIC, "partitions": [0]}],
            "wait_ms": 10_000,
        },
    ),
    replies=(_FOUND,),
    errors=_ERRORS,
)

KEEP_SEAT: Final = FlagParameter(
    "keep_seat",
    description="`true`: a static member keeps its seat for its session time-out.",
    example="true",
)
STATIC_ID: Final = TextParameter(
    "instance_id",
    is_needed=True,
    length_max=TEXT_CHARS_MAX,
    description="The `group.instance.id` of the member.",
    example="seat-1",
)
LEAVE: Final = Operation(
    "DELETE",
    _CONSUMER,
    tag=_TAG,
    summary="Leave a group, or evict a member, without a commit",
    parameters=(KEEP_SEAT,),
    replies=(no_content("It is gone.", headers=(COORDINATOR,)),),
    errors=_ERRORS,
)
LEAVE_BY_STATIC_ID: Final = Operation(
    "DELETE",
    _CONSUMERS,
    tag=_TAG,
    summary="Remove the member with a static id, without a commit",
    parameters=(STATIC_ID, KEEP_SEAT),
    replies=(no_content("It is gone.", headers=(COORDINATOR,)),),
    errors=_ERRORS,
)
