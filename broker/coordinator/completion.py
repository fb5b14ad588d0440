"""Completion: the units of committed decisions on their way to their targets.

Each home has a `Completion`. It learns of decisions once they are committed (rule S1): from the
shard's writer, or all at once from a load. A queue for each target and numbering sends the units in
the order of their numbers, one request at a time, until the target has committed them or its topic
is deleted (rule S11). Then COMPLETE is recorded (rule S2), and waiting clients hear of it (S3).
"""

from __future__ import annotations

import asyncio
import logging
from bisect import insort
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from broker.transactions.home_decisions import lost_rows
from broker.transactions.home_messages import (
    ApplyAnswer,
    ApplyUnits,
    GapFound,
    SourceGone,
    UnitRows,
    UnitsApplied,
)
from broker.transactions.home_records import StagedPlace, Target, TransactionValue, Unit
from broker.transactions.home_state import HomeState
from broker.transactions.messages import LostRows, PendingTarget, PlacedRows, TransactionalId
from raft_metadata.common.clock import Clock
from raft_metadata.common.errors import KafkaError

_log = logging.getLogger("broker.coordinator")

UNITS_AT_ONCE_BYTES = 4 << 20
"""Bytes of rows that are under way to one target at a time; it takes no more of staged ones."""
UNITS_AT_ONCE_MAX = 1_000
"""Units in one request to a target."""
STAGED_UNIT_BYTES = 65_536
"""Bytes that a staged unit counts for: a chunk of few rows, so that the target's limit decides."""
LOST_AT_ONCE_MAX = 1_000
"""Lost units of one target that are gathered for one record of their loss."""
NOT_ASKED = "its leader has not answered yet"
RETRY_MIN_MS = 50
RETRY_MAX_MS = 1_000
"""Pauses before a target that could not take units is asked again; they double."""

Work = Coroutine[Any, Any, None]


class TargetPort(Protocol):
    """Port to the leaders of targets."""

    async def apply(self, request: ApplyUnits) -> ApplyAnswer:
        """Have the target's leader append units, and return once they are committed.

        Raises:
            KafkaError: the target is not able now, or did not answer; it may be asked again.
        """
        ...

    def is_deleted(self, target: Target, metadata_offset: int) -> bool:
        """Return True if the image is as new as that offset, and the topic is not there (S11)."""
        ...


@dataclass(slots=True, eq=False)
class _Losses:
    """Units that are nowhere, of all targets of a decision: one record tells of them."""

    units: list[Unit] = field(default_factory=list)
    error: KafkaError | None = None
    """Error of that record; None: it is committed, or did not begin."""


