"""Hosts this broker's replicas: gives each its role from the image, and passes frames to it.

The broker's metadata loader publishes images to `ReplicaManager.follow`; streams of other brokers
pass frames to it; request handling finds replicas in it. It owns everything else in this folder:
replicas, logs, streams, ISR changes, repairs, throttles and the event journal. A tick every 50 ms
announces high watermarks, measures streams, searches for lagging replicas and expires produces.
Work on many replicas is done a few at a time, so that it never holds the event loop for long.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import compress, count, islice
from operator import is_not
from typing import TYPE_CHECKING, Generic, TypeVar

from broker.replication import events
from broker.replication.events import EventFile, EventJournal
from broker.replication.follower_stream import FollowerStream, LeaderLink, take_frame
from broker.replication.frames import (
    Ack,
    Diverging,
    Frame,
    Key,
    Open,
    Push,
    Refused,
    Valid,
    key_of,
    topic_id_bytes,
)
from broker.replication.isr_manager import IsrManager
from broker.replication.leader_state import LeaderState
from broker.replication.leader_stream import EarlyOpens, LeaderStream
from broker.replication.partition import Following, Partition
from broker.replication.repair import Repairs
from broker.replication.replica import Replica, TopicViews
from broker.replication.replica_logs import ReplicaLogs
from broker.replication.stream import StreamHeartbeats
from broker.replication.throttle import Throttles
from raft_metadata.common.errors import ErrorCode
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    IncarnationId,
    LeaderEpoch,
    PartitionId,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage
from raft_metadata.records.records import ResourceType

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.log.log_manager import LogManager
    from broker.ports import ControllerChannel, PeerChannel
    from broker.replication.delayed_produces import DelayedProduce
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.faults import FaultHandler


def concerns_all(before: MetadataImage, after: MetadataImage, broker_id: BrokerId) -> bool:
    """Return True if every replica must be compared with the image, not only changed partitions.

    So after registrations: roles depend on this broker's own registration (rule R3) and on the
    damage recorded with it (rule R6), sessions on every broker epoch (rule R4). And so after
    changes of configs that every topic may fall back to. Fencing or unfencing another broker has no
    effect here: its consequences arrive as changes of partitions.
    """
    if _defaults_changed(before, after, broker_id):
        return True
    if before.brokers is after.brokers:
        return False
    if before.brokers.get(broker_id) != after.brokers.get(broker_id):
        return True
    return any(
        (old := before.brokers.get(other)) is None or old.broker_epoch != broker.broker_epoch
        for other, broker in after.brokers.items()
    )


def topic_name(image: MetadataImage, topic_id: TopicId) -> str:
    """Return the name of a topic; "" if it is not known or deleted."""
    topic = image.topics.get(topic_id)
    return "" if topic is None else topic.name


def peer_of(image: MetadataImage, broker_id: BrokerId) -> str | None:
    """Return the address at which a broker takes replication streams; None if it is unknown."""
    registration = image.brokers.get(broker_id)
    return None if registration is None else registration.peer


def dropped_topics(before: MetadataImage, after: MetadataImage) -> list[TopicImage]:
    """Return the topics that were deleted, as they were before."""
    if before.topics is after.topics:
        return []
    return [topic for topic_id, topic in before.topics.items() if topic_id not in after.topics]


def partitions_to_apply(
    before: MetadataImage, after: MetadataImage, *, everything: bool
) -> Iterator[tuple[TopicImage, list[PartitionId]]]:
    """Yield the partitions to compare with the image, topic by topic, in the order of the image."""
    if before.topics is after.topics and before.configs is after.configs and not everything:
        return
    reconfigured = _reconfigured(before, after)
    for topic_id, topic in after.topics.items():
        old = before.topics.get(topic_id)
        if everything or old is None or topic_id in reconfigured:
            yield topic, [PartitionId(number) for number in range(len(topic.partitions))]
        elif old is not topic:
            numbers = compress(count(), map(is_not, topic.partitions, old.partitions))
            changed = [PartitionId(number) for number in numbers]
            changed += map(PartitionId, range(len(old.partitions), len(topic.partitions)))
            yield topic, changed


def _reconfigured(before: MetadataImage, after: MetadataImage) -> Set[str]:
    """Return the ids of topics whose own configs changed; they apply to all their partitions."""
    if before.configs is after.configs:
        return frozenset()
    old, new = before.configs, after.configs
    changed = {key for key, configs in new.items() if old.get(key) is not configs}
    changed.update(old.keys() - new.keys())
    return {name for kind, name in changed if kind is ResourceType.TOPIC}


def _defaults_changed(before: MetadataImage, after: MetadataImage, broker_id: BrokerId) -> bool:
    """Return True if configs changed that every topic of this broker may fall back to."""
    if before.configs is after.configs:
        return False
    if before.cluster_configs() != after.cluster_configs():
        return True
    return before.broker_configs(broker_id) != after.broker_configs(broker_id)


T = TypeVar("T")

_log = logging.getLogger("broker.replication")


class Rounds(Generic[T]):
    """Rounds over a changing set, a part of it with each tick.

    Checking 10,000 led replicas at once would hold the event loop for 30 ms, twice a second.
    """

    def __init__(self, ticks: int) -> None:
        """Begin with an empty round of ``ticks`` ticks."""
        self._ticks = ticks
        self._tick = 0
        self._share = 0
        self._left: Iterator[T] = iter(())

    def next_part(self, members: Iterable[T]) -> Iterator[T]:
        """Return the next part of the round; a new round begins with the members of that moment."""
        if self._tick == 0:
            now = list(members)
            self._left, self._share = iter(now), len(now) // self._ticks + 1
        self._tick = (self._tick + 1) % self._ticks
        return islice(self._left, self._share)


def forgive(led: Iterable[Replica], stalled_ms: int) -> None:
    """Shift the times of all led replicas by a stall of this process: no peer is blamed (M7)."""
    for replica in led:
        if isinstance(replica.partition.role, LeaderState):
            replica.partition.role.forgive(stalled_ms)


TICK_MS = 50
"""Interval of the manager's periodic work."""
ISR_CHECK_MS = 500
"""Time of a round in search of lagging replicas; joins are proposed with an acknowledgement."""
PARTITIONS_PER_STEP = 64
"""Partitions of an image that get their roles before other tasks have a turn: about 5 ms."""
STALL_MS = 4 * TICK_MS
"""Delay of a tick from which on this process counts as stalled; no peer is blamed then (M7)."""


