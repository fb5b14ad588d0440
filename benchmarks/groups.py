"""Targets of a large group: 1,000 members over 10,000 partitions, computed beside the loop.

``python -m benchmarks.groups``, and a row of the section `doors`. The coordinator's own state and
decisions, in this process: no HTTP and no log. The figure is the longest turn of the loop, in CPU
time: a member's join, or the decision that applies the targets. The assignor runs in a thread.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final

from benchmarks.report import Row, at_most, machine, table
from broker.coordinator import instances, rebalance
from broker.coordinator.group_messages import (
    ConsumerSettings,
    CreateInstance,
    OffsetReset,
    Subscribe,
)
from broker.coordinator.group_state import GroupsState, TopicFacts
from http_api.node.node_start import collect_rarely, freeze_collector
from raft_metadata.common.ids import GroupId, InstanceId, TopicId, TopicName

if TYPE_CHECKING:
    from collections.abc import Callable

MEMBERS: Final = 1_000
PARTITIONS: Final = 10_000
GROUP: Final = GroupId("large")
TOPIC: Final = TopicName("wide")
TOPICS: Final = {TOPIC: TopicFacts(TopicId("A" * 22), PARTITIONS)}
SETTINGS: Final = ConsumerSettings(auto_offset_reset=OffsetReset.NONE)
LIMITS: Final = instances.GroupLimits(instances_per_group=2 * MEMBERS)
HELD_BUDGET: Final = at_most(50, " ms")
MS: Final = 1_000


def _timed(call: Callable[[], object]) -> float:
    """Return the milliseconds of this thread's CPU that the call takes.

    A turn of tens of milliseconds is interrupted by other processes on a busy machine.
    """
    began = time.thread_time()
    call()
    return (time.thread_time() - began) * MS


def _join(state: GroupsState, number: int) -> float:
    """Let one more member join; return how long the loop was held, in milliseconds."""
    name = InstanceId(f"m{number}")
    create = CreateInstance(group=GROUP, instance=name, settings=SETTINGS)
    instances.create_instance(state, create, LIMITS)
    subscribe = Subscribe(group=GROUP, instance=name, topics=(TOPIC,))
    held_ms = _timed(lambda: instances.subscribe(state, subscribe, {}, TOPICS))
    state.take()  # as the shard's writer does
    return held_ms


def _settle(state: GroupsState) -> tuple[float, float]:
    """Compute and apply the targets; return the time of each in milliseconds."""
    group = state.groups[GROUP]
    taken = rebalance.target_input(state, group, TOPICS)
    began = time.perf_counter()
    targets = taken.compute()
    computed_ms = (time.perf_counter() - began) * MS
    state.awaiting_targets.discard(GROUP)
    applied_ms = _timed(lambda: rebalance.apply_targets(state, group, targets, TOPICS))
    state.take()
    return computed_ms, applied_ms


def uniform() -> Row:
    """Let 1,000 members join, then one more; return the longest turn of the loop."""
    collect_rarely()
    freeze_collector()  # both as a broker does; else collecting the benchmark's own objects counts
    state = GroupsState()
    joins_ms = [_join(state, number) for number in range(MEMBERS)]
    computed_ms, first_ms = _settle(state)
    joins_ms.append(_join(state, MEMBERS))
    again_ms, one_more_ms = _settle(state)
    held_ms = max(*joins_ms, first_ms, one_more_ms)
    return Row(
        what=f"uniform, {MEMBERS:,} members × {PARTITIONS:,} partitions",
        product=f"loop held {held_ms:.0f} ms",
        value=held_ms,
        budget=HELD_BUDGET,
        note=f"applied in {first_ms:.0f} ms, after one join {one_more_ms:.0f} ms; "
        f"in the thread {computed_ms:.0f} and {again_ms:.0f} ms",
    )


def main() -> int:
    """Measure and print."""
    note = machine()
    print(note, table([uniform()]), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
