"""Snapshots of the state machine: written on a thread, installed completely or not at all.

`data_dir.py` opens the `SnapshotStore` and loads the file; the library writes, sends and receives
snapshots through `SnapshotAdapter`; `offline.py` reads the file with `parse_snapshot`.

File ``snapshot``: magic, then frames ``length u32 | crc u32 | bytes``. The first frame is the
header, the others are the state machine's chunks; the last has length 0xFFFFFFFF and carries the
crc of all frames' heads, so that the loss of a whole frame is detected too.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import Protocol

import msgspec

from raft_metadata.common.disk import UNFINISHED_SUFFIX, Disk, replace_file
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.faults import FaultHandler
from raft_metadata.common.ids import ClusterId, NodeId
from raft_metadata.quorum.journal import Entry

SNAPSHOT_FILE = "snapshot"
PART_BYTES = 64 * 1024
"""Size of the parts in which a snapshot is sent to a follower."""
_MAGIC = b"QLSNAP01"
_FRAME = struct.Struct("<II")
_END = 0xFFFFFFFF

_log = logging.getLogger("raft_metadata.quorum")


class StateMachine(Protocol):
    """The port to which committed payloads are applied. Called on the loop, except `chunks`."""

    def apply(self, index: int, term: int, payload: bytes) -> object:
        """Apply one payload and return the value for its submitter.

        Pure and total: no clock, no chance, no exception (an exception ends the process).
        """
        ...

    def capture(self) -> object:
        """Return an immutable reference to the present state, for a snapshot; must be cheap."""
        ...

    def chunks(self, captured: object) -> Iterator[bytes]:
        """Return a captured state as chunks of bytes, each under 4 GiB; called on any thread."""
        ...

    def restore(self, chunks: Sequence[bytes], index: int, term: int) -> None:
        """Replace the whole state by one that was captured after applying (index, term)."""
        ...


class SnapshotHeader(msgspec.Struct, frozen=True):
    """The last applied entry and the one before it, from which the journal must continue."""

    cluster_id: str
    previous: tuple[bytes, int, int]
    last: tuple[bytes, int, int]


class SnapshotState(Enum):
    """Progress of writing a snapshot. WRITTEN and FAILED are reported once."""

    IDLE = 0
    WRITING = 1
    WRITTEN = 2
    FAILED = 3


@dataclass(slots=True)
class _Outgoing:
    fd: int
    index: int
    offset: int = 0


def start_thread(write: Callable[[], None]) -> threading.Thread:
    """Run `write` on a new daemon thread and return the thread."""
    # A daemon ends with the process. pysyncobj's forked child would rename its file even after its
    # parent was killed.
    thread = threading.Thread(target=write, name="snapshot", daemon=True)
    thread.start()
    return thread


class SnapshotStore:
    """The snapshot file of one voter. Owned by the loop; `_write` alone runs on its own thread.

    The hand-over points are `capture()` (an immutable reference) and `_state` under `_lock`.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        cluster_id: ClusterId,
        machine: StateMachine,
        faults: FaultHandler,
        *,
        run: Callable[[Callable[[], None]], threading.Thread | None] = start_thread,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{SNAPSHOT_FILE}"
        self._cluster_id = cluster_id
        self._machine = machine
        self._faults = faults
        self._run = run
        self._lock = threading.Lock()
        self._state = SnapshotState.IDLE
        self._generation = 0
        self._thread: threading.Thread | None = None
        self._outgoing: dict[NodeId, _Outgoing] = {}
        self._incoming: int | None = None
        self._incoming_bytes = 0
        self.header: SnapshotHeader | None = None
        """Header of the snapshot last loaded into the state machine; None if none was."""
        self.index = 0
        """Index of the last entry in the snapshot on disk; 0 without a snapshot."""

    # -- at start

    def open(self) -> SnapshotHeader | None:
        """Verify the snapshot and load it into the state machine; return None if there is none.

        Raises CorruptionError: a voter never continues with an empty state (defect 5).
        """
        drop_leftovers(self._disk, self._directory)
        data = self._disk.read_file(self._path)
        if data is None:
            return None
        self._disk.sync_directory(self._directory)  # rule Q1
        self.header = self._thaw(data)
        return self.header

    def _thaw(self, data: bytes) -> SnapshotHeader:
        header, chunks = self._parse(data)
        self._machine.restore(chunks, header.last[1], header.last[2])
        self.index = header.last[1]
        return header

    def _parse(self, data: bytes) -> tuple[SnapshotHeader, list[bytes]]:
        header, chunks = parse_snapshot(data, self._path)
        if header.cluster_id != self._cluster_id:
            msg = f"snapshot of cluster {header.cluster_id} file={self._path}"
            raise CorruptionError(msg)
        return header, chunks

    # -- writing this voter's snapshot

    def begin(self, previous: Entry, last: Entry) -> None:
        """Freeze the state, which has applied exactly up to `last`, and write it on a thread."""
        captured = self._machine.capture()
        header = SnapshotHeader(self._cluster_id, previous, last)
        with self._lock:
            self._generation += 1
            generation = self._generation
            self._state = SnapshotState.WRITING
        self._thread = self._run(lambda: self._write(generation, header, captured))

    def _write(self, generation: int, header: SnapshotHeader, captured: object) -> None:
        path = f"{self._path}.{generation}"
        try:
            frames = frame(msgspec.json.encode(header), self._machine.chunks(captured))
            replace_file(self._disk, path, frames)  # the slow part, outside the lock
        except Exception as error:  # noqa: BLE001 no space, say: the journal still holds all
            _log.warning("snapshot failed file=%s error=%r", path, error)
            self._drop_failed(path)
            with self._lock:
                if generation == self._generation:
                    self._state = SnapshotState.FAILED
            return
        with self._lock:
            if generation != self._generation:
                self._disk.unlink(path)
                return
            try:
                self._disk.rename(path, self._path)
                self._disk.sync_directory(self._directory)
            except Exception as error:  # noqa: BLE001 which file has the name is not known now
                self._faults.fatal(f"snapshot rename failed file={self._path}", error)
            self._state = SnapshotState.WRITTEN
            self.index = header.last[1]
        _log.info("snapshot written index=%d term=%d", header.last[1], header.last[2])

    def _drop_failed(self, path: str) -> None:
        """Remove a partly written snapshot to free its space for the journal."""
        for left in (path + UNFINISHED_SUFFIX, path):
            with contextlib.suppress(OSError):
                self._disk.unlink(left)

    def poll(self) -> SnapshotState:
        """Return the progress of writing; WRITTEN and FAILED are returned only once.

        After WRITTEN the journal may drop its prefix.
        """
        with self._lock:
            state = self._state
            if state in (SnapshotState.WRITTEN, SnapshotState.FAILED):
                self._state = SnapshotState.IDLE
        return state

    def abort(self) -> None:
        """Make the snapshot being written obsolete; a newer state is about to be installed."""
        with self._lock:
            self._generation += 1
            if self._state is not SnapshotState.IDLE:
                self._state = SnapshotState.FAILED

    # -- sending to a follower

    def next_part(self, node: NodeId) -> tuple[bytes, bool, bool, int] | None:
        """Return (bytes, first, last, index of the snapshot), or None if no snapshot exists.

        Each follower gets the parts in order; the last part is empty. A transfer continues with the
        file it began with, even if a newer snapshot takes its name meanwhile.
        """
        outgoing = self._outgoing.get(node)
        if outgoing is None:
            if not self._disk.exists(self._path):
                return None
            fd = self._disk.open(self._path)
            outgoing = self._outgoing[node] = _Outgoing(fd, _peek_index(self._disk, fd))
        first = outgoing.offset == 0
        data = self._disk.read(outgoing.fd, PART_BYTES, outgoing.offset)
        outgoing.offset += len(data)
        if not data:
            self.cancel(node)
        return data, first, not data, outgoing.index

    def cancel(self, node: NodeId) -> None:
        """End the transfer to a follower; the next one starts from the beginning."""
        outgoing = self._outgoing.pop(node, None)
        if outgoing is not None:
            self._disk.close(outgoing.fd)

    # -- receiving from the leader

    def receive(self, data: bytes, *, first: bool, last: bool) -> bool:
        """Store one part; return True once the whole snapshot is durable, verified and loaded."""
        path = f"{self._path}.incoming"
        try:
            if first:
                self._drop_incoming()
                self._incoming, self._incoming_bytes = self._disk.open(path, create=True), 0
                self._disk.truncate(self._incoming, 0)
            if self._incoming is None:
                return False
            self._disk.write(self._incoming, data, self._incoming_bytes)
            self._incoming_bytes += len(data)
            if not last:
                return False
            return self._install(path, self._incoming)
        except Exception as error:  # noqa: BLE001 half installed is not a state to go on with
            self._faults.fatal(f"snapshot install failed file={path}", error)

    def _install(self, path: str, fd: int) -> bool:
        self._disk.sync_data(fd)  # before the rename; the library itself does not (lesson 9)
        data = self._disk.read(fd, self._incoming_bytes, 0)
        self._drop_incoming()
        try:
            self._parse(data)
        except CorruptionError as error:
            # A part was lost with its connection; the leader starts again if this voter is behind.
            _log.warning("received snapshot refused error=%s", error)
            self._disk.unlink(path)
            return False
        self._disk.rename(path, self._path)
        self._disk.sync_directory(self._directory)
        self.header = self._thaw(data)
        _log.info("snapshot installed index=%d bytes=%d", self.header.last[1], len(data))
        return True

    def _drop_incoming(self) -> None:
        if self._incoming is not None:
            self._disk.close(self._incoming)
            self._incoming = None

    def close(self) -> threading.Thread | None:
        """Stop using the directory; the returned thread, if any, may still be writing."""
        self.abort()
        self._drop_incoming()
        for node in list(self._outgoing):
            self.cancel(node)
        return self._thread


