"""Drafts of partition changes, which keep the rules of KIP-966 and yield the record.

Every decider that changes a partition changes a draft of it. The resulting record states every
field of the partition from then on, also unchanged ones.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from raft_metadata.common.ids import (
    NO_LEADER,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.image.metadata_image import PartitionRegistration
from raft_metadata.records.records import PartitionChangeRecord

NO_BROKERS: frozenset[BrokerId] = frozenset()


@dataclass(slots=True)
class PartitionDraft:
    """A mutable copy of a partition. Owned by one decision.

    Invariants P1 and P4 hold for every record that it yields.
    """

    before: PartitionRegistration
    replicas: tuple[BrokerId, ...]
    directories: tuple[DirectoryId, ...]
    isr: tuple[BrokerId, ...]
    elr: tuple[BrokerId, ...]
    leader: BrokerId
    adding: tuple[BrokerId, ...]
    removing: tuple[BrokerId, ...]
    last_known_elr: tuple[BrokerId, ...]
    last_known_leader: BrokerId
    new_leader_epoch: bool = False
    unclean: bool = False
    leaving: Collection[BrokerId] = NO_BROKERS
    """Replicas in sync that are about to be removed; none of these is elected any more."""

    @classmethod
    def of(cls, before: PartitionRegistration) -> PartitionDraft:
        """Return an unchanged draft of this partition."""
        return cls(
            before,
            before.replicas,
            before.directories,
            before.isr,
            before.elr,
            before.leader,
            before.adding,
            before.removing,
            before.last_known_elr,
            before.last_known_leader,
        )

    @property
    def replication_factor(self) -> int:
        """The replication factor as in `PartitionRegistration`."""
        return len(self.replicas) - max(len(self.adding), len(self.removing))

    # ---- changes

    def lead(self, leader: BrokerId) -> None:
        """Set the leader, in a new leader epoch; `NO_LEADER`: none."""
        self.leader = leader
        self.new_leader_epoch = True

    def lead_uncleanly(self, leader: BrokerId) -> None:
        """Elect a leader that may lack acknowledged records.

        Its log becomes the partition's only history.

        All other replicas, those of the ELR included, must be truncated to it before they count
        again.
        """
        self.lead(leader)
        self.isr = (leader,)
        self.unclean = True

    def keep_replicas(self, keep: Collection[BrokerId]) -> None:
        """Remove all other replicas, fenced by a new leader epoch (KIP-455)."""
        if all(replica in keep for replica in self.replicas):
            return
        kept = [
            pair for pair in zip(self.replicas, self.directories, strict=True) if pair[0] in keep
        ]
        self.replicas = tuple(replica for replica, _ in kept)
        self.directories = tuple(directory for _, directory in kept)
        self.isr = tuple(replica for replica in self.isr if replica in keep)
        self.new_leader_epoch = True

    # ---- books

    def remember_last_leader(self, moved: Collection[BrokerId]) -> None:
        """Set the last known leader, for while there is none (KIP-966).

        Never one that is on another disk, in ``moved``, or no replica any more (rule R6).
        """
        last = self.before.leader if self.before.has_leader else self.before.last_known_leader
        gone = last in moved or last not in self.replicas
        self.last_known_leader = NO_LEADER if gone else last

    def keep_eligible(
        self,
        min_isr: int,
        *,
        unclean: Collection[BrokerId] = NO_BROKERS,
        moved: Collection[BrokerId] = NO_BROKERS,
        damaged: Collection[BrokerId] = NO_BROKERS,
    ) -> None:
        """Set the eligible leader replicas and the last known ones (invariants P3, P11).

        ``unclean``: replicas that can't prove their durable end any more; ``moved``: those on
        another disk than recorded; ``damaged``: those whose log is emptied as soon as they don't
        count, so that they are no candidates for an unclean election. Call it when ISR and replicas
        are final.
        """
        if self.unclean or len(self.isr) >= min_isr:
            self.elr = self.last_known_elr = ()
            return
        elr = next_elr(self.before, self.isr, {*unclean, *moved}, min_isr)
        self.elr = tuple(replica for replica in elr if replica in self.replicas)
        before = self.before
        known = (*before.isr, *before.elr, *before.last_known_elr)
        counts = (*self.isr, *self.elr)
        self.last_known_elr = tuple(
            replica
            for replica in self.replicas
            if replica in known
            and replica not in counts
            and replica not in moved
            and replica not in damaged
        )

    # ---- the record

    def changed_record(self, where: TopicIdPartition) -> PartitionChangeRecord | None:
        """Return `record`, or None if nothing changed."""
        self._clear_last_leader()
        before = self.before
        changed = (
            self.new_leader_epoch
            or (self.isr, self.elr, self.directories)
            != (before.isr, before.elr, before.directories)
            or self.replicas != before.replicas
            or (self.adding, self.removing) != (before.adding, before.removing)
            or self.last_known_elr != before.last_known_elr
            or self.last_known_leader != before.last_known_leader
        )
        return self.record(where) if changed else None

    def record(self, where: TopicIdPartition) -> PartitionChangeRecord:
        """Return the record of the change; it raises the partition epoch by one (rule M3)."""
        self._clear_last_leader()
        before = self.before
        assert self.leader == NO_LEADER or self.leader in self.isr, (where, self)
        assert self.new_leader_epoch or self.leader == before.leader, (where, self)
        return PartitionChangeRecord(
            topic_id=where.topic_id,
            partition=where.partition,
            replicas=() if self.replicas == before.replicas else self.replicas,
            directories=self.directories,
            isr=self.isr,
            elr=self.elr,
            leader=self.leader,
            leader_epoch=LeaderEpoch(before.leader_epoch + int(self.new_leader_epoch)),
            partition_epoch=PartitionEpoch(before.partition_epoch + 1),
            adding=self.adding,
            removing=self.removing,
            last_known_elr=self.last_known_elr,
            last_known_leader=self.last_known_leader,
            unclean=self.unclean,
        )

    def _clear_last_leader(self) -> None:
        """Clear the last known leader if there is a leader."""
        if self.leader != NO_LEADER:
            self.last_known_leader = NO_LEADER


def next_elr(
    partition: PartitionRegistration,
    isr: Collection[BrokerId],
    lost: Collection[BrokerId],
    min_isr: int,
) -> tuple[BrokerId, ...]:
    """Return the eligible leader replicas: those outside an ISR below min ISR, with their data.

    While the ISR has min ISR members, the high watermark advances without the others, so no replica
    outside it is eligible (KIP-966).
    """
    if len(isr) >= min_isr:
        return ()
    return tuple(
        replica
        for replica in partition.replicas
        if (replica in partition.isr or replica in partition.elr)
        and replica not in isr
        and replica not in lost
    )


def partition_at(topic_id: TopicId, index: int) -> TopicIdPartition:
    """Return the partition of a topic with this index."""
    return TopicIdPartition(topic_id, PartitionId(index))
