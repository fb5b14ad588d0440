"""Retention: what may go, who decides it, and by whose clock (rule R10, invariant L24)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.log.log_directory import LogConfig
from broker.log.retention import RetentionConfig, decide
from broker.log.segment import Segment
from broker.replication.leader_state import LeaderState, Settings
from broker.replication.log_start_manager import LogTrimming, may_go_up_to
from broker.server.lifecycle import MEASUREMENT_AGE_MAX_MS, ControllerClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    TopicIdPartition,
)
from tests.support.hosted_replicas import (
    FIRST_ID,
    ME,
    ZERO,
    config_of,
    created,
    hosted,
    images,
    registered,
)
from tests.support.logs import append, offset_for_timestamp, values_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from broker.log.partition_log import PartitionLog

HERE = TopicIdPartition(FIRST_ID, ZERO)
YEAR_MS = 31_536_000_000
NOW_MS = 1_800_000_000_000


def segments(*facts: tuple[int, int, int]) -> list[Segment]:
    """(records, bytes, newest append time) each."""
    made, at = [], 0
    for records, size, newest_ms in facts:
        segment = Segment("/t-0", at)
        if size:
            segment.note(at, at + records, size, newest_ms, newest_ms)
        at += records
        made.append(segment)
    return made


def start(found: object) -> int | None:
    return getattr(found, "log_start", None)


def test_by_time_the_oldest_segments_go_up_to_the_first_young_one() -> None:
    some = segments((10, 100, 1_000), (10, 100, 2_000), (10, 100, 9_000), (10, 100, 1_500))
    config = RetentionConfig(retention_ms=5_000)
    assert start(decide(some, 0, 40, config, 6_000)) is None
    assert start(decide(some, 0, 40, config, 6_001)) == 10
    assert start(decide(some, 0, 40, config, 7_001)) == 20
    assert start(decide(some, 0, 40, config, 14_000)) == 20, "an old one behind a young one stays"
    found = decide(some, 0, 40, config, 20_000)
    assert found is not None
    assert (found.log_start, found.roll_first, found.why) == (40, True, "retention.ms")
    assert decide(some, 40, 40, config, 20_000) is None


def test_by_size_what_is_left_still_holds_retention_bytes() -> None:
    some = segments((10, 100, 0), (10, 100, 0), (10, 100, 0))
    for limit, expected in ((300, None), (201, None), (200, 10), (101, 10), (100, 20), (0, 30)):
        assert start(decide(some, 0, 30, RetentionConfig(retention_bytes=limit), 0)) == expected
    assert decide(some, 0, 30, RetentionConfig(), 10**15) is None, "-1 is no limit"


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 500), st.integers(0, 1_000)), max_size=8),
    st.integers(0, 80),
    st.integers(-1, 2_000),
    st.integers(-1, 2_000),
    st.integers(0, 3_000),
)
def test_invariant_l24_retention_never_passes_the_high_watermark(
    facts: list[tuple[int, int, int]], high_watermark: int, ms: int, size: int, now_ms: int
) -> None:
    some = segments(*facts)
    found = decide(some, 0, high_watermark, RetentionConfig(ms, size), now_ms)
    if found is None:
        return
    assert 0 < found.log_start <= high_watermark
    gone = [each for each in some if each.next_offset <= found.log_start]
    left = [each for each in some if each.next_offset > found.log_start]
    assert found.roll_first == (not left)
    too_old = [each for each in gone if ms >= 0 and now_ms - each.newest_append_ms > ms]
    if len(too_old) < len(gone):
        assert size >= 0
        assert sum(each.size for each in left) + sum(each.size for each in too_old) >= size


def test_invariant_l24_retention_does_not_overtake_a_replica_that_is_filled_for_a_move() -> None:
    role = LeaderState(
        me=BrokerId(1),
        epoch=LeaderEpoch(1),
        epoch_start=0,
        replicas=(BrokerId(1), BrokerId(2), BrokerId(3)),
        isr=(BrokerId(1), BrokerId(2)),
        partition_epoch=PartitionEpoch(1),
        settings=Settings(1, by_durable=True),
        now_ms=0,
    )
    for broker, end in ((2, 7), (3, 20)):
        role.opened(BrokerId(broker), BrokerEpoch(1), 10 + broker, (end, end, 0), 50, 0)
    adding = (BrokerId(3), BrokerId(4))
    assert may_go_up_to(role, (), 40) == 40, "Kafka's rule: a follower that lags holds nothing"
    assert may_go_up_to(role, adding, 40) == 20
    assert may_go_up_to(role, adding, 15) == 15
    role.closed(BrokerId(3), 13)
    assert may_go_up_to(role, adding, 40) == 40


class TwoClocks:
    """A broker's clock that a test sets."""

    def __init__(self) -> None:
        self.mono = 1_000
        self.wall = NOW_MS

    def monotonic_ms(self) -> int:
        return self.mono

    def wall_ms(self) -> int:
        return self.wall

    def passes(self, ms: int) -> None:
        self.mono += ms
        self.wall += ms


