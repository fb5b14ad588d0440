"""Blocking client, of the standard library only so that commands start quickly.

`Client.run` makes the attempts that `routes.attempts_at` yields, over a kept connection
per broker. A connection that the broker has closed in the meantime is detected *before* a request
is sent on it, and no request is ever repeated without the caller's policy (rule F2).

An attempt ends within its time, however slowly bytes trickle in: each read has what is left of it.
A broker that refuses a request before all of it was sent, and closes, is still read.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import select
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from typing_extensions import override

from http_api.client.calls import Answer, Call, Request, decode_answer
from http_api.client.client_errors import QuorumlogError
from http_api.client.network import ClientNetwork, server_address, tune_socket
from http_api.client.routes import (
    AttemptError,
    Attempts,
    InterruptedAttemptError,
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
INTERRUPTED = "interrupted"
TIMEOUT_MIN_S = 0.001
"""Seconds for a read when no time is left: bytes that are there already are still read."""


@dataclass(slots=True)
class _KeptConnection:
    """A connection to a broker, the path before all of its paths, and its own headers."""

    http: http.client.HTTPConnection
    prefix: str
    headers: dict[str, str]
    until_s: float = 0.0
    """Time of `time.monotonic` at which the request under way times out."""


class _TimedReader(io.RawIOBase):
    """Bytes of a connection, read with no more than the time that is left for its request."""

    def __init__(self, raw: io.RawIOBase, sock: socket.socket, kept: _KeptConnection) -> None:
        self._raw = raw
        self._sock = sock
        self._kept = kept

    @override
    def readable(self) -> bool:
        return True

    @override
    def readinto(self, buffer: Any) -> int | None:
        left_s = self._kept.until_s - time.monotonic()
        if self._sock.fileno() >= 0:
            self._sock.settimeout(max(left_s, TIMEOUT_MIN_S))
        return self._raw.readinto(buffer)

    @override
    def close(self) -> None:
        self._raw.close()
        super().close()


class _TimedResponse(http.client.HTTPResponse):
    """Answer that is read with a `_TimedReader`, so a server that drips bytes can't hold it up."""

    def __init__(
        self, kept: _KeptConnection, sock: socket.socket, method: str | None = None
    ) -> None:
        super().__init__(sock, method=method)
        self.fp = _WholeLines(_TimedReader(self.fp.detach(), sock, kept))


