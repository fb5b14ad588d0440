"""The plan of a salvage: the parts of a damaged log that can be kept. Only reads.

`plan_salvage` reads a partition's whole directory (`_Walk`) and judges it (`_judge`);
`broker.log.salvaging` carries the plan out. Every valid batch stays byte for byte at its offsets.
Missing offsets between two of them are covered by empty batches, as compaction covers removed
records: logs stay contiguous, and no empty batch spans leader epochs. Behind the last valid batch
the log is truncated. A torn tail is told from damage as at a start (rule Q5): only bytes that
something proves were durable are lost; behind the first place that nothing proves, a start
truncates, and so does the salvage.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

from broker.log.checkpoints import decode_checkpoint, read_checkpoint
from broker.log.compaction import DELTA_MAX
from broker.log.leader_epoch_cache import NO_EPOCH, LeaderEpochCache
from broker.log.log_directory import PARTITION_FILE
from broker.log.recovery import LEADER_EPOCH_FILE, RECOVERY_POINT_FILE
from broker.log.segment import SCAN_BYTES
from broker.log.sound_batches import SEGMENT_NAME
from broker.log.swap import STATE_FILE, SWAP_SUFFIX, whole_batches
from broker.record.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchError,
    BatchHeader,
    is_stamped,
    parse_header,
    verify,
)
from broker.record.compression import lines_of
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from broker.log.disk import Disk

PAGE_BYTES = 4_096
"""The unit in which a disk returns data, or fails to."""
_SWAP_NAME = re.compile(r"(\d{20})\.log\.swap")


class Bytes(NamedTuple):
    """A byte range of a file, [start, end), that holds no valid batch in its place."""

    file: str
    start: int
    end: int


class Run(NamedTuple):
    """Valid batches that follow each other in a file: they stay unchanged."""

    file: str
    position: int
    size: int
    first_offset: int
    next_offset: int
    durable_end: int
    """The highest durable end in their stamps."""


class Cover(NamedTuple):
    """An empty batch in the place of lost ones."""

    first_offset: int
    next_offset: int
    epoch: int
    append_ms: int


class Lost(NamedTuple):
    """Offsets whose records are lost."""

    first_offset: int
    last_offset: int
    bytes: tuple[Bytes, ...]
    """The bytes found in their place; empty if a file is missing."""
    is_covered: bool
    """True if empty batches cover them; else the log ends here, and these offsets are reused."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """The log that a salvage would leave."""

    directory: str
    key: TopicIdPartition
    topic: str
    log_start: int
    log_end: int
    pieces: list[Run | Cover] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Further findings, for the operator."""
    is_damaged: bool = False
    """False if a start opens the log as it is, or after truncating a torn tail."""
    state_is_lost: bool = False
    """True if the record of how far the log was compacted is unreadable (`broker.log.swap`)."""
    identity_is_lost: bool = False
    marked: str = ""
    """The reason why the broker already reports this replica unclean; empty: it does not."""

    @property
    def offsets_lost(self) -> int:
        return sum(lost.last_offset + 1 - lost.first_offset for lost in self.lost)

    @property
    def size(self) -> int:
        """The bytes of the new segments."""
        return sum(each.size if isinstance(each, Run) else HEADER_SIZE for each in self.pieces)


class _Hole(NamedTuple):
    first_offset: int
    next_offset: int
    bytes: tuple[Bytes, ...]
    epochs: tuple[int, int]
    """Leader epochs before and behind the hole."""
    append_ms: int
    """The later append time of both sides, in ms."""


@dataclass(slots=True)
class _Point:
    """The contents of a log's small files: log start, durable end, leader epochs."""

    log_start: int
    proven: int
    epochs: LeaderEpochCache


