"""Operations on partitions: v3 describe, replicas, offsets, elections, reassignments."""

from __future__ import annotations

from typing import Final

from http_api.contract import v3
from http_api.contract.errors import RestCode
from http_api.contract.operations.declaration import (
    CLUSTER,
    Body,
    Operation,
    no_content,
    reply,
)
from http_api.contract.operations.parameters import INT32_MAX, WordParameter
from http_api.contract.operations.schemas import Either, nullable
from http_api.contract.operations.shared import (
    FROM_CONTROLLER,
    FROM_LEADER,
    LINKS,
    NAME_SCHEMA,
    NOT_PROVEN_MISSING,
    PAGE_SIZE,
    PAGE_TOKEN,
    SEEN_EPOCH,
    TOPIC,
    VALIDATE_ONLY,
    collection,
    listing,
    resource,
)
from http_api.contract.resources import AddingReplica, PartitionInfo, ReassignmentInfo

_TAG: Final = "Partitions"
_MOVES: Final = "Reassignments"
_PARTITIONS: Final = "/topics/{topic_name}/partitions"
_ONE: Final = "/topics/{topic_name}/partitions/{partition_id}"
_REPLICAS: Final = _ONE + "/replicas"
_REASSIGNMENT: Final = _ONE + "/reassignment"
_UNKNOWN: Final = (RestCode.TOPIC_NOT_FOUND, RestCode.PARTITION_NOT_FOUND, NOT_PROVEN_MISSING)
_ALL: Final = "`-` for the partition means all of the topic's, `-` for both those of the cluster."

PARTITION: Final = PartitionInfo(
    topic=TOPIC,
    partition=0,
    leader=2,
    leader_epoch=5,
    partition_epoch=9,
    replicas=(2, 3, 1),
    isr=(2, 3, 1),
    elr=(),
    adding=(),
    removing=(),
    last_known_leader=2,
)
"""Partition of the examples."""
_EXAMPLE: Final = v3.partition(LINKS, PARTITION)
_MOVE: Final = v3.reassignment(
    LINKS,
    ReassignmentInfo(
        topic=TOPIC,
        partition=0,
        replicas=(2, 3, 4, 1),
        adding=(4,),
        removing=(1,),
        leader_end_offset=1_042,
        progress=(AddingReplica(broker_id=4, log_end_offset=1_000, lag=42, is_in_sync=False),),
    ),
)
_BROKER_IDS: Final = {"type": "array", "items": {"type": "integer", "format": "int32"}}

LIST: Final = listing(
    _PARTITIONS,
    _TAG,
    "List the partitions of a topic",
    _EXAMPLE,
    errors=(RestCode.TOPIC_NOT_FOUND, NOT_PROVEN_MISSING),
)
DESCRIBE: Final = resource(_ONE, _TAG, "Describe a partition", _EXAMPLE, errors=_UNKNOWN)
OFFSET_TYPE: Final = WordParameter(
    "offset_type",
    words=("earliest", "latest", "earliest_offset", "latest_offset"),
    description="Confluent's. The answer has both ends in any case.",
    example="latest",
)
OFFSET: Final = resource(
    _ONE + "/offset",
    _TAG,
    "Read both ends of a partition's log",
    v3.partition_offsets(LINKS, TOPIC, 0, 0, 1_042),
    parameters=(OFFSET_TYPE, SEEN_EPOCH),
    errors=(*_UNKNOWN, *FROM_LEADER),
    description="The latest offset is the next one that a reader gets.",
)
DELETE_RECORDS: Final = Operation(
    "POST",
    CLUSTER + _ONE + ":delete-records",
    tag=_TAG,
    summary="Delete the first records of a partition",
    description="Answered once the new start is durable on every replica that may lead next.",
    body=Body(
        fields={
            "before_offset": {
                "type": "integer",
                "format": "int64",
                "minimum": -1,
                "description": "All records below it are deleted; -1: below the high watermark.",
            }
        },
        needed=("before_offset",),
        example={"before_offset": 1_000},
    ),
    replies=(reply(v3.log_start(LINKS, TOPIC, 0, 1_000)),),
    errors=(*_UNKNOWN, *FROM_LEADER),
)
LIST_REPLICAS: Final = listing(
    _REPLICAS,
    _TAG,
    "List the replicas of a partition",
    v3.replica(LINKS, PARTITION, 2),
    errors=_UNKNOWN,
)
REPLICA: Final = resource(
    _REPLICAS + "/{broker_id}",
    _TAG,
    "Describe a replica",
    v3.replica(LINKS, PARTITION, 1),
    errors=_UNKNOWN,
)
ELECT: Final = Operation(
    "POST",
    CLUSTER + _ONE + "/leader:elect",
    tag=_TAG,
    summary="Elect the leader of a partition, or of many",
    description=f"{_ALL} Then each partition has a row, and an error of its own.",
    body=Body(
        fields={"election": {"enum": ["preferred", "unclean"], "default": "preferred"}},
        example={"election": "preferred"},
        is_optional=True,
    ),
    replies=(
        reply(
            Either(
                _EXAMPLE,
                collection(
                    v3.election(LINKS, TOPIC, 0, 2, None),
                    "/topics/-/partitions/-/leader:elect",
                ),
            )
        ),
    ),
    errors=(*_UNKNOWN, *FROM_CONTROLLER),
)

# Reassignments

REASSIGNMENT: Final = resource(
    _REASSIGNMENT,
    _MOVES,
    "Read the reassignments under way",
    Either(_MOVE, collection(_MOVE, "/topics/-/partitions/-/reassignment")),
    parameters=(PAGE_SIZE, PAGE_TOKEN),
    errors=(*_UNKNOWN, *FROM_LEADER),
    description=f"{_ALL} Then the answer is a list, in pages.",
)
REASSIGN_FIELDS: Final = ("replicas", "validate_only")
REASSIGN_ALL_FIELDS: Final = ("data", "validate_only")
_ROW: Final = {
    "topic_name": NAME_SCHEMA,
    "partition_id": {"type": "integer", "minimum": 0, "maximum": INT32_MAX},
    "replicas": nullable(_BROKER_IDS),
}
REASSIGN_ROW: Final = tuple(_ROW)
REASSIGN: Final = Operation(
    "POST",
    CLUSTER + _REASSIGNMENT,
    tag=_MOVES,
    summary="Move a partition, or many, to other replicas",
    description=(
        f"A partition takes `replicas`. {_ALL} Then `data` holds a row for each partition; "
        "`replicas` null cancels."
    ),
    body=Body(
        fields={
            "replicas": _BROKER_IDS,
            "data": {
                "type": "array",
                "minItems": 1,
                "maxItems": 1_000,
                "items": {
                    "type": "object",
                    "properties": _ROW,
                    "required": ["partition_id", "replicas"],
                    "additionalProperties": False,
                },
            },
            "validate_only": VALIDATE_ONLY,
        },
        example={"replicas": [2, 3, 4]},
    ),
    replies=(
        reply(
            Either(_MOVE, collection(_MOVE, "/topics/-/partitions/-/reassignment")),
            "The reassignments, which have begun.",
            202,
        ),
        no_content("With `validate_only`: nothing was changed."),
    ),
    errors=(*_UNKNOWN, *FROM_CONTROLLER),
)
CANCEL: Final = Operation(
    "DELETE",
    CLUSTER + _REASSIGNMENT,
    tag=_MOVES,
    summary="Cancel the reassignment of a partition, or of many",
    description=_ALL,
    replies=(no_content("Added replicas are removed again, the others stay."),),
    errors=(*_UNKNOWN, *FROM_CONTROLLER),
)
