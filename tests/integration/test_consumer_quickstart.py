"""Confluent's v2 consumer quick start, each call to another broker, the coordinator killed between.

What is checked is what a reader by hand would notice: reading goes on from the last commit, and
nothing is ever skipped.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support.live_cluster import Answer, LiveCluster, running

V2 = "application/vnd.kafka.v2+json"
V2_JSON = "application/vnd.kafka.json.v2+json"
PARTITIONS = 3
FIRST, MORE = 30, 9
"""Records before the first read, and between the two."""
CALL_S = 20.0
"""A coordinator that was killed is replaced well within this."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@dataclass
class Hand:
    """Types requests, each at the next broker that lives; on a 503 it waits and types again."""

    cluster: LiveCluster
    topic: str
    group: str
    turn: int = 0
    down: set[int] = field(default_factory=set)
    seen: dict[int, list[int]] = field(default_factory=dict)
    """Offsets by partition, in the order they came."""
    produced: int = 0

    async def say(self, method: str, path: str, body: object = None) -> Answer:
        headers = {"Content-Type": V2_JSON, "Accept": f"{V2_JSON}, {V2}, */*;q=0.1"}
        async with asyncio.timeout(CALL_S):
            while True:
                brokers = [one for one in self.cluster.brokers if one.id not in self.down]
                self.turn += 1
                url = brokers[self.turn % len(brokers)].url
                with suppress(OSError):
                    answer = await self.cluster.ask(
                        method, f"{url}{path}", body, headers, deadline_s=10.0
                    )
                    if answer.status != 503:
                        return answer
                await asyncio.sleep(0.1)

    async def produce(self, count: int) -> None:
        for number in range(self.produced, self.produced + count):
            path = f"/topics/{self.topic}/partitions/{number % PARTITIONS}"
            answer = await self.say("POST", path, {"records": [{"value": f"r{number}"}]})
            assert answer.status == 200, answer
        self.produced += count

    @property
    def instance(self) -> str:
        return f"/consumers/{self.group}/instances/one"

    async def create(self, reset: str = "earliest") -> None:
        body = {"name": "one", "format": "json", "auto.offset.reset": reset}
        body["auto.commit.enable"] = "false"
        answer = await self.say("POST", f"/consumers/{self.group}", body)
        assert answer.status == 200, answer
        assert answer.body["base_uri"].endswith(self.instance)

    async def subscribe(self) -> None:
        answer = await self.say("POST", f"{self.instance}/subscription", {"topics": [self.topic]})
        assert answer.status == 204, answer

    async def read(self) -> None:
        """Read until two reads come back empty."""
        empty = 0
        while empty < 2:
            answer = await self.say("GET", f"{self.instance}/records?timeout=300")
            assert answer.status == 200, answer
            empty = empty + 1 if not answer.body else 0
            for record in answer.body:
                self._note(record)

    def _note(self, record: dict[str, Any]) -> None:
        offsets = self.seen.setdefault(record["partition"], [])
        highest = max(offsets, default=-1)
        assert record["offset"] <= highest + 1, f"skipped from {highest} to {record}"
        number = record["offset"] * PARTITIONS + record["partition"]
        assert record["value"] == f"r{number}", record
        offsets.append(record["offset"])

    async def commit(self) -> None:
        answer = await self.say("POST", f"{self.instance}/offsets")
        assert (answer.status, answer.body) == (200, []), answer

    async def delete(self) -> None:
        answer = await self.say("DELETE", self.instance)
        assert answer.status == 204, answer
        gone = await self.say("GET", f"{self.instance}/records")
        assert gone.body == {"error_code": 40403, "message": "Consumer instance not found."}

    async def committed(self) -> dict[int, int]:
        cluster_id = self.cluster.read().cluster_id
        path = f"/v3/clusters/{cluster_id}/consumer-groups/{self.group}/offsets"
        answer = await self.say("GET", path)
        return {row["partition_id"]: row["offset"] for row in answer.body["data"]}

    async def kill_coordinator(self) -> tuple[str, int]:
        """SIGKILL; the node's name and its pid, to wait for the next one."""
        victim = await self.coordinator()
        pid = await self.cluster.kill(f"broker-{victim}")
        self.down.add(victim)
        return f"broker-{victim}", pid

    async def coordinator(self) -> int:
        cluster_id = self.cluster.read().cluster_id
        path = f"/v3/clusters/{cluster_id}/consumer-groups/{self.group}"
        answer = await self.say("GET", path)
        assert answer.status == 200, answer
        return int(answer.body["coordinator"]["related"].rpartition("/")[2])


