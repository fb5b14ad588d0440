"""``quorumlog broker``: run one broker, or list, describe, drain, undrain and unregister brokers.

With --config the process becomes a broker; the subcommands make calls of
`http_api.client.admin_brokers` to a running cluster.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from http_api.cli.node import node_group
from http_api.cli.options import (
    client_of,
    each,
    format_option,
    poll,
    print_json,
    print_table,
    says_errors,
    timeout_option,
    url_option,
    wait_option,
)
from http_api.client import admin, admin_brokers


@node_group
def broker(
    context: click.Context,
    path: Path | None,
    overrides: tuple[str, ...],
    insecure: bool,  # noqa: FBT001 a flag of the command line
    form: str,
) -> int:
    """Run one broker in the foreground (--format json: the log as JSON lines), or look after them.

    With --config it runs; the commands below talk to a cluster at --url.
    """
    if context.invoked_subcommand is not None:
        return 0
    if path is None:
        msg = "Missing option '--config', or a command."
        raise click.UsageError(msg, context)
    from http_api.node.broker_node import run_broker

    return run_broker(path, overrides, insecure=insecure, json_log=form == "json")


@broker.command("list")
@click.option("-a", "--all", "everyone", is_flag=True, help="Those that are not alive, too.")
@url_option
@format_option
@says_errors
def list_brokers(everyone: bool, url: str, form: str) -> None:  # noqa: FBT001 a flag
    """List the brokers with their state and their share of the partitions."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(admin.brokers(cluster_id, include_all=everyone))
    if form == "json":
        print_json([asdict(item) for item in found])
        return
    rows: list[tuple[object, ...]] = [
        (
            *(item.broker_id, item.url, item.rack or "", item.state),
            *("" if item.drain == "none" else item.drain, item.leader_count, item.replica_count),
        )
        for item in found
    ]
    print_table(("BROKER", "URL", "RACK", "STATE", "DRAIN", "LEADS", "REPLICAS"), rows)


@broker.command()
@click.argument("broker_ids", metavar="BROKER...", nargs=-1, required=True, type=int)
@url_option
@format_option
@says_errors
def describe(broker_ids: tuple[int, ...], url: str, form: str) -> int:
    """Show a broker, and how far its drain is."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def read(name: str) -> dict[str, object]:
            return _row(client.run(admin_brokers.broker(cluster_id, int(name))))

        return each(map(str, broker_ids), read, form, _described)


@broker.command()
@click.argument("broker_id", metavar="BROKER", type=int)
@click.option(
    "--scope",
    type=click.Choice(["leaders", "replicas"]),
    default="leaders",
    show_default=True,
    help="leaders: it leads nothing; replicas: it holds nothing.",
)
@wait_option
@timeout_option
@url_option
@format_option
@says_errors
def drain(
    broker_id: int,
    scope: str,
    wait: bool,  # noqa: FBT001 a flag of the command line
    timeout_s: float,
    url: str,
    form: str,
) -> int:
    """Rid a broker of its leaderships (for maintenance) or of its replicas (to take it out).

    It stays so until `undrain`. The moves go on after the command has ended.
    """
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        latest = client.run(admin_brokers.drain(cluster_id, broker_id, scope))

        def is_done() -> bool:
            nonlocal latest
            latest = client.run(admin_brokers.broker(cluster_id, broker_id))
            return latest.progress is None or latest.progress.is_done

        done = not wait or poll(is_done, timeout_s)
    if form == "json":
        print_json(_row(latest))
    else:
        click.echo(_described(_row(latest)))
    if not done:
        click.echo(f"quorumlog: not drained within {timeout_s:g} s; it goes on", err=True)
    return 0 if done else 1


@broker.command()
@click.argument("broker_ids", metavar="BROKER...", nargs=-1, required=True, type=int)
@url_option
@format_option
@says_errors
def undrain(broker_ids: tuple[int, ...], url: str, form: str) -> int:
    """End a drain: the broker may lead and hold partitions again.

    Nothing moves back by itself but the leaderships it is preferred for.
    """
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def end(name: str) -> dict[str, object]:
            return _row(client.run(admin_brokers.drain(cluster_id, int(name), "none")))

        return each(map(str, broker_ids), end, form, _described)


@broker.command()
@click.argument("broker_ids", metavar="BROKER...", nargs=-1, required=True, type=int)
@url_option
@format_option
@says_errors
def unregister(broker_ids: tuple[int, ...], url: str, form: str) -> int:
    """Take brokers out for good. One that lives or holds replicas is refused: drain and stop it."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def remove(name: str) -> dict[str, object]:
            client.run(admin_brokers.unregister(cluster_id, int(name)))
            return {"broker_id": int(name)}

        return each(
            map(str, broker_ids), remove, form, lambda row: f"unregistered {row['broker_id']}"
        )


def _row(found: admin_brokers.BrokerDetails) -> dict[str, object]:
    progress = None if found.progress is None else asdict(found.progress)
    return asdict(found.info) | {"drain_progress": progress}


def _described(row: dict[str, Any]) -> str:
    """Return a line about the broker, its drain, and a line per partition it could not move yet."""
    share = f"leads={row['leader_count']} replicas={row['replica_count']}"
    state = f"state={row['state']} drain={row['drain']}"
    lines = [f"broker {row['broker_id']} {row['url']} {state} {share}"]
    progress = row["drain_progress"]
    if progress is not None:
        so_far = "done" if progress["is_done"] else "under way"
        lines.append(
            f"drain {so_far} leaders_left={progress['leaders_left']} "
            f"replicas_left={progress['replicas_left']}"
        )
        lines += [
            f"{one['topic']}-{one['partition']}: {one['reason']}" for one in progress["stuck"]
        ]
    return "\n".join(lines)
