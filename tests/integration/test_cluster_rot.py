"""Bytes that rot on a disk: found while they are read, never served, filled again from a peer.

Invariant L22, with real processes: a byte of a sealed segment is flipped on one broker's disk, and
everything is read through every broker. Beside it, readers that are served by a replica in their
rack (KIP-392): a follower reads its own disk, too.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.live_cluster import LiveCluster, running

log = logging.getLogger("tests.cluster")
RECORDS = 60
VALUE = "v" * 4_000
SEGMENT_BYTES = "65536"
MANY = 3
RACKS = {1: "a", 2: "b", 3: "c"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("rot")) as cluster:
        yield cluster


async def put_into_racks(cluster: LiveCluster) -> None:
    """Restart with a rack for each broker: it stands in config.toml only."""
    cluster.kill_everything()
    for broker, rack in RACKS.items():
        config = cluster.data_dir / f"broker-{broker}" / "config.toml"
        text = config.read_text()
        if "rack =" not in text:
            config.write_text(text.replace("[node]", f'[node]\nrack = "{rack}"', 1))
    await cluster.start()
    await cluster.wait_healthy()


async def fill(cluster: LiveCluster, topic: str, partition: int = 0) -> None:
    for first in range(0, RECORDS, 10):
        values = [f"{number} {VALUE}" for number in range(first, first + 10)]
        assert (await cluster.produce(1, topic, *values, partition=partition)).status == 200


async def filled(cluster: LiveCluster, topic: str) -> int:
    """Several sealed segments on three replicas; the leader."""
    await cluster.create_topic(topic, segment_bytes=SEGMENT_BYTES)
    await fill(cluster, topic)
    await cluster.wait_healthy(topic)
    await cluster.wait_same_on_disk(topic, 1)
    return await cluster.leader(topic)


def flip_a_byte(
    cluster: LiveCluster, broker: int, topic: str, partition: int = 0, segment: int = 1
) -> Path:
    """In the lines of a segment's first batch; the second one is sealed."""
    folder = cluster.data_dir / f"broker-{broker}" / "log" / f"{topic}-{partition}"
    segments = sorted(folder.glob("*.log"))
    at = 5_000
    with segments[segment].open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    return segments[segment]


async def read_all(
    cluster: LiveCluster, through: int, topic: str, query: str = "", partition: int = 0
) -> set[str]:
    """Every record, asked for until it is served; who served, by their own word."""
    offset, served = 0, set()
    while offset < RECORDS:
        url = f"{cluster.url(through)}/topics/{topic}/partitions/{partition}/records"
        answer = await cluster.ask("GET", f"{url}?offset={offset}&timeout=500{query}")
        if answer.status >= 500:
            continue  # nobody leads just now: `until` has the deadline
        assert answer.status == 200, answer
        for record in answer.body[: RECORDS - offset]:  # more may have been written since
            assert record["value"] == f"{offset} {VALUE}", "what is served is as it was written"
            assert record["offset"] == offset
            offset += 1
        served.add(answer.headers.get("Quorumlog-Served-By", ""))
    return served


async def read_through_everyone(cluster: LiveCluster, topic: str) -> None:
    for broker in cluster.brokers:

        async def whole(broker: int = broker.id) -> bool:
            return bool(await read_all(cluster, broker, topic))

        await cluster.until(whole, f"all is read through broker {broker.id}", 30)


def starts_of(cluster: LiveCluster, broker: int) -> int:
    """How often the broker's log says that it opened its logs."""
    return len(re.findall(r"logs opened", cluster.log(f"broker-{broker}")))


async def healed(cluster: LiveCluster, broker: int, topic: str, file: Path, starts: int) -> None:
    """Reported, never served, repaired from a peer, and the broker went on all the while."""
    said = f"damaged log set aside, replica filled again log={topic}-0"
    await cluster.until(lambda: said in cluster.log(f"broker-{broker}"), said)
    await cluster.wait_healthy(topic, deadline_s=30)
    await cluster.wait_same_on_disk(topic, 1)
    assert f"file={file}" in cluster.log(f"broker-{broker}"), "it names the file"
    assert starts_of(cluster, broker) == starts
    aside = cluster.data_dir / f"broker-{broker}" / "log" / ".deleted"
    assert any(path.name == file.name for path in aside.glob("*/*.log")), "kept for its operator"


