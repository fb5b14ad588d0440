"""Drains: an operator has a broker give up its leaderships, or its replicas as well.

Leaderships leave without this module: ``partition_change.heal`` moves them where another in-sync
replica can lead, and elections choose a drained broker only if there is no other. Replicas leave by
reassignments that the controller starts in the background, a bounded number at a time. A drain that
is ended starts no more of them; those in progress are completed: they are few, harmless, and an
operator can cancel each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, islice

from raft_metadata.common.ids import BrokerId, TopicIdPartition
from raft_metadata.controller.broker_views import Brokers
from raft_metadata.controller.partition_draft import partition_at
from raft_metadata.controller.reassignment_control import reassign
from raft_metadata.controller.topic_rules import TopicDefaults, TopicRules
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, find_broker
from raft_metadata.records.commands import AlterAnswer, DrainBroker
from raft_metadata.records.records import (
    BrokerDrainRecord,
    BrokerState,
    DrainScope,
    PartitionChangeRecord,
)

EXAMINED_MAX = 500
"""Partitions examined per round; those without a possible target go to the end of the queue."""
PAUSE_MS = 500
"""Pause after a round that found nothing to start."""


def decide_drain_broker(
    image: MetadataImage, command: DrainBroker
) -> tuple[tuple[BrokerDrainRecord, ...], AlterAnswer]:
    """Record the drain scope of a broker; an unchanged scope adds no record."""
    broker = find_broker(image, command.broker_id)
    if broker.drain is command.scope:
        return (), AlterAnswer(next_offset=image.next_offset)
    record = BrokerDrainRecord(broker_id=command.broker_id, scope=command.scope)
    return (record,), AlterAnswer(next_offset=image.offset_after(1))


def drained_target(
    brokers: Brokers, replicas: tuple[BrokerId, ...], loads: Counter[BrokerId]
) -> tuple[BrokerId, ...]:
    """Return the replicas of a partition with those on brokers drained of replicas moved elsewhere.

    Each moves to a live broker that is not drained: in the rack with the fewest replicas of this
    partition, and there to the broker with the fewest replicas in all. A replica that no broker can
    take stays. ``loads`` holds the number of replicas of each broker.
    """
    target = list(replicas)
    free = {
        broker_id: broker.rack
        for broker_id, broker in brokers.items()
        if broker_id not in replicas
        and broker.state is BrokerState.UNFENCED
        and broker.drain is DrainScope.NONE
    }
    for index, replica in enumerate(replicas):
        broker = brokers.get(replica)
        if broker is None or broker.drain is not DrainScope.REPLICAS or not free:
            continue
        racks = Counter(
            brokers[each].rack for each in target if each in brokers and each != replica
        )
        taker = min(free, key=lambda each: (racks[free[each]], loads[each], each))
        target[index] = taker
        del free[taker]
    return tuple(target)


@dataclass(slots=True)
class DrainMoves:
    """The partitions that still have to leave drained brokers: soft state of an active controller.

    Updated with every change while a broker is being drained of replicas; costs nothing otherwise.
    """

    under_way_max: int
    """Partitions under reassignment at once because of drains; they share disks and network with
    clients' writes."""
    _emptied: frozenset[BrokerId] = frozenset()
    _waiting: dict[TopicIdPartition, None] = field(default_factory=dict)
    _moving: set[TopicIdPartition] = field(default_factory=set)
    _loads: Counter[BrokerId] = field(default_factory=Counter)
    _paused_until_ms: int = 0

    def begin(self, image: MetadataImage) -> None:
        """Rebuild the state from any image."""
        self._emptied = _emptied(image.brokers)
        self._waiting.clear()
        self._moving.clear()
        self._loads.clear()
        self._paused_until_ms = 0
        if self._emptied:
            for topic_id, topic in image.topics.items():
                replicas = (partition.replicas for partition in topic.partitions)
                self._loads.update(chain.from_iterable(replicas))
                for index, partition in enumerate(topic.partitions):
                    if not self._emptied.isdisjoint(partition.replicas):
                        self._sort(partition_at(topic_id, index), partition)

    def note(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Update the state by a delta."""
        if delta.changed_brokers or delta.removed_brokers:
            self._paused_until_ms = 0
            if _emptied(image.brokers) != self._emptied:
                self.begin(image)
                return
        if not self._emptied:
            return
        for topic in delta.deleted_topics.values():
            self._load(topic.partitions, -1)
        for topic_id, changed in delta.changed_topics.items():
            for index, old, new in changed.changes(delta.image):
                if old is None:
                    self._load((new,), 1)
                elif old.replicas != new.replicas:
                    self._load((old,), -1)
                    self._load((new,), 1)
                self._sort(partition_at(topic_id, index), new)

    def _load(self, partitions: Iterable[PartitionRegistration], count: int) -> None:
        """Add ``count`` to the load of every replica's broker."""
        for partition in partitions:
            for replica in partition.replicas:
                self._loads[replica] += count

    def _sort(self, where: TopicIdPartition, partition: PartitionRegistration) -> None:
        """File a partition as moving, waiting to move, or neither."""
        held = not self._emptied.isdisjoint(partition.replicas)
        if held and partition.is_reassigning:
            self._moving.add(where)
            self._waiting.pop(where, None)
            return
        if where in self._moving:
            self._moving.remove(where)
            self._paused_until_ms = 0
        if held:
            self._waiting[where] = None
        else:
            self._waiting.pop(where, None)

    # ---- decision

    def moves(
        self, image: MetadataImage, now_ms: int, defaults: TopicDefaults
    ) -> tuple[PartitionChangeRecord, ...]:
        """Return the next reassignments within the limit; none while it pauses."""
        room = self.under_way_max - len(self._moving)
        if not self._waiting or now_ms < self._paused_until_ms or room <= 0:
            self._moving = {where for where in self._moving if image.partition(*where)}
            return ()
        loads = self._loads.copy()
        records: list[PartitionChangeRecord] = []
        for where in tuple(islice(self._waiting, EXAMINED_MAX)):
            if len(records) == room:
                break
            del self._waiting[where]
            partition = image.partition(*where)
            if partition is None:
                continue
            self._waiting[where] = None  # to the end, until an image shows its reassignment
            record = _move(image, where, partition, loads, defaults)
            if record is not None:
                records.append(record)
                loads.update(record.adding)
        if not records:
            self._paused_until_ms = now_ms + PAUSE_MS
        return tuple(records)


def _emptied(brokers: Brokers) -> frozenset[BrokerId]:
    """Return the brokers that are being drained of their replicas."""
    return frozenset(
        broker_id for broker_id, broker in brokers.items() if broker.drain is DrainScope.REPLICAS
    )


def _move(
    image: MetadataImage,
    where: TopicIdPartition,
    partition: PartitionRegistration,
    loads: Counter[BrokerId],
    defaults: TopicDefaults,
) -> PartitionChangeRecord | None:
    """Return the reassignment of one partition off drained brokers, or None."""
    topic = image.topics[where.topic_id]
    target = drained_target(image.brokers, partition.replicas, loads)
    if target == partition.replicas or not topic.is_complete:
        return None
    name = f"{topic.name}-{where.partition}"
    rules = TopicRules(image, topic, defaults)
    return reassign(image, where, name, partition, target, rules)
