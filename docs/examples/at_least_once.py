"""At least once: use the records, then commit. Killed in between, it uses some of them again.

Appends every record of a topic to a file, one line each:

    python docs/examples/at_least_once.py --topic orders --group copier --out orders.txt

Start it several times: the partitions are shared. Ctrl-C ends it after the batch it is at.
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
    """Whatever is to be done with a record."""
    out.write(f"{record.partition} {record.offset} {bytes(record.value).decode()}\n")


def run(options: argparse.Namespace, stop: threading.Event) -> None:
    """Read, use, commit, until told to stop."""
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
            os.fsync(out.fileno())  # the work is safe ...
            consumer.commit()  # ... and only now are its offsets


def main() -> None:
    """Read the options, stop at a signal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("QUORUMLOG_URL", DEFAULT_URL))
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--batch-bytes", type=int, default=1_048_576)
    parser.add_argument(
        "--session-ms", type=int, default=10_000, help="after this long a silent member is dead"
    )
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(parser.parse_args(), stop)


if __name__ == "__main__":
    main()