async def test_invariant_l22_rot_at_the_leader_is_never_served_and_repaired(
    cluster: LiveCluster,
) -> None:
    topic = "rot-leader"
    leader = await filled(cluster, topic)
    starts = starts_of(cluster, leader)
    file = flip_a_byte(cluster, leader, topic)
    await read_through_everyone(cluster, topic)
    assert await cluster.leader(topic, through=leader % 3 + 1) != leader, "another one leads"
    await healed(cluster, leader, topic, file, starts)
    assert (await cluster.produce(1, topic, "more")).status == 200


async def test_invariant_l22_rot_at_a_follower_is_found_when_it_leads(
    cluster: LiveCluster,
) -> None:
    topic = "rot-follower"
    leader = await filled(cluster, topic)
    follower = leader % 3 + 1
    others = [broker.id for broker in cluster.brokers if broker.id != follower]
    starts = starts_of(cluster, follower)
    file = flip_a_byte(cluster, follower, topic)
    await read_through_everyone(cluster, topic)
    assert starts_of(cluster, follower) == starts, "nobody has read it yet"
    url = f"{cluster.topics_url(1)}/{topic}/partitions/0"
    moved = await cluster.ask("POST", f"{url}/reassignment", {"replicas": [follower, *others]})
    assert moved.status == 202, moved
    await cluster.ask("POST", f"{url}/leader:elect", {})

    async def leads() -> bool:
        return await cluster.leader(topic) == follower

    await cluster.until(leads, "the rotten replica leads")
    await read_through_everyone(cluster, topic)
    await healed(cluster, follower, topic, file, starts)


async def test_rot_in_many_partitions_costs_no_restart_and_found_at_a_start_no_second_one(
    cluster: LiveCluster,
) -> None:
    """Sealed segments are read while the broker runs, the newest ones at its next start."""
    partitions, broker = range(MANY), 2
    for topic, configs in (("many-read", {"segment_bytes": SEGMENT_BYTES}), ("many-started", {})):
        await cluster.create_topic(topic, MANY, **configs)
        for partition in partitions:
            await fill(cluster, topic, partition)
        await cluster.wait_healthy(topic, MANY)
        await cluster.wait_same_on_disk(topic, MANY)
    starts = starts_of(cluster, broker)
    for partition in partitions:
        flip_a_byte(cluster, broker, "many-read", partition)
        flip_a_byte(cluster, broker, "many-started", partition, segment=0)
    for partition in partitions:
        url = f"{cluster.topics_url(1)}/many-read/partitions/{partition}"
        replicas = [broker, *(one.id for one in cluster.brokers if one.id != broker)]
        moved = await cluster.ask("POST", f"{url}/reassignment", {"replicas": replicas})
        assert moved.status == 202, moved
        await cluster.ask("POST", f"{url}/leader:elect", {})

    async def all_read() -> bool:
        for partition in partitions:
            await read_all(cluster, 1, "many-read", partition=partition)
        said = "damaged log set aside, replica filled again log=many-read"
        return cluster.log(f"broker-{broker}").count(said) == MANY

    await cluster.until(all_read, "rot in all partitions is found, and mended", 30)
    await cluster.wait_healthy("many-read", MANY)
    await cluster.wait_same_on_disk("many-read", MANY)
    assert starts_of(cluster, broker) == starts
    killed = await cluster.kill(f"broker-{broker}")
    await cluster.wait_restarted(f"broker-{broker}", killed)
    await cluster.wait_healthy("many-started", MANY, deadline_s=30)
    await cluster.wait_same_on_disk("many-started", MANY)
    assert f"offline={MANY}" in cluster.log(f"broker-{broker}")
    assert starts_of(cluster, broker) == starts + 1