@dataclass(slots=True, eq=False)
class OpenDecision:
    """A committed decision whose targets have not all acknowledged."""

    id: TransactionalId
    value: TransactionValue
    waiting: dict[tuple[Target, int], Unit]
    """Units that their targets have not acknowledged, by target and number."""
    bases: dict[tuple[Target, int], int | None] = field(default_factory=dict)
    """Base offset of each unit that was acknowledged in this epoch; None: not known any more."""
    dropped: dict[Target, None] = field(default_factory=dict)
    since_ms: int = 0
    """Monotonic time at which this home learnt that it is committed."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it is complete, or given up because this broker does not lead any more."""
    losses: _Losses = field(default_factory=_Losses)
    """Losses for which the next record of them is to come."""
    is_recording: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a record of losses is under way."""

    @property
    def is_seen(self) -> bool:
        """True if each target has told where the rows are that were staged for it.

        A target has a unit "already", but not its place, also where it passed over the unit because
        another home had recorded it as lost. Of its own decision this home knows that, unless it is
        deposed: so it must commit COMPLETE before it says so (rule S3).
        """
        return all(
            not isinstance(unit.source, StagedPlace)
            or unit.target in self.dropped
            or self.bases.get((unit.target, unit.number)) is not None
            for unit in self.value.units
        )

    @property
    def lost(self) -> tuple[LostRows, ...]:
        """The rows that are nowhere."""
        return lost_rows(self.value, self.dropped)

    def placed(self) -> tuple[PlacedRows, ...]:
        """Return where the rows of each target stand."""
        rows: dict[Target, int] = {}
        first: dict[Target, int | None] = {}
        for unit in self.value.units:
            if unit.is_lost:
                continue
            rows[unit.target] = rows.get(unit.target, 0) + unit.rows
            first.setdefault(unit.target, self.bases.get((unit.target, unit.number)))
        return tuple(
            PlacedRows(*target, count, first[target])
            for target, count in rows.items()
            if target not in self.dropped
        )


@dataclass(slots=True, eq=False)
class _Queue:
    """Units of one numbering for one target, in the order of their numbers."""

    numbering: int
    target: Target
    units: deque[tuple[int, OpenDecision]] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    after: int | None = None
    """The end that the target told of, where a gap must be mended (rule S5)."""
    reason: str = NOT_ASKED

    def add(self, number: int, decision: OpenDecision) -> None:
        if self.units and self.units[-1][0] > number:
            ordered = [*self.units]
            insort(ordered, (number, decision), key=lambda one: one[0])
            self.units = deque(ordered)
        else:
            self.units.append((number, decision))


class Completion:
    """The open decisions of one home, and what is sent to their targets.

    Owned by its `Home`, on the event loop. Invariant: only committed decisions are here.
    """

    def __init__(
        self,
        port: TargetPort,
        clock: Clock,
        start: Callable[[Work], asyncio.Task[None]],
        record: Callable[[OpenDecision], bool],
        lose: Callable[[OpenDecision, Collection[Unit]], Awaitable[None]],
    ) -> None:
        """Prepare.

        ``start`` runs a queue's work as a task that its owner ends. ``record`` decides a COMPLETE,
        and returns False if that can't be recorded now: it is called again by `record_later`.
        ``lose`` records that rows are not where the units say, and returns once that is committed.
        """
        self._port = port
        self._clock = clock
        self._start = start
        self._record = record
        self._lose = lose
        self._open: dict[TransactionalId, OpenDecision] = {}
        self._queues: dict[tuple[int, Target], _Queue] = {}

    def find(self, id_: TransactionalId) -> OpenDecision | None:
        """Return the open decision of an id, once it is known to be committed."""
        return self._open.get(id_)

    def pending(self, decision: OpenDecision) -> tuple[PendingTarget, ...]:
        """Return what each target that has not acknowledged waits for."""
        targets = dict.fromkeys(target for target, _ in decision.waiting)
        queues = ((each, self._queues.get((decision.value.numbering, each))) for each in targets)
        return tuple(
            PendingTarget(*target, NOT_ASKED if queue is None else queue.reason)
            for target, queue in queues
        )

    def waiting(self, since_ms: int) -> list[tuple[OpenDecision, PendingTarget]]:
        """Return the decisions that have waited since this time, with a target of each."""
        return [
            (decision, self.pending(decision)[0])
            for decision in self._open.values()
            if decision.waiting and decision.since_ms <= since_ms
        ]

    def restart(self, home: HomeState) -> None:
        """Begin anew with a state that was just loaded: all of it is committed (rule G1)."""
        self.close()
        self.add(home, [(id_, home.newest[id_]) for id_ in home.open])

    def close(self) -> None:
        """Forget all decisions; a newer state, or another home, completes them."""
        for decision in self._open.values():
            decision.done.set()
        for queue in self._queues.values():
            if queue.task is not None:
                queue.task.cancel()
        self._open.clear()
        self._queues.clear()

    def add(
        self, home: HomeState, positions: Iterable[tuple[TransactionalId, TransactionValue]]
    ) -> None:
        """Complete the decisions of these positions, which were committed in this order.

        They are taken as committed, not as ``home`` has them: the id's newest position may be
        another decision by now, which stands in the same state and is not committed (rule S1).
        """
        for id_, value in positions:
            newest = home.newest.get(id_)
            if not value.is_open or newest is None or not is_same_decision(newest, value):
                continue
            left = {(unit.target, unit.number): unit for unit in value.units if not unit.is_lost}
            decision = self._open.get(id_)
            if decision is not None and is_same_decision(decision.value, value):
                # Its sources have moved or are lost, or another run was remembered.
                decision.value = value
                decision.waiting = {at: unit for at, unit in left.items() if at in decision.waiting}
            else:
                decision = OpenDecision(id_, value, left, since_ms=self._clock.monotonic_ms())
                self._open[id_] = decision
                for unit in left.values():
                    self._enqueue(decision, unit)
            self._end_if_settled(decision)

    def _enqueue(self, decision: OpenDecision, unit: Unit) -> None:
        key = (decision.value.numbering, unit.target)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue(*key)
        queue.add(unit.number, decision)
        if queue.task is None:
            queue.task = self._start(self._work(queue))

    # ---- one target

    async def _work(self, queue: _Queue) -> None:
        """Send the units of a queue until none is left."""
        pause_ms = RETRY_MIN_MS
        while queue.units:
            if self._drop_first(queue):
                continue
            request = self._next_request(queue)
            assert request is not None, "the first unit waits"
            try:
                answer = await self._port.apply(request)
                if isinstance(answer, SourceGone):
                    await self._note_gone(queue, request, answer)
            except KafkaError as error:
                queue.reason = error.message
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
                continue
            match answer:
                case UnitsApplied():
                    pause_ms = RETRY_MIN_MS
                    queue.after = None
                    self._acknowledge(queue, answer.base_offsets)
                case GapFound():
                    self._note_gap(queue, request, answer.end)
                    await asyncio.sleep(pause_ms / 1000)
                    pause_ms = min(2 * pause_ms, RETRY_MAX_MS)
                case SourceGone():
                    await asyncio.sleep(RETRY_MIN_MS / 1000)
        self._queues.pop((queue.numbering, queue.target), None)

    def _next_request(self, queue: _Queue, behind: int = -1) -> ApplyUnits | None:
        """Return a request for units that follow each other; None if none is left.

        ``behind`` a number: as if those up to it were in the target.
        """
        units: list[UnitRows] = []
        size, after = 0, 0
        for number, decision in queue.units:
            unit = decision.waiting.get((queue.target, number))
            if number <= behind or (unit is None and not units):
                continue
            if unit is None:
                break  # its rows are lost: those behind it follow another number
            source = unit.source
            assert source is not None, "lost units do not wait"
            rows = source if isinstance(source, StagedPlace) else decision.value.inline[source]
            taken = STAGED_UNIT_BYTES if isinstance(rows, StagedPlace) else len(rows.records)
            if units and (size + taken > UNITS_AT_ONCE_BYTES or len(units) >= UNITS_AT_ONCE_MAX):
                break
            if units and unit.after != units[-1].number + units[-1].rows:
                # Behind a load: the decision in between is complete, while the one before it still
                # waits for another target. Units of one request follow each other (rule S4).
                break
            if not units:
                after = unit.after if queue.after is None or behind >= 0 else queue.after
            units.append(UnitRows(number, unit.rows, rows))
            size += taken
        if not units:
            return None
        return ApplyUnits(
            target=queue.target, numbering=queue.numbering, after=after, units=tuple(units)
        )

    def _acknowledge(self, queue: _Queue, base_offsets: Sequence[int | None]) -> None:
        for base in base_offsets:
            number, decision = queue.units.popleft()
            place = (queue.target, number)
            decision.bases[place] = base
            self._settle(decision, place)

    def _drop_first(self, queue: _Queue) -> bool:
        """Drop a unit that is lost (S10), or whose topic was deleted behind its decision (S11)."""
        number, decision = queue.units[0]
        place = (queue.target, number)
        if place in decision.waiting:
            if not self._port.is_deleted(queue.target, decision.value.metadata_offset):
                return False
            decision.dropped[queue.target] = None
            self._settle(decision, place)
        queue.units.popleft()
        return True

    async def _note_gone(self, queue: _Queue, request: ApplyUnits, answer: SourceGone) -> None:
        """Record units as lost that still name the places at which their rows are gone.

        Each record of a loss is the whole decision once more. So those behind are asked about
        first, as long as they are gone, too: the target appends none of them before the gap is
        mended. Where it has them it has passed over the first ones, and is asked anew.
        """
        queue.reason = f"the rows of number {min(answer.numbers)} are not at their stage"
        gone: dict[OpenDecision, list[Unit]] = {}
        further: ApplyUnits | None = request
        found: ApplyAnswer = answer
        while further is not None and isinstance(found, SourceGone):
            self._add_gone(queue, further, found.numbers, gone)
            if sum(map(len, gone.values())) >= LOST_AT_ONCE_MAX:
                break
            further = self._next_request(queue, behind=further.units[-1].number)
            if further is not None:
                try:
                    found = await self._port.apply(further)
                except KafkaError:
                    break
        if isinstance(found, UnitsApplied):
            return
        for decision, units in gone.items():
            await self._record_losses(decision, units)

    def _add_gone(
        self,
        queue: _Queue,
        request: ApplyUnits,
        numbers: Collection[int],
        gone: dict[OpenDecision, list[Unit]],
    ) -> None:
        asked = {unit.number: unit.source for unit in request.units if unit.number in numbers}
        last = max(numbers)
        for number, decision in queue.units:
            if number > last:
                break
            unit = decision.waiting.get((queue.target, number))
            if unit is not None and number in asked and unit.source == asked[number]:
                gone.setdefault(decision, []).append(unit)

    async def _record_losses(self, decision: OpenDecision, units: Collection[Unit]) -> None:
        """Record losses, with those that other targets find while a record is under way.

        Raises:
            KafkaError: it could not be recorded, or is not known to be.
        """
        losses = decision.losses
        losses.units += units
        async with decision.is_recording:
            if losses is decision.losses:
                decision.losses = _Losses()
                try:
                    await self._lose(decision, losses.units)
                except KafkaError as error:
                    losses.error = error
        if losses.error is not None:
            raise losses.error

    def _settle(self, decision: OpenDecision, place: tuple[Target, int]) -> None:
        del decision.waiting[place]
        self._end_if_settled(decision)

    def _end_if_settled(self, decision: OpenDecision) -> None:
        if not decision.waiting:
            self._finish(decision)
            decision.done.set()

    def _finish(self, decision: OpenDecision) -> None:
        if self._record(decision):
            del self._open[decision.id]

    def record_later(self) -> None:
        """Record the completions that could not be recorded when they happened."""
        for decision in [one for one in self._open.values() if not one.waiting]:
            self._finish(decision)

    def _note_gap(self, queue: _Queue, request: ApplyUnits, end: int) -> None:
        """Mend a gap: the target, or a stage, lost the rows in between."""
        first = request.units[0].number
        queue.reason = (
            f"it ends at number {end}, the next unit follows {request.after}: the rows in between "
            "are lost"
        )
        _log.error(
            "rows of a home are lost topic_id=%s partition=%d numbering=%d end=%d next=%d",
            *queue.target, queue.numbering, end, first,
        )  # fmt: skip
        if end < first:
            queue.after = end


def is_same_decision(one: TransactionValue, other: TransactionValue) -> bool:
    """Return whether two open values are of one decision: no two have the same row number.

    The position does not tell: a key is decided anew once it was forgotten.
    """
    if not one.is_open or not other.is_open or one.at != other.at:
        return False
    first, second = one.units[0], other.units[0]
    return (one.numbering, *first[:3]) == (other.numbering, *second[:3])
