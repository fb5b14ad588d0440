"""Plan of a local cluster, from the arguments of ``quorumlog up`` and the directory's content.

`prepare_cluster` is called before anything is started, and refuses everything that can be refused
before anything is written: numbers that contradict the directory (exit 2), a port in use (69), a
directory in use (75).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from http_api.node.cluster_file import (
    CONTROLLER_COUNTS,
    DEFAULT_PORT,
    MAX_BROKERS,
    MAX_PORT,
    ClusterDescription,
    ClusterState,
    NodeAddresses,
    first_in_use,
    free_addresses,
    read_cluster_file,
    scheme_addresses,
)
from http_api.node.exits import EXIT_PORT_IN_USE, EXIT_STORAGE, NodeConfigError, NodeExit
from http_api.node.formatting import (
    add_brokers,
    format_new_cluster,
    listening_addresses,
    parse_overrides,
)
from http_api.node.node_config import (
    SECTIONS,
    Address,
    SettingValue,
    load_node_config,
    overlay_environment,
)
from http_api.node.node_folder import FolderLock, make_directory
from raft_metadata.common.local_ports import reserve

DEFAULT_CONTROLLERS = 3
DEFAULT_BROKERS = 3
PORTS_FREED_WITHIN_S = 5.0
"""Longest wait for the ports of earlier nodes; they end within 2 s of their supervisor's death."""

_log = logging.getLogger("node.up")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """The arguments of ``quorumlog up``. None: not given; the directory's number, else 3."""

    data_dir: Path
    controllers: int | None = None
    brokers: int | None = None
    port: int | None = None
    restart: bool = True
    overrides: tuple[str, ...] = ()


def check_numbers(options: UpOptions) -> None:
    """Refuse numbers that no cluster can have."""
    if options.controllers is not None and options.controllers not in CONTROLLER_COUNTS:
        expected = ", ".join(str(count) for count in CONTROLLER_COUNTS)
        msg = f"--controllers {options.controllers}: expected one of {expected}"
        raise NodeConfigError(msg)
    if options.brokers is not None and not 1 <= options.brokers <= MAX_BROKERS:
        msg = f"--brokers {options.brokers}: expected 1 to {MAX_BROKERS}"
        raise NodeConfigError(msg)
    if options.port is not None and not 0 <= options.port <= MAX_PORT:
        msg = f"--port {options.port}: expected 0 to {MAX_PORT}"
        raise NodeConfigError(msg)


def check_same_cluster(options: UpOptions, held: ClusterDescription) -> None:
    """Refuse numbers that differ from the directory's; more brokers are accepted."""
    if options.controllers not in (None, len(held.controllers)):
        msg = f"--controllers {options.controllers}: {options.data_dir} holds a cluster with"
        msg += f" {len(held.controllers)} controllers, which can't be changed"
        raise NodeConfigError(msg)
    if options.brokers is not None and options.brokers < len(held.brokers):
        msg = f"--brokers {options.brokers}: {options.data_dir} holds a cluster with"
        msg += f" {len(held.brokers)} brokers, and brokers are not removed"
        raise NodeConfigError(msg)
    first = listening_addresses(held.brokers[0]).http.port
    if options.port not in (None, 0, first):
        msg = f"--port {options.port}: {options.data_dir} holds a cluster on port {first}"
        raise NodeConfigError(msg)


def plan_new(options: UpOptions) -> tuple[list[NodeAddresses], list[NodeAddresses]]:
    """Return the controllers and brokers of a new cluster, with their ports."""
    counts = {
        "controller": DEFAULT_CONTROLLERS if options.controllers is None else options.controllers,
        "broker": DEFAULT_BROKERS if options.brokers is None else options.brokers,
    }
    base = DEFAULT_PORT if options.port is None else options.port
    taken: set[int] = set()
    planned = {
        role: [
            scheme_addresses(role, index, base) if base else free_addresses(role, index, taken)
            for index in range(count)
        ]
        for role, count in counts.items()
    }
    return planned["controller"], planned["broker"]


def plan_added(count: int, present: Sequence[NodeAddresses]) -> list[NodeAddresses]:
    """Return addresses for added brokers: by the fixed scheme if all present nodes follow it."""
    brokers = [node for node in present if node.role == "broker"]
    base = brokers[0].http.port
    follows = all(node == scheme_addresses(node.role, _index(node), base) for node in present)
    taken = {address.port for node in present for address in (node.http, node.inner)}
    return [
        scheme_addresses("broker", index, base)
        if follows
        else free_addresses("broker", index, taken)
        for index in range(len(brokers), count)
    ]


def _index(node: NodeAddresses) -> int:
    return (node.node_id - 1) % MAX_BROKERS


async def prepare_cluster(
    options: UpOptions, environment: Mapping[str, str], lock: FolderLock
) -> ClusterDescription:
    """Return the directory's cluster, formatted first if new, with every port checked as free.

    Acquires ``lock`` before it reads the directory (rule Q4).
    """
    check_numbers(options)
    overrides = parse_overrides(options.overrides)
    try:
        make_directory(options.data_dir / "logs")
    except OSError as error:
        msg = f"can't make {options.data_dir}: {error.strerror}"
        raise NodeExit(EXIT_STORAGE, msg) from error
    lock.acquire(str(options.data_dir))
    overlay_environment({section: {} for section in SECTIONS}, environment)
    held = read_cluster_file(options.data_dir)
    if held is None:
        controllers, brokers = plan_new(options)
        await check_ports([*controllers, *brokers], wait_s=0.0)
        _log.info(
            "making a new cluster data_dir=%s controllers=%s brokers=%s",
            *(options.data_dir, len(controllers), len(brokers)),
        )
        description = format_new_cluster(options.data_dir, controllers, brokers, overrides)
    else:
        check_same_cluster(options, held)
        description = await _prepare_existing(options, held, overrides)
    for entry in description.nodes:
        if entry.config.exists():
            load_node_config(entry.config, environment)
    return description


async def _prepare_existing(
    options: UpOptions, held: ClusterDescription, overrides: Mapping[str, SettingValue]
) -> ClusterDescription:
    present = [listening_addresses(entry) for entry in held.nodes]
    for node in present:
        for address in (node.http, node.inner):
            reserve(address.port)  # a node that is down keeps its ports
    added = plan_added(options.brokers or 0, present)
    clean = held.state is ClusterState.STOPPED
    await check_ports(present, wait_s=0.0 if clean else PORTS_FREED_WITHIN_S)
    await check_ports(added, wait_s=0.0)
    if overrides and not added:
        _log.warning("--set is for nodes made now, and none is made: edit the config.toml files")
    if not added:
        return held
    _log.info("adding brokers %s", [node.name for node in added])
    return add_brokers(options.data_dir, held, added, overrides)


async def check_ports(nodes: Sequence[NodeAddresses], wait_s: float) -> None:
    """Exit with 69 if a listener cannot be opened, and still cannot ``wait_s`` seconds later."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    while (found := first_in_use(nodes)) is not None:
        if loop.time() >= deadline:
            raise _in_use(*found)
        await asyncio.sleep(0.05)


def _in_use(node: NodeAddresses, address: Address) -> NodeExit:
    msg = f"port {address.port} is in use, {node.name} needs {address}:"
    msg += " stop what listens there, or choose another --port (0 picks free ones)"
    return NodeExit(EXIT_PORT_IN_USE, msg)
