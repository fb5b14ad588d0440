"""Arrow batches to requests, and how requests are sent until every record is acknowledged."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, cast

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from http_api.client.calls import Answer, Call
from http_api.client.client_errors import ApiError, OutcomeUnknownError, QuorumlogError
from raft_metadata.common.record_placement import partition_for_key
from spark_source import encoding
from spark_source.encoding import Chunk, body_of, encode
from spark_source.errors import NotServedError, RejectedError, SchemaError
from spark_source.options import SinkOptions, sink_options
from spark_source.schema import HEADERS_ARROW, HEADERS_COLUMN
from spark_source.sender import Sender
from spark_source.writer import Topics, check_columns

if TYPE_CHECKING:
    from spark_source.cluster import Cluster


def options(**given: str) -> SinkOptions:
    return sink_options({"url": "http://a:1", "topic": "t", **given}, {})


class FakePlacement:
    """Topics of this many partitions; runs without a key go to 0, 1, 2 … in turn."""

    def __init__(self, count: int = 3) -> None:
        self.count = count
        self.runs = 0

    def partitions(self, topic: str) -> int:
        return self.count

    def unkeyed(self, topic: str) -> int:
        self.runs += 1
        return (self.runs - 1) % self.count


class LedTopics:
    """A cluster in which each partition of any topic has a leader, or has none."""

    def __init__(self, *has_leader: bool) -> None:
        self.has_leader = list(has_leader)
        self.lookups = 0

    def learn_leaders(self, name: str) -> list[bool]:
        self.lookups += 1
        return self.has_leader


@pytest.mark.parametrize(
    ("has_leader", "runs"),
    [
        ([True] * 3, [1, 2, 0, 1]),
        ([True, False, True], [2, 0, 2, 0]),
        ([False, False], [1, 0, 1, 0]),
    ],
)
def test_runs_without_a_key_pass_partitions_without_a_leader(
    has_leader: list[bool], runs: list[int]
) -> None:
    cluster = LedTopics(*has_leader)
    topics = Topics(cast("Cluster", cluster), start=lambda bits: (1 << bits) // 2 - 1)
    assert topics.partitions("t") == len(has_leader)
    assert [topics.unkeyed("t") for _ in runs] == runs
    assert cluster.lookups == 1


def chunks(batch: pa.RecordBatch, wanted: SinkOptions, count: int = 1) -> list[Chunk]:
    return list(encode(batch, wanted, FakePlacement(count)))


def by_partition(found: list[Chunk]) -> dict[int | None, list[dict[str, Any]]]:
    """Each partition's records, in order."""
    records: dict[int | None, list[dict[str, Any]]] = {}
    for chunk in found:
        sent = orjson.loads(body_of(chunk.records))["records"]
        records.setdefault(chunk.partition, []).extend(sent)
    return records


rows = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=20),
        st.none() | st.binary(max_size=20),
        st.none() | st.integers(0, 9),
    ),
    max_size=20,
)


@given(rows)
def test_bytes_arrive_as_they_were_in_order_where_they_belong(
    written: list[tuple[Any, Any, Any]],
) -> None:
    batch = pa.record_batch(
        {
            "key": pa.array([row[0] for row in written], pa.binary()),
            "value": pa.array([row[1] for row in written], pa.binary()),
            "partition": pa.array([row[2] for row in written], pa.int32()),
        }
    )
    expected: dict[int | None, list[tuple[bytes | None, bytes | None]]] = {}
    for key, value, partition in written:
        where = partition
        if where is None:
            where = 0 if key is None else partition_for_key(key, 3)
        expected.setdefault(where, []).append((key, value))
    found = by_partition(chunks(batch, options(), 3))
    assert {
        where: [(decoded(one["key"]), decoded(one["value"])) for one in records]
        for where, records in found.items()
    } == expected


@pytest.mark.parametrize(
    ("given", "stored"), [('"a"', b'"a"'), (' {"x":\n1}\r\n', b'{"x": 1}'), ("7", b"7")]
)
def test_a_json_key_is_placed_by_the_bytes_a_broker_stores(given: str, stored: bytes) -> None:
    batch = pa.record_batch({"key": [given], "value": ["1"]})
    (chunk,) = chunks(batch, options(valueformat="json"), 997)
    assert chunk.partition == partition_for_key(stored, 997)


