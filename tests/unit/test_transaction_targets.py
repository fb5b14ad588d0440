"""Staged rows on their way into a target: what is there already, and what is gone for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from broker.server.transaction_ports import APPLIED_BYTES_MAX, LONG_STEP_BYTES, Targets
from broker.server.unit_appends import UnitAppends
from broker.transactions.home_messages import ApplyUnits, SourceGone, UnitRows, UnitsApplied
from broker.transactions.home_records import StagedPlace, Target
from broker.transactions.messages import TargetRows
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from tests.support.home_turns import NUMBERING, staged_at
from tests.support.one_broker import HERE, ME, Here, image, one_broker
from tests.unit.test_home_completion import rows

TARGET = Target(*HERE)


class Staged:
    """Stages whose rows are gone where the test says so."""

    def __init__(self, here: Here) -> None:
        self.here = here
        self.gone: set[StagedPlace] = set()
        self.asked: list[StagedPlace] = []
        self.text = b""
        """The value of every row; empty: a number."""
        self.fails: set[StagedPlace] = set()
        """Places whose stage does not answer."""
        self.meanwhile: ApplyUnits | None = None
        """A request that comes while these stages are asked."""
        appends = UnitAppends(
            here.config, here.local, here.manager, SystemClock(), lambda: here.proven[0]
        )
        anything = cast("Any", None)
        self.targets = Targets(
            here.config, anything, anything, here.local, appends, self, SystemClock()
        )

    async def rows_of(self, places: Sequence[StagedPlace]) -> list[TargetRows | None]:
        self.asked += places
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await self.targets.append(meanwhile, 5_000)
        if self.fails & set(places):
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
        return [None if one in self.gone else self._rows() for one in places]

    def _rows(self) -> TargetRows:
        found = rows(TARGET, 1, 2)
        if not self.text:
            return found
        line = b'{"key":null,"value":"%b"}' % self.text
        return replace(found, records=b"[%b,%b]" % (line, line))

    async def apply(self, after: int, *numbers: int) -> object:
        """Apply units of two rows, whose numbers are the offsets at which they are staged."""
        return await self.targets.append(request(after, *numbers), 5_000)

    @property
    def log_end(self) -> int:
        return self.here.local.leading(HERE)[0].log.log_end_offset


def request(after: int, *numbers: int, inline: bool = False) -> ApplyUnits:
    units = tuple(
        UnitRows(number, 2, rows(TARGET, 1, 2) if inline else staged_at(str(number)))
        for number in numbers
    )
    return ApplyUnits(target=TARGET, numbering=NUMBERING, after=after, units=units)


@pytest.fixture
async def staged(tmp_path: Path) -> AsyncIterator[Staged]:
    async with one_broker(tmp_path) as here:
        here.manager.on_metadata_update(image(1, (ME,)))
        yield Staged(here)


async def test_rule_s10_nothing_is_appended_while_the_rows_of_a_unit_are_gone(
    staged: Staged,
) -> None:
    staged.gone = {staged_at("2"), staged_at("6")}
    assert await staged.apply(0, 0, 2, 4, 6) == SourceGone((2, 6))
    assert staged.log_end == 0
    assert await staged.apply(0, 0) == UnitsApplied((0,))


async def test_rule_s10_a_unit_that_is_there_is_not_gone_with_its_stage(staged: Staged) -> None:
    """The answer was lost, and then the stage: the rows must not be recorded as lost."""
    await staged.apply(0, 0, 2)
    staged.gone = {staged_at("0"), staged_at("2")}
    staged.asked.clear()
    assert await staged.apply(0, 0, 2) == UnitsApplied((0, 2))
    assert await staged.apply(0, 0, 2, 4) == UnitsApplied((0, 2, 4))
    assert staged.asked == [staged_at("4")]


async def test_rule_s10_a_unit_that_came_while_its_stage_was_asked_is_not_gone(
    staged: Staged,
) -> None:
    staged.gone = {staged_at("0")}
    staged.meanwhile = request(0, 0, inline=True)
    assert await staged.apply(0, 0) == UnitsApplied((0,))
    assert staged.log_end == 2


async def test_rule_s10_a_target_says_that_it_lacks_a_unit_with_proof_only(
    staged: Staged,
) -> None:
    """Its successor may have the unit."""
    staged.gone = {staged_at("0")}
    staged.here.proven[0] = False
    with pytest.raises(KafkaError) as caught:
        await staged.apply(0, 0)
    assert caught.value.code is ErrorCode.LEADER_NOT_AVAILABLE


async def test_a_request_is_answered_for_the_units_until_enough_bytes_are_under_way(
    staged: Staged,
) -> None:
    staged.text = b"v" * (APPLIED_BYTES_MAX // 16)  # two rows a unit: eight units are all of it
    numbers = range(0, 40, 2)
    applied = await staged.apply(0, *numbers)
    assert applied == UnitsApplied((0, 2, 4, 6, 8, 10, 12, 14))
    assert staged.log_end == 16
    assert staged.asked == [staged_at(str(number)) for number in range(0, 16, 2)]
    assert await staged.apply(16, *numbers[8:10]) == UnitsApplied((16, 18))


async def test_a_request_whose_later_step_is_refused_is_answered_for_those_before(
    staged: Staged,
) -> None:
    staged.gone = {staged_at("8")}
    assert await staged.apply(0, 0, 2, 4, 6, 8, 10) == UnitsApplied((0, 2, 4, 6))
    staged.fails = {staged_at("16")}
    assert await staged.apply(8, 8, 10, 12, 14, 16) == SourceGone((8,)), "and what else is known"
    staged.gone.clear()
    assert await staged.apply(8, 8, 10, 12, 14, 16) == UnitsApplied((8, 10, 12, 14))
    with pytest.raises(KafkaError, match="no leader"):
        await staged.apply(16, 16)
    assert staged.log_end == 16


async def test_units_that_another_request_brings_between_two_steps_are_taken_once(
    staged: Staged,
) -> None:
    staged.text = b"v" * LONG_STEP_BYTES
    taking = asyncio.create_task(staged.apply(0, *range(0, 20, 2)))
    await asyncio.sleep(0)
    assert staged.log_end == 8, "one step"
    assert await staged.apply(0, *range(0, 12, 2)) == UnitsApplied((0, 2, 4, 6, 8, 10))
    assert await taking == UnitsApplied(tuple(range(0, 20, 2)))
    assert staged.log_end == 20
