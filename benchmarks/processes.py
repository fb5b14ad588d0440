"""Processes the benchmark starts, and figures of any process from /proc."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parent.parent
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Child:
    """A started process that has printed `ready`, and the words behind it."""

    pid: int
    words: list[str]


@contextmanager
def child(module: str, *arguments: object) -> Iterator[Child]:
    """Run ``python -m module`` until the block ends; its first line must start with `ready`."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            words = process.stdout.readline().split()
            if words[:1] != ["ready"]:
                msg = f"{module} did not start (exit {process.wait()})"
                raise RuntimeError(msg)
            yield Child(process.pid, words[1:])
        finally:
            process.kill()


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process so far, from /proc/<pid>/stat."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def memory_mb(pid: int) -> tuple[float, float]:
    """Return the (resident, proportional) set size in MB; the second shares out common pages."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    sizes = {line.split()[0]: int(line.split()[1]) for line in rollup.splitlines()[1:]}
    return sizes["Rss:"] / 1024, sizes["Pss:"] / 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of a load run: the generator's figures and each server process's CPU seconds."""

    figures: dict[str, Any]
    cpu_s: dict[str, float]
    moved: bool = False
    """True if another broker led at the end, so that part of the load was forwarded."""

    @property
    def requests_per_s(self) -> float:
        return float(self.figures["requests_per_s"])

    @property
    def problem(self) -> str:
        """A short description of a failure; empty if there was none."""
        errors = self.figures["errors"]
        text = self.figures["first_error"]
        said = re.search(r'"(?:error|message)":"([^"]+)"', text)
        reason = said.group(1) if said else text
        problems = [f"{errors} errors: {reason[:100]}"] if errors else []
        return "; ".join(problems + ["the leader moved meanwhile"] * self.moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Specification of a load run, as in `benchmarks.load`."""

    targets: list[str]
    requests: list[bytes]
    connections: int
    seconds: float
    expect: str
    warm_up_s: float = 0.5
    head_first: bool = False
    """True: head and body are sent in two packets."""
    placeholder: str = ""
    """Digits in each request that a number takes the place of, another one each time it is sent."""


def run_load(load: Load, servers: Mapping[str, int]) -> Measured:
    """Run the generator as a process of its own; CPU is counted from the end of its warm-up.

    Args:
        load: targets and requests.
        servers: name → pid of the processes whose CPU counts.
    """
    spec = {
        "requests": [base64.b64encode(request).decode() for request in load.requests],
        "connections": load.connections,
        "seconds": load.seconds,
        "warm_up_s": load.warm_up_s,
        "expect": load.expect,
        "head_first": load.head_first,
        "placeholder": load.placeholder,
    }
    command = [sys.executable, "-m", "benchmarks.load", *load.targets]
    with subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            json.dump(spec, process.stdin)
            process.stdin.close()
            first = process.stderr.readline()
            if first.strip() != "measuring":
                msg = f"the load generator failed: {first}{process.stderr.read()}"
                raise RuntimeError(msg)
            before = {name: cpu_seconds(pid) for name, pid in servers.items()}
            answer = process.stdout.read()
            after = {name: cpu_seconds(pid) for name, pid in servers.items()}
            if not answer:
                msg = f"the load generator failed: {process.stderr.read()}"
                raise RuntimeError(msg)
        finally:
            process.kill()
    return Measured(json.loads(answer), {name: after[name] - before[name] for name in servers})
