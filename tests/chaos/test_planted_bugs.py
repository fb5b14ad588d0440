"""The suite can fail: a bug planted in the nodes turns the named check red.

Each folder of `planted/` holds a `sitecustomize.py` that replaces one function in the processes of
the run, found through PYTHONPATH; the product has no switch for it. The same seed without a bug is
green in the everyday run (`test_scenarios.py`).
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.chaos.test_scenarios import COMMAND, DEADLINE_S, SHORT_S, verdicts

log = logging.getLogger("tests.chaos")
PLANTED = ROOT / "tests" / "chaos" / "planted"
RUNS_MAX = 4
"""Real processes meet as they meet: a controller that commits alone is harmless in a run in which
nobody asks it to meanwhile, or is seen by another check first. What each run said is logged (rules
K: k of n runs is shown)."""
CAUGHT_BY = {
    ("acknowledges_alone", "leader-cut"): "acknowledged records there, as sent, in place",
    ("never_resigns", "controller-cut"): "a cut-off controller stops ruling",
    ("commits_alone", "one-way-controller"): "controllers agree",
    ("acknowledges_alone", "followers-cut"): "acknowledged records there, as sent, in place",
    ("loads_nothing", "coordinator-cut"): "group: commits stay",
    ("cuts_nothing", "leader-cut"): "faults were felt",
    ("forgets_producers", "never-twice"): "sent once, there once",
    ("syncs_nothing", "power-cut"): "acknowledged records there, as sent, in place",
    ("fences_nobody", "money"): "money: a new epoch fences the old ones",
    ("takes_any_content", "money"): "money: decisions are as told",
}

ALSO_BY = {
    ("acknowledges_alone", "followers-cut"): "leaders hold what is committed, by events",
}
"""What no client need have seen: the brokers' own journals tell it, read together."""


def test_every_planted_bug_is_tried() -> None:
    folders = {path.parent.name for path in PLANTED.glob("*/sitecustomize.py")}
    assert folders == {bug for bug, _ in CAUGHT_BY}


def run_with(bug: str, scenario: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "run", scenario, "--seed", "7", "--duration", SHORT_S, "--format", "json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{PLANTED / bug}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "scenario"), CAUGHT_BY)
def test_a_planted_bug_is_caught_by_the_named_check(
    bug: str, scenario: str, tmp_path: Path
) -> None:
    named = {CAUGHT_BY[bug, scenario], ALSO_BY.get((bug, scenario), CAUGHT_BY[bug, scenario])}
    said = []
    for _ in range(RUNS_MAX):
        done = run_with(bug, scenario, tmp_path)
        assert done.returncode in (0, 1), done.stderr
        report = json.loads(done.stdout)
        said.append([name for name, passed in verdicts(report).items() if not passed])
        if named <= set(said[-1]):
            break
    log.info("%s in %s: 1 of %d runs; red: %s", bug, scenario, len(said), said)
    assert named <= set(said[-1]), said
    kept = tmp_path / report["directory"]
    assert (kept / "history.ndjson").stat().st_size > 0
