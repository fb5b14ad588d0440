"""Style, types and the direction of imports are tests like any other: a red one stops CI."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.architecture.tree import PACKAGES, ROOT

BIN = Path(sys.executable).parent


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command[1:])}\n{done.stdout}{done.stderr}", pytrace=False)


def test_ruff_finds_nothing() -> None:
    run(sys.executable, "-m", "ruff", "check", ".")


def test_ruff_would_format_nothing() -> None:
    run(sys.executable, "-m", "ruff", "format", "--check", ".")


def test_mypy_strict_finds_nothing() -> None:
    run(sys.executable, "-m", "mypy")


def test_imports_keep_every_contract() -> None:
    run(str(BIN / "python"), str(BIN / "lint-imports"), "--no-cache")


def test_every_list_of_packages_in_pyproject_names_all_of_them() -> None:
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    include = tool["setuptools"]["packages"]["find"]["include"]
    assert set(include) == {name + end for name in PACKAGES for end in ("", ".*")}
    assert set(tool["mypy"]["packages"]) == set(PACKAGES)
    assert set(tool["importlinter"]["root_packages"]) == set(PACKAGES)


def test_every_folder_of_a_package_is_a_package() -> None:
    folders = {path.parent for name in PACKAGES for path in (ROOT / name).rglob("*.py")}
    without = [folder for folder in folders if not (folder / "__init__.py").exists()]
    assert sorted(str(folder.relative_to(ROOT)) for folder in without) == []
