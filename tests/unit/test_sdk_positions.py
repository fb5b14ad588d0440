"""Positions of a consumer: what is fetched and handed out, and what a move invalidates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.client.client_errors import ApiError, LogTruncatedError, OffsetOutOfRangeError
from http_api.client.polling import PolledPage, PollRefusal
from http_api.client.sdk.part_joining import PartJoiner
from http_api.client.sdk.positions import (
    ANY_BROKER,
    PAGES_PER_PARTITION,
    FetchPlan,
    LogPosition,
    PartitionState,
    ReadPositions,
)
from http_api.client.sdk.record_types import OFFSET_BEGINNING, OFFSET_END, Record

PAGE_BYTES = 1_000
URL = "http://leader"


class World:
    """Positions with partitions of one topic, and the errors that they report."""

    def __init__(self, partitions: int = 1, reset: str = "earliest", queued: int = 10_000) -> None:
        self.reported: list[Exception] = []
        self.positions = ReadPositions(
            reset=reset,
            queued_max_bytes=queued,
            fetch_max_bytes=1 << 20,
            max_partition_bytes=PAGE_BYTES,
            report=self.reported.append,
        )
        self.states = [PartitionState("t", at, LogPosition(0)) for at in range(partitions)]
        for state in self.states:
            self.positions.add(state)

    def plan(self, broker: str = ANY_BROKER, now_s: float = 0.0) -> FetchPlan:
        found = self.positions.plan(broker, now_s)
        assert isinstance(found, FetchPlan)
        return found

    def receive(self, plan: FetchPlan, offset: int, count: int = 1, partition: int = 0) -> None:
        page = PolledPage(
            topic="t",
            topic_id="id",
            partition=partition,
            offset=offset,
            next_offset=offset + count,
            next_leader_epoch=4,
            leader_epoch=5,
            leader_url=URL,
            high_watermark=100,
            log_start_offset=0,
            records=count,
            body=b"x" * PAGE_BYTES,
        )
        self.positions.receive_page(plan, page)

    def refuse(self, plan: FetchPlan, code: int, text: str = "", **more: Any) -> None:
        state = self.states[0]
        assert state.fetched is not None
        given = {"retriable": False, "offset": state.fetched.offset} | more
        refusal = PollRefusal(topic="t", partition=0, error_code=code, message=text, **given)
        self.positions.receive_refusal(plan, refusal, 10.0)


def asked(plan: FetchPlan) -> list[tuple[int, int, int | None, str | None]]:
    return [(row.partition, row.offset, row.leader_epoch, row.topic_id) for row in plan.rows]


def test_the_next_fetch_begins_behind_the_queued_pages_at_the_named_leader() -> None:
    world = World()
    plan = world.plan()
    assert asked(plan) == [(0, 0, None, None)]
    world.receive(plan, 0, 7)
    assert world.positions.plan(ANY_BROKER, 0.0) is None
    assert asked(world.plan(URL)) == [(0, 7, 4, "id")]
    assert world.positions.leaders() == {URL}
    assert world.states[0].position == LogPosition(0)  # nothing was returned yet


def test_what_was_served_last_is_asked_for_last_and_pages_come_in_turn() -> None:
    world = World(partitions=3)
    plan = world.plan()
    world.receive(plan, 0, partition=0)
    world.receive(plan, 0, partition=1)
    world.receive(plan, 1, partition=0)
    for state in world.states:
        state.leader_url = URL
    assert [row.partition for row in world.plan(URL).rows] == [2, 1, 0]
    order = []
    while (taken := world.positions.next_page()) is not None:
        order.append((taken[0].partition, taken[1].offset))
    assert order == [(0, 0), (1, 0), (0, 1)]


def test_an_answer_to_a_request_from_before_a_seek_is_dropped() -> None:
    world = World()
    plan = world.plan()
    world.states[0].move(LogPosition(0))  # the same place, by a seek
    world.receive(plan, 0)
    world.refuse(plan, 40_950, "the log diverged")
    assert not world.positions.has_page()
    assert world.reported == []


def test_what_is_taken_away_returns_nothing_and_begins_anew() -> None:
    world = World()
    plan = world.plan()
    world.receive(plan, 0)
    world.positions.remove(("t", 0))
    assert world.positions.next_page() is None
    world.positions.add(PartitionState("t", 0, LogPosition(50)))
    world.receive(plan, 1)
    assert world.positions.next_page() is None
    assert asked(world.plan()) == [(0, 50, None, None)]


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60))
def test_queued_bytes_stay_within_their_limit(steps: Iterable[tuple[int, bool]]) -> None:
    queued = 6 * PAGE_BYTES
    world = World(partitions=4, queued=queued)
    next_offsets = [0] * 4
    for partition, is_taken in steps:
        if is_taken:
            world.positions.next_page()
        for broker in (ANY_BROKER, URL):
            plan = world.positions.plan(broker, 0.0)
            if isinstance(plan, FetchPlan) and ("t", partition) in plan.versions:
                assert world.positions.queued_bytes + plan.max_bytes <= queued
                world.receive(plan, next_offsets[partition], partition=partition)
                next_offsets[partition] += 1
        assert world.positions.queued_bytes <= queued
        assert all(one.queued_bytes <= PAGES_PER_PARTITION * PAGE_BYTES for one in world.states)


def test_room_reserved_for_a_waiting_request_leaves_one_page_for_another_broker() -> None:
    """Room is not given twice, but a wait holds up no other broker's partitions either."""
    world = World(queued=10 * PAGE_BYTES)
    world.positions.reserved["http://other"] = 10 * PAGE_BYTES
    plan = world.plan()
    assert plan.max_bytes == PAGE_BYTES
    assert not world.positions.is_full
    world.positions.reserved.clear()
    assert world.plan().max_bytes == 5 * PAGE_BYTES


