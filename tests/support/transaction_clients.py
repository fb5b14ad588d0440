"""Clients of the world of transactions: one-shots, lives of producers, drivers, transformers.

Each repeats what it asked until it is told something final, as docs of transactions say a client
may: any request can be repeated as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import Any
from unittest import mock

from broker.coordinator.group_messages import (
    ConsumerSettings,
    Heartbeat,
    JoinGroup,
    Membership,
    OffsetReset,
)
from broker.record.batch import RecordFormat
from broker.server import stage_leader
from broker.transactions.chunk_records import ChunkKey, RowsChunk
from broker.transactions.home_messages import (
    AbortPosition,
    AwaitPosition,
    CommitPosition,
    ForgetId,
    HomeRequest,
    InitId,
)
from broker.transactions.home_records import Target
from broker.transactions.messages import (
    EXPECTED_NONE,
    NO_GROUP,
    AttemptNamed,
    KeyPosition,
    NumberedPosition,
    OffsetMove,
    Position,
    ProducerPosition,
    TargetRows,
    TransactionalId,
    TransactionOutcome,
    TransactionState,
)
from broker.transactions.stage_messages import StageChunk
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import InstanceId, PartitionId, TopicId, TopicPartition
from tests.support.transaction_truth import FOR_GOOD, ORDERS, Content
from tests.support.transaction_world import G, World, commit_of, run_loop

FINAL = FOR_GOOD | {
    ErrorCode.TRANSACTION_SUPERSEDED,
    ErrorCode.STAGE_INCOMPLETE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.ILLEGAL_STATE,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.INSTANCE_ALREADY_EXISTS,
}
QUESTIONS_IN = 5
"""One story in so many has questions to homes about what they decided."""
TRIES_MAX = 150
STORY_S = 2.5
"""Virtual time for which clients begin new transactions."""


def target_rows(content: Content) -> tuple[TargetRows, ...]:
    """Return the rows of a content as text."""
    return tuple(
        TargetRows(
            topic_id=target.topic_id,
            partition=target.partition,
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            rows=len(rows),
            records=b"[%b]" % b",".join(b'{"value":"%b"}' % row.encode() for row in rows),
        )
        for target, rows in content.rows
    )


class Asker:
    """The part that all clients have in common."""

    def __init__(self, world: World) -> None:
        self.world, self.chance = world, world.chance

    async def pause(self, most_s: float = 0.2) -> None:
        """Let some time pass."""
        await asyncio.sleep(self.chance.random() * most_s)

    @property
    def is_over(self) -> bool:
        """Return whether nothing new is to begin."""
        return asyncio.get_running_loop().time() > STORY_S or self.world.violation is not None

    async def insist(self, ask: Any) -> Any:
        """Repeat a request until it is told something final."""
        for _ in range(TRIES_MAX):
            if self.world.violation is not None:
                return None
            try:
                answer = await ask()
            except KafkaError as error:
                if error.code in FINAL:
                    return error
            else:
                is_open = isinstance(answer, TransactionOutcome)
                if not is_open or answer.state is TransactionState.COMPLETE:
                    return answer
            await self.pause(0.3)
        self.world.truth.fail("T12", f"a {type(self).__name__} is never told anything final")
        return None

    async def committed_offset(self, source: PartitionId) -> int | None:
        """Return the group's committed offset in a partition of orders; None if nobody tells it."""
        found = await self.insist(
            lambda: self.world.carry("group-0", lambda node: node.group_offset(source))
        )
        return found if isinstance(found, int) else None

    def some_rows(self) -> list[tuple[Target, int]]:
        """Return how many rows go where; now and then none."""
        if self.chance.random() < 0.15:
            return []
        known = [one for one in self.world.topics if one != "out"]
        topics = self.chance.sample(known, self.chance.randint(1, 2))
        return [(Target(one, PartitionId(0)), self.chance.randint(1, 3)) for one in topics]

    async def commit(
        self,
        id_: TransactionalId,
        position: Position,
        content: Content,
        *,
        hedged: bool = False,
        **fields: Any,
    ) -> Any:
        """Commit a content, inline or staged, and insist; ``hedged``: twice at once."""
        home = "home-0" if id_.group == NO_GROUP else "group-0"
        self.world.truth.asked.setdefault(id_, []).append(content)
        if content.rows and self.chance.random() < 0.4:
            named = await self.stage(id_, position, content)
            request = commit_of(id_, position, content, attempts=(named,), **fields)
        else:
            request = commit_of(id_, position, content, inline=target_rows(content), **fields)
        works = [self.insist(lambda: self.ask(home, request, content)) for _ in range(1 + hedged)]
        return (await asyncio.gather(*works))[0]

    async def ask(self, home: str, request: CommitPosition, content: Content) -> Any:
        """Commit once; in some stories the home is then asked what it decided, as brokers do."""
        answer = await self.world.ask(home, request, content)
        if answer.state is TransactionState.COMMITTING and self.world.seed % QUESTIONS_IN == 2:
            question = AwaitPosition(
                id=request.id,
                timeout_ms=request.timeout_ms,
                position=request.position,
                digest=request.digest,
            )
            with contextlib.suppress(KafkaError):  # unanswered: it is committing
                answer = await self.world.ask(home, question, content)
                self.world.figures["told further"] += 1
        return answer

    async def stage(
        self, id_: TransactionalId, position: Position, content: Content
    ) -> AttemptNamed:
        """Stage a content in one or two chunks."""
        epoch, number, began_s = 0, 0, self.world.now_s
        if isinstance(position, ProducerPosition):
            epoch, number = position
        elif isinstance(position, NumberedPosition):
            number = position.number
        rows, attempt = target_rows(content), str(content.number)
        split = self.chance.random() < 0.5
        chunks: Sequence[tuple[TargetRows, ...]] = [(one,) for one in rows] if split else [rows]
        for sequence, targets in enumerate(chunks):
            key = ChunkKey(id_, epoch, number, attempt, sequence)
            chunk = RowsChunk(key=key, targets=targets, digest=content.digest)
            request = StageChunk(partition=PartitionId(0), chunk=chunk, timeout_ms=500)
            await self.insist(lambda request=request: self.world.stage(request))
            if self.chance.random() < 0.1:
                await self.pause(2)
        content.staged_s = began_s
        if self.chance.random() < 0.25:
            await self.pause(2)
        return AttemptNamed(attempt, len(chunks), sum(one.rows for one in rows))


