"""Inspection of a log's files on a disk: every batch, and everything that is wrong with them.

Used by the command line on the folder of a stopped or running node: nothing is locked, opened for
writing or repaired. `check_folder` walks all segments and small files of a partition; `batches_in`
lists batches. A torn tail, which a crash may leave, is told from damage as at a start (rule Q5): a
bad batch below a durable end that something proves is damage, a bad batch above it is torn.
"""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from broker.log.checkpoints import decode_checkpoint
from broker.log.directory_files import CLEAN_SHUTDOWN_FILE
from broker.log.hash_chain import SegmentPlace, places_in
from broker.log.index import decode_index
from broker.log.leader_epoch_cache import LeaderEpochCache
from broker.log.log_directory import PARTITION_FILE
from broker.log.recovery import LEADER_EPOCH_FILE, RECOVERY_POINT_FILE
from broker.log.scan import GoodBatch, RottenBatch, TornBatch, batches, sound_batches
from broker.record.batch import HEADER_SIZE, MAGIC, BatchError, BatchHeader, is_stamped
from broker.record.compression import lines_of
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

DAMAGE, TORN, NOTE = "damage", "torn", "note"
_disk = Disk()
_SNAPSHOT = re.compile(r"(\d{20})\.producers")


class Finding(NamedTuple):
    """A fact that a reader of these files should know."""

    level: str
    """``damage``: bytes are lost or wrong. ``torn``: a start truncates them. ``note``: no fault."""
    file: str
    position: int | None
    offset: int | None
    text: str


class FoundBatch(NamedTuple):
    """A batch in a file.

    ``problem`` is empty if it is whole, its crc right and its lines (unpacked here) readable.
    """

    file: str
    position: int
    header: BatchHeader
    lines: bytes
    problem: str


@dataclass(slots=True)
class InspectionReport:
    """The findings in one partition's folder."""

    folder: str
    findings: list[Finding] = field(default_factory=list)
    segments: int = 0
    batches: int = 0
    records: int = 0
    size: int = 0
    start: int = 0
    end: int = 0
    """The offset behind the last good batch before a torn tail or the end of the files."""
    good: list[SegmentPlace] = field(default_factory=list)
    """The segments up to ``end``."""

    @property
    def is_damaged(self) -> bool:
        return any(finding.level == DAMAGE for finding in self.findings)


def batches_in(place: SegmentPlace, position: int = 0) -> Iterator[FoundBatch]:
    """Yield each batch of a segment file from a batch boundary on, up to bytes that are none.

    The last one may have a ``problem``; its header then does not tell where the next one begins.
    """
    with _opened(place) as fd:
        while position < place.size:
            for found in batches(_disk, fd, place.size, position):
                position = found.position
                if isinstance(found, TornBatch) or found.header.magic != MAGIC:
                    return
                yield _examined(place, fd, found)
                if isinstance(found, RottenBatch) and position + found.header.size > place.size:
                    return
                position += found.header.size


def _examined(place: SegmentPlace, fd: int, found: GoodBatch | RottenBatch) -> FoundBatch:
    header, body = found.header, found.position + HEADER_SIZE
    if isinstance(found, RottenBatch):
        is_whole = found.position + header.size <= place.size
        stored = _disk.read(fd, header.length, body) if is_whole else b""
        return FoundBatch(place.path, found.position, header, stored, found.why)
    stored = found.raw[HEADER_SIZE:]
    try:
        lines = bytes(lines_of(header, stored))
    except BatchError as error:
        return FoundBatch(place.path, found.position, header, stored, str(error))
    return FoundBatch(place.path, found.position, header, lines, "")


@contextmanager
def _opened(place: SegmentPlace) -> Iterator[int]:
    """Yield a descriptor for reading only: the files may be another user's."""
    fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def check_folder(folder: Path, clean_end: int | None = None) -> InspectionReport:
    """Check everything in a partition's folder.

    ``clean_end``: the log end in the broker's ``clean-shutdown``, if that exists.
    """
    report = InspectionReport(str(folder))
    places = places_in(folder)
    report.segments, report.size = len(places), sum(place.size for place in places)
    check = _Check(report, places, clean_end or 0)
    check.take_point()
    _check_partition_file(check, folder)
    if not _check_replacement(check, folder):
        return report
    check.segments()
    _check_epochs(check)
    _check_snapshots(check, folder)
    return report


def check_segment(path: Path, clean_end: int | None = None) -> InspectionReport:
    """Check one segment file; later ones in its folder only for what they prove durable (rule Q5).

    Its fit to earlier segments and to checkpoints is checked by `check_folder`. ``clean_end`` as
    there.
    """
    report = InspectionReport(str(path), segments=1, size=path.stat().st_size)
    place = SegmentPlace(str(path), int(path.stem), report.size)
    following = [each for each in places_in(path.parent) if each.base_offset > place.base_offset]
    check = _Check(report, [place, *following], clean_end or 0)
    report.start = report.end = place.base_offset
    check.first_segment()
    return report