def test_a_paused_partition_is_neither_fetched_nor_returned() -> None:
    world = World(partitions=2)
    world.receive(world.plan(), 0, partition=0)
    world.states[0].is_paused = True
    assert not world.positions.has_page()
    assert world.positions.next_page() is None
    assert world.positions.plan(URL, 0.0) is None
    world.states[0].is_paused = False
    taken = world.positions.next_page()
    assert taken is not None
    assert taken[0] is world.states[0]


# refusals


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the log was truncated: …", LogPosition(80, 2)),
        ("the log diverged: …", LogPosition(100)),
    ],
)
def test_a_log_that_differs_is_read_on_and_reported(text: str, expected: LogPosition) -> None:
    world = World()
    world.states[0].move(LogPosition(100, 3))
    world.refuse(world.plan(), 40_950, text, diverging_offset=80, diverging_epoch=2)
    assert world.states[0].position == world.states[0].fetched == expected
    (error,) = world.reported
    assert isinstance(error, LogTruncatedError)
    assert error.diverging == 80


@pytest.mark.parametrize(("code", "kind"), [(40_950, LogTruncatedError),
    (40_951, OffsetOutOfRangeError), (40_002, OffsetOutOfRangeError)])  # fmt: skip
def test_without_a_reset_policy_reading_stops_until_a_seek(
    code: int, kind: type[Exception]
) -> None:
    world = World(reset="none")
    world.states[0].move(LogPosition(100, 3))
    world.refuse(world.plan(), code, "why", diverging_offset=80)
    assert type(world.positions.take_error()) is kind
    assert world.positions.plan(ANY_BROKER, 100.0) is None
    assert world.states[0].position == LogPosition(100, 3)
    world.states[0].move(LogPosition(1))
    assert world.positions.take_error() is None
    assert asked(world.plan()) == [(0, 1, None, None)]


@pytest.mark.parametrize(("offset", "expected"), [(5, 20), (25, 25), (900, 30)])
def test_out_of_range_goes_on_at_the_nearer_end(offset: int, expected: int) -> None:
    world = World(reset="latest")
    world.states[0].move(LogPosition(offset))
    world.refuse(world.plan(), 40_002)
    assert world.positions.unresolved(0.0) == world.states
    world.positions.resolve(world.states[0], beginning=20, end=30)
    assert world.states[0].position == LogPosition(expected)


@pytest.mark.parametrize(("reset", "expected"), [("earliest", 20), ("latest", 30)])
def test_another_topic_of_the_name_is_read_by_the_reset_policy(reset: str, expected: int) -> None:
    world = World(reset=reset)
    world.states[0].topic_id = "old"
    world.refuse(world.plan(), 40_951)
    world.positions.resolve(world.states[0], beginning=20, end=30)
    assert asked(world.plan()) == [(0, expected, None, None)]


def test_a_refusal_behind_queued_pages_waits_until_they_are_returned() -> None:
    world = World()
    world.receive(world.plan(), 0, 10)
    world.refuse(world.plan(URL), 40_950, "the log was truncated", diverging_offset=3)
    assert world.positions.has_page()
    assert world.reported == []
    assert world.positions.plan(ANY_BROKER, 10.5) == 0.5
    world.positions.next_page()
    world.states[0].position = LogPosition(10, 4)
    world.refuse(world.plan(now_s=11.0), 40_950, "the log was truncated", diverging_offset=3)
    assert world.states[0].position == LogPosition(3)