class _WholeLines(io.BufferedReader):
    """Reader that refuses half a line, which `http.client` would take for the end of headers."""

    @override
    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n") and len(line) != size:
            msg = "the connection was closed before the answer was complete"
            raise ConnectionResetError(msg)
        return line


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
        self._is_aborted = False
        """True from `abort` until the next attempt begins."""

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
                self.begin_attempt()
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

    def begin_attempt(self) -> None:
        """Make `abort` apply to the next request, and no more to the one before."""
        self._is_aborted = False

    def abort(self) -> None:
        """End the request of the attempt that has begun with an `InterruptedAttemptError`.

        Any thread may call it, while another one waits in `send` or is about to. A connection that
        is being made is finished first, within the time for connecting.
        """
        self._is_aborted = True
        for kept in list(self._connections.values()):
            sock = kept.http.sock
            if sock is not None:
                with contextlib.suppress(OSError):  # not that of TLS, which would reset its state
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)

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
        until_s = time.monotonic() + request.timeout_s
        try:
            kept = self._connection_to(url, request.timeout_s)
            if self._is_aborted:
                raise InterruptedAttemptError(INTERRUPTED)
            return _exchange(kept, request, until_s)
        except http.client.InvalidURL as error:
            self._drop(url)
            raise NotSentError(str(error)) from error
        except QuorumlogError:  # some are ValueErrors
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:
            self._drop(url)
            if self._is_aborted:
                raise InterruptedAttemptError(INTERRUPTED) from error
            reason = "timed out" if isinstance(error, TimeoutError) else str(error) or repr(error)
            raise LostError(reason) from error
        except BaseException:  # also KeyboardInterrupt, which leaves a connection out of step
            self._drop(url)
            raise

    def _connection_to(self, url: str, timeout_s: float) -> _KeptConnection:
        kept = self._connections.get(url)
        if kept is not None:
            if kept.http.sock is not None and not is_readable(kept.http):
                return kept
            self._drop(url)
        connection, prefix = self._open(url, min(self._network.connect_timeout_s, timeout_s))
        kept = _KeptConnection(connection, prefix, self._network.connection_headers())
        try:
            connection.connect()
            tune_socket(connection.sock)
        except (OSError, ValueError) as error:  # a name that is too long is a ValueError
            connection.close()
            is_slow = isinstance(error, TimeoutError)
            text = getattr(error, "strerror", None) or str(error)
            raise NotSentError("timed out" if is_slow else text) from error
        except BaseException:
            connection.close()
            raise
        # typed as a class, called as a function
        connection.response_class = partial(_TimedResponse, kept)  # type: ignore[assignment]
        connection.auto_open = 0  # a closed connection is never opened again without its checks
        self._connections[url] = kept
        return kept

    def _open(self, url: str, timeout_s: float) -> tuple[http.client.HTTPConnection, str]:
        """Return a connection that is not connected yet, and the path of the URL."""
        try:
            scheme, host, port, prefix = server_address(url)
        except ValueError as error:
            raise NotSentError(str(error)) from error
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=timeout_s), prefix
        context = self._network.tls_context()
        return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context), prefix

    def _drop(self, url: str) -> None:
        kept = self._connections.pop(url, None)
        if kept is not None:
            with contextlib.suppress(OSError):
                kept.http.close()


def _exchange(kept: _KeptConnection, request: Request, until_s: float) -> Answer:
    """Send a request on a connection and read the answer, up to a time of `time.monotonic`.

    Raises:
        OSError: The connection broke, or the time is over.
        HTTPException: The answer is incomplete or not HTTP.
        ValueError: Its length is contradictory or no number.
    """
    connection = kept.http
    kept.until_s = until_s
    connection.sock.settimeout(max(until_s - time.monotonic(), TIMEOUT_MIN_S))
    is_sent = False
    try:
        connection.request(
            request.method,
            kept.prefix + request.path,
            request.body,
            kept.headers | request.headers,
        )
        is_sent = True
    except OSError:
        # A broker may refuse a large request by its headers and close before it was all sent.
        if connection.sock is None or not is_readable(connection):
            raise
    response = connection.getresponse()
    try:
        headers = _checked_headers(response)
        body = response.read()
    except BaseException:
        response.close()  # it may own the socket, after `Connection: close`
        raise
    if not is_sent:
        connection.close()
    return Answer(status=response.status, headers=headers, body=body)


def _checked_headers(response: http.client.HTTPResponse) -> dict[str, str]:
    """Return the headers by names in lower case; ValueError if they leave the length in doubt."""
    found: dict[str, str] = {}
    for written, value in response.getheaders():
        name = written.lower()
        if name in found and name in {"content-length", "transfer-encoding"}:
            msg = f"an answer with {written} twice"
            raise ValueError(msg)
        found[name] = value
    length = found.get("content-length")
    if length is not None:
        if not (length.isascii() and length.isdigit()):
            msg = f"an answer with Content-Length {length[:40]!r}"
            raise ValueError(msg)
        if "transfer-encoding" in found:
            msg = "an answer with both Content-Length and Transfer-Encoding"
            raise ValueError(msg)
    if response.status < http.client.OK:
        msg = f"HTTP {response.status} without a request for it"
        raise ValueError(msg)
    return found


def is_readable(connection: http.client.HTTPConnection) -> bool:
    """Return True if an idle connection has bytes to read: it was closed or is out of step."""
    poll = select.poll()  # `select` refuses the file descriptors above 1,023
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))
