"""Topics that are given more partitions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, TopicName
from raft_metadata.image.metadata_image import TopicImage
from raft_metadata.image.snapshot import image_from_records, image_records
from raft_metadata.records.commands import AddPartitions, CreateTopic, PartitionsAdded
from raft_metadata.records.records import DrainScope
from tests.support.metadata_world import BROKERS, TICK_MS, World, config, topic_id
from tests.support.unkind_quorum import turn
from tests.unit.test_controller_active import Cluster, creation

B1, B2, B3 = BROKERS


def made(**how: int) -> World:
    world = World(config=config(**how))
    world.decide_all()
    world.join(*BROKERS)
    world.create(partitions_count=3)
    return world


def growth(count: int, name: str = "t", **other: object) -> AddPartitions:
    return AddPartitions(topic=TopicName(name), partitions_count=count, **other)  # type: ignore[arg-type]


def refused(world: World, command: AddPartitions) -> KafkaError:
    before = world.image
    with pytest.raises(KafkaError) as caught:
        world.ask(command)
    assert world.image is before
    return caught.value


def topic(world: World, number: int = 1) -> TopicImage:
    return world.image.topics[topic_id(number)]


def test_new_partitions_are_placed_as_the_old_ones_were() -> None:
    world = made()
    before = topic(world).partitions
    answer = world.ask(growth(9))
    assert answer == PartitionsAdded(
        topic_id=topic_id(1), partitions_count=9, next_offset=world.image.next_offset
    )
    assert topic(world).partitions[:3] == before
    assert {len(each.replicas) for each in topic(world).partitions} == {3}
    leaders = Counter(each.leader for each in topic(world).partitions[3:])
    assert set(leaders.values()) == {2}


@pytest.mark.parametrize("count", [3, 2, 0, -1])
def test_as_many_or_fewer_are_refused(count: int) -> None:
    error = refused(made(), growth(count))
    assert error.code is ErrorCode.INVALID_PARTITIONS
    assert f"has 3 partitions, {count} are not more" in error.message


def test_limits_of_a_topic_and_of_the_cluster() -> None:
    error = refused(made(), growth(10_001))
    assert error.code is ErrorCode.INVALID_PARTITIONS
    limited = config()
    limited = replace(limited, defaults=replace(limited.defaults, partitions_max=5))
    world = World(config=limited)
    world.decide_all()
    world.join(*BROKERS)
    world.create(partitions_count=3)
    error = refused(world, growth(6))
    assert error.code is ErrorCode.POLICY_VIOLATION
    assert world.ask(growth(5)).partitions_count == 5


def test_an_unknown_topic_and_the_clusters_own() -> None:
    world = made()
    assert refused(world, growth(9, "nope")).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.create("__consumer_offsets", 2)
    error = refused(world, growth(9, "__consumer_offsets"))
    assert error.code is ErrorCode.POLICY_VIOLATION
    assert "never changes" in error.message


def test_explicit_replicas_of_the_new_partitions_only() -> None:
    world = made()
    replicas = {3: (B3, B2, B1), 4: (B2, B1, B3)}
    world.ask(growth(5, replicas_assignments=replicas))
    assert [each.replicas for each in topic(world).partitions[3:]] == [*replicas.values()]


@pytest.mark.parametrize(
    "replicas",
    [
        {3: (1, 2, 3)},
        {0: (1, 2, 3), 4: (1, 2, 3)},
        {3: (1, 2, 3), 4: (1, 2)},
        {3: (1, 2, 3), 4: (1, 2, 2)},
        {3: (1, 2, 3), 4: (1, 2, 9)},
        {},
    ],
)
def test_explicit_replicas_are_checked(replicas: dict[int, tuple[int, ...]]) -> None:
    named = {index: tuple(map(BrokerId, ids)) for index, ids in replicas.items()}
    error = refused(made(), growth(5, replicas_assignments=named))
    assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if sorted(named) != [3, 4]:
        assert error.message.endswith("must name the new partitions 3 to 4")


def test_validate_only_makes_nothing() -> None:
    world = made()
    before = world.image
    answer = world.ask(growth(9, validate_only=True))
    assert (answer.partitions_count, answer.next_offset) == (9, before.next_offset)
    assert world.image is before
    refused(world, growth(3, validate_only=True))


def test_a_growth_beyond_one_batch_goes_on_by_itself() -> None:
    world = made(per_batch=4)
    world.ask(growth(20))
    grown = topic(world)
    assert (grown.partitions_count, len(grown.partitions), grown.routed_count) == (20, 7, 3)
    assert grown.is_created
    assert not grown.is_complete
    error = refused(world, growth(30))
    assert error.code is ErrorCode.INVALID_PARTITIONS
    assert "still being given its 20 partitions: 7 are there" in error.message
    world.decide_all()
    assert (len(topic(world).partitions), topic(world).routed_count) == (20, 20)


def test_a_controller_that_takes_over_goes_on_with_a_growth() -> None:
    world = made(per_batch=4)
    world.ask(growth(20))
    successor = World(config=world.config, image=world.image)
    successor.alive = dict(world.alive)
    successor.decide_all()
    assert len(topic(successor).partitions) == 20


def test_a_growth_waits_for_enough_live_brokers() -> None:
    world = made(per_batch=4)
    del world.alive[B3]
    for _ in range(world.config.broker_session_timeout_ms // TICK_MS + 2):
        world.now_ms += TICK_MS
        for broker in world.alive:
            world.beat(broker)
        world.judge()
    world.ask(growth(12))  # decided just before the fence
    world.decide_all()
    assert len(topic(world).partitions) == 7
    world.join(B3, life="b")
    assert len(topic(world).partitions) == 12
    world.kill(B3)
    assert refused(world, growth(20)).code is ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_drained_broker_is_given_no_new_partitions() -> None:
    world = World(config=config(replicas=2))
    world.decide_all()
    world.join(*BROKERS)
    world.create(partitions_count=2)
    world.drain(B3, DrainScope.REPLICAS)
    world.decide_all()
    world.ask(growth(30))
    assert not any(B3 in each.replicas for each in topic(world).partitions[2:])


def test_a_snapshot_taken_during_a_growth_is_the_same_image() -> None:
    world = made(per_batch=4)
    for count in (4, 20):  # a growth that is through leaves nothing behind, one under way does
        world.ask(growth(count))
        image = world.image
        again = image_from_records(image_records(image), image.next_offset, image.epoch)
        assert again == image
    assert again.topics[topic_id(1)].routed_count == 4


def test_a_topic_that_is_being_created_is_not_there_yet() -> None:
    world = World(config=config(per_batch=4))
    world.decide_all()
    world.join(*BROKERS)
    command = CreateTopic(name=TopicName("t"), topic_id=topic_id(1), partitions_count=20)
    world.append(world.core.decide(world.image, command)[0])
    assert not topic(world).is_created
    assert "still being given" in refused(world, growth(30)).message
    image = world.image
    assert image_from_records(image_records(image), image.next_offset, image.epoch) == image


async def test_a_growth_is_answered_when_it_is_whole() -> None:
    cluster = await Cluster(bulk_in_flight_max=1).start()
    await cluster.answered(cluster.lead.controller.execute(creation(1, partitions_count=3)))
    task = cluster.ask(cluster.lead.controller.execute(growth(3_000, "t1")))
    await turn()
    await cluster.raft.settle(1)
    assert not task.done()
    await cluster.raft.settle(4)
    image = cluster.lead.machine.image
    assert len(image.topics[topic_id(1)].partitions) == 3_000
    assert task.result().next_offset == image.next_offset


async def test_a_growth_is_made_whole_by_the_next_controller() -> None:
    cluster = await Cluster(bulk_in_flight_max=1).start()
    await cluster.answered(cluster.lead.controller.execute(creation(1, partitions_count=3)))
    task = cluster.ask(cluster.lead.controller.execute(growth(3_000, "t1")))
    await turn()
    cluster.raft.append(cluster.lead)
    cluster.raft.commit()
    cluster.raft.apply(cluster.lead)
    await turn()
    cluster.raft.elect(cluster.second, survivors=0)
    cluster.raft.notice(cluster.lead)
    await cluster.raft.settle(6)
    with pytest.raises(KafkaError) as unknown:
        await task
    assert unknown.value.code is ErrorCode.OUTCOME_UNKNOWN
    assert len(cluster.second.machine.image.topics[topic_id(1)].partitions) == 3_000


async def test_a_growth_that_is_only_checked_is_answered_at_once() -> None:
    cluster = await Cluster().start()
    await cluster.answered(cluster.lead.controller.execute(creation(1, partitions_count=3)))
    command = growth(3_000, "t1", validate_only=True)
    answer = await cluster.answered(cluster.lead.controller.execute(command))
    assert answer.partitions_count == 3_000
    assert len(cluster.lead.machine.image.topics[topic_id(1)].partitions) == 3
