"""``quorumlog produce``: write each line of standard input as a record.

Lines are read in batches; a batch is written as soon as it is full or the input pauses. The command
ends at the first batch that could not be written whole.
"""

from __future__ import annotations

import functools
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import click
import orjson

from http_api.cli.options import (
    SELECTION,
    client_of,
    examples,
    format_option,
    learn_brokers,
    print_client_errors,
    print_json,
    url_option,
)
from http_api.cli.terminal import Progress
from http_api.client.client_errors import QuorumlogError
from http_api.client.produce_calls import JsonRecord, RecordOutcome, send
from http_api.contract.grammar import TopicPartitions
from raft_metadata.common.errors import Outcome
from raft_metadata.common.record_placement import Partitioner

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


@examples(
    "seq 3 | quorumlog produce orders",
    "echo 'alice:tea' | quorumlog produce orders -k :",
    """echo '{"item":"tea"}' | quorumlog produce orders:0 --json""",
)
@click.command()
@click.argument("wanted", metavar="TOPIC[:PARTITION]", type=SELECTION)
@click.option(
    "-k",
    "--key-separator",
    "separator",
    metavar="SEP",
    help="Take the text before the first SEP of a line as its key.",
)
@click.option("--json", "is_json", is_flag=True, help="Store each value, which is JSON, as it is.")
@click.option("-Z", "--null", "null", is_flag=True, help="Write an empty value as null.")
@click.option(
    "--acks",
    type=click.Choice(["all", "1", "0"]),
    default="all",
    show_default=True,
    help="Wait for all in-sync replicas, for the leader, or for nothing.",
)
@click.option(
    "--partitioner",
    type=click.Choice([one.value for one in Partitioner]),
    default=Partitioner.STICKY.value,
    show_default=True,
    help="Write lines without a key in turn to all partitions: batch by batch, or one by one.",
)
@url_option
@format_option
@print_client_errors
def produce(
    wanted: TopicPartitions,
    separator: str | None,
    is_json: bool,  # noqa: FBT001 a flag of the command line
    null: bool,  # noqa: FBT001 a flag of the command line
    acks: str,
    partitioner: str,
    url: str,
    form: str,
) -> int:
    """Write every line of standard input to TOPIC as one record.

    A line is text and is stored as a JSON string; with --json it must be JSON and is stored byte
    for byte. Keys are text; a line without SEP has none. The first line that can't be a record
    stops the command and is named by its number; earlier lines are already written.
    """
    if separator == "":
        msg = "-k '': expected at least one character, as in -k :"
        raise click.UsageError(msg)
    topic, partition = wanted.topic, _one_partition(wanted)
    summary = ProduceSummary(topic)
    write = functools.partial(
        send, partition=partition, acks=acks, partitioner=Partitioner(partitioner)
    )
    make = functools.partial(_record, separator=separator, is_json=is_json, null=null)
    lines = _Lines(sys.stdin.fileno())
    try:
        with client_of(url) as client, Progress(f"{topic}:", lines.size, form=form) as progress:
            learn_brokers(client)
            for batch in lines.batches():
                records, wrong = _records(batch, make, summary.written)
                if records:
                    summary.add(write(client, topic, records))
                progress.set(lines.read_bytes if lines.size else summary.written)
                if summary.failed:
                    break
                if wrong is not None:
                    raise wrong
    except (QuorumlogError, click.ClickException):
        if summary.written:
            _print(summary, form)
        raise
    _print(summary, form)
    return 1 if summary.failed else 0


def _records(
    lines: list[bytes], make: Callable[[bytes], JsonRecord], before: int
) -> tuple[list[JsonRecord], click.ClickException | None]:
    """Return the records of lines up to the first invalid line, and the error about that line.

    ``before`` is the number of lines that were written already, which the error text counts.
    """
    records: list[JsonRecord] = []
    for line in lines:
        try:
            records.append(make(line))
        except click.ClickException as error:
            number = before + len(records) + 1
            text = f"line {number}: {error.message}; written are the {number - 1} lines before it"
            return records, click.ClickException(text)
    return records, None


def _one_partition(wanted: TopicPartitions) -> int | None:
    if wanted.partitions is None:
        return None
    if len(wanted.partitions) > 1:
        msg = f"'{wanted}': expected TOPIC or TOPIC:PARTITION, as in orders or orders:0"
        raise click.UsageError(msg)
    return wanted.partitions[0]


class _Lines:
    """Lines of a file descriptor, in batches that end when full or when the input pauses."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.read_bytes = 0
        found = os.fstat(descriptor)
        self.size = found.st_size if stat.S_ISREG(found.st_mode) else None
        """Bytes of the input if it is a file, else None."""

    def batches(self) -> Iterator[list[bytes]]:
        """Yield batches of lines, without their line breaks. A line may be longer than allowed."""
        batch: list[bytes] = []
        size = 0
        for line in self._lines():
            if line is not None:
                batch.append(line)
                size += len(line)
            full = len(batch) >= BATCH_RECORDS or size >= BATCH_BYTES
            if batch and (full or line is None):
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _lines(self) -> Iterator[bytes | None]:
        """Yield lines, and None whenever the input pauses; stop behind one that is too long."""
        rest = b""
        while chunk := os.read(self._descriptor, READ_BYTES):
            self.read_bytes += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            yield from lines
            if len(rest) > MAX_LINE_BYTES:
                break
            if not select.select([self._descriptor], [], [], IDLE_S)[0]:
                yield None
        if rest:
            yield rest


def _record(line: bytes, *, separator: str | None, is_json: bool, null: bool) -> JsonRecord:
    if len(line) > MAX_LINE_BYTES:
        msg = f"longer than {MAX_LINE_BYTES} bytes"
        raise click.ClickException(msg)
    try:
        text = line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        msg = f"not UTF-8: {line[:60]!r} ({error.reason})"
        raise click.ClickException(msg) from None
    key: bytes | None = None
    if separator is not None and separator in text:
        before, _, text = text.partition(separator)
        key = orjson.dumps(before)
    if null and not text:
        return JsonRecord(None, key)
    if not is_json:
        return JsonRecord(orjson.dumps(text), key)
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        msg = f"not JSON: {text[:60]!r} ({error}); without --json lines are text"
        raise click.ClickException(msg) from None
    return JsonRecord(text.encode(), key)


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
        click.echo(f"{summary.topic}:{partition} offsets {first}..{last} count={count}")
    if summary.failed:
        click.echo(f"quorumlog: not written: {refused}, not known: {unknown}", err=True)
        for outcome in summary.failed[:ERRORS_SHOWN]:
            click.echo(f"quorumlog: {outcome.error}", err=True)
