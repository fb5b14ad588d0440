"""Costs and savings of compaction: `python -m benchmarks.compaction [DIRECTORY]`.

A partition's log on a real disk: the speed of compaction unlimited and at the default rate, the
time for which the loop is blocked meanwhile, and the time in which a group coordinator loads 1 M
commits of 1,000 keys before and after.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import orjson

from broker.coordinator.group_state import GroupsState
from broker.coordinator.records import (
    OffsetKey,
    OffsetValue,
    decode_entry,
    encode_key,
    encode_value,
)
from broker.log.cleaner import CleanerLimits, CleaningStats, LogCleaner, ReplicaFacts
from broker.log.compaction import CompactionConfig
from broker.log.log_directory import LogConfig
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.record.batch import RecordFormat
from broker.record.lines import ProduceRecord, make_raw
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.ids import GroupId, PartitionId, TopicId, TopicName

SEGMENT_BYTES = 67_108_864
COMMITS = 1_000_000
KEYS = 1_000
TICK_S = 0.001


def filled(directory: Path, name: str, batch: int, total: int) -> tuple[LogManager, PartitionLog]:
    """Return a log of commits of `KEYS` keys in turn, many in a batch."""
    config = LogConfig(
        segment_bytes=SEGMENT_BYTES,
        flush_before_ack=False,
        compaction=CompactionConfig(segment_bytes=SEGMENT_BYTES, min_dirty_ratio=0.0),
    )
    manager = LogManager(directory / name, on_failed=print, default_config=config)
    manager.open()
    log = manager.get_or_create(TopicName("t"), PartitionId(0), TopicId("T" * 22))
    keys = [
        make_raw(encode_key(OffsetKey(GroupId("group"), TopicName("orders"), PartitionId(n))))
        for n in range(KEYS)
    ]
    topic_id = TopicId("O" * 22)
    for first in range(0, total, batch):
        values = [
            encode_value(OffsetValue(topic_id=topic_id, offset=number))
            for number in range(first, first + batch)
        ]
        log.append_as_leader(
            [
                ProduceRecord(key=keys[(first + n) % KEYS], value=make_raw(value))
                for n, value in enumerate(values)
            ],
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            leader_epoch=1,
            now_ms=1_000,
        )
    log.roll()
    log.append_as_leader(
        [ProduceRecord(key=keys[0], value=make_raw(b"null"))],
        key_format=RecordFormat.JSON, value_format=RecordFormat.JSON, leader_epoch=1, now_ms=1_000,
    )  # fmt: skip
    log.request_flush()
    manager._opened().flusher.flush_all()  # noqa: SLF001 no loop runs here
    log.high_watermark = log.log_end_offset
    return manager, log


def load(log: PartitionLog) -> float:
    """Return the seconds a coordinator needs to read all of it."""
    state, offset, end = GroupsState(), 0, log.log_end_offset
    began = time.perf_counter()
    while offset < end:
        slices = log.read(offset, 1 << 20, end)
        for piece in slices:
            for line in bytes(piece.lines).split(b"\n")[:-1]:
                record = orjson.loads(line)
                state.fold(decode_entry(record["key"], record["value"]))
        offset = slices[-1].next_offset if slices else end
    return time.perf_counter() - began


async def clean(log: PartitionLog, rate: int) -> tuple[CleaningStats, float, float, list[float]]:
    """Run one pass; return its figures, wall and CPU seconds, and the loop's delays, sorted."""
    late: list[float] = []

    async def ticks() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK_S)
            late.append(time.perf_counter() - began - TICK_S)

    limits = CleanerLimits(io_max_bytes_per_second=rate)
    cleaner = LogCleaner(
        lambda: [log],
        lambda one: ReplicaFacts(one.high_watermark, one.high_watermark),
        limits,
        SystemClock(),
        lambda _log, _stats, _to, _ms: None,
    )
    async with asyncio.TaskGroup() as tasks:
        ticking = tasks.create_task(ticks())
        wall, cpu = time.perf_counter(), time.process_time()
        stats = await cleaner.clean(log)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        ticking.cancel()
    return stats, wall, cpu, sorted(late)


def tell(what: str, size: int, seconds: tuple[float, float], late: list[float]) -> None:
    """Print one line of figures; ``seconds`` are wall-clock and CPU seconds."""
    wall, cpu = seconds
    p99 = late[int(len(late) * 0.99)] * 1000
    print(
        f"{what}: {size / 1e6:.0f} MB of log in {wall:.2f} s = {size / wall / 1e6:.0f} MB/s, "
        f"{cpu / (size / 1e6) * 1000:.1f} CPU-ms a MB; loop late p50 "
        f"{late[len(late) // 2] * 1000:.2f} ms, p99 {p99:.1f} ms, worst {late[-1] * 1000:.1f} ms"
    )


def main() -> None:
    """Run the benchmark of the module's docstring."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for batch, total in ((100, COMMITS), (1, COMMITS // 10)):
            for name, rate in (("full speed", 1 << 40), ("default rate", 1 << 25)):
                manager, log = filled(Path(folder), f"{batch}-{rate}", batch, total)
                size = sum(segment.size for segment in log.segments)
                before = load(log) if rate == 1 << 40 else 0.0
                stats, wall, cpu, late = asyncio.run(clean(log, rate))
                left = sum(segment.size for segment in log.segments)
                tell(f"batches of {batch}, {name}", size, (wall, cpu), late)
                if before:
                    print(
                        f"  coordinator load of {total} commits of {KEYS} keys: {before:.2f} s, "
                        f"compacted {load(log) * 1000:.0f} ms ({left / 1e3:.0f} KB left, "
                        f"{stats.records_dropped} records gone)"
                    )
                manager.close(None)


if __name__ == "__main__":
    main()
