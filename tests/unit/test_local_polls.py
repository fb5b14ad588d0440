"""Polls of partitions led here: one watch for all, the first that has enough, the room in order."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.config import BrokerLimits
from broker.log.partition_log import PartitionLog
from broker.log.read_positions import PositionTruncatedError
from broker.record.batch import BatchSlice
from broker.server.requests import FetchResult, PollPage
from raft_metadata.common.disk import Disk
from raft_metadata.common.errors import ErrorCode, KafkaError
from tests.support.polled_brokers import NO_LEADER, PolledBroker, image, poll_of, polled_brokers

MANY = 1_000


@pytest.fixture
async def here(tmp_path: Path) -> AsyncIterator[PolledBroker]:
    async with polled_brokers(tmp_path, 1) as (one,):
        one.follow(image([1] * 5))
        yield one


def numbers(pages: list[PollPage]) -> list[int]:
    return [page.row for page in pages]


def records(page: PollPage) -> int:
    assert isinstance(page.found, FetchResult), page.found
    return sum(piece.count for piece in page.found.slices)


def error_of(page: PollPage) -> KafkaError:
    assert isinstance(page.found, KafkaError)
    return page.found


async def test_the_first_partition_with_a_record_ends_the_wait(here: PolledBroker) -> None:
    waiting = asyncio.ensure_future(
        here.routing.poll(poll_of(dict.fromkeys(range(5), 0), max_wait_ms=9_000))
    )
    await asyncio.sleep(0.05)
    assert here.waiters() == 5
    await here.append(3, 1, 2)
    [page] = await waiting
    assert (page.row, records(page)) == (3, 2)
    assert isinstance(page.found, FetchResult)
    assert (page.found.next_offset, page.found.next_leader_epoch) == (2, 1)
    assert here.waiters() == 0, "nothing waits any more"


async def test_what_is_there_is_answered_at_once_and_all_of_it(here: PolledBroker) -> None:
    for number in (0, 2, 4):
        await here.append(number, number)
    pages = await here.routing.poll(poll_of({4: 0, 0: 0, 1: 0, 2: 0}, max_wait_ms=9_000))
    assert numbers(pages) == [0, 1, 3], "rows of partitions 4, 0 and 2"


async def test_nothing_in_time_is_no_page(here: PolledBroker) -> None:
    began = time.monotonic()
    assert await here.routing.poll(poll_of({0: 0, 1: 0}, max_wait_ms=60)) == []
    assert time.monotonic() - began >= 0.05
    assert here.waiters() == 0


async def test_min_bytes_are_waited_for_in_one_partition(here: PolledBroker) -> None:
    await here.append(0, 1)
    poll = poll_of({0: 0, 1: 0}, max_wait_ms=9_000, min_bytes=200)
    waiting = asyncio.ensure_future(here.routing.poll(poll))
    await here.append(0, 2)
    await here.append(1, 1)
    await asyncio.sleep(0.1)
    assert not waiting.done(), "two partitions with some 70 bytes each"
    await here.append(0, 3, 4, 5, 6, 7)
    pages = await asyncio.wait_for(waiting, 2)
    assert [records(page) for page in pages] == [7, 1], "with it comes what the others have"
    few = await here.routing.poll(poll_of({1: 0}, max_wait_ms=30, min_bytes=200))
    assert [records(page) for page in few] == [1], "in the end what there is"


async def test_the_room_goes_to_the_first_rows(here: PolledBroker) -> None:
    for number in range(3):
        await here.append(number, *[f'"{"x" * 500}"'] * 4)
    wanted = {1: 0, 0: 0, 2: 0}
    pages = await here.routing.poll(poll_of(wanted, max_partition_bytes=1_200, max_bytes=3_000))
    assert [(page.row, records(page)) for page in pages] == [(0, 2), (1, 2)]
    pages = await here.routing.poll(poll_of(wanted, max_bytes=1))
    assert [(page.row, records(page)) for page in pages] == [(0, 1)], "one record at least"


async def test_news_only_has_no_records_and_no_room_to_run_out_of(here: PolledBroker) -> None:
    for number in range(3):
        await here.append(number, 1, 2)
    here.follow(image([1] * 5, version=2, epoch=4))
    await here.append(0, 3)
    pages = await here.routing.poll(poll_of({0: 1, 1: 0, 2: 2}, news_only=True, max_bytes=1))
    assert [(page.row, page.epochs) for page in pages] == [(0, ((1, 1), (4, 2))), (1, ((1, 0),))]
    assert [records(page) for page in pages] == [0, 0]
    assert isinstance(pages[0].found, FetchResult)
    assert (pages[0].found.next_offset, pages[0].found.next_leader_epoch) == (3, 4)


async def test_a_position_that_is_not_of_this_log_is_told_at_once(here: PolledBroker) -> None:
    await here.append(0, 1, 2)
    poll = poll_of({0: 2, 1: 7, 2: 0}, max_wait_ms=9_000)
    poll.rows[0] = poll.rows[0]._replace(leader_epoch=0)  # type: ignore[index]
    truncated, beyond = await here.routing.poll(poll)
    assert isinstance(error_of(truncated), PositionTruncatedError)
    assert error_of(beyond).code is ErrorCode.OFFSET_OUT_OF_RANGE


async def test_what_can_not_be_served_now_is_told_only_with_something_else_or_at_the_end(
    here: PolledBroker,
) -> None:
    here.follow(image([1, NO_LEADER, 1], version=2, epoch=2))
    began = time.monotonic()
    [page] = await here.routing.poll(poll_of({0: 0, 1: 0}, max_wait_ms=120))
    assert time.monotonic() - began >= 0.11, "a client that asks again at once must not spin"
    assert (page.row, error_of(page).code) == (1, ErrorCode.LEADER_NOT_AVAILABLE)
    waiting = asyncio.ensure_future(here.routing.poll(poll_of({1: 0, 2: 0}, max_wait_ms=9_000)))
    await asyncio.sleep(0.02)
    await here.append(2, 5)
    reported, found = await waiting
    assert error_of(reported).code is ErrorCode.LEADER_NOT_AVAILABLE
    assert records(found) == 1


async def test_a_partition_that_gets_its_leader_is_read_in_the_same_wait(
    here: PolledBroker,
) -> None:
    here.follow(image([1, NO_LEADER], version=2, epoch=2))
    waiting = asyncio.ensure_future(here.routing.poll(poll_of({0: 0, 1: 0}, max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    here.follow(image([1, 1], version=3, epoch=3))
    await asyncio.sleep(0.05)
    await here.append(1, 1)
    [page] = await waiting
    assert (page.row, records(page)) == (1, 1)


async def test_a_leader_that_does_not_know_it_yet_is_tried_again(here: PolledBroker) -> None:
    """This broker's image is ahead of its replicas' roles, as another broker's may be."""
    here.manager.on_metadata_update(image([NO_LEADER] * 5, version=2, epoch=2))
    waiting = asyncio.ensure_future(here.routing.poll(poll_of({0: 0}, max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    here.manager.on_metadata_update(image([1] * 5, version=3, epoch=3))
    await here.append(0, 1)
    [page] = await waiting
    assert records(page) == 1


async def test_cold_pages_are_read_beside_the_loop(
    here: PolledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        await here.append(number, 1)
    threads: list[bool] = []
    real_read = Disk.read

    def read(disk: Disk, fd: int, size: int, offset: int) -> bytes:
        try:
            asyncio.get_running_loop()
            threads.append(False)
        except RuntimeError:
            threads.append(True)
        return real_read(disk, fd, size, offset)

    monkeypatch.setattr(Disk, "is_cached", lambda *_: False)
    monkeypatch.setattr(Disk, "read", read)
    pages = await here.routing.poll(poll_of({0: 0, 1: 0, 2: 0}))
    assert [records(page) for page in pages] == [1, 1, 1]
    assert threads.count(True) == 3


async def test_a_damaged_log_is_no_reason_to_look_again_and_again(
    here: PolledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.append(0, 1)
    reads = 0
    real_read = PartitionLog.read

    def read(log: PartitionLog, start: int, size: int, end: int) -> list[BatchSlice]:
        nonlocal reads
        if not log.name.endswith("-0"):
            return real_read(log, start, size, end)
        reads += 1
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "damaged")

    monkeypatch.setattr(PartitionLog, "read", read)
    waiting = asyncio.ensure_future(here.routing.poll(poll_of({0: 0, 1: 0}, max_wait_ms=9_000)))
    await asyncio.sleep(0.4)
    assert 1 <= reads <= 4
    await here.append(1, 1)
    damaged, found = await waiting
    assert error_of(damaged).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert records(found) == 1


async def test_a_disk_that_fails_fails_its_own_row(
    here: PolledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.append(0, 1)
    await here.append(1, 1)
    real_read = PartitionLog.read

    def read(log: PartitionLog, start: int, size: int, end: int) -> list[BatchSlice]:
        if log.name.endswith("-0"):
            raise OSError(5, "input/output error")
        return real_read(log, start, size, end)

    monkeypatch.setattr(PartitionLog, "read", read)
    failed, found = await here.routing.poll(poll_of({0: 0, 1: 0}, max_wait_ms=9_000))
    assert error_of(failed).code is ErrorCode.KAFKA_STORAGE_ERROR
    assert records(found) == 1


async def test_rule_r7_where_compaction_left_no_record_the_wait_goes_on(
    here: PolledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await here.append(0, 1, 2)
    real_read = PartitionLog.read

    def read(log: PartitionLog, start: int, size: int, end: int) -> list[BatchSlice]:
        return [] if start < 2 else real_read(log, start, size, end)

    monkeypatch.setattr(PartitionLog, "read", read)
    waiting = asyncio.ensure_future(here.routing.poll(poll_of({0: 0}, max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await here.append(0, 3)
    [page] = await waiting
    assert isinstance(page.found, FetchResult)
    assert (records(page), page.found.next_offset) == (1, 3)


async def test_rule_r7_a_hole_of_one_leader_epoch_is_looked_at_again_in_the_next(
    here: PolledBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another log may stand there then: what it holds in the place must not be skipped."""
    await here.append(0, 1, 2)
    real_read = PartitionLog.read
    is_hole = True

    def read(log: PartitionLog, start: int, size: int, end: int) -> list[BatchSlice]:
        return [] if is_hole and start < 2 else real_read(log, start, size, end)

    monkeypatch.setattr(PartitionLog, "read", read)
    waiting = asyncio.ensure_future(here.routing.poll(poll_of({0: 0}, max_wait_ms=9_000)))
    await asyncio.sleep(0.05)
    is_hole = False
    here.follow(image([1] * 5, version=2, epoch=2))
    [page] = await asyncio.wait_for(waiting, 2)
    assert records(page) == 2


async def test_an_unknown_topic_costs_one_look_for_all_rows(here: PolledBroker) -> None:
    pages = await here.routing.poll(poll_of({7: 0, 8: 0, 9: 0}))
    codes = {error_of(page).code for page in pages}
    assert (len(pages), codes) == (3, {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
    assert here.caught_up == 1


async def test_the_partitions_polled_at_a_time_are_limited(tmp_path: Path) -> None:
    async with polled_brokers(tmp_path, 1, BrokerLimits(max_polled_partitions=7)) as (one,):
        one.follow(image([1] * 5))
        all_five = dict.fromkeys(range(5), 0)
        waiting = asyncio.ensure_future(one.routing.poll(poll_of(all_five, max_wait_ms=9_000)))
        await asyncio.sleep(0.02)
        with pytest.raises(KafkaError, match="max_polled_partitions=7") as refused:
            await one.routing.poll(poll_of({0: 0, 1: 0, 2: 0}))
        assert refused.value.code is ErrorCode.QUEUE_FULL
        waiting.cancel()
        await asyncio.wait([waiting])
        assert one.waiters() == 0, "a client that hung up leaves nothing"
        assert await one.routing.poll(poll_of(all_five, max_wait_ms=0)) == []


async def test_a_thousand_partitions_wait_in_two_megabytes(tmp_path: Path) -> None:
    async with polled_brokers(tmp_path, 1) as (one,):
        one.follow(image([1] * MANY))
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            poll = poll_of(dict.fromkeys(range(MANY), 0), max_wait_ms=9_000)
            tasks = len(asyncio.all_tasks())
            waiting = asyncio.ensure_future(one.routing.poll(poll))
            for _ in range(MANY // 100):  # it looks at some hundreds in one turn
                await asyncio.sleep(0)
            assert one.waiters() == MANY
            held = tracemalloc.get_traced_memory()[0] - before
            assert len(asyncio.all_tasks()) - tasks <= 2, "the poll, and its leg at this broker"
        finally:
            tracemalloc.stop()
        assert held <= 2_000_000
        await one.append(MANY - 1, 1)
        assert numbers(await waiting) == [MANY - 1]
