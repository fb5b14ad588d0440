"""Offset arithmetic and planning of the Spark source: no JVM, no cluster."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_source import offsets
from spark_source.errors import DataLossError, OptionError, SparkSourceError
from spark_source.offsets import NextOffset, Position, Range, TopicEnds, TopicOffsets
from spark_source.options import EARLIEST, LATEST, source_options

READ = {"url": "http://a:1", "subscribe": "t"}
numbers = st.integers(0, 10**12)
positions = st.dictionaries(
    st.sampled_from(["a", "b", "c"]),
    st.builds(
        TopicOffsets,
        st.sampled_from(["x", "y"]),
        st.dictionaries(
            st.integers(0, 12),
            st.builds(NextOffset, numbers, st.none() | st.integers(0, 2**31 - 1)),
        ),
    ),
)


def at(*ends: int, topic_id: str = "id") -> Position:
    return {"t": TopicOffsets(topic_id, dict(enumerate(map(NextOffset, ends))))}


def numbered(position: Position) -> list[int]:
    return [position["t"].partitions[p].offset for p in sorted(position["t"].partitions)]


def held(low: int, high: int, epoch: int = 4) -> tuple[int, NextOffset]:
    return low, NextOffset(high, epoch)


# ---------------------------------------------------------------- JSON


@given(positions)
def test_offsets_come_back_from_their_json(position: Position) -> None:
    assert offsets.from_json(json.loads(json.dumps(offsets.to_json(position)))) == position


@given(positions)
def test_equal_offsets_are_equal_text(position: Position) -> None:
    """Spark compares the text: another order would be an empty micro-batch."""
    reordered = {
        topic: TopicOffsets(one.topic_id, dict(reversed(one.partitions.items())))
        for topic, one in reversed(position.items())
    }
    assert json.dumps(offsets.to_json(reordered)) == json.dumps(offsets.to_json(position))


def test_the_json_is_the_documented_one() -> None:
    at_ends = {10: NextOffset(5), 9: NextOffset(123, 4)}
    found = offsets.to_json({"orders": TopicOffsets("i", at_ends)})
    assert (
        json.dumps(found)
        == '{"v": 2, "topics": {"orders": {"id": "i", "p": {"9": [123, 4], "10": [5]}}}}'
    )


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v": 3, "topics": {}},
        {"v": 1, "topics": {"t": 5}},
        {"v": 2, "topics": {"t": {"id": "i", "p": {"0": 5}}}},
        {"v": 2, "topics": {"t": {"id": "i", "p": {"0": []}}}},
        {"v": 2, "topics": {"t": {"id": "i", "p": {"0": [1, 2, 3]}}}},
        {"v": 2, "topics": {"t": {"id": "i", "p": {"0": ["x"]}}}},
    ],
)
def test_offsets_of_somebody_else_are_refused(found: dict[str, object]) -> None:
    with pytest.raises(SparkSourceError, match="expected 2"):
        offsets.from_json(found)


def test_offsets_without_epochs_are_refused_naming_where_to_start() -> None:
    found = {"v": 1, "topics": {"orders": {"id": "i", "p": {"0": 123, "1": 0}}}}
    with pytest.raises(SparkSourceError, match="without epochs") as refused:
        offsets.from_json(found)
    start = str(refused.value).partition("startingOffsets=")[2]
    options = source_options(
        {**READ, "subscribe": "orders", "startingOffsets": start}, {}, streaming=True
    )
    assert options.starting == {"orders": {0: 123, 1: 0}}


# ---------------------------------------------------------------- where to start


def test_named_offsets_and_the_default_for_the_rest() -> None:
    ends = {"t": TopicEnds("id", {0: held(3, 9), 1: held(0, 5), 2: held(1, 7), 3: held(2, 8)})}
    named = {"t": {0: 5, 1: EARLIEST, 2: LATEST}}
    start = offsets.resolve(ends, named, LATEST, fail_on_data_loss=True)
    assert numbered(start) == [5, 0, 7, 8]
    epochs = [start["t"].partitions[p].epoch for p in range(4)]
    assert epochs == [None, None, 4, 4], "an end's epoch is known, that of a named offset is not"


@pytest.mark.parametrize(("asked", "nearest"), [(2, 3), (10, 9)])
def test_an_offset_that_is_not_there_is_loss_or_the_nearest(asked: int, nearest: int) -> None:
    ends = {"t": TopicEnds("id", {0: held(3, 9)})}
    with pytest.raises(DataLossError, match=f"offset {asked} of partition 0 .* holds 3 to 9"):
        offsets.resolve(ends, {"t": {0: asked}}, LATEST, fail_on_data_loss=True)
    found = offsets.resolve(ends, {"t": {0: asked}}, LATEST, fail_on_data_loss=False)
    assert numbered(found) == [nearest]


def test_a_partition_that_does_not_exist_is_told() -> None:
    with pytest.raises(OptionError, match="has 1 partitions, there is no 4"):
        offsets.resolve(
            {"t": TopicEnds("id", {0: held(0, 1)})}, {"t": {4: 0}}, LATEST, fail_on_data_loss=True
        )


# ---------------------------------------------------------------- how far


def test_the_latest_offset_never_goes_back() -> None:
    found = offsets.advance(at(5, 9), at(7, 3), fail_on_data_loss=True)
    assert numbered(found) == [7, 9]


def test_a_topic_created_anew_is_loss() -> None:
    old, new = at(5, topic_id="old"), at(2, topic_id="new")
    for refuse in (offsets.advance, offsets.ranges):
        with pytest.raises(DataLossError, match=r"deleted and created anew.*old.*new"):
            refuse(old, new, fail_on_data_loss=True)
    assert offsets.advance(old, new, fail_on_data_loss=False) == new
    (one,) = offsets.ranges(old, new, fail_on_data_loss=False)
    assert (one.start, one.end, one.topic_id, one.from_earliest) == (0, 2, "new", True)


def test_a_topic_that_is_not_subscribed_to_any_more_stays_where_it_was() -> None:
    start = {**at(5), "old": TopicOffsets("o", {0: 3})}
    assert offsets.advance(start, at(6), fail_on_data_loss=True) == {**at(6), "old": start["old"]}


def test_a_new_partition_is_read_from_its_first_record() -> None:
    found = offsets.ranges(at(5), at(5, 4), fail_on_data_loss=True)
    assert [(one.partition, one.start, one.end, one.from_earliest) for one in found] == [
        (1, 0, 4, True)
    ]


lags = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 100_000)), min_size=1, max_size=9)


@given(lags, st.integers(1, 50_000))
def test_a_limit_is_kept_and_always_moves(pairs: list[tuple[int, int]], most: int) -> None:
    start = at(*(begin for begin, _ in pairs))
    end = at(*(begin + lag for begin, lag in pairs))
    found = offsets.limit(start, end, most, {})
    taken = [to - begin for to, (begin, _) in zip(numbered(found), pairs, strict=True)]
    assert all(0 <= one <= lag for one, (_, lag) in zip(taken, pairs, strict=True))
    assert sum(taken) == min(most, sum(lag for _, lag in pairs))


def test_a_short_queue_is_not_starved_by_long_ones() -> None:
    found = offsets.limit(at(0, 0, 0), at(1_000_000, 1, 1_000_000), 10, {})
    assert numbered(found) == [5, 1, 4]


def test_where_nothing_is_new_the_offset_keeps_its_text() -> None:
    """A batch without records would follow from an epoch that was learned meanwhile."""
    old = {"t": TopicOffsets("id", {0: NextOffset(5)})}
    new = {"t": TopicOffsets("id", {0: NextOffset(5, 3)})}
    assert offsets.advance(old, new, fail_on_data_loss=True) == old


def test_a_range_knows_the_epochs_of_both_its_ends() -> None:
    start = {"t": TopicOffsets("id", {0: NextOffset(5, 2)})}
    end = {"t": TopicOffsets("id", {0: NextOffset(9, 3)})}
    (one,) = offsets.ranges(start, end, fail_on_data_loss=True)
    assert (one.start, one.start_epoch, one.end, one.end_epoch) == (5, 2, 9, 3)
    options = source_options({**READ, "maxRecordsPerPartition": "3"}, {}, streaming=False)
    pieces = sorted(
        (piece.start, piece.start_epoch, piece.end, piece.end_epoch)
        for task in offsets.tasks([one], options)
        for piece in task
    )
    assert pieces == [(5, 2, 8, None), (8, None, 9, 3)]


def test_a_position_that_went_back_to_a_shorter_log_reads_nothing_by_itself() -> None:
    start = {"t": TopicOffsets("id", {0: NextOffset(100, 3)})}
    end = {"t": TopicOffsets("id", {0: NextOffset(80, 2)})}
    assert offsets.ranges(start, end, fail_on_data_loss=False) == []
    assert offsets.limit(start, end, 5, {}) == end


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=25),
    st.integers(0, 1000),
    st.data(),
)
def test_a_cut_has_the_epoch_of_the_record_before_it(
    sizes: list[int], start: int, data: st.DataObject
) -> None:
    """``sizes``: how many records each epoch wrote, behind ``start``."""
    epoch_of: dict[int, int] = {}
    epochs = []
    at = start
    for epoch, size in enumerate(sizes):
        epochs.append((epoch, at))
        epoch_of |= dict.fromkeys(range(at, at + size), epoch)
        at += size
    end = NextOffset(at, len(sizes) - 1)
    wanted = data.draw(st.integers(start + 1, at))
    found = offsets.cut(end, wanted, epochs[: offsets.EPOCHS_MAX])
    assert start < found.offset <= wanted, "it moves"
    assert found.epoch == epoch_of[found.offset - 1]
    if len(sizes) <= offsets.EPOCHS_MAX:
        assert found.offset == wanted


def test_a_limit_cuts_where_epochs_are_known() -> None:
    start, end = at(0, 0), at(100, 100)
    end["t"].partitions[0] = NextOffset(100, 9)  # type: ignore[index]
    named = {("t", 0): [(1, 0), (5, 30), (9, 60)]}
    found = offsets.limit(start, end, 80, named)
    assert found["t"].partitions == {0: NextOffset(40, 5), 1: NextOffset(40)}


# ---------------------------------------------------------------- tasks

range_lists = st.lists(
    st.tuples(st.integers(0, 1000), st.integers(1, 90_000)), min_size=0, max_size=9
)
planned_options = st.fixed_dictionaries(
    {},
    optional={
        "minpartitions": st.integers(1, 20).map(str),
        "maxrecordsperpartition": st.integers(500, 90_000).map(str),
        "rowspertask": st.integers(1, 90_000).map(str),
    },
)


@given(range_lists, planned_options)
def test_every_offset_is_in_exactly_one_task(
    pairs: list[tuple[int, int]], extra: dict[str, str]
) -> None:
    found = offsets.ranges(
        at(*(begin for begin, _ in pairs)),
        at(*(begin + size for begin, size in pairs)),
        fail_on_data_loss=True,
    )
    options = source_options({**READ, **extra}, {}, streaming=True)
    tasks = offsets.tasks(found, options)
    assert tasks == offsets.tasks(found, options)
    assert all(tasks)
    read: Counter[tuple[int, int]] = Counter()
    for task in tasks:
        for one in task:
            read[one.partition, one.start] += 1
            most = options.max_records_per_partition
            assert most is None or one.size <= most
    assert set(read.values()) <= {1}
    for whole in found:
        pieces = sorted(
            (one.start, one.end)
            for task in tasks
            for one in task
            if one.partition == whole.partition
        )
        assert pieces[0][0] == whole.start
        assert pieces[-1][1] == whole.end
        assert all(a[1] == b[0] for a, b in pairwise(pieces))


def one_range(partition: int, size: int) -> Range:
    return Range(topic="t", topic_id="i", partition=partition, start=0, end=size)


def test_small_ranges_share_a_task_and_large_ones_do_not() -> None:
    options = source_options(READ, {}, streaming=True)
    assert len(offsets.tasks([one_range(p, 10) for p in range(6)], options)) == 1
    assert len(offsets.tasks([one_range(p, 100_000) for p in range(6)], options)) == 6
    assert offsets.tasks([], options) == []


def test_more_partitions_are_made_when_asked_for() -> None:
    options = source_options({**READ, "minpartitions": "4"}, {}, streaming=True)
    assert len(offsets.tasks([one_range(0, 10)], options)) >= 4
