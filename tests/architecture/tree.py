"""The project's files as the architecture tests see them."""

from __future__ import annotations

import ast
import functools
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("raft_metadata", "broker", "http_api", "spark_source", "chaos", "quorumlog")


@functools.cache
def project_files() -> tuple[Path, ...]:
    """Every file that is tracked or would be: relative to the root, sorted."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    names = sorted(set(listed.stdout.split("\0")) - {""})
    return tuple(Path(name) for name in names if (ROOT / name).is_file())


def python_files(*tops: str) -> list[Path]:
    """The Python files under these top folders."""
    return [path for path in project_files() if path.suffix == ".py" and path.parts[0] in tops]


def markdown_files() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".md"]


@functools.cache
def text(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@functools.cache
def syntax(path: Path) -> ast.Module:
    return ast.parse(text(path), filename=str(path))


def has_code(path: Path) -> bool:
    """Whether a module holds more than its docstring."""
    body = syntax(path).body
    return any(not isinstance(node, ast.Expr) for node in body)


def names_of_tests() -> set[str]:
    """The names of all test functions."""
    return {
        node.name
        for path in python_files("tests")
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }
