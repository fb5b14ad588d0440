"""The fast lane: the same bytes as the usual way, in order, whatever a client does to it."""

from __future__ import annotations

import asyncio
import gzip
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import pytest

from broker.config import BrokerLimits
from broker.server.requests import FINAL
from http_api.server import lane_connection
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import FAST_LANE, Door, open_door, read_answer
from tests.support.lane_requests import (
    JSON_V2,
    LONG_S,
    ONE,
    HeldAppends,
    connection,
    get,
    offset_in,
    post,
)

LIMITS = BrokerLimits(
    max_body_bytes=200_000, max_records_per_request=50, max_objects_per_request=1_000,
    max_header_bytes=4_000,
)  # fmt: skip
DATE = re.compile(rb"Date: [^\r]*")
PACKET_S = 0.005
"""So that what is written next comes in a packet of its own."""
ID = re.compile(rb"X-Request-Id: [0-9a-f]{8}-[0-9a-f]+")


RECORDS = "/topics/flights/partitions/0/records"
POSTS = [
    post(ONE),
    post(ONE, "/topics/flights"),
    post(ONE, "/topics/flights/partitions/1?acks=0"),
    post(ONE, "/topics/flights/partitions/1?acks=1&timeout=500"),
    post(b'{"records":[{"value":1},{"value":2},{}]}'),
    post(b'{"records":[{"value":1,"timestamp":5,"headers":[]},{"value":2,"key":1}]}'),
    post(b'{"records":[\n{"value":1}\r\n]}'),
    post(b'{"records":[{"value":"YQ==","key":"Yg=="}]}', content_type="application/json"),
    post(b'{"records":[{"value":"YQ=="}]}', content_type="application/vnd.kafka.binary.v2+json"),
    post(ONE, content_type="Application/JSON; charset=utf-8"),
    post(b'{"records":[{"value":"a"}]}', content_type="application/vnd.kafka.text.v2+json"),
    post(b'{"records":[{"value":"YQ=="}]}', content_type="application/vnd.kafka.binary+json"),
    post(ONE, "/topics/flights?receipts=all&acks=1"),
    post(b'{"records":[{"value":1},{"value":2}]}', "/topics/flights/partitions/1?receipts=range"),
    post(ONE, "/topics/flights?receipts=range&acks=0"),
    post(ONE, "/topics/flights", "Accept: */json"),
    post(ONE, "/topics/flights", "Accept: application/vnd.kafka.json.v1+json"),
    post(ONE, "/topics/flights", "X-Request-Id: mine"),
    post(ONE, "/topics/flights", "X-Request-Id: not\tmine", "Accept: application/json"),
    post(ONE, "/topics/flights", "Accept: */*", "User-Agent: a", "Accept-Encoding: gzip"),
    post(ONE, "/topics/flights", "Content-Encoding: identity"),
    post(b'{"records":[{"value":"%b"}]}' % (b"v" * 150_000)),
]
REFUSED_POSTS = [
    post(ONE, content_type=None),
    post(ONE, content_type="text/plain"),
    post(ONE, "/topics/flights", "Accept: text/html"),
    post(ONE, "/topics/nowhere"),
    post(ONE, "/topics/flights/partitions/9"),
    post(b'{"records":[{"value":1},{"value":2,"partition":0}]}', "/topics/flights/partitions/1"),
    post(ONE, "/topics/flights/partitions/99999999999999999999"),
    post(ONE, "/topics/.."),
    post(ONE, "/topics/fl%ights"),
    post(ONE, "/topics/flights?acks=2"),
    post(ONE, "/topics/flights?acks=1&acks=0"),
    post(ONE, "/topics/flights?timeout=0"),
    post(ONE, "/topics/flights?timeout=x"),
    post(ONE, "/topics/flights?timeout=999999999"),
    post(ONE, "/topics/flights?acks=%31"),
    post(ONE, "/topics/flights?ack=0"),
    post(ONE, "/topics/flights?%61cks=0&acks=1"),
    post(ONE, "/topics/flights?async=true"),
    post(ONE, "/topics/flights?async=yes"),
    post(ONE, "/topics/flights?receipts=ranges"),
    post(ONE, "/topics/flights?partitioner=round_robin"),
    post(ONE, "/topics/flights?partitioner=murmur2"),
    post(ONE, "/topics/flights/partitions/0?partitioner=sticky"),
    post(ONE, "/topics/flights?key_format=string"),
    post(ONE, "/topics/flights?key_format=avro"),
    post(ONE, "/topics/flights?value_format=string"),
    post(ONE, content_type="application/vnd.kafka.text.v2+json"),
    post(ONE, "/topics/flights/partitions/0?_=1&acks=0"),
    post(ONE, "/topics/flights?acks=1&"),
    post(ONE, "/topics/flights#x"),
    post(ONE, "/topics/flights/partitions/0/records"),
    post(b""),
    post(b"null"),
    post(b"nonsense"),
    post(b"[]"),
    post(b'{"records":[]}'),
    post(b'{"records":[{"value":1,"offset":4}]}'),
    post(b'{"records":[{"value":1,"typo":4}]}'),
    post(b'{"records":[{"value":"\xff"}]}'),
    post(b'{"records":[{"value":"a\nb"}]}'),
    post(b'{"records":[{"value":' + b"[" * 3_000 + b"]" * 3_000 + b"}]}"),
    post(b'{"records":[' + b"{}," * 50 + b"{}]}"),
    post(b'{"records":[{"value":[' + b"{}," * 1_000 + b"{}]}]}"),
    post(b'{"records":[{"value":"x"}]}', content_type="application/octet-stream"),
    post(b'{"records":[{"value":1}]}', content_type="application/vnd.kafka.avro.v2+json"),
    post(b'{"records":[{"value":"%b"}]}' % (b"v" * 250_000)),
    post(ONE, "/topics/flights", "Content-Length: 5"),
    post(ONE, "/topics/flights", "Expect: 100-continue"),
    post(ONE, "/topics/flights", "Expect: the unexpected"),
    post(gzip.compress(ONE), "/topics/flights", "Content-Encoding: gzip"),
    post(b"not gzip", "/topics/flights", "Content-Encoding: gzip"),
    post(ONE, "/topics/flights", "X: " + "a" * 5_000),
    post(ONE).replace(b"HTTP/1.1", b"HTTP/1.0"),
    post(ONE).replace(b"Host: x\r\n", b""),
    post(ONE, "/topics/flights", "Connection: close"),
    b"POST /topics/flights HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(ONE), ONE),
]  # fmt: skip
GETS = [
    get(f"{RECORDS}?offset=0"),
    get(f"{RECORDS}?offset=1&max_bytes=10", "Accept: application/x-ndjson"),
    get(f"{RECORDS}?offset=1&timeout=0", "Accept: application/vnd.quorumlog.lines+json"),
    get(f"{RECORDS}?offset=0", "Accept: application/x-ndjson", "X-Request-Id: a"),
    get(f"{RECORDS}?max_bytes=1000&offset=2", "Accept: application/json"),
    get(f"{RECORDS}?offset=0&include=batches", "Accept: application/x-ndjson"),
    get(f"{RECORDS}?include=batches&offset=1&max_bytes=9", "Accept: application/x-ndjson"),
    get(f"{RECORDS}?offset=0&isolation=read_committed"),
    get(f"{RECORDS}?isolation=read_uncommitted&offset=0", "Accept: application/x-ndjson"),
    get(f"{RECORDS}?offset=0", "Accept: */json"),
    get(f"{RECORDS}?offset=0", "Accept: application/vnd.kafka.json+json"),
]
OTHER_GETS = [
    get(f"{RECORDS}?offset=0", "Accept: application/vnd.kafka.binary.v2+json"),
    get(f"{RECORDS}?offset=0", "Accept: text/html"),
    get(f"{RECORDS}?offset=0&include=batches"),
    get(f"{RECORDS}?offset=0&include=none", "Accept: application/x-ndjson"),
    get(f"{RECORDS}?offset=0&include=timestamp"),
    get(f"{RECORDS}?offset=0&isolation=serializable"),
    get(f"{RECORDS}?offset=0", "Accept: application/vnd.kafka.binary.v1+json"),
    get(f"{RECORDS}?timestamp=0"),
    get(f"{RECORDS}?timestamp=0&offset=0"),
    get(f"{RECORDS}?offset=0&offset=1"),
    get(f"{RECORDS}?offset=0&limit=10"),
    get(f"{RECORDS}?offset=0&_=10"),
    get(f"{RECORDS}?_=10&timeot=10"),
    get(f"{RECORDS}?offset=0&"),
    get(f"{RECORDS}?offset=-1"),
    get(f"{RECORDS}?offset=latest&timeout=0"),
    get(f"{RECORDS}?offset=earliest", "Accept: application/x-ndjson"),
    get(f"{RECORDS}?offset=@0"),
    get(f"{RECORDS}?offset=2026-01-31T12:00:00"),
    get(f"{RECORDS}?offset=9223372036854775807"),
    get(f"{RECORDS}?offset="),
    get(f"{RECORDS}?offset=9999999999999999999"),
    get(f"{RECORDS}?offset=0&max_bytes=0"),
    get(f"{RECORDS}?offset=0&max_bytes=999999999"),
    get(f"{RECORDS}?offset=0&timeout=999999999"),
    get(f"{RECORDS}?offset=3&timeout=0"),
    get(f"{RECORDS}?offset=77&timeout=0"),
    get(f"{RECORDS}?"),
    get(RECORDS),
    get("/topics/nowhere/partitions/0/records?offset=0"),
    get("/topics/flights/partitions/7/records?offset=0"),
    get("/topics/flights//partitions/0/records?offset=0"),
    get(f"{RECORDS}?offset=0").replace(b"GET", b"HEAD"),
    get("/topics/flights"),
    get("/nowhere"),
]


