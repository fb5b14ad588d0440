"""The blocking reader of a tail: one request, which goes on at another broker where one breaks.

`TopicTail` requests v3's tail of a topic, or of one partition, with tokens, and returns what lies
between two tokens at once. A connection that breaks in between leaves records without a token
behind them: they are dropped, and come again from the next broker. So each record is returned once.
Errors of the log end the tail: `ApiError`. Used by `quorumlog consume -f`.
"""

from __future__ import annotations

import contextlib
import http.client
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import msgspec
import orjson

from http_api.client.calls import Answer, Call, Request, error_of, v3_path
from http_api.client.client_errors import ApiError, ProtocolError, UnreachableError
from http_api.client.routes import Backoff, Routes
from http_api.contract.media_types import NDJSON

HEARTBEAT_MS = 3_000
SILENCE_S = 10.0
"""A broker that sends nothing for so long, not even a heartbeat, is taken for dead."""
CONNECT_TIMEOUT_S = 3.0
RETRY_S = 60.0
"""Time for which a tail that broke looks for a broker to go on at."""


class Typed(msgspec.Struct, frozen=True, gc=False):
    """A key or a value: BINARY (base64), JSON or STRING, and its JSON text."""

    type: str
    data: msgspec.Raw


class TailRecord(msgspec.Struct, frozen=True, gc=False):
    """A record in v3's shape; ``timestamp`` is ISO 8601, or ``@MILLISECONDS``."""

    partition_id: int
    offset: int
    timestamp: str
    key: Typed
    value: Typed
    headers: list[dict[str, str | None]] = []


_decode_record = msgspec.json.Decoder(TailRecord).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class TailStart:
    """The topic or partition that a tail reads, and the place where it begins."""

    topic: str
    partition: int | None = None
    """None: the whole topic."""
    query: Mapping[str, object] = field(default_factory=dict)
    """``offset``, ``timestamp`` or ``after``: where it begins."""


class TopicTail:
    """Records of a topic as they come. Used by one thread; to be closed, or used as a context."""

    def __init__(self, routes: Routes, cluster_id: str, start: TailStart) -> None:
        self._routes = routes
        self._cluster_id = cluster_id
        self._start = start
        self._token: str | None = None
        self._connection: http.client.HTTPConnection | None = None

    @property
    def token(self) -> str | None:
        """Token behind all that was returned; None before the first connection."""
        return self._token

    def batches(self) -> Iterator[list[TailRecord]]:
        """Yield records as they come, each once, without end.

        Raises:
            ApiError: the log does not hold the place any more, or the topic is gone.
            UnreachableError: no broker could be read from for `RETRY_S`.
        """
        backoff = Backoff(time.monotonic() + RETRY_S)
        while True:
            url = self._routes.urls[0]
            try:
                for records in self._read(url):
                    backoff = Backoff(time.monotonic() + RETRY_S)
                    if records:
                        yield records
                failure = "it ended the tail"
            except ApiError as error:
                if not error.retriable:
                    raise
                failure = error.message
            except (OSError, http.client.HTTPException) as error:
                failure = str(error) or type(error).__name__
            finally:
                self.close()
            self._routes.demote(url)
            wait_s = backoff.next_s(time.monotonic())
            if wait_s is None:
                msg = f"no broker goes on with the tail; the last one was {url}: {failure}"
                raise UnreachableError(msg)
            time.sleep(wait_s)

    def close(self) -> None:
        """Close the connection; `batches` can be called again and goes on behind `token`."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.close()
            self._connection = None

    def __enter__(self) -> TopicTail:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _read(self, url: str) -> Iterator[list[TailRecord]]:
        """Yield what lies between two tokens of one answer, until it ends."""
        response = self._open(url)
        records: list[TailRecord] = []
        while True:
            line = response.readline()
            if not line.endswith(b"\n"):
                return  # its end, or a broken connection: what has no token behind it comes again
            if line.startswith(b'{"partition_id":'):
                try:
                    records.append(_decode_record(line))
                except msgspec.MsgspecError as error:
                    msg = f"expected a record, got {line[:100]!r}"
                    raise ProtocolError(msg) from error
                continue
            control = _control_of(line)
            if "error_code" in control:
                code = int(control["error_code"])
                raise ApiError(int(str(code)[:3]), code, str(control.get("message", "")), control)
            self._token = str(control.get("next", self._token))
            yield records
            records = []

    def _open(self, url: str) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            msg = f"{url}: expected http://host:port"
            raise UnreachableError(msg)
        connection = http.client.HTTPConnection(
            parts.hostname, parts.port or 80, timeout=CONNECT_TIMEOUT_S
        )
        self._connection = connection
        connection.connect()
        connection.sock.settimeout(SILENCE_S)
        connection.request("GET", self._path(), headers={"Accept": NDJSON})
        response = connection.getresponse()
        if response.status != 200:
            headers = {name.lower(): value for name, value in response.getheaders()}
            answer = Answer(status=response.status, headers=headers, body=response.read())
            raise error_of(answer)
        return response

    def _path(self) -> str:
        start = self._start
        where = start.query if self._token is None else {"after": self._token}
        query = {"follow": "true", "include": "tokens", "heartbeat_ms": HEARTBEAT_MS, **where}
        place = () if start.partition is None else ("partitions", start.partition)
        return v3_path(self._cluster_id, "topics", start.topic, *place, "records", query=query)


def _control_of(line: bytes) -> dict[str, Any]:
    try:
        control = orjson.loads(line)
    except orjson.JSONDecodeError:
        control = None
    if not isinstance(control, dict):
        msg = f"expected a record or a token, got {line[:100]!r}"
        raise ProtocolError(msg)
    return control


def topic_end(cluster_id: str, topic: str) -> Call[str]:
    """Return the call that finds the token of the present end of a whole topic."""
    query = {"offset": "latest", "timeout": 0}
    path = v3_path(cluster_id, "topics", topic, "records", query=query)
    return Call(Request(method="GET", path=path), lambda answer: answer.headers["quorumlog-next"])
