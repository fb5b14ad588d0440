"""Adapters that give pysyncobj this project's settings, journal and snapshots under its own names.

`RaftNode` builds them and passes them to the library through `library_conf`; the library calls the
adapters on the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pysyncobj import SyncObjConf

from raft_metadata.common.faults import FaultHandler
from raft_metadata.quorum.config import STEP_DOWN_MARGIN_MS, QuorumConfig
from raft_metadata.quorum.journal import DurableJournal, Entry
from raft_metadata.quorum.pysyncobj_internals import (
    NOT_SERIALIZING,
    SERIALIZE_FAILED,
    SERIALIZED,
    SERIALIZING,
)
from raft_metadata.quorum.snapshots import SnapshotState, SnapshotStore
from raft_metadata.quorum.voter_node import VoterNode

APPEND_BYTES = 1024 * 1024
"""Most bytes of entries in one append message; twice `MAX_PAYLOAD_BYTES`, so every entry fits."""
MAX_SNAPSHOT_BACKLOG_BYTES = 1024 * 1024
"""Most unsent bytes to one follower before the next part of a snapshot is sent."""
SNAPSHOT_RETRY_S = 10.0
"""Pause after a snapshot that could not be written, for example on a full disk; the library itself
would begin again at once."""

_STATES = {
    SnapshotState.IDLE: NOT_SERIALIZING,
    SnapshotState.WRITING: SERIALIZING,
    SnapshotState.WRITTEN: SERIALIZED,
    SnapshotState.FAILED: SERIALIZE_FAILED,
}


def library_conf(config: QuorumConfig, journal: object, snapshots: object) -> Any:
    """Return pysyncobj's settings; its own network and threads are not used."""
    election_s = config.election_timeout_ms / 1000
    return SyncObjConf(
        autoTick=False,
        dynamicMembershipChange=False,
        raftMinTimeout=election_s,
        raftMaxTimeout=2 * election_s,
        appendEntriesPeriod=config.heartbeat_ms / 1000,
        appendEntriesBatchSizeBytes=APPEND_BYTES,
        connectionTimeout=2 * election_s,  # unused; it asserts that it is no less
        leaderFallbackTimeout=(config.leader_fallback_ms - STEP_DOWN_MARGIN_MS) / 1000,
        logCompactionMinEntries=config.snapshot_min_entries,
        logCompactionMinTime=config.snapshot_max_interval_ms / 1000,
        logCompactionSplit=False,
        journalFile=journal,
        fullDumpFile="unused",  # non-empty, because the library asserts it; the store has the path
        serializer=snapshots,
        deserializer=snapshots,
    )


class JournalAdapter:
    """The library's `Journal` interface over a `DurableJournal`. It holds no state of its own."""

    def __init__(self, journal: DurableJournal, commit: Callable[[int], int]) -> None:
        self._journal = journal
        self._commit = commit
        """Returns how much of a commit index that the library has just set is valid."""

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append an entry."""
        self._journal.add(command, idx, term)

    def clear(self) -> None:
        """Remove all entries."""
        self._journal.clear()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 the library's names
        """Remove all entries from this position on."""
        self._journal.delete_from(entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803 the library's names
        """Remove all entries before this position."""
        self._journal.delete_to(entryTo)

    def __getitem__(self, item: Any) -> Any:
        return self._journal.entries[item]

    def __len__(self) -> int:
        return len(self._journal.entries)

    def _destroy(self) -> None:
        self._journal.sync()

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Set the commit index; the library calls it before it applies anything."""
        self._journal.set_commit_index(self._commit(raftCommitIndex))

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """Return the commit index; the library calls it at start."""
        return self._journal.commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        """Store term and vote durably.

        The library calls it before it sends a message about them.
        """
        self._journal.set_vote(term, votedForNodeId)

    def getCurrentTerm(self) -> int:  # noqa: N802
        """Return the stored term; the library calls it at start."""
        return self._journal.vote.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        """Return the stored vote; the library calls it at start."""
        return self._journal.vote.voted_for

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Prove the durable tail of the journal; the library calls it every second."""
        self._journal.prove_tail()


class SnapshotAdapter:
    """The library's `Serializer` interface over a `SnapshotStore`.

    Errors never reach the library, which would swallow them.
    """

    def __init__(
        self,
        store: SnapshotStore,
        faults: FaultHandler,
        backlog_bytes: Callable[[VoterNode], int],
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self._not_before = float("-inf")
        self._store = store
        self._faults = faults
        self._backlog_bytes = backlog_bytes
        self._first_kept = 0

    def checkSerializing(self) -> tuple[int, int]:  # noqa: N802
        """Return (library's state number, index of the first entry to keep)."""
        state = self._store.poll()
        if state is SnapshotState.FAILED:
            self._not_before = self._now() + SNAPSHOT_RETRY_S
        return _STATES[state], self._first_kept

    def serialize(self, data: tuple[None, Entry, Entry, object], id_: int) -> None:
        """Begin a snapshot; `data` holds the last applied entry, then the one before it."""
        if self._now() < self._not_before:
            return
        _, last, previous, _ = data
        self._first_kept = id_
        try:
            self._store.begin(previous, last)
        except Exception as error:  # noqa: BLE001 capture() is ours and total
            self._faults.fatal("snapshot begin failed", error)

    def deserialize(self) -> tuple[None, Entry, Entry, tuple[()]]:
        """Return the head entries of the loaded snapshot.

        The state machine already holds its state.
        """
        header = self._store.header
        if header is None:
            self._faults.fatal("the library asked for a snapshot that was not verified")
        return None, header.last, header.previous, ()

    def getTransmissionData(  # noqa: N802
        self, node: VoterNode
    ) -> tuple[bytes, bool, bool, int] | None:
        """Return the next part for a follower; None while enough bytes are unsent."""
        if self._backlog_bytes(node) > MAX_SNAPSHOT_BACKLOG_BYTES:
            return None
        return self._store.next_part(node.node_id)

    def setTransmissionData(  # noqa: N802
        self, data: tuple[bytes, bool, bool, int]
    ) -> bool:
        """Store one part from the leader; return True once the whole snapshot is installed."""
        part, first, last, _ = data
        return self._store.receive(part, first=first, last=last)

    def cancelTransmisstion(self, node: VoterNode) -> None:  # noqa: N802 the library's spelling
        """Ignore the library's call, which covers disconnected and paused followers alike.

        The transport's own `on_disconnected` cancels a transfer.
        """
