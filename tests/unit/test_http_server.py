"""The listener: where it binds, how it ends, what it refuses before a handler runs."""

from __future__ import annotations

import asyncio
import gzip

import pytest

from broker.config import BrokerLimits
from http_api.server.app import (
    HttpServer,
    InsecureBindError,
    build_app,
    is_loopback,
    split_bind,
)
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import Door, open_door, read_answer

V2 = "application/vnd.kafka.v2+json"


def server(*, insecure: bool = False, grace_s: float = 1.0) -> tuple[FakeBrokerApis, HttpServer]:
    apis = FakeBrokerApis()
    apis.add_topic("t")
    limits = BrokerLimits()
    app = build_app(apis, limits, "http://127.0.0.1:1")
    return apis, HttpServer(app, limits, insecure=insecure, shutdown_grace_s=grace_s)


@pytest.mark.parametrize("bind", ["0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:0", "example.org:0"])
async def test_a_bind_that_is_not_loopback_is_refused(bind: str) -> None:
    _, listener = server()
    with pytest.raises(InsecureBindError) as error:
        await listener.start(bind)
    assert bind in str(error.value)
    assert "--insecure" in str(error.value)


async def test_a_public_bind_can_be_insisted_on() -> None:
    _, listener = server(insecure=True)
    address = await listener.start("0.0.0.0:0")
    assert address.startswith("0.0.0.0:")
    await listener.stop()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize("bind", ["127.0.0.1", "127.0.0.1:", "127.0.0.1:x", ""])
def test_a_bind_address_needs_host_and_port(bind: str) -> None:
    with pytest.raises(ValueError, match="expected host:port"):
        split_bind(bind)


def test_a_v6_bind_address() -> None:
    assert split_bind("[::1]:80") == ("::1", 80)


async def test_a_port_in_use_is_an_os_error_and_leaves_nothing_behind() -> None:
    _, first = server()
    address = await first.start("127.0.0.1:0")
    _, second = server()
    with pytest.raises(OSError, match="address already in use"):
        await second.start(address)
    await first.stop()


async def test_stop_lets_a_request_in_flight_finish() -> None:
    apis, listener = server(grace_s=5.0)
    door = Door(apis, listener, await listener.start("127.0.0.1:0"))
    async with asyncio.TaskGroup() as tasks:
        read = tasks.create_task(door.get("/topics/t/partitions/0/records?offset=0&timeout=300"))
        await apis.fetching.wait()
        await listener.stop()
    assert (read.result().status, read.result().body) == (200, b"[]")


async def test_stop_ends_a_request_that_takes_longer_than_the_grace() -> None:
    apis, listener = server(grace_s=0.1)
    door = Door(apis, listener, await listener.start("127.0.0.1:0"))
    read = asyncio.get_running_loop().create_task(
        door.get("/topics/t/partitions/0/records?offset=0&timeout=60000")
    )
    await apis.fetching.wait()
    async with asyncio.timeout(5):
        await listener.stop()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await read


async def test_a_header_over_the_limit_is_431() -> None:
    async with open_door(limits=BrokerLimits(max_header_bytes=1000)) as door:
        answer = await door.call("GET", "/topics", headers={"X": "a" * 1001})
        line = await door.call("GET", "/topics?" + "a" * 1001)
    message = "the request line or a header is over max_header_bytes=1000"
    expected = (431, V2, {"error_code": 431, "message": message})
    assert (answer.golden, line.golden) == (expected, expected)


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01 tls hello\r\n\r\n", b"nonsense\r\n\r\n"],
)
async def test_bytes_that_are_not_http_are_400_in_our_envelope(request_bytes: bytes) -> None:
    async with open_door() as door:
        answer = await door.raw(request_bytes)
    assert (answer.status, answer.type) == (400, V2)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == 400


async def test_requests_on_one_connection_are_answered_in_order() -> None:
    produce = b'{"records":[{"value":%d}]}'
    async with open_door() as door:
        host, _, port = door.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in range(20):
            body = produce % number
            writer.write(
                b"POST /topics/flights/partitions/0 HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
        offsets = [(await read_answer(reader)).json["offsets"][0]["offset"] for _ in range(20)]
        writer.close()
    assert offsets == list(range(20))


async def test_a_client_that_leaves_while_it_waits_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    apis, listener = server()
    door = Door(apis, listener, await listener.start("127.0.0.1:0"))
    host, _, port = door.address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(
        b"GET /topics/t/partitions/0/records?offset=0&timeout=200 HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    await apis.fetching.wait()
    writer.close()
    await writer.wait_closed()
    await listener.stop()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /topics/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /topics HTTP/1.1\r\nHost: x\r\nAccept: \xff\r\n\r\n",
        b"POST /topics/t HTTP/1.1\r\nHost: x\r\nContent-Type: \xff\r\n\r\n",
        b"GET /v3/clusters/%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /topics/flights/partitions/0/records?offset=%ff%00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
async def test_bytes_that_are_no_text_are_the_clients_error(request_bytes: bytes) -> None:
    async with open_door() as door:
        answer = await door.raw(request_bytes)
    assert 400 <= answer.status < 500
    assert answer.json.keys() == {"error_code", "message"}
    assert len(answer.body) < 1000


@pytest.mark.parametrize(
    "line",
    [
        b"GET /topics",
        b"GET /v3/clusters",
        b"GET /topics/flights/partitions/0/records?offset=0&timeout=0",
        b"POST /topics/flights",
    ],
)
async def test_several_accept_lines_are_one_list(line: bytes) -> None:
    """RFC 9110, 5.3: only the first counted, and a client that takes everything got a 406."""
    body = b'{"records":[{"value":1}]}' if line.startswith(b"POST") else b""
    head = line + b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: %d\r\nAccept: text/html\r\n" % len(body)
    async with open_door() as door:
        taken = await door.raw(head + b"Accept: */*;q=0.1\r\n\r\n" + body)
        refused = await door.raw(head + b"Accept: image/png\r\n\r\n" + body)
    assert (taken.status, refused.status) == (200, 406)
    assert "text/html, image/png" in refused.json["message"]


async def test_a_gzipped_body_is_taken_and_its_limit_counts_what_it_unpacks_to() -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    fine = gzip.compress(b'{"records":[{"value":1}]}')
    bomb = gzip.compress(b'{"records":[{"value":"' + b"x" * 1_000_000 + b'"}]}')
    async with open_door(limits=BrokerLimits(max_body_bytes=10_000)) as door:
        assert (await door.call("POST", "/topics/flights", fine, headers)).status == 200
        assert (await door.call("POST", "/topics/flights", bomb, headers)).status == 413
        assert len(bomb) < 10_000
        broken = await door.call("POST", "/topics/flights", b"no gzip", headers)
    assert (broken.status, broken.type) == (400, V2)


async def test_an_empty_expectation_is_none() -> None:
    async with open_door() as door:
        assert (await door.call("GET", "/topics", headers={"Expect": ""})).status == 200
        assert (await door.call("GET", "/topics", headers={"Expect": "more"})).status == 417
