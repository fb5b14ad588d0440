"""ISR changes on their way to the active controller: many in one command, each judged alone.

The `ReplicaManager` hands it the changes of led partitions (rule M3); it batches those of one turn
of the event loop, and reports to each partition whether its change was accepted, refused or is
unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.replication.events import EventKind, PartitionSnapshot, note_isr, note_isr_change
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.records.commands import (
    MAX_ISR_CHANGES_PER_COMMAND,
    AlterPartition,
    AlterPartitionAnswer,
    AlterPartitions,
    IsrMember,
    PartitionAltered,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.ports import ControllerChannel
    from broker.replication.events import EventSink
    from broker.replication.isr_state import IsrChange
    from broker.replication.partition import Partition
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerEpoch, BrokerId


_log = logging.getLogger("broker.replication")

COMMANDS_IN_FLIGHT = 4
"""Commands of one broker in flight at once; later changes wait and share the next command."""
UNKNOWN_RETRY_MS = 200
"""Pause before the next ISR change of a partition after one of unknown outcome."""
LINES_PER_COMMAND = 20
"""ISR changes of a command that are logged one by one; of more, only their number is logged."""


@dataclass(frozen=True, slots=True)
class _QueuedChange:
    """An ISR change that waits to be sent or answered."""

    partition: Partition
    change: IsrChange
    broker_epoch: BrokerEpoch


class IsrManager:
    """ISR changes that wait or are in flight, each sent once.

    Owned by the `ReplicaManager`, on its event loop; its tasks run in the TaskGroup of the caller.
    A partition has one change at a time, so at most as many wait here as partitions are led.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        controllers: ControllerChannel,
        clock: Clock,
        events: EventSink,
    ) -> None:
        self._broker_id = broker_id
        self._controllers = controllers
        self._clock = clock
        self._events = events
        self._waiting: deque[_QueuedChange] = deque()
        self._commands_in_flight = 0
        self._scheduled = False

    def send(
        self,
        partition: Partition,
        change: IsrChange,
        broker_epoch: BrokerEpoch,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Send this change once, soon. A late answer changes nothing in a newer leader epoch."""
        self._waiting.append(_QueuedChange(partition, change, broker_epoch))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_some, tasks)

    def _send_some(self, tasks: asyncio.TaskGroup) -> None:
        """Send as many commands as may be in flight; the next follow when one is answered."""
        self._scheduled = False
        while self._waiting and self._commands_in_flight < COMMANDS_IN_FLIGHT:
            changes = list(self._next(MAX_ISR_CHANGES_PER_COMMAND))
            if changes:
                self._commands_in_flight += 1
                tasks.create_task(self._execute(changes, tasks), name="alter-partitions")

    def _next(self, count: int) -> Iterator[_QueuedChange]:
        """Yield the next changes that are still valid, at most one of each partition."""
        seen: set[Partition] = set()
        while self._waiting and len(seen) < count:
            queued = self._waiting[0]
            if queued.partition in seen:
                return  # its leader epoch changed since the first one
            self._waiting.popleft()
            if queued.partition.is_open(queued.change):
                seen.add(queued.partition)
                self._note(queued, EventKind.ISR_PROPOSED)
                yield queued
            else:
                queued.partition.isr_refused(queued.change)  # it was never sent

    async def _execute(self, changes: list[_QueuedChange], tasks: asyncio.TaskGroup) -> None:
        try:
            answers = await self._answers(changes)
            logs_each = len(changes) <= LINES_PER_COMMAND
            for queued, answer in zip(changes, answers, strict=True):
                self._settle(queued, answer, logs_each=logs_each)
            if not logs_each:
                changed = sum(isinstance(answer, PartitionAltered) for answer in answers)
                _log.info("isrs changed count=%d of=%d proposed", changed, len(answers))
        finally:
            self._commands_in_flight -= 1
            if self._waiting:
                self._send_some(tasks)

    async def _answers(self, changes: list[_QueuedChange]) -> list[PartitionAltered | KafkaError]:
        """Send changes in one command; return one answer or error for each of them."""
        commands = [self._command(queued) for queued in changes]
        try:
            altered = await self._controllers.execute(AlterPartitions(attempts=tuple(commands)))
        except KafkaError as error:
            return [error] * len(changes)
        if len(altered.answers) != len(changes):
            text = f"{len(altered.answers)} answers to {len(changes)} attempts"
            return [KafkaError(ErrorCode.OUTCOME_UNKNOWN, text)] * len(changes)
        return [_of(answer) for answer in altered.answers]

    def _command(self, queued: _QueuedChange) -> AlterPartition:
        where, change = queued.partition.id, queued.change
        return AlterPartition(
            broker_id=self._broker_id,
            broker_epoch=queued.broker_epoch,
            topic_id=where.topic_id,
            partition=where.partition,
            leader_epoch=change.leader_epoch,
            partition_epoch=change.partition_epoch,
            new_isr=tuple(IsrMember(broker_id=b, broker_epoch=e) for b, e in change.isr),
        )

    def _settle(
        self, queued: _QueuedChange, answer: PartitionAltered | KafkaError, *, logs_each: bool
    ) -> None:
        partition, change = queued.partition, queued.change
        where = f"log={partition.log.name} topic_id={partition.id.topic_id}"
        if isinstance(answer, PartitionAltered):
            if logs_each:
                _log.info("isr changed %s isr=%s reason=%s", where, list(answer.isr), change.reason)
            before = PartitionSnapshot(partition)
            partition.isr_accepted(change, answer.partition_epoch, answer.isr)
            note_isr(self._events, partition, before, change.reason)
        elif answer.outcome is Outcome.NOT_WRITTEN:
            if logs_each:
                _log.info("isr change refused %s error=%s %s", where, answer.code.name, answer)
            partition.isr_refused(change)
            self._note(queued, EventKind.ISR_REFUSED, error=answer.code.name)
        else:
            if logs_each:
                _log.info("isr change of unknown outcome %s error=%s", where, answer.code.name)
            partition.isr_unknown(change, self._clock.monotonic_ms() + UNKNOWN_RETRY_MS)
            self._note(queued, EventKind.ISR_UNKNOWN, error=answer.code.name)

    def _note(self, queued: _QueuedChange, kind: EventKind, **facts: str) -> None:
        note_isr_change(self._events, queued.partition, queued.change, kind, **facts)


def _of(answer: AlterPartitionAnswer) -> PartitionAltered | KafkaError:
    if answer.altered is not None:
        return answer.altered
    code = ErrorCode.from_number(answer.error)
    # The controller refused it, so it is surely not appended, whatever this code means elsewhere.
    return KafkaError(code, answer.message, outcome=Outcome.NOT_WRITTEN)
