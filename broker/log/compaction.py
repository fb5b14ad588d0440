"""Compaction of one log: which records stay, and how batches are rewritten without the rest. Pure.

The cleaner calls `plan` to find the part to clean, fills a `KeyMap`, and puts each batch through a
`Rewriter`. Kafka's compaction (KIP-58, KIP-354, KIP-534) with this log's rules: the newest record
of each key stays, under its offset; a tombstone stays for ``delete.retention.ms`` after it became
clean, and as long as any replica may not have it (rule R7). A record without a key can't be
replaced by another, and stays.

Logs stay contiguous (invariant L12): the offsets of removed records belong to the batch before
them, whose last offset grows, or to an *empty* batch of 84 bytes. Neither spans leader epochs, so
that the epoch cache made from the log is the same (invariant L11), and a batch with a producer id
never grows, because its offsets stand for its sequences. The batches from which a producer's state
is made keep their headers, even without a record (invariant T4).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from broker.record.batch import (
    HEADER_SIZE,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    RecordFormat,
    rebuilt,
)
from broker.record.compression import lines_of, stored_as
from broker.record.lines import HAS_MSGSPEC
from broker.record.plain_lines import fields_of
from broker.record.render import offset_of_line
from broker.record.values import NULL, bytes_view
from raft_metadata.common.ids import BATCHES_REMEMBERED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

KEY_BYTES = 64
"""Longer keys are stored as a 128-bit digest (blake2b; Kafka's cleaner uses MD5 for all keys)."""
DIGEST_BYTES = 16
ENTRY_BYTES = 220
"""Memory of one key in a `KeyMap` at most: a key, an offset, their share of the table."""
PIECE_BYTES = 65_536
"""Bytes of lines decoded at once: the cleaner's thread releases the interpreter after 0.3 ms."""
DELTA_MAX = (1 << 31) - 1
"""Offsets that a batch, or a merged segment, may span."""
MARKS_MAX = 64
"""Cleanings within ``delete.retention.ms`` whose times are kept apart."""
_NULL_LENGTH = len(NULL)


class KeyMap:
    """The newest offset of each key in the part of a log that is being cleaned. Bounded.

    `is_full` is checked between batches, so the map may exceed its limit by one batch.
    """

    __slots__ = ("_limit", "_newest")

    def __init__(self, memory_bytes: int) -> None:
        self._limit = max(1, memory_bytes // ENTRY_BYTES)
        self._newest: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._newest)

    @property
    def is_full(self) -> bool:
        return len(self._newest) >= self._limit

    def add(self, records: Iterable[KeyedRecord]) -> None:
        """Add records in the order of their offsets; those without a key are ignored."""
        newest = self._newest
        for offset, key, _ in records:
            if key is not None:
                newest[key if _is_short(len(key)) else _digest(key)] = offset

    def newest(self, key: bytes) -> int:
        """Return the newest offset of this key, -1 if the map has none."""
        return self._newest.get(key if _is_short(len(key)) else _digest(key), -1)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=DIGEST_BYTES).digest()


_is_short = frozenset(range(KEY_BYTES)).difference({DIGEST_BYTES}).__contains__
"""True for a key length whose keys are stored as they are: not the length of a digest."""


KeyedRecord = tuple[int, bytes | None, bool]
"""The fields compaction needs: offset, the key's bytes view (None: no key), value is null."""

if HAS_MSGSPEC:
    import msgspec

    class _KeyedLine(msgspec.Struct, gc=False):
        offset: int
        key: msgspec.Raw
        value: msgspec.Raw

    _decode_lines = msgspec.json.Decoder(_KeyedLine).decode_lines

    def keyed_records(lines: bytes, key_format: RecordFormat) -> list[KeyedRecord]:
        """Return offset, key and whether the value is null, of each stored line."""
        records: list[KeyedRecord] = [
            (line.offset, bytes(line.key), len(line.value) == _NULL_LENGTH and _is_null(line.value))
            for line in _decode_lines(lines)
        ]
        if key_format is not RecordFormat.JSON or b'"key":null,' in lines:
            return [(at, bytes_view(key or NULL, key_format), null) for at, key, null in records]
        return records

    def _is_null(value: msgspec.Raw) -> bool:
        return bytes(value) == NULL

