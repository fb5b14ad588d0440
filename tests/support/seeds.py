"""Seeds of the simulations: which ones a run draws, how one is replayed, and what all of them met.

Each simulation owns one `Seeds` at module level and calls `parametrize` from its
`pytest_generate_tests`. An everyday run gets the kept seeds, each with its reason, and a number of
drawn ones. These begin at the base, which follows from the commit: the same commit runs
the same seeds, the next one others. pytest's header prints the base; `--seed-base` overrides it.

`make simulate ARGS="--seeds 20000"` goes on behind the everyday seeds; `--seed 7` replays one.
"""

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

ROOT = Path(__file__).resolve().parents[2]
BASE_STEP = 1_000
"""Everyday seeds of two bases never overlap: no simulation draws more than this."""
BASES = 20
"""All everyday seeds lie below 20,000: a sweep with `--seed-base 0 --seeds 20000` covers them."""

T = TypeVar("T")
Counts = tuple[Mapping[str, int], Mapping[str, int]]


def add_options(parser: pytest.Parser) -> None:
    """Register `--seed`, `--seeds` and `--seed-base`."""
    group = parser.getgroup("simulation")
    group.addoption("--seed", type=int, help="replay this one seed in each chosen simulation")
    group.addoption("--seeds", type=int, help="how many seeds to run behind the everyday ones")
    group.addoption(
        "--seed-base", type=int, help="the first everyday seed [follows from the commit]"
    )


def choose_base(config: pytest.Config) -> None:
    """Set `--seed-base` from the commit if it is not given; workers receive it as an option."""
    if config.option.seed_base is None:
        config.option.seed_base = base_of(commit())


def describe(config: pytest.Config) -> str:
    """Return the line of pytest's header that names the option to draw the same seeds again."""
    return f"simulations: everyday seeds from {config.option.seed_base} on (--seed-base)"


def commit() -> str:
    """Return the hash of the checked-out commit; zeros where there is no git repository."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() if found.returncode == 0 else "0" * 40


def base_of(commit_hash: str) -> int:
    """Return the first everyday seed of a commit, a multiple of `BASE_STEP`."""
    return int(commit_hash[:8], 16) % BASES * BASE_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeds(Generic[T]):
    """The seeds of one simulation in one run; owned by its test module, counted in its process."""

    module: str
    """`__name__` of the test module: a failure names it in the command that replays the seed."""
    simulate_one: Callable[[int], T]
    """Runs one seed to its end; raises where an invariant is broken."""
    counts: Callable[[T], Counts] = lambda _: ({}, {})
    """Returns how often a seed judged each invariant, and how often each fact happened in it."""
    everyday: int
    """How many seeds an everyday run draws beside the kept ones; at most `BASE_STEP`."""
    per_test: int
    kept: Mapping[int, str] = field(default_factory=dict)
    """Seeds of every everyday run → the reason: a fault was found there, or a rare fact happens."""
    one_in: int = 1
    """`make simulate` runs one in so many of `--seeds`: more for worlds that take their time."""
    judged: Counter[str] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)
    planned: set[int] = field(default_factory=set)
    """Every seed of this run; empty if `--seed` or `--seeds` chose others."""
    finished: set[int] = field(default_factory=set)
    """Seeds that ran to their end."""

    def run(self, seed: int) -> T:
        """Run one seed and count it; a failure is noted with the command that replays it."""
        try:
            world = self.simulate_one(seed)
        except BaseException as error:
            name = self.module.rpartition(".")[2]
            error.add_note(f'replay: make simulate ARGS="--seed {seed} -k {name}"')
            raise
        judged, happened = self.counts(world)
        self.judged.update(judged)
        self.happened.update(happened)
        self.finished.add(seed)
        return world

    def run_all(self, seeds: Iterable[int]) -> None:
        """Run and count each of them."""
        for seed in seeds:
            self.run(seed)

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give a test with the argument `seeds` its share of this run's seeds, one range each."""
        if "seeds" not in metafunc.fixturenames:
            return
        option = metafunc.config.option
        if option.seed is not None:
            chosen, ids = [[option.seed]], [f"seed-{option.seed}"]
        else:
            first, end = option.seed_base, option.seed_base + self.everyday
            if option.seeds is not None:
                first, end = end, end + max(option.seeds // self.one_in, 1)
            chosen = [
                list(range(start, min(start + self.per_test, end)))
                for start in range(first, end, self.per_test)
            ]
            ids = [f"{seeds[0]}-{seeds[-1]}" for seeds in chosen]
            if option.seeds is None:
                if self.kept:
                    chosen.insert(0, list(self.kept))
                    ids.insert(0, "kept")
                self.planned.update(*chosen)
        metafunc.parametrize("seeds", chosen, ids=ids)

    def number(self) -> int:
        """Return how many seeds ran; skip the test that asks if not all of an everyday run did."""
        if not self.planned or not self.finished.issuperset(self.planned):
            pytest.skip("counts the seeds of a whole run")
        return len(self.finished)


def too_rare(names: Iterable[str], counted: Mapping[str, int], floor: float) -> dict[str, int]:
    """Return those names that were counted less often than `floor`, with their counts."""
    return {name: counted.get(name, 0) for name in names if counted.get(name, 0) < floor}


def printed_by_another_process(code: str) -> list[str]:
    """Return the words that `code` prints in a process in which strings hash differently."""
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