class ReplicaManager:
    """The replicas that are assigned to this broker, with their logs and streams.

    Owned by the `BrokerServer`, on its event loop; `run` owns every task. Invariant: ``_replicas``
    holds exactly the assigned replicas with an open log, and those in ``_leaving``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        incarnation_id: IncarnationId,
        logs: LogManager,
        controllers: ControllerChannel,
        peers: PeerChannel,
        clock: Clock,
        faults: FaultHandler,
    ) -> None:
        self.push_bytes = config.limits.replication_push_bytes
        self.buffer_bytes = config.limits.replication_buffer_bytes
        self.unsynced_bytes = config.limits.replication_unsynced_bytes
        self.throttles = Throttles(config, clock)
        self.image = MetadataImage()
        self._config = config
        self._incarnation_id = incarnation_id
        self._logs = logs
        self._replica_logs = ReplicaLogs(config, incarnation_id, logs)
        self._views = TopicViews(config)
        self._peers = peers
        self._clock = clock
        self.now_ms: Callable[[], int] = clock.monotonic_ms
        """The monotonic time in milliseconds."""
        self._faults = faults
        self._replicas: dict[Key, Replica] = {}
        self._streams: dict[LeaderStream, None] = {}  # in order of arrival
        self._links: dict[BrokerId, LeaderLink] = {}
        self._numbers = itertools.count(1)
        self.dirty: set[Replica] = set()
        """Replicas whose high watermark or log start moved since the last tick, which announces it
        to their followers."""
        self._led: dict[Replica, None] = {}
        self._isr_rounds: Rounds[Replica] = Rounds(ISR_CHECK_MS // TICK_MS)
        self._with_delayed_produces: set[Replica] = set()
        """Replicas with delayed produces now or at the last tick."""
        self._leaving: set[Replica] = set()
        """Replicas that were reassigned elsewhere and stay until their produces are completed."""
        self._early = EarlyOpens(config.broker_id)
        self.events = EventJournal(
            EventFile(str(config.data_dir)), clock, incarnation_id,
            lambda topic_id: topic_name(self.image, topic_id),
        )  # fmt: skip
        self._notes = events.RoleNotes(self.events)
        unopenable = self._replica_logs.unopenable
        self.repairs = Repairs(config.broker_id, logs, self.events, unopenable, self)
        self._isr = IsrManager(config.broker_id, controllers, clock, self.events)
        self._tasks: asyncio.TaskGroup | None = None
        self._ticked_ms = clock.monotonic_ms()
        heartbeat_ms = config.timeouts.replication_heartbeat_ms
        self._stream_heartbeats = StreamHeartbeats(heartbeat_ms, STALL_MS, self._ticked_ms)

    # look-up and appends

    def replica(self, partition: TopicIdPartition) -> Replica | None:
        """Return the hosted replica of a partition; None if there is none."""
        return self._replicas.get(key_of(partition.topic_id, partition.partition))

    def led_epoch(self, partition: TopicIdPartition) -> LeaderEpoch | None:
        """Return the leader epoch in which this broker leads a partition; None if it does not."""
        replica = self.replica(partition)
        role = None if replica is None else replica.partition.role
        return role.epoch if isinstance(role, LeaderState) else None

    def replicas(self) -> Iterator[Replica]:
        """Return all hosted replicas."""
        return iter(self._replicas.values())

    @property
    def counts(self) -> tuple[int, int]:
        """Return (replicas hosted here, those of them that lead)."""
        return len(self._replicas), len(self._led)

    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        """The epoch of this incarnation; None until its registration is in this broker's image."""
        registration = self.image.brokers.get(self._config.broker_id)
        if registration is None or registration.incarnation_id != self._incarnation_id:
            return None
        return registration.broker_epoch

    def add_delayed_produce(self, replica: Replica, delayed: DelayedProduce) -> None:
        """Add a delayed produce to a led partition."""
        self._with_delayed_produces.add(replica)
        replica.partition.add_delayed_produce(delayed)

    def appended(self, replica: Replica, base_offset: int, next_offset: int, raw: bytes) -> None:
        """Push a leader append that was written whole, and count it (rule R2).

        The log requests its sync.
        """
        role = replica.partition.role
        if isinstance(role, LeaderState):
            role.appended(base_offset, self.now_ms())
        for session in replica.sessions:
            session.offer(base_offset, next_offset, raw)
        if not replica.partition.settings.by_durable:  # else it counts once it is durable (rule R1)
            replica.partition.advance()

    # metadata

    def on_metadata_update(self, image: MetadataImage) -> None:
        """Follow an image without yielding."""
        for _ in self.follow(image):
            pass

    def follow(self, image: MetadataImage) -> Iterator[None]:
        """Follow an image: open and drop replicas and change their roles. Call in order of images.

        It yields after each step, so that other tasks can have a turn: 10,000 new partitions in one
        turn would stop this broker's heartbeats for a second. In between, some partitions have
        taken their new roles and others not yet, as if the image came later to those.
        """
        known = self.broker_epoch is not None
        before, self.image = self.image, image
        self.throttles.configure(image)
        if not known and self.broker_epoch is not None:
            self._replica_logs.set_aside_strays(image)
        self._replica_logs.forget_recorded_damage(image)
        self._notes.begin()
        for topic in dropped_topics(before, image):
            yield from self._drop_topic(topic)
        everything = concerns_all(before, image, self._config.broker_id)
        steps = 0
        for topic, numbers in partitions_to_apply(before, image, everything=everything):
            raw_id = topic_id_bytes(topic.topic_id)
            for number in numbers:
                self.apply_partition(topic, Key(raw_id, number))
                steps += 1
                if steps % PARTITIONS_PER_STEP == 0:
                    yield
        for replica, follower, message in self._early.take():
            stream = next((s for s in reversed(self._streams) if s.follower == follower), None)
            if stream is not None:
                self.follower_opens(stream, replica.key, message)
                steps += 1
                if steps % PARTITIONS_PER_STEP == 0:
                    yield
        self._notes.end(image.next_offset, len(self._led), len(self._replicas))

    def apply_partition(self, topic: TopicImage, key: Key) -> None:
        """Give a partition the role that the image gives to this broker. Idempotent."""
        registration = topic.partitions[key.partition]
        if self.repairs.damaged and self.repairs.apply_to_damaged(key, registration):
            return
        replica = self._replicas.get(key)
        here = self._config.broker_id in registration.replicas
        if not here and (replica is None or not self._drop_or_observe(replica, registration)):
            return
        if replica is None:
            replica = self._open(topic, key)
            if replica is None:
                return
        else:
            replica.configure(self._views.of(self.image, topic.topic_id, registration))
        if here and replica in self._leaving:
            self._leaving.discard(replica)
            replica.readmit()
        partition = replica.partition
        before = events.PartitionSnapshot(partition)
        partition.apply_image(
            registration, self.image.brokers, self.broker_epoch, self._clock.monotonic_ms()
        )
        if partition.role is not before.role:
            self._role_changed(replica)
        self._notes.applied(replica, before)

    def _drop_or_observe(self, replica: Replica, registration: PartitionRegistration) -> bool:
        """Drop a replica that was reassigned elsewhere; return True if it must stay for a while.

        With delayed produces it stays and follows the new leader until their outcomes are known
        (rule R5) or their deadlines pass.
        """
        if (
            len(replica.partition.delayed_produces)
            and registration.has_leader
            and not replica.log.failed
        ):
            self._leaving.add(replica)
            replica.partition.is_observer = True
            return True
        self._drop(replica, topic_lives=True)
        return False

    def _open(self, topic: TopicImage, key: Key) -> Replica | None:
        """Make the replica of an assigned partition; None while its log is offline (rule Q5).

        Nothing is opened, created or set aside before this incarnation's registration is in the
        image: until then the image may be older than the data on this disk (rule M5).
        """
        if self.broker_epoch is None:
            return None
        number = PartitionId(key.partition)
        view = self._views.of(self.image, topic.topic_id, topic.partitions[number])
        log = self._replica_logs.open(self.image, topic, number, view.log_config, self.events)
        if log is None:
            return None
        partition = Partition(
            self._logs.key_of(log),
            self._config.broker_id,
            log,
            view.settings,
            high_watermark=log.high_watermark,
        )
        replica = Replica(topic.name, partition, log, key, self)
        replica.listen()
        self._replicas[key] = replica
        self._early.found(replica)
        return replica

    def _role_changed(self, replica: Replica) -> None:
        replica.forget_sessions()
        role = replica.partition.role
        if replica.link is not None:
            replica.link.stop_replicating(replica)
        if isinstance(role, Following):
            self._link_to(role.leader).start_replicating(replica)
        if isinstance(role, LeaderState):
            self._led[replica] = None
        else:
            self._led.pop(replica, None)
        replica.wake_fetches()

    def _link_to(self, leader: BrokerId) -> LeaderLink:
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = LeaderLink(
                leader, lambda b: peer_of(self.image, b), self._peers, self, self._clock,
                backoff_ms=self._config.timeouts.reconnect_backoff_ms,
                number=self._numbers.__next__,
            )  # fmt: skip
            if self._tasks is not None:
                self._tasks.create_task(link.run(), name=f"leader-link-{leader}")
        return link

    def _drop_topic(self, topic: TopicImage) -> Iterator[None]:
        """Drop the replicas of a deleted topic, in bounded steps; their logs are set aside."""
        raw_id = topic_id_bytes(topic.topic_id)
        for number in range(len(topic.partitions)):
            replica = self._replicas.get(Key(raw_id, number))
            if replica is not None:
                self._drop(replica, topic_lives=False)
            if number % PARTITIONS_PER_STEP == PARTITIONS_PER_STEP - 1:
                yield

    def _drop(self, replica: Replica, *, topic_lives: bool) -> None:
        """Stop hosting a replica and set its log aside; files are unlinked later (rule M5)."""
        self.release(replica)
        self._replica_logs.set_aside(replica.partition.id, topic_lives=topic_lives)

    def release(self, replica: Replica) -> None:
        """Stop hosting a replica; its log stays as it is."""
        del self._replicas[replica.key]
        self.repairs.forget(replica.key)
        replica.forget_sessions()
        if replica.link is not None:
            replica.link.stop_replicating(replica)
        self._led.pop(replica, None)
        self.dirty.discard(replica)
        self.events.forget(replica)
        self._with_delayed_produces.discard(replica)
        self._leaving.discard(replica)
        self._early.drop(replica)
        replica.log.on_durable = None
        replica.partition.retire()
        replica.wake_fetches()

    def stand_down(self, replica: Replica) -> None:
        """Neither lead nor follow until an image gives a role in a newer leader epoch."""
        replica.partition.retire()
        self._role_changed(replica)

    # ends and high watermarks

    def log_start_moved(self, partition: TopicIdPartition) -> None:
        """Announce a durable log start: to followers with the next tick, to the leader at once."""
        replica = self.replica(partition)
        if replica is not None:
            events.note_log_start(self.events, replica)
            self.dirty.add(replica)
            if replica.link is not None:
                replica.link.acknowledge(replica)

    def broken(self, what: str, error: Exception) -> None:
        """End this process because of a bug in a callback, so that other replicas take over."""
        self._faults.fatal(f"replication is broken: {what}", error)

    # leader host: streams of followers

    def accept_stream(self, follower: BrokerId) -> LeaderStream:
        """Return the protocol for a follower broker that connected to the peer listener."""
        return LeaderStream(follower, self)

    def stream_attached(self, stream: LeaderStream) -> None:
        """Add the connection of a follower broker."""
        self._streams[stream] = None

    def stream_detached(self, stream: LeaderStream) -> None:
        """Remove the connection of a follower broker and end its sessions."""
        self._streams.pop(stream, None)
        for session in stream.sessions.values():
            replica = session.replica
            replica.partition.stream_closed(stream.follower, session.number)
            replica.detach(session)
        stream.sessions.clear()

    def follower_opens(self, stream: LeaderStream, key: Key, message: Open) -> None:
        """Validate a follower's position; begin its session, refuse it, or wait for the image."""
        replica, now_ms = self._replicas.get(key), self._clock.monotonic_ms()
        if replica is None:
            no = self._early.keep_unknown(self.image, key, stream.follower, message, now_ms)
            if no is not None:
                stream.answer(key, no)
            return
        log = replica.log
        if stream.paused and log.producers is not None and message.log_end <= log.log_start_offset:
            # What it is told of the producers may be large: it asks again when there is room.
            code = ErrorCode.QUEUE_FULL.number
            stream.answer(key, Refused(message.request, message.leader_epoch, code))
            return
        session = next(self._numbers)
        answer = replica.partition.on_open(
            stream.follower, message, self.image.brokers, session, now_ms
        )
        match answer:
            case Valid():
                stream.begin(replica, answer, max(message.log_end, answer.log_start))
                self._propose(replica, lag_max_ms=None)
            case Diverging() | Refused():
                stream.answer(key, answer)
            case None:  # kept until the image arrives
                self._early.note(replica)

    def follower_acks(self, stream: LeaderStream, key: Key, message: Ack) -> None:
        """Apply a follower's ends; propose at once that it joins the ISR if it may."""
        replica = self._replicas.get(key)
        if replica is None:
            return
        partition, now_ms = replica.partition, self._clock.monotonic_ms()
        if partition.on_ack(stream.follower, message, now_ms) is None:
            return
        role = partition.role
        if isinstance(role, LeaderState):
            in_sync = stream.follower in role.isr
            # A follower that catches up releases only durable bytes, whatever the flush mode:
            # pages that wait to be written would delay every other sync there (rule R9).
            end = role.end_of(stream.follower) if in_sync else message.durable_end
            stream.acknowledged(key, message.session, end, now_ms)
            if not in_sync:
                self._propose(replica, lag_max_ms=None)

    # follower host: streams to leaders

    def leader_sent(self, stream: FollowerStream, key: Key, frame: Frame) -> None:
        """Apply a frame of a leader if it is of the present session; else drop it (rule R4)."""
        replica = self._replicas.get(key)
        if replica is not None:
            link = self._links[stream.leader]
            take_frame(replica, link, stream, frame, self._faults, self.events)
            if isinstance(frame, Push) and len(frame.batches):
                self.throttles.filled(replica, len(frame.batches), self.image, self._links.values())

    # time

    async def run(self) -> None:
        """Own every task of replication, and tick, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            tasks.create_task(self.events.run(), name="event-journal")
            for link in self._links.values():
                tasks.create_task(link.run(), name=f"leader-link-{link.leader}")
            while True:
                self.tick(self._clock.monotonic_ms())
                await asyncio.sleep(TICK_MS / 1000)

    def tick(self, now_ms: int) -> None:
        """Do the periodic work that is due at ``now_ms`` (monotonic)."""
        stalled_ms = now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        self._look_after_replicas(now_ms, stalled_ms)
        dirty, self.dirty = self.dirty, set()
        for replica in dirty:
            for session in replica.sessions:
                session.announce()
        self.events.high_watermarks_moved(dirty)
        for link in self._links.values():
            link.open_again(now_ms)
        to_leaders = [link.stream for link in self._links.values() if link.stream is not None]
        stalled = stalled_ms > STALL_MS
        self._stream_heartbeats.keep([*self._streams, *to_leaders], now_ms, stalled=stalled)
        for stream in self._streams:
            stream.tick(now_ms)
        self._early.forget_some(self.image, now_ms)
        self._replica_logs.quarantine_some()
        due = self._replica_logs.due_for_purge(self.image, now_ms) if self.broker_epoch else []
        if due and self._tasks is not None:
            self._tasks.create_task(self._replica_logs.purge(due), name="purge")
        for replica in self._isr_rounds.next_part(self._led):
            if isinstance(replica.partition.role, LeaderState):
                self._propose(replica, lag_max_ms=self._config.timeouts.replica_lag_time_max_ms)

    def _look_after_replicas(self, now_ms: int, stalled_ms: int) -> None:
        if stalled_ms > STALL_MS:
            forgive(self._led, stalled_ms)
        for replica in list(self._with_delayed_produces):
            replica.partition.delayed_produces.expire(now_ms)
            if not len(replica.partition.delayed_produces):
                self._with_delayed_produces.discard(replica)
        for replica in [one for one in self._leaving if not len(one.partition.delayed_produces)]:
            self._drop(replica, topic_lives=True)
        self.repairs.look(now_ms)

    def _propose(self, replica: Replica, *, lag_max_ms: int | None) -> None:
        epoch = self.broker_epoch
        if epoch is None or self._tasks is None:
            return
        change = replica.partition.propose_isr(
            self.image.brokers, next(self._numbers), self._clock.monotonic_ms(), lag_max_ms
        )
        if change is not None:
            self._isr.send(replica.partition, change, epoch, self._tasks)
