"""The deciding core of one controller on a clock of the test, and the invariants it must keep.

Nothing is replicated here: what is decided is folded at once. Every fold is checked against the
invariants P1 to P5, P8, P11 and C1 to C4 (docs/claims.md); a broken one is an AssertionError.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from raft_metadata.common.ids import (
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    MetadataOffset,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
    id_from_bytes,
)
from raft_metadata.controller.controller import Controller, ControllerConfig
from raft_metadata.controller.topic_rules import TopicDefaults
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import (
    MetadataImage,
    PartitionRegistration,
)
from raft_metadata.records.commands import (
    A,
    AlterPartition,
    AlterReassignments,
    BrokerHeartbeat,
    Command,
    CreateTopic,
    DamagedReplica,
    DeleteTopic,
    DrainBroker,
    Election,
    ElectionResult,
    ElectLeaders,
    HeartbeatAnswer,
    IsrMember,
    PartitionAltered,
    PartitionPlace,
    Reassignment,
    RegisterBroker,
    TopicCreated,
    next_page,
    replica_partition,
)
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.partition_set import PartitionRange, PartitionSet
from raft_metadata.records.records import BrokerState, DrainScope, MetadataRecord
from raft_metadata.records.serde import decode_batch, encode_batch
from tests.support.controller_invariants import Invariants

CLUSTER = ClusterId("QuorumlogTestCluster01")
BROKERS = tuple(map(BrokerId, (1, 2, 3)))
TICK_MS = 50


def topic_id(number: int) -> TopicId:
    """A topic id that says its number."""
    return TopicId(id_from_bytes(number.to_bytes(16, "big")))


def config(
    *,
    replicas: int = 3,
    min_isr: int = 2,
    partitions: int = 1,
    per_batch: int = 1_000,
    **limits: int,
) -> ControllerConfig:
    """The cluster of the tests: three replicas, two of them in sync."""
    return ControllerConfig(
        cluster_id=CLUSTER,
        defaults=TopicDefaults(
            num_partitions=partitions,
            default_replication_factor=replicas,
            min_insync_replicas=min_isr,
            partitions_per_batch_max=per_batch,
        ),
        completion_wait_max_ms=4_000,
        **limits,
    )


def registration(
    broker: BrokerId,
    *,
    life: str = "a",
    disk: str = "",
    last: int = UNKNOWN_BROKER_EPOCH,
    unclean: Iterable[TopicIdPartition] = (),
    ranges: Iterable[PartitionRange] = (),
    rack: str | None = None,
    level: int = SUPPORTED_FEATURE_LEVEL,
    min_isr: int = 3,
) -> RegisterBroker:
    """A broker's announcement: ``life`` is its process, ``disk`` its directory id."""
    return RegisterBroker(
        broker_id=broker,
        cluster_id=CLUSTER,
        incarnation_id=IncarnationId(f"life-{broker}-{life}"),
        directory_id=DirectoryId(disk or f"disk-{broker}"),
        http=f"127.0.0.1:{8081 + broker}",
        peer=f"127.0.0.1:{9081 + broker}",
        rack=rack,
        unclean_ranges=PartitionSet.of(unclean, ranges).ranges,
        last_broker_epoch=BrokerEpoch(last),
        feature_level_max=level,
        min_insync_replicas=min_isr,
    )


