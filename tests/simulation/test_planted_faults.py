"""The tests prove themselves: each line that keeps a rule, removed, turns a named check red.

A fault of a simulated world counts as caught when a seed that is green without it raises a named
check, within a few seeds of the recorded one. A fault in the source of the quorum is a copy of the
packages and a run of the tests that should see it, so those are slow.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.tree import ROOT
from tests.support.planted.every import FAULTS, SECOND_LINES, SOURCE_FAULTS
from tests.support.planted.registry import METADATA, PlantedFault, SourceFault
from tests.support.quorum_sim import quorum_world

__all__ = ["quorum_world"]
pytestmark = pytest.mark.usefixtures("no_logs")

SEEDS_MAX = 400
"""Nearly all are caught by the recorded seed itself; others see it where the code has changed."""


def first_red(fault: PlantedFault) -> int | None:
    """Return the first seed, from the recorded one on, that a named check ends."""
    for seed in range(fault.first, fault.first + SEEDS_MAX):
        try:
            broken = fault.judge(seed)
        except Exception:  # noqa: BLE001 broken in another way: proves nothing
            continue
        if broken in fault.caught_by:
            return seed
    return None


def named(fault: PlantedFault) -> str:
    return f"{fault.world}-{fault.name.replace(' ', '-')}"


@pytest.mark.parametrize(
    "fault", [fault for fault in FAULTS if fault.name not in SECOND_LINES], ids=named
)
def test_a_planted_fault_is_caught(fault: PlantedFault, request: pytest.FixtureRequest) -> None:
    if fault.world == METADATA:
        request.getfixturevalue("quorum_world")
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        seed = first_red(fault)
    assert seed is not None, f"{SEEDS_MAX} seeds break none of {fault.caught_by}"
    assert fault.judge(seed) is None, "red without the fault, too"


def test_no_two_faults_have_one_name() -> None:
    names = [named(fault) for fault in FAULTS] + [fault.name for fault in SOURCE_FAULTS]
    assert len(names) == len(set(names))


def file_of(fault: SourceFault) -> Path:
    """Return the file, from the root on, that holds the fault's line."""
    files = sorted((ROOT / "raft_metadata").rglob("*.py"))
    found = [file.relative_to(ROOT) for file in files if fault.line in file.read_text()]
    assert len(found) == 1, f"{fault.name}: its line stands in {found}"
    return found[0]


def test_source_faults_have_their_lines() -> None:
    """Each stands in one file, so a fault whose line was rewritten is noticed at once."""
    assert all(file_of(fault) for fault in SOURCE_FAULTS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    for name in ("raft_metadata", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("fault", SOURCE_FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_source_fault_is_caught(fault: SourceFault, copy: Path) -> None:
    file = file_of(fault)
    good = (ROOT / file).read_text()
    (copy / file).write_text(good.replace(fault.line, fault.instead))
    tests = [
        str(found.relative_to(ROOT))
        for name in fault.caught_by
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
        (copy / file).write_text(good)
    assert run.returncode == 1, f"survived: {run.stdout[-500:]}"
    assert re.search(r"^FAILED ", run.stdout, re.MULTILINE), run.stdout[-500:]
