"""The commands that image, defaults and one context decide: the decider of each, common checks.

`Controller.decide` calls `decide_admin` with the newest image for every command that neither needs
nor changes its soft state; the result is the records to append and the answer to the command.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.controller.broker_views import NO_DAMAGED_REPLICAS, DamagedReplicas
from raft_metadata.controller.cluster_control import decide_producer_ids, decide_unregister_broker
from raft_metadata.controller.configuration_control import decide_alter_configs
from raft_metadata.controller.drain_control import decide_drain_broker
from raft_metadata.controller.election_control import decide_elect_leaders
from raft_metadata.controller.feature_control import (
    NO_VOTER_LEVELS,
    VoterLevels,
    decide_upgrade_metadata,
)
from raft_metadata.controller.reassignment_control import decide_alter_reassignments
from raft_metadata.controller.security_control import (
    decide_alter_acls,
    decide_alter_client_quotas,
    decide_alter_users,
)
from raft_metadata.controller.topic_control import decide_add_partitions
from raft_metadata.controller.topic_rules import TopicDefaults
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import (
    COMMAND_NAMES,
    A,
    AddPartitions,
    AllocateProducerIds,
    AlterAcls,
    AlterClientQuotas,
    AlterConfigs,
    AlterReassignments,
    AlterUsers,
    Command,
    DrainBroker,
    ElectLeaders,
    UnregisterBroker,
    UpgradeMetadata,
)
from raft_metadata.records.feature_levels import level_of
from raft_metadata.records.records import MetadataRecord

Decision = tuple[tuple[MetadataRecord, ...], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """The inputs of a decision beside the image and the command."""

    defaults: TopicDefaults
    chance: int = 0
    """A random number >= 0: the start of a placement."""
    voter_levels: VoterLevels = field(default_factory=lambda: NO_VOTER_LEVELS)
    """The highest feature level of each voter; empty if unknown."""
    damaged_replicas: DamagedReplicas = field(default_factory=lambda: NO_DAMAGED_REPLICAS)
    """Damaged replicas, which are elected last."""


def decide_admin(
    image: MetadataImage, command: Command[A], context: AdminContext
) -> tuple[tuple[MetadataRecord, ...], A]:
    """Return the records that carry out a command, and its answer.

    Raises POLICY_VIOLATION if the cluster's feature level is too low for the records. With
    ``validate_only`` everything is decided and checked alike, and no record is returned.
    """
    records, answer = _decide(image, command, context)
    needed = max(map(level_of, records), default=0)
    if needed > image.feature_level:
        message = (
            f"this needs metadata.version {needed}, the cluster is at {image.feature_level}; "
            "raise it once every node runs this version"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    if getattr(command, "validate_only", False):
        records, answer = (), replace(cast(Any, answer), next_offset=image.next_offset)
    return records, cast(A, answer)


def _decide(image: MetadataImage, command: Command[Any], context: AdminContext) -> Decision:
    defaults = context.defaults
    match command:
        case AddPartitions():
            return decide_add_partitions(image, command, defaults=defaults, start=context.chance)
        case AlterConfigs():
            return decide_alter_configs(image, command, defaults=defaults)
        case UnregisterBroker():
            return decide_unregister_broker(image, command)
        case AllocateProducerIds():
            return decide_producer_ids(image, command)
        case AlterClientQuotas():
            return decide_alter_client_quotas(image, command)
        case AlterAcls():
            return decide_alter_acls(image, command)
        case AlterUsers():
            return decide_alter_users(image, command)
        case UpgradeMetadata():
            return decide_upgrade_metadata(image, command, context.voter_levels)
        case AlterReassignments():
            return decide_alter_reassignments(image, command, defaults=defaults)
        case ElectLeaders():
            return decide_elect_leaders(
                image, command, defaults=defaults, damaged_replicas=context.damaged_replicas
            )
        case DrainBroker():
            return decide_drain_broker(image, command)
        case _:
            message = f"{COMMAND_NAMES[type(command)]} is not known to this controller"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
