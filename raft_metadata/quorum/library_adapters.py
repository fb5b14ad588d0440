"""Our settings, journal and snapshots under the names that pysyncobj knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pysyncobj import SyncObjConf

from raft_metadata.common.faults import FaultHandler
from raft_metadata.quorum.config import STEP_DOWN_MARGIN_MS, QuorumConfig
from raft_metadata.quorum.journal import DurableJournal
from raft_metadata.quorum.journal_format import Entry
from raft_metadata.quorum.pysyncobj_internals import (
    NOT_SERIALIZING,
    SERIALIZE_FAILED,
    SERIALIZED,
    SERIALIZING,
)
from raft_metadata.quorum.snapshots import SnapshotState, SnapshotStore
from raft_metadata.quorum.voter_node import VoterNode

APPEND_BYTES = 1024 * 1024
"""Entries of one append message; twice `MAX_PAYLOAD_BYTES`, so that every entry fits."""
MAX_SNAPSHOT_BACKLOG_BYTES = 1024 * 1024
"""Unsent bytes of a snapshot towards one follower."""
SNAPSHOT_RETRY_S = 10.0
"""After one that could not be written (a full disk, say); the library would begin again at once."""

_STATES = {
    SnapshotState.IDLE: NOT_SERIALIZING,
    SnapshotState.WRITING: SERIALIZING,
    SnapshotState.WRITTEN: SERIALIZED,
    SnapshotState.FAILED: SERIALIZE_FAILED,
}


def library_conf(config: QuorumConfig, journal: object, snapshots: object) -> Any:
    """Pysyncobj's own settings. Those of its own network and threads are not used."""
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
    """The library's `Journal`. It holds no state of its own."""

    def __init__(self, journal: DurableJournal, commit: Callable[[int], int]) -> None:
        self._journal = journal
        self._commit = commit
        """How much of a commit index that the library has just set may stand."""

    def add(self, command: bytes, idx: int, term: int) -> None:
        """Append."""
        self._journal.add(command, idx, term)

    def clear(self) -> None:
        """Forget all."""
        self._journal.clear()

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N802, N803 the library's names
        """Drop a tail."""
        self._journal.delete_from(entryFrom)

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N802, N803 the library's names
        """Drop a prefix."""
        self._journal.delete_to(entryTo)

    def __getitem__(self, item: Any) -> Any:
        return self._journal.entries[item]

    def __len__(self) -> int:
        return len(self._journal.entries)

    def _destroy(self) -> None:
        self._journal.sync()

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N802, N803
        """Called before anything is applied."""
        self._journal.set_commit_index(self._commit(raftCommitIndex))

    def getRaftCommitIndex(self) -> int:  # noqa: N802
        """At start."""
        return self._journal.commit_index

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N802, N803
        """Before the message that tells it."""
        self._journal.set_vote(term, votedForNodeId)

    def getCurrentTerm(self) -> int:  # noqa: N802
        """At start."""
        return self._journal.vote.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802
        """At start."""
        return self._journal.vote.voted_for

    def onOneSecondTimer(self) -> None:  # noqa: N802
        """Every second."""
        self._journal.prove_tail()


class SnapshotAdapter:
    """The library's `Serializer`. Errors never reach the library, which would swallow them."""

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
        """(state, index of the first entry to keep)."""
        state = self._store.poll()
        if state is SnapshotState.FAILED:
            self._not_before = self._now() + SNAPSHOT_RETRY_S
        return _STATES[state], self._first_kept

    def serialize(self, data: tuple[None, Entry, Entry, object], id_: int) -> None:
        """Begin; the last applied entry comes first, the one before it second."""
        if self._now() < self._not_before:
            return
        _, last, previous, _ = data
        self._first_kept = id_
        try:
            self._store.begin(previous, last)
        except Exception as error:  # noqa: BLE001 freeze() is ours and total
            self._faults.fatal("snapshot begin failed", error)

    def deserialize(self) -> tuple[None, Entry, Entry, tuple[()]]:
        """What the state machine was just replaced by: the state itself is there already."""
        header = self._store.header
        if header is None:
            self._faults.fatal("the library asked for a snapshot that was not verified")
        return None, header.last, header.previous, ()

    def getTransmissionData(  # noqa: N802
        self, node: VoterNode
    ) -> tuple[bytes, bool, bool, int] | None:
        """The next part; None while enough is under way."""
        if self._backlog_bytes(node) > MAX_SNAPSHOT_BACKLOG_BYTES:
            return None
        return self._store.next_part(node.node_id)

    def setTransmissionData(  # noqa: N802
        self, data: tuple[bytes, bool, bool, int]
    ) -> bool:
        """One part from the leader; True once the whole is installed."""
        part, first, last, _ = data
        return self._store.receive(part, first=first, last=last)

    def cancelTransmisstion(self, node: VoterNode) -> None:  # noqa: N802 the library's spelling
        """Said of a follower that is gone, and of one we paused; the filter knows who is gone."""
