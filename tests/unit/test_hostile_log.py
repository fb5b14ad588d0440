"""A log whose beginning goes, whose keys are compacted, whose broker has no descriptor left."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import random
from types import SimpleNamespace

import pytest
from typing_extensions import override

from broker.log.cleaner import CleanerLimits, LogCleaner, ReplicaFacts
from broker.log.compaction import ENTRY_BYTES, CompactionConfig
from broker.log.log_directory import LogConfig
from broker.log.partition_log import PartitionLog
from broker.record.batch import RecordFormat, rebuilt
from broker.replication.frames import Diverging, Valid
from broker.replication.leader_state import LeaderState
from broker.replication.log_start_manager import LogTrimming
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import StorageError
from raft_metadata.common.ids import Claim, TopicId
from tests.support.compaction_model import (
    Stepped,
    append_keyed,
    clean,
    cleaning,
    headers_of,
    producers_of,
    read_all,
    run_here,
)
from tests.support.logs import Life, append, records
from tests.support.simulated_disk import SimulatedDisk
from tests.unit.test_compaction_replicas import (
    ONE,
    THREE,
    TWO,
    Replica,
    two_drops_the_tombstone,
    world,
)

SMALL = LogConfig(segment_bytes=1_000)
COMPACTED = LogConfig(
    segment_bytes=1_000,
    compaction=CompactionConfig(delete_retention_ms=1_000, segment_bytes=1_000),
)


# ---- rule R7: tombstones that a replica never saw, because its leader had dropped them


def test_rule_r7_a_replica_filled_without_a_tombstone_remembers_that() -> None:
    """Three is filled by two, which dropped it; one, which never compacted, goes on behind three.

    One holds the value only: it was filled in part by another that never compacted.
    """
    one, two, three = world()
    two_drops_the_tombstone(one, two)
    for each in (two, three):
        each.take(TWO, 2, (TWO,))
    three.ask(two, 21)
    three.follow(two, 21)
    assert not {0, 4} & read_all(three.log, 0, 300).keys()
    late = Replica(ONE)
    late.take(ONE, 1, (ONE,))
    late.append(1, 1)
    late.append(2, 0)
    for each in (three, late):
        each.take(THREE, 3, (TWO, THREE))
    answer = late.ask(three, 22)
    assert isinstance(answer, Diverging), "it may hold a value whose tombstone is gone"
    assert isinstance(late.ask(three, 23), Valid)
    late.follow(three, 23)
    assert 0 not in read_all(late.log, 0, 300)


def test_rule_r7_what_a_replica_remembers_of_its_leader_survives_a_crash() -> None:
    one, two, three = world()
    two_drops_the_tombstone(one, two)
    for each in (two, three):
        each.take(TWO, 2, (TWO,))
    three.ask(two, 21)
    three.follow(two, 21)
    dropped_to = three.log.dropped_to
    assert dropped_to == two.log.dropped_to
    disk = three.life.disk
    assert isinstance(disk, SimulatedDisk)
    disk.cut_power(random.Random(1))
    assert Life(disk, COMPACTED).log().dropped_to == dropped_to


def test_rule_r7_a_follower_that_the_image_does_not_know_yet_holds_tombstones_back() -> None:
    one, _, three = world()
    role = one.partition.role
    assert isinstance(role, LeaderState)
    role.reassign([ONE, TWO])
    assert role.replicated_to(one.log.log_end_offset) > 10
    three.take(ONE, 1, (ONE, TWO))
    three.ask(one, 12)
    three.follow(one, 12, up_to=3)
    assert role.replicated_to(one.log.log_end_offset) == 3
    role.closed(THREE, 12)
    assert role.replicated_to(one.log.log_end_offset) > 10, "it is asked when it comes back"


# ---- invariant T4: producers, where a segment is rolled and nothing is written to it


@pytest.mark.parametrize("power", [False, True])
def test_invariant_t4_a_roll_without_a_write_forgets_no_producer(power: bool) -> None:
    disk = SimulatedDisk()
    disk.synced["/data"] = disk.live["/data"] = None
    life = Life(disk, SMALL)
    log = life.log()
    log.append_as_leader(
        records(["x"] * 3),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=1,
        now_ms=1_000,
        claim=Claim(5, 0, 0),
    )
    life.flush()
    log.roll()  # as an operator's "delete up to the end" does
    log.advance_log_start(3)
    life.flush()
    assert log.log_start_offset == 3
    if power:
        disk.cut_power(random.Random(1))
    else:
        disk.kill()
    again = Life(disk, SMALL).log()
    repeated = again.repeated(Claim(5, 0, 0), 3, 1_000)
    assert repeated is not None
    assert (repeated.first_offset, repeated.last_offset) == (0, 2)


# ---- invariant L11: epochs, where a roll and a log start are made durable together


class Killed(BaseException):
    """SIGKILL: no code may handle it."""


def dies_at(disk: SimulatedDisk, left: int) -> None:
    """After so many more operations nothing is done any more."""
    calls = [left]

    def check(_operation: str, _path: str) -> None:
        calls[0] -= 1
        if calls[0] < 0:
            raise Killed

    disk.before = check


@pytest.mark.parametrize("over", [False, True])
def test_invariant_l11_a_crash_between_epochs_and_log_start_keeps_the_older_epochs(
    over: bool,
) -> None:
    starts = set()
    for at in range(60):
        disk = SimulatedDisk()
        life = Life(disk, SMALL)
        log = life.log()
        for number in range(40):
            append(log, ["x" * 60], epoch=1 + number // 10)
            life.flush()
        if over:
            log.start_over(50)
        else:
            log.advance_log_start(25)
        closed = len(log.segments)
        while len(log.segments) < closed + 2:
            append(log, ["y" * 60], epoch=5)
        dies_at(disk, at)
        with contextlib.suppress(StorageError):
            life.flush()
        disk.kill()
        again = Life(disk, SMALL).log()
        starts.add(again.log_start_offset)
        for offset in range(again.log_start_offset, again.log_end_offset):
            assert again.epoch_at(offset) == min(1 + offset // 10, 5), (at, offset)
    assert starts == {0, 50 if over else 25}


def test_invariant_l8_a_cut_inside_the_batch_of_a_start_that_is_not_durable_yet() -> None:
    life = Life(SimulatedDisk(), SMALL)
    log = life.log()
    append(log, range(2))
    log.advance_log_start(1)
    log.truncate_to(1)
    life.flush()
    assert (log.log_start_offset, log.log_end_offset, log.durable_end) == (1, 1, 1)


# ---- what is being sealed


def test_a_segment_whose_index_is_being_written_is_neither_compacted_nor_removed() -> None:
    """Otherwise the index ends up beside the segment's successor, perhaps of the same size."""
    life = filled(SimulatedDisk())
    log = life.log()
    assert log.stored is not None
    before = log.stored.sealed(log.durable_end)
    log.roll()
    log.advance_log_start(log.segments[1].base_offset)
    token = log.begin_flush()
    assert token is not None
    written = {name for name, _ in token.checkpoints}
    being_sealed = [s for s in log.segments if s.index_path.rpartition("/")[2] in written]
    assert being_sealed, "a segment that was synced before"
    assert log.stored.sealed(log.durable_end) == before
    log.end_flush(token, synced=True)
    assert log.stored.sealed(log.durable_end) == [*before, *being_sealed]


