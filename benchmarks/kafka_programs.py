"""Programs written for confluent-kafka, run by it or by `quorumlog.compat.confluent_kafka`.

python kafka_programs.py LIBRARY MODE SERVERS TOPIC SECONDS      prints one JSON object

Modes: ``create``, ``plain`` and ``keyed`` (with ``on_delivery``) write; ``consume`` and ``poll``
read in a group, from the beginning, what was written; ``transact-N`` commits transactions by N
producers. The file imports nothing of the project, as it runs in an environment of its own, too.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

VALUE = b"v" * 100
KEYS = [f"key-{number}" for number in range(1_000)]
SLICE = 1_000
AT_ONCE = 500
PARTITIONS = 6
IDLE_S = 0.5
FIRST_S = 30.0


def create(library: str, servers: str, topic: str) -> dict[str, Any]:
    """Create the topic, with three replicas."""
    admin = importlib.import_module(f"{library}.admin")
    client = admin.AdminClient({"bootstrap.servers": servers})
    created = client.create_topics(
        [admin.NewTopic(topic, num_partitions=PARTITIONS, replication_factor=3)]
    )
    created[topic].result()
    return {}


def write(library: str, mode: str, servers: str, topic: str, seconds: float) -> dict[str, Any]:
    """Call `produce` for each record, and `poll` behind each thousand."""
    producer = importlib.import_module(library).Producer(
        {"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5}
    )
    producer.produce(topic, VALUE)
    producer.flush()
    delivered = 0

    def on_delivery(error: object, _message: object) -> None:
        nonlocal delivered
        delivered += error is None

    keyed = mode == "keyed"
    records, began = 0, time.monotonic()
    while time.monotonic() - began < seconds:
        for key in KEYS:
            while True:
                try:
                    if keyed:
                        producer.produce(topic, VALUE, key, on_delivery=on_delivery)
                    else:
                        producer.produce(topic, VALUE)
                    break
                except BufferError:
                    producer.poll(0.01)
        producer.poll(0)
        records += SLICE
    producer.flush()
    assert not keyed or delivered == records
    return {"records": records, "elapsed_s": time.monotonic() - began}


def read(library: str, mode: str, servers: str, topic: str, seconds: float) -> dict[str, Any]:
    """Read for some seconds from the first record on; at the end of the topic begin again."""
    kafka = importlib.import_module(library)
    settings = {
        "bootstrap.servers": servers,
        "group.id": uuid.uuid4().hex,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    consumer = kafka.Consumer(settings)
    consumer.subscribe([topic])
    assert consumer.poll(FIRST_S) is not None
    records, began = 1, time.monotonic()
    while time.monotonic() - began < seconds:
        found = 0
        if mode == "consume":
            found = len(consumer.consume(AT_ONCE, IDLE_S))
        else:
            for _ in range(AT_ONCE):
                if consumer.poll(IDLE_S) is None:
                    break
                found += 1
        records += found
        if not found:
            for one in consumer.assignment():
                consumer.seek(
                    kafka.TopicPartition(one.topic, one.partition, kafka.OFFSET_BEGINNING)
                )
    elapsed_s = time.monotonic() - began
    consumer.close()
    return {"records": records, "elapsed_s": elapsed_s}


def transact(
    library: str, producers: int, servers: str, topic: str, seconds: float
) -> dict[str, Any]:
    """Commit transactions of a record on each of two partitions, each producer in a thread."""
    kafka = importlib.import_module(library)
    ready = threading.Barrier(producers)

    def commit(number: int) -> list[float]:
        settings = {
            "bootstrap.servers": servers,
            "transactional.id": uuid.uuid4().hex,
            "linger.ms": 0,
        }
        producer = kafka.Producer(settings)
        producer.init_transactions()
        took: list[float] = []
        ready.wait(FIRST_S)
        until = time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            producer.begin_transaction()
            for partition in (number % PARTITIONS, (number + 1) % PARTITIONS):
                producer.produce(topic, VALUE, partition=partition)
            producer.commit_transaction()
            took.append(time.monotonic() - began)
        return took

    with ThreadPoolExecutor(producers) as threads:
        took = [each for some in threads.map(commit, range(producers)) for each in some]
    return {
        "transactions": len(took),
        "elapsed_s": seconds,
        "p50_ms": statistics.median(took) * 1_000,
    }


def main() -> None:
    """Run one mode and print its figures."""
    library, mode, servers, topic, seconds = *sys.argv[1:5], float(sys.argv[5])
    if mode == "create":
        figures = create(library, servers, topic)
    elif mode in ("plain", "keyed"):
        figures = write(library, mode, servers, topic, seconds)
    elif mode.startswith("transact-"):
        figures = transact(library, int(mode.partition("-")[2]), servers, topic, seconds)
    else:
        figures = read(library, mode, servers, topic, seconds)
    figures["cpu_s"] = time.process_time()
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
