"""Programs for confluent-kafka on a real cluster, after one changed import line.

Each test is written as confluent-kafka's documentation writes such programs.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from http_api.client.compat.kafka_codes import LocalCode
from quorumlog import Producer as OwnProducer
from quorumlog.compat.confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    DeserializingConsumer,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    SerializingProducer,
    TopicCollection,
    TopicPartition,
)
from quorumlog.compat.confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from quorumlog.compat.confluent_kafka.error import (
    ConsumeError,
    KeySerializationError,
    ValueDeserializationError,
)
from quorumlog.compat.confluent_kafka.serialization import (
    IntegerDeserializer,
    IntegerSerializer,
    StringDeserializer,
    StringSerializer,
)
from tests.support.live_cluster import LiveCluster, running

DONE_S = 20.0
RETENTION = "retention.ms"
names = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return ``bootstrap.servers`` of one cluster for all tests."""
    with running(tmp_path_factory.mktemp("cluster")) as started:
        yield servers_of(started)


def servers_of(cluster: LiveCluster) -> str:
    return ",".join(broker.url.removeprefix("http://") for broker in cluster.brokers)


@pytest.fixture(scope="module")
def admin(servers: str) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": servers}) as client:
        yield client


@pytest.fixture
def topic(admin: AdminClient) -> str:
    """Return the name of a new topic with two partitions."""
    name = next(names)
    for created in admin.create_topics([NewTopic(name, num_partitions=2)]).values():
        assert created.result(DONE_S) is None
    return name


