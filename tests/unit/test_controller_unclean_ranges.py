"""What a broker reports unclean, from one partition to hundreds of thousands (rule R6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition
from raft_metadata.controller.broker_views import BrokerViews
from raft_metadata.controller.cluster_control import (
    PARTITION_ID_MAX,
    UNCLEAN_RANGES_MAX,
)
from raft_metadata.controller.controller import ControllerConfig
from raft_metadata.image.metadata_image import PartitionRegistration
from raft_metadata.image.metadata_state_machine import image_hash
from raft_metadata.image.snapshot import image_from_records, image_records
from raft_metadata.records.partition_set import PartitionRange
from raft_metadata.records.records import RegisterBrokerRecord
from raft_metadata.records.serde import encode_batch
from tests.support.metadata_world import BROKERS, TICK_MS, World, registration, topic_id
from tests.unit.test_controller_brokers import restart, running

B1, B2, B3 = BROKERS
T = topic_id(1)
ALL_FOUR = {0: (1, 2, 3), 1: (1, 2, 3), 2: (1, 2, 3), 3: (1, 2, 3)}


def span(topic: TopicId, first: int, last: int) -> PartitionRange:
    return PartitionRange(topic, PartitionId(first), PartitionId(last))


MIDDLE = (span(T, 1, 2),)


def partitions(world: World) -> list[PartitionRegistration]:
    return [world.partition(index=index) for index in range(4)]


def snapshot_says_the_same(world: World) -> None:
    image = world.image
    again = image_from_records(image_records(image), image.next_offset, image.epoch)
    assert again == image
    assert image_hash(again) == image_hash(image)


def last_record(world: World) -> RegisterBrokerRecord:
    (record,) = world.log[-1]
    assert isinstance(record, RegisterBrokerRecord)
    return record


def scattered(count: int) -> Iterator[TopicIdPartition]:
    """Partitions of which no two are neighbours."""
    return (TopicIdPartition(T, PartitionId(2 * number)) for number in range(count))


def test_rule_r6_a_partition_within_a_range_leaves_and_those_around_it_stay() -> None:
    world = running(assignments=ALL_FOUR)
    restart(world, B1, ranges=MIDDLE)
    assert [each.isr for each in partitions(world)] == [BROKERS, (B2, B3), (B2, B3), BROKERS]
    snapshot_says_the_same(world)
    world.pass_time(2 * TICK_MS)
    world.alter(BROKERS, index=1)
    world.pass_time(TICK_MS)
    assert world.partition(index=1).isr == BROKERS, "once recorded, it may join again"


def test_rule_r6_ranges_mean_to_isr_elr_and_last_known_what_single_partitions_mean() -> None:
    singly = [TopicIdPartition(T, PartitionId(number)) for number in (2, 1)]
    worlds = running(assignments=ALL_FOUR), running(assignments=ALL_FOUR)
    for world in worlds:
        world.kill(B3, B2, B1)
        how = {"ranges": MIDDLE} if world is worlds[0] else {"unclean": singly}
        for broker in (B2, B1):
            last = world.image.brokers[broker].broker_epoch
            world.register(registration(broker, life="b", last=last, **how))  # type: ignore[arg-type]
            world.decide_all()
    assert partitions(worlds[0]) == partitions(worlds[1])
    outer, inner = worlds[0].partition(index=0), worlds[0].partition(index=1)
    assert {B1, B2}.isdisjoint((*inner.isr, *inner.elr))
    assert {B1, B2} & {*inner.last_known_elr, inner.last_known_leader}
    assert {B1, B2} & {*outer.isr, *outer.elr}


def test_rule_r6_200_000_unclean_partitions_of_40_topics_register() -> None:
    world = running()
    world.kill(B1)
    last = world.image.brokers[B1].broker_epoch
    ranges = [span(topic_id(number), 0, 4_999) for number in range(1, 41)]
    world.register(registration(B1, life="b", last=last, ranges=ranges))
    found = world.image.brokers[B1].unclean_partitions
    assert found.count == 200_000
    assert len(encode_batch(0, 0, world.log[-1])) < 4_096
    snapshot_says_the_same(world)
    views = BrokerViews.of(world.image.brokers)
    assert views.unclean[B1] is found, "made once a registration, not with every look"
    world.beat(B1)
    world.decide_all()
    assert world.partition().isr == (B2, B3)


def test_neighbouring_ranges_are_recorded_as_one() -> None:
    world = running()
    world.kill(B1)
    last = world.image.brokers[B1].broker_epoch
    many = [span(T, number, number) for number in range(20_000)]
    command = replace(registration(B1, life="b", last=last), unclean_ranges=tuple(many))
    world.register(command)
    assert last_record(world).unclean_ranges == (span(T, 0, 19_999),)


def test_ranges_have_a_limit_and_as_many_fit_one_batch() -> None:
    world = running()
    world.kill(B1)
    last = world.image.brokers[B1].broker_epoch
    many = registration(B1, life="b", last=last, unclean=scattered(UNCLEAN_RANGES_MAX + 1))
    with pytest.raises(KafkaError, match="8001 unclean partitions in 8001 ranges, at most 8000"):
        world.register(many)
    high = [
        span(T, PARTITION_ID_MAX - 4 * number - 1, PARTITION_ID_MAX - 4 * number)
        for number in range(UNCLEAN_RANGES_MAX)
    ]
    world.register(registration(B1, life="b", last=last, ranges=high))
    size = len(encode_batch(0, 0, world.log[-1]))
    assert size < ControllerConfig(cluster_id=world.config.cluster_id).batch_bytes_max


@pytest.mark.parametrize("wrong", [(3, 2), (-1, 4), (0, PARTITION_ID_MAX + 1)])
def test_a_text_that_is_no_range_is_refused(wrong: tuple[int, int]) -> None:
    world = running()
    world.kill(B1)
    last = world.image.brokers[B1].broker_epoch
    with pytest.raises(KafkaError, match=f"of {T} is none") as refused:
        world.register(registration(B1, life="b", last=last, ranges=[span(T, *wrong)]))
    assert refused.value.code is ErrorCode.INVALID_REQUEST
