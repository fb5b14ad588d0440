"""``cluster.json`` and the addresses in it: nodes and state of a local cluster (interfaces.md §2).

`quorumlog up` writes the file and other commands read it. Each write is a rename, so a reader sees
one complete state. ``pid`` is null while a node is down. Addresses follow a fixed scheme, or are
free ports, which no other `quorumlog up` chooses; `first_in_use` checks that they can be opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from http_api.node.exits import EXIT_STORAGE, NodeConfigError, NodeExit
from http_api.node.node_config import Address, parse_address
from raft_metadata.common.disk import Disk, replace_file
from raft_metadata.common.ids import ClusterId
from raft_metadata.common.local_ports import LOOPBACK, free_port, is_free

FIRST_CONTROLLER_ID = 101
MAX_BROKERS = FIRST_CONTROLLER_ID - 1
"""Most brokers: their ids end where controller ids begin, so an id is unique over both roles."""
CONTROLLER_COUNTS = (1, 3, 5, 7)
"""Accepted numbers of controllers; an even number tolerates no more failures than the odd number
below it."""
DEFAULT_PORT = 8082
PEER_OFFSET = 1_000
CONTROLLER_HTTP_OFFSET = 2_000
RAFT_OFFSET = 3_000
MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class NodeAddresses:
    """A node's listeners: ``inner`` is a broker's peer listener or a controller's Raft listener."""

    role: str
    node_id: int
    http: Address
    inner: Address

    @property
    def name(self) -> str:
        return f"{self.role}-{self.node_id}"


def scheme_addresses(role: str, index: int, base: int) -> NodeAddresses:
    """Return addresses by the fixed scheme of interfaces.md §1; ``index`` counts a role from 0."""
    if role == "broker":
        node_id, http, inner = index + 1, base + index, base + PEER_OFFSET + index
    else:
        node_id = FIRST_CONTROLLER_ID + index
        # Controller 101 has index 0: its ports end in the index, like those of broker 1.
        http, inner = base + CONTROLLER_HTTP_OFFSET + index, base + RAFT_OFFSET + index
    if inner > MAX_PORT:
        msg = f"--port {base}: {role} {node_id} would need port {inner}, above {MAX_PORT}"
        raise NodeConfigError(msg)
    return NodeAddresses(role, node_id, Address(LOOPBACK, http), Address(LOOPBACK, inner))


def free_addresses(role: str, index: int, taken: set[int]) -> NodeAddresses:
    """Return two free ports of this machine, and add them to ``taken``."""
    node_id = index + 1 if role == "broker" else FIRST_CONTROLLER_ID + index
    try:
        ports = [free_port(taken) for _ in range(2)]
    except OSError as error:
        raise NodeConfigError(error.strerror or str(error)) from error
    taken.update(ports)
    http, inner = (Address(LOOPBACK, port) for port in ports)
    return NodeAddresses(role, node_id, http, inner)


def first_in_use(nodes: Iterable[NodeAddresses]) -> tuple[NodeAddresses, Address] | None:
    """Return the first listener of ``nodes`` that cannot be opened, with its node, or None."""
    for node in nodes:
        for address in (node.http, node.inner):
            if not is_free(address.host, address.port):
                return node, address
    return None


CLUSTER_FILE = "cluster.json"


class ClusterState(Enum):
    """State of a local cluster; after a crash of the supervisor the last written state remains."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEntry:
    """A node of the cluster. ``url`` is for clients, ``inner`` the peer or the Raft address."""

    role: str
    node_id: int
    url: str
    inner: Address
    config: Path
    log: Path
    pid: int | None = None

    @property
    def name(self) -> str:
        return f"{self.role}-{self.node_id}"

    @property
    def addresses(self) -> NodeAddresses:
        """Addresses of the node's listeners, as far as this file has them."""
        http = parse_address(self.url.partition("://")[2], f"{CLUSTER_FILE}: {self.name}.url")
        return NodeAddresses(self.role, self.node_id, http, self.inner)

    def to_json(self) -> dict[str, object]:
        return {
            "id": self.node_id,
            "pid": self.pid,
            "url": self.url,
            "peer" if self.role == "broker" else "raft": str(self.inner),
            "config": str(self.config),
            "log": str(self.log),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterDescription:
    """The content of the file. Immutable."""

    cluster_id: ClusterId
    state: ClusterState
    supervisor_pid: int | None
    controllers: tuple[NodeEntry, ...]
    brokers: tuple[NodeEntry, ...]

    @property
    def nodes(self) -> tuple[NodeEntry, ...]:
        return self.controllers + self.brokers

    def with_pid(self, name: str, pid: int | None) -> ClusterDescription:
        """Return a copy with another pid of one node; None: it is down."""

        def change(entries: tuple[NodeEntry, ...]) -> tuple[NodeEntry, ...]:
            return tuple(replace(e, pid=pid) if e.name == name else e for e in entries)

        return replace(self, controllers=change(self.controllers), brokers=change(self.brokers))

    def all_down(self, state: ClusterState, supervisor_pid: int | None) -> ClusterDescription:
        """Return a copy in which no node runs."""
        return replace(
            self,
            state=state,
            supervisor_pid=supervisor_pid,
            controllers=tuple(replace(entry, pid=None) for entry in self.controllers),
            brokers=tuple(replace(entry, pid=None) for entry in self.brokers),
        )


def write_cluster_file(data_dir: Path, description: ClusterDescription) -> None:
    """Replace the file durably."""
    content = {
        "cluster_id": description.cluster_id,
        "state": description.state.value,
        "supervisor": {"pid": description.supervisor_pid},
        "controllers": [entry.to_json() for entry in description.controllers],
        "brokers": [entry.to_json() for entry in description.brokers],
    }
    text = json.dumps(content, indent=2) + "\n"
    replace_file(Disk(), str(data_dir / CLUSTER_FILE), [text.encode()])


def read_cluster_file(data_dir: Path) -> ClusterDescription | None:
    """Return the directory's cluster, or None if there is none; a damaged file is exit 74."""
    path = data_dir / CLUSTER_FILE
    try:
        content = json.loads(path.read_bytes())
        return ClusterDescription(
            cluster_id=ClusterId(str(content["cluster_id"])),
            state=ClusterState(content["state"]),
            supervisor_pid=content["supervisor"]["pid"],
            controllers=tuple(
                _entry_of_json("controller", e, data_dir) for e in content["controllers"]
            ),
            brokers=tuple(_entry_of_json("broker", e, data_dir) for e in content["brokers"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, NodeConfigError) as error:
        msg = f"{path} is damaged: {error!r}"
        raise NodeExit(EXIT_STORAGE, msg) from None


def _entry_of_json(role: str, content: dict[str, Any], data_dir: Path) -> NodeEntry:
    """Return a node's entry, with paths from the data directory: the folder may have been moved."""
    return make_entry(
        data_dir,
        role,
        int(content["id"]),
        url=str(content["url"]),
        inner=parse_address(content["peer" if role == "broker" else "raft"], CLUSTER_FILE),
        pid=content["pid"],
    )


def make_entry(
    data_dir: Path, role: str, node_id: int, *, url: str, inner: Address, pid: int | None = None
) -> NodeEntry:
    """Return an entry whose paths follow the layout of interfaces.md §2."""
    name = f"{role}-{node_id}"
    return NodeEntry(
        role=role,
        node_id=node_id,
        url=url,
        inner=inner,
        config=data_dir / name / "config.toml",
        log=data_dir / "logs" / f"{name}.log",
        pid=pid,
    )
