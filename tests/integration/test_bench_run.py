"""The benchmark measures a real cluster: short cells, figures nobody reads, but every part runs."""

from __future__ import annotations

import subprocess
import sys

from tests.architecture.tree import ROOT

DEADLINE_S = 150


def test_benchmark_measures_and_says_what_it_missed() -> None:
    sections = ["--only", "latency", "--only", "spread", "--only", "fetch", "--only", "consumer"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--quick", "--seconds", "0.3", *sections],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    whats = [line.split("|")[1].strip() for line in table[2:]]
    assert "one connection, acks=all, fsync" in whats
    assert "fetch 1 MB, NDJSON, per CPU-second" in whats
    assert len(whats) == 10
    assert "errors:" not in done.stdout
    assert "MISSED: " in done.stdout or "budgets met" in done.stdout
