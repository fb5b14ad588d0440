"""Recovery of a log after a crash: a torn tail is truncated, damage is refused (rule Q5).

The `LogManager` calls `recover_log` for every directory at start. Unsynced pages reach the disk in
any order, so a missing page in the middle with later ones present is no damage by itself. But every
batch carries the durable end that its writer knew: a bad batch below a durable end that a later
batch (or the recovery point) proves was on the disk once, and is damaged now. A torn tail is
truncated, and file and bytes are logged; a damaged log is refused and nothing is touched.

An open log is a synced log (rule Q1): bytes behind the last proof may be in the page cache only,
and after a failed sync the cache looks clean although the disk does not have them. So those bytes
are written again, unchanged, and synced by the caller before anything relies on them.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from broker.log.checkpoints import TornError, encode_checkpoint, read_checkpoint
from broker.log.compaction import NEVER_CLEANED, CleanState
from broker.log.leader_epoch_cache import NO_EPOCH, LeaderEpochCache
from broker.log.log_directory import PARTITION_FILE
from broker.log.producer_snapshot import (
    ProducerLimits,
    encode_snapshot,
    producers_at,
    read_snapshot,
    snapshot_name,
    snapshot_offsets,
    unlink_snapshots,
)
from broker.log.scan import SEGMENT_NAME, GoodBatch, batches, sound_batches
from broker.log.segment import SCAN_BYTES, OpenFiles, Segment
from broker.log.swap import finish_swaps, read_state
from broker.record.batch import (
    is_stamped,
)
from raft_metadata.common.disk import replace_file
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.producer_state import ProducerStates
    from raft_metadata.common.disk import Disk

LEADER_EPOCH_FILE = "leader-epoch"
RECOVERY_POINT_FILE = "recovery-point"
REMOVED_SUFFIX = ".deleted"
"""Suffix of a segment's files that are out of use and wait to be unlinked."""
_log = logging.getLogger("broker.log")


@dataclass(slots=True)
class RecoveredLog:
    """A log as it was found and repaired.

    ``segments`` has at least one entry unless the log is empty.

    ``proven_end``: everything below was surely synced before this start. Everything else is durable
    once the caller has synced the dirty segments and the directory.
    """

    log_start_offset: int
    log_end_offset: int
    proven_end: int
    recovery_point: int
    """Offset below which segments were not scanned; 0 if the epochs had to be rebuilt."""
    stored_recovery_point: int
    """The recovery point in the file, whether this start could rely on it or not."""
    segments: list[Segment]
    epochs: LeaderEpochCache
    truncated_bytes: int = 0
    producers: ProducerStates | None = None
    """The producers of the log; None: no batch names one."""
    snapshots: list[tuple[str, bytes]] = field(default_factory=list)
    """(name, bytes) of producer snapshots where scanned segments begin, needed to seal these."""
    cleaned: CleanState = NEVER_CLEANED
    """The extent to which this replica had compacted the log."""


class _GoodEnd(NamedTuple):
    """The place where the good part of a log ends, and why."""

    segment: int
    position: int
    offset: int
    why: str


@dataclass(slots=True)
class _RecoveryState:
    """The state of one recovery."""

    disk: Disk
    files: OpenFiles
    directory: str
    segments: list[Segment]
    sizes: list[int]
    log_start: int = 0
    recovery_point: int = 0
    stored_recovery_point: int = 0
    proven_end: int = 0
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    limits: ProducerLimits = field(default_factory=ProducerLimits)
    producers: ProducerStates | None = None
    snapshots: list[tuple[str, bytes]] = field(default_factory=list)


