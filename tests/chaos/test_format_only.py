"""`quorumlog up --format-only`: everything a first start finds, and nothing started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from chaos.cluster import processes_of
from chaos.net.links import Link, Plane
from chaos.proxied_cluster import real_targets, wire
from tests.architecture.tree import ROOT


def up(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "http_api.cli", "up", "--data-dir", str(folder), *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_format_only_makes_the_folders_and_starts_nothing(tmp_path: Path) -> None:
    done = up(tmp_path / "d", "--format-only", "--port", "0", "--brokers", "2")
    assert (done.returncode, done.stdout) == (0, f"quorumlog formatted {tmp_path / 'd'}\n")
    described = json.loads((tmp_path / "d" / "cluster.json").read_bytes())
    assert (described["state"], described["supervisor"]["pid"]) == ("stopped", None)
    assert len(described["brokers"]) == 2
    assert processes_of(tmp_path) == []


def test_format_only_said_again_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    first = up(folder, "--format-only", "--port", "0", "--format", "json")
    said = json.loads(first.stdout)
    assert set(said) == {"cluster_id", "data_dir"}
    ways = dict.fromkeys(real_targets(folder), "127.0.0.1:7")
    wire(folder, ways, "127.0.0.1:9")
    assert Link(1, 101, Plane.HTTP) in ways
    before = {path: path.read_bytes() for path in folder.glob("*/*.toml")}
    assert up(folder, "--format-only").returncode == 0
    assert {path: path.read_bytes() for path in folder.glob("*/*.toml")} == before
