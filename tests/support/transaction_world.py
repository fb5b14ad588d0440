"""A world of transactions: homes, targets and a stage that change leaders, and unkind clients.

Everything that decides is the product's own: `TransactionShard`, `Shard`, `Home`, `Completion`,
`Targets`, `UnitAppends`, `ProducerStates`, `StageLeader`. Logs, network and images are simulated,
in virtual time, from a seed. `Truth` notes what is committed, in the order in which it is, and
holds each answer against it. A `TransactionViolation` names the rule (S) or invariant (T).
``tests/simulation/test_transaction_simulation.py`` runs the seeds; the clients are in
``tests/support/transaction_clients.py``.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import orjson

from broker.coordinator.group_state import GroupEnvironment, TopicFacts
from broker.coordinator.home import Home, HomePorts, Missing
from broker.coordinator.instances import GroupLimits
from broker.coordinator.records import OffsetKey, OffsetValue, ShardRecord
from broker.coordinator.shard import Shard
from broker.coordinator.transaction_coordinator import answer_proven
from broker.coordinator.transaction_offsets import TransactionOffsets
from broker.coordinator.transaction_shard import TransactionShard
from broker.record.numbering import HomeKind, make_numbering, row_of_claim
from broker.server.stage_leader import StageLeader, StagePorts, StageSettings, read_place
from broker.server.transaction_ports import Targets
from broker.server.unit_appends import UnitAppends
from broker.transactions.chunk_records import decode_head, rows_in
from broker.transactions.home_decisions import ChunkPlaced, Part, StagedParts
from broker.transactions.home_messages import (
    ApplyAnswer,
    ApplyUnits,
    CommitPosition,
    GapFound,
    HomeRequest,
)
from broker.transactions.home_records import EpochKey, StagedPlace, Target, TransactionKey
from broker.transactions.home_records import TransactionValue as Value
from broker.transactions.home_state import HomeLimits
from broker.transactions.messages import (
    AttemptNamed,
    LogPlace,
    NumberedPosition,
    ProducerInitialized,
    ProducerPosition,
    TargetRows,
    TransactionalId,
    TransactionOutcome,
    TransactionState,
)
from broker.transactions.stage_index import ChunkHome, StageLimits
from broker.transactions.stage_messages import FindRefs, StageChunk, StatusQuestion, Word
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    LeaderEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
    TopicPartition,
    is_reserved,
)
from tests.support.doors.server import index_of
from tests.support.group_simulation import LoopClock, VirtualLoop
from tests.support.transaction_logs import (
    HomeLog,
    LogBatch,
    LogView,
    ReplicatedLog,
    ViewsOfBroker,
    name_of,
)

A = TypeVar("A")
G = GroupId("g")
ORDERS = TopicName("orders")
BROKERS = 3
STAGES_LOST_IN = 6
"""One seed in so many has unclean elections of its stage."""
HOMES = ("home-0", "group-0")
STAGE = "stage-0"
FOR_GOOD = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_CONFLICT,
        ErrorCode.TRANSACTION_ABORTED,
        ErrorCode.OFFSET_NOT_EXPECTED,
    }
)
LIMITS = HomeLimits()
FACTS = {ORDERS: TopicFacts(TopicId("orders"), 1)}
STAGE_SETTINGS = StageSettings(
    limits=StageLimits(
        transaction_bytes=1 << 30,
        transaction_chunks=100,
        transaction_partitions=100,
        staged_bytes=1 << 30,
    ),
    age_max_ms=20_000,
    move_bytes=8_000,
)


class TransactionViolation(AssertionError):
    """A rule or an invariant that does not hold."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


@dataclass(eq=False)
class Content:
    """A client's wish for a decision: rows for targets, and a move of the group's offset."""

    number: int
    rows: tuple[tuple[Target, tuple[str, ...]], ...]
    moves: tuple[int, int] | None = None
    """The group's offset: expected, and next."""
    asked: int = 0
    """The number of times it was brought to a home."""
    told: str = ""
    staged_s: float | None = None
    """Time at which the last of its chunks was acknowledged."""

    @property
    def digest(self) -> str:
        """Return what homes compare."""
        return str(self.number)


