"""A simulated broker from life to life: its disk, its replica, its roles, its departure."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from broker.log.log_directory import LogConfig
from broker.record.lines import ProduceRecord, make_raw
from broker.replication.leader_state import LeaderState, Settings
from broker.replication.partition import Following, Partition, Role, Unassigned
from broker.replication.replica import TopicViews
from raft_metadata.common.ids import BrokerEpoch, BrokerId, LeaderEpoch
from raft_metadata.image.metadata_image import MetadataImage
from tests.support import replication_invariants as check
from tests.support.replica_bytes import TOPIC
from tests.support.replica_memory import MemoryStore
from tests.support.replica_stores import DiskStore, config_of
from tests.support.replication_controller import HERE, MIN_ISR, is_os
from tests.support.replication_invariants import Entry
from tests.support.replication_readers import Readers
from tests.support.replication_repairs import Mending, idle_mending
from tests.support.replication_topics import PLAIN_KEYS, small
from tests.support.replication_upkeep import Upkeep

if TYPE_CHECKING:
    from tests.support.replication_world import World

CONTROLLER = -2
FAR = 10**9
LAG_MS = 0
"""Every check for laggards is eager: a member that holds less than the leader may be removed."""
NOBODY = Unassigned(LeaderEpoch(-1))


class BrokerLife:
    """Its process and disk, over all its lives, and what it makes of images."""

    on_open: Callable[..., None]
    open_stream: Callable[[], None]
    acknowledge: Callable[[], None]
    door: Callable[[], Readers]

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
        self.changes = 0
        """Appends and cuts, over all lives."""
        self.skew_ms = 0
        """By how much its wall clock is off."""
        self.upkeep: Upkeep | None = None
        self.readers: Readers | None = None
        self.mending: Mending = idle_mending()
        self.newest_epoch = -1
        """Of those that its log took part in."""
        self.beats = 0
        """Heartbeats that were sent."""
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
        if not self.up:
            self._note_lost_cache()
        self.mending = idle_mending()
        if self.up and isinstance(self.store, DiskStore):
            self.mending = Mending(self, self.store)
        if self.up and self.world.topic is not None:
            self.upkeep = Upkeep(self)

    def stop(self, *, power: bool) -> None:
        if self.partition is not None:
            self.partition.delayed_produces.give_up()
        self.world.power_cuts += power
        self.store.stop(power=power)
        if self.upkeep is not None:
            self.upkeep.end()
            self.upkeep = None
        self.lost_power |= power
        self._note_lost_cache()
        self.clear_at = None
        self.partition = None
        self.mending = idle_mending()
        self.up = self.paused = False

    def _note_lost_cache(self) -> None:
        """A failed sync loses pages as a power cut does: the boot id is forgotten (Q2, R6)."""
        self.lost_power |= self.store.cache_lost
        self.store.cache_lost = False

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
        if self.mending.apply_to_damaged(registration):
            return
        by_durable = not is_os(image)
        self.leaving = False
        self.topic_config = None
        if self.world.topic is not None:
            config = self.views.of(image, TOPIC, registration).log_config
            self.topic_config = small(config, self.world.topic.segment_bytes)
        if self.id not in registration.replicas and self.broker_epoch is not None:
            waits = self.partition is not None and len(self.partition.delayed_produces)
            waits = waits and not self.store.offline
            self.leaving = bool(waits) and registration.has_leader
            if not self.leaving:
                self.drop()
                return
        if self.partition is None and not self.open_partition(image, by_durable=by_durable):
            return
        partition = self.partition
        assert partition is not None
        self.configure(by_durable=by_durable)
        back, partition.is_observer = partition.is_observer and not self.leaving, self.leaving
        before = partition.role
        partition.apply_image(registration, image.brokers, self.broker_epoch, 0)
        role = partition.role
        self.newest_epoch = max(self.newest_epoch, role.epoch)
        if role is not before and isinstance(role, LeaderState):
            self.world.judge.leads(self)
            if self.store.real:
                self.door().ask_for_the_end()
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

    def let_go(self, partition: Partition) -> None:
        """The log is set aside; an empty one is opened in its place."""
        partition.retire()
        self.partition = None
        if isinstance(self.store, DiskStore):
            self.store.let_go()

    def drop(self) -> None:
        """The replica is other brokers' now: its log is set aside, one that comes back is new."""
        self.leaving = False
        if self.partition is not None:
            self.partition.retire()
            self.partition = None
        self.mending.forget()
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
            self.partition.delayed_produces.give_up()
        if self.upkeep is not None:
            self.upkeep.cancel()
            self.upkeep = None
        self.partition = None
        self.mending = idle_mending()
        self.store.close(BrokerEpoch(broker_epoch))
        self._note_lost_cache()
        self.up = self.paused = False
