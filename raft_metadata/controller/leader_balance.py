"""Background return of leaderships to preferred leaders that are back, a bounded number at a time.

A broker that was away leads nothing when it returns, and the others lead its share. Each check
moves a bounded number of leaderships to brokers that have been unfenced for a while.
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
"""Partitions examined per broker and check; the others wait for the next check."""


@dataclass(slots=True)
class LeaderBalance:
    """Partitions not led by their preferred leader: soft state of an active controller.

    Times are judge time in ms. Updated with every change, so that a check examines only these.
    """

    returned_ms: int
    """A broker gets leaderships only once it has been unfenced for this long, so that one that
    crashes repeatedly does not take partitions offline each time."""
    moves_max: int
    """Leaderships moved per check; more at once would make every client refresh its metadata."""
    _away: dict[BrokerId, dict[TopicIdPartition, None]] = field(default_factory=dict)
    """By preferred leader: the partitions that it does not lead."""
    _unfenced_ms: dict[BrokerId, int] = field(default_factory=dict)
    _checked_ms: int = 0

    def begin(self, image: MetadataImage, now_ms: int) -> None:
        """Rebuild the state from a committed image; every broker counts as just unfenced."""
        self._away.clear()
        self._checked_ms = now_ms
        self._unfenced_ms = dict.fromkeys(image.brokers, now_ms)
        for topic_id, topic in image.topics.items():
            for index, partition in enumerate(topic.partitions):
                if partition.leader != partition.target[0]:
                    self._put(at(topic_id, index), partition)

    def note(self, delta: MetadataDelta, image: MetadataImage, now_ms: int) -> None:
        """Update the state by a delta. Deleted partitions are dropped when they are examined."""
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
        """Return the leaderships that move now; none before the next check is due.

        Leaderships move only to brokers that are alive, in sync, not drained, and unfenced long
        enough; never of a partition that is being reassigned or has a damaged replica (``failed``).
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
        """Add the possible moves to one broker to ``records``."""
        for where in tuple(away)[:LOOKED_AT_MAX]:
            if len(records) >= self.moves_max:
                return
            partition = image.partition(*where)
            del away[where]
            if partition is None:
                continue
            away[where] = None  # to the end of the queue, until an image shows its return
            if partition.has_leader and not partition.is_reassigning and where not in failed:
                topic = image.topics[where.topic_id]
                record = preferred_leader_record(image, topic, where.partition, partition, defaults)
                if record is not None:
                    records.append(record)