def write(servers: str, topic: str, *values: str, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(DONE_S) == 0
    producer.close()


def open_consumer(servers: str, group: str = "g", **settings: Any) -> Consumer:
    conf = {
        "bootstrap.servers": servers,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": 6_000,
    }
    return Consumer(conf, **settings)


def read(consumer: Consumer, count: int) -> list[Message]:
    """Poll until there are so many proper messages."""
    found: list[Message] = []
    until_s = time.monotonic() + DONE_S
    while len(found) < count and time.monotonic() < until_s:
        message = consumer.poll(0.5)
        if message is not None:
            assert message.error() is None, message.error()
            found.append(message)
    assert len(found) == count
    return found


def poll_until(consumer: Consumer, is_done: Callable[[], object]) -> None:
    until_s = time.monotonic() + DONE_S
    while not is_done():
        assert time.monotonic() < until_s
        consumer.poll(0.05)


def failure_of(call: Callable[[], object]) -> Any:
    """Return the `KafkaError` that a call raises."""
    with pytest.raises(KafkaException) as caught:
        call()
    return caught.value.args[0]


# producer


def test_delivery_reports_come_from_poll_and_flush(servers: str, topic: str) -> None:
    """Callbacks run in the program's own calls only, in order, with place, bytes and latency."""
    reports: list[tuple[KafkaError | None, Message]] = []
    others: list[Message] = []
    producer = Producer(
        {"bootstrap.servers": servers, "on_delivery": lambda _, message: others.append(message)}
    )
    for number in range(10):
        producer.produce(
            topic,
            f"v{number}",
            key=b"k",
            partition=1,
            on_delivery=lambda error, message: reports.append((error, message)),
        )
    producer.produce(topic, b"default", headers={"a": "b"}, timestamp=7_000)
    assert len(producer) == 11
    assert bool(producer)
    assert reports == []
    served = 0
    until_s = time.monotonic() + DONE_S
    while served < 11 and time.monotonic() < until_s:
        served += producer.poll(0.5)
    assert producer.flush(DONE_S) == len(producer) == 0
    assert [error for error, _ in reports] == [None] * 10
    assert [message.offset() for _, message in reports] == list(range(10))
    assert [message.value() for _, message in reports] == [b"v%d" % at for at in range(10)]
    first = reports[0][1]
    assert (first.topic(), first.partition(), first.key(), first.headers()) == (
        topic,
        1,
        b"k",
        None,
    )
    assert first.timestamp()[0] == TIMESTAMP_CREATE_TIME
    assert first.timestamp()[1] > 1_600_000_000_000
    assert 0 <= (first.latency() or 0) < DONE_S
    (default,) = others
    assert default.timestamp() == (TIMESTAMP_CREATE_TIME, 7_000)
    assert producer.poll(0) == 0
    assert producer.close()
    assert producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.produce(topic, b"x")


def test_a_callback_that_raises_stops_poll_and_loses_no_report(servers: str, topic: str) -> None:
    """The exception comes out of `flush`; the reports behind it come in the next call."""
    seen: list[int | None] = []

    def report(_: KafkaError | None, message: Message) -> None:
        seen.append(message.offset())
        if len(seen) == 1:
            msg = "from the callback"
            raise LookupError(msg)

    with Producer({"bootstrap.servers": servers}) as producer:
        for _ in range(3):
            producer.produce(topic, b"x", partition=0, callback=report)
        with pytest.raises(LookupError, match="from the callback"):
            producer.flush(DONE_S)
        assert len(producer) == 3
        assert producer.flush(DONE_S) == 0
        assert seen == [0, 1, 2]


def test_a_full_queue_raises_buffer_error(servers: str, topic: str) -> None:
    """The documented loop works: BufferError, poll, and the same message again."""
    producer = Producer({"bootstrap.servers": servers}, **{"queue.buffering.max.messages": 10})
    refused = 0
    delivered: list[Message] = []
    for number in range(50):
        while True:
            try:
                producer.produce(
                    topic, str(number), callback=lambda _, message: delivered.append(message)
                )
                break
            except BufferError:
                refused += 1
                producer.poll(0.5)
    assert producer.flush(DONE_S) == 0
    assert refused > 0
    assert len(delivered) == 50
    producer.close()


def test_failed_messages_have_kafkas_numbers(
    servers: str, admin: AdminClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused message is reported with Kafka's number; without a callback ``error_cb`` is."""
    name = next(names)
    new = NewTopic(name, 1, config={"max.message.bytes": "2000"})
    admin.create_topics([new])[name].result(DONE_S)
    errors: list[KafkaError] = []
    reports: list[KafkaError | None] = []
    logger = logging.getLogger("my-program")
    producer = Producer(
        {"bootstrap.servers": servers, "error_cb": errors.append, "logger": logger},
        **{"delivery.report.only.error": True},
    )
    producer.produce(name, b"x" * 9_000, on_delivery=lambda error, _: reports.append(error))
    producer.produce(name, b"small", on_delivery=lambda error, _: reports.append(error))
    producer.produce(name, b"y" * 9_000)
    with caplog.at_level(logging.ERROR, logger="my-program"):
        assert producer.flush(DONE_S) == 0
    assert reports == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert errors == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert "1 record was not delivered" in caplog.text
    with pytest.raises(TypeError):
        producer.produce(name, {"a": 1})  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        producer.produce(1, b"x")  # type: ignore[arg-type]
    producer.close()


def test_purged_messages_are_reported(servers: str, topic: str) -> None:
    """`purge` fails what waits, `poll` reports it, and the producer goes on."""
    reports: list[KafkaError | None] = []
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 60_000})
    for in_flight in (False, True):
        for _ in range(3):
            producer.produce(topic, b"x", on_delivery=lambda error, _: reports.append(error))
        producer.purge(in_flight=in_flight)
        assert producer.poll(DONE_S) == 3
        assert reports == [LocalCode.PURGE_QUEUE] * 3
        reports.clear()
    producer.produce(topic, b"y", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(DONE_S) == 0
    assert reports == [None]
    producer.close()


def test_batches_of_messages(servers: str, topic: str) -> None:
    """`produce_batch` takes dicts, counts those that were taken, and marks the others."""
    reports: list[Any] = []
    with Producer(
        {"bootstrap.servers": servers}, **{"queue.buffering.max.messages": 3}
    ) as producer:
        messages: list[dict[str, Any]] = [
            {"value": "1", "key": "k"},
            {"value": b"2", "partition": 1, "callback": lambda _, one: reports.append(one.key())},
            {"value": None},
            {"value": b"too many"},
        ]
        taken = producer.produce_batch(
            topic, messages, on_delivery=lambda _, one: reports.append(one.value())
        )
        assert taken == 3
        assert messages[3]["_error"] == LocalCode.QUEUE_FULL
        assert producer.flush(DONE_S) == 0
        assert sorted(map(str, reports)) == ["None", "None", "b'1'"]
        with pytest.raises(TypeError):
            producer.produce_batch(topic, "no list")  # type: ignore[arg-type]


def test_statistics_and_questions(servers: str, topic: str) -> None:
    """``stats_cb`` gets JSON from poll; `list_topics` has brokers, leaders and replicas."""
    texts: list[str] = []
    with Producer(
        {
            "bootstrap.servers": servers,
            "client.id": "me",
            "stats_cb": texts.append,
            "statistics.interval.ms": 50,
        }
    ) as producer:
        assert producer.poll(DONE_S) >= 1
        assert json.loads(texts[0])["client_id"] == "me"
        found = producer.list_topics(topic, timeout=10)
        assert found.cluster_id == producer.cluster_id()
        (partitions,) = (one.partitions for one in found.topics.values())
        assert list(partitions) == [0, 1]
        assert partitions[0].leader in found.brokers
        assert partitions[0].isrs == partitions[0].replicas
        assert found.brokers[partitions[0].leader].port > 0
        absent = producer.list_topics("absent").topics["absent"]
        assert absent.error == KafkaError.UNKNOWN_TOPIC_OR_PART
        producer.set_sasl_credentials("u", "p")  # without SASL it has no effect
        with pytest.raises(TypeError):
            producer.set_sasl_credentials("u", None)  # type: ignore[arg-type]


def test_an_unreachable_cluster() -> None:
    """Without a broker `produce` takes messages, which time out, and a question fails in time."""
    errors: list[KafkaError] = []
    reports: list[KafkaError | None] = []
    producer = Producer(
        {"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 300, "error_cb": errors.append}
    )
    for _ in range(2):
        producer.produce("t", b"x", on_delivery=lambda error, _: reports.append(error))
    producer.produce("t", b"without a callback")
    assert len(producer) == 3
    assert failure_of(lambda: producer.list_topics(timeout=0.2)) == LocalCode.TRANSPORT
    assert producer.flush(DONE_S) == 0
    assert reports == [LocalCode.MSG_TIMED_OUT] * 2
    assert [errors[0], errors[-1]] == [LocalCode.ALL_BROKERS_DOWN, LocalCode.MSG_TIMED_OUT]
    producer.produce("t", b"x", on_delivery=lambda error, _: reports.append(error))
    producer.purge()
    assert producer.poll(0) >= 1  # an error may have come, too
    assert reports[2] == LocalCode.PURGE_QUEUE
    producer.close()


# consumer


def test_a_consumer_tells_that_no_broker_answers() -> None:
    """``error_cb`` and ``stats_cb`` run inside poll."""
    errors: list[KafkaError] = []
    texts: list[str] = []
    consumer = open_consumer(
        "127.0.0.1:1",
        "unreached",
        error_cb=errors.append,
        stats_cb=texts.append,
        **{"statistics.interval.ms": 50},
    )
    consumer.assign([TopicPartition("t", 0)])
    poll_until(consumer, lambda: errors and texts)
    assert errors[0] == LocalCode.ALL_BROKERS_DOWN
    assert json.loads(texts[0])["type"] == "consumer"
    consumer.close()

    def fail(_: object) -> None:
        msg = "from the callback"
        raise LookupError(msg)

    failing = open_consumer("127.0.0.1:1", "unreached", error_cb=fail)
    failing.assign([TopicPartition("t", 0)])
    with pytest.raises(LookupError, match="from the callback"):
        failing.poll(DONE_S)
    late = failure_of(lambda: failing.committed([TopicPartition("t", 0)], 0.1))
    assert late == LocalCode.TIMED_OUT
    failing.close()


def test_the_basic_poll_loop(servers: str, topic: str) -> None:
    """Subscribe, poll, look at error(), and close: keys, values and headers are bytes."""
    with Producer({"bootstrap.servers": servers}) as producer:
        producer.produce(topic, "value", "key", headers=[("a", b"b"), ("c", None)], timestamp=5)
        producer.produce(topic, None, "key")
    consumer = open_consumer(servers, "basic")
    assigned: list[TopicPartition] = []
    revoked: list[TopicPartition] = []
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: assigned.extend(partitions),
        on_revoke=lambda _, partitions: revoked.extend(partitions),
    )
    assert consumer.memberid() is None
    first, second = read(consumer, 2)
    assert (first.topic(), first.offset(), first.key(), first.value()) == (
        topic,
        0,
        b"key",
        b"value",
    )
    assert first.headers() == [("a", b"b"), ("c", None)]
    assert first.timestamp() == (TIMESTAMP_CREATE_TIME, 5)
    assert first.leader_epoch() is not None
    assert (second.value(), second.headers(), len(second)) == (None, None, 0)
    assert [(one.topic, one.partition) for one in assigned] == [(topic, 0), (topic, 1)]
    assert consumer.assignment() == assigned
    assert consumer.memberid()
    metadata = consumer.consumer_group_metadata()
    assert (metadata.group_id, metadata.member_id) == ("basic", consumer.memberid())
    assert metadata.member_epoch >= 0
    consumer.close()
    consumer.close()
    assert revoked == assigned
    with pytest.raises(RuntimeError, match="closed"):
        consumer.poll(0)
    with pytest.raises(RuntimeError, match="closed"):
        consumer.memberid()


def test_json_records_are_read_as_their_text(servers: str, topic: str) -> None:
    """Values that another interface wrote as JSON or text come as the bytes that are stored."""
    with OwnProducer(f"http://{servers.split(',', maxsplit=1)[0]}") as producer:
        producer.produce(topic, {"id": 1}, key="alice", partition=0)
        producer.produce(topic, b"raw", partition=0)
    with OwnProducer(servers, value_format="string") as producer:
        producer.produce(topic, "text", partition=0)
    consumer = open_consumer(servers, "formats")
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [(one.key(), one.value()) for one in read(consumer, 3)] == [
        (b'"alice"', b'{"id":1}'),
        (None, b"raw"),
        (None, b"text"),
    ]
    consumer.close()


def test_ends_of_partitions(servers: str, topic: str) -> None:
    """With ``enable.partition.eof`` each partition's end is an event, and again after more."""
    write(servers, topic, "a", "b")
    consumer = open_consumer(servers, "ends", **{"enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    events: list[tuple[int | None, int | None]] = []
    values: list[Any] = []

    def step() -> None:
        for message in consumer.consume(10, 0.3):
            error = message.error()
            if error is None:
                values.append(message.value())
            else:
                assert error == LocalCode.PARTITION_EOF
                events.append((message.partition(), message.offset()))

    until_s = time.monotonic() + DONE_S
    while len(events) < 2 and time.monotonic() < until_s:
        step()
    assert sorted(events) == [(0, 2), (1, 0)]
    write(servers, topic, "c")
    while len(events) < 3 and time.monotonic() < until_s:
        step()
    assert events[2] == (0, 3)
    assert values == [b"a", b"b", b"c"]
    assert consumer.poll(0.2) is None
    consumer.close()


def test_consume_waits_for_all_messages(servers: str, topic: str) -> None:
    """`consume` returns as many as asked for, and what there is when its time is over."""
    write(servers, topic, *"abcde")
    consumer = open_consumer(servers, "batches")
    consumer.assign([TopicPartition(topic, 0)])
    first = consumer.consume(num_messages=3, timeout=DONE_S)
    assert [one.value() for one in first] == [b"a", b"b", b"c"]
    begin_s = time.monotonic()
    assert [one.value() for one in consumer.consume(10, 0.4)] == [b"d", b"e"]
    assert 0.3 < time.monotonic() - begin_s < DONE_S
    assert consumer.consume(10, 0) == consumer.consume(0) == []
    with pytest.raises(ValueError, match="num_messages"):
        consumer.consume(1_000_001)
    consumer.close()


def test_commits(servers: str, topic: str) -> None:
    """Commits are asynchronous unless told otherwise, and name messages, offsets or neither."""
    write(servers, topic, *"abc")
    results: list[tuple[KafkaError | None, list[TopicPartition]]] = []
    consumer = open_consumer(
        servers,
        "commits",
        on_commit=lambda error, partitions: results.append((error, partitions)),
        **{"enable.auto.commit": False},
    )
    consumer.subscribe([topic])
    messages = read(consumer, 3)
    assert consumer.commit(message=messages[0]) is None
    poll_until(consumer, lambda: bool(results))
    ((error, (row,)),) = results
    assert (error, row.offset, row.error) == (None, 1, None)
    (done,) = consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False) or []
    assert (done.topic, done.partition, done.offset, done.error) == (topic, 0, 2, None)
    committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], 10)
    assert [one.offset for one in committed] == [2, OFFSET_INVALID]
    done_rows = consumer.commit(asynchronous=False) or []
    assert 3 in [one.offset for one in done_rows]
    error_again = failure_of(lambda: consumer.commit(asynchronous=False))
    assert error_again == LocalCode.NO_OFFSET
    with pytest.raises(ValueError, match="exclusive"):
        consumer.commit(messages[0], [TopicPartition(topic, 0, 1)])
    foreign = TopicPartition("elsewhere", 0, 1)
    refused = failure_of(lambda: consumer.commit(offsets=[foreign], asynchronous=False))
    assert refused == KafkaError.ILLEGAL_GENERATION
    mixed = [foreign, TopicPartition(topic, 0, 3)]
    rows = consumer.commit(offsets=mixed, asynchronous=False) or []
    assert [one.error for one in rows] == [KafkaError.ILLEGAL_GENERATION, None]
    consumer.close()


