"""What a log remembers of the producers that write to it: no batch twice, none missing. Pure.

KIP-98 and KIP-360. Per producer: its epoch and the sequences and offsets of its last five batches.
Accepted is the sequence behind the last one (it wraps to 0 behind 2^31 - 1), or 0 in a newer epoch;
a batch that is remembered is a duplicate and is answered with its offsets (invariants T1 to T3).

One produce with a producer id is one batch, and a log keeps whole batches: so a retry finds its
records all there or none of them, whatever a crash or a new leader left.

The state is a function of the log's batches alone (invariant T4): leader, follower and recovery
call `applied` for each batch in order, and a truncation takes the batches that are cut off back.
Time is the log's, too: the newest append timestamp so far. Expiry goes by it, so all replicas
forget the same producers at the same batch; a broker's clock decides nothing but its own appends.

A producer that is not known may begin with any sequence (KIP-360). That is safe here: nothing is
known of a producer only where none of its batches is in this log, or its last one is older than
``producer.id.expiration.ms``; and what is remembered even then is answered as a repeat all the
same, so that a clock that jumps between a write and its repeat makes no second one. With acks=all
and clean elections everything acknowledged is in the leader's log, so nothing acknowledged can be
repeated by being taken for new; and who retries an unknown outcome retries in order, so an earlier
batch is never left behind by a later one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.producer_claims import (
    BATCHES_REMEMBERED,
    SEQUENCES,
    Claim,
    next_sequence,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from broker.record.batch import BatchHeader

EXPIRATION_MS = 86_400_000
PRODUCERS_MAX = 10_000
"""Of one partition, unless configured: 5 MB of memory and of snapshot."""
UNDO_MAX = 8_192
"""Batches that a truncation can take back without reading the log: 3.5 MB. Only what is not known
to be committed is kept for it, which is what a deposed leader wrote alone, or a crash left. A
truncation further back reads the headers behind the last snapshot, 5 µs each, while the loop
waits."""


class Remembered(NamedTuple):
    """One batch of a producer. Both ends are inclusive; sequences may wrap in between."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int


class Producer(NamedTuple):
    """What is known of one producer: never changed, only replaced."""

    epoch: int
    last_ms: int
    """The log's time at its last batch."""
    batches: tuple[Remembered, ...]
    """Oldest first: at least one, at most `BATCHES_REMEMBERED`."""

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence


class _Undo(NamedTuple):
    first_offset: int
    last_offset: int
    producer_id: int
    before: Producer | None
    newest_ms: int