elif not TYPE_CHECKING:

    def keyed_records(lines, key_format):
        """Return offset, key and whether the value is null, of each stored line."""
        found = []
        for line in lines.split(b"\n")[:-1]:
            fields = fields_of(line)
            key = bytes_view(fields["key"], key_format)
            found.append((int(fields["offset"]), key, fields["value"] == NULL))
        return found


def pieces(lines: bytes) -> Iterator[bytes]:
    """Yield these lines in runs of about `PIECE_BYTES`, whole lines each."""
    at = 0
    while at < len(lines):
        end = len(lines)
        if end - at > PIECE_BYTES:
            end = lines.rfind(b"\n", at, at + PIECE_BYTES) + 1 or lines.index(b"\n", at) + 1
        yield lines[at:end]
        at = end


# ---- the state of cleaning


@dataclass(frozen=True, slots=True)
class CleanState:
    """The offset up to which a replica's log is clean, with times; kept beside its segments.

    ``marks``: (offset, wall clock in ms), both growing: everything below the offset was clean then.
    Trusted only while the record below the last mark still has ``epoch``. ``dropped_to``: no
    tombstone at or above it was ever dropped here; durable before the first one is dropped.
    """

    marks: tuple[tuple[int, int], ...] = ()
    epoch: int = -1
    dropped_to: int = 0

    @property
    def cleaned_to(self) -> int:
        return self.marks[-1][0] if self.marks else 0

    def tombstones_expired_to(self, now_ms: int, retention_ms: int) -> int:
        """Return the offset below which tombstones have been clean for ``delete.retention.ms``."""
        expired = 0
        for offset, since_ms in self.marks:
            if since_ms + retention_ms <= now_ms:
                expired = offset
        return expired

    def cleaned(self, offset: int, epoch: int, now_ms: int, retention_ms: int) -> CleanState:
        """Return the state with everything below ``offset`` clean; redundant marks are removed."""
        marks = [mark for mark in self.marks if mark[0] < offset]
        expired = [mark for mark in marks if mark[1] + retention_ms <= now_ms]
        marks = [*expired[-1:], *marks[len(expired) :], (offset, now_ms)]
        while len(marks) > MARKS_MAX:  # merge two into the later one: tombstones stay longer
            nearest = min(range(1, len(marks) - 1), key=lambda i: marks[i + 1][1] - marks[i][1])
            del marks[nearest]
        return CleanState(tuple(marks), epoch, self.dropped_to)

    def dropping(self, below: int) -> CleanState:
        """Return the state in which tombstones below this offset may be dropped."""
        return CleanState(self.marks, self.epoch, max(self.dropped_to, below))


NEVER_CLEANED = CleanState()


# ---- the plan


class SegmentFacts(NamedTuple):
    """The fields of a segment that a plan needs."""

    base_offset: int
    next_offset: int
    size: int
    first_append_ms: int
    closed: bool
    """True if the segment is whole and synced, has its index, and is not the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionConfig:
    """A topic's compaction settings, if `cleanup.policy` holds ``compact``."""

    min_dirty_ratio: float = 0.5
    delete_retention_ms: int = 86_400_000
    min_lag_ms: int = 0
    max_lag_ms: int = (1 << 63) - 1
    segment_bytes: int = 1_073_741_824


class CleaningPriority(NamedTuple):
    """The urgency of cleaning a log; greater is more urgent."""

    overdue: bool
    """True if its oldest dirty record is older than ``max.compaction.lag.ms``."""
    ratio: float
    """The share of the cleanable bytes that were never cleaned."""


class CleaningPlan(NamedTuple):
    """The part of a log to clean: from ``start``, where it is dirty, to ``end``."""

    start: int
    end: int
    worth: CleaningPriority


