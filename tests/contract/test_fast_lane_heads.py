"""A head that was parsed before is not parsed again: only where nothing else can be meant by it."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from http_api.server import lane_connection
from http_api.server.fast_lane import CACHE_ENTRIES_MAX, FastLane
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.doors.http import note_lane_transitions, note_unparsed_requests, texts_kept_by
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import open_door, read_answer
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

NOT_WRITTEN = KafkaError(
    ErrorCode.NOT_LEADER_OR_FOLLOWER, "led elsewhere", outcome=Outcome.NOT_WRITTEN
)


@pytest.fixture
def unparsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Every request that was taken without the parser."""
    return note_unparsed_requests(monkeypatch)


def flights() -> FakeBrokerApis:
    apis = FakeBrokerApis()
    apis.add_topic("flights", 2)
    return apis


async def test_the_second_of_its_kind_is_not_parsed_on_any_connection(
    unparsed: list[bytes],
) -> None:
    async with open_door(flights()) as door:
        host, _, port = door.address.rpartition(":")
        for number in range(3):
            reader, writer = await asyncio.open_connection(host, int(port))
            for turn in range(2):
                writer.write(post(ONE))
                assert await offset_in(reader) == 2 * number + turn
            writer.close()
        assert len(unparsed) == 5
        answers = [bytes(p.lines) for p in door.apis.logs["flights", 0].slices]
        assert len(answers) == 6


@pytest.mark.parametrize("head_first", [False, True])
async def test_a_body_that_looks_like_a_known_request_is_not_taken_for_one(
    unparsed: list[bytes], head_first: bool
) -> None:
    """Its bytes come alone, in a packet of their own: in a body, in chunks, behind half a head."""
    inner = post(ONE)
    chunked = (
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n"
        % len(inner)
    )
    outer = [
        post(b" " * len(inner), "/nowhere")[: -len(inner)],
        post(b" " * len(inner), content_type=JSON_V2)[: -len(inner)],
        post(b" " * (len(inner) + 1), "/nowhere")[: -len(inner)],
        chunked,
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nX: ",
        b"PO",
        b"\r\n",
        get("/topics")[:-2],
        get("/topics") + b"G",
    ]
    for beginning in outer:
        async with connection(flights()) as (_, reader, writer):
            writer.write(inner)
            assert await offset_in(reader) == 0
            writer.write(inner)
            assert await offset_in(reader) == 1
            before = len(unparsed)
            assert before, "the head is known"
            writer.write(beginning)
            await writer.drain()
            await asyncio.sleep(0.02)  # packets of their own
            if head_first:
                writer.write(inner[: -len(ONE)])
                await asyncio.sleep(0.02)
            writer.write(inner[-len(ONE) :] if head_first else inner)
            await asyncio.sleep(0.02)
            assert len(unparsed) == before, beginning
        unparsed.clear()


async def test_behind_a_long_body_heads_are_known_again(unparsed: list[bytes]) -> None:
    body = b'{"records":[{"value":"%b"}]}' % (b"v" * 400_000)
    async with connection() as (_, reader, writer):
        writer.write(post(body))
        assert await offset_in(reader) == 0
        for offset in (1, 2):
            writer.write(post(ONE))
            assert await offset_in(reader) == offset
        assert unparsed == [post(ONE)]


async def test_a_packet_with_two_requests_is_parsed(unparsed: list[bytes]) -> None:
    async with connection() as (door, reader, writer):
        writer.write(post(ONE))
        await offset_in(reader)
        writer.write(post(ONE) + post(ONE))
        assert [await offset_in(reader), await offset_in(reader)] == [1, 2]
        assert not unparsed
        assert door.apis.direct.taken == 3


async def test_a_request_behind_an_unparsed_one_is_answered_behind_it(
    unparsed: list[bytes],
) -> None:
    apis = flights()
    held = HeldAppends(apis)
    async with connection(apis) as (_, reader, writer):
        writer.write(post(ONE))
        await held.until(1)
        held.held[0]()
        assert await offset_in(reader) == 0
        writer.write(post(ONE))
        await held.until(2)
        assert len(unparsed) == 1
        for request in (get("/topics"), post(ONE)):
            writer.write(request)
            await asyncio.sleep(0.02)
        assert len(held.held) == 2
        held.held[1]()
        assert await offset_in(reader) == 1
        assert (await read_answer(reader)).json == ["flights"]
        assert await offset_in(reader) == 2


