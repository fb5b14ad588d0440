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
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.producer_claims import (
    BATCHES_REMEMBERED,
    EPOCH_MAX,
    Claim,
    next_sequence,
)

IN_FLIGHT_MAX = BATCHES_REMEMBERED
"""Requests in flight at once: a repeat of an older one would not be recognized by the log."""
TOGETHER_BYTES_MAX = 1_048_576
"""JSON bytes of the produces that are sent as one batch; 1 MiB is a good size for a batch."""
TOGETHER_RECORDS_MAX = 10_000
"""Records of one batch: the leader decodes them in one turn of its event loop, some 5 ms."""
SPARE_EPOCHS = 100
"""Producer epochs left when another producer id is requested."""

Done = Callable[[int, KafkaError | None], None]

REROUTED = frozenset(
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
_OUT_OF_STEP = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})


class Waiting:
    """A client's produce: its records as JSON text, its deadline and its completion callback."""

    __slots__ = ("count", "deadline_ms", "done", "kind", "text")

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

    def settle(self, base_offset: int, error: KafkaError | None = None) -> None:
        """Complete the produce: call ``done`` on the first call, do nothing on a later one.

        ``base_offset`` is -1 with an error and for acks=0.
        """
        done, self.done = self.done, None
        if done is not None:
            done(base_offset, error)


class Crossing:
    """Produces that are sent as one batch under one sequence; ``text`` never changes."""

    __slots__ = (
        "calling", "claim", "count", "doubtful", "error", "members", "ordinal", "text", "void",
        "was_first",
    )  # fmt: skip

    def __init__(self, members: list[Waiting], claim: Claim, ordinal: int) -> None:
        self.ordinal = ordinal
        """Number of batches that this channel numbered before this one."""
        self.members = members
        self.claim = claim
        self.count = sum(member.count for member in members)
        self.text = b",".join([member.text for member in members])
        self.calling = False
        self.was_first = False
        """True if no earlier batch was in flight at its last attempt."""
        self.doubtful = False
        """True if an attempt had an unknown outcome, so the batch may have been appended."""
        self.void = False
        """True if it was sent behind a batch that surely is not appended, so no log took it."""
        self.error: KafkaError | None = None
        """The error of the last attempt, or None."""

    @property
    def first(self) -> Waiting:
        return self.members[0]

    @property
    def deadline_ms(self) -> int:
        """The latest deadline of its produces."""
        return max(member.deadline_ms for member in self.members)

    @property
    def is_awaited(self) -> bool:
        """True while a produce of this batch has not been completed."""
        return any(member.done is not None for member in self.members)

    @property
    def has_settled(self) -> bool:
        """True once a produce of this batch has been completed."""
        return any(member.done is None for member in self.members)


