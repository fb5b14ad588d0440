"""An image as records, and back: a snapshot is a shorter log with the same end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    NO_LEADER,
    UNKNOWN_BROKER_EPOCH,
    ControllerEpoch,
    MetadataOffset,
    PartitionId,
)
from raft_metadata.image.metadata_delta import MetadataDelta, delta_between
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.commands import MetadataSnapshot
from raft_metadata.records.records import (
    BrokerDrainRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    DrainScope,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    PartitionsCountRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)


def snapshot_of(image: MetadataImage) -> MetadataSnapshot:
    """Return the whole image as a `MetadataSnapshot`."""
    return MetadataSnapshot(
        next_offset=image.next_offset, epoch=image.epoch, records=tuple(image_records(image))
    )


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yield records that give this image when applied to an empty one, always in the same order."""
    if image.feature_level:
        yield FeatureLevelRecord(level=image.feature_level)
    for _, broker in sorted(image.brokers.items()):
        yield from _broker_records(broker)
    for topic_id in sorted(image.topics):
        yield from _topic_records(image.topics[topic_id])
    for resource_type, name in sorted(image.configs, key=lambda key: (key[0].value, key[1])):
        for config, value in sorted(image.configs[resource_type, name].items()):
            yield ConfigRecord(
                resource_type=resource_type, resource_name=name, name=config, value=value
            )
    if image.next_producer_id:
        yield ProducerIdsRecord(
            broker_id=NO_LEADER,
            broker_epoch=UNKNOWN_BROKER_EPOCH,
            next_producer_id=image.next_producer_id,
        )
    yield from _security_records(image)


def _security_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    for entity in sorted(image.quotas, key=repr):
        for key, value in sorted(image.quotas[entity].items()):
            yield ClientQuotaRecord(entity=entity, key=key, value=value)
    for acl_id in sorted(image.acls):
        yield image.acls[acl_id]
    for user in sorted(image.users):
        yield image.users[user]


def image_from_records(
    records: Iterable[MetadataRecord], next_offset: MetadataOffset, epoch: ControllerEpoch
) -> MetadataImage:
    """Return the image of these records; the inverse of `image_records`."""
    delta = MetadataDelta(MetadataImage())
    for record in records:
        delta.replay(record, next_offset)
    return delta.apply(next_offset, epoch)


def delta_from_snapshot(image: MetadataImage, snapshot: MetadataSnapshot) -> MetadataDelta:
    """Return the delta from the present image to a snapshot; parts missing there count as deleted.

    Raises METADATA_BEHIND, and changes nothing, for a snapshot older than the image, so that an
    image never goes back (rule M5). Apply the delta with the snapshot's ``next_offset`` and
    ``epoch``.
    """
    if snapshot.next_offset < image.next_offset or snapshot.epoch < image.epoch:
        message = (
            f"snapshot at offset={snapshot.next_offset} epoch={snapshot.epoch} is behind "
            f"offset={image.next_offset} epoch={image.epoch}"
        )
        raise KafkaError(ErrorCode.METADATA_BEHIND, message)
    after = image_from_records(snapshot.records, snapshot.next_offset, snapshot.epoch)
    return delta_between(image, after)


def _broker_records(broker: BrokerRegistration) -> Iterator[MetadataRecord]:
    yield RegisterBrokerRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        incarnation_id=broker.incarnation_id,
        directory_id=broker.directory_id,
        http=broker.http,
        peer=broker.peer,
        rack=broker.rack,
        unclean_ranges=broker.unclean_partitions.ranges,
        feature_level_max=broker.feature_level_max,
        min_insync_replicas=broker.min_insync_replicas,
    )
    yield BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        state=broker.state,
        settled=broker.settled,
    )
    if broker.drain is not DrainScope.NONE:
        yield BrokerDrainRecord(broker_id=broker.broker_id, scope=broker.drain)


def _topic_records(topic: TopicImage) -> Iterator[MetadataRecord]:
    """Yield the records of a topic; an increase in progress keeps the partition count of before."""
    before = topic.grown_from or topic.partitions_count
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id, partitions_count=before)
    for index, partition in enumerate(topic.partitions):
        if index == before:
            yield _growth(topic)
        yield _partition_record(topic, PartitionId(index), partition)
    if len(topic.partitions) == before < topic.partitions_count:
        yield _growth(topic)


def _growth(topic: TopicImage) -> PartitionsCountRecord:
    """Return the record of an increase of the topic's partitions."""
    return PartitionsCountRecord(topic_id=topic.topic_id, partitions_count=topic.partitions_count)


def _partition_record(
    topic: TopicImage, index: PartitionId, partition: PartitionRegistration
) -> PartitionRecord:
    return PartitionRecord(
        topic_id=topic.topic_id,
        partition=index,
        replicas=partition.replicas,
        directories=partition.directories,
        isr=partition.isr,
        elr=partition.elr,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        partition_epoch=partition.partition_epoch,
        leader_epoch_offset=partition.leader_epoch_offset,
        adding=partition.adding,
        removing=partition.removing,
        last_known_elr=partition.last_known_elr,
        last_known_leader=partition.last_known_leader,
        unclean_epoch=partition.unclean_epoch,
    )
