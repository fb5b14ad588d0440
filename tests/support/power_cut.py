"""Nodes that lose their power: with it everything that was never synced, on real file systems.

Two ways, the same to a test. `LoopPower` (root): each node's folder is an ext4 of its own in a
file, and a cut is the ioctl that ends a file system where it stands, nothing flushed; the kernel
itself decides what was on the disk. `TapePower` (anybody with a C compiler): the page-granular
stand-in of `chaos.disks.power`. `power_for` takes the first that works here, and says which.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from random import Random

from chaos.cluster import runs
from chaos.disks.power import cut_power
from chaos.disks.shim import Shim
from tests.support.live_cluster import LiveCluster

GOING_DOWN = 0x8004587D
"""FS_IOC_GOINGDOWN, and of its flags the one that flushes nothing, the journal neither."""
NO_LOG_FLUSH = struct.pack("I", 2)
IMAGE_BYTES = 256 << 20
"""Sparse. A node here writes a few megabytes."""
BOOT_ID = "boot-id"
MARK = "quorumlog-power-"
"""Begins the name of each folder of images: what a killed run left mounted is found by it."""
cuts_by_kind: dict[str, int] = {}
"""For the summary of the test run: how often which kind of power was cut."""


class Power(ABC):
    """The power of all nodes of one cluster. Owned by a fixture."""

    kind: str

    @abstractmethod
    def prepare(self, cluster: LiveCluster, nodes: Sequence[str]) -> None:
        """Before the cluster is formatted."""

    @abstractmethod
    def _take(self, nodes: Sequence[str]) -> None:
        """All processes of these nodes stand still: what happens to their disks."""

    @abstractmethod
    def _bring_back(self, nodes: Sequence[str], random: Random) -> list[str]:
        """All processes of these nodes are dead: their disks as they were found afterwards."""

    @abstractmethod
    def close(self) -> None:
        """Leave nothing of it."""

    async def cut(self, cluster: LiveCluster, nodes: Sequence[str], random: Random) -> list[str]:
        """At one moment: no node of these writes, syncs or answers anything after another did.

        Returns what was lost, a line per node where that is known. The nodes stay down.
        """
        for name in nodes:
            cluster.pause(name)
        self._take(nodes)
        pids = [cluster.signal(name, signal.SIGKILL) for name in nodes]
        await cluster.until(lambda: not any(runs(pid) for pid in pids), "they are gone")
        told = self._bring_back(nodes, random)
        for name in nodes:
            # A machine that lost its power comes up under another boot id than it noted there.
            (cluster.data_dir / name / BOOT_ID).unlink(missing_ok=True)
        cuts_by_kind[self.kind] = cuts_by_kind.get(self.kind, 0) + 1
        return told


class LoopPower(Power):
    """The real thing: one file system per node, ended without a flush."""

    kind = "true power loss: ext4 on loop devices, shut down without flush"

    def __init__(self) -> None:
        self._images = Path(tempfile.mkdtemp(prefix=f"{MARK}{os.getpid()}-"))
        self._folders: dict[str, Path] = {}

    def prepare(self, cluster: LiveCluster, nodes: Sequence[str]) -> None:
        for name in nodes:
            folder = cluster.data_dir / name
            folder.mkdir(parents=True)
            make_file_system(self._images / name, IMAGE_BYTES)
            self._mount(name, folder)

    def _mount(self, name: str, folder: Path) -> None:
        mount(self._images / name, folder)
        self._folders[name] = folder

    def _take(self, nodes: Sequence[str]) -> None:
        for name in nodes:
            end_without_flush(self._folders[name])

    def _bring_back(self, nodes: Sequence[str], random: Random) -> list[str]:
        for name in nodes:
            folder = self._folders.pop(name)
            subprocess.run(["umount", str(folder)], check=True, timeout=30)
            self._mount(name, folder)
        return []

    def close(self) -> None:
        for folder in self._folders.values():
            subprocess.run(["umount", "-l", str(folder)], check=False, timeout=30)
        self._folders.clear()
        for image in self._images.iterdir():
            image.unlink()
        self._images.rmdir()


class TapePower(Power):
    """The stand-in: what no sync covers is taken page by page, name by name."""

    kind = "stand-in: unsynced 4 KiB pages and names taken away after SIGKILL"

    def __init__(self, keep: Sequence[float] = (0.0, 0.5, 0.9)) -> None:
        self._keep = keep
        self._shim: Shim | None = None
        self._data_dir = Path()

    def prepare(self, cluster: LiveCluster, nodes: Sequence[str]) -> None:
        self._data_dir = cluster.data_dir
        self._shim = Shim(cluster.data_dir, cluster.data_dir.parent / "disks", tape=True)
        cluster.environment.update(self._shim.environment())

    @property
    def shim(self) -> Shim:
        """What is under the nodes, once they are prepared."""
        assert self._shim is not None
        return self._shim

    def _take(self, nodes: Sequence[str]) -> None:
        """The tape says it all."""

    def _bring_back(self, nodes: Sequence[str], random: Random) -> list[str]:
        return self.drop_unsynced(nodes, random)

    def drop_unsynced(self, nodes: Sequence[str], random: Random) -> list[str]:
        """What no sync covers is gone from these disks. Their processes are dead."""
        told = []
        for name in nodes:
            keep = random.choice(self._keep)
            tape = self.shim.control / f"{name}.tape"
            told.append(f"{name}: {cut_power(self._data_dir / name, tape, random, keep)}")
        return told

    def close(self) -> None:
        """All of it lies in the test's directory."""


