"""Deletes the beginning of a partition, for an operator: at its leader, here or one hop away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.server import forwarding

if TYPE_CHECKING:
    from broker.replication.log_starts import LogStarts
    from broker.server.group_requests import Router
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, TopicIdPartition
    from raft_metadata.image.metadata_image import PartitionRegistration

DELETE_TIMEOUT_MS = 10_000
"""How long the new log start may take to be durable at the leader."""


class RecordDeletion:
    """Stateless; owned by the `BrokerServer`."""

    def __init__(
        self, broker_id: BrokerId, router: Router, log_starts: LogStarts, clock: Clock
    ) -> None:
        self._broker_id = broker_id
        self._router = router
        self._log_starts = log_starts
        self._clock = clock

    async def delete(self, partition: TopicIdPartition, before_offset: int) -> int:
        """The new log start, durable at the leader. -1: up to the high watermark.

        An offset may be asked for again, whatever became of the first attempt. "Up to the high
        watermark" may not: it would reach further by then (rule F1).

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, or whatever keeps the leader from it.
        """

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> int:
            if registration.leader == self._broker_id:
                return await self._log_starts.delete_records(partition, before_offset, timeout_ms)
            body = forwarding.encode_delete_records(partition, before_offset)
            answer = await self._router.forward(
                partition, registration, forwarding.DELETE_RECORDS, body, timeout_ms
            )
            return forwarding.decode_log_start(answer)

        deadline_ms = self._clock.monotonic_ms() + DELETE_TIMEOUT_MS
        return await self._router.routed(partition, attempt, deadline_ms, pure=before_offset >= 0)
