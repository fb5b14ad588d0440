"""One read of a replica, whoever serves it: below its high watermark, waiting for records."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, cast

from broker.log.page_cache import warm
from broker.record.compression import PackedSlice
from broker.server.requests import FetchResult
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.partition_log import PartitionLog
    from broker.record.batch import BatchSlice
    from broker.record.compression import Piece
    from broker.replication.partition import Partition
    from broker.replication.replica import Replica
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, LeaderEpoch


class Standing(NamedTuple):
    """A replica that may serve now, and under whom."""

    replica: Replica
    leader: BrokerId
    epoch: LeaderEpoch


class Reads:
    """Owned by whoever serves. Stateless but for the count of those that wait, which is bounded."""

    def __init__(self, max_parked_fetches: int, clock: Clock) -> None:
        self._max_parked = max_parked_fetches
        self._clock = clock
        self._parked = 0

    async def read(
        self,
        offset: int,
        max_bytes: int,
        deadline_ms: int,
        standing: Callable[[], Standing],
        check: Callable[[Replica, int], None],
        *,
        packed: bool = False,
    ) -> FetchResult:
        """Records from an offset on, or none at the deadline.

        ``standing`` raises where nothing may be served any more, ``check`` where this offset may
        not: both are asked anew after every wait, and between them and the read is no ``await``.
        ``packed``: see `FetchResult.packed`.
        """
        now = standing()
        first_epoch = now.epoch
        is_warm = False
        while True:
            replica, leader, epoch = now
            if epoch != first_epoch:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the leader epoch changed")
            check(replica, offset)
            partition, log = replica.partition, replica.log
            slices: Sequence[BatchSlice] = ()
            frames: Sequence[Piece] = ()
            if offset < partition.high_watermark:
                cold = None if is_warm else log.cold_range(offset, max_bytes)
                if cold is not None:
                    is_warm = True  # asked once: who is evicted again meanwhile is read here
                    await warm(cold)
                    now = standing()
                    continue
                slices, frames = read_now(log, offset, max_bytes, partition, packed=packed)
                if not slices and not frames:
                    offset = partition.high_watermark  # rule R7: no record is left in between
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if slices or frames or remaining_ms <= 0:
                last = (slices or frames)[-1:]
                return FetchResult(
                    slices=slices,
                    packed=frames,
                    high_watermark=partition.high_watermark,
                    log_start_offset=log.log_start_offset,
                    next_offset=last[0].next_offset if last else offset,
                    leader_id=leader,
                    leader_epoch=epoch,
                )
            await self.wait(replica, remaining_ms)
            now = standing()

    async def wait(self, replica: Replica, at_most_ms: int) -> None:
        """Until its high watermark or its role has changed."""
        if self._parked >= self._max_parked:
            raise KafkaError(ErrorCode.QUEUE_FULL, "max_parked_fetches is reached")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(at_most_ms / 1000, _finish, waiter)
        replica.wait(waiter)
        self._parked += 1
        try:
            await waiter
        finally:
            self._parked -= 1
            timer.cancel()
            replica.wait_no_more(waiter)


def read_now(
    log: PartitionLog, offset: int, max_bytes: int, partition: Partition, *, packed: bool
) -> tuple[Sequence[BatchSlice], Sequence[Piece]]:
    """What is below the high watermark, as (`FetchResult.slices`, `FetchResult.packed`)."""
    if packed:
        return parted(log.read_packed(offset, max_bytes, partition.high_watermark))
    return log.read(offset, max_bytes, partition.high_watermark), ()


def parted(found: Sequence[Piece]) -> tuple[Sequence[BatchSlice], Sequence[Piece]]:
    """These pieces as (`FetchResult.slices`, `FetchResult.packed`): one of the two is empty."""
    for piece in found:
        if isinstance(piece, PackedSlice):
            return (), found
    return cast("Sequence[BatchSlice]", found), ()


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
