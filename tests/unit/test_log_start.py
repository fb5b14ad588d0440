"""Where a log begins, from a leader to its followers: on real logs, killed at every step."""

from __future__ import annotations

import random

import pytest

from broker.log.log_directory import LogConfig
from broker.replication.frames import Diverging, Push, Valid
from broker.replication.leader_state import LeaderState, Settings
from broker.replication.partition import Partition, PushResult
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerEpoch, BrokerId
from tests.support.logs import Life, append, values_of
from tests.support.simulated_disk import SimulatedDisk
from tests.unit.test_replication_partition import HERE, ONE, TWO, brokers, registration

SMALL = LogConfig(segment_bytes=2_000)


class Side:
    """One broker: its disk, its life, its replica."""

    def __init__(self, broker: BrokerId) -> None:
        self.broker = broker
        self.disk = SimulatedDisk()
        self.disk.synced["/data"] = self.disk.live["/data"] = None
        self.open()

    def open(self) -> None:
        self.life = Life(self.disk, SMALL)
        assert self.life.manager.offline == {}
        self.log = self.life.log()
        self.partition = Partition(
            HERE, self.broker, self.log, Settings(1, True), high_watermark=self.log.high_watermark
        )

    def takes(self, leader: BrokerId, epoch: int) -> None:
        made = registration(leader, epoch, isr=(leader,))
        self.partition.apply_image(made, brokers(), BrokerEpoch(int(self.broker)), 0)

    def crash(self, seed: int) -> None:
        if seed % 2:
            self.disk.cut_power(random.Random(seed))
        else:
            self.disk.kill()
        self.open()


def leads(side: Side, values: list[str], epoch: int = 1) -> None:
    side.takes(side.broker, epoch)
    for value in values:
        append(side.log, [value], epoch=epoch)
    side.life.flush()
    side.partition.advance()


def ask(follower: Side, leader: Side, session: int = 9) -> Valid | None:
    """The exchange up to VALID; None if it has to be asked again."""
    message = follower.partition.open_message(session, 0)
    assert message is not None
    answer = leader.partition.on_open(follower.broker, message, brokers(), session, 0)
    if isinstance(answer, Diverging):
        assert follower.partition.on_diverging(answer)
        return None
    assert isinstance(answer, Valid)
    assert follower.partition.on_valid(answer)
    return answer


def push(follower: Side, leader: Side, valid: Valid, at: int | None = None) -> bool:
    """Have a session ship what is next, from ``at`` on; return True if it is appended."""
    start = max(follower.log.log_end_offset if at is None else at, leader.log.log_start_offset)
    if start > follower.log.log_end_offset:
        skip = leader.partition.skip_message(valid.session)
        assert skip is not None
        assert follower.partition.on_skip(skip)
    raw = leader.log.read_raw(start, 1 << 20, leader.log.log_end_offset)
    role = leader.partition.role
    assert isinstance(role, LeaderState)
    message = Push(
        valid.session, role.epoch, start, leader.log.log_end_offset,
        leader.partition.high_watermark, leader.log.log_start_offset, raw,
    )  # fmt: skip
    return follower.partition.on_push(message) is PushResult.APPENDED


def fill(follower: Side, leader: Side) -> None:
    """Until the follower holds what the leader does, and knows that it is durable."""
    valid = ask(follower, leader) or ask(follower, leader)
    assert valid is not None
    while follower.log.log_end_offset < leader.log.log_end_offset:
        assert push(follower, leader, valid)
    assert push(follower, leader, valid, leader.log.log_end_offset)
    follower.life.flush()


def trim(side: Side, offset: int) -> None:
    side.log.advance_log_start(offset)
    side.life.flush()
    assert side.log.log_start_offset == offset


def check_same(follower: Side, leader: Side) -> None:
    """Invariants L1, L8 and L11 between the two."""
    mine, theirs = follower.log, leader.log
    assert mine.log_start_offset == theirs.log_start_offset
    assert mine.durable_end == mine.log_end_offset == theirs.log_end_offset
    start = mine.log_start_offset
    assert values_of(mine, start) == values_of(theirs, start)
    assert start <= follower.partition.high_watermark <= mine.log_end_offset
    for epoch in range(4):
        assert mine.end_of_epoch(epoch) == theirs.end_of_epoch(epoch)


