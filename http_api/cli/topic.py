"""``quorumlog topic create | alter | list | describe | delete | trim``.

Calls are those of `http_api.client.admin`; trim deletes records with
`http_api.client.admin`.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from http_api.cli.options import (
    client_of,
    dry_run_option,
    format_option,
    ids,
    parse_broker_ids,
    parse_pairs,
    print_client_errors,
    print_json,
    print_table,
    run_for_each,
    url_option,
)
from http_api.client import admin
from http_api.client.transport import Client


@click.group()
def topic() -> None:
    """Create, alter, list, describe, delete topics, and trim their partitions."""


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option("-p", "--partitions", type=int, help="[default: the cluster's num_partitions]")
@click.option(
    "-r",
    "--replication-factor",
    "--replicas",
    type=int,
    help="[default: the cluster's default_replication_factor]",
)
@click.option("-c", "--config", "configs", metavar="KEY=VALUE", multiple=True, help="A config.")
@click.option(
    "--assignments",
    metavar="1:2:3,…",
    help="The replicas of each partition, instead of the two numbers; the first leads.",
)
@dry_run_option
@url_option
@format_option
@print_client_errors
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    assignments: str | None,
    dry_run: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> int:
    """Create topics. Returns once every partition has a leader that is ready."""
    settings = parse_pairs(configs, "-c")
    replica_lists = _parse_assignments(assignments)
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def make(name: str) -> dict[str, object]:
            call = admin.create_topic(
                cluster_id,
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=settings,
                assignments=replica_lists,
                validate_only=dry_run,
            )
            return asdict(client.run(call)) | ({"dry_run": True} if dry_run else {})

        return run_for_each(names, make, form, _created_line)


def _created_line(row: dict[str, object]) -> str:
    partitions, replicas = row["partitions_count"], row["replication_factor"]
    done = "could be created:" if "dry_run" in row else "created"
    return f"{done} {row['name']} partitions={partitions} replication_factor={replicas}"


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option("-p", "--partitions", type=int, required=True, help="How many in all.")
@click.option(
    "--assignments",
    metavar="1:2:3,…",
    help="The replicas of each new partition, instead of the cluster's choice.",
)
@dry_run_option
@url_option
@format_option
@print_client_errors
def alter(
    names: tuple[str, ...],
    partitions: int,
    assignments: str | None,
    dry_run: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> int:
    """Give topics more partitions; there are never fewer. Records with a key may move to others."""
    replica_lists = _parse_assignments(assignments)
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def grow(name: str) -> dict[str, object]:
            new = None
            if replica_lists is not None:
                first = client.run(admin.topic(cluster_id, name)).partitions_count
                new = dict(enumerate(replica_lists, first))
            call = admin.add_partitions(
                cluster_id, name, partitions, assignments=new, validate_only=dry_run
            )
            return asdict(client.run(call)) | {"dry_run": dry_run}

        return run_for_each(names, grow, form, _altered_line)


def _altered_line(row: dict[str, object]) -> str:
    done = "could be altered:" if row["dry_run"] else "altered"
    return f"{done} {row['name']} partitions={row['partitions_count']}"


def _parse_assignments(text: str | None) -> list[tuple[int, ...]] | None:
    """Return the replicas of every partition in a text like ``1:2,2:3``."""
    if text is None:
        return None
    return [parse_broker_ids(part, ":", "--assignments") for part in text.split(",")]


@topic.command("list")
@click.option("-i", "--internal", is_flag=True, help="Topics the cluster made for itself, too.")
@url_option
@format_option
@print_client_errors
def list_topics(internal: bool, url: str, form: str) -> None:  # noqa: FBT001 a flag
    """List the topics."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(admin.topics(cluster_id))
    shown = sorted((t for t in found if internal or not t.is_internal), key=lambda t: t.name)
    if form == "json":
        print_json([asdict(item) for item in shown])
        return
    rows: list[tuple[object, ...]] = [
        (item.name, item.partitions_count, item.replication_factor) for item in shown
    ]
    print_table(("NAME", "PARTITIONS", "REPLICAS"), rows)


@topic.command()
@click.argument("names", nargs=-1, required=True)
@url_option
@format_option
@print_client_errors
def describe(names: tuple[str, ...], url: str, form: str) -> None:
    """Show partitions with leader, epoch, ISR and out-of-sync replicas, and the configs."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = [_describe(client, cluster_id, name) for name in names]
    if form == "json":
        print_json([_description_json(*item) for item in found])
        return
    for layout, partitions in found:
        click.echo(f"topic {layout.name}")
        rows: list[tuple[object, ...]] = [
            (
                item.partition,
                "none" if item.leader is None else item.leader,
                item.leader_epoch,
                ids(item.replicas),
                ids(item.isr),
                ids(item.out_of_sync),
            )
            for item in partitions
        ]
        headings = ("PARTITION", "LEADER", "EPOCH", "REPLICAS", "ISR", "OUT-OF-SYNC")
        print_table(headings, rows)
        for key, value in sorted(layout.configs.items()):
            click.echo(f"config {key}={value}")


TopicDescription = tuple[admin.TopicLayout, list[admin.PartitionInfo]]


def _describe(client: Client, cluster_id: str, name: str) -> TopicDescription:
    layout = client.run(admin.topic_layout(name))
    return layout, client.run(admin.partitions(cluster_id, name))


def _description_json(
    layout: admin.TopicLayout, partitions: list[admin.PartitionInfo]
) -> dict[str, object]:
    rows = [asdict(item) | {"out_of_sync": item.out_of_sync} for item in partitions]
    return {"name": layout.name, "configs": dict(layout.configs), "partitions": rows}


@topic.command()
@click.argument("names", nargs=-1, required=True)
@url_option
@format_option
@print_client_errors
def delete(names: tuple[str, ...], url: str, form: str) -> int:
    """Delete topics, with everything in them."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def remove(name: str) -> dict[str, object]:
            client.run(admin.delete_topic(cluster_id, name))
            return {"name": name}

        return run_for_each(names, remove, form, lambda row: f"deleted {row['name']}")


@topic.command()
@click.argument("name")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="Which partition.")
@click.option(
    "--before",
    type=click.IntRange(min=-1),
    required=True,
    help="The first offset to keep; -1 deletes all that is committed.",
)
@url_option
@format_option
@print_client_errors
def trim(name: str, partition: int, before: int, url: str, form: str) -> None:
    """Delete the beginning of a partition: every record below an offset. There is no way back."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        start = client.run(admin.delete_records(cluster_id, name, partition, before))
    if form == "json":
        print_json({"topic": name, "partition": partition, "log_start_offset": start})
    else:
        click.echo(f"{name} partition {partition} begins at offset {start}")
