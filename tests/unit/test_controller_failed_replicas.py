"""Replicas with damaged logs, as heartbeats tell of them: who leads, who counts, who leaves."""

from __future__ import annotations

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
)
from raft_metadata.records.commands import DamagedReplica, Election
from tests.support.metadata_world import BROKERS, TICK_MS, World, config, registration, topic_id

B1, B2, B3 = BROKERS


def running(min_isr: int = 2) -> World:
    """Three brokers and a partition that broker 1 leads, all of them in sync."""
    world = World(config=config(min_isr=min_isr))
    world.decide_all()
    world.join(*BROKERS)
    world.create(assignments={0: (1, 2, 3)})
    return world


def damaged(world: World, *brokers: BrokerId, can_lead: bool = True, epoch: int = -2) -> None:
    """Their logs are found damaged, having taken part in this leader epoch, or the present one."""
    at = world.partition().leader_epoch if epoch == -2 else epoch
    for broker in brokers:
        world.failed[broker] = (
            DamagedReplica(
                topic_id=topic_id(1),
                partition=PartitionId(0),
                leader_epoch=LeaderEpoch(at),
                can_lead=can_lead,
            ),
        )


def say_damaged(world: World, broker: BrokerId, *, number: int, can_lead: bool = True) -> None:
    """Of the first partition of a topic, its log having taken part in the present leader epoch."""
    world.failed[broker] = (
        DamagedReplica(
            topic_id=topic_id(number),
            partition=PartitionId(0),
            leader_epoch=world.partition(number).leader_epoch,
            can_lead=can_lead,
        ),
    )


