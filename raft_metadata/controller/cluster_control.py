"""Brokers: registration, fencing, controlled shutdown, unregistration, blocks of producer ids.

Pure deciders (decision D1). A registration and a fence are appended alone, each in a batch of its
own; their consequences for partitions are derived from the image afterwards (rule M4,
``partition_change.heal``). Only an operator unregisters a broker. No controller hands out a block
of producer ids twice (invariant T5).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    MetadataOffset,
)
from raft_metadata.controller.broker_views import NO_DAMAGED_REPLICAS, BrokerViews, DamagedReplicas
from raft_metadata.controller.feature_control import check_follows
from raft_metadata.controller.partition_change import heal, may_be_relieved
from raft_metadata.controller.partition_draft import partition_at
from raft_metadata.controller.topic_rules import TopicDefaults, TopicRules
from raft_metadata.image.metadata_image import BrokerRegistration, MetadataImage, find_broker
from raft_metadata.records.commands import (
    AllocateProducerIds,
    AlterAnswer,
    BrokerRegistered,
    ProducerIdBlock,
    RegisterBroker,
    UnregisterBroker,
)
from raft_metadata.records.partition_set import PartitionRange, PartitionSet
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

UNCLEAN_RANGES_MAX = 8_000
"""Unclean ranges in a registration: 49 bytes each at most, 383 KiB, so that its one record fits a
batch."""
PARTITION_ID_MAX = 2**31 - 1

Change = tuple[BrokerRegistrationChangeRecord, ...]


def decide_register_broker(
    image: MetadataImage,
    command: RegisterBroker,
    *,
    cluster_id: ClusterId,
    session_is_valid: bool,
) -> tuple[tuple[RegisterBrokerRecord, ...], BrokerRegistered]:
    """Register a broker process; its broker epoch is the offset of the record.

    ``session_is_valid``: True if the process registered under this id now has a valid session.
    Raises INCONSISTENT_CLUSTER_ID, INVALID_REQUEST, UNSUPPORTED_VERSION, STALE_BROKER_EPOCH and
    DUPLICATE_BROKER_REGISTRATION.
    """
    if command.cluster_id != cluster_id:
        message = f"broker {command.broker_id} is of cluster {command.cluster_id}, not {cluster_id}"
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID, message)
    _check_registration(command)
    check_follows(image, command.broker_id, command.feature_level_max)
    present = image.brokers.get(command.broker_id)
    if present is not None:
        if present.incarnation_id == command.incarnation_id:
            return (), BrokerRegistered(broker_epoch=present.broker_epoch)
        _check_not_overtaken(command, present.broker_epoch)
        if session_is_valid and present.state is not BrokerState.FENCED:
            message = f"broker {command.broker_id}: the session of its last process is still valid"
            raise KafkaError(ErrorCode.DUPLICATE_BROKER_REGISTRATION, message)
    else:
        _check_not_overtaken(command, UNKNOWN_BROKER_EPOCH)
    unclean_ranges = _unclean_ranges(command)
    epoch = BrokerEpoch(image.next_offset)
    record = RegisterBrokerRecord(
        broker_id=command.broker_id,
        broker_epoch=epoch,
        incarnation_id=command.incarnation_id,
        directory_id=command.directory_id,
        http=command.http,
        peer=command.peer,
        rack=command.rack,
        unclean_ranges=unclean_ranges,
        feature_level_max=command.feature_level_max,
        min_insync_replicas=command.min_insync_replicas,
    )
    return (record,), BrokerRegistered(broker_epoch=epoch)


def _check_registration(command: RegisterBroker) -> None:
    if command.broker_id < 0 or not (command.incarnation_id and command.directory_id):
        message = "a registration needs a broker id >= 0, an incarnation id and a directory id"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _unclean_ranges(command: RegisterBroker) -> tuple[PartitionRange, ...]:
    """Return the unclean ranges, sorted and merged; raise INVALID_REQUEST for too many."""
    for one in command.unclean_ranges:
        if not 0 <= one.first <= one.last <= PARTITION_ID_MAX:
            message = f"unclean range {one.first} to {one.last} of {one.topic_id[:22]} is none"
            raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    unclean = PartitionSet.of(ranges=command.unclean_ranges)
    if len(unclean.ranges) > UNCLEAN_RANGES_MAX:
        message = (
            f"{unclean.count} unclean partitions in {len(unclean.ranges)} ranges, at most "
            f"{UNCLEAN_RANGES_MAX} ranges can be registered"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
    return unclean.ranges


def _check_not_overtaken(command: RegisterBroker, present: BrokerEpoch) -> None:
    """Raise STALE_BROKER_EPOCH unless the registration was made on the present broker epoch.

    By this compare-and-set a late registration of an old disk removes no replica (rule R6).
    """
    if command.last_broker_epoch != present:
        message = (
            f"broker {command.broker_id} saw broker epoch {command.last_broker_epoch}, "
            f"the registered one is {present}"
        )
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, message)


def check_broker_epoch(
    image: MetadataImage, broker_id: BrokerId, broker_epoch: BrokerEpoch
) -> BrokerRegistration:
    """Return the registration with this epoch.

    Raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH.
    """
    present = find_broker(image, broker_id)
    if present.broker_epoch != broker_epoch:
        message = (
            f"broker {broker_id} has broker epoch {broker_epoch}, "
            f"the registered one is {present.broker_epoch}"
        )
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, message)
    return present


# ---- changes of state


def decide_fence(image: MetadataImage, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> Change:
    """Fence the registration whose session expired, by one record, alone and first (rule M4)."""
    broker = image.brokers.get(broker_id)
    if broker is None or broker.broker_epoch != broker_epoch:
        return ()
    if broker.state is BrokerState.FENCED:
        return ()
    return (_change(broker, state=BrokerState.FENCED),)


def decide_unfence(
    image: MetadataImage,
    broker_id: BrokerId,
    *,
    metadata_offset: MetadataOffset,
    defaults: TopicDefaults,
    damaged_replicas: DamagedReplicas = NO_DAMAGED_REPLICAS,
) -> Change:
    """Unfence a live broker once all changes due to it are recorded (rule M4).

    It must have seen its own registration, and no partition may still owe a change to it: because
    of an old leadership or another disk at a registration, or a place in an ISR at a fence.
    """
    broker = image.brokers[broker_id]
    if broker.state not in (BrokerState.STARTING, BrokerState.FENCED) or not broker.settled:
        return ()
    if metadata_offset <= broker.broker_epoch:
        return ()
    if owes_changes(image, broker_id, defaults, damaged_replicas):
        return ()
    return (_change(broker, state=BrokerState.UNFENCED),)


def decide_settled(
    image: MetadataImage,
    broker_id: BrokerId,
    *,
    defaults: TopicDefaults,
    damaged_replicas: DamagedReplicas = NO_DAMAGED_REPLICAS,
) -> Change:
    """Mark the broker settled once all consequences of its registration are recorded (rule M4)."""
    broker = image.brokers[broker_id]
    if broker.settled or owes_changes(image, broker_id, defaults, damaged_replicas):
        return ()
    return (_change(broker, settled=True),)


def decide_controlled_shutdown(image: MetadataImage, broker_id: BrokerId) -> Change:
    """Move an unfenced broker that wants to shut down to CONTROLLED_SHUTDOWN.

    From then on it is not elected and gives up leaderships and ISR places where it can (rule R11).
    """
    broker = image.brokers[broker_id]
    if broker.state is not BrokerState.UNFENCED:
        return ()
    return (_change(broker, state=BrokerState.CONTROLLED_SHUTDOWN),)


def _change(
    broker: BrokerRegistration, *, state: BrokerState | None = None, settled: bool | None = None
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        state=broker.state if state is None else state,
        settled=broker.settled if settled is None else settled,
    )


def owes_changes(
    image: MetadataImage,
    broker_id: BrokerId,
    defaults: TopicDefaults,
    damaged_replicas: DamagedReplicas = NO_DAMAGED_REPLICAS,
) -> bool:
    """Return True if a partition of this broker still owes a change to the brokers' present state.

    ``damaged_replicas`` may not be elected; they are the same as for the decider of the changes.
    """
    # Changes that depend on brokers' reports are not owed: assume that no broker has reported.
    views = BrokerViews.of(
        image.brokers, damaged_replicas=damaged_replicas, complete_reporters=frozenset()
    )
    for topic in image.topics.values():
        rules = TopicRules(image, topic, defaults)
        for index, partition in enumerate(topic.partitions):
            if broker_id in partition.replicas and heal(
                views, partition_at(topic.topic_id, index), partition, rules
            ):
                return True
    return False


# ---- controlled shutdown


@dataclass(frozen=True, slots=True)
class ShutdownProgress:
    """The progress of a broker in controlled shutdown."""

    led: int
    """Partitions it still leads."""
    waiting: int
    """Partitions whose ISR it can't leave yet and that another replica may still join."""
    example: str
    """The first of these partitions with the reason; empty if there is none."""


