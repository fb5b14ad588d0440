"""The deciding core of a controller: commands in, records out, and the batches it proposes itself.

`Controller` holds the soft state that is in no log (sessions, partitions to examine, shutdowns in
progress); every decision is a pure function of an image and that state. The shell around it,
``quorum.active_controller``, owns the speculative image, the quorum, and the clock. It passes
commands and heartbeats in, appends the batches of `next_proposed_batch`,
and reports each new image to `appended`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, cast

from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    MetadataOffset,
    TopicId,
    TopicIdPartition,
)
from raft_metadata.controller.admin_control import AdminContext, decide_admin
from raft_metadata.controller.broker_sessions import (
    DamageByPartition,
    HeartbeatTracker,
)
from raft_metadata.controller.broker_views import DamagedReplicas, ReportedOffsets
from raft_metadata.controller.cluster_control import (
    ShutdownProgress,
    check_broker_epoch,
    decide_controlled_shutdown,
    decide_fence,
    decide_register_broker,
    decide_settled,
    decide_unfence,
    shutdown_progress,
)
from raft_metadata.controller.drain_control import DrainMoves
from raft_metadata.controller.election_control import LeaderBalance, election_steps
from raft_metadata.controller.feature_control import NO_VOTER_LEVELS, VoterLevels
from raft_metadata.controller.partition_draft import partition_at
from raft_metadata.controller.replication_control import (
    MinIsrHistory,
    PartitionQueue,
    concerned_topics,
    decide_alter_partition,
    decide_consequences,
    decide_each,
)
from raft_metadata.controller.topic_control import (
    decide_create_topic,
    decide_delete_topic,
    decide_growth,
)
from raft_metadata.controller.topic_rules import TopicDefaults
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import BrokerRegistration, MetadataImage
from raft_metadata.records.commands import (
    A,
    AlterPartition,
    AlterPartitions,
    BrokerHeartbeat,
    BrokerRegistered,
    Command,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    HeartbeatAnswer,
    PartitionAltered,
    RegisterBroker,
    TopicCreated,
)
from raft_metadata.records.feature_levels import SUPPORTED_FEATURE_LEVEL
from raft_metadata.records.records import BrokerState, FeatureLevelRecord, MetadataRecord

Records = tuple[MetadataRecord, ...]
RandomSource = Callable[[int], bytes]
"""A function that returns n random bytes: ``os.urandom``, or a seeded one in simulations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """The settings of a controller; the same on all controllers. Times in milliseconds."""

    cluster_id: ClusterId
    defaults: TopicDefaults = field(default_factory=TopicDefaults)
    broker_session_timeout_ms: int = 1_200
    broker_disconnect_grace_ms: int = 300
    election_timeout_ms: int = 1_000
    """A controller without contact to its leader for this long reports itself as stale (rule
    M6)."""
    tick_ms: int = 50
    fetch_wait_max_ms: int = 5_000
    fetch_bytes_max: int = 262_144
    """Bytes of one page of fetch-metadata, at least one batch; a broker decodes it in 20 ms."""
    fetch_waiting_max: int = 1_000
    changes_per_batch_max: int = 2_000
    leader_returned_ms: int = 30_000
    """See `LeaderBalance`, for the next one too."""
    leader_moves_max: int = 500
    drain_moves_max: int = 50
    """Partitions under reassignment at once because of drains (`DrainMoves`)."""
    batch_bytes_max: int = 458_752
    """Bytes of a batch: below the quorum's 512 KiB per entry, with room for the batch's head."""
    bulk_in_flight_max: int = 4
    """Batches of consequences and new partitions that wait for the quorum at once; a fence that
    becomes due meanwhile waits behind these at most (rule M4)."""
    commands_in_flight_max: int = 4_096
    completion_wait_max_ms: int = 15_000
    """Longest wait of a creation, or of added partitions, for the last partition."""


class Urgency(Enum):
    """The kind of a batch, which selects its limit in flight. Fences have no limit (rule M4)."""

    FENCE = "fence"
    CHANGE = "change"
    BULK = "bulk"


class ProposedBatch(NamedTuple):
    """A batch that the controller proposes without a command."""

    records: Records
    urgency: Urgency


