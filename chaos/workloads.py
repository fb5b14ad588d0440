"""Clients that run beside the faults and record every answer in the history.

`Load` sends input rows once each at a steady pace, with retries, for the demo. `UniqueWriters`
never send a value twice and never retry, so a value that is in the log twice was duplicated by the
system; `TailReaders` follow the log's end. `MetadataProbe` writes metadata every 200 ms, which
shows when no active controller is available. `GroupReaders` are a consumer group over plain v2
HTTP that commits each batch it received.

A group read whose answer is lost has nevertheless moved its instance's position (plain v2 is at
most once for a lost reply, G5). After any failure a member therefore deletes its instance and
begins anew at the last commit; records that it reads twice that way are its own doing.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

import orjson

from chaos.history import (
    Acknowledgement,
    GroupCommit,
    GroupRead,
    MetadataWrite,
    Observation,
    Position,
    Record,
    Unacknowledged,
)
from chaos.http import JSON_V2, V2, CallError, Failed, Stored, id_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.cluster import Node
    from chaos.history import History
    from chaos.http import Http
    from chaos.watch import Watch
    from raft_metadata.common.clock import Clock


MAX_BATCH_ROWS = 500
"""Most rows in a request: about 170 KB of flights, within the 64 to 256 KB that cost least per
byte."""
LOAD_PRODUCE_TIMEOUT_MS = 5000
LOAD_RETRY_AFTER_S = 0.05
"""Pause before a retry; shorter than the server's `Retry-After: 1`, so that a measured gap is the
server's."""
PACE_TICK_S = 0.02


class LoadError(Exception):
    """A record can never be written: the server's error is not retriable."""


@dataclass(slots=True)
class Lane:
    """The waiting rows of one key, and the broker that its requests go through now."""

    endpoint: int
    waiting: deque[int] = field(default_factory=deque)
    filled: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class AttemptCounts:
    """Counts of the answers to a writer's attempts so far, in records."""

    acknowledged: int = 0
    unknown: int = 0
    refused: int = 0
    per_partition: dict[int, int] = field(default_factory=dict)

    def add(self, positions: Iterable[Position], failed: Mapping[Failed, list[int]]) -> None:
        """Count the acknowledged records and the failures of one answer."""
        for position in positions:
            self.acknowledged += 1
            written = self.per_partition.get(position.partition, 0)
            self.per_partition[position.partition] = written + 1
        for failure, rows in failed.items():
            if failure.unknown:
                self.unknown += len(rows)
            else:
                self.refused += len(rows)


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
        endpoints: Sequence[Node],
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
        self.attempt_counts = AttemptCounts()

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
                endpoint.url, self._topic, records, LOAD_PRODUCE_TIMEOUT_MS
            )
            positions, failed = record_answer(
                *(self._history, endpoint.id, due_ms, sent_ms, self._clock.monotonic_ms()),
                *(rows, results),
            )
            self.attempt_counts.add(positions, failed)
            for failure in failed:
                if not failure.retriable:
                    msg = f"refused for good by broker {endpoint.id}: {failure.reason}"
                    raise LoadError(msg)
            rows = sorted(row for failed_rows in failed.values() for row in failed_rows)
            if rows:
                lane.endpoint = (lane.endpoint + 1) % len(self._endpoints)
                await asyncio.sleep(LOAD_RETRY_AFTER_S)


def record_answer(
    history: History,
    broker: int,
    due_ms: int,
    sent_ms: int,
    answered_ms: int,
    rows: Sequence[int],
    results: Sequence[Stored | Failed],
) -> tuple[list[Position], dict[Failed, list[int]]]:
    """Record the answer for these rows; return what was acknowledged, and the rows per failure."""
    positions: list[Position] = []
    failed: dict[Failed, list[int]] = {}
    for row, result in zip(rows, results, strict=True):
        match result:
            case Stored(partition, offset):
                positions.append(Position(row, partition, offset))
            case Failed():
                failed.setdefault(result, []).append(row)
    if positions:
        history.add(
            Acknowledgement(
                broker=broker,
                due_ms=due_ms,
                sent_ms=sent_ms,
                answered_ms=answered_ms,
                positions=tuple(positions),
            )
        )
    for failure, failed_rows in failed.items():
        history.add(
            Unacknowledged(
                broker=broker,
                sent_ms=sent_ms,
                answered_ms=answered_ms,
                rows=tuple(failed_rows),
                unknown=failure.unknown,
                reason=failure.reason,
            )
        )
    return positions, failed


