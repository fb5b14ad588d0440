"""Load generation with closed-loop connections: each has one request under way, to a leader.

`quorumlog bench` gives a `LoadRun` the work of each connection: `WriteBatches` or `ReadPartition`.
Requests are rendered beforehand and answers are parsed only as far as needed, so that the
measurement shows the cluster rather than this client. A connection that fails is opened anew to the
partition's present leader.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import string
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from http_api.client.calls import path_of

LATENCY_STEP = math.log(1.01)
"""Width of a latency bucket on a logarithmic scale: 1 %, so memory does not grow with time."""
RETRY_PAUSE_S = 0.1
"""Seconds that a connection waits after an error before it looks up the leader and continues."""
ANSWER_TIMEOUT_S = 60.0
REASONS_MAX = 5
"""Number of different errors whose text is kept."""
_REASON_CHARS = 200


class Latencies:
    """Histogram of latencies: the number of samples in each bucket."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a sample of ``seconds``."""
        bucket = int(math.log(max(seconds, 1e-6)) / LATENCY_STEP)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def percentile(self, share: float) -> float:
        """Return the seconds within which ``share`` of all samples lie; 0.0 without samples."""
        left = math.ceil(self.count * share)
        for bucket in sorted(self._counts):
            left -= self._counts[bucket]
            if left <= 0:
                return min(math.exp(bucket * LATENCY_STEP), self.longest_s)
        return 0.0

    @property
    def mean_s(self) -> float:
        return self.total_s / self.count if self.count else 0.0


@dataclass(slots=True)
class Counts:
    """Numbers of requests, records, bytes and errors so far."""

    requests: int = 0
    records: int = 0
    bytes: int = 0
    """Bytes of records: values as sent, lines as read."""
    errors: int = 0
    """Records that were not written, plus read requests that failed."""
    reasons: list[str] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)

    def add_errors(self, reason: str, errors: int = 1) -> None:
        """Count errors and keep the texts of the first few kinds."""
        self.errors += errors
        if reason not in self.reasons and len(self.reasons) < REASONS_MAX:
            self.reasons.append(reason[:_REASON_CHARS])


class HttpAnswer:
    """Status, headers (names in lower case) and body of an HTTP answer."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        self.status = int(first.split(b" ", 2)[1])
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self.body = b""


class RequestResult(NamedTuple):
    """Result of one request."""

    records: int
    bytes: int
    errors: int = 0
    reason: str = ""


class ConnectionWork(Protocol):
    """Source of a connection's requests; each connection has its own object."""

    @property
    def partition(self) -> int: ...

    def request(self) -> bytes | None:
        """Return the next request as raw bytes without its Host, or None if all is done."""
        ...

    def receive_answer(self, answer: HttpAnswer) -> RequestResult:
        """Take an answer with status 200 and return what it confirms."""
        ...

    def records_in_request(self) -> int:
        """Return how many records a request writes; 0 if it reads."""
        ...


class RateLimit:
    """Limit of records per second over all connections."""

    def __init__(self, records_per_s: float, now_s: float) -> None:
        self._per_s = records_per_s
        self._next_s = now_s

    def take(self, records: int, now_s: float) -> float:
        """Return the time at which the next request may be sent."""
        if self._per_s <= 0:
            return now_s
        due_s = max(self._next_s, now_s - 1.0)  # a delay is caught up for a second at most
        self._next_s = due_s + records / self._per_s
        return due_s


