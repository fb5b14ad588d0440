"""What happened to the replicas of this broker, event by event: for operators and for checkers.

State changes are noted as they are made, on the loop; the newest stay in memory, all go to
``events.ndjson`` in the node's folder, in batches and off the loop. A journal never holds up or
fails the broker: what the disk does not take is left out, and the gap shows in the numbers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import orjson

from broker.replication.event_file import EventFile, sequence_of
from broker.replication.partition import Following
from broker.replication.partition_state import LeaderState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from broker.replication.partition import Role
    from broker.replication.replica import Replica
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import IncarnationId, TopicId, TopicIdPartition

    Fact = int | float | str | bool | None | Sequence[int] | Sequence[str]

EVENTS_KEPT = 1_024
"""In memory, about 0.3 KB each; older ones are read from the disk."""
EVENTS_UNWRITTEN = 32_768
"""Waiting for the disk, as when 10,000 partitions get their roles; what is more is dropped."""
WRITE_INTERVAL_S = 0.1
"""Events of this long go to the disk together."""
HIGH_WATERMARK_INTERVAL_MS = 100
"""A partition's high watermark is noted at most this often, however often it moves."""
HIGH_WATERMARKS_AT_ONCE = 32
"""Noted together, about 0.1 ms; of more partitions the others wait for their turn."""


class EventKind(StrEnum):
    """What an event tells. The facts of each kind: docs/operating/inside.md."""

    STARTED = "started"
    ROLE_CHANGED = "role_changed"
    TRUNCATED = "truncated"
    ISR_PROPOSED = "isr_proposed"
    ISR_CHANGED = "isr_changed"
    ISR_REFUSED = "isr_refused"
    ISR_UNKNOWN = "isr_unknown"
    HIGH_WATERMARK = "high_watermark"
    LOG_START = "log_start"
    CLEANED = "cleaned"
    LOG_FAILED = "log_failed"
    REPAIRED = "repaired"
    UNCLEAN = "unclean"


class EventSink(Protocol):
    """Where events are noted: an `EventJournal`, or what a test puts in its place."""

    def note(
        self,
        kind: EventKind,
        partition: TopicIdPartition | None,
        leader_epoch: int,
        **facts: Fact,
    ) -> None: ...


class EventJournal:
    """Append-only, owned by the `ReplicaManager`, on its loop; `run` owns the writing.

    Sequence numbers go on over restarts, from the last one that is on the disk. Times are this
    process's own: only those of one ``incarnation_id`` compare.
    """

    def __init__(
        self,
        file: EventFile,
        clock: Clock,
        incarnation_id: IncarnationId,
        topic_name: Callable[[TopicId], str],
    ) -> None:
        """``topic_name``: of a topic id, "" where it is not known (any more)."""
        self.sequence = 0
        """Of the newest event."""
        self.dropped = 0
        """Events that were never written: the disk was full, or too slow."""
        self.incarnation_id = incarnation_id
        self._file = file
        self._clock = clock
        self._topic_name = topic_name
        self._kept: deque[bytes] = deque(maxlen=EVENTS_KEPT)
        self._unwritten: list[bytes] = []
        self._wanted = asyncio.Event()
        self._moved: dict[Replica, None] = {}
        self._marked_ms = clock.monotonic_ms()

    def open(self) -> None:
        """Go on counting where the last life stopped. Reads the disk; raises nothing."""
        self.sequence = max(self.sequence, self._file.last_sequence())

    def note(
        self,
        kind: EventKind,
        partition: TopicIdPartition | None,
        leader_epoch: int,
        **facts: Fact,
    ) -> None:
        """Note an event, as of now; about 5 microseconds. ``partition`` None: of the broker."""
        self.sequence += 1
        topic_id, number = partition if partition is not None else (None, None)
        event = {
            "sequence": self.sequence,
            "incarnation_id": self.incarnation_id,
            "monotonic_ms": self._clock.monotonic_ms(),
            "wall_ms": self._clock.wall_ms(),
            "kind": kind.value,
            "topic": None if topic_id is None else self._topic_name(topic_id),
            "topic_id": topic_id,
            "partition": number,
            "leader_epoch": leader_epoch,
            "facts": facts,
        }
        try:
            line = orjson.dumps(event) + b"\n"
        except TypeError:  # a reason names a file whose name is no text
            told = {key: ascii(facts[key]) for key in facts}
            line = orjson.dumps(event | {"facts": told}) + b"\n"
        # Never as orjson returned it: that would hold 4 KB for as long as it is kept.
        self._kept.append(line)
        if len(self._unwritten) < EVENTS_UNWRITTEN:
            self._unwritten.append(line)
            self._wanted.set()
        else:
            self.dropped += 1

    def high_watermarks_moved(self, replicas: Iterable[Replica]) -> None:
        """Note where these stand, each at most once in `HIGH_WATERMARK_INTERVAL_MS`.

        To be called with every tick: what moved in between costs the hot path nothing more.
        """
        self._moved.update(dict.fromkeys(replicas))
        now_ms = self._clock.monotonic_ms()
        if not self._moved or now_ms - self._marked_ms < HIGH_WATERMARK_INTERVAL_MS:
            return
        self._marked_ms = now_ms
        for replica in list(islice(self._moved, HIGH_WATERMARKS_AT_ONCE)):
            del self._moved[replica]
            partition = replica.partition
            self.note(
                EventKind.HIGH_WATERMARK,
                partition.id,
                partition.role.epoch,
                role=role_name(partition.role),
                high_watermark=partition.high_watermark,
                log_end=replica.log.log_end_offset,
                durable_end=replica.log.durable_end,
            )

    def forget(self, replica: Replica) -> None:
        """This replica is gone: its high watermark is told no more."""
        self._moved.pop(replica, None)

    async def run(self) -> None:
        """Write what was noted, in batches, until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(WRITE_INTERVAL_S)
            self._wanted.clear()
            lines, self._unwritten = self._unwritten, []
            if not await asyncio.to_thread(self._file.append, lines):
                self.dropped += len(lines)

    def close(self) -> None:
        """Write the last ones, after `run` has ended; raises nothing."""
        lines, self._unwritten = self._unwritten, []
        if lines and not self._file.append(lines):
            self.dropped += len(lines)
        self._file.close()

    async def read(self, after: int, limit: int) -> list[bytes]:
        """The first ``limit`` events behind a sequence number, oldest first, a JSON object each."""
        found: list[bytes] = []
        if after + 1 < self.sequence - len(self._kept) + 1:
            found = await asyncio.to_thread(self._file.read, after, limit)
            if len(found) == limit:
                return found
            after = max(after, sequence_of(found[-1]) or 0) if found else after
        oldest = self.sequence - len(self._kept) + 1
        start = max(0, after + 1 - oldest)
        newest = islice(self._kept, start, start + limit - len(found))
        return found + [line[:-1] for line in newest]


def role_name(role: Role) -> str:
    """``leader``, ``follower`` or ``idle``, as events and the state endpoint say it."""
    if isinstance(role, LeaderState):
        return "leader"
    return "follower" if isinstance(role, Following) else "idle"