@dataclass(eq=False)
class Truth:
    """All that was committed, in order, and what clients were told."""

    world: World
    contents: list[Content] = field(default_factory=list)
    decided: dict[tuple[TransactionalId, tuple[int, int]], Value] = field(default_factory=dict)
    newest: dict[TransactionalId, Value] = field(default_factory=dict)
    epochs: dict[TransactionalId, int] = field(default_factory=dict)
    epochs_told: set[tuple[TransactionalId, int]] = field(default_factory=set)
    places: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Each row that is committed, with its log and offset."""
    lost: set[str] = field(default_factory=set)
    """Rows that an unclean election of a target took back."""
    once_lost: set[str] = field(default_factory=set)
    """The same with those that a newer home brought again, which the former one does not know."""
    unstaged: set[str] = field(default_factory=set)
    """Rows that an unclean election of the stage took; some were staged again, or moved before."""
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    """Row number behind the last row, by target and numbering."""
    offset: int = 0
    """The group's committed offset."""
    excused: set[str] = field(default_factory=set)
    """Contents whose decision an unclean election of their home took back."""
    decided_digests: set[str] = field(default_factory=set)

    def fail(self, check: str, text: str) -> None:
        """Remember the first violation; the loop would swallow one that is raised in a callback."""
        if self.world.violation is None:
            self.world.violation = TransactionViolation(check, text)

    def hold(self, check: str, is_true: bool, text: object) -> None:
        """Note a violation unless the check holds."""
        if not is_true:
            self.fail(check, str(text))

    def content(self, rows: Sequence[tuple[Target, int]], moves: Any = None) -> Content:
        """Return a new content with so many rows for each target."""
        number = len(self.contents)
        named = tuple(
            (target, tuple(f"{number}.{part}.{row}" for row in range(count)))
            for part, (target, count) in enumerate(rows)
        )
        self.contents.append(Content(number, named, moves))
        return self.contents[-1]

    # what homes commit

    def home_committed(self, records: Sequence[ShardRecord]) -> None:
        """Note a decision of a home."""
        for key, value in records:
            if isinstance(key, EpochKey):
                if value is not None:
                    epoch = cast("Any", value).epoch
                    self.hold("T13", epoch > self.epochs.get(key.id, 0), f"{key} {epoch} again")
                    self.epochs[key.id] = epoch
            elif isinstance(key, TransactionKey):
                if value is None:
                    self.newest.pop(key.id, None)
                else:
                    self._position(key.id, cast("Value", value))
            elif isinstance(key, OffsetKey) and isinstance(value, OffsetValue):
                self.hold("T14", value.offset >= self.offset, f"{self.offset} back to {value}")
                self.offset = value.offset
        moved = any(isinstance(key, OffsetKey) for key, _ in records)
        if moved:
            self.hold(
                "S8", any(isinstance(key, TransactionKey) for key, _ in records), "offsets alone"
            )

    def _position(self, id_: TransactionalId, value: Value) -> None:
        last = self.newest.get(id_)
        if last is not None:
            self.hold("T9", value.at >= last.at, f"{id_}: {value.at} behind {last.at}")
            is_next = value.at > last.at
            self.hold("S2", not (is_next and last.is_open), f"{id_} {value.at} beside {last.at}")
        self.newest[id_] = value
        known = self.decided.get((id_, value.at))
        if value.state is TransactionState.ABORTED:
            self.hold("S2", known is None, f"{id_} {value.at} is aborted behind its decision")
            return
        if known is not None:
            same = known.digest == value.digest
            self.hold("T9", same, f"{id_} {value.at} has content {known.digest}, {value.digest}")
        else:
            self._decided(id_, value)
        self.decided[id_, value.at] = value
        if not value.is_open:
            gone = {target.topic_id for target in value.dropped}
            missing = self.missing(self.contents[int(value.digest)], gone)
            self.hold("S2", not missing, f"{id_} {value.at} is complete without {missing}")

    def _decided(self, id_: TransactionalId, value: Value) -> None:
        self.world.figures["decisions"] += 1
        content = self.contents[int(value.digest)]
        if value.epoch:
            self.hold("T13", value.epoch >= self.epochs.get(id_, 0), f"{id_} {value.at} is fenced")
        is_refused = content.told == "not_written"
        is_once = content.told == "once" and content.asked == 1
        self.hold("refused wrongly", not is_refused, f"{value.digest} is decided later")
        self.hold("told not written", not is_once, f"{value.digest} is decided later")
        again = value.digest in self.decided_digests and value.digest not in self.excused
        self.hold("S7", not again, f"{value.digest} is decided twice")
        self.decided_digests.add(value.digest)

    # what targets commit

    def rows_committed(self, log: ReplicatedLog, batch: LogBatch) -> None:
        """Note rows that any reader may have read now."""
        rows = [orjson.loads(line)["value"] for line in batch.payload.splitlines()]
        if batch.claim is None:
            return
        assert is_reserved(batch.claim.producer_id)
        key = (log.name, batch.claim.producer_id)
        number = row_of_claim(batch.claim)
        is_dense = number == self.ends.get(key, 0)
        is_dense |= max(log.unclean_epoch, self.world.logs[STAGE].unclean_epoch) >= 0
        self.hold("T10", is_dense, f"{key}: {number} behind {self.ends.get(key, 0)}")
        self.ends[key] = number + len(rows)
        for at, row in enumerate(rows):
            digest = row.split(".")[0]
            if digest not in self.excused:
                self.hold("T7", digest in self.decided_digests, f"{row} is not decided")
                self.hold("T11", row not in self.places, f"{row} stands twice")
            self.places[row] = (log.name, batch.base + at)
            self.lost.discard(row)

    def cut(self, log: ReplicatedLog, batches: Sequence[LogBatch]) -> None:
        """Take back what an unclean election lost."""
        for batch in batches:
            if log.name in HOMES:
                self._cut_home(batch.payload)
            elif log.name == STAGE:
                self.unstaged.update(staged_in(batch))
            else:
                for line in batch.payload.splitlines():
                    row = orjson.loads(line)["value"]
                    self.places.pop(row, None)
                    self.lost.add(row)
                    self.once_lost.add(row)

    def _cut_home(self, records: Sequence[ShardRecord]) -> None:
        for key, value in records:
            if isinstance(key, TransactionKey) and isinstance(value, Value):
                if value.digest:  # an abort has none
                    self.excused.add(value.digest)
                self.newest.pop(key.id, None)
                self.decided.pop((key.id, value.at), None)
            if isinstance(key, EpochKey):
                self.epochs[key.id] = 0
                if value is not None:
                    self.epochs_told.discard((key.id, cast("Any", value).epoch))

    def missing(self, content: Content, gone: set[TopicId]) -> list[str]:
        """Return the rows of a content that are nowhere, though their topics live."""
        return [
            row
            for target, rows in content.rows
            for row in rows
            if target.topic_id not in gone | self.world.deleted
            and row not in self.places
            and row not in self.lost
            and row not in self.unstaged
        ]

    # what clients are told

    def told(self, request: HomeRequest[Any], content: Content | None, answer: object) -> None:
        """Hold an answer against what is committed now."""
        match answer:
            case ProducerInitialized():
                key = (request.id, answer.epoch)
                self.hold("T13", key not in self.epochs_told, f"{key} is told twice")
                committed = answer.epoch <= self.epochs.get(request.id, 0)
                self.hold("S6", committed or bool(self.excused), f"{key} is not committed")
                self.epochs_told.add(key)
            case TransactionOutcome() if content is not None:
                self._told_outcome(request, content, answer)
            case KafkaError() if content is not None:
                self._told_error(request, content, answer)
            case _:
                pass

    def _told_outcome(
        self, request: HomeRequest[Any], content: Content, answer: TransactionOutcome
    ) -> None:
        figure = "already" if answer.already else answer.state.value
        self.world.figures[f"told {figure}"] += 1
        known = self.decided.get((request.id, (answer.epoch, answer.number)))
        if content.digest in self.excused or self.excused:
            return
        self.hold("T3", known is not None, f"{content.number} is told decided, and is not")
        if answer.already or known is None:
            return
        self.hold("S7", known.digest == content.digest, f"{content.number} hears of {known.digest}")
        if answer.state is TransactionState.COMPLETE:
            missing = self.missing(content, {one[0] for one in answer.dropped})
            self.hold("told ok wrongly", not missing, f"{content.number} lacks {missing}")
            self._check_lost(content, answer)
            for one in answer.placed:
                if one.base_offset is not None:
                    target = Target(one.topic_id, one.partition)
                    self._check_place(content, target, one.base_offset)

    def _check_lost(self, content: Content, answer: TransactionOutcome) -> None:
        """What is nowhere because of its stage is told as lost (S3).

        A request that was under way may have written rows that were recorded as lost meanwhile.
        """
        gone = {one[0] for one in answer.dropped}
        told = {Target(one.topic_id, one.partition): one.rows for one in answer.lost}
        for target, rows in content.rows:
            unstaged = self.unstaged.intersection(rows)
            nowhere = unstaged.difference(self.places, self.lost)
            if target.topic_id not in gone | self.world.deleted:
                right = len(nowhere) <= told.get(target, 0) <= len(unstaged)
                self.hold("S3", right, f"{content.number} tells {told}, nowhere are {nowhere}")
        self.world.figures["told lost"] += bool(told)

    def _check_place(self, content: Content, target: Target, offset: int) -> None:
        rows = [row for each, some in content.rows if each == target for row in some]
        place = self.places.get(rows[0]) if rows else None
        if place is not None and rows[0] not in self.once_lost:
            self.hold("wrong offset", place[1] == offset, f"{rows[0]} at {place}, told {offset}")

    def _told_error(self, request: HomeRequest[Any], content: Content, error: KafkaError) -> None:
        self.world.figures[f"told {error.code.name}"] += 1
        if error.outcome is not Outcome.NOT_WRITTEN or self.excused:
            return
        is_decided = content.digest in self.decided_digests
        self._check_fence(request, content, error)
        if error.code in FOR_GOOD:
            self.hold("refused wrongly", not is_decided, f"{content.number} is decided: {error}")
            content.told = "not_written"
        elif error.code is ErrorCode.STAGE_INCOMPLETE:
            is_young = content.staged_s is not None and self.world.now_s < content.staged_s + 15
            is_young &= self.unstaged.isdisjoint(row for _, rows in content.rows for row in rows)
            self.hold("S9", not is_young, f"{content.number} was staged: {error}")
            self.hold("refused wrongly", not is_decided, f"{content.number} is decided: {error}")
        elif content.asked == 1:
            self.hold("told not written", not is_decided, f"{content.number} is decided: {error}")
            content.told = content.told or "once"

    def _check_fence(self, request: HomeRequest[Any], content: Content, error: KafkaError) -> None:
        """A fence that does not hold in the newest state was told by an older leader (rule G3)."""
        position = request.position if isinstance(request, CommitPosition) else None
        if error.code is ErrorCode.PRODUCER_FENCED and isinstance(position, ProducerPosition):
            is_present = self.epochs.get(request.id) == position.epoch
            self.hold("refused wrongly", not is_present, f"{request.id} {position}: {error}")
        if error.code is ErrorCode.OFFSET_NOT_EXPECTED and content.moves is not None:
            is_present = content.moves[0] == self.offset
            self.hold("refused wrongly", not is_present, f"{content.moves}: {error}")


