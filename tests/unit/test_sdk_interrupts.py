"""Ctrl-C at each line of the calls that end something: the next call does what is left to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from http_api.client.client_errors import ClosedError, WakeupError
from http_api.client.sdk.async_consumer import AsyncConsumer
from http_api.client.sdk.consumer_work import ConsumerWork
from http_api.client.sdk.record_types import OFFSET_END, TopicPartition
from http_api.client.sdk.steps import AsyncShell, Steps
from tests.support.fed_consumer import AT, Commits, FedConsumer, Tracer, record_commits

LINES_MAX = 2_000


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return record_commits(monkeypatch)


class Leaves(list[str]):
    """Member ids that have left; `interrupted` more requests are interrupted before."""

    interrupted = 0


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> Leaves:
    found = Leaves()

    def leave(_: ConsumerWork, member_id: str, *, retry_s: float) -> Steps[None]:
        yield from ()
        if found.interrupted:
            found.interrupted -= 1
            raise KeyboardInterrupt
        found.append(member_id)

    monkeypatch.setattr(ConsumerWork, "leave", leave)
    return found


def member(*partitions: int, **callbacks: Any) -> FedConsumer:
    """Return a member with five records in partition 0 and two in 1."""
    found = FedConsumer(group_id="g")
    found.write("a", "b", "c", "d", "e")
    found.write("x", "y", partition=1)
    found.join(*partitions, **callbacks)
    return found


def interrupted_at_each_line(run: Callable[[int], Tracer]) -> int:
    """Run with an interrupt at line 0, 1, 2, … until there is no such line; return how many."""
    for line in range(LINES_MAX):
        if not run(line).has_raised:
            return line
    msg = f"more than {LINES_MAX} lines"
    raise AssertionError(msg)


def ends_by_interrupt(call: Callable[[], object]) -> None:
    try:
        call()
    except KeyboardInterrupt:
        return


# close


@pytest.mark.parametrize("has_failed", [False, True])
def test_a_second_close_leaves_the_group_wherever_the_first_was_interrupted(
    commits: Commits, leaves: Leaves, *, has_failed: bool
) -> None:
    """The consumer commits no more than the program has processed."""

    def run(line: int) -> Tracer:
        commits.clear()
        leaves.clear()
        consumer = member(0, 1)
        assert consumer.poll(0.0) is None
        consumer.fetch()
        for value in ("a", "b"):
            record = consumer.poll(0.0)
            assert record is not None
            assert record.value == value
        member_id, error = consumer.member_id, ValueError() if has_failed else None
        with Tracer(line, {"_settle"}) as tracer:
            ends_by_interrupt(lambda: consumer.__exit__(error and ValueError, error, None))
        processed = 1 if consumer.knows_failure else 2
        assert consumer.knows_failure is has_failed or line < 20
        consumer.close()
        assert leaves == [member_id] or (tracer.has_raised and leaves == [member_id] * 2), line
        assert set(commits) <= {processed}, line
        assert commits or tracer.has_raised
        with pytest.raises(ClosedError):
            consumer.poll(0.0)
        consumer.close()
        assert len(leaves) <= 2
        return tracer

    assert interrupted_at_each_line(run) > 50


def test_an_interrupt_of_the_request_to_leave_is_made_good_by_the_next_close(
    commits: Commits, leaves: Leaves
) -> None:
    consumer = member(0)
    assert consumer.poll(0.0) is None
    leaves.interrupted = 2
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
        assert leaves == []
    for _ in range(2):
        consumer.close()
        assert leaves == [consumer.member_id]


def test_an_interrupted_unsubscribe_leaves_before_the_next_subscription(
    commits: Commits, leaves: Leaves
) -> None:
    consumer = member(0)
    assert consumer.poll(0.0) is None
    old = consumer.member_id
    leaves.interrupted = 1
    with pytest.raises(KeyboardInterrupt):
        consumer.unsubscribe()
    consumer.subscribe(["t"])
    assert leaves == [old]
    consumer.close()
    assert leaves == [old]  # it had not joined again


def test_an_interrupt_at_any_line_of_a_read_puts_off_no_close(
    commits: Commits, leaves: Leaves
) -> None:
    """Also at the very end of the call, where it says that it is over, and in a callback's end."""

    def run(line: int) -> Tracer:
        leaves.clear()
        consumer = member(0, on_assign=lambda *_: None)
        with Tracer(line) as tracer:
            ends_by_interrupt(lambda: consumer.poll(0.0))
        assert consumer.poll(0.0) is None, "it may be read again"
        consumer.close()
        assert leaves == [consumer.member_id], line
        return tracer

    assert interrupted_at_each_line(run) > 50


