"""Directory of a voter: identity and fence, formatting, and opening at start.

One process, one directory, one identity (rule Q4). ``raft/meta.json`` (with a checksum) holds
cluster, node and directory id, the directory ids of all voters, whether the directory was ever
used, and the fence of a voter that rejoins without its disk. The command line formats directories;
`MetadataQuorum.start` calls `open_voter_disk`, which opens lock and identity, then journal and
vote, then snapshot, and keeps the reserve file that frees space for opening on a full disk.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from raft_metadata.common.disk import (
    UNFINISHED_SUFFIX,
    Disk,
    read_checked,
    replace_file,
    storage_errors,
    write_checked,
)
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.faults import FaultHandler
from raft_metadata.common.ids import ClusterId, DirectoryId, NodeId
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.journal import JOURNAL_FILE, DurableJournal, Flusher
from raft_metadata.quorum.snapshots import (
    SnapshotStore,
    StateMachine,
    drop_leftovers,
    start_thread,
)

META_FILE = "meta.json"
META_FORMAT = 1

Stamp = tuple[str, str, str]
"""Sender and receiver of a message: (cluster id, the sender's directory id, the receiver's
directory id as the sender knows it)."""


class RaftMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``raft/meta.json``."""

    format: int
    cluster_id: str
    node_id: int
    directory_id: str
    voters: dict[int, str]
    used: bool = False
    """True once a journal was created; from then on a missing journal is a lost disk, not a new
    voter."""
    fence: Literal["none", "ask", "adopted"] = "none"
    """``none``: full voter. ``ask``: lost its disk, and some other voter's term is still unknown.
    ``adopted``: follows in the highest of those terms or above, but may not vote yet."""
    fence_term: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The voter that a directory is formatted for."""

    cluster_id: ClusterId
    node_id: NodeId
    directory_id: DirectoryId


def format_raft_dir(
    raft_dir: Path,
    identity: Identity,
    voter_directories: Mapping[NodeId, DirectoryId],
    *,
    disk: Disk | None = None,
) -> None:
    """Create a voter's directory for a whole new cluster; called by ``quorumlog up`` only.

    Every voter gets the same `voter_directories`. Raises StorageError if the directory is not
    empty, or the identity is not among the voters.
    """
    if voter_directories.get(identity.node_id) != identity.directory_id:
        msg = f"voter_directories do not name {identity.directory_id} for {identity.node_id}"
        raise StorageError(msg)
    _format(disk or Disk(), raft_dir, _meta(identity, voter_directories))


def format_rejoining_raft_dir(
    raft_dir: Path,
    identity: Identity,
    voter_directories: Mapping[NodeId, DirectoryId],
    *,
    disk: Disk | None = None,
) -> None:
    """Create the directory of one voter that lost its disk (``quorumlog controller rejoin``).

    `identity` has a directory id that was never used before; `voter_directories` are the present
    ones of the others, each of which must accept the new one (`MetadataQuorum.accept_voter`). The
    voter then requests the terms of *all* others before it takes part (rule Q4).
    """
    if set(voter_directories) <= {identity.node_id}:
        msg = f"node {identity.node_id} is the only voter: no other voter holds what its disk held"
        raise StorageError(msg)
    if identity.directory_id in voter_directories.values():
        msg = f"directory id {identity.directory_id} was used before: a new disk needs a new one"
        raise StorageError(msg)
    voters = {**voter_directories, identity.node_id: identity.directory_id}
    meta = msgspec.structs.replace(_meta(identity, voters), fence="ask")
    _format(disk or Disk(), raft_dir, meta)


def _meta(identity: Identity, voters: Mapping[NodeId, DirectoryId]) -> RaftMeta:
    return RaftMeta(
        format=META_FORMAT,
        cluster_id=identity.cluster_id,
        node_id=identity.node_id,
        directory_id=identity.directory_id,
        voters={int(node): str(directory) for node, directory in voters.items()},
    )


def _format(disk: Disk, raft_dir: Path, meta: RaftMeta) -> None:
    with storage_errors("format", str(raft_dir)):
        disk.make_directory(str(raft_dir))
        left = [name for name in disk.names(str(raft_dir)) if not name.endswith(UNFINISHED_SUFFIX)]
        if left:
            msg = f"not empty, refusing to format directory={raft_dir} holds={left[0]}"
            raise StorageError(msg)
        write_checked(disk, f"{raft_dir}/{META_FILE}", msgspec.json.encode(meta))
        disk.sync_directory(str(raft_dir.parent))


def read_raft_meta(raft_dir: Path, *, disk: Disk | None = None) -> RaftMeta | None:
    """Return a directory's ``meta.json``, or None if it is not formatted. Takes no lock."""
    body = read_checked(disk or Disk(), path := f"{raft_dir}/{META_FILE}")
    return None if body is None else _decode(body, path)


