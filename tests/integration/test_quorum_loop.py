"""`MetadataQuorum` on a real loop with real sockets: addresses, proxies, strangers, clean ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import pickle
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from typing_extensions import override

from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import ErrorCode, KafkaError, StorageError
from raft_metadata.common.ids import DirectoryId, NodeId
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.data_dir import Identity, format_rejoining_raft_dir
from raft_metadata.quorum.metadata_quorum import NO_LEADER_CONTACT_MS, MetadataQuorum
from raft_metadata.quorum.raft_node import Leadership
from tests.support.doors.quorum import raft_node_of
from tests.support.quorum_process import (
    PayloadList,
    SilentListener,
    config,
    format_all,
    free_addresses,
)
from tests.support.raising_faults import RaisingFaults
from tests.support.tcp_relay import TcpRelay

NODES = (1, 2, 3)


class Voter(SilentListener):
    """One quorum and what it told its owner."""

    def __init__(self, settings: QuorumConfig, disk: Disk | None = None) -> None:
        super().__init__()
        self.settings, self.faults = settings, RaisingFaults()
        self.machine = PayloadList()
        self.quorum = MetadataQuorum(settings, self.machine, self.faults, disk=disk)

    async def start(self) -> None:
        await self.quorum.start(self)


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 a deadline stands around it
            await asyncio.sleep(0.005)


async def started(root: Path, addresses: dict[int, str], **dial: dict[int, str]) -> list[Voter]:
    voters = [Voter(config(n, root, addresses, dial.get(f"from_{n}"))) for n in addresses]
    for voter in voters:
        await voter.start()
    return voters


async def active(voters: list[Voter]) -> Voter:
    def leading() -> list[Voter]:
        return [v for v in voters if v.leaderships and v.quorum.is_leader]

    await until(leading)
    return leading()[0]


@pytest.fixture
async def alone(tmp_path: Path) -> AsyncIterator[Voter]:
    format_all(tmp_path, [1])
    voter = Voter(config(1, tmp_path, free_addresses([1])))
    await voter.start()
    yield voter
    await voter.quorum.stop()


def address_of(voter: Voter) -> tuple[str, int]:
    host, _, port = voter.settings.bind.rpartition(":")
    return host, int(port)


async def test_one_voter_forms_a_quorum_and_finds_its_state_again(tmp_path: Path) -> None:
    format_all(tmp_path, [1])
    settings = config(1, tmp_path, free_addresses([1]))
    for life in range(3):
        voter = Voter(settings)
        await voter.start()
        leader = await active([voter])
        term = leader.quorum.term
        answers = [leader.quorum.submit(b"%d-%d" % (life, n), term) for n in range(400)]
        assert await asyncio.gather(*answers) == list(range(400 * life + 1, 400 * life + 401))
        assert leader.leaderships == [Leadership(term, leader.leaderships[0].index)]
        await voter.quorum.stop()
        assert voter.deactivations == 1
        with pytest.raises(KafkaError) as refused:
            await voter.quorum.submit(b"late", term)
        assert refused.value.code is ErrorCode.NOT_CONTROLLER
        assert (voter.quorum.term, voter.quorum.is_leader, voter.quorum.leader_id) == (
            0,
            False,
            None,
        )


async def test_rule_g3_a_leader_that_hands_over_vouches_for_nobody(tmp_path: Path) -> None:
    """Its successor need not wait for an election time-out, so it is no lease any more."""
    format_all(tmp_path, NODES)
    voters = await started(tmp_path, free_addresses(NODES))
    leader = await active(voters)
    await until(lambda: leader.quorum.leader_contact_age_ms == 0)
    stopping = asyncio.create_task(leader.quorum.stop())
    await asyncio.sleep(0)
    while not stopping.done():
        assert leader.quorum.leader_contact_age_ms > 0
        await asyncio.sleep(0.001)
    for voter in voters:
        await voter.quorum.stop()


async def test_rule_m3_a_leader_that_hands_over_leaves_nobody_in_doubt(tmp_path: Path) -> None:
    """Appended entries are committed first; later submissions are surely not appended."""
    format_all(tmp_path, NODES)
    voters = await started(tmp_path, free_addresses(NODES))
    leader = await active(voters)
    term = leader.quorum.term
    asked = [leader.quorum.submit(b"before %d" % n, term) for n in range(50)]
    await asyncio.sleep(0)
    handing = asyncio.create_task(leader.quorum.hand_over())
    while not handing.done():
        asked.append(leader.quorum.submit(b"meanwhile %d" % len(asked), term))
        await asyncio.sleep(0.001)
    assert await handing
    answers = await asyncio.gather(*asked, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    codes = {error.code for error in refused if isinstance(error, KafkaError)}
    assert len(refused) < len(asked)
    assert codes == {ErrorCode.NOT_CONTROLLER}, refused[:3]
    rest = [voter for voter in voters if voter is not leader]
    second = await active(rest)
    await until(lambda: len(second.machine.payloads) == len(asked) - len(refused))
    for voter in voters:
        await voter.quorum.stop()


def test_three_voters_on_uvloop(tmp_path: Path) -> None:
    async def story() -> None:
        format_all(tmp_path, NODES)
        voters = await started(tmp_path, free_addresses(NODES))
        leader = await active(voters)
        answers = [leader.quorum.submit(b"%d" % n, leader.quorum.term) for n in range(2000)]
        await asyncio.gather(*answers)
        await leader.quorum.stop()
        rest = [voter for voter in voters if voter is not leader]
        second = await active(rest)
        await second.quorum.submit(b"after", second.quorum.term)
        await until(lambda: all(len(voter.machine.payloads) == 2001 for voter in rest))
        for voter in rest:
            await voter.quorum.stop()

    uvloop.run(story())


class SlowDisk(Disk):
    """A disk of which every fdatasync takes 400 ms from some moment on."""

    def __init__(self) -> None:
        self.is_slow = False

    def sync_data(self, fd: int) -> None:
        if self.is_slow:
            time.sleep(0.4)
        super().sync_data(fd)


async def test_rule_m7_a_disk_that_takes_400_ms_a_sync_causes_no_election(tmp_path: Path) -> None:
    format_all(tmp_path, NODES)
    addresses, disk = free_addresses(NODES), SlowDisk()
    voters = [Voter(config(node, tmp_path, addresses), disk) for node in NODES]
    for voter in voters:
        await voter.start()
    leader = await active(voters)
    term = leader.quorum.term
    await leader.quorum.submit(b"quick", term)
    disk.is_slow = True
    loop = asyncio.get_running_loop()
    took, longest = [], 0.0

    async def write() -> None:
        while loop.time() < end:
            start = loop.time()
            await leader.quorum.submit(b"slow", term)
            took.append(loop.time() - start)

    end = loop.time() + 2.5
    writing = [loop.create_task(write()) for _ in range(4)]
    while not all(task.done() for task in writing):
        before = loop.time()
        await asyncio.sleep(0.005)
        longest = max(longest, loop.time() - before)
    disk.is_slow = False
    assert min(took) > 0.4, "the disk was waited for"
    assert longest < 0.3, "the loop stood still"
    assert {voter.quorum.term for voter in voters} == {term}
    assert [len(voter.leaderships) for voter in voters].count(1) == 1
    assert leader.deactivations == 0
    await asyncio.gather(*(voter.quorum.stop() for voter in voters))


async def test_rule_q6_news_of_the_disk_that_fail_half_way_end_the_process(alone: Voter) -> None:
    await active([alone])
    journal, faults = raft_node_of(alone.quorum).journal, alone.faults
    on_durable = journal.on_durable

    def broken() -> None:
        raise RuntimeError("half")

    journal.on_durable = broken
    alone.quorum.submit(b"x", alone.quorum.term)
    await until(lambda: faults.seen)
    assert faults.seen[0][0] == "raft event failed"
    journal.on_durable = on_durable


async def test_a_voter_describes_itself(tmp_path: Path) -> None:
    format_all(tmp_path, NODES)
    addresses = free_addresses(NODES)
    first = Voter(config(1, tmp_path, addresses))
    await first.start()
    assert first.quorum.leader_id is None
    assert first.quorum.leader_contact_age_ms == NO_LEADER_CONTACT_MS
    assert not first.quorum.is_leader
    with pytest.raises(KafkaError) as refused:
        await first.quorum.submit(b"x", first.quorum.term)
    assert refused.value.code is ErrorCode.NOT_CONTROLLER
    others = [Voter(config(node, tmp_path, addresses)) for node in NODES[1:]]
    for voter in others:
        await voter.start()
    voters = [first, *others]
    leader = await active(voters)
    await until(lambda: len({voter.quorum.leader_id for voter in voters}) == 1)
    assert leader.quorum.leader_contact_age_ms == 0
    await until(lambda: all(v.quorum.leader_contact_age_ms < 300 for v in voters))
    status = leader.quorum.status()
    assert status["role"] == "leader"
    assert status["errors"] == 0
    await asyncio.gather(*(voter.quorum.stop() for voter in voters))


def proc_net_tcp() -> str:
    return Path("/proc/net/tcp").read_text()


async def test_only_the_configured_address_is_bound(alone: Voter) -> None:
    _, port = address_of(alone)
    listening = [line.split() for line in proc_net_tcp().splitlines()[1:]]
    bound = {fields[1] for fields in listening if fields[3] == "0A"}
    assert f"0100007F:{port:04X}" in bound
    assert f"00000000:{port:04X}" not in bound
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", port)


async def test_a_taken_port_is_told_and_nothing_stays_open(alone: Voter, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    format_all(tmp_path / "other", [1])
    addresses = {1: alone.settings.bind}
    for _ in range(2):  # the second time shows that the lock was given up
        with pytest.raises(OSError, match="in use"):
            await Voter(config(1, tmp_path / "other", addresses)).start()
    again = Voter(config(1, tmp_path / "other", free_addresses([1])))
    await again.start()
    await again.quorum.stop()


async def test_rule_q4_a_directory_in_use_is_refused(alone: Voter) -> None:
    with pytest.raises(StorageError, match="in use by another process"):
        await Voter(alone.settings).start()


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    @override
    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


async def test_a_pickle_from_a_stranger_runs_nothing(alone: Voter, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    data = pickle.dumps(Evil(marker), 2)
    for body in (data, b"\xff" * 100, b""):
        reader, writer = await asyncio.open_connection(*address_of(alone))
        writer.write(struct.pack("<I", len(body)) + body)
        async with asyncio.timeout(2):
            assert await reader.read() == b"", "closed without a word"
        writer.close()
    assert not marker.exists()
    assert alone.quorum.status()["errors"] == 0


async def test_strangers_that_say_nothing_are_sent_away(alone: Voter) -> None:
    connections = [await asyncio.open_connection(*address_of(alone)) for _ in range(40)]
    async with asyncio.timeout(5):
        for reader, writer in connections:
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()


async def test_a_single_link_can_be_dialled_through_a_proxy(tmp_path: Path) -> None:
    format_all(tmp_path, NODES)
    addresses = free_addresses(NODES)
    async with TcpRelay(addresses[1]) as relay:
        voters = await started(tmp_path, addresses, from_3={1: relay.address})
        leader = await active(voters)
        await leader.quorum.submit(b"x", leader.quorum.term)
        await until(lambda: relay.bytes_to_target > 0)
        assert relay.connections >= 1
        relay.cut()
        before = relay.connections
        await until(lambda: relay.connections > before)  # dialled again, through the proxy
        await leader.quorum.submit(b"y", leader.quorum.term)
        for voter in voters:
            await voter.quorum.stop()


async def test_stopping_waits_for_the_snapshot_thread(tmp_path: Path) -> None:
    format_all(tmp_path, [1])
    voter = Voter(config(1, tmp_path, free_addresses([1])))
    await voter.start()
    leader = await active([voter])
    go_on = threading.Event()
    chunks = voter.machine.chunks

    def slow(captured: object) -> Any:
        go_on.wait(5)
        return chunks(captured)

    voter.machine.chunks = slow  # type: ignore[method-assign]
    await asyncio.gather(*(leader.quorum.submit(b"x", leader.quorum.term) for _ in range(600)))
    await until(lambda: [t for t in threading.enumerate() if t.name == "snapshot"])
    asyncio.get_running_loop().call_later(0.2, go_on.set)
    await voter.quorum.stop()
    assert not [t for t in threading.enumerate() if t.name == "snapshot"]


async def test_rule_q4_a_voter_without_its_disk_rejoins(tmp_path: Path) -> None:
    format_all(tmp_path, NODES)
    addresses = free_addresses(NODES)
    voters = await started(tmp_path, addresses)
    leader = await active(voters)
    lost = next(voter for voter in voters if voter is not leader)
    rest = [voter for voter in voters if voter is not lost]
    settings = lost.settings
    await leader.quorum.submit(b"x", leader.quorum.term)
    await lost.quorum.stop()
    for file in settings.raft_dir.iterdir():
        file.unlink()
    new = DirectoryId("disk-new")
    settings = dataclasses.replace(settings, directory_id=new)
    others = {NodeId(n): DirectoryId(f"disk-{n}") for n in NODES if n != settings.node_id}
    identity = Identity(cluster_id=settings.cluster_id, node_id=settings.node_id, directory_id=new)
    format_rejoining_raft_dir(settings.raft_dir, identity, others)
    back = Voter(settings)
    await back.start()
    for voter in rest:
        voter.quorum.accept_voter(settings.node_id, new)
    await until(lambda: back.quorum.status()["fence"] == "none")
    await until(lambda: back.machine.payloads == ["x"])
    for voter in [back, *rest]:
        await voter.quorum.stop()