def test_a_close_in_a_callback_that_is_interrupted_is_done_by_the_next_call(
    commits: Commits, leaves: Leaves
) -> None:
    def run(line: int) -> Tracer:
        leaves.clear()
        consumer = member(0, on_assign=lambda one, _: one.close())
        with Tracer(line) as tracer:
            ends_by_interrupt(lambda: consumer.poll(0.0))
        ends_by_closed(lambda: consumer.poll(0.0))
        consumer.close()
        assert set(leaves) == {consumer.member_id}, line
        with pytest.raises(ClosedError):
            consumer.poll(0.0)
        return tracer

    assert interrupted_at_each_line(run) > 50


def ends_by_closed(call: Callable[[], object]) -> None:
    try:
        call()
    except ClosedError:
        return


# rebalances


@pytest.mark.parametrize("comes_back", [False, True])
def test_an_interrupt_before_a_revocation_holds_no_partition_back(
    commits: Commits, leaves: Leaves, *, comes_back: bool
) -> None:
    """The partition is given up by the next call, or read on if it is assigned again."""

    def run(line: int) -> Tracer:
        commits.clear()
        revoked: list[int] = []
        consumer = member(0, 1, on_revoke=lambda _, places: revoked.append(len(places)))
        assert consumer.poll(0.0) is None
        consumer.fetch(2)
        values = [record.value for record in (consumer.poll(0.0),) if record]
        consumer.be_assigned(1)
        with Tracer(line) as tracer:
            ends_by_interrupt(lambda: consumer.poll(0.0))
        was_revoked = len(consumer.assignment()) == 1
        for _ in range(3):  # what was given up comes by a later answer
            if comes_back:
                consumer.be_assigned(0, 1)
            values += consumer.values()
        assert consumer.paused == [], line
        assert set(commits) <= {1}, line
        if not comes_back:
            assert sorted(values) == ["a", "x", "y"], line
            assert consumer.assignment() == [TopicPartition("t", 1)]
            assert len(revoked) == 1 or (tracer.has_raised and len(revoked) in {0, 2}), line
        elif was_revoked:  # it begins at its commit, of which this coordinator knows nothing
            assert sorted(values) == ["a", "a", "b", "c", "d", "e", "x", "y"], line
        else:
            assert sorted(values) == ["a", "b", "c", "d", "e", "x", "y"], line
        consumer.close()
        return tracer

    assert interrupted_at_each_line(run) > 50


def test_a_seek_in_on_assign_holds_wherever_the_call_was_interrupted(
    commits: Commits, leaves: Leaves
) -> None:
    """Its records come from where the program keeps its position, never from the group's commit."""

    def run(line: int) -> Tracer:
        consumer = member(0, on_assign=lambda one, _: one.seek(TopicPartition("t", 0, 3)))
        with Tracer(line) as tracer:
            ends_by_interrupt(lambda: consumer.poll(0.0))
        assert consumer.poll(0.0) is None
        assert consumer.values() == ["d", "e"], line
        consumer.close()
        return tracer

    assert interrupted_at_each_line(run) > 50


# wakeup


def test_wakeup_ends_a_position_that_waits(commits: Commits) -> None:
    with FedConsumer(group_id="g", enable_auto_commit=False) as consumer:
        consumer.assign([TopicPartition("t", 0, OFFSET_END)])
        timer = threading.Timer(0.1, consumer.wakeup)
        timer.start()
        began_s = time.monotonic()
        with pytest.raises(WakeupError):
            consumer.position([AT], timeout=20.0)
        assert time.monotonic() - began_s < 10
        timer.join()
        assert consumer.poll(0.0) is None, "it was taken"


async def test_wakeup_ends_a_position_of_the_asyncio_twin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncShell, "start", lambda *_: None)
    async with AsyncConsumer("127.0.0.1:1") as consumer:
        await consumer.assign([TopicPartition("t", 0, OFFSET_END)])
        consumer.wakeup()
        with pytest.raises(WakeupError):
            await consumer.position([AT], timeout=20.0)
