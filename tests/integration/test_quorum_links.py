"""The connections between voters on real sockets: limits, strangers, proxies, and no leaks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from raft_metadata.common.disk import Disk
from raft_metadata.common.ids import NodeId
from raft_metadata.common.tls import TlsContexts
from raft_metadata.quorum import peer_links
from raft_metadata.quorum.data_dir import DataDir, Identity
from raft_metadata.quorum.peer_links import (
    HELLO_TIMEOUT_S,
    MAX_STRANGERS,
    LinkOwner,
    PeerAuthenticator,
    PeerConnection,
    PeerLinks,
)
from raft_metadata.quorum.wire import MAX_FRAME_BYTES, MAX_HELLO_BYTES, Codec, hello
from tests.support.doors.quorum import (
    buffer_size,
    bytes_received,
    connections_of,
    set_silence_max,
    strangers_of,
    transport_of,
)
from tests.support.quorum_process import CLUSTER, config, format_all, free_addresses
from tests.support.raising_faults import RaisingFaults
from tests.support.tcp_relay import TcpRelay

NODES = (101, 102, 103)


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 a deadline stands around it
            await asyncio.sleep(0.005)


class End:
    """The links of one voter, and what they told."""

    def __init__(
        self,
        node: int,
        root: Path,
        addresses: dict[int, str],
        dial: dict[int, str] | None = None,
        tls: TlsContexts | None = None,
    ) -> None:
        self.node = NodeId(node)
        self.told: list[str] = []
        self.heard: list[tuple[int, Any]] = []
        self.connected: set[int] = set()
        settings = config(node, root, addresses, dial)
        identity = Identity(
            cluster_id=CLUSTER, node_id=self.node, directory_id=settings.directory_id
        )
        self.home = DataDir(Disk(), settings.raft_dir, identity, RaisingFaults())
        self.errors: list[Exception] = []
        owner = LinkOwner(lambda: None, self.errors.append)
        self.links = PeerLinks(settings, PeerAuthenticator(self.home), tls, owner)
        host, _, port = addresses[node].rpartition(":")
        self.address = host, int(port)

    def on_connected(self, node: NodeId) -> None:
        assert node not in self.connected, "one connection per pair"
        self.connected.add(node)
        self.told.append(f"+{node}")

    def on_disconnected(self, node: NodeId) -> None:
        self.connected.remove(node)
        self.told.append(f"-{node}")

    def on_message(self, node: NodeId, value: object) -> None:
        assert node in self.connected, "heard of somebody who is not there"
        self.heard.append((node, value))

    async def close(self) -> None:
        await self.links.close()
        self.home.close()
        assert self.errors == []


class Trio:
    def __init__(self, root: Path) -> None:
        format_all(root, NODES)
        self.root, self.addresses = root, free_addresses(NODES)
        self.ends: dict[int, End] = {}

    async def start(self, *nodes: int, **more: Any) -> End:
        for node in nodes:
            self.ends[node] = End(node, self.root, self.addresses, **more)
            await self.ends[node].links.open(self.ends[node])
        return self.ends[nodes[0]]

    async def all_connected(self) -> None:
        up = set(self.ends)
        await until(lambda: all(end.connected == up - {n} for n, end in self.ends.items()))

    async def stop(self, *nodes: int) -> None:
        for node in nodes or list(self.ends):
            await self.ends.pop(node).close()


@pytest.fixture
async def trio(tmp_path: Path) -> AsyncIterator[Trio]:
    trio = Trio(tmp_path)
    yield trio
    await trio.stop()


def framed(message: object) -> bytes:
    data = Codec.dumps(message)
    return struct.pack("<I", len(data)) + data


async def identified(end: End, node: int = 103) -> tuple[asyncio.StreamReader, Any]:
    """A connection of ours that passes for a voter."""
    reader, writer = await asyncio.open_connection(*end.address)
    writer.write(framed(hello(node, CLUSTER, f"disk-{node}")))
    async with asyncio.timeout(5):
        (length,) = struct.unpack("<I", await reader.readexactly(4))
        assert Codec.loads(await reader.readexactly(length))["node_id"] == end.node
    return reader, writer


async def closed(reader: asyncio.StreamReader, seconds: float = 3.0) -> None:
    async with asyncio.timeout(seconds):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1 << 16):
                pass


async def test_messages_arrive_in_order_whole_and_from_whom_they_say(trio: Trio) -> None:
    await trio.start(*NODES)
    await trio.all_connected()
    sizes = [0, 1, 1000, 300_000, 5, 3_000_000, 7]
    for size in sizes:
        assert trio.ends[101].links.send(NodeId(103), {"type": "x", "data": b"." * size})
        assert trio.ends[103].links.send(NodeId(102), {"type": "y", "data": b"." * size})
    for end, sender in ((trio.ends[103], 101), (trio.ends[102], 103)):
        await until(lambda end=end: len(end.heard) == len(sizes))  # type: ignore[misc]
        assert [(who, len(message["data"])) for who, message in end.heard] == [
            (sender, size) for size in sizes
        ]
    assert not trio.ends[101].links.send(NodeId(999), {"type": "x"})


async def test_small_messages_are_not_held_back(trio: Trio) -> None:
    await trio.start(*NODES)
    await trio.all_connected()
    for end in trio.ends.values():
        for connection in connections_of(end.links):
            sock = transport_of(connection).get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("length", [MAX_HELLO_BYTES + 1, 2**31 - 1, 2**32 - 1])
async def test_defect_18_a_long_frame_of_a_stranger_is_refused_before_it_is_read(
    trio: Trio, length: int
) -> None:
    end = await trio.start(101)
    reader, writer = await asyncio.open_connection(*end.address)
    writer.write(struct.pack("<I", length))
    await closed(reader, 1)
    writer.close()
    assert end.told == []


async def test_defect_18_a_stranger_never_has_more_than_one_small_buffer(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = await trio.start(101)
    made: list[PeerConnection] = []
    make = PeerConnection.__init__

    def noted(self: PeerConnection, *args: Any, **options: Any) -> None:
        make(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(PeerConnection, "__init__", noted)
    reader, writer = await asyncio.open_connection(*end.address)
    writer.write(struct.pack("<I", MAX_HELLO_BYTES) + b"\xc1" * (MAX_HELLO_BYTES - 1))
    await until(lambda: any(bytes_received(connection) for connection in made))
    (connection,) = made
    assert connection.node is None
    assert buffer_size(connection) == MAX_HELLO_BYTES + 4
    writer.close()
    await closed(reader)


async def test_defect_18_a_voters_frame_over_the_limit_ends_the_connection(trio: Trio) -> None:
    end = await trio.start(101)
    reader, writer = await identified(end)
    writer.write(struct.pack("<I", MAX_FRAME_BYTES + 1))
    await closed(reader, 1)
    writer.close()
    assert end.told == ["+103", "-103"]


async def test_a_frame_that_is_no_message_ends_the_connection(trio: Trio) -> None:
    end = await trio.start(101)
    for garbage in (b"\xc1", b"\x80\x04N."):
        reader, writer = await identified(end)
        writer.write(struct.pack("<I", len(garbage)) + garbage)
        await closed(reader, 1)
        writer.close()
    assert end.heard == []


async def test_an_alive_sign_before_hello_is_no_hello(trio: Trio) -> None:
    end = await trio.start(101)
    reader, writer = await asyncio.open_connection(*end.address)
    writer.write(bytes(4))
    await closed(reader, 1)
    writer.close()
    assert end.told == []


async def test_defect_18_silent_strangers_are_sent_away_in_time(trio: Trio) -> None:
    end = await trio.start(101)
    loop = asyncio.get_running_loop()
    start = loop.time()
    connections = [await asyncio.open_connection(*end.address) for _ in range(MAX_STRANGERS)]
    connections[0][1].write(b"\x10")  # one that dawdles
    await asyncio.gather(*(closed(reader, 5) for reader, _ in connections))
    assert HELLO_TIMEOUT_S - 0.2 < loop.time() - start < HELLO_TIMEOUT_S + 1
    assert len(strangers_of(end.links)) == 0
    for _, writer in connections:
        writer.close()


async def test_defect_18_strangers_are_limited_and_lock_no_voter_out(trio: Trio) -> None:
    end = await trio.start(101)
    connections = [await asyncio.open_connection(*end.address) for _ in range(3 * MAX_STRANGERS)]
    _, writer = await identified(end)
    assert end.connected == {103}
    assert len(strangers_of(end.links)) <= MAX_STRANGERS
    writer.close()
    for _, stranger in connections:
        stranger.close()
    await until(lambda: not end.connected)


async def test_defect_18_a_flood_of_strangers_leaves_the_loop_its_turns(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    far_ends: list[socket.socket] = []

    async def always_another(_sock: socket.socket) -> Any:
        if len(far_ends) == 300:
            await asyncio.Event().wait()
        ours, far = socket.socketpair()
        ours.setblocking(False)
        far_ends.append(far)
        return ours, None

    monkeypatch.setattr(loop, "sock_accept", always_another)
    end = await trio.start(101)
    turns = 0
    while len(far_ends) < 300:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 200, "elections would wait for strangers"
    assert len(strangers_of(end.links)) <= MAX_STRANGERS
    for far in far_ends:
        far.close()


async def test_defect_15_what_the_socket_did_not_take_is_sent_when_it_can(trio: Trio) -> None:
    end = await trio.start(101)
    reader, writer = await identified(end)
    assert end.links.send(NodeId(103), {"type": "x", "data": b"." * 8_000_000})
    assert end.links.backlog_bytes(NodeId(103)) > 0
    (length,) = struct.unpack("<I", await reader.readexactly(4))
    assert len(Codec.loads(await reader.readexactly(length))["data"]) == 8_000_000
    await until(lambda: end.links.backlog_bytes(NodeId(103)) == 0)
    writer.close()


async def test_a_voter_that_does_not_read_is_dropped_at_a_limit(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_links, "MAX_UNSENT_BYTES", 1 << 20)
    end = await trio.start(101)
    _, writer = await identified(end)
    writer.transport.pause_reading()
    sent = 0
    while end.links.send(NodeId(103), {"type": "x", "data": b"." * 100_000}):
        sent += 1
        assert sent < 1000, "takes all of it"
    assert end.told == ["+103", "-103"]
    writer.transport.abort()


async def test_a_voter_that_reads_nothing_for_too_long_is_dropped(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_links, "KEEPALIVE_S", 0.05)
    end = await trio.start(101)
    set_silence_max(end.links, 0.3)
    _, writer = await identified(end)
    writer.transport.pause_reading()
    assert end.links.send(NodeId(103), {"type": "x", "data": b"." * 8_000_000})
    async with asyncio.timeout(5):
        while end.connected:
            writer.write(bytes(4))  # it does say that it lives
            await asyncio.sleep(0.02)
    assert end.told == ["+103", "-103"]
    writer.transport.abort()


async def test_defect_20_an_idle_connection_stays_and_a_dead_one_is_let_go(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_links, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(peer_links, "KEEPALIVE_S", 0.05)
    one = await trio.start(101)
    async with TcpRelay(trio.addresses[101]) as relay:
        two = await trio.start(102, dial={101: relay.address})
        for end in (one, two):
            set_silence_max(end.links, 0.4)
        await trio.all_connected()
        await asyncio.sleep(1.0)  # nothing is said meanwhile
        assert one.told == ["+102"]
        assert two.told == ["+101"]
        relay.lose_answers = relay.lose_requests = True
        await until(lambda: not one.connected and not two.connected, 2)
        relay.lose_answers = relay.lose_requests = False
        await trio.all_connected()
        await trio.stop()


async def test_rule_m7_a_stall_of_our_own_costs_nobody_its_connection(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_links, "KEEPALIVE_S", 0.05)
    end = await trio.start(101)
    set_silence_max(end.links, 0.3)
    _, writer = await identified(end)
    stalled_until = asyncio.get_running_loop().time() + 0.6
    while asyncio.get_running_loop().time() < stalled_until:
        pass  # as SIGSTOP would
    for _ in range(3):
        await asyncio.sleep(0.02)
        writer.write(bytes(4))
    assert end.told == ["+103"]
    writer.close()


async def test_a_fault_while_a_connection_is_judged_is_told_and_the_watch_goes_on(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = await trio.start(101)
    _, writer = await identified(end)
    judged: list[float] = []

    def keep_alive(_self: PeerConnection, now: float, _silence_s: float, *, stalled: bool) -> str:
        judged.append(now)
        raise RuntimeError(stalled)

    monkeypatch.setattr(PeerConnection, "keep_alive", keep_alive)
    await until(lambda: len(judged) > 1)
    assert len(end.errors) > 1
    end.errors.clear()
    monkeypatch.undo()
    writer.close()


async def test_one_connection_per_pair_the_newest(trio: Trio) -> None:
    end = await trio.start(101)
    first, first_writer = await identified(end)
    second, second_writer = await identified(end)
    await closed(first, 1)
    assert end.told == ["+103", "-103", "+103"]
    end.links.send(NodeId(103), {"type": "x"})
    assert struct.unpack("<I", await second.readexactly(4))[0] > 0
    first_writer.close()
    second_writer.close()


async def test_a_dialled_voter_that_never_answers_is_dialled_again(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_links, "HELLO_TIMEOUT_S", 0.2)
    dials = []

    async def hole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dials.append(await reader.read(1000))
        await closed(reader)
        writer.close()

    server = await asyncio.start_server(hole, *trio.addresses[101].split(":"))
    async with server:
        end = await trio.start(102)
        await until(lambda: len(dials) >= 3)
        assert end.told == [], "accepted is not connected"
        await trio.stop()


async def test_names_are_resolved_beside_the_loop(trio: Trio) -> None:
    await trio.start(101)
    port = trio.addresses[101].rpartition(":")[2]
    two = await trio.start(102, dial={101: f"localhost:{port}"})
    await until(lambda: two.connected == {101})
    lost = await trio.start(103, dial={101: "no-such-host.invalid:1", 102: "x" * 70 + ":1"})
    await asyncio.sleep(0.2)
    assert lost.told == []


async def test_defect_19_a_failed_accept_does_not_end_the_listener(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    accept, failed = loop.sock_accept, []

    async def no_descriptors(sock: socket.socket) -> Any:
        if len(failed) < 3:
            failed.append(sock)
            raise OSError(24, "Too many open files")
        return await accept(sock)

    monkeypatch.setattr(loop, "sock_accept", no_descriptors)
    end = await trio.start(101)
    _, writer = await identified(end)
    assert len(failed) == 3
    writer.close()


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def living(kind: type) -> int:
    gc.collect()
    return sum(isinstance(thing, kind) for thing in gc.get_objects())


async def test_defect_15_a_reconnect_storm_leaks_nothing(
    trio: Trio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_links, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(peer_links, "LAST_RETRY_S", 0.001)
    of_others = living(PeerConnection)
    await trio.start(*NODES)
    await trio.all_connected()
    await asyncio.sleep(0.05)
    before = descriptors(), living(PeerConnection)
    for _ in range(100):
        for end in trio.ends.values():
            for node in tuple(end.connected):
                end.links.drop(NodeId(node))
        await trio.all_connected()
    for port in (end.address for end in trio.ends.values()):
        for _ in range(50):
            _, writer = await asyncio.open_connection(*port)
            writer.transport.abort()
    await until(lambda: not any(strangers_of(end.links) for end in trio.ends.values()))
    await trio.all_connected()
    await until(lambda: descriptors() <= before[0])
    assert living(PeerConnection) <= before[1] + 1
    await trio.stop()
    await until(lambda: living(PeerConnection) <= of_others)


async def test_closing_says_the_last_words(trio: Trio) -> None:
    await trio.start(*NODES)
    await trio.all_connected()
    trio.ends[101].links.send(NodeId(103), {"type": "x", "data": b"." * 2_000_000})
    await trio.stop(101)
    await until(lambda: trio.ends[103].heard)
    await until(lambda: 101 not in trio.ends[103].connected)
