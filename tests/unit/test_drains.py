"""A drain that does not move: when it counts as stuck, and what health prints about it."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from broker.server.drains import STUCK_AFTER_MS, DrainWatch, StuckDrain
from broker.server.health import HealthStatus, judge, tally_partitions
from raft_metadata.common.ids import BrokerId, TopicName
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage
from raft_metadata.records.records import BrokerState, DrainScope
from tests.support import registered
from tests.support.metadata_world import topic_id
from tests.support.quorum_views import controller_state, voter
from tests.support.registered import broker


def image(
    scope: DrainScope,
    *partitions: PartitionRegistration,
    others: BrokerState = BrokerState.UNFENCED,
) -> MetadataImage:
    """Broker 1 is drained; brokers 2 and 3 are in the given state."""
    topic = TopicImage(
        name=TopicName("orders"),
        topic_id=topic_id(1),
        partitions_count=len(partitions),
        partitions=partitions,
    )
    brokers = {BrokerId(n): replace(broker(n), state=others) for n in (2, 3)}
    brokers[BrokerId(1)] = replace(broker(1), drain=scope)
    return MetadataImage(
        brokers=MappingProxyType(brokers),
        topics=MappingProxyType({topic.topic_id: topic}),
        topic_ids=MappingProxyType({topic.name: topic.topic_id}),
    )


def led_here(*isr: int) -> PartitionRegistration:
    return registered.partition((1, 2), 1, epoch=4, isr=isr)


STUCK = image(DrainScope.LEADERS, led_here(1), led_here(1), others=BrokerState.FENCED)


def test_a_drain_without_progress_is_stuck_after_the_time_and_not_before() -> None:
    watch = DrainWatch()
    watch.observe(STUCK, 5)
    assert watch.stuck(STUCK, 5 + STUCK_AFTER_MS - 1) == []
    watch.observe(replace(STUCK), 100)  # an image with the same topics
    (found,) = watch.stuck(STUCK, 5 + STUCK_AFTER_MS)
    assert found == StuckDrain(
        broker_id=BrokerId(1),
        scope=DrainScope.LEADERS,
        left=2,
        reasons=(("no other replica is alive and in sync", 2),),
    )


def test_each_partition_that_leaves_begins_the_time_again() -> None:
    watch = DrainWatch()
    watch.observe(STUCK, 0)
    less = image(DrainScope.LEADERS, led_here(1), others=BrokerState.FENCED)
    watch.observe(less, STUCK_AFTER_MS)
    assert watch.stuck(less, STUCK_AFTER_MS) == []
    assert watch.stuck(less, 2 * STUCK_AFTER_MS)[0].left == 1


def test_replicas_that_are_being_copied_are_not_stuck_however_long_it_takes() -> None:
    moving = replace(led_here(1, 2), adding=(BrokerId(3),), removing=(BrokerId(1),))
    found = image(DrainScope.REPLICAS, moving, led_here(1, 2))
    watch = DrainWatch()
    watch.observe(found, 0)
    assert watch.stuck(found, 100 * STUCK_AFTER_MS) == []


@pytest.mark.parametrize("scope", [DrainScope.LEADERS, DrainScope.NONE])
def test_a_drain_that_is_done_or_over_is_not_stuck(scope: DrainScope) -> None:
    watch = DrainWatch()
    watch.observe(STUCK, 0)
    elsewhere = registered.partition((2, 1), 2, epoch=5, isr=(1, 2))
    done = image(scope, elsewhere)
    watch.observe(done, 1)
    assert watch.stuck(done, 10 * STUCK_AFTER_MS) == []


def test_health_names_a_drain_that_does_not_move_and_the_way_out() -> None:
    watch = DrainWatch()
    watch.observe(STUCK, 0)
    state = controller_state(voters=(voter(101), voter(102)))
    found = judge(
        STUCK,
        tally_partitions(STUCK, 1),
        state,
        {101: state, 102: state},
        stuck_drains=watch.stuck(STUCK, STUCK_AFTER_MS),
    )
    (reason,) = [one for one in found.reasons if one.code == "DRAIN_STUCK"]
    assert (reason.status, reason.count) == (HealthStatus.DEGRADED, 2)
    assert reason.message == (
        "the drain of broker 1 has not moved for 10 s: 2 leaderships are left (2: no other replica "
        "is alive and in sync); remove the cause, or end it with `quorumlog broker undrain 1`"
    )


def test_a_wider_drain_of_the_same_partitions_is_watched_from_its_start() -> None:
    """The rest of the narrower one was kept: nothing led here, so nothing was stuck."""
    follower = registered.partition((2, 1), 2, epoch=4, isr=(2, 1))
    leaders = image(DrainScope.LEADERS, follower, others=BrokerState.FENCED)
    replicas = image(DrainScope.REPLICAS, follower, others=BrokerState.FENCED)
    replicas = replace(replicas, topics=leaders.topics, topic_ids=leaders.topic_ids)
    watch = DrainWatch()
    watch.observe(leaders, 0)
    watch.observe(replicas, 7)
    assert watch.stuck(replicas, 7 + STUCK_AFTER_MS - 1) == []
    (found,) = watch.stuck(replicas, 7 + STUCK_AFTER_MS)
    assert (found.scope, found.left) == (DrainScope.REPLICAS, 1)


def test_a_move_to_a_broker_that_is_dead_does_not_count_as_moving() -> None:
    going = registered.partition((1, 2, 3), 2, epoch=4, isr=(1, 2))
    going = replace(going, adding=(BrokerId(3),), removing=(BrokerId(1),))
    alive = image(DrainScope.REPLICAS, going)
    dead = image(DrainScope.REPLICAS, going, others=BrokerState.FENCED)
    dead = replace(dead, topics=alive.topics, topic_ids=alive.topic_ids)
    watch = DrainWatch()
    watch.observe(alive, 0)
    assert watch.stuck(alive, STUCK_AFTER_MS) == []
    watch.observe(dead, 20_000)
    assert watch.stuck(dead, 20_000 + STUCK_AFTER_MS - 1) == []
    (found,) = watch.stuck(dead, 20_000 + STUCK_AFTER_MS)
    assert found.reasons == (("waits until brokers [3] are in sync", 1),)
