"""Who is elected when (KIP-966, KIP-460), and what is remembered while nobody is."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import NO_LEADER, BrokerId, PartitionId, TopicIdPartition, TopicName
from raft_metadata.controller.controller import Controller
from raft_metadata.controller.election_control import ELECTIONS_MAX, election_steps
from raft_metadata.image.snapshot import image_from_records, snapshot_of
from raft_metadata.records.commands import (
    AlterConfigs,
    ConfigChange,
    Election,
    ElectLeaders,
    PartitionPlace,
    RegisterBroker,
)
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import (
    BrokerState,
    ConfigRecord,
    DrainScope,
    FeatureLevelRecord,
    ResourceType,
)
from tests.support.metadata_world import TICK_MS, World, config, registration, topic_id

B1, B2, B3 = map(BrokerId, (1, 2, 3))
HERE = TopicIdPartition(topic_id(1), PartitionId(0))
OS = {"flush": "os"}
PREFERRED, UNCLEAN = Election.PREFERRED, Election.UNCLEAN


def running(replicas: tuple[int, ...] = (1, 2, 3), configs: dict[str, str] | None = None) -> World:
    """Three unfenced brokers and topic t with one partition, led by its first replica."""
    world = World()
    world.append((FeatureLevelRecord(level=SUPPORTED_FEATURE_LEVEL),))
    world.join(B1, B2, B3)
    world.create(assignments={0: replicas}, configs=configs or {})
    return world


def back(world: World, broker: BrokerId, *, unclean: bool = False, disk: str = "") -> None:
    """A dead broker's next process registers; nobody has heard its heartbeat yet."""
    known = world.image.brokers[broker]
    command: RegisterBroker = registration(
        broker,
        life=f"after {known.broker_epoch}",
        disk=disk,
        last=known.broker_epoch,
        unclean=[HERE] if unclean else (),
    )
    world.register(command)
    world.decide_all()


def power_cut(world: World, *brokers: BrokerId) -> None:
    """All of them die, and come back without proof of what they held; in this order."""
    world.kill(*brokers)
    for broker in brokers:
        back(world, broker, unclean=True)


# ---- what is remembered while nobody leads


def test_invariant_p11_a_replica_without_proof_is_remembered_and_the_last_leader() -> None:
    world = running()
    power_cut(world, B3, B2, B1)
    partition = world.partition()
    assert (partition.isr, partition.elr, partition.leader) == ((), (), NO_LEADER)
    assert partition.last_known_leader == 1
    assert len(partition.last_known_elr) >= 2, "as many as min ISR"
    image = world.image
    assert image_from_records(snapshot_of(image).records, image.next_offset, image.epoch) == image


def test_rule_r6_another_disk_is_nobody_s_last_known() -> None:
    world = running((1, 2))
    world.kill(B1, B2)
    assert world.partition().last_known_leader == 1
    back(world, B1, disk="new")
    back(world, B2, unclean=True)
    partition = world.partition()
    assert partition.last_known_leader == NO_LEADER
    assert partition.last_known_elr == (2,)
    world.pass_time(3 * TICK_MS)
    assert not world.partition().has_leader


def test_the_last_known_leader_is_cleared_by_the_election() -> None:
    world = running(configs=OS)
    power_cut(world, B1, B2, B3)
    assert world.partition().last_known_leader != NO_LEADER
    world.pass_time(3 * TICK_MS)
    partition = world.partition()
    assert partition.has_leader
    assert (partition.last_known_leader, partition.last_known_elr) == (NO_LEADER, ())


# ---- without an operator


@pytest.mark.parametrize("replicas", [(1,), (1, 2, 3)])
def test_rule_r6_with_flush_os_the_last_known_leader_leads_again(
    replicas: tuple[int, ...],
) -> None:
    world = running(replicas, OS)
    power_cut(world, *map(BrokerId, replicas))
    last = world.partition().last_known_leader
    epoch = world.partition().leader_epoch
    world.pass_time(3 * TICK_MS)
    partition = world.partition()
    assert (partition.leader, partition.isr, partition.elr) == (last, (last,), ())
    assert partition.unclean_epoch == partition.leader_epoch == epoch + 1, "invariant P5"


def test_with_flush_os_only_the_last_known_leader() -> None:
    world = running(configs=OS)
    world.kill(B3, B2, B1)
    back(world, B3, unclean=True)
    back(world, B2, unclean=True)
    world.pass_time(3 * TICK_MS)
    assert not world.partition().has_leader, "1 led last, and may hold more"
    back(world, B1, unclean=True)
    world.pass_time(3 * TICK_MS)
    assert world.partition().leader == 1


