"""Disk faults under real processes without root: a library loaded by LD_PRELOAD, and flipped bits.

Built from `shim.c` by the machine's C compiler, once per version of its text. Scenarios set faults
through `Shim`; the library reads them from a control directory. Because it works above the kernel,
it cannot show a file system's own behaviour in a fault. `flip_a_bit` damages a replica's file.
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
    """The library is unavailable; the message names the requirement."""


@dataclass(frozen=True, slots=True)
class DiskFault:
    """A line of a node's fault file. `part` restricts it to paths that contain it."""

    operation: Literal["write", "sync", "rename", "clock"]
    what: Literal["error", "sleep", "full", "lie", "ahead"]
    argument: int
    times: int = 0
    part: str = "*"

    def line(self) -> str:
        """Return the line that the shim reads."""
        return f"{self.operation} {self.part} {self.what} {self.argument} {self.times}\n"


def broken(operation: Operation, times: int = 0, part: str = "*") -> DiskFault:
    """Return a fault that fails the next `times` calls (0: all) with EIO."""
    return DiskFault(operation, "error", errno.EIO, times, part)


def slow(operation: Operation, ms: int, part: str = "*") -> DiskFault:
    """Return a fault that delays each call by `ms` milliseconds."""
    return DiskFault(operation, "sleep", ms, part=part)


def full(bytes_left: int = 0, part: str = "*") -> DiskFault:
    """Return a full disk: after `bytes_left` more bytes a short write, then ENOSPC.

    No new file either.
    """
    return DiskFault("write", "full", bytes_left, part=part)


def lying() -> DiskFault:
    """Return a fault in which a sync does nothing and reports success.

    No software survives it; it serves to test the checks.
    """
    return DiskFault("sync", "lie", 0)


def clock_ahead(seconds: int) -> DiskFault:
    """Return a fault that shifts the wall clock by `seconds`; the monotonic clock stays right."""
    return DiskFault("clock", "ahead", seconds)


def build() -> Path:
    """Return the library's path, after building it if needed.

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
    """The disk faults of all nodes of one cluster, and counts of their effects. Owned by a run.

    Nodes are named by their folders (``broker-1``). A fault applies from the next call on.
    """

    def __init__(self, data_dir: Path, control: Path, *, tape: bool = False) -> None:
        self._data_dir = data_dir
        self._library = build()
        self.control = control.resolve()
        self.control.mkdir(parents=True, exist_ok=True)
        self._tape = tape

    def environment(self) -> dict[str, str]:
        """Return the environment variables that load the library into the cluster's processes."""
        found = {
            "LD_PRELOAD": str(self._library),
            "QUORUMLOG_SHIM_ROOT": str(self._data_dir),
            "QUORUMLOG_SHIM_CONTROL": str(self.control),
        }
        return found | ({"QUORUMLOG_SHIM_TAPE": "1"} if self._tape else {})

    def set(self, node: str, *faults: DiskFault) -> None:
        """Set the faults of the node's disk, replacing earlier ones; none heals it."""
        fault_file = self.control / f"{node}.faults"
        if not faults:
            fault_file.unlink(missing_ok=True)
            return
        beside = fault_file.with_suffix(".new")
        beside.write_text("".join(fault.line() for fault in faults))
        beside.replace(fault_file)

    def heal(self) -> None:
        """Remove the faults of every disk."""
        for fault_file in self.control.glob("*.faults"):
            fault_file.unlink(missing_ok=True)

    def hits(self, node: str) -> Counter[str]:
        """Return how often each ``<operation> <what>`` hit a call of the node's processes."""
        try:
            lines = (self.control / f"{node}.hits").read_text().splitlines()
        except FileNotFoundError:
            return Counter()
        return Counter(" ".join(line.split(" ", 2)[:2]) for line in lines)

    def hit_count(self, node: str) -> int:
        """Return the number of calls of the node that a fault has hit."""
        return self.hits(node).total()


def flip_a_bit(data_dir: Path, broker: int, topic: str, partition: int, part: float) -> str:
    """Flip a bit in the broker's first segment, at `part` of its length; return a description.

    The page cache holds the change at once, so the next read of that place returns it.
    """
    folder = data_dir / f"broker-{broker}" / "log" / f"{topic}-{partition}"
    segment = min(folder.glob("*.log"))
    at = int(segment.stat().st_size * part)
    with segment.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    return f"{segment.name} of {folder.name} on broker {broker}, byte {at}: {byte} is {byte ^ 1}"