@asynccontextmanager
async def both_doors() -> AsyncIterator[tuple[Door, Door]]:
    """One with the fast lane, one without; three records stand in partition 0."""
    lane = FAST_LANE.set(True)
    async with open_door(limits=LIMITS) as fast:
        FAST_LANE.set(False)
        async with open_door(limits=LIMITS) as usual:
            for door in (fast, usual):
                body = '{"records":[{"value":1},{"value":"two"},{"key":3}]}'
                await door.call(
                    "POST", "/topics/flights/partitions/0", body, {"Content-Type": JSON_V2}
                )
            fast.apis.direct.taken = 0
            yield fast, usual
    FAST_LANE.reset(lane)


async def everything(door: Door, request: bytes, *, head_first: bool = False) -> bytes:
    """All bytes a request on a connection of its own brings back, in a moment's time.

    Read while the request is sent: a refusal of the head alone closes the connection, and the body
    that is sent into it resets it.
    """
    host, _, port = door.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    reading = asyncio.ensure_future(answer_of(reader, is_head=request.startswith(b"HEAD")))
    if head_first:
        head, end, request = request.partition(b"\r\n\r\n")
        writer.write(head + end)
        await asyncio.sleep(PACKET_S)
    writer.write(request)
    answer = await asyncio.wait_for(reading, 10)
    writer.close()
    return answer


