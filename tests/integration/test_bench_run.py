"""The benchmark measures a real cluster: short cells, figures nobody reads, but every part runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
    for one_of_each in (
        "one connection, acks=all, fsync",
        "produce over forwarding brokers, fsync, 1 a request",
        "fetch 1 MB, NDJSON, per CPU-second",
    ):
        assert one_of_each in whats
    assert any("consumer" in what for what in whats)
    assert len(whats) == len(set(whats)) >= 11
    assert "errors:" not in done.stdout
    assert "MISSED: " in done.stdout or "budgets met" in done.stdout


@pytest.mark.slow
def test_metadata_benchmark_measures_every_bar() -> None:
    sections = [
        word for name in ("create", "leaders", "join", "memory") for word in ("--only", name)
    ]
    sizes = ["--partitions", "200", "--joining", "2000", "--trials", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.metadata", *sections, *sizes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "create 100 × 2 partitions: request → all leaders accepting" in done.stdout
    assert done.stdout.count("fence record → all moved") >= 2
    assert "new broker, 2,000 partitions: first fetch → image current" in done.stdout
    assert "memory of an idle partition, broker" in done.stdout
