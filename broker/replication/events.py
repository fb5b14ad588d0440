"""The event journal of a broker: changes of its replicas, for operators and for test checkers.

The `ReplicaManager` owns an `EventJournal`, which numbers events and keeps the newest in memory.
`EventFile` stores them as lines of JSON in ``events.ndjson`` and one older file. `RoleNotes` and
the ``note_*`` functions compare a partition before and after a step and note the difference. Events
are served by the HTTP API; see docs/operating/inside.md for the facts of each kind.
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

from broker.replication.leader_state import LeaderState
from broker.replication.partition import Following
from raft_metadata.common.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.log.log_manager import LogManager
    from broker.replication.isr_state import IsrChange
    from broker.replication.partition import Partition, Role
    from broker.replication.replica import Replica
    from raft_metadata.common.ids import BrokerId, TopicIdPartition


EVENT_FILE = "events.ndjson"
OLD_EVENT_FILE = "events.1.ndjson"
EVENT_FILE_BYTES = 16_777_216
"""Size at which a file becomes the older one, replacing the previous older file. Two files hold
about 100,000 events: weeks of a quiet cluster, ten minutes of a thousand busy partitions."""
_TAIL_BYTES = 65_536
"""Bytes read from the end of a file at the start to find the last event: some hundreds of
events."""
_SEQUENCE = re.compile(rb'\{"sequence":(\d+),')

_log = logging.getLogger("broker.replication")


class EventFile:
    """The files of an event journal. Methods may run on any thread, one at a time; none raises.

    Owned by an `EventJournal`. A failed write is counted, logged once, and not repeated.
    """

    def __init__(
        self, folder: str, disk: Disk | None = None, max_bytes: int = EVENT_FILE_BYTES
    ) -> None:
        self.failures = 0
        """Number of batches of events that were not written."""
        self._folder = folder
        self._disk = disk or Disk()
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._size = 0
        self._torn = False
        self._failing = False

    def last_sequence(self) -> int:
        """Return the sequence number of the newest event on the disk; 0 if there is none."""
        for name in (EVENT_FILE, OLD_EVENT_FILE):
            for line in reversed(self._lines(name, _TAIL_BYTES)):
                sequence = sequence_of(line)
                if sequence is not None:
                    return sequence
        return 0

    def append(self, lines: list[bytes]) -> bool:
        """Write these lines, each with its line feed; return False if the disk refuses them."""
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
        """Count a failed write and log the first of a row.

        The part that was written is overwritten by the next batch that succeeds.
        """
        self.failures += 1
        if not self._failing:
            self._failing = True
            _log.warning("events are not written folder=%s error=%s", self._folder, error)

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)

    def read(self, after: int, limit: int) -> list[bytes]:
        """Return the first ``limit`` events behind a sequence number, oldest first.

        Each is a JSON object without its line feed.
        """
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
        """Return the whole lines of a file, or of its last ``tail`` bytes; none on an error."""
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
    """Return the sequence number of an event's line; None if the line is torn."""
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
"""Events kept in memory, about 0.3 KB each; older ones are read from the disk."""
EVENTS_UNWRITTEN = 32_768
"""Most events that wait for the disk; further ones are dropped. 10,000 partitions that get their
roles at once fit in."""
WRITE_INTERVAL_S = 0.1
"""Time for which events are gathered before they are written together."""
HIGH_WATERMARK_INTERVAL_MS = 100
"""Shortest interval between two notes of a partition's high watermark."""
HIGH_WATERMARKS_AT_ONCE = 32
"""High watermarks noted in one tick, about 0.1 ms; those of further partitions wait their turn."""


class EventKind(StrEnum):
    """The kinds of events. docs/operating/inside.md describes the facts of each kind."""

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
    """Port to which events are noted: an `EventJournal`, or a test's own sink."""

    def note(
        self,
        kind: EventKind,
        partition: TopicIdPartition | None,
        leader_epoch: int,
        **facts: Fact,
    ) -> None: ...