async def answer_of(reader: asyncio.StreamReader, *, is_head: bool) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head += await reader.readuntil(b"\r\n\r\n")
    length = (
        0
        if is_head or head.startswith(b"HTTP/1.1 204 ")
        else int(head.lower().rpartition(b"content-length: ")[2].split()[0])
    )
    body = await reader.readexactly(length)
    closed = b""
    if b"onnection: close" in head or b"HTTP/1.0" in head:
        with suppress(ConnectionResetError):
            closed = await reader.read()
        closed += b"closed"
    return ID.sub(b"X-Request-Id: new", DATE.sub(b"Date: now", head)) + body + closed


@pytest.mark.parametrize(
    ("requests", "head_first"),
    [
        (POSTS, False),
        (REFUSED_POSTS, False),
        (GETS, False),
        (OTHER_GETS, False),
        (POSTS, True),
        (REFUSED_POSTS, True),
    ],
    ids=["posts", "refused posts", "gets", "other gets", "two packets", "refused, two packets"],
)
async def test_both_ways_send_the_same_bytes(requests: Sequence[bytes], head_first: bool) -> None:
    """Also by a head that is known, with its body in a packet of its own."""
    async with both_doors() as (fast, usual):
        for request in requests:
            for split in (False, True)[: 1 + head_first]:
                expected = await everything(usual, request, head_first=split)
                assert await everything(fast, request, head_first=split) == expected, request[:200]
        if head_first and requests is POSTS:
            assert fast.apis.direct.taken >= 2 * (len(POSTS) - 3)
        logs = [
            {
                place: (log.end, [bytes(piece.lines) for piece in log.slices])
                for place, log in door.apis.logs.items()
            }
            for door in (fast, usual)
        ]
    assert logs[0] == logs[1]


