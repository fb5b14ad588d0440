"""A private cluster for the demo and the scenarios: `quorumlog up` as a child process.

Runs call `LocalCluster` to start it, read ``cluster.json``, signal its nodes, and stop or kill it.
All knowledge comes from outside: the ready line, ``cluster.json``, ``/proc``. A process is
signalled only if its command line names this run's directory, so a pid that the system has reused
is left alone.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from chaos.deadline import within

if TYPE_CHECKING:
    from collections.abc import Sequence

READY_DEADLINE_S = 75.0
"""Limit for an `up` that hangs; `up` itself gives up after 60 s with a reason."""
STOP_DEADLINE_S = 20.0
"""Limit for a clean stop, which `up` promises within 15 s."""
GONE_DEADLINE_S = 10.0
POLL_S = 0.02
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


class ClusterError(Exception):
    """The cluster broke a promise; the message names the log to read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """An entry of cluster.json; `pid` is None while the node is down."""

    id: int
    kind: Literal["broker", "controller"]
    pid: int | None
    url: str
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """The content of cluster.json."""

    cluster_id: str
    state: str
    supervisor_pid: int | None
    controllers: tuple[Node, ...]
    brokers: tuple[Node, ...]

    def node(self, node_id: int) -> Node:
        """Return the node with this id; ids are unique over both kinds."""
        return next(node for node in (*self.controllers, *self.brokers) if node.id == node_id)


def parse_cluster_file(text: bytes) -> ClusterFile:
    """Parse cluster.json (interfaces §2); unknown keys are ignored."""
    content: dict[str, Any] = orjson.loads(text)
    return ClusterFile(
        cluster_id=content["cluster_id"],
        state=content["state"],
        supervisor_pid=(content.get("supervisor") or {}).get("pid"),
        controllers=tuple(_node("controller", node) for node in content["controllers"]),
        brokers=tuple(_node("broker", node) for node in content["brokers"]),
    )


def _node(kind: Literal["broker", "controller"], entry: dict[str, Any]) -> Node:
    return Node(
        id=entry["id"],
        kind=kind,
        pid=entry["pid"],
        url=entry["url"].rstrip("/"),
        log=str(entry.get("log", "")),
    )


def quorumlog_command() -> list[str]:
    """Return the console script beside this Python, or the one on PATH.

    Raises:
        ClusterError: neither exists.
    """
    beside = Path(sys.executable).with_name("quorumlog")
    found = str(beside) if beside.is_file() else shutil.which("quorumlog")
    if found is None:
        msg = "no quorumlog command; `make setup` installs it into .venv"
        raise ClusterError(msg)
    return [found]


def processes_of(directory: Path) -> list[int]:
    """Return the pids of living processes whose command line names a path in the directory."""
    needle = os.fsencode(directory)
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command_line = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # ended between the listing and the read
        if any(
            argument == needle or needle + b"/" in argument
            for argument in command_line.split(b"\0")
        ):
            found.append(int(entry.name))
    return found


