"""One replicated partition under one seeded scheduler: lost, late and replayed frames, the flusher
as its own actor, kills, power cuts that lose any unsynced pages and names, full and failing disks,
rotten bytes, pauses, fences, moves, reassignments, departures, `flush` switched live, records that
are deleted, numbered batches that are sent again, unclean elections. Some topics are compacted, or
keep their records for a time or up to a size: cleaner and retention are actors of their own, by
clocks that go wrong (rules R7, R10). What brokers serve is read through the product's own doors.

In most seeds the log is the product's own, over a simulated disk. Every invariant of the table in
docs/claims.md is judged after each event or at the end of a seed; one that was never judged is red.
`make simulate ARGS="--seeds 20000"` goes on; `make simulate ARGS="--seed 7"` replays one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from hashlib import blake2b
from pathlib import Path

import pytest

from tests.support.replication_judge import JUDGED, JUDGED_OF_SOME
from tests.support.replication_world import World, run

pytestmark = pytest.mark.usefixtures("no_logs")

SEEDS = 2_000
CHUNK = 50
MANY = 500
ROOT = Path(__file__).resolve().parents[2]
MUST_HAPPEN = (
    *("kill", "power", "disk", "rotted", "pause", "fence", "move", "cut_all", "shutdown"),
    *("eio", "full", "cut_at", "flush", "reassigned", "cancel", "unclean elections", "departures"),
    *("ended by OSError", "ended by PowerCut", "ended by CorruptionError", "found rotten"),
    *("trims", "repeats found", "reassignments finished"),
    *("cleanings", "segments replaced", "compacted away", "tombstones dropped", "retained"),
    *("read from the leader", "read from a follower", "clock", "policy"),
    *("answered ok", "answered not_written", "answered unknown"),
)

judged: Counter[str] = Counter()
happened: Counter[str] = Counter()
told: list[int] = []


def run_and_count(seed: int) -> World:
    try:
        world = run(seed)
    except BaseException as error:
        error.add_note(f'replay: make simulate ARGS="--seed {seed}"')
        raise
    judged.update(world.judge.tally)
    happened.update(world.happened())
    told.append(seed)
    return world


def chunks() -> list[range]:
    return [range(first, first + CHUNK) for first in range(0, SEEDS, CHUNK)]


@pytest.mark.parametrize("seeds", chunks(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_invariants_l1_to_l27_hold(seeds: range) -> None:
    for seed in seeds:
        run_and_count(seed)


def test_every_invariant_was_judged_and_every_fault_was_met() -> None:
    if len(told) < SEEDS:
        pytest.skip("counts the seeds of a whole run")
    assert {name: judged[name] for name in JUDGED if judged[name] < SEEDS // 2} == {}
    assert {name: judged[name] for name in JUDGED_OF_SOME if judged[name] < SEEDS // 40} == {}
    assert {name: happened[name] for name in MUST_HAPPEN if happened[name] < SEEDS // 400} == {}
    assert happened["exposed"] > 5 * SEEDS
    assert happened["leader epochs"] > 4 * SEEDS
    assert happened["answered ok"] > 3 * SEEDS
    assert happened["given up"] < SEEDS // 50, "the partition waits for an operator too often"


def test_one_seed(request: pytest.FixtureRequest) -> None:
    """`--seed N` replays that one."""
    seed = request.config.getoption("--seed")
    world = run_and_count(3 if seed is None else seed)
    assert world.judge.tally["L8"] > 0


def history_of(seed: int) -> str:
    world = run(seed)
    answers = sorted((value, fate.value) for value, fate in world.judge.answers.items())
    seen = (world.judge.exposed, sorted(world.judge.tally.items()), answers)
    return blake2b(repr(seen).encode(), digest_size=16).hexdigest()


def test_a_seed_is_one_history_in_every_process() -> None:
    """Strings hash differently in each process: nothing may hang on that."""
    code = (
        "from tests.simulation.test_replication_simulation import history_of;"
        "print(*[history_of(seed) for seed in range(6)])"
    )
    run_again = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)},
    )
    here = [history_of(seed) for seed in range(6)]
    assert run_again.stdout.split() == here, run_again.stderr[-2000:]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "more_seeds" in metafunc.fixturenames:
        end = SEEDS + metafunc.config.getoption("--seeds")
        more = [range(first, min(first + MANY, end)) for first in range(SEEDS, end, MANY)]
        metafunc.parametrize("more_seeds", more, ids=[str(seeds.stop - 1) for seeds in more])


@pytest.mark.slow
@pytest.mark.simulate
def test_as_many_seeds_as_asked_for(more_seeds: range) -> None:
    """`make simulate ARGS="--seeds 100000"`: begins where the everyday run ends."""
    for seed in more_seeds:
        run_and_count(seed)
