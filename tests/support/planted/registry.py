"""Every fault that tests plant in the product, in one list, and what has to notice each.

A fault switches off one line that keeps a rule or an invariant. It is planted in one of two ways.
A `PlantedFault` patches the running code, and the seeds of a simulated world have to break a check
of the names given. A `SourceFault` replaces a line in a copy of the packages, and the tests of the
names given have to fail there. ``tests/simulation/test_planted_faults.py`` runs all of them;
docs/claims.md has their table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest

from tests.support import (
    deletion_world,
    group_simulation,
    home_world,
    stage_simulation,
    transaction_clients,
)
from tests.support.damage_world import BrokenError, DamageWorld
from tests.support.metadata_invariants import InvariantError
from tests.support.metadata_sim_story import Length, tell
from tests.support.replication_invariants import Violation
from tests.support.replication_world import run
from tests.support.transaction_truth import TransactionViolation

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Judge = Callable[[int], str | None]
"""Run a seed; return the name of the check that it breaks, None if it breaks none."""

METADATA, REPLICATION, DELETION, DAMAGE = "metadata", "replication", "deletion", "damage"
GROUPS, HOMES, STAGES, TRANSACTIONS = "groups", "homes", "stages", "transactions"
LOST = ("L2", "L3", "L4", "L7", "L10")
"""Something that was seen or acknowledged is not there, on one replica or another."""


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A fault in the running code."""

    world: str
    name: str
    caught_by: tuple[str, ...]
    """Names of the checks that may see it; nothing else counts."""
    plant: Plant
    judge: Judge
    first: int
    """The seed to begin with, known to be near one that shows it, so that its test is quick."""


@dataclass(frozen=True, slots=True)
class SourceFault:
    """``line``, which one file of ``raft_metadata`` has, becomes ``instead`` in a copy of it."""

    name: str
    line: str
    instead: str
    caught_by: tuple[str, ...]
    """Test files ``test_quorum_<name>.py`` of which one must fail."""


FAULTS: list[PlantedFault] = []
SOURCE_FAULTS: list[SourceFault] = []


def metadata_fault(
    name: str, *caught_by: str, first: int = 1, length: Length | None = None
) -> Callable[[Plant], Plant]:
    """Register a fault of the controllers and their quorum (``metadata_sim``)."""
    return partial(_register, METADATA, name, caught_by, partial(_judge_metadata, length), first)


def replication_fault(
    name: str, *caught_by: str, first: int = 0, **features: bool
) -> Callable[[Plant], Plant]:
    """Register a fault of the log or of replication (``replication_world``).

    Topics keep everything, and what runs does not rot, unless a feature says otherwise.
    """
    of_world = {"compacts": False, "retains": False, "rots": False} | features
    judge = partial(_judge_replication, of_world)
    return partial(_register, REPLICATION, name, caught_by, judge, first)


def deletion_fault(name: str, *caught_by: str, first: int = 0) -> Callable[[Plant], Plant]:
    """Register a fault of deletions of records (``deletion_world``)."""
    return partial(_register, DELETION, name, caught_by, _judge_deletion, first)


def damage_fault(name: str, *caught_by: str, first: int = 0) -> Callable[[Plant], Plant]:
    """Register a fault of what controllers decide about damaged replicas (``damage_world``)."""
    return partial(_register, DAMAGE, name, caught_by, _judge_damage, first)


def group_fault(name: str, *caught_by: str, first: int = 0) -> Callable[[Plant], Plant]:
    """Register a fault of the group coordinator's decisions (``group_simulation``)."""
    return partial(_register, GROUPS, name, caught_by, _judge_groups, first)


def home_fault(name: str, *caught_by: str, first: int = 0) -> Callable[[Plant], Plant]:
    """Register a fault of the decisions of a transactional home (``home_world``)."""
    return partial(_register, HOMES, name, caught_by, _judge_homes, first)


def stage_fault(name: str, *caught_by: str, first: int = 0) -> Callable[[Plant], Plant]:
    """Register a fault of a stage's index or of what it lets go (``stage_simulation``)."""
    return partial(_register, STAGES, name, caught_by, _judge_stages, first)


def transaction_fault(name: str, *caught_by: str, first: int = 0) -> Callable[[Plant], Plant]:
    """Register a fault of homes, completion, targets or stages (``transaction_world``)."""
    return partial(_register, TRANSACTIONS, name, caught_by, _judge_transactions, first)


def _register(
    world: str, name: str, caught_by: tuple[str, ...], judge: Judge, first: int, plant: Plant
) -> Plant:
    FAULTS.append(PlantedFault(world, name, caught_by, plant, judge, first))
    return plant


def _judge_metadata(length: Length | None, seed: int) -> str | None:
    try:
        tell(seed, length)
    except InvariantError as error:
        return error.invariant
    return None


def _judge_replication(features: dict[str, bool], seed: int) -> str | None:
    try:
        run(seed, **features)
    except Violation as violation:
        return violation.check
    return None


def _judge_deletion(seed: int) -> str | None:
    try:
        deletion_world.run(seed)
    except Violation as violation:
        return violation.check
    return None


def _judge_damage(seed: int) -> str | None:
    try:
        DamageWorld(seed).tell()
    except BrokenError as error:
        return error.promise
    return None


def _judge_stages(seed: int) -> str | None:
    try:
        stage_simulation.run(seed)
    except stage_simulation.StageViolation as violation:
        return violation.check
    return None


def _judge_homes(seed: int) -> str | None:
    try:
        home_world.run(seed)
    except home_world.HomeViolation as violation:
        return violation.check
    return None


def _judge_transactions(seed: int) -> str | None:
    try:
        transaction_clients.run(seed)
    except TransactionViolation as violation:
        return violation.check
    return None


def _judge_groups(seed: int) -> str | None:
    try:
        group_simulation.run(seed)
    except BaseExceptionGroup as errors:
        violations, _ = errors.split(group_simulation.GroupViolation)
        if violations is None:
            raise
        first: BaseException = violations
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        assert isinstance(first, group_simulation.GroupViolation)
        return first.check
    except group_simulation.GroupViolation as violation:
        return violation.check
    return None
