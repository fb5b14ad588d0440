"""The disk of a simulated replica, its faults, and what the bytes of its log say by themselves."""

from __future__ import annotations

import random
from typing import Any

from broker.log.partition_log import PartitionLog
from broker.log.producer_state import ProducerStates
from broker.log.quarantine import FOLDER
from broker.log.recovery import LEADER_EPOCH_FILE, recover_log
from broker.log.segment import OpenFiles
from broker.log.swap import CLEANED_SUFFIX
from broker.record.batch import HEADER_SIZE, BatchError, BatchHeader, verify, walk
from broker.replication.log_keeper import REMOVED_MARK
from raft_metadata.common.errors import CorruptionError
from tests.support.replica_bytes import DIRECTORY, ROOT, SWAP, entries_of, flip, place
from tests.support.replica_flusher import PowerCut
from tests.support.replica_platters import Platters
from tests.support.replication_invariants import Entry, Violation
from tests.support.simulated_disk import SimulatedDisk

QUARANTINE = f"{ROOT}/{FOLDER}/"


class ReplicaFiles:
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
        self.rotted: tuple[Any, int, int] | None = None  # inode, position, last offset
        self.has_rotted = False
        """At any time."""

    @property
    def damaged(self) -> bool:
        """Ground truth: bytes that were proven durable are not what they were, and in use."""
        if self.rotted is None:
            return False
        disk, inode = self.disk, self.rotted[0]
        if inode not in disk.live.values() and inode not in disk.synced.values():
            self.rotted = None  # removed for good
        return self.rotted is not None

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

    def fail_sync(self) -> None:
        self.disk.fail_once(self.rng.choice(("sync_data", "sync_filesystem", "sync_file")))

    def fill(self) -> None:
        """So many bytes are free, and nobody makes room for a while."""
        self.full += 1
        self.disk.room = self.rng.choice((0, 1, 50, 200, 1000, 4000))

    def relieve(self) -> None:
        self.disk.room = None

    def rot(self) -> bool:
        """A bit of a record that was proven durable flips; False where there is none."""
        if any(path.endswith((SWAP, CLEANED_SUFFIX)) for path in self.disk.live):
            return False  # some of these files are about to go
        proof = self._proof()
        sealed = [
            (inode, position, header)
            for inode, position, header in self._batches()
            if header.next_offset <= proof and header.count
        ]
        if not sealed:
            return False
        inode, position, header = self.rng.choice(sealed)
        at = position + self.rng.randrange(HEADER_SIZE, header.size)
        flip(inode, at)
        self.rotted, self.has_rotted = (inode, at, header.last_offset), True
        return True

    def recorded(self) -> None:
        """The controller knows; the bytes are set aside when the log is opened next."""

    def _files(self) -> list[tuple[str, Any]]:
        start = DIRECTORY + "/"
        return [
            (path, self.disk.live[path])
            for path in sorted(self.disk.live)
            if path.startswith(start) and path.endswith(".log")
        ]

    def _batches(self) -> list[tuple[Any, int, BatchHeader]]:
        found = []
        for _, inode in self._files():
            try:
                found += [(inode, at, header) for at, header in walk(bytes(inode.cache))]
            except BatchError:
                return []  # a torn tail: nothing is rotted in such a log
        return found

    def _proof(self) -> int:
        return max((header.durable_end for _, _, header in self._batches()), default=0)

    # from its bytes

    def _forget_rot(self) -> None:
        """If the damaged bytes are in use no more."""
        if self.rotted is not None:
            inode, position, _ = self.rotted
            if position >= len(inode.cache) or all(inode is not each for _, each in self._files()):
                self.rotted = None

    def _is_rotten(self) -> bool:
        """Whether they still stand there: a start may have cut them, others may follow."""
        assert self.rotted is not None
        inode, position, _ = self.rotted
        raw = bytes(inode.cache)
        try:
            for at, header in walk(raw):
                if at <= position < at + header.size:
                    verify(raw[at : at + header.size])
                    return False
        except BatchError:
            return True
        return False

    def content(self, log: PartitionLog) -> list[Entry | None]:
        """What stands in the files that a log reads at this moment, by offset.

        Of what has rotted what stood there before: whoever reads it is told.
        """
        if not log.segments:
            return self.mirror
        rotted = self.rotted
        if rotted is None or not self._is_rotten():
            return self._content(log)
        flip(rotted[0], rotted[1])
        try:
            return self._content(log)
        finally:
            flip(rotted[0], rotted[1])

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
        return [
            (header.base_offset, header.next_offset, header.leader_epoch)
            for path, inode in self._files()
            if path in used
            for _, header in walk(bytes(inode.cache))
        ]

    def producers(self) -> tuple[object, object]:
        """What the log remembers of its producers, and what a replay of its bytes gives (T4)."""
        assert self.log is not None
        replayed = ProducerStates()
        used = {segment.log_path for segment in self.log.segments}
        for path, inode in self._files():
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