def _decode(body: bytes, path: str) -> RaftMeta:
    try:
        meta = msgspec.json.decode(body, type=RaftMeta)
    except msgspec.MsgspecError as error:
        msg = f"unreadable file={path} error={error}"
        raise CorruptionError(msg) from error
    if meta.format != META_FORMAT:
        msg = f"format {meta.format}, expected {META_FORMAT} file={path}"
        raise StorageError(msg)
    return meta


class DataDir:
    """A locked directory and its identity. Owned by the loop; lives as long as the node.

    Raises StorageError if the directory belongs to another voter or is in use, CorruptionError if
    it is not formatted.
    """

    def __init__(
        self, disk: Disk, raft_dir: Path, identity: Identity, faults: FaultHandler
    ) -> None:
        self._disk = disk
        self._faults = faults
        self._path = str(raft_dir)
        self._meta_path = f"{raft_dir}/{META_FILE}"
        if not disk.exists(self._path):
            msg = f"not formatted directory={raft_dir}: if its disk was lost, rejoin"
            raise CorruptionError(msg)
        with storage_errors("lock", self._path):
            self._lock = disk.open_directory(self._path)
        try:
            self._take_lock()
            self._meta = self._load(identity)
        except BaseException:
            self.close()
            raise

    def _take_lock(self) -> None:
        with storage_errors("lock", self._path):
            try:
                self._disk.lock(self._lock)
            except BlockingIOError as error:
                msg = f"in use by another process directory={self._path}"
                raise StorageError(msg) from error

    def _load(self, identity: Identity) -> RaftMeta:
        body = read_checked(self._disk, self._meta_path)
        if body is None:
            msg = f"not formatted directory={self._path}: if its disk was lost, rejoin"
            raise CorruptionError(msg)
        meta = _decode(body, self._meta_path)
        found = (meta.cluster_id, meta.node_id, meta.directory_id)
        wanted = (identity.cluster_id, identity.node_id, identity.directory_id)
        if found != wanted:
            msg = f"belongs to {found}, not to {wanted} file={self._meta_path}"
            raise StorageError(msg)
        with storage_errors("sync", self._path):
            # The content was synced before the rename, the name maybe not (rule Q1).
            self._disk.sync_directory(self._path)
        return meta

    @property
    def meta(self) -> RaftMeta:
        """The durable content of ``meta.json``."""
        return self._meta

    @property
    def fenced(self) -> bool:
        """True while this voter, which lost its disk, may not vote."""
        return self._meta.fence != "none"

    def mark_used(self) -> None:
        """Record durably that a journal exists: from now on a missing journal is a lost disk."""
        self._change(msgspec.structs.replace(self._meta, used=True))

    def adopt_fence_term(self, term: int) -> None:
        """Record the highest term of all other voters.

        From now on this voter follows, without a vote.
        """
        self._change(msgspec.structs.replace(self._meta, fence="adopted", fence_term=term))

    def lift_fence(self) -> None:
        """Make this voter a full voter again."""
        self._change(msgspec.structs.replace(self._meta, fence="none"))

    def set_voter_directory(self, voter: NodeId, directory_id: DirectoryId) -> None:
        """Record the directory id of another voter whose disk was replaced."""
        voters = {**self._meta.voters, voter: directory_id}
        self._change(msgspec.structs.replace(self._meta, voters=voters))

    def _change(self, meta: RaftMeta) -> None:
        # Other voters may rely on the change once it is made, so a failed write ends the process.
        try:
            write_checked(self._disk, self._meta_path, msgspec.json.encode(meta))
        except Exception as error:  # noqa: BLE001 whatever it is, the process ends
            self._faults.fatal(f"meta write failed file={self._meta_path}", error)
        self._meta = meta

    def is_known_voter(self, node: NodeId, cluster_id: str, directory_id: str) -> bool:
        """Return whether the ids match this cluster and the directory recorded for voter `node`."""
        expected = self._meta.voters.get(node)
        return cluster_id == self._meta.cluster_id and directory_id == expected

    def stamp(self, to: NodeId) -> Stamp:
        """Return the stamp for a message to a voter."""
        return self._meta.cluster_id, self._meta.directory_id, self._meta.voters[to]

    def is_stamp_valid(self, sender: NodeId, stamp: Stamp) -> bool:
        """Return whether a message comes from a known disk and is meant for this one.

        Without the second half, an append answered by the old disk would count as proof for the new
        one (DESIGN.md, lesson 5).
        """
        cluster_id, from_directory, to_directory = stamp
        return (
            self.is_known_voter(sender, cluster_id, from_directory)
            and to_directory == self._meta.directory_id
        )

    def close(self) -> None:
        """Release the lock; the end of the process releases it too."""
        self._disk.close(self._lock)


