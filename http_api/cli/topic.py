"""``quorumlog topic create | alter | list | describe | delete | trim``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from http_api.cli.options import dry_run_option, parse_broker_ids, parse_pairs
from http_api.cli.partition import partition_json
from http_api.cli.session import Columns, CommandSession, Row, cluster_command, table
from http_api.client import admin

TOPIC_COLUMNS: Columns = {
    "NAME": "name",
    "PARTITIONS": "partitions_count",
    "REPLICAS": "replication_factor",
}
PARTITION_COLUMNS: Columns = {
    "PARTITION": "partition",
    "LEADER": lambda row: "none" if row["leader"] is None else row["leader"],
    "EPOCH": "leader_epoch",
    "REPLICAS": "replicas",
    "ISR": "isr",
    "OUT-OF-SYNC": "out_of_sync",
}


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
@cluster_command
def create(
    session: CommandSession,
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    assignments: str | None,
    dry_run: bool,  # noqa: FBT001 a flag of the command line
) -> int:
    """Create topics. Returns once every partition has a leader that is ready."""
    settings = parse_pairs(configs, "-c")
    replica_lists = _parse_assignments(assignments)

    def make(name: str) -> dict[str, object]:
        made = session.call(
            admin.create_topic,
            name,
            partitions=partitions,
            replication_factor=replication_factor,
            configs=settings,
            assignments=replica_lists,
            validate_only=dry_run,
        )
        return asdict(made) | ({"dry_run": True} if dry_run else {})

    return session.for_each(names, make, _created_line)


def _created_line(row: Row) -> str:
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
@cluster_command
def alter(
    session: CommandSession,
    names: tuple[str, ...],
    partitions: int,
    assignments: str | None,
    dry_run: bool,  # noqa: FBT001 a flag of the command line
) -> int:
    """Give topics more partitions; there are never fewer. Records with a key may move to others."""
    replica_lists = _parse_assignments(assignments)

    def grow(name: str) -> dict[str, object]:
        new = None
        if replica_lists is not None:
            first = session.call(admin.topic, name).partitions_count
            new = dict(enumerate(replica_lists, first))
        grown = session.call(
            admin.add_partitions, name, partitions, assignments=new, validate_only=dry_run
        )
        return asdict(grown) | {"dry_run": dry_run}

    return session.for_each(names, grow, _altered_line)


def _altered_line(row: Row) -> str:
    done = "could be altered:" if row["dry_run"] else "altered"
    return f"{done} {row['name']} partitions={row['partitions_count']}"


def _parse_assignments(text: str | None) -> list[tuple[int, ...]] | None:
    """Return the replicas of every partition in a text like ``1:2,2:3``."""
    if text is None:
        return None
    return [parse_broker_ids(part, ":", "--assignments") for part in text.split(",")]


@topic.command("list")
@click.option("-i", "--internal", is_flag=True, help="Topics the cluster made for itself, too.")
@cluster_command
def list_topics(session: CommandSession, internal: bool) -> None:  # noqa: FBT001 a flag
    """List the topics."""
    found = session.call(admin.topics)
    shown = sorted((t for t in found if internal or not t.is_internal), key=lambda t: t.name)
    session.show_rows(map(asdict, shown), TOPIC_COLUMNS)


@topic.command()
@click.argument("names", nargs=-1, required=True)
@cluster_command
def describe(session: CommandSession, names: tuple[str, ...]) -> None:
    """Show partitions with leader, epoch, ISR and out-of-sync replicas, and the configs."""
    found = [_describe(session, name) for name in names]
    session.show(found, "\n".join(map(_description_lines, found)))


def _describe(session: CommandSession, name: str) -> dict[str, Any]:
    layout = session.run(admin.topic_layout(name))
    rows = [partition_json(item) for item in session.call(admin.partitions, name)]
    return {"name": layout.name, "configs": dict(layout.configs), "partitions": rows}


def _description_lines(row: Row) -> str:
    configs = [f"config {key}={value}" for key, value in sorted(row["configs"].items())]
    return "\n".join(
        [f"topic {row['name']}", table(row["partitions"], PARTITION_COLUMNS), *configs]
    )


@topic.command()
@click.argument("names", nargs=-1, required=True)
@cluster_command
def delete(session: CommandSession, names: tuple[str, ...]) -> int:
    """Delete topics, with everything in them."""

    def remove(name: str) -> dict[str, object]:
        session.call(admin.delete_topic, name)
        return {"name": name}

    return session.for_each(names, remove, lambda row: f"deleted {row['name']}")


@topic.command()
@click.argument("name")
@click.option("--partition", type=click.IntRange(min=0), required=True, help="Which partition.")
@click.option(
    "--before",
    type=click.IntRange(min=-1),
    required=True,
    help="The first offset to keep; -1 deletes all that is committed.",
)
@cluster_command
def trim(session: CommandSession, name: str, partition: int, before: int) -> None:
    """Delete the beginning of a partition: every record below an offset. There is no way back."""
    start = session.call(admin.delete_records, name, partition, before)
    session.show(
        {"topic": name, "partition": partition, "log_start_offset": start},
        f"{name} partition {partition} begins at offset {start}",
    )
