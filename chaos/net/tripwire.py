"""A forbidden address in the nodes' configuration: a connection to it has bypassed a proxy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Tripwire:
    """A listener that counts and refuses every connection. `async with`, owned by a run.

    It replaces the inner address of every node (``[advertised]``, ``[controllers]``), so that a
    node that ignores its ``[dial]`` table cannot reach its peer and is detected (rule K).
    """

    def __init__(self) -> None:
        self.connections = 0
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """The ``host:port`` at which it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> Tripwire:
        self._server = await asyncio.start_server(self._refuse, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _refuse(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.transport.abort()
