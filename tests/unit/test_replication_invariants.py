"""Invariants L of docs/claims.md that one partition keeps, each as a transcript against it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.replication.delayed_produces import AppendOutcome, DelayedProduce
from broker.replication.frames import Ack, Diverging, Open, Push, Refused, Valid
from broker.replication.isr_state import COMMITTED, IsrChange
from broker.replication.leader_state import LeaderState, Settings
from broker.replication.partition import Following, Partition, PushResult, RequestedSession
from broker.replication.stream import StreamHeartbeats
from raft_metadata.common.errors import ErrorCode
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.image.metadata_image import BrokerRegistration, PartitionRegistration
from raft_metadata.records.records import BrokerState
from tests.support.memory_log import Entry, MemoryLog, encode
from tests.support.registered import broker, partition

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
ALL = (ONE, TWO, THREE)
HERE = TopicIdPartition(TopicId("A" * 22), PartitionId(0))
LAG_MS = 3_000


def registration(
    leader: BrokerId = ONE,
    epoch: int = 1,
    *,
    isr: tuple[BrokerId, ...] = ALL,
    partition_epoch: int | None = None,
) -> PartitionRegistration:
    return partition(
        ALL, leader, epoch, isr=isr, partition_epoch=partition_epoch, set_at=100 + epoch
    )


def brokers(
    *,
    without: BrokerId | None = None,
    fenced: BrokerId | None = None,
    again: BrokerId | None = None,
) -> dict[BrokerId, BrokerRegistration]:
    return {
        number: broker(
            number,
            epoch=number + (50 if number == again else 0),
            state=BrokerState.FENCED if number == fenced else BrokerState.UNFENCED,
        )
        for number in ALL
        if number != without
    }


class Replica:
    """A partition on one broker over a log in memory."""

    def __init__(self, me: BrokerId, entries: list[Entry] | None = None, min_isr: int = 2) -> None:
        self.me = me
        self.log = MemoryLog()
        self.log.recover(entries or [], keep_cache=False)
        self.log.synced, self.log.durable_end = list(entries or []), len(entries or [])
        self.partition = Partition(HERE, me, self.log, Settings(min_isr, by_durable=True))
        self.attempts = 0

    def follow(self, image: PartitionRegistration, now_ms: int = 0) -> None:
        self.partition.apply_image(image, brokers(), BrokerEpoch(self.me), now_ms)

    @property
    def leads(self) -> LeaderState:
        assert isinstance(self.partition.role, LeaderState)
        return self.partition.role

    def write(self, value: int, *, synced: bool = True) -> list[AppendOutcome]:
        """One record with acks=all."""
        fates: list[AppendOutcome] = []
        epoch, at = self.partition.role.epoch, self.log.log_end_offset
        self.log.append((epoch, value))
        self.partition.add_delayed_produce(
            DelayedProduce(epoch, at, at, True, 10_000, fates.append)
        )
        if synced:
            self.log.flush_now()
        self.partition.advance()
        return fates

    def open(
        self, follower: BrokerId, ends: tuple[int, int], session: int, now_ms: int = 0
    ) -> None:
        message = Open(
            session, self.leads.epoch, int(follower), self.log.epoch_at(ends[0] - 1), *ends
        )
        answer = self.partition.on_open(follower, message, brokers(), session, now_ms)
        assert isinstance(answer, Valid), answer

    def ack(self, follower: BrokerId, session: int, end: int, now_ms: int = 1) -> bool:
        message = Ack(session, self.leads.epoch, end, end)
        return self.partition.on_ack(follower, message, now_ms) is not None

    def propose(
        self, now_ms: int = 0, lag_max_ms: int | None = LAG_MS, **of: BrokerId
    ) -> IsrChange | None:
        self.attempts += 1
        return self.partition.propose_isr(brokers(**of), self.attempts, now_ms, lag_max_ms)


def leader(isr: tuple[BrokerId, ...] = ALL, min_isr: int = 2) -> Replica:
    one = Replica(ONE, min_isr=min_isr)
    one.follow(registration(isr=isr))
    return one


# ---- what may be in sync


def test_invariant_l5_the_high_watermark_waits_for_every_isr_that_may_be_committed() -> None:
    """A joiner, and one that was proposed away, both count until it is known what became of it."""
    one = leader(isr=(ONE, TWO), min_isr=1)
    one.open(TWO, (0, 0), 12)
    one.open(THREE, (0, 0), 13)
    join = one.propose(lag_max_ms=None)
    assert join is not None
    one.partition.isr_unknown(join, 100)
    fates = one.write(7)
    one.ack(TWO, 12, 1)
    assert (one.partition.high_watermark, fates) == (0, []), "THREE may be in it by now"
    assert one.leads.maximal_isr() == {1, 2, 3} > one.leads.isr
    one.leads.closed(THREE, 13)
    settle = one.propose(now_ms=200)
    assert settle is not None
    assert [broker for broker, _ in settle.isr] == [1, 2]
    assert one.partition.high_watermark == 0
    one.partition.isr_accepted(settle, PartitionEpoch(2), (ONE, TWO))
    assert (one.partition.high_watermark, fates) == (1, [AppendOutcome.OK])


def test_invariant_l5_a_replica_proposed_away_counts_until_that_is_committed() -> None:
    one = leader(min_isr=1)
    one.open(TWO, (0, 0), 12)
    one.open(THREE, (0, 0), 13)
    fates = one.write(7)
    one.ack(TWO, 12, 1)
    away = one.propose(now_ms=LAG_MS + 1)
    assert away is not None
    assert [broker for broker, _ in away.isr] == [1, 2]
    one.partition.advance()
    assert (one.partition.high_watermark, fates) == (0, [])
    one.partition.isr_accepted(away, PartitionEpoch(2), (ONE, TWO))
    assert fates == [AppendOutcome.OK]


@pytest.mark.parametrize("how", ["accepted", "refused", "settled by the image"])
def test_invariant_l6_with_nothing_pending_the_maximal_isr_is_the_isr(how: str) -> None:
    one = leader(isr=(ONE, TWO))
    one.open(THREE, (0, 0), 13)
    join = one.propose(lag_max_ms=None)
    assert join is not None
    assert one.leads.maximal_isr() != one.leads.isr
    if how == "accepted":
        one.partition.isr_accepted(join, PartitionEpoch(2), ALL)
    elif how == "refused":
        one.partition.isr_refused(join)
    else:
        one.partition.isr_unknown(join, 100)
        one.follow(registration(isr=(ONE,), partition_epoch=2))
    assert one.leads.maximal_isr() == one.leads.isr
    assert one.leads.isr_state is COMMITTED


def test_invariant_l9_the_high_watermark_stands_below_min_isr() -> None:
    one = leader(isr=(ONE, TWO))
    one.open(TWO, (0, 0), 12)
    one.follow(registration(isr=(ONE,), partition_epoch=2))
    fates = one.write(7)
    for end in (1, 1):
        one.ack(TWO, 12, end)
    assert (one.partition.high_watermark, fates) == (0, [])
    one.follow(registration(isr=(ONE, TWO), partition_epoch=3))
    assert (one.partition.high_watermark, fates) == (1, [AppendOutcome.OK])


@pytest.mark.parametrize(
    ("what", "ends", "of", "epoch_start"),
    [
        ("below the high watermark", (1, 1), {}, 0),
        ("written, not synced, up to it", (2, 1), {}, 0),
        ("below the start of the leader's epoch", (2, 2), {}, 3),
        ("a fenced broker", (2, 2), {"fenced": THREE}, 0),
        ("a broker nobody knows", (2, 2), {"without": THREE}, 0),
        ("the last life of a broker", (2, 2), {"again": THREE}, 0),
    ],
)
def test_invariant_l18_no_replica_joins_that_lags_or_is_of_an_earlier_life(
    what: str, ends: tuple[int, int], of: dict[str, BrokerId], epoch_start: int
) -> None:
    one = leader(isr=(ONE, TWO))
    one.open(TWO, (0, 0), 12)
    for value in (7, 8):
        one.write(value)
    one.ack(TWO, 12, 2)
    assert one.partition.high_watermark == 2
    one.leads.epoch_start = epoch_start
    one.open(THREE, ends, 13)
    assert one.propose(lag_max_ms=None, **of) is None, what
    one.leads.epoch_start = 0
    one.ack(THREE, 13, 2)
    assert one.propose(lag_max_ms=None) is not None, "and then it may"


def test_invariant_l18_no_replica_joins_without_a_session_of_this_epoch() -> None:
    one = leader(isr=(ONE, TWO))
    one.open(THREE, (0, 0), 13)
    one.leads.closed(THREE, 13)
    assert one.propose(lag_max_ms=None) is None, "its connection is gone"
    one.open(THREE, (0, 0), 14)
    one.follow(registration(epoch=2, isr=(ONE, TWO)))
    assert one.propose(lag_max_ms=None) is None, "what it said was said to an earlier epoch"


# ---- logs that must become one


def histories() -> st.SearchStrategy[tuple[list[Entry], list[Entry]]]:
    """A leader's log and a follower's: equal up to somewhere, then each what it was sent.

    One (epoch, offset) has one content everywhere, as rule R2 has it: a value says both.
    """

    def log_of(steps: list[int], epochs: list[int], at: int = 0) -> list[Entry]:
        found: list[Entry] = []
        for epoch, count in zip(epochs, steps, strict=False):
            found += [(epoch, epoch * 1_000 + at + len(found) + n) for n in range(count)]
        return found

    @st.composite
    def draw(pick: st.DrawFn) -> tuple[list[Entry], list[Entry]]:
        common = pick(st.lists(st.integers(0, 3), max_size=3))
        ours, theirs = [
            pick(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), max_size=4))
            for _ in range(2)
        ]
        base = log_of(common, [1, 2, 3])
        last = base[-1][0] if base else 0
        logs = []
        for odd, tail in ((0, ours), (1, theirs)):
            # Epochs of one leader only: even ones are written here, odd ones there.
            epochs = sorted({last + 1 + 2 * step + odd for step, _ in tail})
            counts = [count for _, count in tail][: len(epochs)]
            logs.append(base + log_of(counts, epochs, len(base)))
        return logs[0], logs[1]

    return draw()


@given(histories())
def test_invariant_l14_a_follower_is_cut_to_the_largest_offset_both_agree_on(
    logs: tuple[list[Entry], list[Entry]],
) -> None:
    ours, theirs = logs
    agreed = 0
    while agreed < min(len(ours), len(theirs)) and ours[agreed] == theirs[agreed]:
        agreed += 1
    epoch = max([0, *(entry[0] for entry in ours + theirs)]) + 1
    one, two = Replica(ONE, ours), Replica(TWO, theirs)
    image = registration(epoch=epoch)
    one.follow(image)
    two.follow(image)
    for request in range(1, 12):
        message = two.partition.open_message(request, 0)
        assert message is not None
        answer = one.partition.on_open(TWO, message, brokers(), 40 + request, 0)
        if isinstance(answer, Valid):
            break
        assert isinstance(answer, Diverging)
        assert one.leads.followers == {}, "invariant L16: nothing of it is recorded"
        before = two.partition.high_watermark
        assert two.partition.on_diverging(answer)
        assert two.partition.high_watermark == before, "invariant L16"
    else:
        raise AssertionError("it never ended")
    assert two.log.entries == theirs[:agreed] == ours[:agreed]
    assert one.log.entries == ours, "invariant L15: a leader cuts nothing"
    two.log.check_epochs()


def test_invariant_l13_a_follower_ends_before_it_cuts_below_its_high_watermark() -> None:
    two = Replica(TWO, [(1, 10), (1, 11), (2, 12)])
    two.follow(registration(epoch=4))
    two.partition.high_watermark = 2
    two.partition.open_message(9, 0)
    assert two.partition.on_diverging(Diverging(9, 4, 1, 2))
    assert two.log.log_end_offset == 2
    two.partition.open_message(10, 0)
    with pytest.raises(AssertionError, match="below the high watermark"):
        two.partition.on_diverging(Diverging(10, 4, 0, 1))
    assert two.log.entries == [(1, 10), (1, 11)]


def test_invariant_l15_a_leader_never_truncates() -> None:
    """Not when it begins, not for what another leader's late frame says."""
    one = Replica(ONE, [(1, 10), (1, 11)])
    one.follow(registration(TWO, 2))
    one.partition.open_message(9, 0)
    one.follow(registration(ONE, 3))
    assert not one.partition.on_diverging(Diverging(9, 2, 1, 0))
    assert not one.partition.on_diverging(Diverging(9, 3, 1, 0))
    assert one.partition.on_push(Push(9, 3, 0, 1, 0, 0, encode([(3, 9)]))) is PushResult.STALE
    assert one.log.entries == [(1, 10), (1, 11)]


