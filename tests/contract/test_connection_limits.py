"""Connections that are too many, too silent or too slow to read: closed, and nobody else is."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from typing_extensions import override

from broker.config import BrokerLimits, BrokerTimeouts
from http_api.contract.forwarding import NO_PROXIES, TrustedProxies
from http_api.server.connection_limits import ConnectionGate
from tests.support.http_door import Door, open_door, read_answer

GET = b"GET /topics HTTP/1.1\r\nHost: localhost\r\n\r\n"
FAST = BrokerTimeouts(first_byte_ms=200, header_ms=200, answer_progress_ms=200)
SHORT_S = 0.2
ROUNDED_S = 0.02
"""uvloop counts timers in milliseconds of its own clock."""
SLACK_S = 5.0
"""Delay that a loaded machine may add."""
BIG = 8 << 20
"""More than the kernel's buffers of a connection hold."""
FETCH = "/topics/flights/partitions/0/records?offset=0&max_bytes=67108864"

Scenario = Callable[[], Coroutine[Any, Any, None]]
LOOPS = pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)


def run(loop: Callable[[], asyncio.AbstractEventLoop], scenario: Scenario) -> None:
    """Nodes run on uvloop where it is installed, and on asyncio elsewhere."""
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 60))


CONNECTED: list[asyncio.StreamWriter] = []
"""Closed behind the door of a test."""


@asynccontextmanager
async def a_door(**options: Any) -> AsyncIterator[Door]:
    async with open_door(**options) as door:
        try:
            yield door
        finally:
            for writer in CONNECTED:
                writer.close()
            CONNECTED.clear()


