"""What went away and what is written next never meet: cuts that were killed, names that stayed."""

from __future__ import annotations

import errno
import os
from random import Random

import pytest

from broker.log.log_directory import LogConfig
from tests.support.logs import Life, append, flush_each, values_of
from tests.support.simulated_disk import SimulatedDisk

CONFIG = LogConfig(segment_bytes=1_000_000)


class KilledError(Exception):
    """The process ends here."""


def life_with_a_killed_cut(disk: SimulatedDisk, *, rolled: bool) -> Life:
    """Cut where all that is left is proven: by a seal, or by a log start; killed before its sync.

    The broker is then started again, and has the log as it was cut.
    """
    life = Life(disk, CONFIG)
    log = life.log()
    flush_each(life, log, ("a0", "a1", "a2"))
    if rolled:
        log.roll()
    append(log, ["b0", "b1"])  # a cut inside this one leaves nothing of it
    flush_each(life, log, (f"{number}" * 100 for number in range(40)))
    if not rolled:
        log.advance_log_start(3)
        life.flush()

    def before(operation: str, path: str) -> None:
        if operation == "sync_file" and path.endswith(".log"):
            raise KilledError

    disk.before = before
    with pytest.raises(KilledError):
        log.truncate_to(4)
    disk.kill()
    life = Life(disk, CONFIG)
    assert (life.log().durable_end, life.log().log_end_offset) == (3, 3)
    return life


@pytest.mark.parametrize("rolled", [True, False])
def test_rule_q5_the_tail_of_a_killed_cut_is_no_proof_amid_what_was_written_next(
    *, rolled: bool
) -> None:
    """The shorter file was not synced, as nothing in it waited for a sync: with a power cut amid
    the next batches, the old ones behind them proved that these had been durable."""
    for seed in range(20):
        disk = SimulatedDisk()
        life = life_with_a_killed_cut(disk, rolled=rolled)
        for number in range(20):
            append(life.log(), [f"c{number}" * 50])
        disk.cut_power(Random(seed))
        assert Life(disk, CONFIG).manager.offline == {}


@pytest.mark.parametrize("operation", ["names", "rename"])
@pytest.mark.parametrize("renames", [0, 3])
def test_rule_r10_segments_that_could_not_be_removed_are_gone_before_others_have_their_names(
    operation: str, renames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a free descriptor they were forgotten and stayed on the disk. A log that started over
    below them wrote into their files, and its own new records were refused by the next start."""
    disk = SimulatedDisk()
    life = Life(disk, LogConfig(segment_bytes=1_500))
    log, removals = life.log(), life.manager.removals
    flush_each(life, log, (f"{number:02d}" + "x" * 100 for number in range(40)))
    log.advance_log_start(30)
    life.flush()
    real, left = getattr(disk, operation), [renames]

    def refused(*arguments: str) -> object:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*arguments)

    monkeypatch.setattr(disk, operation, refused)
    removals.rename_some()
    monkeypatch.undo()
    log.start_over(0)
    for value in "abc":
        append(log, [value + "y" * 101], epoch=2)
        life.flush()
    disk.kill()
    life = Life(disk, CONFIG)
    assert life.manager.offline == {}
    assert [str(value)[0] for value in values_of(life.log())] == ["a", "b", "c"]


def test_segments_that_could_not_be_removed_are_removed_by_a_later_step() -> None:
    disk = SimulatedDisk()
    life = Life(disk, LogConfig(segment_bytes=1_500))
    log, removals = life.log(), life.manager.removals
    flush_each(life, log, (f"{number:02d}" + "x" * 100 for number in range(40)))
    log.advance_log_start(30)
    life.flush()
    segments = len(log.segments)
    disk.fail_once("rename", errno.ENOSPC, "0006.log")
    removals.rename_some()
    assert len(log.segments) == segments - 1
    removals.rename_some()
    assert [segment.base_offset for segment in log.segments] == [30, 36]
    assert not [
        name for name in disk.live if name.endswith(("0.log", "6.log")) and "03" not in name
    ]


def test_rule_q5_a_killed_cut_is_no_damage_though_the_epochs_had_rotted() -> None:
    """Replication simulation, seed 5599: the start could not read the epochs and relied on no
    recovery point, so the cut did not lower the one in the file, which then proved a longer log."""
    disk = SimulatedDisk()
    life = Life(disk, LogConfig(segment_bytes=1_500))
    flush_each(life, life.log(), (f"{number:02d}" + "x" * 100 for number in range(40)))
    life.close()
    (path,) = (path for path in disk.live if path.endswith("/leader-epoch"))
    epochs = disk.live[path]
    assert epochs is not None
    epochs.cache[3] ^= 1
    life = Life(disk, LogConfig(segment_bytes=1_500))
    log = life.log()

    def before(operation: str, path: str) -> None:
        if operation == "sync_file" and path.endswith(".log"):
            raise KilledError

    disk.before = before
    with pytest.raises(KilledError):
        log.truncate_to(4)
    disk.kill()
    life = Life(disk, LogConfig(segment_bytes=1_500))
    assert life.manager.offline == {}
    assert life.log().log_end_offset == 4
