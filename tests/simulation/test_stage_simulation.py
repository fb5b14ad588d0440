"""Staged rows through chance: the promises of `tests.support.stage_simulation`, seed by seed."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.seeds import Counts, Seeds
from tests.support.stage_simulation import run

pytestmark = pytest.mark.usefixtures("no_logs")


def counts_of(happened: Counter[str]) -> Counts:
    judged = Counter({"decided": happened["decided"]})
    return judged, dict(happened)


seeds_run = Seeds(
    module=__name__,
    simulate_one=run,
    counts=counts_of,
    kept={},
    everyday=100,
    per_test=25,
    one_in=10,
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_rule_s10_no_decided_row_is_lost_and_nothing_stays_staged(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_enough_was_decided_moved_and_given_up() -> None:
    number = seeds_run.number()
    assert seeds_run.judged["decided"] > number
    for what in ("moved", "expired", "trimmed", "stage elections"):
        assert seeds_run.happened[what] > number, what
