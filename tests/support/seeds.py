"""Seeds of a simulation: the everyday ones in chunks, more where asked for, one by its number."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import pytest

MORE_PER_TEST = 500
ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds(Generic[T]):
    """Runs seeds, says how to replay a red one, and counts what all of them judged and met."""

    tell: Callable[[int], T]
    """One seed to its end; raises where something was broken."""
    counts: Callable[[T], tuple[Mapping[str, int], Mapping[str, int]]]
    """Of one seed: how often each invariant was judged, and how often each thing happened."""
    everyday: int
    """Seeds 0 to this are in the normal test run."""
    per_test: int
    judged: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    told: set[int] = field(default_factory=set)

    def run(self, seed: int) -> T:
        """One seed, counted."""
        try:
            world = self.tell(seed)
        except BaseException as error:
            error.add_note(f'replay: make simulate ARGS="--seed {seed}"')
            raise
        judged, happened = self.counts(world)
        self.judged.update(judged)
        self.happened.update(happened)
        self.told.add(seed)
        return world

    def run_all(self, seeds: Iterable[int]) -> None:
        """Each of them, counted."""
        for seed in seeds:
            self.run(seed)

    def replay(self, request: pytest.FixtureRequest) -> T:
        """The one that ``--seed`` names; without it any."""
        seed = request.config.getoption("--seed")
        return self.run(3 if seed is None else seed)

    def chunks(self) -> list[range]:
        """The everyday seeds, one test each."""
        return [
            range(first, first + self.per_test) for first in range(0, self.everyday, self.per_test)
        ]

    def add_more(self, metafunc: pytest.Metafunc) -> None:
        """For ``pytest_generate_tests``: ``more_seeds`` begin where the everyday ones end."""
        if "more_seeds" in metafunc.fixturenames:
            end = self.everyday + metafunc.config.getoption("--seeds")
            more = [
                range(first, min(first + MORE_PER_TEST, end))
                for first in range(self.everyday, end, MORE_PER_TEST)
            ]
            metafunc.parametrize("more_seeds", more, ids=[str(seeds.stop - 1) for seeds in more])

    def need_all(self) -> None:
        """Skip a test of what all everyday seeds counted where not all of them were run."""
        if not self.told.issuperset(range(self.everyday)):
            pytest.skip("counts the seeds of a whole run")


def too_rare(names: Iterable[str], counted: Mapping[str, int], floor: float) -> dict[str, int]:
    """Those that were counted less often than that."""
    return {name: counted.get(name, 0) for name in names if counted.get(name, 0) < floor}


def printed_by_another_process(code: str) -> list[str]:
    """The words that this code prints where strings hash differently."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)},
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.split()
