"""Folding records into images, and images into snapshots."""

from __future__ import annotations

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError, NewerVersionError
from raft_metadata.common.ids import ControllerEpoch, MetadataOffset, TopicId, TopicName
from raft_metadata.image.metadata_delta import MetadataDelta, delta_between, publish
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.snapshot import delta_from_snapshot, image_from_records, snapshot_of
from raft_metadata.records.commands import MetadataSnapshot
from raft_metadata.records.records import (
    AclRecord,
    ClientQuotaRecord,
    FeatureLevelRecord,
    MetadataRecord,
    QuotaEntity,
    QuotaEntityType,
    RemoveAclRecord,
    RemoveTopicRecord,
    TopicRecord,
    UserScramRecord,
)
from tests.support.metadata_world import BROKERS, World, topic_id


def cluster(*topics: tuple[str, int, int]) -> World:
    """Three brokers and topics of (name, number, partitions)."""
    world = World()
    world.decide_all()
    world.join(*BROKERS)
    for name, number, partitions in topics:
        world.create(name, number, partitions_count=partitions, configs={"flush": "os"})
    return world


def test_only_what_changed_is_copied() -> None:
    world = cluster(("a", 1, 3), ("b", 2, 3))
    before = world.image
    world.alter(BROKERS[:2] if world.partition(1).leader in BROKERS[:2] else BROKERS[1:])
    after = world.image
    assert after.brokers is before.brokers
    assert after.configs is before.configs
    assert after.topic_ids is before.topic_ids
    assert after.topics[topic_id(2)] is before.topics[topic_id(2)]
    assert after.topics[topic_id(1)].partitions[1] is before.topics[topic_id(1)].partitions[1]
    assert after.topics[topic_id(1)].partitions[0] != before.topics[topic_id(1)].partitions[0]


def test_a_delta_says_what_changed() -> None:
    world = cluster(("a", 1, 2))
    delta = MetadataDelta(world.image)
    records = [record for batch in cluster(("a", 1, 2), ("b", 2, 1)).log[-1:] for record in batch]
    delta.replay_all(records, world.image.next_offset)
    delta.replay(RemoveTopicRecord(topic_id=topic_id(1)), MetadataOffset(0))
    assert delta.created_topics == {topic_id(2)}
    assert set(delta.deleted_topics) == {topic_id(1)}
    assert delta.changed_partitions == {topic_id(2): frozenset({0})}
    assert not delta.changed_brokers
    assert not delta.is_empty
    after = delta.apply(MetadataOffset(100), ControllerEpoch(2))
    assert (after.next_offset, after.epoch) == (100, 2)
    assert list(after.topic_ids) == ["b"]
    assert {name for _, name in after.configs} == {topic_id(2)}


def rule(number: int) -> AclRecord:
    """An access rule whose id says its number."""
    return AclRecord(
        acl_id=topic_id(number),
        resource_type="topic",
        resource_name="orders",
        pattern_type="literal",
        principal="User:alice",
        host="*",
        operation="read",
        permission="allow",
    )


USER = UserScramRecord(
    name="alice", mechanism="SCRAM-SHA-256", salt="", stored_key="", server_key="", iterations=4096
)