async def test_invariant_l22_the_last_replica_serves_what_is_left_and_says_what_is_not(
    cluster: LiveCluster,
) -> None:
    topic = "rot-last"
    await cluster.create_topic(
        topic, factor=1, segment_bytes=SEGMENT_BYTES, min_insync_replicas="1"
    )
    await fill(cluster, topic)
    leader = await cluster.leader(topic)
    file = flip_a_byte(cluster, leader, topic)

    async def judged(through: int) -> None:
        """Everything but the ten records of one batch, however much is asked for at once."""
        readable: set[int] = set()
        for offset in range(RECORDS):
            answer = await cluster.fetch(through, topic, offset=offset, wait_ms=100)
            if answer.status == 200:
                readable |= {record["offset"] for record in answer.body}
            else:
                assert answer.status == 503, answer
                assert f"file={file}" in answer.body["message"], answer
        readable &= set(range(RECORDS))
        assert readable == set(range(RECORDS)) - set(range(int(file.stem), int(file.stem) + 10))

    starts = starts_of(cluster, leader)
    await judged(leader % 3 + 1)
    said = "damaged replica is the last one"
    await cluster.until(lambda: said in cluster.log(f"broker-{leader}"), said)
    assert (await cluster.produce(1, topic, "more")).status == 200
    await judged(leader)
    state = await cluster.ask("GET", f"{cluster.url(leader)}/broker/v1/state")
    assert [row["topic"] for row in state.body["damaged"]["partitions"]] == [topic]
    cluster_id = cluster.read().cluster_id
    for through in (1, 2, 3):
        path = f"/v3/clusters/{cluster_id}:health"
        health = (await cluster.ask("GET", cluster.url(through) + path)).body
        [reason] = [one for one in health["reasons"] if one["code"] == "DAMAGED_PARTITIONS"]
        assert (health["status"], reason["count"]) == ("unhealthy", 1)
        assert f"{topic}:0 on broker {leader} (" in reason["message"]
        assert str(file) in reason["message"]
        assert f"`quorumlog partition describe {topic}:0`" in reason["message"]
    assert starts_of(cluster, leader) == starts
    killed = await cluster.kill(f"broker-{leader}")
    await cluster.wait_restarted(f"broker-{leader}", killed)

    async def it_leads_again() -> bool:
        return (await cluster.produce(1, topic, "and more")).status == 200

    await cluster.until(it_leads_again, "it leads again")
    await judged(leader)


async def test_a_leader_that_can_not_open_its_log_is_replaced_without_an_operator(
    cluster: LiveCluster,
) -> None:
    """Elected uncleanly, as the topic allows: the only one that lives, then somebody else."""
    topic = "rot-elected"
    await cluster.create_topic(
        topic, factor=2, min_insync_replicas="1", unclean_leader_election_enable="true"
    )
    await fill(cluster, topic)
    leader = await cluster.leader(topic)
    (other,) = set((await cluster.partition(topic))["isr"]) - {leader}
    through = ({1, 2, 3} - {leader, other}).pop()
    cluster.pause(f"broker-{other}")
    try:
        await cluster.wait_isr(topic, 0, {leader}, through)
        assert (await cluster.produce(through, topic, "only here")).status == 200
        flip_a_byte(cluster, leader, topic, segment=0)
        killed = await cluster.kill(f"broker-{leader}")
        await cluster.wait_restarted(f"broker-{leader}", killed)

        async def nobody_leads() -> bool:
            said = cluster.log(f"broker-{leader}")
            opened = f"partition offline log={topic}-0"
            described = await cluster.partition(topic, through=through)
            return said.count(opened) > 1 and described["leader_id"] is None

        await cluster.until(nobody_leads, "it was elected, could not open its log, and gave it up")
    finally:
        cluster.resume(f"broker-{other}")
    await cluster.wait_isr(topic, 0, {leader, other}, through, deadline_s=30)
    assert await cluster.leader(topic, through=through) == other
    await read_all(cluster, through, topic)


async def test_invariant_l20_readers_are_served_in_their_rack_and_rot_there_is_found(
    cluster: LiveCluster,
) -> None:
    await put_into_racks(cluster)
    topic = "racks"
    leader = await filled(cluster, topic)
    everyone = [str(broker.id) for broker in cluster.brokers]
    for rack in RACKS.values():
        assert await read_all(cluster, 1, topic, f"&rack={rack}") == {str(leader)}, "off"
    cluster_url = cluster.topics_url(1).removesuffix("/topics")
    on = await cluster.ask(
        "PUT", f"{cluster_url}/broker-configs/replica.selector", {"value": "rack"}
    )
    assert on.status == 204, on

    async def all_serve() -> bool:
        served = [
            await read_all(cluster, through, topic, f"&rack={rack}")
            for through in RACKS
            for rack in RACKS.values()
        ]
        return served == [{one} for one in everyone] * len(everyone)

    await cluster.until(all_serve, "each rack is served by its own replica, asked through anyone")
    assert await read_all(cluster, 1, topic, "&rack=elsewhere") == {str(leader)}
    follower = leader % 3 + 1
    starts = starts_of(cluster, follower)
    file = flip_a_byte(cluster, follower, topic)

    async def whole() -> bool:
        return bool(await read_all(cluster, leader, topic, f"&rack={RACKS[follower]}"))

    await cluster.until(whole, "a reader in the rack of the rotten replica reads all", 30)
    await healed(cluster, follower, topic, file, starts)
