"""What a `ReplicaManager` does with time: rounds over many replicas, and streams that must live."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Generic, TypeVar

from broker.replication.follower_stream import FollowerStream
from broker.replication.partition_state import LeaderState

if TYPE_CHECKING:
    from broker.replication.leader_stream import LeaderStream
    from broker.replication.replica import Replica

T = TypeVar("T")

_log = logging.getLogger("broker.replication")


class Rounds(Generic[T]):
    """Goes through a changing set again and again, a part of it with each tick.

    Looking at 10,000 led replicas at once would hold the loop for 30 ms, twice a second.
    """

    def __init__(self, ticks: int) -> None:
        """``ticks``: how many make a round."""
        self._ticks = ticks
        self._tick = 0
        self._share = 0
        self._left: Iterator[T] = iter(())

    def next_part(self, members: Iterable[T]) -> Iterator[T]:
        """The next part of the round; a new one begins with who is a member then."""
        if self._tick == 0:
            now = list(members)
            self._left, self._share = iter(now), len(now) // self._ticks + 1
        self._tick = (self._tick + 1) % self._ticks
        return islice(self._left, self._share)


def forgive(led: Iterable[Replica], stalled_ms: int) -> None:
    """This process stood still: nobody is blamed for it (rule M7)."""
    for replica in led:
        if isinstance(replica.partition.role, LeaderState):
            replica.partition.role.forgive(stalled_ms)


class StreamCare:
    """Rule R9: heartbeats both ways; a stream that was silent for three of them is closed."""

    def __init__(self, heartbeat_ms: int, slack_ms: int, now_ms: int) -> None:
        """``slack_ms``: how late this process itself may be."""
        self._heartbeat_ms = heartbeat_ms
        self._silence_max_ms = 3 * heartbeat_ms + slack_ms
        self._pinged_ms = now_ms

    def keep(
        self, streams: Iterable[LeaderStream | FollowerStream], now_ms: int, *, stalled: bool
    ) -> None:
        """To be called with every tick. ``stalled``: this process stood still, nobody is blamed.

        That is rule M7.
        """
        ping = now_ms - self._pinged_ms >= self._heartbeat_ms
        if ping:
            self._pinged_ms = now_ms
        for stream in streams:
            if stream.heard_ms <= 0 or stalled:
                stream.heard_ms = now_ms
            elif now_ms - stream.heard_ms > self._silence_max_ms:
                if isinstance(stream, FollowerStream):
                    who = f"leader={stream.leader}"
                else:
                    who = f"follower={stream.follower}"
                _log.warning("stream silent, closed %s ms=%d", who, now_ms - stream.heard_ms)
                stream.close()
                continue
            if ping:
                stream.ping()
