"""What each image of a controller has to be, and may become, whatever it was told (M4, R3)."""

from __future__ import annotations

from collections.abc import Collection

from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerId,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.controller.topic_control import live_brokers
from raft_metadata.controller.topic_rules import TopicDefaults, TopicRules
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.records import BrokerState, DrainScope


class Invariants:
    """P1 to P5, P8, P11, C1 to C4 over every step; each step is from one image to the next."""

    def __init__(self, defaults: TopicDefaults) -> None:
        self._defaults = defaults
        self._full: dict[TopicIdPartition, int] = {}
        """Partitions whose ISR has reached this min ISR, and lost no disk since (invariant P3)."""
        self.damaged: dict[TopicIdPartition, set[BrokerId]] = {}
        """Who has said that it lost records."""
        self.checked = 0

    def check(self, before: MetadataImage, after: MetadataImage, *, joins: bool = False) -> None:
        """One batch was folded; `joins`: a leader proposed an ISR."""
        self.checked += 1
        for broker_id, broker in after.brokers.items():
            if before.brokers.get(broker_id) != broker:
                self._check_broker(before, before.brokers.get(broker_id), broker)
        for topic in after.topics.values():
            if before.topics.get(topic.topic_id) != topic:
                self._check_topic(before, after, topic, joins=joins)

    def check_settled(
        self,
        image: MetadataImage,
        behind: Collection[BrokerId] = (),
        unreported: Collection[BrokerId] = (),
    ) -> None:
        """Check an image that the controller leaves as it is: every consequence is recorded.

        ``behind``: brokers that apply no metadata; a reassignment may wait for a replica there that
        is to be removed. ``unreported``: brokers without a session at the active controller, or
        that have not reported all their damaged logs to it; their replicas may lack records, so a
        reassignment waits for those that are to stay.
        """
        self.checked += 1
        for broker in image.brokers.values():
            assert broker.settled, f"C14 {broker}"
        live = len(live_brokers(image))
        for topic in image.topics.values():
            assert topic.is_complete or live < len(topic.partitions[0].replicas)
            rules = TopicRules(image, topic, self._defaults)
            for index, partition in enumerate(topic.partitions):
                where = TopicIdPartition(topic.topic_id, PartitionId(index))
                damaged = self.damaged.get(where, set())
                self._check_leadership_at_rest(image, f"{topic.name}-{index}", partition)
                if not {*partition.replicas} & damaged:
                    self._check_reassignment_at_rest(
                        image, f"{topic.name}-{index}", partition, rules, {*behind}, {*unreported}
                    )

    def _check_broker(
        self, image: MetadataImage, before: BrokerRegistration | None, after: BrokerRegistration
    ) -> None:
        if before is None or before.broker_epoch != after.broker_epoch:
            epochs = {broker.broker_epoch for broker in image.brokers.values()}
            assert after.broker_epoch not in epochs, "C1 unique"
            assert after.broker_epoch == image.next_offset, "C1 its own offset"
            assert before is None or before.broker_epoch < after.broker_epoch, "C1 grows"
            assert (after.state, after.settled) == (BrokerState.STARTING, False), "M4"
        elif after.state is BrokerState.UNFENCED:
            assert before.settled, "M4 unfenced before it was settled"
            assert before.state in (BrokerState.STARTING, BrokerState.FENCED, after.state)

    def _check_topic(
        self, before: MetadataImage, after: MetadataImage, topic: TopicImage, *, joins: bool
    ) -> None:
        old = before.topics.get(topic.topic_id)
        known = () if old is None else old.partitions
        assert old is None or old.partitions_count <= topic.partitions_count, "C13"
        assert len(topic.partitions) >= len(known), "C13 partitions never go"
        rules = TopicRules(after, topic, self._defaults)
        for index, partition in enumerate(topic.partitions):
            min_isr = rules.min_isr(partition.replication_factor)
            where = TopicIdPartition(topic.topic_id, PartitionId(index))
            self._check_shape(after, partition, min_isr)
            was = known[index] if index < len(known) else None
            if was is not None and was != partition:
                self._check_change(after, was, partition, f"{topic.name}-{index}")
                self._check_members(after, was, partition, min_isr, joins=joins)
            self._check_eligible(after, where, partition, was, min_isr)

    def _check_shape(
        self, image: MetadataImage, partition: PartitionRegistration, min_isr: int
    ) -> None:
        replicas, isr, elr = set(partition.replicas), set(partition.isr), set(partition.elr)
        assert len(replicas) == len(partition.replicas) == len(partition.directories), "C13"
        assert partition.leader == NO_LEADER or partition.leader in isr, f"P1 {partition}"
        assert len(isr) + len(elr) == len(partition.isr + partition.elr), f"P2 {partition}"
        assert isr | elr <= replicas, f"P2 {partition}"
        assert not isr & elr, f"P2 {partition}"
        assert len(isr) < min_isr or not elr, f"P2 {partition}"
        last = set(partition.last_known_elr)
        assert last <= replicas - isr - elr, f"P11 {partition}"
        assert len(isr) < min_isr or not last, f"P11 {partition}"
        if partition.last_known_leader != NO_LEADER:
            assert partition.last_known_leader in replicas, f"P11 {partition}"
            assert not partition.has_leader, f"P11 {partition}"
        unwanted = set(partition.adding) & set(partition.removing)
        assert not unwanted & set(partition.target), f"P8 {partition}"
        assert {*partition.adding, *partition.removing} <= replicas, f"P8 {partition}"

    def _check_change(
        self,
        image: MetadataImage,
        before: PartitionRegistration,
        after: PartitionRegistration,
        where: str,
    ) -> None:
        assert after.partition_epoch == before.partition_epoch + 1, f"P4 {where}"
        step = after.leader_epoch - before.leader_epoch
        assert step in (0, 1), f"P4 {where}"
        assert step or after.leader == before.leader, f"P4 {where}"
        assert after.leader_epoch_offset >= before.leader_epoch_offset, f"P4 {where}"
        unclean = step == 1 and after.unclean_epoch == after.leader_epoch
        assert unclean or after.unclean_epoch == before.unclean_epoch, f"P5 {where}"
        if step and after.has_leader:
            leader = image.brokers[after.leader]
            at = after.replicas.index(after.leader)
            clean = after.leader in before.isr + before.elr
            assert clean is not unclean, f"P5 {where}"
            assert leader.state is BrokerState.UNFENCED or after.leader == before.leader, (
                f"C3 {where} elected {leader}"
            )
            assert after.leader_epoch_offset > leader.broker_epoch, f"R3 {where}"
            assert after.directories[at] == leader.directory_id, f"R6 {where}"
            if clean:
                was_at = before.replicas.index(after.leader)
                assert before.directories[was_at] == leader.directory_id, f"R6 {where}"
        if unclean:
            assert after.isr == (after.leader,), f"P5 {where}"
            assert after.elr == after.last_known_elr == (), f"P5 {where}"

    def _check_members(
        self,
        image: MetadataImage,
        before: PartitionRegistration,
        after: PartitionRegistration,
        min_isr: int,
        *,
        joins: bool,
    ) -> None:
        """P8: who joins, who goes, and when a reassignment is through."""
        joined = set(after.isr) - set(before.isr)
        elected = after.leader_epoch > before.leader_epoch and joined == {after.leader}
        assert joins or elected or not joined, f"P8 {before} {after}"
        for joiner in joined:
            assert image.brokers[joiner].state is BrokerState.UNFENCED, f"C3 {after}"
        gone = set(before.replicas) - set(after.replicas)
        if not gone:
            return
        assert after.leader_epoch == before.leader_epoch + 1, "P8 the old replicas are fenced off"
        assert gone <= {*before.removing, *before.adding}, f"P8 {before} {after}"
        if gone & (set(before.removing) - set(before.adding)):
            assert gone == set(before.removing), f"P8 {before} {after}"
            coming = set(before.adding) - set(before.removing)
            assert coming <= set(before.isr), f"P8 {before} {after}"
            assert after.replicas == before.target, f"P8 {before} {after}"
            assert not after.is_reassigning, f"P8 {after}"
            assert len(after.isr) >= min_isr, f"P8 {before} {after}"
        if gone & {*before.isr, *before.elr}:
            assert len(after.isr) >= min_isr, f"P8 {before} {after}"
        assert after.isr or not before.isr, f"P8 {before} {after}"

    def _check_eligible(
        self,
        image: MetadataImage,
        where: TopicIdPartition,
        partition: PartitionRegistration,
        old: PartitionRegistration | None,
        min_isr: int,
    ) -> None:
        """P3, P11: nobody who held what was acknowledged is forgotten, unless his disk is gone."""
        if len(partition.isr) >= min_isr:
            self._full[where] = min_isr
            return
        if self._full.get(where, min_isr) != min_isr:
            del self._full[where]
        if old is None or (partition.unclean_epoch > old.unclean_epoch):
            self._full.pop(where, None)
            return
        members = {*partition.isr, *partition.elr}
        for replica in {*old.isr, *old.elr} - members:
            broker = image.brokers[replica]
            moved = old.directories[old.replicas.index(replica)] != broker.directory_id
            unclean = where in broker.unclean_partitions and not broker.settled
            unclean = unclean or replica in self.damaged.get(where, ())
            assert moved or unclean, f"P3 {where} forgot {replica}"
            self._full.pop(where, None)
            remembered = replica in partition.last_known_elr
            emptied = replica in self.damaged.get(where, ()) and not remembered
            assert emptied or moved is not remembered, f"P11 {where} {replica}"
        for replica in {*old.last_known_elr} - {*members, *partition.last_known_elr}:
            recorded = old.directories[old.replicas.index(replica)]
            emptied = recorded != image.brokers[replica].directory_id
            emptied = emptied or replica in self.damaged.get(where, ())
            assert emptied, f"P11 {where} forgot {replica}"
        if where in self._full:
            assert len(members) >= min_isr, f"P3 {partition}"

    def _check_leadership_at_rest(
        self, image: MetadataImage, where: str, partition: PartitionRegistration
    ) -> None:
        for member in partition.isr:
            assert image.brokers[member].state is not BrokerState.FENCED, f"C3 {where}"
        if partition.has_leader:
            leader = image.brokers[partition.leader]
            allowed = (BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN)
            assert leader.state in allowed, f"C3 {where} led by {leader}"
            assert partition.leader_epoch_offset > leader.broker_epoch, f"R3 {where}"
            if leader.drain is not DrainScope.NONE and leader.state is BrokerState.UNFENCED:
                live = [m for m in partition.isr if image.brokers[m].state is BrokerState.UNFENCED]
                others = [m for m in live if image.brokers[m].drain is DrainScope.NONE]
                others = [m for m in others if m not in partition.removing]
                assert not others, f"{where}: led by {leader}, which is drained"
        else:
            for member in partition.isr + partition.elr:
                state = image.brokers[member].state
                assert state is not BrokerState.UNFENCED, f"{where}: {member} could lead"
        for replica, directory in zip(partition.replicas, partition.directories, strict=True):
            assert image.brokers[replica].directory_id == directory, f"R6 {where}"

    def _check_reassignment_at_rest(
        self,
        image: MetadataImage,
        where: str,
        partition: PartitionRegistration,
        rules: TopicRules,
        behind: Collection[BrokerId],
        unreported: Collection[BrokerId],
    ) -> None:
        """P12: a reassignment that could be completed now is not left under way."""
        in_sync = {*partition.isr} - {*unreported}
        coming = {*partition.adding} - {*partition.removing}
        if not partition.is_reassigning or {*partition.removing} & {*behind}:
            return
        if not coming <= in_sync:
            return
        stay = in_sync - {*partition.removing}
        enough = len(stay) >= rules.min_isr(len(partition.target))
        live = {m for m in stay if image.brokers[m].state is BrokerState.UNFENCED}
        assert not (enough and live), f"P12 {where} is through"