class LoadRun:
    """A run of load over its own connections; used once, on one event loop."""

    def __init__(
        self,
        works: Sequence[ConnectionWork],
        leader_of: Callable[[int], Awaitable[str]],
        *,
        duration_s: float,
        records_per_s: float = 0.0,
    ) -> None:
        """Prepare a run with one connection for each of ``works``.

        Args:
            works: Source of each connection's requests.
            leader_of: Returns the URL of a partition's present leader.
            duration_s: Seconds to run; 0 runs until all work is done.
            records_per_s: Limit over all connections; 0 sets none.
        """
        self._works = works
        self._leader_of = leader_of
        self._duration_s = duration_s
        self._per_s = records_per_s
        self.counts = Counts()
        self.elapsed_s = 0.0
        self._since_report = Counts()

    async def run(
        self, progress: Callable[[float, Counts], None] | None = None, every_s: float = 1.0
    ) -> None:
        """Run until the time or the work is over.

        ``progress`` is called every ``every_s`` seconds with the seconds since the start and the
        counts since its last call.
        """
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        pace = RateLimit(self._per_s, start_s)
        until_s = start_s + self._duration_s if self._duration_s else math.inf
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._connection(w, pace, until_s)) for w in self._works]
            while not all(task.done() for task in running):
                await asyncio.wait(running, timeout=every_s)
                recent, self._since_report = self._since_report, Counts()
                if progress is not None and recent.requests + recent.errors:
                    progress(loop.time() - start_s, recent)
        self.elapsed_s = loop.time() - start_s

    async def _connection(self, work: ConnectionWork, pace: RateLimit, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        connection: _Connection | None = None
        try:
            while loop.time() < until_s:
                due_s = pace.take(max(1, work.records_in_request()), loop.time())
                if due_s > loop.time():
                    await asyncio.sleep(min(due_s, until_s) - loop.time())
                if loop.time() >= until_s:
                    break
                request = work.request()
                if request is None:
                    break
                try:
                    if connection is None:
                        connection = await _connect(await self._leader_of(work.partition))
                    await self._exchange(work, request, connection)
                except (OSError, ValueError, EOFError, TimeoutError) as error:
                    reason = " ".join(str(error).split()) or type(error).__name__
                    for counts in (self.counts, self._since_report):
                        counts.add_errors(reason, max(1, work.records_in_request()))
                    if connection is not None:
                        connection.writer.close()
                        connection = None
                    await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            if connection is not None:
                connection.writer.close()

    async def _exchange(
        self, work: ConnectionWork, request: bytes, connection: _Connection
    ) -> None:
        reader, writer = connection.reader, connection.writer
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            first_line_end = request.index(b"\r\n") + 2
            rest = memoryview(request)[first_line_end:]
            writer.writelines((request[:first_line_end], connection.host_line, rest))
            answer = HttpAnswer((await reader.readuntil(b"\r\n\r\n"))[:-4])
            answer.body = await reader.readexactly(int(answer.headers.get(b"content-length", b"0")))
        latency_s = loop.time() - sent_s
        if answer.status != 200:
            msg = f"HTTP {answer.status}: {answer.body.decode(errors='replace')}"
            raise ValueError(msg)
        done = work.receive_answer(answer)
        for counts in (self.counts, self._since_report):
            counts.requests += 1
            counts.latencies.add(latency_s)
            counts.records += done.records
            counts.bytes += done.bytes
            if done.errors:
                counts.add_errors(done.reason, done.errors)


class _Connection(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    host_line: bytes
    """The header ``Host`` of every request."""


async def _connect(url: str) -> _Connection:
    parts = urlsplit(url)
    host_line = f"Host: {parts.netloc}\r\n".encode()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            streams = await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 20)
            return _Connection(*streams, host_line)
    msg = f"{url} does not answer"
    raise ConnectionError(msg)


RENDERED_REQUESTS = 16
"""Number of different requests sent in turn, so that no cache can answer them."""
_KEYS = 10_000
_ALPHABET = string.ascii_letters + string.digits
_ROW = b'"error_code":'
_WRITTEN = b'"error_code":null'


@dataclass(slots=True)
class RecordBudget:
    """Records still to be requested, over all connections; None sets no limit."""

    left: int | None

    def take(self, most: int) -> int:
        """Take up to ``most`` records for the next request and return how many it gets."""
        if self.left is None:
            return most
        taken = min(most, self.left)
        self.left -= taken
        return taken


class WriteBatches:
    """Work that writes batches of records with random text values to one partition."""

    def __init__(
        self,
        topic: str,
        partition: int,
        batch: int,
        size: int,
        acks: str,
        budget: RecordBudget,
        chance: random.Random,
    ) -> None:
        """Render requests of ``batch`` values of ``size`` bytes each, quotes included."""
        self._partition = partition
        self._batch = batch
        self._size = size
        self._budget = budget
        self._chance = chance
        query = None if acks == "all" else {"acks": acks}
        self._path = path_of("topics", topic, "partitions", partition, query=query)
        self._requests = [self._render(batch) for _ in range(RENDERED_REQUESTS)]
        self._sent = 0
        self._requested = batch

    @property
    def partition(self) -> int:
        return self._partition

    def records_in_request(self) -> int:
        """Return the size of a full batch."""
        return self._batch

    def request(self) -> bytes | None:
        """Return the next batch as a request, or None once the budget is used up."""
        self._requested = self._budget.take(self._batch)
        if not self._requested:
            return None
        if self._requested < self._batch:
            return self._render(self._requested)
        self._sent += 1
        return self._requests[self._sent % RENDERED_REQUESTS]

    def receive_answer(self, answer: HttpAnswer) -> RequestResult:
        """Count the records that the answer confirms and those that it refuses."""
        good = answer.body.count(_WRITTEN)
        bad = answer.body.count(_ROW) - good
        reason = ""
        if bad:
            at = answer.body.find(b'"error":"')
            reason = answer.body[at + 9 : at + 200].partition(b'"')[0].decode()
        return RequestResult(good, good * self._size, bad, reason)

    def _render(self, records: int) -> bytes:
        chance, rows = self._chance, []
        for _ in range(records):
            text = "".join(chance.choices(_ALPHABET, k=max(0, self._size - 2)))
            rows.append(f'{{"key":"{chance.randrange(_KEYS)}","value":"{text}"}}')
        body = f'{{"records":[{",".join(rows)}]}}'
        return (
            f"POST {self._path} HTTP/1.1\r\n"
            "Content-Type: application/vnd.kafka.json.v2+json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()


class ReadPartition:
    """Work that reads a partition from start to end; with ``again``, over and over."""

    def __init__(self, topic: str, partition: int, max_bytes: int, *, again: bool) -> None:
        self._topic = topic
        self._partition = partition
        self._max_bytes = max_bytes
        self._again = again
        self._next: int | None = None
        """Offset of the next fetch; None starts at the first record."""
        self._at_end = False

    @property
    def partition(self) -> int:
        return self._partition

    def records_in_request(self) -> int:
        """Return 0: the requests write nothing."""
        return 0

    def request(self) -> bytes | None:
        """Return the fetch at the present position, or None at the end."""
        if self._at_end:
            if not self._again:
                return None
            self._next, self._at_end = None, False
        start = {"timestamp": 0} if self._next is None else {"offset": self._next}
        query = {**start, "max_bytes": self._max_bytes, "timeout": 0}
        path = path_of("topics", self._topic, "partitions", self._partition, "records", query=query)
        accept = "Accept: application/x-ndjson"
        return f"GET {path} HTTP/1.1\r\n{accept}\r\n\r\n".encode()

    def receive_answer(self, answer: HttpAnswer) -> RequestResult:
        """Move the position behind the records of the answer and count them."""
        self._next = int(answer.headers[b"quorumlog-next-offset"])
        self._at_end = self._next >= int(answer.headers[b"quorumlog-high-watermark"])
        return RequestResult(answer.body.count(b"\n"), len(answer.body))
