"""Idempotent, ordered sending of produces to one partition's leader (rule F1).

Pure: decisions only.

A broker that forwards produces and the SDK's producer both use it. The caller adds produces, sends
every batch that `due` returns and reports how each attempt ended.

Each request to the leader is one batch with a producer id, producer epoch and sequence, so that a
request whose answer was lost is sent again, to the same leader or the next one, and is appended
once. Produces that gather while requests are in flight are sent as one batch. At most five requests
are in flight, because a log remembers five batches of a producer; after any failure only the first
one is sent until it is answered, so that a new leader receives them in order.

Two rules keep the sequences correct. A batch that may have been appended (*doubtful*) keeps its
sequence, and its clients get an unknown outcome if their deadline passes first. A batch that surely
was not appended leaves a gap (*broken*): nothing new is numbered until no doubtful batch is left,
the others are then renumbered in the next producer epoch, and any leftover of the old epoch, in the
network or on a deposed leader, is refused because of that epoch.

A batch that is refused because of one of its records is taken apart, if its produces can be, until
that record is alone: the others are written, in order, in the next producer epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, auto
from typing import Final

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BATCHES_REMEMBERED, EPOCH_MAX, Claim, next_sequence

IN_FLIGHT_MAX = BATCHES_REMEMBERED
"""Requests in flight at once: a repeat of an older one would not be recognized by the log."""
BATCH_TEXT_BYTES_MAX = 1_048_576
"""JSON bytes of the produces that are sent as one batch; 1 MiB is a good size for a batch."""
BATCH_RECORDS_MAX = 10_000
"""Records of one batch: the leader decodes them in one turn of its event loop, some 5 ms."""
SPARE_EPOCHS = 100
"""Producer epochs left when another producer id is requested."""

Done = Callable[[int, KafkaError | None], None]

RETRIABLE_REFUSALS = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.METADATA_BEHIND,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Refusals after which another leader, or the same one a moment later, may accept the batch."""
_SEQUENCE_REFUSALS = frozenset(
    {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH}
)
CONTENT_REFUSALS = frozenset(
    {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP}
)
"""Refusals because of single records, which under a sequence refuse all of a batch."""


class PendingProduce:
    """A client's produce: its records as JSON text, its deadline and its completion callback."""

    __slots__ = ("count", "deadline_ms", "done", "is_alone", "kind", "text")

    def __init__(
        self,
        text: bytes,
        count: int,
        kind: tuple[int, ...],
        deadline_ms: int,
        done: Done,
    ) -> None:
        self.text = text
        """The elements of a produce body's ``records``, without the brackets."""
        self.count = count
        self.kind = kind
        """Formats and acks as numbers; all produces of one batch have the same."""
        self.deadline_ms = deadline_ms
        self.done: Done | None = done
        """Called once with the base offset or the error; None after the call."""
        self.is_alone = False
        """True if no batch may hold another produce beside it: a batch with it was refused."""

    def split(self, at: int | None) -> Sequence[PendingProduce]:
        """Return this produce in parts, in order, or nothing if it can't be taken apart.

        ``at`` is the index of the record that was refused, which becomes a part of its own; None:
        it is not known. The parts are completed in place of this produce.
        """
        return ()

    def settle(self, base_offset: int, error: KafkaError | None = None) -> None:
        """Complete the produce: call ``done`` on the first call, do nothing on a later one.

        ``base_offset`` is -1 with an error and for acks=0.
        """
        done, self.done = self.done, None
        if done is not None:
            done(base_offset, error)


class BatchState(IntEnum):
    """Knowledge of the sender about one batch and its attempts.

    An attempt is under way in SENDING, RESENDING and SENDING_VOID.
    """

    READY = auto()
    """No attempt was made, or every attempt surely appended nothing."""
    SENDING = auto()
    DOUBTFUL = auto()
    """An attempt had an unknown outcome, so the batch may have been appended."""
    RESENDING = auto()
    """Another attempt is under way after one with an unknown outcome."""
    VOID = auto()
    """Surely never appended under its sequence: a batch before it left a gap."""
    SENDING_VOID = auto()
    """Void, with an attempt under way that was made before the gap was known."""


class BatchEvent(IntEnum):
    """Events that change a batch's state."""

    SENT = auto()
    REFUSED = auto()
    """The attempt surely appended nothing."""
    UNKNOWN = auto()
    """The attempt may have appended the batch."""
    VOIDED = auto()
    """A batch before this one surely is not appended, so every log refuses this one."""


