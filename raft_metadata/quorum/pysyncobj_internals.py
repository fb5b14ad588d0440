"""Private parts of pysyncobj 0.3.17 that this project uses, each with its reason.

The only module that names a private of the library; `RaftNode` inherits from `PinnedSyncObj`.
Importing it changes the library's modules for the whole process (section "replacements"); nothing
else in this project uses them. Because private names carry no guarantee, `verify_library` compares
the installed files with pinned hashes before the first use.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from pathlib import Path
from typing import Any

import pysyncobj
import pysyncobj.syncobj
from pysyncobj.monotonic import monotonic as library_now
from pysyncobj.version import VERSION

from raft_metadata.quorum.voter_node import VoterNode
from raft_metadata.quorum.wire import Codec

PINNED_VERSION = "0.3.17"
PINNED_SHA256 = {
    "__init__.py": "4966a9dd893542b1b0e0fcef3d2ea44f2f40919d66b684992e5511be7503c036",
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
    "dns_resolver.py": "4b88da2b45e20fbb299fb7a21f2595369b6314700b687fb8858891999bce14e0",
    "encryptor.py": "db20725465efdfc6d7a3b5b2112f53bc5426d36c56312ebdf5fbcf05423a7c19",
    "fast_queue.py": "8477fe5fdf36d9766df933310d3d66ee953d1afc195b1e6482b3a1498fc517bd",
    "journal.py": "9cf1eaf6acc704581a4cf7d3de330a404403913107adc91c929778b7e3f35edf",
    "monotonic.py": "d116df70e1f81bcab1fb89191fe2fe18486bc25187401d73fd6101cfe686e0a3",
    "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    "pickle.py": "e9327780738065cec5d600484b936c91e7c13875206cb584d5ff7f5d0dc9c474",
    "pipe_notifier.py": "587d964bfa5d62320f3541cbb283ff3e282cb2db95e1b8cfd888dc3d53af82aa",
    "poller.py": "f69ac749fb410670282fd9520c5805ffc684c8a5f762a927127753d9be8551e6",
    "serializer.py": "4d39fde2f15000ad8f507ec229ebd4f6a86371b6f84d4dc1439a9cccd52857ee",
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "tcp_connection.py": "7784ed8da031369fe36f805cb186a2e94a3bd6f10fed2dd59c8cc3713fd6331c",
    "tcp_server.py": "bde2f216c1a585029188d0438b44762e2e797dfc53bbce387839daaa46b9a60d",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
    "version.py": "0b8426a8b52ecf874193897d26c4214acbd85335145ea9ff17e27a22b1132943",
}

REGULAR = 0
NO_OP = 1
"""First byte of a command (``_COMMAND_TYPE``). The library's other two types change membership and
code version and cannot be submitted here."""
LEADER = 2
ROLES = ("follower", "candidate", "leader")
"""Names for the library's ``_RAFT_STATE`` numbers, in order."""
NOT_SERIALIZING, SERIALIZING, SERIALIZED, SERIALIZE_FAILED = 0, 1, 2, 3
"""The library's ``SERIALIZER_STATE`` numbers."""

__all__ = [
    "LEADER",
    "NO_OP",
    "REGULAR",
    "PinnedSyncObj",
    "UnsupportedLibraryError",
    "library_now",
    "verify_library",
]


class UnsupportedLibraryError(RuntimeError):
    """The installed pysyncobj differs from the release that this module relies on."""


def verify_library(folder: Path | None = None) -> None:
    """Raise UnsupportedLibraryError for any other version, or any changed file, of pysyncobj."""
    if VERSION != PINNED_VERSION:
        msg = (
            f"pysyncobj {VERSION} is installed, expected exactly {PINNED_VERSION}; "
            f"reinstall pysyncobj=={PINNED_VERSION}"
        )
        raise UnsupportedLibraryError(msg)
    root = folder or Path(pysyncobj.__file__).parent
    for name, expected in PINNED_SHA256.items():
        found = hashlib.sha256((root / name).read_bytes()).hexdigest()
        if found != expected:
            msg = (
                f"{root / name} was changed: sha256 {found}, expected {expected}; "
                f"reinstall pysyncobj=={PINNED_VERSION}"
            )
            raise UnsupportedLibraryError(msg)


# -- the Raft core


