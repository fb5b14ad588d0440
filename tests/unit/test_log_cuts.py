"""Cuts of a log's files: refused as a whole or made as a whole, and never long on the loop."""

from __future__ import annotations

import asyncio
import errno
import os
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from broker.log import log_producers
from broker.log.compaction import CleanState
from broker.log.log_directory import LogConfig
from broker.log.swap import read_state
from broker.record.batch import RecordFormat
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import KafkaError, Outcome
from raft_metadata.common.ids import Claim
from tests.support.doors.log import log_directory_of
from tests.support.logs import Life, append, records, values_of
from tests.support.simulated_disk import Inode, SimulatedDisk

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from broker.log.partition_log import PartitionLog

JSON = RecordFormat.JSON
CONFIG = LogConfig(segment_bytes=1_500)
BATCHES = 40


class CountedDisk(SimulatedDisk):
    """Each request for a descriptor counts; one of them finds none free."""

    refused_at = -1

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def _ask(self) -> None:
        self.asked += 1
        if self.asked - 1 == self.refused_at:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    @override
    def open(self, path: str, *, create: bool = False) -> int:
        self._ask()
        return super().open(path, create=create)

    @override
    def open_directory(self, path: str) -> int:
        self._ask()
        return super().open_directory(path)

    @override
    def sync_directory(self, path: str) -> None:
        self._ask()
        super().sync_directory(path)

    @override
    def read_file(self, path: str) -> bytes | None:
        self._ask()
        return super().read_file(path)

    @override
    def names(self, path: str) -> list[str]:
        self._ask()
        return super().names(path)


def fill(log: PartitionLog) -> None:
    """Several segments, four producers, all committed: nothing of it is remembered to be undone."""
    for number in range(BATCHES):
        producer, turn = number % 4, number // 4
        log.append_as_leader(
            records([f"{number}" + "x" * 60]),
            key_format=JSON, value_format=JSON, leader_epoch=1 + number // 15, now_ms=1000 + number,
            claim=Claim(producer, 0, turn),
        )  # fmt: skip
        log.high_watermark = log.log_end_offset


def reopened(disk: CountedDisk) -> tuple[Life, PartitionLog]:
    """Indexes are on the disk only, and some of the log counts as clean."""
    life = Life(disk, CONFIG)
    fill(life.log())
    life.flush()
    life.close()
    disk.kill()
    life = Life(disk, CONFIG)
    log = life.log()
    assert log.stored is not None
    log.note_dropped(30)
    log.stored.cleaned = CleanState(((35, 5),), 1, 30)
    log.high_watermark = log.log_end_offset
    assert log.producers is not None
    log.producers.committed(log.log_end_offset)
    return life, log


def producers_of(log: PartitionLog) -> object:
    return None if log.producers is None else sorted(log.producers.items())


def standing(log: PartitionLog) -> object:
    start, end = log.log_start_offset, log.log_end_offset
    epochs = [entry for entry in log.epoch_entries if entry[1] < end]  # those that hold a record
    return start, end, epochs, values_of(log, start), producers_of(log)


def refusal(step: Callable[[], None]) -> KafkaError | None:
    try:
        step()
    except KafkaError as error:
        return error
    return None


def cut_to(end: int) -> Callable[[PartitionLog], None]:
    return lambda log: log.truncate_to(end)


def over_at(offset: int) -> Callable[[PartitionLog], None]:
    return lambda log: log.start_over(offset)


@pytest.mark.parametrize("step", [cut_to(9), cut_to(24), cut_to(38), over_at(5), over_at(90)])
def test_without_a_descriptor_a_cut_is_refused_as_a_whole_and_made_later(
    step: Callable[[PartitionLog], None],
) -> None:
    """Wherever in the cut it is that none is free: it used to end the process."""
    disk = CountedDisk()
    life, log = reopened(disk)
    at_first, begun = standing(log), disk.asked
    step(log)
    requests, expected = disk.asked - begun, standing(log)
    refusals = 0
    assert requests >= 3
    for number in range(requests):
        disk = CountedDisk()
        life, log = reopened(disk)
        disk.refused_at = disk.asked + number
        refused = refusal(partial(step, log))
        disk.refused_at = -1
        if refused is not None:
            assert refused.outcome is Outcome.NOT_WRITTEN
            refusals += 1
            if standing(log) != at_first:  # emptied, but not yet begun anew: see `start_over`
                assert log.log_start_offset == log.log_end_offset
            step(log)
        assert standing(log) == expected
        assert not life.failures
        assert not life.manager.found_damage
        life.flush()
        disk.kill()
        again = Life(disk, CONFIG)
        assert again.manager.offline == {}
        assert standing(again.log()) == expected
    assert refusals >= 2


