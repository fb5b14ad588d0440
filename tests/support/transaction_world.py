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
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from broker.coordinator.group_coordinator import STATE_ERRORS
from broker.coordinator.group_messages import Heartbeat, JoinGroup, Membership
from broker.coordinator.group_state import GroupEnvironment, TopicFacts
from broker.coordinator.home import Home, HomePorts, Missing
from broker.coordinator.instances import GroupLimits
from broker.coordinator.member_requests import MemberRequests
from broker.coordinator.positions import OffsetAndEpoch
from broker.coordinator.shard import Shard
from broker.coordinator.transaction_coordinator import (
    LOGGED_ERRORS,
    answer_proven,
    word_proven,
)
from broker.coordinator.transaction_offsets import TransactionOffsets
from broker.coordinator.transaction_shard import TransactionShard
from broker.record.numbering import HomeKind, make_numbering
from broker.server.stage_leader import StageLeader, StagePorts, StageSettings, read_place
from broker.server.transaction_ports import Targets
from broker.server.unit_appends import UnitAppends
from broker.transactions.home_decisions import ChunkPlaced, Part, StagedParts
from broker.transactions.home_messages import (
    ApplyAnswer,
    ApplyUnits,
    CommitPosition,
    GapFound,
    HomeRequest,
)
from broker.transactions.home_records import StagedPlace, Target
from broker.transactions.home_state import HomeLimits
from broker.transactions.messages import (
    AttemptNamed,
    LogPlace,
    NumberedPosition,
    TargetRows,
    TransactionalId,
)
from broker.transactions.stage_index import ChunkHome, StageLimits
from broker.transactions.stage_messages import FindRefs, StageChunk, StatusQuestion, Word
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    GroupId,
    LeaderEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicPartition,
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
from tests.support.transaction_truth import (
    HOMES,
    ORDERS,
    STAGE,
    Content,
    TransactionViolation,
    Truth,
)

A = TypeVar("A")
G = GroupId("g")
BROKERS = 3
OPERATED_IN = 3
"""One seed in so many has an operator, and stages whose answers are slow."""
LOSSES_IN = 6
"""One seed in so many has unclean elections of its stage, another one of its home."""
LIMITS = HomeLimits()
LIMITS_OF_G = GroupLimits()
REBALANCE_MS = 1_000
ORDERS_PARTITIONS = 2
ORDER_LOGS = [TopicPartition(ORDERS, PartitionId(one)) for one in range(ORDERS_PARTITIONS)]
FACTS = {ORDERS: TopicFacts(TopicId("orders"), ORDERS_PARTITIONS)}
STAGE_LIMITS = StageLimits(
    transaction_bytes=1 << 30,
    transaction_chunks=100,
    transaction_partitions=100,
    staged_bytes=1 << 30,
)
AGES_MAX_MS, MOVES_BYTES = (20_000, 20_000, 1_500), (8_000, 1_500, 300, 1_500)
"""Settings of the stage, by seed: chunks that expire in the story, and that are moved soon."""


class Node:
    """A broker: what it thinks it leads, and what it knows of topics."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.clock = LoopClock()
        self.local = ViewsOfBroker(self.clock.monotonic_ms)
        self.image = SimpleNamespace(next_offset=0, topics=frozenset(world.topics))
        self.homes: dict[str, tuple[Any, Home]] = {}
        self.stages: dict[str, StageLeader] = {}
        self.members = MemberRequests(
            self.clock, lambda: FACTS, _from_the_beginning, _nothing, self._read_proven, LIMITS_OF_G
        )
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
            offsets = TransactionOffsets(_nothing, _far_ends, lambda: FACTS, LIMITS_OF_G)
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
            settings=lambda: self.world.stage_settings,
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

        await self.world.dawdle(0.15)
        found = await self.world.carry(STAGE, there)
        await self.world.dawdle(0.5)
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
            return await word_proven(*node.home(name), node, chunk)

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
        return await answer_proven(shard, home, self, request, LOGGED_ERRORS | STATE_ERRORS)

    async def membership(self, request: JoinGroup | Heartbeat) -> Membership:
        """Answer a member of the group, as a coordinator does."""
        shard, _ = self.home("group-0")
        try:
            if isinstance(request, JoinGroup):
                return await self.members.join(shard, request)
            return await self.members.heartbeat(shard, request)
        except KafkaError as error:
            if error.code not in STATE_ERRORS:
                raise
            refusal = error
        await shard.confirm(self)
        raise refusal

    async def _read_proven(self, shard: Shard, look: Callable[[Any], Membership]) -> Membership:
        found = look(shard.state())
        await shard.settled()
        await shard.prove(self)
        shard.state()
        return found

    async def group_offset(self, partition: PartitionId) -> int:
        """Return the group's committed offset in a partition of orders, proven."""
        shard, _ = self.home("group-0")
        group = shard.state().groups.get(G)
        found = None if group is None else group.committed(ORDER_LOGS[partition], FACTS)
        await shard.confirm(self)
        return 0 if found is None else int(found.offset)


