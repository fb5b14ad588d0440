"""Clients of the world of transactions: one-shots, lives of producers, drivers, transformers.

Each repeats what it asked until it is told something final, as docs of transactions say a client
may: any request can be repeated as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Sequence
from typing import Any

from broker.record.batch import RecordFormat
from broker.transactions.chunk_records import ChunkKey, RowsChunk
from broker.transactions.home_messages import (
    AbortPosition,
    AwaitPosition,
    CommitPosition,
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
from raft_metadata.common.ids import PartitionId, TopicId
from tests.support.transaction_world import (
    FOR_GOOD,
    ORDERS,
    Content,
    G,
    World,
    commit_of,
    run_loop,
)

FINAL = FOR_GOOD | {
    ErrorCode.TRANSACTION_SUPERSEDED,
    ErrorCode.STAGE_INCOMPLETE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
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

    def some_rows(self) -> list[tuple[Target, int]]:
        """Return how many rows go where; now and then none."""
        if self.chance.random() < 0.15:
            return []
        known = [one for one in self.world.topics if one != "out"]
        topics = self.chance.sample(known, self.chance.randint(1, 2))
        return [(Target(one, PartitionId(0)), self.chance.randint(1, 3)) for one in topics]

    async def commit(
        self, id_: TransactionalId, position: Position, content: Content, **fields: Any
    ) -> Any:
        """Commit a content, inline or staged, and insist."""
        home = "home-0" if id_.group == NO_GROUP else "group-0"
        if content.rows and self.chance.random() < 0.4:
            named = await self.stage(id_, position, content)
            request = commit_of(id_, position, content, attempts=(named,), **fields)
        else:
            request = commit_of(id_, position, content, inline=target_rows(content), **fields)
        return await self.insist(lambda: self.ask(home, request, content))

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
        epoch, number = 0, 0
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
        content.staged_s = self.world.now_s
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
        """Commit one content under a key."""
        content = self.world.truth.content(self.some_rows())
        await self.pause(0.05)
        await self.commit(id_, KeyPosition(), content)


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


class Transformer(Asker):
    """Reads orders from the group's committed offset on, and commits what it made of them."""

    async def live(self, name: str) -> None:
        """Read and commit, without membership: by the offset that is expected."""
        number = 0
        while not self.is_over:
            number += 1
            first = await self.insist(
                lambda: self.world.carry("group-0", lambda node: node.group_offset())
            )
            if not isinstance(first, int):
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


async def tell(seed: int) -> World:
    """Tell the story of one seed to its end."""
    world = World(seed)
    world.begin()
    ticking = world.start(world.tick())
    troubled = asyncio.create_task(world.make_trouble())
    clients: list[Awaitable[None]] = [OneShot(world).live("a"), OneShot(world).live("b")]
    clients += [Producer(world, "p").live(), Drivers(world, "n").live()]
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

    world = run_loop(story)
    if world.violation is not None:
        raise world.violation
    return world
