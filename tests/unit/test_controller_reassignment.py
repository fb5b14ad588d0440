"""Reassignment (KIP-455): grow, wait for the ISR, shrink; cancel; what is refused."""

from __future__ import annotations

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, MetadataOffset, PartitionId, TopicName
from raft_metadata.controller.partition_draft import partition_at
from raft_metadata.controller.reassignment_control import REASSIGNMENTS_MAX, merge_replica_lists
from raft_metadata.image.snapshot import image_from_records, snapshot_of
from raft_metadata.records.commands import AlterReassignments, CreateTopic, Election, Reassignment
from raft_metadata.records.records import BrokerState, DrainScope
from tests.support.metadata_world import TICK_MS, World, config, registration, topic_id

B1, B2, B3, B4, B5 = map(BrokerId, (1, 2, 3, 4, 5))


def running(replicas: tuple[int, ...] = (1, 2, 3), min_isr: int = 2, **configs: str) -> World:
    """Five unfenced brokers and topic t with one partition, led by its first replica."""
    world = World(config=config(min_isr=min_isr))
    world.decide_all()
    world.join(B1, B2, B3, B4, B5)
    named = {name.replace("_", "."): value for name, value in configs.items()}
    world.create(assignments={0: replicas}, configs=named)
    return world


def refused(world: World, target: tuple[int, ...] | None, name: str = "t") -> tuple[ErrorCode, str]:
    before = world.image
    with pytest.raises(KafkaError) as error:
        world.reassign(target, name)
    assert world.image is before
    return error.value.code, error.value.message


# ---- grow, wait, shrink


def test_invariant_p8_new_replicas_are_added_and_wait_to_be_in_sync() -> None:
    world = running()
    before = world.partition()
    world.reassign((4, 2, 3))
    world.decide_all()
    partition = world.partition()
    assert partition.replicas == (4, 1, 2, 3)
    assert partition.directories == ("disk-4", "disk-1", "disk-2", "disk-3")
    assert (partition.adding, partition.removing) == ((4,), (1,))
    assert (partition.isr, partition.leader) == (before.isr, before.leader)
    assert partition.leader_epoch == before.leader_epoch


def test_invariant_p12_a_reassignment_is_through_once_all_new_replicas_are_in_sync() -> None:
    world = running()
    world.reassign((4, 5, 3))
    world.catch_up(B4)
    world.decide_all()
    assert world.partition().is_reassigning, "one of two"
    epoch = world.partition().leader_epoch
    world.catch_up(B5)
    world.decide_all()
    partition = world.partition()
    assert partition.replicas == partition.target == (4, 5, 3)
    assert partition.directories == ("disk-4", "disk-5", "disk-3")
    assert set(partition.isr) == {4, 5, 3}
    assert not partition.is_reassigning
    assert partition.leader == 4, "the old leader went: the first that stays"
    assert partition.leader_epoch == epoch + 2, "it gave up its leadership, then it was taken out"


def test_a_removed_replica_is_fenced_off_by_an_epoch_though_the_leader_stays() -> None:
    world = running()
    epoch = world.partition().leader_epoch
    world.reassign((1, 2))
    world.decide_all()
    partition = world.partition()
    assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (1, 2), 1)
    assert partition.leader_epoch == epoch + 1


def test_replicas_that_are_only_added_need_no_new_epoch() -> None:
    world = running()
    epoch = world.partition().leader_epoch
    world.reassign((1, 2, 3, 4))
    world.catch_up(B4)
    world.decide_all()
    partition = world.partition()
    assert (partition.replicas, partition.adding) == ((1, 2, 3, 4), ())
    assert partition.leader_epoch == epoch


def test_another_order_of_the_same_replicas_is_so_at_once() -> None:
    world = running()
    world.reassign((3, 1, 2))
    partition = world.partition()
    assert partition.replicas == (3, 1, 2)
    assert partition.directories == ("disk-3", "disk-1", "disk-2")
    assert not partition.is_reassigning