def recover_log(
    files: OpenFiles,
    directory: str,
    *,
    clean_end: int | None = None,
    producers: ProducerLimits | None = None,
    may_truncate: bool = True,
) -> RecoveredLog:
    """Read, check and repair one partition's directory.

    Args:
        files: the broker's open files.
        directory: ``<topic>-<partition>`` with its path.
        clean_end: the log end that a clean shutdown recorded. The active segment is then taken
            from its index file, and an end below this one is damage.
        producers: how many producers are remembered, and for how long.
        may_truncate: True if a torn tail is truncated; else it is refused like any other damage.

    Raises:
        CorruptionError: durable bytes are damaged; names file and offset. Nothing was changed.
        OSError: the disk failed.
    """
    finish_swaps(files.disk, directory)
    scan = _open_scan(files, directory, producers, may_truncate=may_truncate)
    scan.proven_end = max(scan.proven_end, scan.recovery_point, clean_end or 0)
    trusted = _restore_sealed(scan, clean_end)
    _restore_producers(scan, trusted, may_forget=not may_truncate)
    bad = _scan_segments(scan, trusted)
    truncated_bytes = 0
    if bad is not None:
        _refuse_if_durable(scan, bad, proven=not may_truncate)
        truncated_bytes = _truncate(scan, bad)
    end = scan.segments[-1].next_offset if scan.segments else scan.log_start
    if max(end, scan.log_start) < scan.proven_end:
        where = scan.segments[-1].log_path if scan.segments else directory
        msg = f"the log ends too early file={where} offset={end} durable_end={scan.proven_end}"
        raise CorruptionError(msg)
    if end < scan.log_start:
        # All remaining records were deleted: the log starts over (or was about to) at its start.
        truncated_bytes += _truncate(
            scan, _GoodEnd(-1, 0, scan.log_start, "all of it is below the log start")
        )
        end = scan.log_start
        scan.epochs.truncate_from_end(0)
        _restore_told(scan, may_forget=not may_truncate)
        end = scan.log_start
    elif end and not any(segment.size for segment in scan.segments):
        _restore_told(scan, may_forget=not may_truncate)
        end = scan.log_start
    scan.epochs.truncate_from_start(scan.log_start)
    scan.proven_end = max(scan.proven_end, scan.log_start)
    _rewrite_unproven(scan)
    if clean_end is None:
        _sync_truncation(scan)
    _rewrite_identity(scan)
    return RecoveredLog(
        log_start_offset=scan.log_start,
        log_end_offset=end,
        proven_end=scan.proven_end,
        recovery_point=min(scan.recovery_point, end),
        stored_recovery_point=scan.stored_recovery_point,
        segments=scan.segments,
        epochs=scan.epochs,
        truncated_bytes=truncated_bytes,
        producers=scan.producers,
        snapshots=scan.snapshots,
        cleaned=read_state(scan.disk, scan.directory, end),
    )


def checkpoint_files(
    epochs: LeaderEpochCache, recovery_point: int, log_start_offset: int
) -> list[tuple[str, bytes]]:
    """Return (name, bytes) of the files recovery starts from, to be written in this order.

    Epochs first: a recovery point without them would exempt segments from the scan. Epochs below a
    new log start are included: that start may never become durable.
    """
    return [
        (LEADER_EPOCH_FILE, encode_checkpoint(epochs.entries)),
        start_file(recovery_point, log_start_offset),
    ]


def start_file(recovery_point: int, log_start_offset: int) -> tuple[str, bytes]:
    """Return (name, bytes) of the file that holds the log start and the recovery point."""
    point = {"recovery_point": recovery_point, "log_start_offset": log_start_offset}
    return RECOVERY_POINT_FILE, encode_checkpoint(point)


def _open_scan(
    files: OpenFiles, directory: str, limits: ProducerLimits | None, *, may_truncate: bool
) -> _RecoveryState:
    disk = files.disk
    segments = []
    for name in disk.names(directory):
        match = SEGMENT_NAME.fullmatch(name)
        if match:
            segments.append(Segment(directory, int(match[1])))
        elif name.endswith((".tmp", REMOVED_SUFFIX)):
            disk.unlink(f"{directory}/{name}")
    scan = _RecoveryState(disk, files, directory, segments, [])
    scan.limits = limits or scan.limits
    _read_checkpoints(scan, may_truncate=may_truncate)
    _drop_below_start(scan, may_forget=not may_truncate)
    scan.sizes = [disk.size(files.use(segment)) for segment in scan.segments]
    return scan


def _read_checkpoints(scan: _RecoveryState, *, may_truncate: bool) -> None:
    try:
        point = read_checkpoint(scan.disk, f"{scan.directory}/{RECOVERY_POINT_FILE}")
    except CorruptionError as error:
        if may_truncate and not isinstance(error, TornError):
            raise  # deleted records would be readable again; accepted only if no replica has more
        _log.warning("log start rebuilt from the log reason=%s", error)
        scan.log_start = scan.segments[0].base_offset if scan.segments else 0
        return
    if not isinstance(point, dict):
        return
    scan.log_start = point["log_start_offset"]
    scan.stored_recovery_point = point["recovery_point"]
    try:
        epochs = read_checkpoint(scan.disk, f"{scan.directory}/{LEADER_EPOCH_FILE}")
    except CorruptionError as error:
        _log.warning("epochs rebuilt from the log reason=%s", error)
        scan.proven_end = scan.stored_recovery_point  # data below it was synced nevertheless (Q5)
        return
    if isinstance(epochs, list):
        scan.recovery_point = scan.stored_recovery_point
        scan.epochs = LeaderEpochCache([(epoch, start) for epoch, start in epochs])