RESERVE_FILE = "reserve"

_log = logging.getLogger("raft_metadata.quorum")


@dataclass(frozen=True, slots=True)
class VoterDisk:
    """Files of a voter. Owned by the loop; holds the directory's lock until closed."""

    home: DataDir
    journal: DurableJournal
    snapshots: SnapshotStore

    def close(self) -> None:
        """Close all files and release the lock; the snapshot's thread must have ended before."""
        self.snapshots.close()
        self.journal.close()
        self.home.close()


def open_voter_disk(
    config: QuorumConfig,
    machine: StateMachine,
    faults: FaultHandler,
    disk: Disk,
    *,
    run: Callable[[Callable[[], None]], threading.Thread | None] = start_thread,
    flusher: Flusher | None = None,
) -> VoterDisk:
    """Open the directory, journal and snapshot, and load the snapshot into the state machine.

    Raises StorageError or CorruptionError (exit 74) if the directory is not formatted, belongs to
    another voter, is in use, was emptied, or is damaged. Never continues with less than was durable
    (rules Q1, Q4, Q5).
    """
    identity = Identity(
        cluster_id=config.cluster_id, node_id=config.node_id, directory_id=config.directory_id
    )
    raft_dir = str(config.raft_dir)
    home = DataDir(disk, config.raft_dir, identity, faults)
    try:
        if set(home.meta.voters) != set(config.voters):
            msg = (
                f"formatted for voters {sorted(home.meta.voters)}, configured for "
                f"{sorted(config.voters)} directory={config.raft_dir}"
            )
            raise StorageError(msg)
        if home.meta.used and not disk.exists(f"{raft_dir}/{JOURNAL_FILE}"):
            msg = f"the journal is gone directory={config.raft_dir}: if its disk was lost, rejoin"
            raise CorruptionError(msg)
        with storage_errors("open", raft_dir):
            drop_leftovers(disk, raft_dir)  # they may occupy the space the journal needs
            journal = _open_journal(raft_dir, faults, disk, flusher)
    except BaseException:
        home.close()
        raise
    snapshots = SnapshotStore(disk, raft_dir, config.cluster_id, machine, faults, run=run)
    opened = VoterDisk(home, journal, snapshots)
    try:
        with storage_errors("open", raft_dir):
            _align(opened, raft_dir)
            _keep_reserve(config, disk)
    except BaseException:
        opened.close()
        raise
    return opened


def _open_journal(
    raft_dir: str, faults: FaultHandler, disk: Disk, flusher: Flusher | None
) -> DurableJournal:
    # Opening writes the whole journal into a new file (rule Q1). On a full disk that fails, and
    # the voter could not even vote (lesson 1).
    try:
        return DurableJournal(disk, raft_dir, faults, flusher=flusher)
    except OSError as error:
        reserve = f"{raft_dir}/{RESERVE_FILE}"
        if error.errno != errno.ENOSPC or not disk.exists(reserve):
            raise
        _log.warning("disk full, giving up the reserve file=%s", reserve)
        disk.unlink(reserve)
        return DurableJournal(disk, raft_dir, faults, flusher=flusher)


def _keep_reserve(config: QuorumConfig, disk: Disk) -> None:
    reserve = f"{config.raft_dir}/{RESERVE_FILE}"
    if disk.exists(reserve) or not config.reserve_bytes:
        return
    try:
        replace_file(disk, reserve, [bytes(config.reserve_bytes)])
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _log.warning("disk full, no reserve file=%s", reserve)
        disk.unlink(reserve + UNFINISHED_SUFFIX)


def _align(opened: VoterDisk, raft_dir: str) -> None:
    if not opened.home.meta.used:
        opened.home.mark_used()
    header = opened.snapshots.open()
    if header is not None:
        opened.journal.align(header.previous, header.last)
    elif opened.journal.entries and opened.journal.entries[0][1] != 1:
        msg = f"the journal was compacted but its snapshot is gone directory={raft_dir}"
        raise StorageError(msg)
