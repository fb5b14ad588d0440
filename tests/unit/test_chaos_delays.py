"""The checker of the Spark leg: an innocent table and guilty ones."""

from __future__ import annotations

import json

import pytest

from chaos.checkers.records import check_delays
from chaos.history import Line


def flight(carrier: str | None, month: int, delay: float | None) -> Line:
    value = {"year": 2013, "month": month, "dep_delay": delay, "carrier": carrier}
    return Line(0, b'"k"', json.dumps(value).encode())


def row(carrier: str, month: int, flights: int, departed: int, delay: float) -> Line:
    value = {
        "carrier": carrier,
        "month": month,
        "flights": flights,
        "departed": departed,
        "delay": delay,
    }
    return Line(0, f'"{carrier}-{month}"'.encode(), json.dumps(value).encode())


FLIGHTS = [
    flight("UA", 1, 2),
    flight("UA", 1, -4),
    flight("UA", 1, None),
    flight("B6", 2, 7),
    flight(None, 3, 1),
    Line(0, b'"UA"', b'{"after": "restart"}'),
]
INNOCENT = [row("UA", 1, 1, 1, 2), row("B6", 2, 1, 1, 7), row("UA", 1, 3, 2, -2)]


def test_the_last_row_of_a_key_holds() -> None:
    found = check_delays(FLIGHTS, INNOCENT)
    assert (found.passed, found.figures) == (True, "2 rows over 4 flights, 0 differ")


@pytest.mark.parametrize(
    "wrong",
    [
        [*INNOCENT, row("UA", 1, 4, 2, -2)],
        [*INNOCENT, row("UA", 1, 3, 2, -3)],
        [*INNOCENT, row("XX", 1, 1, 0, 0)],
        INNOCENT[:2],
        INNOCENT[2:],
        [],
    ],
    ids=["counted twice", "sum", "invented", "stale", "missing", "nothing"],
)
def test_guilty_of(wrong: list[Line]) -> None:
    assert not check_delays(FLIGHTS, wrong).passed


def test_guilty_of_proving_nothing() -> None:
    assert not check_delays([], []).passed
