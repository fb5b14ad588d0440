"""What readers of a real cluster are shown while records wait for a follower: through every door.

One follower of three stands still and stays in the ISR, so nothing that is written is committed:
it lies on the leader and on the other follower, durable, and nobody may see it (invariant L20).
Then the leader dies: the next one holds all of it and does not know yet what was committed, so it
tells no latest offset (invariant L21). One of the two that are asked has the fast lane.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import pytest

from chaos.cluster import quorumlog_command
from tests.support.live_cluster import Answer, LiveCluster

ALL = {1, 2, 3}
LEADER, FOLLOWER, STILL = 1, 2, 3
RACK = "near"
COMMITTED, UNCOMMITTED = 5, 4
END = COMMITTED + UNCOMMITTED
JSON, BINARY = "application/vnd.kafka.json.v2+json", "application/vnd.kafka.binary.v2+json"
LINES, NDJSON = "application/vnd.quorumlog.lines+json", "application/x-ndjson"
WITHHELD_S = 0.7
SOON_S = 20.0


@pytest.fixture(
    scope="module",
    params=["true", pytest.param("false", marks=pytest.mark.slow)],
    ids=["the leader has the fast lane", "the follower has the fast lane"],
)
def cluster(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[LiveCluster]:
    options = (
        *("--controllers", "1", "--no-restart"),
        *("--set", f"http_fast_lane={request.param}"),
        *("--set", "broker_session_timeout_ms=60000", "--set", "replica_lag_time_max_ms=60000"),
    )
    cluster = LiveCluster(tmp_path_factory.mktemp("committed"), options)
    folders = ["up", "--format-only", "--port", "0", "--data-dir", str(cluster.data_dir)]
    subprocess.run([*quorumlog_command(), *folders, *options], check=True, capture_output=True)
    config = cluster.data_dir / f"broker-{FOLLOWER}" / "config.toml"
    config.write_text(_near_and_otherwise(config.read_text()))
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.kill_everything()


def _near_and_otherwise(text: str) -> str:
    """The follower's config.toml: it has a rack, and the other way to answer than the leader."""
    lane = re.search("http_fast_lane = (true|false)", text)
    assert lane is not None, text
    other = f"http_fast_lane = {'false' if lane[1] == 'true' else 'true'}"
    return text.replace("[node]", f'[node]\nrack = "{RACK}"', 1).replace(lane[0], other)


