"""Produces in a transaction, with the fast lane and without: keys, chunks, contradictions."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from broker.config import BrokerLimits
from broker.record.batch import RecordFormat
from broker.server.requests import ProduceRequest
from broker.server.transaction_apis import (
    CommitRequest,
    Committed,
    RowPlace,
    StageRequest,
)
from broker.transactions.messages import (
    NO_GROUP,
    KeyPosition,
    ProducerPosition,
    TransactionalId,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, GroupId, PartitionId
from tests.support.http_door import V3, Answer, Door, open_door, read_answer
from tests.support.lane_requests import JSON_V2, ONE, post

V2 = "application/vnd.kafka.v2+json"
KEY = {"Idempotency-Key": "order-1"}
CHUNK = {
    "Quorumlog-Transaction": "billing-1",
    "Quorumlog-Transaction-Epoch": "3",
    "Quorumlog-Transaction-Number": "7",
    "Quorumlog-Chunk": "2",
}
STAGED = {"partition": 0, "offset": None, "error_code": None, "error": None}
TWO = {"records": [{"key": "a", "value": 1}, {"key": "a", "value": 2}]}


async def produce(
    door: Door, headers: dict[str, str], body: Any = TWO, path: str = "/topics/flights"
) -> Answer:
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    return await door.call("POST", path, data, {"Content-Type": JSON_V2} | headers)


def asked(door: Door, kind: type) -> Any:
    (request,) = (one for one in door.apis.requests if isinstance(one, kind))
    return request


def committed(state: TransactionState, *rows: RowPlace) -> Committed:
    outcome = TransactionOutcome(epoch=0, number=0, state=state)
    return Committed(outcome=outcome, home_leader=BrokerId(2), rows=rows)


# a key


async def test_a_produce_with_a_key_happens_once(door: Door) -> None:
    first = await produce(door, KEY)
    again = await produce(door, KEY)
    assert first.status == again.status == 200
    assert first.type == V2
    assert [row["offset"] for row in first.json["offsets"]] == [0, 1]
    assert again.json == first.json
    assert first.headers["quorumlog-topic-id"]
    requests = [one for one in door.apis.requests if isinstance(one, CommitRequest)]
    assert requests == door.apis.requests, "nothing was produced any other way"
    assert {one.id for one in requests} == {TransactionalId(NO_GROUP, "key:order-1")}
    assert requests[0].position == KeyPosition()
    assert requests[0].answers_rows
    assert len({one.digest for one in requests}) == 1


async def test_another_content_under_the_key_is_a_conflict(door: Door) -> None:
    assert (await produce(door, KEY)).status == 200
    others: list[tuple[Any, str, dict[str, str]]] = [
        ({"records": [{"key": "a", "value": 3}]}, "/topics/flights", {}),
        (TWO, "/topics/flights/partitions/0", {}),
        ({"records": [{"value": "YQ=="}]}, "/topics/flights?value_format=binary", {}),
    ]
    for body, path, headers in others:
        answer = await produce(door, KEY | headers, body, path)
        assert (answer.status, answer.json["error_code"]) == (409, 40908)
        assert (answer.json["retriable"], answer.json["outcome"]) == (False, "not_written")


async def test_the_path_and_the_query_hold_as_in_any_produce(door: Door) -> None:
    path = "/topics/flights/partitions/1?timeout=900&value_format=string"
    answer = await produce(door, KEY, {"records": [{"value": "x"}]}, path)
    assert [row["partition"] for row in answer.json["offsets"]] == [1]
    request = asked(door, CommitRequest)
    (rows,) = request.topics
    assert (rows.partition, rows.value_format) == (1, RecordFormat.STRING)
    assert request.timeout_ms == 900


async def test_ranges_and_no_body_are_answered_too(door: Door) -> None:
    ranges = await produce(door, KEY, path="/topics/flights/partitions/0?receipts=range")
    assert ranges.json == {"ranges": [{"partition": 0, "base_offset": 0, "count": 2}]}
    empty = await produce(
        door, {"Idempotency-Key": "b"}, path="/topics/flights/partitions/0?async=true"
    )
    assert empty.golden == (204, V2, None)


async def test_a_place_that_is_not_known_any_more_is_minus_one(door: Door) -> None:
    rows = (RowPlace(PartitionId(0), -1), RowPlace(PartitionId(0), -1))
    door.apis.transactions.answers["commit"] = committed(TransactionState.COMPLETE, *rows)
    answer = await produce(door, KEY)
    assert answer.status == 200
    assert [row["offset"] for row in answer.json["offsets"]] == [-1, -1]


async def test_what_is_not_complete_in_time_is_unknown(door: Door) -> None:
    door.apis.transactions.answers["commit"] = committed(TransactionState.COMMITTING)
    answer = await produce(door, KEY)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json["error_code"] == 50003
    assert (answer.json["retriable"], answer.json["outcome"]) == (True, "unknown")


@pytest.mark.parametrize(
    ("error", "status", "code", "told"),
    [
        (KafkaError(ErrorCode.LEADER_NOT_AVAILABLE), 503, 50003, "not_written"),
        (KafkaError(ErrorCode.NETWORK_EXCEPTION), 503, 50003, "unknown"),
        (KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED), 429, 42901, "not_written"),
        (KafkaError(ErrorCode.MESSAGE_TOO_LARGE), 413, 413, None),
        (KafkaError(ErrorCode.INVALID_RECORD), 400, 40002, None),
    ],
)
async def test_a_refusal_is_one_for_all_rows(
    door: Door, error: KafkaError, status: int, code: int, told: str | None
) -> None:
    door.apis.transactions.answers["commit"] = error
    answer = await produce(door, KEY)
    assert (answer.status, answer.json["error_code"]) == (status, code)
    assert answer.json.get("outcome") == told
    assert "offsets" not in answer.json


async def test_a_topic_that_is_not_there_is_404(door: Door) -> None:
    for headers in (KEY, CHUNK):
        answer = await produce(door, headers, path="/topics/nowhere")
        assert (answer.status, answer.json["error_code"]) == (404, 40401)
        answer = await produce(door, headers, path="/topics/flights/partitions/9")
        assert (answer.status, answer.json["error_code"]) == (404, 40402)


# a chunk


async def test_a_chunk_is_staged_and_has_no_offsets(door: Door) -> None:
    answer = await produce(door, CHUNK, path="/topics/flights/partitions/0?timeout=700")
    assert answer.golden == (
        200,
        V2,
        {"offsets": [STAGED, STAGED], "key_schema_id": None, "value_schema_id": None},
    )
    request = asked(door, StageRequest)
    assert request.id == TransactionalId(NO_GROUP, "billing-1")
    assert request.position == ProducerPosition(3, 7)
    assert (request.attempt_id, request.chunk, request.timeout_ms) == ("3.7", 2, 700)
    assert (request.rows.topic, request.rows.partition) == ("flights", 0)
    assert door.apis.logs["flights", 0].end == 0


@pytest.mark.parametrize(
    ("headers", "group", "name", "position", "attempt"),
    [
        (
            {"Quorumlog-Transaction": "p", "Quorumlog-Transaction-Group": "pilots",
             "Quorumlog-Transaction-Epoch": "0", "Quorumlog-Transaction-Number": "0",
             "Quorumlog-Attempt": "mine"},
            "pilots", "p", ProducerPosition(0, 0), "mine",
        ),
        (
            {"Quorumlog-Transaction": "spark:1:t", "Quorumlog-Transaction-Number": "12",
             "Quorumlog-Attempt": "a-1"},
            "", "spark:1:t", 12, "a-1",
        ),
        (
            {"Quorumlog-Transaction": "key:a/b", "Quorumlog-Attempt": "x"},
            "", "key:a/b", None, "x",
        ),
    ],
)  # fmt: skip
async def test_every_kind_of_id_has_chunks(
    door: Door, headers: dict[str, str], group: str, name: str, position: object, attempt: str
) -> None:
    answer = await produce(door, headers | {"Quorumlog-Chunk": "0"})
    assert answer.status == 200
    request = asked(door, StageRequest)
    assert request.id == TransactionalId(GroupId(group), name)
    assert (request.position, request.attempt_id) == (position, attempt)


async def test_a_row_that_is_refused_refuses_its_chunk(door: Door) -> None:
    door.apis.transactions.refused_rows = {1: KafkaError(ErrorCode.INVALID_RECORD, "needs a key")}
    answer = await produce(door, CHUNK)
    assert answer.status == 200
    first, second = answer.json["offsets"]
    assert first == {
        "partition": None,
        "offset": None,
        "error_code": 40909,
        "error": "NOT_STAGED: another row of the chunk is refused, so none is staged",
    }
    assert (second["error_code"], second["error"]) == (40002, "INVALID_RECORD: needs a key")
    door.apis.transactions.refused_rows = {0: KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)}
    answer = await produce(door, CHUNK)
    assert answer.status == 503
    assert answer.json["offsets"][0]["error_code"] == 50003
    door.apis.transactions.refused_rows = {
        0: KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, outcome=Outcome.UNKNOWN)
    }
    assert (await produce(door, CHUNK)).status == 200, "a 503 would invite a blind retry"


@pytest.mark.parametrize(
    ("code", "status", "rest_code"),
    [
        (ErrorCode.PRODUCER_FENCED, 409, 40907),
        (ErrorCode.TRANSACTION_CONFLICT, 409, 40908),
        (ErrorCode.STAGE_INCOMPLETE, 409, 40909),
        (ErrorCode.TRANSACTION_ABORTED, 409, 40910),
        (ErrorCode.TRANSACTION_SUPERSEDED, 409, 40911),
        (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 429, 42901),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 503, 50003),
    ],
)
async def test_a_chunk_is_refused_as_a_whole(
    door: Door, code: ErrorCode, status: int, rest_code: int
) -> None:
    door.apis.transactions.answers["stage"] = KafkaError(code)
    answer = await produce(door, CHUNK)
    assert (answer.status, answer.json["error_code"]) == (status, rest_code)
    assert answer.json["outcome"] == "not_written"
    assert ("retry-after" in answer.headers) == (status != 409)


# contradictions


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in CHUNK.items() if key != name}


@pytest.mark.parametrize(
    ("headers", "code", "says"),
    [
        (without("Quorumlog-Transaction"), 40002, "'Quorumlog-Transaction' is missing"),
        (without("Quorumlog-Transaction-Number"), 40002, "Number' is missing"),
        (without("Quorumlog-Transaction-Epoch"), 40002, "'Quorumlog-Attempt' is missing"),
        (without("Quorumlog-Chunk"), 40002, "'Quorumlog-Chunk' is missing"),
        ({"Quorumlog-Chunk": "0"}, 40002, "'Quorumlog-Transaction' is missing"),
        ({"Quorumlog-Attempt": "a"}, 40002, "'Quorumlog-Transaction' is missing"),
        ({"Quorumlog-Transaction-Group": "g"}, 40002, "'Quorumlog-Transaction' is missing"),
        (CHUNK | {"Quorumlog-Chunk": "10000"}, 40002, "transaction.max.chunks"),
        (CHUNK | {"Quorumlog-Chunk": "-1"}, 40002, "an integer from 0 to 99999"),
        (CHUNK | {"Quorumlog-Chunk": "1.0"}, 40002, "an integer"),
        (CHUNK | {"Quorumlog-Chunk": "9" * 40}, 40002, "an integer"),
        (CHUNK | {"Quorumlog-Transaction-Epoch": "x"}, 40002, "an integer"),
        (CHUNK | {"Quorumlog-Transaction-Epoch": "2147483648"}, 40002, "2147483647"),
        (CHUNK | {"Quorumlog-Transaction-Number": ""}, 40002, "an integer"),
        (CHUNK | {"Quorumlog-Transaction-Group": "a/b"}, 40002, "Quorumlog-Transaction-Group"),
        (CHUNK | {"Quorumlog-Transaction-Group": ""}, 40002, "Quorumlog-Transaction-Group"),
        (CHUNK | {"Quorumlog-Transaction": "a b"}, 40002, "1 to 320 characters"),
        (CHUNK | {"Quorumlog-Transaction": "a\tb"}, 400, "\u2409"),
        (CHUNK | {"Quorumlog-Transaction": "p" * 321}, 40002, "1 to 320 characters"),
        (CHUNK | {"Quorumlog-Transaction": "key:" + "k" * 129}, 40002, "idempotency key"),
        (CHUNK | {"Quorumlog-Transaction": "key:k"}, 40002, "contradicts"),
        (CHUNK | {"Quorumlog-Attempt": "a" * 65}, 40002, "1 to 64"),
        (CHUNK | {"Quorumlog-Attempt": "a:b"}, 40002, "1 to 64"),
        (CHUNK | KEY, 40002, "expected one of them"),
        (CHUNK | {"Quorumlog-Producer-Id": "1", "Quorumlog-Producer-Epoch": "0",
                  "Quorumlog-Sequence": "0"}, 40002, "expected one of them"),
        (KEY | {"Quorumlog-Producer-Id": "1", "Quorumlog-Producer-Epoch": "0",
                "Quorumlog-Sequence": "0"}, 40002, "expected one of them"),
        ({"Idempotency-Key": "k" * 129}, 40002, "1 to 128"),
        ({"Idempotency-Key": ""}, 40002, "1 to 128"),
        ({"Idempotency-Key": "a b"}, 40002, "1 to 128"),
    ],
)  # fmt: skip
async def test_headers_are_whole_and_agree(
    door: Door, headers: dict[str, str], code: int, says: str
) -> None:
    answer = await produce(door, headers)
    assert (answer.status, answer.json["error_code"]) == (400, code)
    assert says in answer.json["message"]
    assert door.apis.requests == []
    assert door.apis.direct.taken == 0


@pytest.mark.parametrize(
    ("path", "doubled"),
    [
        ("/topics/flights", ["Idempotency-Key: a", "idempotency-key: b"]),
        ("/topics/flights", [f"{name}: {value}" for name, value in CHUNK.items()]
         + ["quorumlog-chunk: 3"]),
        (f"{V3}/transactions", ["Idempotency-Key: a", "Idempotency-Key: a"]),
    ],
)  # fmt: skip
async def test_a_header_of_one_value_comes_once(door: Door, path: str, doubled: list[str]) -> None:
    answer = await door.raw(post(ONE, path, *doubled, content_type="application/json"))
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert "is given twice" in answer.json["message"]
    assert door.apis.requests == []


@pytest.mark.parametrize("headers", [KEY, CHUNK])
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("acks=1", "'acks' is '1': expected all"),
        ("acks=0", "'acks' is '0': expected all"),
        ("timeout=60001", "60000"),
        ("partitioner=murmur2", "partitioner"),
    ],
)
async def test_a_transaction_waits_for_all_replicas(
    headers: dict[str, str], query: str, says: str
) -> None:
    async with open_door(limits=BrokerLimits(max_produce_timeout_ms=100_000)) as door:
        answer = await produce(door, headers, path=f"/topics/flights?{query}")
        assert (answer.status, answer.json["error_code"]) == (400, 40002)
        assert says in answer.json["message"]
        assert door.apis.requests == []


async def test_staged_rows_have_no_ranges(door: Door) -> None:
    answer = await produce(door, CHUNK, path="/topics/flights?receipts=range")
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert "no offsets" in answer.json["message"]


@pytest.mark.parametrize(
    ("headers", "limit"),
    [(KEY, "transaction.inline.max.bytes"), (CHUNK, "transaction.chunk.max.bytes")],
)
async def test_a_body_over_its_limit_is_413(
    door: Door, headers: dict[str, str], limit: str
) -> None:
    body = {"records": [{"value": "v" * 1_048_576}]}
    answer = await produce(door, headers, body)
    assert (answer.status, answer.json["error_code"]) == (413, 413)
    assert limit in answer.json["message"]
    chunks = (b"%x\r\n%b\r\n" % (len(one), one) for one in (orjson.dumps(body), b""))
    head = (
        "POST /topics/flights HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        f"Content-Type: {JSON_V2}\r\n"
    )
    head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    answer = await door.raw(head.encode() + b"\r\n" + b"".join(chunks))
    assert (answer.status, answer.json["error_code"]) == (413, 413)
    assert door.apis.requests == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"records":[]}', ONE[:-5]])
@pytest.mark.parametrize("headers", [KEY, CHUNK])
async def test_a_bad_body_is_refused_as_in_any_produce(
    door: Door, headers: dict[str, str], body: bytes
) -> None:
    plain = await produce(door, {}, body)
    answer = await produce(door, headers, body)
    assert answer.golden == plain.golden
    assert answer.status in {400, 422}
    assert door.apis.requests == []


@pytest.mark.parametrize("path", ["records", "records:batch"])
@pytest.mark.parametrize("headers", [KEY, CHUNK, {"Quorumlog-Attempt": "a"}])
async def test_v3_produces_name_the_path_that_takes_it(path: str, headers: dict[str, str]) -> None:
    record = {"value": {"type": "JSON", "data": 1}}
    body = {"entries": [{"id": "1"} | record]} if path.endswith("batch") else record
    async with open_door() as door:
        door.apis.auto_create = True
        answer = await door.call(
            "POST",
            f"{V3}/topics/new/{path}",
            orjson.dumps(body),
            {"Content-Type": "application/json"} | headers,
        )
        assert (answer.status, answer.json["error_code"]) == (400, 40002)
        named = "/transactions" if headers is KEY else "/topics/{topic_name}"
        assert f"POST {V3}{named}" in answer.json["message"] or (
            f"POST {named}" in answer.json["message"]
        )
        assert door.apis.image.topic("new") is None  # type: ignore[arg-type]


# the fast lane


async def test_the_fast_lane_steps_aside_amid_plain_produces(door: Door) -> None:
    """One connection, everything in one packet: what is in a transaction is never just appended."""
    staged = [f"{name}: {value}" for name, value in CHUNK.items()]
    requests = [
        post(ONE),
        post(ONE, "/topics/flights/partitions/0", "IDEMPOTENCY-KEY: a"),
        post(ONE),
        post(ONE, "/topics/flights/partitions/0", *staged),
        post(ONE, "/topics/flights/partitions/0", "Quorumlog-Chunk: 1"),
        post(ONE),
        post(ONE, "/topics/flights/partitions/0", "idempotency-key: a"),
    ]
    host, _, port = door.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(b"".join(requests))
        async with asyncio.timeout(10):
            answers = [await read_answer(reader) for _ in requests]
    finally:
        writer.close()
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 400, 200, 200]
    offsets = [
        row["offset"] for answer in answers if answer.status == 200 for row in
        answer.json["offsets"]
    ]  # fmt: skip
    assert offsets == [0, 1, 2, None, 3, 1]
    kinds = [type(request) for request in door.apis.requests]
    assert kinds.count(CommitRequest) == 2
    assert kinds.count(StageRequest) == 1
    assert kinds.count(ProduceRequest) == 3
