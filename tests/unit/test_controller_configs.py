"""Configs of topics, brokers and the cluster, set and reset while the cluster runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raft_metadata.common.configs.table import (
    CLEANUP_POLICY,
    FLUSH,
    MIN_INSYNC_REPLICAS,
    RETENTION_BYTES,
    RETENTION_MS,
    SEGMENT_BYTES,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, ControllerEpoch, MetadataOffset
from raft_metadata.common.internal_topics import STAGED_TOPIC, TRANSACTIONS_TOPIC
from raft_metadata.controller.configuration_control import CONFIG_CHANGES_MAX
from raft_metadata.controller.replication_control import MinIsrHistory, concerned_topics
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import topic_layers
from raft_metadata.image.snapshot import image_from_records, image_records
from raft_metadata.records.commands import AlterConfigs, ConfigChange
from raft_metadata.records.records import (
    ConfigRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    ResourceType,
)
from tests.support.metadata_world import BROKERS, World, registration, topic_id

B1, B2, B3 = BROKERS
TOPIC, BROKER, CLUSTER = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.CLUSTER
ON_ONE_TWO_THREE = {0: (1, 2, 3)}


@pytest.fixture
def world() -> World:
    world = World()
    world.decide_all()
    world.join(*BROKERS)
    world.create(assignments=ON_ONE_TWO_THREE)
    return world


def change(name: str, value: str | None, kind: ResourceType = TOPIC, of: str = "t") -> ConfigChange:
    return ConfigChange(resource_type=kind, resource_name=of, name=name, value=value)


def cluster(name: str, value: str | None) -> ConfigChange:
    return change(name, value, CLUSTER, "")


def alter(world: World, *changes: ConfigChange, validate_only: bool = False) -> int:
    """Alter; how many records it took."""
    before = world.image.next_offset
    answer = world.ask(AlterConfigs(changes=changes, validate_only=validate_only))
    assert answer.next_offset == world.image.next_offset
    return world.image.next_offset - before


def refused(world: World, *changes: ConfigChange) -> KafkaError:
    before = world.image
    with pytest.raises(KafkaError) as caught:
        alter(world, *changes)
    assert world.image is before
    return caught.value


def config_of(name: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=TOPIC, resource_name=topic_id(1), name=name, value=value)


def topic_configs(world: World) -> dict[str, str]:
    return dict(world.image.topic_configs(topic_id(1)))


def test_a_topics_config_is_set_changed_and_reset(world: World) -> None:
    alter(world, change(FLUSH, "os"), change(SEGMENT_BYTES, "0002048"))
    assert topic_configs(world) == {FLUSH: "os", SEGMENT_BYTES: "2048"}
    alter(world, change(FLUSH, None), change(SEGMENT_BYTES, "4096"))
    assert topic_configs(world) == {SEGMENT_BYTES: "4096"}
    alter(world, change(SEGMENT_BYTES, None))
    assert (TOPIC, topic_id(1)) not in world.image.configs


def test_a_repeat_and_a_reset_of_what_is_not_set_take_no_record(world: World) -> None:
    changes = change(FLUSH, "os"), cluster(FLUSH, "os"), change(SEGMENT_BYTES, None)
    assert alter(world, *changes) == 2
    assert alter(world, *changes) == 0
    assert alter(world, change("unclean.leader.election.enable", "TRUE")) == 1
    assert alter(world, change("unclean.leader.election.enable", "true")) == 0


def test_one_refused_change_refuses_all(world: World) -> None:
    error = refused(world, change(FLUSH, "os"), change(SEGMENT_BYTES, "1"))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "a whole number from 1024" in error.message


def test_validate_only_checks_everything_and_changes_nothing(world: World) -> None:
    assert alter(world, change(FLUSH, "os"), validate_only=True) == 0
    assert topic_configs(world) == {}
    with pytest.raises(KafkaError):
        alter(world, change(FLUSH, "never"), validate_only=True)


def test_a_resource_that_is_not_there_is_named(world: World) -> None:
    error = refused(world, change(FLUSH, "os", of="nope"))
    assert error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for name in ("7", "", "x", "-1", "1 ", "9" * 30):
        error = refused(world, change(SEGMENT_BYTES, "4096", BROKER, name))
        assert error.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    error = refused(world, change(FLUSH, "os", CLUSTER, "other"))
    assert error.code is ErrorCode.INVALID_REQUEST


def test_names_and_places_are_checked(world: World) -> None:
    assert "did you mean flush?" in refused(world, change("flusch", "os")).message
    error = refused(world, change("num.partitions", "2"))
    assert "can be set for a cluster" in error.message
    error = refused(world, change(MIN_INSYNC_REPLICAS, "2", BROKER, "1"))
    assert "topic or cluster, not for a broker" in error.message
    error = refused(world, change("max.fetch.bytes", "4096", BROKER, "1"))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "read-only" in error.message
    assert "restart" in error.message
    # a reset of what does not exist is no way around it
    assert refused(world, change("retention.days", None)).code is ErrorCode.INVALID_CONFIG


def test_one_command_has_a_limit_and_names_a_config_once(world: World) -> None:
    many = [change(SEGMENT_BYTES, "4096")] * (CONFIG_CHANGES_MAX + 1)
    assert f"at most {CONFIG_CHANGES_MAX}" in refused(world, *many).message
    error = refused(world, change(FLUSH, "os"), change(FLUSH, None))
    assert error.code is ErrorCode.INVALID_REQUEST
    assert "flush of topic t is changed twice" in error.message


def test_only_what_keeps_groups_safe_can_be_set_on_the_clusters_own_topics(world: World) -> None:
    world.create("__consumer_offsets", 2, configs={FLUSH: "ack"})
    error = refused(world, change(FLUSH, "os", of="__consumer_offsets"))
    assert error.code is ErrorCode.POLICY_VIOLATION
    assert MIN_INSYNC_REPLICAS in error.message
    assert alter(world, change(MIN_INSYNC_REPLICAS, "3", of="__consumer_offsets")) == 1


def test_staged_rows_and_decisions_outlive_the_retention_of_other_topics(world: World) -> None:
    for number, name in ((2, STAGED_TOPIC), (3, TRANSACTIONS_TOPIC)):
        world.create(name, number, configs={FLUSH: "ack"})
    alter(world, cluster(RETENTION_MS, "1"), cluster(CLEANUP_POLICY, "delete"))
    staged, decisions = (
        topic_layers(world.image, world.image.topic_ids[name], {})
        for name in (STAGED_TOPIC, TRANSACTIONS_TOPIC)
    )
    assert (staged.number(RETENTION_MS), staged.number(RETENTION_BYTES)) == (-1, -1)
    assert (staged.word(CLEANUP_POLICY), decisions.word(CLEANUP_POLICY)) == ("delete", "compact")
    assert staged.number(SEGMENT_BYTES) == 64 << 20
    assert refused(world, change(RETENTION_MS, "5", of=STAGED_TOPIC)).code is (
        ErrorCode.POLICY_VIOLATION
    )
    assert alter(world, change(SEGMENT_BYTES, "4096", of=STAGED_TOPIC)) == 1


def test_a_brokers_own_config_goes_with_its_registration(world: World) -> None:
    alter(world, change(SEGMENT_BYTES, "4096", BROKER, "2"))
    assert world.image.broker_configs(B2) == {SEGMENT_BYTES: "4096"}
    assert not world.image.broker_configs(B1)


# ---- rule M8


def test_rule_m8_a_topics_min_isr_above_its_replicas_is_refused(world: World) -> None:
    error = refused(world, change(MIN_INSYNC_REPLICAS, "4"))
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "larger than the replication factor 3" in error.message
    assert alter(world, change(MIN_INSYNC_REPLICAS, "3")) == 1


def test_rule_m8_the_partition_with_the_fewest_replicas_counts(world: World) -> None:
    world.create("wide", 2, assignments={0: (1, 2, 3), 1: (1, 2, 3)})
    world.reassign((1, 2), "wide", 1)
    world.decide_all()
    assert len(world.partition(2, 1).replicas) == 2
    error = refused(world, change(MIN_INSYNC_REPLICAS, "3", of="wide"))
    assert "larger than the replication factor 2" in error.message


def test_rule_m8_cluster_defaults_that_contradict_each_other_are_refused(world: World) -> None:
    error = refused(world, cluster(MIN_INSYNC_REPLICAS, "4"))
    assert "larger than its default.replication.factor 3" in error.message
    refused(world, cluster("default.replication.factor", "1"))  # config files say min ISR 2
    both = cluster("default.replication.factor", "5"), cluster(MIN_INSYNC_REPLICAS, "4")
    assert alter(world, *both) == 2
    # one of them taken back would leave the other above what the files say
    refused(world, cluster("default.replication.factor", None))
    assert alter(world, *(cluster(one.name, None) for one in both)) == 2


def test_the_clusters_defaults_count_for_topics_to_come(world: World) -> None:
    alter(
        world,
        cluster("num.partitions", "4"),
        cluster("default.replication.factor", "2"),
        cluster(MIN_INSYNC_REPLICAS, "1"),
    )
    answer = world.create("new", 2)
    assert (answer.partitions_count, answer.replication_factor) == (4, 2)
    alter(world, *(cluster(n, None) for n in ("num.partitions", "default.replication.factor")))
    answer = world.create("newer", 3)
    assert (answer.partitions_count, answer.replication_factor) == (1, 3)


# ---- what a change of min ISR means (invariants P2, P3)


def test_invariant_p2_a_lower_min_isr_clears_eligible_replicas_before_it_counts(
    world: World,
) -> None:
    world.kill(B2, B3)
    assert (world.partition().isr, world.partition().elr) == ((B1,), (B2, B3))
    before = world.partition()
    alter(world, change(MIN_INSYNC_REPLICAS, "1"))
    kinds = [type(record) for record in world.log[-1]]
    assert kinds == [PartitionChangeRecord, ConfigRecord]
    after = world.partition()
    assert (after.isr, after.elr, after.leader) == ((B1,), (), B1)
    assert after.leader_epoch == before.leader_epoch
    # The leader acknowledges alone from here on: nobody else may be elected when it dies.
    world.kill(B1)
    world.join(B2, B3, life="b")
    assert not world.partition().has_leader


def test_invariant_p2_the_clusters_min_isr_counts_for_topics_without_one(world: World) -> None:
    world.create("own", 2, assignments=ON_ONE_TWO_THREE, configs={MIN_INSYNC_REPLICAS: "2"})
    world.kill(B2, B3)
    eligible = world.partition(2).elr
    assert eligible
    assert world.partition(1).elr == eligible
    alter(world, cluster(MIN_INSYNC_REPLICAS, "1"))
    assert world.partition(1).elr == ()
    assert world.partition(2).elr == eligible, "it says two itself"


def test_invariant_p2_every_partition_behind_one_without_eligible_replicas_is_cleared(
    world: World,
) -> None:
    world.create("two", 2, assignments={0: (1, 2), 1: (1, 3)})
    world.kill(B3)
    assert [world.partition(2, index).elr for index in (0, 1)] == [(), (B3,)]
    alter(world, change(MIN_INSYNC_REPLICAS, "1", of="two"))
    assert world.partition(2, 1).elr == ()


def test_only_configs_that_partitions_depend_on_concern_them(world: World) -> None:
    delta = MetadataDelta(world.image)
    base = world.image.next_offset
    delta.replay_all((config_of(SEGMENT_BYTES, "4096"),), base)
    after = delta.apply(MetadataOffset(base + 1), ControllerEpoch(1))
    assert tuple(concerned_topics(delta, after)) == ()
    delta = MetadataDelta(after)
    delta.replay_all((config_of(MIN_INSYNC_REPLICAS, "1"),), after.next_offset)
    newest = delta.apply(MetadataOffset(after.next_offset + 1), ControllerEpoch(1))
    assert tuple(concerned_topics(delta, newest)) == (topic_id(1),)


def test_the_offset_of_a_topics_min_isr_is_forgotten_with_the_topic(world: World) -> None:
    history, untouched = MinIsrHistory(), MinIsrHistory()
    for each in (history, untouched):
        each.begin(world.image)
    for record in (config_of(MIN_INSYNC_REPLICAS, "1"), RemoveTopicRecord(topic_id=topic_id(1))):
        delta = MetadataDelta(world.image)
        delta.replay_all((record,), world.image.next_offset)
        world.append((record,))
        history.note(delta, world.image)
        assert (history == untouched) is isinstance(record, RemoveTopicRecord)


def test_a_higher_min_isr_keeps_books_from_then_on(world: World) -> None:
    alter(world, change(MIN_INSYNC_REPLICAS, "1"))
    world.kill(B2)
    assert (world.partition().isr, world.partition().elr) == ((B1, B3), ())
    alter(world, change(MIN_INSYNC_REPLICAS, "3"))
    world.decide_all()
    world.kill(B3)
    assert (world.partition().isr, world.partition().elr) == ((B1,), (B3,))


def test_a_leaver_that_waits_for_min_isr_goes_when_it_is_lowered(world: World) -> None:
    """Consequences are looked for again where a config changed (rule M4)."""
    alter(world, change(MIN_INSYNC_REPLICAS, "3"))
    world.beat(B3, want_shutdown=True)
    world.decide_all()
    assert B3 in world.partition().isr
    alter(world, change(MIN_INSYNC_REPLICAS, "2"))
    world.decide_all()
    assert B3 not in world.partition().isr


def test_a_snapshot_holds_the_configs_of_every_kind(world: World) -> None:
    alter(
        world,
        change(FLUSH, "os"),
        cluster("num.partitions", "4"),
        change(SEGMENT_BYTES, "4096", BROKER, "1"),
    )
    image = world.image
    again = image_from_records(image_records(image), image.next_offset, image.epoch)
    assert again == image
    assert again.broker_configs(BrokerId(1)) == {SEGMENT_BYTES: "4096"}


def test_invariant_p3_books_are_kept_by_the_least_min_isr_any_broker_acknowledges_by() -> None:
    """Broker 1's file says 1, the controllers' say 2: what it acknowledged alone is not bet on."""
    world = World()
    world.decide_all()
    for broker, said in ((B1, 1), (B2, 2), (B3, 2)):
        world.register(replace(registration(broker), min_insync_replicas=said))
    world.pass_time(200)
    world.create(assignments=ON_ONE_TWO_THREE)
    world.kill(B2, B3)
    assert (world.partition().isr, world.partition().elr) == ((B1,), ())
    world.kill(B1)
    world.join(B2, B3, life="b")
    assert not world.partition().has_leader
    image = world.image
    again = image_from_records(image_records(image), image.next_offset, image.epoch)
    assert again.brokers[B1].min_insync_replicas == 1
    # a value that was set live is everybody's
    world.join(B1, life="b")
    alter(world, cluster(MIN_INSYNC_REPLICAS, "2"))
    world.catch_up(*BROKERS)
    world.kill(B2, B3)
    assert (world.partition().isr, world.partition().elr) == ((B1,), (B2, B3))


def test_a_broker_that_registers_with_less_leads_only_once_the_books_are_in_order() -> None:
    world = World()
    world.decide_all()
    for broker in BROKERS:
        world.register(replace(registration(broker), min_insync_replicas=2))
    world.pass_time(200)
    world.create(assignments=ON_ONE_TWO_THREE)
    world.kill(B2, B3)
    assert world.partition().elr == (B2, B3)
    last = world.image.brokers[B1].broker_epoch
    world.core.sessions.judge(world.now_ms)
    world.kill(B1)
    command = replace(registration(B1, life="b", last=last), min_insync_replicas=1)
    world.register(command)
    for _ in range(10):
        world.pass_time(50)
        if world.partition().has_leader:
            assert world.partition().elr == ()
    assert (world.partition().leader, world.partition().isr) == (B1, (B1,))
