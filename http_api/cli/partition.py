"""``quorumlog partition``, ``quorumlog elect`` and ``quorumlog reassign``: replicas and leaders."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Any, TextIO

import click

from http_api.cli.options import (
    client_of,
    dry_run_option,
    format_option,
    ids,
    parse_broker_ids,
    print_client_errors,
    print_json,
    print_table,
    run_for_each,
    timeout_option,
    url_option,
    wait_option,
    wait_until,
)
from http_api.client import admin
from http_api.client.admin import (
    AddingReplica,
    ElectionInfo,
    PartitionInfo,
    Place,
    ReassignmentInfo,
)
from http_api.client.calls import ApiError
from http_api.client.transport import Client

PARTITION_NAME = re.compile(r"([^:]+):([0-9]{1,9})")
NOBODY = "-"


def parse_partition(text: str) -> tuple[str, int]:
    """Return (topic, partition) of ``TOPIC:PARTITION``."""
    found = PARTITION_NAME.fullmatch(text)
    if found is None:
        msg = f"{text!r}: expected TOPIC:PARTITION, as in flights:0"
        raise click.UsageError(msg)
    return found[1], int(found[2])


def all_partitions(client: Client, cluster_id: str, topics: tuple[str, ...]) -> list[PartitionInfo]:
    """Return the partitions of these topics, or of all topics if none is named."""
    names = list(topics) or sorted(one.name for one in client.run(admin.topics(cluster_id)))
    found: list[PartitionInfo] = []
    for name in names:
        try:
            rows = client.run(admin.partitions(cluster_id, name))
            found.extend(rows)
        except ApiError as error:
            if topics or error.status != 404:  # 404: deleted after the list was read
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
@url_option
@format_option
@print_client_errors
def list_partitions(
    topics: tuple[str, ...],
    leaderless: bool,  # noqa: FBT001 a flag of the command line, as the next three
    under_replicated: bool,  # noqa: FBT001
    not_preferred: bool,  # noqa: FBT001
    moving: bool,  # noqa: FBT001
    broker: int | None,
    url: str,
    form: str,
) -> None:
    """List partitions of some topics, or of all of them."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = all_partitions(client, cluster_id, topics)
    shown = [
        one
        for one in found
        if not (leaderless and one.leader is not None)
        and not (under_replicated and not one.out_of_sync)
        and not (not_preferred and one.leader == one.replicas[0])
        and not (moving and not (one.adding or one.removing))
        and (broker is None or broker in one.replicas)
    ]
    if form == "json":
        print_json([partition_json(one) for one in shown])
        return
    headings = (
        *("TOPIC", "PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "ELR", "OUT-OF-SYNC"),
        "MOVING",
    )
    rows: list[tuple[object, ...]] = [
        (
            *(one.topic, one.partition, NOBODY if one.leader is None else one.leader),
            *(one.leader_epoch, ids(one.replicas), ids(one.isr), ids(one.elr)),
            *(ids(one.out_of_sync), _format_moves(one)),
        )
        for one in shown
    ]
    print_table(headings, rows)


def _format_moves(one: PartitionInfo) -> str:
    coming = f"+{ids(one.adding)}" if one.adding else ""
    going = f"-{ids(one.removing)}" if one.removing else ""
    return " ".join(filter(None, (coming, going)))


@partition.command()
@click.argument("places", metavar="TOPIC:PARTITION...", nargs=-1, required=True)
@url_option
@format_option
@print_client_errors
def describe(places: tuple[str, ...], url: str, form: str) -> int:
    """Show everything that is known of partitions."""
    wanted = {text: parse_partition(text) for text in places}
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def read(text: str) -> dict[str, object]:
            return partition_json(client.run(admin.partition(cluster_id, *wanted[text])))

        return run_for_each(places, read, form, _description_lines)


def partition_json(one: PartitionInfo) -> dict[str, object]:
    """Return a partition as a JSON object."""
    return asdict(one) | {"out_of_sync": one.out_of_sync}


def _description_lines(row: dict[str, object]) -> str:
    lines = [f"partition {row['topic']}-{row['partition']}"]
    for key, value in row.items():
        if key in {"topic", "partition"}:
            continue
        shown = ids(value) if isinstance(value, tuple) else value
        lines.append(f"  {key}: {NOBODY if shown in {None, ''} else shown}")
    return "\n".join(lines)


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
@url_option
@format_option
@print_client_errors
def preferred(
    everywhere: bool,  # noqa: FBT001 a flag of the command line
    topic: str | None,
    partition: int | None,
    url: str,
    form: str,
) -> int:
    """Give leadership to the first replica, where it is in sync."""
    return _elect("preferred", topic, partition, url, form, everywhere=everywhere)


@elect.command()
@all_option
@topic_option
@partition_option
@click.option("-y", "--yes", is_flag=True, help="Yes: acknowledged records may be lost.")
@url_option
@format_option
@print_client_errors
def unclean(
    everywhere: bool,  # noqa: FBT001 a flag of the command line
    topic: str | None,
    partition: int | None,
    yes: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> int:
    """Have any live replica lead partitions that no eligible one can: records may be lost."""
    if not yes:
        msg = "an unclean leader may lack acknowledged records, which are then lost: say --yes"
        raise click.UsageError(msg)
    return _elect("unclean", topic, partition, url, form, everywhere=everywhere)


def _elect(
    election: str,
    topic: str | None,
    partition: int | None,
    url: str,
    form: str,
    *,
    everywhere: bool,
) -> int:
    if everywhere == (topic is not None) or (partition is not None and topic is None):
        msg = "expected --all, or --topic T and perhaps --partition P"
        raise click.UsageError(msg)
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        if topic is None or partition is None:
            rows = client.run(admin.elect_leaders(cluster_id, topic, election))
        else:
            call = admin.elect_leader(cluster_id, topic, partition, election)
            leader = client.run(call).leader
            rows = [
                ElectionInfo(
                    topic=topic, partition=partition, leader=leader, error_code=None, error=None
                )
            ]
    if form == "json":
        print_json([asdict(one) for one in rows])
    else:
        shown: list[tuple[object, ...]] = [
            (one.topic, one.partition, "-" if one.leader is None else one.leader, one.error or "")
            for one in rows
        ]
        print_table(("TOPIC", "PARTITION", "LEADER", "ERROR"), shown)
    return 1 if any(one.error_code is not None for one in rows) else 0


UNKNOWN = "-"


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
@url_option
@format_option
@print_client_errors
def start(
    moves: tuple[str, ...],
    source: TextIO | None,
    dry_run: bool,  # noqa: FBT001 a flag of the command line
    wait: bool,  # noqa: FBT001 a flag of the command line
    timeout_s: float,
    url: str,
    form: str,
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
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        call = admin.reassign(cluster_id, wanted, validate_only=dry_run)
        started = client.run(call)
        done = True
        if wait and not dry_run:
            done = _wait(client, cluster_id, set(wanted), timeout_s)
            started = []
            for place in wanted:
                found = client.run(admin.partition(cluster_id, *place))
                started.append(_completed_reassignment(found))
    if form == "json":
        print_json([asdict(one) for one in started])
    elif dry_run:
        click.echo(f"could be reassigned: {len(wanted)} partitions")
    else:
        _print_moves(started)
    if not done:
        click.echo(f"quorumlog: not done within {timeout_s:g} s; it goes on", err=True)
    return 0 if done else 1


@reassign.command("list")
@click.argument("topic", required=False)
@url_option
@format_option
@print_client_errors
def list_moves(topic: str | None, url: str, form: str) -> None:
    """List what is under way, with the lag of each replica on its way in."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(admin.reassignments(cluster_id, topic))
    if form == "json":
        print_json([asdict(one) for one in found])
    else:
        _print_moves(found)


@reassign.command()
@click.argument("places", metavar="TOPIC[:PARTITION]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All that are under way.")
@url_option
@format_option
@print_client_errors
def cancel(places: tuple[str, ...], everything: bool, url: str, form: str) -> None:  # noqa: FBT001 a flag
    """Cancel reassignments: replicas that were coming go, those that were going stay."""
    if everything == bool(places):
        msg = "expected TOPIC or TOPIC:PARTITION, or --all"
        raise click.UsageError(msg)
    wanted: list[tuple[str | None, int | None]] = [
        parse_partition(text) if ":" in text else (text, None) for text in places
    ]
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        for topic, number in wanted or [(None, None)]:
            client.run(admin.cancel_reassignments(cluster_id, topic, number))
    named = list(places) or ["all"]
    if form == "json":
        print_json({"cancelled": named})
    else:
        click.echo(f"cancelled {' '.join(named)}")


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


def _wait(client: Client, cluster_id: str, wanted: set[Place], timeout_s: float) -> bool:
    """Wait until none of the partitions is being reassigned; return False after ``timeout_s``."""
    topics = {topic for topic, _ in wanted}
    only = next(iter(topics)) if len(topics) == 1 else None

    def settled() -> bool:
        found = client.run(admin.reassignments(cluster_id, only))
        return wanted.isdisjoint((one.topic, one.partition) for one in found)

    return wait_until(settled, timeout_s)


def _completed_reassignment(found: admin.PartitionInfo) -> ReassignmentInfo:
    return ReassignmentInfo(
        topic=found.topic,
        partition=found.partition,
        replicas=found.replicas,
        adding=found.adding,
        removing=found.removing,
        leader_end_offset=None,
        progress=(),
    )


def _print_moves(found: list[ReassignmentInfo]) -> None:
    rows: list[tuple[object, ...]] = [
        (
            *(one.topic, one.partition, ids(one.replicas), ids(one.adding), ids(one.removing)),
            ",".join(map(_lag, one.progress)),
        )
        for one in found
    ]
    print_table(("TOPIC", "PARTITION", "REPLICAS", "ADDING", "REMOVING", "LAG"), rows)


def _lag(one: AddingReplica) -> str:
    return "in sync" if one.is_in_sync else UNKNOWN if one.lag is None else str(one.lag)
