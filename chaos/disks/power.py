"""Power loss of a supervised cluster's nodes, of any number of them at one moment.

Scenarios call `Power.cut` and `restore`; `tape.py` removes the unsynced changes.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from chaos.cluster import ClusterError, processes_of, runs
from chaos.deadline import within
from chaos.disks.tape import Cut, cut_power

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from chaos.cluster import LocalCluster
    from chaos.disks.shim import Shim

GONE_DEADLINE_S = 10.0
POLL_S = 0.02
BOOT_ID = "boot-id"


class Power:
    """Power supply of the cluster's nodes. Nodes are named by their folders; owned by a scenario.

    The supervisor is stopped meanwhile, because it would restart a node before its unsynced changes
    are removed.
    """

    def __init__(self, cluster: LocalCluster, shim: Shim, random: Random) -> None:
        self._cluster = cluster
        self._shim = shim
        self._random = random
        self.taken = 0
        """Number of unsynced pages and names present at all power losses so far."""

    async def cut(self, nodes: Sequence[str], keep: float = 0.0) -> list[Cut]:
        """Kill the nodes' processes and remove their unsynced changes.

        They stay down until `restore`.
        """
        self._signal_supervisor(signal.SIGSTOP)
        folders = [self._cluster.data_dir / name for name in nodes]
        pids = [pid for folder in folders for pid in processes_of(folder)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stop all of them before killing any
            for pid in pids:
                self._cluster.signal_process(pid, number)
        async with within(GONE_DEADLINE_S, f"{', '.join(nodes)} are gone"):
            while any(runs(pid) for pid in pids):  # noqa: ASYNC110 no event at a process's end
                await asyncio.sleep(POLL_S)
        cuts = []
        for name, folder in zip(nodes, folders, strict=True):
            tape = self._shim.control / f"{name}.tape"
            cuts.append(await asyncio.to_thread(cut_power, folder, tape, self._random, keep))
            # A machine that lost power comes up with a new boot id, so the recorded one is removed.
            (folder / BOOT_ID).unlink(missing_ok=True)
        self.taken += sum(cut.pages_lost + cut.pages_kept + cut.names_lost for cut in cuts)
        return cuts

    def restore(self) -> None:
        """Let the supervisor continue; it starts the nodes that are down."""
        self._signal_supervisor(signal.SIGCONT)

    def _signal_supervisor(self, number: signal.Signals) -> None:
        pid = self._cluster.read().supervisor_pid
        if pid is None:
            msg = "no supervisor to signal"
            raise ClusterError(msg)
        self._cluster.signal_process(pid, number)
