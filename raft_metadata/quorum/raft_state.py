"""Raft state of one voter as plain facts; `records.quorum_view` defines every field.

`MetadataQuorum.raft_state` reads it on the loop, for `controller_view.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from raft_metadata.common.ids import DirectoryId, NodeId
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.raft_node import RaftNode
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
    voters = [_other(node, other) for other in others]
    voters.append(_self(node, config))
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


def _self(node: RaftNode, config: QuorumConfig) -> VoterState:
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


def _other(node: RaftNode, other: VoterNode) -> VoterState:
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
