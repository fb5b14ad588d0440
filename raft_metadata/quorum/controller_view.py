"""Read-only view of a controller: its voter, its image, and the sessions of its brokers.

The node calls `note` with every tick and serves `state` and `image_hash` to operators, metrics and
checkers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace

from raft_metadata.common.clock import Clock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import ClusterId
from raft_metadata.controller.broker_sessions import HeartbeatTracker
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.metadata_state_machine import MetadataStateMachine, image_hash
from raft_metadata.quorum.metadata_quorum import MetadataQuorum, RaftState
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.quorum_view import (
    ControllerState,
    ObserverState,
    StateHash,
    VoterState,
)

NOTE_INTERVAL_MS = 100
"""Interval between two notes of follower positions: the resolution of ``caught_up_age_ms``."""


class CaughtUpTimes:
    """Times at which each follower last held the log as it was one note earlier (KIP-595's rule).

    Comparing with the *present* end would count no follower as caught up under steady load.
    """

    def __init__(self) -> None:
        self._times: dict[object, int] = {}
        self._end = -1
        self._noted_ms = 0

    def note(self, positions: dict[object, int], end: int, now_ms: int) -> None:
        """Record the followers' positions and the log end at `now_ms`.

        Forget all other followers.
        """
        times = {who: at for who, at in self._times.items() if who in positions}
        for who, position in positions.items():
            if position >= end:
                times[who] = now_ms
            elif 0 <= self._end <= position:
                times[who] = self._noted_ms
        self._times, self._end, self._noted_ms = times, end, now_ms

    def age_ms(self, who: object, now_ms: int) -> int | None:
        """Return milliseconds since `who` was last caught up.

        None if it has not been caught up since it is listed.
        """
        when = self._times.get(who)
        return None if when is None else max(0, now_ms - when)


class ControllerView:
    """State reports of one controller.

    Owned by the controller's node; single-threaded on its loop, except that one image hash at a
    time is computed on another thread.
    """

    def __init__(
        self,
        cluster_id: ClusterId,
        quorum: MetadataQuorum,
        machine: MetadataStateMachine,
        sessions: HeartbeatTracker,
        clock: Clock,
        is_active: Callable[[], bool],
    ) -> None:
        self._is_active = is_active
        self._cluster_id = cluster_id
        self._quorum = quorum
        self._machine = machine
        self._sessions = sessions
        self._clock = clock
        self._voters_caught_up = CaughtUpTimes()
        self._observers_caught_up = CaughtUpTimes()
        self._noted_ms = 0
        self._hashing = asyncio.Lock()

    def note(self) -> None:
        """Record which followers are caught up.

        Call with every tick; acts once per `NOTE_INTERVAL_MS`.
        """
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._noted_ms < NOTE_INTERVAL_MS:
            return
        self._noted_ms = now_ms
        raft = self._quorum.raft_state()
        if raft is None:
            return
        matches: dict[object, int] = {
            voter.voter_id: voter.match_index
            for voter in raft.voters
            if voter.match_index is not None
        }
        self._voters_caught_up.note(matches, raft.last_index, now_ms)
        image = self._machine.image
        offsets: dict[object, int] = {
            (broker.broker_id, broker.broker_epoch): session.metadata_offset
            for broker, session in self._sessions.live_sessions(image.brokers)
        }
        self._observers_caught_up.note(offsets, image.next_offset, now_ms)

    def state(self, index: int | None = None) -> ControllerState:
        """Return the controller's present state, with the state hash after entry `index`.

        The default is the newest entry. Raises INVALID_REQUEST if the entry is not applied yet,
        NOT_CONTROLLER if the quorum is stopped.
        """
        raft = self._quorum.raft_state()
        if raft is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "the quorum is not running")
        now_ms, image = self._clock.monotonic_ms(), self._machine.image
        return ControllerState(
            node_id=raft.node_id,
            cluster_id=self._cluster_id,
            directory_id=raft.directory_id,
            monotonic_ms=now_ms,
            wall_ms=self._clock.wall_ms(),
            role=raft.role,
            is_leader=raft.role == "leader",
            is_active=self._is_active(),
            leader_id=self._quorum.leader_id,
            leader_contact_age_ms=self._quorum.leader_contact_age_ms,
            term=raft.term,
            vote=raft.vote,
            fence=raft.fence,
            first_index=raft.first_index,
            snapshot_index=raft.snapshot_index,
            commit_index=raft.commit_index,
            applied_index=raft.applied_index,
            last_index=raft.last_index,
            durable_index=raft.durable_index,
            next_offset=image.next_offset,
            controller_epoch=image.epoch,
            feature_level=image.feature_level,
            feature_level_max=SUPPORTED_FEATURE_LEVEL,
            voters=tuple(self._voters(raft, now_ms)),
            observers=tuple(self._observers(image, now_ms)),
            state_hash=self._hash_at(raft, raft.applied_index if index is None else index),
        )

    def _voters(self, raft: RaftState, now_ms: int) -> Iterator[VoterState]:
        for voter in raft.voters:
            age_ms = self._voters_caught_up.age_ms(voter.voter_id, now_ms)
            yield replace(voter, caught_up_age_ms=None if voter.match_index is None else age_ms)

    def _observers(self, image: MetadataImage, now_ms: int) -> Iterator[ObserverState]:
        heard = {
            broker.broker_id: session
            for broker, session in self._sessions.live_sessions(image.brokers)
        }
        for broker_id, broker in sorted(image.brokers.items()):
            session = heard.get(broker_id)
            offset = None if session is None else session.metadata_offset
            who = (broker_id, broker.broker_epoch)
            yield ObserverState(
                broker_id=broker_id,
                broker_epoch=broker.broker_epoch,
                state=broker.state.value,
                metadata_offset=offset,
                lag=None if offset is None else max(0, image.next_offset - offset),
                contact_age_ms=self._sessions.age_ms(broker_id),
                caught_up_age_ms=self._observers_caught_up.age_ms(who, now_ms),
            )

    def _hash_at(self, raft: RaftState, index: int) -> StateHash | None:
        if index > raft.applied_index:
            message = f"entry {index} is not applied here yet, the last one is {raft.applied_index}"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
        return self._machine.hashes.at(index)

    async def image_hash(self) -> tuple[int, str]:
        """Return (next offset, hash of the image there).

        Computed on another thread, one at a time.
        """
        async with self._hashing:
            image = self._machine.image
            return image.next_offset, await asyncio.to_thread(image_hash, image)
