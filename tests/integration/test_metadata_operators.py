"""What operators ask of a real cluster's metadata, while controllers and brokers die."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.live_cluster import Answer, LiveCluster, running
from tests.support.same_history import check_same_history, common_index

OPTIONS = ("--port", "0")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("operators"), *OPTIONS) as cluster:
        yield cluster


@pytest.fixture
async def cluster(made: LiveCluster) -> LiveCluster:
    """All nodes up and an active controller known, whatever the test before did."""
    await made.wait_healthy()
    await made.until(lambda: is_healthy(made), "the cluster is healthy")
    return made


async def v3(cluster: LiveCluster, path: str, broker: int = 1) -> Answer:
    now = cluster.read()
    return await cluster.ask("GET", f"{cluster.url(broker)}/v3/clusters/{now.cluster_id}{path}")


async def is_healthy(cluster: LiveCluster) -> bool:
    status: str = (await v3(cluster, ":health")).body["status"]
    return status == "healthy"


async def states(cluster: LiveCluster, query: str = "") -> dict[int, dict[str, Any]]:
    """What each controller says of itself; one that does not answer is missing."""
    found: dict[int, dict[str, Any]] = {}
    for controller in cluster.controllers:
        url = f"{controller.url}/controller/v1/state{query}"
        answer = await cluster.ask("GET", url, deadline_s=2.0)
        if answer.status == 200:
            found[controller.id] = answer.body
    return found


async def command(*arguments: str, url: str = "") -> tuple[int, str, str]:
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "http_api.cli", *arguments, *(["--url", url] if url else [])],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return done.returncode, done.stdout, done.stderr


async def test_the_quorum_is_told_alike_by_every_broker(cluster: LiveCluster) -> None:
    leader, term = await cluster.active_controller()
    for broker in cluster.brokers:
        said = (await v3(cluster, "/quorum", broker.id)).body
        assert (said["leader_id"], said["leader_epoch"]) == (leader, term)
        assert said["is_from_leader"]
        assert [voter["voter_id"] for voter in said["voters"]] == [101, 102, 103]
        assert all(voter["is_reachable"] and voter["is_connected"] for voter in said["voters"])
        assert all(voter["feature_level_max"] for voter in said["voters"])
        assert [row["broker_id"] for row in said["observers"]] == [1, 2, 3]
        assert {voter["url"] for voter in said["voters"]} == {
            controller.url for controller in cluster.controllers
        }

    async def caught_up() -> bool:
        said = (await v3(cluster, "/quorum")).body
        rows = [*said["voters"], *said["observers"]]
        return all(row["lag"] == 0 and row["caught_up_age_ms"] is not None for row in rows)

    await cluster.until(caught_up, "every voter and observer has caught up")


async def test_invariant_r12_controllers_agree_after_kills(cluster: LiveCluster) -> None:
    created = 0
    for _ in range(2):
        leader, _ = await cluster.active_controller()
        victim = f"controller-{leader}"
        pid = cluster.pid(victim)
        assert pid is not None
        creations = [
            asyncio.create_task(cluster.create_topic(f"r12-{created + i}")) for i in range(4)
        ]
        await cluster.kill(victim)
        await asyncio.gather(*creations, return_exceptions=True)
        created += 4
        await cluster.wait_restarted(victim, pid)

        async def answer() -> bool:
            return len(await states(cluster)) == 3

        await cluster.until(answer, "every controller answers")
    committed = max(state["commit_index"] for state in (await states(cluster)).values())

    async def caught_up() -> bool:
        # One that was just started knows of no commit before its leader tells it.
        return (common_index(await states(cluster)) or 0) >= committed

    await cluster.until(caught_up, "every controller has applied what was committed")
    index = common_index(await states(cluster))
    assert index is not None
    assert index > 2 * 4
    verdict = check_same_history(await states(cluster, f"?index={index}"), 3)
    assert verdict.passed, verdict
    earlier = check_same_history(await states(cluster, f"?index={index - 3}"), 3)
    assert earlier.passed, earlier

    async def same_images() -> bool:
        found = await states(cluster, "?image_hash=true")
        hashes = {json.dumps(state["image_hash"]) for state in found.values()}
        return len(found) == 3 and len(hashes) == 1

    await cluster.until(same_images, "every controller has the same image")
    future = await cluster.ask(
        "GET", f"{cluster.controllers[0].url}/controller/v1/state?index={index + 10**6}"
    )
    assert future.status == 400
    assert "not applied here yet" in future.body["message"]


async def test_health_says_what_is_wrong_and_mends(cluster: LiveCluster) -> None:
    await cluster.create_topic("health", 3)
    url = ",".join(broker.url for broker in cluster.brokers)
    assert (await command("cluster", "health", url=url))[0] == 0
    cluster.pause("broker-3")
    cluster.pause("controller-103")
    try:

        async def degraded() -> bool:
            said = (await v3(cluster, ":health")).body
            codes = {reason["code"] for reason in said["reasons"]}
            return {"BROKER_FENCED", "CONTROLLER_DOWN", "UNDER_REPLICATED_PARTITIONS"} <= codes

        await cluster.until(degraded, "health names the broker, the controller, the partitions")
        code, out, _ = await command("cluster", "health", url=cluster.url(1))
        assert (code, out.splitlines()[0]) == (1, "degraded")
        watch = asyncio.create_task(
            command("cluster", "health", "--exit-when-healthy", "--timeout", "20", url=url)
        )
    finally:
        cluster.resume("controller-103")
        cluster.resume("broker-3")
    code, out, _ = await watch
    assert (code, "healthy" in out.splitlines()) == (0, True)


async def test_without_controllers_the_quorum_is_a_503_and_health_a_verdict(
    cluster: LiveCluster,
) -> None:
    names = [f"controller-{controller.id}" for controller in cluster.controllers]
    for name in names:
        cluster.pause(name)
    try:
        said = await v3(cluster, "/quorum")
        assert (said.status, said.headers["Retry-After"]) == (503, "1")
        health = await v3(cluster, ":health")
        assert (health.status, health.body["status"]) == (200, "unhealthy")
        assert health.body["reasons"][0]["code"] == "NO_ACTIVE_CONTROLLER"
        assert health.body["controller_id"] is None
        assert (await command("cluster", "health", url=cluster.url(2)))[0] == 3
        image = await v3(cluster, "/metadata/image/brokers/1/broker_id")
        assert image.body == 1, "what is known can be read without any controller"
    finally:
        for name in names:
            cluster.resume(name)


async def test_the_log_tells_a_topics_story_and_a_stopped_controllers_folder_too(
    cluster: LiveCluster,
) -> None:
    start = int((await v3(cluster, "/metadata/image/next_offset")).body)
    follow = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "http_api.cli", "metadata", "dump", "--follow"),
        *("--from", str(start), "--url", cluster.url(1)),
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert follow.stdout is not None
        await cluster.create_topic("story", 2)
        async with asyncio.timeout(10):
            lines = [(await follow.stdout.readline()).decode() for _ in range(3)]
    finally:
        follow.send_signal(signal.SIGTERM)
        await follow.wait()
    assert lines[0].startswith(f"{start} e")
    assert lines[0].endswith(" topic story: created, 2 partitions\n")
    assert " partition story-0: leader " in lines[1]
    code, online, _ = await command(
        "metadata", "dump", "--from", str(start), "--format", "json", url=cluster.url(2)
    )
    assert code == 0
    folder = cluster.data_dir / "controller-101"
    code, _, err = await command("metadata", "dump", "--dir", str(folder))
    assert (code, "in use by a running controller" in err) == (75, True)
    await _same_offline(folder, online, start)


async def _same_offline(folder: Path, online: str, start: int) -> None:
    """Read although it is in use: at rest, what is there is whole."""
    code, offline, err = await command(
        *("metadata", "dump", "--dir", str(folder), "--force"),
        *("--from", str(start), "--format", "json"),
    )
    assert code == 0, err
    told = {fact["offset"]: fact for fact in map(json.loads, offline.splitlines())}
    for line in online.splitlines():
        fact = json.loads(line)
        mine = told[fact["offset"]]
        assert {**fact, "before": None} == {**mine, "before": None}
