"""Operators at a real cluster of four brokers: grow, configure, drain, move, take out, elect."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_cluster import Answer, LiveCluster, running

LAST = 4
RECORDS = 200


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    directory = tmp_path_factory.mktemp("operate")
    options = ("--brokers", "4", "--controllers", "1", "--no-restart")
    patience = ("--set", "broker_session_timeout_ms=5000")  # a broker is paused, and not fenced
    with running(directory, *options, *patience) as cluster:
        yield cluster


async def v3(
    cluster: LiveCluster, method: str, path: str, body: object = None, *, through: int = 1
) -> Answer:
    now = cluster.read()
    url = f"{now.node(through).url}/v3/clusters/{now.cluster_id}{path}"
    return await cluster.ask(method, url, body)


async def done(cluster: LiveCluster, method: str, path: str, body: object = None) -> Any:
    """The body of an answer that is no error."""
    answer = await v3(cluster, method, path, body)
    assert answer.status < 300, (method, path, answer)
    return answer.body


async def quorumlog(cluster: LiveCluster, *arguments: str) -> str:
    """What a command prints; it must succeed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "http_api.cli", *arguments, "--url", cluster.url(1)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0, (arguments, out, err)
    return out.decode()


async def values(cluster: LiveCluster, topic: str, partition: int, through: int = 1) -> list[Any]:
    answer = await cluster.fetch(through, topic, partition, wait_ms=100)
    assert answer.status == 200, answer
    return [record["value"] for record in answer.body]


async def test_partitions_that_are_added_take_records_at_once(cluster: LiveCluster) -> None:
    await cluster.create_topic("grown", partitions=1)
    answer = await v3(cluster, "PATCH", "/topics/grown", {"partitions_count": 6}, through=2)
    assert (answer.status, answer.body["partitions_count"]) == (200, 6)
    for partition in range(6):
        stored = await cluster.produce(1 + partition % 3, "grown", 7, partition=partition)
        assert (stored.status, stored.body["offsets"][0]["error_code"]) == (200, None), stored
    again = await v3(cluster, "PATCH", "/topics/grown", {"partitions_count": 6})
    assert (again.status, again.body["error_code"]) == (400, 40002)


async def test_a_config_is_in_force_once_it_is_set(cluster: LiveCluster) -> None:
    await cluster.create_topic("small")
    path = "/topics/small/configs/max.message.bytes"
    leader = await cluster.leader("small")
    answer = await v3(cluster, "PUT", path, {"value": "100"}, through=leader)
    assert answer.status == 204, answer
    assert (await v3(cluster, "GET", path, through=leader)).body["synonyms"][0] == {
        "name": "max.message.bytes",
        "value": "100",
        "source": "DYNAMIC_TOPIC_CONFIG",
    }
    large = await cluster.produce(leader, "small", "x" * 200)
    assert large.body["offsets"][0]["error_code"] == 413, large
    assert (await v3(cluster, "DELETE", path, through=leader)).status == 204
    large = await cluster.produce(leader, "small", "x" * 200)
    assert large.body["offsets"][0]["error_code"] is None, large


async def test_defaults_of_the_cluster_and_what_another_brokers_file_says(
    cluster: LiveCluster,
) -> None:
    body = {"data": [{"name": "num.partitions", "value": "3"}]}
    await done(cluster, "POST", "/broker-configs:alter", body)
    made = await v3(cluster, "POST", "/topics", {"topic_name": "by-default"})
    assert (made.status, made.body["partitions_count"]) == (201, 3)
    await done(cluster, "DELETE", "/broker-configs/num.partitions")
    found = await done(cluster, "GET", "/brokers/3/configs/min.insync.replicas")
    assert (found["value"], found["source"]) == ("2", "STATIC_BROKER_CONFIG")
    wrong = await v3(cluster, "PUT", "/brokers/3/configs/max.body.bytes", {"value": "1"})
    assert (wrong.status, "config.toml" in wrong.body["message"]) == (400, True), wrong


async def test_a_broker_drained_of_leaders_leads_nothing(cluster: LiveCluster) -> None:
    await done(cluster, "PUT", "/broker-configs/auto.leader.rebalance.enable", {"value": "false"})
    assert (await done(cluster, "GET", "/brokers/2"))["leader_count"] > 0
    printed = await quorumlog(cluster, "broker", "drain", "2", "--wait", "--timeout", "10")
    assert "drain done leaders_left=0" in printed
    led = await quorumlog(cluster, "partition", "list", "--broker", "2")
    leaders = [line.split()[2] for line in led.splitlines()[1:]]
    assert leaders
    assert "2" not in leaders
    ended = await done(cluster, "POST", "/brokers/2:drain", {"scope": "none"})
    assert "drain_progress" not in ended
    results = await done(cluster, "POST", "/topics/-/partitions/-/leader:elect")
    assert results["data"], "broker 2 is preferred for some"
    assert [row for row in results["data"] if row["error_code"] is not None] == []
    assert (await done(cluster, "GET", "/brokers/2"))["leader_count"] > 0


