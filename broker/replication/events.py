"""The event journal of a broker: what happened to its replicas, for operators and checkers.

`EventFile` keeps lines of JSON in ``events.ndjson`` and one older file. The ``note_*`` functions
turn a change of a replica into a log line for people and an event for the journal.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import deque
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import orjson

from broker.log.disk import Disk
from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.log.log_manager import LogManager
    from broker.replication.leader_state import Proposal
    from broker.replication.partition import Partition, Role
    from broker.replication.replica import Replica
    from raft_metadata.common.ids import BrokerId, TopicIdPartition


EVENT_FILE = "events.ndjson"
OLD_EVENT_FILE = "events.1.ndjson"
EVENT_FILE_BYTES = 16_777_216
"""A file that has grown to this is set aside; the one that was set aside before is gone. Two hold
about 100,000 events: weeks of a quiet cluster, ten minutes of a thousand busy partitions."""
_TAIL_BYTES = 65_536
"""Read at the start, to find the last event: some hundreds of them."""
_SEQUENCE = re.compile(rb'\{"sequence":(\d+),')

_log = logging.getLogger("broker.replication")


class EventFile:
    """Owned by an `EventJournal`. Methods run on any thread, one at a time; none raises."""

    def __init__(
        self, folder: str, disk: Disk | None = None, max_bytes: int = EVENT_FILE_BYTES
    ) -> None:
        self.failures = 0
        """Batches of events that were not written."""
        self._folder = folder
        self._disk = disk or Disk()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._size = 0
        self._torn = False
        self._failing = False

    def last_sequence(self) -> int:
        """Of the newest event on the disk; 0 where there is none."""
        for name in (EVENT_FILE, OLD_EVENT_FILE):
            for line in reversed(self._lines(name, _TAIL_BYTES)):
                sequence = sequence_of(line)
                if sequence is not None:
                    return sequence
        return 0

    def append(self, lines: list[bytes]) -> bool:
        """Write these lines, each with its line feed; False where the disk does not take them."""
        data = b"".join(lines)
        with self._lock:
            try:
                self._write(data)
            except OSError as error:
                self._gave_up(error)
                return False
        if self._failing:
            self._failing = False
            _log.info("events are written again folder=%s", self._folder)
        return True

    def _write(self, data: bytes) -> None:
        disk = self._disk
        if self._fd is None:
            self._fd = disk.open(f"{self._folder}/{EVENT_FILE}", create=True)
            self._size = disk.size(self._fd)
            self._torn = self._size > 0 and disk.read(self._fd, 1, self._size - 1) != b"\n"
        if self._size and self._size + len(data) > self._max_bytes:
            self._close()
            disk.rename(f"{self._folder}/{EVENT_FILE}", f"{self._folder}/{OLD_EVENT_FILE}")
            self._fd = disk.open(f"{self._folder}/{EVENT_FILE}", create=True)
            self._size, self._torn = 0, False
        if self._torn:
            data = b"\n" + data
        disk.write(self._fd, data, self._size)
        self._size += len(data)
        self._torn = False

    def _gave_up(self, error: OSError) -> None:
        """Whatever part was written is written over by the next batch that finds room."""
        self.failures += 1
        if not self._failing:
            self._failing = True
            _log.warning("events are not written folder=%s error=%s", self._folder, error)

    def close(self) -> None:
        """Give the descriptor back; a later `append` opens anew."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

    def read(self, after: int, limit: int) -> list[bytes]:
        """The first events with a higher sequence number, oldest first, without line feeds."""
        found: list[bytes] = []
        for line in self._all():
            sequence = sequence_of(line)
            if sequence is not None and sequence > after:
                found.append(line)
                if len(found) == limit:
                    break
        return found

    def _all(self) -> Iterator[bytes]:
        for name in (OLD_EVENT_FILE, EVENT_FILE):
            yield from self._lines(name, None)

    def _lines(self, name: str, tail: int | None) -> list[bytes]:
        """Whole lines of a file, the last ``tail`` bytes of it; none where it can't be read."""
        try:
            fd = self._disk.open(f"{self._folder}/{name}")
        except OSError:
            return []
        try:
            size = self._disk.size(fd)
            start = 0 if tail is None else max(0, size - tail)
            return self._disk.read(fd, size - start, start).split(b"\n")[:-1]
        except OSError:
            return []
        finally:
            self._disk.close(fd)


def sequence_of(line: bytes) -> int | None:
    """The sequence number of an event as it is written; None for a line that is torn."""
    match = _SEQUENCE.match(line)
    return int(match[1]) if match and line.endswith(b"}") else None


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
    """The kinds of events. The facts of each kind: docs/operating/inside.md."""

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
    """The port to which events are noted: an `EventJournal`, or a test's own."""

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
        """Stop noting the high watermark of this replica, which is no longer here."""
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


ROLE_LINES_PER_IMAGE = 20
"""Changes of roles logged one by one; of a greater number of them, how many there are."""


