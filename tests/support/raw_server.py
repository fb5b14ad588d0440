"""A server of raw bytes in a thread, for answers that no HTTP library would send."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

CLUSTER_ID = "c"


def answer_of(body: bytes = b"{}", status: str = "200 OK", *headers: str) -> bytes:
    """Return a complete answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


CLUSTER = answer_of(b'{"data":[{"cluster_id":"%s"}]}' % CLUSTER_ID.encode())


@dataclass
class Heard:
    """One request as it arrived; ``connection`` counts from 1."""

    line: str
    headers: dict[str, str]
    connection: int
    number: int
    """Number of the request, from 1; requests for the cluster's id are not counted."""
    body: bytes = b""


Behave = Callable[[socket.socket, Heard], bool]
"""Answers a request, or does not; returns whether the connection is kept."""


@dataclass
class RawServer:
    """Listens until `stop`; `heard` holds all requests but those for the cluster's id."""

    behave: Behave
    tls: ssl.SSLContext | None = None
    reads_body: bool = True
    heard: list[Heard] = field(default_factory=list)
    cluster: bytes = CLUSTER
    connections: int = 0
    address: tuple[str, int] = ("127.0.0.1", 0)

    def __post_init__(self) -> None:
        self.stopping = threading.Event()
        self._listening = socket.create_server(self.address)
        self.port: int = self._listening.getsockname()[1]
        scheme = "http" if self.tls is None else "https"
        self.url = f"{scheme}://{self.address[0]}:{self.port}"
        self._open: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def is_idle(self) -> bool:
        """Return True if every client has closed its connections."""
        return not self._open

    def stop(self) -> None:
        self.stopping.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(
                target=self._serve, args=(sock, self.connections), daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _serve(self, sock: socket.socket, connection: int) -> None:
        try:
            if self.tls is not None:
                sock = self.tls.wrap_socket(sock, server_side=True)
            self._open.add(sock)
            with sock.makefile("rb") as reader:
                while heard := self._read(reader, connection):
                    if heard.line.startswith("GET /v3/clusters ") and self.cluster:
                        sock.sendall(self.cluster)
                        continue
                    self.heard.append(heard)
                    heard.number = len(self.heard)
                    if not self.behave(sock, heard):
                        return
        except OSError:
            pass
        finally:
            self._open.discard(sock)
            sock.close()

    def _read(self, reader: BinaryIO, connection: int) -> Heard | None:
        line = reader.readline().decode("latin-1")
        if not line:
            return None
        headers: dict[str, str] = {}
        while one := reader.readline().decode("latin-1").strip():
            name, _, value = one.partition(":")
            headers[name.lower()] = value.strip()
        body = b""
        if self.reads_body:
            length = int(headers.get("content-length", 0))
            body = reader.read(length)
        return Heard(line.strip(), headers, connection, 0, body)


def always(answer: bytes, *, keeps: bool = True) -> Behave:
    """Return the behaviour that sends these bytes to every request."""

    def behave(sock: socket.socket, _heard: Heard) -> bool:
        sock.sendall(answer)
        return keeps

    return behave


def hang_up(_sock: socket.socket, _heard: Heard) -> bool:
    """Close without an answer."""
    return False


@contextlib.contextmanager
def raw_server(
    behave: Behave,
    *,
    tls: ssl.SSLContext | None = None,
    reads_body: bool = True,
    cluster: bytes = CLUSTER,
    address: tuple[str, int] = ("127.0.0.1", 0),
) -> Iterator[RawServer]:
    """Start a server and stop it at the end."""
    server = RawServer(behave, tls, reads_body, cluster=cluster, address=address)
    try:
        yield server
    finally:
        server.stop()