async def _nothing(_: object) -> None:
    pass


async def _far_ends(*_: object) -> dict[TopicPartition, int]:
    return dict.fromkeys(ORDER_LOGS, 1 << 40)


async def _from_the_beginning(
    partitions: Sequence[TopicPartition], _: object
) -> dict[TopicPartition, OffsetAndEpoch]:
    return dict.fromkeys(partitions, OffsetAndEpoch(0))


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
        self.created_at = dict.fromkeys(self.topics, 0)
        self.deleted_at: dict[TopicId, int] = {}
        self.calm = False
        self.lives = 0
        self.tasks: set[asyncio.Task[Any]] = set()
        self.logs: dict[str, ReplicatedLog] = {}
        self.leaders: dict[str, int] = {}
        self.nodes = [Node(self, number) for number in range(BROKERS)]
        self.trouble = self.chance.choice([0.0, 0.5, 1.0, 1.0])
        self.losses = self.chance.choice([0.0, 0.05, 0.15])
        self.uncleanly = self.chance.random() < 0.15
        self.is_operated = seed % OPERATED_IN == 0
        self.loses_stages = seed % LOSSES_IN == LOSSES_IN - 1
        self.loses_homes = seed % LOSSES_IN == 1
        self.stage_settings = StageSettings(
            limits=STAGE_LIMITS,
            age_max_ms=AGES_MAX_MS[seed % len(AGES_MAX_MS)],
            move_bytes=MOVES_BYTES[seed // 2 % len(MOVES_BYTES)],
        )
        self.input_end = 0

    @property
    def now_s(self) -> float:
        """Return the virtual time."""
        return asyncio.get_running_loop().time()

    def topics_at(self, offset: int) -> set[TopicId]:
        """Return the topics of an image of so many records."""
        return {
            topic
            for topic, at in self.created_at.items()
            if at <= offset < self.deleted_at.get(topic, offset + 1)
        }

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
        self.logs[name] = ReplicatedLog(name, self.chance, self._committed, self.truth.trimmed)
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

    async def dawdle(self, likely: float) -> None:
        """Let a question to a stage, or its answer, take its time where an operator is."""
        if self.is_operated and self.chance.random() < likely:
            await asyncio.sleep(self.chance.random() * 0.7)

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
        if lost and name in HOMES:
            self.truth.refold(log)
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
        self.deleted_at[old] = self.created_at[new] = self.metadata_offset
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
        if self.loses_homes and chance.random() < 0.25:
            self.elect(HOMES[0], lost=chance.randint(1, 3))
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
            await asyncio.sleep(0.5)
            for node in self.nodes:
                for shard, home in list(node.homes.values()):
                    if isinstance(shard, Shard):
                        shard.tick(node.clock.monotonic_ms(), FACTS, REBALANCE_MS)
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
        for partition in range(ORDERS_PARTITIONS):
            self._check_output_of(PartitionId(partition))

    def _check_output_of(self, source: PartitionId) -> None:
        truth = self.truth
        done = [
            c
            for c in truth.contents
            if c.moves and c.source == source and c.digest in truth.decided_digests
        ]
        spans = sorted(c.moves for c in done if c.moves is not None)
        at = 0
        for first, end in spans:
            truth.hold("T15", first == at, f"inputs from {first} on behind {at}")
            at = end
        committed = truth.offsets[source]
        truth.hold("T15", at == committed, f"outputs up to {at}, committed is {committed}")
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