@pytest.mark.parametrize(("requests", "least"), [(POSTS, len(POSTS) - 3), (GETS, len(GETS))])
async def test_the_plain_ones_really_take_it(requests: Sequence[bytes], least: int) -> None:
    async with both_doors() as (fast, usual):
        for request in requests:
            await everything(fast, request)
        assert fast.apis.direct.taken >= least
        assert usual.apis.direct.taken == 0


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.NOT_WRITTEN])
async def test_rule_r5_an_append_without_success_is_told_or_made_again_elsewhere(
    outcome: Outcome,
) -> None:
    """Unknown: the same rows as ever. Surely not written: the usual way makes it again."""
    error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "appended, not acknowledged", outcome=outcome)
    two = b'{"records":[{"value":1},{"value":2}]}'
    async with both_doors() as (fast, usual):
        fast.apis.direct.fate = error
        if outcome is Outcome.UNKNOWN:
            usual.apis.record_errors = {0: error, 1: error}
        assert await everything(fast, post(two)) == await everything(usual, post(two))
        assert fast.apis.direct.taken == 1


async def test_a_produce_whose_timeout_is_used_up_is_not_retried() -> None:
    error = KafkaError(
        ErrorCode.LEADER_NOT_AVAILABLE, "no leader took it in time", outcome=Outcome.NOT_WRITTEN
    )
    async with both_doors() as (fast, usual):
        fast.apis.direct.fate, fast.apis.direct.fate_base = error, FINAL
        usual.apis.record_errors = {0: error}
        expected = await everything(usual, post(ONE))
        assert expected.startswith(b"HTTP/1.1 503")
        assert await everything(fast, post(ONE)) == expected
        assert fast.apis.logs["flights", 0].end == 3


async def test_requests_of_both_kinds_in_one_packet_are_answered_in_their_order() -> None:
    async with connection() as (door, reader, writer):
        writer.write(post(ONE) * 40 + get("/topics") + post(ONE) + get(f"{RECORDS}?offset=40") * 2)
        assert [await offset_in(reader) for _ in range(40)] == list(range(40))
        assert (await read_answer(reader)).json == ["flights"]
        assert await offset_in(reader) == 40
        for _ in range(2):
            assert (await read_answer(reader)).json[0]["offset"] == 40
        assert door.apis.direct.taken >= 32
        writer.write(post(ONE))  # and then the lane takes over again
        taken = door.apis.direct.taken
        assert await offset_in(reader) == 41
        assert door.apis.direct.taken == taken + 1


async def test_a_request_that_comes_byte_by_byte() -> None:
    async with connection() as (door, reader, writer):
        for byte in post(ONE):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await offset_in(reader) == 0
        assert door.apis.direct.taken == 1


async def test_a_long_body_and_what_follows_it() -> None:
    body = b'{"records":[%b]}' % b",".join([b'{"value":"%b"}' % (b"v" * 1_000)] * 1_500)
    async with connection() as (door, reader, writer):
        door.apis.max_message_bytes = 10**7
        writer.write(post(body) + post(ONE))
        answer = await asyncio.wait_for(read_answer(reader), 10)
        assert [row["offset"] for row in answer.json["offsets"]] == list(range(1_500))
        assert await offset_in(reader) == 1_500
        assert door.apis.direct.taken == 2


async def test_a_body_over_what_is_held_takes_the_usual_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_connection, "ARRIVING_BODY_BYTES_MAX", 1_000)
    body = b'{"records":[{"value":"%b"}]}' % (b"v" * 5_000)
    async with connection() as (door, reader, writer):
        request = post(body)
        writer.write(request[:-4_000])
        await asyncio.sleep(0.05)
        writer.write(request[-4_000:])
        assert await offset_in(reader) == 0
        assert door.apis.direct.taken == 0


async def test_a_body_that_takes_too_long_takes_the_usual_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_connection, "ARRIVING_BODY_S_MAX", 0.02)
    async with connection() as (door, reader, writer):
        writer.write(post(ONE)[:-10])
        await asyncio.sleep(0.1)
        writer.write(post(ONE)[-10:] + post(ONE))
        assert [await offset_in(reader), await offset_in(reader)] == [0, 1]
        assert door.apis.direct.taken <= 1


async def test_a_peer_that_hangs_up_in_the_middle_of_a_body_harms_nobody() -> None:
    async with open_door() as door:
        host, _, port = door.address.rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(post(ONE)[:-5])
        await asyncio.sleep(0.05)
        writer.transport.abort()
        assert (await door.raw(post(ONE))).json["offsets"][0]["offset"] == 0


