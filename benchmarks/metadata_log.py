"""The metadata log as a follower of fetch-metadata reads it: each record, its offset, its time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import orjson

from chaos.http import HTTP_OK, CallError
from http_api.peer import controller_paths as paths
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from benchmarks.product import Product
    from chaos.cluster import Node

WAIT_MS = 1_000
TIMEOUT_S = 10.0
RETRY_S = 0.02
OBSERVER_ID = -1
"""Id of an observer that only reads; no broker has it."""


async def ask(
    session: aiohttp.ClientSession, cluster_id: str, node: Node, path: str, body: bytes
) -> bytes:
    """Send one command to one controller, as a broker does; raise `CallError` on a refusal."""
    async with session.post(
        node.url + path,
        data=body,
        headers={
            "Content-Type": "application/json",
            paths.CLUSTER_HEADER: cluster_id,
            paths.ADDRESSEE_HEADER: str(node.id),
        },
        timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, connect=0.5),
    ) as answer:
        found = await answer.read()
        if answer.status != HTTP_OK:
            msg = f"{path} answered {answer.status} {found[:300]!r}"
            raise CallError(msg, answer.status)
        return found


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as JSON, with the time of its arrival."""

    offset: int
    epoch: int
    at_ms: float
    """Time at which the answer with this record arrived, in ms."""
    record: dict[str, Any]

    def is_fence(self, broker: int | None = None) -> bool:
        """Return True if the record fences this broker; None: any broker."""
        record = self.record
        return (
            record["type"] == "broker_registration_change"
            and record["state"] == "fenced"
            and broker in (None, record["broker_id"])
        )


class MetadataLog:
    """Reader of the log from one controller after the other, from a start on."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._clock = SystemClock()
        self._offset = 0
        self._told: list[tuple[Callable[[Seen], bool], asyncio.Future[Seen]]] = []
        self.seen: list[Seen] = []
        """Every record since `start`, in order."""

    async def start(self) -> None:
        """Start at the present end of the log."""
        node = await self._product.active_controller()
        status = await self._product.http.get_json(f"{node.url}{paths.STATUS}")
        self._offset = status["next_offset"]

    @asynccontextmanager
    async def followed(self) -> AsyncIterator[MetadataLog]:
        """Read from here on, until the block ends."""
        await self.start()
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self.follow())
            yield self
            following.cancel()

    async def follow(self) -> None:
        """Read until cancelled; a controller that fails or refuses is replaced by the next."""
        nodes = self._product.now().controllers
        turn = 0
        async with aiohttp.ClientSession() as session:
            while True:
                node = nodes[turn % len(nodes)]
                try:
                    self.take(await self._fetch(session, node))
                except (CallError, aiohttp.ClientError, OSError, TimeoutError):
                    turn += 1
                    await asyncio.sleep(RETRY_S)

    async def _fetch(self, session: aiohttp.ClientSession, node: Node) -> dict[str, Any]:
        cluster_id = self._product.now().cluster_id
        request = {
            "cluster_id": cluster_id,
            "broker_id": OBSERVER_ID,
            "from_offset": self._offset,
            "max_wait_ms": WAIT_MS,
        }
        body = orjson.dumps(request)
        answer = await ask(session, cluster_id, node, paths.FETCH_METADATA, body)
        found: dict[str, Any] = orjson.loads(answer)
        return found

    def take(self, answer: dict[str, Any]) -> None:
        """Add the records of one answer."""
        if answer.get("snapshot") is not None:
            msg = "the log was compacted before it was read: records are missing"
            raise RuntimeError(msg)
        now_ms = self._clock.monotonic_ms()
        for batch in answer["batches"]:
            for number, record in enumerate(batch["records"]):
                seen = Seen(batch["base_offset"] + number, batch["epoch"], now_ms, record)
                self.seen.append(seen)
                self._tell(seen)
            self._offset = batch["base_offset"] + len(batch["records"])

    def _tell(self, seen: Seen) -> None:
        for wanted, future in self._told:
            if not future.done() and wanted(seen):
                future.set_result(seen)

    def first(self, wanted: Callable[[Seen], bool]) -> asyncio.Future[Seen]:
        """Return a future of the first wanted record from now on."""
        future: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
        self._told.append((wanted, future))
        return future

    def fences(self) -> list[Seen]:
        """Return every fencing so far."""
        return [seen for seen in self.seen if seen.is_fence()]

    def moves(self, since: int) -> Iterator[Seen]:
        """Return changes of partitions behind this offset."""
        return (
            seen
            for seen in self.seen
            if seen.offset > since and seen.record["type"] == "partition_change"
        )
