"""A fault to be planted in a copy of the metadata quorum, and the tests that should see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """In `file`, `line` becomes `instead`; one of the `tests` must fail for it."""

    name: str
    file: str
    line: str
    instead: str
    tests: tuple[str, ...]
