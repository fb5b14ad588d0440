"""Free ports of this machine for servers that are started a moment later.

A port is chosen below the kernel's range for outgoing connections: one of that range could belong
to a connection just when its server starts again. It is reserved under the name of an abstract Unix
socket (unix(7)), so that of all processes that choose here no two choose the same one, though
seconds pass until the server listens, and it may be down later. The kernel frees the names with the
process, however that ends.
"""

from __future__ import annotations

import errno
import itertools
import secrets
import socket
from collections.abc import Collection
from pathlib import Path
from typing import Final

LOOPBACK: Final = "127.0.0.1"
PORTS_FROM: Final = 10_240
EPHEMERAL_RANGE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
USUAL_EPHEMERAL_START: Final = 32_768

_reserved: list[socket.socket] = []
"""Sockets with the names of the reserved ports, open as long as this process lives."""


def reserve(port: int) -> bool:
    """Keep other processes from choosing a port; False if one has reserved it, or this one."""
    name = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        name.bind(f"\0quorumlog-port-{port}")
    except OSError:
        name.close()
        return False
    _reserved.append(name)
    return True


def is_free(host: str, port: int) -> bool:
    """Return True if a listener could be opened now; one in TIME_WAIT does not count as in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def free_port(besides: Collection[int] = ()) -> int:
    """Return a random free port, reserved from now on.

    Raises:
        OSError: EADDRINUSE, there is none but those named by ``besides``.
    """
    try:
        end = int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        end = USUAL_EPHEMERAL_START
    candidates = range(PORTS_FROM, max(end, PORTS_FROM + 1_000))
    first = secrets.randbelow(len(candidates))
    for port in itertools.chain(candidates[first:], candidates[:first]):
        if port not in besides and reserve(port) and is_free(LOOPBACK, port):
            return port
    msg = f"no free port between {candidates.start} and {candidates.stop}"
    raise OSError(errno.EADDRINUSE, msg)
