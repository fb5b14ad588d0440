"""The SDK's producers on a real cluster: receipts, refusals, callbacks, and brokers that die."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from quorumlog import (
    ApiError,
    AsyncProducer,
    BufferFullError,
    ClosedError,
    ConfigError,
    DeliveryError,
    InvalidRecordError,
    NewRecord,
    OutcomeUnknownError,
    Producer,
    QuorumlogError,
    Receipt,
    UnreachableError,
)
from tests.support.live_cluster import LiveCluster, running

FAST = ("--set", "broker.session.timeout.ms=1200")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with running(tmp_path_factory.mktemp("sdk-producer"), *FAST) as started:
        yield started


def urls(cluster: LiveCluster) -> list[str]:
    return [broker.url for broker in cluster.brokers]


async def rows(cluster: LiveCluster, topic: str, partitions: int) -> list[dict[str, Any]]:
    """Every record of a topic, read through one broker."""
    found: list[dict[str, Any]] = []
    for number in range(partitions):
        offset = 0
        while True:
            path = f"/topics/{topic}/partitions/{number}/records?offset={offset}&timeout=0"
            answer = await cluster.ask("GET", cluster.url(1) + path)
            assert answer.status == 200, answer
            if not answer.body:
                break
            found += answer.body
            offset = answer.body[-1]["offset"] + 1
    return found


# what is written


async def test_formats_keys_headers_and_timestamps_come_back_as_written(
    cluster: LiveCluster,
) -> None:
    topic = "forms"
    await cluster.create_topic(topic, partitions=3)
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)

    def write() -> list[Receipt]:
        with Producer(urls(cluster)) as producer:
            return [
                producer.send(topic, {"id": 1}, key="alice", headers={"a": "ü", "b": b"\x00"}),
                producer.send(topic, b"\x00\xff", key=b"alice", headers=[("a", None), ("a", "x")]),
                producer.send(topic, None, key="alice", timestamp=at),
                producer.send(topic, [1, 2.5, None, "null"], partition=2, timestamp=5),
            ]

    receipts = await asyncio.to_thread(write)
    assert [receipt.key for receipt in receipts] == ["alice", b"alice", "alice", None]
    assert [receipt.timestamp for receipt in receipts] == [None, None, 1769860800000, 5]
    assert receipts[3].partition == 2
    by_json = await cluster.ask(
        "POST", f"{cluster.url(1)}/topics/{topic}", {"records": [{"key": "alice", "value": 9}]}
    )
    assert by_json.body["offsets"][0]["partition"] == receipts[0].partition
    for receipt, value, headers in (
        (receipts[0], {"id": 1}, [{"key": "a", "value": "w7w="}, {"key": "b", "value": "AA=="}]),
        (receipts[2], None, None),
        (receipts[3], [1, 2.5, None, "null"], None),
    ):
        path = f"/topics/{topic}/partitions/{receipt.partition}/records?offset={receipt.offset}"
        path += "&max_bytes=1"
        answer = await cluster.ask("GET", cluster.url(2) + path)
        assert (answer.body[0]["value"], answer.body[0].get("headers")) == (value, headers)


def test_what_is_wrong_with_a_record_raises_where_it_is_given(cluster: LiveCluster) -> None:
    with Producer(urls(cluster)) as producer:
        for arguments, named in (
            ({"value": float("inf")}, "inf"),
            ({"value": {"deep": [1, {"x": float("nan")}]}}, "nan"),
            ({"value": "\ud800"}, "JSON"),
            ({"value": object()}, "JSON"),
            ({"value": 1, "key": {1, 2}}, "JSON"),
            ({"value": 1, "headers": {"a": 5}}, "header 'a'"),
            ({"value": 1, "headers": {"a": "\ud800"}}, "header 'a'"),
            ({"value": 1, "timestamp": -1}, "timestamp"),
            ({"value": 1, "timestamp": True}, "timestamp"),
            ({"value": 1, "timestamp": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001 the case
            ({"value": 1, "partition": -1}, "partition"),
        ):
            with pytest.raises(InvalidRecordError, match=named):
                producer.produce("wrong", **arguments)  # type: ignore[arg-type]
        assert len(producer) == 0


async def test_a_refused_record_fails_alone_and_flush_tells(cluster: LiveCluster) -> None:
    topic = "refused"
    await cluster.create_topic(topic, max_message_bytes="2000")
    outcomes: dict[int, QuorumlogError | None] = {}

    def write() -> None:
        with Producer(urls(cluster), linger_ms=500) as producer:
            for number in range(100):
                size = 3_000 if number in {13, 77} else 10
                producer.produce(
                    topic,
                    [number, "x" * size],
                    on_delivery=lambda error, receipt: outcomes.update({receipt.value[0]: error}),
                )
            producer.produce(topic, [100, "y" * 3_000])
            with pytest.raises(DeliveryError, match="1 record was not delivered") as failed:
                producer.flush()
            assert failed.value.count == 1
            assert isinstance(failed.value.first, ApiError)
            assert (failed.value.first.status, failed.value.outcome) == (413, "not_written")
            assert producer.flush() == 0, "told once"

    await asyncio.to_thread(write)
    assert {number for number, error in outcomes.items() if error} == {13, 77}
    found = [row["value"][0] for row in await rows(cluster, topic, 1)]
    assert found == [number for number in range(100) if number not in {13, 77}]


def test_a_partitioner_of_the_program_keeps_records_of_a_city_together(
    cluster: LiveCluster,
) -> None:
    seen: list[NewRecord] = []

    def by_city(record: NewRecord, partitions: Sequence[int]) -> int:
        seen.append(record)
        return partitions[sum(record.value["city"].encode()) % len(partitions)]

    asyncio.run(cluster.create_topic("cities", partitions=4))
    with Producer(urls(cluster), partitioner=by_city) as producer:
        places: dict[str, set[int]] = {}
        for number in range(40):
            city = ("Ulm", "Rom", "Oslo")[number % 3]
            receipt = producer.send("cities", {"city": city}, key=number)
            places.setdefault(city, set()).add(receipt.partition)
        assert all(len(partitions) == 1 for partitions in places.values())
        assert (seen[0].topic, seen[0].key) == ("cities", 0)
    with (
        Producer(urls(cluster), partitioner=lambda _record, _partitions: 9) as producer,
        pytest.raises(InvalidRecordError, match="returned 9: expected 0 to 3"),
    ):
        producer.produce("cities", {"city": "Ulm"})


def test_a_topic_is_made_on_first_use_unless_the_settings_forbid_it(cluster: LiveCluster) -> None:
    with Producer(urls(cluster)) as producer:
        assert producer.send("made-on-first-use", 1).offset == 0
        assert producer.partitions_for("made-on-first-use") == [0]
    with (
        Producer(urls(cluster), allow_auto_create_topics=False) as producer,
        pytest.raises(ApiError, match="never-made"),
    ):
        producer.produce("never-made", 1)


@pytest.mark.parametrize("acks", ["1", "0"])
def test_weaker_acknowledgements_need_no_sequences(cluster: LiveCluster, acks: str) -> None:
    with Producer(urls(cluster), acks=acks) as producer:
        offsets = [producer.send(f"acks-{acks}", number).offset for number in range(3)]
    assert offsets == ([0, 1, 2] if acks == "1" else [-1, -1, -1])
    with pytest.raises(ConfigError, match="contradict"):
        Producer(urls(cluster), acks=acks, enable_idempotence=True)


# callbacks and ends


def test_a_callback_may_raise_block_or_close_its_producer(
    cluster: LiveCluster, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[object] = []

    def raising(error: QuorumlogError | None, receipt: Receipt) -> None:
        seen.append(receipt.value)
        raise RuntimeError(receipt.value)

    with caplog.at_level(logging.ERROR), Producer(urls(cluster)) as producer:
        for number in range(3):
            producer.produce("callbacks", number, on_delivery=raising)
        assert producer.flush(20) == 0
    assert seen == [0, 1, 2]
    assert caplog.text.count("callback failed") == 3

    producer = Producer(urls(cluster))
    closed = threading.Event()

    def closing(error: QuorumlogError | None, receipt: Receipt) -> None:
        with pytest.raises(RuntimeError, match="callback"):
            producer.flush()
        producer.close()
        closed.set()

    producer.produce("callbacks", "last", on_delivery=closing)
    assert closed.wait(20)
    with pytest.raises(ClosedError, match="closed"):
        producer.produce("callbacks", "after")


def fill(producer: Producer) -> None:
    for _ in range(1_000):
        producer.produce("room", "x" * 1_000)


def test_produce_waits_for_room_and_says_when_there_is_none(cluster: LiveCluster) -> None:
    refused = "http://127.0.0.1:1"
    producer = Producer(urls(cluster), buffer_memory=1 << 16, max_block_ms=300)
    producer.send("room", 0)
    for broker in cluster.brokers:
        cluster.pause(f"broker-{broker.id}")
    try:
        began_s = time.monotonic()
        with pytest.raises(BufferFullError, match="max_block_ms=300"):
            fill(producer)
        assert time.monotonic() - began_s < 10
    finally:
        for broker in cluster.brokers:
            cluster.resume(f"broker-{broker.id}")
    assert producer.flush(30) == 0
    producer.close()
    with (
        Producer(refused, max_block_ms=200) as unreachable,
        pytest.raises(UnreachableError, match=refused),
    ):
        unreachable.produce("room", 1)


def test_a_send_that_waits_no_longer_has_an_unknown_outcome(cluster: LiveCluster) -> None:
    with Producer(urls(cluster)) as producer:
        producer.send("patience", 0)
        for broker in cluster.brokers:
            cluster.pause(f"broker-{broker.id}")
        try:
            with pytest.raises(OutcomeUnknownError, match=r"0\.2 s") as failed:
                producer.send("patience", 1, timeout=0.2)
            assert failed.value.outcome == "unknown"
        finally:
            for broker in cluster.brokers:
                cluster.resume(f"broker-{broker.id}")
        assert producer.flush(30) == 0


SCRIPTS = {
    "exit": """
        producer = Producer(URL, linger_ms=60_000)
        producer.produce("ends", "exit")
        """,
    "fork": """
        producer = Producer(URL)
        producer.send("ends", "before")
        child = os.fork()
        if child == 0:
            for use in (lambda: producer.produce("ends", "child"), producer.flush):
                try:
                    use()
                except ClosedError as error:
                    assert f"its child {os.getpid()}" in str(error), error
                else:
                    os._exit(3)
            producer.close()
            own = Producer(URL)
            own.send("ends", "own")
            own.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        producer.send("ends", "after")
        producer.close()
        """,
    "interrupt": """
        producer = Producer(URL, delivery_timeout_ms=60_000)
        producer.send("ends", "interrupt")
        producer.produce("ends", "late")
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            while True:
                producer.produce("ends", "more")
                producer.flush()
        except KeyboardInterrupt:
            print("interrupted")
        producer.close(10)
        """,
}


@pytest.mark.parametrize("name", ["exit", "fork", "interrupt"])
def test_ends_of_a_program_lose_nothing_without_a_word(cluster: LiveCluster, name: str) -> None:
    head = f"""
        import os, signal
        from quorumlog import ClosedError, Producer
        URL = {",".join(urls(cluster))!r}
        """
    code = textwrap.dedent(head) + textwrap.dedent(SCRIPTS[name])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTHONPATH": os.getcwd()},  # noqa: PTH109 the root
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    found = Counter(row["value"] for row in asyncio.run(rows(cluster, "ends", 1)))
    if name == "exit":
        assert found["exit"] == 1
    elif name == "fork":
        assert [found[each] for each in ("before", "child", "own", "after")] == [1, 0, 1, 1]
    else:
        assert done.stdout == "interrupted\n"
        assert found["late"] == 1


# asyncio


async def test_the_asyncio_twin_does_the_same_in_tasks(cluster: LiveCluster) -> None:
    topic = "twin"
    await cluster.create_topic(topic, partitions=3)
    called: list[tuple[object, int]] = []

    async def on_delivery(error: QuorumlogError | None, receipt: Receipt) -> None:
        await asyncio.sleep(0)
        called.append((receipt.value, receipt.offset))

    before = threading.active_count()
    async with AsyncProducer(urls(cluster)) as producer:
        for number in range(300):
            await producer.produce(topic, number, key=number % 7, on_delivery=on_delivery)
        assert await producer.flush() == 0
        assert sorted(value for value, _ in called) == list(range(300))
        sends = [producer.send(topic, f"s{number}") for number in range(200)]
        receipts = await asyncio.gather(*sends)
        assert len({(receipt.partition, receipt.offset) for receipt in receipts}) == 200
        cancelled = asyncio.ensure_future(producer.send(topic, "cancelled"))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        assert await producer.flush() == 0
        assert await producer.partitions_for(topic) == [0, 1, 2]
        assert threading.active_count() <= before + 1, "aiohttp's resolver at most"
    found = Counter(str(row["value"]) for row in await rows(cluster, topic, 3))
    assert max(found.values()) == 1
    assert len(found) >= 500
    with pytest.raises(ClosedError):
        await producer.produce(topic, 1)


# stories


class Writers:
    """Threads that write numbered records of their own keys through one producer."""

    def __init__(self, producer: Producer, topic: str, threads: int) -> None:
        self.producer = producer
        self.topic = topic
        self.outcomes: dict[str, list[tuple[QuorumlogError | None, Receipt]]] = {}
        self.produced: dict[str, list[int]] = {}
        self.stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._run, args=(f"k{number}",)) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, key: str) -> None:
        numbers = self.produced.setdefault(key, [])

        def on_delivery(error: QuorumlogError | None, receipt: Receipt) -> None:
            with self._lock:
                self.outcomes.setdefault(key, []).append((error, receipt))

        while not self.stop.is_set():
            self.producer.produce(self.topic, len(numbers), key=key, on_delivery=on_delivery)
            numbers.append(len(numbers))
            if len(numbers) % 50 == 0:
                time.sleep(0.01)

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()


async def story(cluster: LiveCluster, topic: str, kills: int) -> None:
    """Write from eight threads while leaders die and partitions are added; compare everything."""
    await cluster.create_topic(topic, partitions=2)
    with Producer(urls(cluster), delivery_timeout_ms=60_000) as producer:
        writers = Writers(producer, topic, threads=8)
        try:
            for number in range(kills):
                await asyncio.sleep(0.5)
                leader = await cluster.leader(topic)
                pid = await cluster.kill(f"broker-{leader}")
                await cluster.wait_restarted(f"broker-{leader}", pid)
                await cluster.wait_healthy(topic)
                if number == 0:
                    await grow(cluster, topic, 4)
            await asyncio.sleep(0.5)
        finally:
            await asyncio.to_thread(writers.end)
        assert await asyncio.to_thread(producer.flush, 60) == 0
    found: dict[str, list[int]] = {}
    places: dict[tuple[int, int], int] = {}
    for row in await rows(cluster, topic, 4):
        found.setdefault(row["key"], []).append(row["value"])
        places[row["partition"], row["offset"]] = row["value"]
    for key, numbers in writers.produced.items():
        outcomes = writers.outcomes[key]
        assert len(outcomes) == len(numbers), "each callback once"
        failed = [error for error, _ in outcomes if error is not None]
        assert failed == [], failed[:3]
        assert sorted(found[key]) == numbers, "each record once"
        for _, receipt in outcomes:
            assert places[receipt.partition, receipt.offset] == receipt.value
    for number in range(4):
        by_key: dict[str, int] = {}
        for row in await rows(cluster, topic, 4):
            if row["partition"] == number:
                assert by_key.get(row["key"], -1) < row["value"], "a key in order"
                by_key[row["key"]] = row["value"]
    assert len({place[0] for place in places}) == 4, "added partitions are used"


async def grow(cluster: LiveCluster, topic: str, count: int) -> None:
    path = f"/v3/clusters/{cluster.read().cluster_id}/topics/{topic}"
    answer = await cluster.ask("PATCH", cluster.url(1) + path, {"partitions_count": count})
    assert answer.status == 200, answer


async def test_eight_threads_write_once_and_in_order_while_leaders_die(
    cluster: LiveCluster,
) -> None:
    await story(cluster, "story", kills=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
async def test_eight_threads_write_once_and_in_order_while_many_leaders_die(
    cluster: LiveCluster, seed: int
) -> None:
    await story(cluster, f"story-{seed}", kills=4)


async def test_a_topic_that_is_made_anew_gets_what_is_written_next(cluster: LiveCluster) -> None:
    topic = "made-anew"
    path = f"/v3/clusters/{cluster.read().cluster_id}/topics"
    await cluster.create_topic(topic, partitions=3)

    def write(producer: Producer, first: int) -> list[QuorumlogError]:
        errors: list[QuorumlogError] = []
        for number in range(first, first + 50):
            producer.produce(
                topic,
                number,
                on_delivery=lambda error, _: errors.append(error) if error else None,
            )
            time.sleep(0.005)
        producer.flush(30)
        return errors

    with Producer(urls(cluster), delivery_timeout_ms=10_000) as producer:
        assert await asyncio.to_thread(write, producer, 0) == []
        answer = await cluster.ask("DELETE", f"{cluster.url(1)}{path}/{topic}")
        assert answer.status == 204, answer
        await cluster.create_topic(topic, partitions=1)
        errors = await asyncio.to_thread(write, producer, 100)
        assert all(error.outcome == "not_written" for error in errors), errors
        assert await asyncio.to_thread(write, producer, 200) == []
        assert producer.partitions_for(topic) == [0]
    found = [row["value"] for row in await rows(cluster, topic, 1)]
    assert len(found) == len(set(found)) == 100 - len(errors)
    assert found[-50:] == list(range(200, 250))
