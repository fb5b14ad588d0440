"""The interface of the quorum: a replicated log of payloads, applied in order on every voter.

The controller's node creates a `MetadataQuorum`, starts it, submits payloads and reads its state.
It opens the disk (`data_dir.py`), the links (`peer_links.py`) and the `RaftNode`, and ticks them.
`RaftState` is the state of its voter as plain facts, for `controller_view.py`. Nothing of
pysyncobj is visible to its callers. Everything runs on the loop that called `start`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.faults import FaultHandler
from raft_metadata.common.ids import DirectoryId, NodeId
from raft_metadata.common.tls import load_contexts
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.data_dir import VoterDisk, open_voter_disk
from raft_metadata.quorum.journal import ThreadFlusher
from raft_metadata.quorum.peer_links import LinkOwner, PeerAuthenticator, PeerLinks
from raft_metadata.quorum.pysyncobj_internals import library_now, verify_library
from raft_metadata.quorum.raft_node import ListenerEvents, QuorumListener, RaftNode, RaftParts
from raft_metadata.quorum.snapshots import StateMachine
from raft_metadata.quorum.voter_node import VoterNode, voter_of
from raft_metadata.records.quorum_view import VoterState


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftState:
    """Raft state of one voter at one moment; fields as in `records.quorum_view.ControllerState`."""

    node_id: NodeId
    directory_id: DirectoryId
    role: str
    term: int
    vote: NodeId | None
    fence: str
    first_index: int
    snapshot_index: int
    commit_index: int
    applied_index: int
    last_index: int
    durable_index: int
    voters: tuple[VoterState, ...]


def raft_state(node: RaftNode, config: QuorumConfig) -> RaftState:
    """Return the present Raft state of `node` and its knowledge of the other voters."""
    others = sorted(node.otherNodes, key=lambda voter: voter.node_id)
    voters = [_other_voter_state(node, other) for other in others]
    voters.append(_own_voter_state(node, config))
    journal, term = node.journal, int(node.raftCurrentTerm)
    return RaftState(
        node_id=config.node_id,
        directory_id=DirectoryId(node.home.meta.directory_id),
        role=node.role,
        term=term,
        vote=voter_of(journal.vote.voted_for if journal.vote.term == term else None),
        fence=node.home.meta.fence,
        first_index=journal.entries[0][1],
        snapshot_index=node.snapshots.index,
        commit_index=int(node.raftCommitIndex),
        applied_index=node.applied_index,
        last_index=journal.last[1],
        durable_index=journal.durable_index,
        voters=tuple(sorted(voters, key=lambda voter: voter.voter_id)),
    )


def _own_voter_state(node: RaftNode, config: QuorumConfig) -> VoterState:
    leads = node.role == "leader"
    return VoterState(
        voter_id=config.node_id,
        directory_id=DirectoryId(node.home.meta.directory_id),
        is_connected=True,
        match_index=node.journal.durable_index if leads else None,
        lag=node.journal.last[1] - node.journal.durable_index if leads else None,
        contact_age_ms=0,
        feature_level_max=config.feature_level_max,
    )


def _other_voter_state(node: RaftNode, other: VoterNode) -> VoterState:
    voter = NodeId(other.node_id)
    match = node.match_index(other) if node.role == "leader" else None
    return VoterState(
        voter_id=voter,
        directory_id=DirectoryId(node.home.meta.voters[voter]),
        is_connected=bool(node.isNodeConnected(other)),
        match_index=match,
        lag=None if match is None else max(0, node.journal.last[1] - match),
        contact_age_ms=_contact_age_ms(node, other),
        feature_level_max=node.feature_levels.get(voter),
    )


def _contact_age_ms(node: RaftNode, other: VoterNode) -> int | None:
    """Return milliseconds since the last contact with `other`, or None.

    A leader counts from a follower's last answer, a follower from its leader's last append;
    followers have no contact with each other.
    """
    if node.role == "leader":
        when = node.last_answer(other)
    else:
        leader = node.leader
        when = node.contact.when if leader is not None and leader == other else None
    return None if when is None else max(0, round((node.now() - when) * 1000))


TICKS_PER_HEARTBEAT = 4
NO_LEADER_CONTACT_MS = 2**31 - 1
"""`leader_contact_age_ms` before the first contact with any leader."""
HAND_OVER_TIMEOUT_S = 0.5
"""Longest time that a stopping leader waits for another voter to take over."""
COMMIT_TIMEOUT_S = 0.25
"""Part of that time in which it first waits until its appended entries are committed."""

_log = logging.getLogger("raft_metadata.quorum")


class MetadataQuorum:
    """A voter of the metadata quorum, for the life of a controller process.

    Owned by the controller; single-threaded on its loop (asyncio or uvloop). `start` once, `stop`
    once. Between them it owns the directory's lock, the links to the other voters, one timer, the
    thread that waits for the disk, and at times another thread that writes a snapshot.
    """

    def __init__(
        self,
        config: QuorumConfig,
        state_machine: StateMachine,
        faults: FaultHandler,
        *,
        disk: Disk | None = None,
    ) -> None:
        self._config = config
        self._machine = state_machine
        self._faults = faults
        self._disk = disk or Disk()
        self._files: VoterDisk | None = None
        self._links: PeerLinks | None = None
        self._node: RaftNode | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tick_asked = False
        self._errors = 0
        self._is_handing_over = False

    # -- life

    async def start(self, listener: QuorumListener) -> None:
        """Lock the directory, open and sync the journal, bind, and join the quorum.

        ``listener`` is called from now on. Raises UnsupportedLibraryError, KafkaError
        INVALID_CONFIG (certificates), StorageError or CorruptionError (exit 74), or OSError for a
        port that is taken; whatever was opened is closed again.
        """
        verify_library()
        loop = self._loop = asyncio.get_running_loop()
        tls = None if self._config.tls is None else load_contexts(self._config.tls)
        disk = self._files = open_voter_disk(
            self._config,
            self._machine,
            self._faults,
            self._disk,
            flusher=ThreadFlusher(
                lambda news: loop.call_soon_threadsafe(self._handle_flushed, news)
            ),
        )
        owner = LinkOwner(self._request_tick, self._event_failed)
        links = self._links = PeerLinks(self._config, PeerAuthenticator(disk.home), tls, owner)
        try:
            node = RaftNode(self._parts(disk, links, listener))
            await links.open(node.transport)
        except BaseException:
            await links.close()
            self._close_disk()
            raise
        self._node = node
        self._on_timer()
        _log.info(
            "voter started node=%d term=%d last_index=%d snapshot_index=%d",
            *(self._config.node_id, self.term, self.last_index, self._snapshot_index()),
        )

    def _parts(self, disk: VoterDisk, links: PeerLinks, listener: QuorumListener) -> RaftParts:
        return RaftParts(
            config=self._config,
            home=disk.home,
            journal=disk.journal,
            snapshots=disk.snapshots,
            machine=self._machine,
            events=ListenerEvents(listener, self._faults),
            faults=self._faults,
            links=links,
            request_tick=self._request_tick,
            now=library_now,
            rng=random.Random(),
        )

    async def stop(self) -> None:
        """Hand leadership over if possible, answer every pending submission, and close all."""
        await self.hand_over()
        node = self._node
        if node is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._node = None
            node.close()
        if self._links is not None:
            await self._links.close()
        thread = None if self._files is None else self._files.snapshots.close()
        if thread is not None:
            # The directory's lock may be released only after the last write there.
            await asyncio.to_thread(thread.join)
        self._close_disk()

    async def hand_over(self) -> bool:
        """Transfer leadership to another voter; return whether a transfer was attempted.

        This voter continues as a follower and still answers its own pending submissions with
        certainty.
        """
        node = self._node
        if node is None:
            return False
        self._is_handing_over = True
        leads = node.role == "leader" and bool(node.otherNodes)
        loop = asyncio.get_running_loop()
        began = loop.time()
        # Repeated with every tick: only a follower that holds every entry is asked to take over.
        while node.role == "leader" and node.otherNodes:
            waited_s = loop.time() - began
            if waited_s >= HAND_OVER_TIMEOUT_S:
                break
            if node.prepare_hand_over() or waited_s >= COMMIT_TIMEOUT_S:
                node.transferLeadership()
            await asyncio.sleep(self._tick_s)
        return leads

    def _close_disk(self) -> None:
        disk, self._files = self._files, None
        if disk is not None:
            disk.close()

    # -- ticking

    @property
    def _tick_s(self) -> float:
        return self._config.heartbeat_ms / 1000 / TICKS_PER_HEARTBEAT

    def _on_timer(self) -> None:
        if self._loop is not None:
            self._timer = self._loop.call_later(self._tick_s, self._on_timer)
        self._tick()

    def _request_tick(self) -> None:
        if not self._tick_asked and self._loop is not None:
            self._tick_asked = True
            self._loop.call_soon(self._tick)

    def _event_failed(self, error: Exception) -> None:
        if isinstance(error, OSError):
            # A socket error (no descriptors, no route) is retried with the next tick.
            self._errors += 1
            _log.warning("raft event failed count=%d error=%r", self._errors, error)
        else:
            # The event was handled in part, and the state is unknown.
            self._faults.fatal("raft event failed", error)

    def _handle_flushed(self, news: Callable[[], None]) -> None:
        # asyncio would only log an exception, and all that waits for the disk would wait for ever.
        try:
            news()
        except Exception as error:  # noqa: BLE001 sorted there
            self._event_failed(error)

    def _tick(self) -> None:
        self._tick_asked = False
        if self._node is None:
            return
        try:
            self._node.doTick(0.0)
        except Exception as error:  # noqa: BLE001 sorted there
            self._event_failed(error)

    # -- use

    def submit(self, payload: bytes, term: int) -> asyncio.Future[object]:
        """Append a payload in exactly this term (rule M2); the future gets the value of apply().

        The future fails with KafkaError NOT_CONTROLLER, QUEUE_FULL or INVALID_REQUEST (too large):
        surely not appended; or with OUTCOME_UNKNOWN: appended, and then leadership was lost (rule
        M3). Cancelling it has no effect on an entry that is already appended.
        """
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self._node is None:
            error = KafkaError(ErrorCode.NOT_CONTROLLER, "the quorum is not running")
            future.set_exception(error)
        else:
            self._node.submit(payload, term, future)
        return future

    def accept_voter(self, voter: NodeId, directory_id: DirectoryId) -> None:
        """Accept voter `voter`, which lost its disk, on its new directory (rule Q4).

        An operator must send this to every other voter. The change is durable before the method
        returns. Raises KeyError if `voter` is no other voter.
        """
        if voter not in self._config.others:
            raise KeyError(voter)
        _log.warning("voter accepted on another disk voter=%d directory_id=%s", voter, directory_id)
        self._running.accept_voter(voter, directory_id)

    def voter_directories(self) -> Mapping[NodeId, DirectoryId]:
        """Return every voter's directory id of ``raft/meta.json``, as changed by rejoins."""
        voters = self._running.home.meta.voters
        return {NodeId(voter): DirectoryId(directory) for voter, directory in voters.items()}

    @property
    def _running(self) -> RaftNode:
        if self._node is None:
            raise RuntimeError("the quorum is not running")
        return self._node

    @property
    def is_leader(self) -> bool:
        """True if this voter believes it leads; act only between activation and deactivation."""
        return self._node is not None and self._node.role == "leader"

    @property
    def term(self) -> int:
        """The present Raft term, which is the controller epoch of that term's leader.

        Like all properties below, it is 0 or None while the quorum is not running.
        """
        return 0 if self._node is None else int(self._node.raftCurrentTerm)

    @property
    def leader_id(self) -> NodeId | None:
        """The leader, as far as this voter knows."""
        leader = None if self._node is None else self._node.leader
        return None if leader is None else NodeId(leader.node_id)

    @property
    def commit_index(self) -> int:
        """Raft index up to which entries are known to be committed."""
        return 0 if self._node is None else int(self._node.raftCommitIndex)

    @property
    def applied_index(self) -> int:
        """Raft index up to which the state machine has applied entries."""
        return 0 if self._node is None else self._node.applied_index

    @property
    def last_index(self) -> int:
        """Raft index of the newest entry, committed or not."""
        return 0 if self._node is None else self._node.journal.last[1]

    @property
    def leader_contact_age_ms(self) -> int:
        """Upper bound of this voter's staleness in milliseconds (rule M6).

        0 on a leader that cannot be replaced soon: a majority has answered messages that it sent
        within half an election timeout, and gives no vote before the whole timeout is over (rule
        G3); the other half is for the broker's use of the answer. Otherwise, on a leader,
        milliseconds since it sent the messages that a majority answered; on a follower,
        milliseconds since the last append of a leader.

        NO_LEADER_CONTACT_MS before the first contact. Never 0 during a hand-over, because the next
        leader need not wait.
        """
        if self._node is None:
            return NO_LEADER_CONTACT_MS
        silence_ms = self._node.leader_silence_s() * 1000
        surely_ms = self._config.election_timeout_ms // 2
        if self._is_handing_over:
            return max(1, int(min(silence_ms, NO_LEADER_CONTACT_MS)))
        if self.is_leader and silence_ms <= surely_ms:
            return 0
        return int(min(silence_ms, NO_LEADER_CONTACT_MS))

    def _snapshot_index(self) -> int:
        header = None if self._files is None else self._files.snapshots.header
        return 0 if header is None else header.last[1]

    def voter_feature_levels(self) -> Mapping[NodeId, int | None]:
        """Return each voter's highest ``metadata.version``; None if it is not received yet."""
        heard = {} if self._node is None else self._node.feature_levels
        others = {voter: heard.get(voter) for voter in self._config.others}
        return {**others, self._config.node_id: self._config.feature_level_max}

    def raft_state(self) -> RaftState | None:
        """Return the Raft state of this voter and its view of the others.

        None while not running.
        """
        return None if self._node is None else raft_state(self._node, self._config)

    def status(self) -> Mapping[str, object]:
        """Return facts for operators and metrics, plain values only; empty while not running."""
        node = self._node
        if node is None:
            return {}
        voters = {
            str(other.node_id): {
                "connected": bool(node.isNodeConnected(other)),
                "match_index": node.match_index(other) if self.is_leader else None,
            }
            for other in sorted(node.otherNodes, key=lambda voter: voter.node_id)
        }
        return {
            "node_id": self._config.node_id,
            "role": node.role,
            "term": self.term,
            "leader_id": self.leader_id,
            "leader_contact_age_ms": self.leader_contact_age_ms,
            "commit_index": self.commit_index,
            "applied_index": self.applied_index,
            "last_index": self.last_index,
            "first_index": node.journal.entries[0][1],
            "journal_bytes": node.journal.size_bytes,
            "journal_syncs": node.journal.sync_count,
            "fence": node.home.meta.fence,
            "errors": self._errors,
            "voters": voters,
        }
