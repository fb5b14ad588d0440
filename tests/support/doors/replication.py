"""Doors into `broker.replication`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.log.retention import DoubtedTimes
    from broker.replication.follower_stream import LeaderLink
    from broker.replication.leader_stream import EarlyOpens, PushSession
    from broker.replication.log_start_manager import LogTrimming
    from broker.replication.replica_manager import ReplicaManager
    from raft_metadata.common.ids import BrokerId


def doubted_times_of(trimming: LogTrimming) -> DoubtedTimes:
    """Return the ages that retention keeps of segments whose append times it doubts."""
    return trimming._doubted


async def _at_once(*_: object) -> bool:
    return True


def skip_waits_for_durability(trimming: LogTrimming) -> None:
    """Let retention go on at once: a simulated world syncs in turns of its own."""
    trimming._durable = _at_once  # type: ignore[method-assign, assignment]


def leader_link_of(manager: ReplicaManager, leader: BrokerId) -> LeaderLink:
    """Return the link to a leader: tests without a network give it a stream."""
    return manager._links[leader]


def early_opens_of(manager: ReplicaManager) -> EarlyOpens:
    """Return the requests for sessions that wait for an image: nothing answers them meanwhile."""
    return manager._early


def pending_batches(session: PushSession) -> int:
    """Return how many batches a session holds in memory: those read from the log are not."""
    return len(session._pending or ())
