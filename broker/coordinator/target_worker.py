"""Computation of targets off the event loop, for groups whose targets take long.

The `GroupCoordinator` has a `TargetWorker`, and calls `start` for each shard in each tick. Its task
computes the targets of the shard's waiting groups in a thread, one after the other: it takes the
input, computes, takes the input again, and applies the result only if nothing changed. Under
constant change that might never happen, so after `OVERTAKEN_MAX` times it applies the part of the
result that still holds; the group goes on waiting for the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from broker.coordinator.group_state import GroupsState
from broker.coordinator.shard import Shard
from broker.coordinator.targets import TargetInput, Targets
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import GroupId

_log = logging.getLogger("broker.coordinator")

OVERTAKEN_MAX = 3
"""Computations of one group that may be overtaken by a change before a part of one is applied."""

Take = Callable[[GroupsState, GroupId], TargetInput | None]
"""Return the present input of a group; None if there is no such group any more."""
Apply = Callable[[GroupsState, GroupId, Targets], None]


class TargetWorker:
    """Computations of large targets in a thread. Owned by the `GroupCoordinator`, on its loop.

    At most one computation runs at a time for each shard.
    """

    def __init__(self, take: Take, apply: Apply) -> None:
        """Prepare; ``take`` and ``apply`` run as parts of decisions of a shard."""
        self._take = take
        self._apply = apply
        self._busy: set[Shard] = set()

    def start(self, shard: Shard, tasks: asyncio.TaskGroup) -> None:
        """Compute what waits in a shard, in a task of its own, unless one is doing so."""
        if shard in self._busy or not shard.is_ready or not shard.state().awaiting_targets:
            return
        self._busy.add(shard)
        tasks.create_task(self._work(shard), name=f"group-targets-{shard.partition}")

    async def _work(self, shard: Shard) -> None:
        generation = shard.generation
        try:
            while True:
                waiting = shard.state(generation).awaiting_targets
                if not waiting:
                    return
                await self._compute(shard, min(waiting), generation)
        except KafkaError as error:
            _log.debug("targets not computed partition=%d: %s", shard.partition, error)
        finally:
            self._busy.discard(shard)

    async def _compute(self, shard: Shard, group: GroupId, generation: int) -> None:
        """Compute until a result holds, or its part is applied; forget a group that is gone."""
        for attempt in range(1, OVERTAKEN_MAX + 1):
            taken = self._take(shard.state(generation), group)
            if taken is None:
                shard.state(generation).awaiting_targets.discard(group)
                return
            targets = await asyncio.to_thread(taken.compute)
            finish = _Finish(self, group, taken, targets, is_last=attempt == OVERTAKEN_MAX)
            if shard.decide(finish, generation):
                return

    def apply_if_present(
        self, state: GroupsState, group: GroupId, taken: TargetInput, targets: Targets
    ) -> bool:
        """Apply targets if their input is still the group's; return True if nothing is to do."""
        now = self._take(state, group)
        if now == taken:
            state.awaiting_targets.discard(group)
            self._apply(state, group, targets)
        return now is None or now == taken

    def apply_part(
        self, state: GroupsState, group: GroupId, taken: TargetInput, targets: Targets
    ) -> None:
        """Apply what still holds of targets whose input has changed."""
        now = self._take(state, group)
        if now is not None:
            self._apply(state, group, now.holding_part(targets, taken))
            _log.info("targets overtaken by changes group=%s members=%d", group, len(now.members))


class _Finish:
    """The decision that ends a computation of targets."""

    def __init__(
        self,
        worker: TargetWorker,
        group: GroupId,
        taken: TargetInput,
        targets: Targets,
        *,
        is_last: bool,
    ) -> None:
        self._worker = worker
        self._facts = (group, taken, targets)
        self._is_last = is_last

    def __call__(self, state: GroupsState) -> bool:
        """Apply the targets, or a part of the last ones; return True if the turn is over.

        A group that waits no longer has newer targets: it became small, or it is gone.
        """
        if self._facts[0] not in state.awaiting_targets:
            return True
        is_over = self._worker.apply_if_present(state, *self._facts)
        if not is_over and self._is_last:
            self._worker.apply_part(state, *self._facts)
        return is_over or self._is_last
