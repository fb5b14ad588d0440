"""ISR proposals to the active controller: many in one command, each its own attempt (rule M3).

The `ReplicaManager` hands it the proposals of led partitions; it batches those of one turn of the
event loop, and reports to each partition whether its attempt was accepted, refused or is unknown.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.replication.events import EventKind, PartitionSnapshot, note_isr, note_proposal
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.records.commands import (
    MAX_ATTEMPTS_PER_COMMAND,
    AlterPartition,
    AlterPartitions,
    AttemptAnswer,
    IsrMember,
    PartitionAltered,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.ports import ControllerChannel
    from broker.replication.events import EventSink
    from broker.replication.leader_state import Proposal
    from broker.replication.partition import Partition
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerEpoch, BrokerId


_log = logging.getLogger("broker.replication")

COMMANDS_IN_FLIGHT = 4
"""Commands of one broker in flight at once; later proposals wait and share the next command."""
UNKNOWN_RETRY_MS = 200
"""Pause before the committed ISR is proposed again after an attempt of unknown outcome."""
LINES_PER_COMMAND = 20
"""Attempts of a command that are logged one by one; of more, only their number is logged."""


@dataclass(frozen=True, slots=True)
class _Attempt:
    """A proposal that waits to be sent or answered."""

    partition: Partition
    proposal: Proposal
    broker_epoch: BrokerEpoch


class IsrManager:
    """ISR proposals that wait or are in flight, each sent as one attempt.

    Owned by the `ReplicaManager`, on its event loop; its tasks run in the TaskGroup of the caller.
    A partition has one attempt at a time, so at most as many wait here as partitions are led.
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
        self._waiting: deque[_Attempt] = deque()
        self._in_flight = 0
        self._scheduled = False

    def propose(
        self,
        partition: Partition,
        proposal: Proposal,
        broker_epoch: BrokerEpoch,
        tasks: asyncio.TaskGroup,
    ) -> None:
        """Send this attempt once, soon. A late answer changes nothing in a newer leader epoch."""
        self._waiting.append(_Attempt(partition, proposal, broker_epoch))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._send_some, tasks)

    def _send_some(self, tasks: asyncio.TaskGroup) -> None:
        """Send as many commands as may be in flight; the next follow when one is answered."""
        self._scheduled = False
        while self._waiting and self._in_flight < COMMANDS_IN_FLIGHT:
            attempts = list(self._next(MAX_ATTEMPTS_PER_COMMAND))
            if attempts:
                self._in_flight += 1
                tasks.create_task(self._send(attempts, tasks), name="alter-partitions")

    def _next(self, count: int) -> Iterator[_Attempt]:
        """Yield the next attempts that are still valid, at most one of each partition."""
        seen: set[Partition] = set()
        while self._waiting and len(seen) < count:
            attempt = self._waiting[0]
            if attempt.partition in seen:
                return  # its leader epoch changed since the first attempt
            self._waiting.popleft()
            if attempt.partition.is_open(attempt.proposal):
                seen.add(attempt.partition)
                self._note(attempt, EventKind.ISR_PROPOSED)
                yield attempt
            else:
                attempt.partition.isr_refused(attempt.proposal)  # it was never sent

    async def _send(self, attempts: list[_Attempt], tasks: asyncio.TaskGroup) -> None:
        try:
            answers = await self._answers(attempts)
            tell = len(attempts) <= LINES_PER_COMMAND
            for attempt, answer in zip(attempts, answers, strict=True):
                self._settle(attempt, answer, tell=tell)
            if not tell:
                changed = sum(isinstance(answer, PartitionAltered) for answer in answers)
                _log.info("isrs changed count=%d of=%d proposed", changed, len(answers))
        finally:
            self._in_flight -= 1
            if self._waiting:
                self._send_some(tasks)

    async def _answers(self, attempts: list[_Attempt]) -> list[PartitionAltered | KafkaError]:
        """Send attempts in one command; return one answer or error for each of them."""
        commands = [self._command(attempt) for attempt in attempts]
        try:
            said = await self._controllers.execute(AlterPartitions(attempts=tuple(commands)))
        except KafkaError as error:
            return [error] * len(attempts)
        if len(said.answers) != len(attempts):
            text = f"{len(said.answers)} answers to {len(attempts)} attempts"
            return [KafkaError(ErrorCode.OUTCOME_UNKNOWN, text)] * len(attempts)
        return [_of(answer) for answer in said.answers]

    def _command(self, attempt: _Attempt) -> AlterPartition:
        where, proposal = attempt.partition.id, attempt.proposal
        return AlterPartition(
            broker_id=self._broker_id,
            broker_epoch=attempt.broker_epoch,
            topic_id=where.topic_id,
            partition=where.partition,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            new_isr=tuple(IsrMember(broker_id=b, broker_epoch=e) for b, e in proposal.isr),
        )

    def _settle(
        self, attempt: _Attempt, answer: PartitionAltered | KafkaError, *, tell: bool
    ) -> None:
        partition, proposal = attempt.partition, attempt.proposal
        where = f"log={partition.log.name} topic_id={partition.id.topic_id}"
        if isinstance(answer, PartitionAltered):
            if tell:
                _log.info(
                    "isr changed %s isr=%s reason=%s", where, list(answer.isr), proposal.reason
                )
            before = PartitionSnapshot(partition)
            partition.isr_accepted(proposal, answer.partition_epoch, answer.isr)
            note_isr(self._events, partition, before, proposal.reason)
        elif answer.outcome is Outcome.NOT_WRITTEN:
            if tell:
                _log.info("isr change refused %s error=%s %s", where, answer.code.name, answer)
            partition.isr_refused(proposal)
            self._note(attempt, EventKind.ISR_REFUSED, error=answer.code.name)
        else:
            if tell:
                _log.info("isr change of unknown outcome %s error=%s", where, answer.code.name)
            partition.isr_unknown(proposal, self._clock.monotonic_ms() + UNKNOWN_RETRY_MS)
            self._note(attempt, EventKind.ISR_UNKNOWN, error=answer.code.name)

    def _note(self, attempt: _Attempt, kind: EventKind, **facts: str) -> None:
        note_proposal(self._events, attempt.partition, attempt.proposal, kind, **facts)


def _of(answer: AttemptAnswer) -> PartitionAltered | KafkaError:
    if answer.altered is not None:
        return answer.altered
    code = ErrorCode.from_number(answer.error)
    # The controller refused it, so it is surely not appended, whatever this code means elsewhere.
    return KafkaError(code, answer.message, outcome=Outcome.NOT_WRITTEN)
