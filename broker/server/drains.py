"""Drains of brokers: how much is left, why it waits, and which drain does not move. Pure.

`BrokerServer` shows each image to a `DrainWatch`; `MetadataRequests` asks it for the drains that
are stuck when it judges the cluster's health. `waiting_reason` is shown with a broker's progress,
too. A drain is stuck if something is left on its broker, nothing of that is being moved, and
neither has changed for `STUCK_AFTER_MS`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raft_metadata.records.records import BrokerState, DrainScope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raft_metadata.common.ids import BrokerId
    from raft_metadata.image.metadata_image import (
        BrokerRegistration,
        MetadataImage,
        PartitionRegistration,
    )

STUCK_AFTER_MS: Final = 10_000
"""Time without a change after which a drain counts as stuck; an election takes far less."""
REASONS_MAX: Final = 3
"""Most reasons in the message about one drain."""


_LIVE = frozenset({BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN})


@dataclass(frozen=True, slots=True, kw_only=True)
class StuckDrain:
    """A drain that does not move: the partitions left, and why, with the number of each reason."""

    broker_id: BrokerId
    scope: DrainScope
    left: int
    reasons: tuple[tuple[str, int], ...]
    """(reason, number of partitions), the most frequent first."""


@dataclass(frozen=True, slots=True)
class _Standing:
    """The rest of a drain, and the time since which it has not changed."""

    scope: DrainScope
    left: int
    moving: int
    since_ms: int


class DrainWatch:
    """Memory of how far each drain was, so that one without progress is noticed.

    Owned by `BrokerServer`, on its loop. Costs nothing while no broker is drained.
    """

    def __init__(self) -> None:
        self._standings: dict[BrokerId, _Standing] = {}
        self._seen: tuple[object, object] = (None, None)

    def observe(self, image: MetadataImage, now_ms: int) -> None:
        """Compare an image with the ones before; called for each image, in order."""
        drained = [one for one in image.brokers.values() if one.drain is not DrainScope.NONE]
        if not drained:
            self._standings.clear()
            return
        seen = {one.broker_id for one in drained}
        for gone in self._standings.keys() - seen:
            del self._standings[gone]
        topics, brokers = self._seen
        if image.topics is topics and image.brokers is brokers:
            return
        self._seen = image.topics, image.brokers
        live = {one.broker_id for one in image.brokers.values() if one.state in _LIVE}
        for broker in drained:
            left = list(_left(image, broker))
            moving = sum(one.is_reassigning and live.issuperset(one.adding) for one in left)
            before = self._standings.get(broker.broker_id)
            standing = _Standing(broker.drain, len(left), moving, now_ms)
            if before is None or (before.scope, before.left, before.moving) != (
                standing.scope,
                standing.left,
                standing.moving,
            ):
                self._standings[broker.broker_id] = standing

    def stuck(self, image: MetadataImage, now_ms: int) -> list[StuckDrain]:
        """Return the drains that do not move, sorted by broker."""
        found = []
        for broker_id, standing in sorted(self._standings.items()):
            broker = image.brokers.get(broker_id)
            late = now_ms - standing.since_ms >= STUCK_AFTER_MS
            if broker is None or not late or not standing.left or standing.moving:
                continue
            reasons = Counter(waiting_reason(image, one, broker) for one in _left(image, broker))
            found.append(
                StuckDrain(
                    broker_id=broker_id,
                    scope=standing.scope,
                    left=standing.left,
                    reasons=tuple(reasons.most_common(REASONS_MAX)),
                )
            )
        return found


def _left(image: MetadataImage, broker: BrokerRegistration) -> Iterator[PartitionRegistration]:
    """Yield the partitions that a drain still has to move off its broker."""
    mine = broker.broker_id
    for topic in image.topics.values():
        for partition in topic.partitions:
            if partition.leader == mine or (
                broker.drain is DrainScope.REPLICAS and mine in partition.replicas
            ):
                yield partition


def waiting_reason(
    image: MetadataImage, partition: PartitionRegistration, broker: BrokerRegistration
) -> str:
    """Return why a partition has not left a drained broker yet."""
    mine = broker.broker_id
    others = {
        one.broker_id: one
        for one in image.brokers.values()
        if one.broker_id != mine and one.state is BrokerState.UNFENCED
    }
    if broker.drain is DrainScope.LEADERS:
        in_sync = [replica for replica in partition.isr if replica in others]
        if in_sync:
            return f"brokers {in_sync} are in sync: one of them is about to be elected"
        return "no other replica is alive and in sync"
    coming = [replica for replica in partition.adding if replica not in partition.isr]
    if coming:
        return f"waits until brokers {coming} are in sync"
    if mine in partition.removing:
        return "its new replicas are in sync: it is about to be removed"
    free = sorted(
        one.broker_id
        for one in others.values()
        if one.broker_id not in partition.replicas and one.drain is DrainScope.NONE
    )
    if not free:
        return "no other live broker is free to hold it"
    return f"waits for its turn to move to one of brokers {free}"
