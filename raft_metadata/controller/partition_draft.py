"""A partition under change: what its record will say, with KIP-966's books kept.

Whoever changes a partition changes a draft of it; the record that comes out says everything that is
so from then on, also what did not change.
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
from raft_metadata.records.feature_levels import OPERATIONS_LEVEL
from raft_metadata.records.records import PartitionChangeRecord

NOBODY: frozenset[BrokerId] = frozenset()


@dataclass(slots=True)
class PartitionDraft:
    """Owned by one decision. Invariants P1 and P4 hold for every record it makes."""

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
    leaving: Collection[BrokerId] = NOBODY
    """In sync, but about to be taken out: none of these is elected any more."""

    @classmethod
    def of(cls, before: PartitionRegistration) -> PartitionDraft:
        """As it is."""
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
        """As in `PartitionRegistration`."""
        return len(self.replicas) - max(len(self.adding), len(self.removing))

    # ---- changes

    def lead(self, leader: BrokerId) -> None:
        """From here on this one leads, in a new epoch; `NO_LEADER`: nobody."""
        self.leader = leader
        self.new_leader_epoch = True

    def lead_uncleanly(self, leader: BrokerId) -> None:
        """It may lack what was acknowledged: from now on its log is the partition's only history.

        Everybody else has to be brought in line with it before he counts again, the ELR too.
        """
        self.lead(leader)
        self.isr = (leader,)
        self.unclean = True

    def keep_replicas(self, keep: Collection[BrokerId]) -> None:
        """Take the other replicas out. They are fenced off by a new leader epoch (KIP-455)."""
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
        """KIP-966: who led last, while nobody does; never one on another disk (rule R6)."""
        last = self.before.leader if self.before.has_leader else self.before.last_known_leader
        gone = last in moved or last not in self.replicas
        self.last_known_leader = NO_LEADER if gone else last

    def keep_eligible(
        self,
        min_isr: int,
        *,
        unclean: Collection[BrokerId] = NOBODY,
        moved: Collection[BrokerId] = NOBODY,
        damaged: Collection[BrokerId] = NOBODY,
    ) -> None:
        """Who stays eligible, and who was until it lost its proof (invariants P3, P11).

        ``unclean``: replicas that can't prove their durable end any more; ``moved``: those on
        another disk than recorded; ``damaged``: those that are emptied as soon as they don't count,
        and are no candidates for an unclean election then. To be called when ISR and replicas are
        final.
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

    def changed_record(self, where: TopicIdPartition, level: int) -> PartitionChangeRecord | None:
        """`record`, or None where it would say nothing new."""
        self._close(level)
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
        return self.record(where, level) if changed else None

    def record(self, where: TopicIdPartition, level: int) -> PartitionChangeRecord:
        """The record of the change: the partition epoch grows by one, whatever changed (rule M3).

        ``level``: below feature level 2 nothing is said of last known leaders.
        """
        self._close(level)
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

    def _close(self, level: int) -> None:
        if level < OPERATIONS_LEVEL:
            self.last_known_elr = ()
        if level < OPERATIONS_LEVEL or self.leader != NO_LEADER:
            self.last_known_leader = NO_LEADER


def next_elr(
    partition: PartitionRegistration,
    isr: Collection[BrokerId],
    lost: Collection[BrokerId],
    min_isr: int,
) -> tuple[BrokerId, ...]:
    """KIP-966: who leaves an ISR that is below min ISR stays eligible, unless its data is lost.

    While the ISR has min ISR members the high watermark moves without the others, so nobody
    outside it is eligible.
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


def at(topic_id: TopicId, index: int) -> TopicIdPartition:
    """The place of a partition by its index."""
    return TopicIdPartition(topic_id, PartitionId(index))
