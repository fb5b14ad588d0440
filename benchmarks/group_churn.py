"""A group whose members come and go, and the partitions that they believe to own.

``python -m benchmarks.group_churn``, and two rows of the section `doors`. `churn` runs it on any
cluster; tests run it, too, and kill coordinators meanwhile. `ObservedGroup` owns what all members
share. A `DirectMember` joins, sends heartbeats that wait, reads from any broker, commits, and
ends: it leaves, keeps its seat, or stops without a call. An `InstanceMember` reads through the
coordinator. Whenever a member is assigned a partition, no other member that was answered within
its session may have it. At the end the few members that stay must own everything between them.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp

from benchmarks.product import JSON_V2, product
from benchmarks.report import Row, at_most, machine, percentile, table
from chaos.deadline import within

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from benchmarks.product import Product
    from chaos.cluster import ClusterFile

JSON: Final = {"Content-Type": "application/json"}
V2: Final = {"Content-Type": "application/vnd.kafka.v2+json"}
READ: Final = {"Accept": JSON_V2}
SESSION_S: Final = 3.0
WAIT_MS: Final = 1_000
PATIENCE_S: Final = 30.0
RETRIED: Final = (500, 502, 503)
WRITE_PAUSE_S: Final = 0.5
STAYERS: Final = 4
"""Members that stay throughout."""
MEMBERS: Final = 200
PARTITIONS: Final = 64
SETTLED_BUDGET: Final = at_most(SESSION_S + 1, " s")
OWNERS_BUDGET: Final = at_most(0, "")
MS: Final = 1_000


class GroupError(RuntimeError):
    """An answer that the group must not give, or none in time."""


class Answer(NamedTuple):
    """Status and decoded body."""

    status: int
    body: Any


@dataclass
class ObservedGroup:
    """One group over one topic, as its members observe it. Owned by one event loop."""

    cluster: ClusterFile
    topic: str
    partitions: int
    http: aiohttp.ClientSession
    chance: random.Random
    members: list[DirectMember] = field(default_factory=list)
    """The living members that read for themselves; their ``positions`` are what they own."""
    read_up_to: dict[int, int] = field(default_factory=dict)
    """Partition → next offset that no member has read yet; reads never leave a gap."""
    granted: int = 0
    double_owners: list[str] = field(default_factory=list)
    """One text for each partition that was assigned while another member owned it."""
    joins_ms: list[float] = field(default_factory=list)
    heartbeats_ms: list[float] = field(default_factory=list)
    """Time of each heartbeat's answer beyond the wait that it asked for."""
    last_end_s: float = 0.0
    """Time at which the last member ended."""
    turns: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def path(self) -> str:
        """The group's path in v3."""
        return f"/v3/clusters/{self.cluster.cluster_id}/consumer-groups/{self.topic}-group"

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Ask one broker after the other until an answer is not a temporary refusal.

        Raises:
            GroupError: there was none in time.
        """
        until_s = time.monotonic() + PATIENCE_S
        sent = {**(JSON if body is not None else {}), **(headers or {})}
        brokers = self.cluster.brokers
        while True:
            url = brokers[next(self.turns) % len(brokers)].url + path
            try:
                async with self.http.request(method, url, json=body, headers=sent) as answer:
                    found: Any = (
                        await answer.json(content_type=None) if answer.status != 204 else {}
                    )
                    if answer.status not in RETRIED:
                        return Answer(answer.status, found)
            except (OSError, aiohttp.ClientError, TimeoutError) as error:
                found = repr(error)
            if time.monotonic() > until_s:
                msg = f"{method} {path}: no answer within {PATIENCE_S:g} s, last {found}"
                raise GroupError(msg)
            await asyncio.sleep(0.1)

    def deliver(self, partition: int, offset: int) -> None:
        """Note a record that a member read; raise `GroupError` if those before it were skipped."""
        reached = self.read_up_to.get(partition, 0)
        if offset > reached:
            msg = f"{self.topic}-{partition}: {reached} to {offset - 1} were skipped"
            raise GroupError(msg)
        self.read_up_to[partition] = max(reached, offset + 1)

    def grant(self, partition: int, name: str) -> None:
        """Note that a member was assigned a partition, and any other that owns it."""
        self.granted += 1
        self.double_owners += [
            f"{self.topic}-{partition} is owned by {other.name} and by {name}"
            for other in self.members
            if other.name != name and partition in other.positions
            if time.monotonic() < other.answered_s + SESSION_S
        ]

    async def produce(self, count: int) -> None:
        """Write records to all partitions in turn."""
        records = [
            {"value": number, "partition": number % self.partitions} for number in range(count)
        ]
        headers = {"Content-Type": JSON_V2}
        answer = await self.ask("POST", f"/topics/{self.topic}", {"records": records}, headers)
        expect(answer, 200)

    async def ends(self) -> list[int]:
        """Return the end of each partition."""
        found = []
        for partition in range(self.partitions):
            path = f"/topics/{self.topic}/partitions/{partition}/offsets"
            found.append(int((await self.ask("GET", path)).body["end_offset"]))
        return found


def expect(answer: Answer, *statuses: int) -> None:
    """Raise `GroupError` unless the status is one of these."""
    if answer.status not in statuses:
        msg = f"expected {statuses}, got {answer}"
        raise GroupError(msg)


class DirectMember:
    """A member that reads for itself; `live` is its task."""

    def __init__(self, group: ObservedGroup, name: str, static_id: str | None = None) -> None:
        self.group = group
        self.name = name
        self.static_id = static_id
        self.path = f"{group.path}/consumers/{name}"
        self.epoch = -1
        self.positions: dict[int, int] = {}
        """Partition it owns → next offset to read."""
        self.answered_s = 0.0
        """Time at which the last answered join or heartbeat was sent."""
        self.stops = asyncio.Event()
        group.members.append(self)

    async def join(self) -> None:
        """Join the group, or join it again."""
        body = {
            "consumer_id": self.name,
            "topics": [self.group.topic],
            "auto_offset_reset": "earliest",
            "session_timeout_ms": round(SESSION_S * 1000),
        } | ({} if self.static_id is None else {"instance_id": self.static_id})
        began_s = time.monotonic()
        answer = await self.group.ask("POST", f"{self.group.path}/consumers", body)
        expect(answer, 200)
        self.group.joins_ms.append((time.monotonic() - began_s) * MS)
        self.take(answer.body, began_s)

    async def beat(self) -> None:
        """Send a heartbeat that waits; join again if the group does not know the member."""
        owned = [{"topic_name": self.group.topic, "partitions": sorted(self.positions)}]
        body = {"member_epoch": self.epoch, "owned": owned, "wait_ms": WAIT_MS}
        began_s = time.monotonic()
        answer = await self.group.ask("POST", f"{self.path}:heartbeat", body)
        if answer.status in (404, 409):
            self.epoch, self.positions = -1, {}
            await self.join()
            return
        expect(answer, 200)
        took_ms = (time.monotonic() - began_s) * MS
        self.group.heartbeats_ms.append(max(0.0, took_ms - WAIT_MS))
        self.take(answer.body, began_s)

    def take(self, found: dict[str, Any], began_s: float) -> None:
        """Take over the assignment of an answer."""
        self.epoch, self.answered_s = found["member_epoch"], began_s
        rows = {row["partition_id"]: row["offset"] for row in found["assignment"]}
        for partition in rows.keys() - self.positions.keys():
            self.group.grant(partition, self.name)
        self.positions = {
            partition: self.positions.get(partition, offset) for partition, offset in rows.items()
        }

    async def read_and_commit(self) -> None:
        """Read each partition once, and commit where it then stands.

        No read waits for records: the next heartbeat would be late.
        """
        await asyncio.gather(*map(self._read, sorted(self.positions)))
        rows = [
            {"topic_name": self.group.topic, "partition_id": partition, "offset": offset}
            for partition, offset in self.positions.items()
        ]
        body = {"data": rows, "member_id": self.name, "member_epoch": self.epoch}
        expect(await self.group.ask("PATCH", f"{self.group.path}/offsets", body), 204, 404, 409)

    async def _read(self, partition: int) -> None:
        path = f"/topics/{self.group.topic}/partitions/{partition}/records"
        begin = self.positions[partition]
        answer = await self.group.ask("GET", f"{path}?offset={begin}&timeout=0", headers=READ)
        expect(answer, 200)
        for record in answer.body:
            self.group.deliver(partition, record["offset"])
            self.positions[partition] = record["offset"] + 1

    async def live(self) -> None:
        """Join, send heartbeats and read until `stops` is set."""
        await self.join()
        while not self.stops.is_set():
            before = self.epoch, set(self.positions)
            await self.beat()
            if (self.epoch, set(self.positions)) == before:
                await self.read_and_commit()

    async def end(self, how: str) -> None:
        """Leave, keep the seat, or just stop; the task has ended."""
        self.positions = {}
        self.group.members.remove(self)
        if how != "stop":
            query = "?keep_seat=true" if how == "keep" else ""
            expect(await self.group.ask("DELETE", self.path + query), 204, 404, 409)


class InstanceMember:
    """A consumer instance that reads through the coordinator, and commits what it read."""

    def __init__(self, group: ObservedGroup, name: str) -> None:
        self.group = group
        self.name = name
        self.base = f"/consumers/{group.topic}-group"
        self.path = f"{self.base}/instances/{name}"
        self.stops = asyncio.Event()

    async def join(self) -> None:
        """Create the instance and subscribe it."""
        body = {
            "name": self.name,
            "format": "json",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "session.timeout.ms": round(SESSION_S * 1000),
        }
        topics = {"topics": [self.group.topic]}
        while True:  # its session may end while a coordinator is replaced
            await self.group.ask("POST", self.base, body, V2)
            answer = await self.group.ask("POST", f"{self.path}/subscription", topics, V2)
            expect(answer, 204, 404)
            if answer.status == 204:
                return

    async def live(self) -> None:
        """Read and commit until `stops` is set."""
        await self.join()
        while not self.stops.is_set():
            answer = await self.group.ask("GET", f"{self.path}/records?timeout=300", headers=READ)
            if answer.status == 404:
                await self.join()
                continue
            expect(answer, 200)
            for record in answer.body:
                self.group.grant(record["partition"], self.name)
                self.group.deliver(record["partition"], record["offset"])
            await self.group.ask("POST", f"{self.path}/offsets", headers=V2)

    async def end(self, how: str) -> None:
        """Delete the instance, or just stop; the task has ended."""
        if how != "stop":
            await self.group.ask("DELETE", self.path)


async def come_and_go(
    group: ObservedGroup, number: int, until_s: float, *, is_instance: bool, is_static: bool
) -> None:
    """Be one member after the other until the time is over."""
    for life in itertools.count():
        if time.monotonic() >= until_s:
            return
        name = f"m{number}-{life}"
        one = (
            InstanceMember(group, name)
            if is_instance
            else DirectMember(group, name, f"s{number}" if is_static else None)
        )
        lives_s = min(group.chance.uniform(1, 6), max(0.0, until_s - time.monotonic()))
        asyncio.get_running_loop().call_later(lives_s, one.stops.set)
        await one.live()
        await one.end(
            group.chance.choice(["leave", "keep", "stop"] if is_static else ["leave", "stop"])
        )
        group.last_end_s = time.monotonic()
        if group.last_end_s < until_s:
            await asyncio.sleep(group.chance.random())


# ---------------------------------------------------------------- the whole churn


@dataclass(frozen=True, slots=True, kw_only=True)
class Churn:
    """Result of `churn`. Times of joins and heartbeats are those until the last member ended."""

    settled_s: float
    """From the end of the last member that went until those that stay own everything."""
    double_owners: tuple[str, ...]
    granted: int
    joins_ms: tuple[float, ...]
    heartbeats_ms: tuple[float, ...]


async def pause(_until_s: float) -> None:
    """Wait between two writes."""
    await asyncio.sleep(WRITE_PAUSE_S)


async def churn(
    cluster: ClusterFile,
    topic: str,
    *,
    members: int,
    partitions: int,
    seconds: float,
    between_writes: Callable[[float], Awaitable[None]] = pause,
) -> Churn:
    """Let members of one group come and go: one in eight an instance, half static.

    Args:
        cluster: a running cluster in which the topic exists.
        topic: read by the group; all its partitions are written to again and again.
        members: number of those that come and go, besides `STAYERS`.
        partitions: of the topic.
        seconds: after which all but the stayers end.
        between_writes: awaited between two writes, with the end of the time.

    Raises:
        ExceptionGroup: of `GroupError` or `TooLateError`, where the group misbehaved.
    """
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as http, asyncio.TaskGroup() as staying:
        group = ObservedGroup(cluster, topic, partitions, http, random.Random(topic))
        stayers = [DirectMember(group, f"stays{number}") for number in range(STAYERS)]
        for one in stayers:
            staying.create_task(one.live())
        until_s = time.monotonic() + seconds

        async def write() -> None:
            while time.monotonic() < until_s:
                await group.produce(partitions)
                await between_writes(until_s)

        async with asyncio.TaskGroup() as acting:
            acting.create_task(write())
            for number in range(members):
                acting.create_task(
                    come_and_go(
                        group,
                        number,
                        until_s,
                        is_instance=number % 8 == 7,
                        is_static=number % 2 == 0,
                    )
                )
        joins_ms, heartbeats_ms = tuple(group.joins_ms), tuple(group.heartbeats_ms)
        settled_s = await settle(group, stayers)
        await read_all(group)
        for one in stayers:
            one.stops.set()
    return Churn(
        settled_s=settled_s,
        double_owners=tuple(group.double_owners),
        granted=group.granted,
        joins_ms=joins_ms,
        heartbeats_ms=heartbeats_ms,
    )


async def settle(group: ObservedGroup, stayers: Sequence[DirectMember]) -> float:
    """Wait until those that stay own everything; return the seconds since the last one went."""
    async with within(PATIENCE_S, "the members that stay own all partitions"):
        while sorted(n for one in stayers for n in one.positions) != [*range(group.partitions)]:  # noqa: ASYNC110 answers change it
            await asyncio.sleep(0.02)
    return time.monotonic() - group.last_end_s


async def read_all(group: ObservedGroup) -> None:
    """Wait until the members have read every record."""
    ends = await group.ends()
    async with within(PATIENCE_S, "the members have read all records"):
        while [group.read_up_to.get(n, 0) for n in range(group.partitions)] != ends:  # noqa: ASYNC110 answers change it
            await asyncio.sleep(0.05)


# ---------------------------------------------------------------- rows


async def measure(product: Product, seconds: float) -> list[Row]:
    """Let 200 members come and go for the given time."""
    topic = "group-churn"
    await product.create_topic(topic, partitions=PARTITIONS)
    found = await churn(
        product.now(), topic, members=MEMBERS, partitions=PARTITIONS, seconds=seconds
    )
    await product.delete_topic(topic)
    return rows(found, seconds)


def rows(found: Churn, seconds: float) -> list[Row]:
    """Return the row of the time to settle, and that of partitions with two owners."""
    joins, beats = (
        f"p50 {percentile(times, 0.5):.0f}, p99 {percentile(times, 0.99):.0f} ms"
        for times in (found.joins_ms, found.heartbeats_ms)
    )
    what = f"{MEMBERS} members that come and go for {seconds:g} s"
    return [
        Row(
            what=f"{what}: last one gone → settled",
            product=f"{found.settled_s:.2f} s",
            value=found.settled_s,
            budget=SETTLED_BUDGET,
            note=f"session {SESSION_S:g} s, {PARTITIONS} partitions; {len(found.joins_ms):,} "
            f"joins, {joins}; {len(found.heartbeats_ms):,} heartbeats, answered {beats} behind "
            "their wait",
        ),
        Row(
            what=f"{what}: partitions with two owners",
            product=str(len(found.double_owners)),
            value=len(found.double_owners),
            budget=OWNERS_BUDGET,
            note="; ".join([f"{found.granted:,} grants", *found.double_owners[:3]]),
        ),
    ]


async def run(seconds: float) -> list[Row]:
    """Measure on a cluster of its own."""
    async with product() as cluster:
        return await measure(cluster, seconds)


def main() -> int:
    """Measure for the seconds of the first argument, by default 120, and print."""
    note = machine()
    found = asyncio.run(run(float(sys.argv[1]) if len(sys.argv) > 1 else 120.0))
    print(note, table(found), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
