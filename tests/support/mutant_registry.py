"""Faults that can be planted in the running code, and how each is told that it is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
LOST = ("L2", "L3", "L4", "L7", "L10")
"""Something that was seen or acknowledged is not there, on one replica or another."""


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    turns_red: tuple[str, ...]
    plant: Plant
    first: int = 0
    features: dict[str, bool] = field(default_factory=dict)


MUTANTS: list[Mutant] = []


def mutant(
    name: str, *turns_red: str, first: int = 0, **features: bool
) -> Callable[[Plant], Plant]:
    """Plants what the function does. Topics keep everything, and what runs does
    not rot, unless a feature says otherwise."""

    def keep(plant: Plant) -> Plant:
        plain = {"compacts": False, "retains": False, "rots": False}
        MUTANTS.append(Mutant(name, turns_red, plant, first, plain | features))
        return plant

    return keep
