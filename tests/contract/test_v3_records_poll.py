"""``records:poll``: pages of many partitions with exact lengths, and every body that is none."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.config import BrokerLimits
from broker.server.requests import PollPage, PollRequest
from http_api.contract.errors import RestError
from http_api.contract.operations.poll_operations import ROWS_MAX
from http_api.server.routes.v3.records_poll import read_poll
from raft_metadata.common.errors import ErrorCode, KafkaError
from tests.support.http_door import V3, Answer, Door

JSON_V2 = "application/vnd.kafka.json.v2+json"
NDJSON = "application/x-ndjson"
PAGES = "application/vnd.quorumlog.pages"
POLL = f"{V3}/records:poll"
LIMITS = BrokerLimits()

Page = tuple[dict[str, Any], bytes]


def row(
    partition: int = 0, offset: int = 0, topic: str = "flights", **more: object
) -> dict[str, Any]:
    return {"topic_name": topic, "partition_id": partition, "offset": offset, **more}


async def write(door: Door, partition: int, *values: object, topic: str = "flights") -> None:
    rows = [{"value": value} for value in values]
    path = f"/topics/{topic}/partitions/{partition}"
    assert (await door.post(path, {"records": rows}, JSON_V2)).status == 200


async def poll(door: Door, *rows: dict[str, Any], **options: object) -> Answer:
    body = {"partitions": rows, "wait_ms": 0, **options}
    return await door.post(POLL, body, "application/json")


def pages(answer: Answer) -> list[Page]:
    """Cut the pages by their lengths alone, as a client does."""
    assert answer.status == 200, answer.body
    assert int(answer.headers["content-length"]) == len(answer.body)
    found, at = [], 0
    while at < len(answer.body):
        end = answer.body.index(b"\n", at)
        head = orjson.loads(answer.body[at:end])["page"]
        at = end + 1 + head["bytes"]
        assert at <= len(answer.body)
        found.append((head, answer.body[end + 1 : at]))
    return found


async def test_pages_of_what_has_records_in_the_bodys_order(door: Door) -> None:
    door.apis.add_topic("orders")
    await write(door, 1, {"a": 1}, '{"page":')
    await write(door, 0, 7, topic="orders")
    answer = await poll(door, row(topic="orders"), row(0), row(1))
    assert answer.type == NDJSON
    (first, _), (second, lines) = pages(answer)
    assert [first["topic_name"], second["topic_name"]] == ["orders", "flights"]
    assert second == {
        "topic_name": "flights",
        "topic_id": "flightsxxxxxxxxxxxxxxx",
        "partition_id": 1,
        "offset": 0,
        "next_offset": 2,
        "next_leader_epoch": 4,
        "leader_id": 1,
        "leader_epoch": 4,
        "leader_url": "http://127.0.0.1:8082",
        "high_watermark": 2,
        "log_start_offset": 0,
        "records": 2,
        "bytes": len(lines),
        "coding": None,
    }
    fetched = await door.call(
        "GET", "/topics/flights/partitions/1/records?offset=0&include=batches",
        headers={"Accept": NDJSON},
    )  # fmt: skip
    assert lines == fetched.body, "the page holds what include=batches answers"


async def test_a_page_for_a_reader_in_a_rack_names_the_replica_that_served(door: Door) -> None:
    await write(door, 0, 7)
    [(plain, _)] = pages(await poll(door, row()))
    [(page, _)] = pages(await poll(door, row(), rack="a"))
    assert page == plain | {"served_by": 1, "served_by_url": "http://127.0.0.1:8082"}


async def test_nothing_in_time_is_an_empty_body_with_its_length(door: Door) -> None:
    began = time.monotonic()
    answer = await poll(door, row(0), row(1), wait_ms=150)
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")
    assert time.monotonic() - began >= 0.15
    assert answer.type == NDJSON


async def test_it_returns_at_the_first_record(door: Door) -> None:
    waiting = asyncio.create_task(poll(door, row(0), row(1), wait_ms=8_000))
    await asyncio.sleep(0.05)
    await write(door, 1, "now")
    [(head, _)] = pages(await waiting)
    assert (head["partition_id"], head["records"]) == (1, 1)


async def test_the_room_goes_to_the_rows_that_come_first(door: Door) -> None:
    await write(door, 0, "x" * 300)
    await write(door, 1, "y" * 300)
    for order in ((0, 1), (1, 0)):
        found = pages(await poll(door, *map(row, order), max_bytes=400))
        assert [head["partition_id"] for head, _ in found] == [order[0]]
        found = pages(await poll(door, *map(row, order), max_bytes=1))
        assert [head["partition_id"] for head, _ in found] == [order[0]], "one record at least"


async def test_news_only_tells_the_ends_and_the_first_epochs(door: Door) -> None:
    log = door.apis.logs["flights", 0]
    for epoch in range(4, 24):
        log.leader_epoch = epoch
        await write(door, 0, 1, 2, 3)
    [(head, body)] = pages(await poll(door, row(0, 4), row(1), news_only=True))
    assert (head["records"], head["bytes"], body) == (0, 0, b"")
    assert (head["next_offset"], head["next_leader_epoch"]) == (60, 23)
    assert head["epochs"] == [[5, 4], *([epoch, 3 * (epoch - 4)] for epoch in range(6, 21))]
    assert len(head["epochs"]) == 16


async def test_stored_frames_with_zstd(door: Door) -> None:
    door.apis.logs["flights", 0].zstd = True
    await write(door, 0, "z" * 5_000)
    await write(door, 1, 1)
    answer = await poll(door, row(0), row(1), zstd=True)
    assert answer.type == PAGES
    (packed, frames), (plain, lines) = pages(answer)
    assert (packed["coding"], plain["coding"]) == ("zstd", None)
    reader = zstandard.ZstdDecompressor().stream_reader(frames, read_across_frames=True)
    [(_, unpacked), _] = pages(await poll(door, row(0), row(1)))
    assert reader.read(1 << 20) == unpacked
    assert len(frames) < len(unpacked)
    assert lines.startswith(b'{"batch":')


async def test_rows_that_can_not_be_read_tell_why_beside_the_others(door: Door) -> None:
    log = door.apis.logs["flights", 0]
    for epoch in (4, 6):
        log.leader_epoch = epoch
        await write(door, 0, *range(10))
    door.apis.add_topic("orders")
    answer = await poll(
        door,
        row(0, 15, leader_epoch=4),
        row(1, 9),
        row(7),
        row(topic="nowhere"),
        row(topic="orders", topic_id="A" * 22),
    )
    heads = [head for head, _ in pages(answer)]
    assert [head["error_code"] for head in heads] == [40950, 40002, 40402, 40402, 40951]
    assert not any(head["retriable"] for head in heads)
    assert (heads[0]["diverging_offset"], heads[0]["diverging_epoch"]) == (10, 4)
    assert all(head["bytes"] == 0 and head["message"] for head in heads)
    assert [head["topic_id"] for head in heads[2:4]] == [None, None]


async def test_too_many_polled_partitions_are_503(door: Door) -> None:
    door.apis.fetch_error = KafkaError(ErrorCode.QUEUE_FULL, "max_polled_partitions=1")
    answer = await poll(door, row(0))
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert answer.json["retriable"]


async def test_types_methods_and_clusters(door: Door) -> None:
    body = orjson.dumps({"partitions": [row()]})
    kind = {"Content-Type": "application/json"}
    assert (await door.call("POST", POLL, body, {"Content-Type": "text/plain"})).status == 415
    assert (await door.call("POST", POLL, body, kind | {"Accept": "text/html"})).status == 406
    refused = await door.call("POST", POLL, body, kind | {"Accept": PAGES})
    assert refused.status == 406, "the pages' type goes with zstd only"
    assert NDJSON in refused.json["message"]
    assert (await door.call("GET", POLL)).status == 405
    other = POLL.replace(str(door.apis.cluster_id), "x" * 22)
    assert (await door.call("POST", other, body, kind)).status == 404
    assert (await door.call("POST", POLL + "?wait_ms=1", body, kind)).status == 400


def body(*rows: object, **options: object) -> bytes:
    return orjson.dumps({"partitions": rows, **options})


WRONG = [
    (b"", 400, "not JSON"),
    (b"[]", 400, "'the body'"),
    (b"null", 400, "'the body'"),
    (b"{}", 400, "partitions"),
    (body(), 400, "'partitions' is an empty list"),
    (b'{"partitions":{}}', 400, "partitions"),
    (body(7), 400, "'partitions[0]' is 7"),
    (body({}), 400, "topic_name"),
    (body(row(), {**row(1), "partition": 1}), 400, "unknown field 'partition'"),
    (body(row(), waitms=1), 400, "unknown field 'waitms'"),
    (body(row("0")), 400, "'partitions[0].partition_id' is '0'"),
    (body(row(-1)), 400, "'partitions[0].partition_id' is -1"),
    (body(row(2**31)), 400, "'partitions[0].partition_id' is 2147483648"),
    (body(row(0, -1)), 400, "'partitions[0].offset' is -1"),
    (body(row(0, 1.5)), 400, "'partitions[0].offset' is 1.5"),
    (body(row(0, True)), 400, "'partitions[0].offset' is true"),
    (body(row()).replace(b'"offset":0', b'"offset":99999999999999999999'), 400, "offset"),
    (body(row()).replace(b'"offset":0', b'"offset":1e400'), 400, "partitions[0].offset"),
    (body(row(leader_epoch=-1)), 400, "'partitions[0].leader_epoch' is -1"),
    (body(row(leader_epoch=2**31)), 400, "leader_epoch"),
    (body(row(topic_id="short")), 400, "'partitions[0].topic_id' is 'short'"),
    (body(row(topic_id=5)), 400, "'partitions[0].topic_id' is 5"),
    (body(row(topic="a/b")), 400, "Invalid topic_name"),
    (body(row(topic="")), 400, "Invalid topic_name"),
    (body(row(topic="a\0b")), 400, "a␀b"),
    (body(row(topic="a\r\nb")), 400, "a␍␊b"),
    (body(row(topic="x" * 250)), 400, "Invalid topic_name"),
    (body(row()).replace(b'"flights"', b'"\\ud800"'), 400, ""),
    (body(row(), row(1), row()), 400, "partitions[2] names partition 0 of topic flights again"),
    (body(row(), wait_ms=60_001), 400, "'wait_ms' is 60001, expected an integer from 0 to 60000"),
    (body(row(), wait_ms=-1), 400, "'wait_ms' is -1"),
    (body(row(), wait_ms="1"), 400, "'wait_ms' is '1'"),
    (body(row(), min_bytes=0), 400, "'min_bytes' is 0"),
    (body(row(), max_bytes=0), 400, "'max_bytes' is 0"),
    (body(row(), max_bytes=(64 << 20) + 1), 400, "'max_bytes' is 67108865"),
    (body(row(), max_partition_bytes=0), 400, "'max_partition_bytes' is 0"),
    (body(row(), news_only=1), 400, "'news_only' is 1"),
    (body(row(), zstd="yes"), 400, "'zstd' is 'yes'"),
    (body(row(), isolation="serializable"), 400, "'isolation' is 'serializable'"),
    (body(row(), isolation=1), 400, "'isolation' is 1"),
    (body(row(), rack=""), 400, "'rack' is ''"),
    (body(row(), rack="r" * 256), 400, "'rack' is"),
    (b"[" * 100_000, 400, ""),
    (body(*map(row, range(ROWS_MAX + 1))), 413, "10001 rows"),
    (b" " * ((4 << 20) + 1), 413, "4194304"),
]


@pytest.mark.parametrize(("sent", "status", "says"), WRONG)
async def test_a_wrong_body_is_told_what_is_wrong(
    door: Door, sent: bytes, status: int, says: str
) -> None:
    answer = await door.post(POLL, sent, "application/json")
    assert answer.status == status, answer.body
    assert answer.type == "application/json"
    assert set(answer.json) == {"error_code", "message"}
    assert says in answer.json["message"]
    assert not door.apis.requests, "nothing is read for it"


@pytest.mark.parametrize("word", ["read_committed", "read_uncommitted", None])
def test_both_of_kafkas_words_for_isolation_mean_the_same(word: str | None) -> None:
    assert read_poll(body(row(), isolation=word), LIMITS) == read_poll(body(row()), LIMITS)


async def test_a_body_cut_at_any_byte_is_refused(door: Door) -> None:
    whole = body(row(0, 7, leader_epoch=3, topic_id="A" * 22), row(1), wait_ms=5, rack="r")
    assert isinstance(read_poll(whole, LIMITS), PollRequest)
    for cut in range(len(whole)):
        with pytest.raises(RestError) as refused:
            read_poll(whole[:cut], LIMITS)
        assert refused.value.status == 400
    assert (await door.post(POLL, whole[:-1], "application/json")).status == 400


def test_ten_thousand_rows_are_read_quickly() -> None:
    whole = body(*map(row, range(ROWS_MAX)))
    began = time.process_time()
    assert len(read_poll(whole, LIMITS).rows) == ROWS_MAX
    assert time.process_time() - began < 0.3


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)
names = st.sampled_from(
    ["topic_name", "partition_id", "offset", "leader_epoch", "topic_id", "wait_ms", "partitions"]
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(names, anything | st.lists(st.dictionaries(names, anything))) | anything)
def test_whatever_the_body_is_it_is_read_or_refused(sent: object) -> None:
    text = json.dumps(sent).encode()
    try:
        rows = read_poll(text, LIMITS).rows
    except RestError as error:
        refusal = (error.status, bool(error.message))
    else:
        refusal = (400 if not rows else 200, True)
    assert refusal in {(200, True), (400, True), (413, True)}


async def test_a_client_that_hangs_up_gives_its_rows_back(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A minute of rows of clients that are gone would leave no room for those that are there."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: PollRequest) -> list[PollPage]:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return []

    monkeypatch.setattr(door.apis, "poll", wait)
    calling = asyncio.ensure_future(poll(door, row(), wait_ms=60_000))
    await begun.wait()
    calling.cancel()
    await asyncio.wait([calling])
    await asyncio.wait_for(ended.wait(), 2)