def fall_silent(world: World, broker: BrokerId) -> None:
    """Its session is over, and nothing has followed from that yet."""
    del world.alive[broker]
    for _ in range(world.config.broker_session_timeout_ms // TICK_MS + 2):
        world.now_ms += TICK_MS
        for other in world.alive:
            world.beat(other)
        world.judge()


def test_rule_q5_a_damaged_follower_leaves_the_isr_and_what_was_proposed_before_is_void() -> None:
    """No process restarts: a new leader epoch keeps a proposal in flight from undoing that."""
    world = running()
    before = world.partition()
    damaged(world, B2)
    world.pass_time(100)
    after = world.partition()
    assert (after.leader, after.isr, after.elr) == (B1, (B1, B3), ())
    assert after.leader_epoch == before.leader_epoch + 1
    with pytest.raises(KafkaError) as late:
        world.alter(
            (B1, B2, B3),
            leader_epoch=before.leader_epoch,
            partition_epoch=PartitionEpoch(after.partition_epoch),
        )
    assert late.value.code is ErrorCode.FENCED_LEADER_EPOCH
    world.pass_time(1_000)
    assert world.partition() == after, "said again, it changes nothing"


def test_rule_r4_a_damaged_replica_out_of_the_isr_is_fenced_off_too() -> None:
    """Its leader may be about to propose what it saw of the log that is about to be emptied."""
    world = running()
    world.alter((B1, B3))
    before = world.partition()
    damaged(world, B2)
    world.pass_time(100)
    after = world.partition()
    assert (after.leader_epoch, after.isr) == (before.leader_epoch + 1, before.isr)
    world.pass_time(1_000)
    assert world.partition() == after


def test_rule_g3_a_damaged_leader_hands_over_and_leaves_once_it_has_heard_of_it() -> None:
    world = running()
    damaged(world, B1)
    world.behind[B1] = world.image.next_offset
    world.pass_time(100)
    handed = world.partition()
    assert (handed.leader, handed.isr) == (B2, (B1, B2, B3)), "until then nothing is committed"
    del world.behind[B1]
    world.pass_time(100)
    after = world.partition()
    assert (after.leader, after.isr, after.elr) == (B2, (B2, B3), ())
    assert after.leader_epoch == handed.leader_epoch, "its log took no part in this epoch"


def test_rule_q2_without_a_healthy_replica_a_damaged_leader_stays_and_none_is_emptied() -> None:
    """Two of three are damaged, perhaps at different places; the third is not in sync."""
    world = running()
    world.alter((B1, B2))
    before = world.partition()
    damaged(world, B1, B2)
    world.pass_time(1_000)
    assert world.partition() == before
    world.catch_up(B3)
    world.pass_time(200)
    after = world.partition()
    assert (after.leader, after.isr) == (B3, (B3,)), "now somebody sound holds everything"


def test_the_last_in_sync_replica_keeps_leading_until_an_eligible_one_is_back() -> None:
    world = running()
    world.kill(B2, B3)
    assert (world.partition().isr, set(world.partition().elr)) == ((B1,), {B2, B3})
    damaged(world, B1)
    world.pass_time(500)
    assert (world.partition().leader, world.partition().isr) == (B1, (B1,))
    world.join(B2, life="b")
    world.pass_time(200)
    after = world.partition()
    assert (after.leader, after.isr) == (B2, (B2,))
    assert B1 not in after.elr


def test_a_clean_election_passes_a_damaged_replica_by() -> None:
    """The leader dies before the damage is recorded: who is sound leads."""
    world = running()
    damaged(world, B2)
    world.kill(B1)
    assert (world.partition().leader, world.partition().isr) == (B3, (B3,))


@pytest.mark.parametrize("unclean", ["true", "false"])
def test_rule_q5_what_a_damaged_replica_in_sync_holds_is_not_given_up_for_somebody_away(
    unclean: str,
) -> None:
    """An offline replica may never return; broker 3, which is up, lacks acknowledged records."""
    world = running()
    configs = {"min.insync.replicas": "1", "unclean.leader.election.enable": unclean}
    world.create("one", 2, assignments={0: (1, 2, 3)}, configs=configs)
    world.alter((B1, B2), number=2)
    fall_silent(world, B1)
    say_damaged(world, B2, number=2)
    world.beat(B2)
    world.decide_all()
    world.pass_time(200)
    after = world.partition(2)
    assert (after.leader, after.isr) == (B2, (B2,)), "but for a batch it holds everything"
    world.join(B1, life="b")
    world.alter((B1, B2), number=2)
    world.pass_time(200)
    assert (world.partition(2).leader, world.partition(2).isr) == (B1, (B1,))


def test_an_election_waits_for_a_healthy_replica_that_is_starting() -> None:
    world = running()
    world.create("one", 2, assignments={0: (1, 2)}, configs={"min.insync.replicas": "1"})
    old = world.alive[B1]
    fall_silent(world, B1)
    world.register(registration(B1, life="b", last=old))
    say_damaged(world, B2, number=2)
    world.beat(B2)
    while world.decide_one():
        pass
    waits = world.partition(2)
    assert (waits.leader, waits.isr) == (NO_LEADER, (B1, B2))
    world.behind[B1] = MetadataOffset(world.alive[B1])
    world.beat(B1)
    world.beat(B2)
    while world.decide_one():
        pass
    assert world.partition(2).isr == (B1, B2), "he lives, and may not come as far as to lead"
    del world.behind[B1]
    world.pass_time(200)
    assert (world.partition(2).leader, world.partition(2).isr) == (B1, (B1,))


def test_a_replica_that_alone_is_left_leads_although_it_is_damaged() -> None:
    world = running()
    world.create("one", 2, assignments={0: (2,)}, configs={"min.insync.replicas": "1"})
    world.failed[B2] = (
        DamagedReplica(
            topic_id=topic_id(2), partition=PartitionId(0), leader_epoch=LeaderEpoch(0),
            can_lead=True,
        ),
    )  # fmt: skip
    world.pass_time(500)
    assert (world.partition(2).leader, world.partition(2).isr) == (B2, (B2,))


def test_a_replica_that_can_not_lead_leaves_even_where_no_other_can() -> None:
    world = running()
    world.kill(B2, B3)
    damaged(world, B1, can_lead=False)
    world.pass_time(200)
    after = world.partition()
    assert (after.leader, after.isr, set(after.elr)) == (NO_LEADER, (), {B2, B3})
    world.join(B3, life="b")
    assert world.partition().leader == B3


@pytest.mark.parametrize("how", ["operator", "topic"])
def test_an_unclean_election_takes_a_damaged_replica_last(how: str) -> None:
    """Broker 2 led last; it would be the first choice, and can't serve what it holds."""
    world = running()
    world.kill(B1)
    world.alter((B2,))
    world.kill(B2)
    world.kill(B3)
    world.failed[B2] = (
        DamagedReplica(
            topic_id=topic_id(1), partition=PartitionId(0), leader_epoch=LeaderEpoch(-1),
            can_lead=False,
        ),
    )  # fmt: skip
    world.join(B2, life="b")
    world.join(B3, life="b")
    world.pass_time(200)
    if world.partition().leader == NO_LEADER:
        (result,) = world.elect(Election.UNCLEAN, 0)
        assert result.error is None
    assert world.partition().leader == B3


def test_a_replica_that_can_not_be_opened_is_not_elected_again_and_again() -> None:
    world = running()
    world.create(
        "one",
        2,
        assignments={0: (2,)},
        configs={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
    )
    world.failed[B2] = (
        DamagedReplica(
            topic_id=topic_id(2), partition=PartitionId(0), leader_epoch=LeaderEpoch(-1),
            can_lead=False,
        ),
    )  # fmt: skip
    world.pass_time(200)
    before = world.partition(2)
    assert before.leader == NO_LEADER
    world.pass_time(1_000)
    assert world.partition(2) == before
    (result,) = world.elect(Election.UNCLEAN, 0, name="one")
    assert "can't be opened" in result.message
    world.failed.clear()
    world.pass_time(200)
    assert world.partition(2).leader == B2


def test_a_broker_is_unfenced_while_another_one_can_not_be_elected() -> None:
    """A debt is judged as it is decided: an election that can't be held does not count."""
    world = running()
    world.create(
        "two",
        2,
        assignments={0: (2, 3)},
        configs={"min.insync.replicas": "1", "unclean.leader.election.enable": "true"},
    )
    world.kill(B3)
    world.failed[B2] = (
        DamagedReplica(
            topic_id=topic_id(2), partition=PartitionId(0), leader_epoch=LeaderEpoch(-1),
            can_lead=False,
        ),
    )  # fmt: skip
    world.pass_time(200)
    assert world.partition(2).leader == NO_LEADER
    world.join(B3, life="b")
    world.pass_time(200)
    assert world.partition(2).leader == B3


def test_a_preferred_election_leaves_a_damaged_replica_alone() -> None:
    world = running()
    world.kill(B1)
    world.join(B1, life="b")
    world.alter((B1, B2))
    damaged(world, B1, B2)
    world.pass_time(200)
    (result,) = world.elect(Election.PREFERRED, 0)
    assert "preferred leader 1 has a damaged log" in result.message
    world.pass_time(60_000)
    assert (world.partition().leader, world.partition().isr) == (B2, (B1, B2)), "nor later"


def test_a_heartbeat_that_was_overtaken_says_nothing_of_damage() -> None:
    """The heartbeat may have been sent before the log was filled again."""
    world = running()
    before = world.partition()
    damaged(world, B2)
    late = world.said(B2)
    world.failed.clear()
    world.beat(B2)
    world.core.heartbeat(world.image, late, world.now_ms, is_active=True)
    world.decide_all()
    assert world.partition() == before


def test_a_new_controller_knows_from_the_heartbeats_it_heard_as_a_standby() -> None:
    world = running()
    damaged(world, B2)
    world.core.heartbeat(world.image, world.said(B2), world.now_ms, is_active=False)
    world.decide_all()
    assert B2 in world.partition().isr, "a standby decides nothing"
    world.core.activate(world.image)
    world.decide_all()
    assert world.partition().isr == (B1, B3)


def test_rule_g3_a_damaged_leader_is_waited_for_by_whoever_leads_after_its_successor() -> None:
    """Its successor dies before it has heard of anything: it still answers readers."""
    world = running()
    damaged(world, B1)
    world.behind[B1] = world.image.next_offset
    world.pass_time(100)
    assert world.partition().leader == B2
    world.kill(B2)
    after = world.partition()
    assert (after.leader, after.isr) == (B3, (B1, B3)), "what it says stays so"
    del world.behind[B1]
    world.pass_time(100)
    assert world.partition().isr == (B3,)


def test_rule_r11_a_sound_leader_does_not_leave_its_place_to_a_damaged_replica() -> None:
    """Shut down while the one that it relieved is in sync still: it alone holds everything."""
    world = running(min_isr=1)
    world.alter((B1, B2))
    damaged(world, B1)
    world.behind[B1] = world.image.next_offset
    world.pass_time(100)
    assert world.partition().leader == B2
    world.beat(B2, want_shutdown=True)
    world.decide_all()
    assert (world.partition().leader, world.partition().isr) == (B2, (B1, B2))
    del world.behind[B1]
    world.beat(B1)
    world.decide_all()
    after = world.partition()
    assert (after.leader, after.isr) == (B2, (B2,))
    world.failed.clear()
    world.beat(B1)
    world.alter((B1, B2))
    world.decide_all()
    assert world.partition().leader == B1, "filled again it takes over"


def test_rule_r11_a_damaged_leader_that_leaves_waits_for_nobody_to_join_from_its_log() -> None:
    """An eligible replica holds everything, and may never catch up with unreadable records."""
    world = running()
    world.kill(B2, B3)
    world.join(B2, life="b")
    world.beat(B1, want_shutdown=True)
    world.decide_all()
    assert (world.partition().leader, world.partition().isr) == (B1, (B1,)), "B2 may join"
    damaged(world, B1)
    world.beat(B1, want_shutdown=True)
    world.decide_all()
    assert world.partition().leader == B2, "at once"
    for _ in range(2):
        world.beat(B2)
        answer = world.beat(B1, want_shutdown=True)
        world.decide_all()
    assert world.partition().isr == (B2,)
    assert answer.should_shut_down


def test_invariant_p8_a_reassignment_is_not_through_while_who_is_to_stay_is_damaged() -> None:
    """The replica to be removed may hold the only good copy; it is deleted once it is out."""
    world = running()
    world.create("one", 2, assignments={0: (1,)}, configs={"min.insync.replicas": "1"})
    world.reassign((2,), name="one")
    world.pass_time(100)
    world.behind[B1] = world.image.next_offset
    world.alter((B1, B2), number=2)
    for _ in range(3):
        world.decide_one()
    moving = world.partition(2)
    assert (moving.leader, set(moving.isr)) == (B2, {B1, B2})
    world.failed[B2] = (
        DamagedReplica(
            topic_id=topic_id(2), partition=PartitionId(0), leader_epoch=moving.leader_epoch,
            can_lead=True,
        ),
    )  # fmt: skip
    world.beat(B2)
    del world.behind[B1]
    world.pass_time(200)
    after = world.partition(2)
    assert (after.leader, after.isr, set(after.replicas)) == (B1, (B1,), {B1, B2})
    world.failed.clear()
    world.pass_time(100)
    world.alter((B1, B2), number=2)
    world.pass_time(200)
    assert (world.partition(2).leader, world.partition(2).replicas) == (B2, (B2,))


def test_invariant_p11_an_emptied_replica_is_not_the_first_choice_of_an_unclean_election() -> None:
    world = running()
    world.alter((B1, B3))
    damaged(world, B3)
    world.pass_time(100)
    assert (world.partition().isr, world.partition().last_known_elr) == ((B1,), ())
    world.failed.clear()
    world.pass_time(100)
    world.kill(B1)
    (result,) = world.elect(Election.UNCLEAN, 0)
    assert result.leader == B2, "it lagged, but has not been emptied"
