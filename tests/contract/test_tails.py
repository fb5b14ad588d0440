"""Tails: records as they come, in both forms of both APIs, with bounds, heartbeats and ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from broker.config import BrokerLimits
from http_api.server import streams, tails, topic_reader
from http_api.server.topic_reader import PIECE_BYTES
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import V3, Door, open_door
from tests.support.tail_stream import EVENTS, NDJSON, TailStream, open_tail
from tests.support.waiting import until

JSON_V2 = "application/vnd.kafka.json.v2+json"
TOPIC = "/topics/flights/records"
PARTITION = "/topics/flights/partitions/0/records"
SSE = {"Accept": EVENTS}


async def write(door: Door, *values: Any, partition: int = 0) -> None:
    rows = [{"value": value} for value in values]
    path = f"/topics/flights/partitions/{partition}"
    assert (await door.post(path, {"records": rows}, JSON_V2)).status == 200


@asynccontextmanager
async def tail(
    door: Door, path: str, accept: str | None = None, **headers: str
) -> AsyncIterator[TailStream]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with open_tail(door.address, path, accept, named) as stream:
        assert stream.status == 200, stream.body
        yield stream


async def refused(door: Door, path: str, accept: str | None = None) -> tuple[int, int, str]:
    async with open_tail(door.address, path, accept) as stream:
        error = orjson.loads(stream.body)
        return stream.status, error["error_code"], error["message"]


# forms


async def test_a_partition_s_stored_lines_come_as_they_are_written(door: Door) -> None:
    await write(door, 1, {"a": "b"})
    async with tail(door, f"{PARTITION}?follow=true&offset=0") as stream:
        assert stream.headers["content-type"] == NDJSON
        assert stream.headers["cache-control"] == "no-store"
        assert stream.headers["quorumlog-topic-id"].startswith("flights")
        assert await stream.line() == b'{"offset":0,"key":null,"value":1}'
        assert await stream.line() == b'{"offset":1,"key":null,"value":{"a":"b"}}'
        for number in range(5):
            await write(door, number)
            line = b'{"offset":%d,"key":null,"value":%d}' % (2 + number, number)
            assert await stream.line() == line


async def test_a_tail_without_a_start_begins_at_the_end(door: Door) -> None:
    await write(door, "old")
    async with (
        tail(door, f"{PARTITION}?follow=true") as one,
        tail(door, f"{TOPIC}?follow=true") as whole,
        tail(door, TOPIC, EVENTS) as events,
    ):
        await write(door, "new")
        assert (await one.json())["value"] == "new"
        assert (await whole.json())["value"] == "new"
        assert orjson.loads((await events.event() or ("", b""))[1])["value"] == "new"


async def test_a_whole_topic_s_lines_begin_with_their_partition(door: Door) -> None:
    await write(door, '{"offset":', partition=1)
    async with tail(door, f"{TOPIC}?follow=true&offset=earliest") as stream:
        assert await stream.line() == (
            b'{"partition":1,"offset":0,"key":null,"value":"{\\"offset\\":"}'
        )
        await write(door, 2, 3)
        assert await stream.line() == b'{"partition":0,"offset":0,"key":null,"value":2}'
        assert await stream.line() == b'{"partition":0,"offset":1,"key":null,"value":3}'


async def test_times_and_tokens_are_added_where_they_are_requested(door: Door) -> None:
    await write(door, 1)
    query = "follow=true&offset=0&include=tokens,timestamp"
    async with tail(door, f"{PARTITION}?{query}") as stream:
        first = await stream.json()
        assert await stream.line() == (
            b'{"offset":0,"timestamp":1700000000000,"key":null,"value":1}'
        )
        second = await stream.json()
        assert first.keys() == second.keys() == {"next"}
    async with tail(door, f"{PARTITION}?follow=true&after={first['next']}") as stream:
        assert (await stream.json())["offset"] == 0
    async with tail(door, f"{PARTITION}?follow=true&after={second['next']}") as stream:
        await write(door, 2)
        assert (await stream.json())["offset"] == 1


async def test_v3_has_its_own_shape(door: Door) -> None:
    record = {
        "headers": [{"name": "trace", "value": "AQI="}],
        "key": {"type": "STRING", "data": "alice"},
        "value": {"type": "BINARY", "data": "aGk="},
        "timestamp": "2026-01-31T12:00:00Z",
        "partition_id": 0,
    }
    sent = await door.post(f"{V3}{TOPIC}", orjson.dumps(record), "application/json")
    assert sent.status == 200
    await write(door, {"n": 1.50})
    first = (
        b'{"partition_id":0,"offset":0,"leader_epoch":4,"timestamp":"2026-01-31T12:00:00.000Z",'
        b'"headers":[{"name":"trace","value":"AQI="}],"key":{"type":"STRING","data":"alice"},'
        b'"value":{"type":"BINARY","data":"aGk="}}'
    )
    second = (
        b'{"partition_id":0,"offset":1,"leader_epoch":4,"timestamp":"2023-11-14T22:13:20.000Z",'
        b'"headers":[],"key":{"type":"JSON","data":null},"value":{"type":"JSON","data":{"n":1.5}}}'
    )
    for path in (V3 + TOPIC, V3 + PARTITION):
        async with tail(door, f"{path}?follow=true&offset=earliest") as stream:
            assert (await stream.line(), await stream.line()) == (first, second)
        async with tail(door, f"{path}?offset=earliest", EVENTS) as stream:
            assert await stream.event() == ("message", first)
            assert await stream.event() == ("message", second)


async def test_events_of_a_partition_have_an_id_each(door: Door) -> None:
    await write(door, 1, 2)
    async with tail(door, f"{PARTITION}?offset=0&end_offset=2", EVENTS) as stream:
        assert stream.headers["content-type"] == EVENTS
        ids = []
        while (found := await stream.event()) is not None:
            ids.append((found, stream.last_id))
        assert stream.retry_ms == 1000
        assert stream.body.startswith(b"retry: 1000\nid: ")
    assert [name for (name, _), _ in ids] == ["message", "message", "end"]
    assert ids[2][0][1] == b'{"reason":"bound"}'
    assert ids[1][1] == ids[2][1]
    lines = stream.body.split(b"\n\n")[1]
    assert lines.startswith(b"id: ")
    assert lines.endswith(b'\ndata: {"offset":0,"key":null,"value":1}')


async def test_events_of_a_topic_have_an_id_at_the_last_of_a_flush(door: Door) -> None:
    await write(door, *range(20))
    path = f"{TOPIC}?offset=earliest&end_timestamp=1900000000000"
    async with tail(door, path, EVENTS) as stream:
        body = await stream.rest()
    records = [each for each in body.split(b"\n\n") if b'"partition":' in each]
    assert len(records) == 20
    assert [each.count(b"id: ") for each in records] == [0] * 19 + [1]


# going on


async def test_a_partition_goes_on_exactly_behind_each_id(door: Door) -> None:
    await write(door, *range(8))
    bounded = f"{PARTITION}?offset=3&end_offset=8"
    async with tail(door, bounded, EVENTS) as stream:
        ids = [(await stream.event(), stream.last_id)[1] for _ in range(5)]
        whole = stream.body
    seen = [each.partition(b"\n")[0][4:].decode() for each in whole.split(b"\n\n")[1:6]]
    assert seen == [*dict.fromkeys(seen)]
    assert ids[-1] == seen[-1]
    for number, last_id in enumerate(seen):
        async with tail(door, bounded, EVENTS, Last_Event_ID=last_id) as stream:
            data = [
                orjson.loads((await stream.event() or ("", b"{}"))[1]) for _ in range(4 - number)
            ]
            assert [record["offset"] for record in data] == list(range(4 + number, 8))
            assert await stream.event() == ("end", b'{"reason":"bound"}')
        after = f"{PARTITION}?follow=true&after={last_id}&end_offset=8"
        async with tail(door, after) as stream:
            assert (await stream.rest()).count(b"\n") == 4 - number


async def test_a_reader_that_got_nothing_yet_goes_on_where_it_began(door: Door) -> None:
    await write(door, "old")
    for path in (TOPIC, PARTITION):
        async with tail(door, path, EVENTS) as stream:
            last_id = await stream.opening_id()
        await write(door, path)
        async with tail(door, path, EVENTS, Last_Event_ID=last_id) as stream:
            found = await stream.event()
            assert found is not None
            assert orjson.loads(found[1])["value"] == path


async def test_the_first_token_is_that_of_the_start_even_if_records_follow_at_once(
    door: Door,
) -> None:
    await write(door, *range(5))
    for path in (TOPIC, PARTITION):
        query = "follow=true&offset=earliest&include=tokens"
        async with tail(door, f"{path}?{query}") as stream:
            first = (await stream.json())["next"]
        async with tail(door, f"{path}?follow=true&after={first}") as stream:
            assert (await stream.json())["offset"] == 0


async def test_every_token_of_a_topic_goes_on_at_another_broker_without_a_gap(door: Door) -> None:
    for number in range(30):
        await write(door, "x" * 30_000, partition=number % 2)
    tokens: list[tuple[str, set[tuple[int, int]]]] = []
    got: set[tuple[int, int]] = set()
    async with tail(door, f"{TOPIC}?follow=true&offset=earliest&include=tokens") as stream:
        while len(got) < 30 or not tokens or tokens[-1][1] != got:
            line = await stream.json()
            if "next" in line:
                tokens.append((line["next"], set(got)))
            else:
                got.add((line["partition"], line["offset"]))
    assert len(tokens) >= 5, "several flushes"
    async with open_door(door.apis) as other:  # another listener, which knows nothing of the first
        for token, before in tokens:
            path = f"{TOPIC}?follow=true&after={token}&end_timestamp=1900000000000"
            async with tail(other, path) as stream:
                rest = [orjson.loads(line) for line in (await stream.rest()).splitlines()]
            after = {(each["partition"], each["offset"]) for each in rest}
            assert not after & before
            assert after | before == got


async def test_a_partition_that_was_added_is_read_from_its_first_record(door: Door) -> None:
    await write(door, "a")
    async with (
        tail(door, f"{TOPIC}?follow=true&include=tokens") as stream,
        tail(door, f"{TOPIC}?follow=true") as other,
    ):
        token = (await stream.json())["next"]
        logs = dict(door.apis.logs)
        door.apis.add_topic("flights", 3)
        door.apis.logs.update(logs)
        await write(door, "first", partition=2)
        for each in (stream, other):
            record = await each.json()
            assert (record["partition"], record["offset"]) == (2, 0)
    async with tail(door, f"{TOPIC}?follow=true&after={token}") as stream:
        assert (await stream.json())["partition"] == 2


# heartbeats, ends


async def test_silence_is_broken_by_a_heartbeat_in_each_form(door: Door) -> None:
    beat = "heartbeat_ms=1000"

    async def lines(query: str) -> list[bytes | None]:
        async with tail(door, f"{TOPIC}?follow=true&{beat}{query}") as stream:
            return [await stream.line() for _ in range(2 if query else 1)]

    async def events() -> bytes:
        async with tail(door, f"{PARTITION}?{beat}", EVENTS) as stream:
            await stream.opening_id()
            await stream.opening_id()
            return stream.body

    plain, with_tokens, sse = await asyncio.gather(lines(""), lines("&include=tokens"), events())
    assert plain == [b""]
    assert with_tokens[0] == with_tokens[1]
    assert orjson.loads(with_tokens[0] or b"")["next"]
    opening, heartbeat, _ = sse.split(b"\n\n")
    assert opening.splitlines()[0] == b"retry: 1000"
    assert heartbeat == b":\n" + opening.splitlines()[1]


async def test_a_bound_that_is_reached_ends_the_tail(door: Door) -> None:
    await write(door, 1, 2, 3)
    async with tail(door, f"{PARTITION}?follow=true&offset=1&end_offset=4") as stream:
        assert (await stream.json())["offset"] == 1
        assert (await stream.json())["offset"] == 2
        await write(door, 4, 5)
        assert (await stream.json())["offset"] == 3
        assert await stream.line() is None
        assert stream.ended_whole
    for query in ("offset=4&end_offset=4", "offset=earliest&end_timestamp=0"):
        async with tail(door, f"{PARTITION}?follow=true&{query}") as stream:
            assert await stream.rest() == b""
    async with tail(
        door, f"{PARTITION}?follow=true&timestamp=0&end_timestamp=1900000000000"
    ) as stream:
        assert (await stream.rest()).count(b"\n") == 5


async def test_the_broker_s_end_ends_the_tail_with_a_last_token() -> None:
    async with open_door() as door:
        await write(door, 1)
        async with (
            tail(door, f"{TOPIC}?follow=true&include=tokens&offset=earliest") as lines,
            tail(door, PARTITION, EVENTS) as events,
        ):
            assert [list(await lines.json()) for _ in range(3)][1][0] == "partition"
            started = asyncio.get_running_loop().time()
            await door.server.stop()
            assert list(await lines.json()) == ["next"]
            assert await lines.line() is None
            assert await events.event() == ("end", b'{"reason":"shutdown"}')
            assert await events.event() is None
            assert lines.ended_whole
            assert events.ended_whole
            assert asyncio.get_running_loop().time() - started < 0.9, "within no grace at all"


async def test_a_tail_ends_after_a_day(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails, "STREAM_S_MAX", 0.2)
    async with tail(door, PARTITION, EVENTS) as stream:
        assert await stream.event() == ("end", b'{"reason":"max_age"}')
        assert await stream.event() is None


def cut(door: Door, to: int) -> None:
    """Cut the log of partition 0, as an unclean election does; the next epoch begins there."""
    log = door.apis.logs["flights", 0]
    log.slices = [each for each in log.slices if each.next_offset <= to]
    log.end, log.leader_epoch = to, 6


async def test_a_log_that_was_cut_ends_the_tail_with_the_error_and_skips_nothing(
    door: Door,
) -> None:
    await write(door, *range(10))
    async with (
        tail(door, f"{PARTITION}?follow=true&offset=8") as lines,
        tail(door, f"{TOPIC}?offset=earliest", EVENTS) as events,
    ):
        assert [(await lines.json())["offset"] for _ in range(2)] == [8, 9]
        for _ in range(10):
            await events.event()
        last_id = events.last_id
        cut(door, 5)
        await write(door, *range(7))
        error = await lines.json()
        assert error["error_code"] == 40950
        assert (error["diverging_offset"], error["diverging_epoch"]) == (5, 4)
        assert "truncated" in error["message"]
        assert await lines.line() is None
        found = await events.event()
        assert found is not None
        assert (found[0], orjson.loads(found[1])["error_code"]) == ("error", 40950)
        assert await events.event() is None
        assert lines.ended_whole
        assert events.ended_whole
    async with open_tail(door.address, TOPIC, EVENTS, {"Last-Event-ID": last_id}) as again:
        assert again.status == 409
        assert again.headers["quorumlog-diverging-offset"] == "5"
        assert orjson.loads(again.body)["error_code"] == 40950


@pytest.mark.parametrize("start", ["offset=latest", "timestamp=1900000000000"])
async def test_a_cut_is_noticed_by_a_tail_that_has_read_nothing_yet(door: Door, start: str) -> None:
    """The log is as long again before its next record comes: only its epoch tells."""
    await write(door, *range(10))
    async with tail(door, f"{PARTITION}?follow=true&{start}&include=tokens") as stream:
        token = (await stream.json())["next"]
    cut(door, 5)
    await write(door, *range(7))
    status, code, _ = await refused(door, f"{PARTITION}?follow=true&after={token}")
    assert (status, code) == (409, 40950)


async def test_a_reader_that_retention_has_passed_is_told(door: Door) -> None:
    await write(door, *range(10))
    status, code, message = await refused(door, f"{PARTITION}?follow=true&offset=99")
    assert (status, code) == (400, 40002)
    assert "offset 99" in message
    door.apis.logs["flights", 0].start = 5
    status, code, message = await refused(door, f"{PARTITION}?follow=true&offset=3")
    assert (status, code) == (400, 40002)
    async with tail(door, f"{TOPIC}?follow=true&offset=earliest") as stream:
        assert (await stream.json())["offset"] == 5


async def test_a_topic_that_is_deleted_ends_its_tails(door: Door) -> None:
    async with (
        tail(door, f"{TOPIC}?follow=true") as whole,
        tail(door, f"{PARTITION}?follow=true&include=tokens") as one,
    ):
        token = (await one.json())["next"]
        door.apis.set_topics({})
        door.apis.fetch_error = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        error = await whole.json()
        assert error["error_code"] == 40402
        assert await whole.line() is None
    assert (await refused(door, f"{TOPIC}?follow=true"))[:2] == (404, 40401)
    assert (await refused(door, f"{PARTITION}?follow=true&after={token}"))[:2] == (404, 40402)


async def test_a_leader_that_is_away_is_a_pause(door: Door) -> None:
    apis = door.apis
    await write(door, "a")
    async with tail(door, f"{TOPIC}?follow=true&offset=earliest") as stream:
        assert (await stream.json())["value"] == "a"
        apis.fetch_error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        apis.change_partition("flights", 1, leader=BrokerId(-1))
        await write(door, "b")
        await asyncio.sleep(0.05)
        apis.fetch_error = None
        assert (await stream.json())["value"] == "b"
        await write(door, "c")
        assert (await stream.json())["value"] == "c"
        apis.change_partition("flights", 1, leader=BrokerId(2))
        await write(door, "d", partition=1)
        assert (await stream.json())["value"] == "d"


async def test_leaders_that_are_not_reached_keep_no_tail_from_its_heartbeats_and_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each partition takes longer to fail than until the other is tried again."""
    monkeypatch.setattr(topic_reader, "RETRY_S", 0.01)
    async with open_door(limits=BrokerLimits(max_streams=1)) as door:
        door.apis.fetch_error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        door.apis.fetch_error_after_s = 0.05
        path = f"{TOPIC}?follow=true&heartbeat_ms=1000&offset=0"
        async with tail(door, path) as stream:
            assert await stream.line() == b""
        await has_room(door)  # the client that went has given its stream back
    async with open_door(door.apis) as door, tail(door, path, EVENTS) as stream:
        await stream.opening_id()
        await asyncio.wait_for(door.server.stop(), 0.9)
        assert await stream.event() == ("end", b'{"reason":"shutdown"}')