async def connect(
    door: Door, source: str = "127.0.0.1"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = door.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    CONNECTED.append(writer)
    return reader, writer


async def is_served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Send a request; False if the connection was closed without a byte, not answered."""
    try:
        writer.write(GET)
        await writer.drain()
        answer = await asyncio.wait_for(read_answer(reader), SLACK_S)
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        return getattr(error, "partial", b"") != b""
    return answer.status == 200


async def until_open(door: Door, count: int) -> None:
    async with asyncio.timeout(SLACK_S):
        while door.server.gate.open != count:  # noqa: ASYNC110 the gate has no event for it
            await asyncio.sleep(0.01)


async def closed_after(reader: asyncio.StreamReader, begun: float) -> float:
    """Seconds until the end of the connection; nothing was answered."""
    try:
        assert await asyncio.wait_for(reader.read(), SLACK_S) == b""
    except ConnectionResetError:
        pass
    return time.monotonic() - begun


@LOOPS
def test_one_connection_too_many_is_closed_unanswered_counted_and_logged_once(
    loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with a_door(limits=BrokerLimits(max_connections=100)) as door:
            opened = [await connect(door) for _ in range(300)]
            served = [await is_served(*one) for one in opened]
            assert served == [True] * 100 + [False] * 200
            gate = door.server.gate
            assert (gate.open, gate.refused) == (100, 200)
            for _, writer in opened[:10]:
                writer.close()
            await until_open(door, 90)
            again = [await connect(door) for _ in range(11)]
            assert [await is_served(*one) for one in again] == [True] * 10 + [False]
            for writer in CONNECTED:
                writer.close()
            await until_open(door, 0)
        refusals = [record.getMessage() for record in caplog.records if "refused" in record.msg]
        assert refusals == [
            "connection refused reason='max_connections=100 are open' open=100",
            "connections refused count=200 open=0",
        ]

    with caplog.at_level(logging.WARNING):
        run(loop, scenario)


async def test_one_address_does_not_take_the_place_of_the_others() -> None:
    async with a_door(limits=BrokerLimits(max_connections_per_ip=5)) as door:
        many = [await connect(door) for _ in range(6)]
        assert [await is_served(*one) for one in many] == [True] * 5 + [False]
        assert await is_served(*await connect(door, "127.0.0.2"))
        many[0][1].close()
        await until_open(door, 5)
        assert await is_served(*await connect(door))


async def test_a_trusted_proxy_stands_for_many_clients() -> None:
    proxies = TrustedProxies((ipaddress.ip_network("127.0.0.2"),))
    limits = BrokerLimits(max_connections_per_ip=1, max_connections=3)
    async with a_door(limits=limits, proxies=proxies) as door:
        many = [await connect(door, "127.0.0.2") for _ in range(4)]
        assert [await is_served(*one) for one in many] == [True] * 3 + [False]


@pytest.mark.parametrize(
    ("files", "most"), [(None, 10_000), (65_536, 10_000), (1_024, 512), (1, 1)]
)
def test_connections_never_take_more_than_half_of_the_open_files(
    files: int | None, most: int
) -> None:
    assert ConnectionGate(BrokerLimits(), NO_PROXIES, files).most == most


def test_the_gate_keeps_no_address_without_connections() -> None:
    gate = ConnectionGate(BrokerLimits(), NO_PROXIES)
    for number in range(1_000):
        assert gate.enter(f"10.0.0.{number}")
    for number in range(1_000):
        gate.leave(f"10.0.0.{number}")
    assert (gate.open, gate.addresses) == (0, 0)


@LOOPS
def test_a_connection_that_says_nothing_is_closed(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        async with a_door(timeouts=FAST) as door:
            begun = time.monotonic()
            reader, _ = await connect(door)
            assert await closed_after(reader, begun) >= SHORT_S - ROUNDED_S
            await until_open(door, 0)

    run(loop, scenario)


@pytest.mark.parametrize("before", [b"", GET, b"\r\n\r\n"])
@LOOPS
def test_a_head_that_never_ends_is_closed_however_it_drips(
    loop: Callable[[], asyncio.AbstractEventLoop], before: bytes
) -> None:
    async def scenario() -> None:
        async with a_door(timeouts=FAST) as door:
            reader, writer = await connect(door)
            writer.write(before)
            if before == GET:
                assert (await read_answer(reader)).status == 200
            begun = time.monotonic()
            closing = asyncio.create_task(closed_after(reader, begun))
            for byte in b"GET /topics HTTP/1.1\r\nX: " + b"a" * 5_000:
                if closing.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(SHORT_S / 10)
            assert SHORT_S - ROUNDED_S <= await closing < SLACK_S
            await until_open(door, 0)

    run(loop, scenario)


async def test_an_idle_connection_and_a_slow_body_are_kept() -> None:
    """Both have limits of their own: 75 s, and 60 s for a body."""
    async with a_door(timeouts=FAST) as door:
        reader, writer = await connect(door)
        assert await is_served(reader, writer)
        await asyncio.sleep(SHORT_S * 1.5)
        writer.write(b"\r\n")  # clients of old send it behind a body
        await asyncio.sleep(SHORT_S * 1.5)
        head = b"POST /topics/flights?acks=1 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 25\r\n"
        head += b"Content-Type: application/vnd.kafka.json.v2+json\r\n\r\n"
        for wait_s in (SHORT_S * 1.5, 0.01, 0.01):  # the fast lane knows the head by then
            writer.write(head)
            await asyncio.sleep(wait_s)
            writer.write(b'{"records":[{"value":1}]}')
            assert (await read_answer(reader)).status == 200
            await asyncio.sleep(SHORT_S * 1.5)
        assert await is_served(reader, writer)


async def test_a_long_wait_for_records_is_no_silence() -> None:
    async with a_door(timeouts=FAST) as door:
        reader, writer = await connect(door)
        path = b"/topics/flights/partitions/0/records?offset=0&timeout=500"
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await asyncio.wait_for(read_answer(reader), SLACK_S)).body == b"[]"


async def fill(door: Door) -> None:
    for _ in range(BIG // 500_000):
        answer = await door.post(
            "/topics/flights/partitions/0",
            {"records": [{"value": "v" * 500_000}]},
            "application/vnd.kafka.json.v2+json",
        )
        assert answer.status == 200


async def ask_for_all(door: Door, *headers: str) -> socket.socket:
    """A connection with small buffers that asks for much; nothing of it is read yet."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.setblocking(False)
    host, _, port = door.address.rpartition(":")
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (host, int(port)))
    lines = [f"GET {FETCH} HTTP/1.1", "Host: localhost", *headers, "", ""]
    await loop.sock_sendall(client, "\r\n".join(lines).encode())
    return client


