"""Replaces a damaged log by one that a start can open, and keeps the damaged one beside it.

    <root>/.salvage/<topic>-<partition>               the new log while it is being written
    <root>/.deleted/<topic id>:<partition>:salvaged   the damaged one, whole; never overwritten

A command-line tool that holds the broker's locks runs it. `plan_salvage` reads a partition's whole
directory (`_Walk`) and judges it (`_judge`); it changes nothing. Every valid batch stays byte for
byte at its offsets. Missing offsets between two of them are covered by empty batches, as compaction
covers removed records: logs stay contiguous, and no empty batch spans leader epochs. Behind the
last valid batch the log is truncated. A torn tail is told from damage as at a start (rule Q5): only
bytes that something proves were durable are lost; behind the first place that nothing proves, a
start truncates, and so does the salvage.

`Salvage.run` carries the plan out. First the partition is marked in ``damaged``: from then on every
start reports it unclean (rule R6), so that its loss is recorded in the cluster's metadata, and it
leads again only by an unclean election. Then the new log is written, synced, and read back; then
both directories exchange names in one step. A crash at any point leaves the old log or the new one,
and the next run finishes or discards what it finds.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

from broker.log.checkpoints import (
    decode_checkpoint,
    encode_checkpoint,
    read_checkpoint,
)
from broker.log.cleaner import SYNC_BYTES, WRITE_BYTES
from broker.log.compaction import DELTA_MAX, CleanState
from broker.log.directory_files import (
    CLEAN_SHUTDOWN_FILE,
    FOLDER,
    HIGH_WATERMARK_FILE,
    DirectoryFiles,
    text_of,
)
from broker.log.leader_epoch_cache import NO_EPOCH, LeaderEpochCache
from broker.log.log_directory import PARTITION_FILE
from broker.log.producer_snapshot import snapshot_name, snapshot_offsets
from broker.log.recovery import LEADER_EPOCH_FILE, RECOVERY_POINT_FILE, start_file
from broker.log.scan import SEGMENT_NAME, sound_batch, whole_batches
from broker.log.segment import SCAN_BYTES
from broker.log.swap import STATE_FILE, SWAP_SUFFIX, write_state
from broker.record.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchError,
    BatchHeader,
    build_header,
)
from broker.record.compression import lines_of
from raft_metadata.common.disk import replace_file
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from raft_metadata.common.disk import Disk


PAGE_BYTES = 4_096
"""The unit in which a disk returns data, or fails to."""
_SWAP_NAME = re.compile(r"(\d{20})\.log\.swap")


class ByteRange(NamedTuple):
    """A byte range of a file, [start, end), that holds no valid batch in its place."""

    file: str
    start: int
    end: int


class BatchRun(NamedTuple):
    """Valid batches that follow each other in a file: they stay unchanged."""

    file: str
    position: int
    size: int
    first_offset: int
    next_offset: int
    durable_end: int
    """The highest durable end in their stamps."""


class EmptyBatch(NamedTuple):
    """An empty batch in the place of lost ones."""

    first_offset: int
    next_offset: int
    epoch: int
    append_ms: int


class LostOffsets(NamedTuple):
    """Offsets whose records are lost."""

    first_offset: int
    last_offset: int
    bytes: tuple[ByteRange, ...]
    """The bytes found in their place; empty if a file is missing."""
    is_covered: bool
    """True if empty batches cover them; else the log ends here, and these offsets are reused."""


@dataclass(slots=True, kw_only=True)
class SalvagePlan:
    """The log that a salvage would leave."""

    directory: str
    key: TopicIdPartition
    topic: str
    log_start: int
    log_end: int
    pieces: list[BatchRun | EmptyBatch] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
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
        return sum(each.size if isinstance(each, BatchRun) else HEADER_SIZE for each in self.pieces)


class _Hole(NamedTuple):
    first_offset: int
    next_offset: int
    bytes: tuple[ByteRange, ...]
    epochs: tuple[int, int]
    """Leader epochs before and behind the hole."""
    append_ms: int
    """The later append time of both sides, in ms."""


@dataclass(slots=True)
class _StoredPoint:
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
) -> SalvagePlan:
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
    plan = SalvagePlan(
        directory=directory, key=key, topic=topic, log_start=point.log_start, log_end=0
    )
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
            msg = f"{path} can't be read: its topic's id must be given"
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
) -> _StoredPoint:
    """Return the log start, the recovery point and the epochs, as a start reads them."""
    found = _StoredPoint(sources[0][0] if sources else 0, 0, LeaderEpochCache())
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
        for found in whole_batches(disk, fd, disk.size(fd), path):
            end = found.header.next_offset
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
        self.items: list[BatchRun | _Hole] = []
        self.end = begin
        self.bad: list[ByteRange] = []
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
                header = _readable_batch(disk, fd, position, size)
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
        run = BatchRun(file, position, 0, header.base_offset, header.base_offset, -1)
        if isinstance(last, BatchRun) and (last.file, last.position + last.size) == (
            file,
            position,
        ):
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
            self.bad.append(ByteRange(file, start, end))


def _readable_batch(disk: Disk, fd: int, position: int, size: int) -> BatchHeader | None:
    """Return the header of the batch here, if all of it is readable and valid."""
    try:
        found = sound_batch(disk, fd, position, size)
        if found is None:
            return None
        header, raw = found
        lines = bytes(lines_of(header, raw[HEADER_SIZE:]))
    except (BatchError, OSError):
        return None
    return header if lines.count(b"\n") == header.count else None


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


def _judge(plan: SalvagePlan, walk: _Walk, point: _StoredPoint, known_end: int) -> None:
    """Decide which holes are damage and which a torn tail (rule Q5), and fill the plan."""
    items, end, bad = walk.items, walk.end, tuple(walk.bad)
    for number, item in enumerate(items):
        if isinstance(item, _Hole) and not _is_proven(items[number:], item.first_offset, point):
            plan.notes.append(f"from offset {item.first_offset} on nothing was proven: cut")
            items, end, bad = items[:number], item.first_offset, ()
            break
    for item in items:
        if isinstance(item, BatchRun):
            plan.pieces.append(item)
            continue
        plan.pieces += _covers(item, point.epochs)
        _add_lost(plan, item.first_offset, item.next_offset, item.bytes, is_covered=True)
    plan.log_end = end
    if point.proven > max(end, point.log_start):
        _add_lost(plan, end, known_end, bad, is_covered=False)
    if end < point.log_start or not plan.pieces:
        # Nothing is left: the new log begins at the old end, so that no offset names two records.
        plan.pieces.clear()
        plan.log_start = plan.log_end = max(
            [point.log_start, end, *([known_end] * bool(plan.lost))]
        )


def _is_proven(behind: Sequence[BatchRun | _Hole], offset: int, point: _StoredPoint) -> bool:
    stamps = [each.durable_end for each in behind if isinstance(each, BatchRun)]
    return max([point.proven, *stamps]) > max(offset, point.log_start)


def _add_lost(
    plan: SalvagePlan,
    first: int,
    following: int,
    places: tuple[ByteRange, ...],
    *,
    is_covered: bool,
) -> None:
    """Add lost offsets to the plan; those below the log start were deleted and are no loss."""
    first = max(first, plan.log_start)
    if first < following:
        plan.lost.append(LostOffsets(first, following - 1, places, is_covered))


def _covers(hole: _Hole, known: LeaderEpochCache) -> Iterator[EmptyBatch]:
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
            yield EmptyBatch(start, upto, epoch, hole.append_ms)
            start = upto  # noqa: PLW2901 a batch spans at most DELTA_MAX offsets


SCRATCH = ".salvage"
UNFINISHED = "unfinished.tmp"
"""A file in the new log until it is in place; a start removes it like every other ``.tmp``."""
COPY_MARK = ":salvaged"
_NO_TIME = -1
_log = logging.getLogger("broker.log")


class SalvageResult(NamedTuple):
    """The result of a salvage, or of its plan."""

    plan: SalvagePlan
    copy: str
    """Path of the kept damaged log; empty if none was replaced."""
    finished_earlier: str
    """Path of the log that an earlier, interrupted run had already replaced; empty: none."""


class Salvage:
    """The salvage of one partition's log, while no broker runs."""

    def __init__(
        self, disk: Disk, root: str, name: str, *, topic_id: TopicId | None = None
    ) -> None:
        """Name the log: ``root`` is the broker's log directory, ``name`` <topic>-<partition>."""
        self._disk = disk
        self._root = root
        self._name = name
        self._topic_id = topic_id
        self._live = f"{root}/{name}"
        self._scratch = f"{root}/{SCRATCH}/{name}"

    def plan(self) -> SalvagePlan:
        """Return what can be kept; nothing is changed.

        Raises:
            CorruptionError, OSError: see `plan_salvage`.
        """
        small = DirectoryFiles(self._disk, self._root)
        plan = self._read()
        watermarks = small.read_high_watermarks() if self._disk.exists(self._watermarks) else {}
        known, _ = watermarks.get(text_of(plan.key), (0, -1))
        if known > plan.log_end and plan.is_damaged:
            plan = self._read(known)
        plan.marked = small.read_damaged().get(plan.key, "")
        return plan

    def _read(self, high_watermark: int = 0) -> SalvagePlan:
        return plan_salvage(
            self._disk,
            self._live,
            clean_end=self._clean_end(),
            high_watermark=high_watermark,
            topic_id=self._topic_id,
        )

    def run(self) -> SalvageResult:
        """Replace the damaged log, durably. A log that a start can open is left unchanged.

        Raises:
            CorruptionError: the log's identity can't be read, or the cluster's marks can't.
            OSError: the disk failed, or is full. The log is the old one, or the new one.
        """
        finished = self._finish_earlier()
        plan = self.plan()
        if not plan.is_damaged:
            return SalvageResult(plan, "", finished)
        self._mark(plan)
        self._build(plan)
        self._check(plan)
        disk = self._disk
        disk.exchange(self._scratch, self._live)
        disk.sync_directory(self._root)
        disk.sync_directory(f"{self._root}/{SCRATCH}")
        return SalvageResult(plan, self._keep_old(plan), finished)

    # remains of an interrupted run

    def _finish_earlier(self) -> str:
        """Discard an unfinished new log, or keep the old log that was already replaced.

        Return its path.
        """
        disk = self._disk
        if not disk.exists(self._scratch):
            return ""
        names = disk.names(self._scratch)
        if names and UNFINISHED not in names:
            return self._keep_old(self.plan())
        for name in names:
            if name != UNFINISHED:
                disk.unlink(f"{self._scratch}/{name}")
        disk.sync_directory(self._scratch)
        disk.remove_tree(self._scratch)
        disk.sync_directory(f"{self._root}/{SCRATCH}")
        return ""

    def _keep_old(self, plan: SalvagePlan) -> str:
        """Move the damaged log to the folder where it is kept.

        The new log loses its unfinished mark.
        """
        disk, folder = self._disk, f"{self._root}/{FOLDER}"
        disk.make_directory(folder)
        disk.sync_directory(self._root)
        first, number = f"{folder}/{text_of(plan.key)}{COPY_MARK}", 1
        copy = first
        while disk.exists(copy):
            number += 1
            copy = f"{first}-{number}"
        disk.rename(self._scratch, copy)
        disk.sync_directory(folder)
        disk.sync_directory(f"{self._root}/{SCRATCH}")
        disk.unlink(f"{self._live}/{UNFINISHED}")
        disk.sync_directory(self._live)
        return copy

    # steps

    def _mark(self, plan: SalvagePlan) -> None:
        """Mark the log as unclean, to be reported at every start; claim no clean end for it."""
        small = DirectoryFiles(self._disk, self._root)
        marks = small.read_damaged()
        marks[plan.key] = f"salvaged: {plan.offsets_lost} offsets lost{_ranges(plan.lost)}"
        small.write_damaged(marks)
        said = self._clean_shutdown()
        if said is not None and self._name in cast("dict[str, object]", said["logs"]):
            del cast("dict[str, object]", said["logs"])[self._name]
            replace_file(
                self._disk, f"{self._root}/{CLEAN_SHUTDOWN_FILE}", [encode_checkpoint(said)]
            )

    def _build(self, plan: SalvagePlan) -> None:
        disk, scratch = self._disk, self._scratch
        disk.unlink(f"{self._live}/{UNFINISHED}")
        disk.sync_directory(self._live)
        disk.make_directory(scratch)
        disk.close(disk.open(f"{scratch}/{UNFINISHED}", create=True))
        for directory in (scratch, f"{self._root}/{SCRATCH}", self._root):
            disk.sync_directory(directory)
        _SegmentWriter(disk, scratch).write(plan)
        self._write_small_files(plan)
        disk.sync_directory(scratch)

    def _write_small_files(self, plan: SalvagePlan) -> None:
        disk, scratch = self._disk, self._scratch
        identity = {
            "topic_id": plan.key.topic_id,
            "topic": plan.topic,
            "partition": plan.key.partition,
        }
        replace_file(disk, f"{scratch}/{PARTITION_FILE}", [encode_checkpoint(identity)])
        name, data = start_file(0, plan.log_start)  # a start scans all of it
        replace_file(disk, f"{scratch}/{name}", [data])
        if plan.state_is_lost:
            write_state(disk, scratch, CleanState((), 0, plan.log_end))
        else:
            self._copy_small(STATE_FILE)
        intact = min([plan.log_end, *(lost.first_offset for lost in plan.lost)])
        for offset in snapshot_offsets(disk, self._live):
            if offset <= intact:
                self._copy_small(snapshot_name(offset))

    def _copy_small(self, name: str) -> None:
        data = self._disk.read_file(f"{self._live}/{name}")
        if data is not None:
            replace_file(self._disk, f"{self._scratch}/{name}", [data])

    def _check(self, plan: SalvagePlan) -> None:
        """Read back the new log before anything depends on it."""
        made = plan_salvage(self._disk, f"{self._root}/{SCRATCH}/{self._name}")
        if made.is_damaged or (made.log_start, made.log_end) != (plan.log_start, plan.log_end):
            msg = f"what was written to {self._scratch} can't be read back: nothing was replaced"
            raise CorruptionError(msg)

    # the broker's small files

    @property
    def _watermarks(self) -> str:
        return f"{self._root}/{HIGH_WATERMARK_FILE}"

    def _clean_shutdown(self) -> dict[str, object] | None:
        try:
            said = read_checkpoint(self._disk, f"{self._root}/{CLEAN_SHUTDOWN_FILE}")
        except (CorruptionError, ValueError):
            return None  # a start ignores a damaged file, too
        return said if isinstance(said, dict) else None

    def _clean_end(self) -> int | None:
        said = self._clean_shutdown()
        logs = {} if said is None else cast("dict[str, tuple[int, str]]", said["logs"])
        return logs[self._name][0] if self._name in logs else None


