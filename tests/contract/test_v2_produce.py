"""POST /topics/T and /topics/T/partitions/P: golden bodies and headers."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from broker.config import BrokerLimits
from broker.record.batch import RecordFormat
from broker.server.requests import ACKS_ALL, ACKS_LEADER, ACKS_NONE
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.fake_broker_apis import CLUSTER_ID, FakeBrokerApis
from tests.support.http_door import ADVERTISED, Door, open_door

V2 = "application/vnd.kafka.v2+json"
JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
TWO = {"records": [{"value": {"a": 1}}, {"value": 2}]}


def row(partition: int, offset: int) -> dict[str, Any]:
    return {"partition": partition, "offset": offset, "error_code": None, "error": None}


def failed(code: int, text: str, **extra: Any) -> dict[str, Any]:
    return {"partition": None, "offset": None, "error_code": code, "error": text, **extra}


def answer_of(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"offsets": list(rows), "key_schema_id": None, "value_schema_id": None}


async def test_answers_exactly_as_confluent_does(door: Door) -> None:
    answer = await door.post("/topics/flights", TWO, JSON_V2)
    assert answer.status == 200
    assert answer.type == V2
    assert answer.body == (
        b'{"offsets":[{"partition":0,"offset":0,"error_code":null,"error":null},'
        b'{"partition":0,"offset":1,"error_code":null,"error":null}],'
        b'"key_schema_id":null,"value_schema_id":null}'
    )


async def test_a_partition_in_the_path_takes_all_records(door: Door) -> None:
    answer = await door.post("/topics/flights/partitions/1", TWO, JSON_V2)
    assert answer.golden == (200, V2, answer_of(row(1, 0), row(1, 1)))


@pytest.mark.parametrize("path", ["/topics/flights/", "//topics//flights", "/topics/flights//"])
async def test_trailing_and_double_slashes_are_taken(door: Door, path: str) -> None:
    assert (await door.post(path, TWO, JSON_V2)).status == 200


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        (JSON_V2, RecordFormat.JSON),
        ("application/vnd.kafka.json.v1+json", RecordFormat.JSON),
        ("application/json", RecordFormat.JSON),
        ("application/json; charset=utf-8", RecordFormat.JSON),
        ("Application/JSON", RecordFormat.JSON),
        (BINARY_V2, RecordFormat.BINARY),
        ("application/vnd.kafka.binary.v1+json", RecordFormat.BINARY),
        (V2, RecordFormat.BINARY),
        ("application/vnd.kafka.v1+json", RecordFormat.BINARY),
        ("application/vnd.kafka+json", RecordFormat.BINARY),
        ("application/octet-stream", RecordFormat.BINARY),
    ],
)
async def test_the_content_type_says_the_format(
    door: Door, content_type: str, expected: RecordFormat
) -> None:
    body = {"records": [{"key": "YQ==", "value": "YWJj"}]}
    answer = await door.post("/topics/flights", body, content_type)
    assert (answer.status, answer.type) == (200, V2)
    request: Any = door.apis.requests[0]
    assert (request.key_format, request.value_format) == (expected, expected)


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/xml"]
)
async def test_another_content_type_is_415_naming_the_one_to_send(
    door: Door, content_type: str | None
) -> None:
    answer = await door.post("/topics/flights", TWO, content_type)
    assert (answer.status, answer.type) == (415, V2)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == 415
    assert f"send 'Content-Type: {JSON_V2}'" in answer.json["message"]


@pytest.mark.parametrize("accept", ["text/html", "application/vnd.kafka.v2+json;q=0", "image/*"])
async def test_an_accept_that_takes_nothing_of_ours_is_406(door: Door, accept: str) -> None:
    headers = {"Content-Type": JSON_V2, "Accept": accept}
    answer = await door.call("POST", "/topics/flights", json.dumps(TWO), headers)
    assert (answer.status, answer.type, answer.json["error_code"]) == (406, V2, 406)
    assert door.apis.requests == []


@pytest.mark.parametrize(
    "accept", ["*/*", V2, "application/json", "text/html;q=0.9, application/*;q=0.1"]
)
async def test_an_accept_that_takes_ours_is_served(door: Door, accept: str) -> None:
    headers = {"Content-Type": JSON_V2, "Accept": accept}
    answer = await door.call("POST", "/topics/flights", json.dumps(TWO), headers)
    assert (answer.status, answer.type) == (200, V2)


# ---------------------------------------------------------------- bodies


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("", 400),
        ("not json", 400),
        ('{"records":[{"value":1}', 400),
        ("[]", 400),
        ('{"records":{}}', 400),
        ('{"records":["x"]}', 400),
        (b'{"records":[{"value":"\xff"}]}', 400),
        ("null", 422),
        ("{}", 422),
        ('{"records":[]}', 422),
        ('{"records":[{"value":1}],"foo":1}', 422),
        ('{"records":[{"valeu":1}]}', 422),
        ('{"records":[{"value":1,"partition":"x"}]}', 422),
        ('{"records":[{"value":1,"timestamp":-1}]}', 422),
        ('{"records":[{"value":1,"offset":7}]}', 422),
        ('{"records":[{"value":1,"headers":[{"key":"h","value":"no base64!"}]}]}', 422),
    ],
)
async def test_a_wrong_body_is_refused_and_nothing_written(
    door: Door, body: bytes | str, status: int
) -> None:
    answer = await door.post("/topics/flights", body, JSON_V2)
    assert (answer.status, answer.type) == (status, V2)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == status
    assert door.apis.requests == []


async def test_an_unprocessable_body_is_told_what_was_expected(door: Door) -> None:
    answer = await door.post("/topics/flights", '{"records":[{"valeu":1}]}', JSON_V2)
    assert "unknown field `valeu`" in answer.json["message"]
    assert 'expected {"records":[{"key"?,"value"?' in answer.json["message"]


async def test_nesting_has_a_limit(door: Door) -> None:
    deep = '{"records":[{"value":' + "[" * 5000 + "]" * 5000 + "}]}"
    answer = await door.post("/topics/flights", deep, JSON_V2)
    text = "the body is nested too deep: expected at most 500 levels"
    assert answer.golden == (400, V2, {"error_code": 400, "message": text})
    fine = '{"records":[{"value":' + "[" * 500 + "]" * 500 + "}]}"
    assert (await door.post("/topics/flights", fine, JSON_V2)).status == 200


async def test_bad_base64_is_400_in_the_known_words(door: Door) -> None:
    answer = await door.post("/topics/flights", {"records": [{"value": 1}]}, BINARY_V2)
    message = "Bad Request: data=1 is not a base64 string."
    assert answer.golden == (400, V2, {"error_code": 400, "message": message})


async def test_timestamp_and_headers_are_stored_with_the_record(door: Door) -> None:
    value = base64.b64encode(b"h").decode()
    headers = [{"key": "h", "value": value}, {"key": "n", "value": None}]
    record = {"value": 1, "timestamp": 1_600_000_000_000, "headers": headers}
    answer = await door.post("/topics/flights", {"records": [record]}, JSON_V2)
    assert answer.status == 200
    read = await door.get("/topics/flights/partitions/0/records?offset=0")
    assert read.json[0]["timestamp"] == 1_600_000_000_000
    assert read.json[0]["headers"] == headers


async def test_rule_r12_the_value_is_the_clients_text(door: Door) -> None:
    text = '{"n":12345678901234567890123,"a":1,"a":2, "f":1.0}'
    body = '{"records":[{"value":' + text + "}]}"
    assert (await door.post("/topics/flights", body, JSON_V2)).status == 200
    read = await door.get("/topics/flights/partitions/0/records?offset=0")
    assert text.encode() in read.body


# ---------------------------------------------------------------- acks, timeout


@pytest.mark.parametrize(
    ("query", "acks", "timeout_ms"),
    [
        ("", ACKS_ALL, 10_000),
        ("?acks=all", ACKS_ALL, 10_000),
        ("?acks=-1&timeout=60000", ACKS_ALL, 60_000),
        ("?acks=1&timeout=250", ACKS_LEADER, 250),
        ("?acks=0", ACKS_NONE, 10_000),
    ],
)
async def test_acks_and_timeout_reach_the_broker(
    door: Door, query: str, acks: int, timeout_ms: int
) -> None:
    answer = await door.post("/topics/flights" + query, {"records": [{"value": 1}]}, JSON_V2)
    request: Any = door.apis.requests[0]
    assert (request.acks, request.timeout_ms) == (acks, timeout_ms)
    assert answer.json["offsets"][0]["offset"] == (-1 if acks == ACKS_NONE else 0)


@pytest.mark.parametrize(
    "query", ["acks=2", "acks=", "timeout=0", "timeout=60001", "timeout=x", "timeout="]
)
async def test_a_bad_parameter_is_40002(door: Door, query: str) -> None:
    answer = await door.post(f"/topics/flights?{query}", TWO, JSON_V2)
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert "expected" in answer.json["message"]


# ---------------------------------------------------------------- topics


async def test_an_unknown_topic_is_404_with_the_curl_that_creates_it(door: Door) -> None:
    answer = await door.post("/topics/nope", TWO, JSON_V2)
    message = (
        "Topic nope not found, and auto_create_topics_enable is false. Create it with: "
        "curl -X POST -H 'Content-Type: application/json' "
        f'-d \'{{"topic_name":"nope"}}\' {ADVERTISED}/v3/clusters/{CLUSTER_ID}/topics'
    )
    assert answer.golden == (404, V2, {"error_code": 40401, "message": message})


async def test_an_unknown_topic_is_created_where_that_is_allowed() -> None:
    async with open_door(FakeBrokerApis(auto_create=True)) as door:
        assert (await door.post("/topics/fresh", TWO, JSON_V2)).status == 200


async def test_an_unknown_partition_is_40402(door: Door) -> None:
    answer = await door.post("/topics/flights/partitions/2", TWO, JSON_V2)
    message = "Partition 2 of topic flights not found"
    assert answer.golden == (404, V2, {"error_code": 40402, "message": message})


async def test_a_partition_that_is_no_number_is_404(door: Door) -> None:
    answer = await door.post("/topics/flights/partitions/x", TWO, JSON_V2)
    message = "HTTP 404 Not Found: 'x' is not a number"
    assert answer.golden == (404, V2, {"error_code": 404, "message": message})


@pytest.mark.parametrize("name", ["..", ".", "a%20b", "a%2Fb", "%C3%A9", "x" * 250, "a$"])
async def test_a_name_that_can_not_be_is_40002(door: Door, name: str) -> None:
    answer = await door.post(f"/topics/{name}", TWO, JSON_V2)
    assert (answer.status, answer.json["error_code"]) == (400, 40002)
    assert answer.json["message"].startswith("Invalid topic_name '")


async def test_control_characters_come_before_the_body_and_are_shown(door: Door) -> None:
    answer = await door.call("POST", "/topics/My%0Dtopic%7F")
    message = "Invalid parameter 'topic_name' got 'My␍topic␡'"
    assert answer.golden == (400, V2, {"error_code": 400, "message": message})


# ---------------------------------------------------------------- schemas


@pytest.mark.parametrize("embedded", ["avro", "jsonschema", "protobuf"])
@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (
            {"records": [{"key": 1, "value": 1}]},
            42201,
            (
                "Request includes keys and uses a format that requires schemas but does not "
                "include the key_schema or key_schema_id fields"
            ),
        ),
        (
            {"key_schema": "x", "records": [{"key": 1, "value": 1}]},
            42202,
            (
                "Request includes values and uses a format that requires schemas but does not "
                "include the value_schema or value_schema_id fields"
            ),
        ),
        (
            {"value_schema_id": 1, "records": [{"value": 1}]},
            42205,
            (
                "schemas are not supported: send {embedded} data as "
                "'application/vnd.kafka.json.v2+json'"
            ),
        ),
    ],
)
async def test_formats_with_schemas_are_422(
    door: Door, embedded: str, body: dict[str, Any], code: int, message: str
) -> None:
    answer = await door.post("/topics/flights", body, f"application/vnd.kafka.{embedded}.v2+json")
    expected = {"error_code": code, "message": message.format(embedded=embedded)}
    assert answer.golden == (422, V2, expected)


async def test_formats_with_schemas_look_for_the_topic_first(door: Door) -> None:
    answer = await door.post("/topics/nope", TWO, "application/vnd.kafka.avro.v2+json")
    assert (answer.status, answer.json["error_code"]) == (404, 40401)
    assert door.apis.caught_up == ["nope"]


# ---------------------------------------------------------------- failures


async def test_one_record_too_large_fails_alone(door: Door) -> None:
    door.apis.max_message_bytes = 10
    body = {"records": [{"value": 1}, {"value": "x" * 20}, {"value": 2}]}
    answer = await door.post("/topics/flights", body, JSON_V2)
    large = failed(413, "MESSAGE_TOO_LARGE: the record is larger than max.message.bytes")
    assert answer.golden == (200, V2, answer_of(row(0, 0), large, row(0, 1)))


async def test_all_records_too_large_is_still_200(door: Door) -> None:
    door.apis.max_message_bytes = 2
    answer = await door.post("/topics/flights", {"records": [{"value": "xx"}]}, JSON_V2)
    large = failed(413, "MESSAGE_TOO_LARGE: the record is larger than max.message.bytes")
    assert answer.golden == (200, V2, answer_of(large))


NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "partition 0 of flights has no leader")
NO_LEADER_ROW = failed(
    50003,
    "LEADER_NOT_AVAILABLE: partition 0 of flights has no leader",
    retriable=True,
    outcome="not_written",
)
TIMED_OUT = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no acknowledgement in 10000 ms")
TIMED_OUT_ROW = failed(
    50003,
    "REQUEST_TIMED_OUT: no acknowledgement in 10000 ms",
    retriable=True,
    outcome="unknown",
)


async def test_nothing_written_is_503_with_a_row_each(door: Door) -> None:
    door.apis.record_errors = {0: NO_LEADER, 1: NO_LEADER}
    answer = await door.post("/topics/flights", TWO, JSON_V2)
    assert answer.golden == (503, V2, answer_of(NO_LEADER_ROW, NO_LEADER_ROW))
    assert answer.headers["retry-after"] == "1"


async def test_a_request_refused_as_a_whole_reads_the_same(door: Door) -> None:
    door.apis.produce_error = NO_LEADER
    answer = await door.post("/topics/flights", TWO, JSON_V2)
    assert answer.golden == (503, V2, answer_of(NO_LEADER_ROW, NO_LEADER_ROW))
    assert answer.headers["retry-after"] == "1"


async def test_some_written_is_200(door: Door) -> None:
    door.apis.record_errors = {1: NO_LEADER}
    answer = await door.post("/topics/flights", TWO, JSON_V2)
    assert answer.golden == (200, V2, answer_of(row(0, 0), NO_LEADER_ROW))
    assert "retry-after" not in answer.headers


async def test_rule_f1_an_unknown_outcome_is_not_an_invitation_to_retry(door: Door) -> None:
    door.apis.record_errors = {0: NO_LEADER, 1: TIMED_OUT}
    answer = await door.post("/topics/flights", TWO, JSON_V2)
    assert answer.golden == (200, V2, answer_of(NO_LEADER_ROW, TIMED_OUT_ROW))
    assert "retry-after" not in answer.headers


@pytest.mark.parametrize(
    ("error", "start", "outcome"),
    [
        (KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS), "NOT_ENOUGH_REPLICAS: ", "not_written"),
        (KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), "LEADER_NOT_AVAILABLE: ", "not_written"),
        (
            KafkaError(ErrorCode.NETWORK_EXCEPTION, outcome=Outcome.NOT_WRITTEN),
            "LEADER_NOT_AVAILABLE: ",
            "not_written",
        ),
        (KafkaError(ErrorCode.NETWORK_EXCEPTION), "REQUEST_TIMED_OUT: ", "unknown"),
        (KafkaError(ErrorCode.OUTCOME_UNKNOWN), "REQUEST_TIMED_OUT: ", "unknown"),
        (
            KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
            "NOT_ENOUGH_REPLICAS_AFTER_APPEND: ",
            "unknown",
        ),
    ],
)
async def test_failed_records_start_with_a_documented_word(
    door: Door, error: KafkaError, start: str, outcome: str
) -> None:
    door.apis.record_errors = {0: error}
    answer = await door.post("/topics/flights", {"records": [{"value": 1}]}, JSON_V2)
    (failure,) = answer.json["offsets"]
    assert failure["error"].startswith(start)
    assert (failure["error_code"], failure["retriable"]) == (50003, True)
    assert failure["outcome"] == outcome
    assert answer.status == (503 if outcome == "not_written" else 200)


# ---------------------------------------------------------------- limits


async def test_a_content_length_over_the_limit_is_refused_before_the_body() -> None:
    async with open_door(limits=BrokerLimits(max_body_bytes=1000)) as door:
        answer = await door.call(  # the body itself never comes
            "POST", "/topics/flights", None, {"Content-Type": JSON_V2, "Content-Length": "1001"}
        )
    message = "the request body is over max_body_bytes=1000: send fewer records per request"
    assert answer.golden == (413, V2, {"error_code": 413, "message": message})
    assert answer.headers["connection"] == "close"


async def test_expect_100_continue_is_answered_by_413_for_a_large_body() -> None:
    async with open_door(limits=BrokerLimits(max_body_bytes=1000)) as door:
        answer = await door.call(
            "POST",
            "/topics/flights",
            None,
            {"Content-Type": JSON_V2, "Content-Length": "1001", "Expect": "100-continue"},
        )
    assert (answer.status, answer.type, answer.json["error_code"]) == (413, V2, 413)


async def test_a_chunked_body_is_cut_at_the_limit() -> None:
    async with open_door(limits=BrokerLimits(max_body_bytes=1000)) as door:
        answer = await door.raw(
            b"POST /topics/flights HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n"
        )
        assert door.apis.requests == []
    assert (answer.status, answer.type, answer.json["error_code"]) == (413, V2, 413)


async def test_a_body_at_the_limit_is_taken() -> None:
    body = json.dumps({"records": [{"value": "x" * 100}]})
    async with open_door(limits=BrokerLimits(max_body_bytes=len(body))) as door:
        assert (await door.post("/topics/flights", body, JSON_V2)).status == 200


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (
            BrokerLimits(max_records_per_request=3),
            "the body holds 4 records, max_records_per_request is 3; send it in parts",
        ),
        (
            BrokerLimits(max_objects_per_request=4),
            "the body holds 5 JSON objects, max_objects_per_request is 4; send it in parts",
        ),
    ],
)
async def test_a_body_of_too_many_records_is_refused(limits: BrokerLimits, message: str) -> None:
    async with open_door(limits=limits) as door:
        answer = await door.post("/topics/flights", b'{"records":[{},{},{},{}]}', JSON_V2)
    assert answer.golden == (413, V2, {"error_code": 413, "message": message})
