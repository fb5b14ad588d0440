"""Doors into `broker.server`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.server.forwarded_produce import ForwardedProduces, LeaderQueue
    from broker.server.lifecycle import Lifecycle
    from broker.server.stage_leader import StageLeader
    from broker.transactions.stage_index import StageIndex
    from raft_metadata.common.ids import BrokerEpoch
    from raft_metadata.records.commands import HeartbeatAnswer


async def register(lifecycle: Lifecycle) -> BrokerEpoch:
    """Register a broker once: `Lifecycle.run` goes on with heartbeats."""
    return await lifecycle._register()


async def heartbeat_in(lifecycle: Lifecycle, epoch: BrokerEpoch) -> None:
    """Send heartbeats of a registration that the test has made up."""
    await lifecycle._heartbeat_while_registered(epoch)


def proves(lifecycle: Lifecycle, answer: HeartbeatAnswer) -> bool:
    """Return whether an answer proves that the broker was not replaced (rule G3)."""
    return lifecycle._proves(answer)


def queues_of(forwards: ForwardedProduces) -> Iterable[LeaderQueue]:
    """Return the queues to leaders: tests look at their timers and wear out their producer ids."""
    return forwards._queues.values()


def index_of(stage: StageLeader) -> StageIndex:
    """Return the index of a stage: tests look whether anything is left in it."""
    return stage._index
