"""Commit, then use records: at most once. After a kill in between, some are never used.

The program appends records of a topic to a file, one line each. No record is written twice; some
may be missing. From a checkout:

    python docs/examples/at_most_once.py --topic orders --group sampler --out orders.txt

Start it several times with different files: each process gets a share of the partitions. Ctrl-C
ends it after the present batch.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import TextIO

from quorumlog import CommitError, Consumer, Record, TopicPartition


def use(record: Record[object, object], out: TextIO) -> None:
    """Process one record. Replace this with your own work."""
    out.write(f"{record.partition} {record.offset} {json.dumps(record.value)}\n")
    out.flush()


def run(options: argparse.Namespace, stop: threading.Event) -> None:
    """Read, commit and use batches until ``stop`` is set."""
    with (
        Path(options.out).open("a", encoding="utf-8") as out,
        Consumer(
            options.url,
            group_id=options.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=options.session_ms,
        ) as consumer,
    ):
        consumer.subscribe([options.topic])
        while not stop.is_set():
            records = consumer.consume(options.batch_records)
            # An unknown outcome raises an error here, before any of these records is used.
            refused: set[TopicPartition] = set()
            try:
                consumer.commit()
            except CommitError as error:
                refused.update(error.refused)  # the next owner of these partitions uses them
            for record in records:
                if TopicPartition(record.topic, record.partition) not in refused:
                    use(record, out)


def main() -> None:
    """Read the options, and run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", help="brokers; by default those of $QUORUMLOG_URL")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--batch-records", type=int, default=500)
    parser.add_argument(
        "--session-ms",
        type=int,
        default=10_000,
        help="time without a sign of life after which a member has left, in milliseconds",
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(parser.parse_args(), stop)


if __name__ == "__main__":
    main()
