"""A process that stood still: what was sent to it before is not begun (rule S12)."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from broker.server.peer_codec import PeerRequestKind
from broker.server.peer_requests import PeerRequests
from broker.server.transaction_apis import CommitRequest
from broker.transactions.home_messages import InitId, encode_home_request
from broker.transactions.messages import NO_GROUP, ProducerInitialized, TransactionalId
from http_api.peer.connections import tune_socket
from http_api.peer.frames import Hello, Plane, encode_hello, encode_welcome, request_head
from raft_metadata.common import clock
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, Outcome
from raft_metadata.common.standstills import WAKING_TICKS, Standstills
from tests.support.fake_broker_apis import CLUSTER_ID
from tests.support.http_door import Door, open_door
from tests.support.peer_rpc import CLUSTER, ECHO, ONE, TWO, Services, channel, refused, serving
from tests.unit.test_log_retention import TwoClocks

LIMIT_MS, STOP_MS = 300, 400
OFTEN_MS, NEVER_MS = 10, 60_000
"""Times between two ticks: the timer notices a standstill, or whichever door comes first."""
TICKS = pytest.mark.parametrize("tick_ms", [OFTEN_MS, NEVER_MS])
BODY = b'{"topics":[{"topic_name":"flights","records":[{"value":1}]}]}'
PRODUCE = b'{"records":[{"value":1}]}'


def stand_still(standstills: Standstills) -> None:
    """Block the loop, as a stopped process does."""
    standstills.look()
    time.sleep(STOP_MS / 1000)


@asynccontextmanager
async def watched(tick_ms: int = OFTEN_MS) -> AsyncIterator[Standstills]:
    made = Standstills(SystemClock(), LIMIT_MS, tick_ms)
    watch = asyncio.get_running_loop().create_task(made.run())
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        watch.cancel()


def request(path: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nIdempotency-Key: k\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


TRANSACTIONS = f"/v3/clusters/{CLUSTER_ID}/transactions"
ONE_SHOT = request(TRANSACTIONS, "application/json", BODY)
KEYED_PRODUCE = request("/topics/flights", "application/vnd.kafka.json.v2+json", PRODUCE)


def connected(door: Door) -> socket.socket:
    host, _, port = door.address.rpartition(":")
    return socket.create_connection((host, int(port)))


async def end_of(client: socket.socket) -> bytes:
    """Return what the client gets until its connection is cut."""
    client.setblocking(False)
    got = b""
    try:
        async with asyncio.timeout(10):
            while piece := await asyncio.get_running_loop().sock_recv(client, 4096):
                got += piece
    except ConnectionError:
        pass
    return got


def decided(door: Door) -> list[object]:
    return [one for one in door.apis.requests if isinstance(one, CommitRequest)]


@TICKS
@pytest.mark.parametrize("text", [ONE_SHOT, KEYED_PRODUCE], ids=["one-shot", "produce"])
async def test_rule_s12_a_request_sent_to_a_stopped_broker_is_dropped(
    text: bytes, tick_ms: int
) -> None:
    """Rule S12: its key may be decided elsewhere and forgotten; it would be written twice."""
    async with watched(tick_ms) as standstills, open_door(standstills=standstills) as door:
        with connected(door) as client:
            await door.get("/topics")  # the door has accepted both by then
            client.sendall(text)
            stand_still(standstills)
            assert await end_of(client) == b""
        assert decided(door) == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "n1:commit", b'{"number":1,' + BODY[1:]),
        ("POST", "p1:init", b"{}"),
        ("POST", "p1:abort", b'{"epoch":1,"number":1}'),
        ("DELETE", "n1", b""),
    ],
)
async def test_rule_s12_no_request_about_an_id_is_begun(
    method: str, path: str, body: bytes
) -> None:
    """Rule S12: each writes to the home's log."""
    text = request(f"{TRANSACTIONS}/{path}", "application/json", body)
    text = text.replace(b"POST", method.encode(), 1).replace(b"Idempotency-Key: k\r\n", b"")
    async with watched() as standstills, open_door(standstills=standstills) as door:
        with connected(door) as client:
            await door.get("/topics")
            client.sendall(text)
            stand_still(standstills)
            assert await end_of(client) == b""
        assert door.apis.requests == []


@TICKS
async def test_rule_s12_a_connection_that_waited_to_be_accepted_is_dropped(tick_ms: int) -> None:
    """Rule S12: the kernel took it and its request while the process stood still."""
    async with watched(tick_ms) as standstills, open_door(standstills=standstills) as door:
        with connected(door) as client:
            client.sendall(ONE_SHOT)
            stand_still(standstills)
            assert await end_of(client) == b""
        assert decided(door) == []


@TICKS
async def test_rule_s12_a_request_whose_body_came_meanwhile_is_dropped(tick_ms: int) -> None:
    """Rule S12: its handler ran before, and waited for the end of the body."""
    async with watched(tick_ms) as standstills, open_door(standstills=standstills) as door:
        with connected(door) as client:
            client.sendall(ONE_SHOT[:-9])
            await door.get("/topics")
            client.sendall(ONE_SHOT[-9:])
            stand_still(standstills)
            assert await end_of(client) == b""
        assert decided(door) == []


async def test_without_a_standstill_the_same_request_is_decided() -> None:
    async with watched() as standstills, open_door(standstills=standstills) as door:
        assert (await door.raw(ONE_SHOT)).status == 200
        assert len(decided(door)) == 1


