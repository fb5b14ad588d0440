"""Snapshots of producer states (``<base offset>.producers``) and the replay of the log behind.

A snapshot holds the state of everything below its offset. It is written when a segment is rolled,
with the files that seal the segments before it, and when a log is closed cleanly: both only after
a sync of all the batches it covers. A truncation below a snapshot removes it first. So a valid
snapshot at or below the log's end is true, and the state at any offset is the newest snapshot below
it plus the headers behind that.

A log that begins anew at an offset has a snapshot there before that start is durable: what its
leader told of the producers, as of a high watermark at or above that offset (rule S5). So a
snapshot may know of batches behind its offset, which change nothing when they are replayed.

A snapshot below the first segment is not used: the batches between the two are deleted, so it would
know a producer's older batches and not its last one. The next batch of that producer would be
refused for ever, while an unknown producer may continue (invariant T4).
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from broker.log.checkpoints import TornError, decode_checkpoint, encode_checkpoint
from broker.log.producer_state import (
    EXPIRATION_MS,
    PRODUCERS_MAX,
    ProducerState,
    ProducerStates,
    RememberedBatch,
)
from broker.log.scan import whole_batches
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import is_reserved

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from broker.log.segment import OpenFiles, Segment
    from raft_metadata.common.disk import Disk

_NAME = re.compile(r"(\d{20})\.producers")
BYTES_LIKE_A_HEADER = 16_384
"""Bytes of a batch that are read and checked in the time that one header takes."""
TOLD_PRODUCERS_MAX = 100_000
"""Producers that a leader tells of, the newest ones, and all homes: some 40 MB of a frame that may
have 72 MiB (`follower_stream.MAX_PUSH_FRAME_BYTES`)."""
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


def _offset_of(name: str) -> int:
    return int(name.partition(".")[0])


def encode_snapshot(states: ProducerStates, offset: int) -> bytes:
    """Return the content of the file `snapshot_name`; expired producers are left out."""
    return _encode(states, offset, states.items())


def encode_told(states: ProducerStates, offset: int) -> bytes:
    """Return the snapshot that a leader sends to a log that begins anew at ``offset`` (rule S5).

    It holds all homes, and of the others the `TOLD_PRODUCERS_MAX` that wrote last.
    """
    rows = sorted(states.items(), key=lambda row: row[1].last_ms)
    homes = sum(is_reserved(producer_id) for producer_id, _ in rows)  # they never expire: last
    return _encode(states, offset, rows[max(0, len(rows) - homes - TOLD_PRODUCERS_MAX) :])


def _encode(
    states: ProducerStates, offset: int, producers: Iterable[tuple[int, ProducerState]]
) -> bytes:
    rows = [
        (producer_id, producer.epoch, producer.last_ms, [tuple(each) for each in producer.batches])
        for producer_id, producer in producers
    ]
    return encode_checkpoint({"offset": offset, "newest_ms": states.newest_ms, "producers": rows})


def snapshot_offsets(disk: Disk, directory: str) -> list[int]:
    """Return the offset of every snapshot in a log's directory, ascending."""
    found = map(_NAME.fullmatch, disk.names(directory))
    return sorted(int(match[1]) for match in found if match is not None)


def read_snapshot(
    disk: Disk, directory: str, offset: int, limits: ProducerLimits
) -> ProducerStates | None:
    """Return the state below an offset, or None if there is no snapshot of it.

    Raises:
        CorruptionError: the snapshot is damaged; TornError: it is empty.
    """
    path = f"{directory}/{snapshot_name(offset)}"
    data = disk.read_file(path)
    return None if data is None else decode_snapshot(data, path, offset, limits)


def decode_snapshot(
    data: bytes, path: str, offset: int, limits: ProducerLimits
) -> ProducerStates | None:
    """Return the state of a snapshot; None if it is one of another offset.

    Raises:
        CorruptionError: it is damaged; TornError: it is empty.
    """
    content = decode_checkpoint(data, path)
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
    *,
    may_forget: bool = False,
) -> ProducerStates:
    """Return the state below ``end_offset``: the newest valid snapshot, plus the headers behind it.

    ``segments``: from the log's first one on; if empty, the log begins at this offset.
    ``may_forget``: see `Replay`.

    Raises:
        OSError, CorruptionError: a segment can't be read, or a snapshot that nothing can replace.
    """
    replay = Replay(files, directory, segments, end_offset, limits, may_forget=may_forget)
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
        *,
        unwritten: Iterable[tuple[str, bytes]] = (),
        may_forget: bool = False,
    ) -> None:
        """Start from the newest valid snapshot at or below ``end_offset``.

        ``unwritten``: (name, bytes) of snapshots that are not on the disk yet. ``may_forget``: a
        damaged snapshot of a log that begins behind 0 is accepted, because no replica has more.

        Raises:
            OSError: a snapshot can't be read.
            CorruptionError: the only snapshots are damaged, of a log whose first batches are
                deleted, so that the producers can't be read from it (rule S5).
        """
        first = min(segments[0].base_offset, end_offset) if segments else end_offset
        self._files = files
        self._at = 0
        """Every batch below this offset is in ``states``."""
        self.end = end_offset
        self.states = limits.states()
        damage: CorruptionError | None = None
        in_memory = dict(unwritten)
        offsets = {*snapshot_offsets(files.disk, directory), *map(_offset_of, in_memory)}
        for offset in sorted(offsets, reverse=True):
            if not first <= offset <= end_offset:
                continue
            name = snapshot_name(offset)
            try:
                if name in in_memory:
                    found = decode_snapshot(in_memory[name], name, offset, limits)
                else:
                    found = read_snapshot(files.disk, directory, offset, limits)
            except CorruptionError as error:
                _log.warning("producers are read from the log instead reason=%s", error)
                if not isinstance(error, TornError):
                    damage = damage or error
                continue
            if found is not None:
                self.states, self._at = found, offset
                return
        if damage is not None and first > 0 and not may_forget:
            raise damage

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


def unlink_snapshots(disk: Disk, directory: str, offsets: Sequence[int], names: int) -> None:
    """Unlink these snapshots, the last first; ``names``: the open directory. Durable on return."""
    for offset in reversed(offsets):
        disk.unlink(f"{directory}/{snapshot_name(offset)}")
    if offsets:
        disk.sync_names(names)