class OneShot(Asker):
    """Transactions with a key each, now and then with a rival content under the same key."""

    async def live(self, name: str) -> None:
        """Begin transactions until the story is over."""
        number = 0
        while not self.is_over:
            number += 1
            id_ = TransactionalId(NO_GROUP, f"key:{name}{number}")
            work = [self.one(id_)]
            if self.chance.random() < 0.2:
                work.append(self.one(id_))
            await asyncio.gather(*work)
            await self.pause()

    async def one(self, id_: TransactionalId) -> None:
        """Commit one content under a key, now and then by two requests at once."""
        content = self.world.truth.content(self.some_rows())
        await self.pause(0.05)
        await self.commit(id_, KeyPosition(), content, hedged=self.chance.random() < 0.3)


class Producer(Asker):
    """Lives of one producer: a new one begins while the old one goes on."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self.id = TransactionalId(NO_GROUP, name)

    async def live(self) -> None:
        """Live once more now and then."""
        lives = []
        while not self.is_over:
            lives.append(asyncio.create_task(self.one_life()))
            await self.pause(4)
        await asyncio.gather(*lives)

    async def one_life(self) -> None:
        """Init, then transactions in order until another life has begun."""
        request = InitId(id=self.id, timeout_ms=800)
        answer = await self.insist(lambda: self.world.ask("home-0", request))
        if answer is None or isinstance(answer, KafkaError):
            return
        number = 0
        while not self.is_over:
            positions = [ProducerPosition(answer.epoch, number)]
            if self.chance.random() < 0.25:  # it does not wait for the first one's answer
                positions.append(ProducerPosition(answer.epoch, number + 1))
            number = positions[-1].number + 1
            work = [self.end(position) for position in positions]
            if self.chance.random() < 0.1:
                work.append(self.abort(positions[0]))
            told = await asyncio.gather(*work)
            fences = [one for one in told if isinstance(one, KafkaError)]
            if any(one.code is ErrorCode.PRODUCER_FENCED for one in fences):
                return
            await self.pause(0.1)

    async def end(self, position: ProducerPosition) -> Any:
        """Commit, or abort."""
        if self.chance.random() < 0.15:
            return await self.abort(position)
        content = self.world.truth.content(self.some_rows())
        return await self.commit(self.id, position, content)

    async def abort(self, position: ProducerPosition) -> Any:
        """Abort a position."""
        request = AbortPosition(id=self.id, timeout_ms=800, position=position)
        return await self.insist(lambda: self.world.ask("home-0", request))


class Drivers(Asker):
    """Two runs of one numbered id, beside each other; they share a checkpoint."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world)
        self.id = TransactionalId(NO_GROUP, name)
        self.checkpoint = 0

    async def live(self) -> None:
        """Let runs follow each other, two at once."""
        runs = 0
        while not self.is_over:
            work = []
            for _ in range(self.chance.randint(1, 2)):
                runs += 1
                work.append(self.run(f"r{runs}"))
            await asyncio.gather(*work)

    async def run(self, name: str) -> None:
        """Bring some numbers, from the checkpoint on."""
        number = self.checkpoint
        for _ in range(self.chance.randint(1, 4)):
            if self.is_over:
                return
            content = self.world.truth.content(self.some_rows())
            position = NumberedPosition(number, name)
            told = await self.commit(self.id, position, content)
            if not isinstance(told, TransactionOutcome):
                return
            number += 1
            self.checkpoint = max(self.checkpoint, number)
            await self.pause(0.1)


