"""Indexes of sealed segments: memory lets go of them, and the answers stay the same."""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from broker.log import index
from broker.log.compaction import CompactionConfig
from broker.log.index import (
    ENTRY_BYTES,
    IndexFileHead,
    OffsetIndex,
    decode_index,
    encode_index,
    open_index,
)
from broker.log.log_directory import LogConfig
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import CorruptionError
from tests.support.compaction_model import append_keyed, clean
from tests.support.doors.log import (
    forbid_index_rebuild,
    index_bytes_in_memory,
    index_from_headers,
    open_files_of,
    segments_with_index_in_memory,
)
from tests.support.logs import Life, append, offset_for_timestamp, values_of
from tests.support.simulated_disk import SimulatedDisk
from tests.support.stepped_log import step_by_step

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.partition_log import PartitionLog

SMALL = LogConfig(segment_bytes=60_000)
LIMIT_BYTES = 2_500


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BLOCK_ENTRIES", 4)
    monkeypatch.setattr(index, "BLOCK_BYTES", 4 * ENTRY_BYTES)


@pytest.fixture
def no_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading an index back must never mean walking the segment."""
    forbid_index_rebuild(monkeypatch)


def opened(disk: SimulatedDisk, config: LogConfig = SMALL, limit: int = LIMIT_BYTES) -> Life:
    life = Life(disk, config)
    open_files_of(life.manager).indexes.limit_bytes = limit
    return life


def fill(log: PartitionLog, batches: int, size: int = 1_000, mark: str = "") -> None:
    for number in range(batches):
        append(log, [f"{mark}{number}" + "x" * size], now_ms=log.log_end_offset)


class Checked:
    """One log through many lives, beside what it has to hold."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.disk = SimulatedDisk()
        self.disk.synced["/data"] = self.disk.live["/data"] = None
        self.records: list[tuple[str, int]] = []
        self.start = self.most = self.sealed_bytes = 0
        self.life = opened(self.disk)

    @property
    def log(self) -> PartitionLog:
        return self.life.log()

    def append(self) -> None:
        for _ in range(self.rng.randint(1, 40)):
            stamp = len(self.records) * 10 + self.rng.randint(0, 400)
            values = [f"{self.rng.random()}" + "x" * self.rng.randint(0, 3_000)]
            append(self.log, values, now_ms=stamp)
            self.records += [(value, stamp) for value in values]
        self.life.flush()

    def roll(self) -> None:
        self.log.roll()

    def cut(self) -> None:
        back = self.rng.choice([1, 20, len(self.records) - self.start])
        self.log.truncate_to(max(len(self.records) - self.rng.randint(0, back), self.start))
        del self.records[self.log.log_end_offset :]

    def trim(self) -> None:
        if self.rng.random() < 0.3:
            self.start = self.rng.randint(self.start, len(self.records))
            self.log.advance_log_start(self.start)
            self.life.flush()
            self.life.manager.removals.rename_some()

    def restart(self) -> None:
        self.life.close() if self.rng.random() < 0.5 else self.life.flush()
        assert not self.life.failures
        self.disk.kill()
        self.life = opened(self.disk)

    def read(self) -> None:
        log, end = self.log, len(self.records)
        for _ in range(12):
            if self.start < end:
                offset = self.rng.randrange(self.start, end)
                (piece, *_) = log.read(offset, 1, end)
                assert piece.first_offset == offset
                assert self.records[offset][0].encode() in bytes(piece.lines)
        stamp = self.rng.randint(0, len(self.records) * 10 + 500)
        later = (n for n in range(self.start, end) if self.records[n][1] >= stamp)
        assert offset_for_timestamp(log, stamp) == next(later, None)

    def check(self) -> None:
        log, files = self.log, open_files_of(self.life.manager)
        indexes = files.indexes
        assert (log.log_start_offset, log.log_end_offset) == (self.start, len(self.records))
        assert set(segments_with_index_in_memory(indexes)) <= set(log.segments), (
            "segments that are gone are held on to"
        )
        held = {segment: index_bytes_in_memory(segment) for segment in log.segments}
        may_go = sum(size for segment, size in held.items() if segment.is_index_written)
        assert may_go == indexes.held_bytes
        assert may_go <= max([LIMIT_BYTES, *held.values()])
        filled = [segment for segment in held if segment.size]  # the next flush seals the others
        must_stay = [segment for segment in filled if not segment.is_index_written]
        assert must_stay in ([], filled[-1:]), "flushed, and still held on to"
        whole = [index_from_headers(s, self.disk, files.use(s)) for s in log.segments]
        self.most = max(self.most, len(log.segments))
        self.sealed_bytes = max(self.sealed_bytes, sum(each.held_bytes for each in whole))
        for segment, entries in zip(log.segments, whole, strict=True):
            for offset in range(segment.base_offset, segment.next_offset, 7):
                expected = entries.position_for(offset - segment.base_offset)
                assert segment.position_for(files, offset) == expected

    def run(self, steps: int) -> None:
        kinds = [self.append, self.append, self.append, self.read, self.read]
        kinds += [self.roll, self.cut, self.trim, self.restart]
        for _ in range(steps):
            self.rng.choice(kinds)()
            self.life.flush()
            self.check()
        self.read()


