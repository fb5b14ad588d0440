"""Hosts this broker's replicas: gives each its role from the image, and moves frames and time.

One asyncio loop owns everything here. ``run`` owns every task: the tick, one link per leader
broker, and ISR attempts. Frames that name no hosted replica are dropped (rule R4).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING

from broker.replication.follower_stream import FollowerStream
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
)
from broker.replication.isr_keeper import IsrKeeper
from broker.replication.leader_link import LeaderLink
from broker.replication.leader_stream import LeaderStream
from broker.replication.log_keeper import LogKeeper
from broker.replication.partition import Following, Partition
from broker.replication.partition_state import LeaderState
from broker.replication.replica import Replica
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    IncarnationId,
    LeaderEpoch,
    PartitionId,
    TopicIdPartition,
)
from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.config import BrokerConfig
    from broker.log.log_manager import LogManager
    from broker.ports import ControllerChannel, PeerChannel
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.faults import FaultHandler

_log = logging.getLogger("broker.replication")

TICK_MS = 50
ISR_CHECK_MS = 500
"""How often leaders look for laggards; joins are proposed as soon as an acknowledgement allows."""
MAX_UNKNOWN_OPENS = 20_000
"""Partitions that followers may ask for before this image holds them; then they are refused."""
DELETES_PER_TICK = 50
"""Logs moved into quarantine at once: more would hold the loop longer than a heartbeat."""
PURGE_CHECK_MS = 10_000
"""How often deleted logs are looked at."""
STALL_MS = 4 * TICK_MS
"""A tick this late means that this process stood still: nobody else is blamed (rule M7)."""


class ReplicaManager:
    """See the module. Invariant: ``_replicas`` holds exactly the assigned, opened replicas."""

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
        self.image = MetadataImage()
        self._config = config
        self._incarnation_id = incarnation_id
        self._logs = logs
        self._keeper = LogKeeper(config, incarnation_id, logs)
        self._peers = peers
        self._clock = clock
        self._faults = faults
        self._isr = IsrKeeper(config.broker_id, controllers, clock)
        self._replicas: dict[Key, Replica] = {}
        self._streams: dict[LeaderStream, None] = {}  # in order of arrival
        self._links: dict[BrokerId, LeaderLink] = {}
        self._numbers = itertools.count(1)
        self._dirty: set[Replica] = set()
        self._unknown_opens: dict[Key, dict[BrokerId, Open]] = {}
        """Opens for partitions that this image does not hold yet (rule R9)."""
        self._deleted: deque[TopicIdPartition] = deque()
        """Logs of deleted topics that are still to be moved into quarantine."""
        self._tasks: asyncio.TaskGroup | None = None
        self._ticked_ms = clock.monotonic_ms()
        self._isr_checked_ms = self._pinged_ms = self._purged_ms = self._ticked_ms

    # what others ask

    def replica(self, partition: TopicIdPartition) -> Replica | None:
        """The hosted replica of a partition, or None."""
        return self._replicas.get(key_of(partition.topic_id, partition.partition))

    def led_epoch(self, partition: TopicIdPartition) -> LeaderEpoch | None:
        """In which epoch this broker leads a partition; None where it does not."""
        replica = self.replica(partition)
        role = None if replica is None else replica.partition.role
        return role.epoch if isinstance(role, LeaderState) else None

    def replicas(self) -> Iterator[Replica]:
        """All hosted replicas."""
        return iter(self._replicas.values())

    @property
    def broker_epoch(self) -> BrokerEpoch | None:
        """Known from this broker's own image only; None until its registration is in it."""
        registration = self.image.brokers.get(self._config.broker_id)
        if registration is None or registration.incarnation_id != self._incarnation_id:
            return None
        return registration.broker_epoch

    def appended(self, replica: Replica, base_offset: int, next_offset: int, raw: bytes) -> None:
        """A leader append was written whole: flush it, push it, count it (rule R2)."""
        replica.log.request_flush()
        for session in replica.sessions.values():
            session.offer(base_offset, next_offset, raw)
        replica.partition.advance()

    # metadata

    def on_metadata_update(self, image: MetadataImage) -> None:
        """Follow the image: open, close and change the role of replicas. Called in order."""
        known = self.broker_epoch is not None
        before, self.image = self.image, image
        if not known and self.broker_epoch is not None:
            self._drop_strays()
        self._keeper.forget_recorded_damage(image)
        everything = before.brokers is not image.brokers
        for topic_id, topic in before.topics.items():
            if topic_id not in image.topics:
                self._drop_topic(topic)
        for topic_id, topic in image.topics.items():
            if everything or before.topics.get(topic_id) is not topic:
                self._apply_topic(topic, before.topics.get(topic_id), everything=everything)
        for replica in self._replicas.values():
            if replica.partition.early_opens:
                self._retry_early_opens(replica)

    def _drop_strays(self) -> None:
        """Topics that were deleted while this broker was down.

        The first image with the own registration is behind all that this disk has lived through:
        what it lacks was deleted (rule M5).
        """
        gone = [
            TopicIdPartition(log.topic_id, log.partition)
            for log in self._logs.logs()
            if log.topic_id not in self.image.topics
        ]
        gone += [where for where in self._logs.offline if where.topic_id not in self.image.topics]
        self._deleted.extend(gone)

    def _apply_topic(
        self, topic: TopicImage, before: TopicImage | None, *, everything: bool
    ) -> None:
        old = before.partitions if before else ()
        for number, registration in enumerate(topic.partitions):
            same = number < len(old) and old[number] is registration
            if everything or not same:
                self._apply_partition(topic, PartitionId(number), registration)

    def _apply_partition(
        self, topic: TopicImage, number: PartitionId, registration: PartitionRegistration
    ) -> None:
        key = key_of(topic.topic_id, number)
        replica = self._replicas.get(key)
        if self._config.broker_id not in registration.replicas:
            if replica is not None:
                self._drop(replica)
            return
        if replica is None:
            replica = self._open(topic, number)
            if replica is None:
                return
        partition = replica.partition
        role_before = partition.role
        partition.apply_image(
            registration, self.image.brokers, self.broker_epoch, self._clock.monotonic_ms()
        )
        if partition.role is not role_before:
            self._role_changed(replica)

    def _open(self, topic: TopicImage, number: PartitionId) -> Replica | None:
        """The replica of an assigned partition; None while its log is offline (rule Q5).

        Nothing is opened, made or set aside before this incarnation's own registration is in the
        image: until then the image may be older than what this disk has lived through (rule M5).
        """
        if self.broker_epoch is None:
            return None
        log = self._keeper.open(self.image, topic, number)
        if log is None:
            return None
        partition = Partition(
            TopicIdPartition(topic.topic_id, number),
            self._config.broker_id,
            log,
            self._keeper.settings(self.image, topic),
            high_watermark=log.high_watermark,
        )
        replica = Replica(topic.name, partition, log)
        partition.on_high_watermark = lambda _: self._high_watermark_moved(replica)
        log.on_durable = lambda: self._durable_end_moved(replica)
        partition.early_opens = self._unknown_opens.pop(replica.key, {})
        self._replicas[replica.key] = replica
        return replica

    def _role_changed(self, replica: Replica) -> None:
        for session in list(replica.sessions.values()):
            session.forget()
        replica.sessions.clear()
        for link in self._links.values():
            link.replicas.discard(replica)
        role = replica.partition.role
        if isinstance(role, Following):
            link = self._link_to(role.leader)
            link.replicas.add(replica)
            link.open(replica)
        replica.wake_fetches()

    def _link_to(self, leader: BrokerId) -> LeaderLink:
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = LeaderLink(
                leader, self._peer_of, self._peers, self, self._clock,
                backoff_ms=self._config.timeouts.reconnect_backoff_ms,
                number=self._numbers.__next__,
            )  # fmt: skip
            if self._tasks is not None:
                self._tasks.create_task(link.run(), name=f"leader-link-{leader}")
        return link

    def _peer_of(self, broker_id: BrokerId) -> str | None:
        registration = self.image.brokers.get(broker_id)
        return None if registration is None else registration.peer

    def _drop_topic(self, topic: TopicImage) -> None:
        """A topic was deleted: nothing of it is served any more; its logs go in bounded steps."""
        for number in range(len(topic.partitions)):
            replica = self._replicas.get(key_of(topic.topic_id, PartitionId(number)))
            if replica is not None:
                self._drop(replica)
                self._deleted.append(replica.partition.id)

    def _drop(self, replica: Replica) -> None:
        """No replica here any more. Its data stays until a deletion fact is old enough (M5)."""
        del self._replicas[replica.key]
        for session in list(replica.sessions.values()):
            session.forget()
        replica.sessions.clear()
        for link in self._links.values():
            link.replicas.discard(replica)
        self._dirty.discard(replica)
        replica.log.on_durable = None
        replica.partition.retire()
        replica.wake_fetches()

    # ends and high watermarks

    def _durable_end_moved(self, replica: Replica) -> None:
        role = replica.partition.role
        if isinstance(role, Following):
            self._acknowledge(replica, role)
        replica.partition.advance()

    def _acknowledge(self, replica: Replica, role: Following) -> None:
        link = self._links.get(role.leader)
        if link is not None and link.stream is not None and role.session is not None:
            link.stream.queue_ack(replica)

    def _high_watermark_moved(self, replica: Replica) -> None:
        replica.log.high_watermark = replica.partition.high_watermark
        if isinstance(replica.partition.role, LeaderState):
            self._dirty.add(replica)
        if replica.fetch_waiters:
            replica.wake_fetches()

    def broken(self, what: str, error: Exception) -> None:
        """A bug met in a callback: another replica shall take over, this process ends."""
        self._faults.fatal(f"replication is broken: {what}", error)

    # leader host: streams of followers

    def accept_stream(self, follower: BrokerId) -> LeaderStream:
        """The protocol for a follower broker that connected to the peer listener."""
        return LeaderStream(follower, self)

    def stream_attached(self, stream: LeaderStream) -> None:
        """A follower broker connected."""
        self._streams[stream] = None

    def stream_detached(self, stream: LeaderStream) -> None:
        """A follower broker's connection ended: so did its sessions."""
        self._streams.pop(stream, None)
        for session in stream.sessions.values():
            replica = session.replica
            replica.partition.stream_closed(stream.follower, session.number)
            if replica.sessions.get(stream.follower) is session:
                del replica.sessions[stream.follower]
        stream.sessions.clear()

    def follower_opens(self, stream: LeaderStream, key: Key, message: Open) -> None:
        """Validate a follower's position and start its session."""
        replica = self._replicas.get(key)
        if replica is None:
            self._park_unknown_open(stream, key, message)
            return
        session, now_ms = next(self._numbers), self._clock.monotonic_ms()
        answer = replica.partition.on_open(
            stream.follower, message, self.image.brokers, session, now_ms
        )
        match answer:
            case Valid():
                stream.begin(replica, answer, message.log_end)
                self._propose(replica, lag_max_ms=None)
            case Diverging() | Refused():
                stream.answer(key, answer)
            case None:
                pass  # parked until the image arrives

    def _park_unknown_open(self, stream: LeaderStream, key: Key, message: Open) -> None:
        """The follower's image may be ahead: a new topic shall not wait for a second question."""
        if len(self._unknown_opens) < MAX_UNKNOWN_OPENS:
            self._unknown_opens.setdefault(key, {})[stream.follower] = message
        else:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            stream.answer(key, Refused(message.request, message.leader_epoch, code.number))

    def _retry_early_opens(self, replica: Replica) -> None:
        for follower, message in list(replica.partition.early_opens.items()):
            del replica.partition.early_opens[follower]
            stream = next((s for s in reversed(self._streams) if s.follower == follower), None)
            if stream is not None:
                self.follower_opens(stream, replica.key, message)

    def follower_acks(self, stream: LeaderStream, key: Key, message: Ack) -> None:
        """Count a follower's ends; a follower that now may join is proposed at once."""
        replica = self._replicas.get(key)
        if replica is None:
            return
        partition = replica.partition
        if partition.on_ack(stream.follower, message, self._clock.monotonic_ms()) is None:
            return
        role = partition.role
        if isinstance(role, LeaderState) and stream.follower not in role.isr:
            self._propose(replica, lag_max_ms=None)

    # follower host: streams to leaders

    def leader_attached(self, stream: FollowerStream) -> None:
        """Connected; the link opens the sessions."""

    def leader_detached(self, stream: FollowerStream) -> None:
        """The link's own task reconnects."""

    def leader_sent(self, stream: FollowerStream, key: Key, frame: Frame) -> None:
        """A frame of a leader: applied if it is of the present, else dropped (rule R4)."""
        replica = self._replicas.get(key)
        if replica is None:
            return
        partition, role = replica.partition, replica.partition.role
        if not isinstance(role, Following) or role.leader != stream.leader:
            return
        link = self._links[stream.leader]
        match frame:
            case Push():
                self._take_push(replica, stream, frame)
            case Valid():
                if partition.on_valid(frame):
                    replica.log.request_flush()
                    stream.queue_ack(replica)
            case Diverging():
                try:
                    again = partition.on_diverging(frame)
                except AssertionError as error:
                    self._faults.fatal("truncation below the high watermark", error)
                if again:
                    link.open(replica)
            case Refused():
                partition.on_refused(frame)  # asked again by the tick, as the image says then
            case Open() | Ack():
                pass

    def _take_push(self, replica: Replica, stream: FollowerStream, push: Push) -> None:
        """Append it. What one partition can't take ends its session, not the others' stream."""
        partition = replica.partition
        try:
            taken = partition.on_push(push)
        except (KafkaError, ValueError) as error:
            _log.warning(
                "push refused log=%s leader=%d error=%s", replica.log.name, stream.leader, error
            )
            partition.drop_session()
            return
        if taken is False:
            self._links[stream.leader].open(replica)
        elif taken and len(push.batches) and not partition.settings.by_durable:
            stream.queue_ack(replica)

    # time

    async def run(self) -> None:
        """Own every task of replication until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for link in self._links.values():
                tasks.create_task(link.run(), name=f"leader-link-{link.leader}")
            while True:
                self._tick(self._clock.monotonic_ms())
                await asyncio.sleep(TICK_MS / 1000)

    def _tick(self, now_ms: int) -> None:
        stalled_ms = now_ms - self._ticked_ms
        self._ticked_ms = now_ms
        self._look_after_replicas(now_ms, stalled_ms)
        dirty, self._dirty = self._dirty, set()
        for replica in dirty:
            for session in replica.sessions.values():
                session.announce()
        for link in self._links.values():
            link.open_again(now_ms)
        self._keep_streams(now_ms, stalled_ms)
        if self._deleted:
            steps = min(len(self._deleted), DELETES_PER_TICK)
            self._logs.delete([self._deleted.popleft() for _ in range(steps)])
        if now_ms - self._purged_ms >= PURGE_CHECK_MS:
            self._purged_ms = now_ms
            due = self._keeper.due_for_purge(self.image, now_ms) if self.broker_epoch else []
            if due and self._tasks is not None:
                self._tasks.create_task(self._keeper.purge(due), name="purge")
        if now_ms - self._isr_checked_ms >= ISR_CHECK_MS:
            self._isr_checked_ms = now_ms
            for replica in self._replicas.values():
                if isinstance(replica.partition.role, LeaderState):
                    self._propose(replica, lag_max_ms=self._config.timeouts.replica_lag_time_max_ms)

    def _look_after_replicas(self, now_ms: int, stalled_ms: int) -> None:
        for replica in self._replicas.values():
            if stalled_ms > STALL_MS and isinstance(replica.partition.role, LeaderState):
                replica.partition.role.forgive(stalled_ms)
            if len(replica.partition.parked):
                replica.partition.parked.expire(now_ms)
            if replica.log.failed is not None:
                # Reported unclean at the registration of the next life; the other replicas serve.
                self._faults.fatal(f"log {replica.log.name} failed", replica.log.failed)

    def _keep_streams(self, now_ms: int, stalled_ms: int) -> None:
        """Rule R9: heartbeats both ways; three missed and the connection is closed."""
        interval_ms = self._config.timeouts.replication_heartbeat_ms
        ping = now_ms - self._pinged_ms >= interval_ms
        if ping:
            self._pinged_ms = now_ms
        to_leaders = [link.stream for link in self._links.values() if link.stream is not None]
        streams: list[LeaderStream | FollowerStream] = [*self._streams, *to_leaders]
        for stream in streams:
            if stream.heard_ms <= 0 or stalled_ms > STALL_MS:
                stream.heard_ms = now_ms
            elif now_ms - stream.heard_ms > 3 * interval_ms + STALL_MS:
                _log.warning("stream silent, closed ms=%d", now_ms - stream.heard_ms)
                stream.close()
                continue
            if ping:
                stream.ping()

    def _propose(self, replica: Replica, *, lag_max_ms: int | None) -> None:
        epoch = self.broker_epoch
        if epoch is None or self._tasks is None:
            return
        proposal = replica.partition.propose_isr(
            self.image.brokers, next(self._numbers), self._clock.monotonic_ms(), lag_max_ms
        )
        if proposal is not None:
            attempt = self._isr.attempt(replica.partition, proposal, epoch)
            self._tasks.create_task(attempt, name="alter-partition")
