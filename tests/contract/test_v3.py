"""/v3/clusters…: golden bodies."""

from __future__ import annotations

from typing import Any

import pytest

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId
from raft_metadata.records.commands import CreateTopic
from tests.support.fake_broker_apis import CLUSTER_ID, FakeBrokerApis
from tests.support.http_door import ADVERTISED, V3, V3_URL, Door, open_door

JSON = "application/json"
CRN = f"crn:///kafka={CLUSTER_ID}"

CLUSTER = {
    "kind": "KafkaCluster",
    "metadata": {"self": V3_URL, "resource_name": CRN},
    "cluster_id": CLUSTER_ID,
    "controller_id": 101,
    "acls": {"related": f"{V3_URL}/acls"},
    "brokers": {"related": f"{V3_URL}/brokers"},
    "broker_configs": {"related": f"{V3_URL}/broker-configs"},
    "consumer_groups": {"related": f"{V3_URL}/consumer-groups"},
    "topics": {"related": f"{V3_URL}/topics"},
    "partition_reassignments": {"related": f"{V3_URL}/topics/-/partitions/-/reassignment"},
}


def broker(number: int, state: str = "unfenced", leads: int = 0, holds: int = 0) -> dict[str, Any]:
    url = f"{V3_URL}/brokers/{number}"
    return {
        "kind": "KafkaBroker",
        "metadata": {"self": url, "resource_name": f"{CRN}/broker={number}"},
        "cluster_id": CLUSTER_ID,
        "broker_id": number,
        "host": "127.0.0.1",
        "port": 8081 + number,
        "rack": f"rack-{number}",
        "configs": {"related": f"{url}/configs"},
        "partition_replicas": {"related": f"{url}/partition-replicas"},
        "state": state,
        "broker_epoch": number,
        "drain": "none",
        "leader_count": leads,
        "replica_count": holds,
    }


def topic(name: str, partitions: int, factor: int, *, internal: bool = False) -> dict[str, Any]:
    url = f"{V3_URL}/topics/{name}"
    return {
        "kind": "KafkaTopic",
        "metadata": {"self": url, "resource_name": f"{CRN}/topic={name}"},
        "cluster_id": CLUSTER_ID,
        "topic_name": name,
        "topic_id": f"{name:x<22}",
        "is_internal": internal,
        "replication_factor": factor,
        "partitions_count": partitions,
        "partitions": {"related": f"{url}/partitions"},
        "configs": {"related": f"{url}/configs"},
        "partition_reassignments": {"related": f"{url}/partitions/-/reassignment"},
    }


def partition(number: int) -> dict[str, Any]:
    url = f"{V3_URL}/topics/flights/partitions/{number}"
    return {
        "kind": "KafkaPartition",
        "metadata": {"self": url, "resource_name": f"{CRN}/topic=flights/partition={number}"},
        "cluster_id": CLUSTER_ID,
        "topic_name": "flights",
        "partition_id": number,
        "leader": {"related": f"{url}/replicas/1"},
        "replicas": {"related": f"{url}/replicas"},
        "reassignment": {"related": f"{url}/reassignment"},
        "leader_epoch": 4,
        "partition_epoch": 7,
        "isr": [1],
        "elr": [2],
        "replica_ids": [1, 2],
        "out_of_sync": [2],
        "adding_replicas": [],
        "removing_replicas": [],
        "last_known_leader": None,
    }


def replica(number: int, partition: int = 0) -> dict[str, Any]:
    name = f"{CRN}/topic=flights/partition={partition}/replica={number}"
    return {
        "kind": "KafkaReplica",
        "metadata": {
            "self": f"{V3_URL}/topics/flights/partitions/{partition}/replicas/{number}",
            "resource_name": name,
        },
        "cluster_id": CLUSTER_ID,
        "topic_name": "flights",
        "partition_id": partition,
        "broker_id": number,
        "is_leader": number == 1,
        "is_in_sync": number == 1,
        "is_eligible": True,
        "broker": {"related": f"{V3_URL}/brokers/{number}"},
    }


def collection(kind: str, path: str, *data: dict[str, Any]) -> dict[str, Any]:
    return {
        "kind": f"{kind}List",
        "metadata": {"self": V3_URL + path, "next": None},
        "data": list(data),
    }


async def test_clusters(door: Door) -> None:
    assert (await door.get("/v3/clusters")).golden == (
        200,
        JSON,
        {
            "kind": "KafkaClusterList",
            "metadata": {"self": f"{ADVERTISED}/v3/clusters", "next": None},
            "data": [CLUSTER],
        },
    )
    assert (await door.get(V3)).golden == (200, JSON, CLUSTER)


