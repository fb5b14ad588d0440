"""``quorumlog topic create | alter | list | describe | delete | trim``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from http_api.cli.options import (
    PARTITION,
    TOPIC,
    dry_run_option,
    examples,
    parse_configs,
)
from http_api.cli.partition import partition_json
from http_api.cli.session import (
    Columns,
    CommandSession,
    Row,
    cluster_command,
    or_dash,
    table,
)
from http_api.client import admin
from http_api.contract.grammar import GrammarError, parse_brokers

names_argument = click.argument("names", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)

TOPIC_COLUMNS: Columns = {
    "NAME": "name",
    "PARTITIONS": "partitions_count",
    "REPLICAS": "replication_factor",
}
PARTITION_COLUMNS: Columns = {
    "PARTITION": lambda row: f"{row['topic']}:{row['partition']}",
    "LEADER": lambda row: "none" if row["leader"] is None else row["leader"],
    "EPOCH": "leader_epoch",
    "REPLICAS": "replicas",
    "ISR": "isr",
    "OUT-OF-SYNC": or_dash("out_of_sync"),
    "FIRST-OFFSET": "first_offset",
    "END-OFFSET": "end_offset",
}


@click.group()
def topic() -> None:
    """Create, change, list, describe, delete topics, and trim their partitions."""


@examples(
    "quorumlog topic create clicks --partitions 3",
    "quorumlog topic create views --partitions 2 --config retention.ms=7d",
    "quorumlog topic create carts --assignments 1:2:3,2:3:1",
)
@topic.command()
@names_argument
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    help="Make so many partitions.  [default: num.partitions of the cluster]",
)
@click.option(
    "-r",
    "--replication-factor",
    "--replicas",
    type=click.IntRange(min=1),
    help="Keep so many replicas.  [default: default.replication.factor of the cluster]",
)
@click.option(
    "-c",
    "--config",
    "configs",
    metavar="NAME=VALUE",
    multiple=True,
    help="Set a config of the topic; may be repeated. Times and sizes take units: 1h, 64MiB.",
)
@click.option(
    "--assignments",
    metavar="1:2:3,…",
    help="Place the replicas of each partition on these brokers; the first one leads.",
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
    settings = parse_configs(configs, "-c")
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


@examples("quorumlog topic alter weblog --partitions 6 --dry-run")
@topic.command()
@names_argument
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    required=True,
    help="Grow to so many partitions in all.",
)
@click.option(
    "--assignments",
    metavar="1:2:3,…",
    help="Place the replicas of each new partition on these brokers; the first one leads.",
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
    """Give topics more partitions; there are never fewer.

    Later records of a key may go to another partition than earlier ones.
    """
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
    try:
        return [parse_brokers(part, ":") for part in text.split(",")]
    except GrammarError as error:
        msg = f"--assignments {error}; commas separate partitions, as in 1:2:3,2:3:1"
        raise click.UsageError(msg) from error


@examples("quorumlog topic list", "quorumlog topic list --internal --format json")
@topic.command("list")
@click.option("-i", "--internal", is_flag=True, help="Show the cluster's own topics too.")
@cluster_command
def list_topics(session: CommandSession, internal: bool) -> None:  # noqa: FBT001 a flag
    """List the topics."""
    found = session.call(admin.topics)
    shown = sorted((t for t in found if internal or not t.is_internal), key=lambda t: t.name)
    session.show_rows(map(asdict, shown), TOPIC_COLUMNS)


@examples("quorumlog topic describe orders")
@topic.command()
@names_argument
@cluster_command
def describe(session: CommandSession, names: tuple[str, ...]) -> int:
    """Show partitions with leader, ISR and offsets, and changed configs."""
    return session.for_each(names, lambda name: _describe(session, name), _description_lines)


def _describe(session: CommandSession, name: str) -> dict[str, Any]:
    found = session.call(admin.topic, name)
    configs = session.call(admin.configs, admin.of_topic(name))
    return {
        "name": found.name,
        "topic_id": found.topic_id,
        "is_internal": found.is_internal,
        "replication_factor": found.replication_factor,
        "configs": {one.name: one.value for one in configs},
        "changed_configs": sorted(one.name for one in configs if not one.is_default),
        "partitions": [
            partition_json(session, one) for one in session.call(admin.partitions, name)
        ],
    }


def _description_lines(row: Row) -> str:
    changed = [f"config {name}={row['configs'][name]}" for name in row["changed_configs"]]
    head = f"topic {row['name']} id={row['topic_id']}"
    return "\n".join([head, table(row["partitions"], PARTITION_COLUMNS), *changed])


@examples("quorumlog topic delete old-orders")
@topic.command()
@names_argument
@cluster_command
def delete(session: CommandSession, names: tuple[str, ...]) -> int:
    """Delete topics, with everything in them."""

    def remove(name: str) -> dict[str, object]:
        session.call(admin.delete_topic, name)
        return {"name": name}

    return session.for_each(names, remove, lambda row: f"deleted {row['name']}")


@examples("quorumlog topic trim orders:0 --before 1", "quorumlog topic trim old-logs:0 --before -1")
@topic.command()
@click.argument("place", metavar="TOPIC:PARTITION", type=PARTITION)
@click.option(
    "--before",
    type=click.IntRange(min=-1),
    required=True,
    help="Keep this offset and all behind it; -1 deletes every committed record.",
)
@cluster_command
def trim(session: CommandSession, place: tuple[str, int], before: int) -> None:
    """Delete every record of a partition below an offset.

    There is no way back.
    """
    name, partition = place
    start = session.call(admin.delete_records, name, partition, before)
    session.show(
        {"topic": name, "partition": partition, "first_offset": start},
        f"{name}:{partition} begins at offset {start}",
    )
