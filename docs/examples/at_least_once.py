"""Use records, then commit: at least once. After a kill in between, some are used again.

The program appends every record of a topic to a file, one line each. From a checkout:

    python docs/examples/at_least_once.py --topic orders --group copier --out orders.txt

Start it several times with different files: each process gets a share of the partitions. Ctrl-C
ends it after the present batch.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
from pathlib import Path
from typing import TextIO

from http_api.client.consumer import Record
from http_api.client.group_consumer import GroupConsumer
from http_api.client.groups import InstanceSettings
from http_api.client.transport import DEFAULT_URL, Client


def use(record: Record, out: TextIO) -> None:
    """Process one record. Replace this with your own work."""
    out.write(f"{record.partition} {record.offset} {bytes(record.value).decode()}\n")


def run(options: argparse.Namespace, stop: threading.Event) -> None:
    """Read, use and commit batches until ``stop`` is set."""
    settings = InstanceSettings(auto_offset_reset="earliest", session_timeout_ms=options.session_ms)
    with (
        Path(options.out).open("a", encoding="utf-8") as out,
        Client(options.url.split(",")) as client,
        GroupConsumer(client, options.group, settings) as consumer,
    ):
        consumer.subscribe([options.topic])
        while not stop.is_set():
            for record in consumer.poll(wait_ms=1_000, max_bytes=options.batch_bytes):
                use(record, out)
            out.flush()
            os.fsync(out.fileno())  # first the results are on the disk,
            consumer.commit()  # then the group's offsets move behind them


def main() -> None:
    """Read the options, and run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("QUORUMLOG_URL", DEFAULT_URL))
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--batch-bytes", type=int, default=1_048_576)
    parser.add_argument(
        "--session-ms",
        type=int,
        default=10_000,
        help="time without a call after which a member has left, in milliseconds",
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(parser.parse_args(), stop)


if __name__ == "__main__":
    main()