def test_invariant_p8_a_reassignment_goes_on_while_too_few_would_stay_in_sync() -> None:
    world = running()
    world.alter((B1,))
    assert world.partition().elr == (2, 3)
    world.reassign((4, 2, 3))
    world.catch_up(B4)
    world.decide_all()
    assert world.partition().is_reassigning, "4 alone would stay: min ISR is 2"
    world.catch_up(B2)
    world.decide_all()
    assert world.partition().replicas == (4, 2, 3)
    assert world.partition().isr == (4, 2)


def test_a_reassignment_goes_on_while_no_staying_replica_could_lead() -> None:
    world = running((1, 2))
    last = world.alive.pop(B2)
    for _ in range(30):
        world.now_ms += 50
        for broker in (B1, B3, B4, B5):
            world.beat(broker)
        world.judge()
    world.register(registration(B2, life="b", last=last))
    world.reassign((2,))
    world.decide_all()
    assert world.partition().isr == (1, 2)
    assert world.partition().is_reassigning, "2 is starting"
    world.pass_time(100)
    assert (world.partition().replicas, world.partition().leader) == ((2,), 2)


def test_a_reassignment_survives_the_death_of_the_controller_and_of_the_leader() -> None:
    world = running()
    world.reassign((4, 5, 3))
    image = image_from_records(
        snapshot_of(world.image).records, world.image.next_offset, world.image.epoch
    )
    assert image == world.image, "mutant M30: what is under way stands in the snapshot"
    world.core.activate(world.image)
    world.kill(B1)
    assert world.partition().leader == 2, "3 stands behind it in the present order"
    assert (world.partition().adding, world.partition().removing) == ((4, 5), (1, 2))
    world.catch_up(B4, B5)
    world.decide_all()
    assert world.partition().replicas == (4, 5, 3)


def test_a_death_of_what_was_to_be_added_leaves_all_as_it_was() -> None:
    world = running()
    world.reassign((4, 2, 3))
    world.kill(B4)
    partition = world.partition()
    assert (partition.isr, partition.adding) == ((1, 2, 3), (4,))
    world.reassign(None)
    assert world.partition().replicas == (1, 2, 3)


# ---- cancel, another target, repeats


def test_invariant_p8_a_cancellation_restores_what_was() -> None:
    world = running()
    before = world.partition()
    world.reassign((4, 2, 5))
    world.catch_up(B4)
    world.reassign(None)
    world.decide_all()
    partition = world.partition()
    assert (partition.replicas, partition.directories) == (before.replicas, before.directories)
    assert partition.isr == before.isr
    assert (partition.adding, partition.removing, partition.leader) == ((), (), 1)
    assert partition.leader_epoch == before.leader_epoch + 2, "5 is fenced off, then 4"


def test_invariant_p8_an_added_replica_that_is_needed_can_not_be_cancelled() -> None:
    world = running()
    world.reassign((4, 2, 5))
    world.catch_up(B4)
    world.alter((B1, B4))
    code, message = refused(world, None)
    assert code is ErrorCode.NOT_ENOUGH_REPLICAS
    assert "[4]" in message
    world.catch_up(B2)
    world.reassign(None)
    world.decide_all()
    assert world.partition().isr == (1, 2)


def test_invariant_p11_the_last_known_replica_is_not_dropped_while_no_replica_is_eligible() -> None:
    """It may hold the only copy of acknowledged records, for an unclean election."""
    world = running((1, 2))
    world.reassign((3, 4))
    world.catch_up(B3)
    world.alter((B1, B3))
    world.kill(B1, B3)
    for broker, disk, unclean in ((B1, "new", ()), (B3, "", (partition_at(topic_id(1), 0),))):
        last = world.image.brokers[broker].broker_epoch
        world.register(registration(broker, life="b", disk=disk, last=last, unclean=unclean))
        world.decide_all()
    partition = world.partition()
    assert (partition.isr, partition.elr, partition.last_known_elr) == ((), (), (3,))
    for target in ((4, 5), None):
        code, message = refused(world, target)
        assert code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert "replicas [3], which may be needed" in message
    world.reassign((3, 5))
    assert world.partition().last_known_elr == (3,)
    world.beat(B3)
    world.decide_all()
    world.elect(Election.UNCLEAN)
    assert world.partition().leader == 3
    world.reassign((3, 2))
    assert set(world.partition().replicas) == {1, 2, 3}


