"""Addresses of a local cluster's nodes, and checks that their ports are free."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from http_api.node.config import Address
from http_api.node.exits import ConfigError

LOOPBACK = "127.0.0.1"
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

_FREE_PORTS_FROM = 10_240
_EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_USUAL_EPHEMERAL_START = 32_768


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
        raise ConfigError(msg)
    return NodeAddresses(role, node_id, Address(LOOPBACK, http), Address(LOOPBACK, inner))


def free_addresses(role: str, index: int, taken: set[int]) -> NodeAddresses:
    """Return two free ports of this machine, and add them to ``taken``."""
    node_id = index + 1 if role == "broker" else FIRST_CONTROLLER_ID + index
    http, inner = (Address(LOOPBACK, _free_port(taken)) for _ in range(2))
    return NodeAddresses(role, node_id, http, inner)


def _free_port(taken: set[int]) -> int:
    """Return a random free port below the kernel's range for outgoing connections.

    A port of that range could belong to an outgoing connection of another process when the node
    starts again.
    """
    try:
        end = int(_EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = _USUAL_EPHEMERAL_START
    candidates = range(_FREE_PORTS_FROM, max(end, _FREE_PORTS_FROM + 1_000))
    for port in random.sample(candidates, len(candidates)):
        if port not in taken and is_free(Address(LOOPBACK, port)):
            taken.add(port)
            return port
    msg = f"no free port between {candidates.start} and {candidates.stop}"
    raise ConfigError(msg)


def is_free(address: Address) -> bool:
    """Return True if a listener could be opened now; one in TIME_WAIT does not count as in use."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def first_in_use(nodes: Iterable[NodeAddresses]) -> tuple[NodeAddresses, Address] | None:
    """Return the first listener of ``nodes`` that cannot be opened, with its node, or None."""
    for node in nodes:
        for address in (node.http, node.inner):
            if not is_free(address):
                return node, address
    return None