class Node:
    """A broker: what it thinks it leads, and what it knows of topics."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.clock = LoopClock()
        self.local = ViewsOfBroker(self.clock.monotonic_ms)
        self.image = SimpleNamespace(next_offset=0, topics=frozenset(world.topics))
        self.homes: dict[str, tuple[Any, Home]] = {}
        self.stages: dict[str, StageLeader] = {}
        loader = SimpleNamespace(image=self.image)
        anything = cast("Any", None)
        appends = UnitAppends(
            anything, cast("Any", self.local), cast("Any", self.local), self.clock, self.check_proof
        )
        self.targets = Targets(
            anything, cast("Any", loader), anything, cast("Any", self.local), appends,
            cast("Any", self), self.clock, staged_units_a_step=1 + number % 2,
        )  # fmt: skip

    # ---- proof of leading

    def check_proof(self) -> bool:
        """Return whether this broker has heard of every election."""
        return all(view.is_live for view in self.local.views.values())

    async def prove(self, timeout_ms: int) -> bool:
        """Wait for a heartbeat."""
        await asyncio.sleep(timeout_ms / 1000)
        return self.check_proof()

    proof_age_max_ms = 0

    # ---- roles

    def lead(self, view: LogView) -> None:
        """Become the leader of a partition."""
        name = view.name
        self.drop(name)
        self.local.views[name] = view
        if name in HOMES:
            self._open_home(name, view)
        elif name == STAGE:
            self._open_stage(view)

    def _open_home(self, name: str, view: LogView) -> None:
        log, partition, epoch = HomeLog(view), PartitionId(0), LeaderEpoch(view.epoch)
        shard: Any
        offsets = None
        if name == "group-0":
            shard = Shard(
                partition, epoch, log, self.clock, GroupEnvironment(),
                present_topics=lambda: FACTS, make_life=self.world.make_life,
            )  # fmt: skip
            offsets = TransactionOffsets(_nothing, _no_ends, lambda: FACTS, GroupLimits())
        else:
            shard = TransactionShard(partition, epoch, log, self.clock, lambda: True)
        kind = HomeKind.GROUPS if name == "group-0" else HomeKind.TRANSACTIONS
        unclean = LeaderEpoch(view.of.unclean_epoch)
        ports = HomePorts(
            broker_id=BrokerId(self.number),
            clock=self.clock,
            targets=self,
            stages=self,
            image=self,
            limits=lambda: LIMITS,
            offsets=offsets,
        )
        home = Home(shard, make_numbering(kind, partition, unclean), ports, self.world.start)
        self.homes[name] = (shard, home)
        self.world.start(shard.run())

    def _open_stage(self, view: LogView) -> None:
        ports = StagePorts(
            local=cast("Any", self.local),
            trimming=cast("Any", self.local),
            clock=self.clock,
            proof=self,
            ask_home=self._ask_home,
            home_of=lambda id_: ChunkHome(id_.group != "", PartitionId(0)),
            settings=lambda: STAGE_SETTINGS,
            is_clock_trusted=lambda: True,
            clock_error_max_ms=60_000,
        )
        place = TopicIdPartition(TopicId("stage"), PartitionId(0))
        stage = self.stages[STAGE] = StageLeader(place, LeaderEpoch(view.epoch), ports)
        self.world.start(stage.run())

    def drop(self, name: str) -> None:
        """Hear of a newer leader of a partition."""
        view = self.local.views.pop(name, None)
        if view is not None:
            view.resign()
        if name in self.homes:
            shard, home = self.homes.pop(name)
            home.close()
            shard.close()
        if name in self.stages:
            self.stages.pop(name).close()

    # ---- ports of homes: targets

    async def apply(self, request: ApplyUnits) -> ApplyAnswer:
        """Bring units to the leader of their target."""
        name = name_of(TopicIdPartition(*request.target))

        async def there(node: Node) -> ApplyAnswer:
            answer = await node.targets.append(request, 500)
            if isinstance(answer, GapFound):
                is_clean = all(log.unclean_epoch < 0 for log in self.world.logs.values())
                self.world.truth.hold("S5", not is_clean, f"a gap in {name}, which lost nothing")
            return answer

        return await self.world.carry(name, there)

    def is_deleted(self, target: Target, metadata_offset: int) -> bool:
        """Judge by this broker's image."""
        return self.targets.is_deleted(target, metadata_offset)

    # ---- ports of homes: stages

    async def parts(
        self, id_: TransactionalId, at: tuple[int, int], attempts: Sequence[AttemptNamed], _: int
    ) -> StagedParts | Missing:
        """Ask the stage's leader for the chunks of attempts."""
        request = FindRefs(
            partition=PartitionId(0), id=id_, epoch=at[0], number=at[1], attempts=tuple(attempts)
        )

        async def there(node: Node) -> Any:
            return await node.stage().refs(request)

        found = await self.world.carry(STAGE, there)
        for one in found:
            if one.missing is not None:
                return Missing(one.missing)
        parts = [
            Part(
                Target(ref.target.topic_id, ref.target.partition),
                ref.target.rows,
                StagedPlace(PartitionId(0), ref.at),
            )
            for one in found
            for ref in one.refs
        ]
        return StagedParts(parts, sum(one.size_bytes for one in found))

    async def rows_of(self, places: Sequence[StagedPlace]) -> Sequence[TargetRows | None]:
        """Read staged rows from this broker's disk, or else from the stage's leader."""
        found: list[TargetRows | None] = []
        for place in places:
            rows = await self._own_rows(place.at)
            if rows is None:
                (rows,) = await self._rows_of_leader(place.at)
            found.append(rows)
        return found

    async def _own_rows(self, at: LogPlace) -> TargetRows | None:
        view = self.local.views.get(STAGE)
        if view is None or at.offset >= view.high_watermark or self.world.chance.random() < 0.5:
            return None
        return await read_place(cast("Any", view), at)

    async def _rows_of_leader(self, at: LogPlace) -> list[TargetRows | None]:
        return await self.world.carry(STAGE, lambda node: node.stage().read([at]))

    def stage(self) -> StageLeader:
        """Return the stage's leader."""
        stage = self.stages.get(STAGE)
        if stage is None or not stage.is_ready:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return stage

    async def _ask_home(self, question: StatusQuestion) -> Word:
        chunk = ChunkPlaced(
            id=question.id,
            is_producer=question.epoch != 0,
            at=(question.epoch, question.number),
            place=StagedPlace(question.partition, question.place),
            records=question.records,
            copy=None if question.copy is None else StagedPlace(question.partition, question.copy),
            is_aged=question.is_aged,
            is_passed=question.is_passed,
        )
        name = "home-0" if question.id.group == "" else "group-0"

        async def there(node: Node) -> bool:
            return await node.home(name)[1].may_go(chunk)

        if question.copy is not None:
            self.world.figures["moves"] += 1
        return Word.GONE if await self.world.carry(name, there) else Word.KEEP

    # ---- ports of homes: the image

    @property
    def metadata_offset(self) -> int:
        """Return how much of the metadata is known here."""
        return int(self.image.next_offset)

    def check_able(self, target: Target) -> None:
        """Refuse a topic that is not known."""
        if target.topic_id not in self.image.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    async def know(self, targets: Sequence[Target]) -> None:
        """Catch up, if a topic is not known."""
        if any(target.topic_id not in self.image.topics for target in targets):
            await asyncio.sleep(0.05)
            self.catch_up()

    def catch_up(self) -> None:
        """Hear of all changes of topics."""
        self.image.next_offset = self.world.metadata_offset
        self.image.topics = frozenset(self.world.topics)

    # ---- requests

    def home(self, name: str) -> tuple[Any, Home]:
        """Return a home that is led here, loaded."""
        found = self.homes.get(name)
        if found is None:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        found[0].state()
        return found

    async def answer(self, name: str, request: HomeRequest[A]) -> A:
        """Answer as a coordinator does: refusals are proven."""
        shard, home = self.home(name)
        return await answer_proven(shard, home, self, request)

    async def group_offset(self) -> int:
        """Return the group's committed offset, proven."""
        shard, _ = self.home("group-0")
        group = shard.state().groups.get(G)
        place = TopicPartition(ORDERS, PartitionId(0))
        found = None if group is None else group.committed(place, FACTS)
        await shard.confirm(self)
        return 0 if found is None else int(found.offset)


