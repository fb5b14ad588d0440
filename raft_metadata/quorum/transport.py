"""The filter between the wire and pysyncobj's Raft core: what it may hear, what it may say.

Each correction names the defect it closes, as numbered in the table of DESIGN.md. The core itself
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
from raft_metadata.quorum.wire import MalformedMessageError, Message, checked

MAX_APPENDS_AHEAD_BYTES = 4 * 1024 * 1024
"""Unsent to one follower: no further append until it has drained. What is on its way keeps the
follower from standing; a slow link is not given more than it can take."""

MAX_HELD = 4096
"""Answers and votes that wait for the disk. The oldest is forgotten: answers are cumulative, and a
lost vote is asked for again."""
ALIVE_EVERY_S = 0.1
"""While an answer waits for the disk its leader hears so often that we are there."""

_log = logging.getLogger("raft_metadata.quorum")


class Links(Protocol):
    """The connections to the other voters; see `peer_links.PeerLinks`."""

    def send(self, node: NodeId, message: Message) -> bool:
        """Queue a message; False where there is no connection, or no more."""
        ...

    def drop(self, node: NodeId) -> None:
        """Close the connection to a voter; it is made again."""
        ...

    def backlog_bytes(self, node: NodeId) -> int:
        """What waits to be sent to a voter."""
        ...


class LinkEvents(Protocol):
    """What the connections report: in order, each from a voter that proved who it is."""

    def on_connected(self, node: NodeId) -> None: ...

    def on_disconnected(self, node: NodeId) -> None: ...

    def on_message(self, node: NodeId, value: object) -> None: ...


class FilteredRaft(Protocol):
    """What the filter asks of its voter, and tells it; see `raft_node.RaftNode`."""

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

    def on_leader_heard(self, term: int, commit_index: int) -> None: ...

    def on_answered(self, node: VoterNode, sent_at: float) -> None: ...

    def on_snapshot_part_ended(self) -> None: ...

    def on_pre_vote(self, node: VoterNode, question: Message) -> None: ...

    def on_pre_vote_answer(self, node: VoterNode, answer: Message) -> None: ...

    def on_term_answer(self, node: VoterNode, term: int) -> None: ...

    def on_ping(self, node: VoterNode, message: Message) -> None: ...


@dataclass(frozen=True, slots=True)
class _Held:
    """A message that speaks of entries which are not on disk yet."""

    node: VoterNode
    message: Message
    needed: int
    generation: int
    term: int


class FilteredTransport(Transport):  # type: ignore[misc]  # untyped library
    """The library's `Transport` over our links, and `LinkEvents` for them.

    Owned by the RaftNode and called on its loop only. Made by the library, hence the arguments.
    """

    def __init__(
        self, syncobj: FilteredRaft, self_node: VoterNode, others: Iterable[VoterNode]
    ) -> None:
        self._raft = syncobj
        self._journal = syncobj.journal
        self._home = syncobj.home
        self._links = syncobj.links
        self._voters = {node.node_id: node for node in others}
        self._held: deque[_Held] = deque(maxlen=MAX_HELD)
        self._answered_at: dict[NodeId, float] = {}
        self._heard_of: dict[NodeId, object] = {}
        """By its own clock, when each voter sent the newest append that was heard of it."""
        self._takes_over_in = 0
        """The term in which a leader told us to stand."""
        self._vote_term = 0
        self._voters_counted: set[int] = set()
        super().__init__(syncobj, self_node, others)

    def voter(self, node: NodeId) -> VoterNode:
        """The other voter of that id."""
        return self._voters[node]

    # -- who is there

    def on_connected(self, node: NodeId) -> None:
        """See `LinkEvents`."""
        self._raft.on_link_made()
        self._onNodeConnected(self._voters[node])

    def on_disconnected(self, node: NodeId) -> None:
        """See `LinkEvents`."""
        # Parts of a snapshot that were under way are lost with the connection.
        self._raft.snapshots.cancel(node)
        self._raft.on_link_lost(self._voters[node])
        self._onNodeDisconnected(self._voters[node])

    def drop(self, node: VoterNode) -> None:
        """Close the connection to a voter; it is made again."""
        self._links.drop(node.node_id)

    def is_congested(self, node: VoterNode) -> bool:
        """Whether a follower has enough to read for now."""
        return self._links.backlog_bytes(node.node_id) > MAX_APPENDS_AHEAD_BYTES

    def deliver(self, node: VoterNode, message: Message) -> None:
        """Hand a message to the library's Raft core."""
        self._onMessageReceived(node, message)

    # -- what is said

    @override
    def send(self, node: VoterNode, message: Message) -> bool:
        """Make a message of the library's true and provable, then send it."""
        kind = message["type"]
        if kind == "append_entries":
            message["sent_at"] = self._raft.now()
        if kind == "request_vote":
            message["takes_over"] = message["term"] == self._takes_over_in
        if kind == "next_node_idx":
            self._complete_answer(message)
        if self._rests_on(message) > self._journal.durable_index:
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
        if message["success"] and journal.installed is not None:
            # Defect 4: the entries kept behind an installed snapshot were not checked by anyone.
            claimed = min(message["next_node_idx"], journal.installed + 1)
            message["next_node_idx"], journal.installed = claimed, None
        message["term"] = self._raft.raftCurrentTerm  # defect 9
        if message["reset"] and not message["success"]:
            # Defect 8: committed means surely equal. Stock steps back one entry per heartbeat and
            # never arrives while several batches are under way.
            message["next_node_idx"] = self._raft.raftCommitIndex + 1

    # -- what waits for the disk (defect 2, rule M7)

    def _rests_on(self, message: Message) -> int:
        """The raft index that must be on disk before a message may leave; 0 for none."""
        kind = message["type"]
        if kind == "next_node_idx" and message["success"]:
            return int(message["next_node_idx"]) - 1
        if kind in ("request_vote", "response_vote"):
            return self._journal.last[1]  # it speaks of our last entry
        return 0

    def _hold(self, node: VoterNode, message: Message) -> None:
        journal, now = self._journal, self._raft.now()
        needed, term = self._rests_on(message), self._raft.raftCurrentTerm
        self._held.append(_Held(node, message, needed, journal.generation, term))
        journal.flush()
        answers = message["type"] == "next_node_idx"
        if answers and now - self._answered_at.get(node.node_id, 0.0) >= ALIVE_EVERY_S:
            # Claims nothing: a slow disk must not look like a lost follower to the leader.
            alive = {**message, "next_node_idx": journal.durable_index + 1, "success": False}
            self._send_now(node, alive)

    def release(self) -> None:
        """Send what the disk has now. Answers are cumulative: of several, the last one goes."""
        journal, term = self._journal, self._raft.raftCurrentTerm
        if not self._held:
            return
        ready: dict[tuple[NodeId, str], _Held] = {}
        waiting: deque[_Held] = deque(maxlen=MAX_HELD)
        for held in self._held:
            if held.generation != journal.generation or held.term != term:
                continue  # rule Q3: what it speaks of was replaced, or nobody asks any more
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
            message["sent_at"] = self._heard_of.get(node.node_id)
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

    def on_message(self, node: NodeId, value: object) -> None:
        """See `LinkEvents`."""
        voter = self._voters[node]
        try:
            message, stamp = checked(value)
        except MalformedMessageError as error:
            _log.warning("refused a message from=%d reason=%s", node, error)
            self.drop(voter)
            return
        if not self._home.accepts(node, stamp):
            return
        if not self._home.fenced or self._fence_lets_through(voter, message):
            self._hear(voter, message)

    def _hear(self, node: VoterNode, message: Message) -> None:
        match message["type"]:
            case "append_entries":
                self._hear_append(node, message)
            case "next_node_idx":
                self._hear_answer(node, message)
            case "response_vote":
                self._hear_vote(node, message)
            case "timeout_now":
                self._hear_take_over(node, message)
            case "request_vote":
                self._hear_request(node, message)
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

    def _hear_take_over(self, node: VoterNode, message: Message) -> None:
        term = self._raft.raftCurrentTerm
        if message["term"] == term:
            self.deliver(node, message)
            if self._raft.transfer_in_progress:
                self._takes_over_in = term + 1

    def _hear_request(self, node: VoterNode, message: Message) -> None:
        raft = self._raft
        has_a_leader = raft.now() - raft.contact.when <= raft.conf.raftMinTimeout
        if has_a_leader and message.get("takes_over") is not True:
            # Rule G3: a leader counts on whom it told a moment ago, whatever was consented before.
            # Takes the term (rule Q7), gives no vote.
            message["last_log_term"] = message["last_log_index"] = -1
        self.deliver(node, message)

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
        self._heard_of[node.node_id] = message.get("sent_at")
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
            if isinstance(sent_at := message.get("sent_at"), float):
                self._raft.on_answered(node, sent_at)
            self.deliver(node, message)

    def _hear_vote(self, node: VoterNode, message: Message) -> None:
        """Defect 10: one voter, one vote."""
        if message["term"] != self._raft.raftCurrentTerm:
            return  # nor does an old one start the count anew
        if self._vote_term != message["term"]:
            self._vote_term, self._voters_counted = message["term"], set()
        if node.node_id not in self._voters_counted:
            self._voters_counted.add(node.node_id)
            self.deliver(node, message)
