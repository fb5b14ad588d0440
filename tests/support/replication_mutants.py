"""Faults planted in the running code: each switches one line off that keeps a rule or an invariant.

`turns_red` names the checks that may see it (``replication_judge``); ``first`` is a seed known to
be near one that shows it, so that the test of it is quick.
"""

from __future__ import annotations

from tests.support import (
    mutants_of_controllers,
    mutants_of_logs,
    mutants_of_repairs,
    mutants_of_replication,
    mutants_of_rot,
    mutants_of_upkeep,
)
from tests.support.mutant_registry import MUTANTS, Mutant

SECOND_LINES = {
    "rule R4: acknowledgements of any session count": "sessions end with the epoch that counts",
    "rule R6: a registration that was overtaken still counts": "the settling of the newer one",
    "rule R7: who may lack a tombstone is filled on": "a tombstone waits for every replica",
    "rule R7: who is filled does not learn which tombstones are gone": "the same",
    "rule R10: the cleaner goes by a clock that is not trusted": "a tombstone is rarely the newest",
    "P8: who only waits for its produces counts as a replica": "the epoch of the reassignment",
}
"""Faults that a second line of defence hides in worlds of this size, and which: each line has its
own test in ``tests/unit``, named in docs/claims.md."""

__all__ = [
    "MUTANTS",
    "SECOND_LINES",
    "Mutant",
    "mutants_of_controllers",
    "mutants_of_logs",
    "mutants_of_repairs",
    "mutants_of_replication",
    "mutants_of_rot",
    "mutants_of_upkeep",
]
