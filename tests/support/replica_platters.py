"""What a power cut can't take from a simulated log: read from the synced names and bytes alone.

A replacement of segments counts from the moment its ``.swap`` name is on the disk: the next start
finishes it (`broker.log.swap`).
"""

from __future__ import annotations

from typing import Any

from broker.log.checkpoints import decode_checkpoint
from broker.log.log_directory import PARTITION_FILE
from broker.log.recovery import RECOVERY_POINT_FILE
from broker.record.batch import BatchError, BatchHeader, verify
from raft_metadata.common.errors import CorruptionError
from tests.support.replica_bytes import DIRECTORY, SWAP, entries_of, place
from tests.support.replication_invariants import Entry
from tests.support.simulated_disk import SimulatedDisk

Batches = list[tuple[BatchHeader, list[Entry | None]]]


class Platters:
    """Of one disk; reads anew only what has changed."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self._version = -1
        self._found: list[Entry | None] = []
        self._parsed: dict[str, tuple[Any, bytes, Batches]] = {}

    def forget(self) -> None:
        """The disk is not what it was: its power was cut."""
        self._version = -1

    def read(self) -> list[Entry | None]:
        """The log as a start after a power cut at this moment would find it, at least."""
        version = len(self.disk.calls)
        if version != self._version:
            self._version, self._found = version, self._read()
        return self._found

    def _read(self) -> list[Entry | None]:
        synced = self.disk.synced
        if any(source == DIRECTORY for source, _ in self.disk.moved):
            return []  # a power cut may leave it where it was, or take it away
        whose = synced.get(f"{DIRECTORY}/{PARTITION_FILE}")
        if DIRECTORY not in synced or whose is None or not whose.durable.strip(b"\0"):
            return []  # whatever lies there, it would be set aside
        files: dict[int, tuple[str, Any]] = {}
        swaps: dict[int, tuple[str, Any]] = {}
        for path, inode in synced.items():
            if inode is not None and path.startswith(DIRECTORY + "/"):
                if path.endswith(".log"):
                    files[int(path[-24:-4])] = (path, inode)
                elif path.endswith(SWAP):
                    swaps[int(path[-29:-9])] = (path, inode)
        for base, swap in swaps.items():
            batches = self._parse(*swap)
            end = batches[-1][0].next_offset if batches else base
            for other in [other for other in files if base <= other < end]:
                del files[other]
            files[base] = swap
        return self._log_of(files)

    def _log_of(self, files: dict[int, tuple[str, Any]]) -> list[Entry | None]:
        start = self._durable_start(f"{DIRECTORY}/{RECOVERY_POINT_FILE}")
        first = max((base for base in files if base <= start), default=min(files, default=start))
        found: list[Entry | None] = [None] * first
        for base in sorted(base for base in files if base >= first):
            if base != len(found):
                break
            for header, entries in self._parse(*files[base]):
                if header.base_offset == len(found):
                    place(found, header, entries)
        return found if len(found) >= start else [None] * start  # all that is left was deleted

    def _durable_start(self, path: str) -> int:
        inode = self.disk.synced.get(path)
        if inode is None:
            return 0
        try:
            content: Any = decode_checkpoint(bytes(inode.durable), path)
        except (CorruptionError, ValueError):
            return 0
        return int(content["log_start_offset"])

    def _parse(self, path: str, inode: Any) -> Batches:
        known = self._parsed.get(path)
        if known is not None and known[0] is inode and inode.durable.startswith(known[1]):
            done, batches = known[1], known[2]
            if len(inode.durable) == len(done):
                return batches
        else:
            done, batches = b"", []
        durable = bytes(inode.durable)
        at = len(done)
        batches = list(batches)
        while at < len(durable):
            try:
                header = verify(durable, at)
            except BatchError:
                break
            batches.append((header, entries_of(header, durable[at : at + header.size])))
            at += header.size
        self._parsed[path] = (inode, durable[:at], batches)
        return batches