_S, _E = BatchState, BatchEvent
TRANSITIONS: Final[Mapping[tuple[BatchState, BatchEvent], BatchState]] = {
    (_S.READY, _E.SENT): _S.SENDING,
    (_S.READY, _E.VOIDED): _S.VOID,
    (_S.SENDING, _E.REFUSED): _S.READY,
    (_S.SENDING, _E.UNKNOWN): _S.DOUBTFUL,
    (_S.SENDING, _E.VOIDED): _S.SENDING_VOID,
    (_S.DOUBTFUL, _E.SENT): _S.RESENDING,
    (_S.DOUBTFUL, _E.VOIDED): _S.VOID,
    # A refusal proves nothing about the earlier attempt: the batch may stand in the log already.
    (_S.RESENDING, _E.REFUSED): _S.DOUBTFUL,
    (_S.RESENDING, _E.UNKNOWN): _S.DOUBTFUL,
    (_S.RESENDING, _E.VOIDED): _S.SENDING_VOID,
    (_S.VOID, _E.VOIDED): _S.VOID,
    (_S.SENDING_VOID, _E.REFUSED): _S.VOID,
    (_S.SENDING_VOID, _E.UNKNOWN): _S.VOID,
    (_S.SENDING_VOID, _E.VOIDED): _S.SENDING_VOID,
}
"""Every step that a batch can take. An answer that it was appended removes it from the sender."""

_ATTEMPT_UNDER_WAY = frozenset({_S.SENDING, _S.RESENDING, _S.SENDING_VOID})
_MAY_BE_APPENDED = frozenset({_S.DOUBTFUL, _S.RESENDING})


class InFlightBatch:
    """Produces that are sent as one batch under one sequence; ``text`` never changes."""

    __slots__ = ("claim", "count", "error", "members", "ordinal", "state", "text", "was_first")

    def __init__(self, members: list[PendingProduce], claim: Claim, ordinal: int) -> None:
        self.ordinal = ordinal
        """Number of batches that this sender numbered before this one."""
        self.members = members
        self.claim = claim
        self.count = sum(member.count for member in members)
        self.text = b",".join([member.text for member in members])
        self.state = BatchState.READY
        self.was_first = False
        """True if no earlier batch was in flight at its last attempt."""
        self.error: KafkaError | None = None
        """The error of the last attempt, or None."""

    def step(self, event: BatchEvent) -> None:
        """Change the state as `TRANSITIONS` says; KeyError for a step that no batch can take."""
        self.state = TRANSITIONS[self.state, event]

    @property
    def is_under_way(self) -> bool:
        """True while an attempt has not been answered."""
        return self.state in _ATTEMPT_UNDER_WAY

    @property
    def is_doubtful(self) -> bool:
        """True if an earlier attempt may have appended the batch."""
        return self.state in _MAY_BE_APPENDED

    @property
    def is_in_doubt(self) -> bool:
        """True if a client whose deadline passes now cannot be told that it was not written."""
        return self.is_under_way or self.is_doubtful

    @property
    def first(self) -> PendingProduce:
        return self.members[0]

    def split(self, at: int | None) -> bool:
        """Take the batch apart, so that its produces are sent one by one; False if it can't be.

        ``at`` is the index of the refused record in the batch, if it is known.
        """
        parts: list[PendingProduce] = []
        for member in self.members:
            is_refused = at is not None and 0 <= at < member.count
            if is_refused or len(self.members) == 1:
                parts += member.split(at) or (member,)
            else:
                parts.append(member)
            at = None if at is None else at - member.count
        if len(parts) == 1:
            return False
        for part in parts:
            part.is_alone = True
        self.members = parts
        return True

    @property
    def deadline_ms(self) -> int:
        """The latest deadline of its produces."""
        return max(member.deadline_ms for member in self.members)

    @property
    def is_awaited(self) -> bool:
        """True while a produce of this batch has not been completed."""
        return any(member.done is not None for member in self.members)

    @property
    def is_partly_complete(self) -> bool:
        """True once a produce of this batch has been completed."""
        return any(member.done is None for member in self.members)


