"""Supervisor of a whole local cluster, run by ``quorumlog up`` (interfaces.md §1, §2).

One process, one loop. `run_up` prepares the cluster (`cluster_plan`) and runs a
`ClusterSupervisor`, which owns a `NodeProcess` per node and the file ``cluster.json``; it has no
listener and decides nothing about data. If it dies, the nodes die within 2 s (``parent_death``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from http_api.node.cluster_file import (
    CLUSTER_FILE,
    ClusterDescription,
    ClusterState,
    NodeAddresses,
    NodeEntry,
    write_cluster_file,
)
from http_api.node.cluster_plan import UpOptions, prepare_cluster
from http_api.node.exits import (
    EXIT_KILLED,
    EXIT_NOT_READY,
    EXIT_OK,
    EXIT_PORT_IN_USE,
    EXIT_USAGE,
    NodeExit,
)
from http_api.node.formatting import listening_addresses, restore_folder
from http_api.node.node_folder import FolderLock
from http_api.node.node_process import NodeProcess, probe
from raft_metadata.common.clock import Clock

READY_WITHIN_S = 60.0
READY_POLL_S = 0.1
BROKERS_STOP_WITHIN_S = 12.5
"""Time for brokers to stop; a controlled shutdown ends after ``controlled_shutdown_ms``, 10 s."""
STOP_WITHIN_S = 14.5
"""Time for all nodes to stop. 15 s are promised; the rest is for the kernel and this process."""
STOPPING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_log = logging.getLogger("node.up")


class ClusterSupervisor:
    """The nodes of one directory, from start to stop. Owned by the loop that runs it."""

    def __init__(
        self,
        options: UpOptions,
        description: ClusterDescription,
        *,
        clock: Clock,
        environment: Mapping[str, str],
        announce: Callable[[ClusterDescription], None],
        waiting: Callable[[int, int], None] = lambda _ready, _brokers: None,
    ) -> None:
        self._options = options
        self._waiting = waiting
        self._description = replace(
            description.all_down(ClusterState.STARTING, os.getpid()), supervisor_pid=os.getpid()
        )
        self._announce = announce
        self._stop = asyncio.Event()
        self._listening: dict[str, NodeAddresses] = {}
        self._nodes = {
            entry.name: NodeProcess(
                entry,
                clock=clock,
                environment=environment,
                restart=options.restart,
                restore=self._restore,
                changed=self._pid_changed,
            )
            for entry in description.nodes
        }

    async def run(self) -> int:
        """Start, announce, supervise, stop; return the exit code, or raise `NodeExit`.

        Raises:
            NodeExit: the cluster was not ready in time, or a node refused to start.
        """
        self._publish()
        with self._stopping_signals():
            async with asyncio.TaskGroup() as group:
                for node in self._nodes.values():
                    group.create_task(node.keep_running(), name=node.entry.name)
                try:
                    problem = await self._until_ready()
                    if problem is None and not self._stop.is_set():
                        self._set_state(ClusterState.READY)
                        self._announce(self._description)
                    if problem is None:
                        await self._stop.wait()
                finally:
                    await self._stop_all()
        if problem is not None:
            raise problem
        return EXIT_OK

    # ------------------------------------------------------------ ready

    async def _until_ready(self) -> NodeExit | None:
        """Return None once ready or stopped; else the exit that ends the attempt."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + READY_WITHIN_S
        brokers = self._description.brokers
        while not self._stop.is_set():
            if (refused := self._refused_start()) is not None:
                return refused
            missing = await self._missing()
            if not missing:
                self._waiting(len(brokers), len(brokers))
                return None
            late = sum(line.startswith("broker-") for line in missing)
            self._waiting(len(brokers) - late, len(brokers))
            if loop.time() >= deadline:
                lines = "".join(f"\n  {line}" for line in missing)
                msg = f"not ready after {READY_WITHIN_S:.0f} s, missing:{lines}"
                return NodeExit(EXIT_NOT_READY, msg)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(READY_POLL_S):
                    await self._stop.wait()
        return None

    def _refused_start(self) -> NodeExit | None:
        """Return the exit for a node that refused its configuration or found its port in use.

        Such a node would refuse again at every start.
        """
        for node in self._nodes.values():
            if node.pid is None and node.exit_status in (EXIT_USAGE, EXIT_PORT_IN_USE):
                msg = f"{node.entry.name} refused to start: {node.last_log_line()}"
                return NodeExit(node.exit_status, f"{msg} (log: {node.entry.log})")
        return None

    async def _missing(self) -> list[str]:
        """Return the reasons why the cluster is not ready, a line each, with the log to read."""
        brokers = [node for node in self._nodes.values() if node.entry.role == "broker"]
        async with asyncio.TaskGroup() as group:
            checks = [group.create_task(self._broker_problem(node)) for node in brokers]
        missing = [problem for look in checks if (problem := look.result()) is not None]
        if missing:
            missing += [
                f"{node.entry.name}: not running, see {node.entry.log}"
                for node in self._nodes.values()
                if node.entry.role == "controller" and node.pid is None
            ]
        return missing

    async def _broker_problem(self, node: NodeProcess) -> str | None:
        """Return None if the broker is ready and knows an active controller; else the reason."""
        entry = node.entry
        if node.pid is None:
            return f"{entry.name}: not running, see {entry.log}"
        address = self._address_of(entry).http
        answer = await probe(address, "/readyz")
        if answer is None:
            return f"{entry.name}: no answer at {address}, see {entry.log}"
        if answer.status != 200:
            reasons = answer.body.decode(errors="replace").strip().replace("\n", "; ")
            return f"{entry.name}: {reasons or answer.status}, see {entry.log}"
        clusters = await probe(address, "/v3/clusters")
        if clusters is None or _controller_id(clusters.body) is None:
            return f"{entry.name}: knows no active controller, see {entry.log}"
        return None

    # ------------------------------------------------------------ stop

    async def _stop_all(self) -> None:
        """Stop brokers first, so that controllers can still move their leaderships (rule R11)."""
        self._set_state(ClusterState.STOPPING)
        loop = asyncio.get_running_loop()
        started = loop.time()
        brokers = [node for node in self._nodes.values() if node.entry.role == "broker"]
        controllers = [node for node in self._nodes.values() if node.entry.role == "controller"]
        await _stop_nodes(brokers, started + BROKERS_STOP_WITHIN_S)
        await _stop_nodes(controllers, started + STOP_WITHIN_S)
        self._description = self._description.all_down(ClusterState.STOPPED, None)
        self._publish()

    @contextlib.contextmanager
    def _stopping_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in STOPPING_SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        try:
            yield
        finally:
            for number in STOPPING_SIGNALS:
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            _log.warning("second signal %s: killing every node", number.name)
            for node in self._nodes.values():
                node.signal(signal.SIGKILL)
            self._description = self._description.all_down(ClusterState.STOPPING, None)
            self._publish()
            logging.shutdown()
            os._exit(EXIT_KILLED)
        _log.info("stopping on %s; a second signal kills at once", number.name)
        self._stop.set()

    # ------------------------------------------------------------ cluster.json

    def _set_state(self, state: ClusterState) -> None:
        self._description = replace(self._description, state=state)
        self._publish()
        _log.info("cluster is %s", state.value)

    def _pid_changed(self, entry: NodeEntry, pid: int | None) -> None:
        self._description = self._description.with_pid(entry.name, pid)
        self._publish()

    def _publish(self) -> None:
        """Write ``cluster.json``; failures are only logged: a full disk must stop no node."""
        try:
            write_cluster_file(self._options.data_dir, self._description)
        except OSError as error:
            _log.error("can't write %s error=%s", CLUSTER_FILE, error)

    def _restore(self, entry: NodeEntry) -> None:
        restore_folder(self._options.data_dir, self._description, entry)

    def _address_of(self, entry: NodeEntry) -> NodeAddresses:
        if entry.name not in self._listening:
            self._listening[entry.name] = listening_addresses(entry)
        return self._listening[entry.name]


