"""Writers that never send a value twice, and readers of the log's tail.

Scenarios run both beside their faults. A writer records each answer in the history and never
retries: the next request carries the next value. A value that is in the log twice was therefore
duplicated by the system, whatever the network did.
"""

from __future__ import annotations

import asyncio
import zlib
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

import orjson

from chaos.history import Acknowledgement, Observation, Position, Record, Unacknowledged
from chaos.http import CallError, Failed, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.history import History
    from chaos.http import Http
    from chaos.load import Endpoint
    from chaos.watch import Watch
    from raft_metadata.common.clock import Clock

PRODUCE_TIMEOUT_MS = 1000
"""Timeout of a produce request; short, because a hanging writer does not observe the fault."""
PACE_S = 0.03
"""Pause between two requests of one writer; a dozen writers then take a fifth of one core."""
PAUSE_AFTER_FAILURE_S = 0.05
FETCH_WAIT_MS = 500
FETCH_DEADLINE_S = 2.0
HTTP_CLIENT_ERROR = range(400, 500)
READ_PAUSE_S = 0.02


@dataclass(slots=True)
class Told:
    """Counts of answers to the writers' attempts so far."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    per_partition: dict[int, int] = field(default_factory=dict)


def key_of(partition: int, partitions: int, writer: int) -> bytes:
    """Return a key of this writer that the documented partitioner assigns to the partition."""
    for number in count():
        key = orjson.dumps(f"writer-{writer}-{number}")
        if zlib.crc32(key) % partitions == partition:
            return key
    raise AssertionError


class UniqueWriters:
    """Several writers per partition. Owned by the run; `run` until `stop`.

    The last writer of each partition uses every broker in turn, the leader included, so that a
    leader that no other node can reach also receives writes; the others never use the leader.
    """

    def __init__(
        self,
        http: Http,
        history: History,
        topic: str,
        endpoints: Sequence[Endpoint],
        watch: Watch,
        clock: Clock,
        *,
        partitions: int,
        writers_per_partition: int,
    ) -> None:
        self._http = http
        self._history = history
        self._topic = topic
        self._endpoints = endpoints
        self._watch = watch
        self._clock = clock
        self._partitions = partitions
        self._writers = partitions * writers_per_partition
        self._stopped = asyncio.Event()
        self.told = Told()

    def stop(self) -> None:
        """Let every writer end after its pending answer."""
        self._stopped.set()

    async def run(self) -> None:
        """Write until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for writer in range(self._writers):
                tasks.create_task(self._write(writer, writer % self._partitions))

    def _through(self, writer: int, partition: int, turn: int) -> Endpoint:
        leader = self._watch.leader_of(partition)
        if writer >= self._writers - self._partitions:
            leader = None
        others = [endpoint for endpoint in self._endpoints if endpoint.id != leader]
        return others[turn % len(others)]

    async def _write(self, writer: int, partition: int) -> None:
        key = key_of(partition, self._partitions, writer)
        waiting_since: int | None = None
        for number in count():
            if self._stopped.is_set():
                return
            endpoint = self._through(writer, partition, writer + number)
            record = Record(key, b'{"writer":%d,"number":%d}' % (writer, number))
            row = len(self._history.records)
            self._history.records.append(record)
            sent_ms = self._clock.monotonic_ms()
            waiting_since = sent_ms if waiting_since is None else waiting_since
            (result,) = await self._http.produce(
                endpoint.url, self._topic, [record], PRODUCE_TIMEOUT_MS
            )
            now = self._clock.monotonic_ms()
            match result:
                case Stored(stored_in, offset):
                    self.told.acknowledged += 1
                    self.told.per_partition[stored_in] = (
                        self.told.per_partition.get(stored_in, 0) + 1
                    )
                    acknowledgement = Acknowledgement(
                        broker=endpoint.id,
                        due_ms=waiting_since,
                        sent_ms=sent_ms,
                        answered_ms=now,
                        positions=(Position(row, stored_in, offset),),
                    )
                    self._history.add(acknowledgement)
                    waiting_since = None
                    await asyncio.sleep(PACE_S)
                case Failed():
                    self._note(endpoint.id, row, sent_ms, now, result)
                    await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    def _note(self, broker: int, row: int, sent_ms: int, now: int, failure: Failed) -> None:
        if failure.unknown:
            self.told.unknown += 1
        else:
            self.told.refused += 1
        self._history.add(
            Unacknowledged(
                broker=broker,
                sent_ms=sent_ms,
                answered_ms=now,
                rows=(row,),
                unknown=failure.unknown,
                reason=failure.reason,
            )
        )


class TailReaders:
    """A reader per partition that follows the log's end through every broker in turn."""

    def __init__(
        self,
        http: Http,
        history: History,
        topic: str,
        endpoints: Sequence[Endpoint],
        clock: Clock,
        *,
        partitions: int,
    ) -> None:
        self._http = http
        self._history = history
        self._topic = topic
        self._endpoints = endpoints
        self._clock = clock
        self._partitions = partitions
        self._stopped = asyncio.Event()
        self.unanswered = 0

    def stop(self) -> None:
        """Let every reader end after its pending answer."""
        self._stopped.set()

    async def run(self) -> None:
        """Read until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for partition in range(self._partitions):
                tasks.create_task(self._follow(partition))

    async def _follow(self, partition: int) -> None:
        offset = 0
        for turn in count(partition):
            if self._stopped.is_set():
                return
            endpoint = self._endpoints[turn % len(self._endpoints)]
            sent_ms = self._clock.monotonic_ms()
            try:
                lines, _ = await self._http.fetch(
                    endpoint.url,
                    self._topic,
                    partition,
                    offset,
                    timeout_ms=FETCH_WAIT_MS,
                    deadline_s=FETCH_DEADLINE_S,
                )
            except CallError as error:
                if error.status not in HTTP_CLIENT_ERROR:
                    self.unanswered += 1
                    await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
                    continue
                lines, refusal = [], str(error)
            else:
                refusal = ""
            if lines or refusal:
                self._history.add(
                    Observation(
                        broker=endpoint.id,
                        partition=partition,
                        offset=offset,
                        sent_ms=sent_ms,
                        answered_ms=self._clock.monotonic_ms(),
                        lines=tuple(lines),
                        refusal=refusal,
                    )
                )
            if lines:
                offset = lines[-1].offset + 1
            await asyncio.sleep(READ_PAUSE_S)
