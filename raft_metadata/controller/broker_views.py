"""What deciders about partitions ask of brokers' registrations."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from raft_metadata.common.ids import BrokerId, MetadataOffset, TopicIdPartition
from raft_metadata.image.metadata_image import BrokerRegistration
from raft_metadata.records.commands import FailedReplica
from raft_metadata.records.partition_set import PartitionSet
from raft_metadata.records.records import BrokerState, DrainScope

Brokers = Mapping[BrokerId, BrokerRegistration]
Heard = Mapping[BrokerId, MetadataOffset]
"""By what each live broker last said: it has applied every record below this offset."""
NOTHING_HEARD: Heard = MappingProxyType({})
Failed = Mapping[TopicIdPartition, Mapping[BrokerId, FailedReplica]]
"""Damaged replicas, as the live brokers that hold them say: soft state of sessions, too."""
Told = frozenset[BrokerId] | None
"""Live brokers that have said all that is damaged of theirs; None: who is not named is sound."""
NOTHING_FAILED: Failed = MappingProxyType({})


def is_electable(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Whether the broker may be elected or join an ISR: it is UNFENCED (rule M4)."""
    registration = brokers.get(broker_id)
    return registration is not None and registration.state is BrokerState.UNFENCED


def is_starting(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Whether it is registered and will be electable soon: it keeps its places (rule M4)."""
    registration = brokers.get(broker_id)
    return registration is not None and registration.state is BrokerState.STARTING


def is_fenced(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Whether its session is over, or it is not registered at all."""
    registration = brokers.get(broker_id)
    return registration is None or registration.state is BrokerState.FENCED


def is_drained(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Whether an operator wants it to lead nothing."""
    registration = brokers.get(broker_id)
    return registration is not None and registration.drain is not DrainScope.NONE


def is_told_of(told: Told, broker_id: BrokerId) -> bool:
    """Whether this controller knows which logs of a live broker are damaged.

    One that began just now may not: then nothing is done that can't be undone in the belief that
    they are sound.
    """
    return told is None or broker_id in told


def first_electable(
    brokers: Brokers,
    replicas: Iterable[BrokerId],
    among: Collection[BrokerId],
    damaged: Collection[BrokerId] = (),
) -> BrokerId | None:
    """The most preferred of ``among`` that may lead; a drained one only if there is no other.

    None of the ``damaged`` ones.
    """
    drained = None
    for replica in replicas:
        if replica in among and replica not in damaged and is_electable(brokers, replica):
            if not is_drained(brokers, replica):
                return replica
            if drained is None:
                drained = replica
    return drained


@dataclass(frozen=True, slots=True)
class BrokerViews:
    """What ``partition_change.heal`` asks, computed once for many partitions of one image."""

    brokers: Brokers
    level: int
    """The feature level: below 2 nothing is said that an older node would misread."""
    unsettled: frozenset[BrokerId]
    """Brokers whose registration may mean a change to any of their replicas."""
    leaving: frozenset[BrokerId]
    """Brokers that leave ISRs: fenced, or in controlled shutdown."""
    unclean: Mapping[BrokerId, PartitionSet]
    """Unclean partitions of registrations that are not settled yet (rule R6)."""
    heard: Heard
    """Soft state of sessions; who is missing has said nothing yet."""
    failed: Failed
    told: Told

    @classmethod
    def of(
        cls,
        brokers: Brokers,
        level: int,
        heard: Heard = NOTHING_HEARD,
        failed: Failed = NOTHING_FAILED,
        told: Told = None,
    ) -> BrokerViews:
        """The views of these registrations."""
        return cls(
            heard=heard,
            failed=failed,
            told=told,
            brokers=brokers,
            level=level,
            unsettled=frozenset(
                broker_id for broker_id, broker in brokers.items() if not broker.settled
            ),
            leaving=frozenset(
                broker_id
                for broker_id, broker in brokers.items()
                if broker.state in (BrokerState.FENCED, BrokerState.CONTROLLED_SHUTDOWN)
            ),
            unclean={
                broker_id: broker.unclean_partitions
                for broker_id, broker in brokers.items()
                if not broker.settled and broker.unclean_partitions
            },
        )
