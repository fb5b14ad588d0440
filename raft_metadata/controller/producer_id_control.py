"""Allocation of producer ids: no controller hands out a block twice (invariant T5)."""

from __future__ import annotations

from raft_metadata.controller.cluster_control import check_broker_epoch
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.admin import AllocateProducerIds, ProducerIdBlock
from raft_metadata.records.records import ProducerIdsRecord

PRODUCER_IDS_PER_BLOCK = 1_000
"""Producer ids that a broker gets per request, as in Kafka's ``ProducerIdsBlock``."""


def decide_producer_ids(
    image: MetadataImage, command: AllocateProducerIds
) -> tuple[tuple[ProducerIdsRecord, ...], ProducerIdBlock]:
    """Allocate the next block; a lost answer wastes its block and has no other effect."""
    check_broker_epoch(image, command.broker_id, command.broker_epoch)
    first = image.next_producer_id
    record = ProducerIdsRecord(
        broker_id=command.broker_id,
        broker_epoch=command.broker_epoch,
        next_producer_id=first + PRODUCER_IDS_PER_BLOCK,
    )
    return (record,), ProducerIdBlock(first_producer_id=first, count=PRODUCER_IDS_PER_BLOCK)