def test_stored_offsets(servers: str, topic: str) -> None:
    """With ``enable.auto.offset.store=False`` only stored offsets are committed, at the end too."""
    write(servers, topic, *"abc")
    consumer = open_consumer(servers, "stores", **{"enable.auto.offset.store": False})
    consumer.subscribe([topic])
    messages = read(consumer, 3)
    consumer.store_offsets(messages[1])
    consumer.close()
    again = open_consumer(servers, "stores")
    (row,) = again.committed([TopicPartition(topic, 0)])
    assert row.offset == 2
    again.subscribe([topic])
    assert [one.value() for one in read(again, 1)] == [b"c"]
    assert failure_of(lambda: again.store_offsets(messages[0])) == LocalCode.INVALID_ARG
    with pytest.raises(ValueError, match="message or offsets"):
        again.store_offsets()
    again.close()


def test_positions(servers: str, topic: str) -> None:
    """Seek, pause, resume, position, watermarks and times, as documented."""
    write(servers, topic, *"abc")
    consumer = open_consumer(servers, "positions")
    place = TopicPartition(topic, 0)
    consumer.assign([TopicPartition(topic, 0, 1)])
    assert [one.value() for one in read(consumer, 2)] == [b"b", b"c"]
    (at,) = consumer.position([place])
    assert (at.offset, at.error) == (3, None)
    (other,) = consumer.position([TopicPartition(topic, 1)])
    assert other.offset == OFFSET_INVALID
    assert other.error is None
    consumer.seek(TopicPartition(topic, 0, OFFSET_BEGINNING))
    assert [one.value() for one in read(consumer, 3)] == [b"a", b"b", b"c"]
    assert consumer.get_watermark_offsets(place, timeout=10) == (0, 3)
    assert consumer.get_watermark_offsets(place, cached=True) == (0, 3)
    unread = TopicPartition(topic, 1)
    assert consumer.get_watermark_offsets(unread, cached=True) == (OFFSET_INVALID, OFFSET_INVALID)
    consumer.pause([place])
    consumer.seek(TopicPartition(topic, 0, 0))
    assert consumer.poll(0.3) is None
    consumer.resume([place])
    assert read(consumer, 1)[0].value() == b"a"
    first, later = consumer.offsets_for_times(
        [TopicPartition(topic, 0, 1), TopicPartition(topic, 0, 1 << 50)], timeout=10
    )
    assert (first.offset, later.offset) == (0, OFFSET_END)
    state = failure_of(lambda: consumer.seek(TopicPartition(topic, 1, 0)))
    assert state == LocalCode.STATE
    assert failure_of(lambda: consumer.seek(place)) == LocalCode.INVALID_ARG
    assert topic in consumer.list_topics(timeout=10).topics
    assert consumer.cluster_id() == consumer.list_topics(topic).cluster_id
    with pytest.raises(TypeError):
        consumer.assign(["no partition"])  # type: ignore[list-item]
    consumer.unassign()
    assert consumer.assignment() == []
    consumer.close()


