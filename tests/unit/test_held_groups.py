"""Records of the group's log that this broker can't decode: what they hold, and the way on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from broker.coordinator.group_messages import (
    Commit,
    CommitGroup,
    CreateInstance,
    DeleteGroup,
    DescribeGroup,
    EvictInstance,
    GroupOffset,
    GroupOffsets,
    GroupRepaired,
    GroupState,
    OffsetReset,
    RepairGroup,
    Subscribe,
)
from broker.coordinator.records import (
    GroupKey,
    InstanceKey,
    MemberKey,
    MemberValue,
    OffsetKey,
    ShardRecord,
    UndecodableRecord,
    decode_record,
    encode_key,
    partition_of_group,
)
from broker.coordinator.shard import OffsetsRetention
from broker.coordinator.troubles import LEFT_OUT_SHOWN_MS, LOADING_AFTER_MS
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import GroupId, InstanceId, PartitionId, TopicPartition
from tests.support.coordinator_world import JSON, G, T, World, open_world
from tests.support.doors.coordinator import shard_of
from tests.support.group_world import facts
from tests.support.waiting import until
from tests.unit.test_member_requests import beat_request, join_request

ZERO = PartitionId(0)
OTHER = next(
    name for number in range(1_000) if partition_of_group(name := GroupId(f"o{number}"), 12) == 0
)
"""Another group of the same partition of the offsets topic."""


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as opened:
        yield opened


def add(world: World, key: object, value: object) -> None:
    """Another version wrote this."""
    texts = [text if isinstance(text, bytes) else orjson.dumps(text) for text in (key, value)]
    entries = world.log.shared.entries
    entries.append(decode_record(texts[0], texts[1], len(entries)))
    world.log.shared.commit()


def compact(world: World) -> None:
    """Keep the newest record of each key; offsets stay what they are."""
    entries = world.log.shared.entries
    newest = {key_text(one): at for at, one in enumerate(entries)}
    world.log.shared.entries[:] = [
        one if newest[key_text(one)] == at else ShardRecord(GroupKey(GroupId("gone")), None)
        for at, one in enumerate(entries)
    ]


def key_text(entry: ShardRecord | UndecodableRecord) -> bytes:
    return encode_key(entry.key)


async def held(world: World, request: Any) -> str:
    with pytest.raises(KafkaError) as refusal:
        await world.ask(request)
    assert refusal.value.code is ErrorCode.GROUP_HELD
    assert refusal.value.outcome is Outcome.NOT_WRITTEN
    return refusal.value.message


async def repair(world: World, **options: bool) -> GroupRepaired:
    return await world.ask(RepairGroup(group=G, **options))


async def commit(world: World, offset: int, group: GroupId = G) -> None:
    await world.ask(CommitGroup(group=group, offsets=(GroupOffset(T, ZERO, offset),)))


async def offsets(world: World, group: GroupId = G) -> list[tuple[int, int | None]]:
    rows = await world.ask(GroupOffsets(group=group))
    return [(one.partition, one.offset) for one in rows]


async def ready_group(world: World) -> None:
    """A group with a member that committed offset 2, and another group."""
    await world.join("a")
    await world.produce(0, b"1", b"2", b"3")
    await world.places("a")
    name = InstanceId("a")
    await world.ask(Commit(group=G, instance=name, offsets=(GroupOffset(T, ZERO, 1),)))
    await commit(world, 1, OTHER)


MEMBER = ["member", G, "a"]
STRANGE: list[tuple[object, object]] = [
    (["lease", G, 1], {"until": 7}),
    (MEMBER, {"epoch": "seven"}),
    (["group", G], [1]),
    (["instance", G, "b", "more"], {}),
    (["offset", G, "t"], {"offset": 1}),
    (["offset", G, "t", 0], b"1e400"),
]


@pytest.mark.parametrize(("key", "value"), STRANGE)
async def test_a_record_of_unknown_kind_or_shape_holds_its_group_and_no_other(
    world: World, key: object, value: object
) -> None:
    await ready_group(world)
    at = len(world.log.shared.entries)
    add(world, key, value)
    await world.fail_over()
    message = await held(world, DescribeGroup(group=G))
    assert f"group {G} is held" in message
    assert f"the record at offset {at} of partition 0 of __consumer_offsets" in message
    assert f"`quorumlog group repair {G} --dry-run`" in message
    await held(world, CreateInstance(group=G, instance=InstanceId("b")))
    await held(world, GroupOffsets(group=G))
    await held(world, CommitGroup(group=G, offsets=(GroupOffset(T, ZERO, 3),)))
    with pytest.raises(KafkaError) as refusal:
        await world.poll("a")
    assert refusal.value.code is ErrorCode.GROUP_HELD
    assert await offsets(world, OTHER) == [(0, 1)]
    await commit(world, 2, OTHER)
    listed = {one.group: one.state for one in await world.coordinator.list_groups(ZERO)}
    assert listed == {G: GroupState.HELD, OTHER: GroupState.EMPTY}
    [report] = world.coordinator.troubles()
    assert (report.held, report.held_examples) == (1, (G,))


async def test_nothing_changes_a_held_group(world: World) -> None:
    """No session ends, no offset expires, no topic's change assigns anything."""
    await ready_group(world)
    add(world, MEMBER, {"epoch": "seven"})
    await world.fail_over()
    before = len(world.log.shared.entries)
    shard = shard_of(world.coordinator, ZERO)
    shard.state().judge_ms += 86_400_000
    world.apis.add_topic("more", 3)
    world.coordinator.on_metadata_update(world.apis.image)
    topics = {T: facts(2)}
    shard.tick(SystemClock().monotonic_ms() + 600_000, topics, 1, OffsetsRetention(1, 1))
    await shard.settled()
    written = [one.key for one in world.log.shared.entries[before:]]
    assert not [key for key in written if key.group == G]


