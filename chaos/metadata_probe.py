"""A metadata write every 200 ms, which shows when no active controller is available.

Topics are created and deleted in turn, through each broker in turn. A failed attempt is not
repeated but followed by another one under a new name, so an unknown outcome has no effect.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from chaos.history import MetadataWrite
from chaos.http import CallError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chaos.history import History
    from chaos.http import Http
    from chaos.load import Endpoint
    from raft_metadata.common.clock import Clock

INTERVAL_S = 0.2
ANSWER_DEADLINE_S = 1.5
"""Deadline of one attempt; the next uses another broker, so that one stuck request does not hide a
recovery."""
RETRY_AFTER_S = 0.05


class MetadataProbe:
    """A writer of metadata until `stop`. Owned by the run, runs as its task.

    Every `keeps_every`-th topic is left in place for a checker to find (0: none).
    """

    def __init__(
        self,
        http: Http,
        history: History,
        cluster_id: str,
        endpoints: Sequence[Endpoint],
        clock: Clock,
        *,
        name: str = "probe",
        interval_s: float = INTERVAL_S,
        keeps_every: int = 0,
    ) -> None:
        self._http = http
        self._history = history
        self._topics = f"/v3/clusters/{cluster_id}/topics"
        self._endpoints = endpoints
        self._clock = clock
        self._name = name
        self._interval_s = interval_s
        self._keeps_every = keeps_every
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Let `run` end after the present write."""
        self._stopped.set()

    async def run(self) -> None:
        """Write metadata, `interval_s` apart while the writes succeed."""
        number = creations = 0
        created: str | None = None
        while not self._stopped.is_set():
            url = self._endpoints[number % len(self._endpoints)].url + self._topics
            number += 1
            due_ms = self._clock.monotonic_ms()
            what = f"delete {created}" if created else f"create {self._name}-{number}"
            try:
                if created is not None:
                    await self._http.delete(f"{url}/{created}", ANSWER_DEADLINE_S)
                    created = None
                else:
                    await self._create(url, f"{self._name}-{number}")
                    creations += 1
                    if not self._keeps_every or creations % self._keeps_every:
                        created = f"{self._name}-{number}"
                ok = True
            except CallError as error:
                ok, created, what = False, None, f"{what}: {error}"
            answered_ms = self._clock.monotonic_ms()
            self._history.add(
                MetadataWrite(due_ms=due_ms, answered_ms=answered_ms, ok=ok, what=what)
            )
            pause = self._interval_s - (answered_ms - due_ms) / 1000 if ok else RETRY_AFTER_S
            await self._pause(pause)

    async def _create(self, url: str, name: str) -> None:
        # One replica, so that the write does not wait for a broker that another fault stopped.
        body = {"topic_name": name, "partitions_count": 1, "replication_factor": 1}
        await self._http.post_json(url, body, ANSWER_DEADLINE_S)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._stopped.wait()
        except TimeoutError:
            return
