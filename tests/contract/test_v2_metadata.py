"""GET /topics…, /brokers: golden bodies."""

from __future__ import annotations

from typing import Any

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from tests.support.http_door import V3, Door

V2 = "application/vnd.kafka.v2+json"
HERE = {"broker": 1, "leader": True, "in_sync": True}
LAGGING = {"broker": 2, "leader": False, "in_sync": False}


def partition(number: int) -> dict[str, Any]:
    return {"partition": number, "leader": 1, "replicas": [HERE, LAGGING]}


async def test_brokers_lists_who_is_alive(door: Door) -> None:
    assert (await door.get("/brokers")).golden == (200, V2, {"brokers": [1, 2]})


async def test_topics_are_names_without_the_internal_ones(door: Door) -> None:
    door.apis.add_topic("__consumer_offsets", 12)
    door.apis.add_topic("airports")
    assert (await door.get("/topics")).golden == (200, V2, ["airports", "flights"])


async def test_a_topic_has_configs_and_partitions(door: Door) -> None:
    door.apis.set_config("flights", "max.message.bytes", "2000")
    assert (await door.get("/topics/flights")).golden == (
        200,
        V2,
        {
            "name": "flights",
            "configs": {"min.insync.replicas": "1", "max.message.bytes": "2000"},
            "partitions": [partition(0), partition(1)],
        },
    )


async def test_an_unknown_topic_is_40403(door: Door) -> None:
    message = "This server does not host this topic-partition."
    answer = await door.get("/topics/nope")
    assert answer.golden == (404, V2, {"error_code": 40403, "message": message})
    assert door.apis.caught_up == ["nope"]


async def test_partitions_of_a_topic(door: Door) -> None:
    answer = await door.get("/topics/flights/partitions")
    assert answer.golden == (200, V2, [partition(0), partition(1)])
    answer = await door.get("/topics/flights/partitions/1/")
    assert answer.golden == (200, V2, partition(1))


async def test_a_partition_without_a_leader(door: Door) -> None:
    door.apis.without_leader("flights")
    answer = await door.get("/topics/flights/partitions/0")
    assert answer.json["leader"] == -1
    assert [replica["leader"] for replica in answer.json["replicas"]] == [False, False]


async def test_offsets(door: Door) -> None:
    await door.post("/topics/flights/partitions/0", {"records": [{"value": 1}]}, "application/json")
    answer = await door.get("/topics/flights/partitions/0/offsets")
    assert answer.golden == (200, V2, {"beginning_offset": 0, "end_offset": 1})


@pytest.mark.parametrize("suffix", ["", "/0", "/0/offsets"])
async def test_partitions_of_an_unknown_topic_are_40401(door: Door, suffix: str) -> None:
    answer = await door.get("/topics/nope/partitions" + suffix)
    expected = {"error_code": 40401, "message": "Topic nope not found"}
    assert answer.golden == (404, V2, expected)


@pytest.mark.parametrize("suffix", ["/2", "/2/offsets"])
async def test_an_unknown_partition_is_40402(door: Door, suffix: str) -> None:
    answer = await door.get("/topics/flights/partitions" + suffix)
    expected = {"error_code": 40402, "message": "Partition 2 of topic flights not found"}
    assert answer.golden == (404, V2, expected)


@pytest.mark.parametrize(
    "path",
    [
        "/topics/nope",
        "/topics/flights/partitions/2",
        "/topics/flights/partitions/2/offsets",
        "/topics/nope/partitions/0/records?offset=0",
        "/topics/flights/partitions/2/records?offset=0",
        "/topics/nope/records?offset=earliest",
        f"{V3}/topics/nope",
        f"{V3}/topics/flights/partitions/2",
        f"{V3}/topics/flights/partitions/2/records?offset=0",
    ],
)
async def test_rule_r8_nothing_is_404_at_a_broker_that_hears_no_controller(
    door: Door, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_controller_answers(*_: object) -> None:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no controller answers")

    monkeypatch.setattr(door.apis, "catch_up_with_topic", no_controller_answers)
    answer = await door.get(path)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json["retriable"] is True


async def test_a_partition_that_is_no_number_is_404(door: Door) -> None:
    answer = await door.get("/topics/flights/partitions/foo")
    expected = {"error_code": 404, "message": "HTTP 404 Not Found: 'foo' is not a number"}
    assert answer.golden == (404, V2, expected)


@pytest.mark.parametrize("path", ["/topics", "/topics/flights", "/brokers"])
async def test_accept(door: Door, path: str) -> None:
    assert (await door.get(path, "application/json")).type == V2
    assert (await door.get(path, "text/html, */*;q=0.1")).type == V2
    refused = await door.get(path, "text/html")
    assert (refused.status, refused.type, refused.json["error_code"]) == (406, V2, 406)
