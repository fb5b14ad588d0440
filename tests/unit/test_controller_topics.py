"""Topics created and deleted, their configs, and where replicas go."""

from __future__ import annotations

from collections import Counter

import pytest

from raft_metadata.common.configs.table import MIN_INSYNC_REPLICAS
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, TopicId, TopicName
from raft_metadata.controller.topic_control import place
from raft_metadata.records.commands import CreateTopic, DeleteTopic
from raft_metadata.records.records import RemoveTopicRecord
from tests.support.metadata_world import BROKERS, World, config, topic_id

B1, B2, B3 = BROKERS


@pytest.fixture
def world() -> World:
    world = World()
    world.decide_all()
    world.join(*BROKERS)
    return world


def refusal(world: World, name: str = "t", number: int = 1, **how: object) -> KafkaError:
    before = world.image
    with pytest.raises(KafkaError) as refused:
        world.create(name, number, **how)  # type: ignore[arg-type]
    assert world.image is before
    return refused.value


# ---- creation


def test_a_topic_takes_the_configured_defaults(world: World) -> None:
    answer = world.create()
    assert (answer.partitions_count, answer.replication_factor) == (1, 3)
    assert answer.next_offset == world.image.next_offset
    partition = world.partition()
    assert sorted(partition.replicas) == list(BROKERS)
    assert partition.isr == partition.replicas
    assert partition.leader == partition.replicas[0]
    assert partition.directories == tuple(f"disk-{b}" for b in partition.replicas)


def test_a_repeat_with_the_same_id_is_answered_alike(world: World) -> None:
    first = world.create(partitions_count=2)
    before = world.image
    assert world.create(partitions_count=2) == first
    assert world.image is before


def test_a_name_that_is_taken_is_refused(world: World) -> None:
    world.create()
    assert refusal(world, number=2).code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert refusal(world, "other", 1).code is ErrorCode.INCONSISTENT_TOPIC_ID
    assert refusal(world, validate_only=True).code is ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ü", "x" * 250, "a\n"])
def test_an_invalid_name_is_refused(world: World, name: str) -> None:
    assert refusal(world, name).code is ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "...", "__consumer_offsets"])
def test_a_valid_name_is_taken(world: World, name: str) -> None:
    world.create(name)
    assert world.image.topic(TopicName(name)) is not None


def test_an_invalid_topic_id_is_quoted_up_to_40_characters(world: World) -> None:
    command = CreateTopic(name=TopicName("t"), topic_id=TopicId("?" * 50))
    with pytest.raises(KafkaError) as refused:
        world.core.decide(world.image, command)
    assert refused.value.message == f"topic id '{'?' * 40}' is not 22 characters of base64"


def test_an_id_is_22_characters(world: World) -> None:
    command = CreateTopic(name=TopicName("t"), topic_id=TopicId("../../etc/passwd"))
    with pytest.raises(KafkaError):
        world.core.decide(world.image, command)


def test_rule_m8_the_replication_factor_is_never_bent_to_who_is_alive(world: World) -> None:
    world.kill(B3)
    error = refusal(world)
    assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert "at most the number of live brokers 2 (1, 2)" in error.message
    assert refusal(world, replication_factor=0).code is ErrorCode.INVALID_REPLICATION_FACTOR
    assert world.create(replication_factor=2).replication_factor == 2
    assert world.create("one", 2, replication_factor=1).replication_factor == 1


def test_rule_m8_min_isr_above_the_replication_factor_is_refused(world: World) -> None:
    error = refusal(world, replication_factor=2, configs={MIN_INSYNC_REPLICAS: "3"})
    assert error.code is ErrorCode.INVALID_CONFIG
    assert "larger than the replication factor 2" in error.message
    world.create(replication_factor=2, configs={MIN_INSYNC_REPLICAS: "2"})


@pytest.mark.parametrize("count", [0, -1, 10_001])
def test_a_partition_count_has_limits(world: World, count: int) -> None:
    assert refusal(world, partitions_count=count).code is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("count", [1, 10_000])
def test_the_least_and_the_greatest_partition_count_are_taken(world: World, count: int) -> None:
    answer = world.create(partitions_count=count, validate_only=True)
    assert answer.partitions_count == count


def test_explicit_replicas_are_taken_as_they_are(world: World) -> None:
    answer = world.create(assignments={1: (3, 1), 0: (2, 3)})
    assert (answer.partitions_count, answer.replication_factor) == (2, 2)
    assert [world.partition(index=index).replicas for index in (0, 1)] == [(2, 3), (3, 1)]


@pytest.mark.parametrize(
    "assignments",
    [{}, {1: (1,)}, {0: ()}, {0: (1, 1)}, {0: (1, 2), 1: (1,)}, {0: (1, 9)}],
    ids=["none", "gap", "empty", "twice", "uneven", "unknown"],
)
def test_explicit_replicas_must_make_sense(
    world: World, assignments: dict[int, tuple[int, ...]]
) -> None:
    error = refusal(world, assignments=assignments)
    assert error.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