def plan_salvage(
    disk: Disk,
    directory: str,
    *,
    clean_end: int | None = None,
    high_watermark: int = 0,
    topic_id: TopicId | None = None,
) -> Plan:
    """Read a partition's whole directory and plan which parts of it to keep.

    Args:
        disk: file operations; only reads.
        directory: ``<topic>-<partition>`` with its path.
        clean_end: the log end that a clean shutdown recorded.
        high_watermark: as last written; offsets below it were committed.
        topic_id: for a log whose own file with its topic id can't be read.

    Raises:
        CorruptionError: the log's identity can't be read, and ``topic_id`` is not given.
        OSError: the disk failed.
    """
    topic, key, named = _identity(disk, directory, topic_id)
    notes: list[str] = []
    sources = _sources(disk, directory, notes)
    point = _point(disk, directory, sources, notes)
    point.proven = max(point.proven, clean_end or 0)
    plan = Plan(directory=directory, key=key, topic=topic, log_start=point.log_start, log_end=0)
    plan.notes, plan.identity_is_lost = notes, not named
    plan.state_is_lost = not _is_readable(disk, f"{directory}/{STATE_FILE}")
    if plan.state_is_lost:
        notes.append(f"{directory}/{STATE_FILE} is damaged: tombstones count as dropped to the end")
    walk = _Walk(disk, min([base for base, _ in sources[:1]] + [point.log_start]))
    for number, (_, file) in enumerate(sources):
        following = sources[number + 1][0] if number + 1 < len(sources) else None
        walk.read(file, following)
    _judge(plan, walk, point, max(point.proven, high_watermark))
    plan.is_damaged = bool(plan.lost or plan.state_is_lost or plan.identity_is_lost)
    plan.is_damaged = plan.is_damaged or walk.has_strays
    return plan


# ---- the small files


def _identity(
    disk: Disk, directory: str, topic_id: TopicId | None
) -> tuple[str, TopicIdPartition, bool]:
    """Return (topic, key of the log, True if the log's own file names it)."""
    path = f"{directory}/{PARTITION_FILE}"
    name, _, number = directory.rpartition("/")[2].rpartition("-")
    data = disk.read_file(path)
    try:
        fields = cast("dict[str, object]", decode_checkpoint(data or b"", path))
    except (CorruptionError, ValueError):
        if topic_id is None:
            msg = f"{path} can't be read: whose log this is must be said, with its topic's id"
            raise CorruptionError(msg) from None
        return name, TopicIdPartition(topic_id, PartitionId(int(number))), False
    said = TopicIdPartition(TopicId(str(fields["topic_id"])), PartitionId(int(number)))
    if (fields["topic"], fields["partition"]) != (name, int(number)):
        msg = f"{path} says {fields['topic']}-{fields['partition']}, its folder {name}-{number}"
        raise CorruptionError(msg)
    return name, said, True


def _is_readable(disk: Disk, path: str) -> bool:
    try:
        read_checkpoint(disk, path)
    except (CorruptionError, ValueError):
        return False
    return True


def _point(
    disk: Disk, directory: str, sources: Sequence[tuple[int, str]], notes: list[str]
) -> _Point:
    """Return the log start, the recovery point and the epochs, as a start reads them."""
    found = _Point(sources[0][0] if sources else 0, 0, LeaderEpochCache())
    said: dict[str, object | None] = {}
    for name in (RECOVERY_POINT_FILE, LEADER_EPOCH_FILE):
        try:
            said[name] = read_checkpoint(disk, f"{directory}/{name}")
        except (CorruptionError, ValueError) as error:
            notes.append(f"{error}; a start makes it anew from the log")
    point, epochs = said.get(RECOVERY_POINT_FILE), said.get(LEADER_EPOCH_FILE)
    if isinstance(point, dict):
        found.log_start = point["log_start_offset"]
    if isinstance(epochs, list):
        found.epochs = LeaderEpochCache([(epoch, start) for epoch, start in epochs])
        if isinstance(point, dict):
            found.proven = point["recovery_point"]
    return found