class _SegmentWriter:
    """The segments of the new log, each synced before it is closed."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._fd = -1
        self._size = self._unsynced = 0

    def write(self, plan: SalvagePlan) -> None:
        """Write a segment for each old file of which something is kept."""
        source = ""
        try:
            for piece in plan.pieces:
                if self._fd < 0 or (
                    isinstance(piece, BatchRun) and source and piece.file != source
                ):
                    self._roll(piece.first_offset)
                if isinstance(piece, BatchRun):
                    source = piece.file
                    self._copy(piece)
                else:
                    self._append(_empty_batch(piece))
        finally:
            self._close()

    def _roll(self, offset: int) -> None:
        self._close()
        self._fd = self._disk.open(f"{self._directory}/{offset:020d}.log", create=True)
        self._size = 0

    def _close(self) -> None:
        if self._fd >= 0:
            self._disk.sync_file(self._fd)
            self._disk.close(self._fd)
        self._fd = -1

    def _copy(self, run: BatchRun) -> None:
        disk, done = self._disk, 0
        fd = disk.open(run.file)
        try:
            while done < run.size:
                data = disk.read(fd, min(WRITE_BYTES, run.size - done), run.position + done)
                if not data:
                    msg = f"{run.file} ends at {run.position + done}: it changed meanwhile"
                    raise CorruptionError(msg)
                self._append(data)
                done += len(data)
        finally:
            disk.close(fd)

    def _append(self, data: bytes) -> None:
        self._disk.write(self._fd, data, self._size)
        self._size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self._disk.sync_data(self._fd)
            self._unsynced = 0


def _empty_batch(cover: EmptyBatch) -> bytes:
    """Return an empty batch that proves nothing durable: the leader it names never wrote it."""
    return build_header(
        b"",
        durable_end=0,
        base_offset=cover.first_offset,
        count=0,
        last_offset_delta=cover.next_offset - cover.first_offset - 1,
        leader_epoch=cover.epoch,
        append_timestamp=cover.append_ms,
        base_timestamp=_NO_TIME,
        max_timestamp=_NO_TIME,
        attributes=0,
    )


def _ranges(lost: list[LostOffsets]) -> str:
    """Return `` 3..7, 12..12``, the first ten ranges."""
    shown = [f"{each.first_offset}..{each.last_offset}" for each in lost[:10]]
    more = ", …" if len(lost) > len(shown) else ""
    return f" {', '.join(shown)}{more}" if shown else ""