# refusals


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (f"{PARTITION}?follow=true&max_bytes=5", "'max_bytes' belongs to a page"),
        (f"{PARTITION}?follow=true&timeout=5", "'timeout' belongs to a page"),
        (f"{PARTITION}?follow=true&frames=many", "'frames' belongs to a page"),
        (f"{PARTITION}?follow=true&rack=a", "'rack' belongs to a page"),
        (f"{PARTITION}?offset=0&heartbeat_ms=1000", "'heartbeat_ms' belongs to a tail"),
        (f"{PARTITION}?follow=true&heartbeat_ms=999", "an integer from 1000 to 60000"),
        (f"{PARTITION}?follow=true&heartbeat_ms=60001", "an integer from 1000 to 60000"),
        (f"{PARTITION}?follow=perhaps", "expected true or false"),
        (f"{PARTITION}?follow=true&include=batches", "tokens, timestamp or tokens,timestamp"),
        (f"{PARTITION}?follow=true&offset=5&end_offset=4", "at least the start of the read, 5"),
        (f"{PARTITION}?follow=true&offset=0&timestamp=0", "are both given"),
        (f"{PARTITION}?follow=true&offset=0&after=x", "'offset' and 'after' are both given"),
        (f"{PARTITION}?follow=true&leader_epoch=4", "expected it beside 'offset=N' only"),
        (f"{TOPIC}?follow=true&end_offset=4", "'end_offset' is not known here"),
        (f"{TOPIC}?follow=true&offset=soon", "'offset' is 'soon'"),
        (f"{TOPIC}?follow=true&after=x", "expected a token as it was sent"),
        (f"{TOPIC}?heartbeat_ms=1000", "'heartbeat_ms' belongs to a tail"),
        (f"{V3}{TOPIC}?follow=true&include=timestamp", "expected tokens"),
        (f"{V3}{TOPIC}?include=tokens", "expected it beside 'follow=true' only"),
    ],
)
async def test_a_parameter_that_makes_no_sense_is_refused(door: Door, path: str, says: str) -> None:
    status, code, message = await refused(door, path)
    assert (status, code) == (400, 40002)
    assert says in message