@pytest.mark.parametrize(
    ("assignments", "expected"),
    [
        ({0: ()}, "partition 0: replicas [], expected at least one distinct broker ids"),
        ({0: (1, 2), 1: (1,)}, "partition 1: replicas [1], expected 2 distinct broker ids"),
    ],
)
def test_a_refusal_of_explicit_replicas_names_how_many_were_expected(
    world: World, assignments: dict[int, tuple[int, ...]], expected: str
) -> None:
    assert refusal(world, assignments=assignments).message == expected


def test_explicit_replicas_exclude_counts(world: World) -> None:
    error = refusal(world, assignments={0: (1,)}, partitions_count=1)
    assert error.code is ErrorCode.INVALID_REQUEST


def test_validate_only_records_nothing(world: World) -> None:
    before = world.image
    assert world.create(validate_only=True, partitions_count=4).partitions_count == 4
    assert world.image is before
    assert not world.core.next_proposed_batch(before, bulk_allowed=True)


def test_rule_m4_a_large_topic_comes_in_bounded_batches() -> None:
    world = World(config=config(per_batch=7))
    world.decide_all()
    world.join(*BROKERS)
    world.log.clear()
    world.create(partitions_count=20)
    assert [len(batch) for batch in world.log] == [8, 7, 6]
    leaders = Counter(p.leader for p in world.image.topics[topic_id(1)].partitions)
    assert sorted(leaders.values()) == [6, 7, 7], "the stripe goes on over batches"


def test_rule_m4_a_new_controller_goes_on_with_a_creation() -> None:
    world = World(config=config(per_batch=7))
    world.decide_all()
    world.join(*BROKERS)
    command = CreateTopic(name=TopicName("t"), topic_id=topic_id(1), partitions_count=20)
    world.append(world.core.decide(world.image, command)[0])
    assert not world.image.topics[topic_id(1)].is_complete
    successor = World(config=world.config, image=world.image, seed=1)
    successor.alive = world.alive
    successor.decide_all()
    assert successor.image.topics[topic_id(1)].is_complete


def test_a_topic_is_deleted_by_one_record(world: World) -> None:
    world.create(partitions_count=5, configs={"flush": "os"})
    world.log.clear()
    world.delete()
    assert world.log == [(RemoveTopicRecord(topic_id=topic_id(1)),)]
    assert not world.image.topics
    assert not world.image.configs
    with pytest.raises(KafkaError) as refused:
        world.core.decide(world.image, DeleteTopic(name=TopicName("t")))
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_topic_deleted_while_it_grows_stops_growing() -> None:
    world = World(config=config(per_batch=7))
    world.decide_all()
    world.join(*BROKERS)
    command = CreateTopic(name=TopicName("t"), topic_id=topic_id(1), partitions_count=20)
    world.append(world.core.decide(world.image, command)[0])
    world.delete()
    assert not world.core.next_proposed_batch(world.image, bulk_allowed=True)


# ---- configs


def test_a_config_is_recorded_with_its_topic(world: World) -> None:
    world.create(configs={"flush": "os", "segment.ms": None, "segment.bytes": "1048576"})
    assert world.image.topic_configs(topic_id(1)) == {"flush": "os", "segment.bytes": "1048576"}


def test_an_unknown_config_names_the_nearest(world: World) -> None:
    error = refusal(world, configs={"segment.byte": "1"})
    assert error.code is ErrorCode.INVALID_CONFIG
    assert error.message.endswith("did you mean segment.bytes?")
    assert refusal(world, configs={"retention.days": None}).code is ErrorCode.INVALID_CONFIG


# ---- placement


def racks(*names: str | None) -> dict[BrokerId, str | None]:
    return {BrokerId(number): rack for number, rack in enumerate(names, 1)}


def test_leaders_and_the_heirs_of_a_leader_are_spread_evenly() -> None:
    placed = place(racks(*[None] * 4), partitions=range(48), replication_factor=3, start=0)
    assert Counter(replicas[0] for replicas in placed) == dict.fromkeys(range(1, 5), 12)
    heirs = Counter(replicas[1] for replicas in placed if replicas[0] == 1)
    assert heirs == {2: 4, 3: 4, 4: 4}


def test_every_partition_spans_as_many_racks_as_it_can() -> None:
    where = racks("a", "a", "a", "b", "c")
    for start in range(40):
        for factor in range(1, 6):
            for replicas in place(
                where, partitions=range(20), replication_factor=factor, start=start
            ):
                assert len(set(replicas)) == factor
                assert len({where[replica] for replica in replicas}) == min(factor, 3)


def test_replicas_follow_their_leader_around_the_ring_and_the_shift_grows_by_round() -> None:
    placed = place(racks(*[None] * 4), partitions=range(5), replication_factor=3, start=0)
    assert list(placed) == [(1, 2, 3), (2, 3, 4), (3, 4, 1), (4, 1, 2), (1, 3, 4)]


def test_the_same_start_goes_on_with_the_same_stripe() -> None:
    where = racks("a", "b", "c", None)
    whole = place(where, partitions=range(20), replication_factor=2, start=7)
    assert whole[9:] == place(where, partitions=range(9, 20), replication_factor=2, start=7)