def test_with_flush_os_nobody_is_elected_uncleanly_while_somebody_is_eligible() -> None:
    world = running((1, 2), OS)
    world.kill(B1, B2)
    back(world, B1, unclean=True)
    world.pass_time(3 * TICK_MS)
    assert (world.partition().last_known_leader, world.partition().elr) == (1, (2,))
    assert not world.partition().has_leader, "2 may hold all of it"
    world.join(B2, life="b")
    assert world.partition().leader == 2
    assert world.partition().unclean_epoch == -1


def test_rule_r6_with_flush_ack_nobody_without_proof_leads() -> None:
    world = running((1,))
    power_cut(world, B1)
    world.pass_time(20 * TICK_MS)
    assert not world.partition().has_leader


def test_a_topic_that_prefers_a_leader_gets_one() -> None:
    world = running(configs={"unclean.leader.election.enable": "true"})
    for broker in (B1, B2, B3):
        world.kill(broker)
    assert world.partition().elr == (2, 3)
    world.join(B1, life="b")
    partition = world.partition()
    assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
    assert partition.unclean_epoch == partition.leader_epoch


def test_an_unclean_election_waits_for_a_starting_replica_that_holds_everything() -> None:
    world = running(configs={"unclean.leader.election.enable": "true"})
    for broker in (B1, B2, B3):
        world.kill(broker)
    assert world.partition().elr == (2, 3)
    back(world, B3)
    assert world.state(B3) is BrokerState.STARTING
    back(world, B1)
    world.alive.pop(B3)
    world.pass_time(3 * TICK_MS)
    assert not world.partition().has_leader
    world.alive[B3] = world.image.brokers[B3].broker_epoch
    world.pass_time(3 * TICK_MS)
    assert world.partition().leader == 3
    assert world.partition().unclean_epoch == -1


def test_a_config_that_allows_it_is_followed_at_once() -> None:
    world = running((1, 2))
    world.kill(B2, B1)
    back(world, B1, disk="new")
    back(world, B2, unclean=True)
    world.pass_time(3 * TICK_MS)
    assert not world.partition().has_leader
    change = ConfigChange(
        resource_type=ResourceType.TOPIC,
        resource_name="t",
        name="unclean.leader.election.enable",
        value="true",
    )
    world.ask(AlterConfigs(changes=(change,)))
    world.decide_all()
    assert world.partition().leader == 2


# ---- preferred, by an operator


def moved_away() -> World:
    """Partition 0 of t prefers broker 1; broker 2 leads it, and 1 is in sync again."""
    world = running()
    world.kill(B1)
    world.join(B1, life="b")
    world.catch_up(B1)
    world.decide_all()
    assert world.partition().leader == 2
    return world


def test_invariant_p9_the_preferred_leader_is_elected_from_the_isr() -> None:
    world = moved_away()
    epoch = world.partition().leader_epoch
    (result,) = world.elect(PREFERRED, 0)
    partition = world.partition()
    assert (result.leader, result.error) == (1, None)
    assert (partition.leader, partition.leader_epoch) == (1, epoch + 1)
    assert partition.isr == (1, 2, 3)
    before = world.image
    assert world.elect(PREFERRED, 0)[0].leader == 1
    assert world.image is before, "it leads already"


def test_invariant_p9_a_preferred_leader_that_can_not_lead_says_why() -> None:
    world = moved_away()
    world.alter((B2, B3))
    (result,) = world.elect(PREFERRED, 0)
    assert result.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE.number
    assert "not in the ISR [2, 3]" in result.message
    world.kill(B1)
    assert "is fenced" in world.elect(PREFERRED, 0)[0].message
    world = moved_away()
    world.drain(B1, DrainScope.LEADERS)
    assert "is being drained" in world.elect(PREFERRED, 0)[0].message


def test_an_election_says_which_partitions_there_are_not() -> None:
    world = running()
    results = world.elect(PREFERRED, 0, 7)
    assert [result.error for result in results] == [
        None,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.number,
    ]
    assert world.elect(PREFERRED, 0, name="other")[0].error is not None


def test_without_names_every_partition_that_could_change_is_tried() -> None:
    world = running()
    world.create("u", 2, assignments={0: (1, 2, 3), 1: (2, 3, 1), 2: (3, 1, 2)})
    world.kill(B1)
    world.join(B1, life="b")
    world.catch_up(B1)
    results = {(str(each.topic), int(each.partition)): each for each in world.elect(PREFERRED)}
    assert results.keys() == {("t", 0), ("u", 0)}
    assert results["t", 0].leader == 1
    assert results["u", 0].error is not None


