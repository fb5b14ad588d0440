"""Judgements of an APPLY by its target, against a model that keeps every row (S4, S5)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.log.unit_check import (
    AlreadyThere,
    NumberGap,
    SplitUnitError,
    Take,
    UnitPlace,
    judge_units,
    mends,
)
from broker.record.numbering import RowNumber, number_of_unit
from raft_metadata.common.ids import SEQUENCES

ZERO = RowNumber(0)


def decided(start: int, sizes: list[int]) -> list[UnitPlace]:
    """Return the units that a home decides one behind the other, the first one behind ``start``."""
    units, number = [], RowNumber(start)
    for rows in sizes:
        units.append(UnitPlace(number_of_unit(number, rows), rows))
        number = units[-1].end
    return units


starts = st.integers(0, 60) | st.integers(SEQUENCES - 60, SEQUENCES + 60)
sizes = st.lists(st.integers(1, 12), min_size=1, max_size=8)


@given(starts, sizes, st.data())
@example(SEQUENCES - 1, [2, 1], None)
def test_rule_s4_a_log_takes_what_comes_behind_its_own_end_and_nothing_else(
    start: int, sizes: list[int], data: st.DataObject | None
) -> None:
    """Of a dense history some prefix is in the log; the home sends any run of it."""
    units = decided(start, sizes)
    ends = [RowNumber(start), *(unit.end for unit in units)]
    held = len(units) // 2 if data is None else data.draw(st.integers(0, len(units)))
    first = 0 if data is None else data.draw(st.integers(0, len(units) - 1))
    last = len(units) if data is None else data.draw(st.integers(first + 1, len(units)))
    judgement = judge_units(ends[held], ends[first], units[first:last])
    if held >= last:
        assert judgement == AlreadyThere()
    elif held >= first:
        assert judgement == Take(held - first)
    else:
        assert judgement == NumberGap(ends[held])
    assert not mends(ends[first], units[first:last])


def test_rule_s4_a_jump_to_a_newer_producer_epoch_hides_no_gap() -> None:
    """By epoch and sequence alone it would be taken: a newer epoch begins with sequence 0."""
    before, behind = decided(SEQUENCES - 8, [5, 6])
    assert behind.number == SEQUENCES
    assert judge_units(before.number, before.end, [behind]) == NumberGap(before.number)
    assert judge_units(before.end, before.end, [behind]) == Take(0)


def test_rule_s5_a_gap_is_mended_by_the_end_that_was_told_and_only_there() -> None:
    units = decided(40, [5, 5])
    assert judge_units(RowNumber(12), RowNumber(40), units) == NumberGap(RowNumber(12))
    assert mends(RowNumber(12), units)
    assert judge_units(RowNumber(12), RowNumber(12), units) == Take(0)
    for moved in (0, 11, 13, 39):
        assert judge_units(RowNumber(moved), RowNumber(12), units) == NumberGap(RowNumber(moved))
    assert judge_units(RowNumber(40), RowNumber(12), units) == Take(0), "another leader had it all"
    assert judge_units(RowNumber(45), RowNumber(12), units) == Take(1)
    assert judge_units(RowNumber(50), RowNumber(12), units) == AlreadyThere()


@pytest.mark.parametrize("end", [1, 4, 6, 9])
def test_an_end_inside_of_a_unit_is_an_error_of_its_own(end: int) -> None:
    with pytest.raises(SplitUnitError, match=f"end at number {end}"):
        judge_units(RowNumber(end), ZERO, decided(0, [5, 5]))


def test_units_that_no_home_decides_are_refused() -> None:
    with pytest.raises(ValueError, match="without units"):
        judge_units(ZERO, ZERO, [])
    with pytest.raises(ValueError, match="can't come behind number 6"):
        judge_units(ZERO, RowNumber(6), decided(5, [1]))
    for second in (UnitPlace(RowNumber(6), 2), UnitPlace(RowNumber(4), 2)):
        with pytest.raises(ValueError, match="behind number 5"):
            judge_units(ZERO, ZERO, [UnitPlace(ZERO, 5), second])
    with pytest.raises(ValueError, match="rows"):
        judge_units(ZERO, ZERO, [UnitPlace(ZERO, 0)])