def test_incremental_assignment(servers: str, topic: str) -> None:
    """Partitions are added to a manual assignment and taken from it."""
    write(servers, topic, "a", "b")
    write(servers, topic, "c", partition=1)
    consumer = open_consumer(servers, "increments")
    consumer.incremental_assign([TopicPartition(topic, 0)])
    assert [one.value() for one in read(consumer, 2)] == [b"a", b"b"]
    consumer.incremental_assign([TopicPartition(topic, 1)])
    assert [one.value() for one in read(consumer, 1)] == [b"c"]
    twice = failure_of(lambda: consumer.incremental_assign([TopicPartition(topic, 1)]))
    assert twice == LocalCode.CONFLICT
    consumer.incremental_unassign([TopicPartition(topic, 0)])
    assert consumer.assignment() == [TopicPartition(topic, 1)]
    (committed,) = consumer.committed([TopicPartition(topic, 0)])
    assert committed.offset == 2
    gone = failure_of(lambda: consumer.incremental_unassign([TopicPartition(topic, 0)]))
    assert gone == LocalCode.INVALID_ARG
    consumer.close()


def test_rebalance_callbacks_set_where_to_start(servers: str, topic: str) -> None:
    """`assign` and `incremental_assign` in ``on_assign`` set offsets; revocation may commit."""
    write(servers, topic, *"abc")
    for way in ("assign", "incremental_assign"):
        consumer = open_consumer(servers, f"starts-{way}", **{"enable.auto.commit": False})

        def start(member: Consumer, partitions: list[TopicPartition], call: str = way) -> None:
            for one in partitions:
                one.offset = 2 if one.partition == 0 else OFFSET_END
            getattr(member, call)(partitions)

        def end(member: Consumer, partitions: list[TopicPartition], call: str = way) -> None:
            member.commit(asynchronous=False)
            if call == "assign":
                member.unassign()
            else:
                member.incremental_unassign(partitions)

        consumer.subscribe([topic], on_assign=start, on_revoke=end)
        assert [one.value() for one in read(consumer, 1)] == [b"c"]
        consumer.unsubscribe()
        (committed,) = consumer.committed([TopicPartition(topic, 0)])
        assert committed.offset == 3
        consumer.close()