class WriteChannel:
    """The ordered stream of produces from one sender to one partition.

    One channel carries produces of one strength (acks=all, or less). The caller calls `due` until
    it returns None, sends each batch, reports `succeeded` or `failed` for each, and calls `expire`
    as time passes; after each of these calls `due` may return a batch again.
    """

    __slots__ = (
        "_broken",
        "_careful",
        "_epoch",
        "_flight",
        "_numbered",
        "_producer_id",
        "_queue",
        "_sequence",
        "_together",
        "spare_id",
    )  # fmt: skip

    def __init__(self, producer_id: int, *, together: bool = True) -> None:
        """Start with the first epoch of ``producer_id``.

        ``together`` False sends each produce as a request of its own, so that each is refused
        alone.
        """
        self._producer_id = producer_id
        self._together = together
        self._epoch = 0
        self._sequence = 0
        self._numbered = 0
        self._queue: deque[Waiting] = deque()
        self._flight: list[Crossing] = []
        self._careful = True
        self._broken = False
        self.spare_id: int | None = None
        """The producer id to use once the epochs are used up; None: not requested or used."""

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._flight

    @property
    def wants_id(self) -> bool:
        """True if the epochs are nearly used up and the caller should set `spare_id`."""
        return self._epoch > EPOCH_MAX - SPARE_EPOCHS and self.spare_id is None

    @property
    def has_failed(self) -> bool:
        """True if the first batch in flight is to be sent again: later, or to another leader."""
        return bool(self._flight) and self._careful and not self._flight[0].calling

    def add(self, waiting: Waiting) -> None:
        """Append a produce to the queue."""
        self._queue.append(waiting)

    def is_head(self, crossing: Crossing) -> bool:
        """Return True if no earlier batch is in flight.

        Only then may the batch introduce the producer to the leader.
        """
        return self._flight[0] is crossing

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline of a pending produce, when `expire` is due; or None."""
        waiting = [member for each in self._flight for member in each.members]
        deadlines = [each.deadline_ms for each in (*waiting, *self._queue) if each.done is not None]
        return min(deadlines, default=None)

    def due(self) -> Crossing | None:
        """Return the next batch to send and mark it as in flight, or None."""
        for crossing in self._flight:
            if crossing.calling:
                if self._careful:
                    return None
            elif crossing.doubtful or not self._broken:
                crossing.calling = True
                crossing.was_first = crossing is self._flight[0]
                return crossing
        if self._broken or not self._queue:
            return None
        if self._flight:
            # Batches answered since count too: a log remembers only the newest ones.
            span = self._numbered - self._flight[0].ordinal
            if self._careful or span >= IN_FLIGHT_MAX:
                return None
        crossing = self._number()
        crossing.calling = True
        crossing.was_first = not self._flight
        self._flight.append(crossing)
        return crossing

    def _number(self) -> Crossing:
        """Form the next batch from queued produces of one kind and give it its sequence."""
        members = [self._queue.popleft()]
        size, count = len(members[0].text), members[0].count
        while self._queue and self._together and self._queue[0].kind == members[0].kind:
            size += 1 + len(self._queue[0].text)
            count += self._queue[0].count
            if size > TOGETHER_BYTES_MAX or count > TOGETHER_RECORDS_MAX:
                break
            members.append(self._queue.popleft())
        claim = Claim(self._producer_id, self._epoch, self._sequence)
        crossing = Crossing(members, claim, self._numbered)
        self._numbered += 1
        self._sequence = next_sequence(self._sequence, crossing.count)
        return crossing

    def succeeded(self, crossing: Crossing, base_offset: int) -> None:
        """Complete the produces of a batch that was appended at ``base_offset``; -1 for acks=0."""
        crossing.calling = False
        self._flight.remove(crossing)
        self._careful = False
        at = base_offset
        for member in crossing.members:
            member.settle(at)
            if at >= 0:
                at += member.count
        self._mend()

    def failed(self, crossing: Crossing, error: KafkaError, *, is_final: bool = False) -> None:
        """Record a failed attempt; if the batch can be sent again, a later `due` returns it.

        ``is_final``: no retry can succeed, because the partition no longer exists.
        """
        crossing.calling = False
        crossing.error = error
        self._careful = True
        if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER or (is_final and crossing.doubtful):
            error = KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN)
            self._give_up(crossing, error)  # its offset is not known, and a retry can't tell
        elif error.outcome is Outcome.UNKNOWN and not crossing.void:
            crossing.doubtful = True
        elif not crossing.doubtful:
            early = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not crossing.was_first
            if crossing.void or crossing.has_settled:
                self._broken = True  # renumber it, without the produces completed already
            elif early:
                pass  # overtook the one before it on another connection: retry in its turn
            elif error.code in _OUT_OF_STEP:
                self._broken = True
            elif is_final or error.code not in REROUTED:
                self._give_up(crossing, error)
        self._mend()

    def _give_up(self, crossing: Crossing, error: KafkaError) -> None:
        """Complete the produces of a batch with the error and start renumbering the others."""
        if error.outcome is Outcome.NOT_WRITTEN:
            self._void_behind(self._flight.index(crossing))
        self._flight.remove(crossing)
        self._broken = True
        for member in crossing.members:
            member.settle(-1, error)

    def _void_behind(self, gap: int) -> None:
        """Mark every batch behind place ``gap`` as surely not appended.

        The batch at that place is not appended and never will be under its sequence. Those behind
        it were never sent as the first one, so a log that lacks it refuses them.
        """
        for crossing in self._flight[gap + 1 :]:
            crossing.void, crossing.doubtful = True, False

    def give_up(self) -> None:
        """Complete all produces because the sender stops.

        Produces that may have been appended get an unknown outcome, the others NOT_WRITTEN.
        """
        for crossing in self._flight:
            error = _too_late(crossing.error, in_doubt=crossing.calling or crossing.doubtful)
            for member in crossing.members:
                member.settle(-1, error)
        for member in self._queue:
            member.settle(-1, _too_late(None, in_doubt=False))
        self._flight.clear()
        self._queue.clear()

    def expire(self, now_ms: int) -> None:
        """Complete the produces whose deadline has passed.

        Those that may have been appended get an unknown outcome, the others NOT_WRITTEN.
        """
        for crossing in self._flight:
            if any(each.done and each.deadline_ms <= now_ms for each in crossing.members):
                in_doubt = crossing.calling or crossing.doubtful
                error = _too_late(crossing.error, in_doubt=in_doubt)
                # A produce reported as not written is never sent again: give up this sequence.
                self._broken |= not in_doubt
                for member in crossing.members:
                    if member.deadline_ms <= now_ms:
                        member.settle(-1, error)
        if any(each.deadline_ms <= now_ms for each in self._queue):
            last = self._flight[0].error if self._flight else None
            late = [each for each in self._queue if each.deadline_ms <= now_ms]
            self._queue = deque(each for each in self._queue if each.deadline_ms > now_ms)
            for member in late:
                member.settle(-1, _too_late(last, in_doubt=False))
        self._mend()

    def _mend(self) -> None:
        """Begin the next producer epoch once no client waits for a doubtful batch of the old one.

        Does nothing while the sequences have no gap, or while the epochs are used up and no spare
        id is set.
        """
        if self._broken:
            for at, crossing in enumerate(self._flight):
                if not crossing.calling and not crossing.doubtful:
                    self._void_behind(at)
                    break
        for crossing in self._flight:
            if crossing.calling or (crossing.doubtful and crossing.is_awaited):
                return
        if any(crossing.doubtful for crossing in self._flight):
            self._broken = True
        used_up = self._epoch == EPOCH_MAX
        if not self._broken or (used_up and self.spare_id is None):
            return
        again = [
            member
            for crossing in self._flight
            if not crossing.doubtful
            for member in crossing.members
            if member.done is not None
        ]
        self._flight.clear()
        self._queue.extendleft(reversed(again))
        self._epoch += 1
        if used_up and self.spare_id is not None:
            self._producer_id, self.spare_id, self._epoch = self.spare_id, None, 0
        self._sequence = 0
        self._broken = False
        self._careful = True


def _too_late(last: KafkaError | None, *, in_doubt: bool) -> KafkaError:
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
