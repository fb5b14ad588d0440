"""Decided rows that an unclean election of their stage took: recorded, told, passed over (S10)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from typing_extensions import override

from broker.coordinator import completion
from broker.log.unit_check import AlreadyThere, NumberGap, UnitPlace, judge_units
from broker.record.numbering import RowNumber
from broker.transactions.home_decisions import ChunkPlaced, Part, StagedParts
from broker.transactions.home_messages import (
    ApplyAnswer,
    ApplyUnits,
    CommitPosition,
    DescribeId,
    GapFound,
    SourceGone,
    UnitsApplied,
)
from broker.transactions.home_records import StagedPlace, Target, TransactionValue
from broker.transactions.messages import (
    NO_GROUP,
    AttemptNamed,
    KeyPosition,
    LostRows,
    TransactionalId,
    TransactionDescription,
    TransactionOutcome,
    TransactionState,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from tests.support.home_turns import staged_at
from tests.unit.test_home_completion import CREDITS, DEBITS, Led, Targets, World, until, world

FOUR_A_REQUEST = completion.UNITS_AT_ONCE_BYTES // 4


@dataclass
class StagedTargets(Targets):
    """Targets that judge units as a log does, and read their rows at places of stages."""

    gone: set[StagedPlace] = field(default_factory=set)
    """Places whose rows are gone for good."""
    taken: list[tuple[Target, int, StagedPlace]] = field(default_factory=list)
    """Units in the order in which they were appended, with their numbers and sources."""
    unable: set[Target] = field(default_factory=set)
    forgets: bool = False
    """True: the place of a unit that is there is not known any more."""

    @override
    async def apply(self, request: ApplyUnits) -> ApplyAnswer:
        self.asked.append(request)
        await self.able.wait()
        if request.target in self.unable:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        end = RowNumber(self.ends.get(request.target, 0))
        left = [unit for unit in request.units if unit.number + unit.rows > end]
        lost = [unit.number for unit in left if unit.source in self.gone]
        if lost:
            return SourceGone(tuple(lost))
        places = [UnitPlace(RowNumber(number), rows) for number, rows, _ in request.units]
        judged = judge_units(end, RowNumber(request.after), places)
        if isinstance(judged, NumberGap):
            return GapFound(judged.end)
        if isinstance(judged, AlreadyThere):
            return UnitsApplied(tuple(None if self.forgets else n for n, *_ in request.units))
        for number, rows, source in left:
            assert isinstance(source, StagedPlace)
            self.taken.append((request.target, number, source))
            self.ends[request.target] = number + rows
        return UnitsApplied(tuple(number for number, *_ in request.units))


def key(name: str) -> TransactionalId:
    return TransactionalId(NO_GROUP, f"key:{name}")


def commit(name: str, timeout_ms: int = 60_000) -> CommitPosition:
    return CommitPosition(
        id=key(name),
        timeout_ms=timeout_ms,
        position=KeyPosition(),
        digest=name,
        attempts=(AttemptNamed("1", 1, 3),),
    )


@asynccontextmanager
async def staged_world() -> AsyncIterator[tuple[World, StagedTargets]]:
    """A world whose transactions are staged: ``a`` at 0, 1, ``b`` at 2, 3, and so on."""
    async with world() as here:
        here.targets = targets = StagedTargets()
        here.stages.may_answer.set()
        yield here, targets


def ask(here: World, led: Led, name: str, timeout_ms: int = 60_000) -> asyncio.Task[object]:
    """Commit two rows for DEBITS and one for CREDITS."""
    first = 2 * (ord(name) - ord("a"))
    parts = [
        Part(DEBITS, 2, staged_at(str(first))),
        Part(CREDITS, 1, staged_at(str(first + 1))),
    ]
    here.stages.found = StagedParts(parts)
    return here.tasks.create_task(led.home.answer(commit(name, timeout_ms)))


async def told(asking: asyncio.Task[object]) -> TransactionOutcome:
    outcome = await asking
    assert isinstance(outcome, TransactionOutcome)
    return outcome


async def told_by_commits(here: World, asking: asyncio.Task[object]) -> TransactionOutcome:
    """Commit whatever is appended until the answer is there."""
    while not asking.done():
        here.log.commit()
        await asyncio.sleep(0)
    return await told(asking)


async def described(led: Led, name: str) -> TransactionDescription:
    return await led.home.answer(DescribeId(id=key(name), timeout_ms=1_000))


LOST = (LostRows(*DEBITS, 2),)


async def test_rule_s10_lost_rows_are_told_and_block_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Told as lost: at the commit, at each repeat, by a new home, in descriptions."""
    async with staged_world() as (here, targets):
        led = await here.lead()
        targets.gone = {staged_at("0")}
        with caplog.at_level(logging.ERROR, "broker.coordinator"):
            outcome = await told(ask(here, led, "a"))
        assert outcome.state is TransactionState.COMPLETE
        assert outcome.lost == LOST
        assert [(one.topic_id, one.rows) for one in outcome.placed] == [(CREDITS.topic_id, 1)]
        (line,) = [one.message for one in caplog.records if "rows are lost" in one.message]
        assert "id=key:a epoch=0 number=0 topic_id=debits partition=0 rows=2" in line
        assert (await told(ask(here, led, "b"))).lost == ()
        assert [one for one in targets.taken if one[0] == DEBITS] == [(DEBITS, 2, staged_at("2"))]
        assert (await told(ask(here, led, "a"))).lost == LOST
        assert (await described(led, "a")).lost == LOST
        await led.end()
        led = await here.lead()
        assert (await told(ask(here, led, "a"))).lost == LOST
        assert [one for one in targets.taken if one[0] == DEBITS] == [(DEBITS, 2, staged_at("2"))]


