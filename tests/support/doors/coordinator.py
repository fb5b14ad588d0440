"""Doors into `broker.coordinator`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.coordinator.group_coordinator import GroupCoordinator
    from broker.coordinator.reader import InstanceReader
    from broker.coordinator.shard import Shard
    from raft_metadata.common.ids import PartitionId


def shard_of(coordinator: GroupCoordinator, partition: PartitionId) -> Shard:
    """Return an open shard: tests wait until it is loaded, and compare its state."""
    return coordinator._shards.by_partition[partition]


def replace_proof(
    coordinator: GroupCoordinator, prove: Callable[[object], Awaitable[None]]
) -> None:
    """Prove leadership by ``prove``: the time between a read and its proof is what is tested."""
    for shard in coordinator._shards.by_partition.values():
        shard.prove = prove  # type: ignore[method-assign, assignment]


def instance_reader_of(coordinator: GroupCoordinator) -> InstanceReader:
    """Return the reader of polls: tests let something happen while it resolves a start."""
    return coordinator._reader


def sessions_held_by(reader: InstanceReader) -> int:
    """Return for how many sessions a reader keeps state: none once no poll is under way."""
    return len(reader._locks.keys() | reader._newest.keys())
