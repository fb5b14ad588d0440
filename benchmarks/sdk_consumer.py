"""Rate of the SDK's consumer: `consume`, iteration and `poll`, with values decoded.

`python -m benchmarks.sdk_consumer` starts a cluster of three brokers, writes records of 100 bytes
to six partitions, and reads them in one process, once per way of reading and per group. It prints
records per second from the first record on, CPU time per record, and the largest resident size.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from http_api.client.produce_calls import send
from http_api.client.sdk.consumer import Consumer
from http_api.client.transport import Client
from tests.support.live_cluster import LiveCluster, running

PARTITIONS = 6
BATCH = 5_000
TOPIC = "bench"
VALUE = "x" * 98  # 100 bytes as JSON text
WAIT_S = 10.0

AnyConsumer = Consumer[Any, Any]


def fill(cluster: LiveCluster, count: int) -> None:
    """Write `count` records, the same number to each partition."""
    asyncio.run(cluster.create_topic(TOPIC, PARTITIONS))
    with Client([broker.url for broker in cluster.brokers]) as client:
        for at in range(count // BATCH):
            records = [{"value": VALUE}] * BATCH
            for outcome in send(client, TOPIC, records, partition=at % PARTITIONS):
                assert outcome.error is None, outcome


def by_consume(consumer: AnyConsumer) -> int:
    """Read some records; return how many."""
    return len(consumer.consume(500, WAIT_S))


def by_poll(consumer: AnyConsumer) -> int:
    """Read a record; return 1, or 0 if none came."""
    return int(consumer.poll(WAIT_S) is not None)


def by_iteration(consumer: AnyConsumer) -> int:
    """Read a record; return 1."""
    next(consumer)
    return 1


WAYS: dict[str, Callable[[AnyConsumer], int]] = {
    "consume(500)": by_consume,
    "iteration": by_iteration,
    "poll": by_poll,
}


def measure(cluster: LiveCluster, way: str, count: int, run: int) -> str:
    """Read everything as a new group; return a line of the report."""
    read = WAYS[way]
    urls = [broker.url for broker in cluster.brokers]
    group = f"{way[0]}-{run}"
    with Consumer(urls, group_id=group, auto_offset_reset="earliest") as consumer:
        consumer.subscribe([TOPIC])
        found = read(consumer)
        begin_s, cpu_s = time.perf_counter(), time.process_time()
        while found < count:
            found += read(consumer)
        wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - cpu_s
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return (
        f"{way:14} {count / wall_s:12,.0f} records/s {cpu_s / count * 1e6:6.2f} us {mib:6.0f} MiB"
    )


def main() -> None:
    """Run each way some times and print a line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    count = options.records // (BATCH * PARTITIONS) * BATCH * PARTITIONS
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as cluster:
        fill(cluster, count)
        for run in range(options.runs):
            for way in WAYS:
                print(measure(cluster, way, count, run), flush=True)


if __name__ == "__main__":
    main()
