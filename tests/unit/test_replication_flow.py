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
    window = PushWindow(0)
    for end in range(1, 101):
        window.pushed(end, 100_000)
    assert window.unproven == 10_000_000
    assert window.release_up_to(50, 5) <= 5_000_000, "in pieces: never more than was proven"
    assert 5_000_000 <= window.unproven <= 5_000_000 + 3 * 100_000
    window.release_up_to(100, 6)
    assert window.unproven == 0


@given(st.lists(st.tuples(st.integers(1, 400_000), st.integers(0, 3)), max_size=60))
def test_a_window_never_counts_less_than_is_unproven(steps: list[tuple[int, int]]) -> None:
    window, sizes, proven, end = PushWindow(0), [], 0, 0
    for size, acked in steps:
        end += 1
        sizes.append(size)
        window.pushed(end, size)
        proven = min(end, proven + acked)
        window.release_up_to(proven, 0)
        assert window.unproven >= sum(sizes[proven:])
    window.release_up_to(end, 0)
    assert window.unproven == 0


def test_a_follower_that_catches_up_gets_what_it_proves_in_a_tenth_of_a_second() -> None:
    """A way, or a disk, of 20 MB/s: no more than 2 MB are on their way at any time."""
    flow, rate, tick = ConnectionFlow(64 * MB, 0), 20 * MB, 50
    window = PushWindow(0, in_sync=False)
    flow.opened(window)
    end = most = proven = 0
    for now_ms in range(tick, 5_000, tick):
        while may_push(flow, window, in_sync=False):
            end += 1
            window.pushed(end, 100_000)
            flow.pushed(100_000)
        most = max(most, window.unproven)
        proven = min(end, proven + rate * tick // 1000 // 100_000)
        flow.released(window, window.release_up_to(proven, now_ms), now_ms)
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
            if window is None:
                window = PushWindow(now_ms, in_sync=False)
                flow.opened(window)
            window.pushed(end, 100_000)
            flow.pushed(100_000)
            sent.append((end, now_ms))
            total += 100_000
        arrived = max((at for at, when in sent if when <= now_ms - trip), default=0)
        if window is not None:
            flow.released(window, window.release_up_to(arrived, now_ms), now_ms)
            if not window.unproven:
                flow.emptied(window, now_ms)
                window = None
        flow.measure(now_ms)
    assert total > 40 * MB
    assert flow.catch_up_bytes > 4 * MB, "and it goes on opening"


def test_rule_r9_with_a_full_share_of_catch_up_those_in_sync_are_still_sent_to() -> None:
    flow, window = ConnectionFlow(64 * MB, 0), PushWindow(0, in_sync=False)
    flow.opened(window)
    window.pushed(1, MIN_WINDOW_BYTES)
    flow.pushed(MIN_WINDOW_BYTES)
    assert not may_push(flow, None, in_sync=False)
    assert may_push(flow, None, in_sync=True)


def test_with_a_full_share_of_those_in_sync_one_that_catches_up_is_still_sent_to() -> None:
    flow, busy, slow = ConnectionFlow(64 * MB, 0), PushWindow(0), PushWindow(0, in_sync=False)
    flow.opened(busy)
    busy.pushed(1, 32 * MB)
    flow.pushed(32 * MB)
    assert flow.has_room(in_sync=False), "it makes progress"
    flow.opened(slow)
    slow.pushed(1, MB)
    flow.pushed(MB)
    assert not flow.has_room(in_sync=False)
    flow.released(slow, slow.release_up_to(1, 10), 10)
    flow.emptied(slow, 10)
    assert flow.has_room(in_sync=False)


def test_a_follower_whose_disk_hangs_holds_a_bounded_number_of_unsynced_bytes() -> None:
    flow = ConnectionFlow(64 * MB, 0)
    windows = [PushWindow(0) for _ in range(1_000)]
    for now_ms in range(0, 60_000, 50):
        for window in windows:
            if may_push(flow, window, in_sync=True):
                window.pushed(window.sent_end + 1, MB)
                flow.pushed(MB)
        flow.measure(now_ms)
    assert flow.unproven == sum(window.unproven for window in windows) == 64 * MB
    assert not any(flow.is_stuck(window) for window in windows), "nobody proves: nobody is odd"


def test_one_session_that_is_never_proven_does_not_hold_the_others() -> None:
    flow, stuck, good = ConnectionFlow(4 * MB, 0), PushWindow(0), PushWindow(0)
    stuck.pushed(1, 2 * MB)
    flow.pushed(2 * MB)
    assert not may_push(flow, stuck, in_sync=True), "half of the connection's is the most"
    good.pushed(1, 2 * MB)
    flow.pushed(2 * MB)
    now_ms = STUCK_MS + 1
    flow.released(good, good.release_up_to(1, now_ms), now_ms)
    assert flow.is_stuck(stuck)
    flow.drop(stuck)
    assert flow.unproven == 0
    assert not may_push(flow, stuck, in_sync=True), "it goes on counting for itself"
