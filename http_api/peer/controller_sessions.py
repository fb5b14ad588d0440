"""The connections that tell every controller at once when this broker's process dies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence

import aiohttp

from http_api.peer import controller_paths as paths
from http_api.peer.controller_link import ControllerLink
from raft_metadata.common.ids import BrokerEpoch, BrokerId

BACKOFF_FIRST_MS = 20
"""Far below ``broker_disconnect_grace_ms`` (300): a cut that heals at once costs no leadership."""
BACKOFF_MAX_MS = 1_000
STABLE_AFTER_S = 2.0
"""A session that lasted this long starts with the first back-off again."""
MISSED_PINGS = 3

_log = logging.getLogger("controller.sessions")


class ControllerSessions:
    """One open request per controller, reopened whenever it breaks.

    Owner: the controller channel, which opens it with each registration. A session is an early
    word only (``broker_disconnect_grace_ms``): heartbeats stay the judge.
    """

    def __init__(self, links: Sequence[ControllerLink]) -> None:
        self._links = links
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Keep sessions of this epoch open from now on; those of an older epoch end."""
        await self.stop()
        loop = asyncio.get_running_loop()
        self._tasks = {
            loop.create_task(self._keep(link, broker_id, broker_epoch)) for link in self._links
        }

    async def stop(self) -> None:
        """Close the sessions; the controllers hear it at once."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = set()

    async def _keep(
        self, link: ControllerLink, broker_id: BrokerId, broker_epoch: BrokerEpoch
    ) -> None:
        loop = asyncio.get_running_loop()
        query = {"broker_id": str(broker_id), "broker_epoch": str(broker_epoch)}
        backoff_ms = BACKOFF_FIRST_MS
        while True:
            began = loop.time()
            try:
                reason = await self._one(link, query)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                reason = repr(error)
            _log.debug("session ended controller=%d reason=%s", link.node_id, reason)
            if loop.time() - began > STABLE_AFTER_S:
                backoff_ms = BACKOFF_FIRST_MS
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(2 * backoff_ms, BACKOFF_MAX_MS)

    async def _one(self, link: ControllerLink, query: dict[str, str]) -> str:
        """One session, until the controller ends it; errors when the connection breaks."""
        patience_s = MISSED_PINGS * paths.SESSION_PING_MS / 1000
        async with link.session(query, _open_body(), patience_s) as response:
            if response.status != 200:
                return f"refused status={response.status}"
            async for _ in response.content.iter_any():
                pass
        return "closed by the controller"


async def _open_body() -> AsyncIterator[bytes]:
    """A body that says it has begun and never ends by itself."""
    yield b"\n"
    await asyncio.get_running_loop().create_future()