def test_rule_m4_a_large_election_is_cut_into_bounded_parts() -> None:
    world = running()
    world.create("u", 2, assignments=dict.fromkeys(range(7), (1, 2, 3)))
    places = tuple(PartitionPlace(topic=TopicName("u"), partition=PartitionId(n)) for n in range(7))
    named = ElectLeaders(election=PREFERRED, partitions=(*places, *places))
    parts = [part.partitions or () for part in election_steps(world.image, named, 3)]
    assert list(map(len, parts)) == [3, 3, 1], "and nobody twice"
    world.kill(B1)
    everyone = ElectLeaders(election=PREFERRED)
    parts = [part.partitions or () for part in election_steps(world.image, everyone, 5)]
    assert list(map(len, parts)) == [5, 3]
    none = list(election_steps(world.image, ElectLeaders(election=UNCLEAN), 5))
    assert none == [], "all of them are led"


# ---- unclean, by an operator


def test_an_unclean_election_changes_nothing_where_somebody_leads() -> None:
    world = running()
    before = world.image
    assert world.elect(UNCLEAN, 0)[0].leader == 1
    assert world.image is before


def test_a_partition_that_is_refused_does_not_end_the_election_of_the_others() -> None:
    world = running()
    world.create("two", 2, assignments={0: (1, 2, 3), 1: (2, 1, 3)})
    world.kill(B1)
    refused, elected = world.elect(PREFERRED, 0, 1, name="two")
    assert refused.error == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE.number
    assert (elected.leader, elected.error) == (2, None)


def test_an_election_names_as_many_partitions_as_the_limit_says() -> None:
    world = running()
    place = PartitionPlace(topic=TopicName("t"), partition=PartitionId(0))
    most = ElectLeaders(election=UNCLEAN, partitions=(place,) * ELECTIONS_MAX)
    assert next(election_steps(world.image, most, 1_000)).partitions == (place,)
    over = replace(most, partitions=(place,) * (ELECTIONS_MAX + 1))
    with pytest.raises(KafkaError, match=f"at most {ELECTIONS_MAX} can be named"):
        next(election_steps(world.image, over, 1_000))


def test_an_operator_s_unclean_election_takes_the_last_known_leader_first() -> None:
    world = running()
    power_cut(world, B3, B2, B1)
    world.pass_time(3 * TICK_MS)
    (result,) = world.elect(UNCLEAN, 0)
    partition = world.partition()
    assert (result.leader, result.error) == (1, None)
    assert (partition.leader, partition.isr, partition.unclean_epoch) == (
        1,
        (1,),
        partition.leader_epoch,
    )


def test_then_one_that_was_eligible_then_any_replica_that_lives() -> None:
    world = running()
    power_cut(world, B1, B3, B2)
    world.pass_time(3 * TICK_MS)
    last = world.partition().last_known_leader
    eligible = [each for each in world.partition().last_known_elr if each != last]
    world.kill(last)
    assert world.elect(UNCLEAN, 0)[0].leader == eligible[0]
    world = running((1, 2))
    world.kill(B2)
    world.alter((B1,))
    world.kill(B1)
    back(world, B1, disk="new")
    back(world, B2, disk="new too")
    world.pass_time(3 * TICK_MS)
    assert world.partition().last_known_elr == ()
    world.drain(B1, DrainScope.LEADERS)
    assert world.elect(UNCLEAN, 0)[0].leader == 2, "1 is preferred, and drained"


def test_with_nobody_alive_an_unclean_election_fails_and_says_so() -> None:
    world = running()
    world.kill(B1, B2, B3)
    (result,) = world.elect(UNCLEAN, 0)
    assert result.error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE.number
    assert "none of its replicas" in result.message


def test_nothing_is_lost_by_an_operator_s_haste() -> None:
    world = running()
    for broker in (B1, B2, B3):
        world.kill(broker)
    assert world.partition().elr == (2, 3)
    back(world, B3)
    back(world, B1)
    world.alive.pop(B3)
    world.pass_time(3 * TICK_MS)
    (result,) = world.elect(UNCLEAN, 0)
    assert result.error == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE.number
    assert "starting" in result.message


# ---- back to the preferred leader, by itself


def balanced(world: World, ms: int) -> bool:
    world.pass_time(ms)
    return world.partition().leader == 1


