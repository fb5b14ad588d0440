"""``quorumlog partition``, ``quorumlog elect`` and ``quorumlog reassign``: replicas and leaders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TextIO

import click

from http_api.cli.options import (
    dry_run_option,
    parse_broker_ids,
    timeout_option,
    wait_option,
    wait_until,
)
from http_api.cli.session import (
    UNKNOWN,
    Columns,
    CommandSession,
    Row,
    cell_text,
    cluster_command,
    or_blank,
    table,
)
from http_api.client import admin
from http_api.client.admin import ElectionInfo, PartitionInfo, Place, ReassignmentInfo
from http_api.client.calls import ApiError

PARTITION_NAME = re.compile(r"([^:]+):([0-9]{1,9})")


def parse_partition(text: str) -> tuple[str, int]:
    """Return (topic, partition) of ``TOPIC:PARTITION``."""
    found = PARTITION_NAME.fullmatch(text)
    if found is None:
        msg = f"{text!r}: expected TOPIC:PARTITION, as in flights:0"
        raise click.UsageError(msg)
    return found[1], int(found[2])


def partitions_of(session: CommandSession, topics: Iterable[str]) -> list[PartitionInfo]:
    """Return the partitions of those topics of a list that still exist."""
    found: list[PartitionInfo] = []
    for topic in topics:
        try:
            rows = session.call(admin.partitions, topic)
            found.extend(rows)
        except ApiError as error:
            if error.status != 404:  # 404: deleted after the list was read
                raise
    return found


@click.group()
def partition() -> None:
    """List and describe partitions: who leads, who is in sync, who is not."""


@partition.command("list")
@click.argument("topics", nargs=-1)
@click.option("--leaderless", is_flag=True, help="Only those that nobody leads.")
@click.option("--under-replicated", is_flag=True, help="Only those with replicas out of sync.")
@click.option("--not-preferred", is_flag=True, help="Only those the first replica does not lead.")
@click.option("--moving", is_flag=True, help="Only those that are being reassigned.")
@click.option("-b", "--broker", type=int, help="Only those with a replica on this broker.")
@cluster_command
def list_partitions(
    session: CommandSession,
    topics: tuple[str, ...],
    leaderless: bool,  # noqa: FBT001 a flag of the command line, as the next three
    under_replicated: bool,  # noqa: FBT001
    not_preferred: bool,  # noqa: FBT001
    moving: bool,  # noqa: FBT001
    broker: int | None,
) -> None:
    """List partitions of some topics, or of all of them."""
    if topics:
        found = [one for topic in topics for one in session.call(admin.partitions, topic)]
    else:
        found = partitions_of(session, sorted(one.name for one in session.call(admin.topics)))
    shown = [
        one
        for one in found
        if not (leaderless and one.leader is not None)
        and not (under_replicated and not one.out_of_sync)
        and not (not_preferred and one.leader == one.replicas[0])
        and not (moving and not (one.adding or one.removing))
        and (broker is None or broker in one.replicas)
    ]
    session.show_rows(map(partition_json, shown), PARTITION_COLUMNS)


def _format_moves(row: Row) -> str:
    coming = f"+{cell_text(row['adding'])}" if row["adding"] else ""
    going = f"-{cell_text(row['removing'])}" if row["removing"] else ""
    return " ".join(filter(None, (coming, going)))


PARTITION_COLUMNS: Columns = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "LEADER": "leader",
    "EPOCH": "leader_epoch",
    "REPLICAS": "replicas",
    "ISR": "isr",
    "ELR": "elr",
    "OUT-OF-SYNC": "out_of_sync",
    "MOVING": _format_moves,
}


@partition.command()
@click.argument("places", metavar="TOPIC:PARTITION...", nargs=-1, required=True)
@cluster_command
def describe(session: CommandSession, places: tuple[str, ...]) -> int:
    """Show everything that is known of partitions."""
    wanted = {text: parse_partition(text) for text in places}
    return session.for_each(
        places,
        lambda text: partition_json(session.call(admin.partition, *wanted[text])),
        _description_lines,
    )


def partition_json(one: PartitionInfo) -> dict[str, object]:
    """Return a partition as a JSON object."""
    return asdict(one) | {"out_of_sync": one.out_of_sync}


def _description_lines(row: Row) -> str:
    lines = [
        f"  {key}: {cell_text(value) or UNKNOWN}"
        for key, value in row.items()
        if key not in {"topic", "partition"}
    ]
    return "\n".join([f"partition {row['topic']}-{row['partition']}", *lines])


all_option = click.option("--all", "everywhere", is_flag=True, help="Every partition.")
topic_option = click.option("-t", "--topic", help="One topic.")
partition_option = click.option("-p", "--partition", type=int, help="One partition of --topic.")


@click.group()
def elect() -> None:
    """Elect leaders where that changes something. Exit 1 where one could not be elected."""


@elect.command()
@all_option
@topic_option
@partition_option
@cluster_command
def preferred(
    session: CommandSession,
    everywhere: bool,  # noqa: FBT001 a flag of the command line
    topic: str | None,
    partition: int | None,
) -> int:
    """Give leadership to the first replica, where it is in sync."""
    return _elect(session, "preferred", topic, partition, everywhere=everywhere)


@elect.command()
@all_option
@topic_option
@partition_option
@click.option("-y", "--yes", is_flag=True, help="Yes: acknowledged records may be lost.")
@cluster_command
def unclean(
    session: CommandSession,
    everywhere: bool,  # noqa: FBT001 a flag of the command line
    topic: str | None,
    partition: int | None,
    yes: bool,  # noqa: FBT001 a flag of the command line
) -> int:
    """Have any live replica lead partitions that no eligible one can: records may be lost."""
    if not yes:
        msg = "an unclean leader may lack acknowledged records, which are then lost: say --yes"
        raise click.UsageError(msg)
    return _elect(session, "unclean", topic, partition, everywhere=everywhere)


ELECTION_COLUMNS: Columns = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "LEADER": "leader",
    "ERROR": or_blank("error"),
}


def _elect(
    session: CommandSession,
    election: str,
    topic: str | None,
    partition: int | None,
    *,
    everywhere: bool,
) -> int:
    if everywhere == (topic is not None) or (partition is not None and topic is None):
        msg = "expected --all, or --topic T and perhaps --partition P"
        raise click.UsageError(msg)
    if topic is None or partition is None:
        found = session.call(admin.elect_leaders, topic, election)
    else:
        leader = session.call(admin.elect_leader, topic, partition, election).leader
        found = [
            ElectionInfo(
                topic=topic, partition=partition, leader=leader, error_code=None, error=None
            )
        ]
    session.show_rows(map(asdict, found), ELECTION_COLUMNS)
    return 1 if any(one.error_code is not None for one in found) else 0


@click.group()
def reassign() -> None:
    """Move replicas to other brokers, and see how far they are."""


@reassign.command()
@click.argument("moves", metavar="TOPIC:PARTITION=B,B…", nargs=-1)
@click.option(
    "--file",
    "source",
    type=click.File(),
    help='Kafka\'s way: {"partitions":[{"topic","partition","replicas"}]}; - reads standard input.',
)
@dry_run_option
@wait_option
@timeout_option
@cluster_command
def start(
    session: CommandSession,
    moves: tuple[str, ...],
    source: TextIO | None,
    dry_run: bool,  # noqa: FBT001 a flag of the command line
    wait: bool,  # noqa: FBT001 a flag of the command line
    timeout_s: float,
) -> int:
    """Say where replicas are to be, the preferred leader first.

    All moves are begun, or none where one is refused. They go on after the command has ended.
    """
    wanted = dict(_move(text) for text in moves)
    if source is not None:
        wanted |= _from_file(source)
    if not wanted:
        msg = "expected TOPIC:PARTITION=BROKER,BROKER… or --file"
        raise click.UsageError(msg)
    started = session.call(admin.reassign, wanted, validate_only=dry_run)
    done = True
    if wait and not dry_run:
        done = _wait(session, set(wanted), timeout_s)
        found = [session.call(admin.partition, *place) for place in wanted]
        started = list(map(_completed_reassignment, found))
    rows = list(map(asdict, started))
    could = f"could be reassigned: {len(wanted)} partitions"
    session.show(rows, could if dry_run else table(rows, MOVE_COLUMNS))
    if not done:
        click.echo(f"quorumlog: not done within {timeout_s:g} s; it goes on", err=True)
    return 0 if done else 1


@reassign.command("list")
@click.argument("topic", required=False)
@cluster_command
def list_moves(session: CommandSession, topic: str | None) -> None:
    """List what is under way, with the lag of each replica on its way in."""
    found = session.call(admin.reassignments, topic)
    session.show_rows(map(asdict, found), MOVE_COLUMNS)


@reassign.command()
@click.argument("places", metavar="TOPIC[:PARTITION]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are under way.")
@cluster_command
def cancel(session: CommandSession, places: tuple[str, ...], everything: bool) -> None:  # noqa: FBT001 a flag
    """Cancel reassignments: replicas that were coming go, those that were going stay."""
    if everything == bool(places):
        msg = "expected TOPIC or TOPIC:PARTITION, or --all"
        raise click.UsageError(msg)
    wanted: list[tuple[str | None, int | None]] = [
        parse_partition(text) if ":" in text else (text, None) for text in places
    ]
    for topic, number in wanted or [(None, None)]:
        session.call(admin.cancel_reassignments, topic, number)
    named = list(places) or ["all"]
    session.show({"cancelled": named}, f"cancelled {' '.join(named)}")


def _move(text: str) -> tuple[Place, tuple[int, ...]]:
    place, _, brokers = text.partition("=")
    return parse_partition(place), parse_broker_ids(brokers, ",", text)


def _from_file(source: TextIO) -> dict[Place, tuple[int, ...]]:
    """Return the moves in a file as ``kafka-reassign-partitions.sh`` reads and writes it."""
    expected = '{"partitions":[{"topic","partition","replicas"}]}'
    try:
        content: Any = json.load(source)
        return {
            (str(row["topic"]), int(row["partition"])): tuple(map(int, row["replicas"]))
            for row in content["partitions"]
        }
    except (ValueError, TypeError, KeyError) as error:
        msg = f"--file {source.name}: {error!r}, expected {expected}"
        raise click.UsageError(msg) from error


def _wait(session: CommandSession, wanted: set[Place], timeout_s: float) -> bool:
    """Wait until none of the partitions is being reassigned; return False after ``timeout_s``."""
    topics = {topic for topic, _ in wanted}
    only = next(iter(topics)) if len(topics) == 1 else None

    def settled() -> bool:
        found = session.call(admin.reassignments, only)
        return wanted.isdisjoint((one.topic, one.partition) for one in found)

    return wait_until(settled, timeout_s)


def _completed_reassignment(found: PartitionInfo) -> ReassignmentInfo:
    return ReassignmentInfo(
        topic=found.topic,
        partition=found.partition,
        replicas=found.replicas,
        adding=found.adding,
        removing=found.removing,
        leader_end_offset=None,
        progress=(),
    )


def _lags(row: Row) -> str:
    return ",".join(
        "in sync" if one["is_in_sync"] else cell_text(one["lag"]) for one in row["progress"]
    )


MOVE_COLUMNS: Columns = {
    "TOPIC": "topic",
    "PARTITION": "partition",
    "REPLICAS": "replicas",
    "ADDING": "adding",
    "REMOVING": "removing",
    "LAG": _lags,
}
