"""What every change of the replayed metadata is judged by: brokers, topics, partitions (P, B, C).

The half of a `metadata_witness` that looks at images alone, and at what clients asked for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from typing import TYPE_CHECKING, Any

from raft_metadata.common.ids import BrokerId, PartitionId, TopicId, TopicIdPartition
from raft_metadata.controller.topic_control import live_brokers
from raft_metadata.controller.topic_rules import TopicRules
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.records import (
    BrokerState,
)
from tests.support import metadata_invariants as invariant

if TYPE_CHECKING:
    from tests.support.metadata_sim import MetadataSim

UNCLEAN_CONFIG = "unclean.leader.election.enable"


class ImagesWitness:
    """Sees the committed log folded, batch by batch."""

    def __init__(self, world: MetadataSim) -> None:
        self.world = world
        self.tally: invariant.Tally = Counter()
        self.counts: Counter[str] = Counter()
        """What happened, for the floor under the whole run."""
        self.epochs: list[tuple[int, int]] = []
        """(base offset, epoch) of each batch."""
        self.history: dict[
            tuple[TopicIdPartition, int],
            tuple[MetadataImage, PartitionRegistration, PartitionRegistration],
        ] = {}
        self.registered: dict[int, str] = {}
        """Broker epoch → incarnation."""
        self.created_at: dict[TopicId, list[int]] = {}
        self.topics_ever: dict[TopicId, str] = {}
        self.broker_epochs: dict[BrokerId, int] = {}
        self.partition_leaders: dict[Any, BrokerId] = {}
        self.full: dict[TopicIdPartition, tuple[int, set[BrokerId], set[BrokerId]]] = {}
        """Partitions whose ISR was full once: the min ISR then, who lost data since, and who of
        them with the whole disk."""
        self.before_moves: dict[TopicIdPartition, tuple[BrokerId, ...]] = {}
        """Replicas before the reassignment under way."""
        self.reported_unclean: dict[BrokerId, set[TopicIdPartition]] = {}
        self.debts: dict[BrokerId, set[TopicIdPartition]] = {}
        """What a registration not yet settled says is lost."""
        # clients
        self.asked: dict[TopicId, tuple[int, bool, int]] = {}
        """Replication factor of each creation, whether the controller places it, and partitions."""
        self.unclean_asked: set[TopicId] = set()
        """Topics where somebody wanted a leader rather than every record."""
        self.followed: dict[str, int] = {}
        """Incarnation → metadata offset it has applied."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        before = delta.image
        for broker_id, broker in delta.changed_brokers.items():
            self._broker_changed(before, before.brokers.get(broker_id), broker, image)
        for topic_id in delta.created_topics:
            topic = image.topics[topic_id]
            invariant.c12_topic_ids_are_never_used_again(self.tally, topic, self.topics_ever, image)
            self.created_at.setdefault(topic_id, []).append(before.next_offset)
        for topic_id in delta.changed_topics:
            self._topic_changed(before, image, image.topics[topic_id])
        if delta.changed_configs:
            self._configs_changed(image)

    def _configs_changed(self, image: MetadataImage) -> None:
        """Of a partition that never reached its new min ISR nothing is promised yet."""
        for where in list(self.full):
            partition = image.partition(where.topic_id, where.partition)
            if partition is None:
                del self.full[where]

    def _broker_changed(
        self,
        image: MetadataImage,
        old: BrokerRegistration | None,
        new: BrokerRegistration,
        after: MetadataImage,
    ) -> None:
        t, broker_id = self.tally, new.broker_id
        if old is None or old.broker_epoch != new.broker_epoch:
            invariant.c1_broker_epochs_grow_and_are_unique(t, image, new, self.broker_epochs)
            self.broker_epochs[broker_id] = new.broker_epoch
            self.registered[new.broker_epoch] = new.incarnation_id
            self.debts[broker_id] = self._lost_by(after, new)
            moved = self._moved_by(after, new)
            self.reported_unclean[broker_id] = self.debts[broker_id] - moved
            return
        if new.state is BrokerState.UNFENCED and old.state is not new.state:
            offset = self.followed.get(new.incarnation_id, 0)
            invariant.c4_unfenced_has_seen_its_registration(t, new, offset)
        if new.settled and not old.settled:
            for where in sorted(self.debts.pop(broker_id, ())):
                partition = after.partition(where.topic_id, where.partition)
                if partition is not None:
                    invariant.p10_unclean_replica_is_not_eligible(t, where, broker_id, partition)

    def _lost_by(self, image: MetadataImage, broker: BrokerRegistration) -> set[TopicIdPartition]:
        return {*broker.unclean_partitions, *self._moved_by(image, broker)}

    def _moved_by(self, image: MetadataImage, broker: BrokerRegistration) -> set[TopicIdPartition]:
        """Partitions whose replica here was on another disk."""
        lost: set[TopicIdPartition] = set()
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if broker.broker_id in partition.replicas:
                    at = partition.replicas.index(broker.broker_id)
                    if partition.directories[at] != broker.directory_id:
                        lost.add(TopicIdPartition(topic.topic_id, PartitionId(index)))
        return lost

    def _topic_changed(
        self, before: MetadataImage, after: MetadataImage, topic: TopicImage
    ) -> None:
        old = before.topics.get(topic.topic_id)
        known = () if old is None else old.partitions
        invariant.c13_partitions_never_go(self.tally, old, topic)
        rules = TopicRules(after, topic, self.world.defaults)
        for index, partition in enumerate(topic.partitions):
            was = known[index] if index < len(known) else None
            if was is partition:
                continue
            where = TopicIdPartition(topic.topic_id, PartitionId(index))
            if was is None:
                self._partition_created(before, where, topic, partition)
            else:
                self._partition_changed(before, after, where, was, partition)
            self._partition_is(after, where, was, partition, rules)

    def _partition_created(
        self,
        before: MetadataImage,
        where: TopicIdPartition,
        topic: TopicImage,
        new: PartitionRegistration,
    ) -> None:
        factor, placed, count = self.asked.get(where.topic_id, (None, False, 0))
        if factor is not None and where.partition >= count:  # added since
            factor, placed = topic.replication_factor, False
        racks = live_brokers(before, factor) if placed else None
        invariant.c13_assignment_is_as_asked(self.tally, new, factor, racks)

    def _partition_is(
        self,
        image: MetadataImage,
        where: TopicIdPartition,
        old: PartitionRegistration | None,
        new: PartitionRegistration,
        rules: TopicRules,
    ) -> None:
        t, min_isr = self.tally, rules.min_isr(new.replication_factor)
        invariant.p1_leader_is_in_the_isr(t, new)
        invariant.p2_isr_and_elr_are_proper(t, new, min_isr)
        invariant.c3_fenced_gains_nothing(t, image, old, new)
        invariant.p14_one_leader_per_leader_epoch(t, self.partition_leaders, where, new)
        self._check_eligible(where, old, new, min_isr)

    def _partition_changed(
        self,
        before: MetadataImage,
        after: MetadataImage,
        where: TopicIdPartition,
        old: PartitionRegistration,
        new: PartitionRegistration,
    ) -> None:
        t = self.tally
        self.history[where, new.partition_epoch] = (before, old, new)
        invariant.p4_epochs_count_changes(t, where, old, new)
        if new.leader_epoch != old.leader_epoch and new.has_leader:
            unclean = new.unclean_epoch == new.leader_epoch
            is_allowed = self._is_unclean_allowed(where, before, after)
            invariant.p5_elected_from_isr_or_elr(
                t, where, old, new, unclean_allowed=unclean and is_allowed
            )
            self.counts["unclean elections"] += unclean
            if self._went_freely(after, old, new):
                invariant.p9_preferred_is_taken_from_the_isr(t, where, old, new)
        moves = (old.replicas, old.adding, old.removing)
        if moves != (new.replicas, new.adding, new.removing):
            self._reassigned(after, where, old, new)

    def _is_unclean_allowed(self, where: TopicIdPartition, *images: MetadataImage) -> bool:
        """Return True if an operator asked for it, or the log holds the config that allows it.

        A request names its topic: the config may come to a new topic of the name that the operator
        knew under another id.
        """
        return where.topic_id in self.unclean_asked or any(
            image.topic_configs(where.topic_id).get(UNCLEAN_CONFIG) == "true" for image in images
        )

    def _reassigned(
        self,
        image: MetadataImage,
        where: TopicIdPartition,
        old: PartitionRegistration,
        new: PartitionRegistration,
    ) -> None:
        topic = image.topics[where.topic_id]
        rules = TopicRules(image, topic, self.world.defaults)
        if not old.is_reassigning:
            self.before_moves[where] = old.replicas
        invariant.p8_reassignment_is_safe(
            self.tally,
            where,
            old,
            new,
            rules.min_isr(new.replication_factor),
            self.before_moves[where],
        )
        for broker in self.world.brokers:
            process, known = broker.process, image.brokers.get(broker.broker_id)
            if (
                broker.broker_id in set(old.isr) - set(new.replicas)
                and process is not None
                and known is not None
                and (process.epoch, known.state) == (known.broker_epoch, BrokerState.UNFENCED)
            ):
                invariant.p8_who_goes_knows_who_leads(where, old, new, process.image.next_offset)
        done = old.is_reassigning and not new.is_reassigning
        self.counts["reassignments ended" if done else "reassignments"] += 1

    def _went_freely(
        self, image: MetadataImage, old: PartitionRegistration, new: PartitionRegistration
    ) -> bool:
        leader = image.brokers.get(old.leader)
        return (
            leader is not None
            and leader.state is BrokerState.UNFENCED
            and old.leader in new.isr
            and old.leader_epoch_offset > leader.broker_epoch
        )

    def _check_eligible(
        self,
        where: TopicIdPartition,
        old: PartitionRegistration | None,
        new: PartitionRegistration,
        min_isr: int,
    ) -> None:
        """Invariants P3, P11: who held what was acknowledged is forgotten only if it is lost."""
        if len(new.isr) >= min_isr:
            self.full[where] = (min_isr, set(), set())
            return
        if new.has_leader and new.unclean_epoch == new.leader_epoch:
            self.full.pop(where, None)  # a new history begins
            return
        if old is None or where not in self.full:
            return
        promised, lost, moved = self.full[where]
        gone = {*old.isr, *old.elr} - {*new.isr, *new.elr}
        lost |= {replica for replica in gone if where in self.debts.get(replica, ())}
        moved |= {
            replica for replica in lost if where not in self.reported_unclean.get(replica, ())
        }
        least = min(promised, min_isr)
        invariant.p3_enough_replicas_stay_eligible(self.tally, where, new, least, lost)
        if not new.isr and not new.elr:
            invariant.p11_last_known_are_remembered(self.tally, where, new, least, moved)

    def epoch_of(self, offset: int) -> int:
        """Controller epoch of the record at an offset."""
        return self.epochs[bisect_right(self.epochs, (offset, 1 << 60)) - 1][1]

    # ---- what clients are told
