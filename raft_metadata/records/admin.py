"""Commands of operators and brokers beside those of `commands`, routed by one table.

Each command names the type of its answer as its type argument and has a row in `ADMIN_COMMANDS`, by
which both ends of the controllers' plane route it. A refusal is a `KafkaError`, and the command is
surely not appended. A command that failed with OUTCOME_UNKNOWN may still be appended (rule M3) and
is sent again only if its row allows a repeat (rule F1).
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
    """A command to the active controller; ``A`` is the type of its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Altered:
    """The answer to a change that is made, or would be made (``validate_only``)."""

    next_offset: MetadataOffset
    """The change is visible in images that have reached this offset."""


# ---- topics and configs


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitions(AdminCommand["PartitionsAdded"]):
    """A request for more partitions of a topic; INVALID_PARTITIONS for as many as now or fewer."""

    topic: TopicName
    partitions_count: int
    """The number of partitions in all, those that exist included."""
    replicas_assignments: dict[int, tuple[BrokerId, ...]] | None = None
    """Replicas of the new partitions by partition id; None: placed as at creation."""
    validate_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    topic_id: TopicId
    partitions_count: int
    next_offset: MetadataOffset


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A config to set, or to reset when ``value`` is None."""

    resource_type: ResourceType
    resource_name: str
    """A topic's name, a broker's id as text, or "" for the cluster."""
    name: str
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterConfigs(AdminCommand[Altered]):
    """Config changes that are made all together or, where one is refused, not at all.

    INVALID_CONFIG names the first that is refused.
    """

    changes: tuple[ConfigChange, ...]
    validate_only: bool = False


# ---- partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Reassignment:
    """The replicas that a partition is to have; None cancels its reassignment (KIP-455)."""

    topic: TopicName
    partition: PartitionId
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterReassignments(AdminCommand[Altered]):
    """Reassignments to start, change or cancel: all of them or, where one is refused, none."""

    changes: tuple[Reassignment, ...]
    validate_only: bool = False


class Election(Enum):
    """The kind of leader election that an operator requests (KIP-460)."""

    PREFERRED = "preferred"
    UNCLEAN = "unclean"
    """Any live replica if no clean leader is available; acknowledged records may be lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlace:
    """A partition identified by its topic's name."""

    topic: TopicName
    partition: PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectLeaders(AdminCommand["LeadersElected"]):
    """A request for elections, held where they change something; None: in the whole cluster."""

    election: Election
    partitions: tuple[PartitionPlace, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionResult:
    """The result for one partition: its leader, newly elected or not, if ``error`` is None."""

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
    """Results of the named partitions; for the whole cluster, of those that changed or failed, at
    most 20,000."""
    next_offset: MetadataOffset


# ---- brokers


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBroker(AdminCommand[Altered]):
    """A request to drain a broker of leaderships or replicas, or to end that.

    BROKER_ID_NOT_REGISTERED for an unknown broker.
    """

    broker_id: BrokerId
    scope: DrainScope


@dataclass(frozen=True, slots=True, kw_only=True)
class UnregisterBroker(AdminCommand[Altered]):
    """A request to remove a broker from the cluster.

    POLICY_VIOLATION while it holds replicas, with their number.
    """

    broker_id: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateProducerIds(AdminCommand["ProducerIdBlock"]):
    """A broker's request for a block of producer ids; no id is handed out twice (invariant T5)."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerIdBlock:
    first_producer_id: int
    count: int


# ---- quotas, access, users, features


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterClientQuotas(AdminCommand[Altered]):
    """Quotas of an entity to set; a value of None removes that key (KIP-546)."""

    entity: tuple[QuotaEntity, ...]
    changes: dict[str, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterAcls(AdminCommand[Altered]):
    """Access rules to add, and ids of rules to remove."""

    add: tuple[AclRecord, ...] = ()
    remove: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScram:
    """The name of a user and the mechanism of one of its credentials."""

    name: str
    mechanism: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterUsers(AdminCommand[Altered]):
    """Salted passwords to set, and credentials to remove (KIP-554)."""

    put: tuple[UserScramRecord, ...] = ()
    remove: tuple[UserScram, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeMetadata(AdminCommand["MetadataUpgraded"]):
    """A request to raise ``metadata.version`` (KIP-584).

    POLICY_VIOLATION names every node that can't follow the new level.
    """

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
    """The types and the repeatability of one command on the controllers' plane."""

    command: type[AdminCommand[Any]]
    answer: type[Any]
    is_repeatable: bool = field(default=False, kw_only=True)
    """True if the command may be sent again after an unknown outcome."""


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
"""All admin commands by the last part of their path, ``POST /controller/v1/<name>``."""

ADMIN_NAMES: Mapping[type[AdminCommand[Any]], str] = {
    row.command: name for name, row in ADMIN_COMMANDS.items()
}
