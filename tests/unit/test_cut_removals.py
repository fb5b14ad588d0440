"""Whole segments that a cut removes: out of use at once and for good, unlinked off the loop."""

from __future__ import annotations

import errno
import os
import threading
from random import Random
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from broker.log.log_directory import LogConfig
from broker.log.recovery import REMOVED_SUFFIX
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import KafkaError, StorageError
from tests.support.logs import Life, append, values_of
from tests.support.simulated_disk import SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

    from broker.log.partition_log import PartitionLog

CONFIG = LogConfig(segment_bytes=1_000)
CUT_AT = 5
BETWEEN_SEGMENTS = 6


class CrashError(Exception):
    """The process, or the power, goes here."""


def fill(life: Life, mark: str, batches: int = 18) -> list[object]:
    """Three batches a segment, all of them durable."""
    values: list[object] = [f"{mark}{number}" + "x" * 200 for number in range(batches)]
    for value in values:
        append(life.log(), [value])
    life.flush()
    return values


def unlink_later(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.live if name.endswith(REMOVED_SUFFIX)]


def unlink_due(life: Life) -> None:
    removals = life.manager.removals
    while due := removals.take_due(0):
        removals.unlink(due)


def begun(batches: int = 18) -> tuple[SimulatedDisk, Life, list[object]]:
    disk = SimulatedDisk()
    disk.synced["/data"] = disk.live["/data"] = None
    life = Life(disk, CONFIG)
    return disk, life, fill(life, "old", batches)


class Story:
    """A cut over whole segments, others in their place, one more cut; what may be found of it."""

    def __init__(self, life: Life, old: list[object], cut_at: int) -> None:
        self.life = life
        self.cut_at = cut_at
        self.may_be = [old]
        """What a crash may leave: a prefix of one of these, no shorter than what is durable."""
        self.durable = len(old)

    def run(self) -> None:
        log, old = self.life.log(), self.may_be[0]
        keep = self.cut_at
        self.durable = keep
        log.truncate_to(keep) if keep else log.start_over(0)
        assert log.log_end_offset == keep
        for mark in ("new", "newer"):
            self.may_be = [old[:keep]]
            values = [f"{mark}{number}" + "x" * 200 for number in range(5)]
            for value in values:
                self.may_be[0].append(value)
                append(log, [value])
            self.life.flush()
            self.durable = len(self.may_be[0])
            unlink_due(self.life)
            if mark == "new":
                self.durable = keep = self.cut_at or CUT_AT
                old = list(self.may_be[0])
                log.truncate_to(keep)

    def check(self, found: PartitionLog) -> None:
        values, end = values_of(found, found.log_start_offset), found.log_end_offset
        assert found.log_start_offset == 0
        assert self.durable <= end
        assert any(values == might_be[:end] for might_be in self.may_be), "cut data came back"


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("cut_at", [CUT_AT, BETWEEN_SEGMENTS, 0])
def test_no_crash_brings_a_cut_segment_back(cut_at: int, *, power: bool) -> None:
    """ADR 0003: at any step of it, whatever of it the disk has. And then once more.

    Between two segments, what comes back would go on where the cut log ends.
    """
    steps = found_longer = found_names = 0
    while True:
        steps += 1
        for seed in range(3 if power else 2):
            disk, life, old = begun(12)
            left = [steps]

            def before(operation: str, path: str, *, left: list[int] = left) -> None:
                left[0] -= 1
                if not left[0]:
                    raise CrashError(operation, path)

            story = Story(life, old, cut_at)
            disk.before = before
            try:
                story.run()
            except (CrashError, StorageError):  # the flusher wraps what it meets
                pass
            else:
                assert steps > 40
                assert found_longer
                assert found_names
                return
            rng = Random(seed)
            disk.before = None
            found_names += bool(unlink_later(disk))
            disk.cut_power(rng) if power else disk.kill()
            again = Life(disk, CONFIG)
            assert again.manager.offline == {}
            story.check(again.log())
            assert not unlink_later(disk)
            found_longer += again.log().log_end_offset == len(old)
            # What this life said of its end stays true, whatever was synced before it.
            held = [*values_of(again.log()), *fill(again, "last", rng.choice([0, 2]))]
            disk.cut_power(rng)
            assert values_of(Life(disk, CONFIG).log()) == held


def test_a_cut_unlinks_no_segment_on_the_loop_and_none_that_was_made_since() -> None:
    disk, life, old = begun()
    log = life.log()
    del disk.calls[:]
    log.truncate_to(CUT_AT)
    assert not [path for what, path in disk.calls if what == "unlink" and path.endswith(".log")]
    assert len(unlink_later(disk)) == 4
    new = fill(life, "new", 9)
    log.truncate_to(CUT_AT)
    assert len(unlink_later(disk)) == 7, "each under a name of its own"
    newer = fill(life, "newer", 9)
    assert new != newer
    unlink_due(life)
    assert not unlink_later(disk)
    assert values_of(log) == [*old[:CUT_AT], *newer]
    disk.kill()
    assert values_of(Life(disk, CONFIG).log()) == [*old[:CUT_AT], *newer]


def failing(number: int, disk: SimulatedDisk) -> None:
    def before(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith(".log"):
            raise OSError(number, os.strerror(number))

    disk.before = before


def test_without_room_for_a_longer_name_a_segment_is_unlinked_at_once() -> None:
    disk, life, old = begun()
    failing(errno.ENOSPC, disk)
    life.log().truncate_to(CUT_AT)
    assert not unlink_later(disk)
    assert len([name for name in disk.live if name.endswith(".log")]) == 2
    disk.kill()
    assert values_of(Life(disk, CONFIG).log()) == old[:CUT_AT]


def test_rule_q2_a_rename_that_failed_otherwise_fails_the_directory() -> None:
    disk, life, _ = begun()
    failing(errno.EIO, disk)
    with pytest.raises(KafkaError):
        life.log().truncate_to(CUT_AT)
    assert life.failures


class WatchedDisk(Disk):
    """Real files; who unlinks which."""

    def __init__(self) -> None:
        self.unlinked: dict[str, int] = {}

    @override
    def unlink(self, path: str) -> None:
        self.unlinked[path] = threading.get_ident()
        super().unlink(path)


def cut_files(under: Path) -> list[Path]:
    return list(under.rglob(f"*{REMOVED_SUFFIX}"))


async def test_the_next_step_frees_what_was_cut_and_not_on_the_loop(tmp_path: Path) -> None:
    disk = WatchedDisk()
    life = Life(disk, CONFIG, str(tmp_path))
    old = fill(life, "old", 90)
    life.log().truncate_to(CUT_AT)
    waiting = cut_files(tmp_path)
    assert len(waiting) > 16
    while left := cut_files(tmp_path):
        await life.manager.removals.run_some(0)
        assert len(cut_files(tmp_path)) < len(left)
    threads = {disk.unlinked[str(path)] for path in waiting}
    assert threading.get_ident() not in threads
    assert values_of(life.log()) == old[:CUT_AT]
    life.close()
