"""Brokers and partitions as an image holds them, where a test names only what it is about."""

from __future__ import annotations

from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
)
from raft_metadata.image.metadata_image import BrokerRegistration, PartitionRegistration
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState


def disk(broker_id: int) -> DirectoryId:
    """The directory id a broker has, unless a test says another."""
    return DirectoryId(f"disk-{broker_id}")


def broker(
    broker_id: int, *, epoch: int | None = None, state: BrokerState = BrokerState.UNFENCED
) -> BrokerRegistration:
    """Registered in ``epoch`` (default: its number) by a process of its own, all settled."""
    epoch = broker_id if epoch is None else epoch
    return BrokerRegistration(
        broker_id=BrokerId(broker_id),
        broker_epoch=BrokerEpoch(epoch),
        incarnation_id=IncarnationId(f"life-{epoch}"),
        directory_id=disk(broker_id),
        http=f"127.0.0.1:{8081 + broker_id}",
        peer=f"127.0.0.1:{9081 + broker_id}",
        rack=f"rack-{broker_id}",
        state=state,
        settled=True,
        feature_level_max=SUPPORTED_FEATURE_LEVEL,
        min_insync_replicas=1,
    )


def partition(
    replicas: tuple[int, ...],
    leader: int,
    epoch: int,
    *,
    isr: tuple[int, ...] | None = None,
    elr: tuple[int, ...] = (),
    partition_epoch: int | None = None,
    set_at: int = 100,
) -> PartitionRegistration:
    """All in sync, the partition epoch that of the leader, unless something else is said.

    ``set_at``: the metadata offset of the record that set the leader epoch (rule R3).
    """
    return PartitionRegistration(
        replicas=tuple(map(BrokerId, replicas)),
        directories=tuple(map(disk, replicas)),
        isr=tuple(map(BrokerId, replicas if isr is None else isr)),
        elr=tuple(map(BrokerId, elr)),
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(epoch),
        partition_epoch=PartitionEpoch(epoch if partition_epoch is None else partition_epoch),
        leader_epoch_offset=MetadataOffset(set_at),
    )
