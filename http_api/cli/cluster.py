"""``quorumlog cluster info | health | features | upgrade``: the cluster as a whole."""

from __future__ import annotations

from dataclasses import asdict

import click

from http_api.cli.health import health
from http_api.cli.options import (
    client_of,
    dry_run_option,
    format_option,
    print_json,
    print_table,
    says_errors,
    url_option,
)
from http_api.client import admin, admin_brokers
from http_api.client.calls import ApiError
from http_api.client.transport import Client


@click.group()
def cluster() -> None:
    """Look at the cluster, raise its metadata.version."""


cluster.add_command(health)


@cluster.command()
@url_option
@format_option
@says_errors
def info(url: str, form: str) -> None:
    """Show the cluster id, the active controller, the brokers and how their partitions are."""
    with client_of(url) as client:
        found = client.run(admin.cluster())
        brokers = client.run(admin.brokers(found.cluster_id))
        topics = client.run(admin.topics(found.cluster_id))
        partitions = _all_partitions(client, found.cluster_id, topics)
    summary = {
        "topics": len(topics),
        "partitions": len(partitions),
        "without_leader": sum(item.leader is None for item in partitions),
        "under_replicated": sum(bool(item.out_of_sync) for item in partitions),
    }
    rows = [asdict(broker) | _counts(broker.broker_id, partitions) for broker in brokers]
    if form == "json":
        print_json(asdict(found) | {"brokers": rows} | summary)
        return
    controller = "none known" if found.controller_id is None else found.controller_id
    click.echo(f"cluster {found.cluster_id}")
    click.echo(f"active controller {controller}")
    print_table(
        ("BROKER", "URL", "RACK", "LEADS", "REPLICAS", "OUT-OF-SYNC"),
        [
            (
                *(row["broker_id"], row["url"], row["rack"] or ""),
                *(row["leads"], row["replicas"], row["out_of_sync"] or ""),
            )
            for row in rows
        ],
    )
    click.echo(" ".join(f"{name}={count}" for name, count in summary.items()))


def _all_partitions(
    client: Client, cluster_id: str, topics: list[admin.TopicInfo]
) -> list[admin.PartitionInfo]:
    found: list[admin.PartitionInfo] = []
    for topic in topics:
        try:
            rows = client.run(admin.partitions(cluster_id, topic.name))
            found.extend(rows)
        except ApiError as error:
            if error.status != 404:  # 404: deleted after the list was read
                raise
    return found


def _counts(broker_id: int, partitions: list[admin.PartitionInfo]) -> dict[str, object]:
    return {
        "leads": sum(item.leader == broker_id for item in partitions),
        "replicas": sum(broker_id in item.replicas for item in partitions),
        "out_of_sync": sum(broker_id in item.out_of_sync for item in partitions),
    }


@cluster.command()
@url_option
@format_option
@says_errors
def features(url: str, form: str) -> None:
    """Show metadata.version, and how far each broker could follow."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(admin_brokers.features(cluster_id))
    if form == "json":
        print_json(asdict(found))
        return
    click.echo(f"metadata.version {found.metadata_version}")
    rows: list[tuple[object, ...]] = [
        (broker, found.supported_min, highest) for broker, highest in sorted(found.brokers.items())
    ]
    print_table(("BROKER", "MIN", "MAX"), rows)


@cluster.command()
@click.option("--level", type=int, help="[default: the highest that every node can follow]")
@dry_run_option
@url_option
@format_option
@says_errors
def upgrade(level: int | None, dry_run: bool, url: str, form: str) -> None:  # noqa: FBT001 a flag
    """Raise metadata.version once every node runs the newer release. It is never lowered."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(admin_brokers.upgrade(cluster_id, level, validate_only=dry_run))
    if form == "json":
        print_json(asdict(found) | {"dry_run": dry_run})
        return
    could = "could go" if dry_run else "went"
    before = found.metadata_version_before
    click.echo(f"metadata.version {could} from {before} to {found.metadata_version}")
