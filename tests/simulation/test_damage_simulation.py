"""Damaged replicas under controllers that take over from each other with news of the past.

The promises stand in `tests.support.damage_world`. Each line of the decisions that keeps a promise,
taken out, is caught by it. tests/support/seeds.py describes which seeds run and how to replay one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raft_metadata.controller import partition_change
from tests.support.damage_world import BrokenError, DamageWorld
from tests.support.seeds import Seeds, too_rare

SEEDS_MAX = 40
MUST_HAPPEN = ("rot", "can't be opened", "kills", "take-overs", "controllers begun", "plots")

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


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


def test_what_can_happen_did() -> None:
    number, happened = seeds_run.number(), seeds_run.happened
    assert too_rare(MUST_HAPPEN, happened, 5) == {}
    operators = happened["needs an operator"] + happened["nobody sound"]
    assert operators < number / 5, "a promise that is never judged"


def every_report_is_believed(patch: Patch) -> None:
    for module in (partition_change,):
        patch.setattr(module, "current_reports", lambda damaged, _: damaged)


def no_new_leader_epoch(patch: Patch) -> None:
    patch.setattr(partition_change, "has_log_of_epoch", lambda *_: False)


def a_damaged_leader_stays(patch: Patch) -> None:
    patch.setattr(partition_change, "_relieve", lambda *_: None)


def nobody_is_taken_out(patch: Patch) -> None:
    patch.setattr(partition_change, "leaving_replicas", lambda *_: frozenset())


@pytest.mark.parametrize(
    ("plant", "promise", "first_seed"),
    [
        (every_report_is_believed, "given-up", 280),  # one seed in 250 shows it
        (no_new_leader_epoch, "healed", 0),
        (a_damaged_leader_stays, "healed", 0),
        (nobody_is_taken_out, "healed", 0),
    ],
)
def test_a_planted_fault_breaks_its_promise(
    plant: Plant, promise: str, first_seed: int, monkeypatch: Patch
) -> None:
    broken = set()
    with monkeypatch.context() as planted:
        plant(planted)
        for seed in range(first_seed, first_seed + SEEDS_MAX):
            try:
                DamageWorld(seed).tell()
            except BrokenError as error:
                broken.add(error.promise)
                if promise in broken:
                    return
    raise AssertionError(
        f"none of {SEEDS_MAX} seeds from {first_seed} on breaks {promise}, only {broken}"
    )
