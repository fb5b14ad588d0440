"""Programs for aiokafka, written as its documentation writes them, on a real cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from quorumlog import AsyncAdmin
from quorumlog import TopicPartition as SdkPartition
from quorumlog.compat.aiokafka import (
    AIOKafkaClient,
    AIOKafkaConsumer,
    AIOKafkaProducer,
    ConsumerRebalanceListener,
    ConsumerRecord,
    ConsumerStoppedError,
    IllegalOperation,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from quorumlog.compat.aiokafka.errors import (
    CommitFailedError,
    IllegalStateError,
    KafkaConfigurationError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    ProducerClosed,
    ProducerFenced,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from tests.support.live_cluster import LiveCluster, running

DONE_S = 20.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("cluster")) as started:
        asyncio.run(started.wait_healthy())
        yield started


def servers(cluster: LiveCluster) -> list[str]:
    return [broker.url.removeprefix("http://") for broker in cluster.brokers]


def new_producer(cluster: LiveCluster, **more: Any) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=servers(cluster), **more)


def new_consumer(cluster: LiveCluster, *topics: str, **more: Any) -> AIOKafkaConsumer:
    more.setdefault("auto_offset_reset", "earliest")
    return AIOKafkaConsumer(*topics, bootstrap_servers=servers(cluster), **more)


async def write(cluster: LiveCluster, topic: str, *values: bytes, partition: int = 0) -> None:
    async with new_producer(cluster) as producer:
        for value in values:
            await producer.send(topic, value, partition=partition)


async def test_send_and_iterate(cluster: LiveCluster) -> None:
    """The first example of aiokafka's documentation, with all fields of a record."""
    await cluster.create_topic("first", 1)
    producer = new_producer(cluster)
    await producer.start()
    try:
        sent = await producer.send_and_wait(
            "first", b"Super message", key=b"k", timestamp_ms=1_700_000_000_000,
            headers=[("h", b"1"), ("none", None)],
        )  # fmt: skip
        await producer.send_and_wait("first", None, b"gone")
        await producer.send_and_wait("first", b"")
    finally:
        await producer.stop()
    assert (sent.topic, sent.partition, sent.offset) == ("first", 0, 0)
    assert sent.topic_partition == TopicPartition("first", 0)
    assert (sent.timestamp, sent.timestamp_type) == (1_700_000_000_000, 0)

    consumer = new_consumer(cluster, "first")
    await consumer.start()
    read = []
    try:
        async for msg in consumer:
            read.append(msg)
            if len(read) == 3:
                break
    finally:
        await consumer.stop()
    assert read[0] == ConsumerRecord(
        "first", 0, 0, 1_700_000_000_000, 0, b"k", b"Super message", None, 1, 13,
        (("h", b"1"), ("none", None)),
    )  # fmt: skip
    assert [(one.key, one.value) for one in read[1:]] == [(b"gone", None), (None, b"")]
    assert [(one.serialized_key_size, one.serialized_value_size) for one in read[1:]] == [
        (4, -1),
        (-1, 0),
    ]


# ---------------------------------------------------------------- the producer


async def test_futures_have_the_outcomes(cluster: LiveCluster) -> None:
    """send returns a future; a flush ends when all have results; errors are the library's."""
    await cluster.create_topic("futures", 2)
    async with new_producer(cluster, max_request_size=4 << 20) as producer:
        futures = [await producer.send("futures", b"%d" % n, partition=1) for n in range(100)]
        await producer.flush()
        assert all(one.done() for one in futures)
        assert [(await one).offset for one in futures] == list(range(100))
        assert await producer.partitions_for("futures") == {0, 1}
        large = await producer.send("futures", b"x" * (3 << 20), partition=0)
        with pytest.raises(MessageSizeTooLargeError) as caught:
            await large
        assert caught.value.errno == 10
        cancelled = await producer.send("futures", b"cancelled", partition=0)
        cancelled.cancel()
        after = await producer.send_and_wait("futures", b"after", partition=0)
        assert after.offset == 1
        made = await producer.send_and_wait("futures-made", b"1")  # a topic that is not there yet
        assert made.offset == 0
    assert producer.client.cluster.partitions_for_topic("futures") == {0, 1}
    with pytest.raises(ProducerClosed):
        await producer.send("futures", b"late")


async def test_wrong_records_are_refused(cluster: LiveCluster) -> None:
    """Keys and values are bytes; the library's checks raise in the call."""
    await cluster.create_topic("wrong", 1)
    async with new_producer(cluster, max_request_size=1_000) as producer:
        with pytest.raises(TypeError, match="bytes-like object is required, not 'str'"):
            await producer.send("wrong", "text")
        with pytest.raises(TypeError, match="not 'int'"):
            await producer.send("wrong", b"", key=1)
        with pytest.raises(AssertionError, match="Need at least one"):
            await producer.send("wrong")
        with pytest.raises(AssertionError, match="Unrecognized partition"):
            await producer.send("wrong", b"", partition=7)
        with pytest.raises(MessageSizeTooLargeError):
            await producer.send("wrong", b"x" * 1_000)
        with pytest.raises(TypeError):
            await producer.send("wrong", b"", timestamp_ms="now")  # type: ignore[arg-type]
        assert (await producer.send_and_wait("wrong", b"right")).offset == 0


