"""Produces on their way to a leader, in order and none twice (rule F1). Pure: decisions only.

Each request that crosses to the leader is one batch with a producer's epoch and a sequence, so that
one whose answer was lost is sent again, to the same leader or to the next, and is there once. What
gathers while requests are under way is sent as one. At most five are under way, because a log
remembers five; after any failure only the first of them is sent until it has its answer, so that a
new leader gets them in order. A broker forwards with it, and the SDK's producer writes with it.

The numbers are kept by two rules. A request that may be written (*doubtful*) keeps its number, and
is told *unknown* if its time ends first. One that surely is not written leaves a gap (*broken*):
then nothing new is numbered until nothing is doubtful, the others are numbered anew in the next
epoch, and whatever is left of the old one, in the network or on a deposed leader, is refused by it.
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
"""An older one would not be known again."""
TOGETHER_BYTES_MAX = 1_048_576
"""Requests that are sent as one: as large as a batch is good to be."""
TOGETHER_RECORDS_MAX = 10_000
"""The leader's loop decodes them at once: some 5 ms."""
SPARE_EPOCHS = 100
"""So long before the last epoch another producer id is asked for."""

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
"""Refusals that another leader, or the same one a moment later, may not repeat."""
_OUT_OF_STEP = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.INVALID_PRODUCER_EPOCH})


class Waiting:
    """One produce of a client: its records as JSON text, and who is told what became of them."""

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
        """What one batch, and one request, holds only one of: formats and acks."""
        self.deadline_ms = deadline_ms
        self.done: Done | None = done
        """None: it was called."""

    def settle(self, base_offset: int, error: KafkaError | None = None) -> None:
        done, self.done = self.done, None
        if done is not None:
            done(base_offset, error)


class Crossing:
    """What is sent as one batch, under one number. ``text`` never changes."""

    __slots__ = (
        "calling", "claim", "count", "doubtful", "error", "members", "ordinal", "text", "void",
        "was_first",
    )  # fmt: skip

    def __init__(self, members: list[Waiting], claim: Claim, ordinal: int) -> None:
        self.ordinal = ordinal
        """How many were numbered before it."""
        self.members = members
        self.claim = claim
        self.count = sum(member.count for member in members)
        self.text = b",".join([member.text for member in members])
        self.calling = False
        self.was_first = False
        """In its last attempt nothing before it was under way."""
        self.doubtful = False
        """An attempt had no certain end."""
        self.void = False
        """It was sent behind one that surely is not written: so no log has taken it."""
        self.error: KafkaError | None = None
        """What the last attempt said."""

    @property
    def first(self) -> Waiting:
        return self.members[0]

    @property
    def deadline_ms(self) -> int:
        """Until when anybody waits for it."""
        return max(member.deadline_ms for member in self.members)

    @property
    def is_awaited(self) -> bool:
        return any(member.done is not None for member in self.members)

    @property
    def has_settled(self) -> bool:
        """Whether somebody was told already."""
        return any(member.done is None for member in self.members)


class WriteChannel:
    """One broker's way to one partition, for produces of one strength (acks=all, or less).

    The shell asks `due` until it has nothing, sends, says `succeeded` or `failed` for each, and
    `expire` as time goes by; after each of these `due` may have something again.
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
        """``together`` False: each produce is a request of its own, refused alone."""
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
        """A producer id to go on with where the epochs are used up."""

    @property
    def is_idle(self) -> bool:
        return not self._queue and not self._flight

    @property
    def wants_id(self) -> bool:
        """Epochs are running out."""
        return self._epoch > EPOCH_MAX - SPARE_EPOCHS and self.spare_id is None

    @property
    def has_failed(self) -> bool:
        """The first that is under way is to be sent again: a moment later, or to somebody else."""
        return bool(self._flight) and self._careful and not self._flight[0].calling

    def add(self, waiting: Waiting) -> None:
        """Behind all others."""
        self._queue.append(waiting)

    def is_head(self, crossing: Crossing) -> bool:
        """Nothing before it is under way: it may begin a producer the leader does not know."""
        return self._flight[0] is crossing

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do."""
        waiting = [member for each in self._flight for member in each.members]
        deadlines = [each.deadline_ms for each in (*waiting, *self._queue) if each.done is not None]
        return min(deadlines, default=None)

    def due(self) -> Crossing | None:
        """The next to be sent; it counts as under way from here on."""
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
            # Also those count that have their answer already: a log remembers the newest ones.
            span = self._numbered - self._flight[0].ordinal
            if self._careful or span >= IN_FLIGHT_MAX:
                return None
        crossing = self._number()
        crossing.calling = True
        crossing.was_first = not self._flight
        self._flight.append(crossing)
        return crossing

    def _number(self) -> Crossing:
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
        """It stands in the log from there on; -1 for acks=0."""
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
        """An attempt ended like this. What may help is done when `due` gives it out again.

        ``is_final``: nothing will help, the partition is gone.
        """
        crossing.calling = False
        crossing.error = error
        self._careful = True
        if error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER or (is_final and crossing.doubtful):
            error = KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN)
            self._give_up(crossing, error)  # nobody knows where: asking again won't tell
        elif error.outcome is Outcome.UNKNOWN and not crossing.void:
            crossing.doubtful = True
        elif not crossing.doubtful:
            early = error.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not crossing.was_first
            if crossing.void or crossing.has_settled:
                self._broken = True  # to be numbered anew, without those that have left
            elif early:
                pass  # it overtook the one before it, on another connection: it has its turn
            elif error.code in _OUT_OF_STEP:
                self._broken = True
            elif is_final or error.code not in REROUTED:
                self._give_up(crossing, error)
        self._mend()

    def _give_up(self, crossing: Crossing, error: KafkaError) -> None:
        if error.outcome is Outcome.NOT_WRITTEN:
            self._void_behind(self._flight.index(crossing))
        self._flight.remove(crossing)
        self._broken = True
        for member in crossing.members:
            member.settle(-1, error)

    def _void_behind(self, gap: int) -> None:
        """What stands at this place is written nowhere, and never will be under its number.

        Those behind it were never sent as the first one, so a log that lacks it refuses them.
        """
        for crossing in self._flight[gap + 1 :]:
            crossing.void, crossing.doubtful = True, False

    def give_up(self) -> None:
        """This broker stops: nothing more is sent, nothing more can be learnt."""
        for crossing in self._flight:
            error = _too_late(crossing.error, in_doubt=crossing.calling or crossing.doubtful)
            for member in crossing.members:
                member.settle(-1, error)
        for member in self._queue:
            member.settle(-1, _too_late(None, in_doubt=False))
        self._flight.clear()
        self._queue.clear()

    def expire(self, now_ms: int) -> None:
        """Tell those whose time has come: unknown what may be written, else not written."""
        for crossing in self._flight:
            if any(each.done and each.deadline_ms <= now_ms for each in crossing.members):
                in_doubt = crossing.calling or crossing.doubtful
                error = _too_late(crossing.error, in_doubt=in_doubt)
                # What was called not written is never sent again: this number is given up.
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
        """Begin the next epoch, as soon as nobody waits for anything doubtful of the old one."""
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
    """What a client is told whose time is over, by what the last attempt said."""
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