class PinnedSyncObj(pysyncobj.SyncObj):  # type: ignore[misc]  # untyped library
    """The library's SyncObj, with its private parts under plain names.

    Each property or method reads, writes or replaces one private part.
    """

    # Used by pre-vote and the fence to control when the library's own election may run.
    @property
    def election_deadline(self) -> float:
        """Time at which the library starts an election, in its monotonic seconds."""
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline.setter
    def election_deadline(self, when: float) -> None:
        self._SyncObj__raftElectionDeadline = when

    @property
    def transfer_in_progress(self) -> bool:
        """True while the leader hands leadership to this voter; no pre-vote is needed then."""
        return bool(self._SyncObj__transferInProgress)

    @property
    def connected_to_anyone(self) -> bool:
        """True if at least one other voter is connected, or if there is no other voter."""
        return bool(self._SyncObj__connectedToAnyone())

    @property
    def role(self) -> str:
        """The Raft role of this voter, a member of `ROLES`."""
        return ROLES[self._SyncObj__raftState]

    @property
    def transport(self) -> Any:
        """The transport that the library created."""
        return self._SyncObj__transport

    def adopt_term(self, term: int, voted_for: str) -> None:
        """Store a term and a vote durably, for a rejoining voter.

        Its vote in this term counts as given.
        """
        self._SyncObj__setCurrentTerm(term, voted_for)

    # The library itself steps down only if a majority is silent.
    def step_down(self) -> None:
        """Become a follower in the same term."""
        self._SyncObj__setState(ROLES.index("follower"))
        self._SyncObj__raftLeader = None

    # Acknowledgements of a disk that was replaced no longer count.
    def forget_match(self, node: VoterNode) -> None:
        """Reset this follower's acknowledged index to 0."""
        self._SyncObj__raftMatchIndex[node] = 0

    def match_index(self, node: VoterNode) -> int:
        """Return the index that this follower has acknowledged to this leader."""
        return int(self._SyncObj__raftMatchIndex.get(node, 0))

    def last_answer(self, node: VoterNode) -> float | None:
        """Return the time of this follower's last answer to this leader, or None."""
        when = self._SyncObj__lastResponseTime.get(node)
        return None if when is None else float(when)

    # The library sends empty messages, for a whole heartbeat period, to a follower that waits for a
    # snapshot (15,086 measured). A paused follower counts as disconnected until the call ends.
    def pause(self, node: VoterNode) -> None:
        """Send nothing more to this follower in this turn."""
        connected = self._SyncObj__connectedNodes
        if node in connected:
            connected.discard(node)
            self._paused.add(node)

    _paused: set[VoterNode]

    def unpause(self, node: VoterNode) -> None:
        """Remove a disconnected follower from the paused ones.

        The end of the call would otherwise count it as connected again.
        """
        self._paused.discard(node)

    @abstractmethod
    def pause_congested(self) -> None:
        """Pause every follower that already has enough unread bytes."""

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802 the library's name
        self.pause_congested()
        super()._SyncObj__sendAppendEntries()
        self._SyncObj__connectedNodes |= self._paused
        self._paused.clear()

    def send_append_entries(self) -> None:
        """Send appends now.

        Called once per drained queue, instead of once per heartbeat or per command.
        """
        self._SyncObj__sendAppendEntries()

    # The library retries an entry that raised for ever, and passes neither index nor term.
    @abstractmethod
    def apply_committed(self) -> None:
        """Apply every committed entry that is not applied yet, and set `applied_index`."""

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802 the library's name
        self.apply_committed()
        return False

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry."""
        return int(self._SyncObj__raftLastApplied)

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    # The library counts a leader's own copy as soon as it is in memory.
    def lower_commit_index(self, index: int) -> None:
        """Lower the commit index, before anything is applied or sent.

        Called from within the library's setting of it.
        """
        self._SyncObj__raftCommitIndex = index

    # The library does not advance the commit index after it installs a snapshot.
    def raise_commit_index(self, index: int) -> None:
        """Advance the commit index to at least `index`, the end of an installed snapshot."""
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, index)

    # The library loads the snapshot at the first tick and swallows every error, which leaves an
    # empty state machine. Here the file is verified before; only the journal's head is compared.
    def load_snapshot(self, *, present: bool) -> None:
        """Load the verified snapshot, if `present`. Call before the first tick."""
        self._SyncObj__needLoadDumpFile = False
        if present:
            self._SyncObj__loadDumpFile(clearJournal=False)

    # This project's queue replaces the library's: leader only, bounded, no forwarding.
    @abstractmethod
    def append_queued(self) -> None:
        """Append the queued payloads if this voter leads; then flush."""

    def _checkCommandsToApply(self) -> None:  # noqa: N802 the library's name
        self.append_queued()


# -- replacements of names inside the library's modules

# Nothing calls pickle any more, because entries are plain bytes and entries in pieces are refused.
# If anything did, bytes from a socket must not be able to name code.
pysyncobj.syncobj.pickle = Codec
# The journal and the snapshot store are passed in as objects through fields of SyncObjConf.
pysyncobj.syncobj.createJournal = lambda journal: journal
pysyncobj.syncobj.Serializer = lambda _path, _bytes, _fork, store, _load, _check: store
