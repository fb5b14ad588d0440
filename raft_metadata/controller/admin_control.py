"""Which decider answers which command of ``records.admin``, and what all of them have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.controller.drain_control import decide_drain_broker
from raft_metadata.controller.election_control import decide_elect_leaders
from raft_metadata.controller.producer_id_control import decide_producer_ids
from raft_metadata.controller.reassignment_control import decide_alter_reassignments
from raft_metadata.controller.topic_defaults import TopicDefaults
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.admin import (
    ADMIN_NAMES,
    A,
    AdminCommand,
    AllocateProducerIds,
    AlterReassignments,
    DrainBroker,
    ElectLeaders,
)
from raft_metadata.records.feature_levels import level_of
from raft_metadata.records.records import MetadataRecord

Decision = tuple[tuple[MetadataRecord, ...], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """What a decision rests on beside the image."""

    defaults: TopicDefaults


def decide_admin(
    image: MetadataImage, command: AdminCommand[A], context: AdminContext
) -> tuple[tuple[MetadataRecord, ...], A]:
    """The facts that answer a command, and the answer. POLICY_VIOLATION: the level is too low."""
    records, answer = _decide(image, command, context)
    needed = max(map(level_of, records), default=0)
    if needed > image.feature_level:
        message = (
            f"this needs metadata.version {needed}, the cluster is at {image.feature_level}; "
            "raise it once every node runs this version"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    return records, cast(A, answer)


def _decide(image: MetadataImage, command: AdminCommand[Any], context: AdminContext) -> Decision:
    match command:
        case AllocateProducerIds():
            return decide_producer_ids(image, command)
        case AlterReassignments():
            return decide_alter_reassignments(image, command, defaults=context.defaults)
        case ElectLeaders():
            return decide_elect_leaders(image, command, defaults=context.defaults)
        case DrainBroker():
            return decide_drain_broker(image, command)
        case _:
            message = f"{ADMIN_NAMES[type(command)]} is not known to this controller"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