def _sources(disk: Disk, directory: str, notes: list[str]) -> list[tuple[int, str]]:
    """Return (base offset, file), in order. A replacement in progress counts as at a start."""
    names = disk.names(directory)
    found = {int(match[1]): name for name in names if (match := SEGMENT_NAME.fullmatch(name))}
    for name in names:
        match = _SWAP_NAME.fullmatch(name)
        if match is None:
            continue
        base = int(match[1])
        end = _end_of_whole(disk, f"{directory}/{base:020d}{SWAP_SUFFIX}")
        replaced = [each for each in found if base <= each < (end or base + 1)]
        if end is None and replaced:
            notes.append(f"{directory}/{name} is damaged: what it was to replace is read instead")
            continue
        for each in replaced:
            del found[each]
        found[base] = name
    return [(base, f"{directory}/{found[base]}") for base in sorted(found)]


def _end_of_whole(disk: Disk, path: str) -> int | None:
    fd, end = disk.open(path), None
    try:
        for header, _ in whole_batches(disk, fd, disk.size(fd), path):
            end = header.next_offset
    except CorruptionError:
        return None
    finally:
        disk.close(fd)
    return end


# ---- the batches


class _Walk:
    """A walk through all files, in order: valid batches in their places, and the holes between."""

    def __init__(self, disk: Disk, begin: int) -> None:
        self._disk = disk
        self.items: list[Run | _Hole] = []
        self.end = begin
        self.bad: list[Bytes] = []
        """Bad bytes found since the last valid batch."""
        self.has_strays = False
        """True if bad bytes lie between two adjacent batches: no offset is lost with them."""
        self._epoch = NO_EPOCH
        self._append_ms = -1

    def read(self, file: str, following: int | None) -> None:
        """Read a file, whose batches end below ``following``, the base offset of the next file."""
        disk = self._disk
        fd = disk.open(file)
        try:
            size, position = disk.size(fd), 0
            while position < size:
                header = _sound_batch(disk, fd, position, size)
                if header is not None and self._fits(header, following):
                    self._take(file, position, header)
                    position += header.size
                    continue
                step = 1 if header is None else header.size
                behind = _next_magic(disk, fd, position + step, size)
                self._skip(file, position, behind)
                position = behind
        finally:
            disk.close(fd)

    def _fits(self, header: BatchHeader, following: int | None) -> bool:
        fits = header.base_offset >= self.end and header.leader_epoch >= self._epoch
        return fits and (following is None or header.next_offset <= following)

    def _take(self, file: str, position: int, header: BatchHeader) -> None:
        epochs = (self._epoch, header.leader_epoch)
        append_ms = max(self._append_ms, header.append_timestamp)
        if header.base_offset > self.end:
            hole = _Hole(self.end, header.base_offset, tuple(self.bad), epochs, append_ms)
            self.items.append(hole)
        elif self.bad:
            self.has_strays = True
        self.bad.clear()
        last = self.items[-1] if self.items else None
        run = Run(file, position, 0, header.base_offset, header.base_offset, -1)
        if isinstance(last, Run) and (last.file, last.position + last.size) == (file, position):
            run = last
            self.items.pop()
        durable_end = max(run.durable_end, header.durable_end)
        self.items.append(
            run._replace(
                size=run.size + header.size,
                next_offset=header.next_offset,
                durable_end=durable_end,
            )
        )
        self.end, self._epoch = header.next_offset, header.leader_epoch
        self._append_ms = header.append_timestamp

    def _skip(self, file: str, start: int, end: int) -> None:
        last = self.bad[-1] if self.bad else None
        if last is not None and (last.file, last.end) == (file, start):
            self.bad[-1] = last._replace(end=end)
        else:
            self.bad.append(Bytes(file, start, end))


