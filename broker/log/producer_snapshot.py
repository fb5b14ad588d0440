"""Snapshots of producer states (``<base offset>.producers``) and the replay of the log behind.

A snapshot holds the state of everything below its offset. It is written when a segment is rolled,
with the files that seal the segments before it, and when a log is closed cleanly: both only after
a sync of all the batches it covers. A truncation below a snapshot removes it first. So a valid
snapshot at or below the log's end is true, and the state at any offset is the newest snapshot below
it plus the headers behind that.

A snapshot below the first segment is not used: the batches between the two are deleted, so it would
know a producer's older batches and not its last one. The next batch of that producer would be
refused for ever, while an unknown producer may continue (invariant T4).
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
    ProducerState,
    ProducerStates,
    RememberedBatch,
)
from broker.log.scan import whole_batches
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.log.segment import OpenFiles, Segment
    from raft_metadata.common.disk import Disk

_NAME = re.compile(r"(\d{20})\.producers")
BYTES_LIKE_A_HEADER = 16_384
"""Bytes of a batch that are read and checked in the time that one header takes."""
_log = logging.getLogger("broker.log")


class ProducerLimits(NamedTuple):
    """A broker's limits on remembered producers; one object is shared by all logs."""

    expiration_ms: int = EXPIRATION_MS
    per_partition: int = PRODUCERS_MAX

    def states(self, **known: Any) -> ProducerStates:
        """Return the producer states of one log, under these limits."""
        return ProducerStates(expiration_ms=self.expiration_ms, most=self.per_partition, **known)


def snapshot_name(offset: int) -> str:
    """Return the name of the file that holds the state below this offset."""
    return f"{offset:020d}.producers"


def encode_snapshot(states: ProducerStates, offset: int) -> bytes:
    """Return the content of the file `snapshot_name`; expired producers are left out."""
    rows = [
        (producer_id, producer.epoch, producer.last_ms, [tuple(each) for each in producer.batches])
        for producer_id, producer in states.items()
    ]
    return encode_checkpoint({"offset": offset, "newest_ms": states.newest_ms, "producers": rows})


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """Return the offset of every snapshot in a log's directory, ascending."""
    found = map(_NAME.fullmatch, disk.names(directory))
    return sorted(int(match[1]) for match in found if match is not None)


def read_snapshot(
    disk: Disk, directory: str, offset: int, limits: ProducerLimits
) -> ProducerStates | None:
    """Return the state below an offset, or None if there is no valid snapshot of it."""
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
        (
            producer_id,
            ProducerState(epoch, last_ms, tuple(RememberedBatch(*batch) for batch in batches)),
        )
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
    """Return the state below ``end_offset``: the newest valid snapshot, plus the headers behind it.

    ``segments``: from the log's first one on; if empty, the log begins at this offset.

    Raises:
        OSError, CorruptionError: a segment can't be read.
    """
    replay = Replay(files, directory, segments, end_offset, limits)
    replay.step(segments)
    return replay.states


class Replay:
    """The computation, in steps, of the producer state below an offset (`producers_at`).

    Batches below that offset must not change meanwhile, except by compaction.
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
        """Start from the newest valid snapshot at or below ``end_offset``.

        Raises:
            OSError: a snapshot can't be read.
        """
        first = min(segments[0].base_offset, end_offset) if segments else end_offset
        self._files = files
        self._at = 0
        """Every batch below this offset is in ``states``."""
        self.end = end_offset
        self.states = limits.states()
        for offset in reversed(snapshot_offsets(files.disk, directory)):
            if first <= offset <= end_offset:
                found = read_snapshot(files.disk, directory, offset, limits)
                if found is not None:
                    self.states, self._at = found, offset
                    break

    def step(self, segments: Iterable[Segment], headers: int = sys.maxsize) -> bool:
        """Apply up to ``headers`` more batch headers; return True when none are left.

        Batches are read whole, because only their checksum vouches for the producer fields.

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
            for found in whole_batches(self._files.disk, fd, segment.size, path, position):
                header = found.header
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
    """Return the paths of the snapshots below this offset, which belong to older segments."""
    return [
        f"{directory}/{snapshot_name(each)}"
        for each in snapshot_offsets(disk, directory)
        if each < offset
    ]


def remove_snapshots(disk: Disk, directory: str) -> None:
    """Remove all snapshots, because the batches they cover are removed. Durable on return."""
    with disk.directory(directory) as names:
        unlink_snapshots(disk, directory, snapshot_offsets(disk, directory), names)


def unlink_snapshots(disk: Disk, directory: str, offsets: Sequence[int], names: int) -> None:
    """Unlink these snapshots, the last first; ``names``: the open directory. Durable on return."""
    for offset in reversed(offsets):
        disk.unlink(f"{directory}/{snapshot_name(offset)}")
    if offsets:
        disk.sync_names(names)


def void_snapshots(disk: Disk, directory: str, offsets: Sequence[int], names: int) -> None:
    """Invalidate these snapshots; the first one stays, as an empty file. Durable on return.

    Its name tells a start that there were producers, which it then reads from the log it finds: the
    old one, if the new log start never became durable. Without the file that log would have no
    producers, and a retried batch would be appended again (invariant T4).
    """
    unlink_snapshots(disk, directory, offsets[1:], names)
    for offset in offsets[:1]:
        fd = disk.open(f"{directory}/{snapshot_name(offset)}")
        try:
            disk.truncate(fd, 0)
            disk.sync_file(fd)
        finally:
            disk.close(fd)
