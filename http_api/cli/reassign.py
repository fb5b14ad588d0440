"""``quorumlog reassign start | list | cancel``: move replicas to other brokers.

Moves are given as TOPIC:PARTITION=B,B arguments or in Kafka's JSON file. Calls are those of
`http_api.client.admin`.
"""

from __future__ import annotations

import json
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
    timeout_option,
    url_option,
    wait_option,
    wait_until,
)
from http_api.cli.partition import parse_partition
from http_api.client import admin
from http_api.client.admin import AddingReplica, Place, ReassignmentInfo
from http_api.client.transport import Client

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
