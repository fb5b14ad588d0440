"""Damaged replicas under controllers that take over from each other with news of the past.

The promises stand in `tests.support.damage_world`. A seed is a counterexample:
``pytest -k seed-17``. Each line of the decisions that keeps a promise, taken out, is caught by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from raft_metadata.controller import failed_replicas, partition_change
from tests.support.damage_world import BrokenError, DamageWorld

SEEDS = range(60)
CHUNK = 20
SEEDS_MAX = 40
MUST_HAPPEN = ("rot", "can't be opened", "kills", "take-overs", "controllers begun", "plots")
happened: Counter[str] = Counter()
told: list[int] = []

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


@pytest.mark.parametrize(
    "seeds",
    [range(first, first + CHUNK) for first in SEEDS[::CHUNK]],
    ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}",
)
def test_rule_r6_no_replica_is_taken_out_or_emptied_for_damage_of_the_past(seeds: range) -> None:
    for seed in seeds:
        try:
            happened.update(DamageWorld(seed).tell())
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        told.append(seed)


def test_what_can_happen_did() -> None:
    if len(told) < len(SEEDS):
        pytest.skip("counts the seeds of a whole run")
    assert {name: happened[name] for name in MUST_HAPPEN if happened[name] < 5} == {}
    operators = happened["needs an operator"] + happened["nobody sound"]
    assert operators < len(SEEDS) // 5, "a promise that is never judged"


def every_report_is_believed(patch: Patch) -> None:
    for module in (failed_replicas, partition_change):
        patch.setattr(module, "believed", lambda damaged, _: damaged)


def no_new_leader_epoch(patch: Patch) -> None:
    patch.setattr(partition_change, "took_part", lambda *_: False)


def a_damaged_leader_stays(patch: Patch) -> None:
    patch.setattr(partition_change, "_relieve", lambda *_: None)


def nobody_is_taken_out(patch: Patch) -> None:
    patch.setattr(partition_change, "leaving_replicas", lambda *_: frozenset())


@pytest.mark.parametrize(
    ("plant", "promise"),
    [
        (every_report_is_believed, "given-up"),
        (no_new_leader_epoch, "healed"),
        (a_damaged_leader_stays, "healed"),
        (nobody_is_taken_out, "healed"),
    ],
)
def test_a_planted_fault_breaks_its_promise(plant: Plant, promise: str, monkeypatch: Patch) -> None:
    broken = set()
    with monkeypatch.context() as planted:
        plant(planted)
        for seed in range(SEEDS_MAX):
            try:
                DamageWorld(seed).tell()
            except BrokenError as error:
                broken.add(error.promise)
                if promise in broken:
                    return
    raise AssertionError(f"none of {SEEDS_MAX} seeds breaks {promise}, only {broken}")
