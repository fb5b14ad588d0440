"""Homes over a log in memory: what is sent to targets, when, and what clients hear of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace

import pytest

from broker.coordinator import home as home_module
from broker.coordinator.home import Home, HomePorts, Missing
from broker.coordinator.records import ShardRecord, decode_record
from broker.coordinator.shard import Shard
from broker.coordinator.transaction_shard import TransactionShard
from broker.record.batch import RecordFormat
from broker.record.numbering import HomeKind, make_numbering
from broker.transactions import home_decisions
from broker.transactions.home_decisions import Part, StagedParts
from broker.transactions.home_messages import (
    AbortPosition,
    ApplyAnswer,
    ApplyUnits,
    CommitPosition,
    GapFound,
    InitId,
    UnitsApplied,
)
from broker.transactions.home_records import Target, TransactionValue
from broker.transactions.home_state import HomeLimits
from broker.transactions.messages import (
    NO_GROUP,
    AttemptNamed,
    KeyPosition,
    NumberedPosition,
    ProducerPosition,
    TargetRows,
    TransactionalId,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, GroupId, LeaderEpoch, PartitionId, TopicId
from tests.support.group_log import MemoryShardLog, SharedLog
from tests.support.home_turns import staged_at

DEBITS = Target(TopicId("debits"), PartitionId(0))
CREDITS = Target(TopicId("credits"), PartitionId(3))
NUMBERING = make_numbering(HomeKind.TRANSACTIONS, PartitionId(0), LeaderEpoch(-1))


@dataclass
class Targets:
    """The targets of a home: their ends, the requests they saw, and what they do now."""

    ends: dict[Target, int] = field(default_factory=dict)
    rows: dict[Target, list[bytes]] = field(default_factory=dict)
    asked: list[ApplyUnits] = field(default_factory=list)
    able: asyncio.Event = field(default_factory=asyncio.Event)
    deleted: set[Target] = field(default_factory=set)
    metadata_offset: int = 100

    def __post_init__(self) -> None:
        self.able.set()

    async def apply(self, request: ApplyUnits) -> ApplyAnswer:
        self.asked.append(request)
        await self.able.wait()
        end = self.ends.get(request.target, 0)
        if request.units[-1].number + request.units[-1].rows > end != request.after:
            return GapFound(end)
        bases: list[int | None] = []
        for number, count, source in request.units:
            assert isinstance(source, TargetRows)
            if number >= end:
                bases.append(len(self.rows.setdefault(request.target, [])))
                self.rows[request.target].append(source.records)
                self.ends[request.target] = number + count
            else:
                bases.append(None)
        return UnitsApplied(tuple(bases))

    def is_deleted(self, target: Target, metadata_offset: int) -> bool:
        return self.metadata_offset >= metadata_offset and target in self.deleted


class Image:
    """An image in which every target is able."""

    metadata_offset = 7

    def check_able(self, target: Target) -> None:
        """Raise nothing: each target is able."""

    def name_of(self, topic_id: TopicId) -> str:
        return topic_id

    async def know(self, targets: Sequence[Target]) -> None:
        """All are known."""


@dataclass
class Stages:
    """Stages that find what a test puts here."""

    found: StagedParts | Missing = field(default_factory=lambda: Missing("0 of 1 chunks"))
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    may_answer: asyncio.Event = field(default_factory=asyncio.Event)

    async def parts(
        self, id_: TransactionalId, at: tuple[int, int], attempts: object, timeout_ms: int
    ) -> StagedParts | Missing:
        self.asked.set()
        await self.may_answer.wait()
        return self.found


@dataclass
class Led:
    """A home that is led here, in one epoch of a log that survives it."""

    log: SharedLog
    targets: Targets
    stages: Stages
    home: Home
    shard: TransactionShard
    run: asyncio.Task[None]
    memory: MemoryShardLog

    @property
    def appends(self) -> list[list[ShardRecord]]:
        return self.memory.appends

    async def ready(self) -> Led:
        async with asyncio.timeout(5):
            while not self.shard.is_ready:  # noqa: ASYNC110 a state of the product
                await asyncio.sleep(0)
        return self

    async def end(self) -> None:
        self.home.close()
        self.shard.close()
        self.run.cancel()  # it may wait for a commit that never comes
        await asyncio.gather(self.run, return_exceptions=True)


@dataclass
class World:
    """A log, its targets, and the homes that led it one after the other."""

    tasks: asyncio.TaskGroup
    log: SharedLog = field(default_factory=SharedLog)
    targets: Targets = field(default_factory=Targets)
    stages: Stages = field(default_factory=Stages)
    led: list[Led] = field(default_factory=list)

    async def lead(self, *, commits: bool = True, is_trusted: bool = True) -> Led:
        """Elect a new leader of the home, and wait until it is loaded."""
        memory = self.log.elect()
        memory.commit_at_once = commits
        clock = SystemClock()
        shard = TransactionShard(
            PartitionId(0), LeaderEpoch(memory.epoch), memory, clock, lambda: is_trusted
        )
        ports = HomePorts(
            broker_id=BrokerId(1),
            clock=clock,
            targets=self.targets,
            stages=self.stages,
            image=Image(),
            limits=HomeLimits,
        )
        home = Home(shard, NUMBERING, ports, self.tasks.create_task)
        run = self.tasks.create_task(shard.run())
        led = Led(self.log, self.targets, self.stages, home, shard, run, memory)
        self.led.append(led)
        return await led.ready()


@contextlib.asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        here = World(tasks)
        try:
            yield here
        finally:
            for led in here.led:
                await led.end()


def rows(target: Target, *values: int) -> TargetRows:
    text = b",".join(b'{"key":null,"value":%d}' % value for value in values)
    return TargetRows(
        topic_id=target.topic_id,
        partition=target.partition,
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        rows=len(values),
        records=b"[%b]" % text,
    )


def one_shot(key: str, *inline: TargetRows, timeout_ms: int = 5_000) -> CommitPosition:
    return CommitPosition(
        id=TransactionalId(NO_GROUP, f"key:{key}"),
        timeout_ms=timeout_ms,
        position=KeyPosition(),
        digest="".join(each.records.decode() for each in inline),
        inline=inline,
    )


async def until(condition: object) -> None:
    assert callable(condition)
    while not condition():  # noqa: ASYNC110 a state of the product
        await asyncio.sleep(0)


async def test_a_one_shot_is_complete_once_its_targets_have_it() -> None:
    async with world() as here:
        led = await here.lead()
        request = one_shot("a", rows(DEBITS, 1, 2), rows(CREDITS, 3))
        outcome: TransactionOutcome = await led.home.answer(request)
        assert outcome.state is TransactionState.COMPLETE
        assert [(one.partition, one.rows, one.base_offset) for one in outcome.placed] == [
            (0, 2, 0), (3, 1, 0),
        ]  # fmt: skip
        again = await led.home.answer(request)
        assert again.placed == outcome.placed
        assert len(here.targets.asked) == 2


def completions(led: Led) -> list[int]:
    """The appends that hold a completion, by their place among all appends."""
    return [
        number
        for number, records in enumerate(led.appends)
        for record in records
        if isinstance(record.value, TransactionValue)
        and record.value.state is TransactionState.COMPLETE
    ]


async def test_a_completion_is_written_with_the_next_decision() -> None:
    async with world() as here:
        led = await here.lead()
        for key in ("a", "b", "c"):
            await led.home.answer(one_shot(key, rows(DEBITS, 1)))
        assert completions(led) == [1, 2], "one append for each decision"


async def test_a_completion_that_no_decision_follows_is_written_all_the_same() -> None:
    async with world() as here:
        led = await here.lead()
        await led.home.answer(one_shot("a", rows(DEBITS, 1)))
        assert completions(led) == []
        await until(lambda: completions(led))


async def test_rule_g1_an_answer_that_rests_on_a_completion_has_it_written_at_once() -> None:
    async with world() as here:
        led = await here.lead()
        request = one_shot("a", rows(DEBITS, 1))
        await led.home.answer(request)
        assert completions(led) == []
        await led.home.answer(request)
        assert completions(led) == [1]


async def test_rule_s1_nothing_is_sent_before_the_decision_is_committed() -> None:
    async with world() as here:
        led = await here.lead(commits=False)
        asking = here.tasks.create_task(led.home.answer(one_shot("a", rows(DEBITS, 1))))
        await until(lambda: here.log.entries)
        await asyncio.sleep(0.01)
        assert here.targets.asked == []
        here.log.commit()
        await until(lambda: here.targets.asked)
        here.log.commit()
        outcome: TransactionOutcome = await asking
        assert outcome.state is TransactionState.COMPLETE


async def test_rule_s1_a_new_home_completes_what_it_found_once_that_is_committed() -> None:
    async with world() as here:
        first = await here.lead()
        here.targets.able.clear()
        asking = here.tasks.create_task(
            first.home.answer(one_shot("a", rows(DEBITS, 1), rows(CREDITS, 2), timeout_ms=50))
        )
        outcome: TransactionOutcome = await asking
        assert outcome.state is TransactionState.COMMITTING
        await first.end()
        here.targets.asked.clear()
        second = await here.lead()
        here.targets.able.set()
        await until(lambda: len(here.targets.rows) == 2)
        told: TransactionOutcome = await second.home.answer(
            one_shot("a", rows(DEBITS, 1), rows(CREDITS, 2))
        )
        assert told.state is TransactionState.COMPLETE
        assert {target: len(found) for target, found in here.targets.rows.items()} == {
            DEBITS: 1, CREDITS: 1,
        }  # fmt: skip


async def test_rule_s3_success_is_answered_only_when_each_target_has_committed() -> None:
    async with world() as here:
        led = await here.lead()
        here.targets.able.clear()
        outcome: TransactionOutcome = await led.home.answer(
            one_shot("a", rows(DEBITS, 1), timeout_ms=30)
        )
        assert outcome.state is TransactionState.COMMITTING
        assert [one.partition for one in outcome.pending] == [0]
        here.targets.able.set()
        told: TransactionOutcome = await led.home.answer(one_shot("a", rows(DEBITS, 1)))
        assert told.state is TransactionState.COMPLETE
        assert told.pending == ()


async def test_rule_s2_the_next_position_waits_for_the_completion_of_the_last() -> None:
    async with world() as here:
        led = await here.lead()
        producer = TransactionalId(NO_GROUP, "p")
        await led.home.answer(InitId(id=producer, timeout_ms=1_000))
        here.targets.able.clear()

        def commit(number: int, timeout_ms: int) -> CommitPosition:
            return CommitPosition(
                id=producer,
                timeout_ms=timeout_ms,
                position=ProducerPosition(1, number),
                digest=str(number),
                inline=(rows(DEBITS, number),),
            )

        outcome: TransactionOutcome = await led.home.answer(commit(0, 30))
        assert outcome.state is TransactionState.COMMITTING
        with pytest.raises(KafkaError) as refused:
            await led.home.answer(commit(1, 30))
        assert refused.value.code is ErrorCode.CONCURRENT_TRANSACTIONS
        assert refused.value.outcome is Outcome.NOT_WRITTEN
        with pytest.raises(KafkaError):
            await led.home.answer(
                AbortPosition(id=producer, timeout_ms=30, position=ProducerPosition(1, 1))
            )
        here.targets.able.set()
        later: TransactionOutcome = await led.home.answer(commit(1, 5_000))
        assert later.state is TransactionState.COMPLETE
        assert len(here.targets.rows[DEBITS]) == 2


async def test_rule_s5_a_gap_is_mended_by_the_end_that_the_target_told() -> None:
    async with world() as here:
        led = await here.lead()
        await led.home.answer(one_shot("a", rows(DEBITS, 1, 2)))
        here.targets.ends[DEBITS] = 1  # an unclean election: it lost what it had acknowledged
        outcome: TransactionOutcome = await led.home.answer(one_shot("b", rows(DEBITS, 3)))
        assert outcome.state is TransactionState.COMPLETE
        assert [one.after for one in here.targets.asked] == [0, 2, 1]


async def test_rule_s11_a_topic_counts_as_deleted_by_an_image_as_new_as_the_decision() -> None:
    async with world() as here:
        led = await here.lead()
        here.targets.able.clear()
        here.targets.metadata_offset = Image.metadata_offset - 1
        here.targets.deleted = {DEBITS}  # as an image sees it that lacks the new topic yet
        asking = here.tasks.create_task(
            led.home.answer(one_shot("a", rows(DEBITS, 1), rows(CREDITS, 2)))
        )
        await until(lambda: len(here.targets.asked) == 2)
        here.targets.able.set()
        outcome: TransactionOutcome = await asking
        assert (len(outcome.placed), outcome.dropped) == (2, ())
        here.targets.metadata_offset = Image.metadata_offset
        told: TransactionOutcome = await led.home.answer(
            one_shot("b", rows(DEBITS, 1), rows(CREDITS, 2))
        )
        assert told.state is TransactionState.COMPLETE
        assert told.dropped == (tuple(DEBITS),)
        assert [one.partition for one in told.placed] == [CREDITS.partition]


async def test_rule_s6_a_fence_that_comes_while_stages_are_asked_is_met() -> None:
    async with world() as here:
        led = await here.lead()
        producer = TransactionalId(NO_GROUP, "p")
        await led.home.answer(InitId(id=producer, timeout_ms=1_000))
        here.stages.found = StagedParts([Part(DEBITS, 1, 0)])
        commit = CommitPosition(
            id=producer,
            timeout_ms=1_000,
            position=ProducerPosition(1, 0),
            digest="x",
            attempts=(AttemptNamed("1.0", 1, 1),),
        )
        asking = asyncio.create_task(led.home.answer(commit))
        await here.stages.asked.wait()
        await led.home.answer(InitId(id=producer, timeout_ms=1_000))
        here.stages.may_answer.set()
        with pytest.raises(KafkaError) as fenced:
            await asking
        assert fenced.value.code is ErrorCode.PRODUCER_FENCED
        assert here.targets.asked == []


@pytest.mark.parametrize(
    ("chunks", "size_bytes", "limit"),
    [
        (5_001, 1 << 29, "transaction.max.chunks"),
        (5_000, (1 << 30) + 1, "transaction.max.bytes"),
        (5_000, 1 << 30, None),
    ],
)
async def test_limits_of_a_transaction_hold_for_all_attempts_of_a_commit_together(
    chunks: int, size_bytes: int, limit: str | None
) -> None:
    """Each stage sees its own attempts only."""
    async with world() as here:
        led = await here.lead()
        here.stages.found = StagedParts([], size_bytes)
        here.stages.may_answer.set()
        attempts = tuple(AttemptNamed(name, chunks, chunks) for name in ("a", "b"))
        commit = CommitPosition(
            id=TransactionalId(NO_GROUP, "job"),
            timeout_ms=1_000,
            position=NumberedPosition(0, "r", None),
            digest="x",
            attempts=attempts,
        )
        if limit is None:
            assert (await led.home.answer(commit)).state is TransactionState.COMPLETE
            return
        with pytest.raises(KafkaError, match=limit) as refused:
            await led.home.answer(commit)
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert refused.value.outcome is Outcome.NOT_WRITTEN
        assert not here.log.entries


async def test_rule_s11_a_home_forgets_the_numbers_of_deleted_topics_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(home_decisions, "FORGOTTEN_AT_ONCE", 1)
    monkeypatch.setattr(home_module, "CHECK_INTERVAL_MS", 0)
    """A clock that is doubted does not matter: nothing of it is an age."""
    async with world() as here:
        led = await here.lead(is_trusted=False)
        await led.home.answer(one_shot("a", rows(DEBITS, 1), rows(CREDITS, 1)))
        here.targets.metadata_offset = 6  # of an image that is older than the decision
        here.targets.deleted = {DEBITS, CREDITS}
        for _ in range(4):
            led.home.tick()
        assert len(led.shard.state().home.next_rows) == 2
        here.targets.metadata_offset = 7
        for left in (1, 0):
            led.home.tick()
            assert len(led.shard.state().home.next_rows) == left
        await led.shard.settled()
        await led.end()
        assert not (await here.lead()).shard.state().home.next_rows


async def test_one_name_under_two_groups_is_two_ids() -> None:
    async with world() as here:
        led = await here.lead()
        for group in ("a", "b"):
            told = await led.home.answer(
                CommitPosition(
                    id=TransactionalId(GroupId(group), "job"),
                    timeout_ms=1_000,
                    position=NumberedPosition(4, "r", None),
                    digest=group,
                    inline=(rows(DEBITS, 1),),
                )
            )
            assert (told.state, told.already) == (TransactionState.COMPLETE, False)
        assert len(here.targets.rows[DEBITS]) == 2


async def test_rule_s9_missing_chunks_are_told_after_a_second_look_at_the_position() -> None:
    async with world() as here:
        led = await here.lead()
        producer = TransactionalId(NO_GROUP, "p")
        await led.home.answer(InitId(id=producer, timeout_ms=1_000))
        named = CommitPosition(
            id=producer,
            timeout_ms=1_000,
            position=ProducerPosition(1, 0),
            digest="x",
            attempts=(AttemptNamed("1.0", 1, 1),),
        )
        late = asyncio.create_task(led.home.answer(named))
        await here.stages.asked.wait()
        # Another copy of the commit was decided meanwhile, and its stage was let go.
        inline = CommitPosition(
            id=producer,
            timeout_ms=1_000,
            position=ProducerPosition(1, 0),
            digest="x",
            inline=(rows(DEBITS, 1),),
        )
        await led.home.answer(inline)
        here.stages.may_answer.set()
        outcome: TransactionOutcome = await late
        assert outcome.state is TransactionState.COMPLETE


async def test_rule_s3_what_is_decided_is_committing_also_if_its_home_is_refused_since() -> None:
    """The home was loaded anew behind the decision, and a record can't be read."""
    async with world() as here:
        led = await here.lead()
        here.targets.able.clear()
        request = one_shot("a", rows(DEBITS, 1), timeout_ms=100)
        asking = asyncio.create_task(led.home.answer(request))
        await until(lambda: here.targets.asked)
        led.shard.state().home.fault = "a record of another version"
        outcome: TransactionOutcome = await asking
        assert outcome.state is TransactionState.COMMITTING


