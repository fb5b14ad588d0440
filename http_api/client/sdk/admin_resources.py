"""Resources that `Admin` and `AsyncAdmin` take and return: frozen dataclasses, without I/O.

Those that a program makes (`NewTopic`, `ConfigResource`) check their fields at once. The others
have one field for each field of the v3 resource; where `http_api.contract.resources` has exactly
that dataclass, the name here is another name of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, TypeAlias, TypeVar

from http_api.client.admin import TopicInfo
from http_api.client.client_errors import ProtocolError
from http_api.client.sdk.record_types import TopicPartition
from http_api.contract.group_resources import (
    CommittedOffset,
    GroupBlock,
    GroupInfo,
    GroupLag,
    GroupMember,
    MovedPosition,
)
from http_api.contract.resources import BrokerInfo, ConfigInfo, PartitionInfo, ReassignmentInfo

__all__ = ["BrokerInfo", "CommittedOffset", "PartitionInfo", "TopicInfo"]

_Made = TypeVar("_Made")

TopicListing: TypeAlias = TopicInfo
ConfigDescription: TypeAlias = ConfigInfo
ConsumerGroupListing: TypeAlias = GroupInfo
Reassignment: TypeAlias = ReassignmentInfo

ConfigValue = str | int | float | bool
"""A config's value as a program gives it; True and False become ``true`` and ``false``."""
ResourceType = Literal["topic", "broker", "cluster"]
RESOURCE_TYPES: Final = ("topic", "broker", "cluster")
PARTITIONS_MAX: Final = 1 << 31


def config_text(name: object, value: object) -> str:
    """Return the text of a config's value; raises `TypeError` for another kind."""
    if not isinstance(name, str) or not name:
        msg = f"name of a config: {name!r}: expected a text such as 'retention.ms'"
        raise TypeError(msg)
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        msg = f"config {name}={value!r}: expected a text, a number, True or False"
        raise TypeError(msg)
    return str(value)


def check_name(what: str, name: object) -> str:
    """Return a name; raises `TypeError` if it is no text and `ValueError` if it is empty."""
    if not isinstance(name, str):
        msg = f"{what} {name!r}: expected a text"
        raise TypeError(msg)
    if not name:
        msg = f"{what} '': expected a text that is not empty"
        raise ValueError(msg)
    return name


def check_integer(what: str, value: object, least: int, most: int = PARTITIONS_MAX) -> int:
    """Return an integer; raises `TypeError` for another kind and `ValueError` out of bounds."""
    if not isinstance(value, int) or isinstance(value, bool):
        msg = f"{what} {value!r}: expected an integer"
        raise TypeError(msg)
    if not least <= value <= most:
        msg = f"{what} {value}: expected an integer from {least} to {most}"
        raise ValueError(msg)
    return value