async def test_a_repair_forgets_records_and_members_and_keeps_offsets(world: World) -> None:
    await ready_group(world)
    at = len(world.log.shared.entries)
    add(world, MEMBER, {"epoch": "seven"})
    await world.fail_over()
    before = len(world.log.shared.entries)
    dry = await repair(world, validate_only=True)
    assert len(world.log.shared.entries) == before, "nothing was written"
    await held(world, DescribeGroup(group=G))
    done = await repair(world)
    assert done == dry
    [forgotten] = done.forgotten
    assert (forgotten.partition, forgotten.offset) == (0, at)
    assert json.loads(forgotten.key) == MEMBER
    assert done.members == ("a",)
    assert [(one.partition, one.offset) for one in done.offsets] == [(0, 2)]
    found = await world.ask(DescribeGroup(group=G))
    assert (found.members, found.group_epoch) == ((), at + 2), "above any that the record held"
    with pytest.raises(KafkaError) as refusal:
        await world.poll("a")
    assert refusal.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    await world.join("a")
    assert await world.places("a") == [(0, 2)]
    await world.fail_over()
    assert (await world.ask(DescribeGroup(group=G))).group_epoch == at + 3
    assert world.coordinator.troubles() == ()
    with pytest.raises(KafkaError) as refusal:
        await repair(world)
    assert refusal.value.code is ErrorCode.ILLEGAL_STATE


async def test_a_repair_of_a_group_that_does_not_exist_is_refused(world: World) -> None:
    with pytest.raises(KafkaError) as refusal:
        await repair(world)
    assert refusal.value.code is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(("key", "value"), STRANGE)
@pytest.mark.parametrize("compacted", [False, True])
async def test_the_load_after_a_repair_is_clean(
    world: World, key: object, value: object, *, compacted: bool
) -> None:
    await ready_group(world)
    add(world, key, value)
    add(world, ["lease", G, 2], {"until": 8})
    await world.fail_over()
    await repair(world)
    shown = await world.ask(DescribeGroup(group=G)), await offsets(world)
    if compacted:
        compact(world)
    await world.fail_over()
    assert (await world.ask(DescribeGroup(group=G)), await offsets(world)) == shown
    state = shard_of(world.coordinator, ZERO).state()
    assert not state.sessions
    assert not state.groups[G].orphans


async def test_a_repair_that_survives_in_part_still_holds_the_group(world: World) -> None:
    """A large append may: else a member could own what another is to own."""
    await ready_group(world)
    add(world, ["lease", G, 1], {})
    await world.fail_over()
    before = len(world.log.shared.entries)
    await repair(world)
    whole = list(world.log.shared.entries)
    for length in range(before, len(whole)):
        world.log.shared.entries[:] = whole[:length]
        world.log.shared.commit()
        await world.fail_over()
        await held(world, DescribeGroup(group=G))
    world.log.shared.entries[:] = whole
    world.log.shared.commit()
    await world.fail_over()
    assert (await world.ask(DescribeGroup(group=G))).members == ()


