"""Three real voter processes on loopback, killed with SIGKILL under writes."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.quorum_process import VoterProcess, format_all, free_addresses

NODES = (101, 102, 103)
WRITERS = 8
REELECTION_S_MAX = 2.0


class Cluster:
    """The processes, and writers that find the leader and never send a payload twice."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.addresses = free_addresses(NODES)
        self.up: dict[int, VoterProcess] = {}
        self.acknowledged: list[tuple[float, str]] = []
        self._numbers = itertools.count()
        self._writing = True

    async def start(self, *nodes: int) -> None:
        for node in nodes:
            self.up[node] = await VoterProcess.start(node, self.root, self.addresses)

    async def leader(self, seconds: float = 10.0) -> int:
        async with asyncio.timeout(seconds):
            while True:
                for node, process in list(self.up.items()):
                    status = (await process.ask("status")).get("result", {})
                    if status.get("role") == "leader":
                        return node
                await asyncio.sleep(0.01)

    async def kill(self, *nodes: int) -> None:
        await asyncio.gather(*(self.up.pop(node).kill() for node in nodes))

    async def write(self) -> None:
        believed = NODES[0]
        while self._writing:
            process = self.up.get(believed)
            payload = f"payload-{next(self._numbers)}"
            answer = {"error": "DOWN"}
            if process is not None:
                answer = await process.ask("submit", payload=payload)
            if "result" in answer:
                self.acknowledged.append((time.monotonic(), payload))
            else:
                believed = NODES[(NODES.index(believed) + 1) % len(NODES)]
                await asyncio.sleep(0.01)

    def stop_writing(self) -> None:
        self._writing = False

    async def until_acknowledged(self, more: int, seconds: float = 10.0) -> None:
        wanted = len(self.acknowledged) + more
        async with asyncio.timeout(seconds):
            while len(self.acknowledged) < wanted:  # noqa: ASYNC110 a deadline stands around it
                await asyncio.sleep(0.01)

    async def settled_payloads(self, seconds: float = 20.0) -> list[list[str]]:
        """Every voter's list, once all have applied the same index."""
        async with asyncio.timeout(seconds):
            while True:
                await self.leader()
                answers = [await process.ask("status") for process in self.up.values()]
                states = [answer.get("result", {}) for answer in answers]
                applied = {(s.get("applied_index"), s.get("last_index")) for s in states}
                if len(applied) == 1 and len(set(*applied)) == 1:
                    break
                await asyncio.sleep(0.05)
        return [(await process.ask("payloads"))["result"] for process in self.up.values()]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    format_all(tmp_path, NODES)
    running = Cluster(tmp_path)
    await running.start(*NODES)
    yield running
    running.stop_writing()
    await running.kill(*list(running.up))


async def test_rule_q1_kill_9_of_the_leader_and_of_all_loses_nothing_acknowledged(
    cluster: Cluster,
) -> None:
    await cluster.leader()
    async with asyncio.TaskGroup() as group:
        for _ in range(WRITERS):
            group.create_task(cluster.write())
        await cluster.until_acknowledged(700)  # past the first snapshot
        for _ in range(2):
            leader = await cluster.leader()
            await cluster.kill(leader)
            killed_at = time.monotonic()
            await cluster.until_acknowledged(200)
            first = min(when for when, _ in cluster.acknowledged if when > killed_at)
            assert first - killed_at < REELECTION_S_MAX
            await cluster.start(leader)
            await cluster.until_acknowledged(300)
        for _ in range(2):
            await cluster.kill(*NODES)
            await cluster.start(*NODES)
            await cluster.until_acknowledged(500, 15)
        cluster.stop_writing()
    lists = await cluster.settled_payloads()
    assert lists[0] == lists[1] == lists[2]
    assert len(lists[0]) == len(set(lists[0])), "applied twice"
    lost = {payload for _, payload in cluster.acknowledged} - set(lists[0])
    assert not lost, f"{len(lost)} of {len(cluster.acknowledged)} acknowledged are gone"


async def test_a_clean_stop_hands_leadership_over_and_exits_0(cluster: Cluster) -> None:
    leader = await cluster.leader()
    async with asyncio.TaskGroup() as group:
        group.create_task(cluster.write())
        await cluster.until_acknowledged(50)
        assert await cluster.up.pop(leader).stop() == 0
        stopped_at = time.monotonic()
        await cluster.until_acknowledged(20)
        cluster.stop_writing()
    first = min(when for when, _ in cluster.acknowledged if when > stopped_at)
    assert first - stopped_at < 0.5, "faster than an election"


async def test_rule_q4_a_wiped_raft_folder_exits_instead_of_starting_empty(
    cluster: Cluster, tmp_path: Path
) -> None:
    await cluster.leader()
    await cluster.kill(101)
    for file in (tmp_path / "raft-101").iterdir():
        file.unlink()
    await cluster.start(101)
    assert await cluster.up.pop(101).stop() != 0
    assert "not formatted" in (tmp_path / "voter-101.log").read_text()
    assert await cluster.leader() in {102, 103}