async def test_garbage_behind_a_good_request_is_refused() -> None:
    async with connection() as (_, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        writer.write(b"nonsense\r\n\r\n")
        assert (await read_answer(reader)).status == 400
        assert await reader.read() == b""


async def test_a_request_that_asks_for_another_protocol_is_answered_in_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """aiohttp holds what stands behind it back until it knows: nobody else may wait for that."""
    monkeypatch.setattr(lane_connection, "ARRIVING_BODY_S_MAX", 0.05)
    asks = ("Upgrade: websocket", "Connection: upgrade")
    upgrade = post(ONE, "/topics/flights/partitions/0", *asks)
    async with connection() as (_, reader, writer):
        writer.write(upgrade)
        assert await offset_in(reader) == 0
        writer.write(post(ONE)[:-5])  # held, and then no more
        await asyncio.sleep(0.01)
        writer.write(post(ONE)[-5:] + upgrade + post(ONE) + get("/topics"))
        assert [await offset_in(reader) for _ in range(3)] == [1, 2, 3]
        assert (await read_answer(reader)).json == ["flights"]
        await asyncio.sleep(0.1)
        writer.write(post(ONE))
        assert await offset_in(reader) == 4


async def test_a_client_that_does_not_read_is_not_answered_for_ever() -> None:
    """Its answers fill the sockets and one buffer here; then its requests wait unanswered."""
    async with connection() as (door, reader, writer):
        writer.write(post(b'{"records":[{"value":"%b"}]}' % (b"v" * 500_000)))
        await offset_in(reader)
        taken = door.apis.direct.taken
        for _ in range(100):
            writer.write(get(f"{RECORDS}?offset=0", "Accept: application/x-ndjson"))
        await asyncio.sleep(0.3)
        assert door.apis.direct.taken - taken < 40
        for _ in range(100):
            assert (await asyncio.wait_for(read_answer(reader), 10)).status == 200


async def test_a_request_waits_for_the_one_before_it_on_its_connection() -> None:
    apis = FakeBrokerApis()
    apis.add_topic("flights", 2)
    held = HeldAppends(apis)
    async with connection(apis) as (door, reader, writer):
        writer.write(post(ONE) + get("/topics") + post(ONE))
        await held.until(1)
        await asyncio.sleep(0.05)
        assert len(held.held) == 1
        assert door.apis.logs["flights", 0].end == 1
        held.held[0]()
        assert await offset_in(reader) == 0
        assert (await read_answer(reader)).json == ["flights"]
        assert await offset_in(reader) == 1


async def test_a_stop_waits_for_an_append_under_way() -> None:
    apis = FakeBrokerApis()
    apis.add_topic("flights", 2)
    held = HeldAppends(apis)
    async with connection(apis, grace_s=LONG_S) as (door, reader, writer):
        writer.write(post(ONE))
        await held.until(1)
        stop = asyncio.get_running_loop().create_task(door.server.stop())
        await asyncio.sleep(0.1)
        held.held[0]()
        assert await offset_in(reader) == 0
        await stop


async def test_a_stop_does_not_wait_for_a_client_that_has_left() -> None:
    apis = FakeBrokerApis()
    apis.add_topic("flights", 2)
    held = HeldAppends(apis)
    async with connection(apis, grace_s=LONG_S) as (door, _, writer):
        writer.write(post(ONE))
        await held.until(1)
        began = asyncio.get_running_loop().time()
        stop = asyncio.get_running_loop().create_task(door.server.stop())
        await asyncio.sleep(0.1)
        writer.transport.abort()
        await asyncio.sleep(0.1)
        held.held[0]()
        await stop
        assert asyncio.get_running_loop().time() - began < LONG_S / 2, "not all of its grace"


async def test_an_answer_to_a_client_that_has_left_is_dropped() -> None:
    apis = FakeBrokerApis()
    apis.add_topic("flights", 2)
    held = HeldAppends(apis)
    async with connection(apis) as (door, _, writer):
        writer.write(post(ONE))
        await held.until(1)
        writer.transport.abort()
        await asyncio.sleep(0.05)
        held.held[0]()
        assert (await door.raw(get("/topics"))).status == 200


async def test_an_idle_connection_is_closed_and_a_waiting_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("http_api.server.app.KEEPALIVE_S", 0.15)
    apis = FakeBrokerApis()
    apis.add_topic("flights", 2)
    held = HeldAppends(apis)
    async with connection(apis) as (_, reader, writer):
        writer.write(post(ONE))
        await held.until(1)
        await asyncio.sleep(0.5)
        held.held[0]()
        assert await offset_in(reader) == 0
        assert await asyncio.wait_for(reader.read(), 5) == b""


async def test_a_bug_in_the_lane_ends_the_connection_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> bool:
        raise ZeroDivisionError

    async with connection() as (door, reader, writer):
        monkeypatch.setattr(door.apis.direct, "produce", broken)
        writer.write(post(ONE))
        assert await asyncio.wait_for(reader.read(), 5) == b""
    assert "fast lane failed" in caplog.text
