"""ISR proposals: accepted iff nothing they were judged on has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerEpoch, BrokerId, DirectoryId, TopicId
from raft_metadata.records.commands import IsrMember
from tests.support.metadata_world import BROKERS, World, registration

B1, B2, B3 = BROKERS


@pytest.fixture
def world() -> World:
    """Topic t-0 is led by broker 1 and has shrunk to (1, 2); broker 3 lives."""
    world = World()
    world.decide_all()
    world.join(*BROKERS)
    world.create(assignments={0: (1, 2, 3)})
    world.alter((B1, B2))
    return world


def refusal(world: World, isr: tuple[BrokerId, ...] = BROKERS, **other: object) -> ErrorCode:
    before = world.image
    with pytest.raises(KafkaError) as refused:
        world.alter(isr, **other)  # type: ignore[arg-type]
    assert world.image is before
    return refused.value.code


def test_a_proposal_of_the_leader_is_recorded(world: World) -> None:
    answer = world.alter((B3, B2, B1))
    assert answer.isr == BROKERS, "in the order of the replicas"
    assert answer.partition_epoch == world.partition().partition_epoch == 2
    assert answer.leader_epoch == world.partition().leader_epoch == 0


def test_rule_m3_the_partition_epoch_grows_even_if_nothing_changes(world: World) -> None:
    assert world.alter((B1, B2)).partition_epoch == 2
    assert world.alter((B1, B2)).partition_epoch == 3
    assert refusal(world, partition_epoch=1) is ErrorCode.INVALID_UPDATE_VERSION


def test_a_replica_removed_below_min_isr_stays_eligible(world: World) -> None:
    world.alter((B1,))
    assert (world.partition().isr, world.partition().elr) == ((B1,), (B2,))
    world.alter((B1, B3))
    assert (world.partition().isr, world.partition().elr) == ((B1, B3), ())


def test_a_request_of_an_old_epoch_is_refused(world: World) -> None:
    assert refusal(world, partition_epoch=0) is ErrorCode.INVALID_UPDATE_VERSION
    world.kill(B3)
    world.kill(B1)
    world.join(B1, life="b")
    assert world.partition().leader == B2
    assert refusal(world, leader_epoch=0) is ErrorCode.FENCED_LEADER_EPOCH


def test_a_request_from_the_future_finds_a_controller_that_is_behind(world: World) -> None:
    assert refusal(world, leader_epoch=1) is ErrorCode.NOT_CONTROLLER
    assert refusal(world, partition_epoch=2) is ErrorCode.NOT_CONTROLLER


def test_only_the_leader_proposes(world: World) -> None:
    epoch = world.image.brokers[B2].broker_epoch
    assert refusal(world, broker_id=B2, broker_epoch=epoch) is ErrorCode.INVALID_REQUEST
    assert refusal(world, broker_epoch=BrokerEpoch(0)) is ErrorCode.STALE_BROKER_EPOCH
    assert refusal(world, broker_id=BrokerId(9)) is ErrorCode.BROKER_ID_NOT_REGISTERED


def test_an_isr_is_a_set_of_replicas_with_its_leader(world: World) -> None:
    assert refusal(world, (B2, B3)) is ErrorCode.INVALID_REQUEST
    assert refusal(world, ()) is ErrorCode.INVALID_REQUEST
    assert refusal(world, (B1, B1)) is ErrorCode.INVALID_REQUEST
    assert refusal(world, (B1, BrokerId(9))) is ErrorCode.INVALID_REQUEST


def test_an_unknown_topic_or_partition_is_refused(world: World) -> None:
    assert refusal(world, topic_id=TopicId("x")) is ErrorCode.UNKNOWN_TOPIC_ID
    assert refusal(world, partition=7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fenced_broker_never_joins(world: World) -> None:
    world.kill(B3)
    assert refusal(world) is ErrorCode.INELIGIBLE_REPLICA


def test_a_broker_that_leaves_never_joins(world: World) -> None:
    world.beat(B3, want_shutdown=True)
    world.judge()
    world.decide_all()
    assert refusal(world) is ErrorCode.INELIGIBLE_REPLICA


def test_a_starting_broker_never_joins(world: World) -> None:
    world.kill(B3)
    last = world.image.brokers[B3].broker_epoch
    world.register(registration(B3, life="b", last=last))
    world.decide_all()
    assert refusal(world) is ErrorCode.INELIGIBLE_REPLICA


def test_a_joiner_is_the_process_that_was_judged(world: World) -> None:
    judged = world.member(B3)
    world.kill(B3)
    world.join(B3, life="b")
    members = (world.member(B1), world.member(B2))
    assert refusal(world, new_isr=(*members, judged)) is ErrorCode.INELIGIBLE_REPLICA
    world.alter((), new_isr=(*members, world.member(B3)))
    assert world.partition().isr == BROKERS


def test_rule_r6_a_joiner_is_on_the_recorded_disk(world: World) -> None:
    moved = replace(world.image.brokers[B3], directory_id=DirectoryId("another"))
    world.image = replace(world.image, brokers={**world.image.brokers, B3: moved})
    assert refusal(world) is ErrorCode.INELIGIBLE_REPLICA


def test_a_member_that_registered_again_may_stay(world: World) -> None:
    """Its place in the committed ISR is the controller's business, not the leader's."""
    stale = IsrMember(broker_id=B2, broker_epoch=BrokerEpoch(0))
    world.alter((), new_isr=(world.member(B1), stale, world.member(B3)))
    assert world.partition().isr == BROKERS


def test_a_leader_whose_fence_is_recorded_proposes_nothing(world: World) -> None:
    del world.alive[B1]
    while world.state(B1).value != "fenced":
        world.now_ms += 50
        for broker in world.alive:
            world.beat(broker)
        world.judge()
        world.decide_one()
    assert world.partition().leader == B1, "the consequences are not recorded yet"
    assert refusal(world) is ErrorCode.INELIGIBLE_REPLICA