def test_rule_r10_the_clock_is_compared_with_the_active_controllers() -> None:
    clock = TwoClocks()
    guard = ControllerClock(clock, 60_000)
    assert not guard.is_trusted(), "nobody has said what time it is"
    guard.note_controller_time(NOW_MS - 59_000, clock.mono)
    assert guard.is_trusted()
    for step in (YEAR_MS, -YEAR_MS):
        clock.wall += step
        assert not guard.is_trusted(), "the clock was set since"
        clock.wall -= step
        assert guard.is_trusted()
    guard.note_controller_time(NOW_MS + 61_000, clock.mono)
    assert not guard.is_trusted()
    sent = clock.mono
    clock.passes(20_000)  # a slow answer: it was sent at any time in between
    guard.note_controller_time(NOW_MS - 55_000, sent)
    assert guard.is_trusted()
    clock.passes(MEASUREMENT_AGE_MAX_MS + 1)
    assert not guard.is_trusted(), "no controller has answered for long"


class Hosted:
    """A broker that leads one partition alone, with a clock and a judge of it."""

    def __init__(self, data_dir: Path) -> None:
        self.logs, self.manager = hosted(data_dir, "i")
        self.clock = TwoClocks()
        self.guard = ControllerClock(self.clock, 60_000)
        self.trimming = LogTrimming(
            config_of(data_dir),
            self.manager,
            self.logs,
            self.clock,
            self.is_clock_trusted,
            lambda: self.guard.ahead_ms() is not None,
        )
        for image in images((registered(ME, 0, "i"),), created(FIRST_ID, (ME,))):
            self.manager.on_metadata_update(image)
        self.log.config = LogConfig(segment_bytes=2_000, retention=RetentionConfig(3_600_000))
        self.controller_says(0)

    def controller_says(self, ahead_ms: int) -> None:
        self.guard.note_controller_time(self.clock.wall + ahead_ms, self.clock.mono)

    def is_clock_trusted(self) -> bool:
        return self.guard.is_trusted()

    @property
    def log(self) -> PartitionLog:
        replica = self.manager.replica(HERE)
        assert replica is not None
        return replica.log

    async def fill(self, count: int = 20) -> None:
        for n in range(count):
            append(self.log, [f"{n}" + "x" * 300], epoch=0, now_ms=self.clock.wall)
        async with asyncio.timeout(20):
            while self.log.high_watermark < self.log.log_end_offset:
                self.log.request_flush()
                await asyncio.sleep(0.001)


def paused(host: Hosted) -> bool:
    return host.trimming.paused


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Hosted]:
    made = Hosted(tmp_path)
    made.logs.start(asyncio.get_running_loop())
    yield made
    made.logs.close(BrokerEpoch(1))


async def test_segments_older_than_retention_ms_go_even_the_active_one(host: Hosted) -> None:
    await host.fill()
    host.clock.passes(3_599_000)
    host.controller_says(0)
    await host.trimming.look_at_all()
    assert host.log.log_start_offset == 0
    host.clock.passes(2_000)
    host.controller_says(0)
    await host.trimming.look_at_all()
    assert (host.log.log_start_offset, host.log.log_end_offset) == (20, 20)
    host.logs.removals.rename_some()
    assert [segment.size for segment in host.log.segments] == [0]
    append(host.log, ["next"], epoch=0, now_ms=host.clock.wall)
    assert values_of(host.log, 20) == ["next"]


