"""Questions about brokers' registrations that the deciders about partitions ask."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from raft_metadata.common.ids import BrokerId, MetadataOffset, TopicIdPartition
from raft_metadata.image.metadata_image import BrokerRegistration
from raft_metadata.records.commands import DamagedReplica
from raft_metadata.records.partition_set import PartitionSet
from raft_metadata.records.records import BrokerState, DrainScope

Brokers = Mapping[BrokerId, BrokerRegistration]
ReportedOffsets = Mapping[BrokerId, MetadataOffset]
"""The metadata offset each live broker last reported: it has applied every record below."""
NO_REPORTED_OFFSETS: ReportedOffsets = MappingProxyType({})
DamageByBroker = Mapping[BrokerId, DamagedReplica]
"""The damaged replicas of one partition, by broker."""
NO_DAMAGE: DamageByBroker = MappingProxyType({})
DamagedReplicas = Mapping[TopicIdPartition, DamageByBroker]
"""Damaged replicas by partition and broker, as live brokers report them; soft state of sessions."""
CompleteReporters = frozenset[BrokerId] | None
"""Live brokers that have reported all their damaged replicas; None: all brokers have."""
NO_DAMAGED_REPLICAS: DamagedReplicas = MappingProxyType({})


def is_electable(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Return True if the broker may be elected or join an ISR: it is UNFENCED (rule M4)."""
    registration = brokers.get(broker_id)
    return registration is not None and registration.state is BrokerState.UNFENCED


def is_starting(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Return True if the broker is STARTING: it keeps its places, is electable soon (rule M4)."""
    registration = brokers.get(broker_id)
    return registration is not None and registration.state is BrokerState.STARTING


def is_fenced(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Return True if the broker's session is over or it is not registered."""
    registration = brokers.get(broker_id)
    return registration is None or registration.state is BrokerState.FENCED


def is_drained(brokers: Brokers, broker_id: BrokerId) -> bool:
    """Return True if an operator wants the broker to lead nothing."""
    registration = brokers.get(broker_id)
    return registration is not None and registration.drain is not DrainScope.NONE


def has_complete_report(complete_reporters: CompleteReporters, broker_id: BrokerId) -> bool:
    """Return True if this controller knows which logs of a live broker are damaged.

    A controller that was just elected may not know. Until it does, nothing irreversible may rest on
    the assumption that the broker's logs are healthy.
    """
    return complete_reporters is None or broker_id in complete_reporters


def first_electable(
    brokers: Brokers,
    replicas: Iterable[BrokerId],
    among: Collection[BrokerId],
    damaged: Collection[BrokerId] = (),
) -> BrokerId | None:
    """Return the most preferred of ``among`` that may lead, or None.

    ``replicas`` is the order of preference. A drained broker is returned only if there is no other,
    a ``damaged`` one never.
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
    """Properties of brokers that `heal` needs, computed once for many partitions of an image."""

    brokers: Brokers
    unsettled: frozenset[BrokerId]
    """Brokers whose registration may require a change of any of their replicas."""
    leaving: frozenset[BrokerId]
    """Brokers that leave ISRs because they are fenced or in controlled shutdown."""
    unclean: Mapping[BrokerId, PartitionSet]
    """The unclean partitions of registrations that are not settled yet (rule R6)."""
    reported_offsets: ReportedOffsets
    """Soft state of sessions; a broker that is missing has not reported yet."""
    damaged_replicas: DamagedReplicas
    complete_reporters: CompleteReporters

    def damage_of(self, where: TopicIdPartition) -> DamageByBroker:
        """Return the reported damaged replicas of a partition."""
        return self.damaged_replicas.get(where, NO_DAMAGE)

    @classmethod
    def of(
        cls,
        brokers: Brokers,
        reported_offsets: ReportedOffsets = NO_REPORTED_OFFSETS,
        damaged_replicas: DamagedReplicas = NO_DAMAGED_REPLICAS,
        complete_reporters: CompleteReporters = None,
    ) -> BrokerViews:
        """Return the views of these registrations."""
        return cls(
            reported_offsets=reported_offsets,
            damaged_replicas=damaged_replicas,
            complete_reporters=complete_reporters,
            brokers=brokers,
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
