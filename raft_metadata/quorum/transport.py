"""Filter between the wire and pysyncobj's Raft core: messages are checked and corrected both ways.

`PeerLinks` delivers received messages to `FilteredTransport.on_message`; the library sends through
`send`, which holds back every message about entries that are not on disk yet. Each correction names
the defect of the library that it closes, as numbered in the table of DESIGN.md. The core itself
(votes, terms, own-term commit) is left to the library.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pysyncobj.transport import Transport
from typing_extensions import override

from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.data_dir import DataDir
from raft_metadata.quorum.elections import LeaderContact
from raft_metadata.quorum.journal import DurableJournal
from raft_metadata.quorum.snapshots import SnapshotStore
from raft_metadata.quorum.voter_node import VoterNode
from raft_metadata.quorum.wire import MalformedMessageError, Message, validate_message

MAX_APPENDS_AHEAD_BYTES = 4 * 1024 * 1024
"""Unsent bytes to one follower above which no further append is sent. The bytes under way keep the
follower from starting an election, and a slow link is not overloaded."""

MAX_HELD = 4096
"""Most answers and votes that wait for the disk. The oldest is dropped first: answers are
cumulative, and a lost vote is requested again."""
ALIVE_EVERY_S = 0.1
"""Interval of answers without a claim, which keep contact with the leader while an answer waits for
the disk."""

_log = logging.getLogger("raft_metadata.quorum")


class Links(Protocol):
    """The port to the connections to the other voters; see `peer_links.PeerLinks`."""

    def send(self, node: NodeId, message: Message) -> bool:
        """Queue a message; return False without an open connection."""
        ...

    def drop(self, node: NodeId) -> None:
        """Close the connection to a voter; it is made again."""
        ...

    def backlog_bytes(self, node: NodeId) -> int:
        """Return the number of bytes queued for a voter."""
        ...


class FilteredRaft(Protocol):
    """The voter as the filter needs it; see `raft_node.RaftNode`."""

    journal: DurableJournal
    home: DataDir
    snapshots: SnapshotStore
    links: Links
    now: Callable[[], float]
    contact: LeaderContact
    conf: Any

    @property
    def transfer_in_progress(self) -> bool: ...

    @property
    def raftCurrentTerm(self) -> int: ...  # noqa: N802 the library's name

    @property
    def raftCommitIndex(self) -> int: ...  # noqa: N802 the library's name

    def pause(self, node: VoterNode) -> None: ...

    def on_link_made(self) -> None: ...

    def on_link_lost(self, node: VoterNode) -> None: ...

    def on_leader_append(self, term: int, commit_index: int) -> None: ...

    def on_answered(self, node: VoterNode, sent_at: float) -> None: ...

    def on_snapshot_part_ended(self) -> None: ...

    def on_pre_vote(self, node: VoterNode, question: Message) -> None: ...

    def on_pre_vote_answer(self, node: VoterNode, answer: Message) -> None: ...

    def on_term_answer(self, node: VoterNode, term: int) -> None: ...

    def on_ping(self, node: VoterNode, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class _HeldMessage:
    """A message about entries that are not on disk yet."""

    node: VoterNode
    message: Message
    needed: int
    generation: int
    term: int


class FilteredTransport(Transport):  # type: ignore[misc]  # untyped library
    """The library's `Transport` on top of `Links`, and the receiver of what they report.

    Owned by the RaftNode and called on its loop only. Created by the library, hence the arguments.
    """

    def __init__(
        self, syncobj: FilteredRaft, self_node: VoterNode, others: Iterable[VoterNode]
    ) -> None:
        self._raft = syncobj
        self._journal = syncobj.journal
        self._home = syncobj.home
        self._links = syncobj.links
        self._voters = {node.node_id: node for node in others}
        self._held: deque[_HeldMessage] = deque(maxlen=MAX_HELD)
        self._answered_at: dict[NodeId, float] = {}
        self._newest_append_sent_at: dict[NodeId, object] = {}
        """Send time, by the sender's clock, of the newest append received from each voter."""
        self._take_over_term = 0
        """The term in which this voter stands for election at a leader's request; 0 for none."""
        self._vote_term = 0
        self._voters_counted: set[int] = set()
        super().__init__(syncobj, self_node, others)

    def voter(self, node: NodeId) -> VoterNode:
        """Return the node object of another voter."""
        return self._voters[node]

    # -- connections

    def on_connected(self, node: NodeId) -> None:
        """Report a voter as connected to the Raft node and the library."""
        self._raft.on_link_made()
        self._onNodeConnected(self._voters[node])

    def on_disconnected(self, node: NodeId) -> None:
        """Cancel the snapshot transfer to a voter and report it as disconnected."""
        # Parts of a snapshot under way are lost with the connection.
        self._raft.snapshots.cancel(node)
        self._raft.on_link_lost(self._voters[node])
        self._onNodeDisconnected(self._voters[node])

    def drop(self, node: VoterNode) -> None:
        """Close the connection to a voter; it is made again."""
        self._links.drop(node.node_id)

    def is_congested(self, node: VoterNode) -> bool:
        """Return whether a follower already has enough unsent bytes."""
        return self._links.backlog_bytes(node.node_id) > MAX_APPENDS_AHEAD_BYTES

    def deliver(self, node: VoterNode, message: Message) -> None:
        """Hand a message to the library's Raft core."""
        self._onMessageReceived(node, message)

    # -- sending

    @override
    def send(self, node: VoterNode, message: Message) -> bool:
        """Correct a message of the library, and send it once the disk holds all that it claims."""
        kind = message["type"]
        if kind == "append_entries":
            message["sent_at"] = self._raft.now()
        if kind == "request_vote":
            message["takes_over"] = message["term"] == self._take_over_term
        if kind == "next_node_idx":
            self._complete_answer(message)
        if self._required_durable_index(message) > self._journal.durable_index:
            self._hold(node, message)
            return True
        sent = self._send_now(node, message)
        if kind == "append_entries":
            nothing = "serialized" in message and message["serialized"] is None
            if nothing or self.is_congested(node):
                self._raft.pause(node)
        return sent

    def _complete_answer(self, message: Message) -> None:
        journal = self._journal
        if message["success"] and journal.installed_snapshot_index is not None:
            # Entries kept after an installed snapshot are not compared with the leader (defect 4).
            claimed = min(message["next_node_idx"], journal.installed_snapshot_index + 1)
            message["next_node_idx"], journal.installed_snapshot_index = claimed, None
        message["term"] = self._raft.raftCurrentTerm  # defect 9
        if message["reset"] and not message["success"]:
            # Committed entries are surely equal, so the leader continues there (defect 8). The
            # library steps back one entry per heartbeat and never arrives while several batches are
            # under way.
            message["next_node_idx"] = self._raft.raftCommitIndex + 1

    # -- messages that wait for the disk (defect 2, rule M7)

    def _required_durable_index(self, message: Message) -> int:
        """Return the Raft index that must be on disk before a message may be sent; 0 for none."""
        kind = message["type"]
        if kind == "next_node_idx" and message["success"]:
            return int(message["next_node_idx"]) - 1
        if kind in ("request_vote", "response_vote"):
            return self._journal.last[1]  # it speaks of the last entry
        return 0

    def _hold(self, node: VoterNode, message: Message) -> None:
        journal, now = self._journal, self._raft.now()
        needed, term = self._required_durable_index(message), self._raft.raftCurrentTerm
        self._held.append(_HeldMessage(node, message, needed, journal.generation, term))
        journal.flush()
        answers = message["type"] == "next_node_idx"
        if answers and now - self._answered_at.get(node.node_id, 0.0) >= ALIVE_EVERY_S:
            # An answer without a claim, so that a slow disk does not look like a lost follower.
            alive = {**message, "next_node_idx": journal.durable_index + 1, "success": False}
            self._send_now(node, alive)

    def release(self) -> None:
        """Send the held messages that the disk now covers.

        Answers are cumulative: of several to one voter, only the last is sent.
        """
        journal, term = self._journal, self._raft.raftCurrentTerm
        if not self._held:
            return
        ready: dict[tuple[NodeId, str], _HeldMessage] = {}
        waiting: deque[_HeldMessage] = deque(maxlen=MAX_HELD)
        for held in self._held:
            if held.generation != journal.generation or held.term != term:
                continue  # its entries were replaced (rule Q3), or its term is over
            if held.needed > journal.durable_index:
                waiting.append(held)
                continue
            key = held.node.node_id, held.message["type"]
            if key not in ready or held.needed >= ready[key].needed:
                ready[key] = held
        self._held = waiting
        for held in ready.values():
            self._send_now(held.node, held.message)

    def _send_now(self, node: VoterNode, message: Message) -> bool:
        if message["type"] == "next_node_idx":
            self._answered_at[node.node_id] = self._raft.now()
            message["sent_at"] = self._newest_append_sent_at.get(node.node_id)
        message["stamp"] = self._home.stamp(node.node_id)
        return self._links.send(node.node_id, message)

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
        """Take a higher term durably, as a follower, without resetting any timer (rule Q7).

        In the library a vote request whose log always loses has exactly this effect.
        """
        request = {
            "type": "request_vote",
            "term": term,
            "last_log_term": -1,
            "last_log_index": -1,
        }
        self.deliver(node, request)

    # -- receiving

    def on_message(self, node: NodeId, value: object) -> None:
        """Check a received message and handle it.

        Drop the connection if the message is malformed.
        """
        voter = self._voters[node]
        try:
            message, stamp = validate_message(value)
        except MalformedMessageError as error:
            _log.warning("refused a message from=%d reason=%s", node, error)
            self.drop(voter)
            return
        if not self._home.is_stamp_valid(node, stamp):
            return
        if not self._home.fenced or self._fence_lets_through(voter, message):
            self._handle_message(voter, message)

    def _handle_message(self, node: VoterNode, message: Message) -> None:
        match message["type"]:
            case "append_entries":
                self._handle_append(node, message)
            case "next_node_idx":
                self._handle_append_answer(node, message)
            case "response_vote":
                self._handle_vote(node, message)
            case "timeout_now":
                self._handle_take_over(node, message)
            case "request_vote":
                self._handle_vote_request(node, message)
            case "term_query":
                self.send(node, {"type": "term_answer", "term": self._raft.raftCurrentTerm})
            case "pre_vote":
                self._raft.on_pre_vote(node, message)
            case "pre_vote_answer":
                self._raft.on_pre_vote_answer(node, message)
            case "ping":
                self._raft.on_ping(node, message)
            case _:  # an answer to a request that is no longer pending
                pass

    def _handle_take_over(self, node: VoterNode, message: Message) -> None:
        term = self._raft.raftCurrentTerm
        if message["term"] == term:
            self.deliver(node, message)
            if self._raft.transfer_in_progress:
                self._take_over_term = term + 1

    def _handle_vote_request(self, node: VoterNode, message: Message) -> None:
        raft = self._raft
        has_a_leader = raft.now() - raft.contact.when <= raft.conf.raftMinTimeout
        if has_a_leader and message.get("takes_over") is not True:
            # A leader relies on followers that recently received its appends, whatever pre-votes
            # they granted before (rule G3). Adopt the term (rule Q7), give no vote.
            message["last_log_term"] = message["last_log_index"] = -1
        self.deliver(node, message)

    def _fence_lets_through(self, node: VoterNode, message: Message) -> bool:
        """Return whether a fenced voter may handle a message.

        A voter that lost its disk makes no promise before it knows its earlier ones (rule Q4).
        """
        kind = message["type"]
        if kind == "term_answer":
            self._raft.on_term_answer(node, message["term"])
            return False
        if self._home.meta.fence == "ask" or kind == "timeout_now":
            return False
        if kind == "request_vote":
            # Adopt the term, give no vote.
            message["last_log_term"] = message["last_log_index"] = -1
        return True

    def _handle_append(self, node: VoterNode, message: Message) -> None:
        raft = self._raft
        if message["term"] < raft.raftCurrentTerm:
            # The library stays silent, and an old leader would never learn of it (defect 9).
            self._answer(node, 1)
            return
        raft.on_leader_append(message["term"], message["commit_index"])
        self._newest_append_sent_at[node.node_id] = message.get("sent_at")
        if "prevLogIdx" in message:
            if not self._strip_known_entries(node, message):
                self.deliver(node, message)
            return
        # A part of a snapshot proves nothing about this log, but the library commits all of it up
        # to the leader's commit index (defect 6).
        message["commit_index"] = min(message["commit_index"], raft.raftCommitIndex)
        part = message.get("serialized")
        if part is not None and part[3] <= raft.raftCommitIndex:
            # The library would install the older state and drop acknowledged entries.
            self.deliver(node, {**message, "serialized": None})
            self._answer(node, raft.raftCommitIndex + 1, reset=True)
            return
        if part is not None:
            raft.snapshots.abort()
        self.deliver(node, message)
        if part is not None and part[2]:
            raft.on_snapshot_part_ended()

    def _strip_known_entries(self, node: VoterNode, message: Message) -> bool:
        """Remove entries from `message` that this log already holds (defect 7).

        The library truncates everything after the previous entry, conflict or not. Returns True if
        no entry is left and this log is longer: then only the compared entries are acknowledged.
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

    def _handle_append_answer(self, node: VoterNode, message: Message) -> None:
        term = self._raft.raftCurrentTerm
        if message["term"] > term:
            self.adopt(node, message["term"])
        elif message["term"] == term:
            # An answer to an earlier term must not count (defect 9).
            if isinstance(sent_at := message.get("sent_at"), float):
                self._raft.on_answered(node, sent_at)
            self.deliver(node, message)

    def _handle_vote(self, node: VoterNode, message: Message) -> None:
        """Pass a vote on once per voter and term (defect 10)."""
        if message["term"] != self._raft.raftCurrentTerm:
            return  # a vote of an old term must not restart the count either
        if self._vote_term != message["term"]:
            self._vote_term, self._voters_counted = message["term"], set()
        if node.node_id not in self._voters_counted:
            self._voters_counted.add(node.node_id)
            self.deliver(node, message)
