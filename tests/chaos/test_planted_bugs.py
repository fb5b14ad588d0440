"""The suite can fail: a bug planted in the nodes turns the named check red.

Each folder of `planted/` holds a `sitecustomize.py` that replaces one function in the processes of
the run, found through PYTHONPATH; the product has no switch for it. The same seed without a bug is
green in the everyday run (`test_scenarios.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.chaos.test_scenarios import COMMAND, DEADLINE_S, SHORT_S, verdicts

PLANTED = ROOT / "tests" / "chaos" / "planted"
CAUGHT_BY = {
    ("acknowledges_alone", "leader-cut"): "acknowledged records there, as sent, in place",
    ("never_resigns", "controller-cut"): "a cut-off controller stops ruling",
    ("forwards_again", "replies-lost"): "no repeats but the client's own",
    ("commits_alone", "one-way-controller"): "controllers agree",
    ("acknowledges_alone", "followers-cut"): "acknowledged records there, as sent, in place",
    ("loads_nothing", "coordinator-cut"): "group: commits stay",
    ("cuts_nothing", "leader-cut"): "faults were felt",
}


def test_every_planted_bug_is_tried() -> None:
    folders = {path.parent.name for path in PLANTED.glob("*/sitecustomize.py")}
    assert folders == {bug for bug, _ in CAUGHT_BY}


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "scenario"), CAUGHT_BY)
def test_a_planted_bug_is_caught_by_the_named_check(
    bug: str, scenario: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [*COMMAND, "run", scenario, "--seed", "7", "--duration", SHORT_S, "--format", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{PLANTED / bug}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert verdicts(report)[CAUGHT_BY[bug, scenario]] is False, report["verdicts"]
    kept = tmp_path / report["directory"]
    assert (kept / "history.ndjson").stat().st_size > 0
