"""Where to dial a node: its advertised ``host:port``, unless this node has its own way to it."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import TypeVar

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

KEEPALIVE_IDLE_S = 30
KEEPALIVE_INTERVAL_S = 10
KEEPALIVE_PROBES = 3
"""A peer that vanished without a word (power, cable) is given up after about a minute."""

_Id = TypeVar("_Id", bound=int)


def split_address(address: str) -> tuple[str, int]:
    """``host:port`` or ``[v6]:port`` in two. INVALID_CONFIG names what can't be read."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"expected host:port, got {address!r}",
            outcome=Outcome.NOT_WRITTEN,
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def dial_address(node_id: _Id, advertised: str, dial: Mapping[_Id, str]) -> str:
    """This node's own way to the target, else the advertised one: a proxy fits on any link."""
    return dial.get(node_id, advertised)


def tune_socket(sock: socket.socket | None) -> None:
    """No Nagle delay on small frames; dead peers are found by keep-alive probes."""
    if sock is None or sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)
