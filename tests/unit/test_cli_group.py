"""``quorumlog group`` as processes, against a real HTTP door in front of a fake broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from broker.coordinator.group_messages import (
    BlockedPartition,
    CommitGroup,
    DescribeGroup,
    ForgottenRecord,
    GroupDescription,
    GroupOffset,
    GroupOffsetRow,
    GroupOffsets,
    GroupRepaired,
    GroupState,
    MemberDescription,
    RepairGroup,
    SkippedRecord,
    SkipRecords,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    InstanceId,
    PartitionId,
    TopicName,
    TopicPartition,
)
from tests.support.fake_broker_apis import NOW_MS
from tests.support.http_door import Door, open_door
from tests.unit.test_cli_commands import Shell

FLIGHTS = TopicName("flights")
JSON = "application/vnd.kafka.json.v2+json"


def member(name: str, *partitions: int) -> MemberDescription:
    return MemberDescription(
        instance=InstanceId(name),
        client_id="etl" if partitions else "",
        assignment=tuple(TopicPartition(FLIGHTS, PartitionId(number)) for number in partitions),
        is_manual=False,
        member_epoch=2,
    )


BLOCKED = BlockedPartition(
    topic=FLIGHTS,
    partition=PartitionId(0),
    offset=17,
    instance=InstanceId("one"),
    message="value deserialization error for format json at offset 17",
    since_ms=NOW_MS,
)


def describes(door: Door, *members: MemberDescription, rows: tuple[GroupOffsetRow, ...]) -> None:
    found = GroupDescription(
        group=GroupId("pilots"),
        state=GroupState.STABLE if members else GroupState.EMPTY,
        assignor="range",
        coordinator=BrokerId(2),
        group_epoch=2,
        members=members,
    )
    door.apis.groups = [found]
    door.apis.group_answers |= {DescribeGroup: found, GroupOffsets: rows}


def row(partition: int, offset: int, end: int | None) -> GroupOffsetRow:
    return GroupOffsetRow(FLIGHTS, PartitionId(partition), offset, "", end)


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    async with open_door() as door:
        for partition, count in ((0, 6), (1, 3)):
            records = [{"value": number} for number in range(count)]
            await door.post(f"/topics/flights/partitions/{partition}", {"records": records}, JSON)
        door.apis.requests.clear()
        yield Shell(door)


def committed(shell: Shell) -> dict[int, int]:
    """What the one commit said, by partition."""
    commits = [request for request in shell.door.apis.requests if isinstance(request, CommitGroup)]
    (commit,) = commits
    assert all(isinstance(one, GroupOffset) and one.topic == FLIGHTS for one in commit.offsets)
    return {one.partition: one.offset for one in commit.offsets}


async def test_list(shell: Shell) -> None:
    describes(shell.door, rows=())
    listed = await shell("group", "list")
    assert [line.split() for line in listed.lines] == [
        ["GROUP", "STATE", "COORDINATOR"],
        ["pilots", "empty", "2"],
    ]
    found = (await shell("group", "list", "--format", "json")).json
    assert found == [
        {
            "group": "pilots",
            "state": "EMPTY",
            "assignor": "range",
            "coordinator": 2,
            "is_simple": True,
            "moved": [],
            "blocked": [],
        }
    ]


async def test_describe_shows_lag_and_owner_per_partition(shell: Shell) -> None:
    owners = (member("one", 0, 1), member("spare"))
    start = replace(row(1, 0, 3), is_committed=False)
    describes(shell.door, *owners, rows=(row(0, 4, 6), start, row(2, 1, None)))
    shown = await shell("group", "describe", "pilots")
    assert shown.code == 0
    assert (
        shown.lines[0] == "group pilots state=stable coordinator=2 members=2 total_lag=at least 5"
    )
    assert [line.split() for line in shown.lines[2:5]] == [
        ["flights:0", "4", "6", "2", "one", "etl"],
        ["flights:1", "-", "3", "3", "one", "etl"],
        ["flights:2", "1", "-", "-", "-", "-"],
    ]
    assert shown.lines[5] == "without partitions: spare"

    (found,) = (await shell("group", "describe", "pilots", "--format", "json")).json
    assert (found["total_lag"], found["known_lag"], len(found["members"])) == (None, 5, 2)
    assert found["partitions"][0] == {
        "topic": "flights",
        "partition": 0,
        "current_offset": 4,
        "is_committed": True,
        "log_end_offset": 6,
        "lag": 2,
        "member_id": "one",
        "client_id": "etl",
        "blocked_offset": None,
    }


async def test_an_unknown_group_is_exit_1(shell: Shell) -> None:
    shell.door.apis.group_answers[DescribeGroup] = KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    shown = await shell("group", "describe", "nobody")
    assert (shown.code, shown.out) == (1, "")
    assert "Consumer group nobody cannot be found. (error 40405)" in shown.err


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        ("beginning", {0: 0, 1: 0}),
        ("earliest", {0: 0, 1: 0}),
        ("latest", {0: 6, 1: 3}),
        ("-2", {0: 4, 1: 1}),
        ("end", {0: 6, 1: 3}),
        ("5", {0: 5, 1: 3}),
        (f"@{NOW_MS}", {0: 0, 1: 0}),
        (f"@{NOW_MS + 1}", {0: 6, 1: 3}),
        ("2100-01-01T00:00:00Z", {0: 6, 1: 3}),
        ("2000-01-01T00:00:00+02:00", {0: 0, 1: 0}),
    ],
)
async def test_seek_moves_everything_the_group_has_committed(
    shell: Shell, to: str, expected: dict[int, int]
) -> None:
    describes(shell.door, rows=(row(0, 4, 6), row(1, 1, 3)))
    moved = await shell("group", "seek", "pilots", "--to", to)
    assert (moved.code, committed(shell)) == (0, expected)
    assert [line.split() for line in moved.lines] == [
        ["PARTITION", "PRIOR-OFFSET", "NEW-OFFSET"],
        ["flights:0", "4", str(expected[0])],
        ["flights:1", "1", str(expected[1])],
    ]


async def test_seek_of_a_topic_or_some_partitions(shell: Shell) -> None:
    describes(shell.door, rows=())
    moved = await shell(
        *("group", "seek", "new", "--to", "end", "-t", "flights:1", "--format", "json")
    )
    assert moved.json == [
        {
            "topic": "flights",
            "partition": 1,
            "prior_offset": None,
            "new_offset": 3,
            "dry_run": False,
        }
    ]
    assert committed(shell) == {1: 3}
    shell.door.apis.requests.clear()
    await shell("group", "seek", "new", "--to", "beginning", "-t", "flights")
    assert committed(shell) == {0: 0, 1: 0}


async def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    describes(shell.door, rows=(row(0, 4, 6),))
    shown = await shell("group", "seek", "pilots", "--to", "end", "--dry-run")
    assert shown.lines[1].split() == ["flights:0", "4", "6"]
    assert "nothing was changed" in shown.err
    assert not any(isinstance(request, CommitGroup) for request in shell.door.apis.requests)


async def test_seek_under_live_members_is_refused(shell: Shell) -> None:
    describes(shell.door, rows=(row(0, 4, 6),))
    text = "group pilots has live members"
    shell.door.apis.group_answers[CommitGroup] = KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, text)
    refused = await shell("group", "seek", "pilots", "--to", "end", "--format", "json")
    assert (refused.code, refused.out) == (1, "")
    assert json.loads(refused.err)["error_code"] == 40903


async def test_positions_that_cannot_be_sought_are_refused(shell: Shell) -> None:
    describes(shell.door, rows=())
    nothing = await shell("group", "seek", "pilots", "--to", "end")
    assert (nothing.code, "has committed nothing" in nothing.err) == (1, True)
    absent = await shell("group", "seek", "pilots", "--to", "end", "-t", "flights:7")
    assert (absent.code, "partitions 0 to 1" in absent.err) == (1, True)
    for to in ("middle", "-0", "@", "2026-13-01", "2026-01-31T12:00:00"):
        wrong = await shell("group", "seek", "pilots", "--to", to, "-t", "flights")
        assert (wrong.code, wrong.out) == (2, ""), to
    assert (await shell("group", "seek", "pilots")).code == 2
    assert not any(isinstance(request, CommitGroup) for request in shell.door.apis.requests)


# a group that stands still


async def test_describe_names_a_record_that_stops_a_member_and_the_way_past_it(
    shell: Shell,
) -> None:
    describes(shell.door, member("one", 0), rows=(row(0, 4, 6),))
    answers = shell.door.apis.group_answers
    answers[DescribeGroup] = replace(answers[DescribeGroup], blocked=(BLOCKED,))
    shown = await shell("group", "describe", "pilots")
    assert shown.lines[-1] == (
        "one stands at flights:0:17 since 2023-11-14T22:13:20.000Z: value deserialization error "
        "for format json at offset 17; step over it with `quorumlog group skip pilots flights:0:17`"
    )
    (found,) = (await shell("group", "describe", "pilots", "--format", "json")).json
    assert found["blocked"][0]["offset"] == 17


async def test_a_group_of_unknown_lag_says_so_and_not_zero(shell: Shell) -> None:
    unknown = replace(row(0, 0, 6), offset=None, is_committed=False)
    describes(shell.door, member("one", 0), rows=(unknown,))
    (found,) = (await shell("group", "describe", "pilots", "--format", "json")).json
    assert (found["total_lag"], found["partitions"][0]["lag"]) == (None, None)
    shown = await shell("group", "describe", "pilots")
    assert "total_lag=at least 0" in shown.lines[0]


async def test_skip_steps_over_records_and_a_dry_run_only_looks(shell: Shell) -> None:
    describes(shell.door, member("one", 0), rows=())
    answers = shell.door.apis.group_answers
    answers[DescribeGroup] = replace(answers[DescribeGroup], blocked=(BLOCKED,))
    dry = await shell("group", "skip", "pilots", "flights:0:17", "--dry-run")
    assert (dry.code, dry.lines[1].split()) == (0, ["flights:0", "17"])
    wrong = await shell("group", "skip", "pilots", "flights:0:18", "--dry-run")
    assert (wrong.code, "offset 18 of flights:0 stops no member of pilots" in wrong.err) == (
        1,
        True,
    )
    assert not any(isinstance(one, SkipRecords) for one in shell.door.apis.requests)
    done = await shell("group", "skip", "pilots", "flights:0:17", "--format", "json")
    assert done.json == [{"topic": "flights", "partition": 0, "offset": 17, "dry_run": False}]
    asked = [one for one in shell.door.apis.requests if isinstance(one, SkipRecords)]
    assert asked == [
        SkipRecords(group=GroupId("pilots"), records=(SkippedRecord(FLIGHTS, PartitionId(0), 17),))
    ]
    assert (await shell("group", "skip", "pilots", "flights:0")).code == 2


async def test_repair_shows_what_is_forgotten_and_what_stays(shell: Shell) -> None:
    forgotten = ForgottenRecord(partition=PartitionId(3), offset=812, key='["lease"]', reason="why")
    shell.door.apis.group_answers[RepairGroup] = GroupRepaired(
        forgotten=(forgotten,),
        members=(InstanceId("one"),),
        offsets=(GroupOffset(FLIGHTS, PartitionId(0), 4),),
    )
    dry = await shell("group", "repair", "pilots", "--dry-run")
    assert dry.lines[0] == (
        "could be repaired pilots: 1 records forgotten, members that join anew: one"
    )
    assert [line.split() for line in dry.lines[2:]] == [
        ["3", "812", '["lease"]', "why"],
        ["PARTITION", "OFFSET"],
        ["flights:0", "4"],
    ]
    (found,) = (await shell("group", "repair", "pilots", "--format", "json")).json
    assert (found["members"], found["offsets"][0]["offset"]) == (["one"], 4)
    asked = [one for one in shell.door.apis.requests if isinstance(one, RepairGroup)]
    assert [one.validate_only for one in asked] == [True, False]
    text = "group pilots is not held: it needs no repair"
    shell.door.apis.group_answers[RepairGroup] = KafkaError(ErrorCode.ILLEGAL_STATE, text)
    refused = await shell("group", "repair", "pilots")
    assert (refused.code, text in refused.err) == (1, True)
