"""Leadership goes back to preferred leaders that returned: in the background, and not all at once.

A broker that was away leads nothing when it is back, and the others lead its share. With every
check a bounded number of leaderships goes back to brokers that have been there for a while.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from raft_metadata.common.configs.table import (
    AUTO_LEADER_REBALANCE_ENABLE,
    LEADER_IMBALANCE_CHECK_INTERVAL_MS,
)
from raft_metadata.common.ids import BrokerId, TopicId, TopicIdPartition
from raft_metadata.controller.broker_views import (
    NOTHING_FAILED,
    Failed,
    is_drained,
    is_electable,
)
from raft_metadata.controller.election_control import preferred_leader_record
from raft_metadata.controller.partition_draft import at
from raft_metadata.controller.topic_defaults import TopicDefaults, cluster_flag, cluster_number
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration
from raft_metadata.records.records import BrokerState, PartitionChangeRecord

LOOKED_AT_MAX = 10_000
"""Partitions per check: those behind are looked at with the next one."""


@dataclass(slots=True)
class LeaderBalance:
    """Soft state of an active controller: who leads in whose place. Times are judge time, ms.

    Kept up with every change, so that a check looks at nothing but what is out of place.
    """

    returned_ms: int
    """A broker is given leaderships only once it has been unfenced for this long: one that
    crashes again and again shall not take partitions with it each time."""
    moves_max: int
    """Per check: leaders that all move at once cost every client a turn."""
    _away: dict[BrokerId, dict[TopicIdPartition, None]] = field(default_factory=dict)
    """By preferred leader: the partitions that somebody else leads."""
    _unfenced_ms: dict[BrokerId, int] = field(default_factory=dict)
    _checked_ms: int = 0

    def begin(self, image: MetadataImage, now_ms: int) -> None:
        """From a committed image; who was unfenced before counts as just returned."""
        self._away.clear()
        self._checked_ms = now_ms
        self._unfenced_ms = dict.fromkeys(image.brokers, now_ms)
        for topic_id, topic in image.topics.items():
            for index, partition in enumerate(topic.partitions):
                if partition.leader != partition.target[0]:
                    self._put(at(topic_id, index), partition)

    def note(self, delta: MetadataDelta, image: MetadataImage, now_ms: int) -> None:
        """What changed. Partitions that are gone are dropped when they are looked at."""
        for broker_id, broker in delta.changed_brokers.items():
            before = delta.image.brokers.get(broker_id)
            was = None if before is None else before.state
            if broker.state is BrokerState.UNFENCED and was is not BrokerState.UNFENCED:
                self._unfenced_ms[broker_id] = now_ms
        for topic_id, topic in delta.changed_topics.items():
            self._note_topic(delta.image, topic_id, topic.partitions, topic.changed)

    def _note_topic(
        self,
        before: MetadataImage,
        topic_id: TopicId,
        partitions: list[PartitionRegistration],
        changed: Iterable[int],
    ) -> None:
        old = before.topics.get(topic_id)
        known = () if old is None else old.partitions
        for index in changed:
            partition = partitions[index]
            if index < len(known) and self._away:
                preferred = known[index].target[0]
                self._away.get(preferred, {}).pop(at(topic_id, index), None)
            if partition.leader != partition.target[0]:
                self._put(at(topic_id, index), partition)

    def _put(self, where: TopicIdPartition, partition: PartitionRegistration) -> None:
        self._away.setdefault(partition.target[0], {})[where] = None

    # ---- decision

    def moves(
        self,
        image: MetadataImage,
        now_ms: int,
        defaults: TopicDefaults,
        failed: Failed = NOTHING_FAILED,
    ) -> tuple[PartitionChangeRecord, ...]:
        """The leaderships that go back now; nothing before the next check is due.

        Only to brokers that are alive, in sync, not drained, and returned long enough ago; never
        of a partition that is being reassigned, or has a damaged replica (``failed``).
        """
        interval_ms = cluster_number(image, LEADER_IMBALANCE_CHECK_INTERVAL_MS)
        if not self._away or now_ms - self._checked_ms < interval_ms:
            return ()
        self._checked_ms = now_ms
        if not cluster_flag(image, AUTO_LEADER_REBALANCE_ENABLE):
            return ()
        records: list[PartitionChangeRecord] = []
        for broker_id, away in self._away.items():
            may_lead = is_electable(image.brokers, broker_id)
            may_lead = may_lead and not is_drained(image.brokers, broker_id)
            stays_ms = now_ms - self._unfenced_ms.get(broker_id, now_ms)
            if may_lead and stays_ms >= self.returned_ms:
                self._look_through(image, away, records, defaults, failed)
        return tuple(records)

    def _look_through(
        self,
        image: MetadataImage,
        away: dict[TopicIdPartition, None],
        records: list[PartitionChangeRecord],
        defaults: TopicDefaults,
        failed: Failed,
    ) -> None:
        for where in tuple(away)[:LOOKED_AT_MAX]:
            if len(records) >= self.moves_max:
                return
            partition = image.partition(*where)
            del away[where]
            if partition is None:
                continue
            away[where] = None  # behind the others, until an image shows it back
            if partition.has_leader and not partition.is_reassigning and where not in failed:
                topic = image.topics[where.topic_id]
                record = preferred_leader_record(image, topic, where.partition, partition, defaults)
                if record is not None:
                    records.append(record)
