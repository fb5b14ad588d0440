"""Every command of docs/operating, page by page against one live cluster, its output compared."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, get_args

import pytest

from raft_metadata.records.records import MetadataRecord
from tests.support.documented_cluster import quorumlog_up

PAGES = Path(__file__).resolve().parents[2] / "docs" / "operating"
BIN = Path(sys.executable).parent
FENCE = re.compile(r"^```(bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
END_OF_STEP = "end of step"
PAGE_DEADLINE_S = 90
IN_ORDER = (
    "zookeeper.md",
    "health.md",
    "symptoms.md",
    "inside.md",
    "durability.md",
    "retention.md",
    "compression.md",
    "upgrade.md",
    "quorum.md",
)
"""zookeeper.md makes the topic that the others look at; quorum.md breaks the most."""


class Step(NamedTuple):
    commands: str
    output: str | None
    """None: the page shows none."""


def steps(page: str) -> list[Step]:
    found: list[Step] = []
    for kind, content in FENCE.findall((PAGES / page).read_text(encoding="utf-8")):
        if kind == "bash":
            found.append(Step(content, None))
        else:
            assert found[-1].output is None, f"{page}: two outputs of one block"
            found[-1] = found[-1]._replace(output=content)
    return found


def pattern(output: str) -> re.Pattern[str]:
    """`…` stands for anything, and so does white space for any white space."""
    words = "\\s*".join(map(re.escape, output.split()))
    return re.compile(words.replace("…", ".*?"), re.DOTALL)


@dataclass
class Cluster:
    directory: Path
    ports: dict[int, str]
    """The port a page names → the URL it is here."""

    def run(self, page: str) -> list[str]:
        """What each block of the page printed."""
        script = "".join(f"{step.commands}\necho '{END_OF_STEP}'\n" for step in steps(page))
        for port, url in self.ports.items():
            script = script.replace(f"http://127.0.0.1:{port}", url)
        # A loop over ports names them one by one.
        loop = " ".join(str(port) for port in (10082, 10083, 10084))
        here = " ".join(self.ports[port].rpartition(":")[2] for port in (10082, 10083, 10084))
        done = subprocess.run(
            ["bash", "-uc", script.replace(loop, here)],
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                "QUORUMLOG_URL": ",".join(self.ports[port] for port in (8082, 8083, 8084)),
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=PAGE_DEADLINE_S,
        )
        outputs = done.stdout.split(f"{END_OF_STEP}\n")
        assert len(outputs) == len(steps(page)) + 1, done.stdout + done.stderr
        return outputs[:-1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """`quorumlog up` as the pages say, on free ports."""
    directory = tmp_path_factory.mktemp("operating")
    with quorumlog_up(BIN / "quorumlog", directory):
        nodes = json.loads((directory / "quorumlog-data" / "cluster.json").read_text())
        urls = [node["url"] for node in (*nodes["brokers"], *nodes["controllers"])]
        ports = (8082, 8083, 8084, 10082, 10083, 10084)
        yield Cluster(directory, dict(zip(ports, urls, strict=True)))


def test_every_page_is_run_here_and_listed() -> None:
    pages = {path.name for path in PAGES.glob("*.md")}
    assert pages == {*IN_ORDER, "README.md"}
    index = (PAGES / "README.md").read_text()
    assert all(f"]({page})" in index for page in IN_ORDER)


def test_every_record_type_has_its_place_on_the_page_about_zookeeper() -> None:
    page = (PAGES / "zookeeper.md").read_text()
    names = [kind.__name__ for kind in get_args(MetadataRecord)]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize("page", IN_ORDER)
def test_a_page_goes_as_it_says(cluster: Cluster, page: str) -> None:
    for step, said in zip(steps(page), cluster.run(page), strict=True):
        if step.output is not None:
            assert pattern(step.output).fullmatch(said.strip()), f"{step.commands}\nsaid {said}"
