"""``cluster.json``: the nodes and the state of a local cluster (interfaces.md §2).

`quorumlog up` writes the file and other commands read it. Each write is a rename, so a reader sees
one complete state. ``pid`` is null while a node is down.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from http_api.node.config import Address, parse_address
from http_api.node.durable_files import write_durably
from http_api.node.exits import EXIT_STORAGE, ConfigError, NodeExit
from http_api.node.ports import NodeAddresses
from raft_metadata.common.ids import ClusterId

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
    write_durably(data_dir / CLUSTER_FILE, text.encode())


def read_cluster_file(data_dir: Path) -> ClusterDescription | None:
    """Return the directory's cluster, or None if there is none; a damaged file is exit 74."""
    path = data_dir / CLUSTER_FILE
    try:
        content = json.loads(path.read_bytes())
        return ClusterDescription(
            cluster_id=ClusterId(str(content["cluster_id"])),
            state=ClusterState(content["state"]),
            supervisor_pid=content["supervisor"]["pid"],
            controllers=tuple(_entry("controller", e, data_dir) for e in content["controllers"]),
            brokers=tuple(_entry("broker", e, data_dir) for e in content["brokers"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, ConfigError) as error:
        msg = f"{path} is damaged: {error!r}"
        raise NodeExit(EXIT_STORAGE, msg) from None


def _entry(role: str, content: dict[str, Any], data_dir: Path) -> NodeEntry:
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
