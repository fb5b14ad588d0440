"""``quorum describe``, ``cluster health``, ``metadata dump|get``: output and exit codes.

The commands run in this process, on a thread, against a real door in front of a fake broker.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import pytest

from broker.server.metadata_requests import MetadataLogPage
from http_api.cli import main
from http_api.cli.metadata import FORMATTERS, line_of
from raft_metadata.common.ids import ControllerEpoch, MetadataOffset
from raft_metadata.image.facts import FactConverter
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import MetadataBatch
from raft_metadata.records.records import ConfigRecord, MetadataRecord, ResourceType
from raft_metadata.records.serde import RECORD_TYPES, decode_record
from tests.support.fake_broker_apis import NOW_MS
from tests.support.http_door import Door, open_door
from tests.support.quorum_views import quorum_view
from tests.support.registered import broker


@dataclass
class Shell:
    door: Door
    output: pytest.CaptureFixture[str]

    async def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        code = await asyncio.to_thread(main.run, list(arguments))
        return code, *self.output.readouterr()


@pytest.fixture
async def shell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Shell]:
    async with open_door() as door:
        monkeypatch.setenv("QUORUMLOG_URL", f"http://{door.address}")
        yield Shell(door, capsys)


# ---------------------------------------------------------------- quorum describe


async def test_quorum_describe_sums_up_and_lists(shell: Shell) -> None:
    shell.door.apis.metadata.view = quorum_view()
    code, out, err = await shell("quorum", "describe")
    assert (code, err) == (0, "")
    said = dict(line.split("  ", 1) for line in out.splitlines())
    assert {name.strip(): value.strip() for name, value in said.items()} == {
        "cluster": shell.door.apis.cluster_id,
        "leader": "102",
        "leader epoch": "3",
        "high watermark": "42 (entry 69)",
        "max follower lag": "5",
        "max follower lag ms": "100",
        "voters": "101,102",
        "unreachable": "101",
        "observers": "1",
        "metadata.version": "2",
    }
    code, out, _ = await shell("quorum", "describe", "--replication")
    rows = [line.split() for line in out.splitlines()]
    assert rows[1] == ["101", "follower", "65", "5", "40", "100", "no", "http://127.0.0.1:10082"]
    assert rows[3] == ["1", "observer", "unfenced", "40", "2", "120", "-", "-", "-"]
    code, out, _ = await shell("quorum", "describe", "--format", "json")
    assert json.loads(out)["kind"] == "KafkaQuorum"


async def test_quorum_describe_says_when_a_follower_tells_it(shell: Shell) -> None:
    shell.door.apis.metadata.view = quorum_view(is_active=False, is_leader=False, leader_id=None)
    code, out, err = await shell("quorum", "describe")
    assert code == 0
    assert "leader               none" in out
    assert err == "no active controller answers: reported by controller 102, a follower\n"


# ---------------------------------------------------------------- cluster health


def mend(door: Door) -> None:
    """Every broker up, every replica in sync."""
    image = door.apis.image
    brokers = MappingProxyType({number: broker(int(number)) for number in image.brokers})
    topics = {
        key: replace(
            topic,
            partitions=tuple(replace(one, isr=one.replicas, elr=()) for one in topic.partitions),
        )
        for key, topic in image.topics.items()
    }
    door.apis.image = replace(image, brokers=brokers, topics=MappingProxyType(topics))
    door.apis.metadata.view = quorum_view(all_reachable=True)


async def test_health_has_an_exit_code_for_each_verdict(shell: Shell) -> None:
    mend(shell.door)
    code, out, _ = await shell("cluster", "health")
    assert (code, out.splitlines()[0]) == (0, "healthy")

    shell.door.apis.metadata.view = quorum_view()
    code, out, _ = await shell("cluster", "health")
    assert (code, out.splitlines()[0]) == (1, "degraded")
    assert out.splitlines()[-1] == (
        "degraded: CONTROLLER_DOWN: 1 controllers do not answer this broker: 101"
    )

    shell.door.apis.without_leader("flights")
    code, out, _ = await shell("cluster", "health", "--format", "json")
    assert (code, json.loads(out)["status"]) == (3, "unhealthy")


async def test_health_without_an_answer_is_69_and_wrong_usage_2(shell: Shell) -> None:
    code, out, err = await shell("cluster", "health", "--url", "http://127.0.0.1:1")
    assert (code, out) == (69, "")
    assert "127.0.0.1:1" in err
    assert (await shell("cluster", "health", "--timeout", "3"))[0] == 2


async def test_a_watch_ends_when_it_is_healthy(shell: Shell) -> None:
    shell.door.apis.metadata.view = quorum_view()
    watch = asyncio.create_task(
        shell("cluster", "health", "--exit-when-healthy", "--interval", "0.1", "--format", "json")
    )
    await asyncio.sleep(0.3)
    assert not watch.done()
    mend(shell.door)
    async with asyncio.timeout(5):
        code, out, _ = await watch
    statuses = [json.loads(line)["status"] for line in out.splitlines()]
    assert (code, statuses) == (0, ["unhealthy", "healthy"]), "one line for each change"


async def test_a_watch_ends_in_time_with_how_it_is(shell: Shell) -> None:
    shell.door.apis.metadata.view = quorum_view()
    mend(shell.door)
    shell.door.apis.metadata.view = quorum_view()
    code, _, _ = await shell(
        "cluster", "health", "--exit-when-healthy", "--timeout", "0.3", "--interval", "0.1"
    )
    assert code == 1


# ---------------------------------------------------------------- metadata


def record(**fields: Any) -> MetadataRecord:
    return decode_record({"v": 0, **fields})


def change(leader: int, epoch: int, isr: list[int], **fields: Any) -> MetadataRecord:
    said = {
        "type": "partition_change",
        "topic_id": f"{'flights':x<22}",
        "partition": 1,
        "directories": ["d" * 22] * 2,
        "isr": isr,
        "elr": [],
        "leader": leader,
        "leader_epoch": epoch,
        "partition_epoch": epoch + 3,
    }
    return record(**{**said, **fields})


def answer(*records: MetadataRecord, base: int, end: int) -> MetadataLogPage:
    batch = MetadataBatch(
        base_offset=MetadataOffset(base),
        epoch=ControllerEpoch(3),
        records=records,
        time_ms=NOW_MS + 123,
    )
    return MetadataLogPage(batches=(batch,), end_offset=MetadataOffset(end))


async def test_dump_prints_one_readable_line_for_each_fact(shell: Shell) -> None:
    image = replace(shell.door.apis.image, next_offset=MetadataOffset(1042))
    shell.door.apis.image = image
    shell.door.apis.metadata.page = answer(
        change(3, 5, [3, 2]), change(2, 6, [2], unclean=True), base=1042, end=1044
    )
    code, out, _ = await shell("metadata", "dump", "--from", "1042")
    assert code == 0
    first, second = out.splitlines()
    when = "2023-11-14T22:13:20.123Z"
    assert first == (
        f"1042 e3 {when} partition flights-1: leader 1 -> 3 epoch 5 isr [1] -> [3,2] elr [2] -> []"
    )
    assert second == (
        f"1043 e3 {when} partition flights-1: leader 3 -> 2 epoch 6 isr [3,2] -> [2] elr [] "
        "UNCLEAN election: acknowledged records may be gone"
    )
    code, out, _ = await shell("metadata", "dump", "--from", "1042", "--format", "json")
    assert [json.loads(line)["offset"] for line in out.splitlines()] == [1042, 1043]


LINES: list[tuple[dict[str, Any], str]] = [
    ({"type": "feature_level", "level": 1}, "metadata.version 1"),
    (
        {"type": "topic", "name": "orders", "topic_id": "T" * 22, "partitions_count": 3},
        "topic orders: created, 3 partitions",
    ),
    (
        {"type": "partitions_count", "topic_id": "T" * 22, "partitions_count": 6},
        "topic orders: grows to 6 partitions",
    ),
    (
        {
            "type": "config",
            "resource_type": "topic",
            "resource_name": "T" * 22,
            "name": "retention.ms",
            "value": "1",
        },
        "config of topic orders: retention.ms = 1",
    ),
    (
        {
            "type": "config",
            "resource_type": "topic",
            "resource_name": "T" * 22,
            "name": "retention.ms",
            "value": "2",
        },
        "config of topic orders: retention.ms = 1 -> 2",
    ),
    (
        {
            "type": "config",
            "resource_type": "cluster",
            "resource_name": "",
            "name": "retention.ms",
            "value": None,
        },
        "config of cluster: retention.ms reset to its default",
    ),
    ({"type": "remove_topic", "topic_id": "T" * 22}, "topic orders: deleted"),
    (
        {
            "type": "register_broker",
            "broker_id": 1,
            "broker_epoch": 7,
            "incarnation_id": "I" * 22,
            "directory_id": "D" * 22,
            "http": "127.0.0.1:8082",
            "peer": "127.0.0.1:9082",
            "rack": "a",
            "unclean_ranges": [],
            "feature_level_max": 1,
            "min_insync_replicas": 2,
        },
        "broker 1: registered at 127.0.0.1:8082 epoch 7 rack a",
    ),
    (
        {
            "type": "register_broker",
            "broker_id": 1,
            "broker_epoch": 7,
            "incarnation_id": "I" * 22,
            "directory_id": "D" * 22,
            "http": "127.0.0.1:8082",
            "peer": "127.0.0.1:9082",
            "unclean_ranges": [["T" * 22, 0, 4], ["U" * 22, 2, 2]],
            "feature_level_max": 1,
            "min_insync_replicas": 2,
        },
        "broker 1: registered at 127.0.0.1:8082 epoch 7, all replicas among 6 partitions unclean",
    ),
    (
        {
            "type": "broker_registration_change",
            "broker_id": 1,
            "broker_epoch": 7,
            "state": "unfenced",
            "settled": True,
        },
        "broker 1: state starting -> unfenced",
    ),
    ({"type": "broker_drain", "broker_id": 1, "scope": "leaders"}, "broker 1: drain leaders"),
    (
        {"type": "unregister_broker", "broker_id": 1, "broker_epoch": 7},
        "broker 1: unregistered",
    ),
    (
        {"type": "producer_ids", "broker_id": 1, "broker_epoch": 7, "next_producer_id": 1000},
        "producer ids below 1000: handed to broker 1",
    ),
    (
        {
            "type": "client_quota",
            "entity": [["user", "alice"], ["client-id", None]],
            "key": "producer_byte_rate",
            "value": 1024.0,
        },
        "quota of user=alice,client-id=<default>: producer_byte_rate = 1024",
    ),
    (
        {
            "type": "user_scram",
            "name": "alice",
            "mechanism": "SCRAM-SHA-256",
            "salt": "s",
            "stored_key": "k",
            "server_key": "k",
            "iterations": 4096,
        },
        "user alice: SCRAM-SHA-256 password set",
    ),
]


def batch_of(*records: MetadataRecord) -> MetadataBatch:
    return MetadataBatch(
        base_offset=MetadataOffset(0), epoch=ControllerEpoch(1), records=records, time_ms=NOW_MS
    )


def test_every_kind_of_fact_has_words() -> None:
    converter = FactConverter(MetadataImage(), MetadataImage())
    batch = batch_of(*(record(**fields) for fields, _ in LINES))
    lines = [line_of(fact) for fact in converter.batch_facts(batch)]
    when = "2023-11-14T22:13:20.000Z"
    assert lines == [f"{at} e1 {when} {words}" for at, (_, words) in enumerate(LINES)]


def test_a_config_fact_names_the_value_before_it() -> None:
    """From the image that the batch changes, and then from the batches themselves."""
    resource = (ResourceType.CLUSTER, "")
    values = MappingProxyType({"retention.ms": "1"})
    image = MetadataImage(configs=MappingProxyType({resource: values}))
    records = [
        ConfigRecord(resource_type=resource[0], resource_name="", name=name, value=value)
        for name, value in [("retention.ms", "2"), ("retention.ms", "3"), ("flush", "os")]
    ]
    facts = list(FactConverter(image, image).batch_facts(batch_of(*records)))
    assert [fact["before"] for fact in facts] == [{"value": "1"}, {"value": "2"}, {"value": None}]
    unknown, *later = FactConverter(image).batch_facts(batch_of(*records))
    assert "before" not in unknown
    assert later[0]["before"] == {"value": "2"}


def test_no_type_of_record_is_without_words() -> None:
    assert set(RECORD_TYPES) <= set(FORMATTERS)


def test_a_fact_of_an_unknown_type_is_shown_whole() -> None:
    fact = {"offset": 4, "epoch": 1, "time": None, "type": "novelty", "a": 1}
    assert line_of(fact) == "4 e1 - novelty: a=1"


async def test_get_prints_any_path_and_names_what_there_is(shell: Shell) -> None:
    code, out, _ = await shell("metadata", "get", "/topics/flights/partitions/0/isr")
    assert (code, json.loads(out)) == (0, [1])
    code, out, err = await shell("metadata", "get", "/topics/flight")
    assert (code, out) == (1, "")
    assert err == "quorumlog: /topics has no 'flight', it has: flights (error 404)\n"