def test_a_partition_without_a_leader_is_tried_again_through_any_broker() -> None:
    world = World()
    world.states[0].leader_url = URL
    world.refuse(world.plan(URL), 50_302, retriable=True)
    assert world.positions.leaders() == {ANY_BROKER}
    assert isinstance(world.positions.plan(ANY_BROKER, 10.0), float)
    world.plan(now_s=10.2)
    world.refuse(world.plan(now_s=10.2), 40_402, "no such topic")
    assert [type(error) for error in world.reported] == [ApiError]


def news(offset: int = 0, **more: Any) -> PolledPage:
    fields: dict[str, Any] = {"next_offset": 9, "high_watermark": 9, "leader_url": "http://next"}
    fields |= {"topic": "t", "topic_id": "id", "partition": 0, "offset": offset, "records": 0}
    fields |= {"next_leader_epoch": 4, "leader_epoch": 6, "log_start_offset": 0, "body": b""}
    return PolledPage(**(fields | more))


def test_news_of_another_leader_move_a_partition_that_is_waited_for() -> None:
    world = World()
    world.states[0].leader_url = URL
    plan = world.plan(URL)
    assert not world.positions.receive_news(URL, plan.versions, news(leader_url=URL))
    assert not world.positions.receive_news(URL, plan.versions, news(leader_url=None))
    assert not world.positions.receive_news(URL, plan.versions, news(7)), "it was read meanwhile"
    assert not world.positions.receive_news(URL, plan.versions, news(partition=7))
    assert world.positions.leaders() == {URL}
    assert world.positions.receive_news(URL, plan.versions, news())
    assert world.positions.leaders() == {"http://next"}
    assert asked(world.plan("http://next")) == [(0, 0, None, None)]
    plan.versions.clear()  # as the work does, so that the late answer is dropped
    world.receive(plan, 0, 7)
    assert world.states[0].fetched == LogPosition(0)
    world.states[0].move(LogPosition(0))
    assert not world.positions.receive_news("http://next", plan.versions, news())


def test_news_name_the_replica_that_served_and_what_is_refused() -> None:
    world = World()
    world.states[0].leader_url = URL
    versions = world.plan(URL).versions
    nearer = news(leader_url=URL, served_by_url="http://nearer")
    assert world.positions.receive_news(URL, versions, nearer)
    assert world.positions.leaders() == {"http://nearer"}
    for retriable in (True, False):
        refusal = PollRefusal(
            topic="t", partition=0, offset=0, error_code=1, message="", retriable=retriable
        )
        assert world.positions.receive_news(URL, versions, refusal) is not retriable


def test_the_start_is_an_end_of_the_log_or_an_error() -> None:
    for reset, start, expected in (
        ("latest", OFFSET_BEGINNING, 3),
        ("earliest", OFFSET_END, 9),
        ("earliest", None, 3),
        ("latest", None, 9),
    ):
        world = World(reset=reset)
        world.states[0].move(None, start)
        world.positions.resolve(world.states[0], beginning=3, end=9)
        assert world.states[0].position == LogPosition(expected)
    world = World(reset="none")
    world.states[0].move(None)
    world.positions.resolve(world.states[0], beginning=3, end=9)
    assert isinstance(world.positions.take_error(), OffsetOutOfRangeError)


# commits


def test_a_commit_names_what_changed_and_stops_before_unfinished_values() -> None:
    world = World(partitions=3)
    first, second, third = world.states
    first.position, first.committed = LogPosition(5, 1), LogPosition(5, 1)
    headers: list[tuple[str, bytes | None]] = [("ql-part-id", b"a"), ("ql-part", b"1/2")]
    second.position, second.joiner = LogPosition(9, 1), PartJoiner()
    second.joiner.join([Record("t", 1, 7, 0, "append", headers, None, b"x", 1)])
    third.position, third.stored = LogPosition(4, 1), LogPosition(2)
    found = world.positions.to_commit(stored_only=False)
    assert found == {("t", 1): LogPosition(7), ("t", 2): LogPosition(4, 1)}
    assert world.positions.to_commit(stored_only=True) == {("t", 2): LogPosition(2)}
    world.positions.receive_commit(found)
    assert world.positions.to_commit(stored_only=False) == {}