def test_two_members_share_a_topic(servers: str, topic: str) -> None:
    """A second member takes a partition, and each is told what it gets or gives."""
    first, second = open_consumer(servers, "pair"), open_consumer(servers, "pair")
    revoked: list[TopicPartition] = []
    first.subscribe([topic], on_revoke=lambda _, partitions: revoked.extend(partitions))
    poll_until(first, lambda: len(first.assignment()) == 2)
    second.subscribe([f"^{topic}$", "not-a-regex"])

    def is_shared() -> bool:
        second.poll(0.05)
        return len(first.assignment()) == len(second.assignment()) == 1

    poll_until(first, is_shared)
    assert [one.partition for one in revoked] == [1 - first.assignment()[0].partition]
    first.close()
    second.close()


def test_a_missing_offset_is_an_event(servers: str, topic: str) -> None:
    """``auto.offset.reset=error`` reports it once as a message; a seek goes on."""
    write(servers, topic, "a")
    consumer = open_consumer(servers, "missing", **{"auto.offset.reset": "error"})
    consumer.assign([TopicPartition(topic, 0)])
    event = consumer.poll(DONE_S)
    assert event is not None
    assert event.error() == LocalCode.AUTO_OFFSET_RESET
    assert (event.topic(), event.partition()) == (topic, 0)
    assert failure_of(lambda: consumer.commit(message=event)) == LocalCode.INVALID_ARG
    assert consumer.poll(0.2) is None
    consumer.seek(TopicPartition(topic, 0, 0))
    assert read(consumer, 1)[0].value() == b"a"
    consumer.close()


