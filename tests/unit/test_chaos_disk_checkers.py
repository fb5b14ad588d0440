"""What a broken disk must be told as: a guilty and an innocent history for each check."""

from __future__ import annotations

import pytest

from chaos.checkers.faults import check_ended_with, check_refused_with
from chaos.history import History, Unacknowledged

FULL = "503 KAFKA_STORAGE_ERROR: log t-0: [Errno 28] No space left on device"
ENDED = "2026-01-01T00:00:00Z error node.up broker-1 ended exit={} lived_ms=900 log=x\n"


def refused(reason: str, *, unknown: bool = False) -> Unacknowledged:
    return Unacknowledged(
        broker=1, sent_ms=0, answered_ms=1, rows=(0,), unknown=unknown, reason=reason
    )


def test_a_fault_that_writers_are_told_of_and_that_wrote_nothing_passes() -> None:
    history = History([], unacknowledged=[refused(FULL), refused("503 something else")])
    assert check_refused_with(history, "No space left").passed


@pytest.mark.parametrize(
    "told", [[], [refused("503 something else")], [refused(FULL), refused(FULL, unknown=True)]]
)
def test_a_fault_nobody_was_told_of_or_that_left_it_open_is_red(
    told: list[Unacknowledged],
) -> None:
    assert not check_refused_with(History([], unacknowledged=told), "No space left").passed


def test_a_node_that_ends_as_documented_passes() -> None:
    assert check_ended_with(ENDED.format(74), "broker-1", 74).passed


@pytest.mark.parametrize(
    "said",
    [
        "",
        ENDED.format(70),
        ENDED.format(74) + ENDED.format(1),
        ENDED.format(74).replace("-1", "-11"),
    ],
)
def test_a_node_that_ends_otherwise_or_not_at_all_is_red(said: str) -> None:
    assert not check_ended_with(said, "broker-1", 74).passed
