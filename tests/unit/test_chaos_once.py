"""Sent once, there once: a guilty and an innocent history for each thing that can be wrong."""

from __future__ import annotations

import pytest

from chaos.checkers.records import check_once
from chaos.history import Acknowledgement, History, Line, Position, Reading, Record, Unacknowledged

VALUES = [Record(b'"k"', b"%d" % number) for number in range(4)]
"""0 and 1 are acknowledged, 2 is unknown, 3 was refused."""


def history(acknowledged: int = 2, *, again: bool = False) -> History:
    made = History(list(VALUES))
    for row in range(acknowledged):
        made.add(
            Acknowledgement(
                broker=1, due_ms=0, sent_ms=0, answered_ms=1, positions=(Position(row, 0, row),)
            )
        )
    for row, unknown in ((2, True), (3, False)):
        made.add(
            Unacknowledged(
                broker=1,
                sent_ms=0,
                answered_ms=1,
                rows=(row, row) if again else (row,),
                unknown=unknown,
                reason="",
            )
        )
    return made


def served(*rows: int) -> Reading:
    return Reading(2, {0: [Line(at, *VALUES[row]) for at, row in enumerate(rows)]})


@pytest.mark.parametrize("rows", [(0, 1), (0, 1, 2), (2, 1, 0)])
def test_each_value_there_as_often_as_it_was_said_passes(rows: tuple[int, ...]) -> None:
    assert check_once(history(), served(*rows), 0.5).passed


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ((0,), "lost"),
        ((0, 1, 1), "2 times"),
        ((0, 1, 2, 2), "2 times"),
        ((0, 1, 3), "called not written"),
    ],
)
def test_a_value_lost_repeated_or_written_against_the_word_is_red(
    rows: tuple[int, ...], told: str
) -> None:
    found = check_once(history(), served(*rows), 0.5)
    assert not found.passed
    assert told in found.examples[0]


def test_a_run_that_proves_little_or_sends_twice_is_red() -> None:
    assert not check_once(history(), served(0, 1), 0.1).passed, "a quarter is unknown"
    assert not check_once(history(0), served(), 0.9).passed, "nothing was acknowledged"
    assert not check_once(history(again=True), served(0, 1), 0.9).passed, "not this workload"


def test_the_figures_count_what_was_found_of_each_outcome() -> None:
    figures = check_once(history(), served(0, 1, 2), 0.5).figures
    assert figures == (
        "2 acknowledged, 0 lost, 0 repeated; 1 unknown, 1 of them there; 1 refused, 0 of them there"
    )