def test_serializers_of_both_classes(servers: str, topic: str) -> None:
    """Both classes convert keys and values, and tell which of the two can't be converted."""
    producer = SerializingProducer[Any, Any](
        {
            "bootstrap.servers": servers,
            "key.serializer": IntegerSerializer(),
            "value.serializer": lambda value, context: json.dumps(
                [value, context.topic, str(context.field)]
            ).encode(),
        }
    )
    producer.produce(topic, key=1, value="one", partition=0)
    with pytest.raises(KeySerializationError):
        producer.produce(topic, key="no integer", value="x")
    assert producer.flush(DONE_S) == 0
    producer.close()
    consumer = DeserializingConsumer[Any, Any](
        {
            "bootstrap.servers": servers,
            "group.id": "serdes",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "key.deserializer": IntegerDeserializer(),
            "value.deserializer": lambda value, _: json.loads(value),
        }
    )
    consumer.assign([TopicPartition(topic, 0)])
    message = consumer.poll(DONE_S)
    assert message is not None
    assert message.key() == message.deserialized_key() == 1
    assert message.deserialized_value() == ["one", topic, "value"]
    with pytest.raises(ConsumeError) as ended:
        consumer.poll(DONE_S)
    assert ended.value.code == LocalCode.PARTITION_EOF
    with pytest.raises(NotImplementedError):
        consumer.consume()
    texts = SerializingProducer[str, str](
        {"bootstrap.servers": servers, "value.serializer": StringSerializer()}
    )
    texts.produce(topic, value="no JSON", partition=0)
    assert texts.close()
    with pytest.raises(ValueDeserializationError) as failed:
        consumer.poll(DONE_S)
    assert failed.value.kafka_message is not None
    assert failed.value.kafka_message.value() == b"no JSON"
    assert StringDeserializer()(b"text") == "text"
    consumer.close()


def test_dropped_clients_end(servers: str, topic: str) -> None:
    """A client that is dropped without `close` ends its threads, as the library's do."""

    before = set(threading.enumerate())
    producer = Producer({"bootstrap.servers": servers, "error_cb": print, "stats_cb": print})
    producer.produce(topic, b"x")
    assert producer.flush(DONE_S) == 0
    consumer = open_consumer(servers, "dropped", error_cb=print, on_commit=print)
    consumer.subscribe([topic], on_assign=print, on_revoke=print)
    poll_until(consumer, consumer.assignment)
    assert len(set(threading.enumerate()) - before) > 2
    del producer, consumer
    gc.collect()
    assert set(threading.enumerate()) - before == set()


# admin


def test_topics_of_an_admin(servers: str, admin: AdminClient) -> None:
    """Topics are created, described, grown and deleted; errors have Kafka's numbers."""
    name = next(names)
    futures = admin.create_topics([NewTopic(name, 1, 1), NewTopic("bad/name", 1)])
    assert futures[name].result(DONE_S) is None
    assert failure_of(lambda: futures["bad/name"].result(DONE_S)) == KafkaError.TOPIC_EXCEPTION

    def refusal(new: NewTopic) -> Any:
        future = admin.create_topics([new], request_timeout=10)[new.topic]
        return failure_of(lambda: future.result(DONE_S))

    assert refusal(NewTopic(name, 1)) == KafkaError.TOPIC_ALREADY_EXISTS
    fresh = next(names)
    assert refusal(NewTopic(fresh, 1, 99)) == KafkaError.INVALID_REPLICATION_FACTOR
    assert refusal(NewTopic(fresh, 1_000_000)) == KafkaError.INVALID_PARTITIONS
    assert refusal(NewTopic(fresh, 1, config={"no": "x"})) == KafkaError.INVALID_CONFIG
    checked = admin.create_topics([NewTopic(fresh, 1)], validate_only=True)
    assert checked[fresh].result(DONE_S) is None
    grown = admin.create_partitions([NewPartitions(name, 3)])
    assert grown[name].result(DONE_S) is None
    shrunk = admin.create_partitions([NewPartitions(name, 2)])[name]
    assert failure_of(lambda: shrunk.result(DONE_S)) == KafkaError.INVALID_PARTITIONS
    found = admin.describe_topics(TopicCollection([name, fresh]))
    described = found[name].result(DONE_S)
    assert (described.name, described.is_internal, len(described.partitions)) == (name, False, 3)
    assert described.partitions[0].leader is not None
    assert described.partitions[0].leader.port > 0
    assert len(str(described.topic_id)) == 22
    assert failure_of(lambda: found[fresh].result(DONE_S)) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert len(admin.list_topics(name, timeout=10).topics[name].partitions) == 3
    assert admin.delete_topics([name], operation_timeout=10)[name].result(DONE_S) is None
    again = admin.delete_topics([name])[name]
    assert failure_of(lambda: again.result(DONE_S)) == KafkaError.UNKNOWN_TOPIC_OR_PART
    with pytest.raises(ValueError, match="non-empty"):
        admin.create_topics([])
    with pytest.raises(TypeError, match="TopicCollection"):
        admin.describe_topics([name])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="invalid keyword"):
        admin.delete_topics([name], timeouts=1)
    with pytest.raises(TypeError, match="validate_only"):
        admin.create_topics([NewTopic(fresh, 1)], validate_only="maybe")
    assert servers.split(":", maxsplit=1)[0] in {
        one.host for one in admin.list_topics().brokers.values()
    }


