"""Transactions whose homes, targets and stage change leaders, in virtual time, from a seed.

The classes are the product's own; logs, network and images are simulated. Faults: elections that
keep any part of a tail, deposed leaders that go on, brokers that die, replicas that fetch nothing,
requests and answers that are lost, late or doubled, topics deleted and made anew, log starts that
move, staged rows that are moved, trimmed or too old, now and then an unclean election, of the stage
and of a home, too. Clients: keys with rival contents and two requests at once, producers with
several lives, two drivers of one numbered id, and in one group transformers, by the offset that
they expect, or members, by their epoch. An operator has ids forgotten, producers fenced. Checked by
the names of rules (S) and invariants (T) of docs/rules.md and docs/claims.md; "told ok wrongly",
"refused wrongly" and "told not written" hold each answer against what is committed when it is
given.
tests/support/seeds.py describes which seeds run and how to replay one.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.support.seeds import Seeds, too_rare
from tests.support.transaction_clients import run

FACTS = (
    "decisions",
    "elections",
    "doubled",
    "trims",
    "moves",
    "stage trims",
    "forgotten",
    "decided anew",
    "topics deleted",
    "unclean elections",
    "told lost",
    "told already",
    "told committing",
    "told further",
    "told TRANSACTION_CONFLICT",
    "told OFFSET_NOT_EXPECTED",
    "told PRODUCER_FENCED",
    "told FENCED_MEMBER_EPOCH",
    "told UNKNOWN_MEMBER_ID",
    "told STAGE_INCOMPLETE",
    "told aborted",
)


seeds_run = Seeds(
    module=__name__,
    simulate_one=run,
    counts=lambda world: ({}, world.figures),
    everyday=1_000,
    per_test=50,
    kept={
        2: "where a decision is sent before it is committed, its id has another one written",
        3: "where a home that lost its state refuses, a decided commit is told as not written",
        4: "where a request holds units that do not follow each other, a broker stops",
    },
)
pytest_generate_tests = seeds_run.parametrize
pytestmark = pytest.mark.usefixtures("no_logs")


@pytest.mark.simulate
def test_rule_s1_and_its_kin_hold_through_changes_of_leaders(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_every_fact_happened_in_some_seed() -> None:
    number = seeds_run.number()
    assert too_rare(FACTS, seeds_run.happened, 1) == {}
    assert seeds_run.happened["decisions"] > 20 * number


def test_a_seed_gives_the_same_run_again() -> None:
    assert run(7).figures == run(7).figures


def test_answers_differ_from_seed_to_seed() -> None:
    told: Counter[str] = run(1).figures
    assert told != run(3).figures
