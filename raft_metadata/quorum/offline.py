"""Reader of a stopped controller's metadata log, from its directory. Never writes.

The command line and the chaos checks call `read_offline_log`. Rules Q1 and Q5 do not apply, because
nothing is promised from the result: a torn tail is left out and reported. Entries after the
snapshot may include some that were never committed, which only a running quorum can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from raft_metadata.common.disk import Disk, storage_errors
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.image.facts import Fact, FactConverter
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.metadata_state_machine import Accepted, MetadataStateMachine
from raft_metadata.quorum.data_dir import META_FILE, read_raft_meta
from raft_metadata.quorum.journal import JOURNAL_FILE, Entry, parse_journal
from raft_metadata.quorum.pysyncobj_internals import REGULAR
from raft_metadata.quorum.snapshots import SNAPSHOT_FILE, parse_snapshot
from raft_metadata.records.commands import MetadataBatch
from raft_metadata.records.serde import decode_batch


class InUseError(StorageError):
    """The directory's lock is held by a running controller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedControllerLog:
    """The content of a controller's directory, folded into images as a controller folds it."""

    node_id: int
    cluster_id: str
    snapshot_index: int
    """Raft index of the last entry in the snapshot; 0 without a snapshot."""
    batches: tuple[MetadataBatch, ...]
    """Accepted batches with records, from the snapshot's ``next_offset`` on."""
    last_index: int
    last_term: int
    torn_bytes: int
    """Bytes of an incomplete write at the journal's end; their entries are left out."""
    before: MetadataImage
    """Image before the first batch: the snapshot's, or an empty one."""
    image: MetadataImage
    """Image after the last batch."""

    def facts(self, start: int) -> Iterator[Fact]:
        """Yield the facts from an offset on; a snapshot's first, if the journal begins later."""
        converter = FactConverter(self.image, self.before)
        if self.snapshot_index and start < self.before.next_offset:
            yield from converter.snapshot_facts(self.before)
        for batch in self.batches:
            yield from (fact for fact in converter.batch_facts(batch) if fact["offset"] >= start)


def read_offline_log(raft_dir: Path, *, even_if_locked: bool = False) -> StoppedControllerLog:
    """Return the metadata log held in `raft_dir`.

    Raises StorageError (not a controller's directory), InUseError and CorruptionError. With
    `even_if_locked` a running controller may change files during the read; the result may be torn
    and is for display only.
    """
    disk = Disk()
    meta = read_raft_meta(raft_dir, disk=disk)
    if meta is None:
        msg = f"no controller's directory, {META_FILE} is missing directory={raft_dir}"
        raise StorageError(msg)
    if not even_if_locked:
        _refuse_locked(disk, str(raft_dir))
    snapshot_path, journal_path = f"{raft_dir}/{SNAPSHOT_FILE}", f"{raft_dir}/{JOURNAL_FILE}"
    with storage_errors("read", str(raft_dir)):
        # The journal is read first, so that the snapshot of a running controller is the newer of
        # the two and no entries are missing between them.
        journal = disk.read_file(journal_path)
        found = disk.read_file(snapshot_path)
    machine = MetadataStateMachine()
    index = 0
    if found is not None:
        header, chunks = parse_snapshot(found, snapshot_path)
        index = header.last[1]
        if header.cluster_id != meta.cluster_id:
            msg = f"snapshot of cluster {header.cluster_id} file={snapshot_path}"
            raise CorruptionError(msg)
        machine.restore(chunks, index, header.last[2])
    entries: Sequence[Entry] = ()
    torn = 0
    if journal is not None:
        scan = parse_journal(journal, journal_path)
        entries, torn = scan.entries, len(journal) - scan.end
    if entries and entries[0][1] > index + 1:
        # The state machine would reject every entry as out of order, and the result would look
        # like an empty log.
        msg = f"the journal starts at {entries[0][1]}, the snapshot ends at {index}: {raft_dir}"
        raise CorruptionError(msg)
    before = machine.image
    batches = _applied(machine, entries, index)
    last = entries[-1] if entries else (b"", machine.index, machine.term)
    return StoppedControllerLog(
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


def _refuse_locked(disk: Disk, raft_dir: str) -> None:
    """Raise InUseError if the directory's lock is held.

    The lock is released at once, so that a controller can start during the read.
    """
    try:
        with disk.directory(raft_dir) as fd:
            disk.lock(fd)
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
