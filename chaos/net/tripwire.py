"""An address that nodes are told and must never use: who dials it went round its proxy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType


class Tripwire:
    """Counts and refuses every connection. `async with`, owned by a run.

    It stands in for the inner address of every node (``[advertised]``, ``[controllers]``), so a
    node that does not heed its ``[dial]`` table can't reach its peer and is found out (rule K).
    """

    def __init__(self) -> None:
        self.connections = 0
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """Where it listens, ``host:port``."""
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
