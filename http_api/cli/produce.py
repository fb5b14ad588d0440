"""``quorumlog produce``: write each line of standard input as a record.

Lines are read in batches; a batch is written as soon as it is full or the input pauses. The command
ends at the first batch that could not be written whole.
"""

from __future__ import annotations

import functools
import os
import select
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import click
import orjson

from http_api.cli.options import (
    client_of,
    format_option,
    learn_brokers,
    print_client_errors,
    print_json,
    url_option,
)
from http_api.client.calls import ClientError
from http_api.client.producer import NewRecord, RecordOutcome, send
from raft_metadata.common.errors import Outcome

BATCH_RECORDS = 1_000
BATCH_BYTES = 1_000_000
READ_BYTES = 65_536
IDLE_S = 0.02
"""Seconds of pause after which the lines so far are written, so that typed lines are not held."""
MAX_LINE_BYTES = 16_000_000
ERRORS_SHOWN = 10


@dataclass(slots=True)
class ProduceSummary:
    """Results of the records written so far."""

    topic: str
    written: int = 0
    offsets: dict[int, list[int]] = field(default_factory=dict)
    """partition → [first offset, last offset, count]"""
    failed: list[RecordOutcome] = field(default_factory=list)

    def add(self, outcomes: list[RecordOutcome]) -> None:
        for outcome in outcomes:
            if not outcome.is_written or outcome.partition is None or outcome.offset is None:
                self.failed.append(outcome)
                continue
            self.written += 1
            row = self.offsets.setdefault(outcome.partition, [outcome.offset, outcome.offset, 0])
            row[0], row[1] = min(row[0], outcome.offset), max(row[1], outcome.offset)
            row[2] += 1


@click.command()
@click.argument("topic")
@click.option(
    "-k",
    "--key-separator",
    "separator",
    metavar="SEP",
    help="What stands before the first SEP of a line is its key; a line without it has no key.",
)
@click.option("-p", "--partition", type=int, help="Write to this partition only.")
@click.option("--json", "is_json", is_flag=True, help="Each value is JSON and is stored as it is.")
@click.option("-Z", "--null", "null", is_flag=True, help="An empty value is null: a tombstone.")
@click.option("--acks", type=click.Choice(["all", "1", "0"]), default="all", show_default=True)
@url_option
@format_option
@print_client_errors
def produce(
    topic: str,
    separator: str | None,
    partition: int | None,
    is_json: bool,  # noqa: FBT001 a flag of the command line
    null: bool,  # noqa: FBT001 a flag of the command line
    acks: str,
    url: str,
    form: str,
) -> int:
    """Write every line of standard input to TOPIC as one record.

    A line is text and is stored as a JSON string; with --json it must be JSON and is stored byte
    for byte. Keys are text. Ends at the first batch that could not be written whole (exit 1).
    """
    if separator == "":
        msg = "-k: expected at least one character"
        raise click.UsageError(msg)
    summary = ProduceSummary(topic)
    make = functools.partial(_record, separator=separator, is_json=is_json, null=null)
    try:
        with client_of(url) as client:
            learn_brokers(client)
            for lines in _read_batches():
                records, wrong = _records(lines, make, summary.written)
                if records:
                    summary.add(send(client, topic, records, partition=partition, acks=acks))
                if summary.failed:
                    break
                if wrong is not None:
                    raise wrong
    except (ClientError, click.ClickException):
        if summary.written:
            _print(summary, form)
        raise
    _print(summary, form)
    return 1 if summary.failed else 0


def _records(
    lines: list[bytes], make: Callable[[bytes], NewRecord], before: int
) -> tuple[list[NewRecord], click.ClickException | None]:
    """Return the records of lines up to the first invalid line, and the error about that line.

    ``before`` is the number of lines that were written already, which the error text counts.
    """
    records: list[NewRecord] = []
    for line in lines:
        try:
            records.append(make(line))
        except click.ClickException as error:
            text = f"line {before + len(records) + 1}: {error.message}; nothing from there on"
            return records, click.ClickException(f"{text} was written")
    return records, None


def _read_batches() -> Iterator[list[bytes]]:
    """Yield batches of lines of standard input, without their line breaks."""
    batch: list[bytes] = []
    size = 0
    for line in _read_lines():
        if line is not None:
            batch.append(line)
            size += len(line)
        full = len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES
        if batch and (full or line is None):
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read_lines() -> Iterator[bytes | None]:
    """Yield lines of standard input, and None whenever the input pauses."""
    descriptor = sys.stdin.fileno()
    rest = b""
    while chunk := os.read(descriptor, READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE_BYTES:
            msg = f"a line is longer than {MAX_LINE_BYTES} bytes"
            raise click.ClickException(msg)
        if not select.select([descriptor], [], [], IDLE_S)[0]:
            yield None
    if rest:
        yield rest


def _record(line: bytes, *, separator: str | None, is_json: bool, null: bool) -> NewRecord:
    try:
        text = line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        msg = f"a line is not UTF-8: {line[:60]!r} ({error.reason})"
        raise click.ClickException(msg) from None
    key: bytes | None = None
    if separator is not None and separator in text:
        before, _, text = text.partition(separator)
        key = orjson.dumps(before)
    if null and not text:
        return NewRecord(None, key)
    if not is_json:
        return NewRecord(orjson.dumps(text), key)
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        msg = f"a value is not JSON: {text[:60]!r} ({error}); without --json lines are text"
        raise click.ClickException(msg) from None
    return NewRecord(text.encode(), key)


def _print(summary: ProduceSummary, form: str) -> None:
    unknown = sum(outcome.outcome is Outcome.UNKNOWN for outcome in summary.failed)
    refused = len(summary.failed) - unknown
    if form == "json":
        places = {
            str(partition): {"first_offset": first, "last_offset": last, "count": count}
            for partition, (first, last, count) in sorted(summary.offsets.items())
        }
        errors = [
            {"error_code": o.error_code, "error": o.error, "outcome": o.outcome.value}
            for o in summary.failed
        ]
        print_json(
            {
                "topic": summary.topic,
                "written": summary.written,
                "not_written": refused,
                "unknown": unknown,
                "partitions": places,
                "errors": errors,
            }
        )
        return
    click.echo(f"written {summary.written} records to {summary.topic}")
    for partition, (first, last, count) in sorted(summary.offsets.items()):
        click.echo(f"partition {partition} offsets {first}..{last} count={count}")
    if summary.failed:
        click.echo(f"quorumlog: not written: {refused}, not known: {unknown}", err=True)
        for outcome in summary.failed[:ERRORS_SHOWN]:
            click.echo(f"quorumlog: {outcome.error}", err=True)