async def test_serializers_and_deserializers(cluster: LiveCluster) -> None:
    """JSON values and text keys by the program's functions; a failing one keeps the position."""
    await cluster.create_topic("json", 1)

    def serializer(value: Any) -> bytes:
        return json.dumps(value).encode()

    async with new_producer(
        cluster, value_serializer=serializer, key_serializer=str.encode
    ) as producer:
        await producer.send_and_wait("json", {"a": 123.4}, key="k")
        batch = producer.create_batch()
        batch.append(key="b", value=[1], timestamp=None)
        await (await producer.send_batch(batch, "json", partition=0))
    await write(cluster, "json", b"{")

    async with new_consumer(
        cluster,
        "json",
        value_deserializer=json.loads,
        key_deserializer=lambda key: None if key is None else key.decode(),
    ) as consumer:
        first, second = await consumer.getone(), await consumer.getone()
        assert (first.key, first.value, first.serialized_value_size) == ("k", {"a": 123.4}, 12)
        assert (second.key, second.value) == ("b", [1])
        for _ in range(2):
            with pytest.raises(json.JSONDecodeError):
                await consumer.getone()
            with pytest.raises(json.JSONDecodeError):
                await consumer.getmany(timeout_ms=5_000)
        tp = TopicPartition("json", 0)
        assert await consumer.position(tp) == 2
        consumer.seek(tp, 3)
        assert await consumer.getmany(timeout_ms=100) == {}


async def test_a_partitioner_of_the_program_decides(cluster: LiveCluster) -> None:
    """The partitioner gets the key's bytes and the partitions, and may raise its own errors."""
    await cluster.create_topic("chosen", 3)
    calls: list[tuple[bytes | None, list[int], list[int]]] = []

    def last(key: bytes | None, all_partitions: list[int], available: list[int]) -> int:
        calls.append((key, all_partitions, available))
        if key == b"bad":
            raise KeyError(key)
        return all_partitions[-1]

    async with new_producer(cluster, partitioner=last, key_serializer=str.encode) as producer:
        assert (await producer.send_and_wait("chosen", b"1", key="k")).partition == 2
        assert (await producer.send_and_wait("chosen", b"1", key="k", partition=1)).partition == 1
        with pytest.raises(KeyError):
            await producer.send("chosen", b"1", key="bad")
    assert calls[0] == (b"k", [0, 1, 2], [0, 1, 2])


async def test_batches(cluster: LiveCluster) -> None:
    """The documentation's example of batches: fill until None, send, go on with another."""
    await cluster.create_topic("batches", 2)
    async with new_producer(cluster, max_batch_size=1_000) as producer:
        batch = producer.create_batch()
        sent, n = [], 0
        while n < 200:
            metadata = batch.append(key=None, value=b"Test message %d" % n, timestamp=n)
            if metadata is None:
                assert batch.closed()
                sent.append((batch.record_count(), await producer.send_batch(
                    batch, "batches", partition=1)))  # fmt: skip
                batch = producer.create_batch()
                continue
            assert metadata.offset == batch.record_count() - 1
            n += 1
        sent.append((batch.record_count(), await producer.send_batch(
            batch, "batches", partition=1)))  # fmt: skip
        offset = 0
        for count, future in sent:
            assert (await future).offset == offset
            offset += count
        assert offset == 200
        assert len(sent) == 5
        with pytest.raises(AssertionError, match="Unrecognized partition"):
            await producer.send_batch(batch, "batches", partition=2)
    async with new_consumer(cluster, "batches") as consumer:
        rows = await read(consumer, 200)
        assert [(one.value, one.timestamp) for one in rows[:2]] == [
            (b"Test message 0", 0),
            (b"Test message 1", 1),
        ]


async def read(consumer: AIOKafkaConsumer, count: int) -> list[ConsumerRecord[Any, Any]]:
    """Return some records with getmany."""
    found: list[ConsumerRecord[Any, Any]] = []
    async with asyncio.timeout(DONE_S):
        while len(found) < count:
            for records in (await consumer.getmany(timeout_ms=1_000)).values():
                found += records
    return found


@pytest.mark.parametrize("acks", [0, 1, -1, "all"])
async def test_acks(cluster: LiveCluster, acks: int | str) -> None:
    """Each of aiokafka's values writes; with 0 the offset is -1."""
    topic = f"acks-{acks}"
    await cluster.create_topic(topic, 1)
    async with new_producer(cluster, acks=acks) as producer:
        assert (await producer.send_and_wait(topic, b"1")).offset == (-1 if acks == 0 else 0)


async def test_start_without_a_broker() -> None:
    """Start raises the library's error at once."""
    producer = AIOKafkaProducer(bootstrap_servers="127.0.0.1:9", request_timeout_ms=1_000)
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()
    consumer = AIOKafkaConsumer("t", bootstrap_servers="127.0.0.1:9", request_timeout_ms=1_000)
    with pytest.raises(KafkaConnectionError):
        await consumer.start()
    await consumer.stop()


# ---------------------------------------------------------------- the consumer


