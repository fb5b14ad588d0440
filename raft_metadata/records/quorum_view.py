"""How one controller sees the quorum: facts for operators, health and checkers; soft state only.

Kafka's names where it has them (KIP-595, DescribeQuorum). Nothing is decided by any of it.
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
    """Answered by every controller; the active one alone knows how far the others are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VoterState:
    """A voter as the answering controller sees it. Ages in milliseconds."""

    voter_id: NodeId
    directory_id: DirectoryId
    is_connected: bool
    match_index: int | None = None
    """The newest Raft entry it is known to hold on disk. None: a follower can't know."""
    lag: int | None = None
    """Entries from there to the answering leader's newest."""
    contact_age_ms: int | None = None
    """Since it last answered. None: never, or a follower was asked about another follower."""
    caught_up_age_ms: int | None = None
    """Since it last held all that the leader had a moment before; None: not in this reign."""
    feature_level_max: int | None = None
    """The highest ``metadata.version`` it can follow; None: not heard yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverState:
    """A broker that follows the metadata log, as its heartbeats to this controller say."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    state: str
    metadata_offset: MetadataOffset | None = None
    """The next metadata offset it will apply; None: it has not spoken to this controller."""
    lag: int | None = None
    """Records from there to this controller's ``next_offset``."""
    contact_age_ms: int | None = None
    caught_up_age_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateHash:
    """See ``image.state_hash``; ``value`` None: this node came from a snapshot without one."""

    index: int
    next_offset: MetadataOffset
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """One controller's state. ``index`` counts Raft entries, ``offset`` metadata records."""

    node_id: NodeId
    cluster_id: ClusterId
    directory_id: DirectoryId
    monotonic_ms: int
    """When this was read, on the machine's monotonic clock."""
    wall_ms: int
    role: str
    """leader | candidate | follower, as this voter believes."""
    is_leader: bool
    is_active: bool
    """It decides: it leads, and has applied the first entry of its term."""
    leader_id: NodeId | None
    leader_contact_age_ms: int
    term: int
    vote: NodeId | None
    """Whom it gave its vote in this term; None where it gave none, or lost its disk since."""
    fence: str
    """``none``, or how far a voter that lost its disk has come (rule Q4)."""
    first_index: int
    """The oldest entry in its journal: what is older stands in its snapshot."""
    snapshot_index: int
    """The entry its state was last replaced at by a snapshot, at start too; 0: never."""
    commit_index: int
    applied_index: int
    last_index: int
    durable_index: int
    """Up to here its entries are on its disk."""
    next_offset: MetadataOffset
    controller_epoch: ControllerEpoch
    feature_level: int
    feature_level_max: int
    voters: tuple[VoterState, ...]
    observers: tuple[ObserverState, ...]
    state_hash: StateHash | None
    """At the index that was asked for, else at ``applied_index``; None: too long ago."""