@TICKS
async def test_rule_s12_a_frame_sent_to_a_stopped_broker_is_dropped(tick_ms: int) -> None:
    """Rule S12: the asker repeats it elsewhere meanwhile."""
    services = Services()
    async with (
        watched(tick_ms) as standstills,
        serving(services, standstills=standstills) as server,
        channel() as peers,
    ):
        await peers.call(TWO, server.address, ECHO, b"warm", 5_000)
        late = asyncio.get_running_loop().create_task(
            refused(peers.call(TWO, server.address, ECHO, b"late", 5_000))
        )
        asyncio.get_running_loop().call_soon(stand_still, standstills)  # once the frame is written
        error = await late
        assert error.outcome is Outcome.UNKNOWN
        assert [body for _, body in services.ran] == [b"warm"]


@TICKS
async def test_rule_s12_a_peer_that_waited_to_be_accepted_is_dropped(tick_ms: int) -> None:
    """Rule S12: the kernel took its hello and its frame while the process stood still."""
    services = Services()
    hello = Hello(cluster_id=CLUSTER, from_broker=ONE, to_broker=TWO, plane=Plane.RPC)
    async with (
        watched(tick_ms) as standstills,
        serving(services, standstills=standstills) as server,
    ):
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port))) as client:
            client.sendall(encode_hello(hello) + request_head(1, ECHO, 5_000, 4) + b"late")
            stand_still(standstills)
            assert await end_of(client) == b""
        assert services.ran == []


async def test_rule_s12_a_frame_that_timed_out_is_not_sent_on() -> None:
    """Rule S12: a connection that is closed, not aborted, sends all that it holds."""
    read_on, got = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_024)
        writer.write(encode_welcome(None))
        await read_on.wait()
        size = 0
        try:
            while piece := await reader.read(1 << 20):
                size += len(piece)
        except ConnectionError:
            pass
        got.set_result(size)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, channel() as peers:
        host, port = server.sockets[0].getsockname()
        body = b"x" * 30_000_000
        error = await refused(peers.call(TWO, f"{host}:{port}", ECHO, body, 50))
        assert error.code is ErrorCode.REQUEST_TIMED_OUT
        read_on.set()
        assert await got < len(body)


async def test_rule_s12_a_home_takes_the_time_that_the_frame_has_left() -> None:
    """Rule S12: what the request waited for its connection is over."""
    asked: list[int] = []

    class Homes:
        async def answer_id(self, request: InitId) -> ProducerInitialized:
            asked.append(request.timeout_ms)
            return ProducerInitialized(epoch=1)

    no: Any = None
    peers = PeerRequests(no, no, no, cast("Any", Homes()), no, no, no, no, no, no)
    sent = InitId(id=TransactionalId(NO_GROUP, "teller"), timeout_ms=9_000)
    for left_ms in (4_000, 10_000):
        await peers.answer(PeerRequestKind.TXN, encode_home_request(sent), left_ms)
    assert asked == [4_000, 9_000]


async def test_rule_s12_a_call_that_waits_through_a_standstill_is_not_sent() -> None:
    """Rule S12: the asker's deadline may be over, and its frame brings a fresh one."""
    services = Services()
    async with (
        watched() as standstills,
        serving(services) as server,
        channel(standstills=standstills) as peers,
    ):
        asked = asyncio.get_running_loop().create_task(
            refused(peers.call(TWO, server.address, ECHO, b"late", 5_000))
        )
        await asyncio.sleep(0)  # it dials
        stand_still(standstills)
        error = await asked
        assert (error.code, error.outcome) == (ErrorCode.NETWORK_EXCEPTION, Outcome.NOT_WRITTEN)
        assert services.ran == []


async def test_rule_s12_requests_under_way_end_with_their_connection() -> None:
    """Rule S12: what the asker's own buffer holds must not leave it behind a standstill."""
    services = Services()
    async with (
        watched() as standstills,
        serving(services) as server,
        channel(standstills=standstills) as peers,
    ):
        await peers.call(TWO, server.address, ECHO, b"warm", 5_000)
        large = asyncio.get_running_loop().create_task(
            refused(peers.call(TWO, server.address, ECHO, b"x" * 30_000_000, 5_000))
        )
        asyncio.get_running_loop().call_soon(stand_still, standstills)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        standstills.look()
        assert (await large).outcome is Outcome.UNKNOWN
        assert [len(body) for _, body in services.ran] == [4]


def test_connections_are_taken_again_some_ticks_later() -> None:
    clocks = TwoClocks()
    standstills = Standstills(clocks, LIMIT_MS)
    cuts: list[int] = []
    standstills.when_noticed(lambda: cuts.append(standstills.count))
    clocks.passes(10 * LIMIT_MS)
    assert standstills.admits(), "nobody ticks yet"

    async def begun() -> None:
        watch = asyncio.get_running_loop().create_task(standstills.run())
        await asyncio.sleep(0)
        clocks.passes(LIMIT_MS)
        assert standstills.admits()
        clocks.passes(LIMIT_MS + 1)
        assert not standstills.admits()
        assert cuts == [1]
        for _ in range(WAKING_TICKS):
            assert not standstills.admits()
            standstills.tick()
        assert standstills.admits()
        watch.cancel()

    asyncio.run(begun())


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no such clock")
def test_rule_s12_deadlines_go_on_while_the_machine_is_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept_ns = 3_600_000_000_000
    real = time.clock_gettime_ns

    def after_an_hour(which: int) -> int:
        return real(which) + (slept_ns if which == time.CLOCK_BOOTTIME else 0)

    before_ms = SystemClock().monotonic_ms()
    monkeypatch.setattr(clock.time, "clock_gettime_ns", after_an_hour)
    assert SystemClock().monotonic_ms() - before_ms >= 3_600_000


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has none")
def test_rule_s12_a_peers_kernel_gives_up_what_it_cannot_deliver() -> None:
    with socket.socket() as made:
        tune_socket(made)
        assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 15_000
