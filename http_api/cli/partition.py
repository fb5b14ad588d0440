"""``quorumlog partition``, ``quorumlog elect`` and ``quorumlog reassign``: replicas and leaders."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, TextIO

import click

from http_api.cli.options import (
    BROKER,
    PARTITIONS,
    SELECTION,
    TOPIC,
    dry_run_option,
    examples,
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
    or_dash,
    table,
)
from http_api.cli.terminal import Progress
from http_api.client import admin
from http_api.client.admin import ElectionInfo, PartitionInfo, Place, ReassignmentInfo
from http_api.client.client_errors import ApiError, QuorumlogError
from http_api.client.consumer import ends
from http_api.contract.grammar import (
    GrammarError,
    TopicPartitions,
    parse_brokers,
    parse_partitions,
)

OFFSETS_RETRY_S = 0.5
"""Seconds for which the offsets of a partition are asked for: one without a leader has none."""


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
    """List and describe partitions: leader, replicas, which of them are in sync."""


@examples(
    "quorumlog partition list orders",
    "quorumlog partition list --under-replicated",
    "quorumlog partition list --broker broker-1 --format json",
)
@partition.command("list")
@click.argument("wanted", metavar="[TOPIC[:PARTITION,…]]...", nargs=-1, type=SELECTION)
@click.option("--leaderless", is_flag=True, help="Show only partitions without a leader.")
@click.option("--under-replicated", is_flag=True, help="Show only those with replicas not in sync.")
@click.option(
    "--not-preferred", is_flag=True, help="Show only those that their first replica does not lead."
)
@click.option("--moving", is_flag=True, help="Show only those that are being reassigned.")
@click.option("-b", "--broker", type=BROKER, help="Show only those with a replica on this broker.")
@cluster_command
def list_partitions(
    session: CommandSession,
    wanted: tuple[TopicPartitions, ...],
    leaderless: bool,  # noqa: FBT001 a flag of the command line, as the next three
    under_replicated: bool,  # noqa: FBT001
    not_preferred: bool,  # noqa: FBT001
    moving: bool,  # noqa: FBT001
    broker: int | None,
) -> None:
    """List partitions: those named, those of topics, or all."""
    if wanted:
        found = [
            one
            for each in wanted
            for one in session.call(admin.partitions, each.topic)
            if each.partitions is None or one.partition in each.partitions
        ]
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
    session.show_rows((asdict(one) | _out_of_sync(one) for one in shown), PARTITION_COLUMNS)


def _format_moves(row: Row) -> str:
    coming = f"+{cell_text(row['adding'])}" if row["adding"] else ""
    going = f"-{cell_text(row['removing'])}" if row["removing"] else ""
    return " ".join(filter(None, (coming, going)))


def partition_cell(row: Row) -> str:
    """Return the name of a row's partition as it is typed: ``orders:0``."""
    return f"{row['topic']}:{row['partition']}"


PARTITION_COLUMNS: Columns = {
    "PARTITION": partition_cell,
    "LEADER": "leader",
    "EPOCH": "leader_epoch",
    "REPLICAS": "replicas",
    "ISR": "isr",
    "ELR": or_dash("elr"),
    "OUT-OF-SYNC": or_dash("out_of_sync"),
    "MOVING": _format_moves,
}


@examples("quorumlog partition describe orders:0,1")
@partition.command()
@click.argument(
    "wanted", metavar="TOPIC:PARTITION[,PARTITION…]...", nargs=-1, required=True, type=PARTITIONS
)
@cluster_command
def describe(session: CommandSession, wanted: tuple[TopicPartitions, ...]) -> int:
    """Show all that is known of partitions: offsets, replicas, epochs."""
    return session.for_each(
        [(each.topic, number) for each in wanted for number in each.partitions or ()],
        lambda place: partition_json(session, session.call(admin.partition, *place)),
        _description_lines,
    )


