"""Planted faults: each line that keeps a rule or closes a defect, removed, turns a test red.

Slow: every fault is a copy of the packages and a run of the tests that should see it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import (
    quorum_mutants_of_disks,
    quorum_mutants_of_voters,
    quorum_mutants_of_wires,
)
from tests.support.quorum_mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
QUORUM = Path("raft_metadata/quorum")
MUTANTS = (
    *quorum_mutants_of_disks.MUTANTS,
    *quorum_mutants_of_voters.MUTANTS,
    *quorum_mutants_of_wires.MUTANTS,
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mutants")
    for name in ("raft_metadata", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: str(mutant.name).replace(" ", "-"))
def test_a_planted_fault_is_caught(mutant: Mutant, copy: Path) -> None:
    good = (ROOT / QUORUM / mutant.file).read_text()
    assert mutant.line in good, "the line is not there any more"
    planted = copy / QUORUM / mutant.file
    planted.write_text(good.replace(mutant.line, mutant.instead))
    tests = [
        str(found.relative_to(ROOT))
        for name in mutant.tests
        for found in (ROOT / "tests").glob(f"*/test_quorum_{name}.py")
    ]
    try:
        run = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
            cwd=copy,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            env={**os.environ, "CI": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        )
    finally:
        planted.write_text(good)
    assert run.returncode == 1, f"survived: {run.stdout[-500:]}"
    assert re.search(r"^FAILED ", run.stdout, re.MULTILINE), run.stdout[-500:]
