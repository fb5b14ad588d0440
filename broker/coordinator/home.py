"""A home: the transactions of one led partition, decided, completed and answered.

`Home` stands beside a shard: one of `__transaction_state`, or one of the offsets topic, whose
groups it commits offsets for. A request becomes one or more turns of the shard
(`broker.transactions.home_decisions`), each judged anew behind every wait (rule S6). It is answered
once all that the answer rests on is committed (G1); a commit, once its targets have committed the
rows (S3).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from broker.coordinator.completion import (
    Completion,
    OpenDecision,
    TargetPort,
    Work,
    is_same_decision,
)
from broker.coordinator.records import ShardRecord
from broker.coordinator.runtime import ShardRuntime
from broker.coordinator.troubles import WAITING_AFTER_MS
from broker.transactions import home_decisions
from broker.transactions.home_decisions import (
    ChunkPlaced,
    Content,
    Decided,
    Decision,
    MayDecide,
    MustWait,
    Part,
    Records,
    StagedParts,
)
from broker.transactions.home_messages import (
    AbortPosition,
    CommitPosition,
    DescribeId,
    ForgetId,
    HomeRequest,
    InitId,
)
from broker.transactions.home_records import (
    NextKey,
    Target,
    TransactionKey,
    TransactionValue,
    Unit,
)
from broker.transactions.home_state import HomeLimits, HomeState, slim
from broker.transactions.messages import (
    AttemptNamed,
    LastPosition,
    PendingTarget,
    ProducerInitialized,
    TransactionalId,
    TransactionDescription,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.clock import Clock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, PartitionId, TopicId

_log = logging.getLogger("broker.coordinator")
A = TypeVar("A")
T = TypeVar("T")

REFS_ROUNDS_MAX = 20
"""Most times that stages are asked again for one commit, because chunks were moved meanwhile."""
UNRECORDED_PAUSE_MS = 50
"""Pause before a look at an id whose completion could not be recorded."""
CHECK_INTERVAL_MS = 60_000
"""Time between two rounds through all producers' ids and all numbers, to forget some."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A proven refusal of a stage: some chunk or row of an attempt is not there (rule S9)."""

    reason: str


class StagePort(Protocol):
    """Port to the leaders of stages."""

    async def parts(
        self,
        id_: TransactionalId,
        at: tuple[int, int],
        attempts: Sequence[AttemptNamed],
        timeout_ms: int,
    ) -> StagedParts | Missing:
        """Return the committed parts of all attempts: in the order named, chunk by chunk."""
        ...


class ImagePort(Protocol):
    """Port to the metadata of this broker."""

    @property
    def metadata_offset(self) -> int:
        """Number of records of the present image."""
        ...

    def check_able(self, target: Target) -> None:
        """Raise UNKNOWN_TOPIC_OR_PARTITION, or NOT_ENOUGH_REPLICAS or LEADER_NOT_AVAILABLE."""
        ...

    def name_of(self, topic_id: TopicId) -> str:
        """Return the name of a topic; its id if there is none."""
        ...

    async def know(self, targets: Sequence[Target]) -> None:
        """Wait, within a bound, for topics that this image does not have yet."""
        ...


