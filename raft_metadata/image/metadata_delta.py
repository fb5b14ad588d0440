"""Applying records to an image, and notifying publishers of the change.

The state machine of each controller, the brokers' metadata fetchers and the active controller's
speculative image replay a batch into a `MetadataDelta` and apply it once. Unchanged parts are
shared with the previous image, so a batch costs the size of its changes: one copy of each changed
table, and of the partitions of each changed topic. A `MetadataPublisher` gets every delta, in
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Generic, Protocol, TypeAlias, TypeVar, assert_never, cast

from raft_metadata.common.ids import (
    BrokerId,
    ControllerEpoch,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.image.metadata_image import (
    BrokerRegistration,
    ConfigKey,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.feature_levels import check_supported
from raft_metadata.records.partition_set import PartitionSet
from raft_metadata.records.records import (
    AclRecord,
    BrokerDrainRecord,
    BrokerRegistrationChangeRecord,
    BrokerState,
    ClientQuotaRecord,
    ConfigRecord,
    DrainScope,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    PartitionsCountRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveTopicRecord,
    RemoveUserScramRecord,
    ResourceType,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramRecord,
)

K = TypeVar("K")
V = TypeVar("V")


def patched(before: Mapping[K, V], changed: Mapping[K, V], removed: Iterable[K]) -> Mapping[K, V]:
    """Return a copy of the table with some rows changed and some removed."""
    after = dict(before)
    after.update(changed)
    for key in removed:
        after.pop(key, None)
    return MappingProxyType(after)


@dataclass(slots=True)
class TableDelta(Generic[K, V]):
    """The changed rows of a table. Unchanged rows are shared with the previous table."""

    before: Mapping[K, V]
    changed: dict[K, V] = field(default_factory=dict)
    removed: set[K] = field(default_factory=set)

    @property
    def is_empty(self) -> bool:
        """True if no row changes."""
        return not (self.changed or self.removed)

    def get(self, key: K) -> V | None:
        """Return the row with the changes so far, or None."""
        if key in self.changed:
            return self.changed[key]
        return None if key in self.removed else self.before.get(key)

    def put(self, key: K, row: V) -> None:
        """Add or change a row."""
        self.changed[key] = row
        self.removed.discard(key)

    def remove(self, key: K) -> None:
        """Remove a row."""
        self.changed.pop(key, None)
        self.removed.add(key)

    def apply(self) -> Mapping[K, V]:
        """Return the changed table; the previous one if there is no change."""
        return self.before if self.is_empty else patched(self.before, self.changed, self.removed)


def table_delta(before: Mapping[K, V], after: Mapping[K, V]) -> TableDelta[K, V]:
    """Return the delta that leads from one table to another."""
    delta = TableDelta(before)
    delta.changed = {key: row for key, row in after.items() if before.get(key) != row}
    delta.removed = set(before.keys() - after.keys())
    return delta


SecurityRecord: TypeAlias = (
    ClientQuotaRecord | AclRecord | RemoveAclRecord | UserScramRecord | RemoveUserScramRecord
)
SECURITY_RECORDS = (
    ClientQuotaRecord,
    AclRecord,
    RemoveAclRecord,
    UserScramRecord,
    RemoveUserScramRecord,
)


class SecurityDelta:
    """Changes of quotas, access rules and users. Owned by a `MetadataDelta`."""

    def __init__(self, image: MetadataImage) -> None:
        self.quotas = TableDelta(image.quotas)
        self.acls = TableDelta(image.acls)
        self.users = TableDelta(image.users)

    @property
    def is_empty(self) -> bool:
        """True if nothing changed."""
        return self.quotas.is_empty and self.acls.is_empty and self.users.is_empty

    def replay(self, record: SecurityRecord) -> None:
        """Fold in one record."""
        match record:
            case ClientQuotaRecord():
                self._set_quota(record)
            case AclRecord():
                assert self.acls.get(record.acl_id) is None, record
                self.acls.put(record.acl_id, record)
            case RemoveAclRecord():
                assert self.acls.get(record.acl_id) is not None, record
                self.acls.remove(record.acl_id)
            case UserScramRecord():
                self.users.put((record.name, record.mechanism), record)
            case RemoveUserScramRecord():
                assert self.users.get((record.name, record.mechanism)) is not None, record
                self.users.remove((record.name, record.mechanism))
            case _:
                assert_never(record)

    def _set_quota(self, record: ClientQuotaRecord) -> None:
        values = dict(self.quotas.get(record.entity) or {})
        if record.value is None:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if values:
            self.quotas.put(record.entity, MappingProxyType(values))
        else:
            self.quotas.remove(record.entity)

    @classmethod
    def between(cls, before: MetadataImage, after: MetadataImage) -> SecurityDelta:
        """Return the delta that leads from one image's tables to another's."""
        delta = cls(before)
        delta.quotas = table_delta(before.quotas, after.quotas)
        delta.acls = table_delta(before.acls, after.acls)
        delta.users = table_delta(before.users, after.users)
        return delta


T = TypeVar("T")


@dataclass(slots=True)
class TopicDelta:
    """A mutable copy of a topic whose partitions are being changed."""

    name: TopicName
    topic_id: TopicId
    partitions_count: int
    partitions: list[PartitionRegistration]
    grown_from: int = 0
    changed: set[PartitionId] = field(default_factory=set)
    """Partitions that this delta creates or changes."""

    @classmethod
    def of(cls, topic: TopicImage) -> TopicDelta:
        """Return a mutable copy of this topic without changes."""
        return cls(
            topic.name,
            topic.topic_id,
            topic.partitions_count,
            list(topic.partitions),
            topic.grown_from,
        )

    def changes(
        self, before: MetadataImage
    ) -> Iterator[tuple[PartitionId, PartitionRegistration | None, PartitionRegistration]]:
        """Yield (index, partition in the image ``before`` or None, partition) of each change."""
        old = before.topics.get(self.topic_id)
        known = () if old is None else old.partitions
        for index in self.changed:
            yield index, known[index] if index < len(known) else None, self.partitions[index]

    def image(self) -> TopicImage:
        """Return the changed topic."""
        return TopicImage(
            name=self.name,
            topic_id=self.topic_id,
            partitions_count=self.partitions_count,
            partitions=tuple(self.partitions),
            grown_from=0 if len(self.partitions) == self.partitions_count else self.grown_from,
        )


class MetadataDelta:
    """The changes between one image and the next. Owned by one replayer; not thread-safe.

    Call ``replay`` in the order of the log, then ``apply`` once. A record that does not fit the
    image breaks an invariant that its decider kept: it raises AssertionError, and the delta must be
    dropped.
    """

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        """The image that the changes start from."""
        self.changed_brokers: dict[BrokerId, BrokerRegistration] = {}
        """The present state of brokers that registered or changed state."""
        self.removed_brokers: set[BrokerId] = set()
        """Brokers that were unregistered, or that are missing from a snapshot."""
        self.changed_topics: dict[TopicId, TopicDelta] = {}
        """Topics that were created or whose partitions changed."""
        self.created_topics: set[TopicId] = set()
        self.deleted_topics: dict[TopicId, TopicImage] = {}
        """Topics of the previous image that were deleted, in their previous state."""
        self.changed_configs: dict[ConfigKey, dict[str, str]] = {}
        """All configs of each resource of which one was set or reset; empty: none is left."""
        self.security = SecurityDelta(image)
        self._feature_level = image.feature_level
        self._shared: dict[tuple[object, ...], tuple[object, ...]] = {}
        self._next_producer_id = image.next_producer_id

    # ---- what changed

    @property
    def changed_partitions(self) -> Mapping[TopicId, frozenset[PartitionId]]:
        """Partitions created or changed, by topic; without those of deleted topics."""
        return {
            topic_id: frozenset(topic.changed)
            for topic_id, topic in self.changed_topics.items()
            if topic.changed
        }

    @property
    def is_empty(self) -> bool:
        """True if the next image differs in its offset and epoch only."""
        same = (self._feature_level, self._next_producer_id) == (
            self.image.feature_level,
            self.image.next_producer_id,
        )
        return (same and self.security.is_empty) and not (
            self.changed_brokers
            or self.removed_brokers
            or self.changed_topics
            or self.deleted_topics
            or self.changed_configs
        )

    # ---- folding

    def replay(  # noqa: C901 one arm for each fact
        self, record: MetadataRecord, offset: MetadataOffset
    ) -> None:
        """Fold in one record, which has this metadata offset."""
        if isinstance(record, SECURITY_RECORDS):
            self.security.replay(record)
            return
        match record:
            case PartitionChangeRecord():
                self._change_partition(record, offset)
            case PartitionRecord():
                self._add_partition(record, offset)
            case RegisterBrokerRecord():
                self._register_broker(record)
            case BrokerRegistrationChangeRecord():
                self._change_broker(record)
            case BrokerDrainRecord():
                self._drain_broker(record)
            case UnregisterBrokerRecord():
                self._unregister_broker(record)
            case TopicRecord():
                self._add_topic(record)
            case PartitionsCountRecord():
                self._grow_topic(record)
            case RemoveTopicRecord():
                self._remove_topic(record.topic_id)
            case ConfigRecord():
                self._set_config(record)
            case ProducerIdsRecord():
                assert record.next_producer_id > self._next_producer_id, record
                self._next_producer_id = record.next_producer_id
            case FeatureLevelRecord():
                self._set_feature_level(record.level)
            case _:
                assert_never(record)

    def replay_all(self, records: Iterable[MetadataRecord], base_offset: MetadataOffset) -> int:
        """Fold in a batch and return its number of records."""
        count = 0
        for record in records:
            self.replay(record, MetadataOffset(base_offset + count))
            count += 1
        return count

    def apply(self, next_offset: MetadataOffset, epoch: ControllerEpoch) -> MetadataImage:
        """Return the next image. Unchanged tables are shared with the previous image."""
        image = self.image
        topics, topic_ids = image.topics, image.topic_ids
        if self.changed_topics or self.deleted_topics:
            topics, topic_ids = self._topics()
        brokers = image.brokers
        if self.changed_brokers or self.removed_brokers:
            brokers = patched(image.brokers, self.changed_brokers, self.removed_brokers)
        configs = image.configs
        if self.changed_configs:
            configs = self._configs()
        return MetadataImage(
            next_offset=next_offset,
            epoch=epoch,
            feature_level=self._feature_level,
            brokers=brokers,
            topics=topics,
            topic_ids=topic_ids,
            configs=configs,
            next_producer_id=self._next_producer_id,
            quotas=self.security.quotas.apply(),
            acls=self.security.acls.apply(),
            users=self.security.users.apply(),
        )

    # ---- brokers

    def broker(self, broker_id: BrokerId) -> BrokerRegistration | None:
        """Return the broker with the changes replayed so far, or None."""
        changed = self.changed_brokers.get(broker_id)
        if changed is not None or broker_id in self.removed_brokers:
            return changed
        return self.image.brokers.get(broker_id)

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        before = self.broker(record.broker_id)
        assert before is None or before.broker_epoch < record.broker_epoch, record
        self.changed_brokers[record.broker_id] = BrokerRegistration(
            broker_id=record.broker_id,
            broker_epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            directory_id=record.directory_id,
            http=record.http,
            peer=record.peer,
            rack=record.rack,
            unclean_partitions=PartitionSet.of(ranges=record.unclean_ranges),
            state=BrokerState.STARTING,
            settled=False,
            feature_level_max=record.feature_level_max,
            min_insync_replicas=record.min_insync_replicas,
            drain=DrainScope.NONE if before is None else before.drain,
        )
        self.removed_brokers.discard(record.broker_id)

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        before = self.broker(record.broker_id)
        assert before is not None, record
        assert before.broker_epoch == record.broker_epoch, (before, record)
        self.changed_brokers[record.broker_id] = replace(
            before, state=record.state, settled=record.settled
        )

    def _drain_broker(self, record: BrokerDrainRecord) -> None:
        before = self.broker(record.broker_id)
        assert before is not None, record
        self.changed_brokers[record.broker_id] = replace(before, drain=record.scope)

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        before = self.broker(record.broker_id)
        assert before is not None, record
        assert before.broker_epoch == record.broker_epoch, (before, record)
        self.changed_brokers.pop(record.broker_id, None)
        self.removed_brokers.add(record.broker_id)
        key = (ResourceType.BROKER, str(record.broker_id))
        if self.image.configs.get(key) or self.changed_configs.get(key):
            self.changed_configs[key] = {}

    # ---- topics

    def _topic(self, topic_id: TopicId) -> TopicDelta:
        topic = self.changed_topics.get(topic_id)
        if topic is None:
            assert topic_id in self.image.topics, f"no topic {topic_id}"
            assert topic_id not in self.deleted_topics, f"topic {topic_id} was deleted"
            topic = self.changed_topics[topic_id] = TopicDelta.of(self.image.topics[topic_id])
        return topic

    def _add_topic(self, record: TopicRecord) -> None:
        assert record.topic_id not in self.image.topics, record
        assert record.topic_id not in self.changed_topics, record
        self.changed_topics[record.topic_id] = TopicDelta(
            record.name, record.topic_id, record.partitions_count, []
        )
        self.created_topics.add(record.topic_id)

    def _grow_topic(self, record: PartitionsCountRecord) -> None:
        topic = self._topic(record.topic_id)
        assert record.partitions_count > topic.partitions_count == len(topic.partitions), record
        topic.grown_from = topic.partitions_count
        topic.partitions_count = record.partitions_count

    def _remove_topic(self, topic_id: TopicId) -> None:
        changed = self.changed_topics.pop(topic_id, None)
        before = self.image.topics.get(topic_id)
        assert changed is not None or before is not None, f"no topic {topic_id}"
        self.created_topics.discard(topic_id)
        if before is not None:
            assert topic_id not in self.deleted_topics, f"topic {topic_id} was deleted"
            self.deleted_topics[topic_id] = before
        key = (ResourceType.TOPIC, topic_id)
        if self.image.configs.get(key) or self.changed_configs.get(key):
            self.changed_configs[key] = {}

    def _add_partition(self, record: PartitionRecord, offset: MetadataOffset) -> None:
        topic = self._topic(record.topic_id)
        assert record.partition == len(topic.partitions) < topic.partitions_count, record
        since = record.leader_epoch_offset
        share = self._share
        topic.partitions.append(
            PartitionRegistration(
                replicas=share(record.replicas),
                directories=share(record.directories),
                isr=share(record.isr),
                elr=share(record.elr),
                leader=record.leader,
                leader_epoch=record.leader_epoch,
                partition_epoch=record.partition_epoch,
                leader_epoch_offset=offset if since is None else since,
                adding=record.adding,
                removing=record.removing,
                last_known_elr=record.last_known_elr,
                last_known_leader=record.last_known_leader,
                unclean_epoch=record.unclean_epoch,
            )
        )
        topic.changed.add(record.partition)

    def _change_partition(self, record: PartitionChangeRecord, offset: MetadataOffset) -> None:
        topic = self._topic(record.topic_id)
        before = topic.partitions[record.partition]
        assert record.partition_epoch == before.partition_epoch + 1, (before, record)
        assert before.leader_epoch <= record.leader_epoch <= before.leader_epoch + 1, record
        new_epoch = record.leader_epoch > before.leader_epoch
        assert new_epoch or (record.leader == before.leader and not record.unclean), record
        share = self._share
        topic.partitions[record.partition] = PartitionRegistration(
            replicas=share(record.replicas or before.replicas),
            directories=share(record.directories),
            isr=share(record.isr),
            elr=share(record.elr),
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            leader_epoch_offset=offset if new_epoch else before.leader_epoch_offset,
            adding=record.adding,
            removing=record.removing,
            last_known_elr=record.last_known_elr,
            last_known_leader=record.last_known_leader,
            unclean_epoch=record.leader_epoch if record.unclean else before.unclean_epoch,
        )
        topic.changed.add(record.partition)

    def _share(self, value: tuple[T, ...]) -> tuple[T, ...]:
        """Return one object for equal tuples.

        100,000 partitions have few distinct lists of replicas and disks.

        Sharing them saves two thirds of the memory of an image that was decoded from JSON.
        """
        return cast("tuple[T, ...]", self._shared.setdefault(value, value))

    def _topics(self) -> tuple[Mapping[TopicId, TopicImage], Mapping[TopicName, TopicId]]:
        topics = patched(
            self.image.topics,
            {topic_id: topic.image() for topic_id, topic in self.changed_topics.items()},
            self.deleted_topics,
        )
        if not self.created_topics and not self.deleted_topics:
            return topics, self.image.topic_ids
        topic_ids = patched(
            self.image.topic_ids, {}, {topic.name for topic in self.deleted_topics.values()}
        )
        created = {
            topic.name: topic_id
            for topic_id, topic in self.changed_topics.items()
            if topic_id in self.created_topics
        }
        assert not created.keys() & topic_ids.keys(), created
        return topics, patched(topic_ids, created, ())

    # ---- configs, feature level

    def _set_config(self, record: ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        configs = self.changed_configs.get(key)
        if configs is None:
            configs = self.changed_configs[key] = dict(self.image.configs.get(key, {}))
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value

    def _configs(self) -> Mapping[ConfigKey, Mapping[str, str]]:
        changed: dict[ConfigKey, Mapping[str, str]] = {
            key: MappingProxyType(dict(configs))
            for key, configs in self.changed_configs.items()
            if configs
        }
        emptied = {key for key, configs in self.changed_configs.items() if not configs}
        return patched(self.image.configs, changed, emptied)

    def _set_feature_level(self, level: int) -> None:
        check_supported(level)
        self._feature_level = level


def delta_between(before: MetadataImage, after: MetadataImage) -> MetadataDelta:
    """Return the delta that leads from one image to any other; unchanged parts are left out."""
    delta = MetadataDelta(before)
    delta._feature_level = after.feature_level  # noqa: SLF001 the delta's other constructor
    delta._next_producer_id = after.next_producer_id  # noqa: SLF001
    delta.security = SecurityDelta.between(before, after)
    delta.changed_brokers = {
        broker_id: broker
        for broker_id, broker in after.brokers.items()
        if before.brokers.get(broker_id) != broker
    }
    delta.removed_brokers = set(before.brokers.keys() - after.brokers.keys())
    delta.deleted_topics = {
        topic_id: topic for topic_id, topic in before.topics.items() if topic_id not in after.topics
    }
    delta.created_topics = set(after.topics.keys() - before.topics.keys())
    for topic_id, topic in after.topics.items():
        old = before.topics.get(topic_id)
        if old == topic:
            continue
        changed = delta.changed_topics[topic_id] = TopicDelta.of(topic)
        known = () if old is None else old.partitions
        changed.changed = {
            PartitionId(index)
            for index, partition in enumerate(topic.partitions)
            if index >= len(known) or known[index] != partition
        }
    for key in before.configs.keys() | after.configs.keys():
        if before.configs.get(key) != after.configs.get(key):
            delta.changed_configs[key] = dict(after.configs.get(key, {}))
    return delta


class MetadataPublisher(Protocol):
    """A component that reacts to a change of the image, on the thread that changed it."""

    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """React to ``delta``, which leads from ``delta.image`` to ``image``.

        Called in the order of the log, for every change, never skipped: the first delta starts from
        the empty image, each later one where the previous one ended. Must not block. An exception
        ends the node, because a publisher that missed a change can't be trusted any more.
        """
        ...


def publish(
    publishers: Iterable[MetadataPublisher], delta: MetadataDelta, image: MetadataImage
) -> None:
    """Notify every publisher, in order."""
    for publisher in publishers:
        publisher.on_metadata_update(delta, image)
