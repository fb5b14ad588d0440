"""Damaged replicas under controllers that take over from each other with news of the past.

The promises stand in `tests.support.damage_world`. Each line of the decisions that keeps a promise,
taken out, is caught by it. tests/support/seeds.py describes which seeds run and how to replay one.
"""

from __future__ import annotations

import pytest

from tests.support.damage_world import DamageWorld
from tests.support.seeds import Seeds, too_rare

MUST_HAPPEN = ("rot", "can't be opened", "kills", "take-overs", "controllers begun", "plots")


seeds_run = Seeds(
    module=__name__,
    simulate_one=lambda seed: DamageWorld(seed).tell(),
    counts=lambda happened: ({}, happened),
    everyday=120,
    per_test=20,
    one_in=10,
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_rule_r6_no_replica_is_taken_out_or_emptied_for_damage_of_the_past(
    seeds: list[int],
) -> None:
    seeds_run.run_all(seeds)


def test_every_named_event_happened_often_enough() -> None:
    number, happened = seeds_run.number(), seeds_run.happened
    assert too_rare(MUST_HAPPEN, happened, 5) == {}
    operators = happened["needs an operator"] + happened["nobody sound"]
    assert operators < number / 5, "a promise that is never judged"
