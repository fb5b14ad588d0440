"""Arguments and results of `AdminClient` in confluent-kafka's interface. Pure.

Programs make `NewTopic`, `NewPartitions`, `ConfigResource`, `ConfigEntry` and `OffsetSpec`; the
others are results. Access rules and SCRAM credentials are here as names only: their calls are not
supported.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Final

from typing_extensions import override

from http_api.client.compat.confluent_messages import (
    ConsumerGroupState,
    ConsumerGroupType,
    Node,
    OrderedEnum,
    TopicPartition,
    TopicPartitionInfo,
    Uuid,
)

CONFIG_SOURCE_UNKNOWN_CONFIG: Final = 0
CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG: Final = 1
CONFIG_SOURCE_DYNAMIC_BROKER_CONFIG: Final = 2
CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER_CONFIG: Final = 3
CONFIG_SOURCE_STATIC_BROKER_CONFIG: Final = 4
CONFIG_SOURCE_DEFAULT_CONFIG: Final = 5
CONFIG_SOURCE_GROUP_CONFIG: Final = 8
RESOURCE_UNKNOWN: Final = 0
RESOURCE_ANY: Final = 1
RESOURCE_TOPIC: Final = 2
RESOURCE_GROUP: Final = 3
RESOURCE_BROKER: Final = 4
RESOURCE_TRANSACTIONAL_ID: Final = 5
CLUSTER_DEFAULT: Final = -1
"""Number of partitions or replicas that stands for the cluster's default."""


class ResourceType(OrderedEnum):
    """Kind of a resource."""

    UNKNOWN = RESOURCE_UNKNOWN
    ANY = RESOURCE_ANY
    TOPIC = RESOURCE_TOPIC
    GROUP = RESOURCE_GROUP
    BROKER = RESOURCE_BROKER
    TRANSACTIONAL_ID = RESOURCE_TRANSACTIONAL_ID


class ResourcePatternType(OrderedEnum):
    """Kind of a pattern of an access rule."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AlterConfigOpType(Enum):
    """Change of one config by `AdminClient.incremental_alter_configs`."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigSource(Enum):
    """Place where the value in force of a config is set."""

    UNKNOWN_CONFIG = CONFIG_SOURCE_UNKNOWN_CONFIG
    DYNAMIC_TOPIC_CONFIG = CONFIG_SOURCE_DYNAMIC_TOPIC_CONFIG
    DYNAMIC_BROKER_CONFIG = CONFIG_SOURCE_DYNAMIC_BROKER_CONFIG
    DYNAMIC_DEFAULT_BROKER_CONFIG = CONFIG_SOURCE_DYNAMIC_DEFAULT_BROKER_CONFIG
    STATIC_BROKER_CONFIG = CONFIG_SOURCE_STATIC_BROKER_CONFIG
    DEFAULT_CONFIG = CONFIG_SOURCE_DEFAULT_CONFIG
    GROUP_CONFIG = CONFIG_SOURCE_GROUP_CONFIG


@dataclass(order=True, unsafe_hash=True)
class NewTopic:
    """A topic to create; -1 stands for the cluster's default."""

    topic: str
    num_partitions: int = CLUSTER_DEFAULT
    replication_factor: int = CLUSTER_DEFAULT
    replica_assignment: list[list[int]] | None = field(default=None, compare=False)
    """Broker ids of each partition's replicas, in place of ``replication_factor``."""
    config: dict[str, str] | None = field(default=None, compare=False)

    @override
    def __str__(self) -> str:
        return f"NewTopic(topic={self.topic},num_partitions={self.num_partitions})"

    __repr__ = __str__


@dataclass(order=True, unsafe_hash=True)
class NewPartitions:
    """A topic's new total number of partitions."""

    topic: str
    new_total_count: int
    replica_assignment: list[list[int]] | None = field(default=None, compare=False)
    """Broker ids of each new partition's replicas."""

    @override
    def __str__(self) -> str:
        return f"NewPartitions(topic={self.topic},new_total_count={self.new_total_count})"

    __repr__ = __str__


