"""A partition whose replicas move between four brokers while all else goes wrong, seed by seed.

The world is `replication_world`'s: the product's own partition and log and the controllers' own
decisions, here with reassignments started, changed and cancelled at any moment (KIP-455, P8).
"""

from __future__ import annotations

import pytest

from tests.support.replication_world import run

pytestmark = pytest.mark.usefixtures("no_logs")

SEEDS = range(20_000, 20_150)


def test_invariant_p8_replicas_move_through_any_trouble_and_nothing_is_lost() -> None:
    begun = finished = exposed = 0
    for seed in SEEDS:
        world = run(seed, moves=True)
        begun += world.counts["reassigned"]
        finished += world.counts["reassignments finished"]
        exposed += len(world.judge.exposed)
    assert begun > len(SEEDS), begun
    assert finished > len(SEEDS) // 4, f"while everything went wrong only {finished} were through"
    assert exposed > 5 * len(SEEDS), exposed
