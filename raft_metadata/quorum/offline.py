"""The metadata log of a controller that is stopped, from its directory. Reads, and never writes.

Rules Q1 and Q5 do not apply: nothing is promised by what is found here, so a torn tail is left out
and said. Entries behind the snapshot may include some that were never committed: only a running
quorum knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.metadata_state_machine import Accepted, MetadataStateMachine
from raft_metadata.quorum.data_dir import META_FILE, read_raft_meta
from raft_metadata.quorum.files import DiskFiles, Files, storage_errors
from raft_metadata.quorum.journal import JOURNAL_FILE
from raft_metadata.quorum.journal_format import Entry, parse_journal
from raft_metadata.quorum.pysyncobj_internals import REGULAR
from raft_metadata.quorum.snapshots import SNAPSHOT_FILE, parse_snapshot
from raft_metadata.records.commands import MetadataBatch
from raft_metadata.records.serde import decode_batch


class InUseError(StorageError):
    """A running controller holds the directory's lock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfflineLog:
    """What a directory holds, folded as the controller would fold it."""

    node_id: int
    cluster_id: str
    snapshot_index: int
    """The Raft entry the snapshot ends with; 0: there is none."""
    batches: tuple[MetadataBatch, ...]
    """Accepted ones, from the snapshot's ``next_offset`` on."""
    last_index: int
    last_term: int
    torn_bytes: int
    """At the journal's end, not counted: a write that was cut short."""
    before: MetadataImage
    """What the first batch changes: the snapshot's image, or an empty one."""
    image: MetadataImage
    """What all of it leads to."""


def read_offline_log(
    raft_dir: Path, *, even_if_locked: bool = False, files: Files | None = None
) -> OfflineLog:
    """Raises StorageError (not a controller's directory), InUseError and CorruptionError.

    ``even_if_locked``: a running controller's files change while they are read; what comes out may
    be torn, and is never used for anything but looking.
    """
    files = files or DiskFiles()
    meta = read_raft_meta(raft_dir, files=files) if files.exists(raft_dir) else None
    if meta is None:
        msg = f"no controller's directory, {META_FILE} is missing directory={raft_dir}"
        raise StorageError(msg)
    if not even_if_locked:
        _refuse_locked(files, raft_dir)
    snapshot_path, journal_path = raft_dir / SNAPSHOT_FILE, raft_dir / JOURNAL_FILE
    with storage_errors("read", raft_dir):
        # In this order a running controller's pair has no gap: its snapshot is the newer one.
        journal = files.read(journal_path) if files.exists(journal_path) else None
        found = files.read(snapshot_path) if files.exists(snapshot_path) else None
    machine = MetadataStateMachine()
    index = 0
    if found is not None:
        header, chunks = parse_snapshot(found, snapshot_path)
        index = header.last[1]
        if header.cluster_id != meta.cluster_id:
            msg = f"snapshot of cluster {header.cluster_id} file={snapshot_path}"
            raise CorruptionError(msg)
        machine.thaw(chunks, index, header.last[2])
    entries: Sequence[Entry] = ()
    torn = 0
    if journal is not None:
        scan = parse_journal(journal, journal_path)
        entries, torn = scan.entries, len(journal) - scan.end
    if entries and entries[0][1] > index + 1:
        # All of it would be refused as not the next, and nothing would be told as all there is.
        msg = f"the journal starts at {entries[0][1]}, the snapshot ends at {index}: {raft_dir}"
        raise CorruptionError(msg)
    before = machine.image
    batches = _applied(machine, entries, index)
    last = entries[-1] if entries else (b"", machine.index, machine.term)
    return OfflineLog(
        node_id=meta.node_id,
        cluster_id=meta.cluster_id,
        snapshot_index=index,
        batches=batches,
        last_index=last[1],
        last_term=last[2],
        torn_bytes=torn,
        before=before,
        image=machine.image,
    )


def _refuse_locked(files: Files, raft_dir: Path) -> None:
    """Held for a moment only: a controller must be able to start while somebody looks."""
    try:
        files.lock(raft_dir).close()
    except BlockingIOError as error:
        msg = f"in use by a running controller directory={raft_dir}"
        raise InUseError(msg) from error


def _applied(
    machine: MetadataStateMachine, entries: Sequence[Entry], snapshot_index: int
) -> tuple[MetadataBatch, ...]:
    batches = []
    for command, index, term in entries:
        if index <= snapshot_index or command[:1] != bytes((REGULAR,)):
            continue
        payload = command[1:]
        accepted = machine.apply(index, term, payload)
        if isinstance(accepted, Accepted) and accepted.next_offset > accepted.base_offset:
            batches.append(decode_batch(payload))
    return tuple(batches)
