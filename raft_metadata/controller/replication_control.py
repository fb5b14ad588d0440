"""ISR changes of leaders, and changes that partitions owe to brokers. Pure deciders.

`Controller` passes `AlterPartitions` commands here, and the partitions that may owe a change to
`decide_consequences`, which applies `heal` to each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from raft_metadata.common.configs.table import (
    FLUSH,
    MIN_INSYNC_REPLICAS,
    UNCLEAN_LEADER_ELECTION_ENABLE,
)
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.controller.broker_views import (
    NO_DAMAGED_REPLICAS,
    NO_REPORTED_OFFSETS,
    BrokerViews,
    CompleteReporters,
    DamagedReplicas,
    ReportedOffsets,
    is_electable,
)
from raft_metadata.controller.cluster_control import check_broker_epoch
from raft_metadata.controller.partition_change import heal, unaware_damaged_replicas
from raft_metadata.controller.partition_draft import PartitionDraft, partition_at
from raft_metadata.controller.reassignment_control import unaware_removed_replicas
from raft_metadata.controller.topic_rules import TopicDefaults, TopicRules
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import (
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from raft_metadata.records.commands import (
    MAX_ISR_CHANGES_PER_COMMAND,
    AlterPartition,
    AlterPartitionAnswer,
    AlterPartitions,
    PartitionAltered,
    PartitionsAltered,
)
from raft_metadata.records.records import (
    BrokerState,
    MetadataRecord,
    PartitionChangeRecord,
    ResourceType,
)
from raft_metadata.records.serde import encode_record

_RULES = (MIN_INSYNC_REPLICAS, FLUSH, UNCLEAN_LEADER_ELECTION_ENABLE)
"""Configs that determine which replicas are eligible and may lead."""


def decide_alter_partition(
    image: MetadataImage,
    command: AlterPartition,
    *,
    defaults: TopicDefaults,
    leader_knows_min_isr: bool = True,
) -> tuple[tuple[PartitionChangeRecord, ...], PartitionAltered]:
    """Accept an ISR proposed by the leader iff nothing on which the leader decided has changed.

    The partition epoch grows even if the ISR is the same: so a leader makes sure that no earlier
    ISR change of its own can still be accepted (rule M3). ``leader_knows_min_isr``: True if the
    leader has applied the last change of the topic's min ISR; see `MinIsrHistory`.
    """
    sender = check_broker_epoch(image, command.broker_id, command.broker_epoch)
    topic, partition = _find(image, command)
    _check_epochs(command, partition)
    if sender.state not in (BrokerState.UNFENCED, BrokerState.CONTROLLED_SHUTDOWN):
        message = f"leader {sender.broker_id} is {sender.state.value}"
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, message)
    _check_new_isr(image, command, partition)
    proposed = {member.broker_id for member in command.new_isr}
    draft = PartitionDraft.of(partition)
    draft.isr = tuple(replica for replica in partition.replicas if replica in proposed)
    min_isr = TopicRules(image, topic, defaults).min_isr(partition.replication_factor)
    if len(draft.isr) < min(min_isr, len(partition.isr)) and not leader_knows_min_isr:
        message = f"leader {sender.broker_id} has not applied yet that min ISR is {min_isr}"
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)
    draft.keep_eligible(min_isr)
    record = draft.record(partition_at(command.topic_id, command.partition))
    answer = PartitionAltered(
        leader_epoch=LeaderEpoch(partition.leader_epoch),
        partition_epoch=PartitionEpoch(record.partition_epoch),
        isr=draft.isr,
    )
    return (record,), answer


def decide_each(
    command: AlterPartitions,
    decide: Callable[[AlterPartition], tuple[tuple[MetadataRecord, ...], PartitionAltered]],
    *,
    batch_bytes_max: int,
) -> tuple[tuple[MetadataRecord, ...], PartitionsAltered]:
    """Judge each attempt alone, on one image: a refusal concerns that attempt only (rule M3).

    No two attempts are for one partition, so none depends on another one's outcome. The accepted
    ones fit into one batch of the log: all of them are appended, or none.
    """
    if len(command.attempts) > MAX_ISR_CHANGES_PER_COMMAND:
        message = f"{len(command.attempts)} attempts, at most {MAX_ISR_CHANGES_PER_COMMAND} at once"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    records: list[MetadataRecord] = []
    answers: list[AlterPartitionAnswer] = []
    seen: set[tuple[TopicId, int]] = set()
    size = 0
    for attempt in command.attempts:
        where = attempt.topic_id, attempt.partition
        try:
            if where in seen:
                message = "another attempt of this command is for the same partition"
                raise KafkaError(ErrorCode.INVALID_REQUEST, message)
            seen.add(where)
            decided, altered = decide(attempt)
            size += sum(len(encode_record(record)) + 1 for record in decided)
            if size > batch_bytes_max:
                message = f"the attempts before it fill a batch of {batch_bytes_max} bytes"
                raise KafkaError(ErrorCode.QUEUE_FULL, message)
        except KafkaError as error:
            answers.append(AlterPartitionAnswer(error=error.code.number, message=error.message))
        else:
            records += decided
            answers.append(AlterPartitionAnswer(altered=altered))
    return tuple(records), PartitionsAltered(answers=tuple(answers))


def _find(
    image: MetadataImage, command: AlterPartition
) -> tuple[TopicImage, PartitionRegistration]:
    topic = image.topics.get(command.topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, f"no topic has the id {command.topic_id}")
    partition = image.partition(command.topic_id, command.partition)
    if partition is None:
        message = f"topic {topic.name} has no partition {command.partition}"
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
    return topic, partition


def _check_epochs(command: AlterPartition, partition: PartitionRegistration) -> None:
    """Raise KafkaError if an epoch that the ISR change rests on has changed (invariants P6, P7)."""
    if (
        command.leader_epoch > partition.leader_epoch
        or command.partition_epoch > partition.partition_epoch
    ):
        # The sender has applied records that this controller lacks: this controller is behind.
        message = (
            f"the request knows leader epoch {command.leader_epoch}, partition epoch "
            f"{command.partition_epoch}; this controller {partition.leader_epoch}, "
            f"{partition.partition_epoch}"
        )
        raise KafkaError(ErrorCode.NOT_CONTROLLER, message)
    if command.leader_epoch < partition.leader_epoch:
        message = f"leader epoch {command.leader_epoch} is over, now {partition.leader_epoch}"
        raise KafkaError(ErrorCode.FENCED_LEADER_EPOCH, message)
    if command.broker_id != partition.leader:
        message = f"broker {command.broker_id} is not the leader, {partition.leader} is"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if command.partition_epoch < partition.partition_epoch:
        message = (
            f"partition epoch {command.partition_epoch} is over, now {partition.partition_epoch}"
        )
        raise KafkaError(ErrorCode.INVALID_UPDATE_VERSION, message)


def _check_new_isr(
    image: MetadataImage, command: AlterPartition, partition: PartitionRegistration
) -> None:
    """Raise KafkaError unless all members are replicas that may join, with the leader."""
    members = [member.broker_id for member in command.new_isr]
    if len(set(members)) != len(members) or not set(members) <= set(partition.replicas):
        message = f"ISR {members} is not a set of the replicas {list(partition.replicas)}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    if command.broker_id not in members:
        message = f"ISR {members} is without its leader {command.broker_id}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    for member in command.new_isr:
        if member.broker_id not in partition.isr:
            _check_may_join(image, partition, member.broker_id, member.broker_epoch)


def _check_may_join(
    image: MetadataImage,
    partition: PartitionRegistration,
    joiner: BrokerId,
    broker_epoch: int,
) -> None:
    """Raise INELIGIBLE_REPLICA unless this process and disk caught up (KIP-841, KIP-903)."""
    registration = image.brokers.get(joiner)
    recorded = partition.directories[partition.replicas.index(joiner)]
    problem = ""
    if registration is None:
        problem = "is not registered"
    elif registration.broker_epoch != broker_epoch:
        problem = f"has registered again: {registration.broker_epoch}, not {broker_epoch}"
    elif not is_electable(image.brokers, joiner):
        problem = f"is {registration.state.value}"
    elif registration.directory_id != recorded:
        problem = f"is on another disk than recorded: {registration.directory_id}, not {recorded}"
    if problem:
        raise KafkaError(ErrorCode.INELIGIBLE_REPLICA, f"broker {joiner} {problem}")


@dataclass(slots=True)
class MinIsrHistory:
    """The offsets since which topics have their min ISR: soft state of an active controller.

    A leader that has not applied a *higher* min ISR yet acknowledges records that it alone holds.
    Until it has, it must not shrink its ISR below the new value: the replicas that left would count
    as eligible, and one of them, once elected, would lack acknowledged records.
    """

    _since: dict[TopicId, MetadataOffset] = field(default_factory=dict)
    _all_since: MetadataOffset = MetadataOffset(0)

    def begin(self, image: MetadataImage) -> None:
        """Reset from a committed image, whose history is not known."""
        self._since.clear()
        self._all_since = image.next_offset

    def note(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Note the changes of min ISR in a delta."""
        for key, configs in delta.changed_configs.items():
            before = delta.image.configs.get(key, {}).get(MIN_INSYNC_REPLICAS)
            if configs.get(MIN_INSYNC_REPLICAS) == before:
                continue
            if key[0] is ResourceType.TOPIC:
                self._since[TopicId(key[1])] = image.next_offset
            else:
                self._all_since = image.next_offset
        for topic_id in delta.deleted_topics:
            self._since.pop(topic_id, None)

    def is_known_to(self, topic_id: TopicId, metadata_offset: int) -> bool:
        """Return True if a broker that applied all below ``metadata_offset`` knows the min ISR."""
        return metadata_offset >= max(self._all_since, self._since.get(topic_id, 0))


