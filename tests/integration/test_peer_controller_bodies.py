"""Brokers and controllers over real sockets: what is refused, what can't be read, what is large."""

from __future__ import annotations

import asyncio
import threading
from io import BytesIO
from typing import Any

import aiohttp
import pytest

from http_api.peer import controller_link
from http_api.peer import controller_paths as paths
from http_api.peer.controller_channel import HttpControllerChannel
from raft_metadata.common.errors import ErrorCode, Outcome
from raft_metadata.common.ids import (
    ClusterId,
    MetadataOffset,
)
from raft_metadata.records.commands import (
    CreateTopic,
    FetchMetadata,
    RegisterBroker,
)
from raft_metadata.records.serde import from_json
from tests.support.doors.http import heartbeat_refusals
from tests.support.peer_controllers import (
    BROKER,
    CLUSTER,
    DELETE,
    HEARTBEAT,
    A,
    B,
    C,
    FakeController,
    channel,
    quorum,
    refused,
    serve,
)
from tests.support.waiting import until


async def test_a_large_answer_is_decoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 MB of a snapshot would else hold a broker's loop for half a second."""
    threads: list[int] = []

    def noted(body: bytes, kind: type[Any]) -> Any:
        threads.append(threading.get_ident())
        return from_json(body, kind)

    monkeypatch.setattr(controller_link, "from_json", noted)
    fetch = FetchMetadata(
        cluster_id=CLUSTER, broker_id=BROKER, from_offset=MetadataOffset(0), max_wait_ms=0
    )
    async with quorum() as nodes, channel(nodes.addresses) as controllers:
        await controllers.fetch_metadata(A, fetch)
        nodes.fakes[A].records = 3_000
        answer = await controllers.fetch_metadata(A, fetch)
        assert len(answer.batches[0].records) == 3_000
        here = threading.get_ident()
        assert [thread == here for thread in threads] == [True, False]


async def test_another_cluster_or_addressee_is_refused() -> None:
    async with quorum() as nodes:
        foreign = HttpControllerChannel(controllers=nodes.addresses, cluster_id=ClusterId("B" * 22))
        await foreign.start()
        error = await refused(foreign.execute(DELETE, 500))
        assert error.code is ErrorCode.INCONSISTENT_CLUSTER_ID
        with foreign.heartbeats(lambda _answer, _sent_ms: None) as beats:
            beats.set_content(HEARTBEAT, at_once=True)
            await until(lambda: set(heartbeat_refusals(foreign)) == {A, B, C})
        await foreign.stop()
        async with channel({B: nodes.addresses[A]}) as crossed:
            error = await refused(crossed.execute(DELETE, 500))
            assert error.code is ErrorCode.INVALID_REQUEST
            assert "controller 101" in error.message
        assert nodes.asked(object) == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (paths.command_path(RegisterBroker), b"", 400),
        (paths.command_path(RegisterBroker), b"{}", 400),
        (paths.HEARTBEAT, b"\x80\x04\x95\x1e", 400),
        (paths.HEARTBEAT, b"[" * 100_000, 400),
        (paths.HEARTBEAT, b'{"broker_id":"x","broker_epoch":1,"metadata_offset":2}', 400),
        (paths.command_path(CreateTopic), BytesIO(b"x" * (paths.MAX_COMMAND_BYTES + 1)), 413),
        (paths.FETCH_METADATA, b"null", 400),
        (paths.SESSION, b"", 400),
        ("/controller/v1/none-such", b"{}", 404),
        (paths.STATUS, b"{}", 405),
    ],
)
async def test_hostile_bodies_are_refused_in_the_common_shape(
    path: str, body: bytes | BytesIO, status: int
) -> None:
    fake = FakeController(A, A)
    server = await serve(fake)
    async with aiohttp.ClientSession(headers={paths.CLUSTER_HEADER: CLUSTER}) as client:
        async with client.post(f"http://{server.address}{path}", data=body) as response:
            assert response.status == status
            answer = await response.json()
        assert set(answer) >= {"error", "name", "message", "outcome"}
        assert answer["outcome"] == "not_written"
        assert fake.asked == []
        async with client.get(f"http://{server.address}/healthz") as response:
            assert response.status == 200
    await server.stop()


async def test_hostile_bytes_do_not_stop_the_listener() -> None:
    fake = FakeController(A, A)
    server = await serve(fake)
    host, port = server.address.split(":")
    for data in (
        b"\x80\x04\x95\x1e\x00\x00\x00\x00",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"POST /controller/v1/heartbeat HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /controller/v1/heartbeat HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        async with asyncio.timeout(3):
            assert b" 4" in await reader.readline()
        writer.close()
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://{server.address}/") as response,
    ):
        assert await response.json() == {}
    assert fake.asked == []
    await server.stop()


async def test_pages_say_who_leads() -> None:
    fake = FakeController(A, None)
    server = await serve(fake)
    async with aiohttp.ClientSession(f"http://{server.address}") as client:
        async with client.get("/readyz") as response:
            assert response.status == 503
            assert "[-]quorum" in await response.text()
        fake.leader_id = B
        async with client.get("/readyz") as response:
            assert response.status == 200
        async with client.get(paths.STATUS) as response:
            assert (await response.json())["leader_id"] == B
    await server.stop()


async def test_an_answer_nobody_can_read_is_unknown() -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(2_000)
        writer.write(answer)
        await writer.drain()
        writer.close()

    liar = await asyncio.start_server(lie, "127.0.0.1", 0)
    address = f"127.0.0.1:{liar.sockets[0].getsockname()[1]}"
    async with channel({A: address}) as controllers:
        for answer in (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n[]",
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno",
            b"HTTP/1.1 307 Temporary\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            b"SSH-2.0-x\r\n",
        ):
            error = await refused(controllers.execute(DELETE, 1_000))
            assert error.outcome is Outcome.UNKNOWN, answer
    liar.close()