class OffsetsPort(Protocol):
    """Port to the groups that a home shares its partition with (rule S8)."""

    async def prepare(self, request: CommitPosition) -> object:
        """Find out what the checks of the decision's turn need from other partitions."""
        ...

    def check(self, state: Any, request: CommitPosition, prepared: object) -> Callable[[], None]:
        """Check the offsets of a commit in the turn of its decision; return what records them.

        Raises:
            KafkaError: of the membership (rule G4), or OFFSET_NOT_EXPECTED. To be proven.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HomePorts:
    """All that a home asks of others."""

    broker_id: BrokerId
    clock: Clock
    targets: TargetPort
    stages: StagePort
    image: ImagePort
    limits: Callable[[], HomeLimits]
    offsets: OffsetsPort | None = None
    """None for a home that no group shares: a commit with offsets is refused there."""


@dataclass(frozen=True, slots=True)
class _NeedsOffsets:
    """Facts of other partitions, which the check of the offsets needs, are asked for first."""

    port: OffsetsPort


@dataclass(frozen=True, slots=True)
class _NeedsParts:
    """The stages must be asked for the parts of the attempts first."""


class Home:
    """The transactions of one shard. Owned by its coordinator, on the event loop."""

    def __init__(
        self,
        shard: ShardRuntime[Any],
        numbering: int,
        ports: HomePorts,
        start: Callable[[Work], asyncio.Task[None]],
    ) -> None:
        """Take the reserved producer id of this home in its partition's unclean epoch (S4)."""
        self._shard = shard
        self._numbering = numbering
        self._ports = ports
        self._completion = Completion(
            ports.targets, ports.clock, start, self._record_complete, self._record_lost
        )
        self._to_check: list[TransactionalId] = []
        self._numbers_to_check: list[NextKey] = []
        self._checked_ms = ports.clock.monotonic_ms()
        self._loaded_ms: int | None = None
        """Wall time since which, without a break, this home is loaded and the clock trusted."""
        shard.on_loaded = self._on_loaded
        shard.on_committed = self._on_committed

    def close(self) -> None:
        """End all waits and sends, because this broker no longer leads."""
        self._completion.close()

    def _home(self) -> HomeState:
        home: HomeState = self._shard.state().home
        if home.fault:
            text = f"the transactions of this home are refused: {home.fault}"
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, text)
        return home

    def _on_loaded(self) -> None:
        self._loaded_ms = None
        home = self._shard.state().home
        if home.fault:
            self._completion.close()  # row numbers may be unknown: they must not be given again
        else:
            self._completion.restart(home)

    def _on_committed(self, entries: Sequence[ShardRecord]) -> None:
        if self._shard.is_ready and not self._shard.state().home.fault:
            positions = [
                (one.key.id, one.value)
                for one in entries
                if isinstance(one.key, TransactionKey) and isinstance(one.value, TransactionValue)
            ]
            self._completion.add(self._home(), positions)

    def _turn(
        self, turn: Callable[[Any, HomeState], tuple[T, Records]], *, unhurried: bool = False
    ) -> T:
        """Make a turn of the home: its records are one decision of the shard (rule S1)."""
        self._home()

        def decision(state: Any) -> T:
            if state.trusted_ms is None:
                self._loaded_ms = None
            answer, records = turn(state, state.home)
            state.apply(*(ShardRecord(key, value) for key, value in records))
            return answer

        return self._shard.decide(decision, unhurried=unhurried)

    # ---- requests

    async def answer(self, request: HomeRequest[A]) -> A:
        """Return the answer to a request about an id of this home."""
        match request:
            case InitId():
                answer: Any = await self._init(request)
            case CommitPosition():
                answer = await self._commit(request)
            case AbortPosition():
                answer = await self._abort(request)
            case ForgetId():
                records = self._turn(
                    lambda _, home: (found := home_decisions.forget(home, request.id), found)
                )
                assert records
                await self._shard.settled()
                answer = None
            case DescribeId():
                answer = self._describe(request.id)
                await self._shard.settled()
            case _:
                text = f"unknown request of a home: {type(request).__name__}"
                raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        return answer  # type: ignore[no-any-return]

    async def _init(self, request: InitId) -> ProducerInitialized:
        limits = self._ports.limits()
        answer = self._turn(
            lambda state, home: home_decisions.init(home, request.id, state.trusted_ms, limits)
        )
        await self._shard.settled()
        return answer

    async def _abort(self, request: AbortPosition) -> LastPosition:
        deadline_ms = self._now_ms() + request.timeout_ms
        while True:
            found = self._turn(
                lambda state, home: home_decisions.abort(
                    home, request.id, request.position, state.trusted_ms
                )
            )
            if isinstance(found, TransactionState):
                last = home_decisions.last_position(self._home().newest[request.id])
                assert last is not None, "the position is the newest one"
                await self._shard.settled()
                return last
            await self._until_complete(request.id, deadline_ms)

    def _now_ms(self) -> int:
        return self._ports.clock.monotonic_ms()

    # ---- commit

    async def _commit(self, request: CommitPosition) -> TransactionOutcome:
        deadline_ms = self._now_ms() + request.timeout_ms
        content = Content(request.id, request.position, request.digest)
        if request.offsets and self._ports.offsets is None:
            text = "a transaction commits offsets under the group that they belong to"
            raise KafkaError(ErrorCode.INVALID_REQUEST, text)
        prepared: object = None
        parts: StagedParts | Missing | None = None
        if not request.attempts:
            parts = StagedParts(_inline_parts(request))
            await self._ports.image.know([part.target for part in parts.parts])
        rounds = 0
        while True:
            judge = partial(
                self._judge,
                request=request,
                parts=parts,
                prepared=prepared,
                deadline_ms=deadline_ms,
            )
            verdict = self._turn(judge)
            match verdict:
                case Decided():
                    await self._settled(verdict)
                    return await self._outcome(content, verdict, deadline_ms)
                case MustWait():
                    await self._until_complete(request.id, deadline_ms)
                case _NeedsOffsets(port):
                    prepared = await port.prepare(request)
                case _:
                    rounds += 1
                    if rounds > REFS_ROUNDS_MAX:
                        text = "the chunks of its attempts are moved all the time"
                        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, text)
                    left_ms = max(1, deadline_ms - self._now_ms())
                    parts = await self._ports.stages.parts(
                        request.id, content.at, request.attempts, left_ms
                    )
                    if not isinstance(parts, Missing):
                        await self._ports.image.know([part.target for part in parts.parts])

    async def _settled(self, verdict: Decided) -> None:
        """Wait until all that the answer rests on is committed (rule G1).

        Raises:
            KafkaError: of a repeat nothing is told but that its fate is unknown here (rule S7).
        """
        try:
            await self._shard.settled()
        except KafkaError as error:
            outcome = error.outcome if verdict.is_new else Outcome.UNKNOWN
            raise KafkaError(error.code, error.message, outcome=outcome) from error

    def _judge(
        self,
        state: Any,
        home: HomeState,
        *,
        request: CommitPosition,
        parts: StagedParts | Missing | None,
        prepared: object,
        deadline_ms: int,
    ) -> tuple[Decided | MustWait | _NeedsOffsets | _NeedsParts, Records]:
        """Judge, check and decide in one turn; all fences are looked at here (rules S6, S8)."""
        content = Content(request.id, request.position, request.digest)
        judgement = home_decisions.judge(home, content)
        if isinstance(judgement, Decided):
            return judgement, judgement.records
        record_offsets: Callable[[], None] | None = None
        if request.offsets and self._ports.offsets is not None:
            if prepared is None:
                return _NeedsOffsets(self._ports.offsets), ()
            record_offsets = self._ports.offsets.check(state, request, prepared)
        if isinstance(judgement, MustWait):
            return judgement, ()
        assert isinstance(judgement, MayDecide)
        if parts is None:
            return _NeedsParts(), ()
        if isinstance(parts, Missing):
            raise KafkaError(ErrorCode.STAGE_INCOMPLETE, parts.reason)
        if home_decisions.is_below_horizon(home, parts.parts):
            return _NeedsParts(), ()
        if self._now_ms() > deadline_ms:
            # A repeat may have been decided, and be forgotten by now (rule S12).
            text = "its time was over before it could be decided"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text, outcome=Outcome.NOT_WRITTEN)
        for target in dict.fromkeys(part.target for part in parts.parts):
            self._ports.image.check_able(target)
        decision = Decision(
            content=content,
            numbering=self._numbering,
            metadata_offset=self._ports.image.metadata_offset,
            parts=parts.parts,
            chunks=sum(attempt.chunks for attempt in request.attempts),
            staged_bytes=parts.size_bytes,
            inline=request.inline,
            layout=request.layout,
            now_ms=state.trusted_ms,
        )
        value, records = home_decisions.decide(home, decision, self._ports.limits())
        if record_offsets is not None:
            record_offsets()
        return Decided(value, is_new=True), records

    async def _outcome(
        self, content: Content, verdict: Decided, deadline_ms: int
    ) -> TransactionOutcome:
        """Return the fate of a decided position: complete, or committing at the deadline (S3)."""
        epoch, number = content.at
        decision = await self._awaited(content, deadline_ms)
        value = self._present(content, verdict.value)
        is_seen = decision is not None and decision.is_seen
        if not value.is_open and _is_staged(verdict.value) and not is_seen:
            left_ms = max(0, deadline_ms - self._now_ms())
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self._shard.settled()
            except (KafkaError, TimeoutError):
                value = verdict.value
        state, placed, dropped, lost = value.state, value.placed, value.dropped, value.lost
        pending: tuple[PendingTarget, ...] = ()
        if decision is not None and value.is_open:
            pending, lost = self._completion.pending(decision), decision.lost
            if not decision.waiting and is_seen:
                # Each target has acknowledged; the record of it may still be under way.
                state, placed = TransactionState.COMPLETE, decision.placed()
                dropped = tuple(decision.dropped)
        return TransactionOutcome(
            epoch=epoch,
            number=number,
            state=state,
            already=verdict.already,
            placed=placed,
            pending=pending,
            dropped=tuple((one.topic_id, one.partition) for one in dropped),
            lost=lost,
            layout=value.layout,
        )

    def _present(self, content: Content, value: TransactionValue) -> TransactionValue:
        """Return a decided position as it is now, perhaps not committed; ``value``: as it was."""
        if not self._shard.is_ready or self._shard.state().home.fault:
            # The state was dropped, or is refused, behind the decision, which stands: nothing else
            # may be said of it than that it is committing, least of all that nothing was written
            # (S3).
            return value
        last = self._home().newest.get(content.id)
        if last is not None and last.at == content.at:
            return last
        if not value.is_open or _is_staged(value):
            return value  # of staged rows it is not known here any more whether some were lost
        # A later position was decided, or it is forgotten: it is complete.
        placed = OpenDecision(content.id, value, {}).placed()
        return replace(slim(value), state=TransactionState.COMPLETE, placed=placed)

    async def _awaited(self, content: Content, deadline_ms: int) -> OpenDecision | None:
        """Wait for the completion of a position, and return it as it is then.

        A load ends the waits, and begins the completion anew: that one is waited for, too.
        """
        last: OpenDecision | None = None
        while (found := self._completion.find(content.id)) is not None:
            if found is last or found.value.at != content.at:
                break
            last = found
            if not last.done.is_set():
                await self._wait(last, deadline_ms)
            if not last.done.is_set():
                break  # at the deadline
        return last

    async def _wait(self, decision: OpenDecision, deadline_ms: int) -> None:
        left_ms = deadline_ms - self._now_ms()
        if left_ms > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_ms / 1000):
                    await decision.done.wait()

    async def _until_complete(self, id_: TransactionalId, deadline_ms: int) -> None:
        """Wait for the completion of an id's last decision (rule S2).

        Raises:
            KafkaError: CONCURRENT_TRANSACTIONS at the deadline.
        """
        await self._shard.settled()  # so that it is known to the completion
        decision = self._completion.find(id_)
        if decision is not None and decision.waiting:
            await self._wait(decision, deadline_ms)
        elif self._is_open(id_):
            # All have acknowledged, and that could not be recorded: nothing wakes this wait.
            self._completion.record_later()
            await asyncio.sleep(UNRECORDED_PAUSE_MS / 1000)
        if self._now_ms() >= deadline_ms:
            text = f"the last decision of {id_.name} is not complete"
            if decision is not None:
                for target in self._completion.pending(decision):
                    text = f"{text}: partition {target.partition} of {target.topic_id}: "
                    text = f"{text}{target.reason}"
                    break
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, text)

    def _is_open(self, id_: TransactionalId) -> bool:
        last = self._home().newest.get(id_)
        return last is not None and last.is_open

    def _record_complete(self, decision: OpenDecision) -> bool:
        """Record a completion, for which no client waits; return False if it must be tried again.

        A home that does not find the record sends the units once more, and is answered at once.
        """

        def turn(state: Any, home: HomeState) -> tuple[None, Records]:
            if not _is_same(home, decision):
                return None, ()
            dropped, now_ms = tuple(decision.dropped), state.trusted_ms
            return None, home_decisions.complete(
                home, decision.id, decision.placed(), dropped, now_ms
            )

        try:
            self._turn(turn, unhurried=True)
        except KafkaError:
            return False
        return True

    # ---- stages

    async def _record_lost(self, decision: OpenDecision, gone: Collection[Unit]) -> None:
        """Record, committed, that rows are lost unless they were moved; log each loss once.

        Raises:
            KafkaError: this home could not record it, or it is not known whether it did.
        """

        def turn(_: Any, home: HomeState) -> tuple[bool, Records]:
            records = home_decisions.lose(home, decision.id, gone)
            return bool(records), records

        is_lost = self._turn(turn)
        await self._shard.settled()
        if is_lost:
            for unit in gone:
                _log.error(
                    "decided rows are lost by an unclean election of their stage id=%s epoch=%d "
                    "number=%d topic_id=%s partition=%d rows=%d place=%s",
                    decision.id.name, *decision.value.at, *unit.target, unit.rows, unit.source,
                )  # fmt: skip

    async def may_go(self, chunk: ChunkPlaced) -> bool:
        """Return True, once that is committed, if nothing will name a chunk at its place (S10)."""
        answer = self._turn(lambda _, home: home_decisions.may_go(home, chunk))
        await self._shard.settled()
        return answer

    # ---- time

    def tick(self) -> None:
        """Forget the numbers of deleted topics' rows, and old keys and ids (rules S11, S12).

        Nothing is old while this broker's clock is doubted (rule R10).
        """
        if not self._shard.is_ready or self._shard.state().home.fault:
            return
        self._completion.record_later()
        limits = self._ports.limits()
        is_over = not self._to_check and not self._numbers_to_check
        if is_over and self._now_ms() - self._checked_ms >= CHECK_INTERVAL_MS:
            self._checked_ms = self._now_ms()
            self._to_check = list(self._home().epochs)
            self._numbers_to_check = list(self._home().next_rows)
        taken = self._to_check[: home_decisions.FORGOTTEN_AT_ONCE]
        del self._to_check[: home_decisions.FORGOTTEN_AT_ONCE]
        numbers = self._numbers_to_check[: home_decisions.FORGOTTEN_AT_ONCE]
        del self._numbers_to_check[: home_decisions.FORGOTTEN_AT_ONCE]

        def turn(state: Any, home: HomeState) -> tuple[None, Records]:
            now_ms, is_deleted = state.trusted_ms, self._ports.targets.is_deleted
            found = home_decisions.forget_numbers(home, numbers, is_deleted)
            if now_ms is None:
                return None, found
            if self._loaded_ms is None:
                self._loaded_ms = now_ms
            old = home_decisions.forget_by_age(home, taken, now_ms, self._loaded_ms, limits)
            return None, found + old

        with contextlib.suppress(KafkaError):
            self._turn(turn)

    # ---- descriptions

    def waiting(self) -> list[str]:
        """Return the decisions that wait too long, each as its id and one of its targets."""
        since_ms = self._now_ms() - WAITING_AFTER_MS
        return [
            f"{decision.id.name} at {self._ports.image.name_of(target.topic_id)}:{target.partition}"
            for decision, target in self._completion.waiting(since_ms)
        ]

    def _describe(self, id_: TransactionalId) -> TransactionDescription:
        home = self._home()
        last, present = home.newest.get(id_), home.epochs.get(id_)
        if last is None and present is None:
            text = f"there is no transaction {id_.name}"
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, text)
        return self._description(id_, last, -1 if present is None else present.epoch)

    def descriptions(self, state: TransactionState | None) -> list[TransactionDescription]:
        """Return the ids of this home in a state, or all."""
        home = self._home()
        ids: Mapping[TransactionalId, object] = home.newest
        if state is TransactionState.COMMITTING:
            ids = home.open
        elif state is None:
            ids = dict.fromkeys([*home.epochs, *home.newest])
        found = []
        for id_ in ids:
            last, present = home.newest.get(id_), home.epochs.get(id_)
            if state is None or (last is not None and last.state is state):
                epoch = -1 if present is None else present.epoch
                found.append(self._description(id_, last, epoch))
        return found

    def _description(
        self, id_: TransactionalId, last: TransactionValue | None, epoch: int
    ) -> TransactionDescription:
        decision = self._completion.find(id_)
        return TransactionDescription(
            id=id_,
            epoch=epoch,
            last=home_decisions.last_position(last),
            state=TransactionState.EMPTY if last is None else last.state,
            decided_ms=None if last is None else last.decided_ms,
            placed=() if last is None else last.placed,
            pending=() if decision is None else self._completion.pending(decision),
            dropped=() if last is None else tuple((d.topic_id, d.partition) for d in last.dropped),
            lost=decision.lost if decision is not None else () if last is None else last.lost,
            home_leader=self._ports.broker_id,
            home_partition=PartitionId(self._shard.partition),
        )


def _inline_parts(request: CommitPosition) -> list[Part]:
    return [
        Part(Target(rows.topic_id, rows.partition), rows.rows, index)
        for index, rows in enumerate(request.inline)
    ]


def _is_staged(value: TransactionValue) -> bool:
    return any(not isinstance(unit.source, int) for unit in value.units)


def _is_same(home: HomeState, decision: OpenDecision) -> bool:
    last = home.newest.get(decision.id)
    return last is not None and is_same_decision(last, decision.value)