@dataclass
class ConfigEntry:
    """A config with its value and source; or, to alter it, with an ``incremental_operation``."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.UNKNOWN_CONFIG
    is_read_only: bool = False
    is_default: bool = False
    is_sensitive: bool = False
    is_synonym: bool = False
    synonyms: dict[str, ConfigEntry] = field(default_factory=dict)
    incremental_operation: AlterConfigOpType | None = None

    @override
    def __str__(self) -> str:
        return f'{self.name}="{self.value}"'

    @override
    def __repr__(self) -> str:
        return f"ConfigEntry({self})"


@functools.total_ordering
class ConfigResource:
    """An owner of configs: a topic by name, or a broker by id; equal and hashed by these two.

    A broker of an empty name stands for the defaults of all brokers.
    """

    Type: ClassVar = ResourceType

    def __init__(
        self,
        restype: ResourceType | str | int,
        name: str,
        set_config: dict[str, str] | None = None,
        described_configs: dict[str, ConfigEntry] | None = None,
        error: object = None,
        incremental_configs: list[ConfigEntry] | None = None,
    ) -> None:
        given: object = name
        if given is None:
            msg = "Expected resource name to be a string"
            raise ValueError(msg)
        if isinstance(restype, str):
            found = ResourceType.__members__.get(restype.upper())
            if found is None:
                msg = f'Unknown resource type "{restype}": should be a ConfigResource.Type'
                raise ValueError(msg)
            restype = found
        self.restype = ResourceType(restype) if isinstance(restype, int) else restype
        self.restype_int = int(self.restype.value)
        self.name = name
        self.set_config_dict = dict(set_config or {})
        self.incremental_configs = list(incremental_configs or [])
        self.configs = described_configs
        self.error = error

    def set_config(self, name: str, value: str, overwrite: bool = True) -> None:
        """Set a config for `AdminClient.alter_configs`, unless it is set and may not be."""
        if overwrite or name not in self.set_config_dict:
            self.set_config_dict[name] = value

    def add_incremental_config(self, config_entry: ConfigEntry) -> None:
        """Add a change for `AdminClient.incremental_alter_configs`."""
        self.incremental_configs.append(config_entry)

    @override
    def __repr__(self) -> str:
        more = f",{self.error!r}" if self.error is not None else ""
        return f"ConfigResource({self.restype},{self.name}{more})"

    @override
    def __hash__(self) -> int:
        return hash((self.restype, self.name))

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ConfigResource):
            return NotImplemented
        return (self.restype, self.name) == (other.restype, other.name)

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, ConfigResource):
            return NotImplemented
        return (self.restype.value, self.name) < (other.restype.value, other.name)

    def __len__(self) -> int:
        return len(self.set_config_dict)


@dataclass(frozen=True, order=True)
class OffsetSpec:
    """Place in a partition's log, for `AdminClient.list_offsets`."""

    number: int
    """Milliseconds; -1: the end, -2: the beginning, -3: the record with the largest timestamp."""

    @classmethod
    def earliest(cls) -> OffsetSpec:
        """Return the place of the first offset."""
        return cls(-2)

    @classmethod
    def latest(cls) -> OffsetSpec:
        """Return the place behind the last committed record."""
        return cls(-1)

    @classmethod
    def max_timestamp(cls) -> OffsetSpec:
        """Return the place of the first record with the largest timestamp."""
        return cls(-3)

    @classmethod
    def for_timestamp(cls, timestamp: int) -> OffsetSpec:
        """Return the place of the first record at or after a time in milliseconds."""
        return cls(timestamp)


@dataclass
class ListOffsetsResultInfo:
    """An offset that was looked up; ``timestamp`` is -1 (unknown) but for the largest one."""

    offset: int
    timestamp: int
    leader_epoch: int | None


@dataclass
class DeletedRecords:
    """First offset that a partition still has after a deletion."""

    low_watermark: int


@dataclass
class DescribeClusterResult:
    """A cluster, its active controller and its brokers."""

    controller: Node | None
    nodes: list[Node]
    cluster_id: str | None = None
    authorized_operations: list[Any] | None = None


@dataclass
class TopicDescription:
    """A topic with its partitions."""

    name: str
    topic_id: Uuid
    is_internal: bool
    partitions: list[TopicPartitionInfo]
    authorized_operations: list[Any] | None = None


@dataclass
class ConsumerGroupListing:
    """A group in `ListConsumerGroupsResult`."""

    group_id: str
    is_simple_consumer_group: bool
    state: ConsumerGroupState | None = None
    type: ConsumerGroupType | None = None


@dataclass
class ListConsumerGroupsResult:
    """Groups that were listed, and errors; the call fails as a whole, so there are none."""

    valid: list[ConsumerGroupListing] | None = None
    errors: list[Exception] | None = None


@dataclass
class MemberAssignment:
    """Partitions of a member."""

    topic_partitions: list[TopicPartition]


@dataclass
class MemberDescription:
    """A live member of a group; its host is not known to the cluster."""

    member_id: str
    client_id: str
    host: str
    assignment: MemberAssignment
    group_instance_id: str | None = None
    target_assignment: MemberAssignment | None = None


@dataclass
class ConsumerGroupDescription:
    """A group with its live members and its coordinator."""

    group_id: str
    is_simple_consumer_group: bool
    members: list[MemberDescription]
    partition_assignor: str
    state: ConsumerGroupState | None
    coordinator: Node
    authorized_operations: list[Any] | None = None
    type: ConsumerGroupType = ConsumerGroupType.UNKNOWN


class AclOperation(OrderedEnum):
    """Operation of an access rule."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class AclPermissionType(OrderedEnum):
    """Effect of an access rule."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


@dataclass(frozen=True)
class AclBinding:
    """An access rule."""

    restype: ResourceType
    name: str | None
    resource_pattern_type: ResourcePatternType
    principal: str | None
    host: str | None
    operation: AclOperation
    permission_type: AclPermissionType


class AclBindingFilter(AclBinding):
    """Access rules that have these values; None stands for any."""


class ScramMechanism(OrderedEnum):
    """Mechanism of a SCRAM credential."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2


@dataclass
class ScramCredentialInfo:
    """Mechanism and iterations of a SCRAM credential."""

    mechanism: ScramMechanism
    iterations: int


@dataclass
class UserScramCredentialsDescription:
    """SCRAM credentials of a user."""

    user: str
    scram_credential_infos: list[ScramCredentialInfo]


@dataclass
class UserScramCredentialAlteration:
    """Change of a user's SCRAM credentials."""

    user: str


@dataclass
class UserScramCredentialUpsertion(UserScramCredentialAlteration):
    """SCRAM credential to set."""

    scram_credential_info: ScramCredentialInfo
    password: bytes = field(repr=False)
    salt: bytes | None = None


@dataclass
class UserScramCredentialDeletion(UserScramCredentialAlteration):
    """SCRAM credential to delete."""

    mechanism: ScramMechanism
