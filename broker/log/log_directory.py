"""Objects that all logs of a broker share: configuration, shared services, errors, identity file.

The `LogManager` creates one `LogDirectory` when it opens and gives it to every `PartitionLog`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker.log.checkpoints import encode_checkpoint
from broker.log.producer_snapshot import ProducerLimits
from raft_metadata.common.disk import place_file
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.log.compaction import CompactionConfig
    from broker.log.flusher import Flushable, LogFlusher
    from broker.log.retention import RetentionConfig
    from broker.log.segment import OpenFiles
    from raft_metadata.common.disk import Disk

PARTITION_FILE = "partition.json"


class UnreadableError(KafkaError, CorruptionError):
    """The refusal of a read that hit a damaged batch, which is never served (invariant L22)."""

    def __init__(self, name: str, damage: CorruptionError) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"log {name}: {damage}")


class InDoubtError(CorruptionError):
    """A change of a log's files that stopped halfway: memory may not match the files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of a topic's logs; one object is shared by all of them."""

    segment_bytes: int = 1_073_741_824
    segment_ms: int = 604_800_000
    flush_before_ack: bool = True
    """True (``flush=ack``): every append requests a sync. False: only the background flush does."""
    retention: RetentionConfig | None = None
    """Limits of age and size; None if ``cleanup.policy`` does not hold ``delete``."""
    append_time: bool = False
    """True if ``message.timestamp.type`` is append: producers' own times are dropped."""
    compaction: CompactionConfig | None = None
    """Compaction settings; None if ``cleanup.policy`` does not hold ``compact``."""
    zstd: bool = False
    """True if ``compression.type`` is zstd: new batches are stored compressed."""


class AppendInfo(NamedTuple):
    """The result of a leader's append.

    ``raw`` holds the written bytes, to be pushed to followers (R2).
    """

    base_offset: int
    last_offset: int
    raw: bytes


@dataclass(slots=True)
class LogDirectory:
    """Services shared by all logs of a broker. Owned by the LogManager, from `open` to `close`."""

    root: str
    files: OpenFiles
    flusher: LogFlusher
    on_failed: Callable[[str | None, BaseException], None]
    """Called with the name of a log that is damaged, or None if the whole disk is in doubt."""
    dirty: set[Flushable]
    """Logs with unsynced appends and no requested sync: the background flush takes them."""
    on_log_start: Callable[[Flushable], None]
    """Called when a log's start has moved and is durable."""
    unlink_later: Callable[[str], None]
    """Renames a file that is unlinked later: `SegmentRemovals.unlink_later`."""
    producers: ProducerLimits = ProducerLimits()
    call_each_turn: Callable[[Callable[[], bool]], None] | None = None
    """Calls a function once per turn of the event loop until it returns True; None: no loop yet."""


def make_partition_directory(
    disk: Disk, directory: str, topic: str, partition: int, topic_id: str
) -> None:
    """Make a partition's directory with its identity file, durable after the log's first flush."""
    disk.make_directory(directory)
    content = {"topic_id": topic_id, "topic": topic, "partition": partition}
    place_file(disk, f"{directory}/{PARTITION_FILE}", [encode_checkpoint(content)], sync=False)