class Operator(Asker):
    """Has keys and numbered ids forgotten, and producers fenced, while their clients go on."""

    async def live(self) -> None:
        """Choose ids at random until the story is over."""
        while not self.is_over:
            await self.pause(0.2)
            asked = self.world.truth.asked
            # Only an expected offset refuses a repeat of what is forgotten; an epoch does not.
            ids = sorted(id_ for id_ in asked if not any(one.member for one in asked[id_]))
            if ids:
                id_ = self.chance.choice(ids[-20:])
                home = "home-0" if id_.group == NO_GROUP else "group-0"
                request: HomeRequest[object] = ForgetId(id=id_, timeout_ms=800)
                if id_.name == "p":
                    request = InitId(id=id_, timeout_ms=800)
                with contextlib.suppress(KafkaError):
                    await self.world.ask(home, request)
                    self.world.figures["forgotten"] += isinstance(request, ForgetId)


class Transformer(Asker):
    """Reads orders from the group's committed offset on, and commits what it made of them."""

    async def live(self, name: str) -> None:
        """Read and commit, without membership: by the offset that is expected."""
        number = 0
        while not self.is_over:
            number += 1
            first = await self.committed_offset(PartitionId(0))
            if first is None:
                return
            count = self.chance.randint(1, 3)
            rows = [(Target(TopicId("out"), PartitionId(0)), count)]
            content = self.world.truth.content(rows, (first, first + count))
            move = OffsetMove(
                topic=ORDERS,
                partition=PartitionId(0),
                offset=first + count,
                expected=first or EXPECTED_NONE,
            )
            id_ = TransactionalId(G, f"key:{name}{number}")
            await self.commit(id_, KeyPosition(), content, offsets=(move,))
            await self.pause()


class Member(Asker):
    """Lives of a member of the group: each reads what it owns, and commits what it made of it.

    It heartbeats beside its commits, so it may give a partition up while one is under way.
    """

    async def live(self, name: str) -> None:
        """Join anew whenever a life is over."""
        number = 0
        while not self.is_over:
            number += 1
            await MemberLife(self.world, InstanceId(f"{name}{number}")).live()
            await self.pause()


