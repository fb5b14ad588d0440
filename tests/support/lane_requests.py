"""Requests of the fast lane as bytes, a connection for them, and appends that wait to be let go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from broker.config import BrokerLimits
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.http_door import Door, open_door, read_answer

JSON_V2 = "application/vnd.kafka.json.v2+json"
ONE = b'{"records":[{"key":"k","value":{"x":1}}]}'


def post(
    body: bytes,
    path: str = "/topics/flights/partitions/0",
    *headers: str,
    content_type: str | None = JSON_V2,
) -> bytes:
    typed = () if content_type is None else (f"Content-Type: {content_type}",)
    lines = [f"POST {path} HTTP/1.1", "Host: x", *typed, *headers, f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def get(path: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode()


LONG_S = 20.0
"""A grace of the server that no test waits out."""


@asynccontextmanager
async def connection(
    apis: FakeBrokerApis | None = None, limits: BrokerLimits | None = None, grace_s: float = 1.0
) -> AsyncIterator[tuple[Door, asyncio.StreamReader, asyncio.StreamWriter]]:
    async with open_door(apis, limits, grace_s) as door:
        host, _, port = door.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield door, reader, writer
        finally:
            writer.close()


async def offset_in(reader: asyncio.StreamReader) -> int:
    answer = await asyncio.wait_for(read_answer(reader), 10)
    assert answer.status == 200
    return int(answer.json["offsets"][0]["offset"])


class HeldAppends:
    """Keeps what is to be answered until it is let go."""

    def __init__(self, apis: FakeBrokerApis) -> None:
        self.held: list[Callable[[], None]] = []
        produce = apis.direct.produce

        def hold(request: object, answered: Callable[..., None]) -> bool:
            return produce(request, lambda *fate: self.held.append(lambda: answered(*fate)))  # type: ignore[arg-type]

        apis.direct.produce = hold  # type: ignore[method-assign]

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.held) < count:  # noqa: ASYNC110 filled by a callback
                await asyncio.sleep(0.005)