def runs(pid: int) -> bool:
    """Return whether any thread of the process is left.

    Until the last thread has ended, the process holds its sockets, ports and locks, although its
    memory and so its command line may be freed already, and its first thread may be a zombie.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        threads = sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX" or threads > 1


class LocalCluster:
    """A supervised cluster in one directory. Owned by one run; `kill_everything` always works.

    The supervisor gets a session of its own, so that Ctrl-C reaches the owner only, and the
    parent-death signal, so that nothing outlives an owner that was itself killed.
    """

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        self._directory = directory.resolve()
        self.data_dir = self._directory / "cluster"
        self.environment: dict[str, str] = {}
        """Environment variables added for every process of the cluster."""
        self._options = list(options)
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def output(self) -> Path:
        """Path of the newest `up` process's output."""
        return self._directory / f"up-{self._starts}.out"

    async def start(self) -> float:
        """Start `up` and wait for its ready line.

        Returns:
            Seconds until it was ready.

        Raises:
            ClusterError: it ended, or did not get ready.
        """
        self._starts += 1
        began = time.monotonic()
        command = [*quorumlog_command(), "up", "--port", "0", "--data-dir", str(self.data_dir)]
        # The child keeps its own copy of the file; nothing is buffered on this side.
        with self.output.open("wb") as output:
            self._supervisor = subprocess.Popen(  # noqa: ASYNC220 a fork; killed without a loop, too
                command + self._options,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 it only makes one system call
            )
        while time.monotonic() - began < READY_DEADLINE_S:
            if b"quorumlog ready " in self.output.read_bytes():
                return time.monotonic() - began
            code = self._supervisor.poll()
            if code is not None:
                msg = f"`up` ended with {code} before it was ready; read {self.output}"
                raise ClusterError(msg)
            await asyncio.sleep(POLL_S)
        msg = f"`up` said nothing for {READY_DEADLINE_S:g} s; read {self.output}"
        raise ClusterError(msg)

    def read(self) -> ClusterFile:
        """Return the present content of cluster.json."""
        return parse_cluster_file((self.data_dir / "cluster.json").read_bytes())

    def signal_node(self, node: Node, number: signal.Signals) -> None:
        """Send a signal to a node's process; raise ClusterError if it is not this cluster's."""
        if node.pid is None or node.pid not in processes_of(self._directory):
            msg = f"{node.kind} {node.id} has no process to signal (pid {node.pid})"
            raise ClusterError(msg)
        os.kill(node.pid, number)

    def signal_process(self, pid: int, number: signal.Signals) -> None:
        """Send a signal to a process.

        Raise ClusterError unless it is a living process of this cluster.
        """
        if pid not in processes_of(self._directory):
            msg = f"pid {pid} is no process of this cluster"
            raise ClusterError(msg)
        os.kill(pid, number)

    async def wait_restarted(self, node: Node, deadline_s: float) -> Node:
        """Return the node once the supervisor has restarted it under another pid."""
        async with within(deadline_s, f"{node.kind} {node.id} is started again"):
            while True:
                now = self.read().node(node.id)
                if now.pid is not None and now.pid != node.pid:
                    return now
                await asyncio.sleep(POLL_S)

    async def stop(self) -> int:
        """Send SIGTERM to the supervisor and return its exit status.

        Raises:
            ClusterError: it did not end in time, or left processes behind.
        """
        supervisor = self._supervisor
        if supervisor is None:
            return 0
        supervisor.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(supervisor.wait, STOP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            msg = f"`up` did not stop within {STOP_DEADLINE_S:g} s; read {self.output}"
            raise ClusterError(msg) from None
        left = processes_of(self._directory)
        if left:
            msg = f"`up` ended with {code} but left processes {left}"
            raise ClusterError(msg)
        self._supervisor = None
        return code

    def kill_everything(self) -> int:
        """Send SIGKILL to every process, the supervisor first so that it restarts nothing.

        Returns:
            The number of killed processes, once none is left.

        Raises:
            ClusterError: one survived.
        """
        supervisor, self._supervisor = self._supervisor, None
        pids = processes_of(self._directory)
        if supervisor is not None:
            pids.sort(key=lambda pid: pid != supervisor.pid)
        for pid in pids:
            _kill(pid)
        killed = set(pids)
        deadline = time.monotonic() + GONE_DEADLINE_S
        while True:
            left = {pid for pid in killed if runs(pid)} | set(processes_of(self._directory))
            if not left:
                if supervisor is not None:
                    supervisor.wait()
                return len(killed)
            if time.monotonic() > deadline:
                msg = f"processes {sorted(left)} survived SIGKILL"
                raise ClusterError(msg)
            for pid in left - killed:
                _kill(pid)  # started meanwhile
            killed |= left
            time.sleep(POLL_S)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):  # it has already ended
        os.kill(pid, signal.SIGKILL)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends; for a child between fork and exec."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