@pytest.mark.parametrize("more", [False, True])
async def test_an_unparsed_request_that_was_surely_not_written_takes_the_usual_way(
    unparsed: list[bytes], more: bool
) -> None:
    apis = flights()
    async with connection(apis) as (_, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        held = HeldAppends(apis)
        apis.direct.fate = NOT_WRITTEN
        writer.write(post(ONE))
        await held.until(1)
        assert len(unparsed) == 1
        if more:
            writer.write(get("/topics"))
            await asyncio.sleep(0.02)
        held.held[0]()
        assert await offset_in(reader) == 1, "by the usual way, once"
        if more:
            assert (await read_answer(reader)).json == ["flights"]
        assert apis.logs["flights", 0].end == 2


async def test_a_known_head_with_a_body_for_the_usual_way(unparsed: list[bytes]) -> None:
    """The lane looks at each body: refusals have their one place."""
    bad = ONE.replace(b'"k"', b'\xff"k')[: len(ONE)]
    async with connection() as (_, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        writer.write(post(bad))
        assert (await read_answer(reader)).status == 400
        writer.write(post(ONE))
        assert await offset_in(reader) == 1
        assert unparsed == [post(ONE)]


async def test_a_stop_waits_for_an_unparsed_request_and_a_client_may_leave() -> None:
    apis = flights()
    async with connection(apis, grace_s=LONG_S) as (door, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        held = HeldAppends(apis)
        writer.write(post(ONE))
        await held.until(1)
        host, _, port = door.address.rpartition(":")
        _, other = await asyncio.open_connection(host, int(port))
        other.write(post(ONE))
        await held.until(2)
        other.transport.abort()
        stop = asyncio.get_running_loop().create_task(door.server.stop())
        await asyncio.sleep(0.1)
        assert not stop.done()
        for let_go in held.held:
            let_go()
        assert await offset_in(reader) == 1
        await stop


async def test_heads_that_are_kept_are_few_and_short(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[FastLane] = []
    made = FastLane.__init__

    def noted(lane: FastLane, *arguments: Any) -> None:
        made(lane, *arguments)
        lanes.append(lane)

    monkeypatch.setattr(FastLane, "__init__", noted)
    async with connection() as (_, reader, writer):
        (lane,) = lanes
        for headers in (("X-Request-Id: a",), ("X: " + "a" * 2_000,), ("Quorumlog-Other: 1",)):
            writer.write(post(ONE, "/topics/flights", *headers))
            await offset_in(reader)
            assert not lane.heads
        raw = ((b"Content-Type", JSON_V2.encode()),)
        for number in range(CACHE_ENTRIES_MAX + 5):
            lane.learn(b"%d" % number, "POST", "/topics/flights", raw, 10)
        assert len(lane.heads) == 5
        long = "a" * 2_000
        sent = [post(ONE, f"/topics/flights?{long}"), post(ONE, "/topics/flights", f"{long}: 1")]
        path = "/topics/flights/partitions/0/records?offset=0"
        sent += [get(path, f"Accept: text/{long}"), get(path, f"Accept-Encoding: {long}")]
        for request in sent:
            writer.write(request)
            await read_answer(reader)
        assert all(len(text) < len(long) for text in texts_kept_by(lane))


@pytest.mark.parametrize("blank", [b"\r\n\r\n", b"\n\r\n\r\n", b"\r\n\r\n\r\n"])
async def test_blank_lines_before_a_request_are_no_head(
    unparsed: list[bytes], blank: bytes
) -> None:
    """The parser skips them (RFC 9112, 2.2). Taken for its head, they made any body a request."""
    async with connection(flights()) as (door, reader, writer):
        writer.write(blank + post(ONE))
        assert await offset_in(reader) == 0
        writer.write(post(ONE))
        assert await offset_in(reader) == 1
        writer.write(post(ONE))
        assert await offset_in(reader) == 2
        assert not unparsed, "where its parser stands is not known any more"
        answer = await door.raw(blank + ONE)
        assert answer.status == 400
        assert door.apis.logs["flights", 0].end == 3


async def test_a_refusal_within_the_call_goes_the_usual_way_once() -> None:
    """A gathered write that is full is made at once, and may be refused at once."""
    apis = flights()
    asked = 0

    def refuse(request: Any, answered: Any) -> bool:
        nonlocal asked
        asked += 1
        answered(request.partition, -1, NOT_WRITTEN)
        return True

    async with connection(apis) as (door, reader, writer):
        produce, door.apis.direct.produce = door.apis.direct.produce, refuse  # type: ignore[method-assign]
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        assert asked == 1
        writer.write(post(ONE))  # by a head that is known now
        assert await offset_in(reader) == 1
        assert asked == 2
        door.apis.direct.produce = produce  # type: ignore[method-assign]
        writer.write(post(ONE) + get("/topics"))
        assert await offset_in(reader) == 2
        assert (await read_answer(reader)).json == ["flights"]
        assert apis.logs["flights", 0].end == 3


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_stop_does_not_wait_for_a_request_that_was_refused_meanwhile(
    is_known: bool,
) -> None:
    """A stopping server has no other way left for it: the connection ends, nothing is written."""
    apis = flights()
    async with connection(apis, grace_s=LONG_S) as (door, reader, writer):
        if is_known:
            writer.write(post(ONE))
            assert await offset_in(reader) == 0
        held = HeldAppends(apis)
        apis.direct.fate = NOT_WRITTEN
        writer.write(post(ONE))
        await held.until(1)
        stop = asyncio.get_running_loop().create_task(door.server.stop())
        await asyncio.sleep(0.05)
        held.held[0]()
        assert await asyncio.wait_for(reader.read(), LONG_S / 2) == b""
        await asyncio.wait_for(stop, LONG_S / 2)
        assert apis.logs["flights", 0].end == is_known


async def test_a_client_of_http_1_0_hears_that_its_connection_is_kept(
    unparsed: list[bytes],
) -> None:
    """Without that header the client waits for the connection's end, which does not come."""
    old = post(ONE, "/topics/flights/partitions/0", "Connection: keep-alive")
    old = old.replace(b"HTTP/1.1", b"HTTP/1.0")
    async with connection() as (_, reader, writer):
        for offset in range(3):
            writer.write(old)
            answer = await read_answer(reader)
            assert answer.headers["connection"] == "keep-alive"
            assert answer.json["offsets"][0]["offset"] == offset
        assert not unparsed


async def in_packets(writer: asyncio.StreamWriter, *packets: bytes) -> None:
    for packet in packets:
        writer.write(packet)
        await asyncio.sleep(0.01)


def cut(request: bytes, *at: int) -> list[bytes]:
    """The request in pieces, cut so many bytes behind its head."""
    head = request.index(b"\r\n\r\n") + 4
    ends = [0, *(head + each for each in at), len(request)]
    return [request[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize("at", [(0,), (1,), (10, 20, 30), tuple(range(len(ONE)))])
async def test_a_known_head_is_not_parsed_though_its_body_comes_later(
    unparsed: list[bytes], at: tuple[int, ...]
) -> None:
    async with open_door(flights()) as door:
        for number in range(2):
            host, _, port = door.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            for turn in range(2):
                await in_packets(writer, *cut(post(ONE), *at))
                assert await offset_in(reader) == 2 * number + turn
            writer.close()
        assert unparsed == [post(ONE)] * 3
        lines = [bytes(piece.lines) for piece in door.apis.logs["flights", 0].slices]
        assert len({line.partition(b",")[2] for line in lines}) == 1


async def test_a_long_body_in_many_packets_is_put_together_once(unparsed: list[bytes]) -> None:
    body = b'{"records":[%b]}' % b",".join([b'{"value":"%b"}' % (b"v" * 1_000)] * 1_500)
    async with connection(flights()) as (door, reader, writer):
        door.apis.max_message_bytes = 10**7
        for turn in range(2):
            writer.write(post(body))
            answer = await asyncio.wait_for(read_answer(reader), 10)
            assert answer.json["offsets"][-1]["offset"] == 1_500 * (turn + 1) - 1
        assert unparsed == [post(body)]


async def test_a_request_right_behind_a_body_in_packets_is_answered_in_its_order(
    unparsed: list[bytes],
) -> None:
    async with connection(flights()) as (_, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        head, body = cut(post(ONE), 5)
        await in_packets(writer, head, body + get("/topics") + post(ONE))
        assert await offset_in(reader) == 1
        assert (await read_answer(reader)).json == ["flights"]
        assert await offset_in(reader) == 2
        assert not unparsed


async def test_a_blank_line_behind_a_body_in_packets_is_none_of_it(unparsed: list[bytes]) -> None:
    """The line belongs to the next request (RFC 9112, 2.2), though JSON would take it, too."""
    async with connection(flights()) as (_, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        head, body = cut(post(ONE), 5)
        await in_packets(writer, head, body + b"\r\n")
        assert await offset_in(reader) == 1
        writer.write(post(ONE))
        assert await offset_in(reader) == 2
        assert not unparsed


async def test_a_known_head_whose_body_takes_too_long_takes_the_usual_way(
    unparsed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connection(flights()) as (door, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        taken = door.apis.direct.taken
        monkeypatch.setattr(lane_connection, "ARRIVING_BODY_S_MAX", 0.02)
        head, middle, rest = cut(post(ONE), 3, 9)
        await in_packets(writer, head, middle)
        await asyncio.sleep(0.05)
        writer.write(rest)
        assert await offset_in(reader) == 1
        assert door.apis.direct.taken == taken
        monkeypatch.undo()
        writer.write(post(ONE))
        assert await offset_in(reader) == 2
        assert door.apis.logs["flights", 0].end == 3
        assert len(unparsed) <= 1


async def test_a_known_head_with_more_than_is_held_takes_the_usual_way(
    unparsed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connection(flights()) as (door, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        monkeypatch.setattr(lane_connection, "ARRIVING_BODY_BYTES_MAX", len(ONE) - 1)
        await in_packets(writer, *cut(post(ONE), 4))
        assert await offset_in(reader) == 1
        assert door.apis.direct.taken == 1
        assert not unparsed


async def test_a_client_that_leaves_amid_a_body_behind_a_known_head_wrote_nothing(
    unparsed: list[bytes],
) -> None:
    async with open_door(flights()) as door:
        assert (await door.raw(post(ONE))).json["offsets"][0]["offset"] == 0
        host, _, port = door.address.rpartition(":")
        _, leaver = await asyncio.open_connection(host, int(port))
        await in_packets(leaver, *cut(post(ONE), 5)[:1])
        leaver.transport.abort()
        reader, writer = await asyncio.open_connection(host, int(port))
        await in_packets(writer, *cut(post(ONE), 5)[:1])
        await door.server.stop()  # waits for nobody who has not said it all
        assert await asyncio.wait_for(reader.read(), 1) == b""
        writer.close()
        assert door.apis.logs["flights", 0].end == 1
        assert not unparsed


@pytest.mark.parametrize("usual", ["a bad body", "surely not written"])
async def test_a_body_in_packets_takes_the_usual_way_whole(
    unparsed: list[bytes], usual: str
) -> None:
    apis = flights()
    async with connection(apis) as (_, reader, writer):
        writer.write(post(ONE))
        assert await offset_in(reader) == 0
        if usual == "a bad body":
            await in_packets(writer, *cut(post(ONE.replace(b'"k"', b"\xffkk")), 0, 9))
            assert (await read_answer(reader)).status == 400
            end = 1
        else:
            held = HeldAppends(apis)
            apis.direct.fate = NOT_WRITTEN
            await in_packets(writer, *cut(post(ONE), 0, 9))
            await held.until(1)
            writer.write(get("/topics"))
            held.held[0]()
            assert await offset_in(reader) == 1
            assert (await read_answer(reader)).json == ["flights"]
            apis.direct.fate = None
            end = 2
        assert apis.logs["flights", 0].end == end


async def test_states_of_a_connection_follow_each_other_as_the_table_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Produces whole and in packets, with a head that is new and one that is known."""
    seen = note_lane_transitions(monkeypatch)
    async with connection(flights()) as (_, reader, writer):
        for offset, pieces in enumerate([2, 1, 1, 2]):
            request = post(ONE)
            for piece in [request[: -len(ONE)], ONE] if pieces == 2 else [request]:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.02)  # packets of their own
            assert await offset_in(reader) == offset
        writer.write(post(ONE, "/topics/flights/partitions/1"))
        await offset_in(reader)
    assert seen == lane_connection.TRANSITIONS
