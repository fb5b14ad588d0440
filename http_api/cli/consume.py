"""``quorumlog consume``: print the records of a topic on standard output.

Reads each partition from its start offset to its present end, one after the other; with --follow
and several partitions, a thread per partition feeds one queue.
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
    client_of,
    format_option,
    learn_brokers,
    print_client_errors,
    url_option,
)
from http_api.client import admin
from http_api.client.calls import ApiError, ClientError
from http_api.client.consumer import FetchPage, PartitionEnds, Record, ends, fetch
from http_api.client.transport import Client
from http_api.contract.errors import RestCode

FOLLOW_WAIT_MS = 5_000
PAGES_AHEAD = 16
"""Largest number of pages read and not yet printed while several partitions are followed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeArguments:
    """Arguments of the command that say what to read."""

    topic: str
    offset: str
    follow: bool
    binary: bool


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets of a partition to read: from ``start``, and up to ``end`` unless following."""

    partition: int
    start: int
    end: int


@click.command()
@click.argument("topic")
@click.option("-p", "--partition", type=int, help="This partition only.")
@click.option(
    "-o",
    "--offset",
    default="beginning",
    show_default=True,
    help="beginning, end, -N for the last N of each partition, or an offset.",
)
@click.option("-n", "--count", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes; else stop at the end.")
@click.option("-k", "--key-separator", "separator", metavar="SEP", help="Print key SEP value.")
@click.option("--binary", is_flag=True, help="Bytes written as binary: printed as they are.")
@url_option
@format_option
@print_client_errors
def consume(  # noqa: PLR0913, PLR0917 the options of the command
    topic: str,
    partition: int | None,
    offset: str,
    count: int | None,
    follow: bool,  # noqa: FBT001 a flag of the command line
    separator: str | None,
    binary: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> None:
    """Print the records of TOPIC, one a line: text as text, other values as JSON.

    Stops at what was the end when it began, unless -f or -n says otherwise. --format json prints
    an object per record, with topic, partition, offset, timestamp, key and value (base64 with
    --binary).
    """
    _check_offset(offset)
    wanted = ConsumeArguments(topic=topic, offset=offset, follow=follow, binary=binary)
    with client_of(url) as client:
        ranges = _ranges(client, wanted, partition)
        if follow and len(ranges) > 1:
            pages = _follow_all(client, wanted, ranges)
        else:
            pages = (page for each in ranges for page in _read(client, wanted, each))
        left = count
        for page in pages:
            records = page.records if left is None else page.records[:left]
            _print(records, separator, form, binary=binary)
            if left is not None:
                left -= len(records)
                if left == 0:
                    return


def _check_offset(text: str) -> None:
    if text in {"beginning", "end"}:
        return
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        msg = f"-o {text!r}: expected beginning, end, -N or an offset"
        raise click.UsageError(msg)


def _ranges(
    client: Client, wanted: ConsumeArguments, partition: int | None
) -> list[PartitionRange]:
    learn_brokers(client)
    if partition is not None:
        return [_range(client, wanted, partition, alone=True)]
    partitions = client.run(admin.partition_ids(wanted.topic))
    alone = len(partitions) == 1
    ranges = [_range(client, wanted, each, alone=alone) for each in partitions]
    longest = max(each.end for each in ranges)
    if wanted.offset.isdigit() and int(wanted.offset) > longest:
        msg = f"-o {wanted.offset}: no partition of {wanted.topic} goes beyond offset {longest}"
        raise click.ClickException(msg)
    return ranges


def _range(
    client: Client, wanted: ConsumeArguments, partition: int, *, alone: bool
) -> PartitionRange:
    limits = client.run(ends(wanted.topic, partition))
    start = _start(wanted.offset, limits)
    place = f"{wanted.topic}-{partition} holds offsets {limits.beginning} to {limits.end}"
    if start < limits.beginning or (start > limits.end and alone):
        msg = f"-o {wanted.offset}: {place} (the next to be written)"
        raise click.ClickException(msg)
    return PartitionRange(partition, min(start, limits.end), limits.end)


def _start(offset: str, limits: PartitionEnds) -> int:
    if offset == "beginning":
        return limits.beginning
    if offset == "end":
        return limits.end
    number = int(offset)
    return number if not offset.startswith("-") else max(limits.beginning, limits.end + number)


def _read(client: Client, wanted: ConsumeArguments, part: PartitionRange) -> Iterator[FetchPage]:
    offset = part.start
    while wanted.follow or offset < part.end:
        wait_ms = FOLLOW_WAIT_MS if wanted.follow else 1_000
        call = fetch(wanted.topic, part.partition, offset, wait_ms=wait_ms, binary=wanted.binary)
        try:
            page = client.run(call)
        except ApiError as error:
            if error.code == RestCode.JSON_CONVERSION:
                msg = f"{error.message}; try --binary"
                raise click.ClickException(msg) from error
            raise
        if not wanted.follow:
            records = [record for record in page.records if record.offset < part.end]
            yield replace(page, records=records)
        else:
            yield page
        offset = page.next_offset


def _follow_all(
    client: Client, wanted: ConsumeArguments, ranges: list[PartitionRange]
) -> Iterator[FetchPage]:
    """Yield pages of all partitions as they arrive.

    Each partition has a thread and a client of its own, because a long poll occupies its
    connection.
    """
    pages: queue.Queue[FetchPage | Exception] = queue.Queue(PAGES_AHEAD)

    def follow(part: PartitionRange) -> None:
        try:
            with Client(client.routes.urls) as own:
                for page in _read(own, wanted, part):
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
