"""Disks fill up, break, hang and crawl under real brokers with a load on them.

Each fault is said to the shim under one node's process (chaos.disks) and counts only because calls
were hit by it. What is judged is always the same: writes go on or are refused with a clear error,
reads go on, and in the end nothing acknowledged is lost, changed or there twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from chaos.disks.shim import DiskFault, broken, clock_ahead, full, slow
from tests.support.disk_faults import FaultyCluster, running_on_faulty_disks
from tests.support.live_writer import LiveWriter, writing

ALL = {1, 2, 3}
PARTITIONS = 1
EXIT_STORAGE = 74
HANG_S = 5.0
SETTINGS = {
    # Half of the default, so that the tests take half of their time.
    "replica_lag_time_max_ms": 1500,
    # Each second is ten chances to delete what is not old.
    "log_retention_check_interval_ms": 100,
    "log_segment_delete_delay_ms": 0,
}
GIVES_WAY_S = 8.0
"""A leader's disk counts as silent after half the lag time, its heartbeats end 1.2 s later, its
session 1.2 s after them; the rest is a machine that runs other tests."""
SLOW_MS = 200
ENOUGH_SLOW_SYNCS = 10
GROWTH_MB = 60
"""What a broker may grow by while a disk hangs under load: its named limits, not the load."""
FEW = 10
YEAR_S = 365 * 86_400
CHANCES_S = 0.6
"""Six times retention looks."""
VALUE = "x" * 900
WRITTEN = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyCluster]:
    options = [word for pair in SETTINGS.items() for word in ("--set", "{}={}".format(*pair))]
    with running_on_faulty_disks(
        tmp_path_factory.mktemp("disks"), "--no-restart", *options
    ) as cluster:
        yield cluster


def name(broker: int) -> str:
    return f"broker-{broker}"


async def placed(cluster: FaultyCluster, topic: str) -> tuple[int, list[int]]:
    """A new topic's leader and its followers."""
    await cluster.create_topic(topic, PARTITIONS)
    leader = await cluster.leader(topic)
    return leader, sorted(ALL - {leader})


async def whole(cluster: FaultyCluster, topic: str, writer: LiveWriter) -> None:
    await cluster.wait_healthy(topic, PARTITIONS)
    await writer.more(FEW)


async def refusals(cluster: FaultyCluster, writer: LiveWriter, text: str) -> None:
    """Until writers were refused with these words."""
    await cluster.until(lambda: any(text in reason for reason in writer.refused()), text)


async def test_invariant_l26_a_full_leader_refuses_writes_and_goes_on_when_space_returns(
    cluster: FaultyCluster,
) -> None:
    leader, followers = await placed(cluster, "full-leader")
    async with writing(cluster, "full-leader", PARTITIONS) as writer:
        # 1 KB fits: the write that crosses it is short before it fails (rule R2).
        async with cluster.faulty([name(leader)], full(1000)):
            await refusals(cluster, writer, "No space left on device")
            before = (await cluster.fetch(leader, "full-leader")).body
            assert before, "reads go on"
            assert (await cluster.fetch(followers[0], "full-leader")).status == 200
        await whole(cluster, "full-leader", writer)
    assert await cluster.leader("full-leader") == leader
    await cluster.wait_same_on_disk("full-leader", PARTITIONS)
    await writer.judge(cluster)


async def test_a_follower_whose_disk_is_full_leaves_and_comes_back(cluster: FaultyCluster) -> None:
    leader, (follower, _) = await placed(cluster, "full-follower")
    async with writing(cluster, "full-follower", PARTITIONS) as writer:
        async with cluster.faulty([name(follower)], full(500)):
            await cluster.wait_isr("full-follower", 0, ALL - {follower}, leader)
            await writer.more(FEW)
        await whole(cluster, "full-follower", writer)
    await cluster.wait_same_on_disk("full-follower", PARTITIONS)
    await writer.judge(cluster)


async def test_when_every_disk_is_full_nothing_is_taken_and_everything_is_read(
    cluster: FaultyCluster,
) -> None:
    leader, followers = await placed(cluster, "full-all")
    names = [name(broker) for broker in sorted(ALL)]
    async with writing(cluster, "full-all", PARTITIONS) as writer:
        felt = {one: cluster.disks.hit_count(one) for one in names}
        async with (
            cluster.faulty([name(leader)], full(2000)),
            cluster.faulty([name(follower) for follower in followers], full(0)),
        ):
            await refusals(cluster, writer, "No space left on device")
            for one in names:
                await cluster.wait_felt(one, felt[one])
            acknowledged = writer.acknowledged()
            for broker in sorted(ALL):
                read = await cluster.fetch(broker, "full-all")
                assert read.status == 200
                assert read.body
            assert writer.acknowledged() <= acknowledged + FEW
        await whole(cluster, "full-all", writer)
    assert await cluster.leader("full-all") == leader
    await cluster.wait_same_on_disk("full-all", PARTITIONS)
    await writer.judge(cluster)


async def test_rule_q2_a_leader_whose_sync_fails_ends_and_comes_back_from_what_is_proven(
    cluster: FaultyCluster,
) -> None:
    """One sync fails, the next would succeed over nothing: nobody may ask for it."""
    leader, _ = await placed(cluster, "broken")
    async with writing(cluster, "broken", PARTITIONS) as writer:
        pid = cluster.pid(name(leader))
        async with cluster.faulty([name(leader)], broken("sync", times=1, part="/log")):
            await cluster.until(lambda: cluster.pid(name(leader)) != pid, "it ended")
            await cluster.wait_isr("broken", 0, ALL - {leader}, min(ALL - {leader}))
            await writer.more(FEW)
        assert cluster.exit_status(name(leader)) == EXIT_STORAGE, cluster.log(name(leader))[-2000:]
        cluster.start_node(name(leader))
        await whole(cluster, "broken", writer)
    await cluster.wait_same_on_disk("broken", PARTITIONS)
    await writer.judge(cluster)


