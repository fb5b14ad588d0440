"""Exit of a node's process: one exception, the exit codes of interfaces.md §1."""

from __future__ import annotations

import errno

from raft_metadata.common.faults import EXIT_BROKEN_INVARIANT as EXIT_BROKEN_INVARIANT
from raft_metadata.common.faults import EXIT_STORAGE as EXIT_STORAGE

EXIT_OK = 0
EXIT_NOT_READY = 1
EXIT_USAGE = 2
EXIT_PORT_IN_USE = 69
EXIT_LOCKED = 75
EXIT_KILLED = 130


class NodeExit(Exception):  # noqa: N818 it ends a process; it is not always an error
    """The end of the process with an exit code; the message is written once, to standard error."""

    def __init__(self, code: int, message: str, *, is_damage: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.is_damage = is_damage
        """True if the folder's content is lost or damaged, so that starting again cannot help."""


class NodeConfigError(NodeExit):
    """An invalid key or value; the message names the key, the value and the expectation."""

    def __init__(self, message: str) -> None:
        super().__init__(EXIT_USAGE, message)


def port_in_use(address: str, holder: str, error: OSError) -> NodeExit:
    """Return the exit for a listener that cannot be opened at ``address``."""
    if error.errno == errno.EADDRINUSE:
        port = address.rpartition(":")[2]
        return NodeExit(EXIT_PORT_IN_USE, f"port {port} is in use: {holder} can't bind {address}")
    return NodeConfigError(f"{holder} can't bind {address}: {error.strerror or error}")