async def test_assigned_partitions(cluster: LiveCluster) -> None:
    """assign, seek at once, positions, ends, times, high watermarks; without a group."""
    await cluster.create_topic("manual", 2)
    async with new_producer(cluster) as producer:
        for n in range(10):
            await producer.send("manual", b"%d" % n, partition=0, timestamp_ms=1_000 + n)
    tp0, tp1 = TopicPartition("manual", 0), TopicPartition("manual", 1)
    consumer = new_consumer(cluster, isolation_level="read_committed")
    await consumer.start()
    try:
        assert consumer.partitions_for_topic("manual") == {0, 1}
        assert consumer.partitions_for_topic("unknown") is None
        assert "manual" in await consumer.topics()
        consumer.assign([tp0, tp1])
        consumer.seek(tp0, 7)
        assert consumer.assignment() == {tp0, tp1}
        assert (await consumer.getone()).offset == 7
        assert await consumer.position(tp0) == 8
        assert consumer.highwater(tp0) == 10 == consumer.last_stable_offset(tp0)
        assert consumer.last_poll_timestamp(tp0) is not None
        assert consumer.last_poll_timestamp(tp1) is None
        assert await consumer.beginning_offsets([tp0, tp1]) == {tp0: 0, tp1: 0}
        assert await consumer.end_offsets([tp0, tp1]) == {tp0: 10, tp1: 0}
        times = await consumer.offsets_for_times({tp0: 1_003, tp1: 0})
        assert times == {tp0: OffsetAndTimestamp(3, 1_003), tp1: None}
        assert await consumer.offsets_for_times({tp0: 2_000}) == {tp0: None}
        with pytest.raises(ValueError, match="negative"):
            await consumer.offsets_for_times({tp0: -1})
        assert await consumer.seek_to_beginning(tp0)
        assert (await consumer.getone()).offset == 0
        assert await consumer.seek_to_end()
        assert await consumer.position(tp0) == 10
        assert await consumer.getmany(timeout_ms=0) == {}
        assert consumer.subscription() == {"manual"}
        with pytest.raises(IllegalOperation):
            await consumer.commit()
        with pytest.raises(IllegalOperation):
            await consumer.committed(tp0)
        with pytest.raises(IllegalStateError):
            consumer.subscribe(["manual"])
        other = TopicPartition("manual", 5)
        for refused in (lambda: consumer.seek(other, 1), lambda: consumer.pause(other)):
            with pytest.raises(IllegalStateError):
                refused()
        with pytest.raises(IllegalStateError):
            await consumer.position(other)
        with pytest.raises(ValueError, match="positive"):
            consumer.seek(tp0, -1)
        with pytest.raises(TypeError):
            await consumer.seek_to_end("manual")  # type: ignore[arg-type]
        consumer.unsubscribe()
        assert consumer.assignment() == set()
        consumer.subscribe(["manual"])
        assert (await consumer.getone()).offset == 0
    finally:
        await consumer.stop()
    with pytest.raises(ConsumerStoppedError):
        await consumer.getone()
    with pytest.raises(ConsumerStoppedError):
        await consumer.getmany()


async def test_reading_of_chosen_partitions(cluster: LiveCluster) -> None:
    """getone and getmany of some partitions return nothing of others, and skip nothing."""
    await cluster.create_topic("some", 3)
    for partition in range(3):
        await write(cluster, "some", *(b"%d" % n for n in range(10)), partition=partition)
    tps = [TopicPartition("some", n) for n in range(3)]
    async with new_consumer(cluster, "some") as consumer:
        seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
        for n in range(5):
            for tp in tps[:2]:
                one = await consumer.getone(tp)
                assert one.partition == tp.partition
                seen[one.partition].append(one.offset)
            if n == 2:
                consumer.seek(tps[0], 1)
        assert seen == {0: [0, 1, 2, 1, 2], 1: [0, 1, 2, 3, 4], 2: []}
        many = await consumer.getmany(tps[2], timeout_ms=5_000, max_records=4)
        assert [one.offset for one in many[tps[2]]] == [0, 1, 2, 3]
        assert await consumer.position(tps[0]) == 3
        rest = await read(consumer, 7 + 5 + 6)
        by_partition = {n: [one.offset for one in rest if one.partition == n] for n in range(3)}
        assert by_partition == {0: [*range(3, 10)], 1: [*range(5, 10)], 2: [*range(4, 10)]}


async def test_pauses(cluster: LiveCluster) -> None:
    """A paused partition returns nothing and stays assigned, until it is resumed."""
    await cluster.create_topic("paused", 2)
    for partition in range(2):
        await write(cluster, "paused", b"1", b"2", partition=partition)
    tp0, tp1 = TopicPartition("paused", 0), TopicPartition("paused", 1)
    consumer = new_consumer(cluster)
    consumer.assign([tp0, tp1])
    consumer.pause(tp0)
    assert consumer.paused() == {tp0}
    async with consumer:
        assert {one.partition for one in await read(consumer, 2)} == {1}
        assert consumer.paused() == {tp0}
        assert await consumer.getmany(timeout_ms=100) == {}
        assert consumer.assignment() == {tp0, tp1}
        consumer.resume(tp0)
        assert consumer.paused() == set()
        assert [one.partition for one in await read(consumer, 2)] == [0, 0]
        with pytest.raises(TypeError):
            consumer.pause("paused")  # type: ignore[arg-type]