class _Check:
    """The state of the check of one folder, or of one file."""

    def __init__(self, report: InspectionReport, places: list[SegmentPlace], proven: int) -> None:
        self.report = report
        self.places = places
        self.proven = proven
        """Everything below this offset was durable once."""
        self.recovery_point = 0
        self.log_start = 0
        self.epochs = LeaderEpochCache()
        self.written: LeaderEpochCache | None = None
        """The epochs in the checkpoint file; None if unreadable."""

    def add_finding(
        self, level: str, file: str, text: str, position: int | None = None, at: int | None = None
    ) -> None:
        self.report.findings.append(Finding(level, file, position, at, text))

    def checkpoint(self, name: str) -> object | None:
        """Return a small file's content.

        None if it does not exist, or is damaged (reported here).
        """
        path = f"{self.report.folder}/{name}"
        try:
            return decode_checkpoint(Path(path).read_bytes(), path)
        except FileNotFoundError:
            return None
        except (CorruptionError, ValueError) as error:
            self.add_finding(NOTE, path, f"{error}; a start makes it anew from the log")
            return None

    def take_point(self) -> None:
        """Read the log start and the recovery point, as a start does."""
        point, epochs = self.checkpoint(RECOVERY_POINT_FILE), self.checkpoint(LEADER_EPOCH_FILE)
        self.log_start = self.places[0].base_offset if self.places else 0
        if isinstance(point, dict):
            self.log_start = point["log_start_offset"]
            if isinstance(epochs, list):
                self.recovery_point = point["recovery_point"]
                self.written = LeaderEpochCache([(epoch, start) for epoch, start in epochs])
        self.proven = max(self.proven, self.recovery_point)
        while len(self.places) > 1 and self.places[1].base_offset <= self.log_start:
            gone = self.places.pop(0)
            self.add_finding(
                NOTE, gone.path, "all of it is below the log start: a start removes it"
            )
        self.report.start = self.report.end = self.log_start

    def segments(self) -> None:
        """Walk all files; everything behind a torn place is left out."""
        first = self.places[0] if self.places else None
        if first is not None and first.base_offset > self.log_start:
            text = f"the log starts at {self.log_start}, its first segment at {first.base_offset}"
            if not self._report_bad_batch(first.path, 0, text, 0, 0):
                return
        for number, place in enumerate(self.places):
            if number and place.base_offset != self.report.end:
                text = f"the segment begins at {place.base_offset}, expected {self.report.end}"
                if not self._report_bad_batch(place.path, 0, text, number, 0):
                    return
            self.report.end = place.base_offset
            if not self._segment(number, place):
                return
        if self.report.end < self.log_start:
            text = f"it ends below the log start {self.log_start}: a start removes all of it"
            self.add_finding(TORN, self.places[-1].path, text, at=self.report.end)
            self.report.end = self.log_start
            self.report.good.clear()
        if self.report.end < self.proven and not self.report.is_damaged:
            where = self.places[-1].path if self.places else self.report.folder
            text = f"the log ends too early: it was durable up to {self.proven}"
            self.add_finding(DAMAGE, where, text, at=self.report.end)

    def first_segment(self) -> None:
        """Walk only the first file, which ends at the base offset of the next one."""
        place = self.places[0]
        expected = self.places[1].base_offset if len(self.places) > 1 else self.proven
        if self._segment(0, place) and self.report.end < expected and not self.report.is_damaged:
            text = f"the segment ends at {self.report.end}, expected {expected}"
            self._report_bad_batch(place.path, place.size, text, 0, place.size)

    def _segment(self, number: int, place: SegmentPlace) -> bool:
        """Walk one segment; return False if the log ends inside of it, torn."""
        position, indexed, damaged = 0, self._index(place), False
        while position < place.size:
            why = "no batch starts here"
            for found in batches_in(place, position):
                why = found.problem or self._find_misfit(found)
                if why:
                    break
                indexed_as = indexed.pop(found.position, found.header.base_offset)
                if indexed_as != found.header.base_offset:
                    self._report_misindexed(place, found.position, indexed_as)
                self._take(found)
                position = found.position + found.header.size
            if position >= place.size:
                break
            if not self._report_bad_batch(place.path, position, why, number, position):
                self.report.good.append(place._replace(size=position))
                return False
            damaged = True
            good = next(_good_batches(place, position + 1), None)
            if good is None:
                break
            position, header = good
            self.report.end = header.base_offset
        self.report.good.append(place)
        for at, offset in list(indexed.items())[: 0 if damaged else 1]:
            self._report_misindexed(place, at, offset)
        return True

    def _find_misfit(self, found: FoundBatch) -> str:
        header = found.header
        if header.base_offset != self.report.end:
            return f"base offset {header.base_offset}, expected {self.report.end}"
        if not is_stamped(header):
            return "bad durable end stamp"
        if header.leader_epoch < self.epochs.newest:
            return f"leader epoch {header.leader_epoch} behind epoch {self.epochs.newest}"
        if found.lines.count(b"\n") != header.count:
            return f"{found.lines.count(bytes([10]))} lines, the header says {header.count}"
        return ""

    def _take(self, found: FoundBatch) -> None:
        header = found.header
        self.epochs.assign(header.leader_epoch, header.base_offset)
        self.proven = max(self.proven, min(header.durable_end, header.base_offset))
        self.report.batches += 1
        self.report.records += header.count
        self.report.end = header.next_offset

    def _report_bad_batch(
        self, path: str, position: int, why: str, number: int, start: int
    ) -> bool:
        """Add a finding about a bad batch (rule Q5); return True if it is damage.

        Then more of the log follows behind it; a torn batch is the end of the log.
        """
        end = self.report.end
        proof = self.proven
        for place in self.places[number:]:
            for _, header in _good_batches(place, start if place is self.places[number] else 0):
                if header.base_offset >= end:
                    proof = max(proof, header.durable_end)
        if proof > max(end, self.log_start):
            self.add_finding(DAMAGE, path, f"{why}; it was durable up to {proof}", position, end)
            return True
        left = sum(place.size for place in self.places[number:]) - position
        self.add_finding(TORN, path, f"{why}: a start cuts the last {left} bytes", position, end)
        return False

    def _index(self, place: SegmentPlace) -> dict[int, int]:
        """Return position → offset from the index file; empty if a start would ignore that file."""
        path = place.path.removesuffix(".log") + ".index"
        try:
            head, index = decode_index(Path(path).read_bytes(), path)
        except FileNotFoundError:
            return {}
        except (CorruptionError, ValueError) as error:
            self.add_finding(NOTE, path, f"{error}; it is made anew from the segment")
            return {}
        if head.log_size != place.size or head.base_offset != place.base_offset:
            text = f"of a segment of {head.log_size} bytes, now {place.size}: it is made anew"
            self.add_finding(NOTE, path, text)
            return {}
        return {position: place.base_offset + relative for relative, position in index.entries}

    def _report_misindexed(self, place: SegmentPlace, position: int, offset: int) -> None:
        """Add a finding about a wrong index entry: readers would look in the wrong place."""
        path = place.path.removesuffix(".log") + ".index"
        self.add_finding(DAMAGE, path, f"it says that offset {offset} is there", position, offset)