def partition_json(session: CommandSession, one: PartitionInfo) -> dict[str, object]:
    """Return a partition as a JSON object, with its offsets; null where no leader answers."""
    first = end = None
    try:
        limits = session.client.run(ends(one.topic, one.partition), retry_s=OFFSETS_RETRY_S)
        first, end = limits.beginning, limits.end
    except QuorumlogError:
        pass  # no leader: everything else is known all the same
    return asdict(one) | _out_of_sync(one) | {"first_offset": first, "end_offset": end}


def _out_of_sync(one: PartitionInfo) -> dict[str, object]:
    return {"out_of_sync": one.out_of_sync}


def _description_lines(row: Row) -> str:
    lines = [
        f"  {key}: {cell_text(value) or UNKNOWN}"
        for key, value in row.items()
        if key not in {"topic", "partition"}
    ]
    return "\n".join([f"partition {partition_cell(row)}", *lines])


all_option = click.option("--all", "everywhere", is_flag=True, help="Elect for every partition.")
selection_argument = click.argument(
    "wanted", metavar="[TOPIC[:PARTITION,…]]...", nargs=-1, type=SELECTION
)


@click.group()
def elect() -> None:
    """Elect leaders where that changes something. Exit 1 where one could not be elected."""


@examples("quorumlog elect preferred --all", "quorumlog elect preferred orders:0")
@elect.command()
@all_option
@selection_argument
@cluster_command
def preferred(
    session: CommandSession,
    everywhere: bool,  # noqa: FBT001 a flag of the command line
    wanted: tuple[TopicPartitions, ...],
) -> int:
    """Give leadership to the first replica, where it is in sync."""
    return _elect(session, "preferred", wanted, everywhere=everywhere)


@examples("quorumlog elect unclean orders --yes")
@elect.command()
@all_option
@selection_argument
@click.option("-y", "--yes", is_flag=True, help="Accept that acknowledged records may be lost.")
@cluster_command
def unclean(
    session: CommandSession,
    everywhere: bool,  # noqa: FBT001 a flag of the command line
    wanted: tuple[TopicPartitions, ...],
    yes: bool,  # noqa: FBT001 a flag of the command line
) -> int:
    """Let any live replica lead; acknowledged records may be lost."""
    if not yes:
        msg = "an unclean leader may lack acknowledged records, which are then lost: add --yes"
        raise click.UsageError(msg)
    return _elect(session, "unclean", wanted, everywhere=everywhere)


ELECTION_COLUMNS: Columns = {
    "PARTITION": partition_cell,
    "LEADER": "leader",
    "ERROR": or_blank("error"),
}


def _elect(
    session: CommandSession,
    election: str,
    wanted: tuple[TopicPartitions, ...],
    *,
    everywhere: bool,
) -> int:
    if everywhere == bool(wanted):
        msg = "expected --all, or TOPIC or TOPIC:PARTITION, as in orders or orders:0"
        raise click.UsageError(msg)
    found: list[ElectionInfo] = []
    if everywhere:
        elected = session.call(admin.elect_leaders, None, election)
        found += elected
    for each in wanted:
        if each.partitions is None:
            elected = session.call(admin.elect_leaders, each.topic, election)
            found += elected
        for number in each.partitions or ():
            leader = session.call(admin.elect_leader, each.topic, number, election).leader
            done = ElectionInfo(
                topic=each.topic, partition=number, leader=leader, error_code=None, error=None
            )
            found.append(done)
    if session.form == "text" and not found:
        click.echo("no election would change anything")
        return 0
    session.show_rows(map(asdict, found), ELECTION_COLUMNS)
    return 1 if any(one.error_code is not None for one in found) else 0


@click.group()
def reassign() -> None:
    """Move replicas to other brokers, and show how far they are."""