@pytest.mark.parametrize("number", range(12))
def test_after_a_refused_cut_a_crash_finds_the_log_as_it_was(number: int) -> None:
    disk = CountedDisk()
    _, log = reopened(disk)
    before = standing(log)
    disk.refused_at = disk.asked + number
    try:
        log.truncate_to(9)
    except KafkaError:
        disk.refused_at = -1
        disk.kill()
        assert standing(Life(disk, CONFIG).log()) == before


@pytest.mark.parametrize("step", [cut_to(9), over_at(5), over_at(90)])
def test_rule_r7_what_counts_as_clean_is_forgotten_on_the_disk_however_often_it_takes(
    step: Callable[[PartitionLog], None],
) -> None:
    """The first try found the disk full, the second one thought it was written already: after a
    restart other records were taken for cleaned ones, and a tombstone among them could go."""
    disk = CountedDisk()
    _, log = reopened(disk)
    assert log.stored is not None
    log.stored.note_dropped(31)  # as `reopened` left it, on the disk too
    disk.room = 0
    with pytest.raises(KafkaError):
        step(log)
    disk.room = None
    step(log)
    assert read_state(disk, log.directory, 1_000).marks == ()


def test_rule_q5_a_log_that_starts_over_twice_comes_back_as_it_was_durable() -> None:
    """The durable files are still there; unsynced ones behind a gap are cut."""
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    log.append_as_leader(
        records(["a"]), key_format=JSON, value_format=JSON, leader_epoch=1, now_ms=1
    )
    log.roll()
    life.flush()
    log.start_over(3)
    life.flush()
    assert log.durable_end == 3
    log.start_over(4)
    log.append_as_leader(
        records(["b", "c"]), key_format=JSON, value_format=JSON, leader_epoch=1, now_ms=1
    )
    disk.kill()
    again = Life(disk)
    assert again.manager.offline == {}
    assert (again.log().log_start_offset, again.log().log_end_offset) == (3, 3)


def test_invariant_t4_a_start_over_that_a_crash_undoes_has_forgotten_no_producer() -> None:
    """Until the new start is durable, what a start finds is the old log: with its producers."""
    disk = SimulatedDisk()
    life = Life(disk, CONFIG)
    log = life.log()
    fill(log)
    life.flush()
    known = producers_of(log)
    assert len(log.segments) > 2
    log.start_over(log.log_end_offset + 5)
    disk.kill()
    again = Life(disk, CONFIG).log()
    assert again.log_end_offset == BATCHES
    assert producers_of(again) == known


@pytest.mark.parametrize("killed", [True, False])
def test_invariant_t4_a_start_reads_the_producers_of_a_segment_that_it_removes(
    killed: bool,
) -> None:
    """All of it is deleted, another segment is begun, and killed before that one is sealed.

    The start removes the segment with the producer's last batch, of whose beginning there is a
    snapshot, but of its end none.
    """
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    write = partial(
        log.append_as_leader, key_format=JSON, value_format=JSON, leader_epoch=1, now_ms=1
    )
    write(records(["a"] * 3), claim=Claim(7, 0, 0))
    log.roll()
    write(records(["b"] * 2), claim=Claim(7, 0, 3))
    life.flush()
    log.advance_log_start(5)
    life.flush()
    log.roll()
    write(records(["c"]))
    if killed:
        disk.kill()
    else:
        life.close()
    again = Life(disk).log()
    assert [segment.base_offset for segment in again.segments] == [5]
    known = () if again.producers is None else again.producers.items()
    assert [producer.last_sequence for _, producer in known] == [4]
    assert again.repeated(Claim(7, 0, 5), 1, 1) is None, "the next batch goes on"


# in turns


def test_invariant_t4_producers_are_read_in_turns_of_the_loop_before_a_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """600,000 headers at once held it for seconds."""
    monkeypatch.setattr(log_producers, "REPLAY_HEADERS_PER_TURN", 2)
    disk = SimulatedDisk()
    life = Life(disk, LogConfig())
    log = life.log()
    fill(log)
    life.flush()
    turns: list[Callable[[], bool]] = []
    log_directory_of(life.manager).call_each_turn = turns.append
    before = standing(log)
    with pytest.raises(KafkaError, match="producers are read"):
        log.truncate_to(30)
    assert standing(log) == before
    with pytest.raises(KafkaError):
        log.truncate_to(30)
    (step,) = turns  # asked twice, read once
    taken = 1
    while not step():
        taken += 1
    assert taken >= 12
    log.truncate_to(30)
    assert log.log_end_offset == 30
    cut = producers_of(log)
    life.flush()
    disk.kill()
    assert producers_of(Life(disk, LogConfig()).log()) == cut


