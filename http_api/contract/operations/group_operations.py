"""Operations on consumer groups: v3 groups, their members, assignments, lags and offsets."""

from __future__ import annotations

from typing import Final

from http_api.contract import group_shapes as shapes
from http_api.contract.errors import RestCode
from http_api.contract.group_resources import (
    CommittedOffset,
    GroupBlock,
    GroupInfo,
    GroupMember,
    MovedPosition,
)
from http_api.contract.operations.declaration import CLUSTER, Body, Operation, no_content, reply
from http_api.contract.operations.member_operations import COORDINATOR
from http_api.contract.operations.parameters import INT32_MAX, OFFSET_MAX
from http_api.contract.operations.schemas import nullable
from http_api.contract.operations.shared import (
    FROM_COORDINATOR,
    GROUP,
    INSTANCE,
    LINKS,
    NAME_SCHEMA,
    TOPIC,
    VALIDATE_ONLY,
    listing,
    resource,
)

_TAG: Final = "Consumer groups"
_GROUPS: Final = f"/{shapes.GROUPS}"
_GROUP: Final = _GROUPS + "/{consumer_group_id}"
_CONSUMERS: Final = _GROUP + "/consumers"
_CONSUMER: Final = _CONSUMERS + "/{consumer_id}"
_PLACE: Final = "/{topic_name}/partitions/{partition_id}"
_ERRORS: Final = (RestCode.GROUP_NOT_FOUND, *FROM_COORDINATOR)
_REMOVAL: Final = (
    RestCode.GROUP_NOT_FOUND,
    RestCode.UNKNOWN_TOPIC_OR_PARTITION,
    RestCode.ILLEGAL_STATE,
    *FROM_COORDINATOR,
)