@pytest.mark.usefixtures("no_walks")
def test_memory_stays_bounded_and_answers_the_same_whatever_happens_to_the_log() -> None:
    runs = [Checked(seed) for seed in range(12)]
    for run in runs:
        run.run(60)
    assert max(run.most for run in runs) > 15
    assert max(run.sealed_bytes for run in runs) > 4 * LIMIT_BYTES


def full_for_indexes(operation: str, path: str) -> None:
    if operation == "write" and path.endswith(".index.tmp"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.usefixtures("no_walks")
def test_an_index_that_is_not_in_its_file_stays_in_memory() -> None:
    """Not yet synced, or the disk was full: reading it back would mean walking the segment."""
    disk = SimulatedDisk()
    life = opened(disk, limit=0)
    log = life.log()
    fill(log, 130)
    files = open_files_of(life.manager)
    assert [index_bytes_in_memory(segment) > 0 for segment in log.segments] == [True] * 3
    disk.before = full_for_indexes
    life.flush()
    assert len(files.indexes) == 0
    assert values_of(log, 100)
    assert [index_bytes_in_memory(segment) > 0 for segment in log.segments] == [True] * 3
    disk.before = None
    append(log, ["more"])
    life.flush()
    assert values_of(log, 0)
    assert [index_bytes_in_memory(segment) > 0 for segment in log.segments] == [False, True, True]
    assert segments_with_index_in_memory(files.indexes) == log.segments[1:2]


@pytest.mark.usefixtures("no_walks")
def test_a_cut_takes_the_index_along_and_other_records_get_one_of_their_own() -> None:
    """As many bytes as before stand in the segment again: the old file is not believed."""
    disk = SimulatedDisk()
    life = opened(disk, limit=0)
    log = life.log()
    fill(log, 130, mark="a")
    life.flush()
    first, size = log.segments[0], log.segments[0].size
    assert values_of(log, 100)
    assert first.is_index_written
    assert not index_bytes_in_memory(first)
    log.truncate_to(10)
    assert not first.is_index_written
    assert not disk.exists(first.index_path)
    assert len(open_files_of(life.manager).indexes) == 0
    # Larger batches at first, then smaller ones: the same size and end, other places.
    ends = log.segments[0].next_offset, first.size
    fill(log, 5, 1_500, mark="b")
    while log.segments[-1] is first and size - first.size > 2_500:
        fill(log, 1, 990, mark="c")
    log.roll()
    fill(log, 60, mark="d")
    life.flush()
    assert ends[0] == 10
    assert first.is_index_written
    expected = values_of(log)
    fill(log, 60, mark="e")
    life.flush()
    assert values_of(log)[: len(expected)] == expected
    disk.kill()
    assert values_of(opened(disk).log())[: len(expected)] == expected


@pytest.mark.usefixtures("no_walks")
def test_rule_q3_a_seal_that_is_reported_after_a_cut_says_nothing_of_the_index() -> None:
    disk = SimulatedDisk()
    life = opened(disk, limit=0)
    flusher = step_by_step(life, disk)
    log = life.log()
    fill(log, 130)
    flusher.begin()
    flusher.work()
    assert disk.exists(log.segments[0].index_path)
    log.truncate_to(30)
    fill(log, 130, mark="b")
    expected = values_of(log)
    flusher.report()
    assert not any(segment.is_index_written for segment in log.segments)
    assert len(open_files_of(life.manager).indexes) == 0
    assert values_of(log) == expected


@pytest.mark.usefixtures("no_walks")
def test_a_log_that_is_opened_takes_its_index_into_memory_when_it_is_first_written_to() -> None:
    """Otherwise the next read walks the whole segment, however long."""
    disk = SimulatedDisk()
    life = opened(disk)
    fill(life.log(), 40)
    life.close()
    disk.kill()
    life = opened(disk)
    log = life.log()
    assert not index_bytes_in_memory(log.segments[-1])
    assert len(values_of(log)) == 40
    fill(log, 5)
    assert not log.segments[-1].is_index_written
    assert len(values_of(log)) == 45
    assert len(open_files_of(life.manager).indexes) == 0
    life.close()
    disk.kill()
    calls = len(disk.calls)
    life = opened(disk)
    life.close()
    written = [path for operation, path in disk.calls[calls:] if operation == "write"]
    assert not [path for path in written if ".index" in path], "it is there already"
    disk.kill()
    assert len(values_of(opened(disk).log())) == 45


@pytest.mark.parametrize("how", ["remove", "start over", "back", "delete", "close"])
def test_nothing_holds_on_to_segments_that_are_gone(how: str) -> None:
    disk = SimulatedDisk()
    life = opened(disk, limit=20_000)
    log, indexes = life.log(), open_files_of(life.manager).indexes
    fill(log, 300)
    life.flush()
    assert len(values_of(log)) == 300
    assert len(indexes) > 2
    if how == "remove":
        log.advance_log_start(300)
        life.flush()
        life.manager.removals.rename_some()
    elif how == "start over":
        log.start_over(400)
    elif how == "back":
        log.start_over(5)
    elif how == "delete":
        life.manager.delete([life.manager.key_of(log)])
    else:
        life.close()
    assert (len(indexes), indexes.held_bytes) == (0, 0)


@pytest.mark.usefixtures("no_walks")
@pytest.mark.parametrize("is_full", [False, True])
def test_a_compacted_segment_lets_go_of_its_index_once_that_is_in_its_file(is_full: bool) -> None:
    disk = SimulatedDisk()
    config = LogConfig(segment_bytes=20_000, compaction=CompactionConfig(segment_bytes=20_000))
    life = opened(disk, config, limit=0)
    log = life.log()
    for number in range(400):
        append_keyed(log, [(number % 7, f"{number}" + "x" * 300)])
    log.roll()
    append_keyed(log, [(8, "x")])
    life.flush()
    log.high_watermark = log.log_end_offset
    values_of_all = values(log)
    old = list(log.segments)
    disk.before = full_for_indexes if is_full else None
    clean(log)
    disk.before = None
    new = [segment for segment in log.segments if segment not in old]
    assert new
    assert [segment.is_index_written for segment in new] == [not is_full] * len(new)
    assert [index_bytes_in_memory(segment) > 0 for segment in new] == [is_full] * len(new)
    assert set(segments_with_index_in_memory(open_files_of(life.manager).indexes)) <= set(
        log.segments
    )
    assert values(log) == values_of_all[-len(values(log)) :]


def values(log: PartitionLog) -> list[bytes]:
    """Lines from the first on, over holes."""
    found, offset = [], 0
    while offset < log.log_end_offset:
        pieces = log.read(offset, 1, log.log_end_offset)
        if not pieces:
            break
        found += [bytes(piece.lines) for piece in pieces]
        offset = pieces[-1].next_offset
    return found


@pytest.mark.parametrize("at", [10, 100, -30])
def test_a_damaged_index_is_rebuilt_and_stays_in_memory(at: int) -> None:
    """Head, summary or block: damage of an index is no damage of the log."""
    disk = SimulatedDisk()
    life = opened(disk, limit=0)
    log = life.log()
    fill(log, 130)
    life.flush()
    values_of(log, 100)
    first = log.segments[0]
    assert not index_bytes_in_memory(first)
    inode = disk.live[first.index_path]
    assert inode is not None
    inode.cache[at] ^= 1
    assert len(values_of(log)) == 130
    assert offset_for_timestamp(log, 50) == 50
    assert log.failed is None
    assert not first.is_index_written
    disk.unlink(log.segments[1].index_path)
    values_of(log, 120)
    assert len(values_of(log)) == 130
    assert [index_bytes_in_memory(segment) > 0 for segment in log.segments] == [True] * 3


def test_every_byte_of_an_index_file_is_checked_before_it_is_believed(tmp_path: Path) -> None:
    index = OffsetIndex()
    for number in range(11):
        index.add(number * 3, number * 5_000, number * 7)
    head = IndexFileHead(100, 140, 55_000, 80, 1, 2)
    raw = encode_index(head, index)
    path = str(tmp_path / "0.index")
    disk = Disk()

    def answers(data: bytes) -> object:
        (tmp_path / "0.index").write_bytes(data)
        said, stored = open_index(disk, path)
        places = [stored.position_for(offset) for offset in range(36)]
        return said, places, [stored.position_for_time(stamp) for stamp in range(-1, 80)]

    expected = (
        head,
        [index.position_for(offset) for offset in range(36)],
        [index.position_for_time(stamp) for stamp in range(-1, 80)],
    )
    assert answers(raw) == expected
    assert decode_index(raw, path)[1].entries == index.entries
    for at in range(len(raw)):
        damaged = bytearray(raw)
        damaged[at] ^= 0x10
        with pytest.raises(CorruptionError):
            answers(bytes(damaged))
        with pytest.raises(CorruptionError):
            decode_index(bytes(damaged), path)
        if at:
            with pytest.raises(CorruptionError):
                answers(raw[:at])
    with pytest.raises(CorruptionError):
        answers(raw + b"0")
    assert answers(encode_index(head, OffsetIndex())) == (head, [0] * 36, [0] * 81)