def test_a_topic_that_is_not_there_is_left_to_the_broker_that_makes_it() -> None:
    batch = pa.record_batch(
        {"value": ["a", "b"], "partition": pa.array([None, 2], pa.int32()), "key": ["x", "y"]}
    )
    (chunk,) = chunks(batch, options(), 0)
    assert chunk.partition is None
    assert [record.get("partition") for record in by_partition([chunk])[None]] == [None, 2]


def test_runs_without_a_key_take_turns() -> None:
    placement = FakePlacement(2)
    batch = pa.record_batch({"value": ["a"]})
    taken = [c.partition for _ in range(3) for c in encode(batch, options(), placement)]
    assert taken == [0, 1, 0]


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def test_json_goes_as_its_own_text() -> None:
    batch = pa.record_batch({"key": ['"a"', "7", None], "value": ['{"x": 1.50}', None, "[ ]"]})
    (chunk,) = chunks(batch, options(valueformat="json"))
    assert chunk.records == [
        b'{"key":"a","value":{"x": 1.50}}',
        b'{"key":7,"value":null}',
        b'{"key":null,"value":[ ]}',
    ]


def test_plain_text_may_be_a_key_beside_json_values() -> None:
    batch = pa.record_batch({"key": ['say "hi"\n'], "value": ["1"]})
    (chunk,) = chunks(batch, options(valueformat="json", keyformat="string"))
    assert orjson.loads(chunk.records[0])["key"] == 'say "hi"\n'


@pytest.mark.parametrize(
    "value", ['1},{"value":2', '"abc', "", "{", "nul", "1 2", b"\xff", b'"\xff"', "NaN"]
)
def test_text_that_is_not_json_never_reaches_a_body(value: str | bytes) -> None:
    kind = pa.binary() if isinstance(value, bytes) else pa.string()
    batch = pa.record_batch({"value": pa.array([value], kind)})
    with pytest.raises(RejectedError, match="a value is not JSON"):
        chunks(batch, options(valueformat="json"))


def test_headers_and_the_topic_of_each_row() -> None:
    headers = [[{"key": "h", "value": b"\x00"}, {"key": "n", "value": None}], None]
    batch = pa.record_batch(
        {
            "value": ["a", "b"],
            "topic": ["t1", "t2"],
            "headers": pa.array(headers, HEADERS_ARROW),
        }
    )
    wanted = sink_options({"url": "http://a:1"}, {})
    first, second = chunks(batch, wanted)
    assert (first.topic, second.topic) == ("t1", "t2")
    assert orjson.loads(first.records[0])["headers"] == [
        {"key": "h", "value": "AA=="},
        {"key": "n", "value": None},
    ]
    assert "headers" not in orjson.loads(second.records[0])


def test_the_option_topic_wins_and_a_missing_topic_is_told() -> None:
    batch = pa.record_batch({"value": ["a"], "topic": pa.array([None], pa.string())})
    assert [chunk.topic for chunk in chunks(batch, options())] == ["t"]
    with pytest.raises(RejectedError, match="has no topic"):
        chunks(batch, sink_options({"url": "http://a:1"}, {}))


@given(st.lists(st.integers(0, 60), max_size=30))
def test_requests_are_of_bounded_size_and_hold_everything(sizes: list[int]) -> None:
    values = [b"1" * (size + 1) for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoding, "BODY_BYTES_MAX", 100)
        patch.setattr(encoding, "BODY_RECORDS_MAX", 4)
        found = chunks(pa.record_batch({"value": pa.array(values, pa.binary())}), options())
    assert [one for chunk in found for one in chunk.records] == [
        b'{"value":"%b"}' % base64.b64encode(value) for value in values
    ]
    for chunk in found:
        assert 1 <= len(chunk.records) <= 4
        assert len(chunk.records) == 1 or sum(map(len, chunk.records)) <= 100


