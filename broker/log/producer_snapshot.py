"""Producer states beside the segments: ``<base offset>.producers``, and back from the log.

A snapshot holds the state behind everything below its offset. It is written when a segment is
rolled, with what seals the segments before it, and when a log is closed cleanly: both only behind a
sync of all it speaks of. A truncation below it takes it away first. So a whole snapshot at or below
the log's end is true, and the state at any offset is the newest one below, and the headers behind.

But for one below the first segment: what was written between the two is deleted, so with the
headers behind, it would know of a producer's older batches and not of its last one. That producer's
next batch would be refused for good, where one that nobody knows may go on (invariant T4).
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from broker.log.checkpoints import encode_checkpoint, read_checkpoint
from broker.log.producer_state import (
    EXPIRATION_MS,
    PRODUCERS_MAX,
    Producer,
    ProducerStates,
    Remembered,
)
from broker.log.swap import whole_batches
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.log.disk import Disk
    from broker.log.segment import OpenFiles, Segment

_NAME = re.compile(r"(\d{20})\.producers")
BYTES_LIKE_A_HEADER = 16_384
"""Of a batch, read and checked in the time that a header takes."""
_log = logging.getLogger("broker.log")


class ProducerLimits(NamedTuple):
    """What a broker's configuration says about producers; one object for all logs."""

    expiration_ms: int = EXPIRATION_MS
    per_partition: int = PRODUCERS_MAX

    def states(self, **known: Any) -> ProducerStates:
        """Producers of one log, under these limits."""
        return ProducerStates(expiration_ms=self.expiration_ms, most=self.per_partition, **known)


def snapshot_name(offset: int) -> str:
    """The file that holds the state below this offset."""
    return f"{offset:020d}.producers"


def encode_snapshot(states: ProducerStates, offset: int) -> bytes:
    """The bytes of `snapshot_name`; those that are expired are left out."""
    rows = [
        (producer_id, producer.epoch, producer.last_ms, [tuple(each) for each in producer.batches])
        for producer_id, producer in states.items()
    ]
    return encode_checkpoint({"offset": offset, "newest_ms": states.newest_ms, "producers": rows})


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """Of every snapshot in a log's directory, ascending."""
    found = map(_NAME.fullmatch, disk.names(directory))
    return sorted(int(match[1]) for match in found if match is not None)


def read_snapshot(
    disk: Disk, directory: str, offset: int, limits: ProducerLimits
) -> ProducerStates | None:
    """The state below an offset; None where there is no whole snapshot of it."""
    path = f"{directory}/{snapshot_name(offset)}"
    try:
        content = read_checkpoint(disk, path)
    except CorruptionError as error:
        _log.warning("producers are read from the log instead reason=%s", error)
        return None
    if not isinstance(content, dict) or content.get("offset") != offset:
        return None
    fields = cast("dict[str, Any]", content)
    producers = [
        (producer_id, Producer(epoch, last_ms, tuple(Remembered(*batch) for batch in batches)))
        for producer_id, epoch, last_ms, batches in fields["producers"]
    ]
    return limits.states(end_offset=offset, newest_ms=fields["newest_ms"], producers=producers)


def producers_at(
    files: OpenFiles,
    directory: str,
    segments: Sequence[Segment],
    end_offset: int,
    limits: ProducerLimits,
) -> ProducerStates:
    """The state below an offset: the newest whole snapshot below it, and the headers behind that.

    ``segments``: from the log's first one on; none: the log begins at this offset.

    Raises:
        OSError, CorruptionError: a segment can't be read.
    """
    replay = Replay(files, directory, segments, end_offset, limits)
    replay.step(segments)
    return replay.states


class Replay:
    """The state below an offset, made of the log in steps (`producers_at`).

    What lies below that offset must stay as it is meanwhile, but for compaction.
    """

    __slots__ = ("_at", "_files", "end", "states")

    def __init__(
        self,
        files: OpenFiles,
        directory: str,
        segments: Sequence[Segment],
        end_offset: int,
        limits: ProducerLimits,
    ) -> None:
        """OSError: a snapshot can't be read."""
        first = min(segments[0].base_offset, end_offset) if segments else end_offset
        self._files = files
        self._at = 0
        """What lies below it is in ``states``."""
        self.end = end_offset
        self.states = limits.states()
        for offset in reversed(snapshot_offsets(files.disk, directory)):
            if first <= offset <= end_offset:
                found = read_snapshot(files.disk, directory, offset, limits)
                if found is not None:
                    self.states, self._at = found, offset
                    break

    def step(self, segments: Iterable[Segment], headers: int = sys.maxsize) -> bool:
        """Take so many more headers; whether that was all.

        Of whole batches: what a header says of its producer is known by the checksum alone.

        Raises:
            OSError, CorruptionError: a segment can't be read.
        """
        for segment in segments:
            if segment.next_offset <= self._at or segment.base_offset >= self.end:
                continue
            fd, position = self._files.use(segment), 0
            if segment.base_offset < self._at:
                position = segment.position_for(self._files, self._at)
            path = segment.log_path
            for header, _ in whole_batches(self._files.disk, fd, segment.size, path, position):
                base = header.base_offset
                if base >= self.end:
                    return True
                if base >= self._at:
                    if headers <= 0:
                        return False
                    headers -= 1 + header.length // BYTES_LIKE_A_HEADER
                    if header.producer_id >= 0:
                        self.states.applied(header, self.end)
                    self._at = base + header.last_offset_delta + 1
        return True


def snapshots_below(disk: Disk, directory: str, offset: int) -> list[str]:
    """The paths of those that belong to segments below this one."""
    return [
        f"{directory}/{snapshot_name(each)}"
        for each in snapshot_offsets(disk, directory)
        if each < offset
    ]


def remove_snapshots(disk: Disk, directory: str) -> None:
    """All of them: what they speak of is gone. Durable on return."""
    with disk.directory(directory) as names:
        unlink_snapshots(disk, directory, snapshot_offsets(disk, directory), names)


def unlink_snapshots(disk: Disk, directory: str, offsets: Sequence[int], names: int) -> None:
    """These, the last one first; ``names``: the open directory. Durable on return."""
    for offset in reversed(offsets):
        disk.unlink(f"{directory}/{snapshot_name(offset)}")
    if offsets:
        disk.sync_names(names)


def void_snapshots(disk: Disk, directory: str, offsets: Sequence[int], names: int) -> None:
    """These speak for nobody any more: the first one stays, empty. Durable on return.

    By its name a start knows that there were producers, and reads them from what it finds of the
    log: the old one, where the new start never became durable. Without it that one would have had
    none, and a batch that is sent again would be appended again (invariant T4).
    """
    unlink_snapshots(disk, directory, offsets[1:], names)
    for offset in offsets[:1]:
        fd = disk.open(f"{directory}/{snapshot_name(offset)}")
        try:
            disk.truncate(fd, 0)
            disk.sync_file(fd)
        finally:
            disk.close(fd)
