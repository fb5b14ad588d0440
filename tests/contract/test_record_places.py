"""Places of records: keyless ones past partitions without a leader, in turn, at every door."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from http_api.client.produce_calls import JsonRecord, send
from http_api.client.transport import Client
from raft_metadata.common.record_placement import Partitioner, partition_for_key
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import V3, Door, open_door

JSON_V2 = "application/vnd.kafka.json.v2+json"
STREAM = f"{V3}/topics/wide/records"
LEADERLESS = 1
LED = {0, 2}
LOST_KEY = next(n for n in range(99) if partition_for_key(b"%d" % n, 3) == LEADERLESS)
"""A key of the partition without a leader."""


@pytest.fixture
async def wide() -> AsyncIterator[Door]:
    """A door to ``wide``, of whose three partitions one has no leader."""
    apis = FakeBrokerApis()
    apis.add_topic("wide", 3)
    apis.change_partition("wide", LEADERLESS, leader=-1)
    async with open_door(apis) as door:
        yield door


async def places(door: Door, *records: dict[str, Any], query: str = "") -> list[int | None]:
    answer = await door.post(f"/topics/wide{query}", {"records": list(records)}, JSON_V2)
    return [row["partition"] for row in answer.json["offsets"]]


async def receipts(door: Door, body: str, query: str = "") -> list[dict[str, Any]]:
    answer = await door.post(STREAM + query, body, "application/json")
    return [json.loads(line) for line in answer.body.split(b"\r\n")[:-1]]


async def batch(door: Door, *records: dict[str, Any], query: str = "") -> list[int]:
    entries = [{"id": str(number)} | record for number, record in enumerate(records)]
    answer = await door.post(f"{STREAM}:batch{query}", {"entries": entries}, "application/json")
    assert answer.json["failures"] == []
    return [row["partition_id"] for row in answer.json["successes"]]


async def test_each_request_takes_the_next_partition_that_has_a_leader(wide: Door) -> None:
    found = [await places(wide, {"value": 1}, {"value": 2, "key": None}) for _ in range(4)]
    assert found == [[0, 0], [2, 2], [0, 0], [2, 2]]


async def test_requests_of_one_record_take_turns_too(wide: Door) -> None:
    assert [await places(wide, {"value": 1}) for _ in range(4)] == [[0], [2], [0], [2]]
    if wide.apis.direct.taken:
        assert wide.apis.direct.taken == 4


async def test_round_robin_gives_each_record_its_turn(wide: Door) -> None:
    records = [{"value": number} for number in range(5)]
    query = "?partitioner=round_robin"
    assert await places(wide, *records, query=query) == [0, 2, 0, 2, 0]
    assert await places(wide, *records, query=query) == [2, 0, 2, 0, 2]
    assert await places(wide, *records, query="?partitioner=sticky") == [0] * 5


async def test_a_keyed_record_keeps_its_place_and_fails_there(wide: Door) -> None:
    answer = await wide.post("/topics/wide", {"records": [{"key": LOST_KEY, "value": 1}]}, JSON_V2)
    assert (answer.status, answer.json["offsets"][0]["outcome"]) == (503, "not_written")
    assert await places(wide, {"key": LOST_KEY, "value": 1}, {"value": 2}) == [None, 0]
    assert await places(wide, {"partition": LEADERLESS, "value": 1}) == [None]


async def test_without_any_leader_all_partitions_take_part() -> None:
    apis = FakeBrokerApis()
    apis.add_topic("wide", 3)
    apis.without_leader("wide")
    async with open_door(apis) as door:
        for _ in range(3):
            answer = await door.post("/topics/wide", {"records": [{"value": 1}]}, JSON_V2)
            assert answer.status == 503


async def test_a_leader_that_is_back_takes_records_again(wide: Door) -> None:
    assert await places(wide, {"value": 1}) == [0]
    wide.apis.change_partition("wide", LEADERLESS, leader=2)
    found = [await places(wide, {"value": 1}) for _ in range(6)]
    assert Counter(place for [place] in found) == {0: 2, 1: 2, 2: 2}


async def test_topics_have_turns_of_their_own(wide: Door) -> None:
    """With a turn for all topics, two that are written alternately would use half of theirs."""
    wide.apis.add_topic("other", 2)
    found = []
    for _ in range(4):
        await places(wide, {"value": 1})
        answer = await wide.post("/topics/other", {"records": [{"value": 1}]}, JSON_V2)
        found.append(answer.json["offsets"][0]["partition"])
    assert found == [0, 1, 0, 1]


async def test_the_stream_of_v3(wide: Door) -> None:
    keyed = f'{{"key":{{"type":"JSON","data":{LOST_KEY}}}}}'
    first, lost, second = await receipts(wide, "{}" + keyed + "{}")
    assert (first["partition_id"], second["partition_id"]) == (0, 0)
    assert (lost["error_code"], lost["outcome"]) == (50003, "not_written")
    found = await receipts(wide, "{}" * 4, "?partitioner=round_robin")
    assert [row["partition_id"] for row in found] == [2, 0, 2, 0]


async def test_a_batch_of_v3_of_several_formats_goes_to_one_partition(wide: Door) -> None:
    """The batch is written as a request for each run of equal formats."""
    halves = [{"type": "JSON", "data": 1}, {"type": "STRING", "data": "a"}, {"type": "JSON"}]
    records = [{"value": half} for half in halves]
    assert [await batch(wide, *records) for _ in range(3)] == [[0] * 3, [2] * 3, [0] * 3]
    assert await batch(wide, *records, query="?partitioner=round_robin") == [2, 0, 2]


async def test_the_client_and_its_partitioner(wide: Door) -> None:
    def written(partitioner: Partitioner) -> list[int | None]:
        with Client([f"http://{wide.address}"]) as client:
            rows = send(
                client, "wide", [JsonRecord(b"1")] * 4, partitioner=partitioner, retry_s=0.0
            )
        return [row.partition for row in rows]

    assert await asyncio.to_thread(written, Partitioner.STICKY) == [0] * 4
    assert await asyncio.to_thread(written, Partitioner.ROUND_ROBIN) == [2, 0, 2, 0]


@pytest.mark.parametrize(
    "path",
    ["/topics/wide", "/topics/wide/partitions/0", STREAM, f"{STREAM}:batch"],
)
async def test_a_wrong_partitioner_is_refused_and_nothing_written(wide: Door, path: str) -> None:
    content_type = JSON_V2 if path.startswith("/topics") else "application/json"
    body = {"records": [{"value": 1}]} if path.startswith("/topics") else {"entries": [{"id": "1"}]}
    for value in ("murmur2", "", "STICKY", "round_robin%0D%0Ax", "%00", "9" * 20):
        answer = await wide.post(f"{path}?partitioner={value}", body, content_type)
        assert (answer.status, answer.json["error_code"]) == (400, 40002), value
        said = answer.json["message"]
        if path.endswith("/0"):
            assert said.startswith("Parameter 'partitioner' is not known here")
        else:
            assert said.endswith(": expected sticky or round_robin")
            assert "\n" not in answer.headers.get("quorumlog-ignored-parameters", "")
    assert wide.apis.requests == []
