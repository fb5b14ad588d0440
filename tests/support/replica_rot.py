"""What rots on the disk of a simulated replica: one bit, of a batch or of a small file beside it.

Of a record, or of a field of its header, that was proven to be durable: the replica is damaged, as
it is where a file rots that nothing else can stand for. Other files are helpers: whatever happens
to them, not a record, a cut, a producer or a log start may be another one for it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from broker.log.checkpoints import decode_checkpoint
from broker.log.directory_files import HIGH_WATERMARK_FILE
from broker.log.log_directory import PARTITION_FILE
from broker.log.recovery import LEADER_EPOCH_FILE, RECOVERY_POINT_FILE
from broker.log.swap import CLEANED_SUFFIX, STATE_FILE
from broker.record.batch import HEADER_SIZE, BatchError, BatchHeader, walk
from raft_metadata.common.errors import CorruptionError
from tests.support.replica_bytes import DIRECTORY, ROOT, SWAP, flip
from tests.support.replication_invariants import Violation

if TYPE_CHECKING:
    from broker.log.partition_log import PartitionLog
    from tests.support.simulated_disk import SimulatedDisk

FIELDS = (
    ("magic", 0, 4), ("length", 4, 8), ("durable end", 8, 16), ("durable check", 16, 20),
    ("crc", 20, 24), ("base offset", 24, 32), ("count", 32, 36), ("last offset delta", 36, 40),
    ("leader epoch", 40, 44), ("times", 44, 68), ("producer", 68, 82), ("attributes", 82, 84),
)  # fmt: skip
"""Of a batch's header: name, from, to."""
RECORD = "record"
NEEDED = (RECOVERY_POINT_FILE, PARTITION_FILE, STATE_FILE)
"""Files of a log that nothing else can stand for."""
HELPERS = (".index", LEADER_EPOCH_FILE, HIGH_WATERMARK_FILE)
"""Files that can be made again; these are names, or how they end."""
KINDS_OF_ROT = (RECORD, *(name for name, _, _ in FIELDS), *NEEDED, *HELPERS)


@dataclass(frozen=True, slots=True)
class Rot:
    """Damage to one replica: of a batch (where it begins, its size), or of a file."""

    kind: str
    inode: Any
    position: int
    last: int = -1
    """The last offset of the batch, -1 where it is a file."""
    begin: int = 0
    size: int = 0
    raw: bytes = b""
    """The batch as it has stood there since."""
    said: Any = None
    """What the file said."""

    def flip(self) -> None:
        flip(self.inode, self.position)

    @property
    def stands(self) -> bool:
        """Whether it stands there yet: a start may have cut it, others may follow."""
        return bytes(self.inode.cache[self.begin : self.begin + self.size]) == self.raw