class SequencedSender:
    """The ordered stream of produces from one sender to one partition.

    One sender carries produces of one strength (acks=all, or less). The caller calls `due` until
    it returns None, sends each batch, reports `succeeded` or `failed` for each, and calls `expire`
    as time passes; after each of these calls `due` may return a batch again.
    """

    __slots__ = (
        "_batches_formed",
        "_can_batch",
        "_epoch",
        "_has_gap",
        "_in_flight",
        "_producer_id",
        "_queue",
        "_sends_one_at_a_time",
        "_sequence",
        "spare_producer_id",
    )  # fmt: skip

    def __init__(self, producer_id: int, *, can_batch: bool = True) -> None:
        """Start with the first epoch of ``producer_id``.

        ``can_batch`` False sends each produce as a request of its own, so that each is refused
        alone.
        """
        self._producer_id = producer_id
        self._can_batch = can_batch
        self._epoch = 0
        self._sequence = 0
        self._batches_formed = 0
        self._queue: deque[PendingProduce] = deque()
        self._in_flight: list[InFlightBatch] = []
        self._sends_one_at_a_time = True
        self._has_gap = False
        self.spare_producer_id: int | None = None
        """The producer id to use once the epochs are used up; None: not requested or used."""

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._in_flight

    @property
    def needs_producer_id(self) -> bool:
        """True if the epochs are nearly used up and the caller should set `spare_producer_id`."""
        return self._epoch > EPOCH_MAX - SPARE_EPOCHS and self.spare_producer_id is None

    @property
    def has_failed(self) -> bool:
        """True if the first batch in flight is to be sent again: later, or to another leader."""
        return (
            bool(self._in_flight)
            and self._sends_one_at_a_time
            and not self._in_flight[0].is_under_way
        )

    def add(self, waiting: PendingProduce) -> None:
        """Append a produce to the queue."""
        self._queue.append(waiting)

    def is_head(self, batch: InFlightBatch) -> bool:
        """Return True if no earlier batch is in flight.

        Only then may the batch introduce the producer to the leader.
        """
        return self._in_flight[0] is batch

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a pending produce, when `expire` is due; or None."""
        waiting = [member for each in self._in_flight for member in each.members]
        deadlines = [each.deadline_ms for each in (*waiting, *self._queue) if each.done is not None]
        return min(deadlines, default=None)

    def due(self) -> InFlightBatch | None:
        """Return the next batch to send and mark it as in flight, or None."""
        for batch in self._in_flight:
            if batch.is_under_way:
                if self._sends_one_at_a_time:
                    return None
            elif batch.is_doubtful or not self._has_gap:
                batch.step(BatchEvent.SENT)
                batch.was_first = batch is self._in_flight[0]
                return batch
        if self._has_gap or not self._queue:
            return None
        if self._in_flight:
            # Batches answered since count too: a log remembers only the newest ones.
            span = self._batches_formed - self._in_flight[0].ordinal
            if self._sends_one_at_a_time or span >= IN_FLIGHT_MAX:
                return None
        batch = self._form_batch()
        batch.step(BatchEvent.SENT)
        batch.was_first = not self._in_flight
        self._in_flight.append(batch)
        return batch

    def _form_batch(self) -> InFlightBatch:
        """Form the next batch from queued produces of one kind and give it its sequence."""
        members = [self._queue.popleft()]
        size, count = len(members[0].text), members[0].count
        while self._queue and self._can_batch and self._can_join(members[0], self._queue[0]):
            size += 1 + len(self._queue[0].text)
            count += self._queue[0].count
            if size > BATCH_TEXT_BYTES_MAX or count > BATCH_RECORDS_MAX:
                break
            members.append(self._queue.popleft())
        claim = Claim(self._producer_id, self._epoch, self._sequence)
        batch = InFlightBatch(members, claim, self._batches_formed)
        self._batches_formed += 1
        self._sequence = next_sequence(self._sequence, batch.count)
        return batch

    @staticmethod
    def _can_join(first: PendingProduce, other: PendingProduce) -> bool:
        return first.kind == other.kind and not (first.is_alone or other.is_alone)

    def succeeded(self, batch: InFlightBatch, base_offset: int) -> None:
        """Complete the produces of a batch that was appended at ``base_offset``; -1 for acks=0."""
        self._in_flight.remove(batch)
        self._sends_one_at_a_time = False
        at = base_offset
        for member in batch.members:
            member.settle(at)
            if at >= 0:
                at += member.count
        self._begin_next_epoch()

    def failed(
        self,
        batch: InFlightBatch,
        error: KafkaError,
        *,
        is_final: bool = False,
        refused_record: int | None = None,
    ) -> None:
        """Record a failed attempt; if the batch can be sent again, a later `due` returns it.

        ``is_final``: no retry can succeed, because the partition no longer exists.
        ``refused_record``: index in the batch of the record that one of `CONTENT_REFUSALS` is
        about, if it is known.
        """
        was_doubtful = batch.is_doubtful
        is_unknown = error.outcome is Outcome.UNKNOWN
        batch.step(BatchEvent.UNKNOWN if is_unknown else BatchEvent.REFUSED)
        batch.error = error
        self._sends_one_at_a_time = True
        # A repeat that is refused for a record proves that the log does not hold the batch, but not
        # that an earlier attempt, still on its way, would be refused too.
        is_refused_for_good = is_final or error.code in CONTENT_REFUSALS
        is_repeat_refused = was_doubtful and is_refused_for_good
        if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER or is_repeat_refused:
            error = KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN)
            self._give_up(batch, error)  # its offset is not known, and a retry can't tell
        elif batch.state is BatchState.VOID:
            self._has_gap = True
        elif batch.state is BatchState.READY:
            self._refused(batch, error, is_final=is_final, refused_record=refused_record)
        self._begin_next_epoch()

    def _refused(
        self,
        batch: InFlightBatch,
        error: KafkaError,
        *,
        is_final: bool,
        refused_record: int | None,
    ) -> None:
        """Retry, renumber, take apart or give up a batch that surely is not appended."""
        is_early = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not batch.was_first
        if batch.is_partly_complete:
            self._has_gap = True  # renumber it, without the produces completed already
        elif is_early:
            pass  # overtook the one before it on another connection: retry in its turn
        elif error.code in _SEQUENCE_REFUSALS:
            self._has_gap = True
        elif error.code in CONTENT_REFUSALS and batch.split(refused_record):
            self._has_gap = True  # renumber the parts
        elif is_final or error.code not in RETRIABLE_REFUSALS:
            self._give_up(batch, error)

    def _give_up(self, batch: InFlightBatch, error: KafkaError) -> None:
        """Complete the produces of a batch with the error and start renumbering the others."""
        if error.outcome is Outcome.NOT_WRITTEN:
            self._mark_void_behind(self._in_flight.index(batch))
        self._in_flight.remove(batch)
        self._has_gap = True
        for member in batch.members:
            member.settle(-1, error)

    def _mark_void_behind(self, gap: int) -> None:
        """Mark every batch behind place ``gap`` as surely not appended.

        The batch at that place is not appended and never will be under its sequence. Those behind
        it were never sent as the first one, so a log that lacks it refuses them.
        """
        for batch in self._in_flight[gap + 1 :]:
            batch.step(BatchEvent.VOIDED)

    def give_up(self) -> None:
        """Complete all produces because the sender stops.

        Produces that may have been appended get an unknown outcome, the others NOT_WRITTEN.
        """
        for batch in self._in_flight:
            error = _expiry_error(batch.error, in_doubt=batch.is_in_doubt)
            for member in batch.members:
                member.settle(-1, error)
        for member in self._queue:
            member.settle(-1, _expiry_error(None, in_doubt=False))
        self._in_flight.clear()
        self._queue.clear()

    def expire(self, now_ms: int) -> None:
        """Complete the produces whose deadline has passed.

        Those that may have been appended get an unknown outcome, the others NOT_WRITTEN.
        """
        for batch in self._in_flight:
            if any(each.done and each.deadline_ms <= now_ms for each in batch.members):
                in_doubt = batch.is_in_doubt
                error = _expiry_error(batch.error, in_doubt=in_doubt)
                # A produce reported as not written is never sent again: give up this sequence.
                self._has_gap |= not in_doubt
                for member in batch.members:
                    if member.deadline_ms <= now_ms:
                        member.settle(-1, error)
        if any(each.deadline_ms <= now_ms for each in self._queue):
            last = self._in_flight[0].error if self._in_flight else None
            late = [each for each in self._queue if each.deadline_ms <= now_ms]
            self._queue = deque(each for each in self._queue if each.deadline_ms > now_ms)
            for member in late:
                member.settle(-1, _expiry_error(last, in_doubt=False))
        self._begin_next_epoch()

    def _begin_next_epoch(self) -> None:
        """Begin the next producer epoch once no client waits for a doubtful batch of the old one.

        Does nothing while the sequences have no gap, or while the epochs are used up and no spare
        id is set.
        """
        if self._has_gap:
            for at, batch in enumerate(self._in_flight):
                if not batch.is_in_doubt:
                    self._mark_void_behind(at)
                    break
        for batch in self._in_flight:
            if batch.is_under_way or (batch.is_doubtful and batch.is_awaited):
                return
        if any(batch.is_doubtful for batch in self._in_flight):
            self._has_gap = True
        used_up = self._epoch == EPOCH_MAX
        if not self._has_gap or (used_up and self.spare_producer_id is None):
            return
        again = [
            member
            for batch in self._in_flight
            if not batch.is_doubtful
            for member in batch.members
            if member.done is not None
        ]
        self._in_flight.clear()
        self._queue.extendleft(reversed(again))
        self._epoch += 1
        if used_up and self.spare_producer_id is not None:
            self._producer_id, self.spare_producer_id, self._epoch = self.spare_producer_id, None, 0
        self._sequence = 0
        self._has_gap = False
        self._sends_one_at_a_time = True


def _expiry_error(last: KafkaError | None, *, in_doubt: bool) -> KafkaError:
    """Return the error for a produce whose deadline has passed, given the last attempt's error."""
    if in_doubt:
        if last is not None and last.outcome is Outcome.UNKNOWN:
            return last
        return KafkaError(ErrorCode.REQUEST_TIMED_OUT, "the leader did not answer in time")
    said = "" if last is None else f": {last.message}"
    return KafkaError(
        ErrorCode.LEADER_NOT_AVAILABLE,
        f"no leader took the request in time{said}",
        outcome=Outcome.NOT_WRITTEN,
    )
