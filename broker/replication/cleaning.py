"""The cleaner of a broker's logs, with what replication knows of each of them."""

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
    """Below this every assigned replica holds the log, as this one knows it now; 0: unknown (R7).

    A follower knows what the present leader last said.
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
    """The cleaner of this broker; what each pass did becomes an event.

    It rests while this clock differs from the controllers', as retention does (rule R10).
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