async def test_rule_s10_nothing_is_done_before_the_loss_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another home may have moved the rows, and this one be deposed.

    Nor are the rows asked for meanwhile: they might be found, and written behind their loss.
    """
    monkeypatch.setattr(completion, "RETRY_MIN_MS", 0)
    async with staged_world() as (here, targets):
        led = await here.lead(commits=False)
        targets.able.clear()
        first = ask(here, led, "a", timeout_ms=60)
        await until(lambda: here.log.entries)
        here.log.commit()
        await until(lambda: targets.asked)
        second = ask(here, led, "b")
        await until(lambda: len(here.log.entries) == 6)
        here.log.commit()
        targets.gone = {staged_at("0")}
        targets.able.set()
        assert (await told(first)).lost == ()
        await until(lambda: len(here.log.entries) == 7)
        for _ in range(100):
            await asyncio.sleep(0)
        assert [one for one in targets.taken if one[0] == DEBITS] == []
        asked = [one.units[0].number for one in targets.asked if one.target == DEBITS]
        assert asked == [0, 2], "those behind may be gone, too; the gap is not mended yet"
        assert (await told_by_commits(here, second)).state is TransactionState.COMPLETE
        assert (await told_by_commits(here, ask(here, led, "a"))).lost == LOST


async def test_rule_s10_rows_that_were_moved_meanwhile_are_asked_for_at_their_new_place() -> None:
    async with staged_world() as (here, targets):
        led = await here.lead()
        targets.able.clear()
        targets.gone = {staged_at("0"), staged_at("1")}
        asking = ask(here, led, "a")
        await until(lambda: len(targets.asked) == 2)
        moved = ChunkPlaced(
            id=key("a"),
            is_producer=False,
            at=(0, 0),
            place=staged_at("0"),
            records=2,
            copy=staged_at("7e2"),
        )
        assert await led.home.may_go(moved)
        targets.able.set()
        outcome = await told(asking)
        assert (outcome.state, outcome.lost) == (TransactionState.COMPLETE, ())
        assert {source for _, _, source in targets.taken} == {staged_at("7e2"), staged_at("8e2")}


async def test_rule_s10_a_new_home_goes_on_behind_a_recorded_loss() -> None:
    """The decision is open because of its other target."""
    async with staged_world() as (here, targets):
        led = await here.lead()
        targets.gone = {staged_at("0")}
        targets.unable = {CREDITS}
        await told(ask(here, led, "a", timeout_ms=20))
        while not (await described(led, "a")).lost:  # noqa: ASYNC110 a state of the product
            await asyncio.sleep(0)
        outcome = await told(ask(here, led, "a", timeout_ms=20))
        assert (outcome.state, outcome.lost) == (TransactionState.COMMITTING, LOST)
        await led.end()
        targets.asked.clear()
        led = await here.lead()
        second = ask(here, led, "b")
        await until(lambda: targets.taken)
        assert targets.taken == [(DEBITS, 2, staged_at("2"))]
        assert all(one.units[0].number for one in targets.asked if one.target == DEBITS)
        targets.unable = set()
        assert (await told(second)).lost == ()
        outcome = await told(ask(here, led, "a"))
        assert (outcome.state, outcome.lost) == (TransactionState.COMPLETE, LOST)


async def test_rule_s3_a_deposed_home_does_not_take_a_loss_for_rows_that_are_there() -> None:
    """Its successor recorded the loss, and the target passed it: it says "already"."""
    async with staged_world() as (here, targets):
        led = await here.lead(commits=False)
        targets.able.clear()
        asking = ask(here, led, "a", timeout_ms=100)
        await until(lambda: here.log.entries)
        here.log.commit()
        await until(lambda: targets.asked)
        targets.forgets = True
        targets.ends = {DEBITS: 4, CREDITS: 2}
        targets.able.set()
        assert (await told(asking)).state is TransactionState.COMMITTING
        again = ask(here, led, "a")
        assert (await told_by_commits(here, again)).state is TransactionState.COMPLETE


async def test_rule_s3_a_staged_position_that_another_has_replaced_is_not_told_complete() -> None:
    """It is over, and whether rows of it were lost is not known any more."""
    async with staged_world() as (here, targets):
        led = await here.lead()
        targets.able.clear()
        asking = ask(here, led, "a", timeout_ms=200)
        await until(lambda: targets.asked)
        home = led.shard.state().home
        home.newest[key("a")] = replace(home.newest[key("a")], number=1)
        assert (await told(asking)).state is TransactionState.COMMITTING


def ask_for_many(here: World, led: Led, chunks: int) -> asyncio.Task[object]:
    """Commit so many units of a row for each of two targets, staged from 0 on."""
    parts = [
        Part(target, 1, staged_at(str(2 * chunk + at)))
        for chunk in range(chunks)
        for at, target in enumerate((DEBITS, CREDITS))
    ]
    here.stages.found = StagedParts(parts)
    return here.tasks.create_task(led.home.answer(commit("a")))


def records_of_losses(led: Led) -> list[int]:
    """The number of lost units in each record of an open decision."""
    values = [record.value for records in led.appends for record in records]
    counts = [
        sum(unit.is_lost for unit in value.units)
        for value in values
        if isinstance(value, TransactionValue) and value.is_open
    ]
    return [count for count in counts if count]


async def test_rule_s10_losses_that_are_known_at_one_time_are_one_record() -> None:
    """Each is the whole decision once more: one for four units wrote a long one as often."""
    async with staged_world() as (here, targets):
        led = await here.lead()
        targets.gone = {staged_at(str(at)) for at in range(400)} - {staged_at("150")}
        outcome = await told(ask_for_many(here, led, 200))
        assert outcome.lost == (LostRows(*DEBITS, 199), LostRows(*CREDITS, 200))
        assert targets.taken == [(DEBITS, 75, staged_at("150"))]
        counts = records_of_losses(led)
        assert counts[-1] == 399
        assert len(counts) <= 4, "of both targets, and behind the one that is there"
        targets.gone.clear()
        assert (await told(ask(here, led, "z"))).lost == ()


async def test_rule_s10_a_target_has_a_record_for_so_many_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(completion, "LOST_AT_ONCE_MAX", 20)
    monkeypatch.setattr(completion, "STAGED_UNIT_BYTES", FOUR_A_REQUEST)
    monkeypatch.setattr(completion, "RETRY_MIN_MS", 0)
    async with staged_world() as (here, targets):
        led = await here.lead()
        targets.gone = {staged_at(str(2 * chunk)) for chunk in range(60)}
        outcome = await told(ask_for_many(here, led, 60))
        assert outcome.lost == (LostRows(*DEBITS, 60),)
        assert records_of_losses(led) == [20, 40, 60]


async def test_rule_s10_units_that_their_target_has_passed_are_asked_for_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another home sent them, or recorded their loss: nothing is lost here by what it knew."""
    monkeypatch.setattr(completion, "STAGED_UNIT_BYTES", FOUR_A_REQUEST)
    async with staged_world() as (here, targets):
        led = await here.lead()
        targets.gone = {staged_at("0")}
        real = targets.apply

        async def apply(request: ApplyUnits) -> ApplyAnswer:
            answer = await real(request)
            if isinstance(answer, SourceGone):
                targets.ends[DEBITS] = 5  # what another home sent
            return answer

        targets.apply = apply  # type: ignore[method-assign]
        outcome = await told(ask_for_many(here, led, 5))
        assert (outcome.state, outcome.lost) == (TransactionState.COMPLETE, ())
        assert records_of_losses(led) == []