_GROUP_EXAMPLE: Final = shapes.group(
    LINKS,
    GroupInfo(
        group=GROUP,
        state="STABLE",
        assignor="uniform",
        coordinator=2,
        is_simple=False,
        blocked=(
            GroupBlock(
                topic=TOPIC,
                partition=0,
                offset=17,
                member_id=INSTANCE,
                message="value deserialization error for format json at offset 17",
                since="2026-01-31T12:00:00.000Z",
            ),
        ),
        moved=(
            MovedPosition(
                topic=TOPIC,
                partition=0,
                consumer=INSTANCE,
                from_offset=100,
                to_offset=80,
                cause="truncated",
                time_ms=1_795_354_422_224,
            ),
        ),
    ),
    4,
)
_CONSUMER_EXAMPLE: Final = shapes.consumer(
    LINKS,
    GROUP,
    GroupMember(member_id=INSTANCE, client_id="app", member_epoch=4, static_id="seat-1"),
    is_manual=False,
)
_ASSIGNMENT: Final = shapes.assignment(LINKS, GROUP, INSTANCE, TOPIC, 0)
_COMMITTED: Final = CommittedOffset(
    topic=TOPIC, partition=0, offset=1_000, metadata="", lag=42, blocked_offset=1_000
)
_LAG: Final = shapes.ConsumerLag(
    committed=_COMMITTED, end_offset=1_042, consumer=INSTANCE, client_id="app"
)
_OFFSET_ROW: Final = {
    "topic_name": NAME_SCHEMA,
    "partition_id": {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
    "offset": {
        "type": "integer",
        "format": "int64",
        "minimum": 0,
        "maximum": OFFSET_MAX,
        "description": "The next offset to read.",
    },
    "leader_epoch": {
        "type": ["integer", "null"],
        "minimum": 0,
        "maximum": INT32_MAX,
        "description": "Leader epoch of the record right before the offset (KIP-320).",
    },
    "metadata": nullable({"type": "string"}),
}

LIST: Final = listing(_GROUPS, _TAG, "List the groups", _GROUP_EXAMPLE, errors=FROM_COORDINATOR)
DESCRIBE: Final = resource(_GROUP, _TAG, "Describe a group", _GROUP_EXAMPLE, errors=_ERRORS)
LIST_CONSUMERS: Final = listing(
    _CONSUMERS, _TAG, "List the members of a group", _CONSUMER_EXAMPLE, errors=_ERRORS
)
CONSUMER: Final = resource(
    _CONSUMER, _TAG, "Describe a member of a group", _CONSUMER_EXAMPLE, errors=_ERRORS
)
LIST_ASSIGNMENTS: Final = listing(
    _CONSUMER + "/assignments",
    _TAG,
    "List the partitions that a member owns",
    _ASSIGNMENT,
    errors=_ERRORS,
)
ASSIGNMENT: Final = resource(
    _CONSUMER + "/assignments" + _PLACE,
    _TAG,
    "Describe a partition that a member owns",
    _ASSIGNMENT,
    errors=_ERRORS,
)
LIST_LAGS: Final = listing(
    _GROUP + "/lags",
    _TAG,
    "List a group's lag in each partition",
    shapes.lag(LINKS, GROUP, _LAG),
    errors=_ERRORS,
    description="Of every partition that the group committed or that a member reads.",
)
LAG: Final = resource(
    _GROUP + "/lags" + _PLACE,
    _TAG,
    "Read a group's lag in one partition",
    shapes.lag(LINKS, GROUP, _LAG),
    errors=(RestCode.UNKNOWN_TOPIC_OR_PARTITION, *_ERRORS),
)
LAG_SUMMARY: Final = resource(
    _GROUP + "/lag-summary",
    _TAG,
    "Read a group's largest lag, and the sum of all",
    shapes.lag_summary(LINKS, GROUP, [_LAG]),
    errors=_ERRORS,
)
LIST_OFFSETS: Final = listing(
    _GROUP + "/offsets",
    _TAG,
    "List a group's committed offsets",
    shapes.offset(_COMMITTED),
    kind="KafkaConsumerGroupOffset",
    errors=FROM_COORDINATOR,
)
COMMIT: Final = Operation(
    "PATCH",
    CLUSTER + _GROUP + "/offsets",
    tag=_TAG,
    summary="Commit offsets of a group",
    description=(
        "While the group has live members, `member_id` and `member_epoch` must be a live member's."
    ),
    body=Body(
        fields={
            "data": {
                "type": "array",
                "maxItems": 10_000,
                "items": {
                    "type": "object",
                    "properties": _OFFSET_ROW,
                    "required": ["topic_name", "partition_id", "offset"],
                },
            },
            "member_id": nullable(NAME_SCHEMA),
            "member_epoch": {"type": ["integer", "null"], "minimum": 0, "maximum": INT32_MAX},
        },
        needed=("data",),
        example={"data": [{"topic_name": TOPIC, "partition_id": 0, "offset": 1_000}]},
    ),
    replies=(no_content("The offsets are committed.", headers=(COORDINATOR,)),),
    errors=(
        RestCode.FENCED_INSTANCE_ID,
        RestCode.PARTITION_NOT_FOUND,
        RestCode.UNKNOWN_TOPIC_OR_PARTITION,
        RestCode.ILLEGAL_STATE,
        *FROM_COORDINATOR,
    ),
)


SKIP_ROW_FIELDS: Final = ("topic_name", "partition_id", "offset")
SKIPPED_MAX: Final = 1_000
"""Most records that one request steps over."""
SKIP: Final = Operation(
    "POST",
    CLUSTER + _GROUP + "/offsets:skip",
    tag=_TAG,
    summary="Step over records that stop members of a group",
    description=(
        "Exactly these records are left out, until a commit passes them. A record that stops no "
        "member is refused: then nothing is done."
    ),
    body=Body(
        fields={
            "data": {
                "type": "array",
                "minItems": 1,
                "maxItems": SKIPPED_MAX,
                "items": {
                    "type": "object",
                    "properties": {
                        name: _OFFSET_ROW[name] for name in ("topic_name", "partition_id")
                    }
                    | {
                        "offset": {
                            "type": "integer",
                            "format": "int64",
                            "minimum": 0,
                            "maximum": OFFSET_MAX,
                            "description": "The record's own offset.",
                        }
                    },
                    "required": list(SKIP_ROW_FIELDS),
                    "additionalProperties": False,
                },
            }
        },
        needed=("data",),
        example={"data": [{"topic_name": TOPIC, "partition_id": 0, "offset": 17}]},
    ),
    replies=(no_content("The group steps over the records."),),
    errors=(RestCode.GROUP_NOT_FOUND, RestCode.ILLEGAL_STATE, *FROM_COORDINATOR),
)
REPAIR: Final = Operation(
    "POST",
    CLUSTER + _GROUP + ":repair",
    tag=_TAG,
    summary="Let a group go on without records that can't be decoded",
    description=(
        "A record of the group that no broker of this version can decode holds it. Its members "
        "join anew; offsets stay as they are known without those records."
    ),
    body=Body(
        fields={"validate_only": VALIDATE_ONLY},
        example={"validate_only": True},
        is_optional=True,
    ),
    replies=(
        reply(
            shapes.group_repair(
                LINKS,
                GROUP,
                validate_only=True,
                forgotten=[
                    {
                        "partition_id": 3,
                        "offset": 812,
                        "key": f'["lease","{GROUP}"]',
                        "reason": "unknown group record",
                    }
                ],
                members=[INSTANCE],
                offsets=[{"topic_name": TOPIC, "partition_id": 0, "offset": 1_000, "metadata": ""}],
            )
        ),
    ),
    errors=(RestCode.GROUP_NOT_FOUND, RestCode.ILLEGAL_STATE, *FROM_COORDINATOR),
)


def _removal(path: str, summary: str) -> Operation:
    return Operation(
        "DELETE",
        CLUSTER + path,
        tag=_TAG,
        summary=summary,
        replies=(no_content("It is gone."),),
        errors=_REMOVAL,
    )


DELETE: Final = _removal(_GROUP, "Delete a group without live members")
DELETE_OFFSETS: Final = _removal(_GROUP + "/offsets", "Delete all offsets of a group")
DELETE_TOPIC_OFFSETS: Final = _removal(
    _GROUP + "/offsets/{topic_name}", "Delete a group's offsets of a topic"
)
DELETE_OFFSET: Final = _removal(
    _GROUP + "/offsets" + _PLACE, "Delete a group's offset of a partition"
)
