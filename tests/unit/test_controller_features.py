"""``metadata.version``: who counts when it is raised, and a cluster that is still at level 1."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError, NewerVersionError, StorageError
from raft_metadata.common.faults import EXIT_STORAGE
from raft_metadata.common.ids import MetadataOffset, NodeId, PartitionId, TopicName
from raft_metadata.controller.feature_control import VoterLevels
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.metadata_state_machine import Accepted, Frozen, MetadataStateMachine
from raft_metadata.records.commands import (
    AddPartitions,
    AdminCommand,
    AllocateProducerIds,
    AlterAcls,
    AlterConfigs,
    AlterReassignments,
    ConfigChange,
    DrainBroker,
    MetadataSnapshot,
    MetadataUpgraded,
    Reassignment,
    UpgradeMetadata,
)
from raft_metadata.records.feature_levels import (
    FIRST_LEVEL,
    SUPPORTED_FEATURE_LEVEL,
    level_of,
)
from raft_metadata.records.records import DrainScope, FeatureLevelRecord, ResourceType
from raft_metadata.records.serde import (
    UnreadableRecordError,
    decode_batch,
    encode_batch,
    from_json,
)
from tests.support.metadata_world import BROKERS, World, registration, topic_id
from tests.support.unkind_quorum import ManualClock, UnkindRaft, turn
from tests.unit.test_controller_active import Cluster
from tests.unit.test_controller_security import ACL

B1, B2, B3 = BROKERS
NEW_VOTERS: VoterLevels = {NodeId(voter): SUPPORTED_FEATURE_LEVEL for voter in (101, 102, 103)}


def at_level_one(**how: int) -> World:
    """A cluster as an older version formatted it, now run by this one."""
    world = World()
    world.append([FeatureLevelRecord(level=FIRST_LEVEL)])
    for broker in BROKERS:
        world.register(
            registration(broker, level=how.get(f"level_{broker}", SUPPORTED_FEATURE_LEVEL))
        )
    world.pass_time(200)
    world.create(assignments={0: (1, 2, 3), 1: (2, 3, 1)})
    return world


def upgrade(world: World, voters: VoterLevels = NEW_VOTERS, **how: object) -> MetadataUpgraded:
    command = UpgradeMetadata(**how)  # type: ignore[arg-type]
    records, answer = world.core.admin(world.image, command, voters)
    if records:
        world.append(records)
    return answer


def refusal(world: World, voters: VoterLevels = NEW_VOTERS, **how: object) -> str:
    before = world.image
    with pytest.raises(KafkaError) as caught:
        upgrade(world, voters, **how)
    assert world.image is before
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    return caught.value.message


# ---- raising it


def test_the_level_is_raised_to_the_highest_all_can_follow() -> None:
    world = at_level_one()
    assert upgrade(world, validate_only=True) == MetadataUpgraded(
        level_before=1, level=SUPPORTED_FEATURE_LEVEL, next_offset=world.image.next_offset
    )
    assert world.image.feature_level == FIRST_LEVEL
    answer = upgrade(world)
    assert (answer.level_before, answer.level) == (1, SUPPORTED_FEATURE_LEVEL)
    assert answer.next_offset == world.image.next_offset
    assert world.image.feature_level == SUPPORTED_FEATURE_LEVEL
    again = upgrade(world)
    assert (again.level_before, again.level) == (SUPPORTED_FEATURE_LEVEL,) * 2
    assert world.log[-1] == (FeatureLevelRecord(level=SUPPORTED_FEATURE_LEVEL),), (
        "a repeat takes no record"
    )


@pytest.mark.parametrize("level", [None, SUPPORTED_FEATURE_LEVEL])
def test_every_node_that_cant_follow_is_named(level: int | None) -> None:
    world = at_level_one(level_2=1, level_3=1)
    world.kill(B3)
    voters = {NodeId(101): SUPPORTED_FEATURE_LEVEL, NodeId(102): 1, NodeId(103): None}
    message = refusal(world, voters, level=level)
    assert message.startswith(f"metadata.version can't be raised to {level or 2}: ")
    assert "broker 2 follows 1 at most (upgrade and restart it)" in message
    assert "broker 3 follows 1 at most (it is fenced: upgrade or unregister it)" in message
    assert "controller 102 follows 1 at most" in message
    assert "controller 103 has not said what it can follow" in message
    assert "broker 1 " not in message
    assert "controller 101" not in message


def test_where_nobody_asked_the_controllers_nothing_is_raised() -> None:
    assert "not known which metadata.version the controllers" in refusal(at_level_one(), {})


def test_the_level_is_never_lowered_and_never_beyond_what_is_known() -> None:
    world = at_level_one()
    upgrade(world)
    highest = SUPPORTED_FEATURE_LEVEL
    assert f"is {highest} and is never lowered, 1 was asked for" in refusal(world, level=1)
    unknown = f"{highest + 1} is not known to this controller, {highest} is the highest"
    assert unknown in refusal(world, level=highest + 1)


def test_an_older_broker_is_refused_by_a_newer_cluster() -> None:
    world = at_level_one()
    upgrade(world)
    world.kill(B3)
    known = world.image.brokers[B3].broker_epoch
    before = world.image
    with pytest.raises(KafkaError) as caught:
        world.register(registration(B3, life="old", last=known, level=1))
    assert world.image is before
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert "broker 3 follows metadata.version 1 at most, the cluster is at 4" in (
        caught.value.message
    )
    world.register(registration(B3, life="new", last=known))


# ---- a cluster at level 1


def level_two_commands(world: World) -> list[AdminCommand[object]]:
    def change(kind: ResourceType, name: str, of: str) -> AdminCommand[object]:
        one = ConfigChange(resource_type=kind, resource_name=of, name=name, value="2")
        return AlterConfigs(changes=(one,))

    move = Reassignment(topic=TopicName("t"), partition=PartitionId(0), replicas=(B2, B1))
    return [
        AddPartitions(topic=TopicName("t"), partitions_count=5),
        change(ResourceType.CLUSTER, "num.partitions", ""),
        change(ResourceType.TOPIC, "min.insync.replicas", "t"),
        AlterReassignments(changes=(move,)),
        DrainBroker(broker_id=B1, scope=DrainScope.LEADERS),
        AllocateProducerIds(broker_id=B1, broker_epoch=world.image.brokers[B1].broker_epoch),
        AlterAcls(add=(ACL,)),
    ]


def test_a_cluster_at_level_one_refuses_what_needs_more_and_works_after_the_upgrade() -> None:
    world = at_level_one()
    for command in level_two_commands(world):
        before = world.image
        with pytest.raises(KafkaError) as caught:
            world.ask(command)
        assert world.image is before
        assert caught.value.code is ErrorCode.POLICY_VIOLATION
        assert "this needs metadata.version 2, the cluster is at 1" in caught.value.message
    upgrade(world)
    for command in level_two_commands(world):
        world.ask(command)
        world.decide_all()
    assert world.image.topics[topic_id(1)].partitions_count == 5


def test_nothing_of_level_two_is_written_while_the_cluster_is_at_level_one() -> None:
    """Brokers that lose everything and come back on another disk: all of what heal can say."""
    world = at_level_one()
    world.kill(B1)
    world.kill(B2)
    world.join(B1, life="b", disk="other")
    world.kill(B3)
    world.join(B3, life="b", disk="other-3")
    world.join(B2, life="b", disk="other-2")
    assert not world.partition().has_leader
    assert {level_of(record) for batch in world.log for record in batch} == {FIRST_LEVEL}


async def test_an_old_log_goes_on_under_this_version_and_is_upgraded() -> None:
    cluster = Cluster()
    raft = cluster.raft
    old = encode_batch(0, 1, [FeatureLevelRecord(level=FIRST_LEVEL)])
    raft.elect(cluster.lead, 0)
    await raft.settle(2)
    assert raft.voters[0].machine.image.feature_level == SUPPORTED_FEATURE_LEVEL, "a new log"

    raft = UnkindRaft(cluster.config, ManualClock(), random.Random(2).randbytes)
    for voter in raft.voters:
        assert voter.machine.apply(0, 1, old) == Accepted(MetadataOffset(0), MetadataOffset(1))
    lead = raft.voters[0]
    raft.elect(lead, 0)
    await raft.settle(2)
    assert lead.machine.image.feature_level == FIRST_LEVEL
    cluster.raft, cluster.lead = raft, lead
    controller = lead.controller
    await cluster.answered(controller.register_broker(registration(B1)))
    add = AlterAcls(add=(ACL,))
    with pytest.raises(KafkaError) as refused:
        await cluster.answered(controller.ask(add))
    assert "needs metadata.version 2" in refused.value.message
    with pytest.raises(KafkaError, match="not known which"):
        await cluster.answered(controller.ask(UpgradeMetadata()))
    lead.levels.update(NEW_VOTERS)
    answer = await cluster.answered(controller.ask(UpgradeMetadata()))
    assert answer.level == SUPPORTED_FEATURE_LEVEL
    await cluster.answered(controller.ask(add))
    await turn()
    await raft.settle(2)
    assert {voter.machine.image.feature_level for voter in raft.voters} == {SUPPORTED_FEATURE_LEVEL}
    assert all(voter.machine.image.acls for voter in raft.voters)


# ---- what is newer than this version

FUTURE = b'{"type":"feature_level","v":0,"level":99}'
UNHEARD = b'{"type":"teleport","v":0}'


def test_an_unknown_field_is_ignored_and_an_unknown_record_refused() -> None:
    known = b'{"type":"feature_level","v":0,"level":1,"colour":"red"}'
    batch = b'{"base_offset":0,"epoch":1,"time_ms":0,"records":[%b]}'
    assert decode_batch(batch % known).records == (FeatureLevelRecord(level=1),)
    with pytest.raises(UnreadableRecordError, match="type='teleport'"):
        decode_batch(batch % UNHEARD)


def test_a_log_of_a_newer_version_says_to_start_that_one() -> None:
    """Before any record it can't read: the level stands in front of all that it allows."""
    batch = b'{"base_offset":0,"epoch":1,"time_ms":0,"records":[%b,%b]}' % (FUTURE, UNHEARD)
    machine = MetadataStateMachine()
    with pytest.raises(NewerVersionError) as caught:
        machine.apply(0, 1, batch)
    message = str(caught.value)
    assert "metadata.version is 99" in message
    assert f"follows {SUPPORTED_FEATURE_LEVEL} at most: start a newer version" in message
    assert isinstance(caught.value, StorageError), f"exit {EXIT_STORAGE}"


def test_a_snapshot_of_a_newer_version_says_to_start_that_one() -> None:
    chunk = b'{"base_offset":5,"epoch":1,"time_ms":0,"records":[%b,%b]}' % (FUTURE, UNHEARD)
    machine = MetadataStateMachine()
    [head, *_] = machine.chunks(Frozen(MetadataImage(), 0, 0))
    with pytest.raises(NewerVersionError):
        machine.thaw([head, chunk], 5, 1)
    answer = b'{"next_offset":5,"epoch":1,"records":[%b,%b]}' % (FUTURE, UNHEARD)
    with pytest.raises(NewerVersionError):
        from_json(answer, MetadataSnapshot)


def test_the_fold_refuses_it_too() -> None:
    with pytest.raises(NewerVersionError):
        MetadataDelta(MetadataImage()).replay(FeatureLevelRecord(level=99), MetadataOffset(0))


def test_the_exit_is_the_one_interfaces_names() -> None:
    text = Path("docs/interfaces.md").read_text(encoding="utf-8")
    assert "metadata.version" in text
    assert str(EXIT_STORAGE) in text
