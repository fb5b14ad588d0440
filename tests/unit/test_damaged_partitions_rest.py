"""Whoever is away, leaves, or is damaged: what a partition owes comes to an end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.controller.broker_views import BrokerViews, DamagedReplicas
from raft_metadata.controller.partition_change import heal
from raft_metadata.controller.topic_rules import TopicRules
from raft_metadata.image.metadata_image import BrokerRegistration, PartitionRegistration
from raft_metadata.records.commands import DamagedReplica
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState, DrainScope, PartitionChangeRecord
from tests.support.metadata_world import World, config, topic_id

SEEDS = 2_000
STEPS_MAX = 10
SET_AT = MetadataOffset(100)
WHERE = TopicIdPartition(topic_id(1), PartitionId(0))

Brokers = Mapping[BrokerId, BrokerRegistration]
Damaged = Mapping[BrokerId, bool]
"""Whether it can lead all the same."""


def some_brokers(chance: random.Random) -> Brokers:
    states = (*[BrokerState.UNFENCED] * 4, *BrokerState, BrokerState.CONTROLLED_SHUTDOWN)
    scopes = (*[DrainScope.NONE] * 5, *DrainScope)
    return {
        BrokerId(number): BrokerRegistration(
            broker_id=BrokerId(number),
            broker_epoch=BrokerEpoch(chance.choice((5, 5, 5, SET_AT + 9))),
            incarnation_id=IncarnationId("a"),
            directory_id=DirectoryId(f"d{number}"),
            http="",
            peer="",
            rack=None,
            state=chance.choice(states),
            settled=chance.random() < 0.7,
            drain=chance.choice(scopes),
            feature_level_max=SUPPORTED_FEATURE_LEVEL,
            min_insync_replicas=1,
        )
        for number in range(1, chance.choice((3, 3, 4, 5)) + 1)
    }


def some_partition(
    chance: random.Random, brokers: Brokers, rules: TopicRules
) -> PartitionRegistration:
    replicas = tuple(chance.sample(list(brokers), chance.randint(1, len(brokers))))

    def some(share: float) -> tuple[BrokerId, ...]:
        return tuple(replica for replica in replicas if chance.random() < share)

    moves = chance.random() < 0.4
    adding, removing = (some(0.4), some(0.3)) if moves else ((), ())
    adding, removing = adding[: len(replicas) - 1], removing[: len(replicas) - 1]
    isr = some(0.5)
    is_enough = len(isr) >= rules.min_isr(len(replicas))
    elr = () if is_enough else tuple(each for each in some(0.4) if each not in isr)
    return PartitionRegistration(
        replicas=replicas,
        directories=tuple(brokers[replica].directory_id for replica in replicas),
        isr=isr,
        elr=elr,
        leader=chance.choice(isr) if isr and chance.random() < 0.85 else NO_LEADER,
        leader_epoch=LeaderEpoch(7),
        partition_epoch=PartitionEpoch(9),
        leader_epoch_offset=SET_AT,
        adding=adding,
        removing=removing,
    )


def reports(partition: PartitionRegistration, damaged: Damaged) -> DamagedReplicas:
    """What their brokers say once they have seen the partition as it is."""
    said = {
        broker: DamagedReplica(
            topic_id=WHERE.topic_id,
            partition=WHERE.partition,
            leader_epoch=LeaderEpoch(7),
            can_lead=can_lead,
            partition_epoch=partition.partition_epoch,
        )
        for broker, can_lead in damaged.items()
    }
    return {WHERE: said} if said else {}


def changed(
    partition: PartitionRegistration, record: PartitionChangeRecord, offset: MetadataOffset
) -> PartitionRegistration:
    is_new = record.leader_epoch != partition.leader_epoch
    return replace(
        partition,
        replicas=record.replicas or partition.replicas,
        directories=record.directories,
        isr=record.isr,
        elr=record.elr,
        leader=record.leader,
        leader_epoch=record.leader_epoch,
        partition_epoch=record.partition_epoch,
        leader_epoch_offset=offset if is_new else partition.leader_epoch_offset,
        adding=record.adding,
        removing=record.removing,
        last_known_elr=record.last_known_elr,
        last_known_leader=record.last_known_leader,
    )


def at_rest(
    partition: PartitionRegistration, brokers: Brokers, damaged: Damaged, rules: TopicRules
) -> PartitionRegistration:
    """As it is once nothing follows any more; everybody who lives has heard and said everything."""
    live = [each for each, broker in brokers.items() if broker.state is not BrokerState.FENCED]
    for step in range(STEPS_MAX):
        views = BrokerViews.of(
            brokers,
            dict.fromkeys(live, MetadataOffset(SET_AT + 999)),
            reports(partition, damaged),
            frozenset(live),
        )
        record = heal(views, WHERE, partition, rules)
        if record is None:
            return partition
        partition = changed(partition, record, MetadataOffset(SET_AT + 10 + step))
    raise AssertionError(f"it never comes to rest: {partition}")


@pytest.mark.parametrize("min_isr", [1, 2])
def test_rule_m4_whatever_is_damaged_a_partition_comes_to_rest_and_owes_nothing(
    min_isr: int,
) -> None:
    world = World(config=config(min_isr=min_isr))
    world.decide_all()
    world.join(*(BrokerId(number) for number in (1, 2, 3)))
    world.create()
    rules = TopicRules(world.image, world.image.topics[topic_id(1)], world.config.defaults)
    for seed in range(SEEDS):
        chance = random.Random(seed)
        brokers = some_brokers(chance)
        before = some_partition(chance, brokers, rules)
        damaged = {
            replica: chance.random() < 0.6
            for replica in before.replicas
            if chance.random() < 0.35 and brokers[replica].state is not BrokerState.FENCED
        }
        after = at_rest(before, brokers, damaged, rules)
        where = f"seed {seed}: {before} {damaged} {after}"
        # `owes_changes` has heard of nobody: who is to be unfenced would wait for it.
        still = {broker: able for broker, able in damaged.items() if broker in after.replicas}
        blind = BrokerViews.of(
            brokers, damaged_replicas=reports(after, still), complete_reporters=frozenset()
        )
        assert heal(blind, WHERE, after, rules) is None, where
        counting = (*after.isr, *after.elr)
        states = {replica: brokers[replica].state for replica in counting}
        live = [each for each in counting if states[each] is BrokerState.UNFENCED]
        sound = [replica for replica in live if replica not in damaged]
        assert not (sound and damaged.keys() & counting), where
        able = [replica for replica in live if damaged.get(replica, True)]
        waits = BrokerState.STARTING in states.values()
        assert after.leader != NO_LEADER or waits or not able, where
        assert damaged.get(after.leader, True), where
