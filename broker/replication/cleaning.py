"""Connects the log cleaner of a broker with replication; neither imports the other.

The `BrokerServer` makes the cleaner here. For each log the cleaner receives the high watermark and
the offset that every replica has reached, and each of its passes is noted as an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.cleaner import CleanerLimits, CleaningStats, LogCleaner, ReplicaFacts
from broker.replication.events import EventKind
from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following
from raft_metadata.common.ids import TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.config import BrokerConfig
    from broker.log.log_manager import LogManager
    from broker.log.partition_log import PartitionLog
    from broker.replication.partition import Partition
    from broker.replication.replica_manager import ReplicaManager
    from raft_metadata.common.clock import Clock


def replicated_to(partition: Partition) -> int:
    """Return the offset that every assigned replica has reached; 0 if it is not known (rule R7).

    The leader computes it from acknowledgements; a follower returns the value that the present
    leader sent last.
    """
    role = partition.role
    if isinstance(role, LeaderState):
        return role.replicated_to(partition.log.log_end_offset)
    return role.replicated_to if isinstance(role, Following) else 0


def make_cleaner(
    config: BrokerConfig,
    logs: LogManager,
    manager: ReplicaManager,
    clock: Clock,
    is_clock_trusted: Callable[[], bool],
) -> LogCleaner:
    """Return the log cleaner of this broker; it notes each of its passes as an event.

    The cleaner pauses while this broker's clock differs from the controllers', as retention does
    (rule R10).
    """
    limits = CleanerLimits(
        dedupe_buffer_bytes=config.limits.log_cleaner_dedupe_buffer_size,
        io_max_bytes_per_second=config.limits.log_cleaner_io_max_bytes_per_second,
        backoff_ms=config.timeouts.log_cleaner_backoff_ms,
    )

    def facts(log: PartitionLog) -> ReplicaFacts | None:
        replica = manager.replica(TopicIdPartition(log.topic_id, log.partition))
        if replica is None or replica.log is not log:
            return None
        partition = replica.partition
        return ReplicaFacts(partition.high_watermark, replicated_to(partition))

    def note(log: PartitionLog, stats: CleaningStats, cleaned_to: int, took_ms: int) -> None:
        replica = manager.replica(TopicIdPartition(log.topic_id, log.partition))
        if replica is not None:
            manager.events.note(
                EventKind.CLEANED,
                replica.partition.id,
                replica.partition.role.epoch,
                cleaned_to=cleaned_to,
                dropped_to=log.dropped_to,
                bytes_read=stats.bytes_read,
                bytes_written=stats.bytes_written,
                records_dropped=stats.records_dropped,
                segments_replaced=stats.segments_replaced,
                took_ms=took_ms,
            )

    return LogCleaner(logs.logs, facts, limits, clock, note, is_clock_trusted)