def plan(
    segments: Sequence[SegmentFacts],
    state: CleanState,
    high_watermark: int,
    now_ms: int,
    config: CompactionConfig,
) -> CleaningPlan | None:
    """Return what can be cleaned of a log now; None if nothing is dirty.

    Only closed segments, only below the high watermark (rule R7), none with a record younger than
    ``min.compaction.lag.ms``: a segment's last record is no younger than the next one's first.
    """
    clean = dirty = end = 0
    oldest_ms = -1
    start = state.cleaned_to
    for segment, following in pairwise(segments):
        young = config.min_lag_ms and following.first_append_ms > now_ms - config.min_lag_ms
        if not segment.closed or segment.next_offset > high_watermark or young:
            break
        end = segment.next_offset
        if segment.next_offset <= start:
            clean += segment.size
            continue
        dirty += segment.size
        if oldest_ms < 0:
            oldest_ms = segment.first_append_ms
    if not dirty:
        return None
    overdue = oldest_ms >= 0 and now_ms - oldest_ms > config.max_lag_ms
    return CleaningPlan(start, end, CleaningPriority(overdue, dirty / (dirty + clean)))


def closed_below(segments: Sequence[SegmentFacts], end: int) -> int:
    """Return how many segments, from the first one on, are closed and begin below ``end``."""
    for number, segment in enumerate(segments):
        if segment.base_offset >= end or not segment.closed:
            return number
    return len(segments)


def fits_behind(
    size: int, base_offset: int, next_size: int, next_offset: int, segment_bytes: int
) -> bool:
    """Return True if a segment may be merged into a compacted one of ``size`` bytes so far."""
    return size + next_size <= segment_bytes and next_offset - base_offset <= DELTA_MAX


class SeenProducers:
    """The newest batches of each producer seen so far, from which its state would be made."""

    __slots__ = ("_batches",)

    def __init__(self) -> None:
        self._batches: dict[int, deque[int]] = {}

    def see(self, header: BatchHeader) -> None:
        if header.producer_id != NO_PRODUCER_ID:
            kept = self._batches.get(header.producer_id)
            if kept is None:
                kept = self._batches[header.producer_id] = deque(maxlen=BATCHES_REMEMBERED)
            kept.append(header.base_offset)

    def needed(self) -> frozenset[int]:
        """Return the base offsets of the batches whose headers stay."""
        return frozenset(base for kept in self._batches.values() for base in kept)


# ---- the rewrite


class KeptRecords(NamedTuple):
    """The records of a batch that stay, as plain lines. ``lines`` None: all of them."""

    lines: bytes | None
    records: int


@dataclass(frozen=True, slots=True)
class RecordRetention:
    """The choice of records that stay. Tombstones below ``drop_below`` are dropped (rule R7)."""

    keys: KeyMap
    drop_below: int

    def of(self, header: BatchHeader, stored: bytes, pace: Callable[[int], None]) -> KeptRecords:
        """Return what stays of a stored batch; ``pace`` is called between pieces, with 0.

        Raises:
            BatchError: its lines can't be unpacked.
        """
        if header.is_control or header.is_transactional:
            return KeptRecords(None, header.count)
        newest, drop_below = self.keys.newest, self.drop_below
        parts: list[bytes] = []
        count = 0
        for piece in pieces(bytes(lines_of(header, stored))):
            if parts:
                pace(0)
            records = keyed_records(piece, header.key_format)
            kept = [
                key is None
                or (newest(key) <= offset and not (is_tombstone and offset < drop_below))
                for offset, key, is_tombstone in records
            ]
            stays = sum(kept)
            if stays == len(kept):
                parts.append(piece)
            elif stays:
                lines = piece.split(b"\n")
                parts += [line + b"\n" for line, keep in zip(lines, kept, strict=False) if keep]
            count += stays
        if count == header.count:
            return KeptRecords(None, count)
        return KeptRecords(b"".join(parts), count)


class _HeldBatch(NamedTuple):
    """The last batch, not yet returned: it may be extended over removed batches behind it."""

    header: BatchHeader
    raw: bytes | None
    """The whole batch unchanged; None: to be made of header and payload."""
    payload: bytes
    """The bytes behind the header: lines, or a frame."""


