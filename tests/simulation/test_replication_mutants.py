"""The simulation proves itself: each line that keeps an invariant, removed, turns that one red.

A fault is planted in the running code for one test. It counts as caught when a seed that is green
without it raises the *named* check, within a few seeds from the recorded one on.
"""

from __future__ import annotations

import pytest

from tests.support.replication_invariants import Violation
from tests.support.replication_mutants import MUTANTS, SECOND_LINES, Mutant
from tests.support.replication_world import run

pytestmark = pytest.mark.usefixtures("no_logs")

SEEDS_MAX = 400
"""Nearly all are caught by the recorded seed itself; others see it where the code has changed."""


def first_red(mutant: Mutant, seeds: range) -> tuple[int, Violation] | None:
    """The first of these seeds that a named check ends."""
    for seed in seeds:
        try:
            run(seed, **mutant.features)
        except Violation as violation:
            if violation.check in mutant.turns_red:
                return seed, violation
        except Exception:  # noqa: BLE001 broken in another way: proves nothing
            continue
    return None


REACHED = [mutant for mutant in MUTANTS if mutant.name not in SECOND_LINES]


@pytest.mark.parametrize("mutant", REACHED, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    with pytest.MonkeyPatch.context() as patch:
        mutant.plant(patch)
        found = first_red(mutant, range(mutant.first, mutant.first + SEEDS_MAX))
    assert found is not None, f"{SEEDS_MAX} seeds are green, or red for other reasons"
    run(found[0], **mutant.features)