class Rotting:
    """The half of a `ReplicaFiles` in which bits rot."""

    rng: random.Random
    disk: SimulatedDisk
    rotted: Rot | None = None
    has_rotted = False
    """At any time."""
    _is_sound = False

    @property
    def damaged(self) -> bool:
        """Ground truth: bytes that were proven durable are not what they were, and in use."""
        if self.rotted is None:
            return False
        disk, inode = self.disk, self.rotted.inode
        if inode not in disk.live.values() and inode not in disk.synced.values():
            self.rotted = None  # removed for good
        return self.rotted is not None

    @contextmanager
    def sound(self) -> Iterator[None]:
        """What has rotted is for now what stood there before: whoever reads it is told."""
        rot = self.rotted
        if rot is None or rot.last < 0 or self._is_sound or not rot.stands:
            yield
            return
        self._is_sound = True
        rot.flip()
        try:
            yield
        finally:
            rot.flip()
            self._is_sound = False

    def rot(self, *, everywhere: bool = False) -> str:
        """A bit of a batch that was proven durable flips, or of a file; "" where there is none.

        Without ``everywhere`` it is always one of a record. A replica rots once until it is mended:
        only the last rot is undone for the judges, and the last replica serves on with an earlier.
        """
        if self.damaged or any(path.endswith((SWAP, CLEANED_SUFFIX)) for path in self.disk.live):
            return ""  # some of these files are about to go
        if everywhere and self.rng.random() < 0.25:
            return self._rot_needed()
        proof = self._lasting_proof()
        sealed = [
            (inode, position, header)
            for inode, position, header in self._batches()
            if header.next_offset <= proof and header.count
        ]
        if not sealed:
            return ""
        inode, position, header = self.rng.choice(sealed)
        kind, first, end = RECORD, HEADER_SIZE, header.size
        if everywhere and self.rng.random() < 0.7:
            kind, first, end = self.rng.choice(FIELDS)
        at, size = position + self.rng.randrange(first, end), header.size
        self._flip(Rot(kind, inode, at, header.last_offset, position, size))
        return kind

    def _rot_needed(self) -> str:
        name = self.rng.choice(NEEDED)
        path = f"{DIRECTORY}/{name}"
        inode = self.disk.live.get(path)
        if inode is None or inode is not self.disk.synced.get(path) or inode.dirty:
            return ""
        try:
            said = decode_checkpoint(bytes(inode.durable), path)
        except CorruptionError:
            return ""  # it was torn
        # Not its last line break, which says nothing.
        self._flip(Rot(name, inode, self.rng.randrange(len(inode.durable) - 1), said=said))
        return name

    def rot_helper(self) -> str:
        """A bit of a file that can be made again flips; "" where there is none."""
        files = [
            (path, inode)
            for path, inode in sorted(self.disk.live.items())
            if inode is not None and inode.cache and path.startswith((DIRECTORY + "/", ROOT + "/"))
        ]
        kind = self.rng.choice(HELPERS)
        found = [inode for path, inode in files if path.endswith(kind)]
        if not found:
            return ""
        inode = self.rng.choice(found)
        flip(inode, self.rng.randrange(len(inode.cache)))
        return kind

    def _flip(self, rot: Rot) -> None:
        rot.flip()
        raw = bytes(rot.inode.cache[rot.begin : rot.begin + rot.size])
        self.rotted, self.has_rotted = replace(rot, raw=raw), True

    def check_not_believed(self, log: PartitionLog) -> None:
        """Check a log that a start opened although a file that it needs has rotted.

        A file that lies in quarantine by now belonged to another log of this name (seed 23177).
        """
        rot = self.rotted
        if rot is None or not isinstance(rot.said, dict):
            return
        if self.disk.live.get(f"{DIRECTORY}/{rot.kind}") is not rot.inode:
            return
        start, dropped = rot.said.get("log_start_offset", 0), rot.said.get("dropped_to", 0)
        if log.log_start_offset < start:
            raise Violation("L24", f"a log begins at {log.log_start_offset}", f"it was {start}")
        if log.dropped_to < min(dropped, log.log_end_offset):
            raise Violation("rule R7", f"dropped to {log.dropped_to}", f"it was {dropped}")

    def _forget_rot(self) -> None:
        """If the damaged bytes are in use no more."""
        if self.rotted is not None and self.rotted.last >= 0:
            inode, position = self.rotted.inode, self.rotted.position
            if position >= len(inode.cache) or all(
                inode is not each for _, each in self.log_files()
            ):
                self.rotted = None

    # what is there

    def log_files(self) -> list[tuple[str, Any]]:
        start = DIRECTORY + "/"
        return [
            (path, self.disk.live[path])
            for path in sorted(self.disk.live)
            if path.startswith(start) and path.endswith(".log")
        ]

    def _batches(self) -> list[tuple[Any, int, BatchHeader]]:
        found = []
        with self.sound():
            for _, inode in self.log_files():
                try:
                    found += [(inode, at, header) for at, header in walk(bytes(inode.cache))]
                except BatchError:
                    return []  # a torn tail: nothing is rotted in such a log
        return found

    def _proof(self) -> int:
        return max((header.durable_end for _, _, header in self._batches()), default=0)

    def _lasting_proof(self) -> int:
        """Of bytes no power cut takes: without it nobody tells a rotten batch from a torn one."""
        proof = 0
        for path, inode in self.log_files():
            if self.disk.synced.get(path) is inode:
                with suppress(BatchError):
                    for _, header in walk(bytes(inode.durable)):
                        proof = max(proof, header.durable_end)
        return proof
