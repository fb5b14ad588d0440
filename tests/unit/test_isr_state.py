"""States of a partition's ISR under every event: the table of `isr_state` (rule M3)."""

from __future__ import annotations

import pytest

from broker.replication.isr_state import (
    COMMITTED,
    IsrChange,
    IsrChangeKind,
    IsrState,
    OvertakenIsr,
    PendingIsr,
    UnresolvedIsr,
    in_flight,
    may_propose,
    open_attempts,
    proposed,
    refused,
    released,
    superseded,
)
from raft_metadata.common.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch

ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)
RETRY_MS = 500


def change(attempt: int, *isr: BrokerId) -> IsrChange:
    members = tuple((broker, BrokerEpoch(9)) for broker in isr)
    return IsrChange(
        attempt, LeaderEpoch(1), PartitionEpoch(1), members, IsrChangeKind.EXPAND, isr[-1:]
    )


FIRST, SECOND = change(1, ONE, TWO), change(2, ONE, THREE)
ONLY_FIRST = {1: frozenset((ONE, TWO))}
ONLY_SECOND = {2: frozenset((ONE, THREE))}
BOTH = ONLY_FIRST | ONLY_SECOND

PENDING = PendingIsr(FIRST, ONLY_FIRST)
PENDING_AGAIN = PendingIsr(SECOND, BOTH)
UNRESOLVED = UnresolvedIsr(ONLY_FIRST, RETRY_MS)
BOTH_UNRESOLVED = UnresolvedIsr(BOTH, RETRY_MS)
OVERTAKEN = OvertakenIsr(FIRST)


@pytest.mark.parametrize(
    ("state", "after"),
    [(COMMITTED, PendingIsr(SECOND, ONLY_SECOND)), (UNRESOLVED, PENDING_AGAIN)],
)
def test_a_change_is_proposed_where_none_is_in_flight(state: IsrState, after: IsrState) -> None:
    assert proposed(state, SECOND) == after


@pytest.mark.parametrize("state", [PENDING, PENDING_AGAIN, OVERTAKEN])
def test_one_change_is_in_flight_at_a_time(state: IsrState) -> None:
    assert not may_propose(state, 10 * RETRY_MS)
    with pytest.raises(ValueError, match="another ISR change is in flight"):
        proposed(state, change(3, ONE))


@pytest.mark.parametrize(
    ("state", "attempt", "after"),
    [
        (COMMITTED, 1, COMMITTED),
        (PENDING, 1, COMMITTED),
        (PENDING, 7, PENDING),
        (PENDING_AGAIN, 2, UnresolvedIsr(ONLY_FIRST, 0)),
        (PENDING_AGAIN, 1, PendingIsr(SECOND, ONLY_SECOND)),
        (UNRESOLVED, 1, COMMITTED),
        (BOTH_UNRESOLVED, 1, UnresolvedIsr(ONLY_SECOND, RETRY_MS)),
        (OVERTAKEN, 1, COMMITTED),
        (OVERTAKEN, 7, OVERTAKEN),
    ],
)
def test_a_refusal_drops_only_its_own_attempt(
    state: IsrState, attempt: int, after: IsrState
) -> None:
    assert refused(state, attempt) == after


@pytest.mark.parametrize(
    ("state", "attempt", "after"),
    [
        (COMMITTED, 1, COMMITTED),
        (PENDING, 1, UNRESOLVED),
        (PENDING, 7, PENDING),
        (PENDING_AGAIN, 2, BOTH_UNRESOLVED),
        (UNRESOLVED, 1, UNRESOLVED),
        (OVERTAKEN, 1, COMMITTED),
        (OVERTAKEN, 7, OVERTAKEN),
    ],
)
def test_without_a_certain_answer_an_attempt_goes_on_counting(
    state: IsrState, attempt: int, after: IsrState
) -> None:
    assert released(state, attempt, RETRY_MS) == after


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (COMMITTED, COMMITTED),
        (PENDING, OVERTAKEN),
        (PENDING_AGAIN, OvertakenIsr(SECOND)),
        (UNRESOLVED, COMMITTED),
        (OVERTAKEN, OVERTAKEN),
    ],
)
def test_a_higher_partition_epoch_settles_every_attempt(state: IsrState, after: IsrState) -> None:
    assert superseded(state) == after
    assert not open_attempts(superseded(state))


@pytest.mark.parametrize(
    ("state", "attempts", "flying", "ready_ms"),
    [
        (COMMITTED, {}, None, 0),
        (PENDING_AGAIN, BOTH, SECOND, None),
        (UNRESOLVED, ONLY_FIRST, None, RETRY_MS),
        (OVERTAKEN, {}, FIRST, None),
    ],
)
def test_a_state_shows_its_attempts_and_when_the_next_may_follow(
    state: IsrState, attempts: object, flying: object, ready_ms: int | None
) -> None:
    assert open_attempts(state) == attempts
    assert in_flight(state) is flying
    if ready_ms is not None:
        assert may_propose(state, ready_ms)
        assert not may_propose(state, ready_ms - 1) or not ready_ms


def test_a_change_gives_its_reason() -> None:
    assert FIRST.reason == "joined=[2]"
    confirm = IsrChange(3, LeaderEpoch(1), PartitionEpoch(1), (), IsrChangeKind.CONFIRM)
    assert confirm.reason == "settle unknown attempts"
