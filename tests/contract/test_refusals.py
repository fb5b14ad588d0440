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
