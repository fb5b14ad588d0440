"""``quorumlog consume``: print the records of a topic on standard output.

Reads each partition from its start offset to its present end, one after the other; with --follow
and several partitions, a thread per partition feeds one queue. `--last` reads the end of every
partition and merges them by time.
"""

from __future__ import annotations

import base64
import queue
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

import click
import msgspec
import orjson

from http_api.cli.options import (
    POSITION,
    SELECTION,
    client_of,
    examples,
    format_option,
    learn_brokers,
    print_client_errors,
    resolve_position,
    url_option,
)
from http_api.client import admin
from http_api.client.calls import ApiError, ClientError
from http_api.client.consumer import (
    FetchPage,
    Record,
    ends,
    fetch,
)
from http_api.client.transport import Client
from http_api.contract.errors import RestCode
from http_api.contract.grammar import (
    AtOffset,
    Earliest,
    LastRecords,
    Position,
    TopicPartitions,
)

LAST_MAX = 100_000
"""Most records of --last: all of them are sorted in memory."""
FOLLOW_WAIT_MS = 5_000
PAGES_AHEAD = 16
"""Largest number of pages read and not yet printed while several partitions are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeArguments:
    """Arguments of the command that say what to read."""

    wanted: TopicPartitions
    position: Position
    until: Position | None
    """The first position that is not read any more."""
    follow: bool
    binary: bool

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self.wanted.topic


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets of a partition to read: from ``start``, and up to ``end`` unless following."""

    partition: int
    start: int
    end: int


