"""What tests against the real proxy server share."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.net.toxiproxy import find_server


@pytest.fixture(scope="session")
def binary() -> Path:
    """The real server; without one these tests fail and name the command that builds it."""
    return find_server()


class EchoServer:
    """Answers every line with itself. `seen` are the lines that arrived."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.seen: list[bytes] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._echo, args=(connection,), daemon=True).start()

    def _echo(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rwb") as file:
            for line in file:
                self.seen.append(line)
                file.write(line)
                file.flush()

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()
