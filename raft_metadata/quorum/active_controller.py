"""A controller of the quorum: it serves brokers, and decides while it is the active one.

The shell around ``controller.Controller``. It owns the speculative image (the committed one and
its own batches in flight), hands batches to the quorum, and returns no answer that is not
committed. The peer server calls its command methods; the quorum calls its ``on_…`` methods; `run`
ticks it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, cast

from typing_extensions import override

from raft_metadata.common.clock import Clock
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.faults import FaultHandler
from raft_metadata.common.ids import BrokerEpoch, BrokerId, TopicId
from raft_metadata.controller.broker_sessions import HeartbeatTracker
from raft_metadata.controller.controller import (
    Controller,
    ControllerConfig,
    RandomSource,
    Urgency,
)
from raft_metadata.controller.election_control import joined_elections
from raft_metadata.controller.feature_control import NO_VOTER_LEVELS
from raft_metadata.image.metadata_delta import MetadataDelta, MetadataPublisher
from raft_metadata.image.metadata_image import MetadataImage, TopicImage
from raft_metadata.image.metadata_state_machine import MetadataStateMachine
from raft_metadata.quorum.metadata_feed import MetadataFeed
from raft_metadata.quorum.metadata_quorum import MetadataQuorum
from raft_metadata.quorum.raft_node import Leadership
from raft_metadata.quorum.speculation import Speculation, check_committed, failure
from raft_metadata.records.commands import (
    A,
    AddPartitions,
    BrokerHeartbeat,
    Command,
    CreateTopic,
    ElectLeaders,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
    LeadersElected,
    UpgradeMetadata,
)
from raft_metadata.records.records import (
    BrokerRegistrationChangeRecord,
    BrokerState,
    MetadataRecord,
)
from raft_metadata.records.serde import encode_batch

_log = logging.getLogger("raft_metadata.controller")


def log_broker_state_changes(image: MetadataImage, records: Sequence[MetadataRecord]) -> None:
    """Log each fencing or unfencing in `records`; `image` is the one that they change."""
    for record in records:
        if not isinstance(record, BrokerRegistrationChangeRecord):
            continue
        known = image.brokers.get(record.broker_id)
        if known is None or known.state is record.state:
            continue
        lost = record.state is BrokerState.FENCED and known.state is BrokerState.UNFENCED
        _log.log(
            logging.WARNING if lost else logging.INFO,
            "broker state broker=%d broker_epoch=%d from=%s to=%s",
            record.broker_id, record.broker_epoch, known.state.value, record.state.value,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Standby:
    """The state without leadership: another voter leads, or none."""


@dataclass(frozen=True, slots=True)
class Active:
    """The state of the deciding controller, with the speculative image of its term."""

    speculation: Speculation


@dataclass(frozen=True, slots=True)
class Doubtful:
    """The state after a failed batch, in a term that may go on: nothing is decided.

    The barrier is an empty batch appended after all earlier ones. Once it is committed none of them
    is undecided, so the committed image is the newest one again.
    """

    term: int
    barrier: asyncio.Future[object] | None = None


DecidingState = Standby | Active | Doubtful


class ControllerEvent(Enum):
    """An event that changes the state of an `ActiveController`."""

    ACTIVATED = "this voter leads, and every entry before its term is applied"
    DEACTIVATED = "this voter leads no more"
    BATCH_FAILED = "a batch of the present speculation is not in the log"
    BARRIER_APPENDED = "a barrier is on its way"
    BARRIER_COMMITTED = "every earlier batch is decided"


TRANSITIONS: Final[Mapping[tuple[type[DecidingState], ControllerEvent], type[DecidingState]]] = {
    (Standby, ControllerEvent.ACTIVATED): Active,
    (Standby, ControllerEvent.DEACTIVATED): Standby,
    (Active, ControllerEvent.ACTIVATED): Active,
    (Active, ControllerEvent.BATCH_FAILED): Doubtful,
    (Active, ControllerEvent.DEACTIVATED): Standby,
    (Doubtful, ControllerEvent.ACTIVATED): Active,
    (Doubtful, ControllerEvent.BARRIER_APPENDED): Doubtful,
    (Doubtful, ControllerEvent.BARRIER_COMMITTED): Active,
    (Doubtful, ControllerEvent.DEACTIVATED): Standby,
}
"""The state after each event; an event that is not listed for a state cannot happen in it."""


class ActiveController(MetadataPublisher):
    """The commands, sessions and metadata feed of one controller process.

    Owned by its loop; single-threaded; lives as long as `run`. It is the quorum's listener: start
    the quorum with it. It decides while its state is `Active`.
    """

    def __init__(
        self,
        state_machine: MetadataStateMachine,
        config: ControllerConfig,
        quorum: MetadataQuorum,
        *,
        clock: Clock,
        random_source: RandomSource,
        faults: FaultHandler,
    ) -> None:
        self._machine = state_machine
        self._config = config
        self._clock = clock
        self._faults = faults
        self._core = Controller(config, random_source, clock.monotonic_ms())
        self._quorum = quorum
        self._state: DecidingState = Standby()
        self._feed = MetadataFeed(state_machine, config, quorum)
        self._completion_deadline_ms: int | None = None
        """Earliest deadline of the commands that wait for partitions to be recorded; None if none
        waits."""
        self._wake = asyncio.Event()
        self._stopping = False
        state_machine.add_publisher(self)

    @property
    def sessions(self) -> HeartbeatTracker:
        """The heartbeat tracker, for reading only."""
        return self._core.sessions

    @property
    def is_active(self) -> bool:
        """True if this controller is the active one, as far as it knows."""
        return isinstance(self._state, Active)

    @property
    def speculation(self) -> Speculation | None:
        """The batches in flight and the image they lead to, while active; for reading only."""
        return self._state.speculation if isinstance(self._state, Active) else None

    def _move(self, event: ControllerEvent, state: DecidingState) -> None:
        """Enter the state that `TRANSITIONS` names for this event."""
        assert TRANSITIONS[type(self._state), event] is type(state), (self._state, event, state)
        self._state = state

    # ---- life

    async def run(self) -> None:
        """Tick until `stop`: judge sessions, and append the consequences of the image."""
        while not self._stopping:
            self._wake.clear()
            if self._fatal_on_error(self._step):
                await asyncio.sleep(0)  # a large batch takes 50 ms: let heartbeats be handled
                continue
            try:
                async with asyncio.timeout(self._config.tick_ms / 1000):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def stop(self) -> None:
        """End `run` and every waiting fetch; the quorum's own stop answers pending commands."""
        self._stopping = True
        self._wake.set()
        self._feed.stop()

    def _fatal_on_error(self, step: Callable[[], bool]) -> bool:
        try:
            return step()
        except Exception as error:  # noqa: BLE001 the image cannot be trusted after it
            self._faults.fatal("controller step failed", error)

    # ---- callbacks of the quorum and the state machine

    def on_activated(self, leadership: Leadership) -> None:
        """Begin to decide: this voter leads, and every entry before its term is applied."""
        self._activate(ControllerEvent.ACTIVATED, leadership.term)

    def on_deactivated(self) -> None:
        """Stop deciding. The quorum answers pending commands (rule M3)."""
        if isinstance(self._state, Active):
            _log.info("controller deactivated term=%d", self._state.speculation.term)
        self._move(ControllerEvent.DEACTIVATED, Standby())
        self._feed.announce()

    def on_applied(self) -> None:
        """Wake `run` after entries were applied, because there may be something to decide."""
        self._wake.set()

    @override
    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Wake the fetches that wait for a newer image."""
        self._feed.announce()

    def _activate(self, event: ControllerEvent, term: int) -> None:
        image = self._machine.image
        _log.info("controller activated term=%d next_offset=%d", term, image.next_offset)
        speculation = Speculation(
            term,
            image,
            batch_bytes_max=self._config.batch_bytes_max,
            wall_ms=self._clock.wall_ms,
            submit=self._quorum.submit,
            on_appended=self._core.appended,
            on_answered=self._wake.set,
            on_failed=self._on_failed,
        )
        self._move(event, Active(speculation))
        self._core.activate(image)
        self._wake.set()

    # ---- appending (rule M2)

    def _on_failed(self, speculation: Speculation, error: KafkaError) -> None:
        """Drop the speculation after a failed batch.

        The batch is not in the log, so no decision made on top of it may be appended.
        """
        if speculation is self.speculation:
            _log.warning("speculation dropped term=%d why=%s", speculation.term, error)
            self._move(ControllerEvent.BATCH_FAILED, Doubtful(speculation.term))
            self._feed.announce()
        self._wake.set()

    def _resume(self, doubt: Doubtful) -> None:
        """Append a barrier if none is on its way; decide again once one is committed."""
        term, barrier = doubt.term, doubt.barrier
        if not (self._quorum.is_leader and self._quorum.term == term):
            return
        if barrier is not None:
            if not barrier.done():
                return
            if not barrier.cancelled() and barrier.exception() is None:
                self._activate(ControllerEvent.BARRIER_COMMITTED, term)
                return
        barrier = self._quorum.submit(encode_batch(-1, term, ()), term)
        self._move(ControllerEvent.BARRIER_APPENDED, Doubtful(term, barrier))
        barrier.add_done_callback(lambda _: self._wake.set())

    # ---- ticks

    def tick(self) -> None:
        """Do all that is due at the clock's present time; for a driver with its own clock."""
        while self._step():
            pass

    def _step(self) -> bool:
        """Judge sessions, then append; return True after a bulk batch, when more may be due."""
        now_ms = self._clock.monotonic_ms()
        if self._completion_deadline_ms is not None and now_ms >= self._completion_deadline_ms:
            self._completion_deadline_ms = None
            self._feed.announce()
        registered = self._machine.image.brokers.values()
        self._core.sessions.expect_brokers(
            ((broker.broker_id, broker.broker_epoch) for broker in registered), now_ms
        )
        self._core.sessions.judge(now_ms)
        match self._state:
            case Standby():
                return False
            case Doubtful():
                self._resume(self._state)
                return False
            case Active(speculation):
                return self._append_proposed(speculation)

    def _append_proposed(self, speculation: Speculation) -> bool:
        """Append fences first; bulk only while it leaves room for the next fence (rule M4)."""
        while speculation is self.speculation:
            bulk_allowed = speculation.bulk_in_flight() < self._config.bulk_in_flight_max
            proposed = self._core.next_proposed_batch(speculation.image, bulk_allowed=bulk_allowed)
            if proposed is None:
                return False
            before = speculation.image
            try:
                speculation.append(proposed.records, proposed.urgency)
                log_broker_state_changes(before, proposed.records)
            except KafkaError as refusal:
                _log.warning("append refused urgency=%s why=%s", proposed.urgency.value, refusal)
                return False
            if proposed.urgency is Urgency.BULK:
                return True
        return False

    # ---- commands: only the active controller

    async def execute(self, command: Command[A]) -> A:
        """Execute a command and return its answer once the decision is committed (rule M3).

        Elections are held in bounded parts. Creating a topic and adding partitions return once
        every partition is recorded; if leadership ends in between they raise OUTCOME_UNKNOWN: the
        next controller continues, and a repeated creation with the same topic id finds the topic.
        """
        match command:
            case ElectLeaders():
                return cast(A, await self._elect(command))
            case CreateTopic() if not command.validate_only:
                created = await self._command(command)
                topic = await self._wait_for_partitions(created.topic_id)
                factor, end = len(topic.partitions[0].replicas), self._machine.image.next_offset
                return cast(A, replace(created, replication_factor=factor, next_offset=end))
            case AddPartitions() if not command.validate_only:
                added = await self._command(command)
                await self._wait_for_partitions(added.topic_id)
                return cast(A, replace(added, next_offset=self._machine.image.next_offset))
            case _:
                return await self._command(command)

    async def _elect(self, command: ElectLeaders) -> LeadersElected:
        """Elect leaders in bounded parts, each committed before the next.

        Fences can be appended in between. After the first part a failure is no longer *surely not
        appended* (rules M3, M4).
        """
        done: list[LeadersElected] = []
        speculation = self.speculation
        image = self._machine.image if speculation is None else speculation.image
        for part in self._core.election_steps(image, command):
            try:
                done.append(await self._command(part))
            except KafkaError as error:
                if not done:
                    raise
                message = f"{len(done)} parts of the election were made, then: {error.message}"
                raise KafkaError(ErrorCode.OUTCOME_UNKNOWN, message) from error
        return joined_elections(done)

    async def _command(self, command: Command[A]) -> A:
        """Decide on the newest image, append, and return the answer when it is committed (rule M3).

        No await separates reading the image from appending. A decision without records, including a
        refusal, is answered once an empty batch behind it is committed.
        """
        speculation = self.speculation
        if speculation is None:
            raise self._not_controller()
        if len(speculation.in_flight) >= self._config.commands_in_flight_max:
            message = f"{len(speculation.in_flight)} metadata batches wait; nothing was appended"
            raise KafkaError(ErrorCode.QUEUE_FULL, message)
        levels = NO_VOTER_LEVELS
        if isinstance(command, UpgradeMetadata):
            levels = self._quorum.voter_feature_levels()
        try:
            records, answer = self._core.decide(speculation.image, command, levels)
        except KafkaError:
            await self._prove_newest(speculation)
            raise
        if not records:
            await self._prove_newest(speculation)
            return answer
        batches = speculation.append(records, Urgency.CHANGE)
        await asyncio.wait([batch.future for batch in batches])
        check_committed(batches)
        return answer

    async def _prove_newest(self, speculation: Speculation) -> None:
        """Append an empty batch at the end of the image; return once it is accepted.

        That proves two things about a decision without records: the batches in flight under it were
        accepted, and this term had not ended when it was made. A controller that was deposed
        without knowing it must return nothing, not even a refusal (invariant R14); batches that
        were in flight before may have been committed before it was deposed.
        """
        at, term = speculation.image.next_offset, speculation.term
        proof = self._quorum.submit(encode_batch(at, term, ()), term)
        await asyncio.wait([proof])
        refusal = failure(proof)
        if refusal is not None:
            is_full = refusal.code is ErrorCode.QUEUE_FULL
            raise refusal if is_full else self._not_controller()

    async def _wait_for_partitions(self, topic_id: TopicId) -> TopicImage:
        """Return the topic once all its partitions are recorded.

        With too few live brokers that may never happen (rule M8): after `completion_wait_max_ms`
        raises OUTCOME_UNKNOWN, and the growth continues.
        """
        deadline_ms = self._clock.monotonic_ms() + self._config.completion_wait_max_ms
        while True:
            topic = self._machine.image.topics.get(topic_id)
            if topic is None:
                message = "the topic was deleted while its partitions were made"
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)
            if topic.is_complete:
                return topic
            if not self.is_active or self._clock.monotonic_ms() >= deadline_ms:
                message = f"{len(topic.partitions)} of {topic.partitions_count} partitions made"
                raise KafkaError(ErrorCode.OUTCOME_UNKNOWN, message)
            first = self._completion_deadline_ms
            self._completion_deadline_ms = deadline_ms if first is None else min(first, deadline_ms)
            await self._feed.changed()

    def _not_controller(self) -> KafkaError:
        leader = self._quorum.leader_id
        hint = "nobody is known to be" if leader is None else f"controller {leader} may be"
        message = f"this is not the active controller, {hint}; nothing was appended"
        return KafkaError(ErrorCode.NOT_CONTROLLER, message, outcome=Outcome.NOT_WRITTEN)

    # ---- sessions: every controller (rule M7)

    def heartbeat(self, command: BrokerHeartbeat) -> HeartbeatAnswer:
        """Record a broker's heartbeat. Raises STALE_BROKER_EPOCH or BROKER_ID_NOT_REGISTERED."""
        now_ms = self._clock.monotonic_ms()
        answer = self._core.heartbeat(
            self._machine.image, command, now_ms, is_active=self.is_active
        )
        if self.is_active:
            self._wake.set()
        # Voters in contact with a leader vote for no other for an election timeout; that is the
        # lease on which the broker relies.
        proves = self._quorum.leader_contact_age_ms == 0 and not self._is_being_fenced(command)
        return replace(answer, majority_answers=proves, wall_ms=self._clock.wall_ms())

    def _is_being_fenced(self, command: BrokerHeartbeat) -> bool:
        """Return whether a batch in flight fences this broker, or ends its registration (rule G3).

        Its heartbeat came too late: the consequences of the fence may be in force a moment from
        now.
        """
        speculation = self.speculation
        if speculation is None:
            return False
        broker = speculation.image.brokers.get(command.broker_id)
        return (
            broker is None
            or broker.broker_epoch != command.broker_epoch
            or broker.state is BrokerState.FENCED
        )

    def session_opened(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Record that the connection with a broker's heartbeats has opened."""
        now_ms = self._clock.monotonic_ms()
        self._core.sessions.connection_opened(broker_id, broker_epoch, now_ms)

    def session_closed(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Record that a connection with a broker's heartbeats has closed.

        Unless one opens again within the grace period the session expires.
        """
        now_ms = self._clock.monotonic_ms()
        self._core.sessions.connection_closed(broker_id, broker_epoch, now_ms)

    async def fetch_metadata(self, request: FetchMetadata) -> FetchMetadataAnswer:
        """Return metadata records; every controller serves it, see `MetadataFeed.fetch`."""
        return await self._feed.fetch(request)

    # ---- operators

    def status(self) -> Mapping[str, object]:
        """Return facts for operators, metrics and checkers; plain values only."""
        image, speculation = self._machine.image, self.speculation
        brokers = {
            str(broker.broker_id): {
                "broker_epoch": broker.broker_epoch,
                "state": broker.state.value,
                "settled": broker.settled,
                "age_ms": self._core.sessions.age_ms(broker.broker_id),
            }
            for broker in image.brokers.values()
        }
        return {
            "is_active": self.is_active,
            "leader_id": self._quorum.leader_id,
            "term": self._quorum.term,
            "leader_contact_age_ms": self._quorum.leader_contact_age_ms,
            "commit_index": self._quorum.commit_index,
            "applied_index": self._quorum.applied_index,
            "next_offset": image.next_offset,
            "controller_epoch": image.epoch,
            "batches_in_flight": 0 if speculation is None else len(speculation.in_flight),
            "fetches_waiting": self._feed.waiting,
            "topics": len(image.topics),
            "partitions": sum(len(topic.partitions) for topic in image.topics.values()),
            "brokers": brokers,
        }
