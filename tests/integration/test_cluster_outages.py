"""Nodes that stay away for a while: stopped brokers, a zombie leader, no controller at all.

The cluster runs with `--no-restart`; a test starts again by hand what it killed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
import zlib
from collections.abc import Iterator

import pytest

from chaos.cluster import runs
from http_api.client.produce_calls import JsonRecord, send
from http_api.client.sdk.producer import Producer
from http_api.client.transport import Client
from tests.support.live_cluster import LiveCluster, running
from tests.support.live_writer import writing

log = logging.getLogger("tests.cluster")
ALL = {1, 2, 3}
STALL_S = 2.5
"""Two broker sessions."""
MINUTE_S = 60.0
BLOCKED_MAX_S = 1.0
"""What waits for metadata waits for one election, not longer."""
WITHOUT_CONTROLLERS_S = 3.0
"""More than two broker sessions: nobody may be fenced or stop because of it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("outages"), "--no-restart") as cluster:
        yield cluster


async def test_each_acks_answers_and_too_few_replicas_refuse_only_acks_all(
    cluster: LiveCluster,
) -> None:
    topic = "acks"
    await cluster.create_topic(topic)
    leader = await cluster.leader(topic)
    for number, acks in enumerate(["all", "-1", "1"]):
        answer = await cluster.produce(leader, topic, acks, query=f"acks={acks}")
        assert (answer.status, answer.body["offsets"][0]["offset"]) == (200, number), answer
    answer = await cluster.produce(leader, topic, "0", query="acks=0")
    assert (answer.status, answer.body["offsets"][0]["offset"]) == (200, -1), answer

    followers = [f"broker-{one.id}" for one in cluster.others(leader)]
    for name in followers:
        await cluster.kill(name)
    await cluster.wait_isr(topic, 0, {leader}, leader)
    refused = await cluster.produce(leader, topic, "too few")
    assert (refused.status, refused.headers.get("Retry-After")) == (503, "1"), refused
    entry = refused.body["offsets"][0]
    assert entry["error_code"] == 50003, refused
    assert entry["error"].startswith("NOT_ENOUGH_REPLICAS:"), refused
    assert entry["outcome"] == "not_written", refused
    alone = await cluster.produce(leader, topic, "alone", query="acks=1")
    assert (alone.status, alone.body["offsets"][0]["offset"]) == (200, 4), alone

    for name in followers:
        cluster.start_node(name)
    await cluster.wait_isr(topic, 0, ALL, leader)
    answer = await cluster.produce(leader, topic, "again")
    assert (answer.status, answer.body["offsets"][0]["offset"]) == (200, 5), answer
    for broker in sorted(ALL):
        fetched = await cluster.fetch(broker, topic)
        values = [record["value"] for record in fetched.body]
        assert values == ["all", "-1", "1", "0", "alone", "again"], (broker, fetched)
    await cluster.wait_same_on_disk(topic, 1)


