"""The judgement of an APPLY: which of its units a target's log has already (rules S4, S5). Pure.

A home sends units in the order of their row numbers, each time with the row number that they come
behind (``after``). The log takes a unit only right behind its predecessor. A gap that was taken
would make the earlier unit, when it comes, look as if it were there: it would be lost for ever.

``after`` is compared explicitly. Where the numbers jump to the next multiple of 2^31, the unit
begins a newer producer epoch with sequence 0, which the ordinary check would take behind any gap.
It is also what mends a log that lost what it had acknowledged: the home sends its first open unit
again with ``after`` = the end that it was told, and a log that still ends there takes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from broker.record.numbering import RowNumber, number_of_unit
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnitPlace(NamedTuple):
    """The place of a unit in its home's numbering."""

    number: RowNumber
    """Row number of its first row."""
    rows: int

    @property
    def end(self) -> RowNumber:
        return RowNumber(self.number + self.rows)


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """All units are in the log, or were before they were deleted; perhaps not committed yet."""


@dataclass(frozen=True, slots=True)
class Take:
    """The units from this index on are to be appended; those before it are there."""

    first: int


@dataclass(frozen=True, slots=True)
class NumberGap:
    """The log ends before the place that the units come behind: it has lost rows."""

    end: RowNumber


UnitJudgement = AlreadyThere | Take | NumberGap


class SplitUnitError(CorruptionError):
    """A log ends where no unit ends: two units have had the same row numbers, or one was split."""


def judge_units(end: RowNumber, after: RowNumber, units: Sequence[UnitPlace]) -> UnitJudgement:
    """Return what is to be done with ``units`` by a log whose rows of that home end at ``end``.

    Raises:
        ValueError: no units, they do not follow each other, or ``after`` is above the first one.
        SplitUnitError: the log ends inside a unit.
    """
    check_units(after, units)
    if end >= units[-1].end:
        return AlreadyThere()
    if end in {after, units[0].number}:
        return Take(0)
    for index, unit in enumerate(units):
        if end == unit.end:
            return Take(index + 1)
        if end < unit.end:
            break
    if end < units[0].number:
        return NumberGap(end)  # or a home that mends what has been mended since: it is told the end
    msg = f"rows end at number {end}, which is inside of a unit: {list(map(tuple, units))}"
    raise SplitUnitError(msg)


def mends(after: RowNumber, units: Sequence[UnitPlace]) -> bool:
    """Return whether an APPLY mends a gap: its first unit is not the one behind ``after``."""
    return number_of_unit(after, units[0].rows) != units[0].number


def check_units(after: RowNumber, units: Sequence[UnitPlace]) -> None:
    """Check that each unit has the number that its home gives behind the one before it.

    Raises:
        ValueError: see `judge_units`; NumbersExhaustedError.
    """
    if not units:
        msg = "an APPLY without units"
        raise ValueError(msg)
    before = units[0].number
    if after > before:
        msg = f"a unit with number {before} can't come behind number {after}"
        raise ValueError(msg)
    for unit in units:
        if number_of_unit(before, unit.rows) != unit.number:
            msg = f"a unit of {unit.rows} rows with number {unit.number} behind number {before}"
            raise ValueError(msg)
        before = unit.end
