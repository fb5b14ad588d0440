"""``…/partitions/P:delete-records``: golden bodies, refusals, and the command line's way to it."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from raft_metadata.common.ids import PartitionId, TopicName
from tests.contract.test_v3 import CRN
from tests.support.fake_broker_apis import CLUSTER_ID, FakeBrokerApis
from tests.support.http_door import V3, V3_URL, Answer, Door
from tests.unit.test_cli_commands import Shell

JSON = "application/json"
FLIGHTS = TopicName("flights")
PATH = f"{V3}/topics/flights/partitions/0:delete-records"


def held(apis: FakeBrokerApis) -> None:
    apis.logs[FLIGHTS, PartitionId(0)].end = 10


async def send(door: Door, body: Any, path: str = PATH) -> Answer:
    return await door.call("POST", path, orjson.dumps(body), {"Content-Type": JSON})


def begins_at(offset: int) -> dict[str, Any]:
    return {
        "kind": "KafkaPartitionLogStart",
        "metadata": {
            "self": f"{V3_URL}/topics/flights/partitions/0",
            "resource_name": f"{CRN}/topic=flights/partition=0",
        },
        "cluster_id": CLUSTER_ID,
        "topic_name": "flights",
        "partition_id": 0,
        "log_start_offset": offset,
    }


async def test_records_below_an_offset_are_deleted(door: Door) -> None:
    held(door.apis)
    assert (await send(door, {"before_offset": 4})).golden == (200, JSON, begins_at(4))
    assert (await send(door, {"before_offset": 2})).golden == (200, JSON, begins_at(4))
    assert (await send(door, {"before_offset": -1})).golden == (200, JSON, begins_at(10))


async def test_an_offset_outside_the_log_is_refused_naming_both_ends(door: Door) -> None:
    held(door.apis)
    status, _, body = (await send(door, {"before_offset": 11})).golden
    assert status == 400
    assert "offset 11" in body["message"]
    assert "log start offset 0, high watermark 10" in body["message"]


@pytest.mark.parametrize(
    "body", [{}, {"before_offset": "7"}, {"before_offset": -2}, {"before_offset": True}, {"to": 4}]
)
async def test_a_body_that_says_nothing_clear_deletes_nothing(
    door: Door, body: dict[str, Any]
) -> None:
    held(door.apis)
    answer = await send(door, body)
    assert answer.golden[0] == 400
    assert door.apis.logs[FLIGHTS, PartitionId(0)].start == 0


async def test_an_unknown_topic_or_partition_is_not_found(door: Door) -> None:
    gone = PATH.replace("flights", "nothing")
    assert (await send(door, {"before_offset": 1}, gone)).golden[0] == 404
    assert (await send(door, {"before_offset": 1}, PATH.replace("/0:", "/99:"))).golden[0] == 404


async def test_topic_trim_on_the_command_line(door: Door) -> None:
    held(door.apis)
    shell = Shell(door)
    done = await shell("topic", "trim", "flights:0", "--before", "3")
    assert done.out == "flights:0 begins at offset 3\n"
    said = await shell("topic", "trim", "flights:0", "--before", "-1", "--format", "json")
    assert json.loads(said.out) == {"topic": "flights", "partition": 0, "first_offset": 10}
    refused = await shell("topic", "trim", "flights:0", "--before", "99")
    assert refused.code == 1
    assert "high watermark 10" in refused.err
