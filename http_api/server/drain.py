"""Progress of a broker's drain, computed from the metadata image alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.contract.v3_admin import JsonObject, StuckPartition, drain_progress
from http_api.server.topics import each_partition
from raft_metadata.controller.broker_views import is_drained, is_electable
from raft_metadata.records.records import DrainScope

if TYPE_CHECKING:
    from raft_metadata.image.metadata_image import (
        BrokerRegistration,
        MetadataImage,
        PartitionRegistration,
    )

STUCK_SHOWN_MAX = 100
"""Most partitions named in an answer, of those still to be moved."""


async def progress_of(image: MetadataImage, broker: BrokerRegistration) -> JsonObject:
    """Return what the broker still leads and holds, and why the first partitions have not moved."""
    leaders = replicas = 0
    stuck: list[StuckPartition] = []
    async for topic, number, partition in each_partition(image):
        if broker.broker_id not in partition.replicas:
            continue
        leads = partition.leader == broker.broker_id
        leaders += leads
        replicas += 1
        if len(stuck) < STUCK_SHOWN_MAX and (leads or broker.drain is DrainScope.REPLICAS):
            reason = _reason(image, partition, broker)
            stuck.append(StuckPartition(topic=topic.name, partition_id=number, reason=reason))
    left = replicas if broker.drain is DrainScope.REPLICAS else leaders
    return drain_progress(leaders, replicas, stuck, is_done=left == 0)


def _reason(
    image: MetadataImage, partition: PartitionRegistration, broker: BrokerRegistration
) -> str:
    brokers, mine = image.brokers, broker.broker_id
    others = [one for one in brokers if one != mine and is_electable(brokers, one)]
    if broker.drain is DrainScope.LEADERS:
        in_sync = [replica for replica in partition.isr if replica in others]
        if in_sync:
            return f"replicas {in_sync} are in sync: the election is about to come"
        return "no other replica is alive and in sync"
    coming = [replica for replica in partition.adding if replica not in partition.isr]
    if coming:
        return f"waits for replicas {coming} to get in sync"
    if mine in partition.removing:
        return "its new replicas are in sync: it is about to go"
    free = sorted(
        one for one in others if one not in partition.replicas and not is_drained(brokers, one)
    )
    if not free:
        return "no other live broker is free to hold it"
    return f"waits for its turn to move to one of brokers {free}"
