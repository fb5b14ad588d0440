"""A load on a live cluster that never sends a value twice, and the judgement of what became of it.

One lane per partition, one request in flight per lane. Unlike `chaos.workloads`, a failed attempt
is not repeated: the lane goes on with new values. So whatever stands in the log twice, the cluster
itself put there twice.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count

from chaos.checkers.faults import Gap, longest_produce_gap
from chaos.checkers.records import check_offsets, check_order, check_present, check_repeats
from chaos.cluster import Node
from chaos.deadline import within
from chaos.history import Acknowledgement, History, Position, Reading, Record, Unacknowledged
from chaos.http import Failed, Http
from raft_metadata.common.clock import SystemClock
from tests.support.live_cluster import LiveCluster

RECORDS_PER_REQUEST = 5
PAUSE_S = 0.005
"""Between requests of a lane: two cores carry the cluster and its tests."""
PAUSE_AFTER_FAILURE_S = 0.05
PRODUCE_TIMEOUT_MS = 5000


def key_for(partition: int, partitions: int, writer: int = 0) -> bytes:
    """A key's JSON text that the documented partitioner sends there; another one per writer."""
    texts = (b'"key-%d-%d"' % (writer, number) for number in count())
    return next(text for text in texts if zlib.crc32(text) % partitions == partition)


class LiveWriter:
    """Writes until `stop`. Its task is owned by `writing`."""

    def __init__(
        self,
        http: Http,
        topic: str,
        partitions: int,
        endpoints: Sequence[Node],
        beside: LiveWriter | None = None,
    ) -> None:
        self.http = http
        self.topic = topic
        self.partitions = partitions
        self.history: History = beside.history if beside else History([])
        self.number: int = beside.number + 1 if beside else 0
        self.clock = SystemClock()
        self.endpoints = list(endpoints)
        self._stopping = False
        self._acknowledged = dict.fromkeys(range(partitions), 0)

    async def run(self) -> None:
        """One lane per partition until `stop`."""
        async with asyncio.TaskGroup() as lanes:
            for partition in range(self.partitions):
                lanes.create_task(self._lane(partition))

    def stop(self) -> None:
        """Let every lane end with the answer it waits for."""
        self._stopping = True

    def bind(self, endpoints: Sequence[Node]) -> None:
        """From the next request on, write through these brokers."""
        self.endpoints = list(endpoints)

    async def _lane(self, partition: int) -> None:
        key = key_for(partition, self.partitions, self.number)
        at = partition
        due_ms: int | None = None
        while not self._stopping:
            rows = self._new_rows(partition, key)
            endpoint = self.endpoints[at % len(self.endpoints)]
            sent_ms = self.clock.monotonic_ms()
            due_ms = sent_ms if due_ms is None else due_ms
            stored = await self._send(endpoint, rows, due_ms, sent_ms)
            self._acknowledged[partition] += stored
            if stored == len(rows):
                due_ms = None
                await asyncio.sleep(PAUSE_S)
            else:
                at += 1
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

    def _new_rows(self, partition: int, key: bytes) -> range:
        first = len(self.history.records)
        rows = range(first, first + RECORDS_PER_REQUEST)
        self.history.records += [Record(key, b"[%d,%d]" % (partition, row)) for row in rows]
        return rows

    async def _send(self, endpoint: Node, rows: range, due_ms: int, sent_ms: int) -> int:
        """Send once, write down what was answered; how many were stored."""
        records = [self.history.records[row] for row in rows]
        results = await self.http.produce(endpoint.url, self.topic, records, PRODUCE_TIMEOUT_MS)
        now = self.clock.monotonic_ms()
        stored: list[Position] = []
        failed: dict[Failed, list[int]] = {}
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, Failed):
                failed.setdefault(result, []).append(row)
            else:
                stored.append(Position(row, result.partition, result.offset))
        if stored:
            self.history.add(
                Acknowledgement(
                    broker=endpoint.id,
                    due_ms=due_ms,
                    sent_ms=sent_ms,
                    answered_ms=now,
                    positions=tuple(stored),
                )
            )
        for failure, failed_rows in failed.items():
            self.history.add(
                Unacknowledged(
                    broker=endpoint.id,
                    sent_ms=sent_ms,
                    answered_ms=now,
                    rows=tuple(failed_rows),
                    unknown=failure.unknown,
                    reason=failure.reason,
                )
            )
        return len(stored)

    # -- while it runs

    async def more(self, records: int = 50, deadline_s: float = 15.0) -> None:
        """Until so many more records were acknowledged on every partition."""
        goal = {partition: have + records for partition, have in self._acknowledged.items()}
        async with within(deadline_s, f"{records} more acknowledged on every partition"):
            while any(self._acknowledged[partition] < goal[partition] for partition in goal):  # noqa: ASYNC110 no event
                await asyncio.sleep(0.01)

    def now_ms(self) -> int:
        return self.clock.monotonic_ms()

    def gap(self, since_ms: int) -> Gap:
        """The longest silence of a partition that ended after `since_ms`."""
        return longest_produce_gap(self.history, since_ms, None)

    def acknowledged(self) -> int:
        """The number of records acknowledged so far."""
        return sum(len(one.positions) for one in self.history.acknowledgements)

    def unknown(self) -> list[str]:
        """The reasons of attempts whose outcome nobody knows."""
        return [one.reason for one in self.history.unacknowledged if one.unknown]

    def refused(self) -> list[str]:
        """The reasons of attempts that surely wrote nothing."""
        return [one.reason for one in self.history.unacknowledged if not one.unknown]

    # -- afterwards

    async def judge(self, cluster: LiveCluster, brokers: Sequence[int] | None = None) -> str:
        """Read everything through every broker, and assert all that was promised; the figures."""
        readings = []
        async with Http() as http:
            for endpoint in cluster.brokers:
                if brokers is None or endpoint.id in brokers:
                    partitions = await http.read_topic(endpoint.url, self.topic, self.partitions)
                    readings.append(Reading(endpoint.id, partitions))
        verdicts = [
            check_present(self.history, readings),
            check_offsets(readings),
            check_order(self.history),
            *(check_repeats(self.history, reading) for reading in readings),
        ]
        red = [verdict for verdict in verdicts if not verdict.passed]
        assert not red, red
        unknown, refused = self.unknown(), self.refused()
        return (
            f"{verdicts[0].figures}; {len(unknown)} unknown {sorted(set(unknown))}, "
            f"{len(refused)} refused {sorted(set(refused))}"
        )


@asynccontextmanager
async def writing(
    cluster: LiveCluster,
    topic: str,
    partitions: int,
    endpoints: Sequence[Node] | None = None,
    beside: LiveWriter | None = None,
) -> AsyncIterator[LiveWriter]:
    """A writer at work through all brokers (or these); stopped, with all answers in, at the end.

    `beside` another writer it shares that one's history, to be judged once for both.
    """
    async with Http() as http:
        writer = LiveWriter(http, topic, partitions, endpoints or cluster.brokers, beside)
        task = asyncio.create_task(writer.run())
        try:
            await writer.more(20)
            yield writer
        except BaseException:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise
        writer.stop()
        await task