def _drop_below_start(scan: _RecoveryState, *, may_forget: bool) -> None:
    """Unlink segments wholly below the log start: a crash came before their removal.

    The log start is durable, so nothing is lost if their names reappear after a power failure.
    """
    segments = scan.segments
    kept = 0
    while len(segments) > kept + 1 and segments[kept + 1].base_offset <= scan.log_start:
        kept += 1
    if kept and _reaches_start(scan, kept):
        _keep_producers(scan, segments[:kept], segments[kept].base_offset, may_forget=may_forget)
    for segment in segments[:kept]:
        scan.files.forget(segment)
        scan.disk.unlink(segment.index_path)
        scan.disk.unlink(segment.log_path)
    del segments[:kept]


def _reaches_start(scan: _RecoveryState, number: int) -> bool:
    """Return False if the log ends below its start, with this segment: it began anew.

    Nothing of it was synced for the sake of the new start, and what that needs was told.
    """
    segment = scan.segments[number]
    if number + 1 < len(scan.segments) or segment.base_offset >= scan.log_start:
        return True
    fd, end = scan.files.use(segment), segment.base_offset
    for batch in batches(scan.disk, fd, scan.disk.size(fd)):
        if isinstance(batch, GoodBatch):
            end = batch.header.next_offset
    return end >= scan.log_start


def _keep_producers(
    scan: _RecoveryState, segments: Sequence[Segment], end: int, *, may_forget: bool
) -> None:
    """Make the producers of segments durable that are about to be removed (rule S5).

    The crash may have come before the flush that writes their snapshot at ``end``, where the first
    segment begins that stays; no batch names them any more then.

    Raises:
        CorruptionError: they can't be read; accepted with ``may_forget``.
    """
    states, at, is_known, damage = _snapshot_below(scan, segments[0].base_offset, end)
    damage = None if may_forget else damage
    read_to = at
    for segment, behind in zip(segments, [*segments[1:], None], strict=True):
        if at == end or (behind is not None and behind.base_offset <= at):
            continue
        if damage is not None and segment.base_offset > read_to:
            raise damage
        fd = scan.files.use(segment)
        for batch in batches(scan.disk, fd, scan.disk.size(fd)):
            if isinstance(batch, GoodBatch):
                read_to = batch.header.next_offset
                if batch.header.base_offset >= at and batch.header.producer_id >= 0:
                    states.applied(batch.header)
            elif not may_forget and (is_known or len(states)):
                raise CorruptionError(f"producers of {segment.log_path}: {batch.why}")
    if damage is not None and read_to < end:
        raise damage
    if is_known or len(states):  # of a log that once knew some, no snapshot is no answer
        path = f"{scan.directory}/{snapshot_name(end)}"
        replace_file(scan.disk, path, [encode_snapshot(states, end)])


def _snapshot_below(
    scan: _RecoveryState, first: int, end: int
) -> tuple[ProducerStates, int, bool, CorruptionError | None]:
    """Return the newest producers known of a log's first segments, which end at ``end``.

    With them the offset below which they hold; whether there is any snapshot, as without one no
    batch below the recovery point names any; and the damage of a newer one, on which the recovery
    point relied: segments between the two may be gone, so that each must follow the one before.
    """
    at, damage = min(scan.stored_recovery_point, end), None
    found_at = snapshot_offsets(scan.disk, scan.directory)
    offsets = [each for each in found_at if first <= each <= end]
    for offset in sorted(offsets, reverse=True):
        try:
            found = read_snapshot(scan.disk, scan.directory, offset, scan.limits)
        except CorruptionError as error:
            if offset <= at and not isinstance(error, TornError):
                damage = damage or error
            continue
        if found is not None:
            return found, offset, True, damage
    return scan.limits.states(), at if damage is None else 0, bool(found_at), damage


