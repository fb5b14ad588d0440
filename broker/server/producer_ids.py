"""Producer ids for clients and for this broker's own forwards, from blocks of the controllers'."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.records.commands import AllocateProducerIds

if TYPE_CHECKING:
    from broker.ports import ControllerChannel
    from broker.server.lifecycle import Lifecycle
    from raft_metadata.common.ids import BrokerId

ALLOCATE_TIMEOUT_MS = 5_000
"""How long an active controller is looked for: an election takes about one second."""
_log = logging.getLogger("broker.producers")


class ProducerIds:
    """Hands out each id of its blocks once. On the broker's loop.

    Invariant T5: a block is one broker incarnation's, and kept in memory only. What is left of it
    dies with the process; a lost answer wastes a block. So no id is ever handed out twice.
    """

    def __init__(
        self, broker_id: BrokerId, lifecycle: Lifecycle, controllers: ControllerChannel
    ) -> None:
        self._broker_id = broker_id
        self._lifecycle = lifecycle
        self._controllers = controllers
        self._next = self._end = 0
        self._refilling = asyncio.Lock()

    async def next(self) -> int:
        """An id that nobody else has, or will have.

        Raises:
            KafkaError: no active controller gave a block; nothing was handed out.
        """
        while self._next == self._end:
            async with self._refilling:
                if self._next == self._end:
                    await self._refill()
        self._next += 1
        return self._next - 1

    async def _refill(self) -> None:
        epoch = self._lifecycle.broker_epoch
        if epoch is None:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "this broker is not registered yet")
        command = AllocateProducerIds(broker_id=self._broker_id, broker_epoch=epoch)
        try:
            block = await self._controllers.ask(command, ALLOCATE_TIMEOUT_MS)
        except KafkaError as error:
            text = f"no producer ids from the active controller: {error.message}"
            raise KafkaError(error.code, text, outcome=Outcome.NOT_WRITTEN) from error
        self._next = block.first_producer_id
        self._end = block.first_producer_id + block.count
        _log.info("producer ids received first=%d count=%d", self._next, block.count)
