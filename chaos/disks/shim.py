"""Faults of a disk under real processes, for any user: a library laid under them by LD_PRELOAD.

Built from `shim.c` by the machine's C compiler, once per version of its text. Needs no root. What
it can't show, because it stands above the kernel: what a file system itself does in a fault.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Operation = Literal["write", "sync", "rename"]

SOURCE = Path(__file__).with_name("shim.c")
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-O2", "-shared", "-fPIC", "-pthread")
BUILD_DEADLINE_S = 60.0
CACHE = Path(tempfile.gettempdir()) / f"quorumlog-shim-{os.getuid()}"


class ShimError(Exception):
    """The library can't be had; the message says what is needed."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One line of what a node's disk does. `part` narrows it to paths that contain it."""

    operation: Literal["write", "sync", "rename", "clock"]
    what: Literal["error", "sleep", "full", "lie", "ahead"]
    argument: int
    times: int = 0
    part: str = "*"

    def line(self) -> str:
        """As the shim reads it."""
        return f"{self.operation} {self.part} {self.what} {self.argument} {self.times}\n"


def broken(operation: Operation, times: int = 0, part: str = "*") -> Fault:
    """EIO, on the next `times` calls (0: on all)."""
    return Fault(operation, "error", errno.EIO, times, part)


def slow(operation: Operation, ms: int, part: str = "*") -> Fault:
    """Each call takes so much longer."""
    return Fault(operation, "sleep", ms, part=part)


def full(bytes_left: int = 0, part: str = "*") -> Fault:
    """So many bytes still fit: a short write, then ENOSPC; no new file either."""
    return Fault("write", "full", bytes_left, part=part)


def lying() -> Fault:
    """A sync does nothing and says that it did: what no software survives, for checks' own sake."""
    return Fault("sync", "lie", 0)


def clock_ahead(seconds: int) -> Fault:
    """The wall clock shows this much more (or less) than it is; the monotonic one is right."""
    return Fault("clock", "ahead", seconds)


def build() -> Path:
    """The library; built unless it is there.

    Raises:
        ShimError: no compiler, or it failed.
    """
    text = SOURCE.read_bytes()
    library = CACHE / f"{hashlib.sha256(text).hexdigest()[:16]}.so"
    if library.exists():
        return library
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        msg = f"faults of the disk need a C compiler ({', '.join(COMPILERS)}); install gcc"
        raise ShimError(msg)
    CACHE.mkdir(mode=0o700, exist_ok=True)
    if CACHE.stat().st_uid != os.getuid():
        msg = f"{CACHE} is somebody else's: a library from there is not loaded"
        raise ShimError(msg)
    made = CACHE / f"{os.getpid()}.so"
    command = [compiler, *FLAGS, "-o", str(made), str(SOURCE), "-ldl"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=BUILD_DEADLINE_S, check=False
    )
    if done.returncode != 0:
        msg = f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[:500]}"
        raise ShimError(msg)
    made.replace(library)
    return library


class Shim:
    """What every node's disk of one cluster is told, and what it did. Owned by a run.

    Nodes are named as their folders (``broker-1``). A fault holds from the next call on.
    """

    def __init__(self, data_dir: Path, control: Path, *, tape: bool = False) -> None:
        self._data_dir = data_dir
        self._library = build()
        self.control = control.resolve()
        self.control.mkdir(parents=True, exist_ok=True)
        self._tape = tape

    def environment(self) -> dict[str, str]:
        """For the cluster's processes, beside their own."""
        found = {
            "LD_PRELOAD": str(self._library),
            "QUORUMLOG_SHIM_ROOT": str(self._data_dir),
            "QUORUMLOG_SHIM_CONTROL": str(self.control),
        }
        return found | ({"QUORUMLOG_SHIM_TAPE": "1"} if self._tape else {})

    def set(self, node: str, *faults: Fault) -> None:
        """From now on this is what the node's disk does; without faults, nothing."""
        told = self.control / f"{node}.faults"
        if not faults:
            told.unlink(missing_ok=True)
            return
        beside = told.with_suffix(".new")
        beside.write_text("".join(fault.line() for fault in faults))
        beside.replace(told)

    def heal(self) -> None:
        """Every disk is well again."""
        for told in self.control.glob("*.faults"):
            told.unlink(missing_ok=True)

    def hits(self, node: str) -> Counter[str]:
        """How often each ``<operation> <what>`` was felt by the node's processes."""
        try:
            lines = (self.control / f"{node}.hits").read_text().splitlines()
        except FileNotFoundError:
            return Counter()
        return Counter(" ".join(line.split(" ", 2)[:2]) for line in lines)

    def felt(self, node: str) -> int:
        """How many calls of the node a fault has hit."""
        return self.hits(node).total()