def test_a_cancellation_takes_the_lead_from_who_was_added() -> None:
    world = running()
    world.reassign((4, 2, 5))
    world.catch_up(B4)
    world.alive.pop(B1)
    world.alter((B1, B2, B4))
    world.kill(B1)
    world.alter((B2, B4, B3))
    assert world.partition().leader == 4
    world.reassign(None)
    world.reassign(None)
    assert (world.partition().adding, world.partition().removing) == ((4,), (4,)), "a repeat"
    assert world.partition().replication_factor == 3
    world.decide_all()
    assert (world.partition().replicas, world.partition().leader) == ((1, 2, 3), 2)
    assert world.partition().isr == (2, 3)


# ---- who goes must know it


def test_rule_g3_a_leader_that_goes_stays_in_sync_until_it_has_heard_who_leads() -> None:
    """Until then its heartbeats vouch for it: it answers reads that its successor outdates."""
    world = running()
    world.reassign((4, 2, 3))
    world.behind[B1] = world.image.next_offset
    world.catch_up(B4)
    world.pass_time(1_000)
    partition = world.partition()
    assert (partition.leader, partition.leader_epoch) == (4, 1), "it leads no more"
    assert partition.isr == (4, 1, 2, 3), "nothing is committed without it"
    world.behind[B1] = MetadataOffset(partition.leader_epoch_offset)
    world.pass_time(100)
    assert world.partition() == partition, "it has read up to that record, not the record"
    world.behind[B1] = MetadataOffset(partition.leader_epoch_offset + 1)
    world.pass_time(50)
    assert world.partition().replicas == (4, 2, 3)


def test_invariant_p12_a_broker_that_dies_unaware_is_not_waited_for() -> None:
    world = running()
    world.reassign((4, 2, 3))
    world.behind[B1] = world.image.next_offset
    world.catch_up(B4)
    world.decide_all()
    assert world.partition().is_reassigning
    world.kill(B1)
    assert (world.partition().replicas, world.partition().leader) == ((4, 2, 3), 4)


def test_rule_g3_a_new_controller_waits_too() -> None:
    world = running()
    world.reassign((4, 2, 3))
    world.behind[B1] = world.image.next_offset
    world.catch_up(B4)
    world.decide_all()
    world.core.activate(world.image)
    world.pass_time(100)
    assert world.partition().is_reassigning
    world.behind.clear()
    world.pass_time(50)
    assert not world.partition().is_reassigning