def _good_batches(place: SegmentPlace, position: int) -> Iterator[tuple[int, BatchHeader]]:
    with _opened(place) as fd:
        yield from sound_batches(_disk, fd, position)


def clean_ends(root: Path) -> dict[str, int]:
    """Return log name → log end from the clean shutdown of a log directory; empty without one."""
    path = str(root / CLEAN_SHUTDOWN_FILE)
    try:
        content = decode_checkpoint(Path(path).read_bytes(), path)
    except (FileNotFoundError, CorruptionError, ValueError):
        return {}
    return (
        {name: row[0] for name, row in content["logs"].items()} if isinstance(content, dict) else {}
    )


def _check_partition_file(check: _Check, folder: Path) -> None:
    content = check.checkpoint(PARTITION_FILE)
    path = str(folder / PARTITION_FILE)
    if content is None:
        level = DAMAGE if check.proven or check.report.segments else NOTE
        check.add_finding(level, path, "whose partition this is can't be read")
    elif isinstance(content, dict) and f"{content['topic']}-{content['partition']}" != folder.name:
        name = f"{content['topic']}-{content['partition']}"
        level = NOTE if ":" in folder.name else DAMAGE  # quarantined folders have other names
        check.add_finding(level, path, f"it says {name}")


def _check_replacement(check: _Check, folder: Path) -> bool:
    """Return False while a compacted segment replaces others: a start finishes that first."""
    swaps = sorted(folder.glob("*.log.swap"))
    for path in swaps:
        check.add_finding(
            NOTE, str(path), "segments are being replaced by it; what they hold is not read"
        )
    return not swaps


def _check_epochs(check: _Check) -> None:
    """Compare the epoch file with the batches below the recovery point, which no start reads."""
    if check.written is None:
        return
    start_at, upto = check.log_start, min(check.recovery_point, check.report.end)
    found, written = (
        [(epoch, start) for epoch, start in cache.from_start(start_at).entries if start < upto]
        for cache in (check.epochs, check.written)
    )
    known = dict(written)
    for epoch, start in found:
        if known.get(epoch) != start:
            path = f"{check.report.folder}/{LEADER_EPOCH_FILE}"
            text = f"epoch {epoch} begins at {start} in the log, the file says {known.get(epoch)}"
            check.add_finding(DAMAGE, path, text, at=start)
            return


def _check_snapshots(check: _Check, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        match = _SNAPSHOT.fullmatch(path.name)
        if match is None:
            continue
        if check.checkpoint(path.name) is not None and int(match[1]) > check.report.end:
            text = f"of producers up to {int(match[1])}, the log ends at {check.report.end}"
            check.add_finding(NOTE, str(path), text)