@pytest.mark.parametrize("rest", ["", "/brokers", "/topics", "/topics/flights/partitions/0"])
async def test_another_cluster_is_404(door: Door, rest: str) -> None:
    answer = await door.get("/v3/clusters/other" + rest)
    expected = {"error_code": 404, "message": "Cluster other cannot be found."}
    assert answer.golden == (404, JSON, expected)


async def test_brokers(door: Door) -> None:
    live = [broker(1, leads=2, holds=2), broker(2, holds=2)]
    listed = collection("KafkaBroker", "/brokers", *live)
    assert (await door.get(f"{V3}/brokers")).golden == (200, JSON, listed)
    listed = collection("KafkaBroker", "/brokers", *live, broker(3, "fenced"))
    assert (await door.get(f"{V3}/brokers?include=all")).golden == (200, JSON, listed)
    assert (await door.get(f"{V3}/brokers/2/")).golden == (200, JSON, broker(2, holds=2))
    assert (await door.get(f"{V3}/brokers/3")).golden == (200, JSON, broker(3, "fenced"))


async def test_the_counts_of_a_broker_follow_the_image(door: Door) -> None:
    assert (await door.get(f"{V3}/brokers/1")).json["leader_count"] == 2
    door.apis.add_topic("more", 3)
    assert (await door.get(f"{V3}/brokers/1")).json["leader_count"] == 5


async def test_a_broker_that_is_not_there(door: Door) -> None:
    expected = {"error_code": 404, "message": "Broker 9 cannot be found."}
    for path in ("/brokers/9", "/brokers/9/partition-replicas"):
        assert (await door.get(V3 + path)).golden == (404, JSON, expected)


async def test_which_brokers_are_meant_is_live_or_all(door: Door) -> None:
    answer = await door.get(f"{V3}/brokers?include=dead")
    message = "Parameter 'include' is 'dead': expected live or all"
    assert answer.golden == (400, JSON, {"error_code": 40002, "message": message})


async def test_the_replicas_of_a_broker(door: Door) -> None:
    path = "/brokers/2/partition-replicas"
    listed = collection("KafkaReplica", path, replica(2, 0), replica(2, 1))
    assert (await door.get(V3 + path)).golden == (200, JSON, listed)


async def test_topics(door: Door) -> None:
    door.apis.add_topic("__consumer_offsets", 12)
    internal = topic("__consumer_offsets", 12, 2, internal=True)
    listed = collection("KafkaTopic", "/topics", internal, topic("flights", 2, 2))
    assert (await door.get(f"{V3}/topics")).golden == (200, JSON, listed)
    assert (await door.get(f"{V3}/topics/flights")).golden == (200, JSON, topic("flights", 2, 2))


async def test_an_unknown_topic_is_40403_and_its_partitions_40401(door: Door) -> None:
    message = "This server does not host this topic-partition."
    answer = await door.get(f"{V3}/topics/nope")
    assert answer.golden == (404, JSON, {"error_code": 40403, "message": message})
    answer = await door.get(f"{V3}/topics/nope/partitions")
    expected = {"error_code": 40401, "message": "Topic nope not found"}
    assert answer.golden == (404, JSON, expected)


async def test_partitions_and_replicas(door: Door) -> None:
    path = "/topics/flights/partitions"
    listed = collection("KafkaPartition", path, partition(0), partition(1))
    assert (await door.get(V3 + path)).golden == (200, JSON, listed)
    assert (await door.get(f"{V3}{path}/1")).golden == (200, JSON, partition(1))
    listed = collection("KafkaReplica", f"{path}/0/replicas", replica(1), replica(2))
    assert (await door.get(f"{V3}{path}/0/replicas")).golden == (200, JSON, listed)
    assert (await door.get(f"{V3}{path}/0/replicas/2")).golden == (200, JSON, replica(2))
    missing = await door.get(f"{V3}{path}/0/replicas/3")
    assert (missing.status, missing.json["error_code"]) == (404, 404)
    missing = await door.get(f"{V3}{path}/5")
    assert (missing.status, missing.json["error_code"]) == (404, 40402)


async def test_a_partition_without_a_leader_has_null(door: Door) -> None:
    door.apis.without_leader("flights")
    answer = await door.get(f"{V3}/topics/flights/partitions/0")
    assert answer.json["leader"] is None


