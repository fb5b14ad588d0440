"""Groups and transactions that stand still, as coordinators report them. Pure.

Both coordinators call these functions for each partition of their topic that this broker leads; the
broker's own facts carry the result to whichever broker judges the cluster's health. A report is
bounded: numbers, and a few examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from broker.coordinator.blocked import blocked_records
from broker.coordinator.group_state import GroupsState, Topics
from raft_metadata.common.ids import GroupId, PartitionId, TopicName
from raft_metadata.common.internal_topics import OFFSETS_TOPIC

LOADING_AFTER_MS = 10_000
"""Time after which a coordinator that still loads is reported."""
LEFT_OUT_SHOWN_MS = 86_400_000
"""Time for which records that a load left out are reported: one day."""
WAITING_AFTER_MS = 10_000
"""Time after which a decided transaction that waits for a target is reported."""
EXAMPLES_MAX = 5
"""Most groups that a report names for each reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTroubles:
    """Reasons why groups or transactions of one partition of a coordinators' topic stand still."""

    partition: PartitionId
    topic: TopicName = OFFSETS_TOPIC
    blocked: int = 0
    """Number of groups with a member that stands at a record which its format can't show."""
    blocked_examples: tuple[str, ...] = ()
    """Group, partition and offset of some of them."""
    held: int = 0
    """Number of groups that are held."""
    held_examples: tuple[str, ...] = ()
    left_out: int = 0
    """Number of records that a load of the last day left out."""
    loading_ms: int = 0
    """Time for which the coordinator has been loading; 0 below `LOADING_AFTER_MS`."""
    waiting: int = 0
    """Number of decided transactions that have waited for a target for `WAITING_AFTER_MS`."""
    waiting_examples: tuple[str, ...] = ()
    """Id and target of some of them."""

    @property
    def is_any(self) -> bool:
        """Return True if there is something to report."""
        found = (self.blocked, self.held, self.left_out, self.loading_ms, self.waiting)
        return any(found)


def loading_troubles(
    partition: PartitionId, loading_ms: int, topic: TopicName = OFFSETS_TOPIC
) -> ShardTroubles:
    """Return the report on a shard that has been loading for this time."""
    late_ms = loading_ms if loading_ms > LOADING_AFTER_MS else 0
    return ShardTroubles(partition=partition, topic=topic, loading_ms=late_ms)


def with_waiting(found: ShardTroubles, waiting: Sequence[str]) -> ShardTroubles:
    """Return a report with decided transactions that wait, each as its id and target."""
    examples = tuple(waiting[:EXAMPLES_MAX])
    return replace(found, waiting=len(waiting), waiting_examples=examples)


def shard_troubles(
    partition: PartitionId, state: GroupsState, topics: Topics, now_ms: int
) -> ShardTroubles:
    """Return the report on a loaded shard; ``now_ms`` is wall time."""
    blocked = dict(_blocked_groups(state, topics))
    return ShardTroubles(
        partition=partition,
        blocked=len(blocked),
        blocked_examples=tuple(list(blocked.values())[:EXAMPLES_MAX]),
        held=len(state.held),
        held_examples=tuple(sorted(state.held)[:EXAMPLES_MAX]),
        left_out=_left_out(state, now_ms),
    )


def _blocked_groups(state: GroupsState, topics: Topics) -> Iterator[tuple[GroupId, str]]:
    """Yield each group that has a blocked member, with one of its records."""
    for key, session in state.sessions.items():
        if not session.blocked:
            continue
        group = state.groups[key.group]
        instance = group.instances[key.instance]
        for place, found in blocked_records(group, instance, session, topics):
            yield key.group, f"{key.group} at {place.topic}:{place.partition}:{found.offset}"
            break


def _left_out(state: GroupsState, now_ms: int) -> int:
    found = state.left_out
    if found is None or (found.at_ms is not None and now_ms - found.at_ms > LEFT_OUT_SHOWN_MS):
        return 0
    return found.count