async def test_a_disk_that_is_slow_makes_writes_slow_and_fences_nobody(
    cluster: FaultyCluster,
) -> None:
    """200 ms a sync, on all brokers at once: no ISR is left, no epoch moves."""
    await placed(cluster, "slow")
    names = [name(broker) for broker in sorted(ALL)]
    before = await cluster.partition("slow")
    async with writing(cluster, "slow", PARTITIONS) as writer:
        async with cluster.faulty(names, slow("sync", SLOW_MS)):
            felt = cluster.disks.hit_count(names[0])
            await cluster.wait_felt(names[0], felt + ENOUGH_SLOW_SYNCS)
            await writer.more(FEW)
        await writer.more(FEW)
    after = await cluster.partition("slow")
    facts = ("leader_id", "leader_epoch", "partition_epoch", "isr")
    assert {fact: after[fact] for fact in facts} == {fact: before[fact] for fact in facts}
    assert not writer.unknown()
    await writer.judge(cluster)


@pytest.mark.parametrize("who", ["leader", pytest.param("follower", marks=pytest.mark.slow)])
async def test_a_disk_that_hangs_stops_nobody_for_long_and_fills_no_memory(
    cluster: FaultyCluster, who: str
) -> None:
    topic = f"hangs-{who}"
    leader, followers = await placed(cluster, topic)
    hung = leader if who == "leader" else followers[0]
    rest = sorted(ALL - {hung})
    async with writing(cluster, topic, PARTITIONS) as writer:
        resident = {broker: cluster.resident_mb(name(broker)) for broker in ALL}
        began = writer.now_ms()
        async with cluster.faulty([name(hung)], slow("sync", int(HANG_S * 1000))):
            # A sync that hangs still hangs when the fault is over: it is one of the last.
            await cluster.wait_isr(topic, 0, set(rest), rest[0])
            await writer.more(FEW)
            took_s = (writer.now_ms() - began) / 1000
            assert await cluster.leader(topic, 0, rest[0]) in rest
            grown = {broker: cluster.resident_mb(name(broker)) - resident[broker] for broker in ALL}
        await whole(cluster, topic, writer)
    assert took_s < GIVES_WAY_S
    assert max(grown.values()) < GROWTH_MB, grown
    await cluster.wait_same_on_disk(topic, PARTITIONS)
    await writer.judge(cluster)


async def begins(cluster: FaultyCluster, broker: int) -> int:
    url = f"{cluster.url(broker)}/topics/aging/partitions/0/offsets"
    answer = await cluster.ask("GET", url)
    assert answer.status == 200, answer
    return int(answer.body["beginning_offset"])


async def test_rule_r10_a_clock_that_jumps_by_a_year_deletes_nothing_one_that_all_share_does(
    cluster: FaultyCluster,
) -> None:
    await cluster.create_topic("aging", retention_ms="3600000", segment_bytes="16384")
    for number in range(WRITTEN):
        answer = await cluster.produce(1, "aging", [number, VALUE])
        assert answer.status == 200, answer
    leader = await cluster.leader("aging")
    brokers = [name(broker) for broker in sorted(ALL)]
    controllers = [f"controller-{node.id}" for node in cluster.controllers]

    async def old_ones_are_gone() -> bool:
        return await begins(cluster, leader) > 0

    for nodes, jump_s in ((brokers, YEAR_S), ([name(leader)], -YEAR_S), (controllers, YEAR_S)):
        async with cluster.faulty(nodes, clock_ahead(jump_s)):
            await asyncio.sleep(CHANCES_S)  # in which nothing may happen
            for broker in ALL:
                assert await begins(cluster, broker) == 0, (nodes, jump_s)
    async with cluster.faulty([*brokers, *controllers], clock_ahead(2 * YEAR_S)):
        # Years have passed for everybody: what retention is for, and a sign that it works here.
        await cluster.until(old_ones_are_gone, "old segments are gone")
    assert (await cluster.produce(1, "aging", "next")).body["offsets"][0]["offset"] == WRITTEN


@pytest.mark.slow
@pytest.mark.parametrize("fault", [full(0), broken("sync", times=1)], ids=["full", "broken"])
async def test_a_controller_whose_disk_fails_ends_and_another_rules(
    cluster: FaultyCluster, fault: DiskFault
) -> None:
    active, term = await cluster.active_controller()
    node = f"controller-{active}"
    pid = cluster.pid(node)
    async with cluster.faulty([node], fault):
        await cluster.create_topic(f"while-{fault.what}")
        await cluster.until(lambda: cluster.pid(node) != pid, "it ended")
    assert cluster.exit_status(node) == EXIT_STORAGE, cluster.log(node)[-2000:]
    assert (await cluster.active_controller())[1] > term
    cluster.start_node(node)
    url = f"{next(one.url for one in cluster.controllers if one.id == active)}/controller/v1/status"

    async def it_is_back() -> bool:
        return (await cluster.ask("GET", url, deadline_s=1.0)).status == 200

    await cluster.until(it_is_back, f"{node} answers")
    await cluster.create_topic(f"after-{fault.what}")
    assert (await cluster.produce(1, f"while-{fault.what}", 1)).status == 200