class EventJournal:
    """The append-only sequence of events of this broker.

    Owned by the `ReplicaManager`, on its event loop; `run` owns the writing. Sequence numbers
    continue over restarts, from the last event that is on the disk. Times are of this process only:
    they compare only among events of one ``incarnation_id``.
    """

    def __init__(
        self,
        file: EventFile,
        clock: Clock,
        incarnation_id: IncarnationId,
        topic_name: Callable[[TopicId], str],
    ) -> None:
        """Create a journal that counts from 0 until `open`.

        ``topic_name`` returns the name of a topic id, or "" if the topic is not known or deleted.
        """
        self.sequence = 0
        """Sequence number of the newest event."""
        self.dropped = 0
        """Number of events that were never written, because the disk was full or too slow."""
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
        """Continue the sequence numbers of this broker's previous process.

        Reads the disk; never raises.
        """
        self.sequence = max(self.sequence, self._file.last_sequence())

    def note(
        self,
        kind: EventKind,
        partition: TopicIdPartition | None,
        leader_epoch: int,
        **facts: Fact,
    ) -> None:
        """Note an event with the present time; about 5 µs.

        ``partition`` None: it concerns the broker.
        """
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
        except TypeError:  # a reason contains a file name that is not valid text
            told = {key: ascii(facts[key]) for key in facts}
            line = orjson.dumps(event | {"facts": told}) + b"\n"
        # The line is a copy: the bytes that orjson returned would occupy 4 KB while they are kept.
        self._kept.append(line)
        if len(self._unwritten) < EVENTS_UNWRITTEN:
            self._unwritten.append(line)
            self._wanted.set()
        else:
            self.dropped += 1

    def high_watermarks_moved(self, replicas: Iterable[Replica]) -> None:
        """Note these replicas' high watermarks, each once in `HIGH_WATERMARK_INTERVAL_MS` at most.

        Called with every tick. Moves between two notes cost the hot path nothing more.
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
        """Stop noting the high watermark of this replica, which is no longer hosted here."""
        self._moved.pop(replica, None)

    async def run(self) -> None:
        """Write the noted events in batches, until cancelled."""
        while True:
            await self._wanted.wait()
            await asyncio.sleep(WRITE_INTERVAL_S)
            self._wanted.clear()
            lines, self._unwritten = self._unwritten, []
            if not await asyncio.to_thread(self._file.append, lines):
                self.dropped += len(lines)

    def close(self) -> None:
        """Write the last events, after `run` has ended. Never raises."""
        lines, self._unwritten = self._unwritten, []
        if lines and not self._file.append(lines):
            self.dropped += len(lines)
        self._file.close()

    async def read(self, after: int, limit: int) -> list[bytes]:
        """Return the first ``limit`` events behind a sequence number, oldest first.

        Each is a JSON object without its line feed.
        """
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
    """Return ``leader``, ``follower`` or ``idle``, as in events and in the state endpoint."""
    if isinstance(role, LeaderState):
        return "leader"
    return "follower" if isinstance(role, Following) else "idle"


ROLE_LINES_PER_IMAGE = 20
"""Changes of roles by one image that are logged one by one; of more, only their number is
logged."""


class RoleNotes:
    """Notes on the changes that an image makes to the roles and ISRs of the replicas here.

    Owned by the `ReplicaManager`, which calls `begin`, `applied` for each replica, and `end`.
    """

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._changed = 0

    def begin(self) -> None:
        """Begin the notes of a new image."""
        self._changed = 0

    def end(self, next_offset: int, led: int, hosted: int) -> None:
        """Log the number of changed roles if they were too many to be logged one by one.

        ``next_offset`` is the metadata offset behind the image, ``led`` and ``hosted`` count
        replicas.
        """
        if self._changed > ROLE_LINES_PER_IMAGE:
            _log.info("roles changed count=%d next_offset=%d led=%d of=%d",
                self._changed, next_offset, led, hosted,
            )  # fmt: skip

    def applied(self, replica: Replica, before: PartitionSnapshot) -> None:
        """Note a new role, or a new ISR that the image gave the replica under the same role."""
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
    """Role, ISR, log end and high watermark of a partition before a step, to note its changes."""

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
    """Note that the leader learned of a newly committed ISR, if it differs from the one before."""
    role = partition.role
    if not isinstance(role, LeaderState) or role.partition_epoch == before.partition_epoch:
        return
    events.note(
        EventKind.ISR_CHANGED, partition.id, role.epoch,
        old=sorted(before.isr), new=sorted(role.isr), reason=reason,
        partition_epoch=role.partition_epoch, high_watermark=partition.high_watermark,
    )  # fmt: skip


def note_isr_change(
    events: EventSink, partition: Partition, change: IsrChange, kind: EventKind, **facts: str
) -> None:
    """Note that an ISR change was sent, refused, or answered without a certain outcome."""
    events.note(
        kind, partition.id, change.leader_epoch,
        attempt=change.attempt, isr=[broker for broker, _ in change.isr],
        partition_epoch=change.partition_epoch, reason=change.reason, **facts,
    )  # fmt: skip


def note_truncation(events: EventSink, partition: Partition, before: PartitionSnapshot) -> None:
    """Note that the log was truncated; do nothing if its end did not go back.

    The fact ``unclean`` is true below the high watermark, which an unclean election allows.
    """
    end = partition.log.log_end_offset
    if end >= before.log_end:
        return
    events.note(
        EventKind.TRUNCATED, partition.id, partition.role.epoch,
        **{"from": before.log_end}, to=end, high_watermark=before.high_watermark,
        unclean=end < before.high_watermark, reason="diverging",
    )  # fmt: skip


def note_start(events: EventSink, broker_id: BrokerId, logs: LogManager) -> None:
    """Note that this broker process began, and what it found on its disk (rules Q5, R6)."""
    events.note(
        EventKind.STARTED, None, -1,
        broker_id=broker_id, clean=logs.clean_broker_epoch is not None,
        logs=sum(1 for _ in logs.logs()), offline=len(logs.offline),
    )  # fmt: skip
    for partition, reason in logs.unclean.items():
        events.note(EventKind.UNCLEAN, partition, -1, reason=reason)


def note_log_start(events: EventSink, replica: Replica) -> None:
    """Note a new log start offset, which is durable."""
    log = replica.log
    events.note(
        EventKind.LOG_START, replica.partition.id, replica.partition.role.epoch,
        role=role_name(replica.partition.role), new=log.log_start_offset,
        log_end=log.log_end_offset, high_watermark=replica.partition.high_watermark,
    )  # fmt: skip


def note_lost(
    events: EventSink, where: TopicIdPartition, replica: Replica | None, error: object
) -> None:
    """Note that durable bytes of an open log are lost."""
    epoch = -1 if replica is None else replica.partition.role.epoch
    events.note(EventKind.LOG_FAILED, where, epoch, reason=str(error))


def note_repaired(events: EventSink, partition: TopicIdPartition, damage: object) -> None:
    """Note that a damaged log was quarantined and an empty one is filled from the leader."""
    events.note(EventKind.REPAIRED, partition, -1, reason=str(damage))
