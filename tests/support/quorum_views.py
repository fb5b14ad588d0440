"""States of controllers as tests want to see them: controller 102 leads 101 in epoch 3."""

from __future__ import annotations

from dataclasses import replace

from broker.server.metadata_requests import QuorumView
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ControllerEpoch,
    DirectoryId,
    MetadataOffset,
    NodeId,
)
from raft_metadata.records.quorum_view import ControllerState, ObserverState, VoterState
from tests.support.fake_broker_apis import CLUSTER_ID, NOW_MS


def voter(number: int, **changes: int | bool | None) -> VoterState:
    """One that is caught up."""
    said = VoterState(
        voter_id=NodeId(number),
        directory_id=DirectoryId(f"{number:d>22}"),
        is_connected=True,
        match_index=70,
        lag=0,
        contact_age_ms=40,
        caught_up_age_ms=100,
        feature_level_max=2,
    )
    return replace(said, **changes)  # type: ignore[arg-type] # a test's shorthand


def controller_state(**changes: object) -> ControllerState:
    """Of the active controller."""
    said = ControllerState(
        node_id=NodeId(102),
        cluster_id=CLUSTER_ID,
        directory_id=DirectoryId(f"{102:d>22}"),
        monotonic_ms=5_000,
        wall_ms=NOW_MS,
        role="leader",
        is_leader=True,
        is_active=True,
        leader_id=NodeId(102),
        leader_contact_age_ms=0,
        term=3,
        vote=NodeId(102),
        fence="none",
        first_index=1,
        snapshot_index=0,
        commit_index=69,
        applied_index=69,
        last_index=70,
        durable_index=70,
        next_offset=MetadataOffset(42),
        controller_epoch=ControllerEpoch(3),
        feature_level=2,
        feature_level_max=2,
        voters=(voter(101, lag=5, match_index=65), voter(102, contact_age_ms=0)),
        observers=(
            ObserverState(
                broker_id=BrokerId(1),
                broker_epoch=BrokerEpoch(9),
                state="unfenced",
                metadata_offset=MetadataOffset(40),
                lag=2,
                contact_age_ms=120,
                caught_up_age_ms=None,
            ),
        ),
        state_hash=None,
    )
    return replace(said, **changes)  # type: ignore[arg-type] # a test's shorthand


def quorum_view(*, all_reachable: bool = False, **changes: object) -> QuorumView:
    """As a broker sees it; controller 101 does not answer unless all do."""
    told_by = controller_state(**changes)
    other = controller_state(node_id=NodeId(101), is_active=False, is_leader=False)
    return QuorumView(
        told_by=told_by,
        is_from_leader=bool(changes.get("is_active", True)),
        urls={NodeId(101): "http://127.0.0.1:10082", NodeId(102): "http://127.0.0.1:10083"},
        controllers={NodeId(101): other if all_reachable else None, NodeId(102): told_by},
    )