@pytest.fixture
def pair() -> tuple[Side, Side]:
    leader, follower = Side(ONE), Side(TWO)
    leads(leader, [f"{n}" + "x" * 300 for n in range(30)])
    follower.takes(ONE, 1)
    return leader, follower


def test_rule_r10_a_follower_takes_over_the_leaders_log_start(pair: tuple[Side, Side]) -> None:
    leader, follower = pair
    fill(follower, leader)
    trim(leader, 12)
    assert follower.log.log_start_offset == 0
    fill(follower, leader)
    check_same(follower, leader)
    with pytest.raises(KafkaError) as refused:
        follower.log.read(11, 100, 30)
    assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert "12 up to 30" in refused.value.message


def test_a_log_start_shows_only_once_it_is_durable(pair: tuple[Side, Side]) -> None:
    leader, _ = pair
    assert leader.log.advance_log_start(7)
    assert not leader.log.advance_log_start(7)
    assert leader.log.log_start_offset == 0
    leader.life.flush()
    assert leader.log.log_start_offset == 7
    leader.disk.cut_power(random.Random(1))
    leader.open()
    assert leader.log.log_start_offset == 7
    assert values_of(leader.log, 7)[0] == "7" + "x" * 300


@pytest.mark.parametrize("crash_at", range(5))
@pytest.mark.parametrize("seed", [2, 3, 5, 7])
def test_invariant_l8_a_follower_behind_the_log_start_starts_over_through_any_crash(
    pair: tuple[Side, Side], crash_at: int, seed: int
) -> None:
    """KAFKA-9491, KAFKA-16374: killed or cut in the middle, it ends as the leader is."""
    leader, follower = pair
    fill(follower, leader)
    for n in range(30, 60):
        append(leader.log, [f"{n}" + "y" * 300], epoch=1)
    leader.life.flush()
    leader.partition.advance()
    trim(leader, 41)
    valid = None
    if crash_at >= 1:
        valid = ask(follower, leader)
        assert (follower.log.log_start_offset, follower.log.log_end_offset) == (41, 41)
        assert follower.partition.high_watermark == 41
    if crash_at >= 2 and valid is not None:
        assert push(follower, leader, valid)
    if crash_at >= 3:
        follower.log.begin_flush()  # begun, never ended
    if crash_at >= 4:
        follower.life.manager.removals.rename_some()
    follower.crash(seed)
    assert follower.log.log_start_offset <= follower.partition.high_watermark
    follower.takes(ONE, 1)
    fill(follower, leader)
    check_same(follower, leader)
    follower.crash(seed + 1)
    check_same(follower, leader)


@pytest.mark.parametrize("seed", [2, 3])
def test_invariant_l8_a_log_that_started_over_is_empty_though_its_old_files_are_still_there(
    pair: tuple[Side, Side], seed: int
) -> None:
    leader, follower = pair
    fill(follower, leader)
    follower.log.start_over(35)
    follower.life.flush()
    follower.crash(seed)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (35, 35)
    assert follower.log.durable_end == 35
    assert follower.log.end_of_epoch(1) == (-1, 35)


def test_a_follower_that_the_log_start_overtakes_is_shipped_on_from_there(
    pair: tuple[Side, Side],
) -> None:
    leader, follower = pair
    valid = ask(follower, leader)
    assert valid is not None
    trim(leader, 20)
    assert push(follower, leader, valid, 0)  # the session's next offset is gone by now
    while follower.log.log_end_offset < 30:
        assert push(follower, leader, valid)
    follower.life.flush()
    check_same(follower, leader)


def test_a_follower_that_is_overtaken_by_the_end_itself_skips_to_it(
    pair: tuple[Side, Side],
) -> None:
    """Nothing is left to be shipped: the next high watermark message says so."""
    leader, follower = pair
    valid = ask(follower, leader)
    assert valid is not None
    trim(leader, 30)
    assert push(follower, leader, valid, 30)
    follower.life.flush()
    check_same(follower, leader)


