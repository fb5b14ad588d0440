"""Load on a cluster, closed loop: each connection has one request under way, straight to a leader.

Requests are rendered beforehand and answers only looked at as far as they must be: what is measured
shall be the cluster, not this client. A connection that fails is made anew to whoever leads then.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

LATENCY_STEP = math.log(1.01)
"""Latencies are counted in buckets 1 % wide: a run of days takes no more memory than one of a
second."""
RETRY_PAUSE_S = 0.1
"""After an error a connection waits this long before it asks who leads and goes on."""
ANSWER_TIMEOUT_S = 60.0
REASONS_MAX = 5
"""Different errors whose text is kept."""
_REASON_CHARS = 200


class Latencies:
    """A histogram of times: the count of each bucket."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total_s = 0.0
        self.longest_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        bucket = int(math.log(max(seconds, 1e-6)) / LATENCY_STEP)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)

    def percentile(self, share: float) -> float:
        """Seconds that this share of all stayed within; 0.0 of none."""
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
    """What has become of the requests so far."""

    requests: int = 0
    records: int = 0
    bytes: int = 0
    """Of records: keys and values as sent, lines as read."""
    errors: int = 0
    """Records not written, or requests that failed."""
    reasons: list[str] = field(default_factory=list)
    latencies: Latencies = field(default_factory=Latencies)

    def failed(self, reason: str, errors: int = 1) -> None:
        """Count errors; a few of their texts are kept."""
        self.errors += errors
        if reason not in self.reasons and len(self.reasons) < REASONS_MAX:
            self.reasons.append(reason[:_REASON_CHARS])


class HttpAnswer:
    """Status, headers (names in lower case) and body of an answer."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        self.status = int(first.split(b" ", 2)[1])
        self.headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(b":") for line in lines)
        }
        self.body = b""


class Done(NamedTuple):
    """Of one request."""

    records: int
    bytes: int
    errors: int = 0
    reason: str = ""


class Work(Protocol):
    """What a connection does again and again. One object a connection."""

    @property
    def partition(self) -> int: ...

    def request(self) -> bytes | None:
        """The next request as it goes over the wire; None: there is nothing more to do."""
        ...

    def answered(self, answer: HttpAnswer) -> Done:
        """What an answer with status 200 says was done."""
        ...

    def records_in_request(self) -> int:
        """How many records a request asks to be written; 0: it reads."""
        ...


class Pace:
    """Spreads requests so that no more than so many records a second leave."""

    def __init__(self, records_per_s: float, now_s: float) -> None:
        self._per_s = records_per_s
        self._next_s = now_s

    def take(self, records: int, now_s: float) -> float:
        """When the next request may leave."""
        if self._per_s <= 0:
            return now_s
        due_s = max(self._next_s, now_s - 1.0)  # what was missed is caught up for a second at most
        self._next_s = due_s + records / self._per_s
        return due_s


class LoadRun:
    """One run. Owns its connections; used once, on one loop."""

    def __init__(
        self,
        works: Sequence[Work],
        leader_of: Callable[[int], Awaitable[str]],
        *,
        duration_s: float,
        records_per_s: float = 0.0,
    ) -> None:
        """``leader_of(partition)``: the url of who leads now. ``duration_s`` 0: until all is done.

        ``records_per_s`` 0: as fast as it goes.
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
        """Until time or work is over. ``progress(seconds so far, counts since the last call)``."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        pace = Pace(self._per_s, start_s)
        until_s = start_s + self._duration_s if self._duration_s else math.inf
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._connection(w, pace, until_s)) for w in self._works]
            while not all(task.done() for task in running):
                await asyncio.wait(running, timeout=every_s)
                recent, self._since_report = self._since_report, Counts()
                if progress is not None and recent.requests + recent.errors:
                    progress(loop.time() - start_s, recent)
        self.elapsed_s = loop.time() - start_s

    async def _connection(self, work: Work, pace: Pace, until_s: float) -> None:
        loop = asyncio.get_running_loop()
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
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
                    if streams is None:
                        streams = await _connect(await self._leader_of(work.partition))
                    await self._exchange(work, request, *streams)
                except (OSError, ValueError, EOFError, TimeoutError) as error:
                    reason = " ".join(str(error).split()) or type(error).__name__
                    for counts in (self.counts, self._since_report):
                        counts.failed(reason, max(1, work.records_in_request()))
                    if streams is not None:
                        streams[1].close()
                        streams = None
                    await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            if streams is not None:
                streams[1].close()

    async def _exchange(
        self,
        work: Work,
        request: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        loop = asyncio.get_running_loop()
        sent_s = loop.time()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            writer.write(request)
            answer = HttpAnswer((await reader.readuntil(b"\r\n\r\n"))[:-4])
            answer.body = await reader.readexactly(int(answer.headers.get(b"content-length", b"0")))
        took_s = loop.time() - sent_s
        if answer.status != 200:
            msg = f"HTTP {answer.status}: {answer.body.decode(errors='replace')}"
            raise ValueError(msg)
        done = work.answered(answer)
        for counts in (self.counts, self._since_report):
            counts.requests += 1
            counts.latencies.add(took_s)
            counts.records += done.records
            counts.bytes += done.bytes
            if done.errors:
                counts.failed(done.reason, done.errors)


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await asyncio.open_connection(parts.hostname, parts.port or 80, limit=1 << 20)
    msg = f"{url} does not answer"
    raise ConnectionError(msg)
