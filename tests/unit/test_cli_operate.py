"""What operators do on the command line, as processes against a real door before a fake broker."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from broker.server.requests import PartitionProgress
from http_api.cli.main import run
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.records.commands import (
    AddPartitions,
    AlterAnswer,
    AlterConfigs,
    AlterReassignments,
    CreateTopic,
    DrainBroker,
    ElectionResult,
    ElectLeaders,
    LeadersElected,
    MetadataUpgraded,
    PartitionsAdded,
    UnregisterBroker,
    UpgradeMetadata,
)
from raft_metadata.records.records import DrainScope
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import open_door
from tests.unit.test_cli_commands import Shell

OFFSET = MetadataOffset(12)
FLIGHTS = TopicName("flights")


@pytest.fixture
async def shell() -> AsyncIterator[Shell]:
    async with open_door() as door:
        yield Shell(door)


def brokers(*numbers: int) -> tuple[BrokerId, ...]:
    return tuple(map(BrokerId, numbers))


def cells(line: str) -> list[str]:
    return line.split()


# ---------------------------------------------------------------- topics


async def test_topic_create_with_assignments_and_alter(shell: Shell) -> None:
    apis = shell.door.apis
    made = await shell("topic", "create", "a", "--assignments", "1:2,2:1")
    assert (made.code, made.err) == (0, "")
    command = apis.requests[-1]
    assert isinstance(command, CreateTopic)
    assert command.replicas_assignments == {0: brokers(1, 2), 1: brokers(2, 1)}

    def grow(command: AddPartitions) -> PartitionsAdded:
        found = apis.image.topic(command.topic)
        assert found is not None
        return PartitionsAdded(
            topic_id=found.topic_id, partitions_count=command.partitions_count, next_offset=OFFSET
        )

    apis.admin_answers[AddPartitions] = grow
    altered = await shell("topic", "alter", "flights", "--partitions", "3", "--assignments", "2:1")
    assert (altered.code, altered.out) == (0, "altered flights partitions=3\n")
    assert apis.requests[-1] == AddPartitions(
        topic=FLIGHTS, partitions_count=3, replicas_assignments={2: brokers(2, 1)}
    )
    asked = await shell(
        "topic", "alter", "flights", "--partitions", "4", "--dry-run", "--format", "json"
    )
    assert (asked.json[0]["partitions_count"], asked.json[0]["dry_run"]) == (4, True)


async def test_one_failed_row_is_exit_1_and_the_others_are_done(shell: Shell) -> None:
    refused = KafkaError(ErrorCode.INVALID_PARTITIONS, "flights has 2 partitions")
    shell.door.apis.admin_answers[AddPartitions] = refused
    finished = await shell("topic", "alter", "flights", "--partitions", "2")
    assert (finished.code, finished.out) == (1, "")
    assert finished.err == "quorumlog: flights has 2 partitions (error 40002)\n"


# ---------------------------------------------------------------- configs


async def test_config_list_and_describe(shell: Shell) -> None:
    shell.door.apis.set_config("flights", "flush", "os")
    listed = await shell("config", "list", "topic", "flights", "--changed")
    assert [cells(line) for line in listed.lines] == [
        ["NAME", "VALUE", "SOURCE", "UPDATE"],
        ["flush", "os", "DYNAMIC_TOPIC_CONFIG", "live"],
        ["segment.bytes", "4096", "STATIC_BROKER_CONFIG", "live"],
    ]
    several = await shell("config", "list", "brokers", "--format", "json")
    assert {row["broker_id"] for row in several.json} == {1, 2}
    shown = await shell("config", "describe", "topic", "flights", "flush", "nope")
    assert shown.code == 1
    assert shown.lines[0] == "flush=os (live)"
    assert shown.lines[2:] == [
        "  expected ack or os",
        "  DYNAMIC_TOPIC_CONFIG os",
        "  DEFAULT_CONFIG ack",
    ]
    assert "Config nope cannot be found" in shown.err


async def test_config_set_and_reset(shell: Shell) -> None:
    apis = shell.door.apis
    done = await shell("config", "set", "topic", "flights", "flush=os", "segment.ms=7")
    assert (done.code, done.out) == (0, "set flush=os\nset segment.ms=7\n")
    done = await shell("config", "reset", "cluster", "flush", "--dry-run")
    assert (done.code, done.out) == (0, "could be reset flush\n")
    done = await shell("config", "set", "broker", "2", "segment.ms=8", "--format", "json")
    assert done.json == [{"name": "segment.ms", "value": "8", "dry_run": False}]
    sent = [one for one in apis.requests if isinstance(one, AlterConfigs)]
    assert [
        [(change.resource_name, change.name, change.value) for change in one.changes]
        for one in sent
    ] == [
        [("flights", "flush", "os"), ("flights", "segment.ms", "7")],
        [("", "flush", None)],
        [("2", "segment.ms", "8")],
    ]
    assert [one.validate_only for one in sent] == [False, True, False]


# ---------------------------------------------------------------- brokers


async def test_broker_list_and_describe(shell: Shell) -> None:
    listed = await shell("broker", "list")
    assert [cells(line)[0] for line in listed.lines] == ["BROKER", "1", "2"]
    everyone = await shell("broker", "list", "--all", "--format", "json")
    assert [(row["broker_id"], row["state"]) for row in everyone.json] == [
        *((1, "unfenced"), (2, "unfenced")),
        (3, "fenced"),
    ]
    shown = await shell("broker", "describe", "1", "9")
    assert shown.code == 1
    assert shown.out == (
        "broker 1 http://127.0.0.1:8082 state=unfenced drain=none leads=2 replicas=2\n"
    )
    assert "Broker 9 cannot be found." in shown.err


def drains(apis: FakeBrokerApis) -> None:
    def answer(command: DrainBroker) -> AlterAnswer:
        apis.change_broker(command.broker_id, drain=command.scope)
        return AlterAnswer(next_offset=OFFSET)

    apis.admin_answers[DrainBroker] = answer


async def test_broker_drain_tells_what_is_left_and_waits(shell: Shell) -> None:
    apis = shell.door.apis
    drains(apis)
    begun = await shell("broker", "drain", "1")
    assert begun.code == 0
    assert begun.lines[1:] == ["drain under way leaders_left=2 replicas_left=2"]
    late = await shell("broker", "drain", "1", "--wait", "--timeout", "0")
    assert late.code == 1
    assert "not drained within 0 s" in late.err
    assert late.lines[2:] == ["flights:0, flights:1: no other replica is alive and in sync"]
    for number in (0, 1):
        apis.change_partition("flights", number, leader=BrokerId(2))
    done = await shell("broker", "drain", "1", "--wait", "--format", "json")
    assert (done.code, done.json["drain_progress"]["is_done"]) == (0, True)
    ended = await shell("broker", "undrain", "1", "--format", "json")
    assert ended.json[0]["drain_progress"] is None
    assert apis.image.brokers[BrokerId(1)].drain is DrainScope.NONE


async def test_broker_unregister(shell: Shell) -> None:
    done = await shell("broker", "unregister", "3")
    assert (done.code, done.out) == (0, "unregistered 3\n")
    held = KafkaError(ErrorCode.POLICY_VIOLATION, "broker 2 holds 2 replicas")
    shell.door.apis.admin_answers[UnregisterBroker] = held
    refused = await shell("broker", "unregister", "2", "--format", "json")
    assert (refused.code, refused.json) == (1, [])
    assert json.loads(refused.err) == {
        "error_code": 40002,
        "message": "broker 2 holds 2 replicas",
        "outcome": "not_written",
    }


# ---------------------------------------------------------------- partitions


def move(apis: FakeBrokerApis) -> None:
    """Partition 0 of flights moves from brokers 1, 2 to 1, 3."""
    apis.change_partition(
        "flights", 0, replicas=brokers(1, 3, 2), adding=brokers(3), removing=brokers(2)
    )
    place = TopicIdPartition(TopicId(f"{'flights':x<22}"), PartitionId(0))
    apis.progress[place] = PartitionProgress(
        log_end_offset=9, high_watermark=9, follower_ends={BrokerId(3): 4}
    )


async def test_partition_list_and_describe(shell: Shell) -> None:
    apis = shell.door.apis
    move(apis)
    listed = await shell("partition", "list")
    assert [cells(line) for line in listed.lines] == [
        cells("PARTITION LEADER EPOCH REPLICAS ISR ELR OUT-OF-SYNC MOVING"),
        ["flights:0", "1", "4", "1,3,2", "1", "2", "3,2", "+3", "-2"],
        ["flights:1", "1", "4", "1,2", "1", "2", "2"],
    ]
    apis.change_partition("flights", 1, leader=BrokerId(-1))
    for options, expected in (
        (["--leaderless"], [1]),
        (["--under-replicated"], [0, 1]),
        (["--not-preferred"], [1]),
        (["--moving"], [0]),
        (["--broker", "3"], [0]),
    ):
        found = await shell("partition", "list", "flights", *options, "--format", "json")
        assert [row["partition"] for row in found.json] == expected, options
    shown = await shell("partition", "describe", "flights:0", "flights:9")
    assert shown.code == 1
    assert "  last_known_leader: -" in shown.lines
    assert "  adding: 3" in shown.lines


async def test_reassign_start_list_cancel(shell: Shell) -> None:
    apis = shell.door.apis

    def start(command: AlterReassignments) -> AlterAnswer:
        if not command.validate_only:
            move(apis)
        return AlterAnswer(next_offset=OFFSET)

    apis.admin_answers[AlterReassignments] = start
    asked = await shell("reassign", "start", "flights:0=1,3", "--dry-run")
    assert (asked.code, asked.out) == (0, "could be reassigned: 1 partitions\n")
    begun = await shell("reassign", "start", "flights:0=1,3")
    assert begun.code == 0
    assert cells(begun.lines[1]) == ["flights:0", "1,3,2", "3", "2", "5"]
    listed = await shell("reassign", "list", "flights", "--format", "json")
    assert listed.json[0]["progress"][0]["lag"] == 5
    late = await shell("reassign", "start", "flights:0=1,3", "--wait", "--timeout", "0")
    assert late.code == 1
    assert "not done within 0 s" in late.err
    for arguments in (["flights:0"], ["flights"], ["--all"]):
        assert (await shell("reassign", "cancel", *arguments)).code == 0, arguments
    sent = [one for one in apis.requests if isinstance(one, AlterReassignments)]
    assert [one.changes[0].replicas for one in sent] == [brokers(1, 3)] * 3 + [None] * 3


async def test_reassign_from_kafkas_file_and_wait(shell: Shell, tmp_path: Path) -> None:
    source = tmp_path / "moves.json"
    row = {"topic": "flights", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]}
    source.write_text(json.dumps({"version": 1, "partitions": [row]}))
    done = await shell("reassign", "start", "--file", str(source), "--wait", "--format", "json")
    assert (done.code, done.json[0]["adding"]) == (0, [])
    source.write_text("[]")
    wrong = await shell("reassign", "start", "--file", str(source))
    assert (wrong.code, '"partitions"' in wrong.err) == (2, True)


async def test_elect(shell: Shell) -> None:
    apis = shell.door.apis
    won = ElectionResult(topic=FLIGHTS, partition=PartitionId(0), leader=BrokerId(1))
    lost = ElectionResult(
        topic=FLIGHTS,
        partition=PartitionId(1),
        error=ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE.number,
        message="broker 1 is not in sync",
    )
    apis.admin_answers[ElectLeaders] = LeadersElected(results=(won,), next_offset=OFFSET)
    one = await shell("elect", "preferred", "flights:0", "--format", "json")
    assert (one.code, one.json[0]["leader"]) == (0, 1)
    apis.admin_answers[ElectLeaders] = LeadersElected(results=(won, lost), next_offset=OFFSET)
    every = await shell("elect", "preferred", "--all")
    assert every.code == 1, "a failed row"
    assert every.lines[2].endswith("broker 1 is not in sync")
    before = len(apis.requests)
    unsure = await shell("elect", "unclean", "--all")
    assert (unsure.code, len(apis.requests)) == (2, before)
    assert "add --yes" in unsure.err
    assert (await shell("elect", "unclean", "flights", "--yes")).code == 1


async def test_cluster_features_and_upgrade(shell: Shell) -> None:
    apis = shell.door.apis
    apis.image = replace(apis.image, feature_level=1)
    shown = await shell("cluster", "features")
    assert shown.lines[0] == "metadata.version 1"
    upgraded = MetadataUpgraded(level_before=1, level=2, next_offset=OFFSET)
    apis.admin_answers[UpgradeMetadata] = upgraded
    asked = await shell("cluster", "upgrade", "--dry-run")
    assert asked.out == "metadata.version could go from 1 to 2\n"
    done = await shell("cluster", "upgrade", "--level", "2", "--format", "json")
    assert (done.json["metadata_version"], done.json["dry_run"]) == (2, False)
    assert apis.requests == [UpgradeMetadata(validate_only=True), UpgradeMetadata(level=2)]


# ---------------------------------------------------------------- wrong usage


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("topic create a --assignments 1:x", "as in 1:2:3,2:3:1"),
        ("topic alter flights", "--partitions"),
        ("config list", "topic TOPIC | broker BROKER | brokers | cluster"),
        ("config list group g", "topic TOPIC | broker BROKER | brokers | cluster"),
        ("config list topic flights flush", "config describe"),
        ("config set brokers flush=os", "topic TOPIC | broker BROKER | cluster"),
        ("config set topic flights flush", "NAME=VALUE, as in retention.ms=1h"),
        ("config set topic flights", "NAME=VALUE"),
        ("config describe broker one flush", "as in 1 or broker-1"),
        ("config set flights flush=os", "did you mean `config set topic flights flush=os`?"),
        ("config set topic flights retention.ms=1w", "units are ms, s, m"),
        ("broker", "--config"),
        ("broker drain 1 --scope all", "leaders"),
        ("partition describe flights", "TOPIC:PARTITION"),
        ("reassign start", "TOPIC:PARTITION=BROKER"),
        ("reassign start flights:0=", "as in orders:0=1,2,3"),
        ("reassign start flights:0=1,1", "different broker ids, as in 1,2,3"),
        ("broker drain one", "as in 1 or broker-1"),
        ("consume flights:0,0", "each partition once"),
        ("consume flights -o 2026-01-31T12:00:00", "a zone behind the time"),
        ("consume flights --last 3 -n 2", "expected no -o and no -n"),
        ("produce flights:0,1", "as in orders or orders:0"),
        ("topic trim flights --before 1", "as in orders:0"),
        ("topic create a:b", "a topic name"),
        ("bench produce -d 1w", "10s"),
        ("bench produce --size 2", "at least 3 bytes"),
        ("cluster health --watch --interval soon", "10s"),
        ("topci list", "Did you mean 'topic'?"),
        ("topic creat a", "Did you mean 'create'?"),
        ("topic list --fromat json", "Did you mean '--format'?"),
        ("reassign start flights=1", "TOPIC:PARTITION"),
        ("reassign cancel", "--all"),
        ("reassign cancel flights --all", "TOPIC"),
        ("elect preferred", "--all, or TOPIC"),
        ("elect preferred flights --all", "--all, or TOPIC"),
    ],
)
def test_wrong_usage_says_what_was_expected(
    arguments: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments.split()) == 2
    printed = capsys.readouterr()
    assert (printed.out, expected in printed.err) == ("", True), printed.err
