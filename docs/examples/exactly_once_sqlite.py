"""Copy a topic into SQLite, exactly once: rows and next offset in one transaction.

The program copies a topic into the table ``records``. Killed at any point, it continues at the
offsets in the database. From a checkout:

    python docs/examples/exactly_once_sqlite.py --topic orders --group copier --out orders.db

The database holds the only copy of the offsets: nothing is committed to the group, because two
copies could differ after a crash. The consumer seeks to the stored offset of each partition that it
gets. Run one process per database, and one per group. Ctrl-C ends it after the present batch.
"""

from __future__ import annotations

import argparse
import json
import signal
import sqlite3
import threading

from quorumlog import OFFSET_BEGINNING, Consumer, Record, TopicPartition

SCHEMA = """
CREATE TABLE IF NOT EXISTS records (partition INTEGER, offset INTEGER, value TEXT,
                                    PRIMARY KEY (partition, offset));
CREATE TABLE IF NOT EXISTS positions (topic TEXT, partition INTEGER, next_offset INTEGER,
                                      PRIMARY KEY (topic, partition));
"""


def use(record: Record[object, object], database: sqlite3.Connection) -> None:
    """Process one record. Replace this with your own work, all of it in this database."""
    row = (record.partition, record.offset, json.dumps(record.value))
    database.execute("INSERT INTO records VALUES (?, ?, ?)", row)


def remember(database: sqlite3.Connection, topic: str, partition: int, next_offset: int) -> None:
    """Store the offset to continue at, in the transaction of the rows."""
    row = (topic, partition, next_offset)
    database.execute("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", row)


def run(options: argparse.Namespace, stop: threading.Event) -> None:
    """Continue at the stored offsets, until ``stop`` is set."""
    database = sqlite3.connect(options.out)
    database.executescript(SCHEMA)

    def go_on(consumer: Consumer[object, object], partitions: list[TopicPartition]) -> None:
        query = "SELECT next_offset FROM positions WHERE topic = ? AND partition = ?"
        for each in partitions:
            row = database.execute(query, (each.topic, each.partition)).fetchone()
            consumer.seek(each, row[0] if row else OFFSET_BEGINNING)

    with Consumer(
        options.url,
        group_id=options.group,
        enable_auto_commit=False,
        session_timeout_ms=options.session_ms,
    ) as consumer:
        consumer.subscribe([options.topic], on_assign=go_on)
        while not stop.is_set():
            records = consumer.consume(options.batch_records)
            with database:  # one transaction: rows and offsets, or nothing
                for record in records:
                    use(record, database)
                    remember(database, options.topic, record.partition, record.offset + 1)
    database.close()


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
