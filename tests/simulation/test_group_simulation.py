"""Coordinators that come and go over one log, in virtual time, from a seed.

Faults: a new leader with part of the unacknowledged tail, a high watermark it has to learn, an old
one that goes on for a while, appends of unknown outcome, answers that are lost. Clients of every
kind read, commit, leave, crash and come back. Checked by the number of its invariant: nothing is
skipped, no acknowledged commit is lost or read stale, no partition is read by two, no seat is given
twice, no commit of an older epoch is taken, and an older coordinator never serves after a newer
one has. tests/support/seeds.py describes which seeds run and how to replay one.
"""

from __future__ import annotations

import pytest

from tests.support.group_simulation import World, run
from tests.support.seeds import Seeds


def simulate(seed: int) -> World:
    world = run(seed)
    assert world.figures["elections"] > 3
    assert world.figures["records"] > 10
    assert world.figures["commits checked"] > 0
    assert world.figures["memberships"] > 5
    assert world.figures["owners checked"] > 10
    return world


seeds_run = Seeds(
    module=__name__,
    simulate_one=simulate,
    everyday=24,
    per_test=4,
    one_in=20,
    kept={14007: "two members of one seat took it from each other until the drain timed out"},
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_rule_g1_and_its_kin_hold_through_coordinator_changes(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_a_seed_gives_the_same_run_again() -> None:
    assert run(7).figures == run(7).figures