def make_file_system(image: Path, size: int) -> None:
    """A sparse file with an empty ext4 in it."""
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(
        ["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=1", str(image)],
        check=True,
        timeout=30,
        capture_output=True,
    )


def mount(image: Path, folder: Path) -> None:
    """Mount an image; the loop device goes with the mount."""
    command = ["mount", "-t", "ext4", "-o", "loop", str(image), str(folder)]
    subprocess.run(command, check=True, timeout=30, capture_output=True)
    with suppress(FileNotFoundError):
        (folder / "lost+found").rmdir()


def end_without_flush(folder: Path) -> None:
    """The file system is over: every call fails from now on, and nothing more reaches the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(descriptor, GOING_DOWN, NO_LOG_FLUSH)
    finally:
        os.close(descriptor)


@cache
def why_no_loop() -> str:
    """Why file systems on loop devices can't be had here, tried once; "" if they can."""
    sweep()
    if os.geteuid() != 0:
        return "not root"
    with tempfile.TemporaryDirectory(prefix=f"{MARK}{os.getpid()}-") as made:
        image, folder = Path(made) / "image", Path(made) / "folder"
        folder.mkdir()
        try:
            make_file_system(image, 8 << 20)
            mount(image, folder)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", b"") or b""
            return f"{error}: {said.decode(errors='replace').strip()}"
        try:
            (folder / "unsynced").write_bytes(b"x" * 10_000)
            end_without_flush(folder)
        except OSError as error:
            return f"FS_IOC_GOINGDOWN: {error}"
        finally:
            subprocess.run(["umount", str(folder)], check=False, timeout=30)
        mount(image, folder)
        kept = list(folder.iterdir())
        subprocess.run(["umount", str(folder)], check=True, timeout=30)
        return f"a file that was never synced came back: {kept}" if kept else ""


def sweep() -> None:
    """Unmount what a run that was killed has left: its images name a process that is gone."""
    if os.geteuid() != 0:
        return
    listed = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        device, _, rest = line.partition(":")
        at = rest.find(f"/{MARK}")
        if at < 0:
            continue
        owner = rest[at + 1 + len(MARK) :].partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            for mounted in Path("/proc/self/mounts").read_text().splitlines():
                source, folder = mounted.split(" ")[:2]
                if source == device:
                    subprocess.run(["umount", "-l", folder], check=False, timeout=30)


def power_for() -> Power:
    """True power loss where it can be had, else the stand-in."""
    return TapePower() if why_no_loop() else LoopPower()


@contextmanager
def powered(
    directory: Path, power: Power, controllers: int = 3, brokers: int = 3
) -> Iterator[LiveCluster]:
    """A ready cluster whose nodes can be cut off their power; the nodes are started by hand."""
    cluster = LiveCluster(
        directory,
        ["--no-restart", "--controllers", str(controllers), "--brokers", str(brokers)],
    )
    nodes = [f"controller-{101 + n}" for n in range(controllers)]
    nodes += [f"broker-{1 + n}" for n in range(brokers)]
    try:
        power.prepare(cluster, nodes)
        asyncio.run(cluster.start())
        yield cluster
    finally:
        try:
            cluster.kill_everything()
        finally:
            power.close()