def shutdown_progress(
    image: MetadataImage, broker_id: BrokerId, defaults: TopicDefaults
) -> ShutdownProgress:
    """Return the partitions that still hold a broker in controlled shutdown (rule R11)."""
    led = waiting = 0
    example = ""
    for where, leads, min_isr in _blocking_partitions(image, broker_id, defaults):
        led += int(leads)
        waiting += int(not leads)
        if not example:
            reason = "no other replica in sync" if leads else f"min ISR {min_isr} needs it"
            example = f"{where}: {reason}"
    return ShutdownProgress(led, waiting, example)


def _blocking_partitions(
    image: MetadataImage, broker_id: BrokerId, defaults: TopicDefaults
) -> Iterator[tuple[str, bool, int]]:
    """Yield (partition name, is led by the broker, min ISR) for each partition that holds it."""
    for topic in image.topics.values():
        rules = TopicRules(image, topic, defaults)
        for index, partition in enumerate(topic.partitions):
            min_isr = rules.min_isr(partition.replication_factor)
            where = f"{topic.name}-{index}"
            if partition.leader == broker_id:
                yield where, True, min_isr
            elif (
                broker_id in partition.isr
                and partition.has_leader  # without a leader no replica is ever proposed for the ISR
                and may_be_relieved(image.brokers, partition, broker_id)
            ):
                yield where, False, min_isr


