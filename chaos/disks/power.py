"""The power of a supervised cluster's nodes, taken from as many as one likes at one moment."""

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
    """Cuts, and brings back. Nodes are named as their folders; owned by a scenario.

    The supervisor stands still meanwhile: it would start a node whose disk is not cut yet.
    """

    def __init__(self, cluster: LocalCluster, shim: Shim, random: Random) -> None:
        self._cluster = cluster
        self._shim = shim
        self._random = random
        self.taken = 0
        """Unsynced pages and names that were there when power failed, so far."""

    async def cut(self, nodes: Sequence[str], keep: float = 0.0) -> list[Cut]:
        """The nodes' processes and what was not synced are gone. They stay down: see `restore`."""
        self._signal_supervisor(signal.SIGSTOP)
        folders = [self._cluster.data_dir / name for name in nodes]
        pids = [pid for folder in folders for pid in processes_of(folder)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # first nobody moves, then all are dead
            for pid in pids:
                self._cluster.signal_process(pid, number)
        async with within(GONE_DEADLINE_S, f"{', '.join(nodes)} are gone"):
            while any(runs(pid) for pid in pids):  # noqa: ASYNC110 processes tell nobody
                await asyncio.sleep(POLL_S)
        cuts = []
        for name, folder in zip(nodes, folders, strict=True):
            tape = self._shim.control / f"{name}.tape"
            cuts.append(await asyncio.to_thread(cut_power, folder, tape, self._random, keep))
            # It comes up as a machine would: under another boot id than the broker noted there.
            (folder / BOOT_ID).unlink(missing_ok=True)
        self.taken += sum(cut.pages_lost + cut.pages_kept + cut.names_lost for cut in cuts)
        return cuts

    def restore(self) -> None:
        """The supervisor goes on, and starts what is down."""
        self._signal_supervisor(signal.SIGCONT)

    def _signal_supervisor(self, number: signal.Signals) -> None:
        pid = self._cluster.read().supervisor_pid
        if pid is None:
            msg = "no supervisor to signal"
            raise ClusterError(msg)
        self._cluster.signal_process(pid, number)
