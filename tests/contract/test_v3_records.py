"""POST …/topics/T/records: objects in, receipts out while the client still sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from broker.config import BrokerLimits
from http_api.server import streams
from http_api.server.routes.v3 import records as routes
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.fake_broker_apis import CLUSTER_ID, FakeBrokerApis
from tests.support.http_door import V3, Answer, Door, open_door, read_answer

PATH = f"{V3}/topics/flights/records"
JSON = "application/json"
DEADLINE_S = 10.0
TIME = "2023-11-14T22:13:20.000Z"
"""The fake broker's time."""


def written(partition: int, offset: int, **shown: Any) -> dict[str, Any]:
    return {
        "error_code": 200,
        "cluster_id": CLUSTER_ID,
        "topic_name": "flights",
        "partition_id": partition,
        "offset": offset,
        "timestamp": TIME,
        **{half: {"type": kind, "size": size} for half, (kind, size) in shown.items()},
    }


def receipts(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    assert answer.type == JSON
    assert answer.body.endswith(b"\r\n")
    return [json.loads(line) for line in answer.body.split(b"\r\n")[:-1]]


async def produce(door: Door, body: bytes | str, query: str = "", **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await door.call("POST", PATH + query, body, {"Content-Type": JSON, **named})


def stored(door: Door, partition: int = 0) -> bytes:
    slices = door.apis.logs["flights", partition].slices
    return b"".join(bytes(each.lines) for each in slices)


class StreamedProduce:
    """A request whose body is still being sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._text = b""
        self.head = b""

    def send(self, piece: bytes) -> None:
        self.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")

    async def receipt(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE_S):
            if not self.head:
                self.head = await self._reader.readuntil(b"\r\n\r\n")
                assert self.head.startswith(b"HTTP/1.1 200 "), self.head
            while b"\r\n" not in self._text:
                size = int(await self._reader.readline(), 16)
                assert size, "the answer has ended"
                self._text += await self._reader.readexactly(size)
                await self._reader.readline()
        line, _, self._text = self._text.partition(b"\r\n")
        found: dict[str, Any] = json.loads(line)
        return found

    async def ended(self) -> bool:
        """Return True once the answer ends properly, False if the connection breaks."""
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                return await self._reader.readuntil(b"\r\n") == b"0\r\n"
        return False


@asynccontextmanager
async def streamed(door: Door, query: str = "") -> AsyncIterator[StreamedProduce]:
    host, _, port = door.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {PATH}{query} HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    try:
        yield StreamedProduce(reader, writer)
    finally:
        writer.close()


async def test_the_design_s_example(door: Door) -> None:
    body = (
        '{"key":{"type":"STRING","data":"alice"},"value":{"type":"JSON","data":{"id":1}}}'
        '{"value":{"type":"BINARY","data":"x"}}'
    )
    answer = await produce(door, body)
    assert answer.body == (
        b'{"error_code":200,"cluster_id":"%b","topic_name":"flights","partition_id":1,"offset":0,'
        b'"timestamp":"%b","key":{"type":"STRING","size":5},"value":{"type":"JSON","size":8}}\r\n'
        b'{"error_code":400,"message":"Bad Request: data=\\"x\\" is not a base64 string."}\r\n'
    ) % (CLUSTER_ID.encode(), TIME.encode())


async def test_each_receipt_comes_before_the_next_record_is_sent(door: Door) -> None:
    async with streamed(door) as stream:
        for offset in range(20):
            text = b'{"partition_id":0,"value":{"type":"JSON","data":%d}}' % offset
            stream.send(text[:7])
            stream.send(text[7:])
            size = len(str(offset))
            assert await stream.receipt() == written(0, offset, value=("JSON", size))
        stream.end()
        assert await stream.ended()


async def test_every_format_of_either_half_is_stored_as_it_was_sent(door: Door) -> None:
    body = r"""
{"value":{"type":"JSON","data":{"a":
[1.50, 10000000000000000000001, 1e400]}}}
{"key":{"type":"STRING","data":"k\u00e4"},"value":{"type":"STRING","data":"v"},"partition_id":0}
{"key":{"type":"BINARY","data":"aGk="},"value":{"type":"JSON","data":null},"partition_id":0}
{"headers":[{"name":"trace","value":"AQI="},{"name":"none","value":null},{"name":"n"}],
 "timestamp":"2021-02-05T19:14:42.5Z"}
{}"""
    answer = await produce(door, body)
    assert receipts(answer) == [
        written(0, 0, value=("JSON", 45)),
        written(0, 1, key=("STRING", 3), value=("STRING", 1)),
        written(0, 2, key=("BINARY", 2), value=("JSON", 0)),
        written(0, 3) | {"timestamp": "2021-02-05T19:14:42.500Z"},
        written(0, 4),
    ]
    time = b'"timestamp":1700000000000,'
    assert stored(door).splitlines() == [
        b'{"offset":0,%b"key":null,"value":{"a": [1.50, 10000000000000000000001, 1e400]}}' % time,
        b'{"offset":1,%b"key":"k\\u00e4","value":"v"}' % time,
        b'{"offset":2,%b"key":"aGk=","value":null}' % time,
        (
            b'{"offset":3,"timestamp":1612552482500,"headers":[{"key":"trace","value":"AQI="},'
            b'{"key":"none","value":null},{"key":"n","value":null}],"key":null,"value":null}'
        ),
        b'{"offset":4,%b"key":null,"value":null}' % time,
    ]
    formats = [
        (each.header.key_format.name, each.header.value_format.name)
        for each in door.apis.logs["flights", 0].slices
    ]
    assert formats[:4] == [
        ("JSON", "JSON"), ("STRING", "STRING"), ("BINARY", "JSON"), ("BINARY", "JSON"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("record", "code", "says"),
    [
        ('{"partition":1}', 400, "Object contains unknown field `partition`; expected {"),
        ('{"partition_id":"1"}', 400, "Expected `int | null`, got `str` - at `$.partition_id`"),
        ('{"partition_id":2}', 40402, "Partition 2 of topic flights not found"),
        ('{"partition_id":-1}', 40402, "expected 0 to 2147483647"),
        ('{"partition_id":10000000000000000000000}', 40402, "expected 0 to 2147483647"),
        ('{"value":"a"}', 400, "Expected `object | null`, got `str` - at `$.value`"),
        ('{"value":{"type":"TEXT","data":"a"}}', 400, "expected BINARY, JSON or STRING"),
        ('{"value":{"type":"STRING","data":1}}', 400, "expected a JSON string, got 1"),
        ('{"key":{"type":"BINARY","data":"a b"}}', 400, 'data="a b" is not a base64 string.'),
        ('{"headers":[{"value":"AQI="}]}', 400, "missing required field `name`"),
        ('{"headers":[{"name":"a","value":"?"}]}', 400, "is not a base64 string."),
        ('{"headers":[{"key":"a"}]}', 400, "unknown field `key`"),
        ('{"timestamp":"yesterday"}', 400, "expected a time with its zone"),
        ('{"timestamp":"@5"}', 400, "expected a time with its zone"),
        ('{"timestamp":"1969-12-31T00:00:00Z"}', 400, "expected a time with its zone"),
        ('{"timestamp":1}', 400, "Expected `str | null`, got `int` - at `$.timestamp`"),
        ('{"value":{"data":"a"}}', 422, "Error: 42206 : Payload error. Schema Registry must be "),
        ('{"key":{"type":"AVRO","data":"a"}}', 422, 'Send the key as {"type":"JSON","data":…}'),
        ('{"value":{"schema_id":1,"data":1}}', 422, "there are no schemas here"),
        ('{"value":{"type":"JSON","data":' + "[" * 3000 + "]" * 3000 + "}}", 400, "too deep"),
    ],
)
async def test_one_bad_record_gets_its_error_and_the_others_are_written(
    door: Door, record: str, code: int, says: str
) -> None:
    answer = await produce(door, "{}" + record + "{}")
    first, failure, last = receipts(answer)
    assert (first, last) == (written(0, 0), written(0, 1))
    assert failure.keys() == {"error_code", "message"}
    assert failure["error_code"] == code
    assert says in failure["message"]


@pytest.mark.parametrize(
    "text",
    [
        b'{"value":tru}', b'{"value":{"type":"JSON","data":{,}}}', b"[1]", b"oops", b'{"a":\xff}',
        b'{"value":{"type":"STRING","data":"\\ud800"}}', b'{"value":{"type":"JSON","data":"\n"}}',
        b'{"value":', b'{"key":{"type":"JSON","data":"\xc3"}}', b'{"value":{"type":"STRING"',
    ],
)  # fmt: skip
async def test_text_that_is_no_json_ends_the_stream_with_one_error(door: Door, text: bytes) -> None:
    answer = await produce(door, b"{}" + text)
    first, failure = receipts(answer)
    assert first == written(0, 0)
    assert failure["error_code"] == 400
    assert stored(door).count(b"\n") == 1


async def test_what_follows_text_that_is_no_json_is_not_read(door: Door) -> None:
    async with streamed(door) as stream:
        stream.send(b"{} nonsense {}")
        assert await stream.receipt() == written(0, 0)
        failure = await stream.receipt()
        assert failure == {
            "error_code": 400,
            "message": "expected an object that begins with '{', got 'nonsense {}'",
        }
        assert await stream.ended()
        stream.send(b"{}")
    assert stored(door).count(b"\n") == 1


async def test_a_record_over_the_topic_s_limit_is_413_and_the_stream_goes_on(door: Door) -> None:
    door.apis.max_message_bytes = 100
    large = '{"value":{"type":"STRING","data":"' + "x" * 200 + '"}}'
    first, failure, last = receipts(await produce(door, "{}" + large + "{}"))
    assert (first["offset"], last["offset"]) == (0, 1)
    assert failure["error_code"] == 413


async def test_an_object_over_the_body_s_limit_is_413_and_ends_the_stream() -> None:
    async with open_door(limits=BrokerLimits(max_body_bytes=2_000)) as door:
        body = "{}" * 3_000 + '{"value":{"type":"STRING","data":"' + "x" * 2_000 + '"}}{}'
        found = receipts(await produce(door, body))
        assert len(found) == 3_001
        assert found[-1] == {
            "error_code": 413,
            "message": "an object of the stream is over max_body_bytes=2000",
        }


@pytest.mark.parametrize("body", [b"", b" \r\n\t"])
@pytest.mark.parametrize("query", ["", "?receipts=errors"])
async def test_an_empty_body_is_422(door: Door, body: bytes, query: str) -> None:
    answer = await produce(door, body, query)
    text = "Payload error. Request body is empty. Data is required."
    assert answer.golden == (422, JSON, {"error_code": 42206, "message": text})


async def test_what_is_refused_before_anything_is_read(door: Door) -> None:
    async def refusal(path: str, **headers: str) -> tuple[int, int, str]:
        sent = {"Content-Type": JSON} | {k.replace("_", "-"): v for k, v in headers.items()}
        answer = await door.call("POST", path, "{}", sent)
        return answer.status, answer.json["error_code"], answer.json["message"]

    status, code, text = await refusal(f"{V3}/topics/trains/records")
    assert (status, code) == (404, 40401)
    assert "curl -X POST" in text
    assert (await refusal("/v3/clusters/other/topics/flights/records"))[:2] == (404, 404)
    latin = "application/json; charset=latin1"
    assert await refusal(PATH, Content_Type=latin) == (
        400, 400, "Bad Request: charset is 'latin1', expected utf-8 or none",
    )  # fmt: skip
    assert (await refusal(PATH, Content_Type="text/plain"))[:2] == (415, 415)
    assert await refusal(PATH + "?receipts=none") == (
        400, 40002, "Parameter 'receipts' is 'none': expected all or errors",
    )  # fmt: skip
    assert (await refusal(PATH + "?acks=2"))[:2] == (400, 40002)
    assert (await refusal(PATH, Quorumlog_Sequence="1"))[:2] == (400, 40002)
    assert (await refusal(PATH, Accept="text/html"))[:2] == (406, 406)
    assert door.apis.requests == []


async def test_failures_only_with_their_numbers_and_the_sum(door: Door) -> None:
    answer = await produce(door, '{}{"a":1}{}{"partition_id":9}{}', "?receipts=errors")
    bad, missing, total = receipts(answer)
    assert (bad["record"], bad["error_code"]) == (1, 400)
    assert (missing["record"], missing["error_code"]) == (3, 40402)
    assert total == {"error_code": 200, "records": 5, "failed": 2}


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_rule_r8_without_a_controller_a_partition_may_be_there_and_its_record_is_repeated(
    door: Door, monkeypatch: pytest.MonkeyPatch, *, is_claimed: bool
) -> None:
    async def no_controller_answers(*_: object) -> None:
        raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no controller answers")

    monkeypatch.setattr(door.apis, "catch_up_with_topic", no_controller_answers)
    names = ("Quorumlog_Producer_Id", "Quorumlog_Producer_Epoch", "Quorumlog_Sequence")
    claim = dict.fromkeys(names, "0") if is_claimed else {}
    first, failure, *rest = receipts(await produce(door, '{}{"partition_id":9}{}', **claim))
    assert first["offset"] == 0
    assert (failure["retriable"], failure["outcome"]) == (True, "not_written")
    assert [one["offset"] for one in rest] == ([] if is_claimed else [1])


async def test_failures_of_the_broker_have_their_outcome(door: Door) -> None:
    door.apis.record_errors = {
        1: KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no answer", outcome=Outcome.UNKNOWN)
    }
    first, failure, last = receipts(await produce(door, "{}{}{}"))
    assert (first["offset"], last["offset"]) == (0, 1)
    assert failure == {
        "error_code": 50003,
        "message": "REQUEST_TIMED_OUT: no answer",
        "retriable": True,
        "outcome": "unknown",
    }


async def test_records_of_a_topic_with_the_leader_s_time_have_none_in_receipts(door: Door) -> None:
    door.apis.append_times.add("flights")
    [receipt] = receipts(await produce(door, '{"timestamp":"2021-02-05T19:14:42Z"}'))
    assert receipt["timestamp"] is None


async def test_acks_and_timeout_reach_the_broker(door: Door) -> None:
    [receipt] = receipts(await produce(door, "{}", "?acks=0&timeout=77"))
    assert receipt["offset"] == -1
    [request] = door.apis.requests
    assert (request.acks, request.timeout_ms) == (0, 77)  # type: ignore[attr-defined]


async def test_what_arrived_together_is_one_request(door: Door) -> None:
    found = receipts(await produce(door, '{"partition_id":0}' * 2_500))
    assert [each["offset"] for each in found] == list(range(2_500))
    counts = [len(request.records) for request in door.apis.requests]  # type: ignore[attr-defined]
    assert sum(counts) == 2_500
    assert max(counts) <= routes.CHUNK_RECORDS
    assert len(counts) < 10


async def test_a_body_longer_than_the_limit_is_a_stream_s_business() -> None:
    async with open_door(limits=BrokerLimits(max_body_bytes=2_000)) as door:
        host, _, port = door.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b"{}" * 10_000
        head = f"POST {PATH}?receipts=errors HTTP/1.1\r\nHost: x\r\nContent-Type: {JSON}\r\n"
        head += f"Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            answer = await read_answer(reader)
        assert receipts(answer) == [{"error_code": 200, "records": 10_000, "failed": 0}]
        writer.close()


async def test_one_stream_too_many_is_503_until_another_ends() -> None:
    async with open_door(limits=BrokerLimits(max_streams=1)) as door:
        async with streamed(door) as stream:
            stream.send(b"{}")
            await stream.receipt()
            answer = await produce(door, "{}")
            assert answer.status == 503
            assert answer.headers["retry-after"] == "1"
            assert answer.json["error_code"] == 50302
            assert "max_streams is 1" in answer.json["message"]
            stream.end()
            assert await stream.ended()
        assert len(receipts(await produce(door, "{}"))) == 1


async def test_a_listener_that_stops_ends_its_streams_with_the_reason() -> None:
    async with open_door(grace_s=5.0) as door, streamed(door) as stream:
        stream.send(b"{}")
        await stream.receipt()
        stopping = asyncio.create_task(door.server.stop())
        last = await stream.receipt()
        assert last["error_code"] == 50302
        assert "this broker is stopping" in last["message"]
        assert await stream.ended()
        async with asyncio.timeout(2.0):
            await stopping


async def test_a_stream_that_is_open_for_too_long_ends_with_408(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "STREAM_S_MAX", 0.2)
    async with streamed(door) as stream:
        stream.send(b"{}")
        assert (await stream.receipt())["error_code"] == 200
        last = await stream.receipt()
        text = "Streaming connection open for longer than allowed"
        assert last == {"error_code": 408, "message": text}
        assert await stream.ended()


async def test_a_client_that_reads_no_receipts_is_closed_with_bounded_memory(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PROGRESS_S_MAX", 0.3)
    monkeypatch.setattr(streams, "UNSENT_BYTES_MAX", 100_000)
    async with streamed(door) as stream:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(ConnectionError):
                await _send_without_end(stream)
        read_most = len(door.apis.requests)
        await asyncio.sleep(0.05)
        assert len(door.apis.requests) == read_most


async def _send_without_end(stream: StreamedProduce) -> None:
    while True:
        stream.send(b"{}" * 10_000)
        await stream.writer.drain()


async def test_a_client_that_leaves_keeps_what_was_acknowledged(door: Door) -> None:
    async with streamed(door) as stream:
        stream.send(b'{"value":{"type":"JSON","data":1}}{"value"')
        await stream.receipt()
    async with asyncio.timeout(DEADLINE_S):
        while len(receipts(await produce(door, "{}"))) != 1:
            pass
    assert b'"value":1}' in stored(door)


def batch_entry(number: int, **fields: Any) -> dict[str, Any]:
    return {"id": str(number), **fields}


async def batch(door: Door, body: Any, path: str = PATH + ":batch") -> Answer:
    return await door.post(path, body, JSON)


async def test_a_batch_is_answered_with_successes_and_failures(door: Door) -> None:
    entries = [
        batch_entry(1, value={"type": "JSON", "data": {"a": 1}}),
        batch_entry(2, value={"type": "AVRO", "data": 1}),
        batch_entry(3, key={"type": "STRING", "data": "k"}, partition_id=1),
        batch_entry(4, partition_id=7),
    ]
    answer = await batch(door, {"entries": entries})
    assert answer.status == 207
    successes, failures = answer.json["successes"], answer.json["failures"]
    for row in successes:
        assert row.pop("error_code", None) is None
    assert successes == [
        {"id": "1"} | _without_code(written(0, 0, value=("JSON", 7))),
        {"id": "3"} | _without_code(written(1, 0, key=("STRING", 1))),
    ]
    assert [(row["id"], row["error_code"]) for row in failures] == [("2", 422), ("4", 40402)]


def _without_code(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "error_code"}


async def test_a_batch_of_failures_has_both_lists(door: Door) -> None:
    answer = await batch(door, {"entries": [batch_entry(1, nonsense=1)]})
    assert answer.status == 207
    assert answer.json["successes"] == []
    [failure] = answer.json["failures"]
    assert failure.keys() == {"id", "error_code", "message"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "Request body is empty. Data is required."),
        ('{"entries":[]}', "Empty batch."),
        ({"entries": [batch_entry(n) for n in range(1_001)]}, "Too many entries in batch."),
        ({"entries": [batch_entry(1), batch_entry(1)]}, "Batch entry IDs are not distinct."),
        ({"entries": [{"id": 1}]}, "Batch entry identifier is not a valid string."),
        ({"entries": [{"id": "a b"}]}, "Batch entry identifier is not a valid string."),
        ({"entries": [{"id": "x" * 81}]}, "Batch entry identifier is not a valid string."),
        ({"entries": [{}]}, "Batch entry identifier is not a valid string."),
        ({"entries": [7]}, "Batch entry identifier is not a valid string."),
    ],
)
async def test_a_batch_that_is_refused_writes_nothing(door: Door, body: Any, says: str) -> None:
    answer = await batch(door, body)
    assert (answer.status, answer.json["error_code"]) == (422, 42208)
    assert answer.json["message"].startswith(says)
    assert door.apis.requests == []


@pytest.mark.parametrize("body", ["[]", "oops", '{"records":[]}', b'{"entries":["\xff"]}'])
async def test_a_body_that_is_no_batch_is_400(door: Door, body: Any) -> None:
    answer = await batch(door, body)
    assert (answer.status, answer.json["error_code"]) == (400, 400)
    assert door.apis.requests == []


async def test_a_batch_to_an_unknown_topic_is_404(door: Door) -> None:
    answer = await batch(door, {"entries": [batch_entry(1)]}, f"{V3}/topics/trains/records:batch")
    assert (answer.status, answer.json["error_code"]) == (404, 40401)


async def test_a_topic_that_may_be_created_is_created() -> None:
    async with open_door(FakeBrokerApis(auto_create=True)) as door:
        [receipt] = receipts(await produce(door, "{}"))
        assert receipt["offset"] == 0