def test_a_replay_from_before_a_truncation_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result from before the log was truncated, closed or started over is void as well."""
    monkeypatch.setattr(log_producers, "REPLAY_HEADERS_PER_TURN", 2)
    disk = SimulatedDisk()
    life = Life(disk, LogConfig())
    log = life.log()
    fill(log)
    turns: list[Callable[[], bool]] = []
    log_directory_of(life.manager).call_each_turn = turns.append
    with pytest.raises(KafkaError):
        log.truncate_to(30)
    while not turns[0]():
        pass
    with pytest.raises(KafkaError):
        log.truncate_to(20)
    while not turns[1]():
        pass
    log.truncate_to(20)
    life.flush()
    cut = producers_of(log)
    disk.kill()
    again = Life(disk, LogConfig())
    assert producers_of(again.log()) == cut
    log = again.log()
    assert log.producers is not None
    log.producers.committed(20)
    log_directory_of(again.manager).call_each_turn = turns.append
    with pytest.raises(KafkaError):
        log.truncate_to(15)
    opened = again.manager.open_segments
    log.close()
    assert turns[-1](), "it ends with the log"
    assert again.manager.open_segments < opened, "and opens no file of it again"


async def test_on_a_running_loop_the_cut_is_made_when_it_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_producers, "REPLAY_HEADERS_PER_TURN", 2)
    life = Life(Disk(), LogConfig(), str(tmp_path))
    log = life.log()
    fill(log)
    life.flush()
    life.manager.start(asyncio.get_running_loop())
    tries = 0
    async with asyncio.timeout(10):
        while log.log_end_offset > 30:
            tries += 1
            try:
                log.truncate_to(30)
            except KafkaError:
                await asyncio.sleep(0)
    assert 5 <= tries < BATCHES
    life.close()
    assert not life.failures


async def test_the_loop_reads_on_between_two_attempts_at_a_truncation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt reads a piece itself, so many attempts would hide a loop that reads nothing."""
    monkeypatch.setattr(log_producers, "REPLAY_HEADERS_PER_TURN", 2)
    life = Life(Disk(), LogConfig(), str(tmp_path))
    log = life.log()
    fill(log)
    life.flush()
    life.manager.start(asyncio.get_running_loop())
    with pytest.raises(KafkaError, match="producers are read"):
        log.truncate_to(30)
    for _ in range(BATCHES):
        await asyncio.sleep(0)
    log.truncate_to(30)
    assert log.log_end_offset == 30
    life.close()
    assert not life.failures


class PowerCutError(Exception):
    """The power goes here."""


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("offset", [0, 3, 12, 25])
def test_rule_q5_a_power_cut_amid_a_start_over_backwards_leaves_no_damage(
    offset: int, *, flushed: bool
) -> None:
    """Files of the start-over before still lie there. While they went, the file named the new start
    already: a log of which the first segment was missing, or that was durable where nobody had
    synced it."""
    finished = 0
    for step in range(1, 60):
        for seed in range(2):
            disk = SimulatedDisk()
            life = Life(disk, CONFIG)
            log = life.log()
            disk.sync_filesystem(disk.open_directory(life.manager.root))
            log.start_over(10)
            life.flush()
            fill(log)
            if flushed:
                life.flush()
            log.start_over(80)
            if flushed:
                life.flush()
            calls: list[str] = []

            def before(
                operation: str, path: str, *, calls: list[str] = calls, step: int = step
            ) -> None:
                calls.append(f"{operation} {path}")
                if len(calls) == step:
                    raise PowerCutError

            disk.before = before
            try:
                log.start_over(offset)
                finished += 1
            except PowerCutError:
                pass
            disk.cut_power(Random(seed + step))
            again = Life(disk, CONFIG)
            assert again.manager.offline == {}, calls[-3:]
            assert not again.manager.found_damage
    assert finished


def test_rule_q5_a_new_log_that_starts_over_backwards_proves_nothing_before_its_first_flush() -> (
    None
):
    """Its stamps said that something was durable, and so did its start after a crash: without its
    ``partition.json``, which nobody had synced, it was refused for good."""
    for synced in (False, True):
        disk = SimulatedDisk()
        life = Life(disk)
        log = life.log()
        disk.sync_filesystem(disk.open_directory(life.manager.root))
        append(log, ["a", "b", "c"])
        log.start_over(2)
        assert log.durable_end == 0
        append(log, ["d"])
        if synced:  # the file of the new segment is there, and nothing in it
            disk.live[f"{log.segments[-1].log_path}"] = Inode()
            disk.kill()
            life = Life(disk)
            append(life.log(), ["e"])
            life.flush()
            append(life.log(), ["f"])
        path = f"{log.directory}/partition.json"
        identity = disk.live[path]
        assert identity is not None
        if synced:
            assert not identity.dirty
        else:
            del disk.live[path]
            disk.kill()
            assert Life(disk).manager.offline == {}
