"""``metadata.version``: who counts when it is raised, and a cluster that is not raised yet."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError, NewerVersionError, StorageError
from raft_metadata.common.faults import EXIT_STORAGE
from raft_metadata.common.ids import MetadataOffset, NodeId
from raft_metadata.controller.feature_control import VoterLevels
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.metadata_state_machine import Accepted, CapturedState, MetadataStateMachine
from raft_metadata.records.commands import (
    AlterAcls,
    DrainBroker,
    MetadataSnapshot,
    MetadataUpgraded,
    UpgradeMetadata,
)
from raft_metadata.records.feature_levels import FIRST_LEVEL, SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import DrainScope, FeatureLevelRecord
from raft_metadata.records.serde import (
    UnreadableMetadataError,
    decode_batch,
    encode_batch,
    from_json,
)
from tests.support.metadata_world import BROKERS, World, registration
from tests.support.next_level import NEXT_LEVEL, PRESENT_LEVEL, support_next_level
from tests.support.unkind_quorum import ManualClock, UnkindRaft, turn
from tests.unit.test_controller_active import Cluster
from tests.unit.test_controller_security import ACL

B1, B2, B3 = BROKERS
NEW_VOTERS: VoterLevels = {NodeId(voter): NEXT_LEVEL for voter in (101, 102, 103)}


@pytest.fixture(autouse=True)
def _a_next_level(monkeypatch: pytest.MonkeyPatch) -> None:
    support_next_level(monkeypatch)


def not_raised(**how: int) -> World:
    """A cluster as this version formats it, run by one that follows the next level."""
    world = World()
    world.append([FeatureLevelRecord(level=PRESENT_LEVEL)])
    for broker in BROKERS:
        world.register(registration(broker, level=how.get(f"level_{broker}", NEXT_LEVEL)))
    world.pass_time(200)
    world.create(assignments={0: (1, 2, 3), 1: (2, 3, 1)})
    return world


def upgrade(world: World, voters: VoterLevels = NEW_VOTERS, **how: object) -> MetadataUpgraded:
    command = UpgradeMetadata(**how)  # type: ignore[arg-type]
    records, answer = world.core.decide(world.image, command, voters)
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
    world = not_raised()
    assert upgrade(world, validate_only=True) == MetadataUpgraded(
        level_before=PRESENT_LEVEL, level=NEXT_LEVEL, next_offset=world.image.next_offset
    )
    assert world.image.feature_level == PRESENT_LEVEL
    answer = upgrade(world)
    assert (answer.level_before, answer.level) == (PRESENT_LEVEL, NEXT_LEVEL)
    assert answer.next_offset == world.image.next_offset
    assert world.image.feature_level == NEXT_LEVEL
    again = upgrade(world)
    assert (again.level_before, again.level) == (NEXT_LEVEL, NEXT_LEVEL)
    assert world.log[-1] == (FeatureLevelRecord(level=NEXT_LEVEL),), "a repeat takes no record"


@pytest.mark.parametrize("level", [None, NEXT_LEVEL])
def test_every_node_that_cant_follow_is_named(level: int | None) -> None:
    world = not_raised(level_2=PRESENT_LEVEL, level_3=PRESENT_LEVEL)
    world.kill(B3)
    voters = {NodeId(101): NEXT_LEVEL, NodeId(102): PRESENT_LEVEL, NodeId(103): None}
    message = refusal(world, voters, level=level)
    assert message.startswith(f"metadata.version can't be raised to {NEXT_LEVEL}: ")
    assert "broker 2 follows 1 at most (upgrade and restart it)" in message
    assert "broker 3 follows 1 at most (it is fenced: upgrade or unregister it)" in message
    assert "controller 102 follows 1 at most" in message
    assert "controller 103 has not said what it can follow" in message
    assert "broker 1 " not in message
    assert "controller 101" not in message


def test_nothing_is_raised_before_the_controllers_were_asked() -> None:
    assert "not known which metadata.version the controllers" in refusal(not_raised(), {})


def test_the_level_is_never_lowered_and_never_beyond_what_is_known() -> None:
    world = not_raised()
    upgrade(world)
    lower = f"is {NEXT_LEVEL} and is never lowered, {PRESENT_LEVEL} was asked for"
    assert lower in refusal(world, level=PRESENT_LEVEL)
    unknown = f"{NEXT_LEVEL + 1} is not known to this controller, {NEXT_LEVEL} is the highest"
    assert unknown in refusal(world, level=NEXT_LEVEL + 1)


def test_an_older_broker_is_refused_by_a_newer_cluster() -> None:
    world = not_raised()
    upgrade(world)
    world.kill(B3)
    known = world.image.brokers[B3].broker_epoch
    before = world.image
    with pytest.raises(KafkaError) as caught:
        world.register(registration(B3, life="old", last=known, level=PRESENT_LEVEL))
    assert world.image is before
    assert caught.value.code is ErrorCode.UNSUPPORTED_VERSION
    assert "broker 3 follows metadata.version 1 at most, the cluster is at 2" in (
        caught.value.message
    )
    world.register(registration(B3, life="new", last=known, level=NEXT_LEVEL))


# ---- before it is raised


def test_a_record_of_the_next_level_is_refused_until_the_cluster_is_raised() -> None:
    world = not_raised()
    drain = DrainBroker(broker_id=B1, scope=DrainScope.LEADERS)
    before = world.image
    with pytest.raises(KafkaError) as caught:
        world.ask(drain)
    assert world.image is before
    assert caught.value.code is ErrorCode.POLICY_VIOLATION
    assert "this needs metadata.version 2, the cluster is at 1" in caught.value.message
    world.ask(AlterAcls(add=(ACL,)))
    upgrade(world)
    world.ask(drain)
    assert world.image.brokers[B1].drain is DrainScope.LEADERS


async def test_an_old_log_goes_on_under_this_version_and_is_upgraded() -> None:
    cluster = Cluster()
    raft = cluster.raft
    old = encode_batch(0, 1, [FeatureLevelRecord(level=PRESENT_LEVEL)])
    raft.elect(cluster.lead, 0)
    await raft.settle(2)
    assert raft.voters[0].machine.image.feature_level == NEXT_LEVEL, "a new log"

    raft = UnkindRaft(cluster.config, ManualClock(), random.Random(2).randbytes)
    for voter in raft.voters:
        assert voter.machine.apply(0, 1, old) == Accepted(MetadataOffset(0), MetadataOffset(1))
    lead = raft.voters[0]
    raft.elect(lead, 0)
    await raft.settle(2)
    assert lead.machine.image.feature_level == PRESENT_LEVEL
    cluster.raft, cluster.lead = raft, lead
    controller = lead.controller
    await cluster.answered(controller.execute(registration(B1, level=NEXT_LEVEL)))
    drain = DrainBroker(broker_id=B1, scope=DrainScope.LEADERS)
    with pytest.raises(KafkaError) as refused:
        await cluster.answered(controller.execute(drain))
    assert "needs metadata.version 2" in refused.value.message
    with pytest.raises(KafkaError, match="not known which"):
        await cluster.answered(controller.execute(UpgradeMetadata()))
    lead.levels.update(NEW_VOTERS)
    answer = await cluster.answered(controller.execute(UpgradeMetadata()))
    assert answer.level == NEXT_LEVEL
    await cluster.answered(controller.execute(drain))
    await turn()
    await raft.settle(2)
    for voter in raft.voters:
        assert voter.machine.image.feature_level == NEXT_LEVEL
        assert voter.machine.image.brokers[B1].drain is DrainScope.LEADERS


def test_a_version_without_a_newer_level_is_at_the_first_one() -> None:
    assert PRESENT_LEVEL == SUPPORTED_FEATURE_LEVEL == FIRST_LEVEL


# ---- what is newer than this version

FUTURE = b'{"type":"feature_level","v":0,"level":99}'
UNHEARD = b'{"type":"teleport","v":0}'


def test_an_unknown_field_is_ignored_and_an_unknown_record_refused() -> None:
    known = b'{"type":"feature_level","v":0,"level":1,"colour":"red"}'
    batch = b'{"base_offset":0,"epoch":1,"time_ms":0,"records":[%b]}'
    assert decode_batch(batch % known).records == (FeatureLevelRecord(level=1),)
    with pytest.raises(UnreadableMetadataError, match="type='teleport'"):
        decode_batch(batch % UNHEARD)


def test_a_log_of_a_newer_version_says_to_start_that_one() -> None:
    """Before any record it can't read: the level stands in front of all that it allows."""
    batch = b'{"base_offset":0,"epoch":1,"time_ms":0,"records":[%b,%b]}' % (FUTURE, UNHEARD)
    machine = MetadataStateMachine()
    with pytest.raises(NewerVersionError) as caught:
        machine.apply(0, 1, batch)
    message = str(caught.value)
    assert "metadata.version is 99" in message
    assert f"follows {NEXT_LEVEL} at most: start a newer version" in message
    assert isinstance(caught.value, StorageError), f"exit {EXIT_STORAGE}"


def test_a_snapshot_of_a_newer_version_says_to_start_that_one() -> None:
    chunk = b'{"base_offset":5,"epoch":1,"time_ms":0,"records":[%b,%b]}' % (FUTURE, UNHEARD)
    machine = MetadataStateMachine()
    [head, *_] = machine.chunks(CapturedState(MetadataImage(), 0, 0, b""))
    with pytest.raises(NewerVersionError):
        machine.restore([head, chunk], 5, 1)
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