async def test_a_repair_that_was_not_committed_leaves_the_group_held(world: World) -> None:
    await ready_group(world)
    add(world, ["lease", G, 1], {})
    await world.fail_over()
    world.log.next_append = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    with pytest.raises(KafkaError) as refusal:
        await repair(world)
    assert refusal.value.outcome is Outcome.NOT_WRITTEN
    await until(lambda: shard_of(world.coordinator, ZERO).is_ready)
    await held(world, DescribeGroup(group=G))


async def test_a_newer_record_of_the_key_replaces_one_that_cannot_be_decoded(
    world: World,
) -> None:
    """So a log means the same before and after compaction."""
    await ready_group(world)
    value = shard_of(world.coordinator, ZERO).state().groups[G].offsets[TopicPartition(T, ZERO)]
    add(world, ["offset", G, "t", 0], {"offset": "two"})
    add(world, ["lease", G, 1], {"until": 7})
    await world.fail_over()
    await held(world, GroupOffsets(group=G))
    add(world, ["lease", G, 1], None)
    world.log.shared.entries.append(ShardRecord(OffsetKey(G, T, ZERO), value))
    world.log.shared.commit()
    await world.fail_over()
    assert await offsets(world) == [(0, 2)]
    compact(world)
    await world.fail_over()
    assert await offsets(world) == [(0, 2)]


async def test_the_older_commit_counts_again(world: World) -> None:
    await ready_group(world)
    add(world, ["offset", G, "t", 0], {"offset": "three"})
    await world.fail_over()
    done = await repair(world)
    assert [(one.partition, one.offset) for one in done.offsets] == [(0, 2)]
    assert await offsets(world) == [(0, 2)]


async def test_a_lost_commit_of_a_reader_of_the_latest_records_skips_none(world: World) -> None:
    await world.produce(1, b"1", b"2")
    await commit(world, 0)
    add(world, ["offset", G, "t", 1], {"offset": "two"})
    await world.fail_over()
    await repair(world)
    await world.join("a", replace(JSON, auto_offset_reset=OffsetReset.LATEST))
    assert await world.places("a") == [(1, 0), (1, 1)]


async def test_the_epoch_does_not_go_back_though_its_record_is_lost(world: World) -> None:
    await ready_group(world)
    for number in range(5):
        await world.join(f"m{number}")
    epoch = (await world.ask(DescribeGroup(group=G))).group_epoch
    add(world, ["group", G], {"epoch": "six"})
    compact(world)
    entries = world.log.shared.entries
    for at, one in enumerate(entries):  # members that have not followed yet, or expired
        if isinstance(one, ShardRecord) and isinstance(one.value, MemberValue):
            entries[at] = ShardRecord(one.key, MemberValue(0, {}, {}))
    await world.fail_over()
    await repair(world)
    assert (await world.ask(DescribeGroup(group=G))).group_epoch > epoch


async def test_invariant_g3_no_epoch_of_a_member_is_given_again_though_its_record_is_lost(
    world: World,
) -> None:
    """The member was ahead of its group: a late commit of its former epoch was taken again."""
    found = await world.ask(join_request("a"))
    for _ in range(4):  # other processes with its name
        await world.ask(beat_request(found, 0))
        found = await world.ask(join_request("a"))
    assert found.member_epoch > found.group_epoch + 2
    add(world, MEMBER, {"epoch": "five"})
    compact(world)
    await world.fail_over()
    await repair(world)
    assert (await world.ask(join_request("a"))).member_epoch > found.member_epoch


async def test_the_epoch_is_above_that_of_groups_forgotten_meanwhile(world: World) -> None:
    """A name may have been one of theirs; a group without a record of its own begins behind it."""
    await commit(world, 1)
    for name in ("a", "b", "c"):
        request = CreateInstance(group=OTHER, instance=InstanceId(name), settings=JSON)
        await world.ask(request)
        await world.ask(Subscribe(group=OTHER, instance=InstanceId(name), topics=(T,)))
    add(world, ["lease", G, 1], {})
    await world.fail_over()
    epoch = (await world.ask(DescribeGroup(group=OTHER))).group_epoch
    for name in ("a", "b", "c"):
        await world.ask(EvictInstance(group=OTHER, instance=InstanceId(name)))
    await commit(world, 1, OTHER)
    await world.ask(DeleteGroup(group=OTHER))
    await repair(world)
    assert (await world.ask(DescribeGroup(group=G))).group_epoch > epoch