class Rewriter:
    """A rewrite of consecutive batches; the result is contiguous from the first base offset on."""

    def __init__(self, retention: RecordRetention, needed: frozenset[int], seen_to: int) -> None:
        """Start a rewrite. ``needed``: `SeenProducers.needed` of all batches below ``seen_to``.

        Later ones stay.
        """
        self._retention = retention
        self._needed = needed
        self._seen_to = seen_to
        self._held: _HeldBatch | None = None
        self.changed = False
        """True if the output differs from the input so far."""

    def put(self, header: BatchHeader, raw: bytes, pace: Callable[[int], None]) -> bytes:
        """Take the next batch, whole and checked; return the bytes that can be written now.

        The kept part of a compressed batch is compressed again, whatever the topic's setting is
        now.

        Raises:
            BatchError: as `RecordRetention.of`.
        """
        kept = self._retention.of(header, raw[HEADER_SIZE:], pace)
        held = self._held
        if kept.lines is None and header.count:
            self._held = _HeldBatch(header, raw, b"")
            return _batch_bytes(held)
        if kept.records:
            self.changed = True
            smaller, payload = stored_as(header, kept.lines or b"", kept.records)
            self._held = _HeldBatch(smaller, None, payload)
            return _batch_bytes(held)
        base = header.base_offset
        if header.producer_id != NO_PRODUCER_ID and (base in self._needed or base >= self._seen_to):
            self.changed |= bool(header.count)
            self._held = _HeldBatch(
                stored_as(header, b"", 0)[0], None if header.count else raw, b""
            )
            return _batch_bytes(held)
        if held is not None and _can_grow(held.header, header):
            self.changed = True
            self._held = _extended(held, header)
            return b""
        if not header.count and header.producer_id == NO_PRODUCER_ID:
            self._held = _HeldBatch(header, raw, b"")
            return _batch_bytes(held)
        self.changed = True
        self._held = _HeldBatch(_placeholder(header), None, b"")
        return _batch_bytes(held)

    def end(self) -> bytes:
        """Return the bytes still held, after the last batch."""
        held, self._held = self._held, None
        return _batch_bytes(held)


def _batch_bytes(held: _HeldBatch | None) -> bytes:
    if held is None:
        return b""
    return rebuilt(held.header, held.payload) if held.raw is None else held.raw


def _placeholder(header: BatchHeader) -> BatchHeader:
    """Return an empty batch for these offsets, on which no producer's state depends."""
    return header._replace(
        length=0,
        count=0,
        base_timestamp=-1,
        max_timestamp=-1,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        attributes=0,
    )


def _can_grow(held: BatchHeader, gone: BatchHeader) -> bool:
    return (
        held.producer_id == NO_PRODUCER_ID
        and not held.is_control
        and held.leader_epoch == gone.leader_epoch
        and gone.next_offset - held.base_offset <= DELTA_MAX
    )


def _extended(held: _HeldBatch, gone: BatchHeader) -> _HeldBatch:
    """Extend the held batch over the offsets of the removed one behind it.

    An empty batch takes the newest append time of those it covers; one with records keeps its time,
    which is the time of records that have none of their own.
    """
    header = held.header
    payload = held.raw[HEADER_SIZE:] if held.raw is not None else held.payload
    header = header._replace(last_offset_delta=gone.last_offset - header.base_offset)
    if not header.count:
        newest = max(header.append_timestamp, gone.append_timestamp)
        header = header._replace(append_timestamp=newest)
    return _HeldBatch(header, None, payload)


def without_front(raw: bytes, header: BatchHeader, offset: int) -> bytes:
    """Return the part of a batch from this offset on, as a batch of its own.

    For a follower whose log ends inside: a compacted batch may cover offsets that it already has.

    Raises:
        BatchError: its lines can't be unpacked.
    """
    lines = bytes(lines_of(header, raw[HEADER_SIZE:]))
    at = count = 0
    while at < len(lines) and offset_of_line(lines, at) < offset:
        at = lines.index(b"\n", at) + 1
        count += 1
    skipped = offset - header.base_offset
    sequence = header.base_sequence
    if header.producer_id != NO_PRODUCER_ID:
        sequence = (sequence + skipped) % (1 << 31)
    rest, payload = stored_as(header, lines[at:], header.count - count)
    rest = rest._replace(
        base_offset=offset,
        last_offset_delta=header.last_offset_delta - skipped,
        base_sequence=sequence,
    )
    return rebuilt(rest, payload)
