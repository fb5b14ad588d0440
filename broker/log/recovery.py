"""What a log directory holds after a crash: torn tail or corruption, told apart (rule Q5).

Unsynced pages reach the disk in any order, so a lost page in the middle with later ones present
is no corruption. But every batch carries the durable end its writer knew: a bad batch below a
durable end that a later batch (or the recovery point) proves was on the disk once, and is gone.
The first is cut, with file and bytes in the log; the second is refused and nothing is touched.

And open means synced (rule Q1): what is found behind the last proof may be in the page cache only,
and after a failed sync the cache looks clean without the disk having it. So those bytes are
written again, unchanged, and synced by the caller before anybody relies on them.
"""

from __future__ import annotations

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
    remove_snapshots,
    snapshot_name,
    snapshot_offsets,
)
from broker.log.segment import SCAN_BYTES, OpenFiles, Segment
from broker.log.sound_batches import SEGMENT_NAME, sound_batches
from broker.log.swap import finish_swaps, read_state
from broker.record.batch import (
    HEADER_SIZE,
    MAGIC,
    BatchError,
    BatchHeader,
    is_stamped,
    parse_header,
    verify,
)
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from broker.log.disk import Disk
    from broker.log.producer_state import ProducerStates

LEADER_EPOCH_FILE = "leader-epoch"
RECOVERY_POINT_FILE = "recovery-point"
REMOVED_SUFFIX = ".deleted"
"""Of a segment's files that are out of use and wait for being unlinked."""
_log = logging.getLogger("broker.log")


@dataclass(slots=True)
class RecoveredLog:
    """A log as it was found and mended. ``segments`` has at least one entry unless it is empty.

    ``proven_end`` is what was surely synced before; everything is, once the caller has synced the
    dirty segments and the directory.
    """

    log_start_offset: int
    log_end_offset: int
    proven_end: int
    recovery_point: int
    segments: list[Segment]
    epochs: LeaderEpochCache
    cut_bytes: int = 0
    producers: ProducerStates | None = None
    """None: no batch here names one."""
    snapshots: list[tuple[str, bytes]] = field(default_factory=list)
    """(name, bytes) of the producers where scanned segments begin: what seals them needs them."""
    cleaned: CleanState = NEVER_CLEANED
    """How far this replica had compacted it."""


class _Point(NamedTuple):
    """Where the good part of a log ends."""

    segment: int
    position: int
    offset: int
    why: str


@dataclass(slots=True)
class _Scan:
    """State of one recovery."""

    disk: Disk
    files: OpenFiles
    directory: str
    segments: list[Segment]
    sizes: list[int]
    log_start: int = 0
    recovery_point: int = 0
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
    cuts: bool = True,
) -> RecoveredLog:
    """Read, check and mend one partition's directory.

    Args:
        files: the broker's open files.
        directory: ``<topic>-<partition>`` with its path.
        clean_end: the log end that a clean shutdown recorded. The active segment is then taken
            from its index file, and an end below this one is corruption.
        producers: how many producers are remembered, and for how long.
        cuts: whether a torn tail is cut; else it is refused like any other damage.

    Raises:
        CorruptionError: durable bytes are gone; names file and offset. Nothing was changed.
        OSError: the disk failed.
    """
    finish_swaps(files.disk, directory)
    scan = _open_scan(files, directory, cuts=cuts)
    scan.limits = producers or scan.limits
    scan.proven_end = max(scan.proven_end, scan.recovery_point, clean_end or 0)
    trusted = _restore_sealed(scan, clean_end)
    _restore_producers(scan, trusted)
    bad = _scan_segments(scan, trusted)
    cut_bytes = 0
    if bad is not None:
        _refuse_if_durable(scan, bad, proven=not cuts)
        cut_bytes = _cut(scan, bad)
    end = scan.segments[-1].next_offset if scan.segments else scan.log_start
    if max(end, scan.log_start) < scan.proven_end:
        where = scan.segments[-1].log_path if scan.segments else directory
        msg = f"the log ends too early file={where} offset={end} durable_end={scan.proven_end}"
        raise CorruptionError(msg)
    if end < scan.log_start:
        # Everything that is left was deleted: the log starts over (or was about to) at its start.
        cut_bytes += _cut(scan, _Point(-1, 0, scan.log_start, "all of it is below the log start"))
        end = scan.log_start
        scan.epochs.truncate_from_end(0)
        scan.producers = None
        remove_snapshots(scan.disk, scan.directory)
    scan.epochs.truncate_from_start(scan.log_start)
    scan.proven_end = max(scan.proven_end, scan.log_start)
    _rewrite_unproven(scan)
    if clean_end is None:
        _sync_cut(scan)
    _rewrite_identity(scan)
    return RecoveredLog(
        log_start_offset=scan.log_start,
        log_end_offset=end,
        proven_end=scan.proven_end,
        recovery_point=min(scan.recovery_point, end),
        segments=scan.segments,
        epochs=scan.epochs,
        cut_bytes=cut_bytes,
        producers=scan.producers,
        snapshots=scan.snapshots,
        cleaned=read_state(scan.disk, scan.directory, end),
    )


