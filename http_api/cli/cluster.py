"""``quorumlog cluster id | info | health | features | upgrade``: the cluster as a whole.

`health` reads the cluster's health once, or repeatedly with --watch, prints it when it changes, and
ends with an exit code for scripts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import click

from http_api.cli.options import (
    DURATION_MS,
    client_of,
    dry_run_option,
    error_text,
    examples,
    format_option,
    url_option,
)
from http_api.cli.partition import partitions_of
from http_api.cli.session import Columns, CommandSession, cluster_command, or_blank, table
from http_api.cli.terminal import styled
from http_api.client import admin
from http_api.client import cluster_state as calls
from http_api.client.client_errors import ApiError, QuorumlogError
from http_api.client.transport import Client

EXIT_HEALTHY = 0
EXIT_DEGRADED = 1
EXIT_UNHEALTHY = 3
"""3, because 2 is wrong usage in every command."""
EXIT_NO_ANSWER = 69
EXITS = {"healthy": EXIT_HEALTHY, "degraded": EXIT_DEGRADED, "unhealthy": EXIT_UNHEALTHY}
COLOURS = {"healthy": "green", "degraded": "yellow", "unhealthy": "red"}
INTERVAL_MS = 1_000
INTERVAL_MS_MIN = 100
CALL_RETRY_S = 3.0
"""Seconds for which a call is retried before the verdict is that no broker answers."""


@examples(
    "quorumlog cluster health",
    "quorumlog cluster health --exit-when-healthy --timeout 1m",
)
@click.command()
@click.option("--watch", is_flag=True, help="Ask again and again, and print each change.")
@click.option("--exit-when-healthy", is_flag=True, help="Watch until it is healthy, then end.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION_MS,
    help="End a watch after this long, with the exit code of the last verdict.",
)
@click.option(
    "--interval",
    "interval_ms",
    type=DURATION_MS,
    default=INTERVAL_MS,
    show_default="1s",
    help="Ask this often in a watch, at most every 100ms.",
)
@url_option
@format_option
def health(
    watch: bool,  # noqa: FBT001 a flag of the command line
    exit_when_healthy: bool,  # noqa: FBT001 a flag of the command line
    timeout_ms: int | None,
    interval_ms: int,
    url: str,
    form: str,
) -> int:
    """Show whether the cluster is healthy, and if not, why.

    Exit codes: 0 healthy, 1 degraded, 3 unhealthy, 69 no broker answers, 2 wrong usage.
    """
    if timeout_ms is not None and not (watch or exit_when_healthy):
        msg = "--timeout goes with --watch or --exit-when-healthy"
        raise click.UsageError(msg)
    interval_s = max(INTERVAL_MS_MIN, interval_ms) / 1000
    until_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    shown: object = None
    with client_of(url) as client:
        while True:
            code, body, why = _read_health(client, form)
            verdict = (code, None if body is None else [r["message"] for r in body["reasons"]])
            if verdict != shown:
                _print_health(body, why, form)
                shown = verdict
            done = exit_when_healthy and code == EXIT_HEALTHY
            late = until_s is not None and time.monotonic() + interval_s > until_s
            if done or late or not (watch or exit_when_healthy):
                return code
            time.sleep(interval_s)


def _read_health(client: Client, form: str) -> tuple[int, dict[str, Any] | None, str]:
    """Read the health; return (exit code, the verdict or None, the error text if None)."""
    try:
        cluster_id = client.run(admin.cluster(), retry_s=CALL_RETRY_S).cluster_id
        body = client.run(calls.health(cluster_id), retry_s=CALL_RETRY_S)
        return EXITS[body["status"]], body, ""
    except ApiError as error:
        # A server answers, but not this call: it is another service.
        return EXIT_NO_ANSWER, None, error_text(error, form)
    except (QuorumlogError, KeyError) as error:
        verdict = error_text(error, form) if isinstance(error, QuorumlogError) else repr(error)
        return EXIT_NO_ANSWER, None, verdict


def _print_health(body: dict[str, Any] | None, why: str, form: str) -> None:
    if body is None:
        click.echo(why, err=True)
    elif form == "json":
        click.echo(json.dumps(body, ensure_ascii=False))
    else:
        click.echo(text_of(body))


def text_of(body: Mapping[str, Any]) -> str:
    """Return a verdict as lines: status, controller, counts, and a line for each reason."""
    counts = body["counts"]
    controller = "none" if body["controller_id"] is None else body["controller_id"]
    quorum = f"{counts['controllers_unreachable']} of {counts['controllers']} controllers"
    brokers = f"{counts['brokers']} brokers, {counts['fenced_brokers']} fenced"
    partitions = (
        f"{counts['partitions']} partitions, {counts['offline_partitions']} offline, "
        f"{counts['under_replicated_partitions']} under-replicated, "
        f"{counts['under_min_isr_partitions']} under min ISR, "
        f"{counts['at_min_isr_partitions']} exactly at min ISR"
    )
    lines = [
        styled(str(body["status"]), COLOURS[body["status"]]),
        f"active controller {controller}, {quorum} unreachable",
        f"{brokers}; {partitions}",
    ]
    for name, words in (
        ("reassigning_partitions", "partitions are being reassigned"),
        ("preferred_leader_imbalance", "partitions are not led by their preferred leader"),
    ):
        if counts[name]:
            lines.append(f"{counts[name]} {words}")
    lines += [
        f"{styled(one['status'], COLOURS[one['status']])}: {one['code']}: {one['message']}"
        for one in body["reasons"]
    ]
    return "\n".join(lines)


@click.group()
def cluster() -> None:
    """Show the cluster and its health, raise its metadata.version."""


cluster.add_command(health)


@examples("quorumlog cluster id")
@cluster.command("id")
@cluster_command
def show_id(session: CommandSession) -> None:
    """Print the cluster id, as URLs below /v3/clusters need it."""
    cluster_id = session.cluster.cluster_id
    session.show({"cluster_id": cluster_id}, cluster_id)


@examples("quorumlog cluster info")
@cluster.command()
@cluster_command
def info(session: CommandSession) -> None:
    """Show the cluster id, the active controller and the brokers."""
    found = session.cluster
    brokers = session.call(admin.brokers)
    topics = session.call(admin.topics)
    partitions = partitions_of(session, (topic.name for topic in topics))
    summary = {
        "topics": len(topics),
        "partitions": len(partitions),
        "without_leader": sum(item.leader is None for item in partitions),
        "under_replicated": sum(bool(item.out_of_sync) for item in partitions),
    }
    rows = [asdict(broker) | _counts(broker.broker_id, partitions) for broker in brokers]
    controller = "none known" if found.controller_id is None else found.controller_id
    lines = [
        f"cluster {found.cluster_id}",
        f"active controller {controller}",
        table(rows, BROKER_COLUMNS),
        " ".join(f"{name}={count}" for name, count in summary.items()),
    ]
    session.show(asdict(found) | {"brokers": rows} | summary, "\n".join(lines))


BROKER_COLUMNS: Columns = {
    "BROKER": "broker_id",
    "URL": "url",
    "RACK": or_blank("rack"),
    "LEADS": "leader_count",
    "REPLICAS": "replica_count",
    "OUT-OF-SYNC": or_blank("out_of_sync"),
}


def _counts(broker_id: int, partitions: list[admin.PartitionInfo]) -> dict[str, object]:
    return {
        "leader_count": sum(item.leader == broker_id for item in partitions),
        "replica_count": sum(broker_id in item.replicas for item in partitions),
        "out_of_sync": sum(broker_id in item.out_of_sync for item in partitions),
    }


@examples("quorumlog cluster features")
@cluster.command()
@cluster_command
def features(session: CommandSession) -> None:
    """Show metadata.version, and the highest one of each broker."""
    found = session.call(admin.features)
    columns: Columns = {"BROKER": "broker", "MIN": lambda _: found.supported_min, "MAX": "max"}
    rows = [{"broker": broker, "max": highest} for broker, highest in sorted(found.brokers.items())]
    session.show(
        asdict(found), f"metadata.version {found.metadata_version}\n{table(rows, columns)}"
    )


@examples("quorumlog cluster upgrade --dry-run")
@cluster.command()
@click.option(
    "--level",
    type=click.IntRange(min=1),
    help="Go to this level.  [default: the highest that every node can follow]",
)
@dry_run_option
@cluster_command
def upgrade(session: CommandSession, level: int | None, dry_run: bool) -> None:  # noqa: FBT001 a flag
    """Raise metadata.version once every node runs the newer release.

    It is never lowered.
    """
    found = session.call(admin.upgrade, level, validate_only=dry_run)
    before, after = found.metadata_version_before, found.metadata_version
    change = f"could go from {before} to {after}" if dry_run else f"went from {before} to {after}"
    if before == after:
        change = f"{after} is already at the highest level that every node can follow"
    session.show(asdict(found) | {"dry_run": dry_run}, f"metadata.version {change}")
