"""Groups that stand still on a live cluster: who is told, and the way out with the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from broker.coordinator.records import partition_of_group
from raft_metadata.common.ids import GroupId
from tests.support.documented_cluster import BIN, ROOT, DocumentedCluster, documented_cluster

JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
V2 = "application/vnd.kafka.v2+json"
DEADLINE_S = 30
KITCHEN = "kitchen"
NEIGHBOUR = next(
    name
    for number in range(1_000)
    if partition_of_group(GroupId(name := f"g{number}"), 12)
    == partition_of_group(GroupId(KITCHEN), 12)
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DocumentedCluster]:
    planted = Path(__file__).parent / "planted/spoils_group_records"
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{planted}{os.pathsep}{ROOT}"
    try:
        with documented_cluster(tmp_path_factory.mktemp("still")) as found:
            yield found
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    json: Any


def call(
    cluster: DocumentedCluster, method: str, path: str, body: Any = None, **headers: str
) -> Answer:
    """Ask one broker after the other until one answers with anything but 503."""
    data = None if body is None else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    until_s = time.monotonic() + DEADLINE_S
    while True:
        for url in reversed(cluster.brokers()):
            request = urllib.request.Request(url + path, data, sent, method=method)
            try:
                with urllib.request.urlopen(request, timeout=15) as answer:
                    text = answer.read()
                    return Answer(answer.status, dict(answer.headers), json.loads(text or b"null"))
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    return Answer(error.code, dict(error.headers), json.loads(error.read()))
            except OSError:
                pass
        assert time.monotonic() < until_s, path
        time.sleep(0.05)


def command(cluster: DocumentedCluster, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "QUORUMLOG_URL": ",".join(cluster.brokers())}
    return subprocess.run(
        [BIN / "quorumlog", *words], env=environment, capture_output=True, text=True, check=False
    )


def until(holds: Callable[[], bool]) -> None:
    until_s = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def groups(cluster: DocumentedCluster) -> str:
    found = call(cluster, "GET", "/v3/clusters").json["data"][0]["cluster_id"]
    return f"/v3/clusters/{found}/consumer-groups"


def reasons(cluster: DocumentedCluster) -> dict[str, str]:
    """The health's reasons about groups, by code."""
    path = groups(cluster).removesuffix("/consumer-groups") + ":health"
    found = call(cluster, "GET", path).json["reasons"]
    return {one["code"]: one["message"] for one in found if one["code"].startswith("GROUP")}


def create_topic(cluster: DocumentedCluster, name: str, partitions: int) -> None:
    path = groups(cluster).replace("consumer-groups", "topics")
    body = {"topic_name": name, "partitions_count": partitions}
    assert call(cluster, "POST", path, body, Content_Type="application/json").status == 201


def coordinator_of(cluster: DocumentedCluster) -> int:
    found = call(cluster, "GET", f"{groups(cluster)}/{KITCHEN}").json["coordinator"]
    return int(found["related"].rpartition("/")[2])


def move_coordinator(cluster: DocumentedCluster) -> None:
    """Have another broker coordinate the group, which loads its log."""
    before = coordinator_of(cluster)
    path = groups(cluster).replace("consumer-groups", f"brokers/{before}:")
    body = {"scope": "leaders"}
    answer = call(cluster, "POST", path + "drain", body, Content_Type="application/json")
    assert answer.status < 300, answer
    until(lambda: coordinator_of(cluster) != before)
    call(cluster, "POST", path + "drain", {"scope": "none"}, Content_Type="application/json")


def commit(cluster: DocumentedCluster, group: str, offset: int, metadata: str = "") -> Answer:
    row = {"topic_name": "meals", "partition_id": 0, "offset": offset, "metadata": metadata}
    path = f"{groups(cluster)}/{group}/offsets"
    return call(cluster, "PATCH", path, {"data": [row]}, Content_Type="application/json")


def offsets(cluster: DocumentedCluster, group: str) -> list[tuple[int, int]]:
    found = call(cluster, "GET", f"{groups(cluster)}/{group}/offsets").json["data"]
    return [(one["partition_id"], one["offset"]) for one in found]


