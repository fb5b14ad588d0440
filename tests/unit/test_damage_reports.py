"""What controllers believe of reports of damage: late ones, those of another controller, pages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.controller.broker_sessions import DamageReports
from raft_metadata.controller.controller import Controller
from raft_metadata.records.commands import (
    DAMAGED_REPLICAS_MAX,
    BrokerHeartbeat,
    DamagedReplica,
    Election,
    next_page,
    replica_partition,
)
from tests.support.metadata_world import BROKERS, World, config, topic_id

B1, B2, B3 = BROKERS
MANY = 2 * DAMAGED_REPLICAS_MAX + 50


def running(**configs: str) -> World:
    """Three brokers; the first partition of topic 2 is led by broker 1, min ISR is 1."""
    world = World(config=config())
    world.decide_all()
    world.join(*BROKERS)
    world.create()
    world.create(
        "one", 2, assignments={0: (1, 2, 3)}, configs={"min.insync.replicas": "1"} | configs
    )
    return world


def failed(number: int, index: int, *, can_lead: bool = True, epoch: int = 0) -> DamagedReplica:
    return DamagedReplica(
        topic_id=topic_id(number),
        partition=PartitionId(index),
        leader_epoch=LeaderEpoch(epoch),
        can_lead=can_lead,
    )


def standby(world: World) -> Controller:
    """Another controller, which has heard of everybody by now."""
    core = Controller(world.config, bytes, world.now_ms)
    hears(world, core, *world.alive)
    return core


def hears(world: World, core: Controller, *brokers: BrokerId) -> None:
    for broker in brokers:
        core.heartbeat(world.image, world.said(broker), world.now_ms, is_active=False)


def takes_over(world: World, core: Controller) -> None:
    """It knows what it heard as a standby, up to a session ago."""
    core.sessions.judge(world.now_ms)
    core.activate(world.image)
    world.core = core


def filled_again_and_alone(world: World, can_lead: bool) -> BrokerHeartbeat:
    """Broker 2's log is damaged, said, set aside and filled; then it alone is left in sync.

    What it said of the log that is no more.
    """
    world.failed[B2] = (failed(2, 0, can_lead=can_lead),)
    late = world.said(B2)
    world.pass_time(100)
    assert world.partition(2).isr == (B1, B3)
    world.failed.clear()
    world.alter(BROKERS, number=2)
    world.alter((B1, B2), number=2)
    world.pass_time(100)
    world.alive.pop(B1)
    world.pass_time(world.config.broker_session_timeout_ms + 100)
    after = world.partition(2)
    assert (after.leader, after.isr) == (B2, (B2,))
    return late


@pytest.mark.parametrize("unclean", ["false", "true"])
@pytest.mark.parametrize("can_lead", [False, True])
def test_rule_r6_a_report_of_a_log_that_is_no_more_takes_nobody_out(
    can_lead: bool, unclean: str
) -> None:
    """A controller that takes over believes it? Then who alone holds everything does not count."""
    world = running(**{"unclean.leader.election.enable": unclean})
    late = filled_again_and_alone(world, can_lead)
    core = standby(world)
    core.sessions.session(B2, world.alive[B2]).damage.number = 0  # type: ignore[union-attr]
    core.heartbeat(world.image, late, world.now_ms, is_active=False)
    takes_over(world, core)
    world.decide_all()
    after = world.partition(2)
    assert (after.leader, after.isr) == (B2, (B2,))
    world.pass_time(200)
    assert world.partition(2) == after


def test_rule_r6_a_late_report_lets_nobody_else_lead_uncleanly() -> None:
    """The only eligible replica has just returned: its damage report must arrive first."""
    world = running()
    late = filled_again_and_alone(world, can_lead=False)
    epoch = world.alive[B2]
    world.alive.pop(B2)
    world.pass_time(world.config.broker_session_timeout_ms + 100)
    assert (world.partition(2).leader, world.partition(2).elr) == (NO_LEADER, (B2,))
    world.beats = 10**6
    world.core.heartbeat(
        world.image, replace(late, number=world.beats), world.now_ms, is_active=True
    )
    while world.decide_one():
        pass
    assert (world.partition(2).leader, world.partition(2).elr) == (NO_LEADER, (B2,))
    (result,) = world.elect(Election.UNCLEAN, 0, name="one")
    assert "about to say what they hold" in result.message
    world.alive[B2] = epoch
    world.pass_time(100)
    assert (world.partition(2).leader, world.partition(2).isr) == (B2, (B2,))


def test_a_late_report_to_the_same_controller_is_one_of_the_past() -> None:
    world = running()
    late = filled_again_and_alone(world, can_lead=False)
    before = world.partition(2)
    world.core.heartbeat(world.image, late, world.now_ms, is_active=True)
    world.decide_all()
    newest = replace(late, number=10**6, metadata_offset=world.image.next_offset)
    world.core.heartbeat(world.image, newest, world.now_ms, is_active=True)
    world.decide_all()
    assert world.partition(2) == before, "nor behind what it has heard since"


def test_an_election_right_after_a_take_over_passes_by_who_was_damaged_a_moment_ago() -> None:
    """Its report is not believed, and yet it is worth a moment: nobody is taken out for it."""
    world = running()
    world.failed[B2] = (failed(2, 0),)
    core = standby(world)
    world.core.activate(world.image)
    world.alter((B1, B2, B3), number=2)  # whatever it was: the report is of the past
    world.alive.pop(B1)
    core.sessions.expect_brokers([(B1, world.image.brokers[B1].broker_epoch)], world.now_ms)
    for _ in range(40):
        world.now_ms += 50
        hears(world, core, B3)
        core.heartbeat(
            world.image, replace(world.said(B2), failed=()), world.now_ms, is_active=False
        )
        core.sessions.judge(world.now_ms)
    session = core.sessions.session(B2, world.alive[B2])
    assert session is not None
    session.damage.failed = {replica_partition(one): one for one in world.failed[B2]}
    core.activate(world.image)
    for _ in range(10):  # its grace
        world.now_ms += 50
        hears(world, core, B3)
        core.sessions.judge(world.now_ms)
    world.core = core
    world.decide_all()
    after = world.partition(2)
    assert (after.leader, after.isr) == (B3, (B2, B3))


def test_invariant_p8_a_controller_without_news_of_a_replica_ends_no_reassignment_to_it() -> None:
    """A controller that has just begun knows of no damage: who is to go may hold what lacks."""
    world = running()
    world.reassign((2,), name="one")
    world.alter((B1, B2), number=2)
    world.failed[B2] = (failed(2, 0, epoch=world.partition(2).leader_epoch),)
    core = Controller(world.config, bytes, world.now_ms)
    takes_over(world, core)
    for _ in range(4):
        for other in (B1, B3):
            world.beat(other)
        while world.decide_one():
            pass
    assert (world.partition(2).leader, world.partition(2).is_reassigning) == (B1, True)
    world.pass_time(200)
    assert B1 in world.partition(2).replicas, "it is told now, and waits"
    world.failed.clear()
    world.pass_time(100)
    world.alter((B1, B2), number=2)
    world.pass_time(200)
    assert world.partition(2).replicas == (B2,)


@pytest.mark.parametrize("by_connection", [True, False])
def test_a_broker_that_comes_back_before_it_is_fenced_holds_up_no_reassignment(
    by_connection: bool,
) -> None:
    """A new controller fences nobody at first: it looked while the session was over."""
    world = running()
    core = standby(world)
    world.reassign((2,), name="one")
    epoch = world.alive[B2]
    core.sessions.connection_opened(B2, epoch, world.now_ms)
    core.sessions.connection_closed(B2, epoch, world.now_ms)
    for _ in range(world.config.broker_disconnect_grace_ms // 50 + 1):
        world.now_ms += 50
        hears(world, core, B1, B3)
        core.sessions.judge(world.now_ms)
    assert core.sessions.has_expired(B2, epoch)
    world.alter((B1, B2), number=2)
    takes_over(world, core)
    while world.decide_one():
        pass
    assert world.partition(2).is_reassigning, "it said that nothing is damaged, and is silent now"
    if by_connection:
        core.sessions.connection_opened(B2, epoch, world.now_ms)
    for _ in range(4):
        for broker in BROKERS:
            world.beat(broker)
        while world.decide_one():
            pass
    assert (world.partition(2).replicas, world.partition(2).is_reassigning) == ((B2,), False)


# ---- pages


def beat(number: int, *reports: DamagedReplica) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        broker_id=B2,
        broker_epoch=BrokerEpoch(1),
        metadata_offset=MetadataOffset(9),
        failed=tuple(sorted(reports, key=replica_partition)),
        number=number,
    )


def test_more_than_a_heartbeat_names_are_said_page_by_page_and_none_is_forgotten() -> None:
    reports = DamageReports()
    after: TopicIdPartition | None = None
    all_of_them = [failed(1, index) for index in range(MANY)]
    for number in range(1, 4):
        page = next_page(beat(number, *all_of_them), after)
        assert len(page.failed) <= DAMAGED_REPLICAS_MAX
        news = reports.apply_heartbeat(page)
        assert reports.apply_heartbeat(page).places == (), "its answer was lost: it is sent again"
        assert news.is_report_complete is (number == 3), "all of it is known with the last page"
        after = page.failed_up_to
    assert after is None
    assert len(reports.failed) == MANY
    mended = all_of_them[:5] + all_of_them[6:]
    news = reports.apply_heartbeat(next_page(beat(4, *mended), None))
    assert news.places == (replica_partition(all_of_them[5]),)
    assert len(reports.failed) == MANY - 1
    assert reports.apply_heartbeat(next_page(beat(3, *all_of_them), None)).places == (), "overtaken"
    reports.apply_heartbeat(next_page(beat(5), None))
    assert reports.failed == {}


def test_the_last_page_may_be_full() -> None:
    everything = beat(1, *(failed(1, index) for index in range(2 * DAMAGED_REPLICAS_MAX)))
    first = next_page(everything, None)
    last = next_page(everything, first.failed_up_to)
    assert (len(first.failed), len(last.failed)) == (DAMAGED_REPLICAS_MAX, DAMAGED_REPLICAS_MAX)
    assert first.failed_up_to is not None
    assert last.failed_up_to is None


def test_a_controller_that_missed_the_first_page_waits_for_the_next_round() -> None:
    reports = DamageReports()
    everything = beat(1, *(failed(1, index) for index in range(MANY)))
    first = next_page(everything, None)
    second = next_page(everything, first.failed_up_to)
    third = next_page(everything, second.failed_up_to)
    for page in (second, third):
        assert not reports.apply_heartbeat(page).is_report_complete
    assert [
        reports.apply_heartbeat(page).is_report_complete for page in (first, second, third)
    ] == [False, False, True]


def test_many_that_wait_for_ever_keep_nobody_from_being_mended() -> None:
    """A hundred and more that nobody else holds, and one that two others do."""
    world = World(config=config(partitions=1))
    world.decide_all()
    world.join(*BROKERS)
    alone: dict[int, tuple[int, ...]] = dict.fromkeys(range(MANY), (2,))
    world.create("alone", 1, assignments=alone, configs={"min.insync.replicas": "1"})
    world.create("one", 2, assignments={0: (1, 2, 3)})
    stuck = tuple(failed(1, index) for index in range(MANY))
    world.failed[B2] = (*stuck, failed(2, 0))
    world.pass_time(50 * (MANY // DAMAGED_REPLICAS_MAX + 2))
    assert world.partition(2).isr == (B1, B3)
    assert world.partition(1, 0).leader == B2
    world.failed[B2] = stuck
    world.pass_time(50 * (MANY // DAMAGED_REPLICAS_MAX + 2))
    world.alter(BROKERS, number=2)
    world.pass_time(1_000)
    assert (world.partition(2).isr, world.partition(2).leader) == (BROKERS, B1)
    assert world.partition(2).leader != NO_LEADER


def test_a_late_report_of_a_partition_that_its_broker_does_not_know_is_of_the_past() -> None:
    world = running()
    before = world.partition(2)
    said = replace(
        world.said(B2), failed=(replace(failed(2, 0), partition_epoch=PartitionEpoch(-1)),)
    )
    world.core.heartbeat(world.image, said, world.now_ms, is_active=True)
    world.decide_all()
    assert world.partition(2) == before