def test_a_new_controller_does_not_shrink_to_a_replica_whose_session_is_over() -> None:
    """A replica that has not reported its damaged logs to this controller may lack records.

    It still counts as unfenced: a new controller fences no broker before the grace of a lost
    connection has passed. Until it is fenced, or reports, the reassignment waits.
    """
    world = running((2, 1, 3), min_isr=1)
    del world.alive[B1]
    for _ in range(world.config.broker_session_timeout_ms // TICK_MS + 2):
        world.now_ms += TICK_MS
        for broker in world.alive:
            world.beat(broker)
        world.judge()
    world.core.activate(world.image)
    world.reassign((1,))
    world.pass_time(world.config.broker_disconnect_grace_ms - TICK_MS)
    assert world.state(B1) is BrokerState.UNFENCED
    assert world.partition().is_reassigning
    assert set(world.partition().isr) == {1, 2, 3}

    world.pass_time(4 * TICK_MS)
    assert world.state(B1) is BrokerState.FENCED
    assert world.partition().is_reassigning, "the replica that stays left the ISR"
    epoch = world.image.brokers[B1].broker_epoch
    world.register(registration(B1, life="b", disk="disk-1", last=epoch))
    world.pass_time(300)
    world.catch_up(B1)
    world.pass_time(300)
    assert (world.partition().replicas, world.partition().leader) == ((1,), B1)


def test_invariant_p8_a_leader_that_died_is_replaced_by_who_stays_while_another_is_waited_for() -> (
    None
):
    world = running()
    world.reassign((4, 5, 3))
    world.behind[B2] = world.image.next_offset
    world.drain(B2, DrainScope.NONE)
    world.elect(Election.PREFERRED, 0)
    world.catch_up(B4, B5)
    world.decide_all()
    assert (world.partition().leader, world.partition().isr) == (4, (4, 5, 1, 2, 3))
    world.kill(B4)
    assert world.partition().leader == 5, "2 stands before it, but goes"


def test_a_drained_broker_that_stays_leads_rather_than_one_that_goes() -> None:
    """Otherwise both brokers pass leadership to and fro, an epoch each time, and none leaves."""
    world = running((1, 2), min_isr=1)
    world.reassign((2,))
    world.behind[B1] = world.image.next_offset
    world.drain(B2, DrainScope.LEADERS)
    world.decide_all()
    assert world.partition().leader == 2
    world.behind.clear()
    world.decide_all()
    assert world.partition().replicas == (2,)


def test_rule_g3_a_cancellation_too_waits_until_who_led_has_heard_of_it() -> None:
    world = running((1, 2, 3))
    world.reassign((4, 2, 3))
    world.alter((B1, B2, B3))
    world.catch_up(B4)
    world.elect(Election.PREFERRED, 0)
    assert world.partition().leader == 4
    world.behind[B4] = world.image.next_offset
    world.reassign(None)
    world.decide_all()
    partition = world.partition()
    assert (partition.leader, set(partition.isr)) == (1, {1, 2, 3, 4})
    world.behind.clear()
    world.decide_all()
    assert (world.partition().replicas, world.partition().isr) == ((1, 2, 3), (1, 2, 3))


def test_another_target_takes_the_place_of_the_first() -> None:
    world = running()
    world.reassign((4, 2, 3))
    world.reassign((5, 2, 3))
    partition = world.partition()
    assert (partition.adding, partition.removing) == ((5,), (1,))
    assert set(partition.replicas) == {5, 1, 2, 3}
    world.catch_up(B5)
    world.decide_all()
    assert world.partition().replicas == (5, 2, 3)


def test_a_repeat_changes_nothing() -> None:
    world = running()
    world.reassign((4, 2, 3))
    before = world.image
    world.reassign((4, 2, 3))
    assert world.image is before
    world.catch_up(B4)
    world.decide_all()
    before = world.image
    world.reassign((4, 2, 3))
    assert world.image is before


@pytest.mark.parametrize(
    ("target", "both"),
    [
        ((4, 2, 3), (4, 1, 2, 3)),
        ((2, 3, 4), (1, 2, 3, 4)),
        ((1, 2), (1, 2, 3)),
        ((4, 5), (4, 5, 1, 2, 3)),
        ((4, 3, 2), (4, 3, 2, 1)),  # they can't both keep their order: the target's goes first
    ],
)
def test_two_orders_in_one(target: tuple[int, ...], both: tuple[int, ...]) -> None:
    found = merge_replica_lists(tuple(map(BrokerId, (1, 2, 3))), tuple(map(BrokerId, target)))
    assert found == both


# ---- the replication factor


def test_more_replicas_raise_the_default_min_isr_only_once_they_are_there() -> None:
    world = running((1,))
    world.reassign((1, 2, 3))
    assert (world.partition().isr, world.partition().elr) == ((1,), ())
    world.catch_up(B2)
    world.decide_all()
    assert world.partition().is_reassigning
    world.catch_up(B3)
    world.decide_all()
    assert world.partition().isr == (1, 2, 3)
    world.alter((B1,))
    assert world.partition().elr == (2, 3), "min ISR is 2 now"


def test_fewer_replicas_than_the_topic_s_own_min_isr_are_refused() -> None:
    world = running(min_insync_replicas="2")
    assert refused(world, (1,))[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_further_partitions_get_as_many_replicas_as_the_first_will_have() -> None:
    world = running()
    world.reassign((1, 2))
    world.decide_all()
    assert world.image.topics[next(iter(world.image.topics))].replication_factor == 2


# ---- what is refused


@pytest.mark.parametrize("target", [(), (1, 1, 2), (1, 2, 9)])
def test_rule_m8_a_target_that_can_not_be_is_refused(target: tuple[int, ...]) -> None:
    assert refused(running(), target)[0] is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_broker_that_is_not_registered_is_named() -> None:
    assert "brokers [9] are not registered" in refused(running(), (1, 2, 9))[1]


def test_partitions_of_a_topic_that_is_being_created_stay_where_they_are() -> None:
    world = World(config=config(per_batch=1))
    world.decide_all()
    world.join(B1, B2, B3, B4)
    command = CreateTopic(
        name=TopicName("t"), topic_id=topic_id(1), partitions_count=2, replication_factor=3
    )
    world.append(world.core.decide(world.image, command)[0])
    code, message = refused(world, (1, 2, 3))
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "still being created" in message


def test_rule_m8_a_dead_broker_is_given_nothing_and_named() -> None:
    world = running()
    world.kill(B4, B3)
    code, message = refused(world, (1, 2, 4))
    assert code is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert "[4] are not live" in message
    world.reassign((1, 3, 5))
    assert world.partition().adding == (5,), "3 is dead, but it holds the partition already"


def test_a_broker_that_gives_its_replicas_away_is_given_none() -> None:
    world = running()
    world.drain(B4, DrainScope.REPLICAS)
    assert "drained" in refused(world, (1, 2, 4))[1]


def test_a_reassignment_of_an_unknown_partition_is_refused() -> None:
    world = running()
    assert refused(world, (1, 2, 4), "other")[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert refused(world, None)[0] is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    world.delete()
    assert refused(world, (1, 2, 4))[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def change(index: int, *replicas: int) -> Reassignment:
    return Reassignment(
        topic=TopicName("t"),
        partition=PartitionId(index),
        replicas=tuple(map(BrokerId, replicas)),
    )


def test_all_of_a_command_or_nothing() -> None:
    world = World(config=config(partitions=2))
    world.decide_all()
    world.join(B1, B2, B3, B4)
    world.create(assignments={0: (1, 2, 3), 1: (1, 2, 3)})
    before = world.image
    with pytest.raises(KafkaError):
        world.ask(AlterReassignments(changes=(change(0, 4, 2, 3), change(1, 9, 2, 3))))
    with pytest.raises(KafkaError):
        world.ask(AlterReassignments(changes=(change(0, 4, 2, 3), change(0, 1, 2, 4))))
    too_many = tuple(change(index, 1, 2, 3) for index in range(REASSIGNMENTS_MAX + 1))
    with pytest.raises(KafkaError):
        world.ask(AlterReassignments(changes=too_many))
    assert world.image is before
    both = (change(0, 4, 2, 3), change(1, 1, 4, 3))
    world.ask(AlterReassignments(changes=both, validate_only=True))
    assert world.image is before
    answer = world.ask(AlterReassignments(changes=both))
    assert answer.next_offset == world.image.next_offset == before.next_offset + 2


def test_a_replica_on_another_disk_that_comes_in_is_recorded_there() -> None:
    world = running()
    world.reassign((4, 2, 3))
    last = world.image.brokers[B4].broker_epoch
    world.kill(B4)
    world.register(registration(B4, life="b", disk="new", last=last))
    world.decide_all()
    partition = world.partition()
    assert partition.directories[partition.replicas.index(B4)] == "new"


def test_rule_r3_a_new_epoch_is_not_for_a_leader_that_has_just_registered_again() -> None:
    """Its disk may be another one; what follows from its registration is not recorded yet (M4)."""
    world = running()
    world.reassign((4, 2, 3))
    assert world.partition().leader == B1
    last = world.image.brokers[B1].broker_epoch
    world.alive.pop(B1)
    while not world.core.sessions.has_expired(B1, last):
        world.now_ms += 50
        for broker in world.alive:
            world.beat(broker)
        world.judge()
    world.register(registration(B1, life="b", disk="empty", last=last))
    assert world.partition().leader == B1, "not settled yet"
    world.reassign((5, 2, 3))
    partition = world.partition()
    assert set(partition.replicas) == {5, 1, 2, 3}
    assert partition.leader == B2
    world.decide_all()
    assert world.partition().leader in {B2, B3}