@pytest.mark.parametrize("path", [TOPIC, PARTITION, V3 + TOPIC, V3 + PARTITION])
async def test_only_the_two_types_of_a_tail_are_taken(door: Door, path: str) -> None:
    for accept in ("application/json", JSON_V2, "text/html"):
        status, _, message = await refused(door, f"{path}?follow=true", accept)
        assert status == 406
        assert message.endswith("application/x-ndjson, text/event-stream")
    for accept in (None, "*/*", NDJSON, f"text/html, {NDJSON};q=0.5"):
        async with tail(door, f"{path}?follow=true", accept) as stream:
            assert stream.headers["content-type"] == NDJSON
    both = f"{EVENTS}, */*;q=0.1"
    async with tail(door, path + "?offset=earliest", both) as stream:
        assert stream.headers["content-type"] == EVENTS


async def test_topics_and_partitions_that_are_not_there(door: Door) -> None:
    for path, code in (
        ("/topics/none/records?follow=true", 40401),
        ("/topics/none/partitions/0/records?follow=true", 40402),
        ("/topics/flights/partitions/2/records?follow=true", 40402),
        (f"{V3}/topics/none/records?follow=true", 40401),
        (f"{V3}/topics/flights/partitions/9/records?follow=true", 40402),
    ):
        assert (await refused(door, path))[:2] == (404, code)