async def test_a_membership_whose_instance_is_lost_does_not_come_back(world: World) -> None:
    await ready_group(world)
    add(world, ["member", G, "ghost"], {"epoch": 9, "target": {"t": [1]}, "owned": {"t": [1]}})
    add(world, ["instance", G, "a"], {"settings": 7})
    compact(world)
    await world.fail_over()
    await repair(world)
    assert (await world.ask(DescribeGroup(group=G))).group_epoch == 10
    for name in ("a", "ghost"):
        await world.create(name)
    found = (await world.ask(DescribeGroup(group=G))).members
    assert [(one.assignment, one.member_epoch) for one in found] == [((), -1), ((), -1)]


@pytest.mark.parametrize("lost", ["group", "instance"])
async def test_invariant_g3_a_repair_that_survives_in_part_gives_no_epoch_again(
    world: World, lost: str
) -> None:
    """A large append may: what held the highest epoch was gone before the new one was there."""
    await ready_group(world)
    for number in range(3):
        await world.join(f"m{number}")
    highest = (await world.ask(DescribeGroup(group=G))).group_epoch
    if lost == "group":
        add(world, ["group", G], {"epoch": "four"})
    else:
        highest = 9
        add(world, ["member", G, "ghost"], {"epoch": highest, "target": {}, "owned": {}})
        add(world, ["instance", G, "a"], {"settings": 7})
    compact(world)
    await world.fail_over()
    before = len(world.log.shared.entries)
    await repair(world)
    whole = list(world.log.shared.entries)
    for length in range(before, len(whole) + 1):
        world.log.shared.entries[:] = whole[:length]
        world.log.shared.commit()
        await world.fail_over()
        if shard_of(world.coordinator, ZERO).state().held:
            await repair(world)
        assert (await world.ask(DescribeGroup(group=G))).group_epoch > highest, length


# ---------------------------------------------------------------- records that name no group

UNNAMED: list[tuple[object, object]] = [
    (None, {"a": 1}),
    (b"1e400", 1),
    (["lease", ""], {}),
    (["lease", 7], {}),
    (["probe", ""], []),
    ({"group": G}, {}),
]


@pytest.mark.parametrize(("key", "value"), UNNAMED)
async def test_a_record_that_names_no_group_is_left_out_and_nobody_owns_anything(
    world: World, key: object, value: object
) -> None:
    await ready_group(world)
    epoch = (await world.ask(DescribeGroup(group=G))).group_epoch
    add(world, key, value)
    before = len(world.log.shared.entries)
    await world.fail_over()
    found = await world.ask(DescribeGroup(group=G))
    assert found.group_epoch > epoch
    written = [one for one in world.log.shared.entries[before:] if isinstance(one, ShardRecord)]
    dropped = written.index(ShardRecord(MemberKey(G, InstanceId("a")), None))
    owned = [at for at, one in enumerate(written) if isinstance(one.value, MemberValue)]
    assert all(dropped < at for at in owned), "first nobody owns anything, then it is assigned"
    assert await offsets(world) == [(0, 2)]
    assert await offsets(world, OTHER) == [(0, 1)]
    assert await world.places("a", 1_000) == [(0, 2)], "the instance is there, and reads on"
    [report] = world.coordinator.troubles()
    assert report.left_out == 1


async def test_a_member_that_reads_for_itself_joins_again_after_its_ownership_is_lost(
    world: World,
) -> None:
    """The old epoch is fenced: nothing is read or committed that another may own."""
    first = await world.ask(join_request("a"))
    assert len(first.assignment) == 2
    add(world, None, {"a": 1})
    await world.fail_over()
    for _ in range(2):
        with pytest.raises(KafkaError) as refusal:
            await world.ask(beat_request(first, 0))
        assert refusal.value.code is ErrorCode.FENCED_MEMBER_EPOCH
        await asyncio.sleep(0.12)  # its new targets are recorded
    again = await world.ask(join_request("a"))
    assert again.member_epoch > first.member_epoch
    assert len(again.assignment) == 2
    add(world, ["lease", G, 1], {})
    await world.fail_over()
    await held(world, beat_request(again, 0))
    await held(world, join_request("a"))
    await repair(world)
    with pytest.raises(KafkaError) as refusal:
        await world.ask(beat_request(again, 0))
    assert refusal.value.code is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await world.ask(join_request("a"))).member_epoch > again.member_epoch


