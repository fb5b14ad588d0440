"""The state hash: who agrees has the same, who does not has another, and a snapshot carries it."""

from __future__ import annotations

from raft_metadata.common.ids import MetadataOffset, TopicName
from raft_metadata.image.metadata_state_machine import (
    HashChain,
    MetadataStateMachine,
    Rejected,
    image_hash,
)
from raft_metadata.records.quorum_view import StateHash
from raft_metadata.records.records import FeatureLevelRecord, MetadataRecord, TopicRecord
from raft_metadata.records.serde import encode_batch
from tests.support.metadata_world import topic_id


def batch(base: int, epoch: int, number: int) -> bytes:
    record = TopicRecord(
        name=TopicName(f"t{number}"), topic_id=topic_id(number), partitions_count=1
    )
    return encode_batch(base, epoch, [record])


def level(base: int, epoch: int) -> bytes:
    records: list[MetadataRecord] = [FeatureLevelRecord(level=1)]
    return encode_batch(base, epoch, records)


def filled(count: int) -> MetadataStateMachine:
    """Batches at Raft indexes 10, 12, 14, …: what is between them are a leader's own entries."""
    machine = MetadataStateMachine()
    for number in range(count):
        machine.apply(10 + 2 * number, 3, batch(number, 3, number))
    return machine


def test_invariant_r12_equal_histories_have_equal_hashes_at_every_index() -> None:
    one, other = filled(5), filled(3)
    for index in range(10, 16):
        assert one.hashes.at(index) == other.hashes.at(index)
    assert one.hashes.at(13) == StateHash(
        index=13, next_offset=MetadataOffset(2), value=_value(one, 12)
    )
    assert _value(one, 18) != _value(other, 18)


def test_invariant_r12_one_different_byte_stays_visible_for_ever() -> None:
    one, other = filled(2), filled(2)
    one.apply(20, 3, batch(2, 3, 77))
    other.apply(20, 3, batch(2, 3, 78))
    for machine in (one, other):
        machine.apply(22, 3, batch(3, 3, 9))
    assert _value(one, 12) == _value(other, 12)
    assert _value(one, 20) != _value(other, 20)
    assert _value(one, 22) != _value(other, 22)


def test_a_rejected_batch_changes_no_hash() -> None:
    machine = filled(2)
    before = _value(machine, 12)
    assert isinstance(machine.apply(13, 3, batch(0, 3, 9)), Rejected)
    assert _value(machine, 13) == before


def test_invariant_r11_a_snapshot_and_what_follows_lead_where_the_whole_log_leads() -> None:
    source, other = filled(5), MetadataStateMachine()
    other.restore(list(source.chunks(source.capture())), 18, 3)
    assert other.hashes.at(17) is None, "what was before the snapshot is not known here"
    assert other.hashes.at(18) == source.hashes.at(18)
    for machine in (source, other):
        machine.apply(19, 4, batch(5, 4, 9))
    assert _value(source, 19) == _value(other, 19) is not None


def test_the_hash_before_the_first_batch_is_of_offset_0() -> None:
    assert HashChain().at(0) == StateHash(index=0, next_offset=MetadataOffset(0), value="0" * 32)
    assert HashChain().at(9) == StateHash(index=9, next_offset=MetadataOffset(0), value="0" * 32)


def test_only_recent_hashes_are_kept() -> None:
    machine = MetadataStateMachine()
    machine.hashes = HashChain(remembered_max=3)
    for number in range(5):
        machine.apply(10 + number, 3, batch(number, 3, number))
    assert machine.hashes.at(11) is None
    assert machine.hashes.at(12) is not None


def test_the_image_hash_tells_what_an_image_says_not_how_it_came_about() -> None:
    source, other = filled(5), MetadataStateMachine()
    other.restore(list(source.chunks(source.capture())), 18, 3)
    assert image_hash(source.image) == image_hash(other.image)
    assert image_hash(source.image) != image_hash(filled(4).image)


def _value(machine: MetadataStateMachine, index: int) -> str | None:
    found = machine.hashes.at(index)
    assert found is not None
    return found.value
