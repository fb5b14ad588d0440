"""Copy a topic into SQLite, exactly once: rows and next offset in one transaction.

The program copies a topic into the table ``records``. Killed at any point, it continues at the
offsets in the database. From a checkout:

    python docs/examples/exactly_once_sqlite.py --topic orders --out orders.db

The database holds the only copy of the offsets: nothing is committed to the group, because two
copies could differ after a crash. So the partitions are assigned by hand, and at the start the
consumer seeks to the stored offsets. Run one process per database. Ctrl-C ends it after the present
batch.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import threading

from http_api.client import admin
from http_api.client.consumer import Record
from http_api.client.group_consumer import GroupConsumer
from http_api.client.groups import InstanceSettings
from http_api.client.transport import DEFAULT_URL, Client

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (partition INTEGER, offset INTEGER, value TEXT,
                                    PRIMARY KEY (partition, offset));
CREATE TABLE IF NOT EXISTS positions (topic TEXT, partition INTEGER, next_offset INTEGER,
                                      PRIMARY KEY (topic, partition));
"""


def use(record: Record, database: sqlite3.Connection) -> None:
    """Process one record. Replace this with your own work, all of it in this database."""
    row = (record.partition, record.offset, bytes(record.value).decode())
    database.execute("INSERT INTO records VALUES (?, ?, ?)", row)


def remember(database: sqlite3.Connection, topic: str, partition: int, next_offset: int) -> None:
    """Store the offset to continue at, in the transaction of the rows."""
    row = (topic, partition, next_offset)
    database.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", row)


def run(options: argparse.Namespace, stop: threading.Event) -> None:
    """Continue at the stored offsets, until ``stop`` is set."""
    database = sqlite3.connect(options.out)
    database.executescript(SCHEMA)
    query = "SELECT partition, next_offset FROM positions WHERE topic = ?"
    positions = dict(database.execute(query, (options.topic,)))
    with (
        Client(options.url.split(",")) as client,
        GroupConsumer(client, "exactly-once", InstanceSettings(binary=False)) as consumer,
    ):
        partitions = client.run(admin.partition_ids(options.topic))
        consumer.assign([(options.topic, number) for number in partitions])
        consumer.seek({(options.topic, number): positions.get(number, 0) for number in partitions})
        while not stop.is_set():
            records = consumer.poll(wait_ms=1_000, max_bytes=options.batch_bytes)
            with database:  # one transaction: rows and offsets, or nothing
                for record in records:
                    use(record, database)
                    remember(database, options.topic, record.partition, record.offset + 1)
    database.close()


def main() -> None:
    """Read the options, and run until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("QUORUMLOG_URL", DEFAULT_URL))
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--batch-bytes", type=int, default=1_048_576)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    run(parser.parse_args(), stop)


if __name__ == "__main__":
    main()
