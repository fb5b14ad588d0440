"""A number over all batches between two offsets, so that two replicas are compared by one value.

Used by the log check of the command line and by the broker's replica comparison, on a thread. Every
batch counts as a hash over its crc and the header behind it, which are the same on all replicas
(a replica's own stamp lies outside the crc). The number is their sum, modulo 2^128. A batch belongs
to the offsets [from, to) by its base offset, which is hashed with it: so order and place count, and
since a sum can be split again, replicas whose logs start at different offsets compare from any
offset that both hold.

Replicas may differ without a fault where compaction removed records, so a chain starts behind the
last batch that has holes (rule R7): each replica compacts in its own time, and a replica that was
filled from a compacted log holds the same holes without ever having compacted. A chain also starts
behind the first batch of a log that does not begin at offset 0: a replica that was filled from a
log start inside a batch holds only the rest of it.

Sums are kept for every 1,024 offsets, so the walk over a log is made once, and appends cost
nothing. Made to detect damage and mistakes, not forgery.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from contextlib import ExitStack, closing
from dataclasses import dataclass
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from broker.log.scan import header_places
from broker.record.batch import HEADER_SIZE, place_of
from raft_metadata.common.disk import Disk

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

CHAIN_INTERVAL = 1_024
"""Offsets between two kept sums."""
CHAIN_SUMS_MAX = 65_536
"""Sums kept for one log, about 100 bytes each; of a longer log every second one is dropped."""
_READ_BYTES = 65_536
"""Bytes per read: small enough that the thread lets others run, with batches of any size."""
_HASHED_FROM = 20
_COUNT = Struct("<I")
_COUNT_AT = 32
_MODULUS = 1 << 128
_disk = Disk()


class SegmentPlace(NamedTuple):
    """A segment file with its size at one moment."""

    path: str
    base_offset: int
    size: int


class ChainRangeError(ValueError):
    """The requested chain begins too early; the message names the first possible offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainValue:
    """The chain of a log over [start, end)."""

    first: int
    """First possible start here: 0, or the end of the first batch or of the last hole."""
    start: int
    end: int
    value: str
    """32 hexadecimal digits; all zero where no batch begins in between."""


