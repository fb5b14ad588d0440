"""A simulated broker: one process on one disk, around the product's `Partition`.

What `ReplicaManager` does with frames, images and time is done here on the scheduler's turn.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from broker.log.log_directory import LogConfig
from broker.record.lines import ProduceRecord, make_raw
from broker.replication.frames import START_OVER, Ack, Diverging, Open, Push, Refused, Valid
from broker.replication.parked import Fate, Parked
from broker.replication.partition import Following, Idle, Partition, Role
from broker.replication.partition_state import LeaderState, Proposal, Settings
from broker.replication.topic_views import TopicViews
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, PartitionId
from raft_metadata.common.producer_claims import Claim, next_sequence
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.records.commands import AlterPartition, IsrMember
from tests.support import replication_invariants as check
from tests.support.replica_bytes import TOPIC, batches_of
from tests.support.replica_memory import MemoryStore
from tests.support.replica_stores import DiskStore, config_of
from tests.support.replication_controller import HERE, MIN_ISR, is_os
from tests.support.replication_invariants import Entry, Violation
from tests.support.replication_readers import Readers
from tests.support.replication_topics import PLAIN_KEYS, small
from tests.support.replication_upkeep import Upkeep

if TYPE_CHECKING:
    from tests.support.replication_world import World

CONTROLLER = -2
FAR = 10**9
LAG_MS = 0
"""Every check for laggards is eager: a member that holds less than the leader may be removed."""
NOBODY = Idle(LeaderEpoch(-1))


class Writer:
    """A client that numbers its batches: it sends each until it is there, one at a time."""

    def __init__(self, producer_id: int) -> None:
        self.claim = Claim(producer_id, 0, 0)
        self.values: list[int] = []
        """What is under way; empty: nothing."""
        self.asked = 0
        """Attempts without an answer."""

    def told(self, values: list[int], fate: Fate) -> Fate:
        """An attempt is over. Unless it is there, the batch is sent again: nothing is certain."""
        self.asked -= 1
        if fate is not Fate.OK:
            return Fate.UNKNOWN
        if values is self.values:
            sequence = next_sequence(self.claim.sequence, len(values))
            self.claim, self.values = self.claim._replace(sequence=sequence), []
        return fate


class Broker:
    """Owned by the world, over all its lives."""

    def __init__(self, world: World, b: BrokerId, *, on_disk: bool, segment_bytes: int) -> None:
        self.world, self.id = world, b
        self.rng: random.Random = world.rng
        self.store: MemoryStore | DiskStore
        if on_disk:
            self.store = DiskStore(self, b, segment_bytes)
            self.store.on_recovered = self.recovered
        else:
            self.store = MemoryStore(self)
        self.directory, self.disks = f"disk{b}.0", 0
        self.seen = 0
        self.partition: Partition | None = None
        self.up = self.paused = self.leaving = self.wants_to_leave = self.unclean_cut = False
        self.marked = self.at_start = self.lost_power = False
        """The durable mark of a topic that is, or was, `os` (rules R1, R6); `PageCacheTopics`."""
        self.clear_at: int | None = None
        self.was_on_platters: list[Entry | None] = []
        self.changes = 0
        """Appends and cuts, over all lives."""
        self.skew_ms = 0
        """By how much its wall clock is off."""
        self.upkeep: Upkeep | None = None
        self.readers: Readers | None = None
        self.views = TopicViews(config_of(b))
        self.topic_config: LogConfig | None = None
        self.start(f"life{b}")

    # what the store says

    def note(self, entry: Entry, offset: int) -> None:
        self.changes += 1
        self.world.judge.appended(entry, offset)

    def cut(self, end: int) -> None:
        self.changes += 1
        self.world.judge.cut(self, end)

    def record_of(self, value: int) -> ProduceRecord:
        """As a client sends it. Where keys mean something, each number keeps its own."""
        if self.world.topic is not None:
            return self.world.records.record(value)
        key = self.rng.choice(PLAIN_KEYS)
        return ProduceRecord(key=make_raw(key), value=make_raw(b"%d" % value))

    def durable(self) -> None:
        """A sync of the log is over."""
        if self.partition is not None:
            self.partition.advance()
            self.acknowledge()
            self.clear_mark()

    def recovered(self, before: list[Entry | None], durable: list[Entry | None]) -> None:
        check.l23_recovered_is_a_prefix(
            self.world.judge.tally, self.store.mirror, before, durable, self.id
        )

    def promised(self) -> Any:
        """What of its log it has to come back with, whatever happens to it."""
        return self.store.mirror if self.marked else self.store.platter()

    # life

    def start(self, incarnation: str) -> None:
        self.incarnation = incarnation
        self.at_start = self.marked
        self.paused = self.leaving = self.wants_to_leave = False
        self.partition = self.readers = None
        self.up = self.store.start(incarnation)
        if self.up and self.world.topic is not None:
            self.upkeep = Upkeep(self)

    def stop(self, *, power: bool) -> None:
        if self.partition is not None:
            self.partition.parked.give_up()
        self.world.power_cuts += power
        self.store.stop(power=power)
        if self.upkeep is not None:
            self.upkeep.end()
            self.upkeep = None
        self.lost_power |= power
        self.clear_at = None
        self.partition = None
        self.up = self.paused = False

    def lose_disk(self) -> None:
        self.disks += 1
        self.directory = f"disk{self.id}.{self.disks}"
        self.store.lose_disk()
        self.marked = self.at_start = self.lost_power = False

    @property
    def image(self) -> MetadataImage:
        return self.world.controller.images[self.seen]

    @property
    def role(self) -> Role:
        return NOBODY if self.partition is None else self.partition.role

    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        known = self.image.brokers.get(self.id)
        if known is None or known.incarnation_id != self.incarnation:
            return None
        return known.broker_epoch

    # metadata

    def learn(self, steps: int = 1) -> None:
        known = self.broker_epoch is not None
        self.seen = min(self.seen + steps, len(self.world.controller.images) - 1)
        image = self.image
        if is_os(image):
            self.marked, self.clear_at = True, None  # before a role is taken from this image
        registration = image.partition(*HERE)
        if registration is None:
            return
        store = self.store
        if self.broker_epoch is not None and isinstance(store, DiskStore):
            if not known:
                store.first_look(image)
            store.look_at(image)
        self.take_role(image)
        mine = image.brokers.get(self.id)
        if mine is not None and mine.incarnation_id == self.incarnation and mine.settled:
            self.lost_power = False
            if not is_os(image) and self.marked and self.clear_at is None:
                self.clear_at = 0 if self.partition is None else self.partition.log.log_end_offset
        self.clear_mark()

    def take_role(self, image: MetadataImage) -> None:
        registration = image.partition(*HERE)
        assert registration is not None
        by_durable = not is_os(image)
        self.leaving = False
        self.topic_config = None
        if self.world.topic is not None:
            config = self.views.of(image, TOPIC, registration).log_config
            self.topic_config = small(config, self.world.topic.segment_bytes)
        if self.id not in registration.replicas and self.broker_epoch is not None:
            waits = self.partition is not None and len(self.partition.parked)
            self.leaving = bool(waits) and registration.has_leader
            if not self.leaving:
                self.drop()
                return
        if self.partition is None and not self.open_partition(image, by_durable=by_durable):
            return
        partition = self.partition
        assert partition is not None
        self.configure(by_durable=by_durable)
        back, partition.observes = partition.observes and not self.leaving, self.leaving
        before = partition.role
        partition.apply_image(registration, image.brokers, self.broker_epoch, 0)
        role = partition.role
        if role is not before and isinstance(role, LeaderState):
            self.world.judge.leads(self)
        if (role is not before or back) and isinstance(role, Following):
            self.open_stream()
        for follower, message in list(partition.early_opens.items()):
            del partition.early_opens[follower]
            self.on_open(follower, message)

    def open_partition(self, image: MetadataImage, *, by_durable: bool) -> bool:
        if self.broker_epoch is None:
            return False
        log = self.store.take(image, self.log_config(by_durable=by_durable))
        if log is None:
            return False
        self.partition = Partition(
            HERE,
            self.id,
            log,
            Settings(min_isr=MIN_ISR, by_durable=by_durable),
            high_watermark=getattr(log, "high_watermark", 0),
            on_high_watermark=self.high_watermark_moved,
        )
        return True

    def log_config(self, *, by_durable: bool) -> LogConfig:
        if self.topic_config is not None:
            return self.topic_config
        size = getattr(self.store, "segment_bytes", 1 << 30)
        return LogConfig(segment_bytes=size, flush_before_ack=by_durable)

    def configure(self, *, by_durable: bool) -> None:
        partition = self.partition
        if isinstance(self.store, DiskStore) and self.store.log is not None:
            self.store.log.config = self.log_config(by_durable=by_durable)
        if partition is not None and partition.settings.by_durable is not by_durable:
            partition.configure(Settings(min_isr=MIN_ISR, by_durable=by_durable))

    def high_watermark_moved(self, partition: Partition) -> None:
        if isinstance(self.store, DiskStore) and self.store.log is not None:
            self.store.log.high_watermark = partition.high_watermark
        self.world.judge.expose(self)

    def clear_mark(self) -> None:
        end = self.clear_at
        if end is None:
            return
        log = None if self.partition is None else self.partition.log
        if log is None or log.durable_end >= min(end, log.log_end_offset):
            self.marked, self.clear_at = False, None

    def drop(self) -> None:
        """The replica is other brokers' now: its log is set aside, one that comes back is new."""
        self.leaving = False
        if self.partition is not None:
            self.partition.retire()
            self.partition = None
        self.store.set_aside()

    def register(self) -> None:
        known = self.image.brokers.get(self.id)
        last_seen = known.broker_epoch if known else -1
        unclean = self.store.unclean or (self.lost_power and self.at_start)
        self.world.send(
            CONTROLLER, "register", self.id, self.incarnation, self.directory,
            unclean=unclean, last_seen=last_seen,
        )  # fmt: skip

    # controlled shutdown

    def ask_to_leave(self) -> None:
        self.wants_to_leave = True
        epoch = self.broker_epoch
        if epoch is not None:
            self.world.send(CONTROLLER, "leave", self.id, epoch)

    def on_may_leave(self, broker_epoch: int) -> None:
        """Rule R11: everything is synced, then the clean proof is written."""
        if not self.wants_to_leave or broker_epoch != self.broker_epoch:
            return
        self.world.departures += 1
        if self.partition is not None:
            self.partition.parked.give_up()
        if self.upkeep is not None:
            self.upkeep.cancel()
            self.upkeep = None
        self.partition = None
        self.store.close(BrokerEpoch(broker_epoch))
        self.up = self.paused = False

    # follower

    def open_stream(self) -> None:
        if self.partition is None:
            return
        message = self.partition.open_message(self.world.number(), 0)
        role = self.role
        if message is not None and isinstance(role, Following):
            self.world.send(role.leader, "on_open", self.id, message)

    def on_valid(self, message: Valid) -> None:
        partition = self.partition
        if partition is None:
            return
        try:
            valid = partition.on_valid(message)
        except KafkaError:
            partition.drop_session()
            return
        if valid:
            partition.log.request_flush()
            self.world.judge.follows(self)
            self.acknowledge()

    def on_diverging(self, message: Diverging) -> None:
        partition = self.partition
        if partition is None:
            return
        before, role = partition.high_watermark, partition.role
        start = partition.log.log_start_offset
        self.unclean_cut = (
            isinstance(role, Following) and role.unclean_epoch > partition._agreed_epoch()
        )
        try:
            again = partition.on_diverging(message)
        except AssertionError as error:
            raise Violation("L13", str(error)) from error
        except KafkaError:
            partition.drop_session()
            return
        moved = partition.log.log_start_offset != start
        if message.at_epoch == START_OVER:
            self.world.counts["started over"] += again
            moved = True
        if not self.unclean_cut and not moved:  # who starts over moves both
            self.world.judge.diverged(self, message, before, partition.high_watermark)
        self.unclean_cut = False
        if again:
            self.open_stream()

    def on_refused(self, message: Refused) -> None:
        if self.partition is not None:
            self.partition.on_refused(message)

    def on_push(self, message: Push) -> None:
        partition = self.partition
        if partition is None:
            return
        try:
            taken = partition.on_push(message)
        except (KafkaError, ValueError):
            partition.drop_session()
            return
        if taken is False:
            self.open_stream()
        elif taken:
            self.world.judge.follows(self)
            if not partition.settings.by_durable:
                self.acknowledge()

    def acknowledge(self) -> None:
        if self.partition is None:
            return
        message, role = self.partition.ack_message(), self.role
        if message is not None and isinstance(role, Following):
            self.world.send(role.leader, "on_ack", self.id, message)

    # leader

    def on_open(self, follower: BrokerId, message: Open) -> None:
        partition = self.partition
        if partition is None:
            return
        session = self.world.number()
        before = known_of(partition.role)
        answer = partition.on_open(follower, message, self.image.brokers, session, 0)
        self.world.judge.opened(self, follower, message, answer)
        match answer:
            case Valid():
                self.world.send(follower, "on_valid", answer)
                self.push(follower)
            case Diverging():
                self.world.judge.diverged(self, answer, before, known_of(partition.role))
                self.world.send(follower, "on_diverging", answer)
            case Refused():
                self.world.send(follower, "on_refused", answer)
            case None:
                pass

    def push(self, follower: BrokerId) -> None:
        partition = self.partition
        role = self.role
        if partition is None or not isinstance(role, LeaderState):
            return
        state = role.followers.get(follower)
        if state is None or state.session < 0:
            return
        start = max(state.sent, partition.log.log_start_offset)  # what is deleted is skipped
        end = partition.log.log_end_offset
        try:
            raw, state.sent = self.store.read(start, end, self.rng.choice(self.world.push_bytes))
        except CorruptionError:
            return  # the log has failed: this process ends
        everywhere = 0
        if self.topic_config is not None and self.topic_config.compaction is not None:
            everywhere = role.replicated_to(end)
            self.world.judge.keys.says_replicated(self, everywhere)
        message = Push(
            state.session, role.epoch, start, state.sent,
            partition.high_watermark, partition.log.log_start_offset, raw, everywhere,
        )  # fmt: skip
        self.world.send(follower, "on_push", message)

    def on_ack(self, follower: BrokerId, message: Ack) -> None:
        if self.partition is None:
            return
        before = known_of(self.partition.role)
        self.partition.on_ack(follower, message, 0)
        self.world.judge.acknowledged(self, message, before, known_of(self.partition.role))

    def produce(self, values: list[int], acks: str = "all", writer: Writer | None = None) -> None:
        judge, partition, epoch = self.world.judge, self.partition, self.role.epoch

        def answer(fate: Fate, offset: int = -1, reign: int = epoch) -> None:
            if writer is not None:
                fate = writer.told(values, fate)
            judge.answer(values, fate, offset, reign, acks)

        if partition is None:
            answer(Fate.NOT_WRITTEN)
            return
        store, log = self.store, partition.log
        base = log.log_end_offset
        before = (base, size_of(store))
        claim = None if writer is None else writer.claim
        now_ms = self.world.now_ms + self.skew_ms
        try:
            leads = partition.check_may_append(all_replicas=acks == "all")
            found = log.repeated(claim, len(values), now_ms) if claim else None
            if found is None:
                store.append(leads.epoch, values, now_ms, claim)
        except KafkaError as error:
            if writer is not None and error.code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                writer.told(values, Fate.OK)  # it was there, and is deleted: nobody knows where
                return
            if error.outcome is Outcome.NOT_WRITTEN and store.failed is None:
                after = (log.log_end_offset, size_of(store))
                check.l26_refused_leaves_nothing(judge.tally, before, after, self.id)
            sure = error.outcome is not Outcome.UNKNOWN
            answer(Fate.NOT_WRITTEN if sure else Fate.UNKNOWN)
            return
        reign, last = leads.epoch, base + len(values) - 1
        if found is None:
            judge.produced(self, leads.epoch, base, values)
        else:  # a repeat is answered with its first place, and not before that is committed
            base, last = found.first_offset, found.last_offset
            reign = log.epoch_at(last)
            self.world.counts["repeats found"] += 1
        log.request_flush()

        if found is not None and last < partition.high_watermark:
            answer(Fate.OK, base, reign)  # committed already, deleted since or not
            return

        def done(fate: Fate) -> None:
            answer(fate, base, reign)

        partition.park(Parked(reign, base, last, acks == "all", FAR, done))
        for follower in list(leads.followers):
            self.push(follower)
        partition.advance()

    def consume(self, start: int) -> None:
        """A reader is given what is below the high watermark."""
        partition = self.partition
        if partition is None or not isinstance(self.store, DiskStore) or self.store.log is None:
            return
        start = max(start, partition.log.log_start_offset)
        if start >= partition.high_watermark:
            return
        try:
            raw = self.store.log.read_raw(start, 4000, partition.high_watermark)
        except CorruptionError:
            return  # reported: this process ends, and says so when it comes back
        for header, entries in batches_of(raw):
            self.world.judge.served(self, header.base_offset, list(entries))
        self.door().read(start)

    def door(self) -> Readers:
        """Where readers come to."""
        if self.readers is None:
            self.readers = Readers(self)
        return self.readers

    def trim(self, offset: int) -> None:
        """An operator deletes the records up to here (rule R10)."""
        partition = self.partition
        if partition is None or not isinstance(self.role, LeaderState):
            return
        offset = min(offset, partition.high_watermark)
        try:
            if partition.log.advance_log_start(offset):
                self.world.counts["trims"] += 1
                self.world.judge.trimmed(self, offset)
        except KafkaError:
            return  # the log is offline

    def give_up(self) -> None:
        """A client's deadline: some parked produce becomes unknown."""
        if self.partition is not None:
            self.partition.parked.expire(FAR + 1)

    # ISR

    def propose(self, *, shrink: bool = True) -> None:
        partition, epoch = self.partition, self.broker_epoch
        if partition is None or epoch is None:
            return
        proposal = partition.propose_isr(
            self.image.brokers, self.world.number(), 1, LAG_MS if shrink else None
        )
        if proposal is None:
            return
        self.world.judge.proposed(self, proposal)
        command = AlterPartition(
            broker_id=self.id,
            broker_epoch=epoch,
            topic_id=TOPIC,
            partition=PartitionId(0),
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            new_isr=tuple(IsrMember(broker_id=b, broker_epoch=e) for b, e in proposal.isr),
        )
        self.world.send(CONTROLLER, "alter_partition", self.id, command, proposal)

    def on_alter_accepted(
        self, proposal: Proposal, partition_epoch: PartitionEpoch, isr: tuple[BrokerId, ...]
    ) -> None:
        if self.partition is not None:
            self.partition.isr_accepted(proposal, partition_epoch, isr)

    def on_alter_refused(self, proposal: Proposal) -> None:
        if self.partition is not None:
            self.partition.isr_refused(proposal)

    def on_alter_unknown(self, proposal: Proposal) -> None:
        if self.partition is not None:
            self.partition.isr_unknown(proposal, 0)


def known_of(role: Role) -> object:
    """What a leader knows of its followers, as plain values."""
    if not isinstance(role, LeaderState):
        return None
    return {
        follower: (state.session, state.broker_epoch, state.log_end, state.durable_end)
        for follower, state in role.followers.items()
    }


def size_of(store: MemoryStore | DiskStore) -> int:
    """Bytes in the files of a log, as a reader of the disk finds them."""
    if isinstance(store, MemoryStore):
        return len(store.mirror)
    return sum(len(inode.cache) for _, inode in store._files())
