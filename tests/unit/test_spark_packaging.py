"""``format("quorumlog")`` is found without registration: by the wheel and in this environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOOK_UP = """
import pkgutil, sys
assert "pyspark_quorumlog" in [found.name for found in pkgutil.iter_modules()], sys.path
import pyspark_quorumlog
heavy = {"pyarrow", "numpy", "aiohttp", "msgspec", "http_api", "pandas"} & set(sys.modules)
assert not heavy, heavy
assert pyspark_quorumlog.DefaultSource.name() == "quorumlog"
assert pyspark_quorumlog.__file__.startswith(sys.argv[1]), pyspark_quorumlog.__file__
"""
"""What Spark does for each look-up of a Python source; an error in it breaks them all."""


def look_up(place: Path, *paths: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP, str(place)],
        cwd="/",
        env={"PYTHONPATH": ":".join(map(str, paths)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_this_environment_finds_the_source() -> None:
    look_up(ROOT / "spark_source" / "auto_registration")


def test_the_wheel_holds_the_module_at_its_top(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("raft_metadata", "broker", "http_api", "spark_source", "chaos", "quorumlog"):
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps"]
    subprocess.run(
        [*command, "--no-build-isolation", "--wheel-dir", str(tmp_path / "wheel"), str(tree)],
        cwd=tmp_path,
        check=True,
    )
    (wheel,) = (tmp_path / "wheel").glob("quorumlog-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    assert "pyspark_quorumlog.py" in names
    assert "spark_source/DESIGN.md" in names
    assert not [name for name in names if "egg-info" in name or name.startswith("tests/")]
    look_up(tmp_path / "site", tmp_path / "site")
