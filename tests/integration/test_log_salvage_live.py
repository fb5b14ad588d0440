"""A partition whose only log no start can open comes back with what is left (`log salvage`)."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from chaos.cluster import quorumlog_command
from tests.support.live_cluster import LiveCluster, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "alone"
BATCHES, RECORDS = 12, 10


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(
        tmp_path_factory.mktemp("salvage"), "--brokers", "1", "--controllers", "1"
    ) as cluster:
        yield cluster


async def quorumlog(cluster: LiveCluster, *arguments: str) -> tuple[int, str, str]:
    """Exit code and both outputs of a command."""
    process = await asyncio.create_subprocess_exec(
        *quorumlog_command(),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | cluster.environment,
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def rot(folder: Path) -> None:
    """In the lines of a batch amid the one segment, which is never sealed."""
    path = folder / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


async def test_the_last_replica_with_a_log_that_no_start_can_open_comes_back(
    cluster: LiveCluster,
) -> None:
    await cluster.create_topic(TOPIC, factor=1)
    written = []
    for number in range(BATCHES):
        values = [f"{number}.{n}" for n in range(RECORDS)]
        assert (await cluster.produce(1, TOPIC, *values)).status == 200
        written += values
    folder = cluster.data_dir / "broker-1" / "log" / f"{TOPIC}-0"
    pid = cluster.pid("broker-1")
    refused = await quorumlog(cluster, "log", "salvage", str(folder))
    assert refused[0] == 75
    assert f"pid {pid}" in refused[2]
    cluster.kill_everything()
    rot(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    code, out, _ = await quorumlog(
        cluster, "log", "salvage", str(folder), "--dry-run", "--format", "json"
    )
    planned: dict[str, Any] = json.loads(out)
    assert (code, planned["dry_run"], planned["copy"]) == (0, True, None)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    code, out, err = await quorumlog(cluster, "log", "salvage", str(folder), "--format", "json")
    assert code == 0, err
    said: dict[str, Any] = json.loads(out)
    assert said["lost"] == planned["lost"]
    (lost,) = said["lost"]
    first, last = lost["first_offset"], lost["last_offset"]
    assert (lost["is_covered"], said["offsets_lost"], last - first + 1) == (True, RECORDS, RECORDS)
    kept = {path.name: path.read_bytes() for path in cluster.data_dir.glob("**/*:salvaged/*")}
    assert kept == before
    assert (await quorumlog(cluster, "log", "dump", "--verify", str(folder)))[0] == 0

    await cluster.start()
    assert f"salvaged: {RECORDS} offsets lost {first}..{last}" in cluster.log("broker-1")
    described = await cluster.partition(TOPIC)
    assert described["leader_id"] is None, "nobody leads it before its operator says so"
    command = shlex.split(said["next_command"])[1:]
    code, out, err = await quorumlog(cluster, *command, "--url", cluster.url(1))
    assert code == 0, (out, err)
    left = [value for n, value in enumerate(written) if not first <= n <= last]
    found: dict[int, object] = {}

    async def all_is_read() -> bool:
        answer = await cluster.fetch(1, TOPIC, 0, len(found) and max(found) + 1)
        if answer.status == 200:
            found.update((record["offset"], record["value"]) for record in answer.body)
        return len(found) >= len(left)

    await cluster.until(all_is_read, "what is left is served")
    assert found == {n: v for n, v in enumerate(written) if not first <= n <= last}
    answer = await cluster.produce(1, TOPIC, "more")
    assert answer.body["offsets"][0]["offset"] == len(written)
