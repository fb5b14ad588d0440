"""What is refused before a route is found, what a hang-up leaves behind, and what texts repeat."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from tests.support.http_door import V3, Door

V2 = "application/vnd.kafka.v2+json"
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "request_head",
    [
        "POST /topics/flights HTTP/1.1\r\nContent-Length: 99",
        "POST /topics/flights HTTP/1.1\r\nContent-Length: 99\r\nExpect: 100-continue",
        "POST /topics/flights HTTP/1.1\r\nTransfer-Encoding: chunked",
        f"POST {V3}/topics HTTP/1.1\r\nContent-Length: 99",
    ],
    ids=["produce", "expect", "chunked", "v3"],
)
@pytest.mark.parametrize("reset", [False, True], ids=["close", "reset"])
async def test_a_client_that_hangs_up_amid_its_body_leaves_no_stack_trace(
    door: Door, caplog: pytest.LogCaptureFixture, request_head: str, *, reset: bool
) -> None:
    """A hang-up is no error of the broker: a log full of traces hides the one that matters."""
    host, _, port = door.address.rpartition(":")
    with caplog.at_level(logging.INFO):
        _, writer = await asyncio.open_connection(host, int(port))
        rest = 'Content-Type: application/json\r\nHost: x\r\n\r\n5\r\n{"re'
        writer.write(f"{request_head}\r\n{rest}".encode())
        await asyncio.sleep(0.03)
        if reset:
            writer.transport.abort()
        else:
            writer.close()
        assert (await door.get("/topics")).json == ["flights"], "it has been noticed by now"
        await asyncio.sleep(0.02)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert door.apis.requests == []


@pytest.mark.parametrize(
    ("request_bytes", "status", "says"),
    [
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 404, "'*' is no path"),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431, "128 headers"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n", 431, "=32768"),
        (
            b"POST /topics/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n",
            413,
            "over max_body_bytes",
        ),
        (b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", 400, "malformed HTTP"),
    ],
    ids=["target", "headers", "header", "length", "malformed"],
)
async def test_a_request_refused_before_its_route_names_the_limit_in_the_envelope(
    door: Door, request_bytes: bytes, status: int, says: str
) -> None:
    answer = await door.raw(request_bytes)
    assert (answer.status, answer.type) == (status, V2)
    assert answer.json.keys() == {"error_code", "message"}
    assert answer.json["error_code"] == status
    assert says in answer.json["message"]
    assert answer.headers["server"] == "quorumlog"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("", "the body is empty"),
        (" \n", "the body is empty"),
        (r'{"records":[{"value":"\ud800"}]}', "half a surrogate pair"),
        (r'{"records":[{"value":"\ud83d\ude00"', "Input data was truncated"),
        ('{"records":[{"value":NaN}]}', "invalid character (byte 21)"),
    ],
)
async def test_a_body_that_is_no_json_is_told_why(door: Door, body: str, says: str) -> None:
    answer = await door.call("POST", "/topics/flights", body, JSON)
    assert (answer.status, answer.json["error_code"]) == (400, 400)
    assert says in answer.json["message"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "'topic_name' is missing or null, expected a string"),
        ({"topic_name": True}, "'topic_name' is true, expected a string"),
        ({"topic_name": "x", "partitions_count": False}, "is false, expected an integer"),
        ({"topic_name": "x", "configs": {}}, "'configs' is an empty object, expected a list"),
        ({"topic_name": []}, "'topic_name' is an empty list, expected a string"),
        ({"topic_name": "x", "partitions_count": "3"}, "is '3', expected an integer"),
    ],
)
async def test_a_wrong_kind_is_told_as_json_spells_it(
    door: Door, fields: dict[str, object], says: str
) -> None:
    answer = await door.call("POST", f"{V3}/topics", json.dumps(fields), JSON)
    assert answer.status == 400
    assert says in answer.json["message"]


RECORD_TYPE = {"Content-Type": "application/vnd.kafka.json.v2+json"}
V2_TYPE = {"Content-Type": V2}
INSTANCE = "/consumers/g/instances/i"
PLACES = '{"partitions":[{"topic":…,"partition":…}]}'
CHANGED = '{"data":[{"name":…,"value":…}]}'


@pytest.mark.parametrize(
    ("method", "path", "headers", "shape"),
    [
        ("POST", "/consumers/g", V2_TYPE, '{"name":…,"format":"json"}'),
        ("POST", f"{INSTANCE}/subscription", V2_TYPE, '{"topics":[…]} or {"topic_pattern":…}'),
        ("POST", f"{INSTANCE}/assignments", V2_TYPE, PLACES),
        ("POST", f"{INSTANCE}/offsets", V2_TYPE, '{"offsets":[{"topic":…,'),
        ("GET", f"{INSTANCE}/offsets", V2_TYPE, PLACES),
        ("POST", f"{INSTANCE}/positions", V2_TYPE, '{"offsets":[{"topic":…,'),
        ("POST", f"{INSTANCE}/positions/beginning", V2_TYPE, PLACES),
        ("POST", f"{INSTANCE}/positions/end", V2_TYPE, PLACES),
        ("POST", f"{V3}/topics", JSON, '{"topic_name":…,"partitions_count":…}'),
        ("PATCH", f"{V3}/topics/flights", JSON, '{"partitions_count":…}'),
        ("PATCH", f"{V3}/features", JSON, '{"metadata_version":…}'),
        ("POST", f"{V3}/producer-ids", JSON, "{}"),
        ("POST", f"{V3}/brokers/1:drain", JSON, '{"scope":"leaders"}'),
        ("PUT", f"{V3}/topics/flights/configs/flush", JSON, '{"value":…}'),
        ("POST", f"{V3}/topics/flights/configs:alter", JSON, CHANGED),
        ("POST", f"{V3}/broker-configs:alter", JSON, CHANGED),
        ("POST", f"{V3}/topics/-/configs:alter", JSON, '{"data":[{"topic_name":…,"configs":['),
        ("PATCH", f"{V3}/consumer-groups/g/offsets", JSON, '{"data":[{"topic_name":…,'),
        (
            "POST",
            f"{V3}/topics/flights/partitions/0:delete-records",
            JSON,
            '{"before_offset":…}',
        ),
        (
            "POST",
            f"{V3}/topics/flights/partitions/0/leader:elect",
            JSON,
            '{"election":"preferred"}',
        ),
        (
            "POST",
            f"{V3}/topics/flights/partitions/0/reassignment",
            JSON,
            '{"replicas":[1,2,3]}',
        ),
        ("POST", f"{V3}/topics/-/partitions/-/reassignment", JSON, '{"data":[{"topic_name", '),
    ],
)
async def test_an_array_as_a_body_is_answered_with_the_shape_that_is_expected(
    door: Door, method: str, path: str, headers: dict[str, str], shape: str
) -> None:
    answer = await door.call(method, path, '[{"value":1}]', headers)
    assert (answer.status, answer.json["error_code"]) == (400, 400)
    said = f"Bad Request: the body is a list, expected an object: {shape}"
    assert answer.json["message"].startswith(said)
    assert "\n" not in answer.json["message"]


@pytest.mark.parametrize("path", ["/topics/flights", "/topics/flights/partitions/0"])
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('[{"value":1}]', "Expected `object`, got `array`; expected "),
        ("5", "Expected `object`, got `int`; expected "),
        ('{"records":{}}', "Expected `array`, got `object` - at `$.records`; expected "),
    ],
)
async def test_a_produce_of_another_shape_is_answered_with_its_own(
    door: Door, path: str, body: str, says: str
) -> None:
    answer = await door.call("POST", path, body, RECORD_TYPE)
    assert (answer.status, answer.json["error_code"]) == (400, 400)
    assert answer.json["message"].startswith(says + '{"records":[{"key"?,"value"?,')


@pytest.mark.parametrize(("body", "got"), [("null", "null"), ("5", "5"), ('"x"', "'x'")])
async def test_another_kind_of_body_is_named(door: Door, body: str, got: str) -> None:
    answer = await door.call("POST", f"{V3}/topics", body, JSON)
    said = f"Bad Request: the body is {got}, expected an object: "
    assert answer.json["message"].startswith(said)
