"""Reads of one partition on their way to its leader: here, or one hop away, within a named time.

A read waits for records as long as it asked to, and for a leader no longer than that: Kafka's
brokers answer at once where there is none, and its clients give up at their own deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from broker.server import forwarding
from broker.server.local_partitions import LocalPartitions, Read
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.server.follower_reads import FollowerReads
    from broker.server.group_requests import Router
    from broker.server.requests import FetchRequest, FetchResult, OffsetsResult
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import PartitionId, TopicIdPartition, TopicName
    from raft_metadata.image.metadata_image import PartitionRegistration

    Existing = Callable[[TopicName, PartitionId], Awaitable[TopicIdPartition]]

LEADER_MOVE_MS: Final = 300
"""A planned move of a leader takes tens of milliseconds: a read is tried so long at least, also one
that will not wait for records."""
LEADER_WAIT_MS: Final = 2_000
"""For a leader, by who asks where a partition begins and ends and can't say how long: where one has
died, the next one is there after a session of 1,200 ms and an election."""
ANSWER_GRACE_MS: Final = 1_000
"""A leader's answer is waited for so much longer than it was asked to wait: it has to be read and
to come here. One that hangs holds nobody up for longer than this."""
TIME_LOOKUP_MS: Final = 5_000
"""The same for a look-up by time, which may have to read much of the log."""


class ReadRouting:
    """On the broker's loop; keeps nothing itself."""

    def __init__(
        self,
        config: BrokerConfig,
        local: LocalPartitions,
        existing: Existing,
        routing: Router,
        clock: Clock,
    ) -> None:
        """``existing``: where a partition is, or UNKNOWN_TOPIC_OR_PARTITION."""
        self._broker_id = config.broker_id
        self._limits = config.limits
        self._local = local
        self._existing = existing
        self._routing = routing
        self._clock = clock

    async def fetch(self, request: FetchRequest, near: FollowerReads | None) -> FetchResult:
        """See `BrokerApis`. ``near``: who serves readers that name their rack."""
        limits = self._limits
        partition = await self._existing(request.topic, request.partition)
        max_wait_ms = max(0, min(request.max_wait_ms, limits.max_fetch_wait_ms))
        wait_until_ms = self._clock.monotonic_ms() + max_wait_ms
        patience_ms = max(max_wait_ms, request.leader_wait_ms, LEADER_MOVE_MS)
        deadline_ms = self._clock.monotonic_ms() + patience_ms
        if near is not None and request.rack is not None:
            found = await near.fetch(request, partition, max_wait_ms)
            if found is not None:
                return found

        async def attempt(registration: PartitionRegistration, _timeout_ms: int) -> FetchResult:
            wait_ms = max(0, wait_until_ms - self._clock.monotonic_ms())
            read = Read(
                partition=partition,
                offset=request.offset,
                timestamp_ms=request.timestamp_ms,
                max_bytes=max(1, min(request.max_bytes, limits.max_fetch_bytes)),
                max_wait_ms=wait_ms,
                packed=request.packed,
            )
            if registration.leader == self._broker_id:
                return await self._local.fetch(read)
            grace_ms = ANSWER_GRACE_MS if request.timestamp_ms is None else TIME_LOOKUP_MS
            body = forwarding.encode_fetch(read)
            answer = await self._ask(
                partition, registration, forwarding.FETCH, body, wait_ms + grace_ms
            )
            return forwarding.decode_fetch(answer)

        return await self._routing.routed(partition, attempt, deadline_ms, pure=True)

    async def offsets(self, topic: TopicName, partition: PartitionId) -> OffsetsResult:
        """See `BrokerApis`."""
        place = await self._existing(topic, partition)
        deadline_ms = self._clock.monotonic_ms() + LEADER_WAIT_MS

        async def attempt(registration: PartitionRegistration, _timeout_ms: int) -> OffsetsResult:
            if registration.leader == self._broker_id:
                return self._local.offsets(place)
            body = forwarding.encode_offsets(place)
            answer = await self._ask(place, registration, forwarding.OFFSETS, body, ANSWER_GRACE_MS)
            return forwarding.decode_offsets(answer)

        return await self._routing.routed(place, attempt, deadline_ms, pure=True)

    async def _ask(
        self,
        partition: TopicIdPartition,
        registration: PartitionRegistration,
        kind: int,
        body: bytes,
        within_ms: int,
    ) -> bytes:
        """The leader's answer, within that time to the millisecond: a read may be given up."""
        try:
            async with asyncio.timeout(within_ms / 1000):
                return await self._routing.forward(partition, registration, kind, body, within_ms)
        except TimeoutError:
            text = f"broker {registration.leader}, the leader, did not answer within {within_ms} ms"
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, text, outcome=Outcome.NOT_WRITTEN
            ) from None
