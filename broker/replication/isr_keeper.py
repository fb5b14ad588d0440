"""Sends ISR proposals to the controller, one attempt a partition at a time (rule M3)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from raft_metadata.common.errors import KafkaError, Outcome
from raft_metadata.records.commands import AlterPartition, IsrMember

if TYPE_CHECKING:
    from broker.ports import ControllerChannel
    from broker.replication.partition import Partition
    from broker.replication.partition_state import Proposal
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerEpoch, BrokerId

_log = logging.getLogger("broker.replication")

MAX_ATTEMPTS_IN_FLIGHT = 64
"""AlterPartition requests of one broker under way at once; the others wait, unsent."""
UNKNOWN_RETRY_MS = 200
"""Pause before the committed ISR is proposed again after an attempt of unknown outcome."""


class IsrKeeper:
    """Turns a `Proposal` into one request and its answer back into partition state."""

    def __init__(self, broker_id: BrokerId, controllers: ControllerChannel, clock: Clock) -> None:
        self._broker_id = broker_id
        self._controllers = controllers
        self._clock = clock
        self._slots = asyncio.Semaphore(MAX_ATTEMPTS_IN_FLIGHT)

    async def attempt(
        self, partition: Partition, proposal: Proposal, broker_epoch: BrokerEpoch
    ) -> None:
        """Send one attempt once. A late answer to an older leader epoch changes nothing."""
        command = AlterPartition(
            broker_id=self._broker_id,
            broker_epoch=broker_epoch,
            topic_id=partition.id.topic_id,
            partition=partition.id.partition,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
            new_isr=tuple(IsrMember(broker_id=b, broker_epoch=e) for b, e in proposal.isr),
        )
        where = f"topic_id={partition.id.topic_id} partition={partition.id.partition}"
        try:
            async with self._slots:
                answer = await self._controllers.alter_partition(command)
        except KafkaError as error:
            if error.outcome is Outcome.NOT_WRITTEN:
                _log.info("isr change refused %s error=%s %s", where, error.code.name, error)
                partition.isr_refused(proposal)
            else:
                _log.info("isr change unknown %s error=%s", where, error.code.name)
                partition.isr_unknown(proposal, self._clock.monotonic_ms() + UNKNOWN_RETRY_MS)
            return
        _log.info("isr changed %s isr=%s reason=%s", where, list(answer.isr), proposal.reason)
        partition.isr_accepted(proposal, answer.partition_epoch, answer.isr)
