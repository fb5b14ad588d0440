"""A partition whose `flush` is changed at any moment, while brokers die and lose power (rule R1).

The world is `replication_world`'s: the config in the metadata log is learned by each broker in its
own time, who acknowledged under `os` bears a durable mark of it (rule R6), and a power cut then is
a lost disk, which counts against the same budget.
"""

from __future__ import annotations

import pytest

from tests.support.replication_world import run

pytestmark = pytest.mark.usefixtures("no_logs")

SEEDS = range(10_000, 10_150)


def test_rule_r1_flush_changes_through_any_trouble_and_nothing_is_lost() -> None:
    changes = exposed = cuts = given_up = 0
    for seed in SEEDS:
        world = run(seed, flush=True)
        changes += world.counts["flush"]
        exposed += len(world.judge.exposed)
        cuts += world.power_cuts
        given_up += world.given_up
    assert given_up < len(SEEDS) // 20, given_up
    assert changes > len(SEEDS), changes
    assert exposed > 5 * len(SEEDS), exposed
    assert cuts > len(SEEDS), cuts