# ---- descriptors


class NoDescriptors(SimulatedDisk):
    """Of so many opens, each from a certain one on is refused once; then there are some again."""

    refuse_at = -1

    def _count(self) -> None:
        self.refuse_at -= 1
        if self.refuse_at == 0:
            raise OSError(errno.EMFILE, "Too many open files")

    @override
    def open(self, path: str, *, create: bool = False) -> int:
        self._count()
        return super().open(path, create=create)

    @override
    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)

    @override
    def names(self, path: str) -> list[str]:
        self._count()
        return super().names(path)


def filled(disk: SimulatedDisk, count: int = 60) -> Life:
    life = Life(disk, COMPACTED)
    log = life.log()
    for number in range(count):
        append_keyed(log, [(number % 4, number)], epoch=1)
    life.flush()
    log.high_watermark = log.log_end_offset
    return life


def a_cleaner(life: Life) -> LogCleaner:
    return LogCleaner(
        life.manager.logs,
        lambda log: ReplicaFacts(log.high_watermark, log.high_watermark),
        CleanerLimits(),
        SystemClock(),
        lambda *_: None,
    )


def test_invariant_l26_a_cleaner_without_a_descriptor_ends_nothing() -> None:
    refused = 0
    for at in range(1, 30):
        disk = NoDescriptors()
        life = filled(disk)
        log = life.log()
        newest = dict(list(read_all(log, 0, 500).items())[-4:])

        async def twice(
            log: PartitionLog = log, life: Life = life, disk: NoDescriptors = disk
        ) -> None:
            cleaner = a_cleaner(life)
            await cleaner.clean(log)
            disk.refuse_at = -1
            await cleaner.clean(log)

        disk.refuse_at = at
        asyncio.run(twice())
        assert life.failures == [], at
        assert newest.items() <= read_all(log, 0, 500).items()
        assert log.stored is not None
        refused += log.stored.cleaned.cleaned_to > 0
    assert refused == 29, "the next pass does it"


def test_a_pass_is_void_when_segments_were_removed_while_keys_were_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Segments went, and their files can still be read by their names: a pass is void."""
    disk = SimulatedDisk()
    life = filled(disk)
    log = life.log()
    one = Stepped(cleaning(log, 10_000))
    log.advance_log_start(log.segments[1].base_offset)
    life.flush()
    assert log.stored is not None
    with monkeypatch.context() as patch:
        patch.setattr(disk, "rename", lambda *_: None)
        log.stored.remove_below(log.log_start_offset, 10)
    assert log.segments[0].base_offset == log.log_start_offset
    while not one.over:
        one.step()
    assert one.void
    assert values_at(log) >= set(range(56, 60))
    headers_of(log)


def values_at(log: PartitionLog) -> set[int]:
    return set(read_all(log, log.log_start_offset, 500))


def test_a_log_that_can_not_be_compacted_does_not_end_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever a line holds: a bug here would else end every broker, again and again."""
    life = filled(SimulatedDisk())
    log = life.log()

    def fails(*_: object) -> None:
        raise ValueError("a line that nobody thought of")

    monkeypatch.setattr("broker.log.cleaner.keyed_records", fails)
    cleaner = a_cleaner(life)
    asyncio.run(cleaner.clean(log))
    assert "nobody thought of" in cleaner.skipped_logs[log.name][2]
    assert life.failures == []


