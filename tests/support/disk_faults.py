"""A live cluster over disks that do as a test tells them (chaos.disks.shim)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from chaos.disks.shim import DiskFault, Shim
from tests.support.live_cluster import LiveCluster

RESIDENT = "VmRSS:"


class FaultyCluster(LiveCluster):
    """`disks` is told what each node's disk does; it is well at the start."""

    def __init__(self, directory: Path, options: Sequence[str] = ()) -> None:
        super().__init__(directory, options)
        self.disks = Shim(self.data_dir, directory / "disks")
        self.environment.update(self.disks.environment())

    @asynccontextmanager
    async def faulty(self, nodes: Sequence[str], *faults: DiskFault) -> AsyncIterator[None]:
        """The nodes' disks are like this in the block. Every one of them must have felt it."""
        before = {name: self.disks.hit_count(name) for name in nodes}
        for name in nodes:
            self.disks.set(name, *faults)
        try:
            yield
            unfelt = [name for name in nodes if self.disks.hit_count(name) == before[name]]
            assert not unfelt, f"the fault was not felt by {unfelt}"
        finally:
            for name in nodes:
                self.disks.set(name)

    async def wait_felt(self, node: str, more_than: int) -> None:
        """Until a fault has hit more calls than that."""
        await self.until(lambda: self.disks.hit_count(node) > more_than, f"{node} felt its fault")

    def exit_status(self, node: str) -> int | None:
        """What `up` or we saw the node's last process end with; None while nobody has."""
        by_hand = [child for child in self._by_hand if node in " ".join(map(str, child.args))]
        if by_hand:
            return by_hand[-1].wait(10)
        found = re.findall(rf"{node} .*exit=(-?\d+)", self._local.output.read_text())
        return int(found[-1]) if found else None

    def resident_mb(self, node: str) -> float:
        """Memory of the node's process that is in RAM."""
        status = Path(f"/proc/{self.pid(node)}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith(RESIDENT))
        return int(line.split()[1]) / 1024


@contextmanager
def running_on_faulty_disks(directory: Path, *options: str) -> Iterator[FaultyCluster]:
    """A cluster that is ready; nothing of it is left afterwards. For module-scoped fixtures."""
    cluster = FaultyCluster(directory, options)
    try:
        asyncio.run(cluster.start())
        yield cluster
    finally:
        cluster.kill_everything()