@pytest.mark.parametrize(
    "record",
    [
        TopicRecord(name=TopicName("t"), topic_id=topic_id(9), partitions_count=1),
        RemoveTopicRecord(topic_id=topic_id(1)),
        ClientQuotaRecord(
            entity=(QuotaEntity(QuotaEntityType.USER, "alice"),),
            key="producer_byte_rate",
            value=1.0,
        ),
        rule(1),
        USER,
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_delta_with_a_single_change_is_not_empty(record: MetadataRecord) -> None:
    image = cluster(("a", 1, 1)).image
    delta = MetadataDelta(image)
    assert delta.is_empty
    delta.replay(record, image.next_offset)
    assert not delta.is_empty


def test_an_access_rule_that_is_removed_again_is_gone_at_once() -> None:
    delta = MetadataDelta(MetadataImage())
    delta.replay(rule(1), MetadataOffset(0))
    delta.replay(RemoveAclRecord(acl_id=rule(1).acl_id), MetadataOffset(1))
    assert delta.security.acls.get(rule(1).acl_id) is None
    delta.replay(rule(1), MetadataOffset(2))
    assert list(delta.apply(MetadataOffset(3), ControllerEpoch(1)).acls) == [rule(1).acl_id]


def test_a_topic_made_and_deleted_in_one_delta_leaves_no_trace() -> None:
    delta = MetadataDelta(MetadataImage())
    topic = TopicRecord(name="t", topic_id=topic_id(1), partitions_count=1)  # type: ignore[arg-type]
    delta.replay(topic, MetadataOffset(0))
    delta.replay(RemoveTopicRecord(topic_id=topic_id(1)), MetadataOffset(1))
    assert delta.is_empty
    assert not delta.apply(MetadataOffset(2), ControllerEpoch(1)).topics


def test_a_name_may_live_again_under_another_id() -> None:
    world = cluster(("a", 1, 1))
    world.delete("a")
    world.create("a", 2)
    assert world.image.topic_ids == {"a": topic_id(2)}
    with pytest.raises(AssertionError):
        MetadataDelta(world.image).replay(
            RemoveTopicRecord(topic_id=topic_id(1)), MetadataOffset(0)
        )


def test_a_feature_level_of_the_future_is_refused() -> None:
    with pytest.raises(NewerVersionError, match="start a newer version"):
        MetadataDelta(MetadataImage()).replay(FeatureLevelRecord(level=99), MetadataOffset(0))


def test_a_snapshot_folds_to_the_same_image() -> None:
    world = cluster(("a", 1, 3), ("b", 2, 1))
    world.kill(BROKERS[0])
    snapshot = snapshot_of(world.image)
    assert image_from_records(snapshot.records, snapshot.next_offset, snapshot.epoch) == world.image


def test_a_delta_between_images_leads_from_one_to_the_other() -> None:
    one, other = cluster(("a", 1, 3), ("b", 2, 1)), cluster(("a", 1, 3))
    other.create("c", 3)
    other.kill(BROKERS[0])
    delta = delta_between(one.image, other.image)
    assert set(delta.deleted_topics) == {topic_id(2)}
    assert delta.created_topics == {topic_id(3)}
    assert set(delta.changed_brokers) == {BROKERS[0]}
    assert delta.apply(other.image.next_offset, other.image.epoch) == other.image
    assert delta_between(one.image, one.image).is_empty


def test_rule_m5_a_topic_that_a_snapshot_lacks_counts_as_deleted() -> None:
    world = cluster(("a", 1, 1), ("b", 2, 1))
    present = world.image
    world.delete("a")
    snapshot = snapshot_of(world.image)
    delta = delta_from_snapshot(present, snapshot)
    assert set(delta.deleted_topics) == {topic_id(1)}
    assert not delta.changed_topics
    assert delta.apply(snapshot.next_offset, snapshot.epoch) == world.image


@pytest.mark.parametrize("behind", ["offset", "epoch"])
def test_rule_m5_an_image_never_goes_back(behind: str) -> None:
    image = cluster(("a", 1, 1)).image
    snapshot = MetadataSnapshot(
        next_offset=MetadataOffset(image.next_offset - (behind == "offset")),
        epoch=ControllerEpoch(image.epoch - (behind == "epoch")),
        records=(),
    )
    with pytest.raises(KafkaError) as refused:
        delta_from_snapshot(image, snapshot)
    assert refused.value.code is ErrorCode.METADATA_BEHIND


def test_publishers_are_told_in_order() -> None:
    told: list[tuple[int, TopicId | None]] = []

    class Listener:
        def __init__(self, number: int) -> None:
            self.number = number

        def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
            told.append((self.number, next(iter(image.topics), None)))

    image = cluster(("a", 1, 1)).image
    publish((Listener(1), Listener(2)), delta_between(MetadataImage(), image), image)
    assert told == [(1, topic_id(1)), (2, topic_id(1))]