def _restore_sealed(scan: _RecoveryState, clean_end: int | None) -> int:
    """Restore segments from their index files as far as they were surely synced; return how many.

    All of them after a clean shutdown, else those that end at or below the recovery point.
    """
    expected = _first_offset(scan)
    trusted = 0
    for number, segment in enumerate(scan.segments):
        last = number == len(scan.segments) - 1
        limit = clean_end if clean_end is not None else scan.recovery_point
        synced = segment.base_offset == expected and (
            clean_end is not None or (not last and scan.segments[number + 1].base_offset <= limit)
        )
        if not synced or not segment.restore(scan.disk, scan.sizes[number]):
            break
        if segment.next_offset > limit:
            break
        expected = segment.next_offset
        trusted += 1
    if trusted and scan.epochs.epoch_of(max(_first_offset(scan), scan.log_start)) == NO_EPOCH:
        # The file belongs to a log that was about to start over; rebuild it from this log.
        _log.warning("epochs rebuilt from the log reason=%s begins too late", LEADER_EPOCH_FILE)
        trusted, expected = 0, _first_offset(scan)
    for segment in scan.segments[trusted:]:
        segment.cut(0, segment.base_offset)
    scan.epochs.truncate_from_end(expected)
    return trusted


def _restore_producers(scan: _RecoveryState, trusted: int, *, may_forget: bool) -> None:
    """Restore the producer state below the part that will be scanned, if the log has a snapshot.

    Every seal of a log with producers wrote a snapshot before it moved the recovery point.
    """
    end = scan.segments[trusted - 1].next_offset if trusted else _first_offset(scan)
    if any(offset <= end for offset in snapshot_offsets(scan.disk, scan.directory)):
        segments = scan.segments[:trusted]
        scan.producers = producers_at(
            scan.files, scan.directory, segments, end, scan.limits, may_forget=may_forget
        )


def _restore_told(scan: _RecoveryState, *, may_forget: bool) -> None:
    """Restore the producers of a log without a record: they are in a snapshot at its start.

    If there is none, but another one tells that there were producers, the log began anew when the
    crash came. It begins at 0 then: a leader tells of the producers whose log begins behind that
    (rule S5).
    """
    scan.producers, scan.snapshots = None, []
    offsets = snapshot_offsets(scan.disk, scan.directory)
    if not offsets:
        return
    found = None
    with contextlib.suppress(CorruptionError if may_forget else TornError):
        found = read_snapshot(scan.disk, scan.directory, scan.log_start, scan.limits)
    others = [offset for offset in offsets if offset != scan.log_start or found is None]
    if found is None and not may_forget:
        _log.warning("log begins at 0, its producers are not known file=%s", scan.directory)
        _truncate(scan, _GoodEnd(-1, 0, 0, "the log began anew"))
        name, data = start_file(0, 0)
        replace_file(scan.disk, f"{scan.directory}/{name}", [data])
        scan.log_start = scan.proven_end = scan.recovery_point = scan.stored_recovery_point = 0
        scan.epochs.truncate_from_end(0)
    scan.producers = found
    with scan.disk.directory(scan.directory) as names:
        unlink_snapshots(scan.disk, scan.directory, others, names)


def _first_offset(scan: _RecoveryState) -> int:
    """Return the offset to begin with, of the segment that holds the log start."""
    first = scan.segments[0].base_offset if scan.segments else scan.log_start
    return min(first, scan.log_start)


def _scan_segments(scan: _RecoveryState, trusted: int) -> _GoodEnd | None:
    """Check every batch behind the trusted segments; return the first bad point, or None."""
    expected = scan.segments[trusted - 1].next_offset if trusted else _first_offset(scan)
    for number in range(trusted, len(scan.segments)):
        segment = scan.segments[number]
        if segment.base_offset != expected:
            if number:
                before = number - 1
                return _GoodEnd(before, scan.segments[before].size, expected, "gap")
            return _GoodEnd(-1, 0, expected, "the first segment is missing")
        if scan.producers is not None:
            # This segment may not have been sealed: the next flush seals it and needs this (T4).
            data = encode_snapshot(scan.producers, expected)
            scan.snapshots.append((snapshot_name(expected), data))
        why = _scan_segment(scan, segment, scan.sizes[number])
        if why is not None:
            return _GoodEnd(number, segment.size, segment.next_offset, why)
        expected = segment.next_offset
    return None


def _scan_segment(scan: _RecoveryState, segment: Segment, file_size: int) -> str | None:
    """Account for each good batch of a segment; return the reason if the scan stopped early."""
    segment.cut(0, segment.base_offset)
    for found in batches(scan.disk, scan.files.use(segment), file_size):
        if not isinstance(found, GoodBatch):
            return found.why
        header = found.header
        if not is_stamped(header):
            return "bad durable end stamp"
        if header.base_offset != segment.next_offset:
            return f"base offset {header.base_offset}, expected {segment.next_offset}"
        try:
            scan.epochs.assign(header.leader_epoch, header.base_offset)
        except ValueError as error:
            return str(error)
        scan.proven_end = max(scan.proven_end, min(header.durable_end, header.base_offset))
        segment.note_header(header)
        if header.producer_id >= 0:
            if scan.producers is None:
                scan.producers = scan.limits.states(end_offset=header.base_offset)
            scan.producers.applied(header)
    return None


