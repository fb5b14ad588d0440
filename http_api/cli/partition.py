"""``quorumlog partition list | describe``: partitions with their leaders and replicas."""

from __future__ import annotations

import re
from dataclasses import asdict

import click

from http_api.cli.options import (
    client_of,
    format_option,
    ids,
    print_client_errors,
    print_json,
    print_table,
    run_for_each,
    url_option,
)
from http_api.client import admin
from http_api.client.admin import PartitionInfo
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
