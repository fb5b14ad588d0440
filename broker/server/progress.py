"""How far the followers of a partition are, as its leader knows: for people who move replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.server.requests import PartitionProgress
from raft_metadata.common.errors import KafkaError

if TYPE_CHECKING:
    from broker.server.local_partitions import LocalPartitions
    from raft_metadata.common.ids import TopicIdPartition


def local_progress(local: LocalPartitions, place: TopicIdPartition) -> PartitionProgress | None:
    """The progress of a partition that is led here, else None."""
    try:
        replica, role = local.leading(place)
    except KafkaError:
        return None
    return PartitionProgress(
        log_end_offset=replica.log.log_end_offset,
        high_watermark=replica.partition.high_watermark,
        follower_ends={broker: follower.log_end for broker, follower in role.followers.items()},
    )
