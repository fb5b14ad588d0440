"""Whether this broker's disk has stopped answering, so that it should lead no longer.

A leader whose followers' disks are silent drops them from the ISR; nobody could drop the leader,
whose own durable end holds the high watermark back for as long. So a broker whose disk is silent
while something it leads waits for it stops its heartbeats until it answers: its session ends, and
another replica leads. The same a voter does (decision 0006). Where nobody waits (``flush=os``) a
long sync is none of the session's business: all brokers may have one at the same time.
"""

from __future__ import annotations

import threading
from itertools import count
from typing import TYPE_CHECKING, TypeVar

from typing_extensions import override

from broker.log.disk import Disk
from broker.replication.leader_state import LeaderState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.replication.replica import Replica
    from raft_metadata.common.clock import Clock


def waits_for_sync(replicas: Iterable[Replica]) -> bool:
    """Whether a partition led here has records that count only once they are synced (rule R1)."""
    return any(
        isinstance(replica.partition.role, LeaderState)
        and replica.partition.settings.by_durable
        and replica.log.durable_end < replica.log.log_end_offset
        for replica in replicas
    )


T = TypeVar("T")


class WatchedDisk(Disk):
    """Real files, and which sync is under way. Used by the loop and the flusher's thread."""

    def __init__(self) -> None:
        self._numbers = count()
        self._under_way: dict[int, int] = {}

    def oldest_sync(self) -> int | None:
        """The number of the sync that began first of those that have not returned."""
        return min(list(self._under_way.values()), default=None)

    @override
    def sync_data(self, fd: int) -> None:
        self._watched(super().sync_data, fd)

    @override
    def sync_file(self, fd: int) -> None:
        self._watched(super().sync_file, fd)

    @override
    def sync_filesystem(self, fd: int) -> None:
        self._watched(super().sync_filesystem, fd)

    @override
    def sync_names(self, fd: int) -> None:
        self._watched(super().sync_names, fd)

    def _watched(self, sync: Callable[[T], None], what: T) -> None:
        thread = threading.get_ident()
        self._under_way[thread] = next(self._numbers)
        try:
            sync(what)
        finally:
            del self._under_way[thread]


class DiskStallWatch:
    """Owned by the lifecycle, which looks many times a second; only time it saw pass counts.

    A process that stood still blames no disk (rule M7): of the time between two looks no more than
    ``look_max_ms`` counts.
    """

    def __init__(
        self,
        oldest_sync: Callable[[], int | None],
        silence_max_ms: int,
        look_max_ms: int,
        clock: Clock,
        matters: Callable[[], bool] = lambda: True,
    ) -> None:
        """``matters``: whether something waits for the disk.

        Asked until a silence is called one, and not while it lasts: a broker that was replaced
        leads nothing that waits.
        """
        self._oldest_sync = oldest_sync
        self._silence_max_ms = silence_max_ms
        self._look_max_ms = look_max_ms
        self._clock = clock
        self._matters = matters
        self._is_silent = False
        self._sync: int | None = None
        self._looked_ms = clock.monotonic_ms()
        self._silent_ms = 0

    def is_silent(self) -> bool:
        """Whether one and the same sync has been under way for too long, and is waited for."""
        now_ms = self._clock.monotonic_ms()
        passed_ms = min(now_ms - self._looked_ms, self._look_max_ms)
        self._looked_ms = now_ms
        sync = self._oldest_sync()
        if sync is None or sync != self._sync:
            self._sync, self._silent_ms = sync, 0
        else:
            self._silent_ms += passed_ms
        is_long = self._silent_ms > self._silence_max_ms
        self._is_silent = is_long and (self._is_silent or self._matters())
        return self._is_silent