async def test_a_head_of_a_tail_is_its_head(door: Door) -> None:
    for path in (TOPIC, PARTITION):
        answer = await door.call("HEAD", f"{path}?follow=true")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.type == NDJSON


async def test_a_topic_with_too_many_partitions_is_read_partition_by_partition() -> None:
    apis = FakeBrokerApis()
    apis.add_topic("flights", 257)
    async with open_door(apis) as door:
        for path in (f"{TOPIC}?follow=true", TOPIC, V3 + TOPIC):
            status, code, message = await refused(door, path)
            assert (status, code) == (400, 40002)
            assert "has 257 partitions, and at most 256 are read as a whole" in message
        async with tail(door, "/topics/flights/partitions/256/records?follow=true"):
            pass
    apis = FakeBrokerApis()
    apis.add_topic("flights", 256)
    async with open_door(apis) as door:
        path = f"{TOPIC}?follow=true&include=tokens"
        async with tail(door, path) as stream:
            token = (await stream.json())["next"]
        async with tail(door, f"{TOPIC}?follow=true&after={token}") as stream:
            await write(door, 1, partition=255)
            assert (await stream.json())["partition"] == 255
        apis.add_topic("flights", 257)
        for path in (f"{TOPIC}?follow=true&after={token}", f"{TOPIC}?after={token}"):
            status, code, message = await refused(door, path)
            assert (status, code) == (400, 40002), "else its next token could not be read"
            assert "has 257 partitions" in message


