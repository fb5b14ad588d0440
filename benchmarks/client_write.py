"""A program that writes through the SDK, one call a record; or raw requests, to compare with.

python -m benchmarks.client_write MODE URLS TOPIC SECONDS      prints one JSON object

Modes: ``plain`` (no key, no callback), ``keyed`` (with ``on_delivery``), ``send`` (one at a time),
``asyncio``, and ``raw``: requests of 1,000 records, ready made, one under way for each partition.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import resource
import sys
import threading
import time
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from quorumlog import AsyncProducer, Producer, QuorumlogError, Receipt

VALUE: Final = "v" * 98
"""100 bytes as JSON."""
KEYS: Final = [f"key-{number}" for number in range(1_000)]
RAW_RECORDS: Final = 1_000
SLICE: Final = 1_000
"""Calls between two looks at the clock."""


def plain(producer: Producer, topic: str, seconds: float) -> dict[str, Any]:
    """Call `produce` with a value only."""
    produce = producer.produce
    records, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        for _ in range(SLICE):
            produce(topic, VALUE)
        records += SLICE
    producer.flush()
    return {"records": records, "elapsed_s": time.monotonic() - began}


def keyed(producer: Producer, topic: str, seconds: float) -> dict[str, Any]:
    """Call `produce` with a key and a callback, and count the callbacks."""
    delivered = 0

    def on_delivery(error: QuorumlogError | None, _receipt: Receipt) -> None:
        nonlocal delivered
        delivered += error is None

    produce = producer.produce
    records, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        for key in KEYS:
            produce(topic, VALUE, key, on_delivery=on_delivery)
        records += len(KEYS)
    producer.flush()
    assert delivered == records
    return {"records": records, "elapsed_s": time.monotonic() - began}


def send(producer: Producer, topic: str, seconds: float) -> dict[str, Any]:
    """Call `send`, each after the one before."""
    times: list[float] = []
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        before = time.perf_counter()
        producer.send(topic, VALUE)
        times.append(time.perf_counter() - before)
    times.sort()
    return {
        "records": len(times),
        "elapsed_s": time.monotonic() - began,
        "p50_ms": times[len(times) // 2] * 1_000,
        "p99_ms": times[len(times) * 99 // 100] * 1_000,
    }


async def through_asyncio(urls: str, topic: str, seconds: float) -> dict[str, Any]:
    """Await `AsyncProducer.produce` with a value only."""
    async with AsyncProducer(urls) as producer:
        await producer.produce(topic, VALUE)
        records, began = 0, time.monotonic()
        while time.monotonic() - began < seconds:
            for _ in range(SLICE):
                await producer.produce(topic, VALUE)
            records += SLICE
        await producer.flush()
        return {"records": records, "elapsed_s": time.monotonic() - began}


def raw(urls: str, topic: str, seconds: float) -> dict[str, Any]:
    """Post the same body to each partition's leader, from a thread each."""
    body = orjson.dumps({"records": [{"value": VALUE}] * RAW_RECORDS})
    first = urlsplit(urls.split(",", maxsplit=1)[0])
    asked = http.client.HTTPConnection(first.hostname or "", first.port)
    asked.request("GET", f"/topics/{topic}/partitions")
    partitions = orjson.loads(asked.getresponse().read())
    requests = [0] * len(partitions)
    began = time.monotonic()

    def post(number: int) -> None:
        path = f"/topics/{topic}/partitions/{number}?receipts=range"
        headers = {"Content-Type": "application/vnd.kafka.json.v2+json"}
        address = first.netloc
        connection = http.client.HTTPConnection(address)
        while time.monotonic() - began < seconds:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
            leader = urlsplit(answer.headers["Quorumlog-Leader-Url"] or "").netloc
            if leader and leader != address:
                address = leader
                connection.close()
                connection = http.client.HTTPConnection(address)
            requests[number] += 1

    threads = [threading.Thread(target=post, args=(number,)) for number in range(len(partitions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"records": sum(requests) * RAW_RECORDS, "elapsed_s": time.monotonic() - began}


def main() -> None:
    """Run one mode and print its figures."""
    mode, urls, topic, seconds = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
    if mode == "raw":
        figures = raw(urls, topic, seconds)
    elif mode == "asyncio":
        figures = asyncio.run(through_asyncio(urls, topic, seconds))
    else:
        with Producer(urls) as producer:
            producer.send(topic, VALUE)
            before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            run = {"plain": plain, "keyed": keyed, "send": send}[mode]
            figures = run(producer, topic, seconds)
            peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            figures["grown_mb"] = peak_mb - before_mb
    figures["cpu_s"] = time.process_time()
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
