"""Replication connections: handed over whole, to plain and buffered protocols, on both loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
import uvloop
from typing_extensions import override

from broker.ports import Answered
from http_api.peer.frames import Hello, Plane, encode_hello
from http_api.peer.peer_channel import TcpPeerChannel
from http_api.peer.peer_server import PeerServer
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, ClusterId
from tests.support.waiting import until

CLUSTER = ClusterId("AAAAAAAAAAAAAAAAAAAAAA")
ONE, TWO = BrokerId(1), BrokerId(2)
GREETING = b"hello follower"
PAYLOAD = bytes(range(256)) * 4_000


class Plain(asyncio.Protocol):
    """Sends what it was given at once; keeps what it gets."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.received = bytearray()
        self.lost = False
        self.transport: asyncio.Transport | None = None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.first:
            self.transport.write(self.first)

    @override
    def data_received(self, data: bytes) -> None:
        self.received += data

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class Buffered(asyncio.BufferedProtocol):
    """The same through get_buffer, with a buffer smaller than what arrives."""

    def __init__(self, first: bytes = b"") -> None:
        self.first = first
        self.received = bytearray()
        self.lost = False
        self.transport: asyncio.Transport | None = None
        self._buffer = bytearray(7)

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        if self.first:
            self.transport.write(self.first)

    @override
    def get_buffer(self, sizehint: int) -> bytearray:
        if len(self.received) > 100 and len(self._buffer) == 7:
            self._buffer = bytearray(65_536)
        return self._buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


Kind = Callable[[bytes], "Plain | Buffered"]


class Services:
    def __init__(self, kind: Kind, refusal: KafkaError | None = None) -> None:
        self.kind = kind
        self.refusal = refusal
        self.streams: dict[BrokerId, Plain | Buffered] = {}

    async def answer(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        return body

    def answer_directly(self, kind: int, body: bytes, answered: Answered) -> bool:
        return False

    def accept_stream(self, follower: BrokerId) -> asyncio.BaseProtocol:
        if self.refusal is not None:
            raise self.refusal
        self.streams[follower] = self.kind(GREETING)
        return self.streams[follower]


async def start(services: Services) -> PeerServer:
    server = PeerServer("127.0.0.1:0", broker_id=TWO, cluster_id=CLUSTER, services=services)
    await server.start()
    return server


@pytest.mark.parametrize("kind", [Plain, Buffered])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_stream_is_handed_over_in_both_directions(
    kind: Kind, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def story() -> None:
        services = Services(kind)
        server = await start(services)
        peers = TcpPeerChannel(broker_id=ONE, cluster_id=CLUSTER)
        transport, protocol = await peers.open_stream(
            TWO, server.address, lambda: kind(b"first words")
        )
        far, near = services.streams[ONE], cast("Plain", protocol)
        await until(lambda: bytes(near.received) == GREETING)
        await until(lambda: bytes(far.received) == b"first words")
        transport.write(PAYLOAD)
        assert far.transport is not None
        far.transport.write(PAYLOAD)
        await until(lambda: len(far.received) == len(PAYLOAD) + 11)
        await until(lambda: len(near.received) == len(PAYLOAD) + len(GREETING))
        assert far.received.endswith(PAYLOAD)
        assert near.received.endswith(PAYLOAD)
        # Requests go beside the stream, on a connection of their own.
        assert await peers.call(TWO, server.address, 1, b"x", 1_000) == b"x"
        await server.stop()
        await until(lambda: near.lost and far.lost)
        await peers.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


@pytest.mark.parametrize("kind", [Plain, Buffered])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("cut", [None, 3, 40])
def test_bytes_that_came_with_the_hello_reach_the_stream(
    kind: Kind, new_loop: Callable[[], asyncio.AbstractEventLoop], cut: int | None
) -> None:
    async def story() -> None:
        services = Services(kind)
        server = await start(services)
        hello = encode_hello(
            Hello(cluster_id=CLUSTER, from_broker=ONE, to_broker=TWO, plane=Plane.REPLICATION)
        )
        host, port = server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        everything = hello + PAYLOAD[:300]
        if cut is not None:
            writer.write(everything[:cut])
            await asyncio.sleep(0.02)
        writer.write(everything[cut:])
        await until(lambda: ONE in services.streams)
        await until(lambda: bytes(services.streams[ONE].received) == PAYLOAD[:300])
        writer.write(PAYLOAD[300:])
        await until(lambda: bytes(services.streams[ONE].received) == PAYLOAD)
        assert (await reader.readexactly(17 + len(GREETING))).endswith(GREETING)
        writer.close()
        await until(lambda: services.streams[ONE].lost)
        await server.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(story())


async def test_a_refused_stream_says_why() -> None:
    services = Services(Plain, KafkaError(ErrorCode.STALE_BROKER_EPOCH, "not yet known here"))
    server = await start(services)
    peers = TcpPeerChannel(broker_id=ONE, cluster_id=CLUSTER)
    with pytest.raises(KafkaError) as caught:
        await peers.open_stream(TWO, server.address, Plain)
    assert caught.value.code is ErrorCode.STALE_BROKER_EPOCH
    assert caught.value.outcome is Outcome.NOT_WRITTEN
    await peers.stop()
    await server.stop()


async def test_a_stream_to_nobody_is_a_network_exception() -> None:
    services = Services(Plain)
    server = await start(services)
    address = server.address
    await server.stop()
    peers = TcpPeerChannel(broker_id=ONE, cluster_id=CLUSTER)
    with pytest.raises(KafkaError) as caught:
        await peers.open_stream(TWO, address, Plain)
    assert caught.value.code is ErrorCode.NETWORK_EXCEPTION
    await peers.stop()


async def test_stopping_the_channel_closes_its_streams() -> None:
    services = Services(Plain)
    server = await start(services)
    peers = TcpPeerChannel(broker_id=ONE, cluster_id=CLUSTER)
    _, protocol = await peers.open_stream(TWO, server.address, Plain)
    await until(lambda: ONE in services.streams)
    await peers.stop()
    await until(lambda: cast("Plain", protocol).lost and services.streams[ONE].lost)
    await server.stop()
