"""Both ends of the broker plane over real sockets, with services that do as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from broker.ports import Answered
from http_api.peer.peer_channel import TcpPeerChannel
from http_api.peer.peer_server import PeerLimits, PeerServer
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, ClusterId
from raft_metadata.common.standstills import Standstills

CLUSTER = ClusterId("AAAAAAAAAAAAAAAAAAAAAA")
ONE, TWO = BrokerId(1), BrokerId(2)
ECHO, FAIL, BREAK, WAIT, SWELL, LATE, DIRECT = range(1, 8)


@dataclass
class Services:
    """Answers by kind; remembers what ran."""

    ran: list[tuple[int, bytes]] = field(default_factory=list)
    timeouts: list[int] = field(default_factory=list)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: int = 0
    directly: list[tuple[bytes, Answered]] = field(default_factory=list)
    """Bodies of kind DIRECT, and how to answer them."""

    async def answer(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        self.ran.append((kind, body))
        self.timeouts.append(timeout_ms)
        if kind == FAIL:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "leader=3 epoch=7")
        if kind == LATE:
            await asyncio.sleep(timeout_ms / 1000)
        if kind == SWELL:
            return body * 2
        if kind == BREAK:
            raise ZeroDivisionError
        if kind == WAIT:
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        return body

    def answer_directly(self, kind: int, body: bytes, answered: Answered) -> bool:
        if kind != DIRECT:
            return False
        if body == b"broken":
            raise ZeroDivisionError
        self.directly.append((body, answered))
        return True

    def accept_stream(self, follower: BrokerId) -> asyncio.BaseProtocol:
        raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "no streams here")


@asynccontextmanager
async def serving(
    services: Services,
    *,
    bind: str = "127.0.0.1:0",
    limits: PeerLimits | None = None,
    standstills: Standstills | None = None,
) -> AsyncIterator[PeerServer]:
    server = PeerServer(
        bind,
        broker_id=TWO,
        cluster_id=CLUSTER,
        services=services,
        limits=limits,
        standstills=standstills,
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@asynccontextmanager
async def channel(**options: object) -> AsyncIterator[TcpPeerChannel]:
    made = TcpPeerChannel(broker_id=ONE, cluster_id=CLUSTER, **options)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.stop()


async def refused(call: Awaitable[bytes]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        await call
    return caught.value