class Topic:
    """One partition, led by broker 1, with records that are committed and others that are not."""

    def __init__(self, cluster: LiveCluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.group = ""

    async def make(self) -> None:
        body = {"topic_name": self.name, "replicas_assignments": {"0": sorted(ALL)}}
        answer = await self.cluster.ask("POST", self.cluster.topics_url(LEADER), body)
        assert answer.status == 201, answer
        await self.cluster.wait_isr(self.name, 0, ALL, LEADER)
        values = [f"committed {number}" for number in range(COMMITTED)]
        assert (await self.cluster.produce(LEADER, self.name, *values)).status == 200
        await self.until_standing(LEADER, COMMITTED, COMMITTED)
        await self.until_standing(FOLLOWER, COMMITTED, COMMITTED)

    async def write_uncommitted(self) -> None:
        self.cluster.pause(f"broker-{STILL}")
        for number in range(UNCOMMITTED):
            answer = await self.cluster.produce(
                LEADER, self.name, f"uncommitted {number}", query="acks=1"
            )
            assert answer.body["offsets"][0]["offset"] == COMMITTED + number, answer
        await self.until_standing(LEADER, COMMITTED, END)
        await self.until_standing(FOLLOWER, COMMITTED, END)

    async def standing(self, broker: int) -> tuple[int, int]:
        """(high watermark, durable end) of its replica."""
        url = f"{self.cluster.url(broker)}/broker/v1/state?topic={self.name}&partition=0"
        answer = await self.cluster.ask("GET", url)
        if answer.status == 404:
            return -1, -1  # its image lacks the topic yet
        row = answer.body["partitions"][0]
        return row["high_watermark"], row["durable_end"]

    async def until_standing(self, broker: int, high_watermark: int, end: int) -> None:
        async def stands() -> bool:
            return await self.standing(broker) == (high_watermark, end)

        await self.cluster.until(stands, f"broker {broker} stands at {(high_watermark, end)}")

    # the doors

    async def fetch(self, broker: int, query: str, accept: str = JSON) -> Answer:
        url = f"{self.cluster.url(broker)}/topics/{self.name}/partitions/0/records?{query}"
        return await self.cluster.ask("GET", url, headers={"Accept": accept})

    async def check_fetches(self, brokers: set[int], seen: int, served_by: set[str]) -> None:
        """Nothing at or behind ``seen`` comes out, by record, by header or by waiting for it."""
        found = set()
        queries = [
            (query + rack, accept)
            for query in ("offset=0&timeout=0", f"offset={seen - 1}&timeout=100", "timestamp=0")
            for rack in ("", f"&rack={RACK}")
            for accept in (JSON, BINARY, LINES, NDJSON)
        ] + [(f"offset={seen}&timeout=300{rack}", JSON) for rack in ("", f"&rack={RACK}")]
        queries += [("offset=0&timeout=0&include=timestamp", NDJSON)]
        for broker in sorted(brokers):
            answers = await asyncio.gather(*(self.fetch(broker, *each) for each in queries))
            for (query, accept), answer in zip(queries, answers, strict=True):
                what = (broker, query, accept, answer)
                assert answer.status == 200, what
                assert "uncommitted" not in str(answer.body), what
                assert int(answer.headers["Quorumlog-High-Watermark"]) <= seen, what
                assert int(answer.headers["Quorumlog-Next-Offset"]) <= seen, what
                if accept != NDJSON:
                    assert all(record["offset"] < seen for record in answer.body), what
                    assert bool(answer.body) is (f"offset={seen}&" not in query), what
                found.add(answer.headers.get("Quorumlog-Served-By", ""))
        assert served_by <= found, found

    def ends(self, broker: int) -> list[Coroutine[Any, Any, int | None]]:
        """The latest offset, through both doors that tell it; None: not told."""

        async def end(url: str, field: str) -> int | None:
            try:
                answer = await self.cluster.ask("GET", url)
            except OSError:
                return None
            assert answer.status == 200 or answer.status >= 500, answer
            return int(answer.body[field]) if answer.status == 200 else None

        partition = f"{self.name}/partitions/0"
        latest = f"{self.cluster.topics_url(broker)}/{partition}/offset?offset_type=latest"
        return [
            end(f"{self.cluster.url(broker)}/topics/{partition}/offsets", "end_offset"),
            end(latest, "latest_offset"),
        ]

    # a consumer

    async def say(self, broker: int, method: str, path: str, body: object = None) -> Answer:
        """Once somebody answers for the group."""
        headers = {"Accept": JSON} | (
            {} if body is None else {"Content-Type": "application/vnd.kafka.v2+json"}
        )
        async with asyncio.timeout(SOON_S):
            while True:
                url = f"{self.cluster.url(broker)}/consumers/{self.group}{path}"
                answer = await self.cluster.ask(method, url, body, headers)
                if answer.status != 503:
                    return answer
                await asyncio.sleep(0.1)

    async def join(self, broker: int, reset: str) -> None:
        """A group of its own, coordinated by this broker."""
        group_url = self.cluster.topics_url(broker).removesuffix("/topics") + "/consumer-groups/"
        body = {"name": "one", "format": "json", "auto.offset.reset": reset}
        body["auto.commit.enable"] = "false"
        for number in range(100):
            self.group = f"{self.name}-{number}"
            assert (await self.say(broker, "POST", "", body)).status == 200
            answer = await self.cluster.ask("GET", group_url + self.group)
            if answer.body["coordinator"]["related"].endswith(f"/{broker}"):
                return
        pytest.fail(f"no group is coordinated by broker {broker}")

    async def assign(self, broker: int) -> None:
        body = {"partitions": [{"topic": self.name, "partition": 0}]}
        answer = await self.say(broker, "POST", "/instances/one/assignments", body)
        assert answer.status == 204, answer

    async def poll(self, broker: int, timeout_ms: int = 200) -> list[int]:
        path = f"/instances/one/records?timeout={timeout_ms}"
        answer = await self.say(broker, "GET", path)
        assert answer.status == 200, answer
        return [record["offset"] for record in answer.body]


@pytest.fixture
async def topic(cluster: LiveCluster, request: pytest.FixtureRequest) -> AsyncIterator[Topic]:
    configs = cluster.topics_url(FOLLOWER).removesuffix("/topics") + "/broker-configs"
    on = await cluster.ask("PUT", f"{configs}/replica.selector", {"value": "rack"})
    assert on.status == 204, on
    made = Topic(cluster, request.node.originalname.removeprefix("test_invariant_")[:3])
    await made.make()
    yield made
    cluster.resume(f"broker-{STILL}")


async def told(asked: Callable[[], list[Coroutine[Any, Any, int | None]]]) -> list[int]:
    """What each tells, once it tells something."""
    async with asyncio.timeout(SOON_S):
        while True:
            answers = await asyncio.gather(*asked())
            if None not in answers:
                return [answer for answer in answers if answer is not None]


async def test_invariant_l20_no_door_lets_out_what_is_not_committed(topic: Topic) -> None:
    await topic.join(FOLLOWER, "earliest")
    await topic.assign(FOLLOWER)
    read: list[int] = []
    while len(read) < COMMITTED:
        read += await topic.poll(LEADER)
    await topic.write_uncommitted()
    near = {str(FOLLOWER)}
    await topic.check_fetches({LEADER, FOLLOWER}, COMMITTED, near)
    for broker in (LEADER, FOLLOWER):
        assert await told(lambda broker=broker: topic.ends(broker)) == [COMMITTED] * 2  # type: ignore[misc]
        assert await topic.poll(broker) == []
        assert await topic.standing(broker) == (COMMITTED, END), "there was something to see"
    topic.cluster.resume(f"broker-{STILL}")
    await topic.until_standing(FOLLOWER, END, END)
    while len(read) < END:
        read += await topic.poll(FOLLOWER)
    assert read == list(range(END))
    whole = await topic.fetch(FOLLOWER, f"offset=0&timeout=0&rack={RACK}")
    assert [record["offset"] for record in whole.body] == read


async def test_invariant_l21_no_door_tells_a_latest_offset_before_the_new_leader_knows_it(
    topic: Topic,
) -> None:
    await topic.join(FOLLOWER, "latest")
    await topic.write_uncommitted()
    assert await told(lambda: topic.ends(FOLLOWER)) == [COMMITTED] * 2
    await topic.cluster.kill(f"broker-{LEADER}")

    async def led() -> bool:
        return await topic.cluster.leader(topic.name, 0, FOLLOWER) == FOLLOWER

    await topic.cluster.until(led, "the follower leads")
    asked = [asyncio.create_task(each) for each in topic.ends(FOLLOWER)]
    joining = asyncio.create_task(topic.assign(FOLLOWER))
    await topic.check_fetches({FOLLOWER}, COMMITTED, set())
    done, _ = await asyncio.wait(asked, timeout=WITHHELD_S)
    assert [task.result() for task in done if task.result() is not None] == [], "too early"
    assert await topic.standing(FOLLOWER) == (COMMITTED, END), "it can't know"
    topic.cluster.resume(f"broker-{STILL}")
    for answer in await asyncio.gather(*asked):
        assert answer in {None, END}, "older than what was written, and now is committed"
    assert await told(lambda: topic.ends(FOLLOWER)) == [END] * 2
    await joining
    assert await topic.poll(FOLLOWER) == [], "it begins at the latest offset"
    assert (await topic.cluster.produce(FOLLOWER, topic.name, "next")).status == 200
    assert await topic.poll(FOLLOWER, 5_000) == [END]
