"""Members of both kinds that come and go on a live cluster, and what they believe to own.

`Story` owns the members' tasks and one HTTP session. Members that read for themselves join, send
heartbeats that wait, read from any broker, commit, and end: they leave, keep a seat, or stop
without a call. Instances read through the coordinator. Whenever a member is assigned a partition,
no other one that was answered within its session may have it.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.support.live_cluster import Answer, LiveCluster

JSON = {"Content-Type": "application/json"}
V2 = {"Content-Type": "application/vnd.kafka.v2+json"}
READ = {"Accept": "application/vnd.kafka.json.v2+json"}
SESSION_S = 3.0
WAIT_MS = 1_000
PATIENCE_S = 30.0
RETRIED = (500, 502, 503)


@dataclass
class Story:
    """One group over one topic. ``positions`` of the members are their beliefs."""

    cluster: LiveCluster
    topic: str
    partitions: int
    http: aiohttp.ClientSession
    chance: random.Random
    cluster_id: str = ""
    urls: list[str] = field(default_factory=list)
    members: list[DirectMember] = field(default_factory=list)
    read_up_to: dict[int, int] = field(default_factory=dict)
    """Partition → next offset that no member has read yet; reads never leave a gap."""
    assigned: int = 0
    turns: itertools.count[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        found = self.cluster.read()
        self.cluster_id = found.cluster_id
        self.urls = [node.url for node in found.brokers]

    @property
    def group(self) -> str:
        return f"/v3/clusters/{self.cluster_id}/consumer-groups/{self.topic}-group"

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Ask one broker after the other until one answers other than for now."""
        until_s = time.monotonic() + PATIENCE_S
        told = {**(JSON if body is not None else {}), **(headers or {})}
        while True:
            url = self.urls[next(self.turns) % len(self.urls)] + path
            try:
                async with self.http.request(method, url, json=body, headers=told) as answer:
                    found: Any = (
                        await answer.json(content_type=None) if answer.status != 204 else {}
                    )
                    if answer.status not in RETRIED:
                        return Answer(answer.status, dict(answer.headers), found)
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                found = repr(error)
            assert time.monotonic() < until_s, (method, path, found)
            await asyncio.sleep(0.1)

    def deliver(self, number: int, offset: int) -> None:
        reached = self.read_up_to.get(number, 0)
        assert offset <= reached, f"{self.topic}-{number}: {reached} to {offset} were skipped"
        self.read_up_to[number] = max(reached, offset + 1)

    def check_owner(self, number: int, name: str) -> None:
        for other in self.members:
            is_live = time.monotonic() < other.answered_s + SESSION_S
            assert other.name == name or number not in other.positions or not is_live, (
                f"{self.topic}-{number} is owned by {other.name} and by {name}"
            )
        self.assigned += 1

    async def produce(self, count: int) -> None:
        records = [
            {"value": number, "partition": number % self.partitions} for number in range(count)
        ]
        headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
        answer = await self.ask("POST", f"/topics/{self.topic}", {"records": records}, headers)
        assert answer.status == 200, answer

    def owned(self) -> list[int]:
        return sorted(number for one in self.members for number in one.positions)