# limits


async def test_streams_are_counted_and_given_back_when_the_client_goes() -> None:
    async with open_door(limits=BrokerLimits(max_streams=2)) as door:
        async with (
            tail(door, f"{TOPIC}?follow=true"),
            tail(door, PARTITION, EVENTS),
            open_tail(door.address, PARTITION, EVENTS) as third,
        ):
            assert third.status == 503
            assert third.headers["retry-after"] == "1"
            assert orjson.loads(third.body)["error_code"] == 50302
        await has_room(door)  # the end of an idle client is noticed at once, not at a heartbeat


async def test_idle_tails_of_a_partition_share_one_wait(door: Door) -> None:
    await write(door, 1)
    async with several(door, f"{PARTITION}?follow=true", 40) as opened:
        waiting = [each for each in door.apis.requests if getattr(each, "max_wait_ms", 0) > 1_000]
        assert len(waiting) == 1
        await write(door, 2)
        assert [(await each.json())["offset"] for each in opened] == [1] * 40


@asynccontextmanager
async def several(door: Door, path: str, count: int) -> AsyncIterator[list[TailStream]]:
    opened = [tail(door, path) for _ in range(count)]
    try:
        yield [await each.__aenter__() for each in opened]
    finally:
        for each in opened:
            await each.__aexit__(None, None, None)


