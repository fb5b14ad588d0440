"""The demo itself, on a small input: real processes, real kills, and nothing left afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

from chaos.cluster import processes_of
from chaos.demo.write_legs import DATA_SET
from tests.architecture.tree import ROOT

if TYPE_CHECKING:
    from pathlib import Path

CARRIERS = ["UA", "AA", "B6", "DL", "EV", "MQ", "US", "WN", "VX", "FL", "AS", "9E"]
ROWS = 6000
DEADLINE_S = 300
CHECKS = {
    "everything sent was acknowledged in the end": 1,
    "writes go on: leader killed": 1,
    "writes go on: active controller killed": 1,
    "metadata writes go on: active controller killed": 1,
    "acknowledged records there, as sent, in place": 2,  # the flights', the scenario's
    "comes back after kill -9 of all": 1,
    "after kill -9 of all: acknowledged records there, as sent, in place": 1,
    "after kill -9 of all: no repeats but the client's own": 1,
    "group: every record reached the group, as sent": 1,
    "group: no partition owned by two": 1,
    "group: another member takes over": 1,
    "group: committed to the end": 1,
    "Spark: delays per carrier and month are exact": 1,
    "faults were felt": 1,
    "writes go on: leader cut off": 1,
    "all replicas hold the same": 1,
    "nodes keep to their proxies": 1,
    "clean stop": 2,
}
"""Each leg's own checks, and how often each must have passed."""


def demo(folder: Path) -> list[str]:
    """Write a small data set and say how to run the demo on it."""
    archive = folder / "data" / DATA_SET
    archive.parent.mkdir(parents=True)
    rows = [
        f"2013,{n % 12 + 1},{n % 60 or 'NA'},{CARRIERS[n % 7 * n % 12]},N{n}" for n in range(ROWS)
    ]
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("flights.csv", "\n".join(["year,month,dep_delay,carrier,tailnum", *rows]))
    return [sys.executable, "-m", "chaos.demo", "--data", str(archive), "--load-after-fault", "3"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_demo_holds_on_a_real_cluster_and_cleans_up(tmp_path: Path) -> None:
    done = subprocess.run(
        demo(tmp_path),
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    verdicts = [line for line in done.stdout.splitlines() if line.startswith(("PASS", "FAIL"))]
    assert all(line.startswith("PASS") for line in verdicts)
    for check, times in CHECKS.items():
        assert sum(f"  {check}:" in line for line in verdicts) == times, check
    assert f"{ROWS:,} of {ROWS:,} rows" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["data"], "its directory is gone"
    assert processes_of(tmp_path) == []


def test_demo_interrupted_leaves_no_process_and_keeps_its_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        demo(tmp_path),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                if line.startswith("killed broker"):
                    break
            os.killpg(running.pid, signal.SIGINT)
            rest = running.stdout.read()
            assert running.wait(timeout=30) == 130
        finally:
            running.kill()
    assert "kept: .demo-data/run-" in rest
    (kept,) = (tmp_path / ".demo-data").iterdir()
    assert (kept / "history.ndjson").stat().st_size > 0
    assert processes_of(tmp_path) == []
