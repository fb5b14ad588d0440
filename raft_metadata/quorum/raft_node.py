"""A voter: pysyncobj's Raft core with this project's queue, apply loop, elections and disk.

Owned by `MetadataQuorum`, which ticks it and submits payloads; every method runs on its loop, and
none blocks longer than a sync. A payload is queued, appended in a tick while this voter leads,
replicated, committed, and applied; then its future completes. The library's own queue, its
serialisation of method calls and its forwarding are not used.
"""

from __future__ import annotations

import logging
import random
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from typing_extensions import override

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.faults import FaultHandler
from raft_metadata.common.ids import DirectoryId, NodeId
from raft_metadata.quorum.config import (
    MAX_PAYLOAD_BYTES,
    MAX_QUEUED,
    MAX_UNCOMMITTED,
    QuorumConfig,
)
from raft_metadata.quorum.data_dir import DataDir
from raft_metadata.quorum.elections import (
    NEVER,
    DiskWatch,
    LeaderContact,
    PreVote,
    Rejoin,
    fence_may_lift,
    up_to_date,
)
from raft_metadata.quorum.journal import DurableJournal
from raft_metadata.quorum.library_adapters import (
    JournalAdapter,
    SnapshotAdapter,
    library_conf,
)
from raft_metadata.quorum.pysyncobj_internals import (
    LEADER,
    NO_OP,
    REGULAR,
    PinnedSyncObj,
)
from raft_metadata.quorum.snapshots import SnapshotStore, StateMachine
from raft_metadata.quorum.transport import FilteredTransport, Links
from raft_metadata.quorum.voter_node import VoterNode
from raft_metadata.quorum.wire import Message

ENTRIES_PER_TURN = 2000
"""Most entries appended or applied before the loop gets a turn: a few milliseconds of work."""
ENTRIES_BETWEEN_SNAPSHOTS = 100
"""Fewest applied entries between two snapshots forced by journal size: entries that are not applied
yet cannot be dropped from the journal."""
LOST_VOTE = "lost"
"""Stored as the vote of a voter that lost its disk, in the term that it adopts: its real vote in
that term is unknown."""
PING_S = 0.5
"""Interval of pings, which carry the highest ``metadata.version`` of a voter's process."""
_TAG_REGULAR = bytes((REGULAR,))

_log = logging.getLogger("raft_metadata.quorum")


class Activation(Enum):
    """The state of a voter's leadership, as its owner knows it."""

    NONE = "this voter does not lead, or has not applied the first entry of its term"
    ACTIVE = "this voter leads and accepts payloads"
    HANDING_OVER = (
        "another voter is to lead: nothing more is appended, until the end of the process"
    )


@dataclass(frozen=True, slots=True)
class Leadership:
    """A leadership that may be acted on: the first entry of `term` is applied, at `index`."""

    term: int
    index: int


class QuorumListener(Protocol):
    """The port to the owner of a voter, `ActiveController`; called on the loop."""

    def on_activated(self, leadership: Leadership) -> None:
        """Begin to decide: this voter leads, and every entry before its term is applied."""
        ...

    def on_deactivated(self) -> None:
        """Stop deciding: this leadership has ended."""
        ...

    def on_applied(self) -> None:
        """Note that entries were applied."""
        ...


