"""``quorumlog consume``: print the records of a topic on standard output.

Reads each partition from its start offset to its present end, one after the other. `--last` reads
the end of every partition and merges them by time. With --follow it is one tail of the topic
(`consume_tail.py`), with --group a member of a consumer group (`consume_member.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import click

from http_api.cli.consume_member import consume_as_member
from http_api.cli.consume_tail import Followed, follow_topic
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
from http_api.cli.record_output import RecordOutput
from http_api.client import admin
from http_api.client.client_errors import ApiError
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
    Latest,
    Position,
    TopicPartitions,
)

LAST_MAX = 100_000
"""Most records of --last: all of them are sorted in memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeArguments:
    """Arguments of the command that say what to read."""

    wanted: TopicPartitions
    position: Position
    until: Position | None
    """The first position that is not read any more."""
    binary: bool

    @property
    def topic(self) -> str:
        """The name of the topic."""
        return self.wanted.topic


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets of a partition to read: from ``start`` up to ``end``."""

    topic_id: str
    """The topic whose offsets they are: another one of its name is refused."""
    partition: int
    start: int
    end: int


@examples(
    "quorumlog consume orders",
    "quorumlog consume orders:0 -o 2 -n 3",
    "quorumlog consume orders --last 10 -k :",
    "quorumlog consume orders -o @0 --format json",
    "quorumlog consume orders -o 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z",
    "quorumlog consume orders -G kitchen",
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
    "-G",
    "--group",
    metavar="GROUP",
    help="Read as a member of this consumer group, and commit what is printed.",
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
    group: str | None,
    separator: str | None,
    binary: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> None:
    """Print the records of TOPIC, one a line: text as text, other values as JSON.

    Partitions are printed one after the other, each in the order of its offsets; --last prints all
    of them by time. The command stops at the present end, unless -f or -n changes that. With -G it
    goes on where the group stands, shares the topic with the group's other members, and commits
    each record once it is printed; -o earliest or latest is for a group without commits. --format
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
        wanted=wanted, position=position or Earliest(), until=until, binary=binary
    )
    output = RecordOutput(form, separator, binary=binary)
    if group is not None:
        _check_member(wanted, position, until, last)
        with client_of(url) as client:
            learn_brokers(client)
            consume_as_member(
                client,
                group,
                wanted.topic,
                arguments.position,
                output,
                count=count,
                binary=binary,
                follow=follow,
            )
        return
    with client_of(url) as client:
        learn_brokers(client)
        if follow:
            output.print_some(_follow(client, arguments, last), count)
        elif last is not None:
            ranges = _last_ranges(client, arguments, last)
            output.print(_last(client, arguments, ranges, last))
        else:
            pages = (
                page.records
                for each in _ranges(client, arguments)
                for page in _read(client, arguments, each)
            )
            output.print_some(pages, count)


def _check_member(
    wanted: TopicPartitions, position: Position | None, until: Position | None, last: int | None
) -> None:
    """Raise `click.UsageError` for what a member of a group can't be told."""
    if wanted.partitions is not None:
        msg = f"-G reads what the group assigns: expected a topic, as in {wanted.topic}"
        raise click.UsageError(msg)
    if until is not None or last is not None:
        msg = "-G goes on where the group stands: expected no --until and no --last beside it"
        raise click.UsageError(msg)
    if not isinstance(position, Earliest | Latest | None):
        msg = "-G goes on where the group stands: expected -o earliest or -o latest, or none"
        raise click.UsageError(msg)


def _follow(
    client: Client, arguments: ConsumeArguments, last: int | None
) -> Iterator[list[Record]]:
    """Yield records from the start on, and then as they come; behind --last, those first."""
    wanted = arguments.wanted
    partitions = _partitions(client, wanted)
    if last is None:
        if isinstance(arguments.position, AtOffset):
            _ranges(client, arguments)  # refuses an offset that is in no partition
        followed = Followed(wanted.topic, wanted.partitions, arguments.position)
        yield from follow_topic(client, followed, binary=arguments.binary)
        return
    followed = Followed(wanted.topic, wanted.partitions, Latest()).from_now(client)
    ranges = _last_ranges(client, arguments, last, partitions)
    yield _last(client, arguments, ranges, last)
    printed = {each.partition: each.end for each in ranges}
    yield from follow_topic(client, followed, binary=arguments.binary, printed=printed)


def _last_ranges(
    client: Client,
    arguments: ConsumeArguments,
    last: int,
    partitions: list[int] | None = None,
) -> list[PartitionRange]:
    newest = replace(arguments, position=LastRecords(last))
    if partitions is None:
        partitions = _partitions(client, arguments.wanted)
    topic_id = _topic_id(client, arguments.topic)
    return [_range(client, newest, (topic_id, each), alone=False) for each in partitions]


def _last(
    client: Client, arguments: ConsumeArguments, ranges: list[PartitionRange], count: int
) -> list[Record]:
    """Return the newest records of all ranges, in the order of their times."""
    found = [
        record
        for each in ranges
        for page in _read(client, arguments, each)
        for record in page.records
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
    topic_id = _topic_id(client, arguments.topic)
    ranges = [_range(client, arguments, (topic_id, each), alone=alone) for each in partitions]
    longest = max(each.end for each in ranges)
    position = arguments.position
    if isinstance(position, AtOffset) and position.offset > longest:
        text = f"-o {position.offset}: no partition of {arguments.topic} goes beyond"
        msg = f"{text} offset {longest}"
        raise click.ClickException(msg)
    return ranges


def _topic_id(client: Client, topic: str) -> str:
    cluster_id = client.run(admin.cluster()).cluster_id
    return client.run(admin.topic(cluster_id, topic)).topic_id


def _range(
    client: Client, arguments: ConsumeArguments, of: tuple[str, int], *, alone: bool
) -> PartitionRange:
    topic_id, partition = of
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
    return PartitionRange(topic_id, partition, min(start, limits.end), end)


def _read(client: Client, arguments: ConsumeArguments, part: PartitionRange) -> Iterator[FetchPage]:
    offset, epoch = part.start, None
    while offset < part.end:
        call = fetch(
            arguments.topic,
            part.partition,
            offset,
            binary=arguments.binary,
            leader_epoch=epoch,
            topic_id=part.topic_id,
        )
        try:
            page = client.run(call)
        except ApiError as error:
            if error.code == RestCode.JSON_CONVERSION:
                msg = f"{error.message}; try --binary"
                raise click.ClickException(msg) from error
            raise
        yield replace(page, records=[each for each in page.records if each.offset < part.end])
        offset, epoch = page.next_offset, page.next_leader_epoch