async def test_commits_of_a_group(cluster: LiveCluster) -> None:
    """Manual commits in all of aiokafka's forms; the next member goes on behind them."""
    await cluster.create_topic("commits", 1)
    await write(cluster, "commits", *(b"%d" % n for n in range(10)))
    tp = TopicPartition("commits", 0)
    options: dict[str, Any] = {"group_id": "commits", "enable_auto_commit": False}
    async with new_consumer(cluster, "commits", **options) as consumer:
        assert consumer.assignment() == {tp}
        assert await consumer.committed(tp) is None
        data = await consumer.getmany(timeout_ms=5_000, max_records=3)
        assert [one.offset for one in data[tp]] == [0, 1, 2]
        await consumer.commit()
        assert await consumer.committed(tp) == 3
        await consumer.commit({tp: 5})
        assert await consumer.committed(tp) == 5
        await consumer.commit({tp: (6, "text")})
        await consumer.commit({tp: OffsetAndMetadata(7, "text")})
        assert await consumer.seek_to_committed() == {tp: 7}
        assert (await consumer.getone()).offset == 7
        with pytest.raises(IllegalStateError):
            await consumer.commit({TopicPartition("commits", 4): 1})
        with pytest.raises(ValueError, match=r"\{\}"):
            await consumer.commit({})
    async with new_consumer(cluster, "commits", **options) as consumer:
        assert (await consumer.getone()).offset == 7


async def test_automatic_commits(cluster: LiveCluster) -> None:
    """stop commits what was returned; a block that raises leaves its last record uncommitted."""
    await cluster.create_topic("auto", 1)
    await write(cluster, "auto", b"0", b"1", b"2", b"3")
    consumer = new_consumer(cluster, "auto", group_id="auto")
    await consumer.start()
    assert (await consumer.getone()).offset == 0
    await consumer.stop()

    async def fail() -> None:
        async with new_consumer(cluster, "auto", group_id="auto") as consumer:
            assert (await consumer.getone()).offset == 1
            assert (await consumer.getone()).offset == 2
            raise KeyError

    with pytest.raises(KeyError):
        await fail()
    async with new_consumer(cluster, "auto", group_id="auto") as consumer:
        assert (await consumer.getone()).offset == 2


class Recorder(ConsumerRebalanceListener):
    """A listener that seeks in its coroutine, as the documentation's example does."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self.consumer = consumer
        self.calls: list[tuple[str, set[TopicPartition]]] = []

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        if revoked:
            async with asyncio.timeout(DONE_S):
                await asyncio.gather(self.consumer.commit())
        self.calls.append(("revoked", set(revoked)))

    async def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        for tp in sorted(assigned):
            await self.consumer.seek_to_beginning(tp)
        self.calls.append(("assigned", set(assigned)))


async def test_listeners_get_all_partitions(cluster: LiveCluster) -> None:
    """A second member takes one partition: the first's listener gets both, then the one left."""
    await cluster.create_topic("listen", 2)
    tps = {TopicPartition("listen", 0), TopicPartition("listen", 1)}
    options: dict[str, Any] = {"group_id": "listen", "enable_auto_commit": False}
    first, second = new_consumer(cluster, **options), new_consumer(cluster, **options)
    listener = Recorder(first)
    async with first:
        first.subscribe(topics=["listen"], listener=listener)
        await cluster.until(lambda: len(listener.calls) == 2, "it joins in the background")
        assert first.subscription() == {"listen"}
        assert await first.getmany(timeout_ms=10) == {}
        assert listener.calls == [("revoked", set()), ("assigned", tps)]
        async with second:
            second.subscribe(topics=["listen"])

            async def both() -> bool:
                await asyncio.gather(first.getmany(timeout_ms=50), second.getmany(timeout_ms=50))
                return len(first.assignment()) == 1 == len(second.assignment())

            await cluster.until(both, "each owns one")
            left = first.assignment()
            assert listener.calls[2:] == [("revoked", tps), ("assigned", left)]
            (gone,) = tps - left
            with pytest.raises(IllegalStateError):
                await first.commit({gone: 1})
        del listener.calls[:]
    assert listener.calls == []  # stop calls no listener


async def test_a_pattern(cluster: LiveCluster) -> None:
    """A pattern matches the beginning of names, with a group and without one."""
    for name in ("pattern-a", "pattern-b", "no-pattern-c"):
        await cluster.create_topic(name, 1)
        await write(cluster, name, name.encode())
    for group in (None, "pattern"):
        async with new_consumer(cluster, group_id=group) as consumer:
            consumer.subscribe(pattern="pattern-")
            assert {one.value for one in await read(consumer, 2)} == {b"pattern-a", b"pattern-b"}
            assert consumer.subscription() == {"pattern-a", "pattern-b"}
            assert await consumer.getmany(timeout_ms=50) == {}


async def test_more_partitions_without_a_group(cluster: LiveCluster) -> None:
    """A subscription without a group takes added partitions, and goes on with the others."""
    await cluster.create_topic("more", 1)
    await write(cluster, "more", b"0")
    async with new_consumer(cluster, "more", metadata_max_age_ms=200) as consumer:
        assert (await consumer.getone()).value == b"0"
        async with AsyncAdmin(servers(cluster)) as admin:
            await admin.create_partitions({"more": 2})
        await write(cluster, "more", b"1", partition=1)
        assert [one.value for one in await read(consumer, 1)] == [b"1"]
        assert len(consumer.assignment()) == 2


