"""Blocking client, of the standard library only so that commands start quickly.

`Client.run` makes the attempts that `routes.attempts_at` yields, over a kept connection
per broker. A connection that the broker has closed in the meantime is detected *before* a request
is sent on it, and no request is ever repeated without the caller's policy (rule F2).
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar
from urllib.parse import urlsplit

from http_api.client.calls import Answer, Call, Request, decode_answer
from http_api.client.client_errors import QuorumlogError
from http_api.client.network import ClientNetwork
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
DEFAULT_RETRY_S = 10.0
"""Seconds for which a call without effect is retried; a leader change takes about one."""
UNAUTHORIZED = 401


@dataclass(slots=True)
class _KeptConnection:
    """A connection to a broker, the path before all of its paths, and its own headers."""

    http: http.client.HTTPConnection
    prefix: str
    headers: dict[str, str]


class Client:
    """Client that runs calls against a cluster, one thread at a time.

    Keeps a connection per broker; to be closed, or used as a context. Threads that share `routes`
    have a client each.
    """

    def __init__(
        self,
        urls: Iterable[str] | Routes,
        *,
        retry_s: float = DEFAULT_RETRY_S,
        network: ClientNetwork | None = None,
    ) -> None:
        self.routes = urls if isinstance(urls, Routes) else Routes(urls)
        self._retry_s = retry_s
        self._network = network or ClientNetwork()
        self._connections: dict[str, _KeptConnection] = {}

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
                    answer = self.send(attempt.url, attempt.request)
                except (AttemptError, QuorumlogError) as error:
                    attempt = attempts.throw(error)
                else:
                    attempt = attempts.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def abort(self) -> None:
        """End the request that another thread waits for with a `LostError`; any thread may call."""
        for kept in list(self._connections.values()):
            if kept.http.sock is not None:
                with contextlib.suppress(OSError):  # not that of TLS, which would reset its state
                    socket.socket.shutdown(kept.http.sock, socket.SHUT_RDWR)

    def close(self) -> None:
        for kept in self._connections.values():
            kept.http.close()
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

    def send(self, url: str, request: Request) -> Answer:
        """Send a request once and return the answer, decoded.

        Raises:
            AttemptError: There is no complete answer.
            ProtocolError: The answer can't be decoded.
        """
        answer = self._send_once(url, request)
        if answer.status == UNAUTHORIZED and self._network.has_new_headers:
            self._drop(url)
            answer = self._send_once(url, request)  # a 401 did nothing
        return decode_answer(answer, request)

    def _send_once(self, url: str, request: Request) -> Answer:
        kept = self._connection_to(url)
        if kept.http.sock is not None:
            kept.http.sock.settimeout(request.timeout_s)
        headers = kept.headers | request.headers
        try:
            kept.http.request(request.method, kept.prefix + request.path, request.body, headers)
            response = kept.http.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._drop(url)
            reason = "timed out" if isinstance(error, TimeoutError) else str(error) or repr(error)
            raise LostError(reason) from error
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(status=response.status, headers=found, body=body)

    def _connection_to(self, url: str) -> _KeptConnection:
        kept = self._connections.get(url)
        if kept is not None:
            if kept.http.sock is not None and not is_readable(kept.http):
                return kept
            self._drop(url)
        connection, prefix = self._open(url)
        kept = _KeptConnection(connection, prefix, self._network.connection_headers())
        try:
            connection.connect()
        except OSError as error:
            raise NotSentError(error.strerror or str(error)) from error
        self._connections[url] = kept
        return kept

    def _open(self, url: str) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection that is not connected yet, and the path of the URL."""
        parts = urlsplit(url)
        timeout_s = self._network.connect_timeout_s
        if parts.scheme == "https" and parts.hostname:
            context = self._network.tls_context()
            port = parts.port or 443
            return (
                http.client.HTTPSConnection(
                    parts.hostname, port, timeout=timeout_s, context=context
                ),
                parts.path,
            )
        if parts.scheme != "http" or not parts.hostname:
            msg = "expected http://host:port or https://host:port"
            raise NotSentError(msg)
        port = parts.port or 80
        return http.client.HTTPConnection(parts.hostname, port, timeout=timeout_s), parts.path

    def _drop(self, url: str) -> None:
        kept = self._connections.pop(url, None)
        if kept is not None:
            with contextlib.suppress(OSError):
                kept.http.close()


def is_readable(connection: http.client.HTTPConnection) -> bool:
    """Return True if an idle connection has bytes to read: it was closed or is out of step."""
    poll = select.poll()  # `select` refuses the file descriptors above 1,023
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