def test_configs_of_an_admin(admin: AdminClient, topic: str) -> None:
    """Configs are described with sources, and altered as a whole or one by one."""
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def configs() -> dict[str, ConfigEntry]:
        return admin.describe_configs([resource])[resource].result(DONE_S)

    assert configs()[RETENTION].is_default
    change = ConfigResource("topic", topic)
    change.add_incremental_config(
        ConfigEntry(RETENTION, "5000", incremental_operation=AlterConfigOpType.SET)
    )
    change.add_incremental_config(
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND)
    )
    assert admin.incremental_alter_configs([change])[change].result(DONE_S) is None
    after = configs()
    assert (after[RETENTION].value, after[RETENTION].source) == (
        "5000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
    )
    assert after[RETENTION].synonyms["DEFAULT_CONFIG"].is_default
    assert set((after["cleanup.policy"].value or "").split(",")) == {"delete", "compact"}
    less = ConfigResource("topic", topic)
    less.add_incremental_config(
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SUBTRACT)
    )
    less.add_incremental_config(
        ConfigEntry(RETENTION, None, incremental_operation=AlterConfigOpType.DELETE)
    )
    assert admin.incremental_alter_configs([less])[less].result(DONE_S) is None
    assert configs()[RETENTION].is_default
    assert configs()["cleanup.policy"].value == "delete"
    whole = ConfigResource("topic", topic, set_config={"max.message.bytes": "5000"})
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        assert admin.alter_configs([whole])[whole].result(DONE_S) is None
    assert configs()["max.message.bytes"].value == "5000"
    assert configs()["cleanup.policy"].source is not ConfigSource.DYNAMIC_TOPIC_CONFIG
    wrong = ConfigResource("topic", topic)
    wrong.add_incremental_config(ConfigEntry(RETENTION, "often"))
    refused = admin.incremental_alter_configs([wrong])[wrong]
    assert failure_of(lambda: refused.result(DONE_S)) == KafkaError.INVALID_CONFIG
    broker = ConfigResource(ResourceType.BROKER, "1")
    assert admin.describe_configs([broker])[broker].result(DONE_S)


@pytest.mark.parametrize(
    ("times", "newest"),
    [
        ([], (OFFSET_END, -1)),
        ([5, 6, 7], (2, 7)),
        ([7, 900_000_000_000, 7, 900_000_000_000, 3], (1, 900_000_000_000)),
        ([9, 10, 11, 1_000_000, 12, 1], (3, 1_000_000)),
    ],
)
def test_the_largest_time_is_found_wherever_it_stands(
    servers: str, admin: AdminClient, topic: str, times: list[int], newest: tuple[int, int]
) -> None:
    """Producers choose their records' times, so the last one need not be the newest."""
    producer = Producer({"bootstrap.servers": servers})
    for ms in times:
        producer.produce(topic, b"x", partition=0, timestamp=ms)
    producer.flush()
    place = TopicPartition(topic, 0)
    found = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result(DONE_S)
    assert (found.offset, found.timestamp) == newest


def test_offsets_and_records_of_an_admin(servers: str, admin: AdminClient, topic: str) -> None:
    """Offsets are found by place or time, and records deleted below one."""
    write(servers, topic, *"abc")
    place = TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        found = admin.list_offsets({place: spec}, isolation_level=IsolationLevel.READ_COMMITTED)
        return found[place].result(DONE_S).offset

    assert offset(OffsetSpec.earliest()) == 0
    assert offset(OffsetSpec.latest()) == 3
    assert offset(OffsetSpec.for_timestamp(1)) == 0
    assert offset(OffsetSpec.for_timestamp(1 << 50)) == OFFSET_END
    deleted = admin.delete_records([TopicPartition(topic, 0, 2)])
    assert deleted[place].result(DONE_S).low_watermark == 2
    assert offset(OffsetSpec.earliest()) == 2
    beyond = admin.delete_records([TopicPartition(topic, 0, 99)])[place]
    assert failure_of(lambda: beyond.result(DONE_S)) == KafkaError.OFFSET_OUT_OF_RANGE
    everything = admin.delete_records([TopicPartition(topic, 0, OFFSET_END)])
    assert everything[place].result(DONE_S).low_watermark == 3
    with pytest.raises(TypeError):
        admin.list_offsets([place])  # type: ignore[arg-type]