def test_a_record_that_is_no_json_is_named_to_everybody_and_stepped_over(
    cluster: DocumentedCluster,
) -> None:
    create_topic(cluster, "orders", 2)
    for partition, kind, value in ((0, JSON_V2, 1), (0, BINARY_V2, "/w=="), (0, JSON_V2, 3)):
        body = {"records": [{"value": value}]}
        path = f"/topics/orders/partitions/{partition}"
        assert call(cluster, "POST", path, body, Content_Type=kind).status == 200
    settings = {"name": "one", "format": "json", "auto.offset.reset": "earliest"}
    assert call(cluster, "POST", "/consumers/billing", settings, Content_Type=V2).status == 200
    one = "/consumers/billing/instances/one"
    subscribed = {"topics": ["orders"]}
    call(cluster, "POST", f"{one}/subscription", subscribed, Content_Type=V2)
    answer = call(cluster, "GET", f"{one}/records?timeout=100", Accept=JSON_V2)
    assert [record["value"] for record in answer.json] == [1]
    assert answer.headers["Quorumlog-Blocked"] == "orders-0@1"
    call(
        cluster, "POST", "/topics/orders/partitions/1", {"records": [{"value": 2}]},
        Content_Type=JSON_V2,
    )  # fmt: skip
    answer = call(cluster, "GET", f"{one}/records?timeout=5000", Accept=JSON_V2)
    assert [record["value"] for record in answer.json] == [2]
    answer = call(cluster, "GET", f"{one}/records?timeout=100", Accept=JSON_V2)
    assert (answer.status, answer.json["error_code"]) == (422, 42203)

    assert "billing at orders:0:1" in reasons(cluster)["GROUPS_BLOCKED"]
    shown = command(cluster, "cluster", "health")
    assert (shown.returncode, "GROUPS_BLOCKED" in shown.stdout) == (1, True)
    described = command(cluster, "group", "describe", "billing").stdout
    assert "one stands at orders:0:1 since " in described
    assert "`quorumlog group skip billing orders:0:1`" in described

    assert command(cluster, "group", "skip", "billing", "orders:0:1").returncode == 0
    answer = call(cluster, "GET", f"{one}/records?timeout=100", Accept=JSON_V2)
    assert [(record["offset"], record["value"]) for record in answer.json] == [(2, 3)]
    assert reasons(cluster) == {}


def test_a_group_that_is_held_is_repaired_and_its_neighbour_never_noticed(
    cluster: DocumentedCluster,
) -> None:
    create_topic(cluster, "meals", 1)
    call(
        cluster, "POST", "/topics/meals/partitions/0",
        {"records": [{"value": n} for n in range(9)]}, Content_Type=JSON_V2,
    )  # fmt: skip
    assert commit(cluster, KITCHEN, 3).status == 204
    assert commit(cluster, NEIGHBOUR, 4).status == 204
    assert commit(cluster, KITCHEN, 5, "spoil the value").status == 204
    number = coordinator_of(cluster)
    pid = cluster.directory / f"quorumlog-data/broker-{number}/node.pid"
    os.kill(int(pid.read_text()), signal.SIGKILL)

    until(lambda: "GROUPS_HELD" in reasons(cluster))
    answer = call(cluster, "GET", f"{groups(cluster)}/{KITCHEN}")
    assert (answer.status, answer.json["error_code"]) == (500, 50002)
    assert (answer.json["retriable"], answer.json["outcome"]) == (False, "not_written")
    assert "`quorumlog group repair kitchen --dry-run`" in answer.json["message"]
    answer = call(
        cluster, "POST", f"/consumers/{KITCHEN}", {"name": "a"}, Content_Type=V2
    )  # a v2 call
    assert (answer.status, answer.json["error_code"]) == (500, 50002)
    assert commit(cluster, NEIGHBOUR, 6).status == 204
    assert offsets(cluster, NEIGHBOUR) == [(0, 6)]
    listed = call(cluster, "GET", groups(cluster)).json["data"]
    states = {one["consumer_group_id"]: one["state"] for one in listed}
    assert (states[KITCHEN], states[NEIGHBOUR]) == ("HELD", "EMPTY")

    dry = command(cluster, "group", "repair", KITCHEN, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "could be repaired kitchen: 1 records forgotten" in dry.stdout
    assert "meals:0" in dry.stdout
    assert "GROUPS_HELD" in reasons(cluster)
    done = command(cluster, "group", "repair", KITCHEN)
    assert done.stdout.startswith("repaired kitchen: 1 records forgotten")
    assert offsets(cluster, KITCHEN) == [(0, 3)], "the older commit"
    assert reasons(cluster) == {}
    move_coordinator(cluster)
    assert offsets(cluster, KITCHEN) == [(0, 3)], "the next coordinator loads a clean log"


def test_a_record_that_names_no_group_holds_nobody(cluster: DocumentedCluster) -> None:
    assert commit(cluster, KITCHEN, 7).status == 204
    assert commit(cluster, KITCHEN, 8, "spoil the key").status == 204
    move_coordinator(cluster)
    assert offsets(cluster, KITCHEN) == [(0, 7)]
    assert "GROUP_RECORDS_SKIPPED" in reasons(cluster)
    assert commit(cluster, KITCHEN, 9).status == 204
