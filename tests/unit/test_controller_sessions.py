"""Sessions of brokers in judge time."""

from __future__ import annotations

from raft_metadata.common.ids import BrokerEpoch, BrokerId, MetadataOffset
from raft_metadata.controller.broker_sessions import HeartbeatTracker

B = BrokerId(1)
E = BrokerEpoch(10)
SESSION_MS = 1_200
GRACE_MS = 300
TICK_MS = 50
READ_MS = TICK_MS
"""A session is judged by the tick before, whose input is surely read (rule M7)."""


class Judge:
    """A tracker whose judge runs every 50 ms."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.tracker = HeartbeatTracker(
            session_timeout_ms=SESSION_MS, disconnect_grace_ms=GRACE_MS, now_ms=self.now_ms
        )

    def hear(self, epoch: BrokerEpoch = E) -> None:
        self.tracker.record_heartbeat(B, epoch, MetadataOffset(0), self.now_ms)

    def run(self, ms: int, *, heartbeats: bool = False) -> None:
        for _ in range(0, ms, TICK_MS):
            self.now_ms += TICK_MS
            if heartbeats:
                self.hear()
            self.tracker.judge(self.now_ms)

    def stall(self, ms: int) -> None:
        """The judge, or the whole machine, stands still and then goes on."""
        self.now_ms += ms
        self.tracker.judge(self.now_ms)

    @property
    def has_expired(self) -> bool:
        return self.tracker.has_expired(B, E)


def test_a_session_ends_after_its_timeout_without_a_heartbeat() -> None:
    judge = Judge()
    judge.hear()
    judge.run(SESSION_MS + READ_MS)
    assert not judge.has_expired
    judge.run(TICK_MS)
    assert judge.has_expired


def test_rule_m7_a_heartbeat_that_arrived_before_the_tick_is_read_before_anybody_is_blamed() -> (
    None
):
    """Metadata simulation, seed 14066: it came 7 ms in time, the tick 17 ms later was first."""
    judge = Judge()
    judge.hear()
    judge.run(SESSION_MS + TICK_MS)
    assert not judge.has_expired
    judge.hear()
    judge.run(SESSION_MS)
    assert not judge.has_expired


def test_a_broker_that_heartbeats_never_expires() -> None:
    judge = Judge()
    judge.run(10 * SESSION_MS, heartbeats=True)
    assert not judge.has_expired


def test_rule_m7_a_stall_counts_as_an_eighth_of_the_session_timeout() -> None:
    judge = Judge()
    judge.stall(20 * SESSION_MS)
    assert judge.tracker.judge_ms == SESSION_MS // 8


def test_rule_m7_a_stall_of_the_judge_blames_nobody() -> None:
    judge = Judge()
    judge.run(SESSION_MS, heartbeats=True)
    judge.stall(2 * SESSION_MS)
    assert not judge.has_expired
    judge.run(TICK_MS)
    judge.hear()
    judge.run(SESSION_MS)
    assert not judge.has_expired


def test_rule_m7_heartbeats_that_waited_with_a_late_tick_are_read_before_anybody_is_blamed() -> (
    None
):
    judge = Judge()
    judge.hear()
    judge.run(SESSION_MS)  # so long something else kept them
    judge.stall(2 * SESSION_MS)
    assert not judge.has_expired
    judge.hear()
    judge.run(TICK_MS)
    assert not judge.has_expired
    judge.run(SESSION_MS + READ_MS)
    assert judge.has_expired


def test_rule_m7_a_connection_that_came_back_during_a_stall_is_seen_first() -> None:
    judge = Judge()
    judge.tracker.connection_opened(B, E, judge.now_ms)
    judge.hear()
    judge.tracker.connection_closed(B, E, judge.now_ms)
    judge.run(GRACE_MS - TICK_MS)
    judge.stall(SESSION_MS // 2)
    assert not judge.has_expired
    judge.tracker.connection_opened(B, E, judge.now_ms)
    judge.run(TICK_MS)
    assert not judge.has_expired


def test_rule_m7_a_judge_that_stalls_again_and_again_still_finds_the_dead() -> None:
    judge = Judge()
    judge.hear()
    for _ in range(20):
        judge.stall(2 * SESSION_MS)
    assert judge.has_expired


def test_rule_m7_standbys_keep_ages_so_that_a_new_judge_need_not_wait() -> None:
    """Every controller hears every heartbeat; changing the judge changes no age."""
    standby = Judge()
    standby.hear()
    standby.run(int(0.8 * SESSION_MS))
    standby.run(int(0.8 * SESSION_MS))
    assert standby.has_expired


def test_rule_m7_a_broker_never_heard_of_ages_from_its_first_mention() -> None:
    judge = Judge()
    for _ in range(2 * SESSION_MS // TICK_MS):
        judge.tracker.expect_brokers([(B, E)], judge.now_ms)
        judge.run(TICK_MS)
    assert judge.has_expired
    assert judge.tracker.session(B, E) is None


def test_a_closed_connection_ends_the_session_unless_it_is_opened_again() -> None:
    judge = Judge()
    judge.hear()
    judge.tracker.connection_opened(B, E, judge.now_ms)
    judge.tracker.connection_closed(B, E, judge.now_ms)
    judge.run(GRACE_MS - TICK_MS)
    assert not judge.has_expired
    judge.tracker.connection_opened(B, E, judge.now_ms)
    judge.run(GRACE_MS)
    assert not judge.has_expired
    judge.tracker.connection_closed(B, E, judge.now_ms)
    judge.run(GRACE_MS + READ_MS)
    assert judge.has_expired


def test_one_of_two_connections_may_close() -> None:
    judge = Judge()
    judge.hear()
    for _ in range(2):
        judge.tracker.connection_opened(B, E, judge.now_ms)
    judge.tracker.connection_closed(B, E, judge.now_ms)
    judge.run(GRACE_MS + READ_MS)
    assert not judge.has_expired
    judge.tracker.connection_closed(B, E, judge.now_ms)
    judge.run(GRACE_MS + READ_MS)
    assert judge.has_expired


def test_heartbeats_and_closures_of_an_older_registration_change_nothing() -> None:
    judge = Judge()
    judge.hear()
    old = BrokerEpoch(E - 1)
    judge.run(SESSION_MS)
    judge.hear(old)
    judge.tracker.connection_closed(B, old, judge.now_ms)
    judge.run(TICK_MS + READ_MS)
    assert judge.has_expired
    assert not judge.tracker.has_expired(B, old)
    assert not judge.tracker.is_valid(B, old)


def test_a_new_registration_begins_a_new_session() -> None:
    judge = Judge()
    judge.hear()
    judge.tracker.connection_opened(B, E, judge.now_ms)
    judge.run(2 * SESSION_MS)
    new = BrokerEpoch(E + 1)
    judge.tracker.expect_brokers([(B, new)], judge.now_ms)
    assert judge.tracker.is_valid(B, new)
    assert not judge.tracker.has_expired(B, E)