def checkpoint_files(
    epochs: LeaderEpochCache, recovery_point: int, log_start_offset: int
) -> list[tuple[str, bytes]]:
    """(name, bytes) of the files recovery starts from, to be written in this order.

    Epochs first: a recovery point without them would hide segments from the scan. And as they are,
    those below a new log start too: that one may never come to be.
    """
    return [
        (LEADER_EPOCH_FILE, encode_checkpoint(epochs.entries)),
        start_file(recovery_point, log_start_offset),
    ]


def start_file(recovery_point: int, log_start_offset: int) -> tuple[str, bytes]:
    """(name, bytes) of the file that says where the log begins, and from where on it is scanned."""
    point = {"recovery_point": recovery_point, "log_start_offset": log_start_offset}
    return RECOVERY_POINT_FILE, encode_checkpoint(point)


def _open_scan(files: OpenFiles, directory: str, *, cuts: bool) -> _Scan:
    disk = files.disk
    segments = []
    for name in disk.names(directory):
        match = SEGMENT_NAME.fullmatch(name)
        if match:
            segments.append(Segment(directory, int(match[1])))
        elif name.endswith((".tmp", REMOVED_SUFFIX)):
            disk.unlink(f"{directory}/{name}")
    scan = _Scan(disk, files, directory, segments, [])
    _read_checkpoints(scan, cuts=cuts)
    _drop_below_start(scan)
    scan.sizes = [disk.size(files.use(segment)) for segment in scan.segments]
    return scan


def _read_checkpoints(scan: _Scan, *, cuts: bool) -> None:
    try:
        point = read_checkpoint(scan.disk, f"{scan.directory}/{RECOVERY_POINT_FILE}")
    except CorruptionError as error:
        if cuts and not isinstance(error, TornError):
            raise  # what was deleted would be read again; only where nobody has more
        _log.warning("log start rebuilt from the log reason=%s", error)
        scan.log_start = scan.segments[0].base_offset if scan.segments else 0
        return
    if not isinstance(point, dict):
        return
    scan.log_start = point["log_start_offset"]
    try:
        epochs = read_checkpoint(scan.disk, f"{scan.directory}/{LEADER_EPOCH_FILE}")
    except CorruptionError as error:
        _log.warning("epochs rebuilt from the log reason=%s", error)
        scan.proven_end = point["recovery_point"]  # that was synced all the same (rule Q5)
        return
    if isinstance(epochs, list):
        scan.recovery_point = point["recovery_point"]
        scan.epochs = LeaderEpochCache([(epoch, start) for epoch, start in epochs])


def _drop_below_start(scan: _Scan) -> None:
    """Segments wholly below the log start: a crash came between its checkpoint and their removal.

    The log start is durable, so their names may come back with a power cut as often as they like.
    """
    segments = scan.segments
    while len(segments) > 1 and segments[1].base_offset <= scan.log_start:
        segment = segments.pop(0)
        scan.disk.unlink(segment.index_path)
        scan.disk.unlink(segment.log_path)