_NAMED_MAX = 5
"""Partitions that an error names at most, of all that it counts."""


def decide_unregister_broker(
    image: MetadataImage, command: UnregisterBroker
) -> tuple[tuple[UnregisterBrokerRecord, ...], AlterAnswer]:
    """Remove a broker's registration and configs; its id may register anew, as a new broker.

    Unlike Kafka's, this refuses a broker that is not fenced: a live process would only register
    again. Raises BROKER_ID_NOT_REGISTERED; POLICY_VIOLATION while it lives or holds a replica.
    """
    broker = find_broker(image, command.broker_id)
    held = _held_by(image, command.broker_id)
    if held:
        named = ", ".join(islice(held, _NAMED_MAX))
        more = ", …" if len(held) > _NAMED_MAX else ""
        message = (
            f"broker {command.broker_id} holds {len(held)} replicas ({named}{more}): "
            "drain it of its replicas first"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    if broker.state is not BrokerState.FENCED:
        message = (
            f"broker {command.broker_id} is {broker.state.value}, not fenced: stop it first, "
            "or it would register again"
        )
        raise KafkaError(ErrorCode.POLICY_VIOLATION, message)
    record = UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch)
    return (record,), AlterAnswer(next_offset=image.offset_after(1))


def _held_by(image: MetadataImage, broker_id: BrokerId) -> list[str]:
    """Return the partitions with a replica on the broker, those being added or removed included."""
    return [
        f"{topic.name}-{index}"
        for topic in image.topics.values()
        for index, partition in enumerate(topic.partitions)
        if broker_id in partition.replicas
    ]


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