@pytest.mark.parametrize("step_ms", [YEAR_MS, -YEAR_MS])
async def test_rule_r10_a_clock_that_is_a_year_off_deletes_nothing(
    host: Hosted, step_ms: int
) -> None:
    """Set wrong under load, and right again: what is young stays all the time."""
    await host.fill()
    host.clock.wall += step_ms
    await host.trimming.look_at_all()
    host.controller_says(-step_ms)
    await host.trimming.look_at_all()
    assert paused(host)
    await host.fill()  # taken with the wrong time
    await host.trimming.look_at_all()
    assert host.log.log_start_offset == 0
    host.clock.wall -= step_ms
    host.controller_says(0)
    await host.trimming.look_at_all()
    assert not paused(host)
    assert host.log.log_start_offset == 0, "younger records stand behind what looks old"


async def test_a_clock_that_is_only_not_known_yet_is_told_of_after_a_minute(
    host: Hosted, caplog: pytest.LogCaptureFixture
) -> None:
    """Every start begins so. One that is known to be off is told of at once."""
    host.guard = ControllerClock(host.clock, 60_000)
    for passed_ms, lines in ((0, 0), (59_999, 0), (1, 1), (60_000, 1)):
        host.clock.passes(passed_ms)
        await host.trimming.look_at_all()
        assert paused(host)
        assert "".join(caplog.messages).count("paused: no active controller has said") == lines
    host.controller_says(0)
    await host.trimming.look_at_all()
    assert not paused(host)
    host.controller_says(-YEAR_MS)
    await host.trimming.look_at_all()
    assert "retention paused: the clock is not near the active controller's" in caplog.messages


async def test_rule_r10_size_counts_while_the_clock_is_off(host: Hosted) -> None:
    await host.fill()
    host.log.config = replace(host.log.config, retention=RetentionConfig(1, 4_000))
    host.clock.wall += YEAR_MS
    await host.trimming.look_at_all()
    left = sum(s.size for s in host.log.segments if s.next_offset > host.log.log_start_offset)
    assert 0 < host.log.log_start_offset < 20
    assert 4_000 <= left < 6_500


async def test_a_log_without_appends_is_rolled_when_its_segment_is_old(host: Hosted) -> None:
    await host.fill(1)
    host.log.config = LogConfig(segment_ms=1_000, retention=None)
    host.clock.passes(1_001)
    host.controller_says(0)
    await host.trimming.look_at_all()
    assert [segment.base_offset for segment in host.log.segments] == [0, 1]
    await host.trimming.look_at_all()
    assert len(host.log.segments) == 2, "an empty one is not rolled"


async def test_delete_records_moves_the_log_start_within_the_high_watermark(host: Hosted) -> None:
    await host.fill()
    delete = host.trimming.delete_records
    assert await delete(HERE, 7, 5_000) == 7
    assert await delete(HERE, 3, 5_000) == 7, "what is gone is gone"
    assert values_of(host.log, 7)[0] == "7" + "x" * 300
    for wrong in (21, -2):
        with pytest.raises(KafkaError) as refused:
            await delete(HERE, wrong, 5_000)
        assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert "log start offset 7, high watermark 20" in refused.value.message
    assert await delete(HERE, -1, 5_000) == 20
    host.logs.removals.rename_some()
    assert [segment.size for segment in host.log.segments] == [0]


async def test_a_leader_deposed_meanwhile_promises_no_deletion(host: Hosted) -> None:
    """The new leader may never learn of it, and show records that were reported as deleted."""
    await host.fill()
    replica = host.manager.replica(HERE)
    assert replica is not None
    deletion = asyncio.ensure_future(host.trimming.delete_records(HERE, 7, 5_000))
    await asyncio.sleep(0)
    replica.partition.retire()
    with pytest.raises(KafkaError) as refused:
        await deletion
    assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert refused.value.outcome is Outcome.UNKNOWN


async def test_a_search_by_time_finds_nothing_below_the_log_start(host: Hosted) -> None:
    await host.fill()
    assert offset_for_timestamp(host.log, 0) == 0
    await host.trimming.delete_records(HERE, 9, 5_000)
    assert offset_for_timestamp(host.log, 0) == 9