class RoleNotes:
    """Owned by the `ReplicaManager`: tells what an image made of its replicas."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._changed = 0

    def begin(self) -> None:
        """An image is being followed."""
        self._changed = 0

    def end(self, next_offset: int, led: int, hosted: int) -> None:
        """Return the metadata offset up to which the image has been followed."""
        if self._changed > ROLE_LINES_PER_IMAGE:
            _log.info("roles changed count=%d next_offset=%d led=%d of=%d",
                self._changed, next_offset, led, hosted,
            )  # fmt: skip

    def applied(self, replica: Replica, before: PartitionSnapshot) -> None:
        """The image may have changed the role, or the ISR under the same role."""
        role = replica.partition.role
        if role is not before.role:
            self._role_changed(replica)
        elif isinstance(role, LeaderState) and role.partition_epoch != before.partition_epoch:
            note_isr(self._events, replica.partition, before, "image")

    def _role_changed(self, replica: Replica) -> None:
        partition, log = replica.partition, replica.log
        role = partition.role
        facts = _role_facts(role)
        self._events.note(
            EventKind.ROLE_CHANGED, partition.id, role.epoch,
            role=role_name(role), log_start=log.log_start_offset, log_end=log.log_end_offset,
            durable_end=log.durable_end, high_watermark=partition.high_watermark, **facts,
        )  # fmt: skip
        self._changed += 1
        if self._changed <= ROLE_LINES_PER_IMAGE:
            _log.info(
                "role changed log=%s topic_id=%s role=%s leader_epoch=%d log_end=%d "
                "high_watermark=%d",
                log.name, log.topic_id, role_name(role), role.epoch,
                log.log_end_offset, partition.high_watermark,
            )  # fmt: skip


def _role_facts(role: Role) -> dict[str, int | list[int]]:
    if isinstance(role, LeaderState):
        return {
            "epoch_start": role.epoch_start,
            "isr": sorted(role.isr),
            "partition_epoch": role.partition_epoch,
        }
    if isinstance(role, Following):
        return {"leader": role.leader, "unclean_epoch": role.unclean_epoch}
    return {}


class PartitionSnapshot:
    """A partition before a step, so that the changes can be noted after it."""

    __slots__ = ("high_watermark", "isr", "log_end", "partition_epoch", "role")

    def __init__(self, partition: Partition) -> None:
        role = self.role = partition.role
        self.log_end = partition.log.log_end_offset
        self.high_watermark = partition.high_watermark
        self.isr: Iterable[int] = ()
        self.partition_epoch = -1
        if isinstance(role, LeaderState):
            self.isr, self.partition_epoch = role.isr, role.partition_epoch


def note_isr(
    events: EventSink, partition: Partition, before: PartitionSnapshot, reason: str
) -> None:
    """A committed ISR became known to the leader."""
    role = partition.role
    if not isinstance(role, LeaderState) or role.partition_epoch == before.partition_epoch:
        return
    events.note(
        EventKind.ISR_CHANGED, partition.id, role.epoch,
        old=sorted(before.isr), new=sorted(role.isr), reason=reason,
        partition_epoch=role.partition_epoch, high_watermark=partition.high_watermark,
    )  # fmt: skip


def note_proposal(
    events: EventSink, partition: Partition, proposal: Proposal, kind: EventKind, **facts: str
) -> None:
    """An attempt to change the ISR was sent, or answered otherwise than with a committed one."""
    events.note(
        kind, partition.id, proposal.leader_epoch,
        attempt=proposal.attempt, isr=[broker for broker, _ in proposal.isr],
        partition_epoch=proposal.partition_epoch, reason=proposal.reason, **facts,
    )  # fmt: skip


def note_truncation(events: EventSink, partition: Partition, before: PartitionSnapshot) -> None:
    """Told only if there was one. ``unclean``: below the high watermark, as an operator allowed."""
    end = partition.log.log_end_offset
    if end >= before.log_end:
        return
    events.note(
        EventKind.TRUNCATED, partition.id, partition.role.epoch,
        **{"from": before.log_end}, to=end, high_watermark=before.high_watermark,
        unclean=end < before.high_watermark, reason="diverging",
    )  # fmt: skip


def note_start(events: EventSink, broker_id: BrokerId, logs: LogManager) -> None:
    """A life of this broker begins, with what it found on its disk (rules Q5, R6)."""
    events.note(
        EventKind.STARTED, None, -1,
        broker_id=broker_id, clean=logs.clean_broker_epoch is not None,
        logs=sum(1 for _ in logs.logs()), offline=len(logs.offline),
    )  # fmt: skip
    for partition, reason in logs.unclean.items():
        events.note(EventKind.UNCLEAN, partition, -1, reason=reason)


def note_log_start(events: EventSink, replica: Replica) -> None:
    """Records at the start were let go; it is durable."""
    log = replica.log
    events.note(
        EventKind.LOG_START, replica.partition.id, replica.partition.role.epoch,
        role=role_name(replica.partition.role), new=log.log_start_offset,
        log_end=log.log_end_offset, high_watermark=replica.partition.high_watermark,
    )  # fmt: skip


def note_lost(
    events: EventSink, where: TopicIdPartition, replica: Replica | None, error: object
) -> None:
    """Durable bytes of an open log are gone."""
    epoch = -1 if replica is None else replica.partition.role.epoch
    events.note(EventKind.LOG_FAILED, where, epoch, reason=str(error))


def note_repaired(events: EventSink, partition: TopicIdPartition, damage: object) -> None:
    """A damaged log was set aside; an empty one is filled from the leader."""
    events.note(EventKind.REPAIRED, partition, -1, reason=str(damage))
