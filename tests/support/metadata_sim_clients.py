"""Brokers as the controllers of a `metadata_sim` meet them.

A broker follows the log, registers, heartbeats every controller, and as leader of partitions
proposes in-sync sets: no data behind it, only who would have caught up. It also says what a broken
or late one would say, which must be refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    UNKNOWN_BROKER_EPOCH,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    MetadataOffset,
    NodeId,
    PartitionEpoch,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration
from raft_metadata.image.snapshot import delta_from_snapshot
from raft_metadata.records.commands import (
    AllocateProducerIds,
    AlterPartition,
    BrokerHeartbeat,
    BrokerRegistered,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
    IsrMember,
    PartitionAltered,
    RegisterBroker,
)
from raft_metadata.records.records import BrokerState
from raft_metadata.records.serde import from_json, to_json
from tests.support import metadata_invariants as invariant
from tests.support.doors.controller import session_text
from tests.support.isr_proposals import propose
from tests.support.metadata_world import CLUSTER, registration
from tests.support.quorum_sim import CLOCK

if TYPE_CHECKING:
    from tests.support.metadata_sim import MetadataSim
    from tests.support.metadata_sim_lives import ControllerLife

STEP_S = 0.075
HEARTBEAT_S = 0.15
FETCH_WAIT_MS = 250
RACKS = (None, "red", "blue")


@dataclass(eq=False)
class Process:
    """One life of a broker."""

    broker: Broker
    life: str
    directory: str
    unclean: tuple[TopicIdPartition, ...] = ()
    image: MetadataImage = field(default_factory=MetadataImage)
    epoch: BrokerEpoch | None = None
    is_loaded: bool = False
    is_registering: bool = False
    is_fetching: bool = False
    is_dead: bool = False
    want_shutdown: bool = False
    source: int = 0
    next_heartbeat: float = 0.0
    seen_epoch: int = 0
    altering: set[TopicIdPartition] = field(default_factory=set)

    @property
    def incarnation(self) -> str:
        return f"life-{self.broker.broker_id}-{self.life}"


class Broker:
    """A broker id and its machine: at most one process at a time, on one disk."""

    def __init__(self, world: MetadataSim, broker_id: int, rack: str | None) -> None:
        self.world, self.rng = world, world.rng
        self.broker_id = BrokerId(broker_id)
        self.rack = rack
        self.lives = self.disks = 0
        self.process: Process | None = None
        self.is_paused = False
        self.thorough = broker_id == 11
        """Folds every batch, from its JSON; the others compare its bytes with the log's."""
        self.leader_hint: NodeId | None = None
        self.past_epochs: list[BrokerEpoch] = []

    # ---- life and death

    def start(self, unclean: tuple[TopicIdPartition, ...] = ()) -> None:
        self.lives += 1
        self.is_paused = False
        directory = f"disk-{self.broker_id}-{self.disks}"
        self.process = Process(self, str(self.lives), directory, unclean)
        self.process.source = self.rng.randrange(len(self.world.raft.ids))
        self.world.after(self.rng.uniform(0, STEP_S), partial(self.step, self.process))

    def kill(self) -> None:
        process, self.process = self.process, None
        self.is_paused = False
        if process is None:
            return
        process.is_dead = True
        for life in self.world.up.values():
            if not self.world.is_lost(self.broker_id, life.node_id):
                hang_up = partial(self._hung_up, life, process)
                self.world.after(
                    self.world.delay(), partial(self.world.on_controller, life, hang_up)
                )

    def _hung_up(self, life: ControllerLife, process: Process) -> None:
        key = (int(self.broker_id), int(process.epoch or -1))
        if key in life.connections:
            life.connections.discard(key)
            life.closed[key] = CLOCK.time
            life.controller.session_closed(self.broker_id, BrokerEpoch(key[1]))

    def lose_disk(self) -> None:
        self.kill()
        self.disks += 1

    def resume(self) -> None:
        self.is_paused = False

    def shut_down(self) -> None:
        """Ask to leave; it never takes that back."""
        if self.process is not None:
            self.process.want_shutdown = True

    def held(self) -> list[TopicIdPartition]:
        """Partitions it has a replica of, as it last saw them."""
        process = self.process
        if process is None:
            return []
        return [
            TopicIdPartition(topic.topic_id, PartitionId(index))
            for topic in process.image.topics.values()
            for index, partition in enumerate(topic.partitions)
            if self.broker_id in partition.replicas
        ]

    # ---- what a process does

    def step(self, process: Process) -> None:
        if process.is_dead:
            return
        self.world.after(STEP_S * self.rng.uniform(0.9, 1.1), partial(self.step, process))
        if self.is_paused:
            return
        if not process.is_fetching:
            self.fetch(process)
        if process.epoch is None:
            if process.is_loaded and not process.is_registering:
                self.register(process)
            return
        if CLOCK.time >= process.next_heartbeat:
            process.next_heartbeat = CLOCK.time + HEARTBEAT_S
            for node in self.world.raft.ids:
                self.beat(process, node)
                if self.world.sloppiness and len(self.past_epochs) > 1:
                    # One of an earlier life, that was long on its way.
                    self.beat(process, node, self.past_epochs[-2])
        self.lead(process)
        if self.rng.random() < 0.03:
            self.ask_for_producer_ids(process)
        if self.world.sloppiness and self.rng.random() < self.world.sloppiness:
            self.say_nonsense(process)

    def believed_active(self) -> NodeId:
        ids = self.world.raft.ids
        hint = self.leader_hint
        if hint is None or self.rng.random() < 0.1:
            return self.rng.choice(ids)
        return hint

    # ---- following

    def fetch(self, process: Process) -> None:
        ids = self.world.raft.ids
        node = ids[process.source % len(ids)]
        request = FetchMetadata(
            cluster_id=CLUSTER,
            broker_id=self.broker_id,
            from_offset=process.image.next_offset,
            max_wait_ms=FETCH_WAIT_MS,
        )
        process.is_fetching = True
        ask = lambda life: life.controller.fetch_metadata(request)  # noqa: E731
        self.world.call(
            self.broker_id, node, ask, partial(self.fetched, process, node), timeout=0.6
        )

    def fetched(self, process: Process, node: NodeId, answer: Any) -> None:
        if process.is_dead:
            return
        if self.is_paused:
            self.world.after(0.05, partial(self.fetched, process, node, answer))
            return
        process.is_fetching = False
        try:
            if isinstance(answer, KafkaError):
                raise answer
            self.take(process, answer)
        except KafkaError as error:
            self.world.witness.counts[f"fetch {error.code.name}"] += 1
            process.source += 1
            return
        self.fetch(process)

    def take(self, process: Process, answer: FetchMetadataAnswer) -> None:
        """As the brokers' metadata loader does (rules M5, M6)."""
        witness = self.world.witness
        if answer.leader_contact_age_ms > 400:
            raise KafkaError(ErrorCode.METADATA_STALE_SOURCE)
        if answer.end_offset < process.image.next_offset:
            raise KafkaError(ErrorCode.METADATA_BEHIND)
        if self.thorough:
            answer = from_json(to_json(answer), FetchMetadataAnswer)
        self.leader_hint = answer.leader_id
        if answer.snapshot is not None:
            snapshot = answer.snapshot
            delta = delta_from_snapshot(process.image, snapshot)
            self._turn_to(process, delta.apply(snapshot.next_offset, snapshot.epoch), full=True)
            witness.counts["snapshots to brokers"] += 1
        for batch in answer.batches:
            base = batch.base_offset
            if base != process.image.next_offset:
                raise KafkaError(ErrorCode.METADATA_BEHIND)
            end = base + len(batch.records)
            invariant.c9_brokers_follow_the_log(
                witness.tally,
                self.broker_id,
                batch.encoded or to_json(batch),
                witness.batches[base],
            )
            if self.thorough:
                delta = MetadataDelta(process.image)
                delta.replay_all(batch.records, base)
                self._turn_to(process, delta.apply(MetadataOffset(end), batch.epoch))
            else:
                self._turn_to(process, witness.images[end])
        if process.image.next_offset >= answer.end_offset:
            process.is_loaded = True

    def _turn_to(self, process: Process, image: MetadataImage, *, full: bool = False) -> None:
        witness, before = self.world.witness, process.image
        who = f"broker {self.broker_id}"
        known = witness.images[image.next_offset]
        if full:
            invariant.r12_same_hash_at_the_same_offset(witness.tally, (image, known))
        elif self.thorough:
            invariant.r12_same_state_at_the_same_index(witness.tally, who, before, image, known)
        invariant.c10_metadata_offset_never_decreases(
            witness.tally, who, before.next_offset, image.next_offset
        )
        invariant.r14_no_answer_from_the_past(witness.tally, who, before.epoch, image.epoch)
        process.image = image
        process.seen_epoch = max(process.seen_epoch, image.epoch)
        witness.followed[process.incarnation] = image.next_offset

    # ---- registration and heartbeats

    def register(self, process: Process) -> None:
        known = process.image.brokers.get(self.broker_id)
        last = UNKNOWN_BROKER_EPOCH if known is None else known.broker_epoch
        if known is not None and known.incarnation_id == process.incarnation:
            process.epoch = known.broker_epoch
            return
        command = registration(
            self.broker_id,
            life=process.life,
            disk=process.directory,
            last=last,
            unclean=process.unclean,
            rack=self.rack,
        )
        process.is_registering = True
        self.world.call(
            self.broker_id,
            self.believed_active(),
            lambda life: life.controller.execute(command),
            partial(self.registered, process, command, process.seen_epoch),
            command=command,
        )

    def registered(
        self, process: Process, command: RegisterBroker, seen_epoch: int, answer: Any
    ) -> None:
        witness = self.world.witness
        process.is_registering = False
        if not isinstance(answer, BrokerRegistered):
            witness.counts[f"register {answer.code.name}"] += 1
            return
        witness.counts["register ok"] += 1
        epoch = answer.broker_epoch
        places = [epoch] if witness.registered.get(epoch) == command.incarnation_id else []
        invariant.r9_acknowledged_is_in_the_log_once(witness.tally, command, places, written=True)
        if not process.is_dead and process.epoch is None:
            process.epoch = epoch
            self.past_epochs.append(epoch)
            for node in self.world.raft.ids:
                self.beat(process, node)

    def beat(self, process: Process, node: NodeId, epoch: BrokerEpoch | None = None) -> None:
        command = BrokerHeartbeat(
            broker_id=self.broker_id,
            broker_epoch=process.epoch if epoch is None else epoch,
            metadata_offset=process.image.next_offset,
            want_shutdown=process.want_shutdown,
        )
        self.world.call(
            self.broker_id,
            node,
            partial(self.heartbeat_at, process, command),
            partial(self.beaten, process) if epoch is None else lambda _: None,
            timeout=0.5,
            command=command,
        )

    def heartbeat_at(
        self, process: Process, command: BrokerHeartbeat, life: ControllerLife
    ) -> HeartbeatAnswer:
        """In the controller's process."""
        controller, tally = life.controller, self.world.witness.tally
        key = (int(command.broker_id), int(command.broker_epoch))
        if key not in life.connections and not process.is_dead:
            life.connections.add(key)
            controller.session_opened(command.broker_id, command.broker_epoch)
        present = life.machine.image.brokers.get(command.broker_id)
        if present is None or present.broker_epoch <= command.broker_epoch:
            return controller.heartbeat(command)
        before = session_text(controller.sessions, command.broker_id)
        refused = False
        try:
            return controller.heartbeat(command)
        except KafkaError as error:
            refused = error.code is ErrorCode.STALE_BROKER_EPOCH
            raise
        finally:
            after = session_text(controller.sessions, command.broker_id)
            invariant.c7_a_stale_heartbeat_changes_nothing(
                tally, command, before, after, refused=refused
            )

    def beaten(self, process: Process, answer: Any) -> None:
        if process.is_dead:
            return
        if isinstance(answer, KafkaError):
            if answer.code is ErrorCode.STALE_BROKER_EPOCH:
                # Somebody else has the id now, or had it.
                self.world.witness.counts["stale brokers ended"] += 1
                self.kill()
            elif (
                answer.code is ErrorCode.BROKER_ID_NOT_REGISTERED
                and self.broker_id not in process.image.brokers
            ):
                process.epoch = None  # an operator took it out: it registers again
            return
        if answer.should_shut_down and process.want_shutdown:
            self.world.witness.counts["shutdowns granted"] += 1
            self._check_leave(answer.committed_offset)
            self.kill()

    def _check_leave(self, granted_at: int) -> None:
        """Invariant C8, on what the others have really applied.

        They are those that were unfenced when it was granted; who is unfenced later may be behind.
        """
        world = self.world
        reference = world.witness.images.get(granted_at, world.witness.reference.image)
        images = []
        for other in world.brokers:
            known = reference.brokers.get(other.broker_id)
            if (
                other is not self
                and other.process is not None
                and known is not None
                and known.state is BrokerState.UNFENCED
                and known.broker_epoch == other.process.epoch
            ):
                images.append(other.process.image)
        invariant.c8_who_may_leave_leads_nothing(world.witness.tally, self.broker_id, images)

    # ---- leading partitions

    def lead(self, process: Process) -> None:
        """Propose what a leader sees: who follows is in, who does not is out."""
        image = process.image
        me = image.brokers.get(self.broker_id)
        if me is None or me.broker_epoch != process.epoch:
            return
        for topic in image.topics.values():
            for index, partition in enumerate(topic.partitions):
                if partition.leader == self.broker_id:
                    where = TopicIdPartition(topic.topic_id, PartitionId(index))
                    if where not in process.altering:
                        self._propose(process, where, partition)

    def _propose(
        self, process: Process, where: TopicIdPartition, partition: PartitionRegistration
    ) -> None:
        members: list[IsrMember] = []
        for replica in partition.replicas:
            other = self.world.broker(replica)
            epoch = self._follows(other, process)
            if epoch is not None:
                members.append(IsrMember(broker_id=replica, broker_epoch=epoch))
        if self.world.sloppiness and self.rng.random() < 0.05:
            # It believes that everybody follows: fenced ones too.
            members = [
                IsrMember(broker_id=b, broker_epoch=process.image.brokers[b].broker_epoch)
                for b in partition.replicas
                if b in process.image.brokers
            ]
        isr = tuple(member.broker_id for member in members)
        if set(isr) == set(partition.isr) and self.rng.random() > 0.01:
            return
        self.alter(process, where, partition, tuple(members))

    def _follows(self, other: Broker, leader: Process) -> BrokerEpoch | None:
        """The epoch under which a replica fetches from this leader, if it does."""
        process = other.process
        if process is leader:
            return leader.epoch
        if process is None or other.is_paused or process.epoch is None:
            return None
        blocked = self.world.blocked
        cut = {(self.broker_id, other.broker_id), (other.broker_id, self.broker_id)} & blocked
        known = leader.image.brokers.get(other.broker_id)
        if cut or known is None or known.state is not BrokerState.UNFENCED:
            return None
        return process.epoch

    def alter(
        self,
        process: Process,
        where: TopicIdPartition,
        partition: PartitionRegistration,
        members: tuple[IsrMember, ...],
        **other: Any,
    ) -> None:
        fields = {
            "broker_id": self.broker_id,
            "broker_epoch": process.epoch,
            "topic_id": where.topic_id,
            "partition": where.partition,
            "leader_epoch": partition.leader_epoch,
            "partition_epoch": partition.partition_epoch,
            "new_isr": members,
        }
        command = AlterPartition(**(fields | other))
        process.altering.add(where)
        self.world.call(
            self.broker_id,
            self.believed_active(),
            partial(self._alter_at, command),
            partial(self.altered, process, where, command, process.seen_epoch),
            timeout=0.6,
            command=command,
        )

    async def _alter_at(self, command: AlterPartition, life: ControllerLife) -> PartitionAltered:
        """In the controller's process: one from the future is known by its speculative image."""
        speculation = life.controller.speculation
        future = False
        if speculation is not None:
            known = speculation.image.partition(command.topic_id, command.partition)
            sender = speculation.image.brokers.get(command.broker_id)
            future = (
                known is not None
                and sender is not None
                and sender.broker_epoch == command.broker_epoch
                and (
                    command.leader_epoch > known.leader_epoch
                    or command.partition_epoch > known.partition_epoch
                )
            )
        try:
            answer = await propose(life.controller, command)
        except KafkaError as error:
            if future and error.code is not ErrorCode.QUEUE_FULL:
                tally = self.world.witness.tally
                invariant.p7_the_future_is_refused(tally, command, error.code.name)
            raise
        if future:
            invariant.p7_the_future_is_refused(self.world.witness.tally, command, "ok")
        return answer

    def altered(
        self,
        process: Process,
        where: TopicIdPartition,
        command: AlterPartition,
        seen_epoch: int,
        answer: Any,
    ) -> None:
        process.altering.discard(where)
        witness = self.world.witness
        if isinstance(answer, KafkaError):
            witness.counts[f"alter {answer.code.name}"] += 1
            return
        witness.counts["alter ok"] += 1
        witness.altered(command, answer, seen_epoch)

    def ask_for_producer_ids(self, process: Process) -> None:
        command = AllocateProducerIds(broker_id=self.broker_id, broker_epoch=process.epoch)
        self.world.call(
            self.broker_id,
            self.believed_active(),
            lambda life: life.controller.execute(command),
            partial(self.given_producer_ids, process),
            command=command,
        )

    def given_producer_ids(self, process: Process, answer: Any) -> None:
        witness = self.world.witness
        if isinstance(answer, KafkaError):
            witness.counts[f"producer ids {answer.code.name}"] += 1
            return
        witness.counts["producer ids ok"] += 1
        to = (process.incarnation, len(witness.producer_ids))
        invariant.t5_producer_ids_are_handed_out_once(
            witness.tally, witness.producer_ids, answer.first_producer_id, answer.count, to
        )

    def say_nonsense(self, process: Process) -> None:
        """What a broken or late leader might propose; all of it must be refused (invariant P6)."""
        image, rng = process.image, self.rng
        places = [
            (TopicIdPartition(topic.topic_id, PartitionId(index)), partition)
            for topic in image.topics.values()
            for index, partition in enumerate(topic.partitions)
        ]
        if not places:
            return
        where, partition = rng.choice(places)
        members = tuple(
            IsrMember(
                broker_id=replica,
                broker_epoch=rng.choice(
                    (UNKNOWN_BROKER_EPOCH, image.brokers[replica].broker_epoch)
                ),
            )
            for replica in partition.replicas
            if rng.random() < 0.7
        )
        all_in = tuple(
            IsrMember(broker_id=b, broker_epoch=image.brokers[b].broker_epoch)
            for b in partition.replicas
            if b in image.brokers
        )
        other: dict[str, Any] = rng.choice(
            (
                {"new_isr": members},
                {"new_isr": all_in},
                {"leader_epoch": LeaderEpoch(partition.leader_epoch - 1), "new_isr": all_in},
                {"leader_epoch": LeaderEpoch(partition.leader_epoch + 1)},
                {"partition_epoch": PartitionEpoch(partition.partition_epoch - 1)},
                {"partition_epoch": PartitionEpoch(partition.partition_epoch + 1)},
                {"broker_epoch": BrokerEpoch((process.epoch or 0) - 1)},
            )
        )
        if partition.leader in image.brokers and rng.random() < 0.7:
            # Everything right but one thing.
            other.setdefault("broker_id", partition.leader)
            leader = image.brokers[partition.leader].broker_epoch
            other.setdefault("broker_epoch", leader)
        self.alter(process, where, partition, members or all_in, **other)
