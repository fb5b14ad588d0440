"""A partition whose `flush` is changed at any moment, while brokers die and lose power (rule R1).

The world is `replication_world`'s: the config in the metadata log is learned by each broker in its
own time, who acknowledged under `os` bears a durable mark of it (rule R6), and a power cut then is
a lost disk, which counts against the same budget.
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
    simulate_one=partial(run, flush=True),
    counts=counts_of,
    everyday=100,
    per_test=20,
    one_in=10,
    kept={
        320: "a reader of a log that waits, closed, for a disk with room",
        21248: "the last replica serves on over damage when more of it would rot",
    },
)
pytest_generate_tests = seeds_run.parametrize


@pytest.mark.simulate
def test_rule_r1_flush_changes_through_any_trouble_and_nothing_is_lost(seeds: list[int]) -> None:
    seeds_run.run_all(seeds)


def test_enough_changed_was_read_and_was_cut() -> None:
    number, happened = seeds_run.number(), seeds_run.happened
    assert happened["given up"] < number / 20, happened["given up"]
    assert happened["flush"] > number, happened["flush"]
    assert happened["exposed"] > 5 * number, happened["exposed"]
    assert happened["power cuts"] > number, happened["power cuts"]