# ---- consequences


def concerned_topics(delta: MetadataDelta, image: MetadataImage) -> Iterable[TopicId]:
    """Return the topics whose partitions may owe a change because a config changed."""
    changed = [
        key
        for key, configs in delta.changed_configs.items()
        if any(configs.get(name) != delta.image.configs.get(key, {}).get(name) for name in _RULES)
    ]
    if any(kind is ResourceType.CLUSTER for kind, _ in changed):
        return tuple(image.topics)
    return tuple(TopicId(name) for _, name in changed if name in image.topics)


@dataclass(frozen=True, slots=True)
class Consequences:
    """A bounded batch of changes, valid alone."""

    records: tuple[PartitionChangeRecord, ...]
    seen: int
    """The number of partitions examined, from the first on; the others wait."""
    held: tuple[tuple[TopicIdPartition, BrokerId], ...] = ()
    """Partitions that wait until this broker has applied the present leader epoch."""


class PartitionQueue:
    """The partitions that may owe a change: soft state of an active controller.

    They are examined in order. One that waits until a broker has applied its leader epoch is set
    aside until that broker reports another metadata offset.
    """

    def __init__(self) -> None:
        self._queued: dict[TopicIdPartition, None] = {}
        self._waiting: dict[BrokerId, tuple[MetadataOffset, dict[TopicIdPartition, None]]] = {}
        """By broker: the metadata offset it had reported, and the partitions that wait for it."""

    @property
    def is_empty(self) -> bool:
        """True if no partition is to be examined now."""
        return not self._queued

    def begin(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Start anew with these partitions."""
        self._queued = dict.fromkeys(partitions)
        self._waiting.clear()

    def add(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Add partitions to examine; one that is queued keeps its place."""
        self._queued |= dict.fromkeys(partitions)

    def requeue(self, reported_offsets: ReportedOffsets) -> None:
        """Queue the partitions that waited for brokers with a new metadata offset, or gone."""
        for broker_id, (offset, partitions) in tuple(self._waiting.items()):
            if reported_offsets.get(broker_id) != offset:
                del self._waiting[broker_id]
                self._queued |= partitions

    def __iter__(self) -> Iterator[TopicIdPartition]:
        return iter(self._queued)

    def take(self, found: Consequences, reported_offsets: ReportedOffsets) -> None:
        """Remove the partitions that were examined and owe nothing; set aside those that wait.

        Partitions with a change stay until an image shows it: their batch may be rejected.
        """
        for where, broker_id in found.held:
            offset = reported_offsets[broker_id]
            self._waiting.setdefault(broker_id, (offset, {}))[1][where] = None
        owing = {(record.topic_id, record.partition) for record in found.records}
        for where in tuple(islice(self._queued, found.seen)):
            if where not in owing:
                del self._queued[where]


def decide_consequences(
    image: MetadataImage,
    partitions: Iterable[TopicIdPartition],
    *,
    defaults: TopicDefaults,
    changes_max: int,
    reported_offsets: ReportedOffsets = NO_REPORTED_OFFSETS,
    damaged_replicas: DamagedReplicas = NO_DAMAGED_REPLICAS,
    complete_reporters: CompleteReporters = None,
) -> Consequences:
    """Return the changes that these partitions owe to the present state of the brokers (rule M4).

    At most ``changes_max`` records: continue after the partitions examined, with the image that the
    records lead to. A deleted partition owes nothing.
    """
    views = BrokerViews.of(image.brokers, reported_offsets, damaged_replicas, complete_reporters)
    all_rules: dict[TopicId, TopicRules] = {}
    records: list[PartitionChangeRecord] = []
    held: list[tuple[TopicIdPartition, BrokerId]] = []
    seen = 0
    for where in partitions:
        seen += 1
        partition = image.partition(where.topic_id, where.partition)
        if partition is None:
            continue
        rules = all_rules.get(where.topic_id)
        if rules is None:
            rules = TopicRules(image, image.topics[where.topic_id], defaults)
            all_rules[where.topic_id] = rules
        record = heal(views, where, partition, rules)
        if record is not None:
            records.append(record)
            if len(records) == changes_max:
                break
        elif partition.removing or where in damaged_replicas:
            waited_for = {
                *unaware_removed_replicas(views, partition),
                *unaware_damaged_replicas(views, where, partition),
            }
            held += [(where, broker_id) for broker_id in sorted(waited_for)]
    return Consequences(tuple(records), seen, tuple(held))
