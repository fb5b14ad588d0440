"""Append times do not follow one clock that is off, and wrong ones delete nothing (rule R10)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.log.log_directory import LogConfig
from broker.log.retention import DoubtedTimes, RetentionConfig
from broker.log.segment import Segment
from broker.server.lifecycle import CARRIED_MAX_MS, LOOK_AGAIN_MS, ControllerClock
from raft_metadata.common.ids import BrokerEpoch, NodeId
from tests.support.doors.replication import doubted_times_of
from tests.support.logs import append
from tests.unit.test_log_retention import NOW_MS, YEAR_MS, Hosted, TwoClocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

LIMIT_MS = 60_000
HOUR_MS = 3_600_000


class Clocks:
    """A broker's clock, set by a test, and controllers whose clocks are off by so much each."""

    def __init__(self, *controllers_off_ms: int) -> None:
        self.own = TwoClocks()
        self.off = list(controllers_off_ms)
        self.true_ms = NOW_MS
        self.stamps = ControllerClock(self.own, LIMIT_MS)
        self.active = 0

    def passes(self, ms: int) -> None:
        self.own.passes(ms)
        self.true_ms += ms

    def beat(self) -> None:
        for number, off_ms in enumerate(self.off):
            self.stamps.note_controller_time(
                self.true_ms + off_ms,
                self.own.mono,
                NodeId(101 + number),
                is_active=number == self.active,
            )

    def is_right(self) -> bool:
        return abs(self.stamps.wall_ms() - self.true_ms) <= LIMIT_MS


@pytest.mark.parametrize("step_ms", [YEAR_MS, -YEAR_MS])
@pytest.mark.parametrize("controllers", [1, 2, 3, 5])
def test_rule_r10_a_clock_set_wrong_while_it_runs_moves_no_append_time(
    controllers: int, step_ms: int
) -> None:
    clocks = Clocks(*[5] * controllers)
    clocks.beat()
    assert clocks.stamps.wall_ms() == NOW_MS
    clocks.own.wall += step_ms
    assert clocks.is_right(), "between two heartbeats"
    clocks.passes(250)
    clocks.beat()
    assert clocks.is_right()
    assert not clocks.stamps.is_trusted()
    clocks.passes(HOUR_MS)  # no controller has answered since
    assert clocks.is_right()
    clocks.beat()
    clocks.own.wall -= step_ms
    assert clocks.stamps.wall_ms() == clocks.true_ms
    clocks.beat()
    assert clocks.stamps.is_trusted()


@pytest.mark.parametrize("step_ms", [YEAR_MS, -YEAR_MS])
@pytest.mark.parametrize("controllers", [3, 5])
def test_rule_r10_a_broker_that_begins_with_a_wrong_clock_stamps_right_times(
    controllers: int, step_ms: int
) -> None:
    clocks = Clocks(*[0] * controllers)
    clocks.own.wall += step_ms
    clocks.beat()
    assert clocks.is_right()


@pytest.mark.parametrize("step_ms", [YEAR_MS, -YEAR_MS])
@pytest.mark.parametrize("controllers", [1, 2, 3, 5])
def test_rule_r10_one_controllers_wrong_clock_moves_no_append_time(
    controllers: int, step_ms: int
) -> None:
    clocks = Clocks(*[0] * controllers)
    clocks.beat()
    clocks.off[0] = step_ms  # the active one's
    clocks.beat()
    assert clocks.stamps.wall_ms() == clocks.true_ms
    assert not clocks.stamps.is_trusted()


def test_rule_r10_of_two_clocks_that_never_agreed_the_later_counts() -> None:
    for own_ms, controller_ms in ((-YEAR_MS, 0), (0, -YEAR_MS)):
        clocks = Clocks(controller_ms)
        clocks.own.wall += own_ms
        clocks.beat()
        assert clocks.is_right(), "what is kept too long is better than what is gone"


def test_rule_r10_a_clock_shared_with_the_active_controller_deletes_nothing() -> None:
    """Both on one machine, set a year ahead: they agree, the other controllers do not."""
    clocks = Clocks(0, 0, 0)
    clocks.beat()
    clocks.own.wall += YEAR_MS
    clocks.off[0] = YEAR_MS
    clocks.beat()
    assert clocks.stamps.ahead_ms() == 0
    assert not clocks.stamps.is_trusted()
    assert clocks.is_right()


def test_rule_r10_a_machine_that_slept_wakes_with_the_right_time() -> None:
    """Both of its clocks went on meanwhile."""
    clocks = Clocks(0)
    clocks.beat()
    clocks.passes(30 * 24 * HOUR_MS)
    assert clocks.stamps.wall_ms() == clocks.true_ms
    clocks.beat()
    assert clocks.stamps.is_trusted()


def test_rule_r10_a_step_shows_at_once_however_often_the_time_is_asked_for() -> None:
    """The other clocks are not looked at for each batch: a step either way is seen all the same."""
    for step_ms in (YEAR_MS, -YEAR_MS, 2 * LIMIT_MS, -2 * LIMIT_MS):
        clocks = Clocks(0, 0, 0)
        clocks.beat()
        for _ in range(3):
            assert clocks.stamps.wall_ms() == clocks.true_ms
            clocks.passes(1)
        clocks.own.wall += step_ms
        assert clocks.is_right()
        clocks.own.wall -= step_ms
        assert clocks.is_right()


