"""Every command of the README's tour, run in order against a live cluster, its output compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.documented_cluster import quorumlog_up

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
TOUR = re.compile(r"^## A tour with curl$(.*?)^## ", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END_OF_STEP = "end of step"
TOUR_DEADLINE_S = 90


class Step(NamedTuple):
    commands: str
    output: str | None
    """None: the README shows none."""


def steps() -> list[Step]:
    tour = TOUR.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert tour is not None
    found: list[Step] = []
    for kind, content in FENCE.findall(tour[1]):
        if kind == "bash":
            found.append(Step(content, None))
        else:
            found[-1] = found[-1]._replace(output=content)
    return found


def pattern(output: str) -> re.Pattern[str]:
    """`…` stands for anything. Line breaks between outputs are not compared: curl adds none."""
    parts = output.replace("\n", "").split("…")
    return re.compile(".*?".join(map(re.escape, parts)))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[str]]:
    """`quorumlog up` in a directory of its own, on free ports; the brokers' URLs."""
    with quorumlog_up(BIN / "quorumlog", tmp_path) as urls:
        yield urls


def test_every_bash_block_of_the_readme_is_run_here() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.count("\n```bash\n") == len(steps())


def test_the_tour_goes_as_the_readme_says(cluster: list[str], tmp_path: Path) -> None:
    tour = steps()
    script = "".join(f"{step.commands}\necho '{END_OF_STEP}'\n" for step in tour)
    for port, url in zip((8082, 8083, 8084), cluster, strict=True):
        script = script.replace(f"http://127.0.0.1:{port}", url)
    done = subprocess.run(
        ["bash", "-uc", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "QUORUMLOG_URL": cluster[1],
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=TOUR_DEADLINE_S,
    )
    outputs = done.stdout.split(f"{END_OF_STEP}\n")
    assert (done.stderr, len(outputs)) == ("", len(tour) + 1)
    for step, output in zip(tour, outputs, strict=False):
        if step.output is None:
            continue
        said = output.replace("\n", "")
        assert pattern(step.output).fullmatch(said), f"{step.commands}\nsaid {said}"
