"""Supervision of one node's process: start, watch, probe over HTTP, start again.

The supervisor runs beside the nodes for months, so `probe` uses nothing but the standard library:
no HTTP framework is imported. `RestartPolicy` is a pure decision.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from http_api.node.cluster_file import NodeEntry
from http_api.node.exits import EXIT_STORAGE, NodeExit
from http_api.node.formatting import RAFT_FOLDER, is_formatted_controller
from http_api.node.node_config import Address
from http_api.node.node_start import SUPERVISOR_VARIABLE
from http_api.node.rejoin import rejoin_commands
from raft_metadata.common.clock import Clock

FIRST_DELAY_MS = 200
LAST_DELAY_MS = 5_000
SETTLED_AFTER_MS = 10_000
"""Lifetime after which a node counts as healthy: the next delay is the first one again."""


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The delay before the next start: 0.2 s doubling to 5 s; the number of starts is unlimited."""

    next_delay_ms: int = FIRST_DELAY_MS

    def after_death(self, lived_ms: int) -> tuple[int, RestartPolicy]:
        """Return the delay (ms) before the next start, and the policy for the start after it."""
        delay_ms = FIRST_DELAY_MS if lived_ms >= SETTLED_AFTER_MS else self.next_delay_ms
        return delay_ms, RestartPolicy(min(2 * delay_ms, LAST_DELAY_MS))


PROBE_TIMEOUT_S = 1.0
MAX_ANSWER_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Status and body of a small answer."""

    status: int
    body: bytes


async def probe(address: Address, path: str) -> ProbeAnswer | None:
    """GET ``path``; None without an HTTP answer within `PROBE_TIMEOUT_S`."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            return await _get(address, path)
    except (OSError, TimeoutError, ValueError, IndexError):
        return None


async def _get(address: Address, path: str) -> ProbeAnswer:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        await writer.drain()
        answer = await _read_all(reader)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return ProbeAnswer(int(head.split()[1]), body)


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    chunks = bytearray()
    while len(chunks) < MAX_ANSWER_BYTES and (chunk := await reader.read(MAX_ANSWER_BYTES)):
        chunks += chunk
    return bytes(chunks)


REJOIN_POLL_S = 0.5
"""Interval at which the folder of a controller is checked while it waits for a rejoin."""

_log = logging.getLogger("node.up")


class NodeProcess:
    """A node that is kept running until it is stopped. Owned by the supervisor's loop and its task.

    ``pid`` is None exactly while no process of this node lives. ``exit_status`` is that of the last
    process: the exit code, or minus the signal.
    """

    def __init__(
        self,
        entry: NodeEntry,
        *,
        clock: Clock,
        environment: Mapping[str, str],
        restart: bool,
        restore: Callable[[NodeEntry], None],
        changed: Callable[[NodeEntry, int | None], None],
    ) -> None:
        self.entry = entry
        self.pid: int | None = None
        self.exit_status: int | None = None
        self._clock = clock
        self._environment = environment
        self._restart = restart
        self._restore = restore
        self._changed = changed
        self._policy = RestartPolicy()
        self._last_storage_error = ""
        """Last line logged before the last exit because of storage; not logged twice."""
        self._stopping = asyncio.Event()
        self._down = asyncio.Event()
        self._down.set()

    async def keep_running(self) -> None:
        """Start the node, and again whenever it ends; return once it is to be stopped."""
        while not self._stopping.is_set():
            try:
                lived_ms = await self._run_once()
            except (OSError, NodeExit) as error:
                lived_ms = 0
                _log.error("can't start %s error=%s", self.entry.name, error)
            if self._stopping.is_set():
                return
            if not self._restart:
                _log.warning("%s stays down (--no-restart)", self.entry.name)
                await self._stopping.wait()
            elif self._waits_for_rejoin:
                await self._wait_for_rejoin()
            else:
                delay_ms, self._policy = self._policy.after_death(lived_ms)
                _log.warning("starting %s again delay_ms=%s", self.entry.name, delay_ms)
                await self._pause(delay_ms / 1000)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one; from now on it is not started again."""
        self._stopping.set()
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    async def wait_down(self) -> None:
        """Return once no process of this node lives."""
        await self._down.wait()

    def last_log_line(self) -> str:
        """Return the last line of the node's log, which states why it ended."""
        with contextlib.suppress(OSError):
            lines = self.entry.log.read_bytes()[-4096:].decode(errors="replace").splitlines()
            return lines[-1].strip() if lines else ""
        return ""

    async def _run_once(self) -> int:
        """Run the process once; return its lifetime in milliseconds."""
        self._restore(self.entry)
        started_ms = self._clock.monotonic_ms()
        with self.entry.log.open("ab") as log:
            # forked by the main thread: the parent-death signal is tied to it
            process = await asyncio.create_subprocess_exec(
                *node_command(self.entry),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._node_environment(),
                start_new_session=True,  # a terminal's Ctrl-C reaches only the supervisor
            )
        self.pid = process.pid
        self._down.clear()
        self._changed(self.entry, self.pid)
        if self._stopping.is_set():  # the stop came while the process was being started
            self.signal(signal.SIGTERM)
        try:
            self.exit_status = await process.wait()
        except asyncio.CancelledError:  # the supervisor itself has failed: leave no orphan
            process.kill()
            raise
        finally:
            self.pid = None
            self._down.set()
            self._changed(self.entry, None)
        lived_ms = self._clock.monotonic_ms() - started_ms
        if (
            self.exit_status == EXIT_STORAGE
            and (said := self.last_log_line()) != self._last_storage_error
        ):
            self._last_storage_error = said  # logged once: each new start would log the same
            _log.error("%s says: %s", self.entry.name, said.removeprefix("quorumlog: "))
        level = logging.INFO if self._stopping.is_set() else logging.WARNING
        _log.log(
            level,
            "%s ended exit=%s lived_ms=%s log=%s",
            *(self.entry.name, describe_exit(self.exit_status), lived_ms, self.entry.log),
        )
        return lived_ms

    @property
    def _waits_for_rejoin(self) -> bool:
        """True for a controller without its folder: it is never started from nothing (rule Q4)."""
        return (
            self.entry.role == "controller"
            and self.exit_status == EXIT_STORAGE
            and not is_formatted_controller(self.entry.config.parent)
        )

    async def _wait_for_rejoin(self) -> None:
        raft_dir = self.entry.config.parent / RAFT_FOLDER
        _log.error(
            "%s stays down until `%s` is said",
            *(self.entry.name, rejoin_commands(raft_dir, self.entry.config)),
        )
        while not is_formatted_controller(self.entry.config.parent):
            await self._pause(REJOIN_POLL_S)
            if self._stopping.is_set():
                return
        _log.info("%s rejoins with a new disk", self.entry.name)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    def _node_environment(self) -> dict[str, str]:
        root = str(Path(__file__).resolve().parents[2])
        path = self._environment.get("PYTHONPATH")
        return {
            **self._environment,
            "PYTHONPATH": root if not path else f"{root}{os.pathsep}{path}",
            SUPERVISOR_VARIABLE: str(os.getpid()),
        }


def node_command(entry: NodeEntry) -> list[str]:
    """Return the command that starts the node by hand."""
    return [sys.executable, "-m", "http_api.cli", entry.role, "--config", str(entry.config)]


def describe_exit(status: int) -> str:
    """Return ``74``, or ``SIGKILL`` for a process that a signal ended."""
    if status >= 0:
        return str(status)
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"