class DirectMember:
    """A member that reads for itself; `live` is its task."""

    def __init__(self, story: Story, name: str, static_id: str | None = None) -> None:
        self.story = story
        self.name = name
        self.static_id = static_id
        self.path = f"{story.group}/consumers/{name}"
        self.epoch = -1
        self.positions: dict[int, int] = {}
        self.answered_s = 0.0
        self.stops = asyncio.Event()
        story.members.append(self)

    async def join(self) -> None:
        body = {
            "consumer_id": self.name,
            "topics": [self.story.topic],
            "auto_offset_reset": "earliest",
            "session_timeout_ms": round(SESSION_S * 1000),
        } | ({} if self.static_id is None else {"instance_id": self.static_id})
        began_s = time.monotonic()
        answer = await self.story.ask("POST", f"{self.story.group}/consumers", body)
        assert answer.status == 200, answer
        self.take(answer.body, began_s)

    async def beat(self, wait_ms: int = WAIT_MS) -> None:
        owned = [{"topic_name": self.story.topic, "partitions": sorted(self.positions)}]
        body = {"member_epoch": self.epoch, "owned": owned, "wait_ms": wait_ms}
        began_s = time.monotonic()
        answer = await self.story.ask("POST", f"{self.path}:heartbeat", body)
        if answer.status in (404, 409):
            self.epoch, self.positions = -1, {}
            await self.join()
            return
        assert answer.status == 200, answer
        self.take(answer.body, began_s)

    def take(self, found: dict[str, Any], began_s: float) -> None:
        self.epoch, self.answered_s = found["member_epoch"], began_s
        rows = {row["partition_id"]: row["offset"] for row in found["assignment"]}
        for number in rows.keys() - self.positions.keys():
            self.story.check_owner(number, self.name)
        self.positions = {
            number: self.positions.get(number, offset) for number, offset in rows.items()
        }

    async def read_and_commit(self) -> None:
        await asyncio.gather(*map(self._read, sorted(self.positions)))
        rows = [
            {"topic_name": self.story.topic, "partition_id": number, "offset": offset}
            for number, offset in self.positions.items()
        ]
        body = {"data": rows, "member_id": self.name, "member_epoch": self.epoch}
        answer = await self.story.ask("PATCH", f"{self.story.group}/offsets", body)
        assert answer.status in (204, 404, 409), answer

    async def _read(self, number: int) -> None:
        path = f"/topics/{self.story.topic}/partitions/{number}/records"
        begin = self.positions[number]
        answer = await self.story.ask("GET", f"{path}?offset={begin}", headers=READ)
        for record in answer.body:
            self.story.deliver(number, record["offset"])
            self.positions[number] = record["offset"] + 1

    async def live(self) -> None:
        await self.join()
        while not self.stops.is_set():
            before = self.epoch, set(self.positions)
            await self.beat()
            if (self.epoch, set(self.positions)) == before:
                await self.read_and_commit()

    async def end(self, how: str) -> None:
        """Leave, keep the seat, or just stop; its task has ended."""
        self.positions = {}
        self.story.members.remove(self)
        if how != "stop":
            query = "?keep_seat=true" if how == "keep" else ""
            answer = await self.story.ask("DELETE", self.path + query)
            assert answer.status in (204, 404, 409), answer


class InstanceMember:
    """A consumer instance that reads through the coordinator, and commits what it read."""

    def __init__(self, story: Story, name: str) -> None:
        self.story = story
        self.name = name
        self.base = f"/consumers/{story.topic}-group"
        self.path = f"{self.base}/instances/{name}"
        self.stops = asyncio.Event()

    async def join(self) -> None:
        body = {
            "name": self.name,
            "format": "json",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": round(SESSION_S * 1000),
        }
        topics = {"topics": [self.story.topic]}
        while True:  # its session may end while a coordinator is replaced
            await self.story.ask("POST", self.base, body, V2)
            answer = await self.story.ask("POST", f"{self.path}/subscription", topics, V2)
            assert answer.status in (204, 404), answer
            if answer.status == 204:
                return

    async def live(self) -> None:
        await self.join()
        while not self.stops.is_set():
            answer = await self.story.ask("GET", f"{self.path}/records?timeout=300", headers=READ)
            if answer.status == 404:
                await self.join()
                continue
            assert answer.status == 200, answer
            for record in answer.body:
                self.story.check_owner(record["partition"], self.name)
                self.story.deliver(record["partition"], record["offset"])
            await self.story.ask("POST", f"{self.path}/offsets", headers=V2)

    async def assignment(self) -> set[int]:
        answer = await self.story.ask("GET", f"{self.path}/assignments")
        return {row["partition"] for row in answer.body["partitions"]}

    async def end(self, how: str) -> None:
        if how != "stop":
            await self.story.ask("DELETE", self.path)


Member = DirectMember | InstanceMember


async def come_and_go(
    story: Story, number: int, until_s: float, *, is_instance: bool, is_static: bool
) -> None:
    """Be one member after the other until the time is over."""
    for life in itertools.count():
        if time.monotonic() >= until_s:
            return
        name = f"m{number}-{life}"
        static_id = f"s{number}" if is_static else None
        one: Member = (
            InstanceMember(story, name) if is_instance else DirectMember(story, name, static_id)
        )
        task = asyncio.create_task(one.live())
        lives_s = min(story.chance.uniform(1, 6), max(0.0, until_s - time.monotonic()))
        await asyncio.wait({task}, timeout=lives_s)
        one.stops.set()
        await task
        await one.end(
            story.chance.choice(["leave", "keep", "stop"] if is_static else ["leave", "stop"])
        )
        await asyncio.sleep(story.chance.random())


async def settle(story: Story, stayers: list[DirectMember]) -> float:
    """Return the seconds until those who stay own everything between them."""
    began_s = time.monotonic()
    while sorted(n for one in stayers for n in one.positions) != list(range(story.partitions)):
        assert time.monotonic() < began_s + PATIENCE_S, [one.positions for one in stayers]
        await asyncio.sleep(0.05)
    return time.monotonic() - began_s
