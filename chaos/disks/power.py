"""Power loss of any number of a cluster's nodes at one moment, without root.

Scenarios call `Power.cut` and `restore`. `shim.c` records on a tape, before each change, the
content it replaces, and the begin and success of each sync. After the processes have ended,
`cut_power` keeps or reverts, by chance, every page and every name that no sync covers: pages in
any order, a directory's changes from the newest on, like a file system that keeps the promises of
POSIX and no more. Not covered: a directory tree that is unlinked as a whole (the quarantine of a
deleted topic), and changes through mmap (nodes make none).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import struct
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from chaos.cluster import GONE_DEADLINE_S, POLL_S, ClusterError, processes_of, runs
from chaos.deadline import within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from random import Random

    from chaos.cluster import LocalCluster
    from chaos.disks.shim import Shim


PAGE = 4096
_HEAD = struct.Struct("<cQQQQIII")


@dataclass(frozen=True, slots=True)
class TapeEntry:
    """An entry of the tape. `first`, `second`: a write's range, or in `first` a sync's number."""

    kind: bytes
    inode: int
    first: int
    second: int
    size: int
    path: str
    other: str
    data: bytes


@dataclass(slots=True)
class Unsynced:
    """Changes that a power loss may remove: contents by inode, names by directory."""

    contents: dict[int, list[TapeEntry]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, list[TapeEntry]] = field(default_factory=lambda: defaultdict(list))


@dataclass(frozen=True, slots=True)
class PowerLoss:
    """Counts of the changes that a power loss removed from one node."""

    pages_lost: int
    pages_kept: int
    names_lost: int

    @override
    def __str__(self) -> str:
        pages = self.pages_lost + self.pages_kept
        return f"{self.pages_lost} of {pages} unsynced pages, {self.names_lost} names"


def read_tape(tape: Path) -> Iterator[TapeEntry]:
    """Yield every entry.

    One torn by a kill at the end is left out, because its change was not made.
    """
    content = tape.read_bytes() if tape.exists() else b""
    at = 0
    while at + _HEAD.size <= len(content):
        kind, inode, first, second, size, *lengths = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        ends = [at + sum(lengths[: n + 1]) for n in range(3)]
        if ends[2] > len(content):
            return
        path, other = os.fsdecode(content[at : ends[0]]), os.fsdecode(content[ends[0] : ends[1]])
        yield TapeEntry(kind, inode, first, second, size, path, other, content[ends[1] : ends[2]])
        at = ends[2]


def unsynced(entries: Iterator[TapeEntry]) -> Unsynced:
    """Return the changes not covered by a later sync. A sync of inode 0 covers everything."""
    left = Unsynced()
    begun: dict[int, tuple[dict[int, int], dict[str, int]]] = {}
    done: dict[object, int] = defaultdict(int)  # changes dropped so far, by inode or directory
    for entry in entries:
        match entry.kind:
            case b"W":
                left.contents[entry.inode].append(entry)
            case b"B":
                begun[entry.first] = (
                    {i: done[i] + len(changes) for i, changes in left.contents.items()},
                    {d: done[d] + len(changes) for d, changes in left.names.items()},
                )
            case b"S":
                inodes, directories = begun.pop(entry.first, ({}, {}))
                for inode, upto in inodes.items():
                    if entry.inode in (0, inode):
                        _drop(left.contents[inode], inode, upto, done)
                for directory, upto in directories.items():
                    if not entry.inode or directory == entry.path.rstrip("/"):
                        _drop(left.names[directory], directory, upto, done)
            case _:
                left.names[str(Path(entry.path).parent)].append(entry)
    return left


def _drop(changes: list[TapeEntry], key: object, upto: int, done: dict[object, int]) -> None:
    count = max(0, upto - done[key])
    del changes[:count]
    done[key] += count


def cut_power(folder: Path, tape: Path, random: Random, keep: float) -> PowerLoss:
    """Remove unsynced changes of a node whose processes have ended.

    Args:
        folder: the node's.
        tape: the entries that its shim wrote; deleted afterwards.
        random: chooses pages and names.
        keep: probability that an unsynced page stays; 0 removes all.
    """
    left = unsynced(read_tape(tape))
    paths = {path.stat().st_ino: path for path in folder.rglob("*") if path.is_file()}
    lost = kept = 0
    for inode, changes in left.contents.items():
        if inode in paths and changes:
            pages = _cut_content(paths[inode], changes, random, keep)
            lost, kept = lost + pages[0], kept + pages[1]
    names = sum(_cut_names(changes, random, keep) for changes in left.names.values())
    for backup in tape.parent.glob(f"{tape.stem}.backup-*"):
        backup.unlink()
    tape.unlink(missing_ok=True)
    return PowerLoss(lost, kept, names)


def _cut_content(
    path: Path, changes: list[TapeEntry], random: Random, keep: float
) -> tuple[int, int]:
    """Restore pages to their content at the last sync; return how many were lost and kept."""
    old: dict[int, bytes] = {}
    dirty: set[int] = set()
    synced_size = changes[0].size
    for change in reversed(changes):  # the oldest content wins
        start = change.first // PAGE
        for number in range(start, -(-change.second // PAGE)):
            dirty.add(number)
            at = (number - start) * PAGE
            old[number] = change.data[at : at + PAGE]
    content = bytearray(path.read_bytes())
    size = len(content) if random.random() < keep else synced_size
    lost = 0
    for number in sorted(dirty):
        if random.random() < keep:
            continue
        lost += 1
        begin = number * PAGE
        known = old[number][: max(0, synced_size - begin)]
        content.extend(bytes(max(0, begin - len(content))))
        content[begin : begin + PAGE] = known.ljust(PAGE, b"\0")
    content.extend(bytes(max(0, size - len(content))))
    with path.open("r+b") as file:
        file.write(content[:size])
        file.truncate(size)
    return lost, len(dirty) - lost


def _cut_names(changes: list[TapeEntry], random: Random, keep: float) -> int:
    """Revert a directory's changes from the newest on; return their number."""
    stay = random.randint(0, len(changes)) if keep and changes else 0
    for change in reversed(changes[stay:]):
        path = Path(change.path)
        match change.kind:
            case b"C":
                path.unlink(missing_ok=True)
            case b"D":
                shutil.rmtree(path, ignore_errors=True)
            case b"U":
                _bring_back(change.other, path)
            case b"R":
                source, _, backup = change.other.partition("\n")
                if path.exists() and Path(source).parent.is_dir():
                    path.replace(source)
                _bring_back(backup, path)
            case _:
                msg = f"unknown entry {change.kind!r} on the tape"
                raise ValueError(msg)
    return len(changes) - stay


def _bring_back(backup: str, path: Path) -> None:
    if backup and Path(backup).exists() and path.parent.is_dir() and not path.exists():
        os.link(backup, path)


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
        self.cuts = 0
        """Number of nodes that lost their power so far, each time counted."""

    async def cut(self, nodes: Sequence[str], keep: float = 0.0) -> list[PowerLoss]:
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
        self.cuts += len(cuts)
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
