"""What the logs of a broker share, and what a topic's configuration says about its logs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker.log.checkpoints import encode_checkpoint, place_file
from broker.log.producer_snapshot import ProducerLimits
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.log.compaction import CompactionConfig
    from broker.log.disk import Disk
    from broker.log.flusher import Flushable, Flusher
    from broker.log.retention import RetentionConfig
    from broker.log.segment import OpenFiles

PARTITION_FILE = "partition.json"


class UnreadableError(KafkaError, CorruptionError):
    """A damaged batch was asked for: it is never served (invariant L22)."""

    def __init__(self, name: str, damage: CorruptionError) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"log {name}: {damage}")


class InDoubtError(CorruptionError):
    """A change of a log's files stopped on the way: what is in memory says nothing of them now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What a topic's configuration says about its logs; one object for all of them."""

    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000
    flush_before_ack: bool = True
    """``flush=ack``: every append asks for a sync. ``flush=os``: only the background one does."""
    retention: RetentionConfig | None = None
    """How long the log's beginning is kept; None where ``cleanup.policy`` deletes nothing."""
    append_time: bool = False
    """``message.timestamp.type`` is append: producers' own times are dropped."""
    compaction: CompactionConfig | None = None
    """``cleanup.policy`` holds compact."""
    zstd: bool = False
    """``compression.type`` is zstd: what is appended from now on is stored compressed."""


class AppendInfo(NamedTuple):
    """What a leader's append did. ``raw`` is what was written: push these bytes (rule R2)."""

    base_offset: int
    last_offset: int
    raw: bytes


@dataclass(slots=True)
class LogDirectory:
    """What all logs of a broker share. Owned by the LogManager."""

    root: str
    files: OpenFiles
    flusher: Flusher
    on_failed: Callable[[str | None, BaseException], None]
    """The name of a log, or None for the whole directory, can't be trusted any more."""
    dirty: set[Flushable]
    """Logs with unsynced appends that nobody asked to sync: the background flush takes them."""
    on_log_start: Callable[[Flushable], None]
    """A log's start has moved and is durable."""
    put_away: Callable[[str], None]
    """Unlinks a file, but for the work of it: `SegmentRemovals.put_away`."""
    producers: ProducerLimits = ProducerLimits()
    in_turns: Callable[[Callable[[], bool]], None] | None = None
    """Calls something once a turn of the loop, until it says True; None where no loop runs yet."""


def make_partition_directory(
    disk: Disk, directory: str, topic: str, partition: int, topic_id: str
) -> None:
    """Make a partition's directory and say whose it is; the log's first flush makes it durable."""
    disk.make_directory(directory)
    content = {"topic_id": topic_id, "topic": topic, "partition": partition}
    place_file(disk, directory, PARTITION_FILE, encode_checkpoint(content), sync=False)
