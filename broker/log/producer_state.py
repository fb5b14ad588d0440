"""The idempotent producers of one log: no batch is appended twice, none is skipped. Pure.

KIP-98 and KIP-360. Per producer: its epoch and the sequences and offsets of its last five batches.
The expected sequence is the one behind the last (it wraps to 0 behind 2^31 - 1), or 0 in a newer
epoch; a remembered batch is a duplicate and is answered with its offsets (invariants T1 to T3).

A produce request with a producer id is a single batch, and a log keeps whole batches: so a retry
finds all of its records or none, whatever a crash or a new leader left. A part of a remembered
batch is a duplicate, too, because a stream that is sent again may be cut into other batches.

The state is a function of the log's batches alone (invariant T4): leader, follower and recovery
call `applied` for each batch in order, and a truncation undoes the batches that it removes. Time is
the log's time: the newest append timestamp so far. Producers expire by it, so all replicas forget
the same producers at the same batch; a broker's clock affects only its own appends.

An unknown producer may begin with any sequence (KIP-360). That is safe here: a producer is unknown
only if none of its batches is in this log, or its last one is older than
``producer.id.expiration.ms``; and a batch still remembered is answered as a duplicate even then, so
that a clock that jumps between a write and its retry causes no second append. With acks=all and
clean elections everything acknowledged is in the leader's log, so no acknowledged batch can be
taken for a new one; and a client that retries an unknown outcome retries in order, so a later
batch never overtakes an earlier one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from broker.record.numbering import FIRST_ROW, Numbering, RowNumber, row_number
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BATCHES_REMEMBERED,
    FIRST_RESERVED_PRODUCER_ID,
    SEQUENCES,
    Claim,
    is_reserved,
    next_sequence,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.record.batch import BatchHeader

EXPIRATION_MS = 86_400_000
PRODUCERS_MAX = 10_000
"""Producers of one partition, unless configured: 5 MB of memory and of snapshot."""
UNDO_MAX = 8_192
"""Batches that a truncation can undo without reading the log: 3.5 MB. Only batches not known to be
committed are kept for it: those that a deposed leader wrote alone, or that a crash left. A
truncation further back reads the headers behind the last snapshot, 5 µs each, in turns of the
event loop."""
NEVER_EXPIRES_MS = 1 << 62
"""In place of the time of a home's last batch."""


class RememberedBatch(NamedTuple):
    """A batch of a producer. Both ends are inclusive; sequences may wrap in between."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


class ProducerState(NamedTuple):
    """The state of one producer; immutable, replaced with each batch."""

    epoch: int
    last_ms: int
    """The log's time, in ms, at the producer's last batch."""
    batches: tuple[RememberedBatch, ...]
    """Oldest first: at least one, at most `BATCHES_REMEMBERED`."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence

    @property
    def end(self) -> RowNumber:
        """The row number behind the last row of a home."""
        return RowNumber(row_number(self.epoch, self.batches[-1].last_sequence) + 1)


class _Undo(NamedTuple):
    first_offset: int
    last_offset: int
    producer_id: int
    before: ProducerState | None
    newest_ms: int