class LogHashChain:
    """The kept sums of one log. Used by one thread at a time; no file stays open.

    Invariant: sum number k is over all batches from the first one known up to, not including,
    `_offsets[k]`, the base offset of the batch at `_positions[k]` in the segment that begins at
    `_bases[k]`.
    """

    def __init__(self) -> None:
        self._places: tuple[SegmentPlace, ...] = ()
        self._offsets = array("q")
        self._bases = array("q")
        self._positions = array("q")
        self._sums: list[int] = []
        self._interval = CHAIN_INTERVAL
        self._holes_to = 0

    def __len__(self) -> int:
        return len(self._sums)

    def value(self, places: Sequence[SegmentPlace], start: int | None, end: int) -> ChainValue:
        """Return the chain over batches whose base offset is in [start, end).

        Args:
            places: all segments of the log as they are now, oldest first; each holds whole batches
                up to its size. Of the same truncation generation as at the last call.
            start: None: the first possible offset.
            end: not behind the log end.

        Raises:
            ChainRangeError: ``start`` is too early.
            CorruptionError: bytes that are no batch; names file and position.
            OSError: a file can't be read, or was removed.
        """
        self._forget_replaced(tuple(places))
        total = self._sum_below(end) if places else 0
        first = min(max(_first_start(places), self._holes_to), end) if places else end
        begin = first if start is None else start
        if begin < first:
            msg = f"a chain can start at offset {first} or behind it, not at {begin}"
            raise ChainRangeError(msg)
        if begin >= end or not places:
            return ChainValue(first=first, start=begin, end=end, value=_text(0))
        total = (total - self._sum_below(begin)) % _MODULUS
        return ChainValue(first=first, start=begin, end=end, value=_text(total))

    def _forget_replaced(self, places: tuple[SegmentPlace, ...]) -> None:
        """Forget sums whose files were removed; all of them if a file was rewritten."""
        now = {place.base_offset: place for place in places}
        old, self._places = self._places, places
        for number, place in enumerate(old):
            here = now.get(place.base_offset)
            active = number == len(old) - 1
            if here is None and places and place.base_offset < places[0].base_offset:
                continue  # removed at the start of the log
            if here is None or (here.size < place.size if active else here.size != place.size):
                self._forget_all()
                return
        gone = bisect_left(self._bases, places[0].base_offset) if places else len(self)
        for kept in (self._offsets, self._bases, self._positions, self._sums):
            del kept[:gone]

    def _forget_all(self) -> None:
        for kept in (self._offsets, self._bases, self._positions, self._sums):
            del kept[:]
        self._interval = CHAIN_INTERVAL
        self._holes_to = 0

    def _sum_below(self, offset: int) -> int:
        """Return the sum of all batches below ``offset``, starting from the nearest kept sum."""
        nearest = bisect_right(self._offsets, offset) - 1
        first = self._places[0]
        base, position, total = first.base_offset, 0, 0
        if nearest >= 0:
            base, position = self._bases[nearest], self._positions[nearest]
            total = self._sums[nearest]
        elif self._sums:
            # The offset lies before the first kept sum: walk from the log's start to that sum.
            total = (self._sums[0] - self._sum_from_start(first, self._offsets[0])) % _MODULUS
        with closing(_batches(self._places, base, position)) as batches:
            for at in batches:
                if at.offset >= offset:
                    break
                if not self._offsets or at.offset >= self._offsets[-1] + self._interval:
                    self._keep_sum(at, total)
                total = (total + at.link) % _MODULUS
                self._holes_to = max(self._holes_to, at.holes_to)
        return total

    def _sum_from_start(self, first: SegmentPlace, end: int) -> int:
        total = 0
        with closing(_batches(self._places, first.base_offset, 0)) as batches:
            for at in batches:
                if at.offset >= end:
                    break
                total += at.link
        return total

    def _keep_sum(self, at: _ChainLink, total: int) -> None:
        self._offsets.append(at.offset)
        self._bases.append(at.base)
        self._positions.append(at.position)
        self._sums.append(total)
        if len(self._sums) > CHAIN_SUMS_MAX:
            for kept in (self._offsets, self._bases, self._positions, self._sums):
                del kept[1::2]
            self._interval *= 2


class _ChainLink(NamedTuple):
    base: int
    """Base offset of its segment."""
    position: int
    offset: int
    link: int
    holes_to: int
    """The offset behind the batch if it has holes, else 0."""
    following: int


def _batches(places: Sequence[SegmentPlace], base: int, position: int) -> Generator[_ChainLink]:
    """Yield each batch from this position of this segment on; only headers are examined."""
    for place in places:
        if place.base_offset < base:
            continue
        with ExitStack() as stack:
            fd = os.open(place.path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            for at, chunk, begin in header_places(
                _disk, fd, place.size, place.path, position, _READ_BYTES
            ):
                yield _link(place.base_offset, at, chunk, begin)
        position = 0


def _link(base: int, position: int, chunk: bytes, begin: int) -> _ChainLink:
    _, offset, following = place_of(chunk, begin)
    hashed = blake2b(chunk[begin + _HASHED_FROM : begin + HEADER_SIZE], digest_size=16)
    (count,) = _COUNT.unpack_from(chunk, begin + _COUNT_AT)
    holes_to = 0 if count == following - offset else following
    link = int.from_bytes(hashed.digest(), "little")
    return _ChainLink(base, position, offset, link, holes_to, following)


def _first_start(places: Sequence[SegmentPlace]) -> int:
    """Return 0, or the offset behind the first batch, which may lack its front."""
    base = places[0].base_offset
    if base:
        with closing(_batches(places, base, 0)) as batches:
            base = next((batch.following for batch in batches), base)
    return base


def _text(value: int) -> str:
    return f"{value:032x}"


def places_in(folder: Path) -> list[SegmentPlace]:
    """Return the segments of a partition's folder, oldest first, as they are on the disk."""
    return [
        SegmentPlace(str(path), int(path.stem), path.stat().st_size)
        for path in sorted(folder.glob("*.log"))
        if path.stem.isdecimal()
    ]
