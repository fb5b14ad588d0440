"""A program that reads in a group through the SDK, one call a record or a list.

python -m benchmarks.client_read MODE URLS TOPIC GROUP SECONDS      prints one JSON object

Modes: ``consume`` (lists of up to 500), ``iterate``, ``poll`` (one by one), ``asyncio``. Time
counts from the first record. At the end of the topic the members begin again. ``latency`` waits for
records that the same process writes one by one.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from quorumlog import OFFSET_BEGINNING, AsyncConsumer, Consumer, Producer, TopicPartition

AT_ONCE: Final = 500
SLICE: Final = 500
"""Records between two looks at the clock."""
FIRST_S: Final = 30.0
LEAST_RECORDS: Final = 300_000
"""Records that the topic holds at least, for each of its partitions' owners."""
PAUSE_S: Final = 0.02
"""Time between two records of ``latency``."""
IDLE_S: Final = 0.5
"""Without a record for so long all is read."""

AnyConsumer = Consumer[Any, Any]


def beginnings(partitions: list[TopicPartition]) -> list[TopicPartition]:
    """Return the places at which the partitions begin."""
    return [TopicPartition(one.topic, one.partition, OFFSET_BEGINNING) for one in partitions]


def by_consume(consumer: AnyConsumer) -> int:
    """Read a list of records; return how many."""
    return len(consumer.consume(AT_ONCE, IDLE_S))


def by_poll(consumer: AnyConsumer) -> int:
    """Read records one by one; return how many."""
    poll = consumer.poll
    for number in range(SLICE):
        if poll(IDLE_S) is None:
            return number
    return SLICE


def by_iteration(consumer: AnyConsumer) -> int:
    """Read records by iteration; return how many."""
    for number, _record in enumerate(consumer, 1):
        if number == SLICE:
            return number
    return 0


WAYS: dict[str, Callable[[AnyConsumer], int]] = {
    "consume": by_consume,
    "poll": by_poll,
    "iterate": by_iteration,
}


def read(way: str, urls: str, topic: str, group: str, seconds: float) -> dict[str, Any]:
    """Read for some seconds from the first record on."""
    read_some = WAYS[way]
    with Consumer(
        urls, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe([topic])
        if consumer.poll(FIRST_S) is None:
            return {"records": 0, "elapsed_s": FIRST_S}
        records, began = 1, time.monotonic()
        turn = 1
        """Records since the members began again: iteration would wait for ever at the end."""
        while time.monotonic() - began < seconds:
            found = read_some(consumer)
            records, turn = records + found, turn + found
            if not found or turn > LEAST_RECORDS:
                turn = 0
                for place in beginnings(consumer.assignment()):
                    consumer.seek(place)
        return {"records": records, "elapsed_s": time.monotonic() - began}


async def through_asyncio(urls: str, topic: str, group: str, seconds: float) -> dict[str, Any]:
    """Read lists for some seconds from the first record on."""
    async with AsyncConsumer(
        urls, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        await consumer.subscribe([topic])
        if await consumer.poll(FIRST_S) is None:
            return {"records": 0, "elapsed_s": FIRST_S}
        records, began = 1, time.monotonic()
        while time.monotonic() - began < seconds:
            found = await consumer.consume(AT_ONCE, IDLE_S)
            records += len(found)
            if not found:
                for place in beginnings(consumer.assignment()):
                    consumer.seek(place)
        return {"records": records, "elapsed_s": time.monotonic() - began}


def latency(urls: str, topic: str, group: str, seconds: float) -> dict[str, Any]:
    """Write a record now and then; time from its receipt until a waiting consumer returns it."""
    arrived_s: dict[tuple[int, int], float] = {}
    written_s: dict[tuple[int, int], float] = {}
    is_over = threading.Event()

    def wait_for_records(consumer: AnyConsumer) -> None:
        while not is_over.is_set():
            record = consumer.poll(IDLE_S)
            if record is not None:
                arrived_s[record.partition, record.offset] = time.monotonic()

    with (
        Producer(urls) as producer,
        Consumer(urls, group_id=group, enable_auto_commit=False) as consumer,
    ):
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(IDLE_S)
        reader = threading.Thread(target=wait_for_records, args=(consumer,))
        reader.start()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            receipt = producer.send(topic, "x")
            written_s[receipt.partition, receipt.offset] = time.monotonic()
            time.sleep(PAUSE_S)
        time.sleep(IDLE_S)
        is_over.set()
        reader.join()
    times_s = sorted(max(0.0, arrived_s[place] - at_s) for place, at_s in written_s.items())
    return {
        "records": len(times_s),
        "elapsed_s": seconds,
        "p50_ms": times_s[len(times_s) // 2] * 1_000,
        "p99_ms": times_s[len(times_s) * 99 // 100] * 1_000,
    }


def main() -> None:
    """Run one mode and print its figures."""
    mode, urls, topic, group, seconds = *sys.argv[1:5], float(sys.argv[5])
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if mode == "latency":
        figures = latency(urls, topic, group, seconds)
    elif mode == "asyncio":
        figures = asyncio.run(through_asyncio(urls, topic, group, seconds))
    else:
        figures = read(mode, urls, topic, group, seconds)
    figures["grown_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before_mb
    figures["cpu_s"] = time.process_time()
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
