"""Load generator: raw sockets, requests rendered beforehand, one epoll loop, closed loop.

An aiohttp client costs 80 to 100 µs a request, more than the server under test. Here a request
costs one send, one receive, a check of the status line and of one text that only a good answer
contains. Every connection has one request in flight.

    python -m benchmarks.load HOST:PORT … < spec.json     prints one JSON object

The specification: ``{"requests": [base64, …], "connections", "seconds", "warm_up_s", "expect"}``;
connection i uses target i mod targets and sends the requests in turn. ``"head_first": true``: head
and body are sent in two packets, as Python's clients do. ``"placeholder"``: a text of digits that
requests hold; each one that is sent has a number of its own in its place, so that no two are alike.
"""

from __future__ import annotations

import array
import base64
import json
import os
import select
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

RECEIVE_BYTES = 1 << 20
SOCKET_BUFFER_BYTES = 4 << 20
ANSWER_DEADLINE_S = 30.0
LOOK_AT_BYTES = 300
"""Bytes of a body searched for the expected text, which is in a good answer's first record."""


@dataclass(slots=True)
class Tally:
    """Figures measured after the warm-up."""

    requests: int = 0
    errors: int = 0
    body_bytes: int = 0
    first_error: str = ""
    latencies_ns: array.array[int] = field(default_factory=lambda: array.array("q"))


@dataclass(slots=True)
class Connection:
    """A socket, and the number of bytes missing of the present answer."""

    socket: socket.socket
    request: int
    sent_ns: int = 0
    missing: int = 0
    body: int = 0
    good: bool = False
    looked: bool = False
    beginning: bytes = b""
    chunked: bool = False


