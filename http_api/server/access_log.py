"""Access log of the public listener: one JSON object a line, for requests of both ways.

Flow: a request ends → `AccessLog.wants` decides by status and duration → `add` puts a `LogEntry`
into a bounded queue → one thread makes lines of what waits and appends them to a `RolledFile`. The
event loop writes no file and makes no JSON. What does not fit into the queue, or on the disk, is
dropped, counted, and reported in the node's log once a minute.

A line never holds a body, a credential, or a header but those named here. Values of query
parameters are shown only if the route declares the parameter, because a client may send a secret
under any other name.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger
from typing_extensions import override

from broker.config import ACCESS_ALL
from http_api.contract.operations.declaration import Operation

if TYPE_CHECKING:
    from pathlib import Path

    from broker.config import AccessLogConfig
    from raft_metadata.common.clock import Clock

_log = logging.getLogger("http_api.server")

ENTRIES_MAX: Final = 10_000
"""Entries that wait for the thread; more are dropped. At most 25 MB."""
BATCH_ENTRIES_MAX: Final = 1_000
"""Entries that are written at once."""
TEXT_CHARS_MAX: Final = 1_000
"""Longest path and longest query in a line."""
REPORT_INTERVAL_MS: Final = 60_000
STOP_S: Final = 5.0
"""Longest wait for the thread to write what waits when the listener stops."""
STREAM_WAIT_MS: Final = 86_400_000
"""Wait of a request without an end of its own: no duration of it is slow."""
ERROR_CODE_BYTES: Final = 4_096
"""Part of an answer in which its error code is looked for."""
HIDDEN: Final = "***"
ASKED_WAIT_MS = web.RequestKey("asked_wait_ms", int)
"""Time for which the client asked to wait; a handler that may wait sets it."""
BEGAN_S = web.RequestKey("began_s", float)
"""Time of the loop at which the routes took the request."""
OPERATION = web.RequestKey("operation", Operation)
"""Declaration of the route that handles a request; missing where no route does."""
_ERROR_CODE: Final = re.compile(rb'"error_code":([0-9]{3,5})')
_CLIENT_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,255}")
_UNPARSED: Final = "UNKNOWN"
"""aiohttp's method of what is no request."""


class LogEntry(NamedTuple):
    """Facts of one request, as they stand; `line_of` makes the line."""

    wall_ms: int
    request_id: str | None
    host: str
    method: str | None
    path: str | None
    query: str | None
    status: int | None
    """None: the client left before the end of its answer."""
    error_code: int | None
    bytes_in: int
    bytes_out: int
    """Bytes of the body; of a stream with its framing."""
    duration_ms: float
    forwarded_to: Collection[int]
    client_id: str | None
    lane: str


_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode
"""Encoder to JSON of printable ASCII: everything else is escaped."""


@lru_cache(maxsize=2)
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def line_of(entry: LogEntry) -> str:
    """Return the line of a request, without control characters, its end included."""
    second, millisecond = divmod(entry.wall_ms, 1_000)
    fields: dict[str, Any] = {
        "time": f"{_second_text(second)}.{millisecond:03d}Z",
        "request_id": entry.request_id,
        "host": entry.host,
        "method": entry.method,
        "path": _cut(entry.path),
        "query": _cut(entry.query),
        "status": entry.status,
        "error_code": entry.error_code,
        "bytes_in": entry.bytes_in,
        "bytes_out": entry.bytes_out,
        "ms": round(entry.duration_ms, 1),
        "forwarded_to": sorted(entry.forwarded_to) or None,
        "client_id": entry.client_id,
        "lane": entry.lane,
        "principal": None,
        "auth": None,
        "tls": None,
        "held_ms": None,
    }
    return _to_json(fields) + "\n"


def _cut(text: str | None) -> str | None:
    return text if text is None or len(text) <= TEXT_CHARS_MAX else text[:TEXT_CHARS_MAX] + "…"


def shown_query(raw: str, declared: Collection[str] | None) -> str | None:
    """Return a query as it was sent, without the values of parameters that are not declared.

    ``declared`` None: all of them are known to be.
    """
    if not raw:
        return None
    if declared is None:
        return raw
    shown = []
    for pair in raw.split("&"):
        name, equals, _ = pair.partition("=")
        if name in declared:
            shown.append(pair)
        else:
            shown.append(f"{name}={HIDDEN}" if equals else HIDDEN)
    return "&".join(shown)


def error_code_in(status: int, start: bytes) -> int | None:
    """Return the code of a failed answer from its beginning, of the first row if it has rows."""
    if status < 400:
        return None
    match = _ERROR_CODE.search(start[:ERROR_CODE_BYTES])
    return None if match is None else int(match[1])


