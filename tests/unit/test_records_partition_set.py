"""Sets of partitions said as ranges."""

from __future__ import annotations

import orjson
from hypothesis import given
from hypothesis import strategies as st

from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    DirectoryId,
    IncarnationId,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.records.commands import RegisterBroker
from raft_metadata.records.partition_set import NO_PARTITIONS, PartitionRange, PartitionSet
from raft_metadata.records.records import RegisterBrokerRecord
from raft_metadata.records.serde import decode_record, encode_record, from_json, to_json

TOPICS = [TopicId(letter * 22) for letter in "abc"]
NUMBERS = st.integers(0, 12).map(PartitionId)
PARTITIONS = st.builds(TopicIdPartition, st.sampled_from(TOPICS), NUMBERS)
RANGES = st.builds(
    lambda topic, first, more: PartitionRange(topic, first, PartitionId(first + more)),
    st.sampled_from(TOPICS),
    NUMBERS,
    st.integers(0, 5),
)
SOME = (PartitionRange(TOPICS[0], PartitionId(0), PartitionId(4_999)),)


def _record(ranges: tuple[PartitionRange, ...]) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=BrokerId(1),
        broker_epoch=BrokerEpoch(1),
        incarnation_id=IncarnationId("i"),
        directory_id=DirectoryId("d"),
        http="h:1",
        peer="h:2",
        unclean_ranges=ranges,
        feature_level_max=1,
        min_insync_replicas=1,
    )


@given(st.lists(PARTITIONS), st.lists(RANGES))
def test_ranges_hold_what_was_put_in_and_nothing_else(
    partitions: list[TopicIdPartition], ranges: list[PartitionRange]
) -> None:
    expected = set(partitions)
    for topic_id, first, last in ranges:
        expected |= {
            TopicIdPartition(topic_id, PartitionId(each)) for each in range(first, last + 1)
        }
    found = PartitionSet.of(partitions, ranges)
    assert list(found) == sorted(expected)
    assert found.count == len(expected)
    assert bool(found) == bool(expected)
    for topic_id in TOPICS:
        for number in map(PartitionId, range(-1, 20)):
            where = TopicIdPartition(topic_id, number)
            assert (where in found) == (where in expected)


@given(st.sets(PARTITIONS))
def test_one_set_has_one_form_and_the_fewest_ranges(partitions: set[TopicIdPartition]) -> None:
    found = PartitionSet.of(partitions)
    assert found == PartitionSet.of(ranges=found.ranges) == PartitionSet.of(list(found))
    assert hash(found) == hash(PartitionSet.of(list(found)))
    before = (where._replace(partition=PartitionId(where.partition - 1)) for where in partitions)
    assert len(found.ranges) == sum(where not in partitions for where in before)


def test_ranges_survive_json_as_short_lists() -> None:
    record = _record(SOME)
    said = orjson.loads(encode_record(record))
    assert said["unclean_ranges"] == [[TOPICS[0], 0, 4_999]]
    assert decode_record(said) == record
    command = RegisterBroker(
        broker_id=BrokerId(1),
        cluster_id=ClusterId("c"),
        incarnation_id=IncarnationId("i"),
        directory_id=DirectoryId("d"),
        http="h:1",
        peer="h:2",
        unclean_ranges=SOME,
        feature_level_max=1,
        min_insync_replicas=1,
    )
    assert from_json(to_json(command), RegisterBroker) == command


def test_nothing_is_in_the_empty_set() -> None:
    assert not NO_PARTITIONS
    assert TopicIdPartition(TOPICS[0], PartitionId(0)) not in NO_PARTITIONS