def test_invariant_l16_a_diverging_follower_changes_nothing_at_the_leader() -> None:
    one = Replica(ONE, [(1, 10), (1, 11)])
    one.follow(registration(epoch=3))
    one.open(TWO, (2, 2), 12)
    before = replace(one.leads.followers[TWO])
    answer = one.partition.on_open(TWO, Open(9, 3, 2, 2, 2, 2), brokers(), 99, 5)
    assert answer == Diverging(9, 3, 1, 2)
    assert one.leads.followers[TWO] == before, "the session that stands goes on standing"
    assert one.partition.high_watermark == 0


@pytest.mark.parametrize(("epoch", "answer"), [(1, ErrorCode.FENCED_LEADER_EPOCH), (3, None)])
def test_invariant_l17_an_open_of_another_epoch_is_not_served(
    epoch: int, answer: ErrorCode | None
) -> None:
    """An older one is fenced; a newer one waits until this image knows of it, too."""
    one = Replica(ONE)
    one.follow(registration(epoch=2))
    found = one.partition.on_open(TWO, Open(9, epoch, 2, -1, 0, 0), brokers(), 12, 0)
    assert found == (None if answer is None else Refused(9, epoch, answer.number))
    assert one.leads.followers == {}


@pytest.mark.parametrize("epoch", [1, 3])
def test_invariant_l17_a_frame_of_another_epoch_is_dropped_by_the_follower(epoch: int) -> None:
    two = Replica(TWO, [(1, 10)])
    two.follow(registration(epoch=2))
    two.partition.open_message(9, 0)
    assert not two.partition.on_valid(Valid(9, epoch, 5, 0))
    assert not two.partition.on_diverging(Diverging(9, epoch, -1, 0))
    two.partition.on_refused(Refused(9, epoch, 74))
    role = two.partition.role
    assert isinstance(role, Following)
    assert role.session == RequestedSession(9)
    assert two.partition.on_valid(Valid(9, 2, 5, 0))
    assert (
        two.partition.on_push(Push(5, epoch, 1, 2, 2, 0, encode([(epoch, 1)]))) is PushResult.STALE
    )
    assert (two.log.entries, two.partition.high_watermark) == ([(1, 10)], 0)


