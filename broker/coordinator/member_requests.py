"""Joins and heartbeats of members that read for themselves: what waits, and what is resolved first.

The `GroupCoordinator` hands `JoinGroup` and `Heartbeat` requests to `MemberRequests`. A join, and a
heartbeat with another subscription, first resolve the starts of partitions that have none, and
record them with the decision (rule G2). A heartbeat then waits until the member is to own something
else than it names, or its time is over; the decisions are those of `direct_members`. An answer
tells a member what to read, so it is sent only when all of it is committed, and with proof that
this broker still leads (rule G3).

The session counts from the arrival of a heartbeat: a process that stopped while one of its
heartbeats waits is not taken to be alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from broker.coordinator import direct_members
from broker.coordinator.end_watches import WakeUp
from broker.coordinator.group_messages import Heartbeat, JoinGroup, Membership, OffsetReset
from broker.coordinator.group_state import GroupsState, Topics, of_present_life
from broker.coordinator.instances import GroupLimits
from broker.coordinator.positions import OffsetAndEpoch
from broker.coordinator.records import InstanceKey
from raft_metadata.common.ids import TopicName, TopicPartition

if TYPE_CHECKING:
    from broker.coordinator.shard import Shard
    from raft_metadata.common.clock import Clock

WAITING_HEARTBEATS_MAX = 5_000
"""Most heartbeats that wait on one broker; one more is answered at once. Each takes 6 KB."""
STARTS_AT_ONCE = 500
"""Most starts that one decision records: about 20 ms of the loop."""

Resolve = Callable[
    [list[TopicPartition], OffsetReset], Awaitable[dict[TopicPartition, OffsetAndEpoch]]
]
KnowTopics = Callable[[Sequence[TopicName]], Awaitable[None]]
Look = Callable[[GroupsState], Membership]


class ReadProven(Protocol):
    """Port to a reading of the state that is committed and proven to be the newest (rule G3)."""

    async def __call__(self, shard: Shard, look: Look, /) -> Membership: ...


class MemberRequests:
    """Joins and heartbeats of all groups here. Owned by the `GroupCoordinator`, on its loop.

    Invariant: of one member, at most one waiting heartbeat takes part in decisions, the newest.
    """

    def __init__(
        self,
        clock: Clock,
        topics: Callable[[], Topics],
        resolve: Resolve,
        know_topics: KnowTopics,
        read_proven: ReadProven,
        limits: GroupLimits,
    ) -> None:
        self._clock = clock
        self._topics = topics
        self._resolve = resolve
        self._know_topics = know_topics
        self._read_proven = read_proven
        self._limits = limits
        self._newest: dict[InstanceKey, WakeUp] = {}
        """The event of each member's newest waiting heartbeat."""
        self._waiting = 0

    async def join(self, shard: Shard, request: JoinGroup) -> Membership:
        """Join the group, and return what the member owns."""
        key, generation = InstanceKey(request.group, request.instance), shard.generation
        direct_members.check_join(shard.state(generation), request, self._limits)
        await self._know_topics(request.topics or ())
        starts = await self._starts(shard, request, generation)
        topics = self._topics()
        shard.decide(
            lambda state: direct_members.join(state, request, starts, topics, self._limits),
            generation,
        )
        return await self._read_proven(
            shard, lambda state: direct_members.membership(state, key, topics)
        )

    async def heartbeat(self, shard: Shard, request: Heartbeat) -> Membership:
        """Take what the member owns; return once that is to change, or after its wait."""
        key, generation = InstanceKey(request.group, request.instance), shard.generation
        until_ms = self._clock.monotonic_ms() + request.wait_ms
        direct_members.touch_member(shard.state(generation), request)
        await self._know_topics(request.topics or ())
        starts = await self._starts(shard, request, generation)

        def decision(state: GroupsState) -> bool:
            return direct_members.heartbeat(state, request, starts, self._topics())

        while True:
            woken = shard.watch(key)
            try:
                is_due = shard.decide(decision, generation)
                if is_due or not await self._wait(key, woken, until_ms):
                    break
            finally:
                shard.unwatch(key, woken)
        return await self._read_proven(
            shard,
            lambda state: direct_members.heartbeat_answer(state, request, self._topics()),
        )

    async def _wait(self, key: InstanceKey, woken: WakeUp, until_ms: int) -> bool:
        """Wait until a decision concerns the member; return False once the time is over.

        A newer heartbeat of the member makes this one wait in vain: answered at once, two clients
        with one name would repeat their heartbeats without a pause.
        """
        left_ms = until_ms - self._clock.monotonic_ms()
        if left_ms <= 0 or self._waiting >= WAITING_HEARTBEATS_MAX:
            return False
        self._waiting += 1
        self._newest[key] = woken
        try:
            async with asyncio.timeout(left_ms / 1000):
                await woken.wait()
                if self._newest.get(key) is not woken:
                    await asyncio.sleep(left_ms / 1000)
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            if self._newest.get(key) is woken:
                del self._newest[key]
        return True

    async def _starts(
        self, shard: Shard, request: JoinGroup | Heartbeat, generation: int
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return start offsets for the partitions that have none on return (rule G2).

        What was resolved in the last life of a topic means nothing in the present one. Of very
        many, all but the last are recorded at once, a part at a time: one decision with all
        of them would hold the loop.
        """
        starts: dict[TopicPartition, OffsetAndEpoch] = {}
        while True:
            state = shard.state(generation)
            found = direct_members.unresolved_partitions(state, request, self._topics())
            missing = [one for one in found if one not in starts]
            if not missing:
                return starts
            reset, before = _reset_of(state, request), self._topics()
            starts |= await self._resolve(missing[:STARTS_AT_ONCE], reset)
            starts = of_present_life(starts, before, self._topics())
            if len(missing) > STARTS_AT_ONCE:
                self._record(shard, request, starts, generation)
                await shard.settled()
                starts = {}

    def _record(
        self,
        shard: Shard,
        request: JoinGroup | Heartbeat,
        starts: dict[TopicPartition, OffsetAndEpoch],
        generation: int,
    ) -> None:
        shard.decide(
            lambda state: direct_members.record_resolved(
                state, request.group, starts, self._topics()
            ),
            generation,
        )


def _reset_of(state: GroupsState, request: JoinGroup | Heartbeat) -> OffsetReset:
    if isinstance(request, JoinGroup):
        return request.settings.auto_offset_reset
    _, instance, _ = state.find(InstanceKey(request.group, request.instance))
    return instance.value.settings.auto_offset_reset
