"""The coordinator is killed between any two calls: reading goes on, and nothing is skipped."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.live_cluster import Answer, LiveCluster, running

log = logging.getLogger("tests.cluster")
JSON = {"Content-Type": "application/vnd.kafka.json.v2+json"}
V2 = {"Content-Type": "application/vnd.kafka.v2+json"}
READ = {"Accept": "application/vnd.kafka.json.v2+json"}
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("groups")) as cluster:
        yield cluster


class Consumer:
    """One instance, asked through every broker in turn; what is refused for now is asked again."""

    def __init__(self, cluster: LiveCluster, group: str, name: str, **settings: object) -> None:
        self.cluster = cluster
        self.group = group
        self.path = f"/consumers/{group}/instances/{name}"
        self.create = {"name": name, "format": "json"} | {
            key.replace("_", "."): value for key, value in settings.items()
        }
        self.turns = itertools.cycle([1, 2, 3])
        self.longest_ms = 0

    async def ask(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """Until it is neither unanswered nor 503."""
        start = time.monotonic()
        while True:
            url = self.cluster.url(next(self.turns)) + path
            try:
                answer = await self.cluster.ask(method, url, body, headers or V2)
            except OSError as error:
                answer = Answer(503, {}, repr(error))
            took_s = time.monotonic() - start
            if answer.status not in (500, 503):
                self.longest_ms = max(self.longest_ms, round(took_s * 1000))
                return answer
            assert took_s < PATIENCE_S, (method, path, answer)
            await asyncio.sleep(0.05)

    async def start(self, *topics: str) -> None:
        answer = await self.ask("POST", f"/consumers/{self.group}", self.create)
        assert answer.status in (200, 409), answer
        await self.subscribe(*topics)

    async def subscribe(self, *topics: str) -> None:
        answer = await self.ask("POST", f"{self.path}/subscription", {"topics": topics})
        assert answer.status == 204, answer

    async def read(self, timeout_ms: int = 500, max_bytes: int = 1_000_000) -> list[dict[str, Any]]:
        path = f"{self.path}/records?timeout={timeout_ms}&max_bytes={max_bytes}"
        answer = await self.ask("GET", path, headers=READ)
        assert answer.status == 200, answer
        records: list[dict[str, Any]] = answer.body
        return records

    async def commit(self) -> Answer:
        return await self.ask("POST", f"{self.path}/offsets")

    async def assignment(self) -> set[int]:
        answer = await self.ask("GET", f"{self.path}/assignments")
        assert answer.status == 200, answer
        return {row["partition"] for row in answer.body["partitions"]}


async def coordinator_of(cluster: LiveCluster, group: str) -> int:
    now = cluster.read()
    found: list[int] = []

    async def known() -> bool:
        for endpoint in cluster.brokers:
            url = f"{endpoint.url}/v3/clusters/{now.cluster_id}/consumer-groups/{group}"
            try:
                answer = await cluster.ask("GET", url, deadline_s=8.0)
            except OSError:
                continue
            if answer.status == 200:
                found.append(int(str(answer.body["coordinator"]["related"]).rsplit("/", 1)[1]))
                return True
        return False

    await cluster.until(known, f"group {group} has a coordinator", PATIENCE_S)
    return found[-1]


async def kill_coordinator(cluster: LiveCluster, group: str) -> tuple[str, int]:
    name = f"broker-{await coordinator_of(cluster, group)}"
    return name, await cluster.kill(name)


class Told:
    """What a reader was given: every gap is a skipped record."""

    def __init__(self, start: int) -> None:
        self.next = start
        self.seen: list[int] = []

    def take(self, records: list[dict[str, Any]]) -> None:
        for record in records:
            assert record["offset"] <= self.next, f"skipped {self.next} to {record['offset']}"
            assert record["value"] == record["offset"]
            self.next = max(self.next, record["offset"] + 1)
            self.seen.append(record["offset"])


async def test_rule_g2_killed_between_any_two_calls_it_reads_on_from_the_last_commit(
    cluster: LiveCluster,
) -> None:
    topic, group = "quick-start", "by-hand"
    await cluster.create_topic(topic)
    written = itertools.count()

    async def produce(count: int) -> None:
        values = [{"value": next(written)} for _ in range(count)]
        answer = await consumer.ask("POST", f"/topics/{topic}", {"records": values}, JSON)
        assert answer.status == 200, answer

    consumer = Consumer(
        cluster, group, "one", auto_offset_reset="latest", auto_commit_enable="false"
    )
    await produce(5)
    answer = await consumer.ask("POST", f"/consumers/{group}", consumer.create)
    assert answer.status == 200, answer
    told, committed, dead = Told(5), 5, None
    for step in ["subscribe", "produce", "read", "commit", "read again", "delete"]:
        dead = await kill_coordinator(cluster, group)
        match step:
            case "subscribe":
                await consumer.subscribe(topic)
            case "produce":
                await produce(10)
            case "read":
                while told.next < 15:
                    told.take(await consumer.read())
                assert told.seen[0] == 5, "latest was resolved when it subscribed"
            case "commit":
                # What was delivered died with the coordinator: it has to be read again.
                while told.seen.count(14) < 2:
                    told.take(await consumer.read())
                assert (await consumer.commit()).status == 200
                committed = 15
                await produce(5)
            case "read again":
                before = len(told.seen)
                while told.next < 20:
                    told.take(await consumer.read())
                assert told.seen[before] == committed
            case _:
                answer = await consumer.ask("DELETE", consumer.path)
                assert answer.status in (204, 404), answer
        await cluster.wait_restarted(*dead)
        await cluster.wait_healthy("__consumer_offsets", 12)
    log.info("coordinator killed before every call: longest call %d ms", consumer.longest_ms)


async def test_three_members_read_everything_through_coordinator_kills(
    cluster: LiveCluster,
) -> None:
    topic, group, partitions, count = "shared", "three", 6, 600
    await cluster.wait_healthy()
    await cluster.create_topic(topic, partitions)
    members = [
        Consumer(
            cluster, group, name, auto_offset_reset="earliest", auto_commit_enable="false",
            session_timeout_ms=60_000,
        )
        for name in ("a", "b", "c")
    ]  # fmt: skip
    for member in members:
        await member.start(topic)
    seen: dict[int, set[int]] = {number: set() for number in range(partitions)}
    done = asyncio.Event()

    async def write() -> None:
        for start in range(0, count, 20):
            values = [{"value": n, "partition": n % partitions} for n in range(start, start + 20)]
            while values:  # again what was not acknowledged: twice is not missing
                answer = await members[0].ask("POST", f"/topics/{topic}", {"records": values}, JSON)
                assert answer.status == 200, answer
                rows = answer.body["offsets"]
                values = [v for v, row in zip(values, rows, strict=True) if row["error_code"]]
            await asyncio.sleep(0.05)

    async def read(member: Consumer) -> None:
        while not done.is_set():
            for record in await member.read(200):
                seen[record["partition"]].add(record["value"])
            await member.commit()
            if sum(map(len, seen.values())) >= count:
                done.set()

    async with asyncio.TaskGroup() as tasks:
        for member in members:
            tasks.create_task(read(member))
        writing = tasks.create_task(write())
        for _ in range(2):
            dead = await kill_coordinator(cluster, group)
            await cluster.wait_restarted(*dead)
        await writing
        async with asyncio.timeout(60):
            await done.wait()
    assert all(seen[number] == set(range(number, count, partitions)) for number in seen)
    parts = [await member.assignment() for member in members]
    assert sorted(number for part in parts for number in part) == list(range(partitions))
    log.info("longest calls %s ms", [member.longest_ms for member in members])


async def test_rule_g3_groups_go_on_while_no_controller_answers(cluster: LiveCluster) -> None:
    topic, group = "no-controllers", "on-their-own"
    await cluster.wait_healthy()
    await cluster.create_topic(topic)
    consumer = Consumer(cluster, group, "one", auto_offset_reset="earliest")
    await consumer.start(topic)
    controllers = [f"controller-{endpoint.id}" for endpoint in cluster.controllers]
    told, values = Told(0), itertools.count()
    for name in controllers:
        cluster.pause(name)
    try:
        for _ in range(5):
            record = {"value": next(values)}
            await consumer.ask("POST", f"/topics/{topic}", {"records": [record]}, JSON)
            told.take(await consumer.read(2_000))
            assert (await consumer.commit()).status == 200
    finally:
        for name in controllers:
            cluster.resume(name)
    assert told.next == 5
    log.info("without controllers: longest call %d ms", consumer.longest_ms)


async def test_a_coordinator_that_stood_still_serves_nothing_old(cluster: LiveCluster) -> None:
    topic, group = "stood-still", "zombie"
    await cluster.wait_healthy()
    await cluster.create_topic(topic)
    await cluster.wait_healthy("__consumer_offsets", 12)
    consumer = Consumer(
        cluster, group, "one", auto_offset_reset="earliest", auto_commit_enable="false"
    )
    await consumer.start(topic)
    told = Told(0)
    records = [{"value": number} for number in range(21)]
    answer = await consumer.ask("POST", f"/topics/{topic}", {"records": records}, JSON)
    assert answer.status == 200, answer

    async def cycle() -> None:
        end = told.next + 3
        while told.next < end:
            told.take(await consumer.read(max_bytes=1))
        assert (await consumer.commit()).status == 200

    await cycle()
    old = await coordinator_of(cluster, group)
    cluster.pause(f"broker-{old}")
    try:
        consumer.turns = itertools.cycle(one.id for one in cluster.others(old))
        for _ in range(3):
            await cycle()
    finally:
        cluster.resume(f"broker-{old}")
    consumer.turns = itertools.cycle([old])  # what it still believes is never told
    for _ in range(3):
        await cycle()
    assert len(told.seen) == told.next, "nothing was delivered twice: every commit was there"
    log.info("coordinator stopped and resumed: longest call %d ms", consumer.longest_ms)