UNIQUE_PRODUCE_TIMEOUT_MS = 1000
"""Timeout of a produce request; short, because a hanging writer does not observe the fault."""
PACE_S = 0.03
"""Pause between two requests of one writer; a dozen writers then take a fifth of one core."""
PAUSE_AFTER_FAILURE_S = 0.05
FETCH_WAIT_MS = 500
FETCH_DEADLINE_S = 2.0
HTTP_CLIENT_ERROR = range(400, 500)
READ_PAUSE_S = 0.02


@dataclass(slots=True)
class TopicClient:
    """A client of all partitions of a topic. Owned by the run; `run` is its task until `stop`."""

    http: Http
    history: History
    topic: str
    endpoints: Sequence[Node]
    clock: Clock
    partitions: int
    _stopped: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def stop(self) -> None:
        """Let every task of the client end after its pending answer."""
        self._stopped.set()


def key_of(partition: int, partitions: int, writer: int) -> bytes:
    """Return a key of this writer that the documented partitioner assigns to the partition."""
    for number in count():
        key = orjson.dumps(f"writer-{writer}-{number}")
        if zlib.crc32(key) % partitions == partition:
            return key
    raise AssertionError


@dataclass(slots=True)
class UniqueWriters(TopicClient):
    """Several writers per partition, until `stop`.

    The last writer of each partition uses every broker in turn, the leader included, so that a
    leader that no other node can reach also receives writes; the others never use the leader.
    """

    watch: Watch
    writers_per_partition: int
    attempt_counts: AttemptCounts = field(default_factory=AttemptCounts, init=False)

    async def run(self) -> None:
        """Write until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for writer in range(self.partitions * self.writers_per_partition):
                tasks.create_task(self._write(writer, writer % self.partitions))

    def _through(self, writer: int, partition: int, turn: int) -> Node:
        is_last = writer >= self.partitions * (self.writers_per_partition - 1)
        leader = None if is_last else self.watch.leader_of(partition)
        others = [endpoint for endpoint in self.endpoints if endpoint.id != leader]
        return others[turn % len(others)]

    async def _write(self, writer: int, partition: int) -> None:
        key = key_of(partition, self.partitions, writer)
        waiting_since: int | None = None
        for number in count():
            if self._stopped.is_set():
                return
            endpoint = self._through(writer, partition, writer + number)
            record = Record(key, b'{"writer":%d,"number":%d}' % (writer, number))
            row = len(self.history.records)
            self.history.records.append(record)
            sent_ms = self.clock.monotonic_ms()
            waiting_since = sent_ms if waiting_since is None else waiting_since
            results = await self.http.produce(
                endpoint.url, self.topic, [record], UNIQUE_PRODUCE_TIMEOUT_MS
            )
            positions, failed = record_answer(
                *(self.history, endpoint.id, waiting_since, sent_ms, self.clock.monotonic_ms()),
                *([row], results),
            )
            self.attempt_counts.add(positions, failed)
            if positions:
                waiting_since = None
            await asyncio.sleep(PACE_S if positions else PAUSE_AFTER_FAILURE_S)


@dataclass(slots=True)
class TailReaders(TopicClient):
    """A reader per partition that follows the log's end through every broker in turn."""

    pause_s: float = READ_PAUSE_S
    unanswered: int = field(default=0, init=False)

    async def run(self) -> None:
        """Read until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for partition in range(self.partitions):
                tasks.create_task(self._follow(partition))

    async def _follow(self, partition: int) -> None:
        offset = 0
        for turn in count(partition):
            if self._stopped.is_set():
                return
            endpoint = self.endpoints[turn % len(self.endpoints)]
            sent_ms = self.clock.monotonic_ms()
            try:
                lines, _ = await self.http.fetch(
                    endpoint.url,
                    self.topic,
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
                self.history.add(
                    Observation(
                        broker=endpoint.id,
                        partition=partition,
                        offset=offset,
                        sent_ms=sent_ms,
                        answered_ms=self.clock.monotonic_ms(),
                        lines=tuple(lines),
                        refusal=refusal,
                    )
                )
            if lines:
                offset = lines[-1].offset + 1
            await asyncio.sleep(self.pause_s)


INTERVAL_S = 0.2
ANSWER_DEADLINE_S = 1.5
"""Deadline of one attempt; the next uses another broker, so that one stuck request does not hide a
recovery."""
PROBE_RETRY_AFTER_S = 0.05


class MetadataProbe:
    """A writer of metadata until `stop`. Owned by the run, runs as its task.

    Every `keeps_every`-th topic is left in place for a checker to find (0: none).
    """

    def __init__(
        self,
        http: Http,
        history: History,
        cluster_id: str,
        endpoints: Sequence[Node],
        clock: Clock,
        *,
        name: str = "probe",
        interval_s: float = INTERVAL_S,
        keeps_every: int = 0,
    ) -> None:
        self._http = http
        self._history = history
        self._topics = f"/v3/clusters/{cluster_id}/topics"
        self._endpoints = endpoints
        self._clock = clock
        self._name = name
        self._interval_s = interval_s
        self._keeps_every = keeps_every
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Let `run` end after the present write."""
        self._stopped.set()

    async def run(self) -> None:
        """Write metadata, `interval_s` apart while the writes succeed."""
        number = creations = 0
        created: str | None = None
        while not self._stopped.is_set():
            url = self._endpoints[number % len(self._endpoints)].url + self._topics
            number += 1
            due_ms = self._clock.monotonic_ms()
            what = f"delete {created}" if created else f"create {self._name}-{number}"
            try:
                if created is not None:
                    url = f"{url}/{created}"
                    await self._http.call("DELETE", url, timeout_s=ANSWER_DEADLINE_S)
                    created = None
                else:
                    # One replica: the write must not wait for a broker that another fault stopped.
                    await self._http.create_topic(
                        url,
                        f"{self._name}-{number}",
                        partitions=1,
                        replication_factor=1,
                        timeout_s=ANSWER_DEADLINE_S,
                    )
                    creations += 1
                    if not self._keeps_every or creations % self._keeps_every:
                        created = f"{self._name}-{number}"
                ok = True
            except CallError as error:
                ok, created, what = False, None, f"{what}: {error}"
            answered_ms = self._clock.monotonic_ms()
            self._history.add(
                MetadataWrite(due_ms=due_ms, answered_ms=answered_ms, ok=ok, what=what)
            )
            pause = self._interval_s - (answered_ms - due_ms) / 1000 if ok else PROBE_RETRY_AFTER_S
            await self._pause(pause)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopped.wait()
        except TimeoutError:
            return


