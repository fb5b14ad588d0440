"""The index of one partition of `__staged`: its chunks, their places, what is let go. Pure.

`StageLeader` keeps one while it leads. The index is the fold of the heads of the log's records, in
order; the same chunk found again is a *copy*, which its leader appended to free the log's
beginning. So nothing but `released`, the homes' words since this leader began, is lost with a
leader, and a home gives its word again. `find` recognises repeats, `refs` names what a commit may
take, `trim` follows the log start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple

from broker.transactions.chunk_records import ChunkHead, ChunkKey, RowsChunk, TargetPart
from broker.transactions.messages import (
    AttemptNamed,
    LogPlace,
    StagedAttempt,
    TransactionalId,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import LeaderEpoch, PartitionId, TopicId

RECORD_OVERHEAD_BYTES: Final = 300
"""Bytes that count for each record of a chunk beside its rows: key, head and memory here."""
PLACES_MAX: Final = 200_000
"""Most chunks of one stage partition, with copies: some 200 MB of index."""
REFS_MAX: Final = 200_000
"""Most places that one answer names: 10 MB."""


class ChunkHome(NamedTuple):
    """The home of a transactional id: a partition of one of two topics."""

    is_group: bool
    """True: a partition of `__consumer_offsets`; False: of `__transaction_state`."""
    partition: PartitionId


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLimits:
    """Limits that a stage keeps, as the cluster's configs have them."""

    transaction_bytes: int
    transaction_chunks: int
    transaction_partitions: int
    staged_bytes: int


class StagedRef(NamedTuple):
    """Staged rows of one target, as a decision names them: one record of the stage."""

    at: LogPlace
    target: TargetPart


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRefs:
    """The committed chunks of an attempt that a commit names, or why they are not as it says."""

    attempt_id: str
    refs: tuple[StagedRef, ...] = ()
    """In the order of sequences, and of targets within a chunk."""
    size_bytes: int = 0
    """Bytes of their rows."""
    missing: str | None = None
    """Null if all that was named is here."""


@dataclass(slots=True)
class ChunkPlace:
    """One appended copy of a chunk: records ``base .. base + len(targets) - 1`` of the log."""

    at: LogPlace
    """Place of the first record."""
    chunk: StagedChunk
    targets: tuple[TargetPart, ...]
    layout: int
    since_ms: int
    """Wall time of the chunk's first append."""
    before_bytes: int
    """Bytes that were appended to this stage before, as far as this index knows."""
    stored_bytes: int

    @property
    def base(self) -> int:
        """The offset of the first record."""
        return self.at.offset

    @property
    def end(self) -> int:
        """The offset behind the last record."""
        return self.base + len(self.targets)


@dataclass(slots=True)
class StagedChunk:
    """A chunk with all its places that the log still has, oldest first."""

    key: ChunkKey
    digest: str
    size_bytes: int
    rows: int
    places: list[ChunkPlace] = field(default_factory=list)


@dataclass(slots=True)
class ChunksOfAttempt:
    """The chunks of one attempt, by sequence."""

    id: TransactionalId
    epoch: int
    number: int
    attempt_id: str
    chunks: dict[int, StagedChunk] = field(default_factory=dict)
    size_bytes: int = 0
    living: dict[int, None] = field(default_factory=dict)
    """Base offsets of the places that no home has let go, in order."""
    targets: set[tuple[TopicId, PartitionId]] = field(default_factory=set)
    """Partitions that any chunk of the attempt had rows for."""

    @property
    def rows(self) -> int:
        """Rows of all chunks."""
        return sum(chunk.rows for chunk in self.chunks.values())


AttemptKey = tuple[TransactionalId, str]


class StageIndex:
    """The chunks of one stage partition from its log start on.

    Owned by a `StageLeader`, on the broker's loop. Invariant: but for `released` a function of the
    heads folded since the last `trim`.
    """

    def __init__(self, home_of: Callable[[TransactionalId], ChunkHome]) -> None:
        self.home_of = home_of
        self.attempts: dict[AttemptKey, ChunksOfAttempt] = {}
        self.places: dict[int, ChunkPlace] = {}
        """By base offset, in order."""
        self.homes: dict[ChunkHome, dict[int, None]] = {}
        """Base offsets of each home's living places, in order."""
        self.released: set[int] = set()
        """Base offsets of the places that their homes let go (rule S10)."""
        self.stored_bytes = 0
        """Bytes of all places, released ones included."""
        self.appended_bytes = 0
        """Bytes of all places ever folded."""
        self.living_bytes = 0
        """Bytes of the places that no home has let go."""
        self._parts: list[ChunkHead] = []
        """Heads of a chunk of which more records follow."""
        self._parts_at = LogPlace(LeaderEpoch(-1), -1)

    # ---- the fold

    def fold(self, head: ChunkHead, at: LogPlace, appended_ms: int) -> None:
        """Take the next record of the log.

        Of a chunk that the log start cut nothing is taken: its home let it go.
        """
        first = at.moved(-head.part)
        if head.part == 0:
            self._parts = []
        elif not self._parts or self._parts_at != first or len(self._parts) != head.part:
            self._parts = []
            return
        self._parts_at = first
        self._parts.append(head)
        if len(self._parts) == head.parts:
            parts, self._parts = self._parts, []
            self._add(parts, first, appended_ms)

    def append(self, chunk: RowsChunk, at: LogPlace, appended_ms: int) -> None:
        """Take a chunk that this leader has just appended, as `fold` would."""
        for part, target in enumerate(chunk.targets):
            head = ChunkHead(
                key=chunk.key,
                part=part,
                parts=len(chunk.targets),
                target=TargetPart(target.topic_id, target.partition, target.rows),
                size_bytes=len(target.records),
                digest=chunk.digest,
                layout=chunk.layout,
                since_ms=chunk.since_ms,
            )
            self.fold(head, at.moved(part), appended_ms)

    def _add(self, parts: list[ChunkHead], at: LogPlace, appended_ms: int) -> None:
        first = parts[0]
        key = first.key
        attempt = self.attempts.get((key.id, key.attempt_id))
        if attempt is None:
            attempt = ChunksOfAttempt(key.id, key.epoch, key.number, key.attempt_id)
            self.attempts[key.id, key.attempt_id] = attempt
        chunk = attempt.chunks.get(key.sequence)
        if chunk is None:
            chunk = StagedChunk(
                key,
                first.digest,
                sum(head.size_bytes for head in parts),
                sum(head.target.rows for head in parts),
            )
            attempt.chunks[key.sequence] = chunk
            attempt.size_bytes += chunk.size_bytes
        stored = sum(head.size_bytes + RECORD_OVERHEAD_BYTES for head in parts)
        place = ChunkPlace(
            at,
            chunk,
            tuple(head.target for head in parts),
            first.layout,
            appended_ms if first.since_ms is None else first.since_ms,
            self.appended_bytes,
            stored,
        )
        chunk.places.append(place)
        self.places[at.offset] = place
        attempt.living[at.offset] = None
        attempt.targets.update(target[:2] for target in place.targets)
        self.homes.setdefault(self.home_of(key.id), {})[at.offset] = None
        self.stored_bytes += stored
        self.appended_bytes += stored
        self.living_bytes += stored

    def trim(self, log_start: int, most: int = PLACES_MAX) -> bool:
        """Forget places below the new log start, at most so many; return True if more are left."""
        gone = list(islice(_below(self.places, log_start), most))
        for base in gone:
            place = self.places.pop(base)
            self.stored_bytes -= place.stored_bytes
            self.released.discard(base)
            self._end_of_life(place)
            chunk, key = place.chunk, place.chunk.key
            chunk.places.remove(place)
            if chunk.places:
                continue
            attempt = self.attempts[key.id, key.attempt_id]
            del attempt.chunks[key.sequence]
            attempt.size_bytes -= chunk.size_bytes
            if not attempt.chunks:
                del self.attempts[key.id, key.attempt_id]
        return len(gone) == most

    # ---- chunks

    def find(self, key: ChunkKey, digest: str) -> ChunkPlace | None:
        """Return the place of a chunk that is here already, or None for a new one.

        What its home let go is staged anew: no commit can name it any more.

        Raises:
            KafkaError: TRANSACTION_CONFLICT, the sequence holds another content, or the attempt
                belongs to another position.
        """
        attempt = self.attempts.get((key.id, key.attempt_id))
        if attempt is None:
            return None
        if (attempt.epoch, attempt.number) != (key.epoch, key.number):
            raise _refused(
                ErrorCode.TRANSACTION_CONFLICT,
                f"attempt {key.attempt_id} belongs to epoch {attempt.epoch} number "
                f"{attempt.number}: name another attempt",
            )
        chunk = attempt.chunks.get(key.sequence)
        if chunk is None:
            return None
        if chunk.digest != digest:
            raise _refused(
                ErrorCode.TRANSACTION_CONFLICT,
                f"chunk {key.sequence} of attempt {key.attempt_id} holds another content",
            )
        return next((p for p in reversed(chunk.places) if p.base not in self.released), None)

    def check_room(self, chunk: RowsChunk, limits: StageLimits) -> None:
        """Refuse a new chunk that would pass a limit, naming it.

        Raises:
            KafkaError: MESSAGE_TOO_LARGE for a limit of the transaction,
                THROTTLING_QUOTA_EXCEEDED for one of the stage.
        """
        key = chunk.key
        if key.sequence >= limits.transaction_chunks:
            text = f"chunk {key.sequence}: transaction.max.chunks is {limits.transaction_chunks}"
            raise _refused(ErrorCode.MESSAGE_TOO_LARGE, text)
        attempt = self.attempts.get((key.id, key.attempt_id))
        size_bytes = chunk.size_bytes + (0 if attempt is None else attempt.size_bytes)
        if size_bytes > limits.transaction_bytes:
            text = f"{size_bytes} bytes: transaction.max.bytes is {limits.transaction_bytes}"
            raise _refused(ErrorCode.MESSAGE_TOO_LARGE, text)
        targets = {(target.topic_id, target.partition) for target in chunk.targets}
        count = len(targets if attempt is None else targets | attempt.targets)
        if count > limits.transaction_partitions:
            most = limits.transaction_partitions
            text = f"{count} partitions: transaction.max.partitions is {most}"
            raise _refused(ErrorCode.MESSAGE_TOO_LARGE, text)
        stored = self.stored_bytes + chunk.size_bytes
        stored += RECORD_OVERHEAD_BYTES * len(chunk.targets)
        if stored > limits.staged_bytes:
            text = (
                f"the stage holds its most: transaction.staged.max.bytes is {limits.staged_bytes}"
            )
            raise _refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)
        if len(self.places) >= PLACES_MAX:
            text = f"the stage holds its most: {PLACES_MAX} chunks; bring more rows in each"
            raise _refused(ErrorCode.THROTTLING_QUOTA_EXCEEDED, text)

    # ---- what a commit may name

    def refs(
        self,
        id_: TransactionalId,
        position: tuple[int, int],
        named: AttemptNamed,
        high_watermark: int,
    ) -> AttemptRefs:
        """Return the committed chunks of an attempt that a commit names (rule S9).

        They are complete if exactly the sequences ``0 .. chunks - 1`` hold ``rows`` rows. Chunks
        behind them were sent by an older life of the attempt, and are not taken.
        """
        attempt = self.attempts.get((id_, named.attempt_id))
        if attempt is None or (attempt.epoch, attempt.number) != position:
            return AttemptRefs(attempt_id=named.attempt_id, missing=_missing(named, 0, 0))
        found: list[ChunkPlace] = []
        for sequence in sorted(attempt.chunks):
            place = self.committed_place(attempt.chunks[sequence], high_watermark)
            if place is not None and sequence < named.chunks:
                found.append(place)
        rows = sum(place.chunk.rows for place in found)
        if (len(found), rows) != (named.chunks, named.rows):
            missing = _missing(named, len(found), rows)
            return AttemptRefs(attempt_id=named.attempt_id, missing=missing)
        refs = tuple(
            StagedRef(place.at.moved(part), target)
            for place in found
            for part, target in enumerate(place.targets)
        )
        size_bytes = sum(place.chunk.size_bytes for place in found)
        return AttemptRefs(attempt_id=named.attempt_id, refs=refs, size_bytes=size_bytes)

    def committed_place(self, chunk: StagedChunk, high_watermark: int) -> ChunkPlace | None:
        """Return the newest place that is committed and not let go."""
        for place in reversed(chunk.places):
            if place.end <= high_watermark and place.base not in self.released:
                return place
        return None

    # ---- letting go

    def release(self, base: int) -> None:
        """Note the home's word that the place at this offset may go (rule S10)."""
        place = self.places.get(base)
        if place is not None:
            self.released.add(base)
            self._end_of_life(place)

    def _end_of_life(self, place: ChunkPlace) -> None:
        key = place.chunk.key
        attempt, home = self.attempts.get((key.id, key.attempt_id)), self.home_of(key.id)
        if attempt is not None and place.base in attempt.living:
            del attempt.living[place.base]
            self.living_bytes -= place.stored_bytes
        living = self.homes.get(home, {})
        living.pop(place.base, None)
        if not living:
            self.homes.pop(home, None)

    def first_of_home(self, place: ChunkPlace) -> bool:
        """Return whether no older place of the same home is left."""
        living = self.homes.get(self.home_of(place.chunk.key.id), {})
        return next(iter(living), None) == place.base

    def next_copy(self, place: ChunkPlace, high_watermark: int) -> ChunkPlace | None:
        """Return the committed copy of a place behind it, or None."""
        return next((one for one in _copies(place) if one.end <= high_watermark), None)

    def is_moved(self, place: ChunkPlace) -> bool:
        """Return whether a copy was appended behind this place, committed or not."""
        return any(_copies(place))

    def bytes_blocked(self, place: ChunkPlace) -> int:
        """Return the bytes behind a living place that could go if it did not stand before them.

        Living bytes are not among them, wherever they stand: a large transaction must not be moved
        because of its own chunks, each behind the last one, for as long as it is staged.
        """
        return self.appended_bytes - place.before_bytes - self.living_bytes

    def first_living(self) -> int | None:
        """Return the base offset of the oldest place that no home has let go, or None."""
        return min((next(iter(living)) for living in self.homes.values()), default=None)

    def descriptions(self, now_ms: int) -> Iterator[tuple[TransactionalId, StagedAttempt]]:
        """Yield the attempts that hold rows which no home has let go."""
        for attempt in self.attempts.values():
            if not attempt.living:
                continue
            since_ms = self.places[next(iter(attempt.living))].since_ms
            yield (
                attempt.id,
                StagedAttempt(
                    attempt_id=attempt.attempt_id,
                    chunks=len(attempt.chunks),
                    rows=attempt.rows,
                    bytes=attempt.size_bytes,
                    age_ms=max(0, now_ms - since_ms),
                    number=attempt.number,
                    epoch=attempt.epoch,
                ),
            )


def _copies(place: ChunkPlace) -> Iterator[ChunkPlace]:
    """Yield the copies behind a place: those whose records are the same, in the same order.

    A chunk that was let go and staged anew may have another layout, and a decision may name the
    former place: its commit asked before, and the position was forgotten and decided anew.
    """
    for other in place.chunk.places:
        is_same = (other.layout, other.targets) == (place.layout, place.targets)
        if other.base > place.base and is_same:
            yield other


def _below(offsets: Iterable[int], end: int) -> Iterator[int]:
    """Yield the offsets below ``end`` of an ascending series."""
    for offset in offsets:
        if offset >= end:
            return
        yield offset


def _missing(named: AttemptNamed, chunks: int, rows: int) -> str:
    return (
        f"attempt {named.attempt_id}: {chunks} of {named.chunks} chunks are staged, with {rows} "
        f"rows, the commit names {named.rows}"
    )


def _refused(code: ErrorCode, text: str) -> KafkaError:
    return KafkaError(code, text, outcome=Outcome.NOT_WRITTEN)
