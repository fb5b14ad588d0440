"""GET /topics/T/partitions/P/records, the direct fetch: golden bodies and headers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from broker.server.requests import FetchRequest, OffsetsResult
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId, TopicName
from tests.support.fake_broker_apis import APPEND_MS
from tests.support.http_door import FAST_LANE, Door

JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
NDJSON = "application/x-ndjson"
LINES = "application/vnd.quorumlog.lines+json"
RECORDS = "/topics/flights/partitions/0/records"


async def fill(door: Door) -> None:
    """Offsets 0 and 1 in one request each: two batches."""
    for record in ({"key": "AA", "value": {"n": 1}}, {"value": None, "timestamp": 5}):
        answer = await door.post("/topics/flights/partitions/0", {"records": [record]}, JSON_V2)
        assert answer.status == 200


@pytest.mark.parametrize("accept", [None, "*/*", "application/json", JSON_V2, "application/*"])
async def test_json_is_the_default(door: Door, accept: str | None) -> None:
    await fill(door)
    answer = await door.get(f"{RECORDS}?offset=0", accept)
    assert (answer.status, answer.type) == (200, JSON_V2)
    assert answer.body == (
        b'[{"topic":"flights","key":"AA","value":{"n":1},"partition":0,"offset":0,'
        b'"timestamp":%d},'
        b'{"topic":"flights","key":null,"value":null,"partition":0,"offset":1,"timestamp":5}]'
        % APPEND_MS
    )


async def test_headers_say_where_to_go_on_and_whom_to_ask(door: Door) -> None:
    await fill(door)
    answer = await door.get(f"{RECORDS}?offset=1")
    ours = {key: value for key, value in answer.headers.items() if key.startswith("quorumlog-")}
    assert ours == {
        "quorumlog-high-watermark": "2",
        "quorumlog-log-start-offset": "0",
        "quorumlog-next-offset": "2",
        "quorumlog-next-leader-epoch": "4",
        "quorumlog-leader": "1",
        "quorumlog-leader-url": "http://127.0.0.1:8082",
        "quorumlog-leader-epoch": "4",
        "quorumlog-topic-id": door.apis.image.topic(TopicName("flights")).topic_id,
    }


@pytest.mark.parametrize("by_header", [False, True])
async def test_the_serving_broker_is_told_to_a_reader_that_names_its_rack(
    door: Door, by_header: bool
) -> None:
    await fill(door)
    query = "offset=1" if by_header else "offset=1&rack=r1"
    headers = {"Quorumlog-Rack": "r1"} if by_header else {}
    answer = await door.call("GET", f"{RECORDS}?{query}", headers=headers)
    asked = door.apis.requests[-1]
    assert isinstance(asked, FetchRequest)
    assert asked.rack == "r1"
    assert answer.headers["quorumlog-served-by"] == "1", "the leader, here"
    assert answer.headers["quorumlog-served-by-url"] == "http://127.0.0.1:8082"


async def test_binary_is_base64_of_the_bytes_view(door: Door) -> None:
    await fill(door)
    answer = await door.get(f"{RECORDS}?offset=0", BINARY_V2)
    assert (answer.status, answer.type) == (200, BINARY_V2)
    first, second = answer.json
    assert (first["key"], first["value"]) == ("IkFBIg==", "eyJuIjoxfQ==")  # quotes included
    assert (second["key"], second["value"]) == (None, None)


async def test_ndjson_is_the_stored_lines(door: Door) -> None:
    await fill(door)
    answer = await door.get(f"{RECORDS}?offset=0", NDJSON)
    assert (answer.status, answer.type) == (200, NDJSON)
    assert answer.body == (
        b'{"offset":0,"key":"AA","value":{"n":1}}\n'
        b'{"offset":1,"timestamp":5,"key":null,"value":null}\n'
    )


async def test_lines_are_the_stored_lines_as_an_array(door: Door) -> None:
    await fill(door)
    answer = await door.get(f"{RECORDS}?offset=0", LINES)
    assert (answer.status, answer.type) == (200, LINES)
    assert answer.body == (
        b'[{"offset":0,"key":"AA","value":{"n":1}},'
        b'{"offset":1,"timestamp":5,"key":null,"value":null}]'
    )


@pytest.mark.parametrize("accept", [NDJSON, LINES])
async def test_include_timestamp_splices_it_into_stored_lines(door: Door, accept: str) -> None:
    await fill(door)
    answer = await door.get(f"{RECORDS}?offset=0&include=timestamp", accept)
    text = answer.body.decode()
    records = json.loads(text) if accept == LINES else [json.loads(x) for x in text.splitlines()]
    assert [record["timestamp"] for record in records] == [APPEND_MS, 5]


async def test_include_batches_says_once_per_batch_how_to_read_its_lines(door: Door) -> None:
    await fill(door)
    record = {"value": "AP8=", "key": "aw=="}
    await door.post("/topics/flights/partitions/0", {"records": [record]}, BINARY_V2)
    answer = await door.get(f"{RECORDS}?offset=0&include=batches", NDJSON)
    assert (answer.status, answer.type) == (200, NDJSON)
    assert answer.body.splitlines() == [
        batch_line(0, "json"),
        b'{"offset":0,"key":"AA","value":{"n":1}}',
        batch_line(1, "json"),
        b'{"offset":1,"timestamp":5,"key":null,"value":null}',
        batch_line(2, "binary"),
        b'{"offset":2,"key":"aw==","value":"AP8="}',
    ]


def batch_line(offset: int, form: str) -> bytes:
    return (
        f'{{"batch":{{"offset":{offset},"next_offset":{offset + 1},"count":1,'
        f'"timestamp":{APPEND_MS},"key_format":"{form}","value_format":"{form}","leader_epoch":4}}}}'
    ).encode()


@pytest.mark.parametrize(("include", "accept"), [("batches", LINES), ("weather", NDJSON)])
async def test_an_unknown_include_is_refused(door: Door, include: str, accept: str) -> None:
    answer = await door.get(f"{RECORDS}?offset=0&include={include}", accept)
    assert (answer.status, answer.json["error_code"]) == (400, 40002)


@pytest.mark.parametrize(
    ("accept", "empty"), [(None, b"[]"), (BINARY_V2, b"[]"), (LINES, b"[]"), (NDJSON, b"")]
)
async def test_nothing_within_the_timeout_is_an_empty_answer(
    door: Door, accept: str | None, empty: bytes
) -> None:
    answer = await door.get(f"{RECORDS}?offset=0&timeout=1", accept)
    assert (answer.status, answer.body) == (200, empty)
    assert answer.headers["quorumlog-next-offset"] == "0"


async def test_a_long_poll_returns_at_the_first_record(door: Door) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(door.get(f"{RECORDS}?offset=0&timeout=60000"))
        await door.apis.fetching.wait()
        await fill(door)
    assert waiting.result().json[0]["value"] == {"n": 1}


async def test_a_timestamp_finds_the_first_record_from_then_on(door: Door) -> None:
    await fill(door)
    assert len((await door.get(f"{RECORDS}?timestamp=1")).json) == 2
    request: Any = door.apis.requests[-1]
    assert (request.offset, request.timestamp_ms) == (None, 1)


async def test_defaults_and_bounds_reach_the_broker(door: Door) -> None:
    await fill(door)
    await door.get(f"{RECORDS}?offset=0")
    await door.get(f"{RECORDS}?offset=0&timeout=60000&max_bytes=67108864")
    first, second = door.apis.requests[-2:]
    assert isinstance(first, FetchRequest)
    assert isinstance(second, FetchRequest)
    assert (first.max_bytes, second.max_bytes) == (1_048_576, 67_108_864)
    if not FAST_LANE.get():  # where something is read at once, nobody is told how long to wait
        assert (first.max_wait_ms, second.max_wait_ms) == (1000, 60_000)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("", "offset"),
        ("offset=", "offset"),
        ("offset=-0", "offset"),
        ("offset=x", "offset"),
        ("offset=1.5", "offset"),
        ("offset=99999999999999999999999", "offset"),
        ("timestamp=", "timestamp"),
        ("offset=0&timestamp=0", "timestamp"),
        ("offset=0&timeout=", "timeout"),
        ("offset=0&timeout=60001", "timeout"),
        ("offset=0&max_bytes=0", "max_bytes"),
        ("offset=0&max_bytes=67108865", "max_bytes"),
        ("offset=0&include=headers", "include"),
        ("offset=0&rack=", "rack"),
        (f"offset=0&rack={'r' * 256}", "rack"),
    ],
)
async def test_a_bad_parameter_is_40002(door: Door, query: str, named: str) -> None:
    answer = await door.get(f"{RECORDS}?{query}")
    assert (answer.status, answer.type) == (400, JSON_V2)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == 40002
    assert f"'{named}'" in answer.json["message"]


@pytest.mark.parametrize(
    ("position", "offsets"),
    [
        ("earliest", [2, 3, 4]),
        ("beginning", [2, 3, 4]),
        ("latest", []),
        ("end", []),
        ("-1", [4]),
        ("-2", [3, 4]),
        ("-3", [2, 3, 4]),
        ("-9999999999", [2, 3, 4]),
        ("0003", [3, 4]),
        ("@0", [2, 3, 4]),
        (f"@{APPEND_MS + 1}", []),
        ("2023-11-14T22:13:20Z", [2, 3, 4]),
        ("2023-11-14T23:13:20%2B01:00", [2, 3, 4]),
        ("2023-11-14T22:13:20.001Z", []),
    ],
)
async def test_every_position_of_the_grammar_is_a_start(
    door: Door, position: str, offsets: list[int]
) -> None:
    """The log holds offsets 2 to 4: the first two were deleted."""
    for value in range(5):
        record = {"records": [{"value": value}]}
        await door.post("/topics/flights/partitions/0", record, JSON_V2)
    await door.apis.delete_records(TopicName("flights"), PartitionId(0), 2)
    answer = await door.get(f"{RECORDS}?offset={position}&timeout=0")
    assert answer.status == 200
    assert [record["offset"] for record in answer.json] == offsets
    assert answer.headers["quorumlog-next-offset"] == "5"
    assert answer.headers["quorumlog-high-watermark"] == "5"


async def test_latest_waits_for_the_next_record(door: Door) -> None:
    await fill(door)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(door.get(f"{RECORDS}?offset=latest&timeout=60000"))
        await door.apis.fetching.wait()
        await fill(door)
    assert waiting.result().json[0]["offset"] == 2


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_ends_that_move_between_look_up_and_read_are_looked_up_again(
    door: Door, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """Retention may delete the first records in between; it does not do so forever."""
    await fill(door)
    apis, found = door.apis, door.apis.offsets
    looked_up = 0

    async def outdated(topic: TopicName, partition: PartitionId) -> OffsetsResult:
        nonlocal looked_up
        looked_up += 1
        if looked_up <= failures:
            return OffsetsResult(beginning_offset=77, end_offset=78)
        return await found(topic, partition)

    monkeypatch.setattr(apis, "offsets", outdated)
    answer = await door.get(f"{RECORDS}?offset=earliest")
    if failures < 3:
        assert [record["offset"] for record in answer.json] == [0, 1]
    else:
        assert (answer.status, answer.json["error_code"]) == (400, 40002)
        assert "offset 77" in answer.json["message"]
    assert looked_up == min(3, failures + 1)


async def test_a_topic_deleted_between_look_up_and_read_is_40402(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deleted(*_: object) -> OffsetsResult:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    monkeypatch.setattr(door.apis, "offsets", deleted)
    answer = await door.get(f"{RECORDS}?offset=latest")
    message = "Partition 0 of topic flights not found"
    assert answer.golden == (404, JSON_V2, {"error_code": 40402, "message": message})


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        ("newest", "'newest': expected earliest, latest, an offset, -N for the last N, @MILLIS"),
        ("-0", "'-0': expected a count from 1 on behind the -, as in -10"),
        ("2026-01-31T12:00:00", "expected a zone behind the time, as in 2026-01-31T12:00:00Z"),
        ("2026-01-31T12:00:00+01:00", "; in a URL, write the + of a zone as %2B"),
        ("2026-13-01T00:00:00Z", "as in 2026-01-31T12:00:00Z"),
        ("@1h", "'@1h': expected @MILLISECONDS since 1970 or a time"),
        ("%ff", "as in 2026-01-31T12:00:00Z"),
    ],
)
async def test_a_wrong_position_names_the_text_and_an_example(
    door: Door, offset: str, says: str
) -> None:
    answer = await door.get(f"{RECORDS}?offset={offset}")
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert answer.json["message"].startswith("Parameter 'offset' is '")
    assert says in answer.json["message"]


async def test_a_read_without_a_start_names_the_positions(door: Door) -> None:
    answer = await door.get(f"{RECORDS}?timeout=0")
    assert answer.json["message"].startswith("Parameter 'offset' is missing: expected earliest, ")


async def test_out_of_range_names_both_ends(door: Door) -> None:
    await fill(door)
    answer = await door.get(f"{RECORDS}?offset=3")
    message = "offset 3 is outside the log: it starts at 0 and ends at 2"
    assert answer.golden == (400, JSON_V2, {"error_code": 40002, "message": message})


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/topics/nope/partitions/0/records", "Topic nope not found"),
        ("/topics/flights/partitions/2/records", "Partition 2 of topic flights not found"),
        ("/topics/flights/partitions/-1/records", "Partition -1 of topic flights not found"),
    ],
)
async def test_unknown_topic_or_partition_is_40402(door: Door, path: str, message: str) -> None:
    answer = await door.get(path + "?offset=0")
    assert answer.golden == (404, JSON_V2, {"error_code": 40402, "message": message})


@pytest.mark.parametrize(
    "accept", ["application/vnd.kafka.v2+json", "application/vnd.kafka.avro.v2+json", "text/csv"]
)
async def test_another_accept_is_406(door: Door, accept: str) -> None:
    answer = await door.get(f"{RECORDS}?offset=0", accept)
    assert (answer.status, answer.type, answer.json["error_code"]) == (406, JSON_V2, 406)
    assert BINARY_V2 in answer.json["message"]


@pytest.mark.parametrize("accept", [JSON_V2, BINARY_V2, NDJSON, LINES])
async def test_an_error_has_the_type_of_the_answer(door: Door, accept: str) -> None:
    answer = await door.get(f"{RECORDS}?offset=7", accept)
    assert (answer.status, answer.type) == (400, accept)


async def test_binary_that_is_json_is_read_as_json(door: Door) -> None:
    await door.post(
        "/topics/flights/partitions/0", {"records": [{"value": "eyJhIjoxfQ=="}]}, BINARY_V2
    )
    assert (await door.get(f"{RECORDS}?offset=0")).json[0]["value"] == {"a": 1}


@pytest.mark.parametrize("part", ["key", "value"])
async def test_binary_that_is_not_json_is_42203_through_the_json_door(
    door: Door, part: str
) -> None:
    await door.post("/topics/flights/partitions/0", {"records": [{part: "aGVsbG8="}]}, BINARY_V2)
    answer = await door.get(f"{RECORDS}?offset=0")
    message = (
        f"{part} deserialization error for format json at offset 0 of partition 0 of topic "
        f"flights: send 'Accept: {BINARY_V2}' to read it as base64"
    )
    assert answer.golden == (422, JSON_V2, {"error_code": 42203, "message": message})
    read = await door.get(f"{RECORDS}?offset=0", BINARY_V2)
    assert read.json[0][part] == "aGVsbG8="


async def test_no_leader_is_503_and_says_that_a_retry_helps(door: Door) -> None:
    door.apis.fetch_error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "nobody leads partition 0")
    answer = await door.get(f"{RECORDS}?offset=0")
    assert answer.golden == (
        503,
        JSON_V2,
        {
            "error_code": 50302,
            "message": "nobody leads partition 0",
            "retriable": True,
            "outcome": "not_written",
        },
    )
    assert answer.headers["retry-after"] == "1"


async def test_a_read_that_times_out_has_written_nothing(door: Door) -> None:
    door.apis.fetch_error = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    answer = await door.get(f"{RECORDS}?offset=0")
    assert (answer.status, answer.json["outcome"]) == (503, "not_written")


async def test_an_unexpected_error_is_500_and_tells_no_secrets(door: Door) -> None:
    door.apis.fetch_error = RuntimeError("secret")
    answer = await door.get(f"{RECORDS}?offset=0")
    assert (answer.status, answer.type) == (500, JSON_V2)
    assert answer.json.keys() == {"error_code", "message", "retriable", "outcome"}
    assert (answer.json["error_code"], answer.json["retriable"]) == (50002, False)
    assert b"secret" not in answer.body


async def test_a_large_answer_arrives_whole(door: Door) -> None:
    body = {"records": [{"value": "x" * 1000}] * 300}
    assert (await door.post("/topics/flights/partitions/0", body, JSON_V2)).status == 200
    answer = await door.get(f"{RECORDS}?offset=0", NDJSON)
    assert answer.headers["content-length"] == str(len(answer.body))
    assert answer.body.count(b"\n") == 300
    assert "x-request-id" in answer.headers


async def test_head_has_the_headers_and_no_body(door: Door) -> None:
    await fill(door)
    get = await door.get(f"{RECORDS}?offset=0")
    head = await door.call("HEAD", f"{RECORDS}?offset=0")
    assert (head.status, head.type, head.body) == (200, JSON_V2, b"")
    assert head.headers["content-length"] == get.headers["content-length"]
    assert head.headers["quorumlog-next-offset"] == "2"
