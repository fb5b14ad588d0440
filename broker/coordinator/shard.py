"""A led partition of the offsets topic: its groups, decided in order and written behind.

The `GroupCoordinator` makes a `Shard` for each led partition and passes requests to it as
decisions. A decision is made and folded at once, in one turn of the event loop, and its records are
written by the shard's one task: while one append is replicated, later decisions gather for the next
one (group commit). No request is answered before the records that the answer depends on are
committed. An append that fails, or whose outcome is unknown, invalidates everything decided since:
the state is dropped and read back from the log before the next answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from broker.coordinator import held_groups, instances, removal
from broker.coordinator.end_watches import WakeUp
from broker.coordinator.group_state import GroupEnvironment, GroupsState, Topics
from broker.coordinator.rebalance import drop_deleted_topics, is_concerned, retarget
from broker.coordinator.records import (
    GroupRecord,
    InstanceKey,
    OffsetKey,
    ProbeKey,
    ProbeValue,
    UndecodableRecord,
    partition_of_group,
)
from raft_metadata.common.clock import Clock
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId, TopicName

_log = logging.getLogger("broker.coordinator")
T = TypeVar("T")

LOAD_RETRY_MS = 100
"""Pause before a load that failed is tried again."""
JUDGE_STALL_MS = 500
"""Most time by which sessions age between two ticks, however far apart the ticks are (rule M7)."""
PARKED_DECISIONS_MAX = 20_000
"""Most records that wait to be written; QUEUE_FULL beyond."""


class ShardLog(Protocol):
    """Port to a partition of the offsets topic, in the leader epoch that the shard was made for.

    Every method raises NOT_LEADER_OR_FOLLOWER once this broker does not lead in that epoch.
    """

    @property
    def bounds(self) -> tuple[int, int]:
        """Log start and log end."""
        ...

    def read(
        self, from_offset: int, up_to_offset: int
    ) -> tuple[list[GroupRecord | UndecodableRecord], int]:
        """Return some records, committed or not, and the offset behind them."""
        ...

    async def until_committed(self, offset: int) -> None:
        """Wait until the high watermark reaches this offset and the leader epoch's start."""
        ...

    def check_leads(self) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER if this broker does not lead in that epoch any more."""
        ...

    def check_may_append(self) -> None:
        """Raise NOT_ENOUGH_REPLICAS if an append would be refused."""
        ...

    async def append(self, entries: Sequence[GroupRecord]) -> None:
        """Append with acks=all, as one batch; return once it is committed."""
        ...


@dataclass(frozen=True, slots=True)
class OffsetsRetention:
    """The age at which unused offsets expire, and the time between two checks for them."""

    retention_ms: int
    check_interval_ms: int


class _Batch:
    """Records that are written together, and the event on which their requests wait."""

    __slots__ = ("done", "entries", "error")

    def __init__(self) -> None:
        self.entries: list[GroupRecord] = []
        self.done = asyncio.Event()
        self.error: KafkaError | None = None

    def fail(self, error: KafkaError) -> None:
        self.error = error
        self.done.set()


class Shard:
    """The groups of one led partition of the offsets topic, in one leader epoch.

    Owned by the `GroupCoordinator`, on its event loop; `run` is its one task. Invariant: while
    `is_ready`, the state is the fold of the log and of the records that wait to be written.
    """

    def __init__(
        self,
        partition: PartitionId,
        epoch: LeaderEpoch,
        log: ShardLog,
        clock: Clock,
        environment: GroupEnvironment | None = None,
        *,
        present_topics: Callable[[], Topics | None] = lambda: None,
        is_clock_trusted: Callable[[], bool] = lambda: True,
        make_life: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        """Prepare.

        ``present_topics`` returns the topics that every decision is to know; None: those of the
        last tick. ``make_life`` returns a name for a loaded state that no other one ever has.
        """
        self.partition = partition
        self.epoch = epoch
        self.generation = 0
        """Grows whenever the state is dropped; a caller that waited compares it with its own."""
        self._log = log
        self._clock = clock
        self._environment = environment or GroupEnvironment()
        self._present_topics = present_topics
        self._is_clock_trusted = is_clock_trusted
        self._make_life = make_life
        self._checked_ms = clock.monotonic_ms()
        """Monotonic time at which the last round of `removal.expire` began."""
        self._state = GroupsState(self._environment)
        self._loaded = self._closed = False
        self._loading_since_ms = clock.monotonic_ms()
        self._gathering: _Batch | None = None
        self._writing: _Batch | None = None
        self._wake_writer = asyncio.Event()
        self._watchers: dict[GroupId | InstanceKey, list[WakeUp]] = {}
        self._ticked_ms = clock.monotonic_ms()
        self._topics: Topics | None = None
        """Topics with which subscriptions were last compared; None after a load."""

    @property
    def is_ready(self) -> bool:
        """True if the shard is loaded and not closed."""
        return self._loaded and not self._closed

    @property
    def loading_ms(self) -> int:
        """Time for which the shard has been loading; 0 if it is loaded."""
        return 0 if self._loaded else self._clock.monotonic_ms() - self._loading_since_ms

    def is_here(self, group: GroupId) -> bool:
        """Return True if this partition coordinates a group of that name."""
        partitions = self._environment.offsets_partitions
        return not partitions or partition_of_group(group, partitions) == self.partition

    # ---- decisions

    def state(self, generation: int | None = None) -> GroupsState:
        """Return the present state.

        Raises:
            KafkaError: NOT_COORDINATOR, or COORDINATOR_LOAD_IN_PROGRESS; the latter also if the
                state is not of this ``generation`` any more. Nothing was recorded.
        """
        if self._closed:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not self._loaded or generation not in (None, self.generation):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._state

    def decide(self, decision: Callable[[GroupsState], T], generation: int | None = None) -> T:
        """Make a decision on the state and hand its records to the writer, without an ``await``.

        Topics that have changed are followed first, so that no decision takes what a member owns of
        a deleted topic for the same of another topic with its name. A decision that raises after it
        has changed something is a bug: the state is dropped.
        """
        topics = self._present_topics()
        if topics is not None and topics is not self._topics:
            self._decide(lambda state: self._follow_topics(state, topics), generation)
        return self._decide(decision, generation)

    def _decide(self, decision: Callable[[GroupsState], T], generation: int | None = None) -> T:
        state = self.state(generation)
        self._log.check_may_append()
        waiting = 0 if self._gathering is None else len(self._gathering.entries)
        if waiting > PARKED_DECISIONS_MAX:
            raise KafkaError(ErrorCode.QUEUE_FULL, "the coordinator's writer is behind")
        state.trusted_ms = self._clock.wall_ms() if self._is_clock_trusted() else None
        try:
            answer = decision(state)
        except BaseException:
            if state.entries:
                self._drop(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            raise
        entries = state.take()
        if entries:
            if self._gathering is None:
                self._gathering = _Batch()
            self._gathering.entries += entries
            self._wake_writer.set()
            for group in {e.key.group for e in entries if not isinstance(e.key, OffsetKey)}:
                self.wake(group)
        for member in state.take_concerned():
            self.wake(member)
        return answer

    async def settled(self) -> None:
        """Wait until everything decided so far is committed. Await it directly after `decide`.

        A caller that awaits anything else in between must check the generation too.

        Raises:
            KafkaError: the records are not committed; its outcome says whether they may be later.
        """
        batch = self._gathering or self._writing
        if batch is None:
            return
        await batch.done.wait()
        if batch.error is not None:
            error = batch.error
            raise KafkaError(error.code, error.message, outcome=error.outcome)

    def check_leads(self) -> None:
        """Raise NOT_COORDINATOR if this broker's replica has taken another role (rule G3).

        Roles of a large image are taken in steps, and shards are closed after the last of them. In
        between this replica may already follow a new leader, and help it to commit.
        """
        try:
            self._log.check_leads()
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from None

    async def probe(self) -> None:
        """Commit an append that begins now; no in-sync replica has a newer epoch then (G3)."""
        self.state()
        if self._gathering is None:
            self.decide(lambda state: state.apply(GroupRecord(ProbeKey(), ProbeValue())))
        await self.settled()

    # ---- watching a group

    def watch(self, place: GroupId | InstanceKey) -> WakeUp:
        """Return an event that is set by any later decision in the group but a commit.

        For a member it is set only by decisions that may give or deny it a partition, or end it. It
        is set as well when the state is dropped. The caller ends it with `unwatch`.
        """
        event = WakeUp()
        self._watchers.setdefault(place, []).append(event)
        return event

    def unwatch(self, place: GroupId | InstanceKey, event: WakeUp) -> None:
        """Forget an event of `watch`."""
        watchers = self._watchers.get(place, [])
        if event in watchers:
            watchers.remove(event)
        if not watchers:
            self._watchers.pop(place, None)

    def wake(self, place: GroupId | InstanceKey) -> None:
        """Set the events of a group's waiting reads, or a member's heartbeat, to check again."""
        for event in self._watchers.get(place, ()):
            event.set()

    # ---- life

    async def run(self) -> None:
        """Load, write, and load again after a failed append, until closed or cancelled."""
        while not self._closed:
            if not self._loaded and not await self._load():
                await asyncio.sleep(LOAD_RETRY_MS / 1000)
                continue
            await self._wake_writer.wait()
            self._wake_writer.clear()
            await self._write()

    def close(self) -> None:
        """Drop the state, because this broker no longer leads, and end every wait.

        An append in flight keeps its own outcome: it may still be committed.
        """
        self._closed = True
        self._drop(KafkaError(ErrorCode.NOT_COORDINATOR))
        self._wake_writer.set()

    def _drop(self, error: KafkaError) -> None:
        """Drop the state and the gathered records, which were never written."""
        self.generation += 1
        if self._loaded:
            self._loading_since_ms = self._clock.monotonic_ms()
        self._loaded = False
        self._topics = None
        self._state = GroupsState(self._environment)
        gathered, self._gathering = self._gathering, None
        if gathered is not None:
            gathered.fail(error)
        self._wake_writer.set()
        for place in list(self._watchers):
            self.wake(place)

    async def _load(self) -> bool:
        """Fold the log to its end and wait until all of it is committed; False if not (rule G1)."""
        state = GroupsState(self._environment, self._make_life())
        generation = self.generation
        started_ms = self._clock.monotonic_ms()
        undecodable = held_groups.UndecodableRecords()
        try:
            offset, end = self._log.bounds
            while offset < end:
                entries, offset = self._log.read(offset, end)
                for entry in entries:
                    if isinstance(entry, UndecodableRecord):
                        undecodable.note(entry)
                        continue
                    undecodable.replace(entry)
                    state.fold(entry)
                await asyncio.sleep(0)
            await self._log.until_committed(end)
        except CorruptionError:
            _log.exception("group coordinator can't load partition=%d", self.partition)
            return False
        except KafkaError as error:
            _log.info("group coordinator not loaded partition=%d: %s", self.partition, error)
            return False
        if self._closed or generation != self.generation:
            return False
        state.take_concerned()
        unnamed = held_groups.hold_groups(state, undecodable, self.is_here)
        self._state, self._loaded = state, True
        self._ticked_ms = self._clock.monotonic_ms()
        if undecodable.by_key and not self._leave_out(unnamed):
            return False
        _log.info(
            "group coordinator loaded partition=%d leader_epoch=%d entries=%d groups=%d ms=%d",
            self.partition, self.epoch, end, len(state.groups), self._ticked_ms - started_ms,
        )  # fmt: skip
        return True

    def _leave_out(self, unnamed: list[UndecodableRecord]) -> bool:
        """Decide what undecodable records mean; False if that can't be recorded now."""
        try:
            # Before the topics are followed, which gives the partitions new owners.
            news = self._decide(lambda state: held_groups.forget_owners(state, unnamed))
        except KafkaError as error:
            _log.info("group coordinator not loaded partition=%d: %s", self.partition, error)
            self._drop(error)
            return False
        for name, held in self._state.held.items():
            _log.error(
                "consumer group held group=%s partition=%d records=%d first_offset=%d: %s; "
                "`quorumlog group repair %s --dry-run` shows how it goes on without",
                name, self.partition, len(held.records), held.records[0].offset,
                held.records[0].reason, name,
            )  # fmt: skip
        if news:
            _log.error(
                "undecodable group records left out partition=%d records=%d first_offset=%d: %s; "
                "the groups of this partition begin a new epoch without owners",
                self.partition, len(news), news[0].offset, news[0].reason,
            )  # fmt: skip
        return True

    async def _write(self) -> None:
        batch, self._gathering = self._gathering, None
        if batch is None or self._closed:
            return
        self._writing = batch
        try:
            await self._log.append(batch.entries)
        except KafkaError as error:
            _log.warning(
                "group decisions not committed partition=%d outcome=%s error=%s",
                self.partition, error.outcome.value, error,
            )  # fmt: skip
            # The records gathered meanwhile were decided on a state that may not be committed.
            self._drop(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            batch.fail(_failed(error))
        else:
            batch.done.set()
        finally:
            self._writing = None

    # ---- time

    def tick(
        self,
        now_ms: int,
        topics: Topics,
        rebalance_timeout_ms: int,
        retention: OffsetsRetention | None = None,
    ) -> None:
        """Advance judge time, follow changes of topics, and expire offsets (rules M7, R10).

        Judge time stands still while this process does. It stands still as well while nothing can
        be recorded: calls fail then, and no member is blamed for it.
        """
        passed_ms = min(max(0, now_ms - self._ticked_ms), JUDGE_STALL_MS)
        self._ticked_ms = now_ms
        if not self.is_ready:
            return

        def follow(state: GroupsState) -> list[InstanceKey]:
            state.judge_ms += passed_ms
            if self._topics is not topics:
                self._follow_topics(state, topics)
            if retention is not None:
                self._expire_offsets(state, now_ms, topics, retention)
            return instances.tick(state, topics, rebalance_timeout_ms)

        try:
            expired = self.decide(follow)
        except KafkaError as error:
            _log.debug(
                "group coordinator postponed its work partition=%d: %s", self.partition, error
            )
            return
        for key in expired:
            _log.info("consumer instance expired group=%s instance=%s", *key)

    def _follow_topics(self, state: GroupsState, topics: Topics) -> None:
        changed, deleted = _changed_names(self._topics, topics)
        for group in list(state.groups.values()):
            if changed is None or is_concerned(group, changed):
                drop_deleted_topics(state, group, topics, deleted)
                if group.instances:
                    retarget(state, group, topics)
            if group.started_with is not None:  # so that no group keeps older topics alive
                group.started_with = topics
        self._topics = topics

    def _expire_offsets(
        self, state: GroupsState, now_ms: int, topics: Topics, retention: OffsetsRetention
    ) -> None:
        """Begin a round of all groups in each interval, and continue it in each tick."""
        if not state.to_check and now_ms - self._checked_ms >= retention.check_interval_ms:
            self._checked_ms = now_ms
            state.to_check = list(state.groups)
        for group in removal.expire(state, topics, retention.retention_ms):
            _log.info("consumer group removed with its last offset group=%s", group)


def _changed_names(
    old: Topics | None, new: Topics
) -> tuple[frozenset[TopicName] | None, frozenset[TopicName]]:
    """Return the topics that were created, deleted, recreated or grew; None if all may have.

    The second are those of them that were deleted, even if another topic has the name now.
    """
    if old is None:
        return None, frozenset()
    deleted = frozenset(
        name
        for name, facts in old.items()
        if (found := new.get(name)) is None or found.topic_id != facts.topic_id
    )
    return deleted | {name for name, facts in new.items() if old.get(name) != facts}, deleted


def _failed(error: KafkaError) -> KafkaError:
    """Return the error that a group's client gets for a failed append."""
    if error.outcome is Outcome.UNKNOWN:
        text = f"the group's log has not acknowledged it: {error.message}"
        return KafkaError(ErrorCode.OUTCOME_UNKNOWN, text)
    return KafkaError(error.code, error.message, outcome=Outcome.NOT_WRITTEN)