# ---- a full disk


def test_a_log_start_that_found_the_disk_full_unseals_nothing() -> None:
    disk = SimulatedDisk()
    life = filled(disk)
    log = life.log()
    assert log.stored is not None
    sealed = log.stored.sealed(log.durable_end)
    assert sealed
    log.advance_log_start(25)
    disk.fail_once("rename", errno.ENOSPC)
    life.flush()
    assert log.log_start_offset == 0
    assert log.stored.sealed(log.durable_end) == sealed
    log.request_flush()
    life.flush()
    assert log.log_start_offset == 25


def test_invariant_t4_a_pass_that_ends_early_keeps_the_producers_behind_its_end() -> None:
    """A replica that was filled from a compacted log, with little memory for keys."""
    life = Life(SimulatedDisk(), COMPACTED)
    source = life.log()
    append_keyed(source, [(1, 1)], producer=(5, 0))
    for number in range(20):
        append_keyed(source, [(number % 2, number)])
    life.flush()
    source.high_watermark = source.log_end_offset
    clean(source)
    emptied = headers_of(source)[0]
    assert (emptied.count, emptied.producer_id) == (0, 5)
    log = life.log(1)
    append_keyed(log, [(100 + number, 1) for number in range(3)], epoch=0)
    offset = log.log_end_offset
    for number in range(2):
        append_keyed(log, [(200 + number, 1)], epoch=0)
    raw = rebuilt(emptied._replace(base_offset=log.log_end_offset), b"")
    log.append_as_follower(raw)
    while len(log.segments) < 3:
        append_keyed(log, [(300, 1)])
    life.flush()
    log.high_watermark = log.log_end_offset
    one = cleaning(log, 10_000, limits=CleanerLimits(dedupe_buffer_bytes=3 * ENTRY_BYTES))
    run_here(one.steps())
    assert one.cleaned_to == offset, "the pass was to end before the producer's batch"
    assert 5 in producers_of(headers_of(log))


# ---- who starts over twice, or rolls what is not there any more


@pytest.mark.parametrize("second", [60, 150])
def test_no_crash_looks_like_corruption_where_a_log_starts_over_twice(second: int) -> None:
    for at in range(80):
        disk = SimulatedDisk()
        life = Life(disk, SMALL)
        log = life.log()
        for number in range(100):
            append(log, ["x" * 60])
            if number % 10 == 0:
                life.flush()
        life.flush()
        log.start_over(200)
        dies_at(disk, at)
        try:
            log.start_over(second)
        except Killed:
            died = True
        else:
            died = False
        disk.kill()
        again = Life(disk, SMALL)
        assert again.manager.offline == {}, at
        if not died:
            assert again.log().log_end_offset == second
            break
    else:
        pytest.fail("it never came to an end")


@pytest.mark.parametrize("more", [False, True])
def test_rule_q1_a_log_that_started_over_empty_is_whole_after_a_kill(more: bool) -> None:
    """Its start was durable, its name and whose it is were not: a second fault took those."""
    for seed in range(30):
        disk = SimulatedDisk()
        disk.synced["/data"] = disk.live["/data"] = None
        log = Life(disk, SMALL).log()
        append(log, range(2))
        log.start_over(1)
        disk.kill()
        again = Life(disk, SMALL).log()
        assert (again.log_start_offset, again.durable_end) == (1, 1)
        if more:
            append(again, range(1))
        disk.cut_power(random.Random(seed))
        last = Life(disk, SMALL)
        assert last.manager.offline == {}
        assert last.log().log_start_offset == 1


def test_a_log_of_a_deleted_topic_is_not_rolled_into_its_successor() -> None:
    """Retention looks at many logs with waits in between: a topic may be another one by then."""
    config = LogConfig(segment_ms=1)
    life = Life(SimulatedDisk(), config)
    log = life.log()
    append(log, range(5))
    life.flush()
    old = SimpleNamespace(
        log=log, partition=SimpleNamespace(id=life.manager.key_of(log), role=None)
    )
    life.manager.delete([life.manager.key_of(log)])
    successor = life.log(0, TopicId("U" * 22))
    append(successor, range(2))
    manager = SimpleNamespace(replicas=lambda: [old], replica=lambda _: None)
    starts = LogTrimming(_TIMES, manager, life.manager, SystemClock(), lambda: True)  # type: ignore[arg-type]
    asyncio.run(starts.look_at_all())
    names = life.disk.names(successor.directory)
    assert [name for name in names if name.endswith(".log")] == ["0" * 20 + ".log"]


_TIMES = SimpleNamespace(
    timeouts=SimpleNamespace(log_retention_check_interval_ms=1, clock_difference_max_ms=1)
)