def drop_leftovers(disk: Disk, directory: str) -> None:
    """Remove files that a crash left half written.

    Call before anything is written to the directory.
    """
    for name in disk.names(directory):
        if name.startswith(SNAPSHOT_FILE + ".") or name.endswith(UNFINISHED_SUFFIX):
            disk.unlink(f"{directory}/{name}")


def frame(header: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the bytes of a snapshot file, frame by frame."""
    yield _MAGIC
    total = 0
    for chunk in chain((header,), chunks):
        crc = zlib.crc32(chunk)
        total = zlib.crc32(_FRAME.pack(len(chunk), crc), total)
        yield _FRAME.pack(len(chunk), crc) + chunk
    yield _FRAME.pack(_END, total)


def parse_snapshot(data: bytes, path: str) -> tuple[SnapshotHeader, list[bytes]]:
    """Return header and chunks of a whole file; raise CorruptionError, which names ``path``."""
    try:
        frames = list(unframe(data))
        header = msgspec.json.decode(frames[0], type=SnapshotHeader)
    except (ValueError, IndexError, msgspec.MsgspecError) as error:
        msg = f"corrupt snapshot file={path} error={error}"
        raise CorruptionError(msg) from error
    return header, frames[1:]


def unframe(data: bytes) -> Iterator[bytes]:
    """Yield the frames of a file; raise ValueError naming the offset of the first bad one."""
    if data[: len(_MAGIC)] != _MAGIC:
        msg = "bad magic offset=0"
        raise ValueError(msg)
    offset, total = len(_MAGIC), 0
    while True:
        if offset + _FRAME.size > len(data):
            msg = f"truncated offset={offset}"
            raise ValueError(msg)
        length, crc = _FRAME.unpack_from(data, offset)
        start = offset + _FRAME.size
        if length == _END:
            if crc != total or start != len(data):
                msg = f"bad end offset={offset}"
                raise ValueError(msg)
            return
        chunk = data[start : start + length]
        if len(chunk) != length or zlib.crc32(chunk) != crc:
            msg = f"bad frame offset={offset}"
            raise ValueError(msg)
        total = zlib.crc32(data[offset:start], total)
        yield chunk
        offset = start + length


def _peek_index(disk: Disk, fd: int) -> int:
    start = len(_MAGIC) + _FRAME.size
    length, _ = _FRAME.unpack(disk.read(fd, _FRAME.size, len(_MAGIC)))
    header = msgspec.json.decode(disk.read(fd, length, start), type=SnapshotHeader)
    return header.last[1]