async def test_no_position(cluster: LiveCluster) -> None:
    """auto_offset_reset none: the library's errors for no commit, and for a lost position."""
    await cluster.create_topic("none", 1)
    await write(cluster, "none", b"0")
    tp = TopicPartition("none", 0)
    options: dict[str, Any] = {"group_id": "none", "auto_offset_reset": "none"}
    async with new_consumer(cluster, "none", **options) as consumer:
        with pytest.raises(NoOffsetForPartitionError) as unset:
            await consumer.getone()
        assert unset.value.args[0] == tp
        consumer.seek(tp, 99)
        with pytest.raises(OffsetOutOfRangeError) as lost:
            await consumer.getone()
        assert lost.value.args[0] == {tp: 99}
        await consumer.seek_to_beginning(*lost.value.args[0].keys())
        assert (await consumer.getone()).value == b"0"
    with pytest.raises(UnknownTopicOrPartitionError):
        async with new_consumer(cluster, "no-such-topic"):
            pass


async def test_a_default_consumer_begins_at_the_end_of_its_start(cluster: LiveCluster) -> None:
    """auto_offset_reset is latest by default; what comes behind start is read."""
    await cluster.create_topic("latest", 1)
    await write(cluster, "latest", b"old")
    async with new_consumer(cluster, "latest", auto_offset_reset="latest") as consumer:
        await write(cluster, "latest", b"new")
        assert (await consumer.getone()).value == b"new"


async def test_other_tasks_commit_and_stop(cluster: LiveCluster) -> None:
    """A commit goes through beside a waiting getone; stop ends waits; a cancel loses nothing."""
    await cluster.create_topic("tasks", 1)
    await write(cluster, "tasks", b"0", b"1")
    consumer = new_consumer(cluster, "tasks", group_id="tasks", enable_auto_commit=False)
    await consumer.start()
    tp = TopicPartition("tasks", 0)
    assert [one.offset for one in await read(consumer, 2)] == [0, 1]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.getone(), 0.1)
    waiting = asyncio.create_task(consumer.getone())
    iterating = asyncio.create_task(collected(consumer))
    await asyncio.sleep(0.05)
    await consumer.commit({tp: 1})
    assert await consumer.committed(tp) == 1
    assert await consumer.position(tp) == 2
    assert await consumer.getmany(timeout_ms=0) == {}
    await write(cluster, "tasks", b"2")
    assert (await waiting).value == b"2"
    await consumer.stop()
    assert await iterating == []
    with pytest.raises(ConsumerStoppedError):
        aiter(consumer)


async def test_changes_beside_commits(cluster: LiveCluster) -> None:
    """A change of the subscription wakes a task that reads, and ends no commit of another one."""
    await cluster.create_topic("beside", 1)
    await write(cluster, "beside", b"0")
    tp = TopicPartition("beside", 0)
    async with new_consumer(cluster, group_id="beside", enable_auto_commit=False) as consumer:
        consumer.assign([tp])
        assert (await consumer.getone()).offset == 0
        reading = asyncio.create_task(consumer.getone())
        for offset in range(1, 6):
            await asyncio.sleep(0)
            committing = asyncio.create_task(consumer.commit({tp: offset}))
            await asyncio.sleep(0)
            consumer.unsubscribe()
            consumer.assign([tp])
            await committing
            assert await consumer.committed(tp) == offset
            consumer.unsubscribe()
            consumer.assign([tp])
        await write(cluster, "beside", *(b"%d" % n for n in range(1, 6)))
        await reading  # from the commit that the last look-up met, or from the end before it


async def collected(consumer: AIOKafkaConsumer) -> list[ConsumerRecord[Any, Any]]:
    return [one async for one in consumer]


async def test_a_commit_after_a_loss(cluster: LiveCluster) -> None:
    """A member that its group has removed: the commit raises CommitFailedError."""
    await cluster.create_topic("lost", 1)
    await write(cluster, "lost", b"0")
    options: dict[str, Any] = {"group_id": "lost", "enable_auto_commit": False}
    async with new_consumer(cluster, "lost", group_instance_id="same", **options) as first:
        await first.getone()
        async with new_consumer(cluster, "lost", group_instance_id="same", **options) as second:
            await second.getone()
            with pytest.raises(CommitFailedError):
                await first.commit({TopicPartition("lost", 0): 1})


async def test_a_group_without_members(cluster: LiveCluster) -> None:
    """Assigned partitions with a group: it keeps the commits, and nothing is shared."""
    await cluster.create_topic("keeper", 1)
    await write(cluster, "keeper", b"0", b"1", b"2")
    tp = TopicPartition("keeper", 0)
    options: dict[str, Any] = {"group_id": "keeper", "enable_auto_commit": False}
    for first in (0, 2):
        consumer = new_consumer(cluster, **options)
        consumer.assign([tp])
        async with consumer:
            assert (await consumer.getone()).offset == first
            await consumer.commit({tp: 2})


async def test_a_loop_that_never_waits(cluster: LiveCluster) -> None:
    """getmany without a time-out, again and again at once, gets its records."""
    await cluster.create_topic("busy", 1)
    await write(cluster, "busy", b"0")
    async with asyncio.timeout(DONE_S), new_consumer(cluster, "busy") as consumer:
        found: dict[TopicPartition, list[ConsumerRecord[Any, Any]]] = {}
        while not found:
            found = await consumer.getmany()
        assert [one.value for one in found[TopicPartition("busy", 0)]] == [b"0"]