@pytest.fixture
async def hand(cluster: LiveCluster, request: pytest.FixtureRequest) -> Hand:
    name = "".join(letter for letter in request.node.name if letter.isalnum())[-40:]
    await cluster.wait_healthy()
    if await used(cluster):
        await cluster.wait_healthy("__consumer_offsets", 12)
    made = Hand(cluster, name, name)
    await cluster.create_topic(name, PARTITIONS)
    await made.produce(FIRST)
    return made


async def used(cluster: LiveCluster) -> bool:
    """Whether any test has made the offsets topic."""
    answer = await cluster.ask("GET", cluster.topics_url(1) + "/__consumer_offsets")
    return answer.status == 200


def ends(produced: int) -> dict[int, int]:
    return dict.fromkeys(range(PARTITIONS), produced // PARTITIONS)


async def test_each_call_to_another_broker(hand: Hand) -> None:
    await hand.create()
    await hand.subscribe()
    await hand.read()
    assert await hand.committed() == {}
    await hand.commit()
    assert await hand.committed() == ends(FIRST)
    await hand.produce(MORE)
    await hand.read()
    await hand.commit()
    assert await hand.committed() == ends(FIRST + MORE)
    await hand.delete()
    everything = list(range((FIRST + MORE) // PARTITIONS))
    assert hand.seen == dict.fromkeys(range(PARTITIONS), everything)  # each once, in order


CALLS = ("create", "subscribe", "read", "commit", "read again", "commit again", "delete")


@pytest.mark.parametrize("killed_before", CALLS[1:])
async def test_the_coordinator_killed_between_any_two_calls(hand: Hand, killed_before: str) -> None:
    killed = ("", 0)
    for call in CALLS:
        if call == "read again":
            await hand.produce(MORE)
        before = await hand.committed() if call == killed_before else {}
        if call == killed_before:
            killed = await hand.kill_coordinator()
            assert await hand.committed() == before, "a commit was lost"
        await getattr(hand, call.partition(" ")[0])()
        if call == "read again":
            assert {p: max(seen) + 1 for p, seen in hand.seen.items()} == ends(hand.produced)
    # what was read by the dead coordinator and not committed comes again; nothing is left out
    for seen in hand.seen.values():
        assert set(seen) == set(range(hand.produced // PARTITIONS))
    at_end = await hand.committed()
    if killed_before != "commit again":  # then nothing was delivered by the new one
        assert at_end == ends(hand.produced)
    await hand.cluster.wait_restarted(*killed)


async def test_rule_g2_latest_a_seek_and_an_assignment_outlive_the_coordinator(hand: Hand) -> None:
    await hand.create("latest")
    await hand.subscribe()
    await hand.produce(MORE)
    killed = await hand.kill_coordinator()
    start = FIRST // PARTITIONS
    hand.seen = {number: [start - 1] for number in range(PARTITIONS)}  # it begins behind these
    await hand.read()
    assert {p: seen[1:] for p, seen in hand.seen.items()} == {
        number: list(range(start, start + MORE // PARTITIONS)) for number in range(PARTITIONS)
    }
    await hand.cluster.wait_restarted(*killed)
    hand.down.clear()
    await hand.cluster.wait_healthy("__consumer_offsets", 12)

    target = [{"topic": hand.topic, "partition": 1, "offset": 2}]
    assert (await hand.say("POST", f"{hand.instance}/positions", {"offsets": target})).status == 204
    killed = await hand.kill_coordinator()
    hand.seen = {1: [1], 0: [99], 2: [99]}
    await hand.read()
    assert hand.seen[1][1:] == list(range(2, hand.produced // PARTITIONS))
    await hand.cluster.wait_restarted(*killed)
    hand.down.clear()
    await hand.cluster.wait_healthy("__consumer_offsets", 12)

    await hand.delete()
    await hand.create("latest")
    one = {"partitions": [{"topic": hand.topic, "partition": 2}]}
    assert (await hand.say("POST", f"{hand.instance}/assignments", one)).status == 204
    await hand.produce(MORE)
    killed = await hand.kill_coordinator()
    assert (await hand.say("GET", f"{hand.instance}/assignments")).body == one
    hand.seen = {2: [(hand.produced - MORE) // PARTITIONS - 1]}
    await hand.read()
    assert len(hand.seen[2]) == 1 + MORE // PARTITIONS
    await hand.cluster.wait_restarted(*killed)


async def test_a_long_poll_that_was_interrupted_skips_nothing(hand: Hand) -> None:
    await hand.create()
    await hand.subscribe()
    await hand.read()
    for broker in hand.cluster.brokers:
        url = f"{broker.url}{hand.instance}/records?timeout=20000"
        with pytest.raises(OSError, match="Timeout"):  # Ctrl-C while it waits
            await hand.cluster.ask("GET", url, deadline_s=0.5)
        await hand.produce(MORE)
        await hand.read()
        for seen in hand.seen.values():
            assert set(seen) == set(range(hand.produced // PARTITIONS))
    await hand.delete()


async def test_a_read_left_behind_neither_holds_up_the_next_nor_takes_its_records(
    hand: Hand,
) -> None:
    await hand.create()
    await hand.subscribe()
    await hand.read()
    for broker in hand.cluster.brokers:
        url = f"{broker.url}{hand.instance}/records?timeout=20000"
        with pytest.raises(OSError, match="Timeout"):
            await hand.cluster.ask("GET", url, deadline_s=0.5)
        async with asyncio.timeout(10.0):
            await hand.read()
    coordinator = await hand.coordinator()
    (through, *_) = hand.cluster.others(coordinator)
    url = f"{through.url}{hand.instance}/records?timeout=20000"
    waiting = asyncio.create_task(hand.cluster.ask("GET", url, deadline_s=30.0))
    await asyncio.sleep(0.3)  # it waits by now; if not, the kill only comes before it
    pid = await hand.cluster.kill(f"broker-{through.id}")
    with pytest.raises(OSError, match="GET"):
        await waiting
    hand.down.add(through.id)
    again = asyncio.create_task(hand.read())
    await hand.produce(MORE)
    await again
    await hand.read()
    for seen in hand.seen.values():
        assert set(seen) == set(range(hand.produced // PARTITIONS))
    await hand.cluster.wait_restarted(f"broker-{through.id}", pid)


async def test_a_group_commit_with_nothing_but_curl(hand: Hand) -> None:
    cluster_id = hand.cluster.read().cluster_id
    path = f"/v3/clusters/{cluster_id}/consumer-groups/{hand.group}"
    empty = await hand.say("GET", path + "/offsets")
    assert (empty.status, empty.body["data"]) == (200, [])
    headers = {"Content-Type": "application/json"}
    row = {"topic_name": hand.topic, "partition_id": 1, "metadata": "mine"}
    rows: list[dict[str, Any]] = []
    for offset, broker in enumerate(hand.cluster.brokers, 4):
        rows = [{**row, "offset": offset}]
        done = await hand.cluster.ask(
            "PATCH", broker.url + path + "/offsets", {"data": rows}, headers
        )
        assert (done.status, done.body) == (204, "")
    for broker in hand.cluster.brokers:
        found = await hand.cluster.ask("GET", broker.url + path + "/offsets")
        lag = FIRST // PARTITIONS - 6
        assert found.body["data"] == [{**rows[0], "lag": lag, "leader_epoch": None}]
        summary = await hand.cluster.ask("GET", broker.url + path + "/lag-summary")
        assert summary.body["total_lag"] == lag

    await hand.create()
    await hand.subscribe()
    refused = await hand.cluster.ask(
        "PATCH", hand.cluster.url(2) + path + "/offsets", {"data": rows}, headers
    )
    assert (refused.status, refused.body["error_code"]) == (409, 40903)
    member = await hand.cluster.ask("GET", hand.cluster.url(3) + path + "/consumers/one")
    as_member = {"data": [], "member_id": "one", "member_epoch": member.body["member_epoch"]}
    done = await hand.cluster.ask(
        "PATCH", hand.cluster.url(1) + path + "/offsets", as_member, headers
    )
    assert done.status == 204, done
    await hand.delete()


async def test_the_boundary_cases_of_the_documents(hand: Hand) -> None:
    """Offsets, dialects, empty commits, ranges: against the real coordinator, not a fake."""
    await hand.create()
    topic, path = hand.topic, hand.instance
    rows = [{"topic": topic, "partition": 0}]
    assert (await hand.say("POST", f"{path}/assignments", {"partitions": rows})).status == 204
    commit = {"offsets": [{**rows[0], "offset": 5}]}
    assert (await hand.say("POST", f"{path}/offsets", commit)).body == []
    found = await hand.say("GET", f"{path}/offsets", {"partitions": rows})
    assert found.body == {"offsets": [{**rows[0], "offset": 6, "metadata": ""}]}
    assert (await hand.say("GET", f"{path}/offsets")).body == found.body
    conflict = await hand.say("POST", f"{path}/subscription", {"topics": [topic]})
    assert (conflict.status, conflict.body["error_code"]) == (409, 40903)
    assert conflict.body["message"].startswith("IllegalStateError: You must choose only one way")
    unassigned = {"offsets": [{"topic": topic, "partition": 1, "offset": 1}]}
    refused = await hand.say("POST", f"{path}/positions", unassigned)
    assert refused.body == {
        "error_code": 40903,
        "message": f"No current assignment for partition {topic}-1",
    }
    async with asyncio.timeout(5.0):  # certain at once: no reason to look for another coordinator
        for topic_name, number in (("nowhere", 0), (topic, 99)):
            place = {"topic": topic_name, "partition": number}
            sought = {"offsets": [{**place, "offset": 1}]}
            refused = await hand.say("POST", f"{path}/positions", sought)
            assert (refused.status, refused.body["error_code"]) == (409, 40903)
            for what, body in (("offsets", sought), ("assignments", {"partitions": [place]})):
                refused = await hand.say("POST", f"{path}/{what}", body)
                text = f"Partition {number} of topic {topic_name} not found"
                assert refused.body == {"error_code": 40402, "message": text}
    for edge, count in (("beginning", FIRST // PARTITIONS), ("end", 0)):
        done = await hand.say("POST", f"{path}/positions/{edge}", {"partitions": rows})
        assert done.status == 204, done
        got = await hand.say("GET", f"{path}/records?timeout=200")
        assert len(got.body) == count
    again = await hand.say("POST", f"/consumers/{hand.group}", {"name": "one"})
    assert (again.status, again.body["error_code"]) == (409, 40902)
    for settings in ({"fetch.min.bytes": -10}, {"session.timeout.ms": 10}):
        bad = await hand.say("POST", f"/consumers/{hand.group}", settings)
        assert (bad.status, bad.body["error_code"]) == (422, 40001)
    await hand.delete()


async def test_strimzis_dialect_stores_the_offset_as_given(hand: Hand) -> None:
    settings = {"name": "one", "format": "json", "enable.auto.commit": False}
    assert (await hand.say("POST", f"/consumers/{hand.group}", settings)).status == 200
    rows = [{"topic": hand.topic, "partition": 0}]
    await hand.say("POST", f"{hand.instance}/assignments", {"partitions": rows})
    commit = {"offsets": [{**rows[0], "offset": 5}]}
    assert (await hand.say("POST", f"{hand.instance}/offsets", commit)).status == 204
    assert await hand.committed() == {0: 5}
    await hand.delete()


async def test_formats_that_do_not_fit(hand: Hand) -> None:
    url = hand.cluster.url(1)
    await hand.cluster.ask("POST", f"{url}/consumers/{hand.group}", {"name": "one"})
    await hand.say("POST", f"{hand.instance}/subscription", {"topics": [hand.topic]})
    headers = {"Accept": V2_JSON}
    refused = await hand.cluster.ask("GET", f"{url}{hand.instance}/records", None, headers)
    assert (refused.status, refused.body["error_code"]) == (406, 40601)
    assert refused.headers["Content-Type"] == V2_JSON
    await hand.delete()
    avro = {"name": "one", "format": "avro", "auto.offset.reset": "earliest"}
    await hand.cluster.ask("POST", f"{url}/consumers/{hand.group}", avro)
    await hand.say("POST", f"{hand.instance}/subscription", {"topics": [hand.topic]})
    refused = await hand.cluster.ask("GET", f"{url}{hand.instance}/records")
    assert (refused.status, refused.body["error_code"]) == (422, 42205)
    assert json.dumps(refused.body)
    answer = await hand.say("DELETE", hand.instance)
    assert answer.status == 204