def _refuse_if_durable(scan: _RecoveryState, bad: _GoodEnd, *, proven: bool) -> None:
    """Raise CorruptionError if anything proves that the bad batch was once durable (rule Q5).

    ``proven``: this is known already. Bytes below the log start are not missed, unless a needed
    batch is behind them in the same file: then they were synced before the log start was written,
    whatever the stamps behind them say.
    """
    proof, floor = scan.proven_end, max(bad.offset, scan.log_start)
    for number in range(max(bad.segment, 0), len(scan.segments)):
        fd = scan.files.use(scan.segments[number])
        position = bad.position if number == bad.segment else 0
        for _, header in sound_batches(scan.disk, fd, position):
            if header.base_offset >= bad.offset:
                proof = max(proof, header.durable_end)
                if header.next_offset > scan.log_start and number == bad.segment:
                    # A batch behind a gap belongs to a log that was about to start over.
                    proof, floor = max(proof, scan.log_start), bad.offset
    if proven or proof > floor:
        segment = scan.segments[bad.segment] if bad.segment >= 0 else scan.segments[0]
        msg = (
            f"{bad.why} file={segment.log_path} position={bad.position} offset={bad.offset}: "
            f"it was durable up to {proof}"
        )
        raise CorruptionError(msg)


def _truncate(scan: _RecoveryState, bad: _GoodEnd) -> int:
    """Truncate everything behind the good part, durably and from the end on (rule Q3).

    A crash on the way leaves a longer log, never one with a hole. Returns the bytes removed.
    """
    removed = 0
    for number in range(len(scan.segments) - 1, bad.segment, -1):
        segment = scan.segments.pop()
        removed += scan.sizes[number]
        scan.files.forget(segment)
        scan.disk.unlink(segment.index_path)
        scan.disk.unlink(segment.log_path)
        scan.disk.sync_directory(scan.directory)
        _log.warning("segment removed file=%s reason=%s", segment.log_path, bad.why)
    if bad.segment < 0:
        return removed
    segment = scan.segments[bad.segment]
    fd = scan.files.use(segment)
    tail = scan.disk.size(fd) - segment.size
    if tail:
        scan.disk.truncate(fd, segment.size)
        scan.disk.sync_file(fd)
        text = "torn tail truncated file=%s bytes=%d offset=%d reason=%s"
        _log.warning(text, segment.log_path, tail, segment.next_offset, bad.why)
    return removed + tail


def _rewrite_unproven(scan: _RecoveryState) -> None:
    """Write the bytes behind the last proof again, so that the next sync covers them (rule Q1)."""
    for segment in reversed(scan.segments):
        if segment.next_offset <= scan.proven_end:
            break
        fd = scan.files.use(segment)
        position = 0
        if segment.base_offset < scan.proven_end:
            position, _ = segment.find(scan.files, scan.proven_end)
        segment.dirty = True
        while position < segment.size:
            data = scan.disk.read(fd, min(SCAN_BYTES, segment.size - position), position)
            scan.disk.write(fd, data, position)
            position += len(data)


def _sync_truncation(scan: _RecoveryState) -> None:
    """Sync the last segment: a truncation before the crash may be in the page cache only.

    Otherwise its tail could reappear among later bytes. If everything left is proven, nothing else
    is synced before more is written (ADR 0003).
    """
    if scan.segments and not scan.segments[-1].dirty:
        scan.disk.sync_file(scan.files.use(scan.segments[-1]))
        scan.disk.sync_directory(scan.directory)


def _rewrite_identity(scan: _RecoveryState) -> None:
    """Write the log's identity file again: it may be in the page cache only, like the first bytes.

    In place: a crash leaves the same bytes. A log that lost them is refused for ever (rule Q5). If
    no segment holds a byte, no sync follows this and the log's end counts at once, so it is synced
    here.
    """
    path = f"{scan.directory}/{PARTITION_FILE}"
    is_bare = not any(segment.size for segment in scan.segments)
    unproven = any(segment.dirty for segment in scan.segments) or not scan.proven_end
    identity = scan.disk.read_file(path) if unproven or is_bare else None
    if identity is not None:
        fd = scan.disk.open(path)
        try:
            scan.disk.write(fd, identity, 0)
            if is_bare:
                scan.disk.sync_file(fd)
        finally:
            scan.disk.close(fd)
        if is_bare:
            scan.disk.sync_directory(scan.directory)
