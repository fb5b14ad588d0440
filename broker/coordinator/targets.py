"""Input of a group's assignor, and what it computes: the target of each member. Pure.

`rebalance.retarget` takes a `TargetInput` of a group and computes it at once where it is small. A
large one would hold the event loop, so the group then waits in `GroupsState.awaiting_targets` for
the `target_worker.TargetWorker`, which computes it in a thread. Equal inputs give equal targets, in
any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from broker.coordinator.assignors import (
    ASSIGNORS,
    AssignmentMember,
    AssignmentTopic,
    ReplicaRacks,
    Target,
)
from raft_metadata.common.ids import InstanceId, TopicId, TopicName

TARGETS_INLINE_MAX = 2_000
"""Most members and partitions, together, whose targets are computed on the loop: about 6 ms."""

Targets = Mapping[InstanceId, Target]


@dataclass(frozen=True, slots=True)
class TargetInput:
    """Everything on which the targets of a group depend. Immutable: any thread may read it."""

    assignor: str
    members: Mapping[InstanceId, AssignmentMember]
    topics: Mapping[TopicName, tuple[TopicId, int]]
    """Id and number of partitions of each subscribed topic."""
    racks: Callable[[TopicName], Sequence[ReplicaRacks]] = field(compare=False)
    """Return the racks of a topic's replicas. They do not count when inputs are compared: a
    replica that moves causes no rebalance."""

    @property
    def is_large(self) -> bool:
        """True if computing takes too long for the event loop."""
        partitions = sum(count for _, count in self.topics.values())
        return partitions + len(self.members) > TARGETS_INLINE_MAX

    def compute(self) -> Targets:
        """Return the target of each member."""
        has_racks = any(one.rack is not None for one in self.members.values())
        return ASSIGNORS[self.assignor](
            self.members,
            {
                name: AssignmentTopic(count, self.racks(name) if has_racks else ())
                for name, (_, count) in self.topics.items()
            },
        )

    def holding_part(self, computed: Targets, earlier: TargetInput) -> Targets:
        """Return what still holds of targets that were computed from an ``earlier`` input.

        Members that are new since keep what no other gets, and no partition is in two targets.
        """
        kept = {
            name
            for name, facts in self.topics.items()
            if (found := earlier.topics.get(name)) is not None
            and found[0] == facts[0]
            and found[1] <= facts[1]
        }
        targets = {
            name: frozenset(
                partition
                for partition in computed[name]
                if partition.topic in kept and partition.topic in member.topics
            )
            for name, member in self.members.items()
            if name in computed
        }
        given = set().union(*targets.values())
        for name, member in self.members.items():
            if name not in computed:
                targets[name] = member.target - given
        return targets