def _sound_batch(disk: Disk, fd: int, position: int, size: int) -> BatchHeader | None:
    """Return the header of the batch here, if all of it is readable and valid."""
    try:
        header = parse_header(disk.read(fd, HEADER_SIZE, position))
        if header.magic != MAGIC or position + header.size > size:
            return None
        raw = disk.read(fd, header.size, position)
        verify(raw)
        lines = bytes(lines_of(header, raw[HEADER_SIZE:]))
    except (BatchError, OSError):
        return None
    return header if is_stamped(header) and lines.count(b"\n") == header.count else None


def _next_magic(disk: Disk, fd: int, position: int, size: int) -> int:
    """Return the position where the next batch may begin; the end of the file if there is none."""
    while position < size:
        chunk = _readable(disk, fd, position, size)
        if not chunk:
            position += PAGE_BYTES - position % PAGE_BYTES
            continue
        at = chunk.find(MAGIC)
        if at >= 0:
            return position + at
        if position + len(chunk) >= size:
            return size
        position += max(len(chunk) - len(MAGIC) + 1, 1)
    return size


def _readable(disk: Disk, fd: int, position: int, size: int) -> bytes:
    """Return the bytes readable from here: a large chunk, the rest of the page, or none."""
    rest = PAGE_BYTES - position % PAGE_BYTES
    for length in (SCAN_BYTES, rest):
        with suppress(OSError):
            return disk.read(fd, min(length, size - position), position)
    return b""


# ---- the verdict


def _judge(plan: Plan, walk: _Walk, point: _Point, known_end: int) -> None:
    """Decide which holes are damage and which a torn tail (rule Q5), and fill the plan."""
    items, end, bad = walk.items, walk.end, tuple(walk.bad)
    for number, item in enumerate(items):
        if isinstance(item, _Hole) and not _is_proven(items[number:], item.first_offset, point):
            plan.notes.append(f"from offset {item.first_offset} on nothing was proven: cut")
            items, end, bad = items[:number], item.first_offset, ()
            break
    for item in items:
        if isinstance(item, Run):
            plan.pieces.append(item)
            continue
        plan.pieces += _covers(item, point.epochs)
        _lose(plan, item.first_offset, item.next_offset, item.bytes, is_covered=True)
    plan.log_end = end
    if point.proven > max(end, point.log_start):
        _lose(plan, end, known_end, bad, is_covered=False)
    if end < point.log_start or not plan.pieces:
        # Nothing is left: the new log begins at the old end, so that no offset names two records.
        plan.pieces.clear()
        plan.log_start = plan.log_end = max(
            [point.log_start, end, *([known_end] * bool(plan.lost))]
        )


def _is_proven(behind: Sequence[Run | _Hole], offset: int, point: _Point) -> bool:
    stamps = [each.durable_end for each in behind if isinstance(each, Run)]
    return max([point.proven, *stamps]) > max(offset, point.log_start)


def _lose(
    plan: Plan, first: int, following: int, places: tuple[Bytes, ...], *, is_covered: bool
) -> None:
    """Add lost offsets to the plan; those below the log start were deleted and are no loss."""
    first = max(first, plan.log_start)
    if first < following:
        plan.lost.append(Lost(first, following - 1, places, is_covered))


def _covers(hole: _Hole, known: LeaderEpochCache) -> Iterator[Cover]:
    """Yield empty batches for a hole, one for each epoch that is known to have begun in it.

    If that is unknown, the whole hole counts to the epoch before it: the epoch behind it begins
    with a record that exists.
    """
    before, behind = hole.epochs
    first = hole.first_offset
    if before == NO_EPOCH:
        before = min(known.epoch_of(first), behind) if known.epoch_of(first) >= 0 else behind
    starts = [
        (start, epoch)
        for epoch, start in known.entries
        if before < epoch <= behind and first <= start < hole.next_offset
    ]
    edges = [(first, before), *starts, (hole.next_offset, behind)]
    for (start, epoch), (end, _) in pairwise(edges):
        while start < end:
            upto = min(end, start + DELTA_MAX)
            yield Cover(start, upto, epoch, hole.append_ms)
            start = upto  # noqa: PLW2901 a batch spans at most DELTA_MAX offsets