async def test_invariant_g3_owners_that_are_forgotten_in_part_get_no_epoch_again(
    world: World,
) -> None:
    """A large append may survive in part: the member's epoch was gone before its group's grew."""
    found = await world.ask(join_request("a"))
    for _ in range(3):  # other processes with its name, so that it is far ahead of its group
        await world.ask(beat_request(found, 0))
        found = await world.ask(join_request("a"))
    assert found.member_epoch > found.group_epoch + 1
    add(world, None, {"a": 1})
    before = len(world.log.shared.entries)
    await world.fail_over()
    whole = list(world.log.shared.entries)
    for length in range(before, len(whole) + 1):
        world.log.shared.entries[:] = whole[:length]
        world.log.shared.commit()
        await world.fail_over()
        again = await world.ask(join_request("a"))
        assert again.member_epoch > found.member_epoch, length


@pytest.mark.parametrize("known", [0, 1])
async def test_invariant_g3_no_epoch_that_a_record_without_a_group_held_is_given_again(
    world: World, known: int
) -> None:
    """Another version may store memberships under keys that name no group here."""
    found = await world.ask(join_request("a"))
    for _ in range(4):  # other processes with the member's name
        await world.ask(beat_request(found, 0))
        found = await world.ask(join_request("a"))
    entries = world.log.shared.entries
    members = [at for at, one in enumerate(entries) if isinstance(one.key, MemberKey)]
    for at in members[known:]:
        entries[at] = decode_record(b'{"member":"a"}', b"1", at)
    await world.fail_over()
    assert (await world.ask(join_request("a"))).member_epoch > found.member_epoch


async def test_what_was_left_out_once_is_left_out_for_good(world: World) -> None:
    await ready_group(world)
    add(world, None, {"a": 1})
    await world.fail_over()
    assert await world.places("a", 1_000) == [(0, 2)]
    epoch = (await world.ask(DescribeGroup(group=G))).group_epoch
    await world.fail_over()
    assert (await world.ask(DescribeGroup(group=G))).group_epoch == epoch
    add(world, None, {"a": 2})
    await world.fail_over()
    assert (await world.ask(DescribeGroup(group=G))).group_epoch > epoch
    state = shard_of(world.coordinator, ZERO).state()
    assert state.left_out is not None
    assert state.left_out.at_ms is not None


async def test_a_record_of_a_group_of_another_partition_counts_as_one_without_a_group(
    world: World,
) -> None:
    """No call of that group comes here, so nobody could repair it."""
    await ready_group(world)
    far = next(n for n in map(GroupId, "abcdefgh") if partition_of_group(n, 12) != 0)
    add(world, ["lease", far], {})
    await world.fail_over()
    assert shard_of(world.coordinator, ZERO).state().held == {}
    assert world.coordinator.troubles()[0].left_out == 1


async def test_records_are_left_out_only_where_that_can_be_recorded(world: World) -> None:
    await ready_group(world)
    add(world, None, {"a": 1})
    world.log.may_append = False
    log = world.log.shared.elect()
    world.log.epoch, world.log.start_of_epoch = log.epoch, log.start_of_epoch
    world.coordinator.on_metadata_update(world.apis.image)
    shard = shard_of(world.coordinator, ZERO)
    for _ in range(50):
        await until(lambda: True)
    assert not shard.is_ready
    world.log.may_append = True
    await until(lambda: shard.is_ready)
    assert (await world.ask(DescribeGroup(group=G))).members


# ---------------------------------------------------------------- reports


async def test_what_was_left_out_is_reported_for_a_day(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ready_group(world)
    add(world, None, {"a": 1})
    await world.fail_over()
    assert world.coordinator.troubles()[0].left_out == 1
    later_ms = SystemClock().wall_ms() + LEFT_OUT_SHOWN_MS + 60_000
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: later_ms)
    assert world.coordinator.troubles() == ()


async def test_a_coordinator_that_loads_for_long_is_reported(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.shared.entries.append(ShardRecord(InstanceKey(G, InstanceId("a")), None))
    log = world.log.shared.elect()  # nothing of it is known to be committed
    world.log.epoch, world.log.start_of_epoch = log.epoch, log.start_of_epoch
    world.coordinator.on_metadata_update(world.apis.image)
    assert world.coordinator.troubles() == ()
    later_ms = SystemClock().monotonic_ms() + LOADING_AFTER_MS + 1
    monkeypatch.setattr(SystemClock, "monotonic_ms", lambda _: later_ms)
    [report] = world.coordinator.troubles()
    assert report.loading_ms > LOADING_AFTER_MS


def test_a_null_is_known_under_any_key() -> None:
    for key in (b'["lease","g",1]', b"null", b"{}", b"1e400"):
        found = decode_record(key, b"null", 7)
        assert isinstance(found, ShardRecord)
        assert encode_key(found.key) == key
        assert isinstance(decode_record(key, b"{}", 7), UndecodableRecord)
