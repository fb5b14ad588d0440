"""What operators and brokers ask of the active controller beside its first commands.

Each command names its answer as its type argument and stands in `ADMIN_COMMANDS`, the one table
that both ends of the controllers' plane route by. What is refused is a `KafkaError` and surely not
appended; OUTCOME_UNKNOWN may still happen (rule M3) and is sent again only if the command's row
says that a repeat does no harm (rule F1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.records.records import DrainScope, ResourceType
from raft_metadata.records.security import AclRecord, QuotaEntity, UserScramRecord

A = TypeVar("A")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminCommand(Generic[A]):
    """Anything asked of the active controller. ``A`` is the type of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """It is done, or it would be (``validate_only``)."""

    next_offset: MetadataOffset
    """The image must reach this offset before the change is there."""


# ---- topics and configs


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(AdminCommand["PartitionsAdded"]):
    """Give a topic more partitions. INVALID_PARTITIONS for as many or fewer."""

    topic: TopicName
    partitions_count: int
    """How many there are to be in all."""
    replicas_assignments: dict[int, tuple[BrokerId, ...]] | None = None
    """Of the new partitions only; None: placed as at creation."""
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    topic_id: TopicId
    partitions_count: int
    next_offset: MetadataOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Set a config, or reset it when ``value`` is None."""

    resource_type: ResourceType
    resource_name: str
    """A topic's name, a broker's id as text, or "" for the cluster."""
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs(AdminCommand[Altered]):
    """All changes, or none where one is refused. INVALID_CONFIG names the first."""

    changes: tuple[ConfigChange, ...]
    validate_only: bool = False


# ---- partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """Where a partition's replicas are to be; None cancels what is under way (KIP-455)."""

    topic: TopicName
    partition: PartitionId
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignments(AdminCommand[Altered]):
    """Start, change or cancel reassignments: all of them, or none where one is refused."""

    changes: tuple[Reassignment, ...]
    validate_only: bool = False


class Election(Enum):
    """Which leader an operator asks for (KIP-460)."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"
    """Any live replica, where no clean leader can be had: acknowledged records may be gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """A partition by its topic's name."""

    topic: TopicName
    partition: PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders(AdminCommand["LeadersElected"]):
    """Elect where it changes something; None: every partition of the cluster."""

    election: Election
    partitions: tuple[PartitionPlace, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """One partition. With ``error`` None, ``leader`` leads, whether it did before or not."""

    topic: TopicName
    partition: PartitionId
    leader: BrokerId = NO_LEADER
    error: int | None = None
    """Number of an `ErrorCode`: PREFERRED_LEADER_NOT_AVAILABLE, ELIGIBLE_LEADERS_NOT_AVAILABLE,
    UNKNOWN_TOPIC_OR_PARTITION."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadersElected:
    results: tuple[ElectionResult, ...]
    """Of the partitions that were named; with all of them, of those that changed or could not, at
    most 20,000."""
    next_offset: MetadataOffset


# ---- brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBroker(AdminCommand[Altered]):
    """Set what a broker is to be rid of. BROKER_ID_NOT_REGISTERED."""

    broker_id: BrokerId
    scope: DrainScope


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker(AdminCommand[Altered]):
    """Take a broker out for good. POLICY_VIOLATION while it holds replicas, naming how many."""

    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(AdminCommand["ProducerIdBlock"]):
    """A block of producer ids for a broker; no id is ever handed out twice (invariant T5)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    first_producer_id: int
    count: int


# ---- quotas, access, users, features


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotas(AdminCommand[Altered]):
    """Set quotas of an entity; a value of None takes that key away (KIP-546)."""

    entity: tuple[QuotaEntity, ...]
    changes: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAcls(AdminCommand[Altered]):
    """Add access rules, and take away those whose ids are named."""

    add: tuple[AclRecord, ...] = ()
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScram:
    """A user's credential of one mechanism, by name."""

    name: str
    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUsers(AdminCommand[Altered]):
    """Set salted passwords, and take some away (KIP-554)."""

    put: tuple[UserScramRecord, ...] = ()
    remove: tuple[UserScram, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeMetadata(AdminCommand["MetadataUpgraded"]):
    """Raise ``metadata.version`` (KIP-584). POLICY_VIOLATION names every node that can't follow."""

    level: int | None = None
    """None: the highest that every node can follow."""
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataUpgraded:
    level_before: int
    level: int
    next_offset: MetadataOffset


@dataclass(frozen=True, slots=True)
class AdminRow:
    """How a command crosses the controllers' plane."""

    command: type[AdminCommand[Any]]
    answer: type[Any]
    is_repeatable: bool = field(default=False, kw_only=True)
    """Whether sending it again after an unknown outcome does no harm."""


ADMIN_COMMANDS: Mapping[str, AdminRow] = {
    "add-partitions": AdminRow(AddPartitions, PartitionsAdded),
    "alter-configs": AdminRow(AlterConfigs, Altered),
    "alter-reassignments": AdminRow(AlterReassignments, Altered),
    "elect-leaders": AdminRow(ElectLeaders, LeadersElected, is_repeatable=True),
    "drain-broker": AdminRow(DrainBroker, Altered),
    "unregister-broker": AdminRow(UnregisterBroker, Altered),
    "allocate-producer-ids": AdminRow(AllocateProducerIds, ProducerIdBlock, is_repeatable=True),
    "alter-client-quotas": AdminRow(AlterClientQuotas, Altered),
    "alter-acls": AdminRow(AlterAcls, Altered),
    "alter-users": AdminRow(AlterUsers, Altered),
    "upgrade-metadata": AdminRow(UpgradeMetadata, MetadataUpgraded, is_repeatable=True),
}
"""By the last part of the path: ``POST /controller/v1/<name>``."""

ADMIN_NAMES: Mapping[type[AdminCommand[Any]], str] = {
    row.command: name for name, row in ADMIN_COMMANDS.items()
}
