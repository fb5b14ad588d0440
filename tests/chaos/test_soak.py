"""A short soak: the same load and the same checks as an hour of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from chaos.cluster import processes_of
from tests.architecture.tree import ROOT

SHORT = ("--duration", "60s", "--kill-every", "20s", "--rows", "8000", "--move-bytes", "1048576")
DEADLINE_S = 420
CHECKS = (
    "every row of the load once",
    "produced and read meanwhile",
    "memory does not grow",
    "the open transaction, committed",
    "a transaction is given up for its age",
    "staged rows go",
)


@pytest.mark.slow
def test_a_transaction_that_stays_open_holds_up_nobody(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chaos.soak", *SHORT]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    passed = [line.removeprefix("PASS  ") for line in ended.stdout.splitlines() if "PASS" in line]
    assert [line.partition(":")[0] for line in passed] == list(CHECKS)
    assert not processes_of(tmp_path)
