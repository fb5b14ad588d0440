"""Doors into `raft_metadata.controller`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Set

    from raft_metadata.common.ids import BrokerId, TopicIdPartition
    from raft_metadata.controller.broker_sessions import HeartbeatTracker
    from raft_metadata.controller.controller import Controller


def hurry_leader_balance(core: Controller, *, returned_ms: int, by_ms: int) -> None:
    """Let leaderships move soon: a machine of rules would need a minute of heartbeats for that."""
    core._balance.returned_ms = returned_ms
    core._balance._checked_ms -= by_ms


def partitions_being_drained(core: Controller) -> Set[TopicIdPartition]:
    """Return the partitions that count as under way: those of deleted topics must not."""
    return core._drains._moving


def replicas_counted(core: Controller) -> Mapping[BrokerId, int]:
    """Return how many replicas each broker has by the drains' own count, kept over changes."""
    return core._drains._loads


def session_text(sessions: HeartbeatTracker, broker: BrokerId) -> str:
    """Return all that is known of a broker's session, to see that nothing of it has changed."""
    return repr(sessions._sessions.get(broker))
