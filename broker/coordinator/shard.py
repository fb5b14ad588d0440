"""A led partition of the offsets topic: its groups, decided in order and written behind.

A decision is made and folded at once, in one turn of the event loop, and its records are written by
the shard's one writer: while one append is on its way to the replicas, later decisions gather for
the next one (group commit). No request is answered before the records that the answer depends on
are committed. An append that fails, or whose outcome is unknown, takes everything decided since
with it: the state is dropped and read back from the log before the next answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from broker.coordinator import instances
from broker.coordinator.group_state import GroupsState, Topics
from broker.coordinator.rebalance import drop_deleted_topics, is_concerned, retarget
from broker.coordinator.records import GroupRecord, InstanceKey, OffsetKey, ProbeKey, ProbeValue
from raft_metadata.common.clock import Clock
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId, TopicName

_log = logging.getLogger("broker.coordinator")
T = TypeVar("T")

LOAD_RETRY_MS = 100
JUDGE_STALL_MS = 500
"""Sessions age by at most this much between two ticks, however long they lie apart (rule M7)."""
PARKED_DECISIONS_MAX = 20_000
"""Entries that wait for the writer; QUEUE_FULL beyond."""


class ShardLog(Protocol):
    """The partition of the offsets topic, in the leader epoch the shard was made for.

    Every method raises NOT_LEADER_OR_FOLLOWER once this broker does not lead in that epoch.
    """

    @property
    def bounds(self) -> tuple[int, int]:
        """Log start and log end."""
        ...

    def read(self, from_offset: int, up_to_offset: int) -> tuple[list[GroupRecord], int]:
        """Some entries, committed or not, and where to read on."""
        ...

    async def until_committed(self, offset: int) -> None:
        """Until the high watermark has reached this offset and the epoch's start."""
        ...

    def check_leads(self) -> None:
        """Nothing but what every method raises."""
        ...

    def check_may_append(self) -> None:
        """NOT_ENOUGH_REPLICAS where nothing would be appended."""
        ...

    async def append(self, entries: Sequence[GroupRecord]) -> None:
        """Append with acks=all, as one batch; returns once it is committed."""
        ...


class _Batch:
    """Entries that are written together, and who waits for them."""

    __slots__ = ("done", "entries", "error")

    def __init__(self) -> None:
        self.entries: list[GroupRecord] = []
        self.done = asyncio.Event()
        self.error: KafkaError | None = None

    def fail(self, error: KafkaError) -> None:
        self.error = error
        self.done.set()


