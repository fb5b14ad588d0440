"""Topics with compression.type=zstd, seen through the door: who gets frames, and what is in them.

Every case with the fast lane and without it, byte for byte the same.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
import zstandard

from broker.record.batch import BatchError, RecordFormat
from broker.record.compression import FramedBody
from broker.server.requests import FetchRequest
from http_api.server import fast_lane
from http_api.server.routes.v2 import fetch_records
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId, TopicName
from tests.support.http_door import FAST_LANE, Answer, Door, open_door
from tests.support.lane_requests import get
from tests.support.logs import records as records_of

RECORDS = "/topics/flights/partitions/0/records"
NDJSON = "Accept: application/x-ndjson"
ZSTD = "Accept-Encoding: zstd"
VALUES = [{"n": n, "text": "on time, as ever; " * 30} for n in range(6)]
SHORT = {"n": "short"}


async def filled(door: Door, *, zstd: bool = True) -> None:
    """Three compressed batches, a plain one, three compressed ones."""
    apis = door.apis
    log = apis.logs[TopicName("flights"), PartitionId(0)]
    log.zstd = zstd
    for value in [*VALUES[:3], SHORT, *VALUES[3:]]:
        json = RecordFormat.JSON
        apis.append_records(log, records_of([value]), json, json)


@asynccontextmanager
async def both_doors() -> AsyncIterator[tuple[Door, Door]]:
    lane = FAST_LANE.set(True)
    async with open_door() as fast:
        FAST_LANE.set(False)
        async with open_door() as usual:
            for door in (fast, usual):
                await filled(door)
            yield fast, usual
    FAST_LANE.reset(lane)


def unpacked(body: bytes) -> bytes:
    reader = zstandard.ZstdDecompressor(max_window_size=1 << 23).stream_reader(
        body, read_across_frames=True
    )
    return bytes(reader.read())


def same_but_for_time_and_id(answer: Answer) -> tuple[object, ...]:
    told = {name: text for name, text in answer.headers.items() if name != "date"}
    told["x-request-id"] = re.sub("[0-9a-f-]+", "id", told["x-request-id"])
    return answer.status, list(told.items()), answer.body


MANY = [
    get(f"{RECORDS}?offset=0&frames=many", NDJSON, ZSTD),
    get(f"{RECORDS}?offset=3&frames=many", NDJSON, "Accept-Encoding: gzip, deflate, br, zstd"),
    get(f"{RECORDS}?offset=0&include=batches&frames=many", NDJSON, ZSTD),
]
FRAMED = [
    *MANY,
    get(f"{RECORDS}?offset=0", NDJSON, ZSTD),
    get(f"{RECORDS}?offset=2", NDJSON, "Accept-Encoding: gzip, deflate, br, zstd"),
    get(f"{RECORDS}?offset=3", NDJSON, "Accept-Encoding: gzip;q=1.0, zstd;q=0.3"),
    get(f"{RECORDS}?offset=0&include=batches", NDJSON, ZSTD),
    get(f"{RECORDS}?offset=0", NDJSON, "Accept-Encoding: gzip", ZSTD),
    get(f"{RECORDS}?timestamp=0", NDJSON, ZSTD),
    get(f"{RECORDS}?offset=0", NDJSON, ZSTD).replace(b"GET", b"HEAD"),
]
PLAIN = [
    get(f"{RECORDS}?offset=0", NDJSON),
    get(f"{RECORDS}?offset=0", NDJSON, "Accept-Encoding: gzip, deflate, br"),
    get(f"{RECORDS}?offset=0", NDJSON, "Accept-Encoding: zstd;q=0"),
    get(f"{RECORDS}?offset=0", NDJSON, "Accept-Encoding: *"),
    get(f"{RECORDS}?offset=0&frames=many", NDJSON),
    get(f"{RECORDS}?offset=0&frames=many&max_bytes=10", NDJSON),
    get(f"{RECORDS}?offset=0&include=timestamp", NDJSON, ZSTD),
    get(f"{RECORDS}?offset=0&include=batches", NDJSON),
    get(f"{RECORDS}?offset=0", ZSTD),
    get(f"{RECORDS}?offset=0", "Accept: application/vnd.kafka.binary.v2+json", ZSTD),
    get(f"{RECORDS}?offset=0", "Accept: application/vnd.quorumlog.lines+json", ZSTD),
    get(f"{RECORDS}?offset=7&timeout=0", NDJSON, ZSTD),
]


REFUSED = [
    get(f"{RECORDS}?offset=0&frames=2", NDJSON, ZSTD),
    get(f"{RECORDS}?offset=0&frames=many&frames=many", NDJSON, ZSTD),
    get(f"{RECORDS}?offset=0&frames=", NDJSON),
]


@pytest.mark.parametrize("request_", FRAMED + PLAIN + REFUSED)
async def test_both_ways_send_the_same(request_: bytes) -> None:
    async with both_doors() as (fast, usual):
        assert same_but_for_time_and_id(await fast.raw(request_)) == same_but_for_time_and_id(
            await usual.raw(request_)
        )


@pytest.mark.parametrize("request_", FRAMED)
@pytest.mark.parametrize("lane", [True, False])
async def test_a_client_that_takes_zstd_gets_frames_of_the_same_lines(
    request_: bytes, lane: bool
) -> None:
    token = FAST_LANE.set(lane)
    async with open_door() as door:
        await filled(door)
        answer = await door.raw(request_)
        plain = await door.raw(re.sub(rb"Accept-Encoding[^\r]*\r\n", b"", request_))
        taken = door.apis.direct.taken
    FAST_LANE.reset(token)
    assert answer.status == plain.status == 200
    assert answer.headers["content-encoding"] == "zstd"
    assert answer.headers["vary"] == plain.headers["vary"] == "Accept-Encoding"
    assert answer.type == plain.type == "application/x-ndjson"
    assert answer.headers["quorumlog-decoded-length"] == plain.headers["content-length"]
    assert unpacked(answer.body) == plain.body
    assert len(answer.body) < len(plain.body) / 2 or request_.startswith(b"HEAD")
    for name in ("quorumlog-next-offset", "quorumlog-high-watermark", "quorumlog-topic-id"):
        assert answer.headers[name] == plain.headers[name]
    assert (taken > 0) <= lane
    if request_ not in MANY and answer.body:
        assert first_frame(answer.body) == plain.body, "who reads one frame alone loses nothing"


def first_frame(body: bytes) -> bytes:
    """What a reader gets that knows of one frame only, and is silent about the rest."""
    return bytes(zstandard.ZstdDecompressor().decompress(body, allow_extra_data=True))


@pytest.mark.parametrize("lane", [True, False])
async def test_a_reader_of_one_frame_alone_sees_every_record(lane: bool) -> None:
    """Also where more is there than is put into one: it goes on behind what it saw."""
    token = FAST_LANE.set(lane)
    async with open_door() as door:
        await filled(door)
        log = door.apis.logs[TopicName("flights"), PartitionId(0)]
        json, large = RecordFormat.JSON, {"text": "far too late; " * 30_000}
        for value in [large, large, large, SHORT, large]:
            door.apis.append_records(log, records_of([value]), json, json)
        seen: list[int] = []
        offset = answers = 0
        while offset < log.end:
            answer = await door.raw(get(f"{RECORDS}?offset={offset}&timeout=0", NDJSON, ZSTD))
            zstd = answer.headers.get("content-encoding") == "zstd"
            lines = first_frame(answer.body) if zstd else answer.body
            seen += [orjson.loads(line)["offset"] for line in lines.splitlines()]
            offset = int(answer.headers["quorumlog-next-offset"])
            answers += 1
    FAST_LANE.reset(token)
    assert seen == list(range(12))
    assert answers > 1


@pytest.mark.parametrize(("frames", "read"), [("", 1 << 20), ("&frames=many", 50 << 20)])
@pytest.mark.parametrize("lane", [True, False])
async def test_no_more_is_read_than_is_sent(frames: str, read: int, lane: bool) -> None:
    """For one frame of 1 MiB 64 MiB were read, or came from another broker: 30 ms of the loop."""
    token = FAST_LANE.set(lane)
    asked: list[int] = []
    async with open_door() as door:
        await filled(door)
        direct = door.apis.direct.fetch

        def seen(*place: Any, **options: bool) -> Any:
            asked.append(place[3])
            return direct(*place, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(door.apis.direct, "fetch", seen)
            target = f"{RECORDS}?offset=0&max_bytes={50 << 20}{frames}"
            answer = await door.raw(get(target, NDJSON, ZSTD))
        asked += [each.max_bytes for each in door.apis.requests if isinstance(each, FetchRequest)]
    FAST_LANE.reset(token)
    assert answer.status == 200
    assert set(asked) == {read}


@pytest.mark.parametrize("request_", [each for each in FRAMED[:-2] if each not in MANY])
async def test_a_compressed_answer_reads_its_records_once(request_: bytes) -> None:
    """The lane read, and left it to the route, which read again."""
    reads = 0
    async with open_door() as door:
        await filled(door)
        result_of: Any = door.apis.result_of

        def counted(*place: Any, **options: bool) -> Any:
            nonlocal reads
            reads += 1
            return result_of(*place, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(door.apis, "result_of", counted)
            answer = await door.raw(request_)
    assert answer.headers["content-encoding"] == "zstd"
    assert reads == 1


@pytest.mark.parametrize("lane", [True, False])
async def test_a_frame_that_cant_be_unpacked_is_left_to_who_reads_the_log(lane: bool) -> None:
    """There it is rot (invariant L22): the log fails, and what stands before it is served."""
    token = FAST_LANE.set(lane)
    async with open_door() as door:
        await filled(door)
        plain = await door.raw(get(f"{RECORDS}?offset=0", NDJSON))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fetch_records, "framed_as_single", broken)
            patch.setattr(fast_lane, "framed_as_single", broken)
            answer = await door.raw(get(f"{RECORDS}?offset=0", NDJSON, ZSTD))
    FAST_LANE.reset(token)
    assert answer.status == 200
    assert "content-encoding" not in answer.headers
    assert answer.body == plain.body


def broken(*_: object) -> FramedBody:
    raise BatchError("broken zstd frame: data corruption detected")


@pytest.mark.parametrize("request_", PLAIN)
@pytest.mark.parametrize("lane", [True, False])
async def test_others_get_lines(request_: bytes, lane: bool) -> None:
    """As from a topic that never was compressed, to the byte."""
    token = FAST_LANE.set(lane)
    async with open_door() as door, open_door() as other:
        await filled(door)
        await filled(other, zstd=False)
        answer, expected = await door.raw(request_), await other.raw(request_)
    FAST_LANE.reset(token)
    assert answer.status == 200
    assert "content-encoding" not in answer.headers
    assert answer.body == expected.body
    varies = NDJSON.encode() in request_  # the type may be switched at any time
    assert answer.headers.get("vary") == ("Accept-Encoding" if varies else None)
    assert expected.headers.get("vary") == answer.headers.get("vary")


@pytest.mark.parametrize("lane", [True, False])
async def test_nothing_compressed_stays_plain(lane: bool) -> None:
    token = FAST_LANE.set(lane)
    async with open_door() as door:
        await filled(door, zstd=False)
        answer = await door.raw(get(f"{RECORDS}?offset=0", NDJSON, ZSTD))
    FAST_LANE.reset(token)
    assert "content-encoding" not in answer.headers
    assert [orjson.loads(line)["offset"] for line in answer.body.splitlines()] == list(range(7))


async def test_errors_are_plain() -> None:
    async with open_door() as door:
        await filled(door)
        for error, status in (
            (KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "out of range"), 400),
            (KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "offline"), 503),
        ):
            door.apis.fetch_error = error
            answer = await door.raw(get(f"{RECORDS}?offset=0", NDJSON, ZSTD))
            assert answer.status >= status
            assert "content-encoding" not in answer.headers
            assert answer.json["error_code"]
