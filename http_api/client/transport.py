"""Blocking client, of the standard library only so that commands start quickly.

`Client.run` makes the attempts that `routes.attempts_at` yields, over a kept connection
per broker. A connection that the broker has closed in the meantime is detected *before* a request
is sent on it, and no request is ever repeated without the caller's policy (rule F2).
"""

from __future__ import annotations

import contextlib
import http.client
import select
import time
from collections.abc import Iterable
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

from http_api.client.calls import Answer, Call, Request, decode_answer
from http_api.client.client_errors import QuorumlogError
from http_api.client.routes import (
    AttemptError,
    Attempts,
    LostError,
    NotSentError,
    Routes,
    attempts_at,
)

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8082"
CONNECT_TIMEOUT_S = 3.0
DEFAULT_RETRY_S = 10.0
"""Seconds for which a call without effect is retried; a leader change takes about one."""


class Client:
    """Client that runs calls against a cluster, one thread at a time.

    Keeps a connection per broker; to be closed, or used as a context.
    """

    def __init__(self, urls: Iterable[str], *, retry_s: float = DEFAULT_RETRY_S) -> None:
        self.routes = Routes(urls)
        self._retry_s = retry_s
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def run(self, call: Call[T], *, retry_s: float | None = None) -> T:
        """Run a call and return its result; raises `QuorumlogError`.

        Calls about a partition go to its leader once that is known. An attempt is repeated, for up
        to ``retry_s`` seconds, only if it certainly had no effect or may be repeated.
        """
        retry_s = self._retry_s if retry_s is None else retry_s
        return self.drive(attempts_at(call, self.routes, time.monotonic, retry_s=retry_s))

    def drive(self, attempts: Attempts[T]) -> T:
        """Make the attempts one by one and return their result; raises `QuorumlogError`."""
        try:
            attempt = next(attempts)
            while True:
                if attempt.wait_s:
                    time.sleep(attempt.wait_s)
                try:
                    answer = self._send(attempt.url, attempt.request)
                except (AttemptError, QuorumlogError) as error:
                    attempt = attempts.throw(error)
                else:
                    attempt = attempts.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _send(self, url: str, request: Request) -> Answer:
        connection = self._connection_to(url)
        if connection.sock is not None:
            connection.sock.settimeout(request.timeout_s)
        try:
            connection.request(request.method, request.path, request.body, request.headers)
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop(url)
            reason = "timed out" if isinstance(error, TimeoutError) else str(error) or repr(error)
            raise LostError(reason) from error
        headers = {name.lower(): value for name, value in response.getheaders()}
        return decode_answer(Answer(status=response.status, headers=headers, body=body), request)

    def _connection_to(self, url: str) -> http.client.HTTPConnection:
        kept = self._connections.get(url)
        if kept is not None:
            if kept.sock is not None and not is_readable(kept):
                return kept
            self._drop(url)
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            msg = "expected http://host:port"
            raise NotSentError(msg)
        connection = http.client.HTTPConnection(
            parts.hostname, parts.port or 80, timeout=CONNECT_TIMEOUT_S
        )
        try:
            connection.connect()
        except OSError as error:
            raise NotSentError(error.strerror or str(error)) from error
        self._connections[url] = connection
        return connection

    def _drop(self, url: str) -> None:
        connection = self._connections.pop(url, None)
        if connection is not None:
            with contextlib.suppress(OSError):
                connection.close()


def is_readable(connection: http.client.HTTPConnection) -> bool:
    """Return True if an idle connection has bytes to read: it was closed or is out of step."""
    return bool(select.select([connection.sock], [], [], 0)[0])