@pytest.mark.parametrize(
    "headers",
    [
        (),  # the fast lane
        ("Accept: application/vnd.kafka.binary.v2+json",),  # the routes
        ("Connection: close",),
    ],
)
@LOOPS
def test_a_client_that_takes_nothing_is_closed(
    loop: Callable[[], asyncio.AbstractEventLoop], headers: tuple[str, ...]
) -> None:
    async def scenario() -> None:
        async with a_door(timeouts=FAST) as door:
            await fill(door)
            await until_open(door, 0)
            client = await ask_for_all(door, *headers)
            await until_open(door, 1)
            begun = time.monotonic()
            await until_open(door, 0)
            assert time.monotonic() - begun >= SHORT_S / 2
            client.close()

    run(loop, scenario)


async def test_a_slow_reader_is_served_to_the_end() -> None:
    async with a_door(timeouts=FAST) as door:
        await fill(door)
        client = await ask_for_all(door, "Connection: close")
        loop, found = asyncio.get_running_loop(), 0
        begun = time.monotonic()
        while piece := await loop.sock_recv(client, 32_768):
            found += len(piece)
            if time.monotonic() - begun < SHORT_S * 5:
                # The kernel's buffer is full, and takes nothing from the broker, for longer than
                # the limit.
                await asyncio.sleep(0.02)
        assert found > BIG * 0.9
        assert time.monotonic() - begun > SHORT_S * 5
        client.close()


class Stuck(asyncio.Transport):
    """A transport whose client takes nothing of the few bytes that wait: too few for a pause."""

    def __init__(self) -> None:
        super().__init__()
        self.aborted = asyncio.Event()
        self.is_closed = False

    @override
    def get_write_buffer_size(self) -> int:
        return 100

    @override
    def write(self, data: object) -> None:
        pass

    @override
    def is_closing(self) -> bool:
        return self.is_closed

    @override
    def close(self) -> None:
        self.is_closed = True

    @override
    def abort(self) -> None:
        self.aborted.set()


@pytest.mark.parametrize("request_", [GET[:-2] + b"Connection: close\r\n\r\n", b"G"])
async def test_what_is_left_of_an_answer_does_not_keep_a_closed_connection(
    request_: bytes,
) -> None:
    """Closed behind its answer, or for a head that does not end."""
    async with a_door(timeouts=FAST) as door:
        transport = Stuck()
        connection = door.server.connection_for("192.0.2.1")
        door.server.gate.enter("192.0.2.1")
        connection.connection_made(transport)
        await asyncio.sleep(0)
        connection.data_received(request_)
        async with asyncio.timeout(SLACK_S):
            await transport.aborted.wait()
        assert transport.is_closed
        connection.connection_lost(None)
        assert door.server.gate.open == 0


@pytest.mark.slow
async def test_20_000_connections_are_bounded_and_others_are_served() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(20_000, hard // 2)
    most = count // 4
    limits = BrokerLimits(max_connections=most, max_connections_per_ip=count)
    async with a_door(limits=limits) as door:
        host, _, port = door.address.rpartition(":")
        first = await connect(door)
        assert await is_served(*first)
        clients = []
        loop = asyncio.get_running_loop()
        before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(count):
            client = socket.socket()
            client.setblocking(False)
            client.bind((f"127.0.{number % 200}.1", 0))
            await loop.sock_connect(client, (host, int(port)))
            clients.append(client)
        async with asyncio.timeout(30):
            while door.server.gate.refused < count - most + 1:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert door.server.gate.open == most
        assert await is_served(*first), "whoever is in is served as ever"
        grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        assert grown_kb < 64 * most + 20_000
        for client in clients:
            client.close()
        await until_open(door, 1)