@pytest.mark.parametrize("query", ["", "?offset_type=earliest", "?offset_type=latest"])
async def test_the_offsets_of_a_partition(door: Door, query: str) -> None:
    await door.post("/topics/flights/partitions/1", {"records": [{"value": 1}]}, JSON)
    path = "/topics/flights/partitions/1/offset"
    assert (await door.get(V3 + path + query)).golden == (
        200,
        JSON,
        {
            "kind": "KafkaPartitionWithOffsets",
            "metadata": {
                "self": V3_URL + path,
                "resource_name": f"{CRN}/topic=flights/partition=1",
            },
            "cluster_id": CLUSTER_ID,
            "topic_name": "flights",
            "partition_id": 1,
            "earliest_offset": 0,
            "latest_offset": 1,
        },
    )


async def test_a_bad_offset_type_is_40002(door: Door) -> None:
    answer = await door.get(f"{V3}/topics/flights/partitions/1/offset?offset_type=middle")
    words = "earliest, latest, earliest_offset or latest_offset"
    message = f"Parameter 'offset_type' is 'middle': expected {words}"
    assert answer.golden == (400, JSON, {"error_code": 40002, "message": message})


# ---------------------------------------------------------------- create and delete


async def test_create_answers_201_with_the_topic_and_where_it_is(door: Door) -> None:
    body = {
        "topic_name": "airports",
        "partitions_count": 3,
        "replication_factor": 2,
        "configs": [
            {"name": "flush", "value": "os"},
            {"name": "retention.ms", "value": 1000},
            {"name": "x", "value": True},
            {"name": "y", "value": None},
        ],
    }
    answer = await door.post(f"{V3}/topics", body, JSON)
    assert answer.golden == (201, JSON, topic("airports", 3, 2))
    assert answer.headers["location"] == f"{V3_URL}/topics/airports"
    command = door.apis.requests[0]
    assert isinstance(command, CreateTopic)
    assert (command.partitions_count, command.replication_factor) == (3, 2)
    assert command.configs == {"flush": "os", "retention.ms": "1000", "x": "true", "y": None}
    assert len(command.topic_id) == 22
    assert (await door.get(f"{V3}/topics/airports")).status == 200


async def test_create_leaves_defaults_to_the_cluster(door: Door) -> None:
    assert (await door.post(f"{V3}/topics", {"topic_name": "a"}, JSON)).status == 201
    command = door.apis.requests[0]
    assert isinstance(command, CreateTopic)
    assert (command.partitions_count, command.replication_factor) == (None, None)
    assert (command.replicas_assignments, command.configs) == (None, {})


async def test_create_takes_assignments(door: Door) -> None:
    body = {"topic_name": "a", "replicas_assignments": {"0": [1, 2], "1": [2, 1]}}
    assert (await door.post(f"{V3}/topics", body, JSON)).status == 201
    command = door.apis.requests[0]
    assert isinstance(command, CreateTopic)
    one, two = BrokerId(1), BrokerId(2)
    assert command.replicas_assignments == {0: (one, two), 1: (two, one)}


async def test_validate_only_answers_200_and_creates_nothing(door: Door) -> None:
    body = {"topic_name": "a", "partitions_count": 4, "validate_only": True}
    answer = await door.post(f"{V3}/topics", body, JSON)
    assert answer.golden == (200, JSON, topic("a", 4, 1))
    assert "location" not in answer.headers
    assert (await door.get(f"{V3}/topics/a")).status == 404


async def test_auto_create_makes_a_topic_as_a_produce_does() -> None:
    async with open_door(FakeBrokerApis(auto_create=True)) as door:
        body = {"topic_name": "a", "auto_create": True}
        answer = await door.post(f"{V3}/topics", body, JSON)
        assert answer.golden == (201, JSON, topic("a", 1, 2))
        assert answer.headers["location"] == f"{V3_URL}/topics/a"
        again = await door.post(f"{V3}/topics", body, JSON)
        assert again.golden == (200, JSON, topic("a", 1, 2))
        assert "location" not in again.headers


async def test_auto_create_answers_what_is_there_and_404_where_none_may_be_made(
    door: Door,
) -> None:
    found = await door.post(f"{V3}/topics", {"topic_name": "flights", "auto_create": True}, JSON)
    assert found.golden == (200, JSON, topic("flights", 2, 2))
    answer = await door.post(f"{V3}/topics", {"topic_name": "a", "auto_create": True}, JSON)
    assert (answer.status, answer.json["error_code"]) == (404, 40401)
    assert "auto_create_topics_enable is false. Create it with: curl" in answer.json["message"]
    assert (await door.get(f"{V3}/topics/a")).status == 404


