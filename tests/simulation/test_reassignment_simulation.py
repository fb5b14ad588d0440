"""A partition whose replicas move between four brokers while all else goes wrong, seed by seed.

The world is `replication_world`'s: the product's own partition and log and the controllers' own
decisions, here with reassignments started, changed and cancelled at any moment (KIP-455, P8).
"""

from __future__ import annotations

from functools import partial

import pytest

from tests.support.replication_world import World, run
from tests.support.seeds import Counts, Seeds

pytestmark = pytest.mark.usefixtures("no_logs")


def counts_of(world: World) -> Counts:
    return world.judge.tally, world.happened()


seeds_run = Seeds(
    module=__name__,
    simulate_one=partial(run, moves=True),
    counts=counts_of,
    everyday=100,
    per_test=20,
    one_in=10,
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_invariant_p8_replicas_move_through_any_trouble_and_nothing_is_lost(
    seeds: list[int],
) -> None:
    seeds_run.run_all(seeds)


def test_enough_reassignments_began_and_ended() -> None:
    number, happened = seeds_run.number(), seeds_run.happened
    begun, finished = happened["reassigned"], happened["reassignments finished"]
    assert begun > number, begun
    assert finished > number / 4, f"only {finished} ended while everything went wrong"
    assert happened["exposed"] > 5 * number, happened["exposed"]
