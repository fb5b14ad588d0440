"""``quorumlog topic create | list | describe | delete``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import click

from http_api.cli.options import (
    client_of,
    error_text,
    format_option,
    ids,
    print_json,
    print_table,
    says_errors,
    url_option,
)
from http_api.client import admin
from http_api.client.calls import ApiError
from http_api.client.transport import Client


@click.group()
def topic() -> None:
    """Create, list, describe, delete topics."""


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
@url_option
@format_option
@says_errors
def create(
    names: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    url: str,
    form: str,
) -> int:
    """Create topics. Returns once every partition has a leader that is ready."""
    settings = dict(_config(text) for text in configs)
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def make(name: str) -> dict[str, object]:
            call = admin.create_topic(
                cluster_id,
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                configs=settings,
            )
            return asdict(client.run(call))

        return _each(names, make, form, _created)


def _config(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        msg = f"-c {text!r}: expected key=value"
        raise click.UsageError(msg)
    return key, value


def _created(row: dict[str, object]) -> str:
    partitions, replicas = row["partitions_count"], row["replication_factor"]
    return f"created {row['name']} partitions={partitions} replication_factor={replicas}"


def _each(
    names: tuple[str, ...],
    act: Callable[[str], dict[str, object]],
    form: str,
    sentence: Callable[[dict[str, object]], str],
) -> int:
    """Do it for every name; a name that fails does not stop the next, but the exit code is 1."""
    done = []
    for name in names:
        try:
            row = act(name)
        except ApiError as error:
            click.echo(error_text(error, form), err=True)
            continue
        done.append(row)
        if form == "text":
            click.echo(sentence(row))
    if form == "json":
        print_json(done)
    return 0 if len(done) == len(names) else 1


@topic.command("list")
@click.option("-i", "--internal", is_flag=True, help="Topics the cluster made for itself, too.")
@url_option
@format_option
@says_errors
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
@says_errors
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


Description = tuple[admin.TopicLayout, list[admin.PartitionInfo]]


def _describe(client: Client, cluster_id: str, name: str) -> Description:
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
@says_errors
def delete(names: tuple[str, ...], url: str, form: str) -> int:
    """Delete topics, with everything in them."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def remove(name: str) -> dict[str, object]:
            client.run(admin.delete_topic(cluster_id, name))
            return {"name": name}

        return _each(names, remove, form, lambda row: f"deleted {row['name']}")
