"""Both shells of the client against a real door, and against servers that break connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest

from http_api.client import admin
from http_api.client.async_client import AsyncClient
from http_api.client.calls import Call, Request
from http_api.client.client_errors import ApiError, OutcomeUnknownError, UnreachableError
from http_api.client.consumer import ends, fetch, fetch_lines
from http_api.client.produce_calls import JsonRecord, RecordOutcome, send
from http_api.client.transport import Client, is_readable
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.doors.http import kept_connection
from tests.support.http_door import open_door
from tests.support.waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
WRITE: Call[bytes] = Call(Request(method="POST", path="/w", body=b"{}"), lambda a: a.body)
READ: Call[bytes] = Call(Request(method="GET", path="/r"), lambda a: a.body)

Behaviour = Callable[[int, asyncio.StreamWriter], None]
"""Given the number of the request (from 1), answer it or don't."""


@asynccontextmanager
async def server(behave: Behaviour) -> AsyncIterator[tuple[str, list[str]]]:
    """A server whose every request is noted; yields its URL and the request lines so far."""
    seen: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().split("\r\n")
                length = [line for line in lines if line.startswith("content-length:")]
                await reader.readexactly(int(length[0].partition(":")[2]) if length else 0)
                seen.append(lines[0])
                behave(len(seen), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        yield f"http://{host}:{port}", seen


def answer(number: int, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


def hang_up(number: int, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def run_blocking(url: str, *calls: Call[bytes]) -> list[bytes]:
    def work() -> list[bytes]:
        with Client([url], retry_s=0.5) as client:
            return [client.run(call) for call in calls]

    return await asyncio.to_thread(work)


async def run_async(url: str, *calls: Call[bytes]) -> list[bytes]:
    async with AsyncClient([url], retry_s=0.5) as client:
        return [await client.run(call) for call in calls]


both = pytest.mark.parametrize("run", [run_blocking, run_async])


@both
async def test_a_connection_is_used_again(run: Callable[..., object]) -> None:
    async with server(answer) as (url, seen):
        assert await run(url, WRITE, WRITE, READ) == [b"{}"] * 3  # type: ignore[misc]
    assert seen == ["post /w http/1.1"] * 2 + ["get /r http/1.1"]


async def test_rule_f2_a_connection_that_was_closed_is_noticed_before_a_write_goes_on_it() -> None:
    closed = asyncio.Event()

    def answer_and_close(number: int, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        writer.close()
        closed.set()

    async with server(answer_and_close) as (url, seen):
        with Client([url]) as client:
            for number in range(1, 4):
                closed.clear()
                assert await asyncio.to_thread(client.run, WRITE) == b"{}"
                await closed.wait()
                kept = kept_connection(client, url)
                await until(partial(is_readable, kept))
                assert len(seen) == number


@both
async def test_rule_f2_a_write_on_a_connection_that_breaks_is_sent_once(
    run: Callable[..., object],
) -> None:
    async with server(hang_up) as (url, seen):
        with pytest.raises(OutcomeUnknownError) as lost:
            await run(url, WRITE)  # type: ignore[misc]
    assert lost.value.outcome is Outcome.UNKNOWN
    assert seen == ["post /w http/1.1"]


@both
async def test_a_read_on_a_connection_that_breaks_is_sent_again(run: Callable[..., object]) -> None:
    def behave(number: int, writer: asyncio.StreamWriter) -> None:
        (hang_up if number < 3 else answer)(number, writer)

    async with server(behave) as (url, seen):
        assert await run(url, READ) == [b"{}"]  # type: ignore[misc]
    assert len(seen) >= 3


@both
async def test_an_address_without_a_listener_is_named_in_the_error(
    run: Callable[..., object],
) -> None:
    for url in ("http://127.0.0.1:1", "https://127.0.0.1:1"):
        with pytest.raises((UnreachableError, OutcomeUnknownError), match=r"127\.0\.0\.1:1"):
            await run(url, READ)  # type: ignore[misc]


async def test_the_asyncio_client_writes_reads_and_describes() -> None:
    async with open_door() as door, AsyncClient([f"http://{door.address}"]) as client:
        records = [JsonRecord(b'{"n":%d}' % n, b'"k"') for n in range(5)]
        written = await client.produce("flights", records, partition=1)
        assert written == [RecordOutcome(1, n) for n in range(5)]

        page = await client.run(fetch("flights", 1, 2, wait_ms=0))
        assert [bytes(record.value) for record in page.records] == [
            b'{"n":2}',
            b'{"n":3}',
            b'{"n":4}',
        ]
        assert (page.next_offset, page.high_watermark, page.leader_epoch) == (5, 5, 4)
        lines = await client.run(fetch_lines("flights", 1, 4, wait_ms=0))
        assert lines.records() == [{"offset": 4, "key": "k", "value": {"n": 4}}]
        assert (await client.run(ends("flights", 1))).end == 5

        cluster_id = (await client.run(admin.cluster())).cluster_id
        assert [t.name for t in await client.run(admin.topics(cluster_id))] == ["flights"]
        with pytest.raises(ApiError, match="starts at 0 and ends at 5") as refused:
            await client.run(fetch("flights", 1, 99))
        assert refused.value.code == 40002


async def test_rule_f1_records_that_were_surely_not_written_are_sent_again_by_both() -> None:
    async with open_door() as door, AsyncClient([f"http://{door.address}"]) as client:
        door.apis.produce_error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)

        async def mend() -> None:
            while len(door.apis.requests) < 2:  # noqa: ASYNC110 the fake has no event for it
                await asyncio.sleep(0.01)
            door.apis.produce_error = None

        sent, _ = await asyncio.gather(
            client.produce("flights", [JsonRecord(b"1")], partition=0), mend()
        )
        assert sent == [RecordOutcome(0, 0)]

        def blocking() -> list[RecordOutcome]:
            with Client([f"http://{door.address}"]) as own:
                return send(own, "flights", [JsonRecord(b"2")], partition=0)

        door.apis.requests.clear()
        door.apis.produce_error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        sent, _ = await asyncio.gather(asyncio.to_thread(blocking), mend())
        assert sent == [RecordOutcome(0, 1)]


async def test_rule_f1_an_unknown_outcome_is_told_and_not_sent_again() -> None:
    async with open_door() as door, AsyncClient([f"http://{door.address}"]) as client:
        door.apis.produce_error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, outcome=Outcome.UNKNOWN)
        outcomes = await client.produce("flights", [JsonRecord(b"1")], partition=0)
        assert [o.outcome for o in outcomes] == [Outcome.UNKNOWN]
        assert len(door.apis.requests) == 1