async def test_another_subscription(cluster: LiveCluster) -> None:
    """A subscription in place of another one: the listener gives up the former partitions."""
    for name in ("former", "later"):
        await cluster.create_topic(name, 1)
        await write(cluster, name, name.encode())
    consumer = new_consumer(cluster, "former", group_id="again", enable_auto_commit=False)
    listener = Recorder(consumer)
    async with consumer:
        assert (await consumer.getone()).value == b"former"
        consumer.subscribe(["later"], listener=listener)
        assert consumer.assignment() == set()
        assert (await consumer.getone()).value == b"later"
        former, later = TopicPartition("former", 0), TopicPartition("later", 0)
        assert listener.calls == [("revoked", {former}), ("assigned", {later})]
        with pytest.raises(IllegalStateError):
            consumer.assign([later])
        consumer.unsubscribe()
        with pytest.raises(IllegalStateError, match="Not subscribed"):
            await consumer.commit()
        consumer.assign([former])
        assert await consumer.position(former) == 1  # the listener's commit
        assert await consumer.seek_to_beginning()
        assert (await consumer.getone()).value == b"former"


async def test_the_client(cluster: LiveCluster) -> None:
    """Brokers and topics, by a client of its own."""
    await cluster.create_topic("seen", 2)
    client = AIOKafkaClient(bootstrap_servers=",".join(servers(cluster)))
    await client.bootstrap()
    try:
        found = await client.fetch_all_metadata()
        assert "seen" in found.topics()
        assert found.partitions_for_topic("seen") == {0, 1}
        assert {one.nodeId for one in found.brokers()} == {1, 2, 3}
        ports = {one.port for one in found.brokers()}
        assert ports == {port for _, port, _ in client.hosts}
        assert found.broker_metadata(9) is None
        assert await client.add_topic("seen")
        assert await client.force_metadata_update()
        with pytest.raises(UnsupportedVersionError):
            await client.send(1, object())
    finally:
        await client.close()


async def contents(cluster: LiveCluster, topic: str) -> list[bytes | None]:
    """All that can be read of a topic now."""
    async with new_consumer(cluster, topic) as consumer:
        places = consumer.assignment()
        count = sum((await consumer.end_offsets(places)).values())
        return [one.value for one in await read(consumer, count)]


async def write_and_fail(
    producer: AIOKafkaProducer, topic: str, count: int, futures: list[asyncio.Future[Any]]
) -> None:
    """Send records in a block that an exception ends."""
    async with producer.transaction():
        futures += [await producer.send(topic, b"never" * 20) for _ in range(count)]
        raise KeyError


async def test_a_transaction_is_read_whole_or_not_at_all(cluster: LiveCluster) -> None:
    """The library's example of a transactional producer: an exception in the block aborts."""
    await cluster.create_topic("test-topic", 2)
    async with new_producer(cluster, transactional_id="transactional_test") as producer:
        async with producer.transaction():
            res = await producer.send_and_wait("test-topic", b"1", timestamp_ms=7)
            future = await producer.send("test-topic", b"2", partition=1)
            batch = producer.create_batch()
            batch.append(key=None, value=b"3", timestamp=None)
            of_batch = await producer.send_batch(batch, "test-topic", partition=1)
            await producer.flush()
            assert await contents(cluster, "test-topic") == []
        assert (res.offset, res.timestamp, res.topic) == (-1, 7, "test-topic")
        assert (await of_batch).offset == (await future).offset + 1
        futures: list[asyncio.Future[Any]] = []
        with pytest.raises(KeyError):
            await write_and_fail(producer, "test-topic", 1, futures)
        with pytest.raises(KafkaError, match="aborted"):
            await futures[0]
    async with new_consumer(cluster, "test-topic") as consumer:
        rows = {one.value: one.partition for one in await read(consumer, 3)}
    assert rows == {b"1": res.topic_partition.partition, b"2": 1, b"3": 1}


async def test_a_large_transaction_is_staged(cluster: LiveCluster) -> None:
    """Flush inside waits for stages, not for the commit; futures have offsets or -1 at its end."""
    await cluster.create_topic("staged", 1)
    values = [b"%05d" % number * 20 for number in range(3_000)]
    async with new_producer(cluster, transactional_id="large") as producer:
        await producer.begin_transaction()
        futures = [await producer.send("staged", value) for value in values]
        await producer.flush()
        assert not any(one.done() for one in futures)
        await producer.commit_transaction()
        offsets = [(await one).offset for one in futures]
    assert offsets[0] == 0
    assert set(offsets) <= {-1, *range(3_000)}
    assert await contents(cluster, "staged") == values


