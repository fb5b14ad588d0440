"""The verdict over a cluster: what is felt is unhealthy, what may be felt next is degraded."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from broker.coordinator.troubles import ShardTroubles
from broker.server.health import (
    ClusterHealth,
    Damage,
    HealthStatus,
    judge,
    tally_partitions,
    total_damage,
    total_troubles,
)
from broker.server.metadata_requests import ask_for_reports
from broker.server.requests import OwnFacts
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerId,
    PartitionId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.common.internal_topics import OFFSETS_TOPIC
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage
from raft_metadata.records.records import BrokerState, ResourceType
from tests.support import registered
from tests.support.metadata_world import topic_id
from tests.support.quorum_views import controller_state, voter
from tests.support.registered import broker


def partition(leader: int, *isr: int, **changes: tuple[BrokerId, ...]) -> PartitionRegistration:
    """On brokers 1, 2 and 3."""
    said = registered.partition((1, 2, 3), leader, epoch=4, isr=isr)
    return replace(said, **changes)  # type: ignore[arg-type] # a test's shorthand


def image(
    *partitions: PartitionRegistration, asked: int | None = None, name: str = "orders"
) -> MetadataImage:
    topic = TopicImage(
        name=TopicName(name),
        topic_id=topic_id(1),
        partitions_count=len(partitions) if asked is None else asked,
        partitions=partitions,
    )
    return MetadataImage(
        brokers=MappingProxyType({BrokerId(n): broker(n) for n in (1, 2, 3)}),
        topics=MappingProxyType({topic.topic_id: topic}),
        topic_ids=MappingProxyType({topic.name: topic.topic_id}),
    )


def verdict(found: MetadataImage, min_isr: int = 2) -> ClusterHealth:
    """With every controller well."""
    state = controller_state(voters=(voter(101), voter(102)))
    return judge(found, tally_partitions(found, min_isr), state, {101: state, 102: state})


def codes(found: ClusterHealth) -> list[str]:
    return [reason.code for reason in found.reasons]


WELL = partition(1, 1, 2, 3)


def test_a_cluster_with_everything_in_place_is_healthy() -> None:
    found = verdict(image(WELL, partition(2, 1, 2, 3)))
    assert (found.status, found.reasons) == (HealthStatus.HEALTHY, ())
    assert found.counts["preferred_leader_imbalance"] == 1, "counted, not blamed"


def test_a_partition_without_a_leader_is_unhealthy_and_comes_first() -> None:
    found = verdict(image(WELL, partition(NO_LEADER)))
    assert found.status is HealthStatus.UNHEALTHY
    assert codes(found) == [
        "OFFLINE_PARTITIONS",
        "UNDER_MIN_ISR_PARTITIONS",
        "UNDER_REPLICATED_PARTITIONS",
    ]
    assert found.reasons[0].examples == ("orders:1",)


def test_at_min_isr_is_degraded_and_below_it_is_unhealthy() -> None:
    at = verdict(image(partition(1, 1, 2)))
    assert (at.status, codes(at)) == (HealthStatus.DEGRADED, ["UNDER_REPLICATED_PARTITIONS"])
    assert at.counts["at_min_isr_partitions"] == 1
    under = verdict(image(partition(1, 1)))
    assert under.status is HealthStatus.UNHEALTHY
    assert under.counts["at_min_isr_partitions"] == 0


def test_min_isr_is_the_topics_own_then_the_clusters_then_the_default() -> None:
    found = image(partition(1, 1))
    assert verdict(found, min_isr=1).counts["under_min_isr_partitions"] == 0
    cluster = {(ResourceType.CLUSTER, ""): MappingProxyType({"min.insync.replicas": "2"})}
    for_all = replace(found, configs=MappingProxyType(cluster))
    assert verdict(for_all, min_isr=1).counts["under_min_isr_partitions"] == 1
    own = {(ResourceType.TOPIC, str(topic_id(1))): MappingProxyType({"min.insync.replicas": "1"})}
    for_one = replace(found, configs=MappingProxyType(cluster | own))
    assert verdict(for_one, min_isr=1).counts["under_min_isr_partitions"] == 0


def test_a_replica_on_its_way_in_is_not_missing_yet() -> None:
    found = verdict(image(partition(1, 1, 2, adding=(BrokerId(3),))))
    assert found.status is HealthStatus.HEALTHY
    assert found.counts["reassigning_partitions"] == 1


def test_fenced_brokers_and_incomplete_topics_are_named() -> None:
    found = image(WELL, asked=5)
    brokers = {**found.brokers, BrokerId(2): broker(2, state=BrokerState.FENCED)}
    said = verdict(replace(found, brokers=MappingProxyType(brokers)))
    assert codes(said) == ["BROKER_FENCED", "TOPIC_INCOMPLETE"]
    assert said.counts["fenced_brokers"] == 1
    assert verdict(replace(found, brokers=MappingProxyType({}))).status is HealthStatus.UNHEALTHY


def test_disconnected_and_missing_controllers_are_named() -> None:
    found = image(WELL)
    tallies = tally_partitions(found, 2)
    state = controller_state(voters=(voter(101, is_connected=False), voter(102)))
    cut = judge(found, tallies, state, {101: state, 102: state})
    assert codes(cut) == ["VOTER_DISCONNECTED"]
    down = judge(found, tallies, state, {101: None, 102: state})
    assert codes(down) == ["CONTROLLER_DOWN"], "one that is down is named once"
    nobody = judge(found, tallies, None, {101: None, 102: state})
    assert codes(nobody) == ["NO_ACTIVE_CONTROLLER", "CONTROLLER_DOWN"]
    assert [reason.count for reason in nobody.reasons] == [1, 1]
    assert nobody.controller_id is None


def told(*partitions: int, count: int | None = None) -> Damage:
    """By a broker that leads these over a damaged log."""
    named = tuple(
        (TopicIdPartition(topic_id(1), PartitionId(number)), f"file=/{number}.log")
        for number in partitions
    )
    return Damage(count=len(named) if count is None else count, partitions=named)


async def damage_in(
    found: MetadataImage, said: dict[int, Damage | KafkaError | None]
) -> ClusterHealth:
    async def ask(broker_id: BrokerId) -> OwnFacts:
        answer = said.get(broker_id)
        if not isinstance(answer, Damage):
            raise answer or KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
        return OwnFacts(static_configs={}, damage=answer)

    state = controller_state(voters=(voter(101), voter(102)))
    reports = await ask_for_reports(found, ask)
    damage = total_damage(found, [(broker, each.damage) for broker, each in reports])
    return judge(found, tally_partitions(found, 2), state, {101: state, 102: state}, damage)


async def test_invariant_l22_a_leader_of_what_is_left_is_unhealthy_and_says_what_to_do() -> None:
    found = image(WELL, partition(2, 1, 2, 3), partition(2, 1, 2, 3))
    said = await damage_in(found, {2: told(1, 2, count=102), 3: told()})
    assert (said.status, codes(said)) == (HealthStatus.UNHEALTHY, ["DAMAGED_PARTITIONS"])
    [reason] = said.reasons
    assert reason.message == (
        "102 partitions are led by a damaged replica: not all of them can be read, as orders:1 on "
        "broker 2 (file=/1.log); bring its other replicas back, `quorumlog partition describe "
        "orders:1` names them"
    )
    assert reason.examples == (
        "orders:1 on broker 2: file=/1.log",
        "orders:2 on broker 2: file=/2.log",
    )
    assert said.counts["damaged_partitions"] == 102


async def test_a_broker_that_does_not_report_damage_is_not_blamed_for_it() -> None:
    """An older version, a broker that does not answer, one that has been replaced as leader."""
    found, silent = image(WELL), KafkaError(ErrorCode.BROKER_NOT_AVAILABLE)
    said = await damage_in(found, {1: silent, 2: told(0), 3: None})
    assert (said.status, said.counts["damaged_partitions"]) == (HealthStatus.HEALTHY, 0)


# groups that stand still


def led_by_two(*partitions: int) -> MetadataImage:
    """The offsets topic, with so many partitions, led by broker 2."""
    return image(*(partition(2, 1, 2, 3) for _ in partitions), name=OFFSETS_TOPIC)


def judged(found: MetadataImage, **reports: tuple[ShardTroubles, ...]) -> ClusterHealth:
    state = controller_state(voters=(voter(101), voter(102)))
    troubles = total_troubles(
        found, [(BrokerId(int(name[1:])), each) for name, each in reports.items()]
    )
    tallies = tally_partitions(found, 2)
    return judge(found, tallies, state, {101: state, 102: state}, troubles=troubles)


def test_groups_that_stand_still_degrade_the_cluster_and_name_the_way_out() -> None:
    found = led_by_two(0, 1)
    said = judged(
        found,
        b2=(
            ShardTroubles(
                partition=PartitionId(0),
                blocked=7,
                blocked_examples=tuple(f"g{n} at t:0:{n}" for n in range(5)),
                held=1,
                held_examples=("h",),
            ),
            ShardTroubles(
                partition=PartitionId(1),
                blocked=1,
                blocked_examples=("x at t:1:1",),
                left_out=3,
                loading_ms=10_001,
            ),
        ),
    )
    assert said.status is HealthStatus.DEGRADED
    assert codes(said) == [
        "GROUPS_BLOCKED", "GROUPS_HELD", "GROUP_RECORDS_SKIPPED", "GROUP_COORDINATORS_LOADING",
    ]  # fmt: skip
    blocked, held, left_out, loading = said.reasons
    assert (blocked.count, len(blocked.examples)) == (8, 5)
    assert blocked.message.startswith("8 groups have members that stand at a record")
    assert "`quorumlog group skip`" in blocked.message
    assert blocked.message.endswith("g4 at t:0:4, …")
    assert (held.count, held.examples) == (1, ("h",))
    assert "`quorumlog group repair GROUP --dry-run`" in held.message
    assert (left_out.count, left_out.examples) == (3, ("__consumer_offsets:1",))
    assert (loading.count, loading.examples) == (1, ("__consumer_offsets:1",))
    assert (said.counts["blocked_groups"], said.counts["held_groups"]) == (8, 1)


def test_decided_transactions_that_wait_are_told_with_their_targets() -> None:
    waiting = ShardTroubles(
        partition=PartitionId(0), waiting=2, waiting_examples=("p at t:0", "q at t:1")
    )
    said = judged(led_by_two(0), b2=(waiting,))
    assert codes(said) == ["TRANSACTIONS_WAITING"]
    (reason,) = said.reasons
    assert (reason.status, reason.count) == (HealthStatus.DEGRADED, 2)
    assert "`quorumlog txn describe ID`" in reason.message
    assert reason.message.endswith("p at t:0, q at t:1")
    assert said.counts["waiting_transactions"] == 2


def test_a_coordinator_that_was_replaced_is_not_counted() -> None:
    found = led_by_two(0)
    late = ShardTroubles(partition=PartitionId(0), held=1, held_examples=("h",))
    gone = ShardTroubles(partition=PartitionId(7), held=1, held_examples=("h",))
    assert judged(found, b1=(late,), b2=(gone,)).status is HealthStatus.HEALTHY
    assert judged(image(WELL), b2=(late,)).status is HealthStatus.HEALTHY, "no such topic"