def test_groups_of_an_admin(servers: str, admin: AdminClient, topic: str) -> None:
    """Groups are listed, described, altered and deleted, with their members and offsets."""
    group = f"group-of-{topic}"
    consumer = open_consumer(servers, group, **{"client.id": "me", "group.instance.id": "static"})
    consumer.subscribe([topic])
    poll_until(consumer, lambda: len(consumer.assignment()) == 2)
    consumer.commit(offsets=[TopicPartition(topic, 0, 0, "note")], asynchronous=False)
    listed = admin.list_consumer_groups(
        states={ConsumerGroupState.STABLE}, types={ConsumerGroupType.CONSUMER}
    ).result(DONE_S)
    assert group in {one.group_id for one in listed.valid or []}
    assert listed.errors == []
    described = admin.describe_consumer_groups([group, "absent"])
    found = described[group].result(DONE_S)
    assert (found.group_id, found.state) == (group, ConsumerGroupState.STABLE)
    (member,) = found.members
    assert (member.client_id, member.group_instance_id) == ("me", "static")
    assert member.assignment.topic_partitions == [
        TopicPartition(topic, 0),
        TopicPartition(topic, 1),
    ]
    assert found.coordinator.port > 0
    absent = failure_of(lambda: described["absent"].result(DONE_S))
    assert absent == KafkaError.GROUP_ID_NOT_FOUND
    (metadata,) = admin.list_groups(group, timeout=10)
    assert (metadata.id, [one.client_id for one in metadata.members]) == (group, ["me"])
    busy = admin.delete_consumer_groups([group])[group]
    assert failure_of(lambda: busy.result(DONE_S)) == KafkaError.NON_EMPTY_GROUP
    consumer.unsubscribe()
    consumer.close()
    other = f"offsets-of-{topic}"
    wanted = ConsumerGroupTopicPartitions(other, [TopicPartition(topic, 0, 7, "note")])
    altered = admin.alter_consumer_group_offsets([wanted])[other].result(DONE_S)
    assert altered.group_id == other
    every = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(other)])
    (row,) = every[other].result(DONE_S).topic_partitions or []
    assert (row.topic, row.partition, row.offset, row.metadata) == (topic, 0, 7, "note")
    some = ConsumerGroupTopicPartitions(other, [TopicPartition(topic, 1)])
    (none,) = admin.list_consumer_group_offsets([some])[other].result(DONE_S).topic_partitions or []
    assert none.offset == OFFSET_INVALID
    assert admin.delete_consumer_groups([other])[other].result(DONE_S) is None
    with pytest.raises(ValueError, match="single consumer group"):
        admin.list_consumer_group_offsets([wanted, wanted])


def test_an_admin_without_a_cluster() -> None:
    """Futures fail with ``_TIMED_OUT``; a closed client refuses all use."""
    with AdminClient({"bootstrap.servers": "127.0.0.1:1"}) as admin:
        late = admin.create_topics([NewTopic("t", 1)], request_timeout=0.2)["t"]
        assert failure_of(lambda: late.result(DONE_S)) == LocalCode.TIMED_OUT
        group = ConfigResource(ResourceType.GROUP, "g")
        refused = admin.describe_configs([group])[group]
        assert failure_of(lambda: refused.result(DONE_S)) == LocalCode.INVALID_ARG
    for call in (lambda: admin.delete_topics(["t"]), lambda: admin.poll(0), admin.list_topics):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_cluster_of_an_admin(admin: AdminClient, topic: str) -> None:
    """The cluster is described with its nodes, and leaders are elected."""
    found = admin.describe_cluster().result(DONE_S)
    assert found.cluster_id == admin.cluster_id()
    assert {one.id for one in found.nodes} == set(admin.list_topics(topic).brokers)
    assert found.controller is not None
    assert all(one.port > 0 for one in found.nodes)
    place, missing = TopicPartition(topic, 0), TopicPartition("absent", 0)
    elected = admin.elect_leaders(ElectionType.PREFERRED, [place, missing]).result(DONE_S)
    assert elected[place] is None
    failed = elected[missing]
    assert failed is not None
    assert failed.args[0] == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert isinstance(admin.elect_leaders(ElectionType.PREFERRED).result(DONE_S), dict)
    assert admin.poll(0) == 0
    with pytest.raises(TypeError, match="election_type"):
        admin.elect_leaders("preferred")  # type: ignore[arg-type]


def test_a_transaction_moves_messages_and_offsets_at_once(servers: str, topic: str) -> None:
    """The program of confluent-kafka's documentation, with the group learnt from its offsets."""
    reports: list[tuple[Any, int | None]] = []
    with Producer({"bootstrap.servers": servers}) as plain:
        for number in range(4):
            plain.produce(topic, str(number))
    producer = Producer({"bootstrap.servers": servers, "transactional.id": f"of-{topic}"})
    producer.init_transactions()
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": f"of-{topic}",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    copied = 0
    while copied < 4:
        messages = consumer.consume(10, 1.0)
        producer.begin_transaction()
        for message in messages:
            producer.produce(
                f"{topic}-out",
                message.value(),
                callback=lambda error, message: reports.append((error, message.offset())),
            )
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()
        copied += len(messages)
    assert reports == [(None, number) for number in range(4)]
    committed = consumer.committed(consumer.assignment())
    assert sum(one.offset for one in committed if one.offset > 0) == 4
    consumer.close()
    producer.begin_transaction()
    producer.produce(f"{topic}-out", "never")
    producer.abort_transaction()
    producer.close()


def test_a_newer_producer_of_an_id_fences_the_older(servers: str, topic: str) -> None:
    """The older one's commit is a fatal ``_FENCED``."""
    settings = {"bootstrap.servers": servers, "transactional.id": f"fenced-{topic}"}
    with Producer(settings) as old, Producer(settings) as new:
        for producer in (old, new):
            producer.init_transactions()
            producer.begin_transaction()
            producer.produce(topic, "one of the two")
        new.commit_transaction()
        with pytest.raises(KafkaException) as caught:
            old.commit_transaction()
    error = caught.value.args[0]
    assert (error.code(), error.fatal()) == (KafkaError._FENCED, True)  # noqa: SLF001 librdkafka's name
