"""A TCP relay on loopback that a test can stand on one link: cut it, silence it, lose answers."""

from __future__ import annotations

import asyncio
from types import TracebackType


class TcpRelay:
    """Forwards ``address`` to ``target``. Use as ``async with``; owns every connection it made.

    Attributes a test may set at any time: ``lose_answers`` (bytes from the target are swallowed),
    ``lose_requests`` (bytes to the target are swallowed), ``target``.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.lose_answers = False
        self.lose_requests = False
        self.connections = 0
        self.bytes_to_target = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> TcpRelay:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        while self._tasks:
            self.cut()
            await asyncio.wait(self._tasks, timeout=0.05)

    def cut(self) -> None:
        """Reset every connection that stands now; new ones are taken."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        self._writers.add(writer)
        host, port = self.target.rsplit(":", 1)
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(far_writer)
        await asyncio.gather(
            self._pump(reader, far_writer, to_target=True),
            self._pump(far_reader, writer, to_target=False),
        )

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_target: bool
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if to_target:
                    self.bytes_to_target += len(data)
                if self.lose_requests if to_target else self.lose_answers:
                    continue
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.transport.abort()
