"""Watches at the ends of partitions: one fetch for all tails, none woken too late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from http_api.server import partition_watches
from http_api.server.partition_watches import PartitionWatches, WatchedPlace
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import BrokerId, PartitionId, TopicId, TopicName
from tests.support.fake_broker_apis import FakeBrokerApis
from tests.support.waiting import until

TOPIC = TopicName("flights")
PLACE = WatchedPlace(TOPIC, TopicId(f"{TOPIC:x<22}"), PartitionId(0), 0)


class Reader:
    def __init__(self) -> None:
        self.woken: list[int] = []
        self.changes = 0

    def wake(self, partition: PartitionId) -> None:
        self.woken.append(partition)

    def topic_changed(self) -> None:
        self.changes += 1


@pytest.fixture
async def apis() -> FakeBrokerApis:
    made = FakeBrokerApis()
    made.add_topic(TOPIC, 2)
    return made


@pytest.fixture
async def watches(apis: FakeBrokerApis) -> AsyncIterator[PartitionWatches]:
    made = PartitionWatches(apis)
    yield made
    await made.stop()
    assert made.watched == 0


def append(apis: FakeBrokerApis, count: int = 1) -> None:
    records = decode_records(b'{"records":[' + b",".join([b'{"value":1}'] * count) + b"]}")
    log = apis.logs[TOPIC, 0]
    apis.append_records(log, records, RecordFormat.JSON, RecordFormat.JSON)


async def test_all_readers_of_a_place_wait_with_one_fetch(
    apis: FakeBrokerApis, watches: PartitionWatches
) -> None:
    readers = [Reader() for _ in range(50)]
    for reader in readers:
        watches.join(reader, PLACE)
    await asyncio.sleep(0)
    assert (len(apis.requests), watches.watched) == (1, 1)
    append(apis)
    await until(lambda: all(reader.woken == [0] for reader in readers))
    assert watches.watched == 0


async def test_a_reader_that_is_behind_the_others_is_not_kept_waiting(
    apis: FakeBrokerApis, watches: PartitionWatches
) -> None:
    append(apis, 5)
    ahead, behind = Reader(), Reader()
    watches.join(ahead, replace(PLACE, offset=5))
    await asyncio.sleep(0)
    watches.join(behind, replace(PLACE, offset=3))
    await until(lambda: behind.woken == [0])


async def test_what_passes_is_waited_for_and_what_does_not_wakes(
    apis: FakeBrokerApis, watches: PartitionWatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_watches, "RETRY_S", 0.01)
    reader = Reader()
    apis.fetch_error = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE)
    watches.join(reader, PLACE)
    await until(lambda: len(apis.requests) > 3)
    assert reader.woken == []
    for error in (
        KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE),
        KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        RuntimeError("a defect"),
    ):
        reader.woken.clear()
        apis.fetch_error = error
        watches.join(reader, PLACE)
        await until(lambda: reader.woken == [0])


async def test_a_reader_that_has_seen_a_leader_from_the_future_keeps_no_other_waiting(
    apis: FakeBrokerApis, watches: PartitionWatches
) -> None:
    """The reader may join where nobody leads; the other, which stands there too, has news."""
    append(apis)
    future, other = Reader(), Reader()
    watches.join(future, replace(PLACE, seen_epoch=2**31 - 1))
    watches.join(other, PLACE)
    await until(lambda: other.woken == [0])


async def test_a_partition_without_a_leader_is_not_asked_for(
    apis: FakeBrokerApis, watches: PartitionWatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_watches, "RETRY_S", 0.01)
    append(apis)
    apis.change_partition(TOPIC, 0, leader=BrokerId(-1))
    reader = Reader()
    watches.join(reader, PLACE)
    await asyncio.sleep(0.05)
    assert (apis.requests, reader.woken) == ([], [])
    apis.change_partition(TOPIC, 0, leader=BrokerId(2))
    await until(lambda: reader.woken == [0])


async def test_a_watch_without_readers_ends(
    apis: FakeBrokerApis, watches: PartitionWatches
) -> None:
    one, other = Reader(), Reader()
    watches.join(one, PLACE)
    watches.join(other, PLACE)
    watches.leave(one, PLACE.topic_id, PLACE.partition)
    assert watches.watched == 1
    watches.leave(other, PLACE.topic_id, PLACE.partition)
    watches.leave(other, PLACE.topic_id, PLACE.partition)
    assert watches.watched == 0
    append(apis)
    await asyncio.sleep(0.01)
    assert one.woken == other.woken == []


async def test_readers_of_a_topic_are_told_of_its_partitions_once(
    apis: FakeBrokerApis, watches: PartitionWatches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_watches, "GROWTH_CHECK_S", 0.01)
    grown, same, late = Reader(), Reader(), Reader()
    watches.watch_growth(grown, TOPIC, PLACE.topic_id, 1)
    watches.watch_growth(same, TOPIC, PLACE.topic_id, 2)
    await until(lambda: grown.changes == 1)
    await asyncio.sleep(0.03)
    watches.watch_growth(late, TOPIC, PLACE.topic_id, 1)  # the image is the same as before
    await until(lambda: late.changes == 1)
    assert (grown.changes, same.changes) == (1, 0)
    apis.set_topics({})
    await until(lambda: same.changes == 1)
