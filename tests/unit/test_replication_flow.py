"""How fast a follower is sent to: token bucket, unproven bytes, shares. Pure, with a set clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.replication.leader_stream import (
    MIN_WINDOW_BYTES,
    STUCK_MS,
    TARGET_MS,
    ConnectionFlow,
    PushWindow,
)
from broker.replication.throttle import BURST_MS, TokenBucket

MB = 1 << 20


def may_push(flow: ConnectionFlow, window: PushWindow | None, *, in_sync: bool) -> bool:
    return flow.has_room(in_sync=in_sync) and not flow.is_full(window)


def taken(bucket: TokenBucket, size: int, until_ms: int) -> int:
    """Take pieces as soon as allowed; how many bytes until then."""
    total = 0
    for now_ms in range(until_ms):
        while bucket.pause_ms(now_ms) == 0:
            bucket.take(size, now_ms)
            total += size
    return total


def test_a_bucket_gives_its_rate_and_no_more() -> None:
    assert abs(taken(TokenBucket(10 * MB, 0), 50_000, 10_000) - 101 * MB) < MB
    assert abs(taken(TokenBucket(100_000, 0), MB, 60_000) - 6_000_000) <= MB, "one piece overdrawn"


def test_a_rest_saves_up_no_more_than_a_burst() -> None:
    bucket = TokenBucket(1_000_000, 0)
    bucket.take(1_000_000, 0)
    assert bucket.pause_ms(0) == 901, "a debt is waited for"
    assert bucket.pause_ms(901) == 0
    hour_ms = 3_600_000
    assert bucket.pause_ms(hour_ms) == 0
    bucket.take(1_000_000 * BURST_MS // 1000 + 1, hour_ms)
    assert bucket.pause_ms(hour_ms) > 0, "an hour of rest is worth one burst"


def test_another_rate_counts_at_once_and_a_debt_stays() -> None:
    bucket = TokenBucket(1_000, 0)
    bucket.take(1_100, 0)
    assert bucket.pause_ms(0) == 1_001
    bucket.set_rate(10_000, 0)
    assert bucket.pause_ms(0) == 101


def test_a_window_counts_what_was_sent_and_not_proven() -> None:
    flow, window = ConnectionFlow(64 * MB, 0), None
    for end in range(1, 101):
        window = flow.pushed(window, end, 100_000, 0, in_sync=True)
    assert window is not None
    assert window.unproven == flow.unproven == 10_000_000
    assert flow.acknowledged(window, 50, 5)
    assert 5_000_000 <= window.unproven <= 5_000_000 + 3 * 100_000, "in pieces: never too many"
    assert flow.unproven == window.unproven
    assert not flow.acknowledged(window, 50, 6), "they were released"
    assert flow.acknowledged(window, 100, 6)
    assert window.unproven == flow.unproven == 0


@given(st.lists(st.tuples(st.integers(1, 400_000), st.integers(0, 3)), max_size=60))
def test_a_window_never_counts_less_than_is_unproven(steps: list[tuple[int, int]]) -> None:
    flow, window, sizes, proven, end = ConnectionFlow(64 * MB, 0), None, [0], 0, 0
    for size, acked in steps:
        end += 1
        sizes.append(size)
        window = flow.pushed(window, end, size, 0, in_sync=True)
        proven = min(end, proven + acked)
        flow.acknowledged(window, proven, 0)
        assert window.unproven >= sum(sizes[proven + 1 :])
    if window is not None:
        flow.acknowledged(window, end, 0)
        assert window.unproven == flow.unproven == 0


def test_a_follower_that_catches_up_gets_what_it_proves_in_a_tenth_of_a_second() -> None:
    """A way, or a disk, of 20 MB/s: no more than 2 MB are on their way at any time."""
    flow, rate, tick = ConnectionFlow(64 * MB, 0), 20 * MB, 50
    window: PushWindow | None = None
    end = most = proven = 0
    for now_ms in range(tick, 5_000, tick):
        while may_push(flow, window, in_sync=False):
            end += 1
            window = flow.pushed(window, end, 100_000, now_ms, in_sync=False)
        assert window is not None
        most = max(most, window.unproven)
        proven = min(end, proven + rate * tick // 1000 // 100_000)
        flow.acknowledged(window, proven, now_ms)
        if not window.unproven:
            window = None
        flow.measure(now_ms)
    assert rate * 4 < end * 100_000, "the way is used"
    assert most <= rate * (TARGET_MS + tick) // 1000 + MB


def test_a_far_follower_or_a_slow_sync_is_no_queue() -> None:
    """Everything takes 150 ms, and as much as is wanted goes at once: the window opens."""
    flow, tick, trip = ConnectionFlow(64 * MB, 0), 50, 150
    window: PushWindow | None = None
    sent: list[tuple[int, int]] = []  # (offset, when)
    end = total = 0
    for now_ms in range(tick, 5_000, tick):
        while flow.has_room(in_sync=False) and not flow.is_full(window):
            end += 1
            window = flow.pushed(window, end, 100_000, now_ms, in_sync=False)
            sent.append((end, now_ms))
            total += 100_000
        arrived = max((at for at, when in sent if when <= now_ms - trip), default=0)
        if window is not None:
            flow.acknowledged(window, arrived, now_ms)
            if not window.unproven:
                window = None
        flow.measure(now_ms)
    assert total > 40 * MB
    assert flow.catch_up_bytes > 4 * MB, "and it goes on opening"


def test_rule_r9_with_a_full_share_of_catch_up_those_in_sync_are_still_sent_to() -> None:
    flow = ConnectionFlow(64 * MB, 0)
    flow.pushed(None, 1, MIN_WINDOW_BYTES, 0, in_sync=False)
    assert not may_push(flow, None, in_sync=False)
    assert may_push(flow, None, in_sync=True)


def test_with_a_full_share_of_those_in_sync_one_that_catches_up_is_still_sent_to() -> None:
    flow = ConnectionFlow(64 * MB, 0)
    flow.pushed(None, 1, 32 * MB, 0, in_sync=True)
    assert flow.has_room(in_sync=False), "it makes progress"
    slow = flow.pushed(None, 1, MB, 0, in_sync=False)
    assert not flow.has_room(in_sync=False)
    flow.acknowledged(slow, 1, 10)
    assert flow.has_room(in_sync=False)


def test_a_follower_whose_disk_hangs_holds_a_bounded_number_of_unsynced_bytes() -> None:
    flow = ConnectionFlow(64 * MB, 0)
    windows = [flow.pushed(None, 0, 0, 0, in_sync=True) for _ in range(1_000)]
    for now_ms in range(0, 60_000, 50):
        for window in windows:
            if may_push(flow, window, in_sync=True):
                flow.pushed(window, window.sent_end + 1, MB, now_ms, in_sync=True)
        flow.measure(now_ms)
    assert flow.unproven == sum(window.unproven for window in windows) == 64 * MB
    assert not any(flow.is_stuck(window) for window in windows), "nobody proves: nobody is odd"


def test_one_session_that_is_never_proven_does_not_hold_the_others() -> None:
    flow = ConnectionFlow(4 * MB, 0)
    stuck = flow.pushed(None, 1, 2 * MB, 0, in_sync=True)
    assert not may_push(flow, stuck, in_sync=True), "half of the connection's is the most"
    good = flow.pushed(None, 1, 2 * MB, 0, in_sync=True)
    now_ms = STUCK_MS + 1
    flow.acknowledged(good, 1, now_ms)
    assert flow.is_stuck(stuck)
    flow.drop(stuck)
    assert flow.unproven == 0
    assert not may_push(flow, stuck, in_sync=True), "it goes on counting for itself"
