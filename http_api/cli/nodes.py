"""``quorumlog broker`` and ``quorumlog controller``: run a node, or look after such nodes.

With --config the process becomes a broker or a controller. `broker list | describe | drain |
undrain | unregister` call a running cluster; `controller rejoin` formats the folder of a controller
that lost its disk.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from http_api.cli.options import (
    client_of,
    format_option,
    print_client_errors,
    print_json,
    print_table,
    run_for_each,
    set_option,
    timeout_option,
    url_option,
    wait_option,
    wait_until,
)
from http_api.client import admin


def _config_option(*, required: bool) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option(
        "--config",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        required=required,
        help="The node's config.toml.",
    )


insecure_option = click.option(
    "--insecure",
    is_flag=True,
    help="Allow listeners that other machines can reach, without TLS and authentication.",
)


def node_group(command: Callable[..., int]) -> click.Group:
    """Return a command that runs a node, and is the group of the subcommands about such nodes."""
    command = click.pass_context(command)
    for option in (format_option, insecure_option, set_option, _config_option(required=False)):
        command = option(command)
    return click.group(invoke_without_command=True)(command)


@node_group
def controller(
    context: click.Context,
    path: Path | None,
    overrides: tuple[str, ...],
    insecure: bool,  # noqa: FBT001 a flag of the command line
    form: str,
) -> int:
    """Run one controller in the foreground. --format json: the log as JSON lines."""
    if context.invoked_subcommand is not None:
        return 0
    if path is None:
        msg = "Missing option '--config'."
        raise click.UsageError(msg, context)
    from http_api.node.controller_node import run_controller

    return run_controller(path, overrides, insecure=insecure, json_log=form == "json")


@controller.command()
@_config_option(required=True)
@format_option
def rejoin(path: Path, form: str) -> int:
    """Format the folder of a controller that lost its disk, so that it may join again.

    All other controllers must be running: each is told the new directory, and the controller asks
    each for its term before it takes part. Under `quorumlog up` it then starts by itself.
    """
    from http_api.node.rejoin import rejoin_controller

    meta = rejoin_controller(path, os.environ)
    if form == "json":
        print_json({"node_id": meta.node_id, "directory_id": meta.directory_id})
    else:
        click.echo(f"controller {meta.node_id} may join again, directory {meta.directory_id}")
    return 0


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
@print_client_errors
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
@print_client_errors
def describe(broker_ids: tuple[int, ...], url: str, form: str) -> int:
    """Show a broker, and how far its drain is."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def read(name: str) -> dict[str, object]:
            return _row(client.run(admin.broker(cluster_id, int(name))))

        return run_for_each(map(str, broker_ids), read, form, _description_lines)


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
@print_client_errors
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
        latest = client.run(admin.drain(cluster_id, broker_id, scope))

        def is_done() -> bool:
            nonlocal latest
            latest = client.run(admin.broker(cluster_id, broker_id))
            return latest.progress is None or latest.progress.is_done

        done = not wait or wait_until(is_done, timeout_s)
    if form == "json":
        print_json(_row(latest))
    else:
        click.echo(_description_lines(_row(latest)))
    if not done:
        click.echo(f"quorumlog: not drained within {timeout_s:g} s; it goes on", err=True)
    return 0 if done else 1


@broker.command()
@click.argument("broker_ids", metavar="BROKER...", nargs=-1, required=True, type=int)
@url_option
@format_option
@print_client_errors
def undrain(broker_ids: tuple[int, ...], url: str, form: str) -> int:
    """End a drain: the broker may lead and hold partitions again.

    Nothing moves back by itself but the leaderships it is preferred for.
    """
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def end(name: str) -> dict[str, object]:
            return _row(client.run(admin.drain(cluster_id, int(name), "none")))

        return run_for_each(map(str, broker_ids), end, form, _description_lines)


@broker.command()
@click.argument("broker_ids", metavar="BROKER...", nargs=-1, required=True, type=int)
@url_option
@format_option
@print_client_errors
def unregister(broker_ids: tuple[int, ...], url: str, form: str) -> int:
    """Take brokers out for good. One that lives or holds replicas is refused: drain and stop it."""
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def remove(name: str) -> dict[str, object]:
            client.run(admin.unregister(cluster_id, int(name)))
            return {"broker_id": int(name)}

        return run_for_each(
            map(str, broker_ids), remove, form, lambda row: f"unregistered {row['broker_id']}"
        )


def _row(found: admin.BrokerDetails) -> dict[str, object]:
    progress = None if found.progress is None else asdict(found.progress)
    return asdict(found.info) | {"drain_progress": progress}


def _description_lines(row: dict[str, Any]) -> str:
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