VALUE_BYTES = 30_000
VALUES = 400
READS_HELD_MAX = 130
"""Reads of two values that the buffers of the kernel, 4 MB, and of the listener can hold."""


def reads(door: Door) -> int:
    """Return how often the log was read for tails."""
    return sum(getattr(each, "max_bytes", 0) == PIECE_BYTES for each in door.apis.requests)


async def fill(door: Door) -> None:
    for _ in range(VALUES):
        await write(door, "x" * VALUE_BYTES)


@pytest.mark.parametrize("accept", [NDJSON, EVENTS])
async def test_a_reader_that_never_reads_costs_one_buffer_and_is_closed(
    monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    monkeypatch.setattr(streams, "PROGRESS_S_MAX", 0.3)
    async with open_door(limits=BrokerLimits(max_streams=1)) as door:
        await fill(door)
        path = f"{PARTITION}?follow=true&offset=0"
        async with open_tail(door.address, path, accept, receive_bytes=4_096):
            await asyncio.sleep(0.2)
            held = reads(door)
            assert 0 < held < READS_HELD_MAX, "the log is not read for it"
            await write(door, "meanwhile")
            await has_room(door)
            assert reads(door) < READS_HELD_MAX


async def has_room(door: Door) -> None:
    """Wait until one more stream may be opened."""
    started = asyncio.get_running_loop().time()
    while True:
        async with open_tail(door.address, TOPIC, EVENTS) as again:
            if again.status == 200:
                return
        assert asyncio.get_running_loop().time() - started < 3
        await asyncio.sleep(0.02)


async def test_a_reader_of_little_at_a_time_is_kept_and_costs_one_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streams, "PROGRESS_S_MAX", 0.4)
    async with open_door() as door:
        await fill(door)
        path = f"{PARTITION}?follow=true&offset=0&end_offset={VALUES}"
        async with open_tail(door.address, path, receive_bytes=4_096) as stream:
            for _ in range(8):  # for twice as long as one may take nothing
                assert await stream.take(20_000)
                await asyncio.sleep(0.1)
            assert reads(door) < READS_HELD_MAX


async def test_a_client_that_takes_no_heartbeat_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that waits for it is far less than a tail may hold, and more than the kernel takes."""
    monkeypatch.setattr(streams, "PROGRESS_S_MAX", 0.5)
    monkeypatch.setattr(tails, "UNSENT_BYTES_MAX", 1 << 30)
    async with open_door(limits=BrokerLimits(max_streams=1)) as door:
        await fill(door)
        path = f"{PARTITION}?follow=true&offset=0&heartbeat_ms=1000"
        async with open_tail(door.address, path, receive_bytes=4_096):
            await until(lambda: reads(door) >= VALUES // 2)
            await has_room(door)