async def _stop_nodes(nodes: list[NodeProcess], deadline: float) -> None:
    """Send SIGTERM to all, wait until ``deadline`` (loop time), then kill those still running."""
    for node in nodes:
        node.signal(signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(deadline):
            for node in nodes:
                await node.wait_down()
    for node in nodes:
        if node.pid is not None:
            _log.warning("%s did not stop in time, killing it pid=%s", node.entry.name, node.pid)
            node.signal(signal.SIGKILL)
    for node in nodes:
        await node.wait_down()


def _controller_id(body: bytes) -> int | None:
    try:
        found = json.loads(body)["data"][0]["controller_id"]
    except (ValueError, KeyError, IndexError, TypeError):
        return None
    return found if isinstance(found, int) else None


def ready_text(description: ClusterDescription) -> str:
    """Return the line that scripts wait for, one for the shell, and a command to try.

    The format is that of interfaces.md §1.
    """
    urls = [entry.url for entry in description.brokers]
    curl = "curl -H 'Content-Type: application/json'"
    curl += """ -d '{"records":[{"value":"hello"}]}' """
    return (
        f"quorumlog ready {' '.join(urls)}\n"
        f"export QUORUMLOG_URL={','.join(urls)}\n"
        f"{curl}{urls[0]}/topics/first\n"
    )


def ready_json(description: ClusterDescription) -> str:
    """Return the same facts for programs, on one line."""
    urls = [entry.url for entry in description.brokers]
    return json.dumps({"state": "ready", "cluster_id": description.cluster_id, "urls": urls}) + "\n"


def run_up(
    options: UpOptions,
    clock: Clock,
    environment: Mapping[str, str],
    form: str,
    waiting: Callable[[int, int], None] = lambda _ready, _brokers: None,
) -> int:
    """Run ``quorumlog up``; return the exit code or raise `NodeExit`.

    ``waiting`` is called with the number of ready brokers, and of all, until all are ready.
    """

    def announce(description: ClusterDescription) -> None:
        sys.stdout.write((ready_json if form == "json" else ready_text)(description))
        sys.stdout.flush()

    async def supervise() -> int:
        lock = FolderLock(options.data_dir / "lock")
        description = await prepare_cluster(options, environment, lock)
        _log.info(
            "starting cluster_id=%s nodes=%s state in %s",
            *(description.cluster_id, len(description.nodes), options.data_dir / CLUSTER_FILE),
        )
        cluster = ClusterSupervisor(
            options,
            description,
            clock=clock,
            environment=environment,
            announce=announce,
            waiting=waiting,
        )
        try:
            return await cluster.run()
        finally:
            lock.release()

    return asyncio.run(supervise())


def run_format(options: UpOptions, environment: Mapping[str, str], form: str) -> int:
    """Run ``up --format-only``: folders, ports and ``cluster.json`` of a cluster, nothing started.

    Edits of a ``config.toml`` after this (``[dial]``, ``[advertised]``) hold from the first start.
    """
    lock = FolderLock(options.data_dir / "lock")
    try:
        description = asyncio.run(prepare_cluster(options, environment, lock))
        write_cluster_file(options.data_dir, description.all_down(ClusterState.STOPPED, None))
    finally:
        lock.release()
    if form == "json":
        said = {"cluster_id": description.cluster_id, "data_dir": str(options.data_dir)}
        sys.stdout.write(json.dumps(said) + "\n")
    else:
        sys.stdout.write(f"quorumlog formatted {options.data_dir}\n")
    return EXIT_OK