class Committer:
    """Commits a group's offset, one higher each time, through one broker after the other."""

    def __init__(self, cluster: LiveCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self.committed = 0

    def url(self, broker: int) -> str:
        return f"{self._cluster.topics_url(broker).removesuffix('topics')}consumer-groups/g/offsets"

    async def commit(self, broker: int) -> None:
        row = {"topic_name": self._topic, "partition_id": 0, "offset": self.committed + 1}
        answer = await self._cluster.ask("PATCH", self.url(broker), {"data": [row]})
        assert answer.status == 204, answer
        self.committed += 1

    async def judge(self) -> None:
        for broker in sorted(ALL):
            data = (await self._cluster.ask("GET", self.url(broker))).body["data"]
            assert [row["offset"] for row in data] == [self.committed], (broker, data)


@pytest.mark.parametrize(
    "outage_s",
    [WITHOUT_CONTROLLERS_S, pytest.param(MINUTE_S, marks=pytest.mark.slow)],
)
async def test_data_goes_on_without_controllers_and_what_asks_them_says_503(
    cluster: LiveCluster, outage_s: float
) -> None:
    """Produce, fetch and commits live on the leaders that are; metadata waits, and says so."""
    topic = f"headless-{outage_s:.0f}"
    await cluster.create_topic(topic, 2)
    before = [await cluster.partition(topic, partition) for partition in range(2)]
    names = [f"controller-{one.id}" for one in cluster.controllers]
    committer = Committer(cluster, topic)
    await committer.commit(1)  # the group's home is made on first use
    async with writing(cluster, topic, 2) as writer:
        for name in names:
            await cluster.kill(name)
        since_ms = writer.now_ms()
        while writer.now_ms() - since_ms < outage_s * 1000:
            await writer.more(20)
            for broker in sorted(ALL):
                assert (await cluster.fetch(broker, topic)).body
                await committer.commit(broker)
        began = time.monotonic()
        answers = await asyncio.gather(
            *(
                cluster.ask(method, url, body, deadline_s=30)
                for method, url, body in (
                    ("POST", cluster.topics_url(1), {"topic_name": "impossible"}),
                    ("DELETE", f"{cluster.topics_url(2)}/{topic}", None),
                    ("PUT", f"{cluster.topics_url(3)}/{topic}/configs/flush", {"value": "os"}),
                    ("GET", f"{cluster.topics_url(1)}/made-elsewhere-perhaps", None),
                    ("GET", f"{cluster.url(2)}/topics/{topic}/partitions/2/records?offset=0", None),
                )
            )
        )
        waited_s = time.monotonic() - began
        for answer in answers:
            assert (answer.status, answer.headers.get("Retry-After")) == (503, "1"), answer
            assert answer.body["retriable"] is True, answer
            assert answer.body["outcome"] == "not_written", answer
        await writer.more(20)
        for name in names:
            cluster.start_node(name)

        async def decides() -> bool:
            return (await cluster.active_controller())[0] is not None

        await cluster.until(decides, "a controller is active")
        await cluster.create_topic(f"possible-again-{outage_s:.0f}", through=2)
        await writer.more(20)
        gap = writer.gap(since_ms)
    assert not writer.history.unacknowledged, writer.history.unacknowledged[:3]
    await committer.judge()
    after = [await cluster.partition(topic, partition) for partition in range(2)]
    assert [one["leader_epoch"] for one in after] == [one["leader_epoch"] for one in before]
    log.info("refused after %.1f s: %s", waited_s, answers[0].body)
    log.info("longest gap %d ms; %s", gap.ms, await writer.judge(cluster))


async def test_a_rolling_restart_of_all_controllers_under_load_loses_nothing(
    cluster: LiveCluster,
) -> None:
    """Each in its turn, as an upgrade does it; somebody asks them for something all the while."""
    topic = "rolling"
    await cluster.create_topic(topic, 2)
    before = [await cluster.partition(topic, partition) for partition in range(2)]
    asking = True
    longest_s, asked = 0.0, 0

    async def ask() -> None:
        nonlocal longest_s, asked
        while asking:
            began = time.monotonic()
            url = f"{cluster.topics_url(1 + asked % 3)}/{topic}/configs/segment.ms"
            answer = await cluster.ask("PUT", url, {"value": str(100_000 + asked)})
            assert answer.status == 204, answer
            longest_s = max(longest_s, time.monotonic() - began)
            asked += 1
            await asyncio.sleep(0.01)

    async with writing(cluster, topic, 2) as writer, asyncio.TaskGroup() as tasks:
        since_ms = writer.now_ms()
        tasks.create_task(ask())
        for endpoint in cluster.controllers:
            name = f"controller-{endpoint.id}"
            pid = cluster.signal(name, signal.SIGTERM)
            await cluster.until(lambda pid=pid: not runs(pid), f"{name} has ended")  # type: ignore[misc]
            cluster.start_node(name)
            url = f"{endpoint.url}/readyz"

            async def ready(url: str = url) -> bool:
                return (await cluster.ask("GET", url, deadline_s=1.0)).status == 200

            await cluster.until(ready, f"{name} is ready")
            await writer.more(20)
        asking = False
    log.info("asked %d times, blocked %.2f s at most", asked, longest_s)
    log.info("longest gap %d ms; %s", writer.gap(since_ms).ms, await writer.judge(cluster))
    assert longest_s < BLOCKED_MAX_S
    assert not writer.history.unacknowledged, writer.history.unacknowledged[:3]
    after = [await cluster.partition(topic, partition) for partition in range(2)]
    assert [one["leader_epoch"] for one in after] == [one["leader_epoch"] for one in before]
    described = await cluster.ask("GET", f"{cluster.topics_url(2)}/{topic}/configs/segment.ms")
    assert described.body["value"] == str(100_000 + asked - 1)


async def test_rule_f1_what_the_killed_leader_had_taken_is_asked_again_and_stands_there_once(
    cluster: LiveCluster,
) -> None:
    """The forwarding broker holds the record as a follower, and numbered it: the next leader knows
    it again when it is sent again, and the client hears of one success."""
    topic = "once"
    await cluster.create_topic(topic)
    await cluster.wait_isr(topic, 0, ALL, 1)
    leader = await cluster.leader(topic)
    forwarder, slow = (one.id for one in cluster.others(leader))
    assert (await cluster.produce(forwarder, topic, "before")).status == 200
    cluster.pause(f"broker-{slow}")
    sent = asyncio.create_task(cluster.produce(forwarder, topic, "in flight"))

    def replicated() -> bool:
        return b"in flight" in b"".join(cluster.batches_on_disk(forwarder, topic, 0))

    await cluster.until(replicated, "the forwarder holds the record")
    await cluster.kill(f"broker-{leader}")
    cluster.resume(f"broker-{slow}")
    entry = (await sent).body["offsets"][0]
    assert (entry["offset"], entry["error_code"]) == (1, None), entry
    await cluster.wait_isr(topic, 0, ALL - {leader}, forwarder)
    cluster.start_node(f"broker-{leader}")
    await cluster.wait_isr(topic, 0, ALL, forwarder)
    assert (await cluster.produce(forwarder, topic, "after")).status == 200
    fetched = await cluster.fetch(leader, topic)
    assert [record["value"] for record in fetched.body] == ["before", "in flight", "after"]


async def test_later_writes_of_a_zombie_leader_conflict_with_nothing(
    cluster: LiveCluster,
) -> None:
    topic = "zombie"
    await cluster.create_topic(topic)
    await cluster.wait_isr(topic, 0, ALL, 1)
    before = await cluster.partition(topic)
    leader = int(before["leader_id"])
    living = cluster.others(leader)
    async with (
        writing(cluster, topic, 1, living) as writer,
        writing(
            cluster, topic, 1, [one for one in cluster.brokers if one not in living], writer
        ) as through_zombie,
    ):
        at_ms = writer.now_ms()
        cluster.pause(f"broker-{leader}")

        async def deposed() -> bool:
            described = await cluster.partition(topic, 0, living[0].id)
            return described["leader_epoch"] > before["leader_epoch"] and bool(
                described["leader_id"]
            )

        await cluster.until(deposed, "another broker leads")
        await writer.more()
        gap = writer.gap(at_ms)
        cluster.resume(f"broker-{leader}")
        await through_zombie.more()
        await cluster.wait_isr(topic, 0, ALL, living[0].id)
        await asyncio.gather(writer.more(), through_zombie.more())
    log.info("longest gap of the living %d ms; %s", gap.ms, await writer.judge(cluster))
    await cluster.wait_same_on_disk(topic, 1)
    assert (await cluster.partition(topic))["leader_epoch"] > before["leader_epoch"]


async def test_keyless_records_pass_a_partition_without_a_leader_at_every_door(
    cluster: LiveCluster,
) -> None:
    """One replica each, and the broker of partition 1 is away: a third of the writes waited."""
    topic = "thirds"
    body = {"topic_name": topic, "replicas_assignments": {"0": [1], "1": [2], "2": [3]}}
    body["configs"] = [{"name": "min.insync.replicas", "value": "1"}]
    assert (await cluster.ask("POST", cluster.topics_url(1), body)).status == 201
    await cluster.kill("broker-2")

    async def is_leaderless() -> bool:
        found = [(await cluster.partition(topic, 1, through))["leader_id"] for through in (1, 3)]
        return found == [None, None]

    await cluster.until(is_leaderless, "both brokers know that partition 1 has no leader")
    lost_key = next(n for n in range(99) if zlib.crc32(b"%d" % n) % 3 == 1)
    found: list[int | None] = []
    for through in (1, 3):
        url = f"{cluster.url(through)}/topics/{topic}?timeout=3000"
        for records, query in (
            ([{"value": 1}], ""),
            ([{"value": 2}] * 4, "&partitioner=round_robin"),
        ):
            for _ in range(4):
                answer = await cluster.ask("POST", url + query, {"records": records})
                assert answer.status == 200, answer
                found += [row["partition"] for row in answer.body["offsets"]]
        entries = [{"id": str(n), "value": {"type": "JSON", "data": n}} for n in range(4)]
        v3_url = f"{cluster.topics_url(through)}/{topic}/records"
        for _ in range(3):
            answer = await cluster.ask("POST", f"{v3_url}:batch", {"entries": entries})
            assert answer.body["failures"] == [], answer
            found += [row["partition_id"] for row in answer.body["successes"]]
            answer = await cluster.ask("POST", v3_url, {"value": {"type": "JSON", "data": 1}})
            assert answer.body["error_code"] == 200, answer
            found.append(answer.body["partition_id"])
        keyed = {"records": [{"key": lost_key, "value": 1}]}
        answer = await cluster.ask(
            "POST", f"{cluster.url(through)}/topics/{topic}?timeout=500", keyed
        )
        assert (answer.status, answer.body["offsets"][0]["outcome"]) == (503, "not_written"), answer

    def by_the_client() -> list[int | None]:
        urls = [cluster.url(1), cluster.url(3)]
        with Producer(urls, delivery_timeout_ms=3_000) as producer:
            places: list[int | None] = [producer.send(topic, n).partition for n in range(8)]
        with Client(urls) as client:
            records = [JsonRecord(b"3"), JsonRecord(b"4")]
            outcomes = send(client, topic, records, retry_s=3.0)
        assert all(outcome.is_written for outcome in outcomes), outcomes
        return places + [outcome.partition for outcome in outcomes]

    found += await asyncio.to_thread(by_the_client)
    assert set(found) == {0, 2}, found
    cluster.start_node("broker-2")
    await cluster.wait_healthy()
    answer = await cluster.ask("POST", f"{cluster.url(1)}/topics/{topic}", keyed)
    assert (answer.status, answer.body["offsets"][0]["partition"]) == (200, 1), answer


async def test_rule_m7_a_machine_that_stood_still_fences_nobody(cluster: LiveCluster) -> None:
    topic = "stalled"
    await cluster.create_topic(topic, 2)
    for partition in range(2):
        await cluster.wait_isr(topic, partition, ALL, 1)
    nodes = [f"broker-{one.id}" for one in cluster.brokers]
    nodes += [f"controller-{one.id}" for one in cluster.controllers]
    async with writing(cluster, topic, 2) as writer:
        before = [await cluster.partition(topic, partition) for partition in range(2)]
        for name in nodes:
            cluster.pause(name)
        await asyncio.sleep(STALL_S)  # the fault itself: nothing is waited for
        for name in reversed(nodes):
            cluster.resume(name)
        await writer.more(100)
        after = [await cluster.partition(topic, partition) for partition in range(2)]
    for one, other in zip(before, after, strict=True):
        assert (one["leader_epoch"], one["partition_epoch"]) == (
            other["leader_epoch"],
            other["partition_epoch"],
        ), (one, other)
    await writer.judge(cluster)
