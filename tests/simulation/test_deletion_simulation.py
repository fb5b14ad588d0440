"""Deleted records stay deleted: the promises of `tests.support.deletion_world`, seed by seed."""

from __future__ import annotations

import pytest

from tests.support.deletion_world import DeletionWorld, run
from tests.support.seeds import Counts, Seeds

pytestmark = pytest.mark.usefixtures("no_logs")

KEPT = {
    83: "a deletion is answered by what the leader shows, not by what its log start proves",
    2803: "a broker starts over, is killed before that is durable, and has its old log (T4)",
    3975: "a broker rolls, finds no room for the batch, seals what is before it, is killed (T4)",
    4172: "a leader that was asked to leave by the last event: its write ended unknown",
    4641: "an old snapshot tells what preceded a producer's last batch, which is deleted (T4)",
    908127: "a log that began anew began at 0, as the power went amid its shutdown",
}


def counts_of(world: DeletionWorld) -> Counts:
    return world.looked_at, {"answers": world.answers}


seeds_run = Seeds(
    module=__name__,
    simulate_one=run,
    counts=counts_of,
    kept=KEPT,
    everyday=30,
    per_test=10,
    one_in=10,
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_rule_r10_no_clean_leader_shows_what_an_answered_deletion_deleted(
    seeds: list[int],
) -> None:
    seeds_run.run_all(seeds)


def test_enough_deletions_were_answered_and_looked_at() -> None:
    number, looked_at = seeds_run.number(), seeds_run.judged
    assert seeds_run.happened["answers"] > number
    assert min(looked_at["leader"], looked_at["candidate"]) > 10 * number