class Controller:
    """The decisions and soft state of one controller. Owned by its loop; not thread-safe.

    Standby and active controllers alike keep sessions; only the active one decides. ``image`` is
    always the newest image, with its own batches in flight applied (rule M2).
    """

    def __init__(self, config: ControllerConfig, random_source: RandomSource, now_ms: int) -> None:
        self.config = config
        self.sessions = HeartbeatTracker(
            session_timeout_ms=config.broker_session_timeout_ms,
            disconnect_grace_ms=config.broker_disconnect_grace_ms,
            now_ms=now_ms,
        )
        self._random_source = random_source
        self._to_examine = PartitionQueue()
        self._activated_ms = 0
        self._incomplete_topics: dict[TopicId, int] = {}
        """Topics whose partitions are still being created, and the start of their placement."""
        self._unblocked_since: dict[BrokerEpoch, MetadataOffset] = {}
        """The next offset at which a broker in controlled shutdown led nothing and waited for no
        replica any more (rule R11)."""
        self._progress: dict[BrokerId, tuple[MetadataImage, ShutdownProgress]] = {}
        self._min_isrs = MinIsrHistory()
        self._balance = LeaderBalance(config.leader_returned_ms, config.leader_moves_max)
        self._drains = DrainMoves(config.drain_moves_max)
        self._damage = DamageByPartition()

    # ---- commands

    def decide(
        self,
        image: MetadataImage,
        command: Command[A],
        voter_levels: VoterLevels = NO_VOTER_LEVELS,
    ) -> tuple[Records, A]:
        """Return the records that carry out a command, and its answer.

        Raises the KafkaError with which the command is refused. The commands that need or change
        soft state are decided here, all others by `decide_admin`.
        """
        decision: tuple[Records, object]
        match command:
            case RegisterBroker():
                decision = self._register_broker(image, command)
            case AlterPartitions():
                decision = decide_each(
                    command,
                    lambda attempt: self.alter_partition(image, attempt),
                    batch_bytes_max=self.config.batch_bytes_max,
                )
            case CreateTopic():
                decision = self._create_topic(image, command)
            case DeleteTopic():
                decision = decide_delete_topic(image, command)
            case _:
                context = AdminContext(
                    defaults=self.config.defaults,
                    chance=self._chance(),
                    voter_levels=voter_levels,
                    damaged_replicas=self.damaged_replicas(image),
                )
                return decide_admin(image, command, context)
        return cast(tuple[Records, A], decision)

    def _register_broker(
        self, image: MetadataImage, command: RegisterBroker
    ) -> tuple[Records, BrokerRegistered]:
        present = image.brokers.get(command.broker_id)
        valid = present is not None and self.sessions.is_valid(
            command.broker_id, present.broker_epoch
        )
        return decide_register_broker(
            image, command, cluster_id=self.config.cluster_id, session_is_valid=valid
        )

    def alter_partition(
        self, image: MetadataImage, command: AlterPartition
    ) -> tuple[Records, PartitionAltered]:
        """Decide on one attempt of `AlterPartitions` (`decide_alter_partition`)."""
        session = self.sessions.session(command.broker_id, command.broker_epoch)
        return decide_alter_partition(
            image,
            command,
            defaults=self.config.defaults,
            leader_knows_min_isr=self._min_isrs.is_known_to(
                command.topic_id, 0 if session is None else session.metadata_offset
            ),
        )

    def _create_topic(
        self, image: MetadataImage, command: CreateTopic
    ) -> tuple[Records, TopicCreated]:
        """Decide on a creation and note the start of its placement, where its growth continues."""
        start = self._chance()
        decision = decide_create_topic(image, command, defaults=self.config.defaults, start=start)
        if decision[0]:
            self._incomplete_topics[command.topic_id] = start
        return decision

    def election_steps(self, image: MetadataImage, command: ElectLeaders) -> list[ElectLeaders]:
        """Return the command in parts that fit one batch; at least one, so that it is answered."""
        steps = election_steps(image, command, self.config.changes_per_batch_max)
        return list(steps) or [replace(command, partitions=())]

    # ---- what follows from the image

    def activate(self, image: MetadataImage) -> None:
        """Reset the soft state from a committed image; examine every partition again (rule M4)."""
        self._to_examine.begin(_partitions_of(image, image.brokers.keys()))
        self._activated_ms = self.sessions.judge_ms
        self._incomplete_topics = {
            topic_id: self._chance()
            for topic_id, topic in image.topics.items()
            if not topic.is_complete
        }
        self._unblocked_since.clear()
        self._progress.clear()
        self._min_isrs.begin(image)
        self._balance.begin(image, self.sessions.judge_ms)
        self._drains.begin(image)

    def appended(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Note the changes of ``delta``, which led to the newest ``image``.

        Partitions that may owe a change because of them are examined again.
        """
        self._min_isrs.note(delta, image)
        self._balance.note(delta, image, self.sessions.judge_ms)
        self._drains.note(delta, image)
        for topic_id in concerned_topics(delta, image):
            count = len(image.topics[topic_id].partitions)
            self._to_examine.add(partition_at(topic_id, index) for index in range(count))
        if delta.changed_brokers:
            self._to_examine.add(_partitions_of(image, delta.changed_brokers.keys()))
        for topic_id, indexes in delta.changed_partitions.items():
            self._to_examine.add(partition_at(topic_id, index) for index in sorted(indexes))
        for topic_id in delta.deleted_topics:
            self._incomplete_topics.pop(topic_id, None)
        for topic_id in delta.changed_topics:
            if image.topics[topic_id].is_complete:
                self._incomplete_topics.pop(topic_id, None)
            elif topic_id not in self._incomplete_topics:
                self._incomplete_topics[topic_id] = self._chance()

    def next_proposed_batch(
        self, image: MetadataImage, *, bulk_allowed: bool
    ) -> ProposedBatch | None:
        """Return the most urgent batch to append, or None.

        Call it again with the image that the batch leads to. ``bulk_allowed`` False: the limit of
        bulk batches in flight is reached.
        """
        if image.next_offset == 0:
            level = FeatureLevelRecord(level=SUPPORTED_FEATURE_LEVEL)
            return ProposedBatch((level,), Urgency.CHANGE)
        fence = self._fence(image)
        if fence:
            return ProposedBatch(fence, Urgency.FENCE)
        offsets = {one: self.metadata_offset(broker) for one, broker in image.brokers.items()}
        self._to_examine.requeue(offsets)
        if not (self._to_examine.is_empty or bulk_allowed):
            return None
        consequences = self._consequences(image, offsets)
        if consequences:
            return ProposedBatch(consequences, Urgency.BULK)
        for records in self._changes(image):
            return ProposedBatch(records, Urgency.CHANGE)
        if not bulk_allowed:
            return None
        bulk = self._growth(image) or self._background_moves(image)
        return ProposedBatch(bulk, Urgency.BULK) if bulk else None

    def _fence(self, image: MetadataImage) -> Records:
        """Return the fence of a broker whose session expired, if any.

        A new controller fences no broker until the leadership proofs that the previous one may have
        given have expired. It may have been elected this moment, and have received nothing from a
        broker whose heartbeats the previous one answered. A proof is younger than the grace of a
        lost connection (rule G3).
        """
        if self.sessions.judge_ms - self._activated_ms < self.config.broker_disconnect_grace_ms:
            return ()
        for broker in image.brokers.values():
            if self.sessions.has_expired(broker.broker_id, broker.broker_epoch):
                fence = decide_fence(image, broker.broker_id, broker.broker_epoch)
                if fence:
                    return fence
        return ()

    def _growth(self, image: MetadataImage) -> Records:
        """Return the next partitions of a topic that is still being created."""
        for topic_id, start in tuple(self._incomplete_topics.items()):
            if topic_id not in image.topics:
                del self._incomplete_topics[topic_id]  # its first batch was rejected
                continue
            more = decide_growth(image, topic_id, defaults=self.config.defaults, start=start)
            if more:
                return more
        return ()

    def _background_moves(self, image: MetadataImage) -> Records:
        """Return background changes: replicas leave drained brokers, leaderships return."""
        now_ms, defaults = self.sessions.judge_ms, self.config.defaults
        drained = self._drains.moves(image, now_ms, defaults)
        return drained or self._balance.moves(image, now_ms, defaults, self.damaged_replicas(image))

    def _consequences(self, image: MetadataImage, offsets: ReportedOffsets) -> Records:
        """Return the changes that the next partitions owe; note those that wait for a broker."""
        if self._to_examine.is_empty:
            return ()
        found = decide_consequences(
            image,
            self._to_examine,
            defaults=self.config.defaults,
            changes_max=self.config.changes_per_batch_max,
            reported_offsets=offsets,
            damaged_replicas=self.damaged_replicas(image),
            complete_reporters=self.brokers_with_complete_report(image),
        )
        self._to_examine.take(found, offsets)
        return found.records

    def _changes(self, image: MetadataImage) -> Iterator[Records]:
        """Yield changes of brokers' states, for when no partition owes a change to them."""
        defaults, damaged = self.config.defaults, self.damaged_replicas(image)
        for broker_id, broker in image.brokers.items():
            if not broker.settled:
                records = decide_settled(
                    image, broker_id, defaults=defaults, damaged_replicas=damaged
                )
                if records:
                    yield records
            session = self.sessions.session(broker_id, broker.broker_epoch)
            if session is None:
                continue
            if session.want_shutdown:
                records = decide_controlled_shutdown(image, broker_id)
            else:
                records = decide_unfence(
                    image,
                    broker_id,
                    metadata_offset=session.metadata_offset,
                    defaults=defaults,
                    damaged_replicas=damaged,
                )
            if records:
                yield records

    def _chance(self) -> int:
        """Return a random number of 32 bits."""
        return int.from_bytes(self._random_source(4), "big")

    # ---- heartbeats

    def heartbeat(
        self, image: MetadataImage, command: BrokerHeartbeat, now_ms: int, *, is_active: bool
    ) -> HeartbeatAnswer:
        """Record the contact and return the broker's state in the committed ``image``.

        A heartbeat of another registration is refused and changes nothing (invariant C7); a standby
        may not have seen the newest registration yet and records the contact.
        """
        present = image.brokers.get(command.broker_id)
        if is_active or (present is not None and present.broker_epoch > command.broker_epoch):
            present = check_broker_epoch(image, command.broker_id, command.broker_epoch)
        self.sessions.record_heartbeat(
            command.broker_id,
            command.broker_epoch,
            command.metadata_offset,
            now_ms,
            want_shutdown=command.want_shutdown,
        )
        news = self.sessions.record_damage(command)
        if is_active:
            self._to_examine.add(news.places)
            if news.is_report_complete:
                self._to_examine.add(_partitions_of(image, {command.broker_id}))
        state = BrokerState.STARTING
        if present is not None and present.broker_epoch == command.broker_epoch:
            state = present.state
        granted, reason = False, ""
        if is_active and present is not None and command.want_shutdown:
            granted, reason = self._shutdown(image, present)
        return HeartbeatAnswer(
            is_active=is_active,
            state=state,
            should_shut_down=granted,
            committed_offset=image.next_offset,
            shutdown_blocked_by=reason,
        )

    def _shutdown(self, image: MetadataImage, broker: BrokerRegistration) -> tuple[bool, str]:
        """Return (True, "") if controlled shutdown is granted, else (False, the reason).

        It is granted once the broker leads nothing and every live broker has applied that (rule
        R11).
        """
        broker_id = broker.broker_id
        if broker.state is BrokerState.UNFENCED:
            return False, "the change to controlled shutdown is not committed yet"
        progress = self._shutdown_progress(image, broker_id)
        # A starting or fenced broker gives up no ISR places, so it waits for no other replica.
        leaving = broker.state is BrokerState.CONTROLLED_SHUTDOWN
        if progress.led > 0 or (leaving and progress.waiting > 0):
            self._unblocked_since.pop(broker.broker_epoch, None)
            return False, (
                f"leads {progress.led} partitions, {progress.waiting} wait for a replica to join; "
                f"{progress.example}"
            )
        free_since = self._unblocked_since.setdefault(broker.broker_epoch, image.next_offset)
        behind = [
            other.broker_id
            for other in image.brokers.values()
            if other.broker_id != broker_id
            and other.state is BrokerState.UNFENCED
            and self.metadata_offset(other) < free_since
        ]
        if behind:
            return False, f"brokers {behind} have not reached metadata offset {free_since}"
        return True, ""

    def _shutdown_progress(self, image: MetadataImage, broker_id: BrokerId) -> ShutdownProgress:
        """Return the broker's progress, computed once for each image."""
        known = self._progress.get(broker_id)
        if known is not None and known[0] is image:
            return known[1]
        progress = shutdown_progress(image, broker_id, self.config.defaults)
        self._progress[broker_id] = (image, progress)
        return progress

    def damaged_replicas(self, image: MetadataImage) -> DamagedReplicas:
        """Return the damaged replicas reported in the live sessions."""
        return self._damage.of(
            {
                broker.broker_id: session.damage.failed
                for broker, session in self.sessions.live_sessions(image.brokers)
                if session.damage.failed
            }
        )

    def brokers_with_complete_report(self, image: MetadataImage) -> frozenset[BrokerId]:
        """Return the live brokers that have reported all their damaged replicas."""
        return frozenset(
            broker.broker_id
            for broker, session in self.sessions.live_sessions(image.brokers)
            if session.damage.is_report_complete
        )

    def metadata_offset(self, broker: BrokerRegistration) -> MetadataOffset:
        """Return the metadata offset that the broker last reported; 0 without a live session."""
        session = self.sessions.session(broker.broker_id, broker.broker_epoch)
        return MetadataOffset(0) if session is None else session.metadata_offset


def _partitions_of(image: MetadataImage, brokers: Set[BrokerId]) -> Iterator[TopicIdPartition]:
    """Yield all partitions with a replica on these brokers; those that they lead first.

    Partitions without a leader count as led: they are urgent as well.
    """
    followed: list[TopicIdPartition] = []
    for topic_id, topic in image.topics.items():
        for index, partition in enumerate(topic.partitions):
            if partition.leader in brokers or not partition.has_leader:
                yield partition_at(topic_id, index)
            elif not brokers.isdisjoint(partition.replicas):
                followed.append(partition_at(topic_id, index))
    yield from followed