class Generator:
    """Sender of the load. Owns its sockets; `run` blocks for the given time."""

    def __init__(
        self,
        targets: list[tuple[str, int]],
        requests: list[bytes],
        count: int,
        expect: bytes,
        *,
        head_first: bool = False,
        placeholder: bytes = b"",
    ) -> None:
        self._requests = requests
        self._numbers_at = [each.index(placeholder) if placeholder else 0 for each in requests]
        self._digits = len(placeholder)
        self._number = 0
        self._bodies_at = [each.find(b"\r\n\r\n") + 4 if head_first else 0 for each in requests]
        self._expect = expect
        self._buffer = bytearray(RECEIVE_BYTES)
        self._view = memoryview(self._buffer)
        self._tally = Tally()
        self._connections: dict[int, Connection] = {}
        self._epoll = select.epoll()
        for number in range(count):
            connected = socket.create_connection(targets[number % len(targets)])
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
            self._connections[connected.fileno()] = Connection(connected, number % len(requests))
            self._epoll.register(connected, select.EPOLLIN)

    def sockets(self) -> list[socket.socket]:
        """All connections."""
        return [connection.socket for connection in self._connections.values()]

    def close(self) -> None:
        """Close all connections, whatever is in flight."""
        self._epoll.close()
        for connected in self.sockets():
            connected.close()

    def run(self, warm_up_s: float, seconds: float) -> dict[str, Any]:
        """Send until the time is over, then receive the answers still in flight.

        Returns:
            The figures after the warm-up: elapsed seconds, requests, errors, body bytes, requests a
            second, p50 and p99 and worst latency in milliseconds, this process's CPU seconds.
        """
        for connection in self._connections.values():
            self._send(connection)
        self._loop(time.monotonic() + warm_up_s)
        self._tally = tally = Tally()
        began, cpu = time.monotonic(), time.process_time()
        print("measuring", file=sys.stderr, flush=True)
        self._loop(began + seconds)
        elapsed, cpu = time.monotonic() - began, time.process_time() - cpu
        latencies = sorted(tally.latencies_ns)
        at = [latencies[int(len(latencies) * share)] / 1e6 for share in (0.5, 0.99) if latencies]
        p50, p99 = at or (0.0, 0.0)
        return {
            "elapsed_s": elapsed,
            "requests": tally.requests,
            "errors": tally.errors,
            "first_error": tally.first_error,
            "body_bytes": tally.body_bytes,
            "requests_per_s": tally.requests / elapsed,
            "p50_ms": p50,
            "p99_ms": p99,
            "worst_ms": latencies[-1] / 1e6 if latencies else 0.0,
            "client_cpu_s": cpu,
        }

    def _loop(self, until: float) -> None:
        poll, receive, connections = self._epoll.poll, self._receive, self._connections
        silent_since = time.monotonic()
        while (now := time.monotonic()) < until:
            ready = poll(min(0.1, until - now))
            for number, _ in ready:
                receive(connections[number])
            if ready:
                silent_since = now
            elif now - silent_since > ANSWER_DEADLINE_S:
                msg = f"no answer for {ANSWER_DEADLINE_S:g} s"
                raise TimeoutError(msg)

    def _send(self, connection: Connection) -> None:
        request, body_at = self._requests[connection.request], self._bodies_at[connection.request]
        if self._digits:
            at, digits = self._numbers_at[connection.request], self._digits
            self._number += 1
            request = b"%b%0*d%b" % (request[:at], digits, self._number, request[at + digits :])
        connection.request = (connection.request + 1) % len(self._requests)
        connection.sent_ns = time.perf_counter_ns()
        if body_at:
            connection.socket.sendall(request[:body_at])
        connection.socket.sendall(request[body_at:] if body_at else request)

    def _receive(self, connection: Connection) -> None:
        size = connection.socket.recv_into(self._view)
        if not size:
            msg = "the server closed a connection"
            raise ConnectionError(msg)
        if connection.missing:
            connection.missing -= size
            connection.body += size
            if not connection.looked:
                self._look(connection, 0, size)
        else:
            self._begin(connection, size)
        if connection.chunked and self._buffer[max(0, size - 5) : size] == b"0\r\n\r\n":
            connection.missing = 0
            if not connection.looked:
                self._look(connection, 0, 0)
        if connection.missing <= 0:
            self._finish(connection)

    def _begin(self, connection: Connection, size: int) -> None:
        buffer = self._buffer
        head = buffer.find(b"\r\n\r\n", 0, size) + 4
        at = buffer.find(b"Content-Length: ", 0, head)
        connection.body = size - head
        connection.chunked = at < 0
        if at > 0:
            length = int(buffer[at + 16 : buffer.find(b"\r\n", at)])
            connection.missing = head + length - size
        else:
            connection.missing = 1 << 62  # until the last chunk
        connection.good = buffer.startswith(b"HTTP/1.1 200")
        connection.looked = not connection.good
        connection.beginning = b""
        self._look(connection, head, size)

    def _look(self, connection: Connection, start: int, size: int) -> None:
        """Search the beginning of the body, which may arrive in pieces, for the expected text."""
        if not connection.looked:
            text = connection.beginning + self._buffer[start : min(start + LOOK_AT_BYTES, size)]
            if len(text) < LOOK_AT_BYTES and connection.missing > 0:
                connection.beginning = text
                return
            connection.looked = True
            connection.good = self._expect in text
        if not connection.good and not self._tally.first_error:
            status = self._buffer[: self._buffer.find(b"\r\n")] if start else b"(later piece)"
            body = self._buffer[start : min(start + LOOK_AT_BYTES, size)]
            self._tally.first_error = (status + b" " + body).decode(errors="replace")

    def _finish(self, connection: Connection) -> None:
        tally = self._tally
        if connection.good:
            tally.requests += 1
            tally.body_bytes += connection.body
            tally.latencies_ns.append(time.perf_counter_ns() - connection.sent_ns)
        else:
            tally.errors += 1
        connection.missing = 0
        self._send(connection)


def render_post(path: str, body: bytes, content_type: str, more: str = "") -> bytes:
    """Return a whole POST request as bytes; ``more``: header lines, each with its line end."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {content_type}\r\n{more}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def render_get(path: str, accept: str) -> bytes:
    """Return a whole GET request as bytes."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\n\r\n".encode()


def produce_body(records: int, value_bytes: int, seed: int) -> bytes:
    """Return a request of keyed records whose JSON values are exactly `value_bytes` long."""
    parts = []
    for number in range(records):
        head = b'{"id":%d,"note":"' % (seed * 1_000_003 + number)
        value = head + b"x" * (value_bytes - len(head) - 2) + b'"}'
        parts.append(b'{"key":"k%04d","value":%b}' % (number * 7 % 1000, value))
    return b'{"records":[' + b",".join(parts) + b"]}"


def main() -> None:
    """Read the specification from stdin, run it, print the figures."""
    spec = json.load(sys.stdin)
    hosts = [target.rpartition(":") for target in sys.argv[1:]]
    generator = Generator(
        [(host, int(port)) for host, _, port in hosts],
        [base64.b64decode(request) for request in spec["requests"]],
        spec["connections"],
        spec["expect"].encode(),
        head_first=spec.get("head_first", False),
        placeholder=spec.get("placeholder", "").encode(),
    )
    json.dump(generator.run(spec["warm_up_s"], spec["seconds"]), sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # no orderly close: the sockets still have answers in flight


if __name__ == "__main__":
    main()
