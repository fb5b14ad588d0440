"""Run a documentation page against a live cluster and compare what its commands print.

A page holds steps: a fenced `bash` block, and below it, if the output matters, one `text` block.
`documented_cluster` starts the cluster that the pages describe (`quorumlog up` in an empty
directory); `DocumentedCluster.check` runs all steps of a page in one shell, in order.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
FENCE = re.compile(r"^```(bash|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCUMENTED_PORTS = (8082, 8083, 8084, 10082, 10083, 10084)
"""What the pages name: three brokers, three controllers."""
PORT_LOOPS = ((8082, 8083, 8084), (10082, 10083, 10084))
"""Ports that a page may name alone, separated by blanks, in this order."""
END_OF_STEP = "end of step"
PAGE_DEADLINE_S = 90
STOP_TIMEOUT_S = 20


class Step(NamedTuple):
    """One block of commands and the output that the page shows below it."""

    commands: str
    output: str | None
    """None: the page shows no output, and none is compared."""


def steps(page: str) -> list[Step]:
    """Return the `bash` blocks of a page's text in order, each with the `text` block below it."""
    found: list[Step] = []
    for kind, content in FENCE.findall(page):
        if kind == "bash":
            found.append(Step(content, None))
        else:
            assert found, f"an output before the first command:\n{content}"
            assert found[-1].output is None, f"two outputs of one block:\n{content}"
            found[-1] = found[-1]._replace(output=content)
    return found


def pattern(output: str) -> re.Pattern[str]:
    """Return what matches a documented output.

    `…` matches anything. White space matches any white space or none, because curl ends no line.
    """
    words = "\\s*".join(map(re.escape, output.split()))
    return re.compile(words.replace("…", ".*?"), re.DOTALL)


class Played(NamedTuple):
    """What a page's commands printed."""

    outputs: list[str]
    """One for each step."""
    errors: str


@dataclass
class DocumentedCluster:
    """A running cluster and the names that pages use for its ports."""

    directory: Path
    """Where `quorumlog up` was started; `quorumlog-data` is in it."""
    urls: Mapping[int, str]
    """A documented port → the URL of that node here."""

    def brokers(self) -> list[str]:
        """Return the URLs of the brokers in the order of their ids."""
        return [self.urls[port] for port in PORT_LOOPS[0]]

    def here(self, commands: str) -> str:
        """Return commands with the ports of this cluster instead of the documented ones."""
        for ports in PORT_LOOPS:
            loop = " ".join(map(str, ports))
            ours = " ".join(self.urls[port].rpartition(":")[2] for port in ports)
            commands = commands.replace(f" {loop}", f" {ours}")
        for port, url in self.urls.items():
            commands = commands.replace(f"http://127.0.0.1:{port}", url)
        return commands

    def play(self, played: Sequence[Step]) -> Played:
        """Run steps in one shell, in order."""
        script = "".join(f"{step.commands}\necho '{END_OF_STEP}'\n" for step in played)
        shell = subprocess.Popen(
            ["bash", "-uc", self.here(script)],
            cwd=self.directory,
            env={
                **os.environ,
                "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
                "QUORUMLOG_URL": ",".join(self.brokers()),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        late = False
        try:
            printed, errors = shell.communicate(timeout=PAGE_DEADLINE_S)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            with suppress(ProcessLookupError):  # what a page started in the background, too
                os.killpg(shell.pid, signal.SIGKILL)
        if late:
            printed, errors = shell.communicate()
        outputs = printed.split(f"{END_OF_STEP}\n")
        assert not late, f"late: {played[len(outputs) - 1].commands}\n{printed}\n{errors}"
        assert len(outputs) == len(played) + 1, printed + errors
        return Played(outputs[:-1], errors)

    def check(self, page: str) -> Played:
        """Run a page's text and compare every output that it shows."""
        documented = steps(page)
        played = self.play(documented)
        for step, printed in zip(documented, played.outputs, strict=True):
            if step.output is not None:
                assert pattern(step.output).fullmatch(printed.strip()), (
                    f"{step.commands}\nprinted {printed}\nand, on all of the page, as errors\n"
                    f"{played.errors}"
                )
        return played


@contextmanager
def documented_cluster(directory: Path, *options: str) -> Iterator[DocumentedCluster]:
    """Start the cluster of the pages in an empty directory, on free ports.

    ``options`` are more options of `quorumlog up`.
    """
    with quorumlog_up(BIN / "quorumlog", directory, *options):
        nodes = json.loads((directory / "quorumlog-data" / "cluster.json").read_text())
        urls = [node["url"] for node in (*nodes["brokers"], *nodes["controllers"])]
        yield DocumentedCluster(directory, dict(zip(DOCUMENTED_PORTS, urls, strict=True)))


@contextmanager
def quorumlog_up(command: Path, directory: Path, *options: str) -> Iterator[list[str]]:
    """Run `quorumlog up` as installed, in that directory, on free ports; the brokers' URLs."""
    with (directory / "up.log").open("w") as log:
        up = subprocess.Popen(
            [command, "up", "--port", "0", *options],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert up.stdout is not None
        with up.stdout:
            ready = up.stdout.readline()
            assert ready.startswith("quorumlog ready "), (directory / "up.log").read_text()
            yield ready.split()[2:]
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()
