"""Cuts that a kill ended: what the next life writes must not meet what they took away."""

from __future__ import annotations

from random import Random

import pytest

from broker.log.log_directory import LogConfig
from tests.support.logs import Life, append, flush_each
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
    """Nobody had synced the shorter file, as nothing in it waited for a sync: with a power cut amid
    the next batches, the old ones behind them proved that these had been durable."""
    for seed in range(20):
        disk = SimulatedDisk()
        life = life_with_a_killed_cut(disk, rolled=rolled)
        for number in range(20):
            append(life.log(), [f"c{number}" * 50])
        disk.cut_power(Random(seed))
        assert Life(disk, CONFIG).manager.offline == {}