async def test_the_preferred_leader_leads_again_after_a_restart(cluster: LiveCluster) -> None:
    body = {"topic_name": "led", "replicas_assignments": {"0": [3, 1, 2]}}
    await done(cluster, "POST", "/topics", body)
    assert await cluster.leader("led") == 3
    await cluster.kill("broker-3")
    await cluster.wait_isr("led", 0, {1, 2}, through=1)
    cluster.start_node("broker-3")
    await cluster.wait_isr("led", 0, {1, 2, 3}, through=1)
    assert await cluster.leader("led") != 3
    elected = await done(cluster, "POST", "/topics/led/partitions/0/leader:elect")
    assert elected["leader"]["related"].endswith("/replicas/3")
    assert (await cluster.produce(1, "led", 1)).status == 200


async def test_a_reassignment_tells_how_far_it_is_and_is_cancelled(cluster: LiveCluster) -> None:
    body = {"topic_name": "undecided", "replicas_assignments": {"0": [1, 2, 3]}}
    await done(cluster, "POST", "/topics", body)
    stored = await cluster.produce(1, "undecided", *range(RECORDS))
    assert stored.status == 200, stored
    path = "/topics/undecided/partitions/0/reassignment"
    cluster.pause(f"broker-{LAST}")
    try:
        answer = await v3(cluster, "POST", path, {"replicas": [1, 2, LAST]}, through=2)
        assert (answer.status, answer.body["adding_replicas"]) == (202, [LAST]), answer
        moving = (await v3(cluster, "GET", path, through=2)).body
        assert (moving["removing_replicas"], moving["leader_end_offset"]) == ([3], RECORDS)
        assert [one["broker_id"] for one in moving["progress"]] == [LAST]
        assert not moving["progress"][0]["is_in_sync"]
        assert (await v3(cluster, "DELETE", path, through=2)).status == 204
    finally:
        cluster.resume(f"broker-{LAST}")
    assert (await v3(cluster, "GET", path, through=2)).status == 404
    described = await cluster.partition("undecided", 0, 2)
    assert (described["replica_ids"], described["adding_replicas"]) == ([1, 2, 3], [])
    await cluster.wait_healthy()


async def test_replicas_move_with_their_records_and_an_emptied_broker_is_taken_out(
    cluster: LiveCluster,
) -> None:
    body = {"topic_name": "moved", "replicas_assignments": {"0": [1, 2, 3], "1": [2, 3, 4]}}
    await done(cluster, "POST", "/topics", body)
    for partition in (0, 1):
        stored = await cluster.produce(1, "moved", *range(RECORDS), partition=partition)
        assert stored.status == 200, stored
    printed = await quorumlog(
        cluster, "reassign", "start", "moved:0=4,2,3", "--wait", "--timeout", "15"
    )
    assert printed.splitlines()[1].split()[:2] == ["moved:0", "4,2,3"]
    assert await values(cluster, "moved", 0) == list(range(RECORDS))

    held = await v3(cluster, "DELETE", f"/brokers/{LAST}")
    assert (held.status, held.body["error_code"]) == (400, 40002)
    assert "replicas" in held.body["message"]
    drain = ("broker", "drain", str(LAST), "--scope", "replicas", "--wait", "--timeout", "15")
    assert "drain done" in await quorumlog(cluster, *drain)
    assert (await done(cluster, "GET", f"/brokers/{LAST}"))["replica_count"] == 0
    assert await done(cluster, "GET", f"/brokers/{LAST}/partition-replicas") is not None
    await cluster.kill(f"broker-{LAST}")

    async def unregistered() -> bool:
        answer = await v3(cluster, "DELETE", f"/brokers/{LAST}")
        assert answer.status == 204 or answer.body["error_code"] == 40002, answer
        return answer.status == 204

    await cluster.until(unregistered, "the broker is fenced and unregistered")
    assert (await v3(cluster, "GET", f"/brokers/{LAST}")).status == 404
    listed = await done(cluster, "GET", "/brokers?include=all")
    assert [row["broker_id"] for row in listed["data"]] == [1, 2, 3]
    for partition in (0, 1):
        assert await values(cluster, "moved", partition) == list(range(RECORDS))
