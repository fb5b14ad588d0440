"""Limits of a listener's connections: how many there may be, and how long one may keep silent.

`HttpServer` accepts connections as `Doorkeeper`, which asks the `ConnectionGate` and only then
makes the handler of HTTP, so one connection too many costs its socket for a moment and no more.
`ReaderWatch` closes a connection whose client takes nothing of an answer. The deadlines of heads
are in `lane_connection.py`, beside the parser.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import resource
import sys
import termios
from collections import Counter
from typing import TYPE_CHECKING, Final, cast

from typing_extensions import override

from http_api.server.request_site import peer_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.config import BrokerLimits
    from http_api.contract.forwarding import TrustedProxies
    from raft_metadata.common.standstills import Standstills

_log = logging.getLogger("http_api.server")

REPORT_INTERVAL_S: Final = 60.0
"""Refused connections are logged at once, then together after this time."""
CONNECTIONS_MIN: Final = 1
"""Fewest connections, however few files the process may open."""


def open_files_max() -> int | None:
    """Return how many files this process may open; None: as many as it likes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


class ConnectionGate:
    """Count of a listener's open connections, in all and by address. Owner: `HttpServer`'s loop.

    Connections of trusted proxies are counted in all only, because each stands for many clients.
    """

    def __init__(
        self, limits: BrokerLimits, proxies: TrustedProxies, open_files: int | None = None
    ) -> None:
        half = limits.max_connections if open_files is None else open_files // 2
        self.most = max(CONNECTIONS_MIN, min(limits.max_connections, half))
        """Most connections at a time."""
        self._most_per_ip = limits.max_connections_per_ip
        self._proxies = proxies
        self.open = 0
        """Open connections."""
        self._by_ip: Counter[str] = Counter()
        """Open connections of each address that has any, without trusted proxies."""
        self.refused = 0
        """Connections refused since the start."""
        self._reported = 0
        self._timer: asyncio.TimerHandle | None = None
        """Runs while refusals are collected for the next line of the log."""

    @property
    def addresses(self) -> int:
        """Number of addresses that have connections, without trusted proxies."""
        return len(self._by_ip)

    def enter(self, host: str) -> bool:
        """Count a new connection from this address; False: refuse it."""
        if self.open >= self.most:
            self._refuse(f"max_connections={self.most} are open")
            return False
        if not self._proxies.includes(host):
            if self._by_ip[host] >= self._most_per_ip:
                self._refuse(f"max_connections_per_ip={self._most_per_ip} are open from {host}")
                return False
            self._by_ip[host] += 1
        self.open += 1
        return True

    def leave(self, host: str) -> None:
        """Count a connection that `enter` let in as closed."""
        self.open -= 1
        if self._by_ip[host] > 1:
            self._by_ip[host] -= 1
        else:
            del self._by_ip[host]

    def stop(self) -> None:
        """Log what is not logged yet, and no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._report()

    def _refuse(self, why: str) -> None:
        self.refused += 1
        if self._timer is None:
            _log.warning("connection refused reason='%s' open=%s", why, self.open)
            self._reported = self.refused
            self._collect()

    def _collect(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(REPORT_INTERVAL_S, self._minute_passed)

    def _minute_passed(self) -> None:
        self._timer = None
        if self._report():
            self._collect()

    def _report(self) -> int:
        """Log the refusals that are not logged yet; return how many there are."""
        count = self.refused - self._reported
        if count:
            _log.warning("connections refused count=%s open=%s", count, self.open)
        self._reported = self.refused
        return count


class Doorkeeper(asyncio.Protocol):
    """First protocol of a connection: closes it, or hands it to the handler of HTTP at once.

    Owned by its transport, for that moment.
    """

    __slots__ = ("_gate", "_open", "_standstills")

    def __init__(
        self,
        gate: ConnectionGate,
        standstills: Standstills,
        open_: Callable[[str], asyncio.Protocol],
    ) -> None:
        self._gate = gate
        self._standstills = standstills
        self._open = open_

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        host = peer_host(transport.get_extra_info("peername"))
        if not self._standstills.admits() or not self._gate.enter(host):
            cast("asyncio.Transport", transport).abort()
            return
        handler = self._open(host)
        transport.set_protocol(handler)
        handler.connection_made(transport)


def waiting_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes that the client has not taken: here, and in the kernel's buffer.

    The kernel may hold 4 MiB, and takes more only once a third of it is free.
    """
    here = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    try:
        queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError, AttributeError):
        return here  # the socket is closed, or the kernel does not tell
    return here + int.from_bytes(queued, sys.byteorder)


class ReaderWatch:
    """Watch over bytes that wait for a client; one per connection, used on its loop.

    A client that takes none of them for ``progress_ms`` is disconnected. `start` is called when
    bytes wait and no more are added, `stop` when they are gone.
    """

    __slots__ = ("_progress_s", "_timer", "_transport", "_waiting")

    def __init__(self, progress_ms: int) -> None:
        self._progress_s = progress_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._waiting = 0

    def start(self, transport: asyncio.Transport) -> None:
        """Watch the bytes that wait in ``transport``, if there are any."""
        self.stop()
        if transport.get_write_buffer_size():
            self._transport, self._waiting = transport, waiting_bytes(transport)
            self._rearm()

    def stop(self) -> None:
        """End the watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = self._transport = None

    def _rearm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._progress_s, self._look)

    def _look(self) -> None:
        transport, self._timer = self._transport, None
        assert transport is not None, "the timer runs while a transport is watched"
        left = waiting_bytes(transport)
        if not transport.get_write_buffer_size():
            self._transport = None
        elif left >= self._waiting:
            _log.debug("connection closed: its client takes nothing waiting_bytes=%s", left)
            self._transport = None
            transport.abort()
        else:
            self._waiting = left
            self._rearm()