async def test_calls_that_transactions_refuse(cluster: LiveCluster) -> None:
    """Without an id, outside of a transaction, begun twice: the library's errors."""
    await cluster.create_topic("outside", 1)
    place = TopicPartition("outside", 0)
    async with new_producer(cluster) as plain:
        for call in ("begin_transaction", "commit_transaction", "abort_transaction"):
            with pytest.raises(IllegalOperation, match="transaction_id"):
                await getattr(plain, call)()
        with pytest.raises(IllegalOperation, match="transaction_id"):
            async with plain.transaction():
                pass
        with pytest.raises(IllegalOperation, match="transaction_id"):
            await plain.send_offsets_to_transaction({place: 1}, "g")
    async with new_producer(cluster, transactional_id="refused") as producer:
        batch = producer.create_batch()
        batch.append(key=None, value=b"1", timestamp=None)
        for sent in (
            producer.send("outside", b"1"),
            producer.send_and_wait("outside", b"1"),
            producer.send_batch(batch, "outside", partition=0),
            producer.commit_transaction(),
            producer.send_offsets_to_transaction({place: 1}, "g"),
        ):
            with pytest.raises(IllegalOperation):
                await sent
        await producer.abort_transaction()  # as behind a commit that failed
        await producer.begin_transaction()
        with pytest.raises(IllegalOperation, match="begin"):
            await producer.begin_transaction()
        for offsets, group in (({place: 1}, ""), ({}, "g"), ({place: 1}, None)):
            with pytest.raises(ValueError):  # noqa: PT011 the library's, with the argument alone
                await producer.send_offsets_to_transaction(offsets, group)  # type: ignore[arg-type]
        await producer.send("outside", b"1")
        await producer.commit_transaction()
    with pytest.raises(ProducerClosed):
        await producer.begin_transaction()
    assert await contents(cluster, "outside") == [b"1"]


async def fence_and_fail(old: AIOKafkaProducer, new: AIOKafkaProducer) -> None:
    """Leave a block that has staged rows by an exception, behind the start of a newer producer."""
    place = TopicPartition("fin", 0)
    async with old.transaction():
        await old.send_offsets_to_transaction({place: 0}, "fgroup")
        for _ in range(2_000):
            await old.send("fout", b"old" * 20)
        await old.flush()
        await new.start()
        await move(new, place, b"new")
        raise KeyError


async def test_a_newer_producer_fences_an_older_one(cluster: LiveCluster) -> None:
    """Rule S6: start() fences. The block's own exception is not hidden by the fence."""
    for name in ("fin", "fout"):
        await cluster.create_topic(name, 1)
    await write(cluster, "fin", b"1")
    async with new_producer(cluster, transactional_id="fenced") as old:
        await old.begin_transaction()
        future = await old.send("fout", b"old")
        async with new_producer(cluster, transactional_id="fenced") as new:
            for call in (old.commit_transaction(), old.begin_transaction(), future):
                with pytest.raises(ProducerFenced):
                    await call
            newest = new_producer(cluster, transactional_id="fenced")
            with pytest.raises(KeyError):
                await fence_and_fail(new, newest)
            await newest.stop()
    assert await contents(cluster, "fout") == [b"new"]


async def test_a_commit_goes_on_when_its_call_is_cancelled(cluster: LiveCluster) -> None:
    """As in the library; the next transaction, and stop(), wait for it."""
    await cluster.create_topic("cut", 1)
    async with new_producer(cluster, transactional_id="cut") as producer:
        for value in (b"1", b"2"):
            await producer.begin_transaction()
            await producer.send("cut", value)
            commit = asyncio.create_task(producer.commit_transaction())
            await asyncio.sleep(0)
            commit.cancel()
            with pytest.raises(asyncio.CancelledError):
                await commit
    assert await contents(cluster, "cut") == [b"1", b"2"]


async def transform(
    consumer: AIOKafkaConsumer, producer: AIOKafkaProducer, topic: str, group: str, count: int
) -> None:
    """The library's example: read, write, and commit the offsets through the producer."""
    done = 0
    while done < count:
        batch = await consumer.getmany(timeout_ms=5_000, max_records=20)
        async with producer.transaction():
            offsets = {}
            for tp, messages in batch.items():
                for message in messages:
                    await producer.send(topic, b"OUT-" + message.value, partition=tp.partition)
                offsets[tp] = messages[-1].offset + 1
            await producer.send_offsets_to_transaction(offsets, group)
        done += sum(map(len, batch.values()))


async def test_consume_transform_produce(cluster: LiveCluster) -> None:
    """Rule S8: offsets move with the rows; behind an abort the records come again."""
    for name in ("tin", "tout"):
        await cluster.create_topic(name, 2)
    for number in (0, 1):
        await write(cluster, "tin", *(b"%d" % one for one in range(50)), partition=number)
    async with (
        new_consumer(cluster, "tin", group_id="tgroup", enable_auto_commit=False) as consumer,
        new_producer(cluster, transactional_id="sobaka_producer") as producer,
    ):
        first = await consumer.getone()
        place = TopicPartition(first.topic, first.partition)
        await producer.begin_transaction()
        await producer.send("tout", b"never")
        await producer.send_offsets_to_transaction({place: first.offset + 1}, "tgroup")
        await producer.abort_transaction()
        assert await consumer.committed(place) is None
        await consumer.seek_to_beginning()
        await transform(consumer, producer, "tout", "tgroup", 100)
        for place in consumer.assignment():
            assert await consumer.committed(place) == 50
        await producer.begin_transaction()
        with pytest.raises(KafkaConfigurationError, match="one group"):
            await producer.send_offsets_to_transaction({place: 50}, "another")
    assert sorted(await contents(cluster, "tout")) == sorted(
        b"OUT-%d" % one for one in range(50) for _ in range(2)
    )