class MemberLife(Asker):
    """One membership, until it is fenced, dies, or the story is over."""

    def __init__(self, world: World, name: InstanceId) -> None:
        super().__init__(world)
        self.name = name
        self.known: Membership | None = None
        self.transactions = 0

    async def live(self) -> None:
        """Join, then heartbeat and commit beside each other."""
        join = JoinGroup(
            group=G,
            instance=self.name,
            settings=ConsumerSettings(
                auto_offset_reset=OffsetReset.EARLIEST, auto_commit=False, session_timeout_ms=1_000
            ),
            rebalance_timeout_ms=1_000,
            topics=(ORDERS,),
        )
        await self.ask_group(join)
        await asyncio.gather(self.heartbeat(), self.work())

    async def heartbeat(self) -> None:
        """Tell what is owned, without what is to be given up; some members fall silent."""
        while (known := self.known) is not None and not self.is_over:
            owned = {TopicPartition(one.topic, one.partition) for one in known.assignment}
            await self.ask_group(
                Heartbeat(
                    group=G,
                    instance=self.name,
                    member_epoch=known.member_epoch,
                    owned=tuple(sorted(owned.difference(known.revoked))),
                )
            )
            await self.pause(0.3 if self.chance.random() < 0.95 else 3)

    async def ask_group(self, request: JoinGroup | Heartbeat) -> None:
        """Insist on an answer of the group's coordinator."""
        found = await self.insist(
            lambda: self.world.carry("group-0", lambda node: node.membership(request))
        )
        self.known = found if isinstance(found, Membership) else None

    async def work(self) -> None:
        """Commit what is made of the partitions that are owned, one after another."""
        while self.known is not None and not self.is_over:
            if self.known.assignment:
                owned = self.chance.choice(self.known.assignment)
                await self.transform(owned.partition, self.known.member_epoch)
            if self.chance.random() < 0.05:
                self.known = None
            await self.pause(0.1)

    async def transform(self, source: PartitionId, epoch: int) -> None:
        """Read from the committed offset on and commit, fenced by the member's epoch."""
        first = await self.committed_offset(source)
        if first is None:
            return
        if self.chance.random() < 0.2:
            await self.pause(1)
        self.transactions += 1
        count = self.chance.randint(1, 3)
        rows = [(Target(TopicId("out"), PartitionId(0)), count)]
        content = self.world.truth.content(rows, (first, first + count))
        content.source, content.member = source, (self.name, epoch)
        move = OffsetMove(topic=ORDERS, partition=source, offset=first + count)
        id_ = TransactionalId(G, f"key:{self.name}.{self.transactions}")
        member = {"member_id": self.name, "member_epoch": epoch}
        await self.commit(id_, KeyPosition(), content, offsets=(move,), **member)


async def tell(seed: int) -> World:
    """Tell the story of one seed to its end."""
    world = World(seed)
    world.begin()
    ticking = world.start(world.tick())
    troubled = asyncio.create_task(world.make_trouble())
    clients: list[Awaitable[None]] = [OneShot(world).live("a"), OneShot(world).live("b")]
    clients += [Operator(world).live()] if world.is_operated else []
    clients += [Producer(world, "p").live(), Drivers(world, "n").live()]
    if seed % 2:
        clients += [Member(world).live(name) for name in "xyz"]
    else:
        clients += [Transformer(world).live("x"), Transformer(world).live("y")]

    async def heal() -> None:
        await asyncio.sleep(STORY_S + 1)
        world.calm = True
        for log in world.logs.values():
            log.is_short = log.is_stuck = False
        for node in world.nodes:
            node.catch_up()

    await asyncio.gather(heal(), *clients)
    await troubled
    if world.violation is None:
        await world.drain()
    ticking.cancel()
    left = list(world.tasks)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    return world


def run(seed: int) -> World:
    """Run a seed in virtual time; raise the violation that it shows."""

    async def story() -> World:
        return await tell(seed)

    with (
        mock.patch.object(stage_leader, "TRIM_BYTES_MIN", 1),
        mock.patch.object(stage_leader, "TRIM_INTERVAL_MS", 300),
    ):
        world = run_loop(story)
    if world.violation is not None:
        raise world.violation
    return world
