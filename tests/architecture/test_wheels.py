"""The two wheels of `make wheels`: each file in exactly one, and the client's needs no other."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.architecture.tree import PACKAGES, ROOT, project_files, syntax

MODULES_OF = {
    "orjson": "orjson", "msgspec": "msgspec", "typing-extensions": "typing_extensions",
    "aiohttp": "aiohttp yarl", "zstandard": "zstandard", "pyspark": "pyspark", "pyarrow": "pyarrow",
}  # fmt: skip
"""Top-level modules that each dependency of the client's wheel brings."""


@pytest.fixture(scope="module")
def wheels() -> ModuleType:
    spec = spec_from_file_location("wheels", ROOT / ".ci" / "wheels.py")
    assert spec is not None
    assert spec.loader is not None
    found = module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.fixture(scope="module")
def pyproject(wheels: ModuleType) -> dict[str, Any]:
    return dict(wheels.read_pyproject())


@pytest.fixture(scope="module")
def client(wheels: ModuleType, pyproject: dict[str, Any]) -> set[Path]:
    return set(wheels.split_files(pyproject)[0])


def module_of(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: Path) -> Iterator[str]:
    """The modules that this one imports; a name from a package may be one of its modules."""
    for node in ast.walk(syntax(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_each_file_of_the_packages_is_in_exactly_one_wheel(
    wheels: ModuleType, pyproject: dict[str, Any]
) -> None:
    """Nothing is overwritten where both are installed, and nothing of the tree is missing."""
    client, server = wheels.split_files(pyproject)
    expected = [path for path in project_files() if path.parts[0] in PACKAGES]
    assert sorted([*client, *server]) == sorted(expected)


def test_the_table_names_modules_that_exist(pyproject: dict[str, Any], client: set[Path]) -> None:
    """A folder that was renamed would silently move to the other wheel."""
    named = pyproject["tool"]["quorumlog"]["client-wheel"]["modules"]
    top_level = {path.stem for path in client if path.parent.name == "auto_registration"}
    assert set(named) <= {module_of(path) for path in client} | top_level
    assert set(pyproject["tool"]["setuptools"]["py-modules"]) <= set(named)


def test_the_clients_wheel_imports_nothing_of_the_other(client: set[Path]) -> None:
    """Imports for types count, too: the wheel carries py.typed."""
    all_modules = {module_of(path) for path in project_files() if path.suffix == ".py"}
    own = {module_of(path) for path in client if path.suffix == ".py"}
    found = [
        f"{path} imports {name}"
        for path in client
        if path.suffix == ".py"
        for name in imports_of(path)
        if name in all_modules - own
    ]
    assert found == []


def test_the_clients_wheel_imports_only_what_it_requires(
    wheels: ModuleType, pyproject: dict[str, Any], client: set[Path]
) -> None:
    """A module that imports what an extra brings is one for that extra."""
    project = wheels.client_project(pyproject)
    extras = project["optional-dependencies"]
    names = {
        extra: {re.split(r"[^\w-]", text)[0] for text in wanted} for extra, wanted in extras.items()
    }
    required = {re.split(r"[^\w-]", text)[0] for text in project["dependencies"]}
    assert required | set().union(*names.values()) == set(MODULES_OF)

    allowed_where = {
        "http_api/client/async_client.py": names["asyncio"],
        "http_api/client/calls.py": names["zstd"],
        "spark_source/": names["spark"],
    }
    for path in client:
        if path.suffix != ".py":
            continue
        needed = {name.split(".")[0] for name in imports_of(path)} - set(PACKAGES)
        allowed = required.union(
            *(extra for where, extra in allowed_where.items() if str(path).startswith(where))
        )
        modules = {module for name in allowed for module in MODULES_OF[name].split()}
        assert needed - modules - sys.stdlib_module_names == set(), path


def test_the_server_requires_exactly_the_client_of_its_version(
    wheels: ModuleType, pyproject: dict[str, Any]
) -> None:
    """Two wheels of one tree belong together; the client's has no dependency of the server's."""
    client = wheels.client_project(pyproject)
    server = wheels.server_project(pyproject)
    assert client["name"] == "quorumlog-client"
    assert server["name"] == "quorumlog"
    assert server["dependencies"][0] == f"quorumlog-client=={client['version']}"
    assert "scripts" in server
    assert "scripts" not in client