def test_a_new_replica_of_a_trimmed_log_begins_at_its_start(pair: tuple[Side, Side]) -> None:
    leader, follower = pair
    trim(leader, 30)  # all of it
    fill(follower, leader)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (30, 30)
    follower.crash(1)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (30, 30)
    append(leader.log, ["next"], epoch=1)
    leader.life.flush()
    follower.takes(ONE, 1)
    fill(follower, leader)
    check_same(follower, leader)


def test_an_empty_follower_agrees_with_a_leader_that_has_not_trimmed_yet(
    pair: tuple[Side, Side],
) -> None:
    """The leader that trimmed died before this one heard of it: nothing is cut, nobody ends."""
    leader, follower = pair
    follower.log.start_over(25)
    follower.partition.high_watermark = 25
    follower.life.flush()
    fill(follower, leader)
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (25, 30)
    assert follower.partition.high_watermark == 30
    assert values_of(follower.log, 25) == values_of(leader.log, 25)


def test_records_of_epochs_that_were_trimmed_at_the_leader_are_not_kept() -> None:
    """Records of the old leader alone at or behind the log start are cut; nothing below stays."""
    leader, follower = Side(ONE), Side(TWO)
    leads(follower, ["a", "b", "c", "never replicated"], epoch=1)
    leads(leader, ["a", "b", "c"], epoch=1)
    leads(leader, ["d", "e", "f"], epoch=2)
    follower.partition.high_watermark = 3
    trim(leader, 4)
    follower.takes(ONE, 2)
    assert ask(follower, leader) is not None  # it ends where the leader begins: it starts over
    assert follower.log.log_start_offset == 4
    fill(follower, leader)
    check_same(follower, leader)


def test_invariant_l14_a_longer_log_of_trimmed_epochs_starts_over_at_the_log_start() -> None:
    leader, follower = Side(ONE), Side(TWO)
    leads(follower, ["a", "b", "c", "lost", "lost", "lost", "lost"], epoch=1)
    leads(leader, ["a", "b", "c"], epoch=1)
    leads(leader, ["d", "e", "f", "g"], epoch=2)
    follower.partition.high_watermark = 3
    trim(leader, 5)
    follower.takes(ONE, 2)
    assert ask(follower, leader) is None
    assert (follower.log.log_start_offset, follower.log.log_end_offset) == (5, 5)
    fill(follower, leader)
    check_same(follower, leader)


def test_invariant_l11_epochs_are_trimmed_as_a_rebuild_would_find_them() -> None:
    side = Side(ONE)
    for epoch in range(1, 4):
        leads(side, [f"{epoch}-{n}" + "x" * 300 for n in range(10)], epoch)
    trim(side, 15)
    before = [side.log.end_of_epoch(epoch) for epoch in range(5)]
    assert before == [(-1, 15), (-1, 15), (2, 20), (3, 30), (3, 30)]
    side.crash(2)
    assert [side.log.end_of_epoch(epoch) for epoch in range(5)] == before
    side.disk.live.pop("/data/log/orders-0/leader-epoch", None)  # rebuilt from the batches
    side.crash(4)
    assert [side.log.end_of_epoch(epoch) for epoch in range(5)] == before


def test_segments_below_the_start_go_later_and_never_twice() -> None:
    side = Side(ONE)
    leads(side, [f"{n}" + "x" * 300 for n in range(40)])
    removals = side.life.manager.removals
    count = len(side.log.segments)
    trim(side, 25)
    assert len(side.log.segments) == count, "nothing is unlinked from within a flush"
    removals.rename_some()
    assert side.log.segments[0].base_offset <= 25 < side.log.segments[1].base_offset
    renamed = [name for name in side.disk.live if name.endswith(".deleted")]
    assert renamed
    assert removals.take_due(59_999) == []
    removals.unlink(removals.take_due(1))
    assert not [name for name in side.disk.live if name.endswith(".deleted")]
    assert values_of(side.log, 25) == [f"{n}" + "x" * 300 for n in range(25, 40)]
    side.crash(2)
    assert values_of(side.log, 25) == [f"{n}" + "x" * 300 for n in range(25, 40)]