def _restore_sealed(scan: _Scan, clean_end: int | None) -> int:
    """Take segments from their index files as far as they were surely synced; count them.

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
        # Of a log that was about to start over; the one that is here has to say its own again.
        _log.warning("epochs rebuilt from the log reason=%s begins too late", LEADER_EPOCH_FILE)
        trusted, expected = 0, _first_offset(scan)
    for segment in scan.segments[trusted:]:
        segment.cut(0, segment.base_offset)
    scan.epochs.truncate_from_end(expected)
    return trusted


def _restore_producers(scan: _Scan, trusted: int) -> None:
    """The state below what will be scanned: a log whose producers were snapshot has a file of it.

    Every seal wrote one before it moved the recovery point, if there was anybody to remember.
    """
    end = scan.segments[trusted - 1].next_offset if trusted else _first_offset(scan)
    if any(offset <= end for offset in snapshot_offsets(scan.disk, scan.directory)):
        segments = scan.segments[:trusted]
        scan.producers = producers_at(scan.files, scan.directory, segments, end, scan.limits)


def _first_offset(scan: _Scan) -> int:
    """What the first segment has to begin with: it holds the log start, which may lie inside."""
    first = scan.segments[0].base_offset if scan.segments else scan.log_start
    return min(first, scan.log_start)


def _scan_segments(scan: _Scan, trusted: int) -> _Point | None:
    """Check every batch behind the trusted segments; where the good part ends, if it does."""
    expected = scan.segments[trusted - 1].next_offset if trusted else _first_offset(scan)
    for number in range(trusted, len(scan.segments)):
        segment = scan.segments[number]
        if segment.base_offset != expected:
            if number:
                before = number - 1
                return _Point(before, scan.segments[before].size, expected, "gap")
            return _Point(-1, 0, expected, "the first segment is missing")
        if scan.producers is not None and len(scan.producers):
            # Its roll may not have been sealed: the next flush does, and needs this (T4).
            data = encode_snapshot(scan.producers, expected)
            scan.snapshots.append((snapshot_name(expected), data))
        why = _scan_segment(scan, segment, scan.sizes[number])
        if why is not None:
            return _Point(number, segment.size, segment.next_offset, why)
        expected = segment.next_offset
    return None


def _scan_segment(scan: _Scan, segment: Segment, file_size: int) -> str | None:
    """Note every good batch from the start on; why it stopped before the end of the file."""
    fd = scan.files.use(segment)
    chunk, start = b"", 0
    segment.cut(0, segment.base_offset)
    while segment.size < file_size:
        header, chunk, start = _next_batch(scan.disk, fd, segment.size, chunk, start)
        at = segment.size - start
        try:
            if header is None:
                return "the file ends inside a batch"
            verify(chunk, at)
            if not is_stamped(header):
                return "bad durable end stamp"
        except BatchError as error:
            return str(error)
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


def _next_batch(
    disk: Disk, fd: int, position: int, chunk: bytes, start: int
) -> tuple[BatchHeader | None, bytes, int]:
    """The header at a position, and a chunk (with its position) that holds the whole batch.

    The chunk ends where the file does; no header if that is inside one.
    """
    at = position - start
    if at + HEADER_SIZE > len(chunk):
        chunk, start, at = disk.read(fd, SCAN_BYTES, position), position, 0
        if len(chunk) < HEADER_SIZE:
            return None, chunk, start
    header = parse_header(chunk, at)
    if header.magic == MAGIC and at + header.size > len(chunk):
        length = min(header.size, max(disk.size(fd) - position, 0))
        if length > len(chunk) - at:
            chunk, start = disk.read(fd, max(length, SCAN_BYTES), position), position
    return header, chunk, start


def _refuse_if_durable(scan: _Scan, bad: _Point, *, proven: bool) -> None:
    """Raise CorruptionError if anything proves that the bad batch was durable once (rule Q5).

    ``proven``: it is known already. What lies below the log start is missed by nobody, unless
    something that is needed stands behind it in the same file: then it was synced before the log
    start was written, whatever the stamps behind it say.
    """
    proof, floor = scan.proven_end, max(bad.offset, scan.log_start)
    for number in range(max(bad.segment, 0), len(scan.segments)):
        fd = scan.files.use(scan.segments[number])
        position = bad.position if number == bad.segment else 0
        for header in sound_batches(scan.disk, fd, position):
            if header.base_offset >= bad.offset:
                proof = max(proof, header.durable_end)
                if header.next_offset > scan.log_start and number == bad.segment:
                    # Not behind a gap: that is of a log that was about to start over.
                    proof, floor = max(proof, scan.log_start), bad.offset
    if proven or proof > floor:
        segment = scan.segments[bad.segment] if bad.segment >= 0 else scan.segments[0]
        msg = (
            f"{bad.why} file={segment.log_path} position={bad.position} offset={bad.offset}: "
            f"it was durable up to {proof}"
        )
        raise CorruptionError(msg)


def _cut(scan: _Scan, bad: _Point) -> int:
    """Remove everything behind the good part, durably and from the end on (rule Q3).

    Whatever a crash leaves of this is a longer log, never one with a hole.
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
        text = "torn tail cut file=%s bytes=%d offset=%d reason=%s"
        _log.warning(text, segment.log_path, tail, segment.next_offset, bad.why)
    return removed + tail


def _rewrite_unproven(scan: _Scan) -> None:
    """Write the bytes behind the last proof again, so that a sync says something (rule Q1)."""
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


def _sync_cut(scan: _Scan) -> None:
    """A cut that was killed may be in the cache only: its tail would come back amid what follows.

    Where all that is left is proven nothing else is synced before more is written (ADR 0003).
    """
    if scan.segments and not scan.segments[-1].dirty:
        scan.disk.sync_file(scan.files.use(scan.segments[-1]))
        scan.disk.sync_directory(scan.directory)


def _rewrite_identity(scan: _Scan) -> None:
    """Whose log it is was to be synced with its first bytes: it may be in the cache only, too.

    In place: a crash leaves the same bytes. A log that lost them is refused for good (rule Q5).
    Where no byte of a segment is left nothing is synced after this, and its end counts at once.
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