def columns(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


TEXT = StringType()


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (columns(valeu=TEXT), "column valeu string can't be written: expected value"),
        (columns(value=IntegerType()), "column value int"),
        (columns(key=TEXT), "no column value"),
        (columns(value=TEXT, partition=LongType()), "column partition bigint"),
        (columns(value=TEXT, headers=TEXT), "column headers string"),
    ],
)
def test_wrong_columns_are_told_before_the_first_row(schema: StructType, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        check_columns(schema, options(), overwrite=False)


def test_only_append_and_only_with_a_topic() -> None:
    schema = columns(value=BinaryType(), headers=HEADERS_COLUMN[0])
    check_columns(schema, options(), overwrite=False)
    with pytest.raises(SchemaError, match="only ever appended"):
        check_columns(schema, options(), overwrite=True)
    with pytest.raises(SchemaError, match="no topic is named"):
        check_columns(schema, sink_options({"url": "http://a:1"}, {}), overwrite=False)


# ---------------------------------------------------------------- sending


class FakeRoutes:
    def candidates(self, request: object, now_s: float) -> list[str]:
        return ["http://a:1"]

    def report_failure(self, request: object, url: str) -> None:
        pass


class FakeClient:
    """Answers in turn: rows of outcomes, or an error."""

    def __init__(self, *answers: list[str] | QuorumlogError) -> None:
        self.routes = FakeRoutes()
        self.answers = list(answers)
        self.bodies: list[list[int]] = []

    def run(self, call: Call[Any], *, retry_s: float) -> Any:
        assert call.request.body is not None
        records = orjson.loads(call.request.body)["records"]
        self.bodies.append([record["value"] for record in records])
        answer = self.answers.pop(0)
        if isinstance(answer, QuorumlogError):
            raise answer
        found = [ROWS[word] for word in answer]
        return call.parse(Answer(status=200, body=orjson.dumps({"offsets": found})))


FAILED = {"partition": None, "offset": None, "error": "NOT_ENOUGH_REPLICAS: no", "retriable": True}
ROWS = {
    "ok": {"partition": 0, "offset": 5, "error_code": None, "error": None},
    "not": {**FAILED, "error_code": 50003, "outcome": "not_written"},
    "unknown": {**FAILED, "error_code": 50003, "outcome": "unknown"},
    "large": {**FAILED, "error_code": 413, "error": "MESSAGE_TOO_LARGE: x", "retriable": False},
}


def send(client: FakeClient, count: int = 3) -> list[float]:
    waits: list[float] = []
    now = [0.0]

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    wanted = options(valueformat="json", retrytimeoutms="5000")
    sender = Sender(client, wanted, lambda: now[0], sleep)  # type: ignore[arg-type]
    sender.send(Chunk("t", 0, [b'{"value":%d}' % number for number in range(count)]))
    return waits


def test_an_acknowledged_record_is_sent_once() -> None:
    client = FakeClient(["ok", "ok", "ok"])
    assert send(client) == []
    assert client.bodies == [[0, 1, 2]]


def test_only_what_was_not_acknowledged_goes_again_in_order() -> None:
    client = FakeClient(["not", "ok", "unknown"], ["ok", "not"], ["ok"])
    send(client)
    assert client.bodies == [[0, 1, 2], [0, 2], [2]]


def test_a_lost_answer_sends_all_again() -> None:
    client = FakeClient(OutcomeUnknownError("gone"), ["ok", "ok", "ok"])
    send(client)
    assert client.bodies == [[0, 1, 2], [0, 1, 2]]


def test_a_record_that_is_never_taken_fails_the_task() -> None:
    with pytest.raises(RejectedError, match="record 1 of a request was refused: MESSAGE_TOO_LARGE"):
        send(FakeClient(["ok", "large", "ok"]))


def test_a_refused_request_fails_the_task_at_once() -> None:
    with pytest.raises(RejectedError, match="topic t: Topic t not found"):
        send(FakeClient(ApiError(404, 40401, "Topic t not found", {})))


def test_retries_end_and_say_why() -> None:
    refusals = [ApiError(503, 50302, "no leader", {"outcome": "not_written"}) for _ in range(20)]
    with pytest.raises(NotServedError, match=r"3 of 3 records .* within 5 s .* no leader"):
        send(FakeClient(*refusals))