@dataclass
class World:
    """One active controller without a quorum. ``alive`` brokers heartbeat on every tick."""

    config: ControllerConfig = field(default_factory=config)
    image: MetadataImage = field(default_factory=MetadataImage)
    seed: int = 0

    def __post_init__(self) -> None:
        self.now_ms = 0
        self.alive: dict[BrokerId, BrokerEpoch] = {}
        self.behind: dict[BrokerId, MetadataOffset] = {}
        """Brokers that read no more of the metadata log: up to where they have."""
        self.failed: dict[BrokerId, tuple[DamagedReplica, ...]] = {}
        """What brokers say of damaged logs; of the partition, what they have seen of it."""
        self.images: dict[int, MetadataImage] = {}
        self.beats = 0
        self.told_to: dict[BrokerId, TopicIdPartition | None] = {}
        self.log: list[tuple[MetadataRecord, ...]] = []
        self.invariants = Invariants(self.config.defaults)
        self.core = Controller(self.config, random.Random(self.seed).randbytes, self.now_ms)
        self.core.activate(self.image)

    # ---- appending

    def append(self, records: Iterable[MetadataRecord], *, joins: bool = False) -> None:
        """Fold one decision, after a round trip through JSON; `joins`: a leader's proposal."""
        base = self.image.next_offset
        decided = tuple(records)
        batch = decode_batch(encode_batch(base, 1, decided)).records
        assert batch == decided
        delta = MetadataDelta(self.image)
        count = delta.replay_all(batch, base)
        after = delta.apply(MetadataOffset(base + count), ControllerEpoch(1))
        self.invariants.check(self.image, after, joins=joins)
        self._check_who_went(after)
        self.image = self.images[after.next_offset] = after
        self.log.append(batch)
        self.core.appended(delta, after)

    def _check_who_went(self, after: MetadataImage) -> None:
        """Rule G3: who was in sync and lives is taken out only once it knows who leads."""
        for topic_id, topic in after.topics.items():
            old = self.image.topics.get(topic_id)
            for before, partition in zip(
                old.partitions if old else (), topic.partitions, strict=False
            ):
                for replica in set(before.isr) - set(partition.replicas):
                    broker = after.brokers[replica]
                    session = self.core.sessions.session(replica, broker.broker_epoch)
                    if broker.state is BrokerState.UNFENCED:
                        assert before.leader != replica, f"G3 {before} {partition}"
                        assert session is not None, f"G3 {before} {partition}"
                        known = session.metadata_offset > before.leader_epoch_offset
                        assert known, f"G3 {before} {partition}"

    def decide_one(self) -> bool:
        """Append the most urgent wish; False if there is none."""
        wish = self.core.next_proposed_batch(self.image, bulk_allowed=True)
        if wish is None:
            return False
        assert wish.records
        self.append(wish.records)
        return True

    def decide_all(self) -> None:
        """Until nothing is wished for: everything that follows has been recorded."""
        for _ in range(1_000):
            if self.decide_one() or (self._tell_leavers() and self.decide_one()):
                continue
            silent = self.image.brokers.keys() - self.alive.keys()
            self.invariants.check_settled(
                self.image, silent.union(self.behind), self._without_report()
            )
            return
        raise AssertionError("the controller never comes to rest")

    def _without_report(self) -> set[BrokerId]:
        """Return the brokers that have no session, or have not reported all their damaged logs."""
        sessions = {
            broker_id: self.core.sessions.session(broker_id, broker.broker_epoch)
            for broker_id, broker in self.image.brokers.items()
        }
        return {
            broker_id
            for broker_id, session in sessions.items()
            if session is None or not session.damage.is_report_complete
        }

    def _tell_leavers(self) -> bool:
        """Who is to be taken out hears who leads, and says so with a heartbeat."""
        leavers = {
            replica
            for topic in self.image.topics.values()
            for partition in topic.partitions
            for replica in partition.removing
        }
        for broker in leavers & self.alive.keys():
            self.beat(broker)
        return bool(leavers)

    # ---- time and brokers

    def beat(self, broker: BrokerId, *, want_shutdown: bool = False) -> HeartbeatAnswer:
        """A heartbeat of a broker that has applied the whole image, or stays `behind`."""
        said = self.said(broker, want_shutdown=want_shutdown)
        page = next_page(said, self.told_to.get(broker))
        self.told_to[broker] = page.failed_up_to
        return self.core.heartbeat(self.image, page, self.now_ms, is_active=True)

    def said(self, broker: BrokerId, *, want_shutdown: bool = False) -> BrokerHeartbeat:
        """What a heartbeat of this broker says now."""
        offset = self.behind.get(broker, self.image.next_offset)
        seen = self.images[max((each for each in self.images if each <= offset), default=offset)]
        failed = []
        for one in self.failed.get(broker, ()):
            where = TopicIdPartition(one.topic_id, one.partition)
            self.invariants.damaged.setdefault(where, set()).add(broker)
            known = seen.partition(*where)
            epoch = PartitionEpoch(-1) if known is None else known.partition_epoch
            failed.append(replace(one, partition_epoch=epoch))
        self.beats += 1
        return BrokerHeartbeat(
            broker_id=broker,
            broker_epoch=self.alive[broker],
            metadata_offset=offset,
            want_shutdown=want_shutdown,
            failed=tuple(sorted(failed, key=replica_partition)),
            number=self.beats,
        )

    def pass_time(self, ms: int) -> None:
        """Ticks of a judge that is never late, with heartbeats of all that live."""
        for _ in range(0, ms, TICK_MS):
            self.now_ms += TICK_MS
            for broker in self.alive:
                self.beat(broker)
            self.judge()
            self.decide_all()

    def judge(self) -> None:
        """The judge runs at the present time."""
        brokers = self.image.brokers.values()
        self.core.sessions.expect_brokers(
            ((broker.broker_id, broker.broker_epoch) for broker in brokers), self.now_ms
        )
        self.core.sessions.judge(self.now_ms)

    def register(self, command: RegisterBroker) -> BrokerEpoch:
        """Register; the broker heartbeats from now on. Decides nothing else yet."""
        records, answer = self.core.decide(self.image, command)
        if records:
            self.append(records)
        self.alive[command.broker_id] = answer.broker_epoch
        return answer.broker_epoch

    def join(self, *brokers: BrokerId, life: str = "a", disk: str = "") -> None:
        """Register and wait until unfenced."""
        for broker in brokers:
            known = self.image.brokers.get(broker)
            last = UNKNOWN_BROKER_EPOCH if known is None else known.broker_epoch
            self.register(registration(broker, life=life, disk=disk, last=last))
        self.pass_time(2 * TICK_MS)
        for broker in brokers:
            assert self.state(broker) is BrokerState.UNFENCED

    def kill(self, *brokers: BrokerId) -> None:
        """Silence until the session is over and all that follows is recorded."""
        for broker in brokers:
            self.alive.pop(broker, None)
        self.pass_time(self.config.broker_session_timeout_ms + 2 * TICK_MS)
        for broker in brokers:
            assert self.state(broker) is BrokerState.FENCED

    # ---- topics

    def create(
        self,
        name: str = "t",
        number: int = 1,
        *,
        assignments: dict[int, tuple[int, ...]] | None = None,
        **how: object,
    ) -> TopicCreated:
        """Create a topic, whole."""
        replicas = None
        if assignments is not None:
            replicas = {index: tuple(map(BrokerId, ids)) for index, ids in assignments.items()}
        command = CreateTopic(
            name=TopicName(name),
            topic_id=topic_id(number),
            replicas_assignments=replicas,
            **how,  # type: ignore[arg-type]
        )
        records, answer = self.core.decide(self.image, command)
        if records:
            self.append(records)
        self.decide_all()
        return answer

    def delete(self, name: str = "t") -> None:
        """Delete a topic."""
        self.append(self.core.decide(self.image, DeleteTopic(name=TopicName(name)))[0])

    def alter(
        self, isr: Iterable[BrokerId], number: int = 1, index: int = 0, **other: object
    ) -> PartitionAltered:
        """The leader of a partition proposes an ISR; ``other`` replaces fields of the command."""
        partition = self.partition(number, index)
        leader = self.image.brokers[partition.leader] if partition.has_leader else None
        fields: dict[str, object] = {
            "broker_id": partition.leader,
            "broker_epoch": UNKNOWN_BROKER_EPOCH if leader is None else leader.broker_epoch,
            "topic_id": topic_id(number),
            "partition": PartitionId(index),
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": PartitionEpoch(partition.partition_epoch),
            "new_isr": tuple(map(self.member, isr)),
        }
        command = AlterPartition(**(fields | other))  # type: ignore[arg-type]
        records, answer = self.core.alter_partition(self.image, command)
        self.append(records, joins=True)
        return answer

    # ---- what operators ask

    def ask(self, command: Command[A]) -> A:
        """Decide, append, and nothing else yet."""
        records, answer = self.core.decide(self.image, command)
        if records:
            self.append(records)
        return answer

    def reassign(self, target: Iterable[int] | None, name: str = "t", index: int = 0) -> None:
        """Where a partition's replicas are to be; None cancels."""
        replicas = None if target is None else tuple(map(BrokerId, target))
        change = Reassignment(
            topic=TopicName(name), partition=PartitionId(index), replicas=replicas
        )
        self.ask(AlterReassignments(changes=(change,)))

    def elect(
        self, election: Election, *indexes: int, name: str = "t"
    ) -> tuple[ElectionResult, ...]:
        """Leaders of these partitions; without any, of the whole cluster."""
        places = tuple(
            PartitionPlace(topic=TopicName(name), partition=PartitionId(index)) for index in indexes
        )
        return self.ask(ElectLeaders(election=election, partitions=places or None)).results

    def drain(self, broker: BrokerId, scope: DrainScope) -> None:
        """What a broker is to be rid of."""
        self.ask(DrainBroker(broker_id=broker, scope=scope))

    def catch_up(self, *brokers: BrokerId, number: int = 1, index: int = 0) -> None:
        """These join the ISR, as their leader sees them caught up."""
        isr = {*self.partition(number, index).isr, *brokers}
        self.alter(sorted(isr), number, index)

    def member(self, broker: BrokerId) -> IsrMember:
        """The broker with its present epoch."""
        known = self.image.brokers.get(broker)
        epoch = UNKNOWN_BROKER_EPOCH if known is None else known.broker_epoch
        return IsrMember(broker_id=broker, broker_epoch=epoch)

    # ---- looking

    def partition(self, number: int = 1, index: int = 0) -> PartitionRegistration:
        """A partition of a topic made by `create`."""
        found = self.image.partition(topic_id(number), PartitionId(index))
        assert found is not None
        return found

    def state(self, broker: BrokerId) -> BrokerState:
        """The broker's state."""
        return self.image.brokers[broker].state
