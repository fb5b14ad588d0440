"""Drains: leaderships leave at once, replicas in the background, and what is stuck stays served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, PartitionId, TopicName
from raft_metadata.controller.drain_control import PAUSE_MS, DrainMoves, drained_target
from raft_metadata.records.commands import CreateTopic, DrainBroker
from raft_metadata.records.records import BrokerState, DrainScope, PartitionChangeRecord
from tests.support.doors.controller import partitions_being_drained, replicas_counted
from tests.support.metadata_world import World, config, registration, topic_id

B1, B2, B3, B4, B5 = map(BrokerId, (1, 2, 3, 4, 5))
NONE, LEADERS, REPLICAS = DrainScope.NONE, DrainScope.LEADERS, DrainScope.REPLICAS


def running(
    assignments: dict[int, tuple[int, ...]] | None = None,
    brokers: tuple[BrokerId, ...] = (B1, B2, B3, B4),
    racks: dict[BrokerId, str] | None = None,
    **limits: int,
) -> World:
    world = World(config=config(**limits))
    world.decide_all()
    for broker in brokers:
        world.register(registration(broker, rack=(racks or {}).get(broker)))
    world.pass_time(100)
    world.create(assignments=assignments or {0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)})
    return world


def moves_of(world: World) -> tuple[PartitionChangeRecord, ...]:
    """All that a controller that begins with this image would move at once."""
    drains = DrainMoves(100)
    drains.begin(world.image)
    return drains.moves(world.image, world.now_ms, world.config.defaults)


def leaders(world: World) -> list[int]:
    return [int(partition.leader) for partition in world.image.topics[topic_id(1)].partitions]


def follow(world: World, rounds: int = 40) -> int:
    """New replicas catch up at once, for as long as there are any; most under way together."""
    most = 0
    for _ in range(rounds):
        world.pass_time(600)
        partitions = world.image.topics[topic_id(1)].partitions
        under_way = [at for at, each in enumerate(partitions) if each.is_reassigning]
        most = max(most, len(under_way))
        if not under_way:
            break
        for index in under_way:
            world.catch_up(*partitions[index].adding, index=index)
        world.decide_all()
    return most


def held(world: World, broker: BrokerId) -> int:
    return sum(broker in each.replicas for each in world.image.topics[topic_id(1)].partitions)


def test_nothing_moves_where_no_broker_is_free() -> None:
    world = running(brokers=(B1, B2, B3))
    world.drain(B1, REPLICAS)
    assert moves_of(world) == ()


def test_a_drain_that_found_nothing_to_move_looks_again_after_a_pause() -> None:
    world = running()
    world.append(world.core.decide(world.image, DrainBroker(broker_id=B1, scope=REPLICAS))[0])
    full, defaults = world.image, world.config.defaults
    without_b4 = replace(full, brokers={b: full.brokers[b] for b in (B1, B2, B3)})
    drains = DrainMoves(100)
    drains.begin(full)
    assert drains.moves(without_b4, 0, defaults) == ()
    assert drains.moves(full, PAUSE_MS - 1, defaults) == ()
    assert len(drains.moves(full, PAUSE_MS, defaults)) == 3


def test_replicas_are_counted_while_a_broker_is_drained_of_them() -> None:
    world = running()
    world.drain(B1, LEADERS)
    assert replicas_counted(world.core) == {}
    world.drain(B1, REPLICAS)
    assert replicas_counted(world.core) == {B1: 3, B2: 3, B3: 3}


def test_a_topic_that_is_being_created_moves_when_it_is_complete() -> None:
    """Where its replicas go would be decided by the load of half a topic."""
    world = running(per_batch=3)
    command = CreateTopic(name=TopicName("growing"), topic_id=topic_id(2), partitions_count=9)
    world.append(world.core.decide(world.image, command)[0])
    world.drain(B1, REPLICAS)
    assert {record.topic_id for record in moves_of(world)} == {topic_id(1)}
    world.decide_all()
    world.pass_time(600)
    assert any(each.is_reassigning for each in world.image.topics[topic_id(2)].partitions)


# ---- leaders


def test_leaderships_leave_and_nothing_else() -> None:
    world = running()
    world.drain(B1, LEADERS)
    world.decide_all()
    assert leaders(world) == [2, 2, 3]
    assert world.partition().isr == (1, 2, 3)
    assert world.partition().leader_epoch == 1


def test_a_drained_broker_leads_where_nobody_else_can() -> None:
    world = running({0: (1, 2), 1: (1, 2)})
    world.alter((B1,), index=0)
    world.alter((B1,), index=1)
    world.drain(B1, LEADERS)
    world.decide_all()
    assert leaders(world) == [1, 1]
    world.catch_up(B2, index=1)
    world.decide_all()
    assert leaders(world) == [1, 2]
    world.kill(B2)
    assert leaders(world) == [1, 1], "rather than nobody"


def test_all_drained_is_as_none_drained() -> None:
    world = running()
    for broker in (B1, B2, B3, B4):
        world.drain(broker, LEADERS)
    world.decide_all()
    assert all(leader > 0 for leader in leaders(world))
    world.kill(B1)
    assert set(leaders(world)) <= {2, 3}


def test_a_drain_outlives_the_broker_s_restart_and_ends_when_told() -> None:
    world = running()
    world.drain(B1, LEADERS)
    world.kill(B1)
    world.join(B1, life="b")
    for index in range(3):
        world.catch_up(B1, index=index)
    world.pass_time(60_000)
    assert B1 not in leaders(world)
    world.drain(B1, NONE)
    world.pass_time(60_000)
    assert leaders(world) == [1, 2, 3], "the preferred leaders are back"


def test_a_broker_nobody_knows_is_not_drained_and_a_repeat_changes_nothing() -> None:
    world = running()
    with pytest.raises(KafkaError) as error:
        world.ask(DrainBroker(broker_id=BrokerId(9), scope=LEADERS))
    assert error.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    world.drain(B1, LEADERS)
    before = world.image
    world.drain(B1, LEADERS)
    assert world.image is before


# ---- replicas


def test_replicas_move_to_who_has_the_fewest() -> None:
    world = running(dict.fromkeys(range(6), (1, 2, 3)), brokers=(B1, B2, B3, B4, B5))
    world.drain(B1, REPLICAS)
    follow(world)
    assert held(world, B1) == 0
    assert (held(world, B4), held(world, B5)) == (3, 3)
    assert B1 not in leaders(world)


def test_replicas_stay_spread_over_racks() -> None:
    racks = {B1: "a", B2: "b", B3: "c", B4: "b", B5: "a"}
    world = running(dict.fromkeys(range(4), (1, 2, 3)), (B1, B2, B3, B4, B5), racks)
    world.drain(B1, REPLICAS)
    follow(world)
    for partition in world.image.topics[topic_id(1)].partitions:
        assert {racks[replica] for replica in partition.replicas} == {"a", "b", "c"}


def test_a_drained_broker_that_is_dead_is_emptied_too() -> None:
    world = running()
    world.kill(B1)
    world.drain(B1, REPLICAS)
    follow(world)
    assert held(world, B1) == 0


def test_only_so_many_partitions_are_under_way_at_once() -> None:
    world = running(dict.fromkeys(range(9), (1, 2, 3)), drain_moves_max=2)
    world.drain(B1, REPLICAS)
    assert follow(world) == 2
    assert held(world, B1) == 0


def test_a_replica_that_no_broker_can_take_stays_and_is_served() -> None:
    world = running(brokers=(B1, B2, B3))
    world.drain(B1, REPLICAS)
    world.pass_time(5_000)
    assert held(world, B1) == 3
    assert B1 not in leaders(world)
    assert not any(each.is_reassigning for each in world.image.topics[topic_id(1)].partitions)
    world.join(B4)
    follow(world)
    assert held(world, B1) == 0, "somebody came who can"


def test_two_drained_brokers_are_emptied_together() -> None:
    world = running({0: (1, 2, 3), 1: (2, 1, 3)}, brokers=(B1, B2, B3, B4, B5))
    world.drain(B1, REPLICAS)
    world.drain(B2, REPLICAS)
    follow(world)
    assert held(world, B1) == held(world, B2) == 0
    assert {frozenset(p.replicas) for p in world.image.topics[topic_id(1)].partitions} == {
        frozenset((3, 4, 5))
    }


def test_a_drain_that_ends_starts_nothing_more_and_what_is_under_way_goes_through() -> None:
    world = running(dict.fromkeys(range(9), (1, 2, 3)), drain_moves_max=2)
    world.drain(B1, REPLICAS)
    world.decide_all()
    world.drain(B1, NONE)
    follow(world)
    assert held(world, B1) == 7


def test_another_controller_goes_on_with_it() -> None:
    world = running(dict.fromkeys(range(9), (1, 2, 3)), drain_moves_max=2)
    world.drain(B1, REPLICAS)
    world.decide_all()
    world.core.activate(world.image)
    assert follow(world) == 2
    assert held(world, B1) == 0


def test_topics_that_go_meanwhile_are_forgotten() -> None:
    world = running(dict.fromkeys(range(9), (1, 2, 3)), drain_moves_max=2)
    world.drain(B1, REPLICAS)
    world.decide_all()
    world.delete()
    world.create("again", 2, assignments={0: (2, 3, 4)})
    world.pass_time(2_000)
    world.reassign((2, 3, 4), "again")
    assert partitions_being_drained(world.core) == set()
    assert not any(count < 0 for count in replicas_counted(world.core).values())


def test_moves_asked_for_by_hand_use_up_the_limit() -> None:
    world = running(dict.fromkeys(range(9), (1, 2, 3)), drain_moves_max=2)
    for index in range(3):
        world.reassign((4, 2, 3), index=index)
    world.drain(B1, REPLICAS)
    world.pass_time(1_200)
    partitions = world.image.topics[topic_id(1)].partitions
    assert [each.is_reassigning for each in partitions] == [True] * 3 + [False] * 6
    follow(world)
    assert held(world, B1) == 0


def test_the_replicas_of_each_broker_are_counted_through_every_change() -> None:
    world = running(dict.fromkeys(range(9), (1, 2, 3)), drain_moves_max=2)
    world.drain(B1, REPLICAS)
    world.decide_all()
    world.create("next", 2, partitions_count=3, replication_factor=2)
    follow(world, 3)
    partitions = [each for topic in world.image.topics.values() for each in topic.partitions]
    expected = Counter(replica for each in partitions for replica in each.replicas)
    assert +Counter(replicas_counted(world.core)) == expected


def test_new_topics_leave_a_broker_out_that_gives_its_replicas_away() -> None:
    world = running()
    world.drain(B1, REPLICAS)
    world.create("new", 2, partitions_count=8, replication_factor=3)
    partitions = world.image.topics[topic_id(2)].partitions
    assert all(B1 not in partition.replicas for partition in partitions)
    with pytest.raises(KafkaError, match="without drained ones"):
        world.create("wide", 3, partitions_count=1, replication_factor=4)


def test_new_topics_leave_a_broker_out_that_is_to_lead_nothing_while_there_are_others() -> None:
    world = running()
    world.drain(B1, LEADERS)
    world.create("narrow", 2, partitions_count=8, replication_factor=3)
    partitions = world.image.topics[topic_id(2)].partitions
    assert all(B1 not in partition.replicas for partition in partitions)
    world.create("wide", 3, partitions_count=4, replication_factor=4)
    partitions = world.image.topics[topic_id(3)].partitions
    assert all(B1 in partition.replicas for partition in partitions)
    assert all(partition.leader != B1 for partition in partitions)


def test_a_replica_goes_to_the_rack_with_the_fewest_of_the_partition() -> None:
    world = running(
        brokers=(B1, B2, B3, B4, B5), racks={B1: "a", B2: "b", B3: "c", B4: "c", B5: "d"}
    )
    world.drain(B1, REPLICAS)
    loads = Counter({B4: 0, B5: 1_000})
    assert drained_target(world.image.brokers, (B1, B2, B3), loads) == (5, 2, 3)
    loads = Counter({B3: 1, B4: 1, B5: 0})
    assert drained_target(world.image.brokers, (B1, B2), loads) == (5, 2)


def test_a_drained_leader_that_shuts_down_hands_over_as_others_do() -> None:
    world = running()
    world.drain(B2, LEADERS)
    world.decide_all()
    world.beat(B3, want_shutdown=True)
    world.judge()
    world.decide_all()
    assert world.state(B3) is BrokerState.CONTROLLED_SHUTDOWN
    assert leaders(world) == [1, 1, 1]
    assert world.image.partition(topic_id(1), PartitionId(0)) is not None