@dataclass(frozen=True, slots=True)
class ListenerEvents:
    """A voter's calls to its owner, inside a tick; an exception in one of them is fatal."""

    listener: QuorumListener
    faults: FaultHandler

    def activated(self, term: int, index: int) -> None:
        _log.info("leadership activated term=%d index=%d", term, index)
        self._call(lambda: self.listener.on_activated(Leadership(term, index)))

    def deactivated(self) -> None:
        _log.info("leadership deactivated")
        self._call(self.listener.on_deactivated)

    def applied(self) -> None:
        self._call(self.listener.on_applied)

    def _call(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 the owner's state may be half changed
            self.faults.fatal("quorum event handler failed", error)


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftParts:
    """The parts of a voter; each is opened, and closed, by the owner."""

    config: QuorumConfig
    home: DataDir
    journal: DurableJournal
    snapshots: SnapshotStore
    machine: StateMachine
    events: ListenerEvents
    faults: FaultHandler
    links: Links
    request_tick: Callable[[], None]
    now: Callable[[], float]
    rng: random.Random


@dataclass(frozen=True, slots=True)
class _Queued:
    term: int
    payload: bytes
    future: Future[object]


class RaftNode(PinnedSyncObj):
    """A voter of the metadata quorum; see the module.

    Invariants: a payload enters the log only while this voter leads in the term it was submitted
    for (rule M2); every submission is answered (rule M3).
    """

    def __init__(self, parts: RaftParts) -> None:
        self.parts = parts
        self.home, self.journal, self.snapshots = parts.home, parts.journal, parts.snapshots
        self.now, self.faults, self.links = parts.now, parts.faults, parts.links
        config = parts.config
        self._paused: set[VoterNode] = set()
        self._queue: deque[_Queued] = deque()
        self._waiting: dict[int, _Queued] = {}
        self._commit_moved = False
        self._activation = Activation.NONE
        self._forced_snapshot_at = 0
        self._next_ping = 0.0
        self.contact = LeaderContact()
        self._answered_append_sent_at: dict[NodeId, float] = {}
        """Send time of the newest append that each other voter has answered."""
        self.feature_levels: dict[NodeId, int] = {}
        """Highest ``metadata.version`` of each connected voter, as sent in its pings."""
        self._pre_vote = PreVote(voters=len(config.voters))
        self._disk = DiskWatch()
        self._rejoin = Rejoin(frozenset(config.others))
        snapshots = SnapshotAdapter(self.snapshots, self.faults, self._backlog_bytes, self.now)
        journal_adapter = JournalAdapter(parts.journal, self._commit)
        conf = library_conf(config, journal_adapter, snapshots)
        conf.onStateChanged = self._on_role_changed
        super().__init__(
            VoterNode(config.node_id),
            [VoterNode(node) for node in config.others],
            conf,
            transportClass=FilteredTransport,
        )
        self.journal.on_durable = self._on_durable
        self.load_snapshot(present=parts.snapshots.header is not None)
        self._min_election_s = conf.raftMinTimeout
        if not config.others:
            self.election_deadline = 0  # a single voter need not wait

    # -- submitting (rules M2, M3)

    def submit(self, payload: bytes, term: int, future: Future[object]) -> None:
        """Queue a payload for this term; the future gets the value of apply() or a KafkaError."""
        refusal = self._refusal(payload, term)
        if refusal is not None:
            _fail(future, refusal)
            return
        self._queue.append(_Queued(term, payload, future))
        self.parts.request_tick()

    def _refusal(self, payload: bytes, term: int) -> KafkaError | None:
        # All these errors are raised before the append, so the payload is surely not written.
        if not self.leading_in(term):
            return _not_controller(term, self.raftCurrentTerm)
        if len(payload) > MAX_PAYLOAD_BYTES:
            text = f"metadata batch of {len(payload)} bytes, limit {MAX_PAYLOAD_BYTES}"
            return KafkaError(ErrorCode.INVALID_REQUEST, text)
        uncommitted = self.journal.last[1] - self.raftCommitIndex
        if len(self._queue) >= MAX_QUEUED or uncommitted > MAX_UNCOMMITTED:
            text = f"metadata queue full queued={len(self._queue)} uncommitted={uncommitted}"
            return KafkaError(ErrorCode.QUEUE_FULL, text)
        return None

    def leading_in(self, term: int) -> bool:
        """Return whether this voter leads, in exactly this term, and accepts entries."""
        leads = bool(self._isLeader()) and term == self.raftCurrentTerm
        return leads and self._activation is not Activation.HANDING_OVER

    @override
    def append_queued(self) -> None:
        """Append the queued payloads, send them once, then flush.

        The flush overlaps with the followers' flushes.
        """
        appended = 0
        while self._queue and appended < ENTRIES_PER_TURN:
            queued = self._queue.popleft()
            if queued.future.cancelled():
                continue
            if not self.leading_in(queued.term):
                _fail(queued.future, _not_controller(queued.term, self.raftCurrentTerm))
                continue
            index = self.journal.last[1] + 1
            self.journal.add(_TAG_REGULAR + queued.payload, index, queued.term)
            self._waiting[index] = queued
            appended += 1
        if self._isLeader() and (appended or self._commit_moved):
            self.send_append_entries()
        self._commit_moved = False
        self.journal.flush()
        if self._queue:
            self.parts.request_tick()

    # -- waiting for the disk without blocking the loop (rule M7)

    def _commit(self, index: int) -> int:
        """Return how far a commit index may advance.

        The leader's own copy counts once it is on disk.

        The library counts it at once (defect 2) and is held back here to the entries that a
        majority of voters has on disk, with this voter's disk counted like any other. An entry of
        an earlier term is not committed by being on a majority (Raft 5.4.2): the next leader may
        replace it.
        """
        if not self._isLeader():
            return index
        copies = [self.journal.durable_index, *map(self.match_index, self.otherNodes)]
        allowed = min(index, sorted(copies, reverse=True)[len(copies) // 2])
        entry = self.journal.at(allowed)
        if entry is None or entry[2] != self.raftCurrentTerm:
            allowed = self.journal.commit_index
        allowed = max(allowed, self.journal.commit_index)
        if allowed < index:
            self.lower_commit_index(allowed)
        return allowed

    def _on_durable(self) -> None:
        self.transport.release()
        if self._isLeader() or self.home.fenced:
            self.parts.request_tick()

    def prepare_hand_over(self) -> bool:
        """Stop appending so that another voter can lead; return whether no submission is pending.

        From the first call on nothing more is appended (Raft thesis, 3.10). Appended entries are
        committed first, while there is time: otherwise their submitters would get OUTCOME_UNKNOWN.
        """
        self._end_activation(Activation.HANDING_OVER)
        return not self._waiting

    def _end_activation(self, state: Activation) -> None:
        before, self._activation = self._activation, state
        if before is Activation.ACTIVE:
            self.parts.events.deactivated()

    def _on_role_changed(self, old: int, _new: int) -> None:
        if old != LEADER:
            return
        if self._activation is Activation.ACTIVE:
            self._end_activation(Activation.NONE)
        waiting, self._waiting = self._waiting, {}
        for index, queued in waiting.items():
            # The entry is appended, so another leader may still commit it (rule M3).
            text = f"leadership of term {queued.term} lost with entry {index} in flight"
            _fail(queued.future, KafkaError(ErrorCode.OUTCOME_UNKNOWN, text))
        self.parts.request_tick()

    # -- applying

    @override
    def apply_committed(self) -> None:
        """Apply committed entries in order, each once (defect 12).

        Index and term are passed on, nothing is retried, an error of one waiter affects no other,
        and a state machine that raises ends the process.
        """
        applied, commit = self.applied_index, self.raftCommitIndex
        if commit <= applied:
            return
        for index in range(applied + 1, min(commit, applied + ENTRIES_PER_TURN) + 1):
            entry = self.journal.at(index)
            if entry is None:
                self.faults.fatal(f"committed entry {index} is not in the journal")
            self._apply(entry[0], index, entry[2])
        self._commit_moved = bool(self._isLeader())
        self.parts.events.applied()
        if self.applied_index < commit:
            self.parts.request_tick()

    def _apply(self, command: bytes, index: int, term: int) -> None:
        result: object = None
        if command[0] == REGULAR:
            try:
                result = self.parts.machine.apply(index, term, command[1:])
            except Exception as error:  # noqa: BLE001 no voter may skip what others applied
                self.faults.fatal(f"apply failed index={index} term={term}", error)
        elif command[0] != NO_OP:
            self.faults.fatal(f"unknown command kind={command[0]} index={index}")
        self.applied_index = index
        queued = self._waiting.pop(index, None)
        if queued is not None and not queued.future.done():
            queued.future.set_result(result)
        if command[0] == NO_OP and self.leading_in(term):
            self._activation = Activation.ACTIVE
            self.parts.events.activated(term, index)

    # -- elections

    def on_leader_append(self, term: int, commit_index: int) -> None:
        """Record an append of a leader of at least this term."""
        self.contact.when = self.now()
        self.contact.term, self.contact.commit_index = term, commit_index
        self._pre_vote.reset()

    def on_answered(self, node: VoterNode, sent_at: float) -> None:
        """Record when the append that a follower answers was sent.

        The send time counts for the leader's lease, however late the answer is read (rule G3).
        """
        before = self._answered_append_sent_at.get(node.node_id, NEVER)
        self._answered_append_sent_at[node.node_id] = max(before, min(sent_at, self.now()))

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803 the library's names
        self._tick_disk()
        if self.home.fenced:
            self._tick_fence()
        elif self._would_stand() and not self._pre_vote.take_grant(self.raftCurrentTerm):
            self._ask_for_votes()
        self._tick_pings()
        self._force_snapshot_when_large()
        super()._onTick(timeToWait)

    def _tick_disk(self) -> None:
        """Step down if this disk hangs while the others commit without it.

        Committed entries would otherwise pile up in memory.
        """
        if not self._disk.check_for_hang(self.journal, self.now()):
            return
        self.election_deadline = self.now() + self.conf.raftMaxTimeout  # nor is it a candidate
        durable, others = self.journal.durable_index, filter(self.isNodeConnected, self.otherNodes)
        ahead = sum(self.match_index(node) > durable for node in others)
        if self._isLeader() and 2 * ahead > len(self.parts.config.voters):
            self.step_down()

    def _would_stand(self) -> bool:
        return (
            not self._isLeader()
            and not self.transfer_in_progress
            and self.election_deadline < self.now()
            and self.connected_to_anyone
        )

    def _ask_for_votes(self) -> None:
        again_in = self._min_election_s * self.parts.rng.uniform(0.3, 0.7)
        self.election_deadline = self.now() + again_in
        self._send_all(self._pre_vote.request(self.raftCurrentTerm, self.journal.last))
        self._count_pre_votes()

    def _count_pre_votes(self) -> None:
        if not self._isLeader() and self._pre_vote.count_grant(self.raftCurrentTerm):
            self.election_deadline = 0
            self.parts.request_tick()

    def _send_all(self, message: Message) -> None:
        for node in self.otherNodes:
            self.transport.send(node, dict(message))

    def _tick_pings(self) -> None:
        if self.now() >= self._next_ping:
            self._next_ping = self.now() + PING_S
            level = self.parts.config.feature_level_max
            self._send_all({"type": "ping", "feature_level_max": level})

    def on_ping(self, node: VoterNode, message: Message) -> None:
        """Record the highest ``metadata.version`` that a voter can follow."""
        self.feature_levels[NodeId(node.node_id)] = message["feature_level_max"]

    def on_pre_vote(self, node: VoterNode, question: Message) -> None:
        """Answer whether this voter would vote for `node` now.

        Request and answer carry the sender's term, a refusal too, and the side with the lower term
        adopts the higher one (rule Q7).
        """
        if question["term"] > self.raftCurrentTerm:
            self.transport.adopt(node, question["term"])
        granted = (
            not self.home.fenced
            and question["term"] == self.raftCurrentTerm
            and up_to_date(question, self.journal.last)
            and not self._isLeader()
            and self.now() - self.contact.when > self._min_election_s
        )
        answer = {"type": "pre_vote_answer", "term": self.raftCurrentTerm, "granted": granted}
        self.transport.send(node, answer)

    def on_pre_vote_answer(self, node: VoterNode, answer: Message) -> None:
        """Count a pre-vote, or adopt the sender's higher term."""
        if answer["term"] > self.raftCurrentTerm:
            self.transport.adopt(node, answer["term"])
        elif answer["granted"] and answer["term"] + 1 == self._pre_vote.requested_term:
            self._pre_vote.granted.add(NodeId(node.node_id))
            self._count_pre_votes()

    # -- a voter that lost its disk (rule Q4)

    def _tick_fence(self) -> None:
        self.election_deadline = self.now() + self.conf.raftMaxTimeout  # never a candidate
        meta = self.home.meta
        if meta.fence == "ask":
            if self.now() >= self._rejoin.ask_again_at:
                self._rejoin.ask_again_at = self.now() + self.conf.appendEntriesPeriod
                self._send_all({"type": "term_query"})
        elif fence_may_lift(self.contact, self.journal, meta.fence_term):
            self.home.lift_fence()

    def on_term_answer(self, node: VoterNode, term: int) -> None:
        """Record a voter's term, and adopt the highest once every other voter has answered."""
        if self.home.meta.fence != "ask":
            return
        highest = self._rejoin.answered(NodeId(node.node_id), term)
        if highest is not None:
            highest = max(highest, self.raftCurrentTerm)
            self.adopt_term(highest, LOST_VOTE)
            self.home.adopt_fence_term(highest)

    def accept_voter(self, voter: NodeId, directory_id: DirectoryId) -> None:
        """Accept a voter on a new directory, at an operator's request.

        Its old one is no longer valid.

        Acknowledgements of the lost disk must not complete a majority (lesson 5).
        """
        self.home.set_voter_directory(voter, directory_id)
        node = self.transport.voter(voter)
        self.forget_match(node)
        self.transport.drop(node)

    # -- snapshots

    def on_snapshot_part_ended(self) -> None:
        """Advance the commit index after the last part of the leader's snapshot."""
        header = self.snapshots.header
        if header is not None and header.last[1] > self.raftCommitIndex:
            self.raise_commit_index(header.last[1])
            self.journal.set_commit_index(header.last[1])
            self.parts.events.applied()

    def _force_snapshot_when_large(self) -> None:
        due = self.journal.size_bytes > self.parts.config.snapshot_max_journal_bytes
        if due and self.applied_index > self._forced_snapshot_at + ENTRIES_BETWEEN_SNAPSHOTS:
            self._forced_snapshot_at = self.applied_index
            self.forceLogCompaction()

    def _backlog_bytes(self, node: VoterNode) -> int:
        return self.links.backlog_bytes(node.node_id)

    # -- slow and disconnected followers

    @override
    def pause_congested(self) -> None:
        """Pause every follower that already has enough unsent bytes."""
        for node in self.otherNodes:
            if self.transport.is_congested(node):
                self.pause(node)

    def on_link_made(self) -> None:
        """Send a ping with the next tick, because a voter has connected."""
        self._next_ping = 0.0

    def on_link_lost(self, node: VoterNode) -> None:
        """Forget the pause and the feature level of a disconnected voter."""
        self.unpause(node)
        # The voter may return with an older version, which supports a lower feature level.
        self.feature_levels.pop(NodeId(node.node_id), None)

    # -- state for the owner

    @property
    def leader(self) -> VoterNode | None:
        """The leader, as far as this voter knows."""
        leader = self._getLeader()
        return leader if isinstance(leader, VoterNode) else None

    def leader_silence_s(self) -> float:
        """Return seconds since the last contact with the leader.

        On the leader itself: seconds since it sent the messages that a majority has answered.
        """
        if not self._isLeader():
            return self.now() - self.contact.when
        heard = (self._answered_append_sent_at.get(node.node_id, NEVER) for node in self.otherNodes)
        needed = len(self.parts.config.voters) // 2
        return self.now() - sorted(heard, reverse=True)[needed - 1] if needed else 0.0

    def close(self) -> None:
        """Answer every pending submission and close every connection.

        The owner closes the files.
        """
        self._on_role_changed(LEADER, 0)
        while self._queue:
            queued = self._queue.popleft()
            _fail(queued.future, _not_controller(queued.term, self.raftCurrentTerm))
        self.destroy()


def _not_controller(asked: int, current: int) -> KafkaError:
    text = f"not the leader in term {asked}, present term {current}; nothing was appended"
    return KafkaError(ErrorCode.NOT_CONTROLLER, text)


def _fail(future: Future[object], error: KafkaError) -> None:
    if not future.done():
        future.set_exception(error)
