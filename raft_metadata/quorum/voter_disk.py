"""Opening of one voter's directory: lock and identity, then journal and vote, then snapshot.

`MetadataQuorum.start` calls `open_voter_disk`. This module also keeps the reserve file, which frees
the space that opening needs on a full disk.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.faults import FaultHandler
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.data_dir import DataDir, Identity
from raft_metadata.quorum.files import NEW_SUFFIX, Files, replace_file, storage_errors
from raft_metadata.quorum.flusher import Flusher
from raft_metadata.quorum.journal import JOURNAL_FILE, DurableJournal
from raft_metadata.quorum.snapshots import (
    SnapshotStore,
    Snapshotted,
    drop_leftovers,
    start_thread,
)

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
    machine: Snapshotted,
    faults: FaultHandler,
    files: Files,
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
    home = DataDir(files, config.raft_dir, identity, faults)
    try:
        if set(home.meta.voters) != set(config.voters):
            msg = (
                f"formatted for voters {sorted(home.meta.voters)}, configured for "
                f"{sorted(config.voters)} directory={config.raft_dir}"
            )
            raise StorageError(msg)
        if home.meta.used and not files.exists(config.raft_dir / JOURNAL_FILE):
            msg = f"the journal is gone directory={config.raft_dir}: if its disk was lost, rejoin"
            raise CorruptionError(msg)
        with storage_errors("open", config.raft_dir):
            drop_leftovers(files, config.raft_dir)  # they may occupy the space the journal needs
            journal = _open_journal(config, faults, files, flusher)
    except BaseException:
        home.close()
        raise
    snapshots = SnapshotStore(files, config.raft_dir, config.cluster_id, machine, faults, run=run)
    disk = VoterDisk(home, journal, snapshots)
    try:
        with storage_errors("open", config.raft_dir):
            _align(disk, config)
            _keep_reserve(config, files)
    except BaseException:
        disk.close()
        raise
    return disk


def _open_journal(
    config: QuorumConfig, faults: FaultHandler, files: Files, flusher: Flusher | None
) -> DurableJournal:
    # Opening writes the whole journal into a new file (rule Q1). On a full disk that fails, and
    # the voter could not even vote (lesson 1).
    try:
        return DurableJournal(files, config.raft_dir, faults, flusher=flusher)
    except OSError as error:
        reserve = config.raft_dir / RESERVE_FILE
        if error.errno != errno.ENOSPC or not files.exists(reserve):
            raise
        _log.warning("disk full, giving up the reserve file=%s", reserve)
        files.unlink(reserve)
        return DurableJournal(files, config.raft_dir, faults, flusher=flusher)


def _keep_reserve(config: QuorumConfig, files: Files) -> None:
    reserve = config.raft_dir / RESERVE_FILE
    if files.exists(reserve) or not config.reserve_bytes:
        return
    try:
        replace_file(files, reserve, [bytes(config.reserve_bytes)])
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _log.warning("disk full, no reserve file=%s", reserve)
        files.unlink(reserve.with_name(RESERVE_FILE + NEW_SUFFIX))


def _align(disk: VoterDisk, config: QuorumConfig) -> None:
    if not disk.home.meta.used:
        disk.home.mark_used()
    header = disk.snapshots.open()
    if header is not None:
        disk.journal.align(header.previous, header.last)
    elif disk.journal.entries and disk.journal.entries[0][1] != 1:
        msg = f"the journal was compacted but its snapshot is gone directory={config.raft_dir}"
        raise StorageError(msg)
