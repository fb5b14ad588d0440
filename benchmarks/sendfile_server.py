"""The limit of a fetch: the kernel copies a page-cached file to a socket, Python only starts it.

python -m benchmarks.sendfile_server FILE BYTES      prints: ready PORT

Any request gets the file's first BYTES bytes.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys

REQUEST_BYTES = 65536


class Connection:
    """A client, and the progress of its present answer."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.sent = -1


class Server:
    """Server of the file: one thread, one selector. Owns its sockets until the process ends."""

    def __init__(self, path: str, size: int) -> None:
        self._file = os.open(path, os.O_RDONLY)
        self._size = size
        self._head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self.port = self._listener.getsockname()[1]

    def run(self) -> None:
        """Serve until killed."""
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._accept()
                else:
                    self._serve(key.data)

    def _accept(self) -> None:
        connected, _ = self._listener.accept()
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._selector.register(connected, selectors.EVENT_READ, Connection(connected))

    def _serve(self, connection: Connection) -> None:
        fresh = connection.sent < 0
        if fresh:
            try:
                request = connection.socket.recv(REQUEST_BYTES)
            except ConnectionResetError:
                request = b""
            if not request:
                self._selector.unregister(connection.socket)
                connection.socket.close()
                return
            connection.sent = 0
            connection.socket.send(self._head, socket.MSG_MORE)
        try:
            while connection.sent < self._size:
                connection.sent += os.sendfile(
                    connection.socket.fileno(),
                    self._file,
                    connection.sent,
                    self._size - connection.sent,
                )
        except BlockingIOError:
            if fresh:
                self._selector.modify(connection.socket, selectors.EVENT_WRITE, connection)
            return
        except (BrokenPipeError, ConnectionResetError):
            self._selector.unregister(connection.socket)
            connection.socket.close()
            return
        connection.sent = -1
        if not fresh:
            self._selector.modify(connection.socket, selectors.EVENT_READ, connection)


def main() -> None:
    """Serve the file named on the command line."""
    server = Server(sys.argv[1], int(sys.argv[2]))
    print("ready", server.port, flush=True)
    server.run()


if __name__ == "__main__":
    main()