@pytest.mark.parametrize(
    "beside",
    [
        {"partitions_count": 3}, {"replication_factor": 1}, {"validate_only": True},
        {"configs": [{"name": "flush", "value": "os"}]}, {"replicas_assignments": {"0": [1]}},
    ],
)  # fmt: skip
async def test_auto_create_takes_no_layout_of_its_own(door: Door, beside: dict[str, Any]) -> None:
    body = {"topic_name": "flights", "auto_create": True, **beside}
    answer = await door.post(f"{V3}/topics", body, JSON)
    assert (answer.status, answer.json["error_code"]) == (400, 400)
    assert f"'{next(iter(beside))}' beside 'auto_create'" in answer.json["message"]


async def test_create_of_what_exists_is_40002(door: Door) -> None:
    answer = await door.post(f"{V3}/topics", {"topic_name": "flights"}, JSON)
    expected = {"error_code": 40002, "message": "Topic 'flights' already exists."}
    assert answer.golden == (400, JSON, expected)


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
    ],
)
async def test_a_refusal_of_the_controller_is_40002(door: Door, code: ErrorCode) -> None:
    door.apis.create_error = KafkaError(code, "facts")
    answer = await door.post(f"{V3}/topics", {"topic_name": "a"}, JSON)
    assert answer.golden == (400, JSON, {"error_code": 40002, "message": "facts"})


async def test_an_uncertain_create_says_so(door: Door) -> None:
    door.apis.create_error = KafkaError(ErrorCode.OUTCOME_UNKNOWN)
    answer = await door.post(f"{V3}/topics", {"topic_name": "a"}, JSON)
    assert (answer.status, answer.json["error_code"]) == (503, 50302)
    assert (answer.json["retriable"], answer.json["outcome"]) == (True, "unknown")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("", 400),
        ("[]", 400),
        ("{", 400),
        ({}, 400),
        ({"topic_name": 1}, 400),
        ({"topic_name": "a", "partition_count": 1}, 400),
        ({"topic_name": "a", "partitions_count": "1"}, 400),
        ({"topic_name": "a", "partitions_count": True}, 400),
        ({"topic_name": "a", "partitions_count": 2**40}, 400),
        ({"topic_name": "a", "replication_factor": 1.5}, 400),
        ({"topic_name": "a", "replicas_assignments": {"x": [1]}}, 400),
        ({"topic_name": "a", "replicas_assignments": {"0": ["1"]}}, 400),
        ({"topic_name": "a", "configs": {"a": "b"}}, 400),
        ({"topic_name": "a", "configs": [{"value": "b"}]}, 400),
        ({"topic_name": "a", "configs": [{"name": "b", "value": []}]}, 400),
        ({"topic_name": "a", "validate_only": "yes"}, 400),
        ({"topic_name": "a", "auto_create": "yes"}, 400),
        ({"topic_name": "a", "auto_create": 1}, 400),
        ('{"topic_name":"a","partitions_count":1e400}', 400),
        ('{"topic_name":"a","partitions_count":12345678901234567890}', 400),
        ('{"topic_name":"\\ud800","auto_create":true}', 400),
        ({"topic_name": "a\0b", "auto_create": True}, 400),
        ({"topic_name": "a\r\nX: y", "auto_create": True}, 400),
        ({"topic_name": "a b"}, 40002),
        ({"topic_name": ""}, 40002),
    ],
)
async def test_a_wrong_create_body_is_refused(door: Door, body: Any, code: int) -> None:
    answer = await door.post(f"{V3}/topics", body, JSON)
    assert (answer.status, answer.type) == (400, JSON)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == code
    assert door.apis.requests == []


async def test_create_wants_json(door: Door) -> None:
    answer = await door.post(f"{V3}/topics", {"topic_name": "a"}, None)
    assert (answer.status, answer.type, answer.json["error_code"]) == (415, JSON, 415)
    assert "send 'Content-Type: application/json'" in answer.json["message"]


async def test_delete(door: Door) -> None:
    answer = await door.call("DELETE", f"{V3}/topics/flights", "{}")
    assert answer.golden == (204, JSON, None)
    answer = await door.call("DELETE", f"{V3}/topics/flights")
    message = "This server does not host this topic-partition."
    assert answer.golden == (404, JSON, {"error_code": 40403, "message": message})


async def test_accept(door: Door) -> None:
    assert (await door.get(V3, "text/html, application/json;q=0.5")).status == 200
    refused = await door.get(V3, "application/vnd.kafka.v2+json")
    assert (refused.status, refused.type, refused.json["error_code"]) == (406, JSON, 406)


async def test_a_value_nested_deeper_than_can_be_shown_is_refused(door: Door) -> None:
    body = b'{"topic_name":%s}' % (b"[" * 1_000 + b"]" * 1_000)
    answer = await door.post(V3 + "/topics", body, "application/json")
    assert (answer.status, answer.json["error_code"]) == (400, 400)
    assert "is a list, expected a string" in answer.json["message"]