def test_a_clock_that_is_right_is_compared_twenty_times_a_second_at_most() -> None:
    clocks = Clocks(0, 0, 0)
    clocks.beat()
    asked = 0
    own_ms = clocks.own.monotonic_ms

    def monotonic_ms() -> int:
        nonlocal asked
        asked += 1
        return own_ms()

    clocks.own.monotonic_ms = monotonic_ms  # type: ignore[method-assign]
    for _ in range(1_000):
        assert clocks.stamps.wall_ms() == clocks.true_ms
        clocks.passes(1)
    assert asked <= 1_000 // LOOK_AGAIN_MS


def test_rule_r10_a_controller_that_is_silent_for_long_is_no_clock_any_more() -> None:
    clocks = Clocks(YEAR_MS, YEAR_MS, 0)
    clocks.beat()
    assert not clocks.is_right(), "two of three"
    clocks.off = [0]
    clocks.passes(CARRIED_MAX_MS + 1)
    clocks.beat()
    assert clocks.stamps.wall_ms() == clocks.true_ms


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Hosted]:
    made = Hosted(tmp_path)
    made.logs.start(asyncio.get_running_loop())
    yield made
    made.logs.close(BrokerEpoch(1))


async def passes(host: Hosted, ms: int) -> None:
    host.clock.passes(ms)
    host.controller_says(0)
    await host.trimming.look_at_all()


async def written(host: Hosted, stamp_ms: int, count: int = 3) -> None:
    for n in range(count):
        append(host.log, [n], epoch=0, now_ms=stamp_ms)
    async with asyncio.timeout(20):
        while host.log.high_watermark < host.log.log_end_offset:
            host.log.request_flush()
            await asyncio.sleep(0.001)


async def test_rule_r10_a_time_that_has_not_come_yet_keeps_nothing_for_long(host: Hosted) -> None:
    """Stamped a year ahead, by a broker of an older version: kept for retention.ms from now on."""
    host.log.config = LogConfig(retention=RetentionConfig(HOUR_MS))
    await written(host, NOW_MS + YEAR_MS)
    await host.trimming.look_at_all()
    assert len(host.log.segments) == 2, "what comes next is not taken for as young"
    await written(host, host.clock.wall)
    await passes(host, HOUR_MS - 1_000)
    assert host.log.log_start_offset == 0, "not a second early"
    await passes(host, 2_000)
    assert host.log.log_start_offset >= 3


async def test_rule_r10_what_is_added_begins_a_new_age(host: Hosted) -> None:
    host.log.config = LogConfig(retention=RetentionConfig(HOUR_MS))
    await written(host, NOW_MS + YEAR_MS)
    await host.trimming.look_at_all()
    await passes(host, HOUR_MS // 2)
    await written(host, NOW_MS + YEAR_MS)  # to the next segment, with a wrong time again
    await passes(host, HOUR_MS // 2 + 1_000)
    assert host.log.log_start_offset == 3
    await passes(host, HOUR_MS + 1_000)
    assert host.log.log_start_offset == 6


async def test_rule_r10_what_looks_older_than_what_stands_before_it_is_not_believed(
    host: Hosted,
) -> None:
    """Stamped a year behind; it stays in doubt when what stood before it is gone."""
    host.log.config = LogConfig(retention=RetentionConfig(HOUR_MS))
    await written(host, host.clock.wall)
    host.log.roll()
    await passes(host, HOUR_MS - 10_000)
    await written(host, host.clock.wall - YEAR_MS)
    host.log.roll()
    await passes(host, 1_000)
    assert host.log.log_start_offset == 0
    await passes(host, 10_000)
    assert host.log.log_start_offset == 3, "the first ones are an hour old"
    host.logs.removals.rename_some()
    assert host.log.segments[0].base_offset == 3
    await passes(host, HOUR_MS // 2)
    assert host.log.log_start_offset == 3
    await passes(host, HOUR_MS // 2)
    assert host.log.log_start_offset == 6


async def test_rule_r10_a_time_from_the_future_casts_no_doubt_on_what_follows(
    host: Hosted,
) -> None:
    """With a doubt, a restart would keep all later records for longer."""
    host.log.config = LogConfig(retention=RetentionConfig(HOUR_MS))
    await written(host, NOW_MS + YEAR_MS)
    await host.trimming.look_at_all()
    await written(host, host.clock.wall)
    doubted = doubted_times_of(host.trimming)
    ages = doubted.ages(host.log.segments, host.clock.wall, host.clock.mono)
    assert list(ages) == [host.log.segments[0].path]


def test_rule_r10_what_was_written_anew_is_as_young_as_that() -> None:
    """A follower's segment may be cut, and filled again with what a wrong clock stamped."""
    segment, doubted = Segment("/t-0", 0), DoubtedTimes(LIMIT_MS)
    segment.note(0, 3, 100, NOW_MS, NOW_MS + YEAR_MS)
    assert doubted.ages([segment], NOW_MS, 1_000) == {segment.path: 0}
    assert doubted.ages([segment], NOW_MS, 5_000) == {segment.path: 4_000}
    segment.cut(0, 0)
    segment.note(0, 3, 101, NOW_MS, NOW_MS + YEAR_MS)
    assert doubted.ages([segment], NOW_MS, 9_000) == {segment.path: 0}
