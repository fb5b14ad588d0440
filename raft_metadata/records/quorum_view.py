"""The quorum as one controller sees it: facts for operators, health and checkers; soft state only.

Names are Kafka's where it has them (KIP-595, DescribeQuorum). No decision uses any of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    MetadataOffset,
    NodeId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuorum:
    """A request for the quorum's state; only the active controller knows all lags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterState:
    """A voter as the answering controller sees it. Ages in milliseconds."""

    voter_id: NodeId
    directory_id: DirectoryId
    is_connected: bool
    match_index: int | None = None
    """The newest Raft entry that it is known to hold on disk; None: unknown to a follower."""
    lag: int | None = None
    """Entries from ``match_index`` to the answering leader's newest."""
    contact_age_ms: int | None = None
    """Time since its last answer; None: never, or a follower reports about another follower."""
    caught_up_age_ms: int | None = None
    """Time since it last held all that the leader held a moment before; None: not in this term."""
    feature_level_max: int | None = None
    """The highest ``metadata.version`` it can follow; None: not reported yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverState:
    """A broker that follows the metadata log, according to its heartbeats to this controller."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    state: str
    metadata_offset: MetadataOffset | None = None
    """The next metadata offset it will apply; None: this controller got no heartbeat of it."""
    lag: int | None = None
    """Records from ``metadata_offset`` to this controller's ``next_offset``."""
    contact_age_ms: int | None = None
    caught_up_age_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHash:
    """The hash of a controller's state after Raft entry ``index``; see `HashChain`."""

    index: int
    next_offset: MetadataOffset
    value: str
    """Hexadecimal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """The state of one controller. ``index`` counts Raft entries, ``offset`` metadata records."""

    node_id: NodeId
    cluster_id: ClusterId
    directory_id: DirectoryId
    monotonic_ms: int
    """The machine's monotonic clock when this was read."""
    wall_ms: int
    role: str
    """leader, candidate or follower, as this voter believes."""
    is_leader: bool
    is_active: bool
    """True if it decides: it leads, and has applied the first entry of its term."""
    leader_id: NodeId | None
    leader_contact_age_ms: int
    term: int
    vote: NodeId | None
    """The node it voted for in this term; None: it did not vote, or lost its disk since."""
    fence: str
    """``none``, or the stage of return of a voter that lost its disk (rule Q4)."""
    first_index: int
    """The oldest entry in its journal; older ones are covered by its snapshot."""
    snapshot_index: int
    """The entry up to which a snapshot last replaced its state, also at start; 0: never."""
    commit_index: int
    applied_index: int
    last_index: int
    durable_index: int
    """The newest entry that is on its disk."""
    next_offset: MetadataOffset
    controller_epoch: ControllerEpoch
    feature_level: int
    feature_level_max: int
    voters: tuple[VoterState, ...]
    observers: tuple[ObserverState, ...]
    state_hash: StateHash | None
    """The hash at the requested index, else at ``applied_index``; None: no longer kept."""
