"""One voter: pysyncobj's Raft core with our queue, apply loop, elections and disk around it.

Owned by `MetadataQuorum`; every method runs on its loop, none blocks longer than a sync. The
library's own queue, its serialisation of method calls and its forwarding are not used.
"""

from __future__ import annotations

import random
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
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
from raft_metadata.quorum.snapshots import SnapshotStore
from raft_metadata.quorum.transport import FilteredTransport, Links
from raft_metadata.quorum.voter_node import VoterNode
from raft_metadata.quorum.wire import Message

ENTRIES_PER_TURN = 2000
"""Appended or applied before the loop gets a turn: a few milliseconds."""
ENTRIES_BETWEEN_SNAPSHOTS = 100
"""At least, when the journal is too large: what is not applied yet can't be dropped from it."""
LOST_VOTE = "lost"
"""In the term it adopts, a voter that lost its disk has voted for it knows not whom."""
PING_S = 0.5
"""How often a voter says what its process can follow."""
_TAG_REGULAR = bytes((REGULAR,))


class AppliedTo(Protocol):
    """The part of the state machine that the apply loop needs."""

    def apply(self, index: int, term: int, payload: bytes) -> object:
        """Total and pure; see `metadata_quorum.StateMachine`."""
        ...


class RaftEvents(Protocol):
    """What the owner hears. Called on the loop, inside a tick; must not raise."""

    def activated(self, term: int, index: int) -> None:
        """This voter leads, and has applied its own term's first entry at `index`."""

    def deactivated(self) -> None:
        """It leads no more. Nothing of what it decided since may be believed."""

    def applied(self) -> None:
        """`applied_index` has grown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftParts:
    """What a voter is made of; each is opened, and closed, by the owner."""

    config: QuorumConfig
    home: DataDir
    journal: DurableJournal
    snapshots: SnapshotStore
    machine: AppliedTo
    events: RaftEvents
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
    """See the module.

    Invariants: a payload enters the log only while this voter leads in the term it was submitted
    for (rule M2); whoever waits for one is always answered (rule M3).
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
        self._active = False
        self._gives_way = False
        self._forced_snapshot_at = 0
        self._next_ping = 0.0
        self.contact = LeaderContact()
        self._heard_by: dict[NodeId, float] = {}
        """When the newest append that each other voter answered was sent."""
        self.feature_levels: dict[NodeId, int] = {}
        """The highest ``metadata.version`` that each connected voter said it can follow."""
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
            self.election_deadline = 0  # nobody to wait for

    # -- submitting (rules M2, M3)

    def submit(self, payload: bytes, term: int, future: Future[object]) -> None:
        """Queue a payload for this term; the future gets apply()'s value or a KafkaError."""
        refusal = self._refusal(payload, term)
        if refusal is not None:
            _fail(future, refusal)
            return
        self._queue.append(_Queued(term, payload, future))
        self.parts.request_tick()

    def _refusal(self, payload: bytes, term: int) -> KafkaError | None:
        # Everything below is before the append: surely not written.
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
        """Whether this voter leads, in exactly this term, and takes something to append."""
        return bool(self._isLeader()) and term == self.raftCurrentTerm and not self._gives_way

    @override
    def append_queued(self) -> None:
        """Send once for all that was queued, then flush: it overlaps with the followers' syncs."""
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

    # -- what waits for the disk (rule M7: the loop does not)

    def _commit(self, index: int) -> int:
        """How far a commit index may go: the leader's own copy counts once it is on disk.

        Defect 2. The library counts it at once, and is held back here: to what a majority of the
        voters has on disk, this one's disk among them like any other. Where that is an entry of an
        earlier term it is not committed by being there (Raft 5.4.2): whoever leads next may
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

    def give_way(self) -> bool:
        """Another one shall lead (Raft thesis, 3.10); whether this one can be followed by now.

        From the first call on nothing more is appended. What was is committed first, while there
        is time: whoever waits for it would hear that its outcome is unknown.
        """
        self._gives_way = True
        self._deactivate()
        return not self._waiting

    def _deactivate(self) -> None:
        if self._active:
            self._active = False
            self.parts.events.deactivated()

    def _on_role_changed(self, old: int, _new: int) -> None:
        if old != LEADER:
            return
        self._deactivate()
        waiting, self._waiting = self._waiting, {}
        for index, queued in waiting.items():
            # rule M3: appended, so another leader may still commit it.
            text = f"leadership of term {queued.term} lost with entry {index} in flight"
            _fail(queued.future, KafkaError(ErrorCode.OUTCOME_UNKNOWN, text))
        self.parts.request_tick()

    # -- applying

    @override
    def apply_committed(self) -> None:
        """Apply in order, each entry once (defect 12).

        Index and term are known, nothing is tried twice, one waiter's trouble is nobody else's,
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
            self._active = True
            self.parts.events.activated(term, index)

    # -- elections

    def on_leader_heard(self, term: int, commit_index: int) -> None:
        """An append of a leader of at least our term."""
        self.contact.when = self.now()
        self.contact.term, self.contact.commit_index = term, commit_index
        self._pre_vote.forget()

    def on_answered(self, node: VoterNode, sent_at: float) -> None:
        """Rule G3: what counts is when a follower was told, however late its answer is read."""
        before = self._heard_by.get(node.node_id, NEVER)
        self._heard_by[node.node_id] = max(before, min(sent_at, self.now()))

    def _onTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803 the library's names
        self._tick_disk()
        if self.home.fenced:
            self._tick_fence()
        elif self._would_stand() and not self._pre_vote.spend(self.raftCurrentTerm):
            self._ask_for_votes()
        self._tick_pings()
        self._force_snapshot_when_large()
        super()._onTick(timeToWait)

    def _tick_disk(self) -> None:
        """Lead no more where others commit what piles up here, in front of a disk that hangs."""
        if not self._disk.hangs(self.journal, self.now()):
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
        self._send_all(self._pre_vote.ask(self.raftCurrentTerm, self.journal.last))
        self._count_pre_votes()

    def _count_pre_votes(self) -> None:
        if not self._isLeader() and self._pre_vote.count(self.raftCurrentTerm):
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
        """A voter lives, and says what its process can follow; older ones don't."""
        level = message.get("feature_level_max", 1)
        if isinstance(level, int):
            self.feature_levels[NodeId(node.node_id)] = level

    def on_pre_vote(self, node: VoterNode, question: Message) -> None:
        """Answer whether we would help `node` to lead now.

        Rule Q7: question and answer carry the sender's term, a refusal too, and the lower side
        adopts the higher one.
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
        """See `on_pre_vote`."""
        if answer["term"] > self.raftCurrentTerm:
            self.transport.adopt(node, answer["term"])
        elif answer["granted"] and answer["term"] + 1 == self._pre_vote.asked_term:
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
        """Adopt the highest term once every other voter has told its own."""
        if self.home.meta.fence != "ask":
            return
        highest = self._rejoin.answered(NodeId(node.node_id), term)
        if highest is not None:
            highest = max(highest, self.raftCurrentTerm)
            self.adopt_term(highest, LOST_VOTE)
            self.home.adopt_fence_term(highest)

    def accept_voter(self, voter: NodeId, directory_id: DirectoryId) -> None:
        """An operator says that a voter comes back on this directory; its old one is dead to us.

        What the lost disk acknowledged must not complete a majority (lesson 5).
        """
        self.home.set_voter_directory(voter, directory_id)
        node = self.transport.voter(voter)
        self.forget_match(node)
        self.transport.drop(node)

    # -- snapshots

    def on_snapshot_part_ended(self) -> None:
        """The last part of the leader's snapshot was handed to the library."""
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

    # -- followers that can't keep up, or are gone

    @override
    def pause_congested(self) -> None:
        """No append for whoever has more to read than keeps it busy."""
        for node in self.otherNodes:
            if self.transport.is_congested(node):
                self.pause(node)

    def on_link_made(self) -> None:
        """See `transport.FilteredRaft`."""
        self._next_ping = 0.0

    def on_link_lost(self, node: VoterNode) -> None:
        """See `transport.FilteredRaft`."""
        self.unpause(node)
        # It may come back as an older version, which can't follow what this one could.
        self.feature_levels.pop(NodeId(node.node_id), None)

    # -- seen from outside

    @property
    def leader(self) -> VoterNode | None:
        """Who leads, as far as this voter knows."""
        leader = self._getLeader()
        return leader if isinstance(leader, VoterNode) else None

    def leader_silence_s(self) -> float:
        """Seconds since the leader was heard; as leader, since it said what a majority heard."""
        if not self._isLeader():
            return self.now() - self.contact.when
        heard = (self._heard_by.get(node.node_id, NEVER) for node in self.otherNodes)
        needed = len(self.parts.config.voters) // 2
        return self.now() - sorted(heard, reverse=True)[needed - 1] if needed else 0.0

    def close(self) -> None:
        """Answer whoever waits and let go of every connection; files are the owner's."""
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
