"""Private names of the product are reached from tests through test doors only.

Ruff's SLF001 sees attribute access; these tests see names in strings and imports, and that no door
outlives its use.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.tree import PACKAGES, python_files, syntax

DOORS = Path("tests/support/doors")
PLANTED = (Path("tests/support/planted"), Path("tests/chaos/planted"))  # mutants of the source
NAMING_CALLS = {
    "setattr", "getattr", "delattr", "hasattr", "patch", "object", "attrgetter", "methodcaller",
}  # fmt: skip
PRIVATE = re.compile(r"(?:^|\.)_(?!_)\w")


def doors() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]]:
    """Yield each door with its file: the public functions and classes there."""
    for path in python_files("tests"):
        if path.parent == DOORS:
            for node in syntax(path).body:
                kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
                if isinstance(node, kinds) and not node.name.startswith("_"):
                    yield path, node


def files_outside_doors() -> list[Path]:
    return [path for path in python_files("tests") if path.parent != DOORS]


def test_every_door_is_used() -> None:
    imported = {
        (node.module, alias.name)
        for path in files_outside_doors()
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    unused = [
        f"{path}:{node.lineno} {node.name}"
        for path, node in doors()
        if (".".join(path.with_suffix("").parts), node.name) not in imported
    ]
    assert unused == []


def test_every_door_says_why() -> None:
    found = [f"{path}:{node.lineno}" for path, node in doors() if not ast.get_docstring(node)]
    assert found == []


def private_names(node: ast.AST) -> Iterator[str]:
    """Yield the private names that a call gives as text, and those of an import."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_]):
            is_own = isinstance(first, ast.Name) and first.id in {"self", "cls"}
            if name in NAMING_CALLS and not is_own:
                for part in (each for arg in node.args for each in ast.walk(arg)):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield from [part.value] if PRIVATE.search(part.value) else []
        case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PACKAGES:
            yield from (alias.name for alias in node.names if PRIVATE.search(alias.name))


def test_private_names_are_used_in_doors_only() -> None:
    found = [
        f"{path}:{node.lineno} {name}"
        for path in files_outside_doors()
        if not any(folder in path.parents for folder in PLANTED)
        for node in ast.walk(syntax(path))
        if isinstance(node, ast.Call | ast.ImportFrom)
        for name in private_names(node)
    ]
    assert found == []