class ProducerStates:
    """The producers of one log. Owned by its PartitionLog; a log without producers has none.

    Invariant T3: a producer's epoch never decreases (except by a truncation).
    """

    __slots__ = (
        "_expiration_ms", "_homes", "_newest_ms", "_producers", "_sweep_above", "_undo",
        "_undo_floor", "most",
    )  # fmt: skip

    def __init__(
        self,
        *,
        expiration_ms: int = EXPIRATION_MS,
        most: int = PRODUCERS_MAX,
        end_offset: int = 0,
        newest_ms: int = 0,
        producers: Iterable[tuple[int, ProducerState]] = (),
    ) -> None:
        """Create the state as of ``end_offset`` from ``producers``, the content of a snapshot."""
        self.most = most
        self._expiration_ms = expiration_ms
        self._newest_ms = newest_ms
        self._producers = dict(producers)
        self._homes = {each: self._producers[each] for each in self._producers if is_reserved(each)}
        """States of reserved producer ids. All others are in ``_producers``."""
        for numbering in self._homes:
            del self._producers[numbering]
        self._undo: deque[_Undo] = deque()
        self._undo_floor = end_offset
        self._sweep_above = most

    def __len__(self) -> int:
        return len(self._producers) + len(self._homes)

    @property
    def newest_ms(self) -> int:
        """The log's time: the newest append timestamp so far, in ms."""
        return self._newest_ms

    def items(self) -> Iterator[tuple[int, ProducerState]]:
        """Yield (producer id, producer) of each that has not expired."""
        for producer_id, producer in self._producers.items():
            if not self._is_expired(producer, self._newest_ms):
                yield producer_id, producer
        yield from self._homes.items()

    def end_of(self, numbering: Numbering) -> RowNumber:
        """Return the number of the next row of a home; 0 if it has completed nothing here."""
        home = self._homes.get(numbering)
        return FIRST_ROW if home is None else home.end

    def offset_of(self, numbering: Numbering, number: RowNumber, rows: int) -> int | None:
        """Return the offset of a unit's first row; None if its batch is no longer remembered."""
        home = self._homes.get(numbering)
        if home is None:
            return None
        for batch in home.batches:
            skipped = number - row_number(home.epoch, batch.first_sequence)
            if skipped >= 0 and skipped + rows <= batch.last_offset - batch.first_offset + 1:
                return batch.first_offset + skipped
        return None

    def get(self, producer_id: int) -> ProducerState | None:
        """Return the state of a producer that is known and has not expired, else None."""
        producer = self._of(producer_id).get(producer_id)
        return None if producer is None or self._is_expired(producer, self._newest_ms) else producer

    def check(
        self, claim: Claim, count: int, now_ms: int, *, may_begin: bool = True
    ) -> RememberedBatch | None:
        """Return the batch, or part of one, that ``count`` records of this claim would repeat.

        None: they are to be appended.

        ``may_begin`` False: an unknown producer must begin with 0 (the sender has earlier requests
        of it in flight).

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, POLICY_VIOLATION (too
                many producers): this attempt wrote nothing. DUPLICATE_SEQUENCE_NUMBER: older than
                the remembered batches, so its offset is unknown; outcome unknown.
        """
        producer = self._producers.get(claim.producer_id)
        if producer is None or self._is_expired(producer, max(now_ms, self._newest_ms)):
            # An expired producer still in memory is checked, in case the clock jumped.
            repeated = None if producer is None else _find_duplicate(producer, claim, count)
            if repeated is not None:
                return repeated
            if producer is None and len(self._producers) >= self.most:
                self._check_room(max(now_ms, self._newest_ms))
            if claim.sequence and not may_begin:
                text = f"producer {claim.producer_id} is not known here, expected sequence 0"
                raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)
            return None
        if claim.epoch != producer.epoch:
            _check_newer_epoch(claim, producer)
            return None
        expected = next_sequence(producer.last_sequence)
        if claim.sequence == expected:
            return None
        batch = _find_duplicate(producer, claim, count)
        if batch is not None:
            return batch
        raise _sequence_error(claim, next_sequence(claim.sequence, count - 1), expected)

    def applied(self, header: BatchHeader, committed_end: int = 0) -> None:
        """Account for a batch with a producer id that is now at the end of the log.

        ``committed_end``: no batch below it will be truncated, so none is kept for an undo.
        """
        self.note(
            Claim(header.producer_id, header.producer_epoch, header.base_sequence),
            header.base_offset,
            header.last_offset,
            header.append_timestamp,
            committed_end,
        )

    def note(
        self, claim: Claim, first_offset: int, last_offset: int, append_ms: int, committed_end: int
    ) -> None:
        """Account for a batch as `applied` does, given its fields."""
        producer_id, epoch, sequence = claim
        last = next_sequence(sequence, last_offset - first_offset)
        batch = RememberedBatch(sequence, last, first_offset, last_offset)
        is_home = producer_id >= FIRST_RESERVED_PRODUCER_ID
        producers = self._homes if is_home else self._producers
        before = known = producers.get(producer_id)
        if known is not None:
            if is_home:
                if row_number(epoch, last) < known.end:
                    return  # the leader that told of it had more already
            elif last_offset <= known.batches[-1].last_offset:
                if _includes(known, epoch, batch):
                    return
                known = None  # of a history that an unclean election has ended
        undo = self._undo
        undo.append(_Undo(first_offset, last_offset, producer_id, before, self._newest_ms))
        now_ms = self._newest_ms = max(append_ms, self._newest_ms)
        if known is None or known.epoch != epoch or self._is_expired(known, now_ms):
            kept: tuple[RememberedBatch, ...] = ()
        else:
            kept = known.batches[1 - BATCHES_REMEMBERED :]
        last_ms = NEVER_EXPIRES_MS if is_home else now_ms
        producers[producer_id] = ProducerState(epoch, last_ms, (*kept, batch))
        if len(undo) > UNDO_MAX:
            self._undo_floor = undo.popleft().last_offset + 1
        self.committed(committed_end)
        if len(self._producers) > self._sweep_above:
            self._sweep()

    def committed(self, end_offset: int) -> None:
        """Drop the undo entries below this offset: no truncation will reach them."""
        undo = self._undo
        while undo and undo[0].last_offset < end_offset:
            self._undo_floor = undo.popleft().last_offset + 1

    def reaches(self, end_offset: int) -> bool:
        """Return True if `truncate_to` can undo back to this offset; else the log must be read."""
        return end_offset >= self._undo_floor

    def truncate_to(self, end_offset: int) -> bool:
        """Undo all batches from ``end_offset`` on: a batch boundary, the new log end.

        Returns False if the undo entries do not reach back so far.
        """
        if not self.reaches(end_offset):
            return False
        undo = self._undo
        while undo and undo[-1].first_offset >= end_offset:
            _, _, producer_id, before, self._newest_ms = undo.pop()
            producers = self._of(producer_id)
            if before is None:
                del producers[producer_id]
            else:
                producers[producer_id] = before
        return True

    def as_of(self, end_offset: int) -> ProducerStates | None:
        """Return the state without any batch that ends at or above ``end_offset``, a new object.

        None if the undo entries do not reach back so far.
        """
        if not self.reaches(end_offset):
            return None
        producers, newest_ms = self._producers | self._homes, self._newest_ms
        for each in reversed(self._undo):
            if each.last_offset < end_offset:
                break
            newest_ms = each.newest_ms
            if each.before is None:
                del producers[each.producer_id]
            else:
                producers[each.producer_id] = each.before
        return ProducerStates(
            expiration_ms=self._expiration_ms,
            most=self.most,
            end_offset=end_offset,
            newest_ms=newest_ms,
            producers=producers.items(),
        )

    def _of(self, producer_id: int) -> dict[int, ProducerState]:
        return self._homes if is_reserved(producer_id) else self._producers

    def _is_expired(self, producer: ProducerState, now_ms: int) -> bool:
        return now_ms - producer.last_ms > self._expiration_ms

    def _check_room(self, now_ms: int) -> None:
        live = sum(not self._is_expired(each, now_ms) for each in self._producers.values())
        if live >= self.most:
            text = (
                f"{live} producers have written to this partition within "
                f"producer.id.expiration.ms ({self._expiration_ms}), "
                f"max.producers.per.partition is {self.most}: use fewer, for longer"
            )
            raise KafkaError(ErrorCode.POLICY_VIOLATION, text, outcome=Outcome.NOT_WRITTEN)

    def _sweep(self) -> None:
        """Forget producers that stay expired even if a truncation undoes every batch it can."""
        sure_ms = self._undo[0].newest_ms if self._undo else self._newest_ms
        self._producers = {
            producer_id: producer
            for producer_id, producer in self._producers.items()
            if not self._is_expired(producer, sure_ms)
        }
        self._sweep_above = max(self.most, len(self._producers) + self.most // 8)


def _includes(producer: ProducerState, epoch: int, batch: RememberedBatch) -> bool:
    """Return whether this state, told by a leader, is of a log that has this batch.

    Only the batch's end counts: a log that begins inside a batch has the rest of it.
    """
    if batch.last_offset < producer.batches[0].last_offset:
        return True
    return producer.epoch == epoch and any(
        (each.last_sequence, each.last_offset) == (batch.last_sequence, batch.last_offset)
        for each in producer.batches
    )


def _find_duplicate(producer: ProducerState, claim: Claim, count: int) -> RememberedBatch | None:
    """Return the remembered batch, or the part of one, that ``count`` records of this claim repeat.

    None: there is none that holds all of them.
    """
    for batch in producer.batches if claim.epoch == producer.epoch else ():
        skipped = (claim.sequence - batch.first_sequence) % SEQUENCES
        if skipped + count <= batch.last_offset - batch.first_offset + 1:
            first = batch.first_offset + skipped
            last_sequence = next_sequence(claim.sequence, count - 1)
            return RememberedBatch(claim.sequence, last_sequence, first, first + count - 1)
    return None


def _check_newer_epoch(claim: Claim, producer: ProducerState) -> None:
    if claim.epoch < producer.epoch:
        text = (
            f"producer {claim.producer_id} wrote with epoch {producer.epoch} already, "
            f"epoch {claim.epoch} is over"
        )
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, text)
    if claim.sequence != 0:
        text = (
            f"producer {claim.producer_id} begins epoch {claim.epoch} with sequence "
            f"{claim.sequence}, expected 0"
        )
        raise KafkaError(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, text)


def _sequence_error(claim: Claim, last: int, expected: int) -> KafkaError:
    """Return the error of a sequence that is neither expected nor remembered.

    Half of the sequence circle counts as older than the remembered batches, half as a gap.
    """
    prefix = f"producer {claim.producer_id}, epoch {claim.epoch}: sequence {claim.sequence}"
    if (expected - 1 - last) % SEQUENCES < SEQUENCES // 2:
        text = f"{prefix} is older than the last {BATCHES_REMEMBERED} batches, expected {expected}"
        return KafkaError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, text, outcome=Outcome.UNKNOWN)
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{prefix} is out of order, expected {expected}"
    )