def check_replicas(what: str, replicas: object) -> tuple[int, ...]:
    """Return the broker ids of a partition's replicas; raises `TypeError` or `ValueError`."""
    if isinstance(replicas, str | bytes) or not isinstance(replicas, Sequence):
        msg = f"{what} {replicas!r}: expected a list of broker ids"
        raise TypeError(msg)
    ids = tuple(check_integer(f"{what}: broker id", one, 0) for one in replicas)
    if not ids or len(set(ids)) != len(ids):
        msg = f"{what} {list(ids)}: expected at least one broker id, each once"
        raise ValueError(msg)
    return ids


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. Without ``assignments`` the controller places the replicas.

    Raises `TypeError` or `ValueError` for a field of the wrong kind or out of bounds.
    """

    name: str
    num_partitions: int | None = None
    """Number of partitions; None: the cluster's default."""
    replication_factor: int | None = None
    """Replicas of each partition; None: the cluster's default."""
    assignments: Sequence[Sequence[int]] | None = field(default=None, kw_only=True)
    """Broker ids of each partition's replicas, in place of the two numbers."""
    config: Mapping[str, ConfigValue] | None = field(default=None, kw_only=True)
    """Configs of the topic; the others have the cluster's defaults."""

    def __post_init__(self) -> None:
        check_name("topic", self.name)
        if self.num_partitions is not None:
            check_integer(f"topic {self.name}: num_partitions", self.num_partitions, 1)
        if self.replication_factor is not None:
            check_integer(f"topic {self.name}: replication_factor", self.replication_factor, 1)
        if self.assignments is not None:
            if self.num_partitions is not None or self.replication_factor is not None:
                msg = f"topic {self.name}: give assignments or the two numbers, not both"
                raise ValueError(msg)
            given: object = self.assignments
            if isinstance(given, str) or not isinstance(given, Sequence):
                msg = f"topic {self.name}: assignments {given!r}: expected lists of broker ids"
                raise TypeError(msg)
            for number, ids in enumerate(given):
                check_replicas(f"topic {self.name}: replicas of partition {number}", ids)
        configs: object = self.config
        if configs is not None and not isinstance(configs, Mapping):
            msg = f"topic {self.name}: config {configs!r}: expected a mapping"
            raise TypeError(msg)
        self.config_texts()

    def config_texts(self) -> dict[str, str]:
        """Return the configs as texts."""
        return {name: config_text(name, value) for name, value in (self.config or {}).items()}


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """An owner of configs: a topic by its name, a broker by its id as text, or the cluster.

    The cluster has no name. Raises `TypeError` or `ValueError` for anything else.
    """

    type: ResourceType
    name: str = ""

    def __post_init__(self) -> None:
        if self.type not in RESOURCE_TYPES:
            msg = f"type {self.type!r}: expected one of {', '.join(RESOURCE_TYPES)}"
            raise ValueError(msg)
        name: object = self.name
        if not isinstance(name, str):
            msg = f"name {self.name!r} of a {self.type}: expected a text"
            raise TypeError(msg)
        if self.type == "broker" and not (self.name.isascii() and self.name.isdigit()):
            msg = f"name {self.name!r} of a broker: expected its id, such as '1'"
            raise ValueError(msg)
        if self.type == "topic":
            check_name("topic", self.name)
        if self.type == "cluster" and self.name:
            msg = f"name {self.name!r} of the cluster: expected none"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic with its partitions, in ascending order."""

    name: str
    topic_id: str
    partitions_count: int
    replication_factor: int
    is_internal: bool
    partitions: tuple[PartitionInfo, ...]


def topic_description(info: TopicInfo, partitions: Sequence[PartitionInfo]) -> TopicDescription:
    """Return the description of a topic and its partitions."""
    return TopicDescription(
        name=info.name,
        topic_id=info.topic_id,
        partitions_count=info.partitions_count,
        replication_factor=info.replication_factor,
        is_internal=info.is_internal,
        partitions=tuple(sorted(partitions, key=lambda one: one.partition)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupMember:
    """A live member of a group, and the partitions that it owns."""

    member_id: str
    client_id: str
    member_epoch: int
    """-1 if the member has no subscription."""
    static_id: str | None
    """Its ``group.instance.id``."""
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    """A consumer group with its live members and the lag of each of its partitions."""

    group: str
    state: str
    """EMPTY | RECONCILING | STABLE | HELD."""
    assignor: str
    coordinator: int
    """Id of the broker that coordinates the group."""
    is_simple: bool
    moved: tuple[MovedPosition, ...]
    blocked: tuple[GroupBlock, ...]
    members: tuple[ConsumerGroupMember, ...]
    lags: tuple[GroupLag, ...]
    """A row for each partition that the group committed or that a member owns."""


def group_description(
    info: GroupInfo, members: Sequence[GroupMember], lags: Sequence[GroupLag]
) -> ConsumerGroupDescription:
    """Return the description of a group; a lag's ``member_id`` names the partition's owner."""
    owned: dict[str, list[TopicPartition]] = {}
    for lag in lags:
        owned.setdefault(lag.member_id, []).append(TopicPartition(lag.topic, lag.partition))
    return ConsumerGroupDescription(
        group=info.group,
        state=info.state,
        assignor=info.assignor,
        coordinator=info.coordinator,
        is_simple=info.is_simple,
        moved=info.moved,
        blocked=info.blocked,
        members=tuple(
            ConsumerGroupMember(
                member_id=one.member_id,
                client_id=one.client_id,
                member_epoch=one.member_epoch,
                static_id=one.static_id,
                assignment=tuple(sorted(owned.get(one.member_id, ()))),
            )
            for one in members
        ),
        lags=tuple(lags),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """A cluster, the node id of its active controller if known, and its registered brokers."""

    cluster_id: str
    controller_id: int | None
    brokers: tuple[BrokerInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumVoter:
    """A controller as a voter. Times and ages are in milliseconds; None: not known."""

    voter_id: int
    directory_id: str | None
    url: str
    is_leader: bool
    is_connected: bool | None
    is_reachable: bool
    fence: str | None
    log_end_index: int | None
    lag: int | None
    feature_level_max: int | None
    last_fetch_timestamp: int | None
    last_caught_up_timestamp: int | None
    contact_age_ms: int | None
    caught_up_age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumObserver:
    """A broker that follows the metadata. Times and ages are in milliseconds; None: not known."""

    broker_id: int
    broker_epoch: int | None
    state: str | None
    log_end_offset: int | None
    lag: int | None
    last_fetch_timestamp: int | None
    last_caught_up_timestamp: int | None
    contact_age_ms: int | None
    caught_up_age_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumDescription:
    """State of the controllers' quorum. An index counts Raft entries, an offset records."""

    cluster_id: str
    leader_id: int | None
    leader_epoch: int
    high_watermark: int | None
    commit_index: int | None
    log_end_index: int | None
    feature_level: int | None
    told_by: int
    """Controller whose answer it is."""
    is_from_leader: bool
    """False: no controller is active, and another one answered."""
    voters: tuple[QuorumVoter, ...]
    observers: tuple[QuorumObserver, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealthReason:
    """A reason for a cluster's status, with at most five examples of ``count``."""

    code: str
    status: str
    message: str
    count: int
    examples: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterHealth:
    """Verdict on a cluster by the answering broker's metadata, the worst reason first."""

    cluster_id: str
    status: str
    """healthy | degraded | unhealthy."""
    reasons: tuple[ClusterHealthReason, ...]
    counts: Mapping[str, int]
    controller_id: int | None
    metadata_offset: int


def quorum_description(row: Mapping[str, Any]) -> QuorumDescription:
    """Return the quorum that a ``KafkaQuorum`` describes; raises `ProtocolError`."""
    parts = {
        "voters": tuple(_made(QuorumVoter, one) for one in _rows(row, "voters")),
        "observers": tuple(_made(QuorumObserver, one) for one in _rows(row, "observers")),
    }
    return _made(QuorumDescription, {**row, **parts})


def health_of(row: Mapping[str, Any]) -> ClusterHealth:
    """Return the health that a ``KafkaClusterHealth`` describes; raises `ProtocolError`."""
    reasons = tuple(
        _made(ClusterHealthReason, {**one, "examples": tuple(_rows(one, "examples"))})
        for one in _rows(row, "reasons")
    )
    return _made(ClusterHealth, {**row, "reasons": reasons})


def _rows(row: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = row.get(name)
    if not isinstance(found, list):
        msg = f"expected a list {name!r} in {list(row)}"
        raise ProtocolError(msg)
    return found


def _made(kind: type[_Made], row: Mapping[str, Any]) -> _Made:
    """Return a dataclass of a JSON object's fields with the same names; others are left out."""
    names = [one.name for one in fields(kind)]  # type: ignore[arg-type]  # always a dataclass here
    absent = [name for name in names if name not in row]
    if absent:
        msg = f"{kind.__name__} without {', '.join(absent)}"
        raise ProtocolError(msg)
    return kind(**{name: row[name] for name in names})