async def test_a_member_that_lost_its_partitions_commits_nothing(cluster: LiveCluster) -> None:
    """Rule S8: neither behind a rebalance nor behind its stop, and no row of it is written."""
    for name in ("lin", "lout"):
        await cluster.create_topic(name, 1)
    await write(cluster, "lin", b"1")
    place = TopicPartition("lin", 0)
    settings = {"group_id": "lgroup", "enable_auto_commit": False}
    async with (
        new_producer(cluster, transactional_id="lost") as producer,
        new_consumer(cluster, "lin", **settings) as consumer,
    ):
        await consumer.getone()
        await producer.begin_transaction()
        await producer.send("lout", b"stale")
        await producer.send_offsets_to_transaction({place: 1}, "lgroup")
        await consumer.stop()
        with pytest.raises(CommitFailedError):
            await producer.commit_transaction()
        await producer.abort_transaction()
        await producer.begin_transaction()
        with pytest.raises(CommitFailedError, match="stopped"):
            await producer.send_offsets_to_transaction({place: 1}, "lgroup")
        await producer.abort_transaction()
        async with new_consumer(cluster, "lin", **settings) as next_one:
            await transform(next_one, producer, "lout", "lgroup", 1)
    assert await contents(cluster, "lout") == [b"OUT-1"]


async def move(producer: AIOKafkaProducer, place: TopicPartition, value: bytes) -> None:
    """Write a record, and offset 1 of a partition, in one transaction of a job: xin to xout."""
    job = place.topic[0]
    async with producer.transaction():
        await producer.send(f"{job}out", value)
        await producer.send_offsets_to_transaction({place: 1}, f"{job}group")


async def test_several_consumers_of_a_group_in_one_process(cluster: LiveCluster) -> None:
    """Rule S8: the consumer that a task reads from lends its membership, never another one."""
    for name in ("sin", "sout"):
        await cluster.create_topic(name, 2)
    for number in (0, 1):
        await write(cluster, "sin", b"1", partition=number)
    settings = {"group_id": "sgroup", "enable_auto_commit": False}
    async with (
        new_consumer(cluster, "sin", **settings) as one,
        new_producer(cluster, transactional_id="several") as producer,
    ):
        rows = await read(one, 2)
        async with new_consumer(cluster, "sin", **settings) as two:

            async def join() -> None:
                while not two.assignment():
                    await two.getmany(timeout_ms=100)

            joined = asyncio.create_task(join())
            while not joined.done():
                await one.getmany(timeout_ms=100)
            (kept,) = one.assignment()
            (lost,) = two.assignment()
            assert {(row.topic, row.partition) for row in rows} == {kept, lost}
            await move(producer, kept, b"kept")
            with pytest.raises(CommitFailedError):
                await move(producer, lost, b"lost")
            await two.getmany()
            with pytest.raises(IllegalOperation, match="task"):
                await move(producer, lost, b"lost")
    assert await contents(cluster, "sout") == [b"kept"]


async def test_offsets_without_a_consumer_are_compared(cluster: LiveCluster) -> None:
    """Rule S8: of two processes that do one job from the same offset only one commits."""
    for name in ("oin", "oout"):
        await cluster.create_topic(name, 2)
    first = TopicPartition("oin", 0)
    await write(cluster, "oin", b"1")
    async with (
        new_producer(cluster, transactional_id="job-1") as one,
        new_producer(cluster, transactional_id="job-2") as two,
    ):
        for producer in (one, two):
            await producer.begin_transaction()
            await producer.send("oout", b"one" if producer is one else b"two")
            await producer.send_offsets_to_transaction({first: (0, "note")}, "ogroup")
        await one.commit_transaction()
        with pytest.raises(CommitFailedError):
            await two.commit_transaction()
        await two.abort_transaction()
        await move(one, first, b"more")
        with pytest.raises(CommitFailedError):
            await move(two, first, b"two")
        async with two.transaction():  # the block has aborted what was refused
            await two.send("oout", b"alone")
    assert sorted(await contents(cluster, "oout")) == [b"alone", b"more", b"one"]


async def test_partitions_assigned_by_hand_are_compared(cluster: LiveCluster) -> None:
    """Rule S8: with the offset that the consumer went on from, not with the present one."""
    for name in ("hin", "hout"):
        await cluster.create_topic(name, 1)
    await write(cluster, "hin", b"1", b"2")
    place = TopicPartition("hin", 0)
    async with (
        new_consumer(cluster, group_id="hgroup", enable_auto_commit=False) as consumer,
        new_producer(cluster, transactional_id="hand") as producer,
        AsyncAdmin(servers(cluster)) as admin,
    ):
        consumer.assign([place])
        await consumer.getone()
        await admin.alter_consumer_group_offsets("hgroup", [SdkPartition("hin", 0, 1)])
        with pytest.raises(CommitFailedError):
            await move(producer, place, b"late")
        await consumer.stop()
        async with new_consumer(cluster, "hin", group_id="hgroup"):
            with pytest.raises(KafkaConfigurationError, match="enable_auto_commit"):
                await move(producer, place, b"beside automatic commits")
    assert await contents(cluster, "hout") == []


@pytest.mark.slow
async def test_an_outcome_that_is_not_known_in_time(cluster: LiveCluster) -> None:
    """No broker answers for request_timeout_ms: the future raises KafkaTimeoutError."""
    await cluster.create_topic("late", 1)
    async with new_producer(cluster, request_timeout_ms=700) as producer:
        await producer.send_and_wait("late", b"0")
        for broker in cluster.brokers:
            cluster.pause(f"broker-{broker.id}")
        try:
            future = await producer.send("late", b"1")
            with pytest.raises(KafkaTimeoutError):
                await future
        finally:
            for broker in cluster.brokers:
                cluster.resume(f"broker-{broker.id}")
