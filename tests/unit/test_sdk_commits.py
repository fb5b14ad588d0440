"""Commits of a consumer: order, coalescing, callbacks once each, and refused partitions."""

from __future__ import annotations

from collections.abc import Iterable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_api.client.calls import Place
from http_api.client.client_errors import CommitError, ConfigError, QuorumlogError
from http_api.client.sdk.commits import (
    AsyncCommit,
    CommitCallback,
    CommitQueue,
    Holds,
    Offsets,
    commit_call,
    commit_error,
    given_offsets,
    of_positions,
    results_of,
    split_held,
)
from http_api.client.sdk.positions import LogPosition
from http_api.client.sdk.record_types import Record, TopicPartition


def offsets(**by_topic: int) -> Offsets:
    return {(topic, 0): TopicPartition(topic, 0, at) for topic, at in by_topic.items()}


def numbers(rows: Offsets) -> dict[str, int | None]:
    return {topic: one.offset for (topic, _), one in rows.items()}


def all_held(places: Iterable[Place]) -> Holds:
    return dict.fromkeys(places, 1)


def commit(callbacks: tuple[CommitCallback, ...], **by_topic: int) -> AsyncCommit:
    rows = offsets(**by_topic)
    return AsyncCommit(rows, callbacks, all_held(rows))


def ignore(*_: object) -> None:
    pass


def test_those_that_wait_go_as_one_and_the_newest_offset_counts() -> None:
    queue = CommitQueue()
    queue.put(commit((ignore,), a=1))
    assert numbers(queue.take(all_held)) == {"a": 1}
    queue.put(commit((ignore,), a=2, b=5))
    queue.put(commit((ignore,), a=3))
    assert not queue.is_idle
    queue.settle(None)
    assert [one.offsets[0].offset for one in queue.results] == [1]
    assert numbers(queue.take(all_held)) == {"a": 3, "b": 5}
    queue.settle(None)
    assert queue.is_idle
    assert [len(one.offsets) for one in queue.results] == [1, 2, 1]


def test_a_failed_request_fails_each_callback_and_is_not_sent_again() -> None:
    queue = CommitQueue()
    error = QuorumlogError("no")
    queue.put(commit((ignore,), a=1))
    queue.put(commit((ignore, ignore), b=1))
    queue.take(all_held)
    queue.settle(error)
    assert [one.error for one in queue.results] == [error] * 3
    assert queue.is_idle


def test_a_refused_partition_fails_only_the_commits_that_name_it() -> None:
    queue = CommitQueue()
    queue.put(commit((ignore,), a=1))
    queue.put(commit((ignore,), a=2, b=1))
    queue.take(lambda places: {one: 1 for one in places if one != ("b", 0)})
    queue.settle(None)
    first, second = queue.results
    assert first.error is None
    assert "b-0" in str(second.error)
    assert [one.error is None for one in second.offsets] == [True, False]


def test_a_partition_that_was_taken_again_since_is_refused() -> None:
    queue = CommitQueue()
    queue.put(commit((ignore,), a=1, b=1))
    queue.put(AsyncCommit(offsets(a=7), (ignore,), {("a", 0): 2}))
    assert numbers(queue.take(lambda _: {("a", 0): 2, ("b", 0): 1})) == {"a": 7, "b": 1}
    queue.settle(None)
    first, second = queue.results
    assert isinstance(first.error, CommitError)
    assert first.error.refused == (TopicPartition("a", 0),)
    assert second.error is None


def test_what_is_abandoned_fails_once() -> None:
    queue = CommitQueue()
    queue.put(commit((ignore,), a=1))
    queue.take(all_held)
    queue.put(commit((ignore,), a=2))
    error = QuorumlogError("closed")
    queue.abandon(error)
    queue.settle(None)  # by the request, at last
    assert [one.error for one in queue.results] == [error, error]
    assert queue.is_idle


@given(st.lists(st.sampled_from(["put", "take", "settle"]), max_size=40))
def test_every_callback_runs_exactly_once_in_order(steps: list[str]) -> None:
    queue = CommitQueue()
    put = 0
    is_under_way = False
    for step in [*steps, "settle", "take", "settle"]:
        if step == "put":
            queue.put(commit((ignore,), a=put))
            put += 1
        elif step == "take" and not is_under_way:
            queue.take(all_held)
            is_under_way = True
        elif step == "settle":
            queue.settle(None)
            is_under_way = False
    assert [one.offsets[0].offset for one in queue.results] == list(range(put))


def test_the_request_names_member_epoch_and_metadata() -> None:
    rows = of_positions({("a", 1): LogPosition(7, 3), ("b", 0): LogPosition(2)})
    rows["b", 0].metadata = "note"
    call = commit_call("c", "g", rows, ("m", 4), repeatable=False)
    assert call.request.method == "PATCH"
    assert call.request.path == "/v3/clusters/c/consumer-groups/g/offsets"
    assert not call.request.may_repeat
    assert orjson.loads(call.request.body or b"") == {
        "data": [
            {"topic_name": "a", "partition_id": 1, "offset": 7, "leader_epoch": 3},
            {"topic_name": "b", "partition_id": 0, "offset": 2, "metadata": "note"},
        ],
        "member_id": "m",
        "member_epoch": 4,
    }
    alone = commit_call("c", "g", rows, None, repeatable=True)
    assert "member_id" not in orjson.loads(alone.request.body or b"")


def test_a_record_commits_the_offset_behind_it() -> None:
    record = Record("a", 1, 7, 0, "append", [], None, None, 3)
    found = given_offsets(record, None)
    assert found is not None
    (one,) = found.values()
    assert (one, one.offset, one.leader_epoch) == (TopicPartition("a", 1), 8, 3)
    assert given_offsets(None, None) is None
    with pytest.raises(ConfigError, match="not both"):
        given_offsets(record, [])
    with pytest.raises(ConfigError, match="0 or more"):
        given_offsets(None, [TopicPartition("a", 1)])


def test_only_partitions_that_are_held_since_the_call_are_sent() -> None:
    before = {("a", 0): 1, ("b", 0): 1}
    mine, refused = split_held(offsets(a=1, b=2, c=3), before, {("a", 0): 1, ("c", 0): 2})
    assert (numbers(mine), numbers(refused)) == ({"a": 1}, {"b": 2, "c": 3})
    rows = results_of(offsets(a=1, b=2), {("b", 0): QuorumlogError("why")})
    error = commit_error([one for one in rows if one.error])
    assert error.refused == (TopicPartition("b", 0),)
    assert "b-0: why" in str(error)
