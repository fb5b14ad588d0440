"""Registration, fencing, unfencing, and what they mean for partitions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    MetadataOffset,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.controller.cluster_control import (
    PRODUCER_IDS_PER_BLOCK,
    ShutdownProgress,
    decide_unfence,
    shutdown_progress,
)
from raft_metadata.records.commands import AllocateProducerIds, BrokerHeartbeat
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from tests.support.metadata_world import BROKERS, TICK_MS, World, registration, topic_id

B1, B2, B3 = BROKERS


def running(**create: object) -> World:
    """Three unfenced brokers and topic t, whose partition 0 is led by broker 1."""
    world = World()
    world.decide_all()
    world.join(*BROKERS)
    if not create:
        create = {"assignments": {0: (1, 2, 3)}}
    world.create(**create)  # type: ignore[arg-type]
    return world


def refused(world: World, command: object) -> ErrorCode:
    with pytest.raises(KafkaError) as error:
        world.core.decide(world.image, command)  # type: ignore[arg-type]
    return error.value.code


# ---- registration


def test_a_broker_epoch_is_the_offset_of_its_record() -> None:
    world = World()
    world.decide_all()
    assert world.register(registration(B1)) == 1
    assert world.image.brokers[B1].broker_epoch == 1
    assert (world.state(B1), world.image.brokers[B1].settled) == (BrokerState.STARTING, False)


def test_a_repeat_of_the_same_process_keeps_its_epoch() -> None:
    world = running()
    before = world.image
    assert world.register(registration(B1)) == before.brokers[B1].broker_epoch
    assert world.image is before


def test_a_broker_of_another_cluster_is_refused() -> None:
    command = replace(registration(B1), cluster_id=ClusterId("another"))
    assert refused(World(), command) is ErrorCode.INCONSISTENT_CLUSTER_ID


@pytest.mark.parametrize("field", ["broker_id", "incarnation_id", "directory_id"])
def test_a_registration_names_a_broker_its_process_and_its_disk(field: str) -> None:
    world = World()
    world.decide_all()
    wrong = {field: BrokerId(-1) if field == "broker_id" else ""}
    command = replace(registration(B1), **wrong)  # type: ignore[arg-type]
    assert refused(world, command) is ErrorCode.INVALID_REQUEST
    assert world.register(registration(BrokerId(0))) == 1


def test_another_process_waits_until_the_session_of_the_last_one_is_over() -> None:
    world = running()
    again = registration(B1, life="b", last=world.alive[B1])
    assert refused(world, again) is ErrorCode.DUPLICATE_BROKER_REGISTRATION
    world.kill(B1)
    assert world.register(again) > again.last_broker_epoch


def test_rule_r6_a_registration_that_was_overtaken_never_enters() -> None:
    world = running()
    first = world.alive[B1]
    late = registration(B1, life="old", disk="old disk", last=first)
    world.kill(B1)
    world.join(B1, life="b")
    world.kill(B1)
    assert refused(world, late) is ErrorCode.STALE_BROKER_EPOCH
    never_seen = registration(BrokerId(9), last=first)
    assert refused(world, never_seen) is ErrorCode.STALE_BROKER_EPOCH


def test_rule_m4_a_registration_goes_alone_and_is_settled_before_it_is_unfenced() -> None:
    world = running()
    world.kill(B1, B2)
    world.log.clear()
    world.register(
        registration(B1, life="b", disk="new", last=world.image.brokers[B1].broker_epoch)
    )
    world.beat(B1)
    world.judge()
    world.decide_all()
    assert [[type(record) for record in batch] for batch in world.log] == [
        [RegisterBrokerRecord],
        [PartitionChangeRecord],
        [BrokerRegistrationChangeRecord],
        [BrokerRegistrationChangeRecord],
    ]
    settled, unfenced = world.log[-2][0], world.log[-1][0]
    assert isinstance(settled, BrokerRegistrationChangeRecord)
    assert isinstance(unfenced, BrokerRegistrationChangeRecord)
    assert (settled.state, settled.settled) == (BrokerState.STARTING, True)
    assert unfenced.state is BrokerState.UNFENCED


def test_rule_m4_no_broker_is_unfenced_while_a_partition_owes_it_a_change() -> None:
    world = running()
    world.kill(B1)
    again = registration(B1, life="b", disk="new", last=world.image.brokers[B1].broker_epoch)
    world.register(again)
    world.beat(B1)
    world.judge()
    wish = world.core.next_proposed_batch(world.image, bulk_allowed=False)
    assert wish is None, "the consequences come first"


def test_rule_m4_no_broker_is_unfenced_before_it_is_settled() -> None:
    world = World()
    world.decide_all()
    world.register(registration(B1))
    assert not world.image.topics, "no partition owes anything, and yet that is not recorded"
    seen = MetadataOffset(world.image.next_offset)
    defaults = world.config.defaults
    assert decide_unfence(world.image, B1, metadata_offset=seen, defaults=defaults) == ()
    world.decide_all()
    assert decide_unfence(world.image, B1, metadata_offset=seen, defaults=defaults)


def test_a_broker_is_unfenced_only_after_it_has_seen_its_registration() -> None:
    world = World()
    world.decide_all()
    epoch = world.register(registration(B1))
    world.decide_all()
    for offset, state in ((epoch, BrokerState.STARTING), (epoch + 1, BrokerState.UNFENCED)):
        beat = BrokerHeartbeat(
            broker_id=B1, broker_epoch=epoch, metadata_offset=MetadataOffset(offset)
        )
        world.core.heartbeat(world.image, beat, world.now_ms, is_active=True)
        world.judge()
        world.decide_all()
        assert world.state(B1) is state


# ---- fencing


def test_rule_m4_the_fence_goes_alone_and_first() -> None:
    world = running(partitions_count=30)
    world.alive.pop(B1)
    world.alive.pop(B2)
    world.log.clear()
    world.pass_time(1_300)
    first, second, third = world.log[:3]
    for batch in (first, second):
        (record,) = batch
        assert isinstance(record, BrokerRegistrationChangeRecord)
        assert record.state is BrokerState.FENCED
    assert all(isinstance(record, PartitionChangeRecord) for record in third)
    assert len(third) == 30


def test_rule_m4_consequences_come_in_bounded_batches_each_valid_alone() -> None:
    world = running(partitions_count=30)
    config = replace(world.config, changes_per_batch_max=7)
    world.core.config = config
    world.log.clear()
    world.kill(B1)
    assert [len(batch) for batch in world.log] == [1, 7, 7, 7, 7, 2]


def test_partitions_that_lost_their_leader_come_before_those_that_lost_a_follower() -> None:
    world = running(partitions_count=30)
    world.core.config = replace(world.config, changes_per_batch_max=10)
    world.log.clear()
    world.kill(B1)
    changes = [[r for r in batch if isinstance(r, PartitionChangeRecord)] for batch in world.log]
    assert [{r.leader_epoch for r in batch} for batch in changes] == [set(), {1}, {0}, {0}]


def test_rule_m4_a_new_controller_finds_what_the_last_one_left_undone() -> None:
    world = running(partitions_count=30)
    del world.alive[B1]
    world.now_ms += 1_000
    for _ in range(40):
        world.now_ms += TICK_MS
        for broker in world.alive:
            world.beat(broker)
        world.judge()
    assert world.decide_one(), "the fence, and then this controller ends"
    assert world.state(B1) is BrokerState.FENCED
    assert any(B1 in partition.isr for partition in world.image.topics[topic_id(1)].partitions)
    successor = World(image=world.image)
    successor.alive = world.alive
    successor.decide_all()
    partitions = successor.image.topics[topic_id(1)].partitions
    assert not any(B1 in (*partition.isr, partition.leader) for partition in partitions)


def test_a_fenced_leader_is_followed_by_the_next_replica_in_sync() -> None:
    world = running()
    world.kill(B1)
    partition = world.partition()
    assert (partition.leader, partition.leader_epoch) == (B2, 1)
    assert (partition.isr, partition.elr) == ((B2, B3), ())


def test_a_fenced_follower_leaves_the_isr_without_a_new_leader_epoch() -> None:
    world = running()
    world.kill(B3)
    partition = world.partition()
    assert (partition.leader, partition.leader_epoch, partition.partition_epoch) == (B1, 0, 1)
    assert partition.isr == (B1, B2)


def test_below_min_isr_who_leaves_stays_eligible_and_is_elected_from_there() -> None:
    world = running()
    for broker in (B1, B2, B3):
        world.kill(broker)
    partition = world.partition()
    assert (partition.leader, partition.isr, partition.elr) == (NO_LEADER, (), (B2, B3))
    world.join(B1, life="b")
    assert world.partition().leader == NO_LEADER, "it left while two others were in sync"
    world.join(B3, life="b")
    partition = world.partition()
    assert (partition.leader, partition.isr, partition.elr) == (B3, (B3,), (B2,))
    world.alter((B3, B1))
    assert (world.partition().isr, world.partition().elr) == ((B1, B3), ())


def test_a_replica_elected_from_the_elr_leads_alone() -> None:
    world = running()
    world.kill(B3)
    world.kill(B2)
    world.join(B2, life="b")
    assert (world.partition().isr, world.partition().elr) == ((B1,), (B2,))
    restart(world, B1)
    assert world.state(B1) is BrokerState.STARTING
    partition = world.partition()
    assert (partition.leader, partition.isr, partition.elr) == (B2, (B2,), (B1,))


def test_all_that_expire_together_stay_eligible() -> None:
    world = running()
    world.kill(*BROKERS)
    assert world.partition().elr == BROKERS
    assert world.partition().leader == NO_LEADER


def test_a_broker_that_was_fenced_by_mistake_comes_back_with_its_epoch() -> None:
    world = running()
    epoch = world.alive[B1]
    world.kill(B1)
    world.alive[B1] = epoch
    world.pass_time(2 * TICK_MS)
    assert world.state(B1) is BrokerState.UNFENCED


# ---- what a registration means for partitions


def restart(world: World, broker: BrokerId, **how: object) -> None:
    """A new process registers as soon as the old session is over; the fence is not settled yet."""
    last = world.image.brokers[broker].broker_epoch
    world.core.sessions.connection_closed(broker, last, world.now_ms)
    del world.alive[broker]
    world.now_ms += 100
    for _ in range(4):
        world.now_ms += 100
        for other in world.alive:
            world.beat(other)
        world.judge()
    assert world.core.sessions.has_expired(broker, last)
    world.register(registration(broker, life="b", last=last, **how))  # type: ignore[arg-type]
    world.decide_all()


def test_rule_r3_a_registration_ends_the_brokers_old_leaderships() -> None:
    world = running()
    restart(world, B1)
    partition = world.partition()
    assert world.state(B1) is BrokerState.STARTING
    assert (partition.leader, partition.leader_epoch) == (B2, 1)
    assert partition.isr == BROKERS, "a starting broker keeps its place"


def test_rule_r3_with_nobody_else_it_leads_again_only_in_a_new_epoch() -> None:
    world = running()
    world.kill(B3)
    world.kill(B2)
    assert world.partition().isr == (B1,)
    restart(world, B1)
    assert (world.partition().leader, world.partition().leader_epoch) == (NO_LEADER, 1)
    world.pass_time(2 * TICK_MS)
    partition = world.partition()
    assert (partition.leader, partition.leader_epoch) == (B1, 2)
    assert partition.leader_epoch_offset > world.image.brokers[B1].broker_epoch


def test_rule_r6_another_disk_leaves_isr_and_elr_and_is_recorded() -> None:
    world = running()
    restart(world, B1, disk="new disk")
    partition = world.partition()
    assert (partition.isr, partition.elr) == ((B2, B3), ())
    assert partition.directories[0] == "new disk"
    assert partition.leader == B2


def test_rule_r6_a_lost_disk_is_not_elected_from_the_elr() -> None:
    world = running()
    world.kill(*BROKERS)
    world.join(B1, life="b", disk="new disk")
    assert (world.partition().leader, world.partition().elr) == (NO_LEADER, (B2, B3))
    world.join(B2, life="b")
    assert world.partition().leader == B2


def test_rule_r6_an_unclean_partition_leaves_and_the_clean_ones_keep_their_place() -> None:
    world = running(assignments={0: (1, 2, 3), 1: (1, 2, 3)})
    restart(world, B1, unclean=[TopicIdPartition(topic_id(1), PartitionId(1))])
    assert world.partition(index=0).isr == BROKERS
    assert world.partition(index=1).isr == (B2, B3)
    world.pass_time(2 * TICK_MS)
    world.alter(BROKERS, index=1)
    world.pass_time(TICK_MS)
    assert world.partition(index=1).isr == BROKERS, "once recorded, it may join again"


# ---- heartbeats


def test_a_heartbeat_of_another_registration_changes_nothing() -> None:
    world = running()
    beat = BrokerHeartbeat(
        broker_id=B1, broker_epoch=BrokerEpoch(0), metadata_offset=world.image.next_offset
    )
    with pytest.raises(KafkaError) as error:
        world.core.heartbeat(world.image, beat, world.now_ms + 1_000, is_active=True)
    assert error.value.code is ErrorCode.STALE_BROKER_EPOCH
    assert world.core.sessions.age_ms(B1) == 0
    unknown = replace(beat, broker_id=BrokerId(9))
    with pytest.raises(KafkaError) as error:
        world.core.heartbeat(world.image, unknown, world.now_ms, is_active=True)
    assert error.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED


# ---- controlled shutdown


def leave(world: World, *brokers: BrokerId) -> None:
    for broker in brokers:
        world.beat(broker, want_shutdown=True)
    world.judge()
    world.decide_all()


def test_rule_r11_one_batch_moves_leadership_and_leaves_the_isr() -> None:
    world = running(partitions_count=6)
    world.log.clear()
    leave(world, B1)
    state, moved = world.log
    assert len(state) == 1
    assert len(moved) == 6
    for partition in world.image.topics[topic_id(1)].partitions:
        assert B1 not in (*partition.isr, partition.leader)
        assert len(partition.isr) == 2


def test_rule_r11_granted_once_everyone_who_lives_knows() -> None:
    world = running()
    answer = world.beat(B1, want_shutdown=True)
    assert not answer.should_shut_down
    leave(world, B1)
    answer = world.beat(B1, want_shutdown=True)
    assert not answer.should_shut_down
    assert "have not reached metadata offset" in answer.shutdown_blocked_by
    world.beat(B2)
    world.beat(B3)
    answer = world.beat(B1, want_shutdown=True)
    assert answer.should_shut_down
    assert answer.state is BrokerState.CONTROLLED_SHUTDOWN


def test_rule_r11_a_leader_that_wants_to_stop_leads_partitions_and_waits_for_none() -> None:
    world = running()
    leader = world.partition().leader
    progress = shutdown_progress(world.image, leader, world.config.defaults)
    assert progress == ShutdownProgress(1, 0, "t-0: no other replica in sync")


def test_rule_r11_a_replica_that_min_isr_needs_is_waited_for() -> None:
    world = running()
    world.alter((B1, B2))
    progress = shutdown_progress(world.image, B2, world.config.defaults)
    assert progress == ShutdownProgress(0, 1, "t-0: min ISR 2 needs it")


def test_producer_ids_are_given_to_the_present_registration_only() -> None:
    world = running()
    stale = AllocateProducerIds(broker_id=B1, broker_epoch=BrokerEpoch(0))
    with pytest.raises(KafkaError) as refused:
        world.ask(stale)
    assert refused.value.code is ErrorCode.STALE_BROKER_EPOCH
    present = replace(stale, broker_epoch=world.image.brokers[B1].broker_epoch)
    first = world.ask(present).first_producer_id
    assert world.ask(present).first_producer_id == first + PRODUCER_IDS_PER_BLOCK


def test_rule_r11_a_new_term_asks_every_broker_again() -> None:
    """Brokers may have begun again since the offset at which this one was last free to stop."""
    world = running()
    leave(world, B1)
    world.beat(B1, want_shutdown=True)
    for broker in (B2, B3):
        world.beat(broker)
    assert world.beat(B1, want_shutdown=True).should_shut_down
    world.create("later", 2, assignments={0: (2, 3)})
    world.core.activate(world.image)
    world.behind = {B2: MetadataOffset(world.image.next_offset - 1)}
    for broker in (B2, B3):
        world.beat(broker)
    blocked = world.beat(B1, want_shutdown=True).shutdown_blocked_by
    assert blocked == f"brokers [2] have not reached metadata offset {world.image.next_offset}"


def test_rule_r11_a_paused_broker_blocks_for_a_session_only() -> None:
    world = running()
    leave(world, B1)
    world.beat(B2)
    del world.alive[B3]
    for _ in range(40):
        world.now_ms += TICK_MS
        world.beat(B1, want_shutdown=True)
        world.beat(B2)
        world.judge()
        world.decide_all()
    assert world.state(B3) is BrokerState.FENCED
    assert world.beat(B1, want_shutdown=True).should_shut_down


def test_rule_r11_a_shutdown_waits_for_a_replica_that_may_join_and_says_why() -> None:
    world = running()
    world.kill(B3)
    world.join(B3, life="b")
    assert world.partition().isr == (B1, B2)
    leave(world, B1)
    for broker in BROKERS:
        world.beat(broker, want_shutdown=broker == B1)
    answer = world.beat(B1, want_shutdown=True)
    assert not answer.should_shut_down
    assert "t-0" in answer.shutdown_blocked_by
    assert world.partition().isr == (B1, B2)
    assert world.partition().leader == B2, "leadership moves at once"
    world.alter(BROKERS)
    world.decide_all()
    assert world.partition().isr == (B2, B3)
    for broker in (B2, B3):
        world.beat(broker)
    world.beat(B1, want_shutdown=True)
    for broker in (B2, B3):
        world.beat(broker)
    assert world.beat(B1, want_shutdown=True).should_shut_down


def test_rule_r11_a_last_replica_leaves_when_nobody_could_take_over() -> None:
    world = running(assignments={0: (1,)})
    leave(world, B1)
    assert (world.partition().leader, world.partition().isr) == (NO_LEADER, (B1,))
    for broker in (B2, B3):
        world.beat(broker)
    assert world.beat(B1, want_shutdown=True).should_shut_down
    world.kill(B1)
    world.join(B1, life="b")
    assert world.partition().leader == B1


def test_rule_r11_a_partition_without_a_leader_holds_nobody_back() -> None:
    """The replica that could take over came back too late: no leader proposes it into the ISR."""
    world = running(assignments={0: (1, 2)})
    world.kill(B2)
    leave(world, B1)
    assert (world.partition().leader, world.partition().isr) == (NO_LEADER, (B1,))
    world.join(B2, life="b", disk="another")
    for broker in (B2, B3):
        world.beat(broker)
    world.beat(B1, want_shutdown=True)
    for broker in (B2, B3):
        world.beat(broker)
    answer = world.beat(B1, want_shutdown=True)
    assert answer.should_shut_down, answer.shutdown_blocked_by


def test_rule_r11_all_brokers_may_leave_at_once() -> None:
    world = running(partitions_count=6)
    leave(world, *BROKERS)
    for broker in BROKERS:
        assert world.beat(broker, want_shutdown=True).should_shut_down
