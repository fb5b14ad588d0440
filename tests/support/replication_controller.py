"""The controller of a simulated partition: the product's deciders on the product's images.

Linearizable and lossless itself; what reaches it and what it answers may be lost or late: that is
the world's network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.replication.isr_state import IsrChange
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.controller.broker_views import DamagedReplicas
from raft_metadata.controller.cluster_control import (
    decide_controlled_shutdown,
    decide_fence,
    decide_register_broker,
    decide_settled,
    decide_unfence,
    shutdown_progress,
)
from raft_metadata.controller.controller import Controller as Mind
from raft_metadata.controller.controller import ControllerConfig
from raft_metadata.controller.partition_draft import PartitionDraft
from raft_metadata.controller.reassignment_control import decide_alter_reassignments
from raft_metadata.controller.replication_control import (
    decide_alter_partition,
    decide_consequences,
)
from raft_metadata.controller.topic_rules import TopicDefaults
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration
from raft_metadata.records.commands import (
    AlterPartition,
    AlterReassignments,
    BrokerHeartbeat,
    DamagedReplica,
    Reassignment,
    RegisterBroker,
)
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.partition_set import PartitionSet
from raft_metadata.records.records import (
    BrokerState,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionRecord,
    ResourceType,
    TopicRecord,
)
from tests.support.replica_bytes import TOPIC

if TYPE_CHECKING:
    from tests.support.replication_broker import Broker
    from tests.support.replication_world import World

MIN_ISR = 2
DEFAULTS = TopicDefaults(default_replication_factor=3, min_insync_replicas=MIN_ISR)
CLUSTER = ClusterId("simulated")
HERE = TopicIdPartition(TOPIC, PartitionId(0))
EPOCH = ControllerEpoch(1)


def is_os(image: MetadataImage) -> bool:
    return image.topic_configs(TOPIC).get("flush") == "os"


class Controller:
    """Decides at once, on the newest image."""

    def __init__(self, world: World, replicas: tuple[BrokerId, ...]) -> None:
        self.world = world
        config = ControllerConfig(
            cluster_id=CLUSTER,
            defaults=DEFAULTS,
            broker_session_timeout_ms=1 << 40,  # who is fenced the world decides
            broker_disconnect_grace_ms=1 << 40,
        )
        count = 2 if world.features.rots else 1
        self.minds = [Mind(config, bytes, 0) for _ in range(count)]
        """What each controller has heard of the brokers: soft state, with whoever is active."""
        self.active = 0
        self.images = [MetadataImage()]
        self.commit([FeatureLevelRecord(level=SUPPORTED_FEATURE_LEVEL)])
        for b in world.ids:
            self.register(b, f"life{b}", f"disk{b}.0", unclean=False, last_seen=-1)
        partition = PartitionRecord(
            topic_id=TOPIC,
            partition=PartitionId(0),
            replicas=replicas,
            directories=tuple(DirectoryId(f"disk{b}.0") for b in replicas),
            isr=replicas,
            elr=(),
            leader=replicas[0],
            leader_epoch=LeaderEpoch(0),
            partition_epoch=PartitionEpoch(0),
        )
        topic = TopicRecord(name=TopicName("t"), topic_id=TOPIC, partitions_count=1)
        self.commit([topic, partition])
        for b in world.ids:
            for mind in (*range(count), 0):
                self.heartbeat(
                    BrokerHeartbeat(
                        broker_id=b,
                        broker_epoch=self.image.brokers[b].broker_epoch,
                        metadata_offset=self.image.next_offset,
                    ),
                    mind,
                )

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    @property
    def partition(self) -> PartitionRegistration:
        found = self.image.partition(*HERE)
        assert found is not None
        return found

    def commit(self, records: list[MetadataRecord]) -> None:
        """One batch becomes the next image."""
        if not records:
            return
        before = self.image.partition(*HERE)
        delta = MetadataDelta(self.image)
        delta.replay_all(records, self.image.next_offset)
        end = MetadataOffset(self.image.next_offset + len(records))
        self.images.append(delta.apply(end, EPOCH))
        if before is not None and self.partition.unclean_epoch > before.unclean_epoch:
            self.world.judge.elected_uncleanly(self.partition.unclean_epoch)

    def configure(self, name: str, value: str) -> None:
        record = ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name=TOPIC, name=name, value=value
        )
        self.commit([record])

    # requests of brokers

    def register(
        self, b: BrokerId, incarnation: str, directory: str, *, unclean: bool, last_seen: int
    ) -> None:
        command = RegisterBroker(
            broker_id=b,
            cluster_id=CLUSTER,
            incarnation_id=IncarnationId(incarnation),
            directory_id=DirectoryId(directory),
            http="",
            peer="",
            unclean_ranges=PartitionSet.of((HERE,)).ranges if unclean else (),
            last_broker_epoch=BrokerEpoch(last_seen),
            feature_level_max=SUPPORTED_FEATURE_LEVEL,
            min_insync_replicas=MIN_ISR,
        )
        try:
            records, _ = decide_register_broker(
                self.image,
                command,
                cluster_id=CLUSTER,
                session_is_valid=self.world.rng.random() < 0.5,
            )
        except KafkaError:
            return
        self.commit(list(records))

    def heartbeat(self, command: BrokerHeartbeat, mind: int) -> None:
        """Every controller hears it, the active one decides."""
        b, is_active = command.broker_id, mind == self.active
        try:
            self.minds[mind].heartbeat(self.image, command, 0, is_active=is_active)
        except KafkaError:
            return
        known = self.image.brokers.get(b)
        if not is_active or known is None or known.broker_epoch != command.broker_epoch:
            return
        self.record_settled(b)
        self.commit(
            list(
                decide_unfence(
                    self.image,
                    b,
                    metadata_offset=command.metadata_offset,
                    defaults=DEFAULTS,
                    damaged_replicas=self.failed(),
                )
            )
        )

    def failed(self) -> DamagedReplicas:
        """Damaged replicas, as the active controller has heard of them."""
        return self.minds[self.active].damaged_replicas(self.image)

    def heard(self) -> dict[BrokerId, MetadataOffset]:
        """How far each broker said last that it has read (rule G3)."""
        mind = self.minds[self.active]
        return {b: mind.metadata_offset(broker) for b, broker in self.image.brokers.items()}

    def misses(self, broker: Broker, reports: tuple[DamagedReplica, ...]) -> bool:
        """Whether a controller knows less of a broker's damaged replicas than this, or more."""
        if reports:
            return True
        return any(
            broker.id not in mind.brokers_with_complete_report(self.image)
            or broker.id in mind.damaged_replicas(self.image).get(HERE, {})
            for mind in self.minds
        )

    def take_over(self) -> None:
        """Another controller is elected, with what it has heard itself."""
        self.active = (self.active + 1) % len(self.minds)

    def leave(self, b: BrokerId, broker_epoch: int) -> None:
        """A heartbeat that asks for a controlled shutdown; answered once nothing holds it."""
        known = self.image.brokers.get(b)
        if known is None or known.broker_epoch != broker_epoch:
            return
        self.commit(list(decide_controlled_shutdown(self.image, b)))
        self.settle(b)
        progress = shutdown_progress(self.image, b, DEFAULTS)
        if self.image.brokers[b].state is BrokerState.CONTROLLED_SHUTDOWN and not (
            progress.led or progress.waiting
        ):
            self.world.send(b, "on_may_leave", broker_epoch)

    def alter_partition(self, b: BrokerId, command: AlterPartition, proposal: IsrChange) -> None:
        try:
            records, answer = decide_alter_partition(self.image, command, defaults=DEFAULTS)
        except KafkaError:
            self.world.send(b, "on_alter_refused", proposal)
            return
        self.world.judge.joined(command)
        self.commit(list(records))
        self.world.send(b, "on_alter_accepted", proposal, answer.partition_epoch, answer.isr)

    # its own decisions

    def fence(self, b: BrokerId) -> None:
        self.commit(list(decide_fence(self.image, b, self.image.brokers[b].broker_epoch)))

    def settle(self, b: BrokerId) -> None:
        """What the image owes, as one bounded batch; then the registration may count as settled."""
        found = decide_consequences(
            self.image,
            [HERE],
            defaults=DEFAULTS,
            changes_max=1,
            reported_offsets=self.heard(),
            damaged_replicas=self.failed(),
            complete_reporters=self.minds[self.active].brokers_with_complete_report(self.image),
        )
        before = self.partition
        self.commit(list(found.records))
        self.world.judge.who_went(before)
        self.record_settled(b)

    def record_settled(self, b: BrokerId) -> None:
        """Rule R6: the mark of damage goes once the registration that reported it is settled."""
        failed = self.failed()
        records = list(decide_settled(self.image, b, defaults=DEFAULTS, damaged_replicas=failed))
        self.commit(records)
        if records and self.image.brokers[b].unclean_partitions:
            self.world.brokers[b].store.recorded()

    def move(self, to: BrokerId) -> None:
        """Hand leadership to another member of the ISR."""
        p = self.partition
        unfenced = self.image.brokers[to].state is BrokerState.UNFENCED
        if to in p.isr and to != p.leader and unfenced:
            draft = PartitionDraft.of(p)
            draft.lead(to)
            self.commit([draft.record(HERE)])

    def reassign(self, replicas: tuple[BrokerId, ...] | None) -> bool:
        """Whether a reassignment was begun, changed or cancelled (None)."""
        change = Reassignment(topic=TopicName("t"), partition=PartitionId(0), replicas=replicas)
        try:
            records, _ = decide_alter_reassignments(
                self.image, AlterReassignments(changes=(change,)), defaults=DEFAULTS
            )
        except KafkaError:
            return False
        self.commit(list(records))
        return bool(records)
