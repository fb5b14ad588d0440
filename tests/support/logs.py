"""Helpers for tests of the partition log: records in, values out, a broker's life on a disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from broker.log.log_directory import LogConfig
from broker.log.log_manager import LogManager
from broker.log.log_reader import TimeSearch
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from raft_metadata.common.ids import BrokerEpoch, PartitionId, TopicId, TopicName
from tests.support.doors.log import flusher_of
from tests.support.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.log.flusher import LogFlusher
    from broker.log.partition_log import PartitionLog
    from raft_metadata.common.disk import Disk

DATA_DIR = "/data"
TOPIC = TopicName("orders")
TOPIC_ID = TopicId("T" * 22)
EPOCH = BrokerEpoch(7)


def records(values: Iterable[object]) -> list[ProduceRecord]:
    return [ProduceRecord(value=make_raw(orjson.dumps(value))) for value in values]


def append(
    log: PartitionLog, values: Iterable[object], *, epoch: int = 1, now_ms: int = 1000
) -> bytes:
    return log.append_as_leader(
        records(values),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=epoch,
        now_ms=now_ms,
    ).raw


def values_of(log: PartitionLog, from_offset: int = 0, max_bytes: int = 1 << 20) -> list[object]:
    """Every value from this offset on; checks that offsets are contiguous on the way."""
    found = []
    offset = from_offset
    while offset < log.log_end_offset:
        for piece in log.read(offset, max_bytes, log.log_end_offset):
            assert piece.first_offset == offset
            lines = bytes(piece.lines).split(b"\n")[:-1]
            assert len(lines) == piece.count
            for line in lines:
                record = orjson.loads(line)
                assert record["offset"] == offset
                found.append(record["value"])
                offset += 1
            assert piece.next_offset == offset
    return found


def offset_for_timestamp(log: PartitionLog, timestamp_ms: int) -> int | None:
    """The first offset of this time or later, at once."""
    search = TimeSearch(timestamp_ms)
    while not log.step_time_search(search):
        if search.work is not None:
            search.work()
    return search.found


def flush_each(life: Life, log: PartitionLog, values: Iterable[object]) -> None:
    """A batch and a flush for each of them."""
    for value in values:
        append(log, [value])
        life.flush()


def formatted_disk() -> SimulatedDisk:
    """Return a disk on which a node's folder is durable, as formatting leaves it (rule Q6)."""
    disk = SimulatedDisk()
    disk.make_directory(DATA_DIR)
    disk.sync_directory("/")
    disk.calls.clear()
    return disk


class Life:
    """One life of a broker's log directory on a disk; no thread, rounds are run by hand."""

    def __init__(
        self,
        disk: Disk,
        config: LogConfig | None = None,
        data_dir: str = DATA_DIR,
        open_files: int = 64,
        flush_interval_ms: int = 1_000,
    ) -> None:
        self.disk = disk
        self.failures: list[BaseException] = []
        self.manager = LogManager(
            Path(data_dir),
            on_failed=self.failures.append,
            disk=disk,
            max_open_segments=open_files,
            flush_interval_ms=flush_interval_ms,
            default_config=config or LogConfig(),
        )
        self.manager.open()

    @property
    def flusher(self) -> LogFlusher:
        return flusher_of(self.manager)

    def log(self, partition: int = 0, topic_id: TopicId = TOPIC_ID) -> PartitionLog:
        return self.manager.get_or_create(TOPIC, PartitionId(partition), topic_id)

    def flush(self) -> None:
        self.flusher.flush_all()

    def close(self) -> None:
        self.manager.close(EPOCH)
