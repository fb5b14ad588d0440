"""Which seeds a run draws, and in which order workers begin the tests."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from tests.architecture.tree import ROOT
from tests.support import seeds, workers

COMMITS = [f"{number * 2654435761 % (1 << 32):08x}{'0' * 32}" for number in range(1, 400)]


def chunks(of: seeds.Seeds[Any], **option: int | None) -> dict[str, list[int]]:
    """Return what `parametrize` gives a test: id → seeds."""
    given = {"seed": None, "seeds": None, "seed_base": 3_000} | option
    made: dict[str, list[int]] = {}

    def parametrize(_: str, values: list[list[int]], ids: list[str]) -> None:
        made.update(zip(ids, values, strict=True))

    metafunc: Any = SimpleNamespace(
        fixturenames=["seeds"],
        config=SimpleNamespace(option=SimpleNamespace(**given)),
        parametrize=parametrize,
    )
    of.parametrize(metafunc)
    return made


def make(**more: Any) -> seeds.Seeds[int]:
    return seeds.Seeds(
        module="tests.x.test_world",
        simulate_one=lambda seed: 1 // (seed - 13),
        kept={13: "a division by zero", 7: "a reason"},
        everyday=5,
        per_test=3,
        **more,
    )


def test_the_commit_chooses_the_base_and_every_base_comes_up() -> None:
    found = Counter(seeds.base_of(commit) for commit in COMMITS)
    assert set(found) == set(range(0, seeds.BASES * seeds.BASE_STEP, seeds.BASE_STEP))
    assert seeds.base_of(seeds.commit()) == seeds.base_of(seeds.commit())


def test_an_everyday_run_has_the_kept_seeds_and_those_from_the_base_on() -> None:
    assert chunks(make()) == {
        "kept": [13, 7],
        "3000-3002": [3000, 3001, 3002],
        "3003-3004": [3003, 3004],
    }


def test_more_seeds_begin_where_the_everyday_ones_end() -> None:
    assert list(chunks(make(), seeds=4)) == ["3005-3007", "3008-3008"]
    assert list(chunks(make(one_in=2), seeds=4)) == ["3005-3006"]


def test_one_seed_is_replayed_alone() -> None:
    assert chunks(make(), seed=13) == {"seed-13": [13]}


def test_a_red_seed_names_the_command_that_replays_it() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        make().run(13)
    assert caught.value.__notes__ == ['replay: make simulate ARGS="--seed 13 -k test_world"']


def test_counts_over_all_seeds_are_judged_once_all_have_run() -> None:
    world = make()
    chunks(world)
    world.run_all(range(3_000, 3_005))
    with pytest.raises(pytest.skip.Exception):
        world.number()
    world.finished.update(world.kept)
    assert world.number() == 7


def test_units_that_are_named_exist() -> None:
    for name in (*workers.CLOCKED_FILES, *workers.LONGEST, *workers.CLUSTERS):
        assert (ROOT / name).exists(), name


def test_clocked_tests_come_first_then_long_ones_then_clusters_then_the_rest() -> None:
    tests = [
        "tests/unit/test_a.py::test_b",
        "tests/simulation/test_a.py::test_b",
        "tests/chaos/test_driver.py::test_c",
        "tests/spark/test_d.py::test_e",
        f"{workers.LONGEST[0]}::test_f[x]",
        f"{next(iter(workers.CLOCKED_FILES))}::test_g",
    ]
    units = [workers.unit_of(test) for test in tests]
    assert units == [
        "tests/unit/test_a.py",
        "tests/simulation/test_a.py",
        tests[2],
        "tests/spark",
        workers.LONGEST[0],
        workers.CLOCKED,
    ]
    assert sorted(units, key=workers.place_of) == units[::-1]


class Worker:
    """A stand-in for one of xdist's worker processes: the indices of the tests it was sent."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.sent: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_beside_clocked_tests_nothing_runs_that_starts_a_cluster(
    pytestconfig: pytest.Config,
) -> None:
    files = [*list(workers.CLOCKED_FILES)[:2], *workers.LONGEST, "tests/unit/test_a.py"]
    tests = [f"{file}::test_{n}" for file in files for n in range(4)]
    tests.sort(key=lambda test: workers.place_of(workers.unit_of(test)))
    option = SimpleNamespace(loadscopereorder=True, tx=["2*popen"], px=[], numprocesses=2)
    config: Any = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    plan = workers.UnitScheduling(config)
    clocked, other = Worker(), Worker()
    nodes: list[Any] = [clocked, other]
    for node in nodes:
        plan.add_node(node)
        plan.add_node_collection(node, tests)
    plan.schedule()
    assert {workers.unit_of(tests[at]) for at in clocked.sent} == {workers.CLOCKED}
    assert {workers.unit_of(tests[at]) for at in other.sent[:4]} == {"tests/unit/test_a.py"}
    done = {0: 0, 1: 0}
    while any(done[n] < len(node.sent) for n, node in enumerate(nodes)):
        for n, node in enumerate(nodes):
            if done[n] < len(node.sent):
                plan.mark_test_complete(node, node.sent[done[n]])
                done[n] += 1
    assert sorted(clocked.sent + other.sent) == list(range(len(tests))), "each once"
