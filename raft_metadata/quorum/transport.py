"""The filter between the wire and pysyncobj's Raft core: what it may hear, what it may say.

Each correction names the defect it closes, as numbered in the table of DESIGN.md. The core itself
(votes, terms, own-term commit) is left to the library.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol

from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.data_dir import DataDir
from raft_metadata.quorum.journal import DurableJournal
from raft_metadata.quorum.pysyncobj_internals import (
    CappedConnection,
    PinnedTransport,
    VoterNode,
    voter_address,
)
from raft_metadata.quorum.snapshots import SnapshotStore
from raft_metadata.quorum.wire import (
    MAX_FRAME_BYTES,
    MalformedMessageError,
    Message,
    checked,
    checked_hello,
    hello,
)

MAX_UNKNOWN_CONNECTIONS = 32
"""Peers that have not said who they are; five voters reconnecting at once need four."""
HELLO_TIMEOUT_S = 2.0

_log = logging.getLogger("raft_metadata.quorum")


class FilteredRaft(Protocol):
    """What the filter asks of its voter, and tells it; see `raft_node.RaftNode`."""

    journal: DurableJournal
    home: DataDir
    snapshots: SnapshotStore
    now: Callable[[], float]

    @property
    def raftCurrentTerm(self) -> int: ...  # noqa: N802

    @property
    def raftCommitIndex(self) -> int: ...  # noqa: N802

    def pause(self, node: VoterNode) -> None: ...

    def on_leader_heard(self, term: int, commit_index: int) -> None: ...

    def on_snapshot_part_ended(self) -> None: ...

    def on_pre_vote(self, node: VoterNode, question: Message) -> None: ...

    def on_pre_vote_answer(self, node: VoterNode, answer: Message) -> None: ...

    def on_term_answer(self, node: VoterNode, term: int) -> None: ...

    def on_ping(self, node: VoterNode, message: Message) -> None: ...


class FilteredTransport(PinnedTransport):
    """Owned by the RaftNode and called on its loop only. Made by the library, hence the names."""

    def __init__(
        self, syncobj: FilteredRaft, self_node: VoterNode, others: Iterable[VoterNode]
    ) -> None:
        self._raft = syncobj
        self._journal = syncobj.journal
        self._home = syncobj.home
        self._vote_term = 0
        self._voters_counted: set[int] = set()
        self._accepted_at: dict[CappedConnection, float] = {}
        super().__init__(syncobj, self_node, others)

    # -- who is there (rule Q4)

    def setOnUtilityMessageCallback(  # noqa: N802 the library's name, as below
        self, message: str, callback: object
    ) -> None:
        """Defect 17: status, add, remove, set_version and transfer were open to any peer."""

    def _onNewIncomingConnection(self, conn: CappedConnection) -> None:  # noqa: N802
        if len(self._accepted_at) >= MAX_UNKNOWN_CONNECTIONS:
            conn.disconnect()
            return
        self._accepted_at[conn] = self._raft.now()
        super()._onNewIncomingConnection(conn)

    def _onDisconnected(self, conn: CappedConnection) -> None:  # noqa: N802
        self._accepted_at.pop(conn, None)
        super()._onDisconnected(conn)

    def _onNodeDisconnected(self, node: VoterNode) -> None:  # noqa: N802
        # Parts of a snapshot that were under way are lost with the connection.
        self._raft.snapshots.cancel(node.node_id)
        super()._onNodeDisconnected(node)

    def _sendSelfAddress(self, conn: CappedConnection) -> None:  # noqa: N802
        conn.max_frame_bytes = MAX_FRAME_BYTES
        meta = self._home.meta
        conn.send(hello(voter_address(NodeId(meta.node_id)), meta.cluster_id, meta.directory_id))

    def _onIncomingMessageReceived(self, conn: CappedConnection, message: object) -> None:  # noqa: N802
        """Only a voter of this cluster, from the directory we were told, takes a voter's slot."""
        self._accepted_at.pop(conn, None)
        try:
            address, cluster_id, directory_id = checked_hello(message)
        except MalformedMessageError as error:
            self._refuse(conn, str(error))
            return
        node = self.voter(address)
        if node is None or not self._home.knows(node.node_id, cluster_id, directory_id):
            self._refuse(conn, f"unknown voter {address} {cluster_id} {directory_id}")
            return
        if node.node_id < self._home.meta.node_id:
            self._refuse(conn, f"{address} does not dial, we do")
            return
        old = self.connection_of(node)
        if old is not None:
            # It came back on a new connection before the old one was seen to die.
            old.disconnect()
        conn.max_frame_bytes = MAX_FRAME_BYTES
        super()._onIncomingMessageReceived(conn, address)

    def _refuse(self, conn: CappedConnection, why: str) -> None:
        _log.warning("refused a connection reason=%s", why)
        conn.disconnect()
        self.unknown_connections.discard(conn)

    def drop(self, node: VoterNode) -> None:
        """Close the connection to a voter; it is made again."""
        connection = self.connection_of(node)
        if connection is not None:
            connection.disconnect()

    def _onTick(self) -> None:  # noqa: N802
        super()._onTick()
        late = self._raft.now() - HELLO_TIMEOUT_S
        for conn in [conn for conn, when in self._accepted_at.items() if when < late]:
            self._refuse(conn, "said nothing")

    # -- what is said

    def send(self, node: VoterNode, message: Message) -> bool:
        """Make a message of the library's true and provable, then send it."""
        kind = message["type"]
        if kind == "next_node_idx":
            self._complete_answer(message)
        elif kind in ("request_vote", "response_vote"):
            self._journal.sync()  # defect 2: it speaks of our last entry
        message["stamp"] = self._home.stamp(node.node_id)
        sent = bool(super().send(node, message))
        if "serialized" in message and message["serialized"] is None:
            self._raft.pause(node)
        return sent

    def _complete_answer(self, message: Message) -> None:
        journal = self._journal
        if message["success"] and journal.installed is not None:
            # Defect 4: the entries kept behind an installed snapshot were not checked by anyone.
            claimed = min(message["next_node_idx"], journal.installed + 1)
            message["next_node_idx"], journal.installed = claimed, None
        message["term"] = self._raft.raftCurrentTerm  # defect 9
        journal.sync()  # defect 2: acknowledge only what is on disk
        if message["reset"] and not message["success"]:
            # Defect 8: committed means surely equal. Stock steps back one entry per heartbeat and
            # never arrives while several batches are under way.
            message["next_node_idx"] = self._raft.raftCommitIndex + 1

    def _answer(
        self, node: VoterNode, next_index: int, *, success: bool = False, reset: bool = False
    ) -> None:
        self.send(
            node,
            {
                "type": "next_node_idx",
                "next_node_idx": next_index,
                "reset": reset,
                "success": success,
            },
        )

    def adopt(self, node: VoterNode, term: int) -> None:
        """Rule Q7: take a higher term durably, as a follower, without resetting any timer.

        A vote request whose log always loses does exactly that in the library.
        """
        request = {
            "type": "request_vote",
            "term": term,
            "last_log_term": -1,
            "last_log_index": -1,
        }
        self.deliver(node, request)

    # -- what is heard

    def _onMessageReceived(self, node: VoterNode, value: object) -> None:  # noqa: N802
        try:
            message, stamp = checked(value)
        except MalformedMessageError as error:
            _log.warning("refused a message from=%d reason=%s", node.node_id, error)
            self.drop(node)
            return
        if not self._home.accepts(node.node_id, stamp):
            return
        if not self._home.fenced or self._fence_lets_through(node, message):
            self._hear(node, message)

    def _hear(self, node: VoterNode, message: Message) -> None:
        match message["type"]:
            case "append_entries":
                self._hear_append(node, message)
            case "next_node_idx":
                self._hear_answer(node, message)
            case "response_vote":
                self._hear_vote(node, message)
            case "timeout_now":
                if message["term"] == self._raft.raftCurrentTerm:
                    self.deliver(node, message)
            case "request_vote":
                self.deliver(node, message)
            case "term_query":
                self.send(node, {"type": "term_answer", "term": self._raft.raftCurrentTerm})
            case "pre_vote":
                self._raft.on_pre_vote(node, message)
            case "pre_vote_answer":
                self._raft.on_pre_vote_answer(node, message)
            case "ping":
                self._raft.on_ping(node, message)
            case _:  # an answer to a question we no longer ask
                pass

    def _fence_lets_through(self, node: VoterNode, message: Message) -> bool:
        """Rule Q4: a voter that lost its disk promises nothing before it knows what it promised."""
        kind = message["type"]
        if kind == "term_answer":
            self._raft.on_term_answer(node, message["term"])
            return False
        if self._home.meta.fence == "ask" or kind == "timeout_now":
            return False
        if kind == "request_vote":
            # Takes the term, gives no vote.
            message["last_log_term"] = message["last_log_index"] = -1
        return True

    def _hear_append(self, node: VoterNode, message: Message) -> None:
        raft = self._raft
        if message["term"] < raft.raftCurrentTerm:
            # Defect 9: stock is silent, and an old leader never learns.
            self._answer(node, 1)
            return
        raft.on_leader_heard(message["term"], message["commit_index"])
        if "prevLogIdx" in message:
            if not self._already_have(node, message):
                self.deliver(node, message)
            return
        # Defect 6: a part of a snapshot says nothing about our log, but stock commits all of it up
        # to the leader's commit index.
        message["commit_index"] = min(message["commit_index"], raft.raftCommitIndex)
        part = message.get("serialized")
        if part is not None and part[3] <= raft.raftCommitIndex:
            # Stock would go back in time and drop what it acknowledged.
            self.deliver(node, {**message, "serialized": None})
            self._answer(node, raft.raftCommitIndex + 1, reset=True)
            return
        if part is not None:
            raft.snapshots.abort()
        self.deliver(node, message)
        if part is not None and part[2]:
            raft.on_snapshot_part_ended()

    def _already_have(self, node: VoterNode, message: Message) -> bool:
        """Defect 7: stock truncates all behind the previous entry, conflict or not.

        Strips what we hold from `message`. True if nothing is left and our log is longer: then
        only what was compared is acknowledged.
        """
        journal = self._journal
        previous = journal.at(message["prevLogIdx"])
        if previous is None or previous[2] != message["prevLogTerm"]:
            return False
        entries = message["entries"]
        same = 0
        for _, index, term in entries:
            mine = journal.at(index)
            if mine is None or mine[2] != term:
                break
            same += 1
        last = message["prevLogIdx"] + same
        if same == len(entries) and journal.last[1] > last:
            proved = {
                "type": "append_entries",
                "term": message["term"],
                "commit_index": min(message["commit_index"], last),
                "serialized": None,
            }
            self.deliver(node, proved)
            self._answer(node, last + 1, success=True)
            return True
        if same:
            message["entries"] = entries[same:]
            message["prevLogIdx"], message["prevLogTerm"] = last, entries[same - 1][2]
        return False

    def _hear_answer(self, node: VoterNode, message: Message) -> None:
        term = self._raft.raftCurrentTerm
        if message["term"] > term:
            self.adopt(node, message["term"])
        elif message["term"] == term:
            # Defect 9: an answer to an earlier reign must not count.
            self.deliver(node, message)

    def _hear_vote(self, node: VoterNode, message: Message) -> None:
        """Defect 10: one voter, one vote."""
        if self._vote_term != message["term"]:
            self._vote_term, self._voters_counted = message["term"], set()
        if node.node_id not in self._voters_counted:
            self._voters_counted.add(node.node_id)
            self.deliver(node, message)