async def _nothing(_: object) -> None:
    pass


async def _no_ends(*_: object) -> dict[TopicPartition, int]:
    return {}


class World:
    """Brokers, logs, network and faults of one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.seed = seed
        self.figures: Counter[str] = Counter()
        self.violation: TransactionViolation | None = None
        self.truth = Truth(self)
        self.topics: dict[TopicId, None] = dict.fromkeys(map(TopicId, ("a", "b", "c0", "out")))
        self.deleted: set[TopicId] = set()
        self.metadata_offset = 1
        self.calm = False
        self.lives = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.logs: dict[str, ReplicatedLog] = {}
        self.leaders: dict[str, int] = {}
        self.nodes = [Node(self, number) for number in range(BROKERS)]
        self.trouble = self.chance.choice([0.0, 0.5, 1.0, 1.0])
        self.losses = self.chance.choice([0.0, 0.05, 0.15])
        self.uncleanly = self.chance.random() < 0.15
        self.loses_stages = seed % STAGES_LOST_IN == STAGES_LOST_IN - 1
        self.input_end = 0

    @property
    def now_s(self) -> float:
        """Return the virtual time."""
        return asyncio.get_running_loop().time()

    def make_life(self) -> str:
        """Return a name for a loaded state of groups."""
        self.lives += 1
        return f"life{self.lives}"

    def begin(self) -> None:
        """Elect the first leaders."""
        for name in [*HOMES, STAGE, *(f"{topic}-0" for topic in self.topics)]:
            self.add(name)
        for node in self.nodes:
            node.catch_up()

    def add(self, name: str) -> None:
        """Add a partition."""
        self.logs[name] = ReplicatedLog(name, self.chance, self._committed)
        self.leaders[name] = self.chance.randrange(BROKERS)
        self.nodes[self.leaders[name]].lead(self.logs[name].view)

    def _committed(self, log: ReplicatedLog, batch: LogBatch) -> None:
        if log.name in HOMES:
            self.truth.home_committed(batch.payload)
        elif log.name != STAGE:
            self.truth.rows_committed(log, batch)

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Run something that its owner ends."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None and self.violation is None:
            error = task.exception()
            if not isinstance(error, KafkaError):
                self.violation = TransactionViolation("broken", repr(error))
                self.violation.__cause__ = error

    # ---- network

    async def carry(self, name: str, there: Callable[[Node], Awaitable[A]]) -> A:
        """Have a partition's leader answer; some requests are lost, late, doubled, or astray."""
        chance = self.chance
        number = self.leaders.get(name, 0)
        if not self.calm and chance.random() < 0.25:
            believers = [node.number for node in self.nodes if name in node.local.views]
            number = chance.choice([*believers, chance.randrange(BROKERS)])
        await asyncio.sleep(chance.random() * 0.01)
        if not self.calm and chance.random() < self.losses:
            kind = chance.randrange(3)
            if kind == 0:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
            if kind == 1:
                self.start(self._later(there, self.nodes[number]))
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
            self.start(self._later(there, self.nodes[number]))
            self.figures["doubled"] += 1
        answer = await there(self.nodes[number])
        await asyncio.sleep(chance.random() * 0.01)
        if not self.calm and chance.random() < self.losses:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION)
        return answer

    async def _later(self, there: Callable[[Node], Awaitable[Any]], node: Node) -> None:
        await asyncio.sleep(self.chance.random() * self.chance.choice([0.1, 3]))
        try:
            await there(node)
        except KafkaError:
            pass

    async def ask(self, name: str, request: HomeRequest[A], content: Content | None = None) -> A:
        """Ask a home once, and hold its answer against the truth, be it received or lost."""

        async def there(node: Node) -> A:
            if content is not None:
                content.asked += 1
            try:
                answer = await node.answer(name, request)
            except KafkaError as error:
                self.truth.told(request, content, error)
                raise
            self.truth.told(request, content, answer)
            return answer

        return await self.carry(name, there)

    async def stage(self, request: StageChunk) -> int:
        """Stage a chunk once."""

        async def there(node: Node) -> int:
            return await node.stage().stage(request)

        return await self.carry(STAGE, there)

    # ---- faults

    def elect(self, name: str, *, lost: int = 0) -> None:
        """Elect another leader; the old one hears of it later."""
        log, old = self.logs[name], self.nodes[self.leaders[name]]
        log.is_stuck = log.is_short = False
        if lost:
            known = [one for one in log.view.batches if one.end <= log.committed]
            self.truth.cut(log, known[max(0, len(known) - lost) :])
            self.figures["unclean elections"] += 1
        view = log.elect(lost)
        new = self.nodes[self.chance.randrange(BROKERS)]
        self.leaders[name] = new.number
        self.figures["elections"] += 1
        old_view = old.local.views.get(name)
        new.lead(view)
        if old is not new:
            delay_s = 0.01 if self.calm else self.chance.random() * self.chance.choice([0.05, 3])
            asyncio.get_running_loop().call_later(delay_s, self._depose, old, name, old_view)

    @staticmethod
    def _depose(node: Node, name: str, view: LogView | None) -> None:
        if node.local.views.get(name) is view:
            node.drop(name)

    def kill(self, node: Node) -> None:
        """End a broker; it is up again at once, and leads nothing."""
        for name in list(node.local.views):
            node.drop(name)
            if self.leaders[name] == node.number:
                self.elect(name)

    def change_topic(self) -> None:
        """Delete a topic and make another one."""
        old = next(topic for topic in self.topics if topic.startswith("c"))
        del self.topics[old]
        self.deleted.add(old)
        name = f"{old}-0"
        for node in self.nodes:
            node.drop(name)
        del self.leaders[name]
        self.metadata_offset += 1
        new = TopicId(f"c{self.metadata_offset}")
        self.topics[new] = None
        self.add(f"{new}-0")
        self.figures["topics deleted"] += 1
        if self.chance.random() < 0.5:
            # Decisions for it are open when the home moves to a broker that does not know it yet.
            self.shorten(f"{new}-0", 3)
            delay_s = 0.6 + self.chance.random() * 0.6
            asyncio.get_running_loop().call_later(delay_s, self.elect, HOMES[0])

    def fault(self) -> None:
        """Do one unkind thing."""
        chance = self.chance
        if self.loses_stages and chance.random() < 0.25:
            self.elect(STAGE, lost=chance.randint(1, 3))
            return
        names = list(self.leaders)
        kind = chance.choices(range(9), [10, 5, 2, 2, 2, 3, 2, 2, 4])[0]
        name = chance.choice(names)
        if kind == 0:
            self.elect(name)
        elif kind == 1:
            self.elect(chance.choice([*HOMES, STAGE]))
        elif kind == 2:
            self.kill(chance.choice(self.nodes))
        elif kind == 3:
            self.stick(name, chance.random() * 3)
        elif kind == 8:
            # A target is late: what is decided for another one besides is open when the home moves.
            self.stick(chance.choice(["a-0", "b-0"]), 1.5)
            asyncio.get_running_loop().call_later(chance.random(), self.elect, HOMES[0])
        elif kind == 4:
            self.shorten(name, chance.random() * 2)
        elif kind == 5:
            chance.choice(self.nodes).catch_up()
        elif kind == 6:
            self.change_topic()
        elif kind == 7 and self.uncleanly:
            targets = [one for one in names if one not in {STAGE, "group-0", "out-0"}]
            self.elect(chance.choice(targets), lost=chance.randint(1, 3))

    def stick(self, name: str, for_s: float) -> None:
        """Let the replicas of a partition fetch nothing for some time."""
        log = self.logs[name]
        log.is_stuck = True
        asyncio.get_running_loop().call_later(for_s, setattr, log, "is_stuck", False)

    def shorten(self, name: str, for_s: float) -> None:
        """Let a partition refuse appends for some time: too few replicas are in sync."""
        log = self.logs[name]
        log.is_short = True
        asyncio.get_running_loop().call_later(for_s, setattr, log, "is_short", False)

    async def make_trouble(self) -> None:
        """Do unkind things until all is calm; homes tick meanwhile."""
        while not self.calm:
            await asyncio.sleep(self.chance.random() * 0.6)
            if self.chance.random() < self.trouble and not self.calm:
                self.fault()
            if self.chance.random() < 0.2:
                self._trim_target()

    def _trim_target(self) -> None:
        """Retention: the batches of homes go, what is known of them stays (rule S5)."""
        name = self.chance.choice(["a-0", "b-0"])
        log = self.logs[name]
        if log.committed > log.start:
            log.trim(self.chance.randint(log.start, log.committed))
            self.figures["trims"] += 1

    async def tick(self) -> None:
        """Pass time to homes."""
        while True:
            await asyncio.sleep(1)
            for node in self.nodes:
                for _, home in list(node.homes.values()):
                    home.tick()

    # ---- the end

    @property
    def unfinished(self) -> list[str]:
        """Return what is not as it must be once all is calm."""
        found = []
        for name in HOMES:
            node = self.nodes[self.leaders[name]]
            shard, _ = node.homes.get(name, (None, None))
            if shard is None or not shard.is_ready:
                found.append(f"{name} is not loaded")
                continue
            found += [f"{one} is open" for one in shard.state().home.open]
        return found

    async def until_finished(self, what: str) -> None:
        """Wait, for a minute at most."""
        for _ in range(600):
            if not self.unfinished or self.violation is not None:
                return
            await asyncio.sleep(0.1)
        self.truth.fail("T12", f"{what}: {self.unfinished[:3]}")

    def check_end(self) -> None:
        """Hold all that is there against all that was decided and told."""
        truth = self.truth
        for content in truth.contents:
            if content.digest in truth.excused:
                continue
            rows = [row for _, some in content.rows for row in some]
            here = [row for row in rows if row in truth.places]
            if content.digest in truth.decided_digests:
                missing = truth.missing(content, set())
                truth.hold("T6", not missing, f"content {content.number} lacks {missing}")
            else:
                truth.hold("T6", not here, f"content {content.number} has {here}, undecided")
        self._check_outputs()

    def _check_outputs(self) -> None:
        """T15: each input is in the output once, in order."""
        truth = self.truth
        done = [c for c in truth.contents if c.moves and c.digest in truth.decided_digests]
        spans = sorted(c.moves for c in done if c.moves is not None)
        at = 0
        for first, end in spans:
            truth.hold("T15", first == at, f"inputs from {first} on behind {at}")
            at = end
        truth.hold("T15", at == truth.offset, f"outputs up to {at}, committed is {truth.offset}")
        placed = [
            truth.places[c.rows[0][1][0]][1]
            for c in sorted(done, key=lambda c: c.moves or (0, 0))
            if c.rows[0][1][0] not in truth.unstaged
        ]
        truth.hold("T15", placed == sorted(placed), f"outputs stand in another order: {placed}")

    async def drain(self) -> None:
        """Heal, look, fail everything over, look again (T12, T17)."""
        for log in self.logs.values():
            log.is_short = log.is_stuck = False
        for node in self.nodes:
            node.catch_up()
        await asyncio.sleep(4)
        await self.until_finished("healed")
        self.check_end()
        count = sum(self.truth.ends.values())
        for name in list(self.leaders):
            self.elect(name)
        await asyncio.sleep(1)
        await self.until_finished("failed over")
        self.check_end()
        now = sum(self.truth.ends.values())
        self.truth.hold("T17", now == count, f"{now - count} rows more behind a failover at rest")
        await self._until_stage_is_empty()

    async def _until_stage_is_empty(self) -> None:
        """Whatever is staged is too old some time, or was decided (T12)."""
        for _ in range(40):
            index = index_of(self.nodes[self.leaders[STAGE]].stages[STAGE])
            if not index.homes or self.violation is not None:
                return
            await asyncio.sleep(5)
        self.truth.fail("T12", f"staged chunks are left: {list(index.homes.items())[:3]}")


def staged_in(batch: LogBatch) -> list[str]:
    """Return the rows of a batch of the stage."""
    lines = batch.payload.split(b"\n")[:-1]
    texts = [rows_in(line).records for line in lines if decode_head(line) is not None]
    return [row["value"] for text in texts for row in orjson.loads(text)]


def commit_of(
    id_: TransactionalId, position: Any, content: Content, **fields: Any
) -> CommitPosition:
    """Return the request that commits a content."""
    return CommitPosition(
        id=id_, timeout_ms=800, position=position, digest=content.digest, **fields
    )


def run_loop(work: Callable[[], Awaitable[A]]) -> A:
    """Run in virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(cast("Any", work()))
    finally:
        loop.close()


__all__ = ["NumberedPosition", "World", "commit_of", "run_loop"]