# ---- leaders that come and go


def test_invariant_l19_a_zombie_leader_acknowledges_nothing_once_another_one_was_elected() -> None:
    """The zombie does not know of the election; its followers do, or have timed out."""
    one, two = leader(isr=(ONE, TWO)), Replica(TWO)
    one.open(TWO, (0, 0), 12)
    fates = one.write(7)
    two.follow(registration(TWO, 2, isr=(TWO, THREE)))
    assert one.partition.on_ack(TWO, Ack(12, 2, 1, 1), 1) is None, "what it says now is of epoch 2"
    away = one.propose(now_ms=LAG_MS + 1)
    assert away is not None
    one.partition.isr_refused(away)  # FENCED_LEADER_EPOCH: another one leads
    for now_ms in (LAG_MS + 10, LAG_MS + 20):
        again = one.propose(now_ms=now_ms)
        assert again is not None
        one.partition.isr_unknown(again, now_ms)
    one.partition.advance()
    assert (one.partition.high_watermark, fates) == (0, [])
    one.follow(registration(TWO, 2, isr=(TWO, THREE)), now_ms=5_000)
    assert isinstance(one.partition.role, Following)
    one.partition.delayed_produces.expire(60_000)
    assert fates == [AppendOutcome.UNKNOWN]


def test_rule_r4_frames_that_come_again_two_leaders_later_change_nothing() -> None:
    """ONE leads, then TWO, then ONE again; whatever was sent before is delivered once more."""
    one, two = leader(isr=(ONE, TWO)), Replica(TWO)
    two.follow(registration())
    open_1 = two.partition.open_message(1, 0)
    assert open_1 is not None
    valid_1 = one.partition.on_open(TWO, open_1, brokers(), 5, 0)
    assert isinstance(valid_1, Valid)
    two.partition.on_valid(valid_1)
    one.write(7)
    push_1 = Push(5, 1, 0, 1, 1, 0, encode([(1, 7)]))
    two.partition.on_push(push_1)
    two.log.flush_now()
    ack_1 = two.partition.ack_message()
    assert ack_1 is not None
    one.partition.on_ack(TWO, ack_1, 1)
    for replica in (one, two):
        replica.follow(registration(TWO, 2, isr=(ONE, TWO)))
    open_2 = one.partition.open_message(1, 0)
    assert open_2 is not None
    valid_2 = two.partition.on_open(ONE, open_2, brokers(), 5, 0)
    assert isinstance(valid_2, Valid)
    one.partition.on_valid(valid_2)
    push_2 = Push(5, 2, 1, 2, 1, 0, encode([(2, 8)]))
    two.write(8)
    one.partition.on_push(push_2)
    ack_2 = one.partition.ack_message()
    assert ack_2 is not None
    for replica in (one, two):
        replica.follow(registration(ONE, 3, isr=(ONE, TWO)))
    open_3 = two.partition.open_message(2, 0)
    assert open_3 is not None

    def state() -> object:
        roles = [replica.partition.role for replica in (one, two)]
        assert isinstance(roles[0], LeaderState)
        return (
            [(list(each.log.entries), each.partition.high_watermark) for each in (one, two)],
            dict(roles[0].followers),
            roles[1],
        )

    before = repr(state())
    for replica, other in ((one, TWO), (two, ONE)):
        for ack in (ack_1, ack_2):
            assert replica.partition.on_ack(other, ack, 9) is None
        for push in (push_1, push_2):
            assert replica.partition.on_push(push) is PushResult.STALE
        for valid in (valid_1, valid_2):
            assert not replica.partition.on_valid(valid)
        for old in (open_1, open_2):
            answer = replica.partition.on_open(other, old, brokers(), 77, 9)
            assert isinstance(answer, Refused)
    assert repr(state()) == before


