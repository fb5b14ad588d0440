"""Deletes the beginning of a partition, for an operator: at its leader, here or one hop away."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.server import forwarding
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from broker.replication.trimming import LogTrimming
    from broker.server.group_requests import Router
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, TopicIdPartition
    from raft_metadata.image.metadata_image import PartitionRegistration

DELETE_TIMEOUT_MS = 10_000
"""How long the new log start may take to be durable on every replica that may lead next. One that
died left the in-sync replicas long before, with the default ``replica_lag_time_max_ms``."""


class RecordDeletion:
    """Stateless; owned by the `BrokerServer`."""

    def __init__(
        self, broker_id: BrokerId, router: Router, trimming: LogTrimming, clock: Clock
    ) -> None:
        self._broker_id = broker_id
        self._router = router
        self._trimming = trimming
        self._clock = clock

    async def delete(self, partition: TopicIdPartition, before_offset: int) -> int:
        """The new log start, which the next leader knows, too. -1: up to the high watermark.

        An offset may be asked for again, whatever became of the first attempt. "Up to the high
        watermark" may not: it would reach further by then (rule F1).

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, or whatever keeps the leader from it; its outcome is
                unknown once any attempt's was.
        """
        doubt: KafkaError | None = None

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> int:
            nonlocal doubt
            try:
                return await self._ask(partition, registration, before_offset, timeout_ms)
            except KafkaError as error:
                if error.outcome is Outcome.UNKNOWN:
                    doubt = error
                raise

        deadline_ms = self._clock.monotonic_ms() + DELETE_TIMEOUT_MS
        try:
            return await self._router.routed(
                partition, attempt, deadline_ms, pure=before_offset >= 0
            )
        except KafkaError as error:
            if doubt is None:
                raise
            if error.code is ErrorCode.LEADER_NOT_AVAILABLE:
                raise doubt from error
            raise KafkaError(error.code, error.message, outcome=Outcome.UNKNOWN) from error

    async def _ask(
        self,
        partition: TopicIdPartition,
        registration: PartitionRegistration,
        before_offset: int,
        timeout_ms: int,
    ) -> int:
        if registration.leader == self._broker_id:
            return await self._trimming.delete_records(partition, before_offset, timeout_ms)
        body = forwarding.encode_delete_records(partition, before_offset)
        answer = await self._router.forward(
            partition, registration, forwarding.DELETE_RECORDS, body, timeout_ms
        )
        return forwarding.decode_log_start(answer)