class RolledFile:
    """A file that is renamed when it is full. Owner: the thread of the log."""

    def __init__(self, path: Path, max_bytes: int, keep: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: int | None = None
        self._size = 0

    def append(self, data: bytes) -> None:
        """Append whole lines; rename the file first if they don't fit.

        Raises:
            OSError: the disk is full, or the folder is gone; a part may be written.
        """
        if self._file is None:
            self._open()
        if self._size and self._size + len(data) > self._max_bytes:
            self.close()
            self._roll()
            self._open()
        assert self._file is not None, "it was opened above"
        rest = memoryview(data)
        while rest:
            count = os.write(self._file, rest)
            self._size += count
            rest = rest[count:]

    def close(self) -> None:
        """Close the file; the next `append` opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o640)
        self._size = os.fstat(self._file).st_size

    def _roll(self) -> None:
        for number in range(self._keep, 0, -1):
            older = self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))

    def _numbered(self, number: int) -> Path:
        return self._path if number == 0 else self._path.with_name(f"{self._path.name}.{number}")


class AccessLog:
    """The log of one listener. Owner: `HttpServer`; `wants` and `add` are called on its loop.

    Between `start` and `stop` one thread writes.
    """

    def __init__(self, config: AccessLogConfig, clock: Clock) -> None:
        self._clock = clock
        self.unlogged_ms = -1 if config.mode == ACCESS_ALL else config.slow_ms
        """A request without an error that took no longer than this is not logged."""
        self._queue: queue.SimpleQueue[LogEntry | None] = queue.SimpleQueue()
        """Entries to be written; None ends the thread."""
        self._file = RolledFile(config.file, config.max_bytes, config.keep)
        self._thread: threading.Thread | None = None
        self.dropped = 0
        """Entries that were not written, for want of room in the queue."""
        self.lost = 0
        """Entries that were not written, for want of room on the disk."""
        self._reported = 0
        self._reported_ms: int | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._write_all, name="access-log", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what waits, and end the thread."""
        if self._thread is None:
            return
        self._queue.put(None)
        self._thread.join(STOP_S)
        self._thread = None

    def wants(self, status: int, duration_ms: float, asked_ms: int = 0) -> bool:
        """Return True if a request with this result is to be logged."""
        if self.unlogged_ms < 0 or status >= 400:
            return True
        return duration_ms > self.unlogged_ms + asked_ms

    def add(self, entry: LogEntry) -> None:
        """Have an entry written; drop it if too many wait."""
        if self._queue.qsize() < ENTRIES_MAX:
            self._queue.put(entry)
        else:
            self.dropped += 1

    def now_ms(self) -> int:
        """Return the time for an entry."""
        return self._clock.wall_ms()

    # in the thread

    def _write_all(self) -> None:
        is_open = True
        while is_open:
            entries = [self._queue.get()]
            while len(entries) < BATCH_ENTRIES_MAX and entries[-1] is not None:
                try:
                    entries.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            is_open = entries[-1] is not None
            self._write([entry for entry in entries if entry is not None])
        self._file.close()

    def _write(self, entries: Sequence[LogEntry]) -> None:
        failure = None
        if entries:
            try:
                self._file.append("".join(map(line_of, entries)).encode("ascii"))
            except OSError as error:
                failure = error
                self.lost += len(entries)
                self._file.close()  # its folder may have been moved
        self._report(failure)

    def _report(self, failure: OSError | None) -> None:
        missing = self.dropped + self.lost
        if missing == self._reported:
            return
        now_ms = self._clock.monotonic_ms()
        if self._reported_ms is None or now_ms - self._reported_ms >= REPORT_INTERVAL_MS:
            _log.warning(
                "access log lines not written count=%s dropped=%s lost=%s error=%s",
                *(missing - self._reported, self.dropped, self.lost, failure),
            )
            self._reported, self._reported_ms = missing, now_ms


class RouteLog:
    """The access log as the routes use it. Owner: `HttpServer`, on its loop."""

    def __init__(self, log: AccessLog, host_of: Callable[[web.BaseRequest], str]) -> None:
        """``host_of`` returns the IP address of a request's client."""
        self.log = log
        self._host_of = host_of

    def ended(self, request: web.BaseRequest, response: web.StreamResponse, seconds: float) -> None:
        """Log an answered request, if it is to be logged."""
        status, duration_ms = response.status, seconds * 1000
        if self.log.wants(status, duration_ms, request.get(ASKED_WAIT_MS, 0)):
            self._add(request, response, status, duration_ms)

    def left(self, request: web.BaseRequest, now_s: float) -> None:
        """Log a request whose client left before the end of its answer, if all are logged.

        ``now_s`` is the loop's time.
        """
        if self.log.wants(0, 0):
            self._add(request, None, None, (now_s - request.get(BEGAN_S, now_s)) * 1000)

    def _add(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse | None,
        status: int | None,
        duration_ms: float,
    ) -> None:
        headers = {} if response is None else response.headers
        body = response.body if isinstance(response, web.Response) else None
        start = body if isinstance(body, bytes) else b""
        if response is None or not isinstance(response, web.Response):
            bytes_out = request.writer.output_size
        else:
            bytes_out = 0 if request.method == "HEAD" else len(start)
        is_parsed = request.method != _UNPARSED
        operation = request.get(OPERATION)
        declared = frozenset[str]() if operation is None else operation.parameter_names
        client_id = request.headers.get("Quorumlog-Client-Id", "")
        self.log.add(
            LogEntry(
                wall_ms=self.log.now_ms(),
                request_id=headers.get("X-Request-Id"),
                host=self._host_of(request),
                method=request.method if is_parsed else None,
                path=request.rel_url.raw_path if is_parsed else None,
                query=shown_query(request.rel_url.raw_query_string, declared),
                status=status,
                error_code=None if status is None else error_code_in(status, start),
                bytes_in=request.content_length or request.content.total_bytes,
                bytes_out=bytes_out,
                duration_ms=duration_ms,
                forwarded_to=request.get(FORWARDED_TO, ()),
                client_id=client_id if _CLIENT_ID.fullmatch(client_id) else None,
                lane="routes",
            )
        )


FORWARDED_TO = web.RequestKey("forwarded_to", list[int])
"""Brokers to which this broker passed a part of the request."""


class RouteLogger(AbstractAccessLogger):
    """Adapter that aiohttp calls at the end of each answer; one per connection."""

    def __init__(self, logger: Any, log_format: str) -> None:
        """``logger`` is a `RouteLog`: aiohttp hands on what `HttpServer` passed."""
        super().__init__(logger, log_format)
        self._routes: RouteLog = logger

    @override
    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        self._routes.ended(request, response, time)
