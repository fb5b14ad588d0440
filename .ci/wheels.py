"""Builds the wheels of this tree, quorumlog-client and quorumlog; `make wheels` runs it.

The table ``[tool.quorumlog.client-wheel]`` of pyproject.toml names the modules of the client's
wheel; the other wheel holds all other files of the packages and requires the client's in exactly
its version. Each is built, by the backend of the tree, from a copy of its files beside a
pyproject.toml that is made from the tree's.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SAME_FOR_BOTH = (
    "version", "readme", "requires-python", "license", "license-files", "classifiers",
)  # fmt: skip
"""Fields of ``[project]`` that the client's wheel shares with the tree."""


def read_pyproject() -> dict[str, Any]:
    """Return pyproject.toml of the tree."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def split_files(pyproject: Mapping[str, Any]) -> tuple[list[Path], list[Path]]:
    """Return the files of the client's wheel and those of the server's, relative to the root.

    A package whose modules are in both wheels has its own files, ``__init__.py`` among them, in
    the client's.
    """
    tool = pyproject["tool"]["setuptools"]
    modules = pyproject["tool"]["quorumlog"]["client-wheel"]["modules"]
    folders = [Path(*module.split(".")) for module in modules]
    client: list[Path] = []
    server: list[Path] = []
    for package in filter(None, tool["package-dir"]):
        for path in sorted((ROOT / package).rglob("*")):
            if not any(path.match(kind) for kind in ("*.py", *tool["package-data"]["*"])):
                continue
            file = path.relative_to(ROOT)
            is_client = any(
                folder in file.parents or file.parent in folder.parents for folder in folders
            )
            (client if is_client else server).append(file)
    return client, server


def client_project(pyproject: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``[project]`` of the client's wheel, with the version ranges of the tree's."""
    project, table = pyproject["project"], pyproject["tool"]["quorumlog"]["client-wheel"]
    known = [project["dependencies"], *project["optional-dependencies"].values()]
    ranges = {re.split(r"[^\w-]", text)[0]: text for requirements in known for text in requirements}
    return {
        "name": "quorumlog-client",
        "description": table["description"],
        **{field: project[field] for field in SAME_FOR_BOTH},
        "dependencies": [ranges[name] for name in table["dependencies"]],
        "optional-dependencies": {
            extra: [ranges[name] for name in names] for extra, names in table["extras"].items()
        },
    }


def server_project(pyproject: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``[project]`` of the server's wheel: the tree's, which needs the client's, too."""
    project = pyproject["project"]
    needed = f"quorumlog-client=={project['version']}"
    return {**project, "dependencies": [needed, *project["dependencies"]]}


def toml(value: object) -> str:
    """Return a value of a TOML file on one line; strings and lists are written as in JSON."""
    if isinstance(value, dict):
        fields = (f"{json.dumps(name)} = {toml(field)}" for name, field in value.items())
        return "{" + ", ".join(fields) + "}"
    return json.dumps(value, ensure_ascii=False)


def build(
    pyproject: Mapping[str, Any], project: Mapping[str, Any], files: Iterable[Path], dist: Path
) -> None:
    """Build one wheel of these files into ``dist``."""
    tool = pyproject["tool"]["setuptools"]
    folders = sorted({file.parent for file in files})
    holds_top_modules = Path(tool["package-dir"][""]) in folders
    made = {
        "build-system": pyproject["build-system"],
        "project": project,
        "tool": {
            "setuptools": {
                **{key: tool[key] for key in ("include-package-data", "package-data")},
                "packages": [".".join(folder.parts) for folder in folders],
                "py-modules": tool["py-modules"] if holds_top_modules else [],
                "package-dir": tool["package-dir"] if holds_top_modules else {},
            }
        },
    }
    with tempfile.TemporaryDirectory() as made_for:
        tree = Path(made_for)
        for file in (*files, Path(project["readme"]), *map(Path, project["license-files"])):
            (tree / file.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / file, tree / file)
        lines = [f"{key} = {toml(value)}\n" for key, value in made.items()]
        (tree / "pyproject.toml").write_text("".join(lines), encoding="utf-8")
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        command += ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", str(dist)]
        subprocess.run([*command, str(tree)], check=True)


def main(dist: Path) -> None:
    """Build both wheels into ``dist``, in place of those that are there."""
    for old in dist.glob("quorumlog*.whl"):
        old.unlink()
    pyproject = read_pyproject()
    client, server = split_files(pyproject)
    build(pyproject, client_project(pyproject), client, dist)
    build(pyproject, server_project(pyproject), server, dist)
    for wheel in sorted(dist.glob("quorumlog*.whl")):
        print(wheel)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
