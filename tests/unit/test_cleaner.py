"""The cleaner on a disk: crash points, what makes a pass void, what is left alone, memory."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Iterator

import pytest

from broker.log.cleaner import (
    CleanerLimits,
    CleaningStats,
    CleaningStopped,
    LogCleaner,
    ReplicaFacts,
)
from broker.log.compaction import CompactionConfig
from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from broker.log.segment import Segment
from broker.record.batch import walk
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import CorruptionError
from tests.support.compaction_model import (
    LIMITS,
    Said,
    Stepped,
    append_keyed,
    check_promises,
    clean,
    cleaning,
    headers_of,
    read_all,
    run_here,
)
from tests.support.doors.log import set_pace_of_pass
from tests.support.logs import Life, offset_for_timestamp
from tests.support.simulated_disk import SimulatedDisk

SEGMENT_BYTES = 1_000
CONFIG = LogConfig(
    segment_bytes=SEGMENT_BYTES,
    compaction=CompactionConfig(delete_retention_ms=1_000, segment_bytes=SEGMENT_BYTES),
)
LATER_MS = 20_000


class Killed(BaseException):
    """SIGKILL: no code may handle it."""


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def life(disk: SimulatedDisk) -> Life:
    return Life(disk, CONFIG)


@pytest.fixture
def log(life: Life) -> PartitionLog:
    return life.log()


def fill(life: Life, log: PartitionLog, count: int = 60, *, keys: int = 4) -> list[Said]:
    """Records of a few keys, over several segments and two epochs, all committed."""
    said = []
    for number in range(count):
        epoch = 1 if number < count // 2 else 2
        pair = (number % keys, None if number % 7 == 3 else number)
        append_keyed(log, [pair], epoch=epoch, now_ms=1_000 + number)
        said.append(Said(epoch, *pair))
    life.flush()
    log.high_watermark = log.log_end_offset
    return said


def batches_of(log: PartitionLog) -> int:
    return len(headers_of(log))


def test_the_newest_record_of_each_key_stays_under_its_offset(
    life: Life, log: PartitionLog
) -> None:
    said = fill(life, log)
    before, size = len(log.segments), sum(segment.size for segment in log.segments)
    active = log.segments[-1].base_offset
    done = clean(log)
    assert done.cleaned_to == active
    shown = read_all(log, 0, 1 << 20)
    closed = [offset for offset in shown if offset < active]
    newest = {said[offset].key: offset for offset in range(active)}
    assert closed == sorted(newest.values())
    assert len(log.segments) < before, "small segments were merged"
    assert sum(segment.size for segment in log.segments) < size / 3
    assert all(segment.size <= SEGMENT_BYTES for segment in log.segments)
    check_promises(log, said, may_drop_below=0, unclean_from=active, max_bytes=300)


def test_a_clean_log_is_not_cleaned_again_even_after_a_restart(
    disk: SimulatedDisk, life: Life, log: PartitionLog
) -> None:
    fill(life, log)
    cleaned_to = clean(log).cleaned_to
    assert clean(log).cleaned_to == 0, "nothing was dirty"
    shown = read_all(log, 0, 500)
    disk.kill()
    again = Life(disk, CONFIG).log()
    assert again.stored is not None
    assert again.stored.cleaned.cleaned_to == cleaned_to
    again.high_watermark = again.log_end_offset
    assert clean(again).cleaned_to == 0
    assert read_all(again, 0, 500) == shown


def crash_points(operations: int) -> Iterator[tuple[int, int]]:
    for at in range(operations):
        for seed in range(3):
            yield at, seed


def test_rule_q6_any_crash_point_leaves_the_log_as_before_or_as_after() -> None:
    """Killed, or cut from power, at every file operation of a pass; then started again."""

    def world() -> tuple[SimulatedDisk, PartitionLog, list[Said]]:
        disk = SimulatedDisk()
        life = Life(disk, CONFIG)
        log = life.log()
        said = fill(life, log)
        clean(log)
        said += [Said(2, n % 5, n) for n in range(40)]
        for one in said[60:]:
            append_keyed(log, [(one.key, one.value)], epoch=2, now_ms=2_000)
        life.flush()
        log.high_watermark = log.log_end_offset
        disk.calls.clear()
        return disk, log, said

    disk, log, said = world()
    clean(log, LATER_MS)
    operations = len(disk.calls)
    assert operations > 30
    whole = read_all(log, 0, 500)
    outcomes = set()
    for at, seed in crash_points(operations):
        disk, log, said = world()
        before, left = read_all(log, 0, 500), [at]
        active = log.segments[-1].base_offset

        def crash(_operation: str, _path: str, left: list[int] = left) -> None:
            if not left[0]:
                raise Killed
            left[0] -= 1

        disk.before = crash
        with pytest.raises(Killed):
            clean(log, LATER_MS)
        if seed:
            disk.cut_power(random.Random(seed * 1_000 + at))
        else:
            disk.kill()
        life = Life(disk, CONFIG)
        assert life.manager.offline == {}
        again = life.log()
        assert again.log_end_offset == len(said)
        check_promises(again, said, may_drop_below=60, unclean_from=active, max_bytes=500)
        shown = read_all(again, 0, 500)
        assert whole.items() <= shown.items() <= before.items()
        outcomes.add((shown == before, shown == whole))
        again.high_watermark = again.log_end_offset
        clean(again, LATER_MS)
        assert read_all(again, 0, 500) == whole, "what was left is done by the next pass"
        assert not [name for name in disk.names(again.directory) if ".swap" in name]
    assert {(True, False), (False, True)} <= outcomes


@pytest.mark.parametrize("change", ["truncate", "start_over", "delete", "remove_segments"])
@pytest.mark.parametrize("steps", range(8))
def test_rule_q3_what_changes_the_log_meanwhile_makes_a_pass_void(
    life: Life, log: PartitionLog, change: str, steps: int
) -> None:
    said = fill(life, log)
    log.high_watermark -= 2
    one = Stepped(cleaning(log, 10_000))
    for _ in range(steps):
        one.step()
    segments_before = list(log.segments)
    if change == "truncate":
        log.truncate_to(log.high_watermark)
        del said[log.log_end_offset :]
    elif change == "start_over":
        log.start_over(40)
    elif change == "delete":
        life.manager.delete([life.manager.key_of(log)])
    else:
        log.advance_log_start(25)
        life.flush()
        assert log.stored is not None
        log.stored.remove_below(log.log_start_offset, 10)
    while not one.over:
        one.step()
    if change == "delete":
        assert life.manager.quarantined()
        assert life.log().log_end_offset == 0
        return
    if change == "start_over":
        assert log.log_start_offset == log.log_end_offset == 40
        assert log.stored is not None
        assert log.stored.cleaned.cleaned_to == 0
        return
    assert segments_before
    check_promises(log, said, may_drop_below=0, unclean_from=len(said), max_bytes=300)
    headers_of(log)


def test_rule_r7_a_tombstone_stays_until_every_replica_has_it(
    life: Life, log: PartitionLog
) -> None:
    append_keyed(log, [(1, 1)])
    append_keyed(log, [(1, None)])
    fill_more(life, log)
    clean(log, 10_000)
    assert 1 in read_all(log, 0, 500), "clean only now"
    fill_more(life, log)
    clean(log, 10_500)
    assert 1 in read_all(log, 0, 500), "delete.retention.ms is not over"
    fill_more(life, log)
    clean(log, LATER_MS, replicated_to=1)
    assert 1 in read_all(log, 0, 500), "a replica may not have it"
    assert log.dropped_to <= 1
    fill_more(life, log)
    clean(log, LATER_MS, replicated_to=2)
    assert 1 not in read_all(log, 0, 500)
    assert log.dropped_to == 2


def fill_more(life: Life, log: PartitionLog) -> None:
    """Two closed segments more, of other keys."""
    closed = len(log.segments)
    while len(log.segments) < closed + 2:
        append_keyed(log, [(100 + len(log.segments) % 3, 5)], epoch=2)
    life.flush()
    log.high_watermark = log.log_end_offset


def test_rule_r7_a_replica_that_came_meanwhile_keeps_its_tombstones(
    life: Life, log: PartitionLog
) -> None:
    """Assigned while the pass reads: what the pass was about to drop, it may not have."""
    append_keyed(log, [(1, 1)])
    append_keyed(log, [(1, None)])
    fill_more(life, log)
    clean(log, 10_000)
    fill_more(life, log)
    everywhere = [log.log_end_offset]
    one = Stepped(
        cleaning(log, LATER_MS, facts=lambda: ReplicaFacts(log.high_watermark, everywhere[0]))
    )
    for _ in range(2):
        one.step()
    everywhere[0] = 0
    while not one.over:
        one.step()
    assert one.void
    assert 1 in read_all(log, 0, 500)


def test_rule_r7_only_below_the_high_watermark_and_only_closed_segments(
    life: Life, log: PartitionLog
) -> None:
    said = fill(life, log)
    watermark = log.high_watermark = log.segments[2].next_offset - 1
    done = clean(log)
    assert done.cleaned_to == log.segments[1].base_offset or done.cleaned_to <= watermark
    assert list(read_all(log, done.cleaned_to, 500)) == list(range(done.cleaned_to, len(said)))


def test_a_young_record_is_not_compacted_away(life: Life, log: PartitionLog) -> None:
    """min.compaction.lag.ms."""
    said = fill(life, log)
    log.config = LogConfig(
        segment_bytes=SEGMENT_BYTES,
        compaction=CompactionConfig(min_lag_ms=500, segment_bytes=SEGMENT_BYTES),
    )
    assert clean(log, 1_510).cleaned_to < 12
    assert clean(log, 1_400).cleaned_to == 0
    assert clean(log, 1_540).cleaned_to > 20
    assert len(read_all(log, 0, 500)) < len(said)


def test_times_are_not_changed(life: Life, log: PartitionLog) -> None:
    fill(life, log)
    times = {h.base_offset: (h.append_timestamp, h.base_timestamp) for h in headers_of(log)}
    clean(log)
    for header in headers_of(log):
        if header.count:
            assert times[header.base_offset] == (header.append_timestamp, header.base_timestamp)
        else:
            assert header.append_timestamp in [time for time, _ in times.values()]
    assert offset_for_timestamp(log, 1_059) == 59


def test_a_follower_is_filled_from_a_compacted_log_from_any_offset(
    life: Life, log: PartitionLog
) -> None:
    """Also from inside a batch that compaction made of several (invariant L12)."""
    fill(life, log)
    plain = log.read_raw(0, 1 << 20, log.log_end_offset)
    while plain and headers_end(plain) < log.log_end_offset:
        plain += log.read_raw(headers_end(plain), 1 << 20, log.log_end_offset)
    clean(log)
    shown = read_all(log, 0, 500)
    for number, first in enumerate(range(0, 50, 7)):
        follower = life.log(number + 1)
        held = b""
        for at, header in walk(plain):
            if header.next_offset <= first:
                held += plain[at : at + header.size]
        if held:
            follower.append_as_follower(held)
        while follower.log_end_offset < log.log_end_offset:
            raw = log.read_raw(follower.log_end_offset, 700, log.log_end_offset)
            follower.append_as_follower(raw)
        behind = {at: pair for at, pair in read_all(follower, 0, 500).items() if at >= first}
        assert behind == {at: pair for at, pair in shown.items() if at >= first}


def headers_end(raw: bytes) -> int:
    return [header.next_offset for _, header in walk(raw)][-1]


def test_a_full_map_ends_the_pass_and_the_next_ones_go_on(life: Life, log: PartitionLog) -> None:
    """log.cleaner.dedupe.buffer.size."""
    fill(life, log, 200, keys=40)
    ends = []
    while True:
        one = cleaning(log, 10_000, limits=CleanerLimits(dedupe_buffer_bytes=220 * 15))
        for work in one.steps():
            work()
        if not one.cleaned_to:
            break
        ends.append(one.cleaned_to)
    assert len(ends) > 3
    assert ends == sorted(ends)
    active = log.segments[-1].base_offset
    assert ends[-1] == active
    assert len([at for at in read_all(log, 0, 500) if at < active]) == 40


def test_a_full_disk_leaves_the_log_as_it_is(
    disk: SimulatedDisk, life: Life, log: PartitionLog
) -> None:
    fill(life, log)
    before = read_all(log, 0, 500)
    for operation, path in [
        ("create", ".cleaned"),
        ("write", ".cleaned"),
        ("rename", ".cleaned"),
        ("sync_directory", log.directory),
        ("write", "/cleaned"),
    ]:
        disk.fail_once(operation, errno.ENOSPC, path)
        with pytest.raises(OSError, match="No space"):
            clean(log)
        if operation in {"create", "write"} and path == ".cleaned":
            assert read_all(log, 0, 500) == before
    clean(log)
    assert log.stored is not None
    assert log.stored.cleaned.cleaned_to == log.segments[-1].base_offset
    assert not life.failures


def test_invariant_l22_a_damaged_batch_is_reported_and_the_log_left_alone(
    disk: SimulatedDisk, life: Life, log: PartitionLog
) -> None:
    fill(life, log)
    other = life.log(1)
    fill(life, other)
    inode = disk.live[log.segments[1].log_path]
    assert inode is not None
    inode.cache[200] ^= 1
    with pytest.raises(CorruptionError, match=r"crc .* position="):
        clean(log)
    noted: list[PartitionLog] = []
    facts = ReplicaFacts(log.high_watermark, log.high_watermark)

    def note(cleaned: PartitionLog, _stats: CleaningStats, _to: int, _ms: int) -> None:
        noted.append(cleaned)

    async def run() -> LogCleaner:
        cleaner = LogCleaner(life.manager.logs, lambda _log: facts, LIMITS, SystemClock(), note)
        await cleaner.clean_dirty_logs()
        assert list(cleaner.skipped_logs) == [log.name]
        fill_more(life, other)
        await cleaner.clean_dirty_logs()
        return cleaner

    cleaner = asyncio.run(run())
    assert noted == [other]
    assert cleaner.totals.cleanings == 1
    assert log.failed is None, "it is still read; the reader that meets the damage says so"


def test_the_dirtiest_log_goes_first_and_what_is_overdue_before_it(life: Life) -> None:
    logs = [life.log(n) for n in range(3)]
    for log in logs:
        fill(life, log)
    clean(logs[0])
    clean(logs[1])
    fill_more(life, logs[0])
    fill_more(life, logs[1])
    fill_more(life, logs[1])
    overdue = CompactionConfig(min_dirty_ratio=1.0, max_lag_ms=60_000, segment_bytes=SEGMENT_BYTES)
    logs[0].config = LogConfig(segment_bytes=SEGMENT_BYTES, compaction=overdue)
    noted: list[str] = []

    def facts(log: PartitionLog) -> ReplicaFacts:
        return ReplicaFacts(log.high_watermark, log.high_watermark)

    def note(log: PartitionLog, _stats: CleaningStats, _to: int, _ms: int) -> None:
        noted.append(log.name)

    cleaner = LogCleaner(life.manager.logs, facts, LIMITS, SystemClock(), note)
    asyncio.run(cleaner.clean_dirty_logs())
    assert noted == ["orders-0", "orders-2", "orders-1"]


def test_a_cleaner_that_is_told_to_stop_leaves_nothing_behind(
    disk: SimulatedDisk, life: Life, log: PartitionLog
) -> None:
    fill(life, log)
    before = read_all(log, 0, 500)
    calls = [0]

    def pace(_size: int) -> None:
        calls[0] += 1
        if calls[0] > 60:
            raise CleaningStopped

    one = cleaning(log, 10_000)
    set_pace_of_pass(one, pace)
    with pytest.raises(CleaningStopped):
        run_here(one.steps())
    assert read_all(log, 0, 500) == before
    assert not [name for name in disk.names(log.directory) if "cleaned" in name]
    assert len(disk.descriptors) <= 2 + len(log.segments) + 1


def test_segments_are_kept_open_until_their_name_leads_to_them(
    life: Life, log: PartitionLog
) -> None:
    """Rule Q6: opened by name meanwhile, another file would be read."""
    fill(life, log)
    one = Stepped(cleaning(log, 10_000))
    pinned: list[Segment] = []
    while not one.over:
        pinned += [segment for segment in log.segments if segment.flushing]
        shown = read_all(log, 0, 500)
        assert set(range(log.segments[-1].base_offset, log.log_end_offset)) <= shown.keys()
        one.step()
    assert pinned
    assert not any(segment.flushing for segment in log.segments)
