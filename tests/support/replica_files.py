"""The disk of a simulated replica, its faults, and what the bytes of its log say by themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from broker.log.directory_files import FOLDER
from broker.log.partition_log import PartitionLog
from broker.log.producer_state import ProducerStates
from broker.log.recovery import LEADER_EPOCH_FILE, recover_log
from broker.log.segment import OpenFiles
from broker.record.batch import walk
from broker.replication.replica_logs import REMOVED_MARK
from raft_metadata.common.errors import CorruptionError
from tests.support.replica_bytes import DIRECTORY, ROOT, entries_of, place
from tests.support.replica_platters import Platters
from tests.support.replica_rot import Rotting
from tests.support.replication_invariants import Entry, Violation
from tests.support.simulated_disk import SimulatedDisk

QUARANTINE = f"{ROOT}/{FOLDER}/"


class PowerCut(BaseException):
    """The power went at this very call of the disk."""


class ReplicaFiles(Rotting):
    """One disk at a time. Nothing here asks the product's log what it holds."""

    log: PartitionLog | None
    """The open log; None while no process uses the disk, or none that has its replica."""
    manager: Any

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.full = 0
        self.new_disk()

    def new_disk(self) -> None:
        self.disk = SimulatedDisk()
        self.disk.make_directory(ROOT)
        self.disk.synced = dict(self.disk.live)
        self.platters = Platters(self.disk)
        self.mirror: list[Entry | None] = []
        self.power_gone = False
        self.rotted = None
        self.has_rotted = False

    def has_directory(self) -> bool:
        """Whether the log's directory is where it belongs."""
        return DIRECTORY in self.disk.live

    def copies(self) -> dict[str, Any]:
        """The files of damaged logs that were set aside, by their names."""
        return {
            path: inode
            for path, inode in self.disk.live.items()
            if path.startswith(QUARANTINE) and path.endswith(".log") and REMOVED_MARK not in path
        }

    def quarantined(self) -> list[str]:
        """The names of damaged logs that were set aside."""
        return [name for name in self.disk.names(QUARANTINE[:-1]) if REMOVED_MARK not in name]

    def check_copies(self, before: dict[str, Any]) -> None:
        """Each may hold what nobody else has."""
        now = self.disk.live
        for path, inode in before.items():
            if now.get(path) is not inode:
                raise Violation("rule Q5", f"the copy {path} is gone")

    def purge(self) -> None:
        """An operator has looked at the copies, and removes them."""
        for path in [path for path in self.disk.live if path.startswith(QUARANTINE)]:
            for names in (self.disk.live, self.disk.synced):
                names.pop(path, None)

    def platter(self) -> list[Entry | None]:
        """What of the log is on the platters for sure, by its bytes and names."""
        return self.platters.read()

    # faults

    def cut_at(self, calls: int) -> None:
        """The power goes at a call of the disk, so many from here."""
        left = calls

        def hook(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                self.power_gone = True
                raise PowerCut

        self.disk.before = hook

    def fail_sync(self, allowed: Callable[[], bool]) -> None:
        """Let the next sync of one kind fail, once ``allowed`` when it is made."""
        operation = self.rng.choice(("sync_data", "sync_filesystem", "sync_file"))
        self.disk.fail_once(operation, allowed=allowed)

    def fill(self) -> None:
        """So many bytes are free, and nobody makes room for a while."""
        self.full += 1
        self.disk.room = self.rng.choice((0, 1, 50, 200, 1000, 4000))

    def relieve(self) -> None:
        self.disk.room = None

    def recorded(self) -> None:
        """The controller knows; the bytes are set aside when the log is opened next."""

    # from its bytes

    def content(self, log: PartitionLog) -> list[Entry | None]:
        """What stands in the files that a log reads at this moment, by offset.

        Of what has rotted what stood there before: whoever reads it is told.
        """
        if not log.segments:
            return self.mirror
        with self.sound():
            return self._content(log)

    def _content(self, log: PartitionLog) -> list[Entry | None]:
        found: list[Entry | None] = [None] * log.segments[0].base_offset
        for segment in log.segments:
            if segment.fd in self.disk.descriptors:
                inode = self.disk.descriptors[segment.fd][1]
            else:
                inode = self.disk.live[segment.log_path]
            assert inode is not None
            raw = bytes(inode.cache[: segment.size])
            for at, header in walk(raw):
                place(found, header, entries_of(header, raw[at : at + header.size]))
        return found

    def runs(self) -> list[tuple[int, int, int]]:
        """(base, next, epoch) of every batch on the disk, out of use or not."""
        assert self.log is not None
        used = {segment.log_path for segment in self.log.segments}
        with self.sound():
            return [
                (header.base_offset, header.next_offset, header.leader_epoch)
                for path, inode in self.log_files()
                if path in used
                for _, header in walk(bytes(inode.cache))
            ]

    def producers(self) -> tuple[object, object]:
        """What the log remembers of its producers, and what a replay of its bytes gives (T4)."""
        assert self.log is not None
        replayed = ProducerStates()
        used = {segment.log_path for segment in self.log.segments}
        with self.sound():
            for path, inode in self.log_files():
                for _, header in walk(bytes(inode.cache)) if path in used else ():
                    if header.producer_id >= 0:
                        replayed.applied(header)
        known = self.log.producers
        return sorted(known.items() if known else ()), sorted(replayed.items())

    def mirror_start(self) -> int:
        return next((at for at, each in enumerate(self.mirror) if each is not None), 0)

    def rebuilt_epochs(self) -> list[tuple[int, int]]:
        """The epoch cache, from a copy of the log without any checkpoint of epochs."""
        copy = SimulatedDisk()
        for path, inode in self.disk.live.items():
            keep = not path.endswith((LEADER_EPOCH_FILE, ".index"))
            if keep and inode is not None:
                fd = copy.open(path, create=True)
                copy.write(fd, bytes(inode.cache), 0)
        files = OpenFiles(copy, 64)
        try:
            return recover_log(files, DIRECTORY).epochs.entries
        except CorruptionError as error:
            raise Violation("L22", "a scan of the sound log", error) from error
