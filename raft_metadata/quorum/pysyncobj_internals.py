"""Everything of pysyncobj 0.3.17 that is not its public interface, each piece with its reason.

The only module that names a private of the library. Importing it changes the library's modules
for the whole process (section "replacements"); nothing else in this project uses them. Because
private names give no promise, the exact files are checked before the first use.
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
"""First byte of a command (``_COMMAND_TYPE``). The other two change membership and code version:
nobody can submit them here."""
LEADER = 2
ROLES = ("follower", "candidate", "leader")
"""``_RAFT_STATE`` in order."""
NOT_SERIALIZING, SERIALIZING, SERIALIZED, SERIALIZE_FAILED = 0, 1, 2, 3
"""``SERIALIZER_STATE``."""

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
    """The installed pysyncobj is not the one whose private parts were read."""


def verify_library(folder: Path | None = None) -> None:
    """Refuse any other version, and any changed file, of pysyncobj."""
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
    """SyncObj with the private parts we read, write or replace under names of ours."""

    # Pre-vote and the fence decide when the library's own election may run.
    @property
    def election_deadline(self) -> float:
        """When the library stands for election, in its monotonic seconds."""
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline.setter
    def election_deadline(self, when: float) -> None:
        self._SyncObj__raftElectionDeadline = when

    @property
    def transfer_in_progress(self) -> bool:
        """The leader asked us to take over: no pre-vote then."""
        return bool(self._SyncObj__transferInProgress)

    @property
    def connected_to_anyone(self) -> bool:
        """Also true where there is nobody else."""
        return bool(self._SyncObj__connectedToAnyone())

    @property
    def role(self) -> str:
        """One of `ROLES`."""
        return ROLES[self._SyncObj__raftState]

    @property
    def transport(self) -> Any:
        """The transport it made."""
        return self._SyncObj__transport

    def adopt_term(self, term: int, voted_for: str) -> None:
        """A rejoining voter: durable, and in this term its vote counts as given."""
        self._SyncObj__setCurrentTerm(term, voted_for)

    # Stock gives leadership up only where a majority is silent.
    def step_down(self) -> None:
        """Lead no more, in the same term."""
        self._SyncObj__setState(ROLES.index("follower"))
        self._SyncObj__raftLeader = None

    # A follower whose disk was replaced has acknowledged nothing.
    def forget_match(self, node: VoterNode) -> None:
        """Take back what this follower acknowledged."""
        self._SyncObj__raftMatchIndex[node] = 0

    def match_index(self, node: VoterNode) -> int:
        """What this follower acknowledged, as a leader knows it."""
        return int(self._SyncObj__raftMatchIndex.get(node, 0))

    def last_answer(self, node: VoterNode) -> float | None:
        """When this follower last answered us as leader."""
        when = self._SyncObj__lastResponseTime.get(node)
        return None if when is None else float(when)

    # Stock sends empty messages to a follower that waits for a snapshot for a whole heartbeat
    # period (15,086 measured). One that is paused counts as disconnected until the call ends.
    def pause(self, node: VoterNode) -> None:
        """Send nothing more to this follower in this turn."""
        connected = self._SyncObj__connectedNodes
        if node in connected:
            connected.discard(node)
            self._paused.add(node)

    _paused: set[VoterNode]

    def unpause(self, node: VoterNode) -> None:
        """Its connection is gone: the end of the call must not bring it back."""
        self._paused.discard(node)

    @abstractmethod
    def pause_congested(self) -> None:
        """Pause whoever has more to read than it needs."""

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802 the library's name
        self.pause_congested()
        super()._SyncObj__sendAppendEntries()
        self._SyncObj__connectedNodes |= self._paused
        self._paused.clear()

    def send_append_entries(self) -> None:
        """Once per drained queue, instead of once per heartbeat or once per command."""
        self._SyncObj__sendAppendEntries()

    # Stock applies again what raised, and again for ever; it knows no index and no term.
    @abstractmethod
    def apply_committed(self) -> None:
        """Apply what is committed and not applied; sets `applied_index`."""

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

    # Stock counts a leader's own copy as soon as it is in memory.
    def lower_commit_index(self, index: int) -> None:
        """Called from within the library's setting of it, before anything is applied or said."""
        self._SyncObj__raftCommitIndex = index

    # Stock leaves the commit index behind after it installed a snapshot.
    def raise_commit_index(self, index: int) -> None:
        """What a snapshot holds is committed."""
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, index)

    # Stock loads the snapshot at the first tick and swallows every error, which leaves an empty
    # state machine. The file was verified before; here only the journal's head is compared.
    def load_snapshot(self, *, present: bool) -> None:
        """Before the first tick."""
        self._SyncObj__needLoadDumpFile = False
        if present:
            self._SyncObj__loadDumpFile(clearJournal=False)

    # The queue is ours: leader only, bounded, no forwarding.
    @abstractmethod
    def append_queued(self) -> None:
        """Append what waits, if leading; then sync."""

    def _checkCommandsToApply(self) -> None:  # noqa: N802 the library's name
        self.append_queued()


# -- replacements of names inside the library's modules

# Nothing calls it any more (entries are ours, entries in pieces are refused): should anything do,
# it must not be able to name code.
pysyncobj.syncobj.pickle = Codec
# A journal and a snapshot store come in as objects through fields of SyncObjConf.
pysyncobj.syncobj.createJournal = lambda journal: journal
pysyncobj.syncobj.Serializer = lambda _path, _bytes, _fork, store, _load, _check: store