@examples(
    "quorumlog reassign start orders:0=2,3,1 --wait",
    "quorumlog reassign start orders:0,1=1,2,3 --dry-run",
)
@reassign.command()
@click.argument("moves", metavar="TOPIC:PARTITION=BROKER,BROKER…", nargs=-1)
@click.option(
    "--file",
    "source",
    type=click.File(),
    help="Read the moves from a file in the form of Kafka's kafka-reassign-partitions.sh; - reads "
    "standard input.",
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
    timeout_ms: int,
) -> int:
    """Place replicas on brokers, the preferred leader first.

    All moves are begun, or none if one is refused. They go on after the command has ended.
    """
    wanted = {place: brokers for text in moves for place, brokers in _move(text)}
    if source is not None:
        wanted |= _from_file(source)
    if not wanted:
        msg = "expected TOPIC:PARTITION=BROKER,BROKER… or --file, as in orders:0=1,2,3"
        raise click.UsageError(msg)
    started = session.call(admin.reassign, wanted, validate_only=dry_run)
    done = True
    if wait and not dry_run:
        done = _wait(session, set(wanted), timeout_ms)
        found = [session.call(admin.partition, *place) for place in wanted]
        started = list(map(_completed_reassignment, found))
    rows = list(map(asdict, started))
    could = f"could be reassigned: {len(wanted)} partitions"
    session.show(rows, could if dry_run else table(rows, MOVE_COLUMNS))
    if not done:
        click.echo(f"quorumlog: not done within {timeout_ms / 1000:g} s; it goes on", err=True)
    return 0 if done else 1


@examples("quorumlog reassign list", "quorumlog reassign list orders")
@reassign.command("list")
@click.argument("topic", required=False, type=TOPIC)
@cluster_command
def list_moves(session: CommandSession, topic: str | None) -> None:
    """List the moves under way, with the lag of each new replica."""
    found = session.call(admin.reassignments, topic)
    session.show_rows(map(asdict, found), MOVE_COLUMNS)


@examples("quorumlog reassign cancel --all")
@reassign.command()
@selection_argument
@click.option("--all", "everything", is_flag=True, help="Cancel all that are under way.")
@cluster_command
def cancel(
    session: CommandSession,
    wanted: tuple[TopicPartitions, ...],
    everything: bool,  # noqa: FBT001 a flag
) -> None:
    """Cancel moves under way.

    Replicas that are being added are removed; those that are being removed stay.
    """
    if everything == bool(wanted):
        msg = "expected TOPIC or TOPIC:PARTITION, as in orders or orders:0, or --all"
        raise click.UsageError(msg)
    if everything:
        session.call(admin.cancel_reassignments, None, None)
    for each in wanted:
        for number in each.partitions or (None,):
            session.call(admin.cancel_reassignments, each.topic, number)
    named = [str(each) for each in wanted] or ["all"]
    session.show({"cancelled": named}, f"cancelled {' '.join(named)}")


def _move(text: str) -> list[tuple[Place, tuple[int, ...]]]:
    place, equals, brokers = text.partition("=")
    try:
        wanted, replicas = parse_partitions(place), parse_brokers(brokers) if equals else ()
    except GrammarError as error:
        msg = f"{text!r}: expected TOPIC:PARTITION=BROKER,BROKER…, as in orders:0=1,2,3 ({error})"
        raise click.UsageError(msg) from error
    if not replicas:
        msg = f"{text!r}: expected TOPIC:PARTITION=BROKER,BROKER…, as in orders:0=1,2,3"
        raise click.UsageError(msg)
    return [((wanted.topic, number), replicas) for number in wanted.partitions or ()]


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


def _wait(session: CommandSession, wanted: set[Place], timeout_ms: int) -> bool:
    """Wait until none of the partitions is being reassigned; return False after the time."""
    topics = {topic for topic, _ in wanted}
    only = next(iter(topics)) if len(topics) == 1 else None

    with Progress("moved", len(wanted), form=session.form) as progress:

        def settled() -> bool:
            found = session.call(admin.reassignments, only)
            moving = wanted & {(one.topic, one.partition) for one in found}
            progress.set(len(wanted) - len(moving))
            return not moving

        return wait_until(settled, timeout_ms)


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
    "PARTITION": partition_cell,
    "REPLICAS": "replicas",
    "ADDING": "adding",
    "REMOVING": "removing",
    "LAG": _lags,
}
