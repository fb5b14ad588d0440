"""Resources of the v3 API as both sides see them: one dataclass each, and its reading from JSON.

The routes of `http_api.server` fill them from the metadata image and `contract.v3` writes them with
their links; the client reads them back and gives them to its users, the command line among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from http_api.contract.group_resources import broker_in_link


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """A registered broker, the URL that clients use for it, and its share of the partitions."""

    broker_id: int
    url: str
    rack: str | None
    state: str
    """starting | unfenced | controlled_shutdown | fenced."""
    broker_epoch: int
    drain: str
    """none | leaders | replicas."""
    leader_count: int
    replica_count: int


def broker_of(row: Mapping[str, Any]) -> BrokerInfo:
    """Return the broker that a row of a v3 answer describes."""
    return BrokerInfo(
        broker_id=row["broker_id"],
        url=f"http://{_in_brackets(row['host'])}:{row['port']}",
        rack=row.get("rack"),
        state=row["state"],
        broker_epoch=row["broker_epoch"],
        drain=row["drain"],
        leader_count=row["leader_count"],
        replica_count=row["replica_count"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """A partition with its leader, epochs and replicas. ``leader`` is None if it has none."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]
    """In order of preference: the first is the preferred leader."""
    isr: tuple[int, ...]
    elr: tuple[int, ...]
    """Eligible leader replicas: out of sync, and known to hold all committed records (KIP-966)."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    last_known_leader: int | None

    @property
    def out_of_sync(self) -> tuple[int, ...]:
        """Replicas that are not in the ISR; empty for a healthy partition."""
        return tuple(broker for broker in self.replicas if broker not in self.isr)


def partition_of(row: Mapping[str, Any]) -> PartitionInfo:
    """Return the partition that a row of a v3 answer describes."""
    return PartitionInfo(
        topic=row["topic_name"],
        partition=row["partition_id"],
        leader=None if row["leader"] is None else broker_in_link(row["leader"]),
        leader_epoch=row["leader_epoch"],
        partition_epoch=row["partition_epoch"],
        replicas=tuple(row["replica_ids"]),
        isr=tuple(row["isr"]),
        elr=tuple(row["elr"]),
        adding=tuple(row["adding_replicas"]),
        removing=tuple(row["removing_replicas"]),
        last_known_leader=row["last_known_leader"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckPartition:
    """A partition that a drain could not move yet, and the reason."""

    topic: str
    partition: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Leaderships and replicas that a drain still has to move off its broker."""

    is_done: bool
    leaders_left: int
    replicas_left: int
    stuck: tuple[StuckPartition, ...]


def progress_of(row: Mapping[str, Any]) -> DrainProgress:
    """Return the progress of a drain that an object of a v3 answer describes."""
    return DrainProgress(
        is_done=row["is_done"],
        leaders_left=row["leaders_left"],
        replicas_left=row["replicas_left"],
        stuck=tuple(
            StuckPartition(
                topic=one["topic_name"], partition=one["partition_id"], reason=one["reason"]
            )
            for one in row["stuck"]
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """The finalized ``metadata.version``, and the highest level that each broker supports."""

    metadata_version: int
    supported_min: int
    supported_max: int
    brokers: Mapping[int, int]
    metadata_version_before: int | None = None
    """Level before an upgrade; None in the answer to any other call."""


def features_of(row: Mapping[str, Any]) -> Features:
    """Return the features that a v3 answer describes."""
    return Features(
        metadata_version=row["metadata_version"],
        supported_min=row["supported_min"],
        supported_max=row["supported_max"],
        brokers={one["broker_id"]: one["supported_max"] for one in row["brokers"]},
        metadata_version_before=row.get("metadata_version_before"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigInfo:
    """A config of a resource: the value in force, its source, and the other values set for it."""

    name: str
    value: str
    source: str
    is_default: bool
    is_read_only: bool
    synonyms: tuple[tuple[str, str], ...]
    """(value, source) of every place where the config is set; the value in force comes first."""
    meaning: str
    expected: str
    update: str
    """``live`` or ``restart``: a new value is in force at once, or after a restart."""
    broker_id: int | None = None
    topic: str | None = None


def config_of(row: Mapping[str, Any]) -> ConfigInfo:
    """Return the config that a row of a v3 answer describes."""
    return ConfigInfo(
        name=row["name"],
        value=row["value"],
        source=row["source"],
        is_default=row["is_default"],
        is_read_only=row["is_read_only"],
        synonyms=tuple((one["value"], one["source"]) for one in row["synonyms"]),
        meaning=row["meaning"],
        expected=row["expected"],
        update=row["update"],
        broker_id=row.get("broker_id"),
        topic=row.get("topic_name"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingReplica:
    """Progress of a replica that a reassignment adds.

    The offsets are None until the partition's leader has received a fetch from the replica.
    """

    broker_id: int
    log_end_offset: int | None
    lag: int | None
    is_in_sync: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentInfo:
    """A partition whose replicas are being moved.

    ``adding`` and ``removing`` are empty once the reassignment is complete.
    """

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]
    leader_end_offset: int | None
    progress: tuple[AddingReplica, ...]

    @property
    def is_under_way(self) -> bool:
        """Return True until every replica has been added or removed."""
        return bool(self.adding or self.removing)


def reassignment_of(row: Mapping[str, Any]) -> ReassignmentInfo:
    """Return the reassignment that a row of a v3 answer describes."""
    return ReassignmentInfo(
        topic=row["topic_name"],
        partition=row["partition_id"],
        replicas=tuple(row["replica_ids"]),
        adding=tuple(row["adding_replicas"]),
        removing=tuple(row["removing_replicas"]),
        leader_end_offset=row["leader_end_offset"],
        progress=tuple(
            AddingReplica(
                broker_id=one["broker_id"],
                log_end_offset=one["log_end_offset"],
                lag=one["lag"],
                is_in_sync=one["is_in_sync"],
            )
            for one in row["progress"]
        ),
    )


def _in_brackets(host: str) -> str:
    return f"[{host}]" if ":" in host else host