def test_leadership_goes_back_once_the_preferred_leader_has_stayed() -> None:
    world = moved_away()
    assert not balanced(world, world.config.leader_returned_ms - 2_000), "it may die again"
    assert balanced(world, 13_000)
    assert world.partition().isr == (1, 2, 3)


def test_leadership_goes_back_whatever_the_other_replicas_are_doing() -> None:
    world = moved_away()
    world.drain(B3, DrainScope.LEADERS)
    assert balanced(world, 60_000)


def test_leadership_goes_back_only_once_its_broker_has_been_unfenced_for_long() -> None:
    """The time that it was registered and fenced does not count."""
    world = running()
    world.kill(B1)
    world.behind[B1] = world.image.next_offset
    back(world, B1)
    world.pass_time(60_000)
    assert world.state(B1) is BrokerState.STARTING
    del world.behind[B1]
    world.pass_time(2 * TICK_MS)
    assert world.state(B1) is BrokerState.UNFENCED
    world.catch_up(B1)
    assert not balanced(world, world.config.leader_returned_ms - 2_000)
    assert balanced(world, 13_000)


def test_leadership_does_not_go_back_where_an_operator_says_so() -> None:
    world = moved_away()
    change = ConfigChange(
        resource_type=ResourceType.CLUSTER,
        resource_name="",
        name="auto.leader.rebalance.enable",
        value="false",
    )
    world.ask(AlterConfigs(changes=(change,)))
    assert not balanced(world, 60_000)


def test_leaders_stay_while_replicas_move() -> None:
    world = running()
    world.join(BrokerId(4))
    world.reassign((3, 2, 4))
    world.pass_time(60_000)
    assert world.partition().leader == 1, "it moves once, when the replicas have"
    world.catch_up(BrokerId(4))
    world.decide_all()
    assert world.partition().leader == 3


@pytest.mark.parametrize("why", ["drained", "not in sync"])
def test_leadership_does_not_go_back_to_a_replica_that_should_not_lead(why: str) -> None:
    world = moved_away()
    if why == "drained":
        world.drain(B1, DrainScope.LEADERS)
    else:
        world.alter((B2, B3))
    assert not balanced(world, 60_000)
    if why == "drained":
        world.drain(B1, DrainScope.NONE)
    else:
        world.catch_up(B1)
    assert balanced(world, 20_000)


def test_leaderships_go_back_a_bounded_number_at_a_time() -> None:
    world = World(config=config(leader_moves_max=2))
    world.decide_all()
    world.join(B1, B2, B3)
    world.create(assignments=dict.fromkeys(range(5), (1, 2, 3)))
    world.kill(B1)
    world.join(B1, life="b")
    for index in range(5):
        world.catch_up(B1, index=index)
    world.log.clear()
    world.pass_time(70_000)
    assert [len(batch) for batch in world.log] == [2, 2, 1]
    topic = world.image.topics[topic_id(1)]
    assert {partition.leader for partition in topic.partitions} == {1}


def test_a_new_controller_waits_before_it_moves_leaders() -> None:
    world = moved_away()
    world.pass_time(25_000)
    world.core.activate(world.image)
    assert not balanced(world, 15_000), "it does not know for how long 1 has been there"
    assert balanced(world, 30_000)


# ---- a leader that does not know of a higher min ISR


def test_a_leader_shrinks_its_isr_below_min_isr_only_once_it_knows_it() -> None:
    world = running(configs={"min.insync.replicas": "1"})
    record = ConfigRecord(
        resource_type=ResourceType.TOPIC,
        resource_name=topic_id(1),
        name="min.insync.replicas",
        value="2",
    )
    world.append((record,))
    with pytest.raises(KafkaError) as error:
        world.alter((B1,))
    assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION
    world.alter((B1, B2))
    world.beat(B1)
    world.alter((B1,))
    assert world.partition().elr == (2,), "and not 3, which left before"


def test_a_new_controller_does_not_know_what_min_isr_a_leader_has_seen() -> None:
    """The controller has no history: any change in the image may be the newest."""
    world = running(configs={"min.insync.replicas": "1"})
    record = ConfigRecord(
        resource_type=ResourceType.TOPIC,
        resource_name=topic_id(1),
        name="min.insync.replicas",
        value="2",
    )
    world.append((record,))
    world.core = Controller(world.config, Random(1).randbytes, world.now_ms)
    world.core.activate(world.image)
    with pytest.raises(KafkaError) as error:
        world.alter((B1,))
    assert error.value.code is ErrorCode.INVALID_UPDATE_VERSION
    world.beat(B1)
    world.alter((B1,))
    assert world.partition().isr == (1,)
