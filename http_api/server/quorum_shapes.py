"""JSON shape of the quorum in the v3 API, with fields as in KIP-595. Pure.

It is made of the controllers' own states, so that it belongs to the server: the contract, which
clients share, knows no metadata records. `ClusterMetadataRoutes` fills it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from http_api.contract.v3 import JsonObject, Links
    from raft_metadata.records.quorum_view import ControllerState, ObserverState, VoterState


def quorum(
    links: Links,
    told_by: ControllerState,
    *,
    is_from_leader: bool,
    urls: Mapping[int, str],
    answers: Mapping[int, ControllerState | None],
) -> JsonObject:
    """Return the quorum as seen by ``told_by``. An index counts Raft entries, an offset records.

    ``answers`` maps each controller to its own state, or None if it does not answer. ``urls`` maps
    it to its URL. ``is_from_leader`` is True if ``told_by`` is the active controller.
    """
    return links.resource("KafkaQuorum", "quorum", "quorum") | {
        "leader_id": told_by.node_id if is_from_leader else told_by.leader_id,
        "leader_epoch": told_by.term,
        "high_watermark": told_by.next_offset,
        "commit_index": told_by.commit_index,
        "log_end_index": told_by.last_index,
        "feature_level": told_by.feature_level,
        "told_by": told_by.node_id,
        "is_from_leader": is_from_leader,
        "voters": [
            {
                **_voter(told_by, voter, urls.get(voter.voter_id)),
                **_own_state(answers.get(voter.voter_id)),
            }
            for voter in told_by.voters
        ],
        "observers": [_observer(told_by, observer) for observer in told_by.observers],
    }


def _voter(told_by: ControllerState, voter: VoterState, url: str | None) -> JsonObject:
    return {
        "voter_id": voter.voter_id,
        "directory_id": voter.directory_id,
        "url": url,
        "is_leader": voter.voter_id == (told_by.node_id if told_by.is_leader else None),
        "is_connected": voter.is_connected,
        "log_end_index": voter.match_index,
        "lag": voter.lag,
        "feature_level_max": voter.feature_level_max,
        **_times(told_by, voter.contact_age_ms, voter.caught_up_age_ms),
    }


def _own_state(answer: ControllerState | None) -> JsonObject:
    """Return a voter's own state; its fence is set while it rejoins after losing its disk."""
    return {"is_reachable": answer is not None, "fence": None if answer is None else answer.fence}


def _observer(told_by: ControllerState, observer: ObserverState) -> JsonObject:
    return {
        "broker_id": observer.broker_id,
        "broker_epoch": observer.broker_epoch,
        "state": observer.state,
        "log_end_offset": observer.metadata_offset,
        "lag": observer.lag,
        **_times(told_by, observer.contact_age_ms, observer.caught_up_age_ms),
    }


def _times(told_by: ControllerState, contact: int | None, caught_up: int | None) -> JsonObject:
    """Return Kafka's two timestamps, and the ages they come from, which need no common clock."""
    return {
        "last_fetch_timestamp": None if contact is None else told_by.wall_ms - contact,
        "last_caught_up_timestamp": None if caught_up is None else told_by.wall_ms - caught_up,
        "contact_age_ms": contact,
        "caught_up_age_ms": caught_up,
    }