@examples(
    "quorumlog consume orders",
    "quorumlog consume orders:0 -o 2 -n 3",
    "quorumlog consume orders --last 10 -k :",
    "quorumlog consume orders -o @0 --format json",
    "quorumlog consume orders -o 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z",
)
@click.command()
@click.argument("wanted", metavar="TOPIC[:PARTITION,…]", type=SELECTION)
@click.option(
    "-o",
    "--offset",
    "position",
    type=POSITION,
    help="Begin at earliest, latest, an offset, -N (the last N of each partition), @MILLISECONDS "
    "or a time like 2026-01-31T12:00:00Z.  [default: earliest]",
)
@click.option(
    "--until",
    type=POSITION,
    help="End before this position, in the same words.  [default: the present end]",
)
@click.option(
    "--last",
    type=click.IntRange(1, LAST_MAX),
    help="Print the last N records of all partitions together, by time.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "-f", "--follow", is_flag=True, help="Wait for new records, instead of stopping at the end."
)
@click.option(
    "-k", "--key-separator", "separator", metavar="SEP", help="Print the key and SEP first."
)
@click.option("--binary", is_flag=True, help="Print values that were written as binary as bytes.")
@url_option
@format_option
@print_client_errors
def consume(  # noqa: PLR0913, PLR0917 the options of the command
    wanted: TopicPartitions,
    position: Position | None,
    until: Position | None,
    last: int | None,
    count: int | None,
    follow: bool,  # noqa: FBT001 a flag of the command line
    separator: str | None,
    binary: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> None:
    """Print the records of TOPIC, one a line: text as text, other values as JSON.

    Partitions are printed one after the other, each in the order of its offsets; --last prints all
    of them by time. The command stops at the present end, unless -f or -n changes that. --format
    json prints an object per record, with topic, partition, offset, timestamp, key, value (base64
    with --binary) and headers.
    """
    if last is not None and (position is not None or count is not None):
        msg = "--last 10 names the records: expected no -o and no -n beside it"
        raise click.UsageError(msg)
    if until is not None and (follow or last is not None):
        msg = "--until names the end: expected no -f and no --last beside it"
        raise click.UsageError(msg)
    arguments = ConsumeArguments(
        wanted=wanted,
        position=position or Earliest(),
        until=until,
        follow=follow,
        binary=binary,
    )
    with client_of(url) as client:
        learn_brokers(client)
        if last is not None:
            ranges = [
                _range(client, replace(arguments, position=LastRecords(last)), each, alone=False)
                for each in _partitions(client, wanted)
            ]
            _print(_last(client, arguments, ranges, last), separator, form, binary=binary)
            if not follow:
                return
            ranges = [replace(one, start=one.end) for one in ranges]
        else:
            ranges = _ranges(client, arguments)
        left = count
        for page in _pages(client, arguments, ranges):
            records = page.records if left is None else page.records[:left]
            _print(records, separator, form, binary=binary)
            if left is not None:
                left -= len(records)
                if left == 0:
                    return


def _pages(
    client: Client, arguments: ConsumeArguments, ranges: list[PartitionRange]
) -> Iterator[FetchPage]:
    if arguments.follow and len(ranges) > 1:
        return _follow_all(client, arguments, ranges)
    return (page for each in ranges for page in _read(client, arguments, each))


def _last(
    client: Client, arguments: ConsumeArguments, ranges: list[PartitionRange], count: int
) -> list[Record]:
    """Return the newest records of all ranges, in the order of their times."""
    still = replace(arguments, follow=False)
    found = [
        record for each in ranges for page in _read(client, still, each) for record in page.records
    ]
    found.sort(key=lambda record: (record.timestamp or 0, record.partition, record.offset))
    return found[-count:]


def _partitions(client: Client, wanted: TopicPartitions) -> list[int]:
    there = client.run(admin.partition_ids(wanted.topic))
    if wanted.partitions is None:
        return there
    for number in wanted.partitions:
        if number not in there:
            text = f"Partition '{wanted.topic}:{number}' not found"
            msg = f"{text}: the topic has partitions 0 to {len(there) - 1}"
            raise click.ClickException(msg)
    return list(wanted.partitions)


def _ranges(client: Client, arguments: ConsumeArguments) -> list[PartitionRange]:
    partitions = _partitions(client, arguments.wanted)
    alone = len(partitions) == 1
    ranges = [_range(client, arguments, each, alone=alone) for each in partitions]
    longest = max(each.end for each in ranges)
    position = arguments.position
    if isinstance(position, AtOffset) and position.offset > longest:
        text = f"-o {position.offset}: no partition of {arguments.topic} goes beyond"
        msg = f"{text} offset {longest}"
        raise click.ClickException(msg)
    return ranges


def _range(
    client: Client, arguments: ConsumeArguments, partition: int, *, alone: bool
) -> PartitionRange:
    limits = client.run(ends(arguments.topic, partition))
    start = resolve_position(client, arguments.topic, partition, arguments.position, limits)
    if start < limits.beginning or (start > limits.end and alone):
        place = f"{arguments.topic}:{partition} holds offsets {limits.beginning} to {limits.end}"
        msg = f"-o {start}: {place} (the next to be written)"
        raise click.ClickException(msg)
    end = limits.end
    if arguments.until is not None:
        until = resolve_position(client, arguments.topic, partition, arguments.until, limits)
        end = min(end, until)
    return PartitionRange(partition, min(start, limits.end), end)


def _read(client: Client, arguments: ConsumeArguments, part: PartitionRange) -> Iterator[FetchPage]:
    offset = part.start
    while arguments.follow or offset < part.end:
        wait_ms = FOLLOW_WAIT_MS if arguments.follow else 1_000
        call = fetch(
            arguments.topic, part.partition, offset, wait_ms=wait_ms, binary=arguments.binary
        )
        try:
            page = client.run(call)
        except ApiError as error:
            if error.code == RestCode.JSON_CONVERSION:
                msg = f"{error.message}; try --binary"
                raise click.ClickException(msg) from error
            raise
        if not arguments.follow:
            records = [record for record in page.records if record.offset < part.end]
            yield replace(page, records=records)
        else:
            yield page
        offset = page.next_offset


def _follow_all(
    client: Client, arguments: ConsumeArguments, ranges: list[PartitionRange]
) -> Iterator[FetchPage]:
    """Yield pages of all partitions as they arrive.

    Each partition has a thread and a client of its own, because a long poll occupies its
    connection.
    """
    pages: queue.Queue[FetchPage | Exception] = queue.Queue(PAGES_AHEAD)

    def follow(part: PartitionRange) -> None:
        try:
            with Client(client.routes.urls) as own:
                for page in _read(own, arguments, part):
                    pages.put(page)
        except (ClientError, click.ClickException) as error:
            pages.put(error)

    for part in ranges:
        threading.Thread(target=follow, args=(part,), daemon=True).start()
    while True:
        found = pages.get()
        if isinstance(found, Exception):
            raise found
        yield found


def _print(records: list[Record], separator: str | None, form: str, *, binary: bool) -> None:
    out = sys.stdout.buffer
    for record in records:
        if form == "json":
            out.write(msgspec.json.encode(record) + b"\n")
            continue
        line = _text(record.value, binary=binary)
        if separator is not None and bytes(record.key) != b"null":
            line = _text(record.key, binary=binary) + separator.encode() + line
        out.write(line + b"\n")
    out.flush()


def _text(raw: msgspec.Raw, *, binary: bool) -> bytes:
    """Return the text of a JSON string, its decoded bytes if binary, or any other value as JSON."""
    text = bytes(raw)
    if not text.startswith(b'"'):
        return text
    decoded: str = orjson.loads(text)
    return base64.b64decode(decoded) if binary else decoded.encode()
