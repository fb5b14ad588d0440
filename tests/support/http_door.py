"""The HTTP door in front of a fake broker, and a client that hides nothing: raw bytes both ways."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import orjson

from broker.config import AccessLogConfig, BrokerLimits, BrokerTimeouts
from http_api.contract.foreign_pages import TrustedHosts
from http_api.contract.forwarding import NO_PROXIES, TrustedProxies
from http_api.server.app import TIMEOUTS, HttpServer, build_app
from raft_metadata.common.standstills import Standstills
from tests.support.declared_answers import watch_answers
from tests.support.fake_broker_apis import CLUSTER_ID, FakeBrokerApis

ADVERTISED = "http://broker-1.test:8082"
V3 = f"/v3/clusters/{CLUSTER_ID}"
V3_URL = ADVERTISED + V3
TRUSTED = TrustedHosts(
    is_loopback=True,
    advertised="broker-1.test",
    named=frozenset({("log.test", None), ("log.test", 8443), ("x", None)}),
)
ANSWER_DEADLINE_S = 10.0
FAST_LANE: ContextVar[bool] = ContextVar("FAST_LANE", default=True)
"""Whether doors have the fast lane: what clients see is to be the same."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def type(self) -> str:
        return self.headers["content-type"]

    @property
    def golden(self) -> tuple[int, str, Any]:
        """What most tests compare: status, exact Content-Type, body."""
        return self.status, self.type, self.json if self.body else None


@dataclass
class Door:
    apis: FakeBrokerApis
    server: HttpServer
    address: str

    async def raw(self, request: bytes) -> Answer:
        """Send these bytes, read one answer."""
        host, _, port = self.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.timeout(ANSWER_DEADLINE_S):
                writer.write(request)
                return await read_answer(reader, head=request.startswith(b"HEAD "))
        finally:
            writer.close()

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One request on its own connection; no header is added but Host and Content-Length."""
        data = body.encode() if isinstance(body, str) else body
        sent = {"Host": self.address, **(headers or {})}
        if data is not None:
            sent.setdefault("Content-Length", str(len(data)))
        lines = [f"{method} {path} HTTP/1.1", *(f"{key}: {value}" for key, value in sent.items())]
        return await self.raw("\r\n".join([*lines, "", ""]).encode() + (data or b""))

    async def get(self, path: str, accept: str | None = None) -> Answer:
        return await self.call("GET", path, headers={"Accept": accept} if accept else None)

    async def post(self, path: str, body: Any, content_type: str | None) -> Answer:
        """POST ``body``: JSON unless it is text or bytes already."""
        data = body if isinstance(body, bytes | str) else orjson.dumps(body)
        headers = {} if content_type is None else {"Content-Type": content_type}
        return await self.call("POST", path, data, headers)


async def read_answer(reader: asyncio.StreamReader, *, head: bool = False) -> Answer:
    start = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = start.rstrip().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    status = int(first.split(" ")[1])
    if headers.get("transfer-encoding") == "chunked" and not head:
        return Answer(status, headers, await _read_chunks(reader))
    length = 0 if head or status == 204 else int(headers.get("content-length", "0"))
    return Answer(status, headers, await reader.readexactly(length))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while size := int(await reader.readline(), 16):
        body += await reader.readexactly(size)
        await reader.readline()
    return body


@asynccontextmanager
async def open_door(
    apis: FakeBrokerApis | None = None,
    limits: BrokerLimits | None = None,
    grace_s: float = 1.0,
    *,
    proxies: TrustedProxies = NO_PROXIES,
    timeouts: BrokerTimeouts = TIMEOUTS,
    access: AccessLogConfig | None = None,
    standstills: Standstills | None = None,
) -> AsyncIterator[Door]:
    """A listening door, by default in front of a fake broker with ``flights`` (2 partitions).

    ``grace_s``: how long requests in flight are given when it stops. ``proxies``: believed when
    they say where a request came in.
    """
    if apis is None:
        apis = FakeBrokerApis()
        apis.add_topic("flights", 2)
    limits = replace(limits or BrokerLimits(), http_fast_lane=FAST_LANE.get())
    app = build_app(apis, limits, ADVERTISED, None, TRUSTED, proxies, standstills)
    check_answers = watch_answers(app)
    server = HttpServer(app, limits, timeouts=timeouts, access=access, shutdown_grace_s=grace_s)
    address = await server.start("127.0.0.1:0")
    try:
        yield Door(apis, server, address)
    finally:
        await server.stop()
    check_answers()
