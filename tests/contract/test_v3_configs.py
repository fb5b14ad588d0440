"""/v3/clusters/C/…/configs: golden bodies, and what reaches the active controller."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from raft_metadata.common.configs.rows import Scope
from raft_metadata.common.configs.table import CONFIGS, TOPIC_CONFIGS
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.records.commands import AlterConfigs, ConfigChange
from raft_metadata.records.records import ResourceType
from tests.contract.test_v3 import CRN, collection
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.http_door import V3, V3_URL, Answer, Door

JSON = "application/json"
PLACES = {
    ResourceType.TOPIC: ("/topics/flights/configs", "flights"),
    ResourceType.BROKER: ("/brokers/2/configs", "2"),
    ResourceType.CLUSTER: ("/broker-configs", ""),
}
NAMES = {
    ResourceType.TOPIC: "max.message.bytes",
    ResourceType.BROKER: "segment.bytes",
    ResourceType.CLUSTER: "num.partitions",
}
KINDS = pytest.mark.parametrize("kind", list(PLACES))


async def send(door: Door, method: str, path: str, body: Any = None) -> Answer:
    if body is None:
        return await door.call(method, V3 + path)
    return await door.call(method, V3 + path, orjson.dumps(body), {"Content-Type": JSON})


def said(door: Door, kind: ResourceType, name: str, value: str) -> None:
    """The image holds a config."""
    key = PLACES[kind][1]
    if kind is ResourceType.TOPIC:
        key = f"{key:x<22}"
    configs = {**door.apis.image.configs}
    configs[kind, key] = MappingProxyType({**configs.get((kind, key), {}), name: value})
    door.apis.image = replace(door.apis.image, configs=MappingProxyType(configs))


def config(
    kind: ResourceType, name: str, *values: tuple[str, str], read_only: bool = False
) -> dict[str, Any]:
    """What the API says of a config; ``values`` = (value, source), the one in force first."""
    path, key = PLACES[kind]
    row = CONFIGS[name]
    owners: dict[ResourceType, tuple[str, dict[str, Any]]] = {
        ResourceType.TOPIC: (f"topic={key}/config=", {"topic_name": key}),
        ResourceType.BROKER: (f"broker={key}/config=", {"broker_id": 2}),
        ResourceType.CLUSTER: ("broker-config=", {"config_type": "BROKER"}),
    }
    crn, owner = owners[kind]
    return {
        "kind": f"Kafka{kind.value.capitalize()}Config",
        "metadata": {"self": f"{V3_URL}{path}/{name}", "resource_name": f"{CRN}/{crn}{name}"},
        "cluster_id": CLUSTER_ID,
        **owner,
        "name": name,
        "value": values[0][0],
        "is_default": values[0][1] == "DEFAULT_CONFIG",
        "is_read_only": read_only,
        "is_sensitive": False,
        "source": values[0][1],
        "synonyms": [{"name": name, "value": value, "source": source} for value, source in values],
        "meaning": row.meaning,
        "expected": row.expected,
        "update": row.update.value,
    }


SEGMENT = ("1073741824", "DEFAULT_CONFIG")


async def test_a_config_of_a_topic_with_all_that_was_said(door: Door) -> None:
    name = "segment.bytes"
    path = f"{PLACES[ResourceType.TOPIC][0]}/{name}"
    file = ("4096", "STATIC_BROKER_CONFIG")
    expected = config(ResourceType.TOPIC, name, file, SEGMENT)
    assert (await send(door, "GET", path)).golden == (200, JSON, expected)
    said(door, ResourceType.CLUSTER, name, "5000")
    said(door, ResourceType.TOPIC, name, "6000")
    own, cluster = ("6000", "DYNAMIC_TOPIC_CONFIG"), ("5000", "DYNAMIC_DEFAULT_BROKER_CONFIG")
    expected = config(ResourceType.TOPIC, name, own, cluster, file, SEGMENT)
    assert (await send(door, "GET", path)).golden == (200, JSON, expected)


async def test_a_config_of_a_broker_and_of_the_cluster(door: Door) -> None:
    name = "segment.bytes"
    said(door, ResourceType.BROKER, name, "7000")
    own = ("7000", "DYNAMIC_BROKER_CONFIG")
    expected = config(ResourceType.BROKER, name, own, SEGMENT)
    path = f"{PLACES[ResourceType.BROKER][0]}/{name}"
    assert (await send(door, "GET", path)).golden == (200, JSON, expected)
    file = ("4096", "STATIC_BROKER_CONFIG")
    expected = config(ResourceType.CLUSTER, name, file, SEGMENT)
    path = f"{PLACES[ResourceType.CLUSTER][0]}/{name}"
    assert (await send(door, "GET", path)).golden == (200, JSON, expected)


async def test_a_config_read_at_the_start_of_a_node_is_read_only(door: Door) -> None:
    path = f"{PLACES[ResourceType.BROKER][0]}/max.body.bytes"
    default = ("16777216", "DEFAULT_CONFIG")
    expected = config(ResourceType.BROKER, "max.body.bytes", default, read_only=True)
    assert expected["update"] == "restart"
    assert (await send(door, "GET", path)).golden == (200, JSON, expected)


@KINDS
async def test_all_configs_by_name(door: Door, kind: ResourceType) -> None:
    known = {
        ResourceType.TOPIC: set(TOPIC_CONFIGS),
        ResourceType.BROKER: set(CONFIGS),
        ResourceType.CLUSTER: {n for n, row in CONFIGS.items() if Scope.CLUSTER in row.scopes},
    }[kind]
    path = PLACES[kind][0]
    listed = (await send(door, "GET", path)).json
    data = listed.pop("data")
    assert [row["name"] for row in data] == sorted(known)
    name = f"Kafka{kind.value.capitalize()}Config"
    assert listed | {"data": []} == collection(name, path)
    default = str(CONFIGS[NAMES[kind]].default)
    expected = config(kind, NAMES[kind], (default, "DEFAULT_CONFIG"))
    assert expected in data


async def test_configs_of_every_topic_and_every_live_broker(door: Door) -> None:
    door.apis.add_topic("airports")
    listed = (await send(door, "GET", "/topics/-/configs")).json
    assert listed["metadata"]["self"] == f"{V3_URL}/topics/-/configs"
    names = [row["topic_name"] for row in listed["data"]]
    assert names == ["airports"] * len(TOPIC_CONFIGS) + ["flights"] * len(TOPIC_CONFIGS)
    listed = (await send(door, "GET", "/brokers/-/configs")).json
    assert {row["broker_id"] for row in listed["data"]} == {1, 2}


async def test_a_broker_that_can_t_be_asked_is_503(door: Door) -> None:
    answer = await send(door, "GET", "/brokers/3/configs")
    assert (answer.status, answer.json["error_code"]) == (503, 50302)
    assert (await send(door, "PUT", "/brokers/3/configs/segment.ms", {"value": 1})).status == 204


@KINDS
async def test_set_and_reset_a_config(door: Door, kind: ResourceType) -> None:
    (path, key), name = PLACES[kind], NAMES[kind]
    answers = [
        await send(door, "PUT", f"{path}/{name}", {"value": "2000"}),
        await send(door, "PUT", f"{path}/{name}", {"value": 3000}),
        await send(door, "DELETE", f"{path}/{name}"),
    ]
    assert [answer.golden for answer in answers] == [(204, JSON, None)] * 3
    assert door.apis.requests == [
        AlterConfigs(
            changes=(ConfigChange(resource_type=kind, resource_name=key, name=name, value=value),)
        )
        for value in ("2000", "3000", None)
    ]


@KINDS
async def test_alter_many(door: Door, kind: ResourceType) -> None:
    (path, key), name = PLACES[kind], NAMES[kind]
    entries = [
        {"name": name, "value": "2000"},
        {"name": "segment.ms", "value": "1", "operation": "SET"},
        {"name": "segment.bytes" if name != "segment.bytes" else "flush", "operation": "DELETE"},
    ]
    if kind is ResourceType.BROKER:
        entries[2]["name"] = "max.body.bytes"  # the controller refuses it, with how to set it
    validate_only = kind is ResourceType.CLUSTER
    body = {"data": entries, "validate_only": validate_only}
    answer = await send(door, "POST", f"{path}:alter", body)
    assert answer.golden == (204, JSON, None)
    changes = tuple(
        ConfigChange(
            resource_type=kind, resource_name=key, name=entry["name"], value=entry.get("value")
        )
        for entry in entries
    )
    assert door.apis.requests == [AlterConfigs(changes=changes, validate_only=validate_only)]


async def test_alter_several_topics_at_once(door: Door) -> None:
    door.apis.add_topic("airports")
    body = {
        "data": [
            {"topic_name": "flights", "configs": [{"name": "flush", "value": "os"}]},
            {"topic_name": "airports", "configs": [{"name": "flush", "operation": "DELETE"}]},
        ]
    }
    answer = await send(door, "POST", "/topics/-/configs:alter", body)
    assert answer.golden == (204, JSON, None)
    command = door.apis.requests[0]
    assert isinstance(command, AlterConfigs)
    changed = [(one.resource_name, one.name, one.value) for one in command.changes]
    assert changed == [("flights", "flush", "os"), ("airports", "flush", None)]


@KINDS
async def test_an_unknown_config_is_404_in_confluents_words(door: Door, kind: ResourceType) -> None:
    shown = {
        ResourceType.TOPIC: "TOPIC flights",
        ResourceType.BROKER: "BROKER 2",
        ResourceType.CLUSTER: "BROKER ",
    }[kind]
    text = f"Config flus cannot be found for {shown} in cluster {CLUSTER_ID}. Did you mean flush?"
    expected = (404, JSON, {"error_code": 404, "message": text})
    path = PLACES[kind][0]
    assert (await send(door, "GET", f"{path}/flus")).golden == expected
    assert (await send(door, "PUT", f"{path}/flus", {"value": "os"})).golden == expected
    assert (await send(door, "DELETE", f"{path}/flus")).golden == expected
    body = {"data": [{"name": "flus", "value": "os"}]}
    assert (await send(door, "POST", f"{path}:alter", body)).golden == expected
    assert door.apis.requests == []


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_whose_config_it_is_must_be_there(door: Door, method: str) -> None:
    body = {"value": "1"} if method == "PUT" else None
    answer = await send(door, method, "/topics/nope/configs/flush", body)
    text = "This server does not host this topic-partition."
    assert answer.golden == (404, JSON, {"error_code": 40403, "message": text})
    answer = await send(door, method, "/brokers/9/configs/segment.ms", body)
    text = "Broker 9 cannot be found."
    assert answer.golden == (404, JSON, {"error_code": 404, "message": text})


async def test_a_refusal_of_the_controller_is_40002_and_no_controller_is_503(door: Door) -> None:
    path = "/topics/flights/configs/max.message.bytes"
    door.apis.admin_answers[AlterConfigs] = KafkaError(ErrorCode.INVALID_CONFIG, "expected 1 to 2")
    answer = await send(door, "PUT", path, {"value": "3"})
    expected = {"error_code": 40002, "message": "expected 1 to 2"}
    assert answer.golden == (400, JSON, expected)
    door.apis.admin_answers[AlterConfigs] = KafkaError(ErrorCode.OUTCOME_UNKNOWN)
    answer = await send(door, "PUT", path, {"value": "3"})
    assert (answer.status, answer.json["outcome"]) == (503, "unknown")
    assert answer.headers["retry-after"] == "1"
    assert len(door.apis.requests) == 2, "rule F2: each sent once"


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "named"),
    [
        ("PUT", "/flush", {}, 400, "ack or os"),
        ("PUT", "/flush", {"value": None}, 400, "DELETE resets"),
        ("PUT", "/flush", {"value": ["os"]}, 400, "a string"),
        ("PUT", "/flush", {"val": "os"}, 400, "val"),
        ("POST", ":alter", {}, 400, "data"),
        ("POST", ":alter", {"data": {}}, 400, "data"),
        ("POST", ":alter", {"data": [{"value": "os"}]}, 400, "data.name"),
        ("POST", ":alter", {"data": [{"name": "flush"}]}, 400, "DELETE"),
        ("POST", ":alter", {"data": [{"name": "flush", "op": "SET"}]}, 400, "data.op"),
        (
            *("POST", ":alter"),
            {"data": [{"name": "flush", "value": "os", "operation": "ADD"}]},
            *(400, '"SET" or "DELETE"'),
        ),
        ("POST", ":alter", {"data": [{"name": "flush", "value": 1}] * 1001}, 413, "1001"),
        ("POST", ":alter", {"data": [1], "validate_only": "no"}, 400, "data"),
    ],
)
async def test_a_wrong_request_names_what_was_expected(
    door: Door, method: str, path: str, body: Any, code: int, named: str
) -> None:
    answer = await send(door, method, PLACES[ResourceType.TOPIC][0] + path, body)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == code, answer.json
    assert named in answer.json["message"]
    assert door.apis.requests == []
