"""A private cluster whose nodes reach each other only through proxies.

Runs use `ProxiedCluster` instead of `LocalCluster` for scenarios: it formats the cluster, puts a
Toxiproxy on every link, and optionally a fault library under the nodes' disks.
"""

from __future__ import annotations

import asyncio
import subprocess
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from chaos.cluster import ClusterError, LocalCluster, quorumlog_command
from chaos.disks.shim import Shim
from chaos.net.network import Network
from chaos.net.toxiproxy import find_server
from chaos.net.wiring import Tripwire, listening_ports, real_targets, wire

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType


FORMAT_DEADLINE_S = 15.0


class ProxiedCluster:
    """A formatted and wired cluster, ready to be started. `async with`.

    Its exit leaves no process behind, whatever happens. `leave_nothing` does the same without a
    loop, for an owner that is interrupted.
    """

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        self._options = list(options)
        self.local = LocalCluster(directory, options)
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
        command += ["--data-dir", str(self.local.data_dir), *self._options]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FORMAT_DEADLINE_S, check=False
        )
        if done.returncode != 0:
            msg = f"`up --format-only` ended with {done.returncode}: {done.stderr.strip()}"
            raise ClusterError(msg)
