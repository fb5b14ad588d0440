"""A private cluster whose nodes reach each other only through proxies.

Runs use `ProxiedCluster` instead of `LocalCluster` for scenarios: it formats the cluster, puts a
Toxiproxy on every link, and optionally a fault library under the nodes' disks. Between the format
and the first start every node's ``config.toml`` gets the proxies' addresses; only documented tables
are changed (interfaces §2). The nodes' inner addresses become those of the `Tripwire`, so that the
proxies are the only way between nodes, and a connection to the tripwire has bypassed one.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import tomllib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from chaos.cluster import ClusterError, LocalCluster, quorumlog_command
from chaos.disks.shim import Shim
from chaos.net.links import Link, Plane, all_links, node_name
from chaos.net.network import Network
from chaos.net.toxiproxy import find_server

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType


class Tripwire:
    """A listener that counts and refuses every connection. `async with`, owned by a run.

    It replaces the inner address of every node (``[advertised]``, ``[controllers]``), so that a
    node that ignores its ``[dial]`` table cannot reach its peer and is detected (rule K).
    """

    def __init__(self) -> None:
        self.connections = 0
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        """The ``host:port`` at which it listens."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def __aenter__(self) -> Tripwire:
        self._server = await asyncio.start_server(self._refuse, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _refuse(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.transport.abort()


FORMAT_DEADLINE_S = 15.0


class ProxiedCluster:
    """A formatted and wired cluster, ready to be started. `async with`.

    Its exit leaves no process behind, whatever happens. `leave_nothing` does the same without a
    loop, for an owner that is interrupted.
    """

    def __init__(self, directory: Path) -> None:
        self.local = LocalCluster(directory)
        self.network = Network(find_server(), directory / "toxiproxy.log")
        self.tripwire = Tripwire()
        self.disks: Shim | None = None
        self._directory = directory
        self._owned = AsyncExitStack()

    def add_disk_faults(self, *, power: bool) -> None:
        """Put the fault library under the nodes' disks, before the start.

        `power` records for power loss.

        Raises:
            ShimError: no C compiler.
        """
        self.disks = Shim(self.local.data_dir, self._directory / "disks", tape=power)
        self.local.environment.update(self.disks.environment())

    async def __aenter__(self) -> ProxiedCluster:
        await asyncio.to_thread(self._format)
        data_dir = self.local.data_dir
        self.network.start(listening_ports(data_dir))
        self._owned.callback(self.leave_nothing)
        await self._owned.enter_async_context(self.tripwire)
        ways = await self.network.lay(real_targets(data_dir))
        wire(data_dir, ways, self.tripwire.address)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._owned.aclose()

    def leave_nothing(self) -> None:
        """Kill every process of the cluster and the proxies."""
        try:
            self.local.kill_everything()
        finally:
            self.network.stop()

    def _format(self) -> None:
        command = [*quorumlog_command(), "up", "--format-only", "--port", "0"]
        command += ["--data-dir", str(self.local.data_dir)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FORMAT_DEADLINE_S, check=False
        )
        if done.returncode != 0:
            msg = f"`up --format-only` ended with {done.returncode}: {done.stderr.strip()}"
            raise ClusterError(msg)


_SECTION = r"(?m)^\[{name}\]\n(?:(?!\[).*\n)*"


def listening_ports(data_dir: Path) -> set[int]:
    """Return every port on which a node of a formatted cluster will listen."""
    tables = [tomllib.loads(one.read_text()) for one in data_dir.glob("*/config.toml")]
    return {
        int(address.rpartition(":")[2])
        for table in tables
        for address in table["listeners"].values()
    }


def real_targets(data_dir: Path) -> dict[Link, str]:
    """Return every link of a formatted cluster with the real address of its target."""
    listeners: dict[int, dict[str, str]] = {}
    for config in data_dir.glob("*/config.toml"):
        table = tomllib.loads(config.read_text())
        listeners[table["node"]["id"]] = table["listeners"]
    controllers = [node for node in listeners if node_name(node).startswith("controller")]
    brokers = [node for node in listeners if node not in controllers]
    return {
        link: listeners[link.target][link.plane.value] for link in all_links(controllers, brokers)
    }


def wire(data_dir: Path, ways: Mapping[Link, str], tripwire: str) -> None:
    """Rewrite every node's tables.

    Args:
        data_dir: a formatted cluster that is not running.
        ways: the address that each link's source has to dial.
        tripwire: the address that replaces the nodes' inner addresses.
    """
    for config in data_dir.glob("*/config.toml"):
        text = config.read_text()
        config.write_text(rewired(text, ways, tripwire))


def rewired(text: str, ways: Mapping[Link, str], tripwire: str) -> str:
    """Return a ``config.toml`` with its tables replaced and everything else unchanged."""
    table = tomllib.loads(text)
    node: int = table["node"]["id"]
    advertised = dict(table["advertised"])
    inner = Plane.PEER if Plane.PEER.value in advertised else Plane.RAFT
    advertised[inner.value] = tripwire
    controllers = [
        f'{name} = {{http = "{tripwire}", raft = "{tripwire}"}}' for name in table["controllers"]
    ]
    dial = [
        f'"{link.dial_key}" = "{address}"' for link, address in ways.items() if link.source == node
    ]
    text = _replaced(text, "advertised", [f'{key} = "{advertised[key]}"' for key in advertised])
    text = _replaced(text, "controllers", controllers)
    return _replaced(text, "dial", dial)


def _replaced(text: str, name: str, lines: list[str]) -> str:
    body = "".join(f"{line}\n" for line in (f"[{name}]", *lines, ""))
    return re.sub(_SECTION.format(name=name), lambda _: body, text, count=1)