def test_rule_r5_acks_of_the_leader_alone_are_judged_by_epoch_too() -> None:
    """acks=1, the leader's disk hangs, another one is elected and writes in its place."""
    one = leader()
    fates: list[AppendOutcome] = []
    one.log.append((1, 7))
    one.partition.add_delayed_produce(DelayedProduce(1, 0, 0, False, 10_000, fates.append))
    one.follow(registration(TWO, 2))
    one.partition.open_message(9, 0)
    assert one.partition.on_diverging(Diverging(9, 2, -1, 0))
    one.partition.open_message(10, 0)
    one.partition.on_valid(Valid(10, 2, 5, 0))
    one.partition.on_push(Push(5, 2, 0, 1, 0, 0, encode([(2, 8)])))
    one.log.flush_now()
    one.partition.advance()
    assert fates == [], "the offset is durable here: as another record"
    one.partition.on_push(Push(5, 2, 1, 1, 1, 0, b""))
    assert fates == [AppendOutcome.NOT_WRITTEN]


# ---- liveness


def test_invariant_l27_a_produce_is_answered_whatever_becomes_of_a_follower() -> None:
    """The follower stops; the ISR shrink is lost, then refused, then made: it is retried."""
    one = leader(min_isr=1)
    one.open(TWO, (0, 0), 12)
    one.open(THREE, (0, 0), 13)
    fates = one.write(7)
    one.ack(TWO, 12, 1)
    first = one.propose(now_ms=LAG_MS + 1)
    assert first is not None
    assert one.propose(now_ms=LAG_MS + 2) is None, "one at a time"
    one.partition.isr_unknown(first, LAG_MS + 200)
    assert one.propose(now_ms=LAG_MS + 100) is None, "after a pause"
    second = one.propose(now_ms=LAG_MS + 200)
    assert second is not None
    one.partition.isr_refused(second)
    third = one.propose(now_ms=LAG_MS + 201)
    assert third is not None
    assert fates == []
    one.partition.isr_accepted(third, PartitionEpoch(2), (ONE, TWO))
    assert fates == [AppendOutcome.OK], "KAFKA-13091: the answer itself is what it waited for"
    one.open(THREE, (1, 1), 14, now_ms=LAG_MS + 300)
    back = one.propose(now_ms=LAG_MS + 300, lag_max_ms=None)
    assert back is not None
    one.partition.isr_accepted(back, PartitionEpoch(3), ALL)
    assert one.leads.isr == {1, 2, 3}, "and the ISR is whole again"


