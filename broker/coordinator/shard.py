"""A led partition of the offsets topic: the groups' part of a shard.

The `GroupCoordinator` makes a `Shard` for each led partition and passes requests to it as decisions
(`ShardRuntime`). Here are the waits for changes of a group, what a load makes of records that can't
be decoded, and the passing of time.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from typing_extensions import override

from broker.coordinator import held_groups, instances, removal
from broker.coordinator.end_watches import WakeUp
from broker.coordinator.group_state import GroupEnvironment, GroupsState, Topics
from broker.coordinator.rebalance import drop_deleted_topics, is_concerned, retarget
from broker.coordinator.records import (
    InstanceKey,
    OffsetKey,
    ShardRecord,
    UndecodableRecord,
    is_record_of_home,
    partition_of_group,
)
from broker.coordinator.runtime import ShardLog, ShardRuntime
from broker.transactions.home_records import HOME_KEYS
from raft_metadata.common.clock import Clock
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import GroupId, LeaderEpoch, PartitionId, TopicName

_log = logging.getLogger("broker.coordinator")
T = TypeVar("T")

JUDGE_STALL_MS = 500
"""Most time by which sessions age between two ticks, however far apart the ticks are (rule M7)."""


@dataclass(frozen=True, slots=True)
class OffsetsRetention:
    """The age at which unused offsets expire, and the time between two checks for them."""

    retention_ms: int
    check_interval_ms: int


class Shard(ShardRuntime[GroupsState]):
    """The groups of one led partition of the offsets topic, in one leader epoch.

    Owned by the `GroupCoordinator`, on its event loop.
    """

    name = "group coordinator"

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
        self._environment = environment or GroupEnvironment()
        self._make_life = make_life
        super().__init__(partition, epoch, log, clock, is_clock_trusted)
        self._present_topics = present_topics
        self._checked_ms = clock.monotonic_ms()
        """Monotonic time at which the last round of `removal.expire` began."""
        self._watchers: dict[GroupId | InstanceKey, list[WakeUp]] = {}
        self._ticked_ms = clock.monotonic_ms()
        self._topics: Topics | None = None
        """Topics with which subscriptions were last compared; None after a load."""

    def is_here(self, group: GroupId) -> bool:
        """Return True if this partition coordinates a group of that name."""
        partitions = self._environment.offsets_partitions
        return not partitions or partition_of_group(group, partitions) == self.partition

    # ---- decisions

    @override
    def decide(
        self,
        decision: Callable[[GroupsState], T],
        generation: int | None = None,
        *,
        unhurried: bool = False,
    ) -> T:
        """Make a decision on the state and hand its records to the writer, without an ``await``.

        Topics that have changed are followed first, so that no decision takes what a member owns of
        a deleted topic for the same of another topic with its name.
        """
        topics = self._present_topics()
        if topics is not None and topics is not self._topics:
            super().decide(lambda state: self._follow_topics(state, topics), generation)
        return super().decide(decision, generation, unhurried=unhurried)

    @override
    def _decided(self, entries: Sequence[ShardRecord]) -> None:
        quiet = (OffsetKey, *HOME_KEYS)
        for group in {e.key.group for e in entries if not isinstance(e.key, quiet)}:
            self.wake(group)
        for member in self._state.take_concerned():
            self.wake(member)

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

    @override
    def _empty_state(self) -> GroupsState:
        return GroupsState(self._environment, self._make_life())

    @override
    def _dropped(self) -> None:
        self._topics = None
        for place in list(self._watchers):
            self.wake(place)

    @override
    def _described(self, state: GroupsState) -> str:
        return f"groups={len(state.groups)}"

    @override
    def _loaded(self, state: GroupsState, undecodable: Sequence[UndecodableRecord]) -> bool:
        state.take_concerned()
        of_home = [one for one in undecodable if is_record_of_home(one)]
        of_groups = [one for one in undecodable if not is_record_of_home(one)]
        for record in of_home[:1]:
            state.home.fault = f"the record at offset {record.offset} can't be decoded"
            _log.error(
                "transactions of groups refused partition=%d records=%d first_offset=%d: %s",
                self.partition, len(of_home), record.offset, record.reason,
            )  # fmt: skip
        unnamed = held_groups.hold_groups(state, of_groups, self.is_here)
        self._ticked_ms = self._clock.monotonic_ms()
        return not of_groups or self._leave_out(unnamed)

    def _leave_out(self, unnamed: list[UndecodableRecord]) -> bool:
        """Decide what undecodable records mean; False if that can't be recorded now."""
        try:
            # Before the topics are followed, which gives the partitions new owners.
            news = super().decide(lambda state: held_groups.forget_owners(state, unnamed))
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