class Shard:
    """Owned by the `GroupCoordinator`, on its loop, for one leader epoch; ``run`` is its one task.

    Invariant: while `is_ready`, ``state`` is the fold of the log and of what waits for the writer.
    """

    def __init__(
        self, partition: PartitionId, epoch: LeaderEpoch, log: ShardLog, clock: Clock
    ) -> None:
        self.partition = partition
        self.epoch = epoch
        self.generation = 0
        """Grows whenever the state is dropped: who waited meanwhile holds an old one."""
        self._log = log
        self._clock = clock
        self._state = GroupsState()
        self._loaded = self._closed = False
        self._gathering: _Batch | None = None
        self._writing: _Batch | None = None
        self._wake_writer = asyncio.Event()
        self._watchers: dict[GroupId, list[asyncio.Event]] = {}
        self._ticked_ms = clock.monotonic_ms()
        self._topics: Topics | None = None
        """The topics that subscriptions were last compared with."""

    @property
    def is_ready(self) -> bool:
        """Loaded, and not closed."""
        return self._loaded and not self._closed

    # ---- decisions

    def state(self, generation: int | None = None) -> GroupsState:
        """The present state.

        Raises:
            KafkaError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS; also where the state is not
                of this ``generation`` any more. Nothing was recorded.
        """
        if self._closed:
            raise KafkaError(ErrorCode.NOT_COORDINATOR)
        if not self._loaded or generation not in (None, self.generation):
            raise KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        return self._state

    def decide(self, decision: Callable[[GroupsState], T], generation: int | None = None) -> T:
        """Decide, fold, and hand what was decided to the writer; no ``await`` in between.

        A decision that fails after it has changed something is a bug: the state is dropped.
        """
        state = self.state(generation)
        self._log.check_may_append()
        waiting = 0 if self._gathering is None else len(self._gathering.entries)
        if waiting > PARKED_DECISIONS_MAX:
            raise KafkaError(ErrorCode.QUEUE_FULL, "the coordinator's writer is behind")
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
        return answer

    async def settled(self) -> None:
        """Wait until everything decided so far is committed; await it directly behind `decide`.

        A caller that waits for anything else in between checks the generation too.

        Raises:
            KafkaError: it is not committed; the outcome says what is known of it.
        """
        batch = self._gathering or self._writing
        if batch is None:
            return
        await batch.done.wait()
        if batch.error is not None:
            error = batch.error
            raise KafkaError(error.code, error.message, outcome=error.outcome)

    def check_leads(self) -> None:
        """NOT_COORDINATOR where this broker's replica has taken another role (rule G3).

        Roles of a large image are taken in steps, and shards are closed behind the last of them.
        In between this replica may follow a new leader already, and help it to commit.
        """
        try:
            self._log.check_leads()
        except KafkaError as error:
            raise KafkaError(ErrorCode.NOT_COORDINATOR, error.message) from None

    async def probe(self) -> None:
        """Commit an append that begins now: then no replica is in a newer epoch (rule G3)."""
        self.state()
        if self._gathering is None:
            self.decide(lambda state: state.apply(GroupRecord(ProbeKey(), ProbeValue())))
        await self.settled()

    # ---- watching a group

    def watch(self, group: GroupId) -> asyncio.Event:
        """Set once anything but a commit was decided in the group, or the state was dropped."""
        event = asyncio.Event()
        self._watchers.setdefault(group, []).append(event)
        return event

    def unwatch(self, group: GroupId, event: asyncio.Event) -> None:
        """No longer of interest."""
        watchers = self._watchers.get(group, [])
        if event in watchers:
            watchers.remove(event)
        if not watchers:
            self._watchers.pop(group, None)

    def wake(self, group: GroupId) -> None:
        """Let the group's waiting reads look again."""
        for event in self._watchers.get(group, ()):
            event.set()

    # ---- life

    async def run(self) -> None:
        """Load, write, and load again when an append failed; until `close` or cancelled."""
        while not self._closed:
            if not self._loaded and not await self._load():
                await asyncio.sleep(LOAD_RETRY_MS / 1000)
                continue
            await self._wake_writer.wait()
            self._wake_writer.clear()
            await self._write()

    def close(self) -> None:
        """Drop the state, because this broker no longer leads, and end every wait.

        An append that is on its way keeps its own outcome: it may still be committed.
        """
        self._closed = True
        self._drop(KafkaError(ErrorCode.NOT_COORDINATOR))
        self._wake_writer.set()

    def _drop(self, error: KafkaError) -> None:
        """Drop the gathered records: they were never written, so they never take effect."""
        self.generation += 1
        self._loaded = False
        self._topics = None
        self._state = GroupsState()
        gathered, self._gathering = self._gathering, None
        if gathered is not None:
            gathered.fail(error)
        self._wake_writer.set()
        for group in list(self._watchers):
            self.wake(group)

    async def _load(self) -> bool:
        """Rule G1: fold the log to its end, and wait until all of it is committed."""
        state = GroupsState()
        generation = self.generation
        started_ms = self._clock.monotonic_ms()
        try:
            offset, end = self._log.bounds
            while offset < end:
                entries, offset = self._log.read(offset, end)
                for entry in entries:
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
        self._state, self._loaded = state, True
        self._ticked_ms = self._clock.monotonic_ms()
        _log.info(
            "group coordinator loaded partition=%d leader_epoch=%d entries=%d groups=%d ms=%d",
            self.partition, self.epoch, end, len(state.groups), self._ticked_ms - started_ms,
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
            # What gathered meanwhile was decided on what may not be true.
            self._drop(KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
            batch.fail(_failed(error))
        else:
            batch.done.set()
        finally:
            self._writing = None

    # ---- time

    def tick(self, now_ms: int, topics: Topics, rebalance_timeout_ms: int) -> None:
        """Follow time and topics. Judge time stands still with this process (rule M7).

        Judge time also stands still while nothing can be recorded: calls fail then, and no member
        is blamed for it.
        """
        passed_ms = min(max(0, now_ms - self._ticked_ms), JUDGE_STALL_MS)
        self._ticked_ms = now_ms
        if not self.is_ready:
            return

        def follow(state: GroupsState) -> list[InstanceKey]:
            state.judge_ms += passed_ms
            if self._topics is not topics:
                changed = _changed_names(self._topics, topics)
                for group in list(state.groups.values()):
                    if changed is not None and not is_concerned(group, changed):
                        continue
                    drop_deleted_topics(state, group, topics)
                    if group.instances:
                        retarget(state, group, topics)
                self._topics = topics
            return instances.tick(state, topics, rebalance_timeout_ms)

        try:
            expired = self.decide(follow)
        except KafkaError as error:
            _log.debug("group coordinator rests partition=%d: %s", self.partition, error)
            return
        for key in expired:
            _log.info("consumer instance expired group=%s instance=%s", *key)


def _changed_names(old: Topics | None, new: Topics) -> frozenset[TopicName] | None:
    """The topics that came, went, grew or have another life; None: perhaps any."""
    if old is None:
        return None
    gone = old.keys() - new.keys()
    return frozenset(gone) | {name for name, facts in new.items() if old.get(name) != facts}


def _failed(error: KafkaError) -> KafkaError:
    """Return the error that a group's client gets for a failed append."""
    if error.outcome is Outcome.UNKNOWN:
        text = f"the group's log has not acknowledged it: {error.message}"
        return KafkaError(ErrorCode.OUTCOME_UNKNOWN, text)
    return KafkaError(error.code, error.message, outcome=Outcome.NOT_WRITTEN)
