"""The access log behind the door: every kind of request, whichever way answers it."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.config import AccessLogConfig
from broker.server.requests import FINAL, note_passed_to
from http_api.contract.forwarding import TrustedProxies
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import V3, Door, open_door, read_answer

JSON_V2 = "application/vnd.kafka.json.v2+json"
RECORDS = b'{"records":[{"value":"a secret value"}]}'
FETCH = "/topics/flights/partitions/0/records?offset=0"
PROXIES = TrustedProxies((ipaddress.ip_network("127.0.0.2"),))


class Log:
    """The lines of a door that is closed."""

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def text(self) -> str:
        return self.file.read_text() if self.file.exists() else ""

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def one(self) -> dict[str, Any]:
        assert len(self.lines) == 1, self.text
        return self.lines[0]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "access.ndjson")


@asynccontextmanager
async def logged_door(
    log: Log, mode: str = "all", slow_ms: int = 1_000, apis: FakeBrokerApis | None = None
) -> AsyncIterator[Door]:
    access = AccessLogConfig(file=log.file, mode=mode, slow_ms=slow_ms)
    async with open_door(apis, proxies=PROXIES, access=access) as door:
        yield door


def seen(line: dict[str, Any], *names: str) -> list[Any]:
    return [line[name] for name in names]


async def test_a_request_of_each_way_has_a_line(log: Log) -> None:
    async with logged_door(log) as door:
        headers = {"Content-Type": JSON_V2, "X-Request-Id": "mine"}
        written = await door.call("POST", "/topics/flights/partitions/0", RECORDS, headers)
        read = await door.call("GET", FETCH)
        listed = await door.call("GET", "/topics?_=1", headers={"Quorumlog-Client-Id": "app-1"})
        failed = await door.call("GET", f"{V3}/topics/nowhere")
    names = ("method", "path", "query", "status", "error_code", "lane", "client_id")
    assert [seen(line, *names) for line in log.lines] == [
        ["POST", "/topics/flights/partitions/0", None, 200, None, "fast", None],
        ["GET", FETCH.partition("?")[0], "offset=0", 200, None, "fast", None],
        ["GET", "/topics", "_=***", 200, None, "routes", "app-1"],
        ["GET", f"{V3}/topics/nowhere", None, 404, 40403, "routes", None],
    ]
    answers = (written, read, listed, failed)
    assert [line["request_id"] for line in log.lines] == [
        answer.headers["x-request-id"] for answer in answers
    ]
    assert [line["bytes_out"] for line in log.lines] == [len(answer.body) for answer in answers]
    assert [line["bytes_in"] for line in log.lines] == [len(RECORDS), 0, 0, 0]
    assert {line["host"] for line in log.lines} == {"127.0.0.1"}
    assert all(0 <= line["ms"] < 10_000 for line in log.lines)
    assert "secret" not in log.text


@pytest.mark.parametrize("pieces", [1, 2])
async def test_a_remembered_head_has_its_lines_too(log: Log, pieces: int) -> None:
    head = "POST /topics/flights/partitions/1?acks=1 HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Type: {JSON_V2}\r\nContent-Length: {len(RECORDS)}\r\n\r\n"
    async with logged_door(log) as door:
        host, _, port = door.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        ids = []
        for _ in range(3):
            writer.write(head.encode() + (RECORDS if pieces == 1 else b""))
            if pieces == 2:
                await asyncio.sleep(0.01)
                writer.write(RECORDS)
            ids.append((await read_answer(reader)).headers["x-request-id"])
        writer.close()
    names = ("path", "query", "status", "bytes_in", "lane")
    assert [seen(line, *names) for line in log.lines] == [
        ["/topics/flights/partitions/1", "acks=1", 200, len(RECORDS), "fast"]
    ] * 3
    assert [line["request_id"] for line in log.lines] == ids


async def test_errors_leaves_out_what_is_well_and_quick(log: Log) -> None:
    async with logged_door(log, "errors") as door:
        await door.post("/topics/flights/partitions/0", RECORDS, JSON_V2)
        await door.get(FETCH)
        await door.get("/topics")
        await door.get("/topics/nowhere")
    assert seen(log.one(), "path", "status") == ["/topics/nowhere", 404]


async def test_a_wait_that_was_asked_for_is_not_slow(log: Log) -> None:
    async with logged_door(log, "errors", slow_ms=100) as door:
        await door.get(FETCH + "&timeout=300")
    assert log.lines == []
    async with logged_door(log, "errors", slow_ms=0) as door:
        await door.get("/topics")
        await door.post("/topics/flights/partitions/0", RECORDS, JSON_V2)
    assert [seen(line, "status", "lane") for line in log.lines] == [[200, "routes"], [200, "fast"]]


async def test_a_failure_of_the_fast_lane_is_an_error(log: Log) -> None:
    async with logged_door(log, "errors") as door:
        door.apis.direct.fate = KafkaError(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved", outcome=Outcome.NOT_WRITTEN
        )
        door.apis.direct.fate_base = FINAL
        answer = await door.post("/topics/flights/partitions/0", RECORDS, JSON_V2)
        assert answer.status == 503
    assert seen(log.one(), "status", "error_code", "lane") == [503, 50003, "fast"]


@pytest.mark.parametrize("request_", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nA\x00: b\r\n\r\n"])
async def test_what_is_no_request_has_a_line_without_one(log: Log, request_: bytes) -> None:
    async with logged_door(log, "errors") as door:
        assert (await door.raw(request_)).status == 400
    assert seen(log.one(), "method", "path", "query", "status", "error_code") == [
        None, None, None, 400, 400,
    ]  # fmt: skip


async def test_no_credential_reaches_the_file(log: Log) -> None:
    async with logged_door(log) as door:
        headers = {"Authorization": "Bearer hidden-1", "Cookie": "hidden-2", "Referer": "hidden-3"}
        for path in (
            "/topics?access_token=hidden-4",
            f"{FETCH}&token=hidden-5",
            "/nowhere?password=hidden-6&hidden-7",
            "http://user:hidden-8@localhost/topics",
        ):
            await door.call("GET", path, headers=headers)
        body = b'{"records":[{"value":"hidden-9"}]}'
        await door.call("POST", "/topics/flights", body, {**headers, "Content-Type": JSON_V2})
    assert len(log.lines) == 5
    assert "hidden" not in log.text


async def test_control_characters_in_a_path_and_a_query_are_escaped(log: Log) -> None:
    async with logged_door(log) as door:
        await door.get("/topics/a%0d%0ab?offset=%1b[31m")
        await door.raw(b"GET /topics/\xff\xfe\x85 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert len(log.lines) == 2
    assert log.text.replace("\n", "").isprintable()
    assert log.text.isascii()


async def test_behind_a_trusted_proxy_the_host_is_the_clients(log: Log) -> None:
    async with logged_door(log) as door:
        for source, expected in (("127.0.0.2", "203.0.113.7"), ("127.0.0.1", "127.0.0.1")):
            host, _, port = door.address.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
            lines = f"GET {FETCH}&timeout=0 HTTP/1.1\r\nHost: localhost\r\n"
            writer.write(f"{lines}X-Forwarded-For: 6.6.6.6, 203.0.113.7\r\n\r\n".encode())
            await read_answer(reader)
            writer.close()
            assert expected
    assert [line["host"] for line in log.lines] == ["203.0.113.7", "127.0.0.1"]


async def test_the_broker_that_a_request_was_passed_to_is_named(log: Log) -> None:
    apis = FakeBrokerApis()
    apis.add_topic("flights", 2)
    apis.change_partition("flights", 1, leader=BrokerId(2))
    answered = apis.produce

    async def produce(request: Any) -> Any:
        note_passed_to(BrokerId(3))
        return await answered(request)

    apis.produce = produce  # type: ignore[method-assign]
    async with logged_door(log, apis=apis) as door:
        for partition in (0, 1):
            await door.post(f"/topics/flights/partitions/{partition}", RECORDS, JSON_V2)
        headers = {"Content-Type": JSON_V2, "Cookie": "a=b"}
        await door.call("POST", "/topics/flights/partitions/0", RECORDS, headers)
        await door.get("/topics")
    assert [seen(line, "lane", "forwarded_to") for line in log.lines] == [
        ["fast", None], ["fast", [2]], ["routes", [3]], ["routes", None],
    ]  # fmt: skip


async def test_a_stream_has_one_line_at_its_end_and_is_not_slow(log: Log) -> None:
    records = b'{"value":{"type":"JSON","data":1}}'
    async with logged_door(log, "errors", slow_ms=0) as door:
        await door.post(f"{V3}/topics/flights/records", records, "application/json")
    assert log.lines == []
    async with logged_door(log) as door:
        answer = await door.post(f"{V3}/topics/flights/records", records, "application/json")
    assert seen(log.one(), "status", "bytes_in") == [200, len(records)]
    assert log.one()["bytes_out"] > len(answer.body)


async def test_a_client_that_leaves_a_stream_has_a_line_without_a_status(log: Log) -> None:
    async with logged_door(log) as door:
        host, _, port = door.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {V3}/topics/flights/records HTTP/1.1\r\nHost: localhost\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        record = b'{"value":{"type":"JSON","data":1}}'
        writer.write(head.encode() + b"%x\r\n%b\r\n" % (len(record), record))
        await reader.readuntil(b"\r\n\r\n")
        writer.transport.abort()
        async with asyncio.timeout(5):
            while door.server.gate.open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    line = log.one()
    assert seen(line, "method", "host", "lane") == ["POST", "127.0.0.1", "routes"]
    assert line["status"] is None


async def test_a_log_that_is_off_makes_no_file(log: Log) -> None:
    async with logged_door(log, "off") as door:
        await door.get("/topics/nowhere")
    assert not log.file.exists()
