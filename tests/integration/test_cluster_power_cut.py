"""A power cut under `flush=os`: the partition comes back by itself, and all replicas agree again.

Nobody pulls a plug here: all brokers are killed, their note of the kernel's boot is taken away, so
that no page cache proves anything, and the tail of the last leader's log goes as unsynced pages do.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broker.record import batch
from tests.support.live_cluster import LiveCluster, running

ALL = {1, 2, 3}
WRITTEN = 12
KEPT = 8
"""What the last leader's disk still has of them."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cut"), "--no-restart") as cluster:
        yield cluster


def cut_tail(cluster: LiveCluster, broker: int, topic: str, keep: int) -> None:
    """The broker's log of partition 0 ends behind this many batches."""
    folder = cluster.data_dir / f"broker-{broker}" / "log" / f"{topic}-0"
    (segment,) = folder.glob("*.log")
    ends = [at + header.size for at, header in batch.walk(segment.read_bytes())]
    with segment.open("r+b") as log:
        log.truncate(ends[keep - 1])


async def values(cluster: LiveCluster, broker: int, topic: str) -> list[object]:
    fetched = await cluster.fetch(broker, topic)
    return [record["value"] for record in fetched.body]


async def test_rule_r6_a_flush_os_topic_comes_back_after_a_power_cut_of_all_replicas(
    cluster: LiveCluster,
) -> None:
    await cluster.create_topic("three", flush="os")
    await cluster.create_topic("one", factor=1, flush="os")
    await cluster.create_topic("safe", flush="ack")
    leader, alone = await cluster.leader("three"), await cluster.leader("one")
    for topic in ("three", "one", "safe"):
        for number in range(WRITTEN):
            answer = await cluster.produce(1, topic, number)
            assert answer.status == 200, answer
    await cluster.wait_same_on_disk("three", 1)

    for broker in (*(ALL - {leader}), leader):
        await cluster.kill(f"broker-{broker}")
        (cluster.data_dir / f"broker-{broker}" / "boot-id").unlink()
    cut_tail(cluster, leader, "three", KEPT)
    for broker in sorted(ALL):
        cluster.start_node(f"broker-{broker}")

    for topic in ("three", "safe"):
        await cluster.wait_isr(topic, 0, ALL, 1)
    await cluster.wait_isr("one", 0, {alone}, 1)
    answer = await cluster.produce(1, "three", "after")
    assert (answer.status, answer.body["offsets"][0]["offset"]) == (200, KEPT), answer
    await cluster.wait_same_on_disk("three", 1)
    for broker in sorted(ALL):
        assert cluster.pid(f"broker-{broker}"), cluster.log(f"broker-{broker}")[-2_000:]
        assert await values(cluster, broker, "three") == [*range(KEPT), "after"]
        assert await values(cluster, broker, "one") == list(range(WRITTEN))
        assert await values(cluster, broker, "safe") == list(range(WRITTEN))


async def test_an_operator_s_unclean_election_cuts_the_old_leader_that_was_only_paused(
    cluster: LiveCluster,
) -> None:
    topic = "held"
    await cluster.create_topic(topic, min_insync_replicas="1")
    leader = await cluster.leader(topic)
    others = sorted(ALL - {leader})
    assert (await cluster.produce(leader, topic, "both")).status == 200
    await cluster.wait_same_on_disk(topic, 1)
    for broker in others:
        await cluster.kill(f"broker-{broker}")
    await cluster.wait_isr(topic, 0, {leader}, leader)
    assert (await cluster.produce(leader, topic, "alone")).status == 200

    cluster.pause(f"broker-{leader}")
    for broker in others:
        cluster.start_node(f"broker-{broker}")
    elect = f"{cluster.topics_url(others[0])}/{topic}/partitions/0/leader:elect"

    async def elected() -> bool:
        described = await cluster.partition(topic, 0, others[0])
        if described["leader_id"] is not None:
            return bool(described["leader_id"] in others)
        answer = await cluster.ask("POST", elect, {"election": "unclean"})
        assert answer.status in (200, 503), answer
        return answer.status == 200

    await cluster.until(elected, "another replica is elected")
    answer = await cluster.produce(others[0], topic, "new")
    assert (answer.status, answer.body["offsets"][0]["offset"]) == (200, 1), answer

    cluster.resume(f"broker-{leader}")
    await cluster.wait_isr(topic, 0, ALL, others[0])
    await cluster.wait_same_on_disk(topic, 1)
    for broker in sorted(ALL):
        assert await values(cluster, broker, topic) == ["both", "new"]
    assert "cut below the high watermark" in cluster.log(f"broker-{leader}")
