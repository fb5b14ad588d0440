"""Opens of followers whose image is ahead of this leader's: kept until it catches up (rule R9)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.replication.frames import Key, Open
    from broker.replication.replica import Replica
    from raft_metadata.common.ids import BrokerId

MAX_UNKNOWN_OPENS = 20_000
"""Partitions that followers may ask for before this image holds them; then they are refused."""


class EarlyOpens:
    """Owned by the `ReplicaManager`: which opens wait for the image, by partition and follower."""

    def __init__(self) -> None:
        self._unknown: dict[Key, dict[BrokerId, Open]] = {}
        """For partitions that this image does not hold yet."""
        self._known: dict[Replica, None] = {}
        """Replicas whose `Partition.early_opens` holds some, in order of arrival."""

    def keep_unknown(self, key: Key, follower: BrokerId, message: Open) -> bool:
        """The partition is not there: False where too many wait already."""
        if len(self._unknown) >= MAX_UNKNOWN_OPENS:
            return False
        self._unknown.setdefault(key, {})[follower] = message
        return True

    def note(self, replica: Replica) -> None:
        """The partition has kept one itself."""
        self._known[replica] = None

    def found(self, replica: Replica) -> None:
        """The partition is there now: it takes what was kept for it."""
        kept = self._unknown.pop(replica.key, None)
        if kept:
            replica.partition.early_opens = kept
            self.note(replica)

    def drop(self, replica: Replica) -> None:
        """No replica here any more."""
        self._known.pop(replica, None)

    def take(self) -> Iterator[tuple[Replica, BrokerId, Open]]:
        """All that wait at partitions that are there: each is to be asked anew, once."""
        known, self._known = self._known, {}
        for replica in known:
            opens, replica.partition.early_opens = replica.partition.early_opens, {}
            for follower, message in opens.items():
                yield replica, follower, message
