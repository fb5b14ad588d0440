"""The producer of the demo: input rows at a steady pace, each key's rows one after another.

Each key has a lane with one request in flight, so that order per key is well defined across
retries. A row enters its lane when it is due; a lane sends all rows that wait, at most
`MAX_BATCH_ROWS` at once. Results go into the history.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chaos.history import Acknowledgement, Position, Unacknowledged
from chaos.http import Failed, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.history import History
    from chaos.http import Http
    from raft_metadata.common.clock import Clock

MAX_BATCH_ROWS = 500
"""Most rows in a request: about 170 KB of flights, within the 64 to 256 KB that cost least per
byte."""
PRODUCE_TIMEOUT_MS = 5000
RETRY_AFTER_S = 0.05
"""Pause before a retry; shorter than the server's `Retry-After: 1`, so that a measured gap is the
server's."""
PACE_TICK_S = 0.02


class LoadError(Exception):
    """A record can never be written: the server's error is not retriable."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The public address of a broker."""

    id: int
    url: str


@dataclass(slots=True)
class Lane:
    """The waiting rows of one key, and the broker that its requests go through now."""

    endpoint: int
    waiting: deque[int] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)


class Load:
    """A sender of rows of the history's records to one topic. Owned by the run, runs as its task.

    A failed attempt is repeated through the next broker until it is acknowledged: after a
    `not_written` answer without consequence, after an unknown one at the risk of a duplicate, which
    the history records.
    """

    def __init__(
        self,
        http: Http,
        history: History,
        topic: str,
        endpoints: Sequence[Endpoint],
        *,
        rows: range,
        rows_per_second: float,
        clock: Clock,
    ) -> None:
        self._http = http
        self._history = history
        self._rows = rows
        self._topic = topic
        self._endpoints = endpoints
        self._rows_per_second = rows_per_second
        self._clock = clock
        self._lanes: dict[bytes, Lane] = {}
        self._released_all = False
        self.acknowledged = 0
        self.per_partition: dict[int, int] = {}

    async def run(self) -> None:
        """Send until every row is acknowledged.

        Raises:
            LoadError: inside an ExceptionGroup, when a record was refused for good.
        """
        for row in self._rows:
            key = self._history.records[row].key
            if key not in self._lanes:
                self._lanes[key] = Lane(len(self._lanes) % len(self._endpoints))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._release())
            for lane in self._lanes.values():
                tasks.create_task(self._drain(lane))

    async def _release(self) -> None:
        records = self._history.records
        began = self._clock.monotonic_ms()
        released = 0
        while released < len(self._rows):
            elapsed = self._clock.monotonic_ms() - began
            due = int(elapsed * self._rows_per_second / 1000)
            for row in self._rows[released:due]:
                lane = self._lanes[records[row].key]
                lane.waiting.append(row)
                lane.filled.set()
            released = max(released, due)
            await asyncio.sleep(PACE_TICK_S)
        self._released_all = True
        for lane in self._lanes.values():
            lane.filled.set()

    async def _drain(self, lane: Lane) -> None:
        while True:
            while not lane.waiting:
                if self._released_all:
                    return
                lane.filled.clear()
                await lane.filled.wait()
            count = min(len(lane.waiting), MAX_BATCH_ROWS)
            await self._send_until_stored(lane, [lane.waiting.popleft() for _ in range(count)])

    async def _send_until_stored(self, lane: Lane, rows: list[int]) -> None:
        due_ms = self._clock.monotonic_ms()
        while rows:
            endpoint = self._endpoints[lane.endpoint]
            sent_ms = self._clock.monotonic_ms()
            records = [self._history.records[row] for row in rows]
            results = await self._http.produce(
                endpoint.url, self._topic, records, PRODUCE_TIMEOUT_MS
            )
            rows = self._note(endpoint.id, due_ms, sent_ms, rows, results)
            if rows:
                lane.endpoint = (lane.endpoint + 1) % len(self._endpoints)
                await asyncio.sleep(RETRY_AFTER_S)

    def _note(
        self,
        broker: int,
        due_ms: int,
        sent_ms: int,
        rows: list[int],
        results: list[Stored | Failed],
    ) -> list[int]:
        """Record an answer in the history; return the rows that must be sent again."""
        now = self._clock.monotonic_ms()
        positions: list[Position] = []
        failed: dict[Failed, list[int]] = {}
        for row, result in zip(rows, results, strict=True):
            match result:
                case Stored(partition, offset):
                    positions.append(Position(row, partition, offset))
                    self.per_partition[partition] = self.per_partition.get(partition, 0) + 1
                case Failed():
                    failed.setdefault(result, []).append(row)
        if positions:
            self.acknowledged += len(positions)
            self._history.add(
                Acknowledgement(
                    broker=broker,
                    due_ms=due_ms,
                    sent_ms=sent_ms,
                    answered_ms=now,
                    positions=tuple(positions),
                )
            )
        for failure, failed_rows in failed.items():
            self._history.add(
                Unacknowledged(
                    broker=broker,
                    sent_ms=sent_ms,
                    answered_ms=now,
                    rows=tuple(failed_rows),
                    unknown=failure.unknown,
                    reason=failure.reason,
                )
            )
            if not failure.retriable:
                msg = f"refused for good by broker {broker}: {failure.reason}"
                raise LoadError(msg)
        return sorted(row for failed_rows in failed.values() for row in failed_rows)
