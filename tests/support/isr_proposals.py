"""One ISR proposal at a time, for tests that do not care that brokers send many in one command."""

from __future__ import annotations

from typing import Protocol

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.records.commands import (
    A,
    AlterPartition,
    AlterPartitions,
    Command,
    PartitionAltered,
)


class Proposable(Protocol):
    """A controller, or a channel to the controllers."""

    async def execute(self, command: Command[A], /) -> A: ...


async def propose(to: Proposable, command: AlterPartition) -> PartitionAltered:
    """Send one attempt in a command of its own; raise its refusal as a `KafkaError`."""
    (answer,) = (await to.execute(AlterPartitions(attempts=(command,)))).answers
    if answer.altered is None:
        code = ErrorCode.from_number(answer.error)
        raise KafkaError(code, answer.message, outcome=Outcome.NOT_WRITTEN)
    return answer.altered
