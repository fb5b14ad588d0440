"""Positions in words turned into offsets, and reads that keep to their bounds.

The routes that read call these functions. ``earliest``, ``latest``, ``-N`` and times depend on the
log, so they cost a request to the leader before the read. The ends of a log may move between that
look-up and the read, by retention for example; `read_page` then looks them up again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from broker.record.render import before_offset
from broker.server.requests import UNKNOWN_EPOCH, FetchRequest
from http_api.contract.errors import RestCode, RestError
from http_api.contract.grammar import AtOffset, Earliest, FromTime, LastRecords, Latest
from http_api.server.image_lookup import partition_not_found
from http_api.server.query_parameters import ReadEnd, end_before_start
from raft_metadata.common.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from broker.record.compression import Piece
    from broker.server.requests import BrokerApis, FetchResult, OffsetsResult
    from http_api.contract.grammar import Position

A = TypeVar("A")

POSITION_ATTEMPTS: Final = 3
"""Most look-ups of the log's ends for one read, if they move between a look-up and the read."""


def fetch_or_404(apis: BrokerApis, fetch: FetchRequest) -> Awaitable[FetchResult]:
    """Return what a fetch reads; 404 if the partition was deleted meanwhile."""
    return _found(fetch, apis.fetch(fetch))


async def _found(fetch: FetchRequest, answer: Awaitable[A]) -> A:
    try:
        return await answer
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        text = partition_not_found(fetch.topic, fetch.partition)
        raise RestError(404, RestCode.PARTITION_NOT_FOUND, text) from None


async def read_page(
    apis: BrokerApis, position: Position, end: ReadEnd | None, fetch: FetchRequest
) -> tuple[FetchRequest, FetchResult, int | None]:
    """Read from a position, up to a bound if there is one.

    A read that begins at the bound waits for nothing. Return the request with the offset that was
    read from, the result and the bound's offset.

    Raises:
        RestError: 400/40002, the bound is before the offset to read from.
    """
    if end is None and isinstance(position, AtOffset | FromTime):
        return fetch, await fetch_or_404(apis, fetch), None
    attempt = 0
    while True:
        attempt += 1
        start = await start_of(apis, position, fetch)
        bound = None if end is None else await bound_of(apis, end, fetch)
        if bound is not None and bound < start and isinstance(position, AtOffset):
            raise end_before_start("end_timestamp", bound, start)
        wait_ms = fetch.max_wait_ms if bound is None or start < bound else 0
        now = replace(fetch, offset=start, timestamp_ms=None, max_wait_ms=wait_ms)
        try:
            result = await fetch_or_404(apis, now)
            if bound is None:
                return now, result, None
            if result.packed and result.packed[-1].next_offset > bound:
                result = await fetch_or_404(apis, replace(now, packed=False))  # lines can be cut
            return now, before_bound(result, bound), bound
        except KafkaError as error:
            is_moved = error.code is ErrorCode.OFFSET_OUT_OF_RANGE
            if not is_moved or isinstance(position, AtOffset) or attempt == POSITION_ATTEMPTS:
                raise


async def start_of(apis: BrokerApis, position: Position, fetch: FetchRequest) -> int:
    """Return the offset of a position in the partition that ``fetch`` names."""
    match position:
        case AtOffset(offset):
            return offset
        case FromTime(timestamp_ms):
            return await offset_at(apis, fetch, timestamp_ms)
        case _:
            return offset_of(position, await ends_of(apis, fetch))


async def ends_of(apis: BrokerApis, fetch: FetchRequest) -> OffsetsResult:
    """Return both ends of the partition that ``fetch`` names."""
    return await _found(fetch, apis.offsets(fetch.topic, fetch.partition))


def offset_of(position: Earliest | Latest | LastRecords, ends: OffsetsResult) -> int:
    """Return the offset of a position in a log with these ends."""
    match position:
        case Earliest():
            return ends.beginning_offset
        case Latest():
            return ends.end_offset
        case LastRecords(count):
            return max(ends.beginning_offset, ends.end_offset - count)


async def bound_of(apis: BrokerApis, end: ReadEnd, fetch: FetchRequest) -> int:
    """Return the offset at which a read ends, exclusive; of two bounds the earlier."""
    bounds = [] if end.offset is None else [end.offset]
    if end.timestamp_ms is not None:
        bounds.append(await offset_at(apis, fetch, end.timestamp_ms))
    return min(bounds)


async def offset_at(apis: BrokerApis, fetch: FetchRequest, timestamp_ms: int) -> int:
    """Return the offset of the first record at or after a time, else the high watermark."""
    look_up = FetchRequest(
        topic=fetch.topic,
        partition=fetch.partition,
        timestamp_ms=timestamp_ms,
        max_bytes=1,
        max_wait_ms=0,
    )
    found = await fetch_or_404(apis, look_up)
    return found.slices[0].first_offset if found.slices else found.next_offset


def before_bound(result: FetchResult, bound: int) -> FetchResult:
    """Return the records of a result below an offset."""
    if result.next_offset <= bound:
        return result
    slices = before_offset(result.slices, bound)
    return replace(result, slices=slices, next_offset=bound, next_leader_epoch=last_epoch(slices))


def last_epoch(pieces: Sequence[Piece]) -> int:
    """Return the leader epoch of the last record; -1 without one."""
    return pieces[-1].header.leader_epoch if pieces else UNKNOWN_EPOCH
