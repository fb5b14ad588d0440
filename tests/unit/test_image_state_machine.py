"""What every controller applies: accepted, rejected, kept, captured."""

from __future__ import annotations

import pytest

from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import MetadataOffset, PartitionId, TopicName
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage, find_topic
from raft_metadata.image.metadata_state_machine import Accepted, MetadataStateMachine, Rejected
from raft_metadata.records.records import FeatureLevelRecord, TopicRecord
from raft_metadata.records.serde import encode_batch
from tests.support.metadata_world import topic_id


def topic(number: int) -> TopicRecord:
    return TopicRecord(name=TopicName(f"t{number}"), topic_id=topic_id(number), partitions_count=1)


def batch(base: int, epoch: int, *numbers: int) -> bytes:
    return encode_batch(base, epoch, [topic(number) for number in numbers])


def filled(count: int = 5, **limits: int) -> MetadataStateMachine:
    machine = MetadataStateMachine(**limits)
    for index in range(count):
        assert machine.apply(index + 10, 3, batch(2 * index, 3, 2 * index, 2 * index + 1)) == (
            Accepted(MetadataOffset(2 * index), MetadataOffset(2 * index + 2))
        )
    return machine


def test_a_state_machine_begins_before_the_first_term_and_index() -> None:
    captured = MetadataStateMachine().capture()
    assert (captured.index, captured.term) == (0, 0)


def test_a_refusal_of_an_unknown_topic_quotes_the_front_of_its_name() -> None:
    with pytest.raises(KafkaError) as refused:
        find_topic(MetadataImage(), TopicName("n" * 300))
    assert refused.value.message == f"topic {'n' * 260} does not exist"


def test_a_topic_without_partitions_has_one_replica_of_each_to_come() -> None:
    machine = MetadataStateMachine()
    machine.apply(1, 3, batch(0, 3, 0))
    topic = find_topic(machine.image, TopicName("t0"))
    assert (topic.partitions, topic.replication_factor) == ((), 1)


def test_a_partition_index_below_0_is_unknown() -> None:
    image = filled(1).image
    assert image.partition(topic_id(0), PartitionId(-1)) is None


def test_rule_m1_the_offset_counts_accepted_records_only() -> None:
    machine = filled(1)
    assert isinstance(machine.apply(11, 3, batch(0, 3, 9)), Rejected)
    assert isinstance(machine.apply(12, 3, encode_batch(2, 3, ())), Accepted)
    assert (machine.index, machine.term, machine.image.next_offset) == (12, 3, 2)
    assert machine.apply(17, 4, batch(2, 4, 9)) == Accepted(MetadataOffset(2), MetadataOffset(3))


def test_rule_m2_a_batch_enters_only_where_and_when_it_was_decided() -> None:
    machine = filled(1)
    before = machine.image
    assert isinstance(machine.apply(20, 7, batch(2, 5, 8)), Rejected), "an old reign's decision"
    assert isinstance(machine.apply(21, 7, batch(3, 7, 8)), Rejected), "behind a lost batch"
    assert isinstance(machine.apply(22, 7, batch(0, 7, 8)), Rejected), "a second time"
    assert machine.image is before
    assert isinstance(machine.apply(23, 7, batch(2, 7, 8)), Accepted)


def test_history_is_served_in_pages_from_where_batches_begin() -> None:
    machine = filled(5)
    size = len(batch(0, 3, 0, 1))
    assert [b.base_offset for b in machine.batches_from(MetadataOffset(4), 10**6) or ()] == [
        4,
        6,
        8,
    ]
    assert [b.base_offset for b in machine.batches_from(MetadataOffset(0), 2 * size) or ()] == [
        0,
        2,
    ]
    assert len(machine.batches_from(MetadataOffset(0), 2 * size - 1) or ()) == 1
    assert len(machine.batches_from(MetadataOffset(0), 1) or ()) == 1
    assert machine.batches_from(MetadataOffset(10), 1) == ()
    assert machine.batches_from(MetadataOffset(3), 10**6) is None, "not where a batch begins"


def test_history_is_bounded_by_count_and_bytes() -> None:
    assert filled(5, history_batches_max=2).batches_from(MetadataOffset(4), 10**6) is None
    assert filled(5, history_batches_max=2).batches_from(MetadataOffset(6), 10**6)
    size = len(batch(8, 3, 8, 9))
    assert filled(5, history_bytes_max=size).batches_from(MetadataOffset(6), 10**6) is None
    assert filled(5, history_bytes_max=size).batches_from(MetadataOffset(8), 10**6)


def test_a_thawed_state_is_the_frozen_one_and_keeps_no_gap_in_its_history() -> None:
    machine, other = filled(5), filled(2)
    captured = machine.capture()
    machine.apply(15, 3, batch(10, 3, 10))
    other.restore(list(machine.chunks(captured)), 14, 3)
    assert other.image == captured.image
    assert (other.index, other.term) == (14, 3)
    assert other.batches_from(MetadataOffset(4), 10**6) is None
    assert other.apply(15, 3, batch(10, 3, 10)) == Accepted(MetadataOffset(10), MetadataOffset(11))
    assert other.image == machine.image
    assert other.batches_from(MetadataOffset(10), 10**6)


def test_publishers_see_every_change_of_the_image_and_no_other() -> None:
    seen: list[tuple[int, int, int]] = []

    class Listener:
        def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
            changed = len(delta.changed_topics)
            seen.append((delta.image.next_offset, image.next_offset, changed))

    source, machine = filled(5), filled(1)
    machine.add_publisher(Listener())
    machine.apply(11, 3, batch(9, 3, 9))
    machine.apply(12, 3, encode_batch(2, 3, [FeatureLevelRecord(level=1)]))
    machine.restore(list(source.chunks(source.capture())), 14, 3)
    assert seen == [(0, 2, 2), (2, 3, 0), (3, 10, 8)]