# ---- streams (rule R9)


class Stream:
    def __init__(self) -> None:
        self.peer = "follower=2"
        self.frames_since_tick = True
        self.silent_since_ms = 0
        self.pings = 0
        self.closed = False

    def ping(self) -> None:
        self.pings += 1

    def close(self) -> None:
        self.closed = True


def test_rule_r9_a_stream_that_missed_three_heartbeats_is_closed() -> None:
    care = StreamHeartbeats(300, 200, now_ms=0)
    lives, silent = Stream(), Stream()
    for now_ms in range(50, 1_300, 50):
        lives.frames_since_tick = True
        care.keep([lives, silent], now_ms, stalled=False)  # type: ignore[list-item]
        assert silent.closed is (now_ms > 50 + 3 * 300 + 200)
    assert not lives.closed
    assert lives.pings == 4, "one each 300 ms, both ways"


def test_rule_r9_a_broker_that_stood_still_itself_closes_no_stream() -> None:
    care, stream = StreamHeartbeats(300, 200, now_ms=0), Stream()
    care.keep([stream], 50, stalled=False)  # type: ignore[list-item]
    care.keep([stream], 60_000, stalled=True)  # type: ignore[list-item]
    assert not stream.closed
    care.keep([stream], 62_000, stalled=False)  # type: ignore[list-item]
    assert stream.closed