async def test_rule_s3_a_load_does_not_end_the_wait_for_a_completion() -> None:
    """Rule S3: it is told at the deadline, or once it is complete, also to a repeat behind it."""
    async with world() as here:
        led = await here.lead()
        here.targets.able.clear()
        request = one_shot("a", rows(DEBITS, 1))
        first = asyncio.create_task(led.home.answer(request))
        await until(lambda: here.targets.asked)
        led.memory.next_append = KafkaError(
            ErrorCode.NOT_ENOUGH_REPLICAS, outcome=Outcome.NOT_WRITTEN
        )
        with pytest.raises(KafkaError):
            await led.home.answer(one_shot("b", rows(CREDITS, 1)))
        await until(lambda: len(here.targets.asked) == 2)  # the completion began anew
        repeat = asyncio.create_task(led.home.answer(request))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not first.done()
        assert not repeat.done()
        here.targets.able.set()
        for told in (await first, await repeat):
            assert told.state is TransactionState.COMPLETE
            assert told.pending == ()


async def test_rule_s12_nothing_is_decided_behind_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker stood still while a stage was asked: the key may be forgotten meanwhile."""
    async with world() as here:
        led = await here.lead()
        here.stages.found = StagedParts([Part(DEBITS, 1, staged_at("0"))])
        request = replace(one_shot("a"), attempts=(AttemptNamed("1.0", 1, 1),))
        late = asyncio.create_task(led.home.answer(request))
        await here.stages.asked.wait()
        later_ms = SystemClock().monotonic_ms() + 600_000
        monkeypatch.setattr(SystemClock, "monotonic_ms", lambda _: later_ms)
        here.stages.may_answer.set()
        with pytest.raises(KafkaError) as caught:
            await late
        expected = (ErrorCode.REQUEST_TIMED_OUT, Outcome.NOT_WRITTEN)
        assert (caught.value.code, caught.value.outcome) == expected
        assert not here.log.entries


async def test_a_commit_that_its_client_left_is_completed_all_the_same() -> None:
    async with world() as here:
        led = await here.lead(commits=False)
        asking = asyncio.create_task(led.home.answer(one_shot("a", rows(DEBITS, 1))))
        await until(lambda: here.log.entries)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        here.log.commit()
        await until(lambda: here.targets.rows.get(DEBITS))


async def test_rule_s4_a_home_with_a_fact_that_it_cannot_read_gives_no_numbers() -> None:
    """A record of another version: groups of the partition go on, its transactions do not."""
    log = SharedLog()
    memory = log.elect()
    log.entries += [
        decode_record(b'["next",1,"t",0]', b'{"digits":"7"}', 0),
        decode_record(b'["group","g"]', b'{"epoch":3}', 1),
    ]
    log.commit()
    memory.start_of_epoch = 2
    shard = Shard(PartitionId(0), LeaderEpoch(memory.epoch), memory, SystemClock())
    targets = Targets()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        ports = HomePorts(
            broker_id=BrokerId(1),
            clock=SystemClock(),
            targets=targets,
            stages=Stages(),
            image=Image(),
            limits=HomeLimits,
        )
        home = Home(shard, NUMBERING, ports, tasks.create_task)
        run = tasks.create_task(shard.run())
        await until(lambda: shard.is_ready)
        assert shard.state().groups[GroupId("g")].epoch == 3
        with pytest.raises(KafkaError) as refused:
            await home.answer(one_shot("a", rows(DEBITS, 1)))
        assert refused.value.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert "offset 0" in refused.value.message
        assert targets.asked == []
        shard.close()
        await run
