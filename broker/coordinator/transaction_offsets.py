"""Offsets that move with a transaction, in the turn of its decision (rule S8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from broker.coordinator import commits, instances
from broker.coordinator.group_messages import GroupOffset

if TYPE_CHECKING:
    from broker.coordinator.group_state import GroupsState, Topics
    from broker.transactions.home_messages import CommitPosition
    from raft_metadata.common.ids import GroupId, InstanceId, TopicName, TopicPartition

KnowTopics = Callable[[Sequence["TopicName"]], Awaitable[None]]
UndeliveredEnds = Callable[
    ["GroupId", "InstanceId | None", Sequence[GroupOffset]],
    Awaitable["dict[TopicPartition, int]"],
]


@dataclass(frozen=True, slots=True)
class TransactionOffsets:
    """The groups' side of a home: implements `broker.coordinator.home.OffsetsPort`."""

    know_topics: KnowTopics
    """Waits for topics that were created a moment ago."""
    undelivered_ends: UndeliveredEnds
    """Returns the high watermarks up to which a member may commit unknown deliveries (rule G4)."""
    topics: Callable[[], Topics]
    limits: instances.GroupLimits

    async def prepare(self, request: CommitPosition) -> object:
        """Return what the turn of the decision must know of other partitions."""
        await self.know_topics([one.topic for one in request.offsets])
        offsets = [GroupOffset(one.topic, one.partition, one.offset) for one in request.offsets]
        return await self.undelivered_ends(request.id.group, request.member_id, offsets)

    def check(
        self, state: GroupsState, request: CommitPosition, prepared: object
    ) -> Callable[[], None]:
        """Check in the turn of the decision; return the function that records the offsets."""
        ends = cast("dict[TopicPartition, int]", prepared)
        instances.check_room(state, request.id.group, self.limits, is_in_use=False)
        record = commits.check_in_transaction(state, request, self.topics(), ends)

        def moved() -> None:
            record()
            instances.make_room(state, self.limits)

        return moved