SESSION_TIMEOUT_MS = 3000
READ_TIMEOUT_MS = 300
CALL_DEADLINE_S = 4.0
GIVE_UP_DEADLINE_S = 1.0
GROUP_PAUSE_AFTER_FAILURE_S = 0.1
LOOK_AGAIN_S = 0.1


@dataclass(slots=True)
class GroupReaders(TopicClient):
    """Members of one group, each through every broker in turn, until `stop`."""

    cluster_id: str
    name: str
    members: int
    committed: dict[int, int] = field(default_factory=dict, init=False)
    """Partition → the highest acknowledged commit, which is the next offset to read."""
    coordinators: list[int] = field(default_factory=list, init=False)
    """Coordinators that brokers named, each change once, oldest first."""
    unasked: set[int] = field(default_factory=set, init=False)
    """Brokers that are not asked for the coordinator."""

    async def run(self) -> None:
        """Read and commit until `stop`."""
        async with asyncio.TaskGroup() as tasks:
            for member in range(self.members):
                tasks.create_task(self._read_on(member))

    async def _read_on(self, member: int) -> None:
        for life in count():
            if self._stopped.is_set():
                return
            url = self.endpoints[(member + life) % len(self.endpoints)].url
            name = f"member-{member}-{life}"
            instance = f"{url}/consumers/{self.name}/instances/{name}"
            try:
                await self._join(url, name)
                while not self._stopped.is_set():
                    await self._read_and_commit(instance, name)
            except CallError:
                await asyncio.sleep(GROUP_PAUSE_AFTER_FAILURE_S)
            finally:
                with suppress(CallError):
                    await self.http.call("DELETE", instance, timeout_s=GIVE_UP_DEADLINE_S)

    async def _join(self, url: str, name: str) -> None:
        settings = {
            "auto.commit.enable": "false",
            "session.timeout.ms": str(SESSION_TIMEOUT_MS),
        }
        group = f"{url}/consumers/{self.name}"
        await self.http.join_group(group, name, self.topic, settings, CALL_DEADLINE_S)

    async def _read_and_commit(self, instance: str, name: str) -> None:
        url = f"{instance}/records?timeout={READ_TIMEOUT_MS}&max_bytes=65536"
        sent_ms = self.clock.monotonic_ms()
        answer = await self.http.call("GET", url, accept=JSON_V2, timeout_s=CALL_DEADLINE_S)
        records = orjson.loads(answer.body)
        per_partition: dict[int, list[int]] = {}
        for record in records:
            per_partition.setdefault(record["partition"], []).append(record["offset"])
        if not per_partition:
            return
        now = self.clock.monotonic_ms()
        for partition, offsets in per_partition.items():
            self.history.add(
                GroupRead(
                    member=name,
                    partition=partition,
                    offsets=tuple(offsets),
                    sent_ms=sent_ms,
                    answered_ms=now,
                )
            )
        last = {partition: offsets[-1] for partition, offsets in per_partition.items()}
        await self._commit(instance, name, last)

    async def _commit(self, instance: str, name: str, last: dict[int, int]) -> None:
        rows: list[dict[str, Any]] = [
            {"topic": self.topic, "partition": partition, "offset": offset}
            for partition, offset in last.items()
        ]
        url, body = f"{instance}/offsets", {"offsets": rows}
        await self.http.call("POST", url, body, content_type=V2, timeout_s=CALL_DEADLINE_S)
        for partition, offset in last.items():
            self.history.add(
                GroupCommit(
                    member=name,
                    partition=partition,
                    next_offset=offset + 1,
                    answered_ms=self.clock.monotonic_ms(),
                )
            )
            self.committed[partition] = max(self.committed.get(partition, 0), offset + 1)

    @property
    def _described_at(self) -> str:
        return f"/v3/clusters/{self.cluster_id}/consumer-groups/{self.name}"

    async def watch_coordinator(self) -> None:
        """Ask the brokers for the coordinator, in turn, until cancelled."""
        while True:
            for broker in self.endpoints:
                if broker.id not in self.unasked:
                    with suppress(CallError):
                        described = await self.http.get_json(broker.url + self._described_at, 2.0)
                        found = id_of(described["coordinator"])
                        if self.coordinators[-1:] != [found]:
                            self.coordinators.append(found)
            await asyncio.sleep(LOOK_AGAIN_S)

    async def committed_offsets(self, url: str) -> dict[int, int]:
        """Return the group's committed offsets by partition, as this broker reports them in v3."""
        return await self.http.committed_offsets(url + self._described_at, self.topic)
