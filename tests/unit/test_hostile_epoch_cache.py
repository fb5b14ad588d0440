"""A leader that wrote nothing must not leave its epoch behind in the cache of its log."""

from __future__ import annotations

import pytest

from tests.support.logs import Life, append, values_of
from tests.support.simulated_disk import SimulatedDisk


def tail_of_epoch_4(base: int, own_last: int) -> bytes:
    """Two records of epoch 4 from ``base`` on, as another replica has them."""
    log = Life(SimulatedDisk()).log()
    append(log, range(base), epoch=own_last)
    return append(log, ["late", "later"], epoch=4)


@pytest.mark.parametrize("own_last", [3, 4])
def test_records_of_an_older_epoch_that_follow_an_empty_reign_keep_their_epoch(
    own_last: int,
) -> None:
    disk = SimulatedDisk()
    log = Life(disk).log()
    append(log, range(10), epoch=own_last)
    log.start_epoch(5)  # elected, wrote nothing, deposed; the next leader's tail is of epoch 4
    log.append_as_follower(tail_of_epoch_4(10, own_last))
    assert log.log_end_offset == 12
    assert [log.epoch_at(offset) for offset in (9, 10, 11)] == [own_last, 4, 4]
    assert log.end_of_epoch(4) == (4, 12)
    assert log.last_epoch == 4
    append(log, ["next"], epoch=6)
    assert log.end_of_epoch(5) == (4, 12)


@pytest.mark.parametrize("own_last", [3, 4])
def test_an_empty_reign_does_not_come_back_with_a_clean_restart(own_last: int) -> None:
    disk = SimulatedDisk()
    life = Life(disk)
    log = life.log()
    append(log, range(10), epoch=own_last)
    log.start_epoch(5)
    log.append_as_follower(tail_of_epoch_4(10, own_last))
    life.close()
    again = Life(disk).log()
    assert again.last_epoch == 4
    assert again.end_of_epoch(5) == (4, 12)
    assert values_of(again)[10:] == ["late", "later"]