class ProducerStates:
    """The producers of one log. Owned by its PartitionLog; a log without producers has none.

    Invariant T3: a producer's epoch never goes back (but with a truncation).
    """

    __slots__ = (
        "_expiration_ms", "_newest_ms", "_producers", "_sweep_above", "_undo", "_undo_floor",
        "most",
    )  # fmt: skip

    def __init__(
        self,
        *,
        expiration_ms: int = EXPIRATION_MS,
        most: int = PRODUCERS_MAX,
        end_offset: int = 0,
        newest_ms: int = 0,
        producers: Iterable[tuple[int, Producer]] = (),
    ) -> None:
        """``producers`` as of ``end_offset``: what a snapshot holds."""
        self.most = most
        self._expiration_ms = expiration_ms
        self._newest_ms = newest_ms
        self._producers = dict(producers)
        self._undo: deque[_Undo] = deque()
        self._undo_floor = end_offset
        self._sweep_above = most

    def __len__(self) -> int:
        return len(self._producers)

    @property
    def newest_ms(self) -> int:
        """The log's time."""
        return self._newest_ms

    def items(self) -> Iterator[tuple[int, Producer]]:
        """(producer id, what is known), without those that are expired."""
        for producer_id, producer in self._producers.items():
            if not self._is_expired(producer, self._newest_ms):
                yield producer_id, producer

    def get(self, producer_id: int) -> Producer | None:
        """What is known of a producer now."""
        producer = self._producers.get(producer_id)
        return None if producer is None or self._is_expired(producer, self._newest_ms) else producer

    def check(
        self, claim: Claim, count: int, now_ms: int, *, may_begin: bool = True
    ) -> Remembered | None:
        """Before a leader appends ``count`` records: None, or the batch this one repeats.

        ``may_begin`` False: an unknown producer must begin with 0 (the sender has others before
        this one under way).

        Raises:
            KafkaError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, POLICY_VIOLATION (too
                many producers): this attempt wrote nothing. DUPLICATE_SEQUENCE_NUMBER: older than
                what is remembered, so nobody knows its offset any more; outcome unknown.
        """
        producer = self._producers.get(claim.producer_id)
        if producer is None or self._is_expired(producer, max(now_ms, self._newest_ms)):
            # Who is expired and still remembered is not forgotten for a clock that jumped.
            repeated = None if producer is None else _repeated(producer, claim, count)
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
        batch = _repeated(producer, claim, count)
        if batch is not None:
            return batch
        raise _not_next(claim, next_sequence(claim.sequence, count - 1), expected)

    def applied(self, header: BatchHeader, committed_end: int = 0) -> None:
        """A batch with a producer id now stands at the end of the log.

        ``committed_end``: nothing below it will be cut off, so it need not be taken back.
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
        """`applied`, in plain numbers."""
        producer_id, epoch, sequence = claim
        last = next_sequence(sequence, last_offset - first_offset)
        batch = Remembered(sequence, last, first_offset, last_offset)
        before = self._producers.get(producer_id)
        undo = self._undo
        undo.append(_Undo(first_offset, last_offset, producer_id, before, self._newest_ms))
        now_ms = self._newest_ms = max(append_ms, self._newest_ms)
        if before is None or before.epoch != epoch or self._is_expired(before, now_ms):
            kept: tuple[Remembered, ...] = ()
        else:
            kept = before.batches[1 - BATCHES_REMEMBERED :]
        self._producers[producer_id] = Producer(epoch, now_ms, (*kept, batch))
        if len(undo) > UNDO_MAX:
            self._undo_floor = undo.popleft().last_offset + 1
        self.committed(committed_end)
        if len(self._producers) > self._sweep_above:
            self._sweep()

    def committed(self, end_offset: int) -> None:
        """Nothing below this offset will be cut off: how to take it back is forgotten."""
        undo = self._undo
        while undo and undo[0].last_offset < end_offset:
            self._undo_floor = undo.popleft().last_offset + 1

    def reaches(self, end_offset: int) -> bool:
        """Whether `truncate_to` can go back so far; else the state is to be made of the log."""
        return end_offset >= self._undo_floor

    def truncate_to(self, end_offset: int) -> bool:
        """Take back what stands from this offset on: a batch boundary, the new log end.

        False: too far back to be remembered.
        """
        if not self.reaches(end_offset):
            return False
        undo = self._undo
        while undo and undo[-1].first_offset >= end_offset:
            _, _, producer_id, before, self._newest_ms = undo.pop()
            if before is None:
                del self._producers[producer_id]
            else:
                self._producers[producer_id] = before
        return True

    def _is_expired(self, producer: Producer, now_ms: int) -> bool:
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
        """Forget who is expired, whatever a truncation may take back."""
        sure_ms = self._undo[0].newest_ms if self._undo else self._newest_ms
        self._producers = {
            producer_id: producer
            for producer_id, producer in self._producers.items()
            if not self._is_expired(producer, sure_ms)
        }
        self._sweep_above = max(self.most, len(self._producers) + self.most // 8)


def _repeated(producer: Producer, claim: Claim, count: int) -> Remembered | None:
    """The remembered batch that so many records of this claim are."""
    last = next_sequence(claim.sequence, count - 1)
    for batch in producer.batches if claim.epoch == producer.epoch else ():
        if batch.first_sequence == claim.sequence and batch.last_sequence == last:
            return batch
    return None


def _check_newer_epoch(claim: Claim, producer: Producer) -> None:
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


def _not_next(claim: Claim, last: int, expected: int) -> KafkaError:
    """A gap, or something older than what is remembered: half the circle lies on either side."""
    said = f"producer {claim.producer_id}, epoch {claim.epoch}: sequence {claim.sequence}"
    if (expected - 1 - last) % SEQUENCES < SEQUENCES // 2:
        text = f"{said} is older than the last {BATCHES_REMEMBERED} batches, expected {expected}"
        return KafkaError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, text, outcome=Outcome.UNKNOWN)
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{said} is out of order, expected {expected}"
    )
