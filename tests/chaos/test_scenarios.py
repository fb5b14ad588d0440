"""Each scenario once, short, on a real cluster behind the real proxy, as its command runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.cluster import processes_of
from chaos.scenarios import SCENARIOS
from chaos.scenarios.scenario import Scenario
from tests.architecture.tree import ROOT

SHORT_S = "4"
STORM_S = "12"
DEADLINE_S = 240
COMMAND = [sys.executable, "-m", "http_api.cli", "chaos"]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def chaos(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def verdicts(report: dict[str, Any]) -> dict[str, bool]:
    return {one["name"]: one["passed"] for one in report["verdicts"]}


DAILY_MONEY = "money"


def is_slow(scenario: Scenario) -> bool:
    """Every day replies-lost asks what never-twice asks, without the kills, and money kills."""
    is_about_money = scenario.disk_checks is SCENARIOS[DAILY_MONEY].disk_checks
    return (
        scenario.disks != "sound"
        or scenario.name == "never-twice"
        or (is_about_money and scenario.name != DAILY_MONEY)
    )


MONEY_CHECKS = [
    "money: enough was moved to prove something",
    "money: no transfer is torn",
    "money: decisions are as told",
    "money: no row before its decision",
    "money: a new epoch fences the old ones",
    "money: each order once, with its offset",
    "money: offsets never go back",
    "money: answers in the order of orders",
    "money: a produce with a key happens once",
    "money: the sum of all accounts stays",
    "money: what was told can be read",
    "money: late repeats change nothing",
    "money: every decision completes",
    "money: row numbers are dense on every disk",
]
OWN_CHECKS = {
    "leader-cut": ["writes go on: leader cut off"],
    "followers-cut": ["the leader was left alone"],
    "coordinator-cut": [
        "group: nothing skipped",
        "group: commits stay",
        "group: reads on after the fault",
    ],
    "storm": ["whole again: storm"],
    "controller-cut": [
        "metadata writes go on: active controller cut off, then killed",
        "a cut-off controller stops ruling",
    ],
    "replies-lost": ["lost replies were told as unknown"],
    "one-way-controller": [
        "few elections: active controller deaf",
        "few elections: active controller mute",
    ],
    "never-twice": ["sent once, there once"],
    "disk-full": ["the fault is told to writers"],
    "disk-hangs": ["writes go on while the disk hangs"],
    "disk-breaks": ["the node ends as documented"],
    "disk-rots": ["whole again: disk-rots"],
    "power-cut": ["whole again: power-cut"],
    "pause-kill": ["whole again: pause-kill"],
    "part-kill": ["whole again: part-kill"],
    "money": MONEY_CHECKS,
    "money-home-cut": MONEY_CHECKS,
    "money-paused": MONEY_CHECKS,
    "money-apply-lost": MONEY_CHECKS,
}


@pytest.mark.parametrize(
    "name",
    [
        # What disks do is tried every day with fewer checks: tests/integration/test_cluster_disk_*.
        pytest.param(name, marks=[pytest.mark.slow] if is_slow(one) else [])
        for name, one in SCENARIOS.items()
    ],
)
def test_every_promise_holds_while_the_network_breaks(name: str, tmp_path: Path) -> None:
    found = play(name, tmp_path)
    for check in (
        *("faults were felt", "enough was acknowledged to prove something"),
        *("acknowledged records there, as sent, in place", "no repeats but the client's own"),
        *("what was seen stays", "all replicas hold the same", "acknowledged metadata stays"),
        *("nodes keep to their proxies", "one ruler per epoch and term", "clean stop"),
        *OWN_CHECKS[name],
    ):
        assert check in found
    assert list(tmp_path.iterdir()) == [], "a green run leaves no directory"
    assert processes_of(tmp_path) == []


def play(name: str, folder: Path, *flags: str) -> dict[str, bool]:
    """The verdicts of a short run; all are green."""
    duration = STORM_S if name == "storm" else SHORT_S
    options = ("--seed", "7", "--duration", duration, "--format", "json", *flags)
    done = chaos(folder, "run", name, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout)
    found = verdicts(report)
    assert report["passed"]
    assert all(found.values())
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCENARIOS if not name.startswith("money")])
def test_money_stays_whole_in_every_scenario(name: str, tmp_path: Path) -> None:
    found = play(name, tmp_path, "--money")
    assert set(MONEY_CHECKS) <= found.keys()


def test_an_interrupted_run_leaves_no_process_and_names_its_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "run", "leader-cut", "--duration", SHORT_S],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as running:
        assert running.stdout is not None
        try:
            for line in running.stdout:
                if line.startswith("leader cut off"):
                    break
            proxies = [pid for pid in children_of(running.pid) if "toxiproxy" in name_of(pid)]
            assert len(proxies) == 1
            os.killpg(running.pid, signal.SIGINT)
            rest = running.stdout.read()
            assert running.wait(timeout=30) == 130
        finally:
            running.kill()
    assert "kept: .chaos-data/run-" in rest
    (kept,) = (tmp_path / ".chaos-data").iterdir()
    assert (kept / "history.ndjson").stat().st_size > 0
    assert json.loads((kept / "report.json").read_bytes())["passed"] is False
    assert processes_of(tmp_path) == []
    assert not Path(f"/proc/{proxies[0]}").exists()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()


def test_list_names_every_scenario(tmp_path: Path) -> None:
    done = chaos(tmp_path, "list")
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(SCENARIOS)
    assert done.stdout in (ROOT / "docs" / "guides" / "chaos.md").read_text(), "as the guide shows"
    rows = json.loads(chaos(tmp_path, "list", "--format", "json").stdout)
    assert [row["name"] for row in rows] == list(SCENARIOS)


def test_an_unknown_scenario_names_the_known_ones(tmp_path: Path) -> None:
    done = chaos(tmp_path, "run", "leader-cat")
    assert done.returncode == 2
    assert "leader-cut" in done.stderr
