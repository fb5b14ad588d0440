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

import click

from http_api.cli.options import (
    format_option,
    print_json,
    set_option,
    timeout_option,
    wait_option,
    wait_until,
)
from http_api.cli.session import Columns, CommandSession, Row, cluster_command, or_blank
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
@cluster_command
def list_brokers(session: CommandSession, everyone: bool) -> None:  # noqa: FBT001 a flag
    """List the brokers with their state and their share of the partitions."""
    found = session.call(admin.brokers, include_all=everyone)
    session.show_rows(map(asdict, found), BROKER_COLUMNS)


BROKER_COLUMNS: Columns = {
    "BROKER": "broker_id",
    "URL": "url",
    "RACK": or_blank("rack"),
    "STATE": "state",
    "DRAIN": lambda row: "" if row["drain"] == "none" else row["drain"],
    "LEADS": "leader_count",
    "REPLICAS": "replica_count",
}


@broker.command()
@click.argument("broker_ids", metavar="BROKER...", nargs=-1, required=True, type=int)
@cluster_command
def describe(session: CommandSession, broker_ids: tuple[int, ...]) -> int:
    """Show a broker, and how far its drain is."""
    return session.for_each(
        broker_ids, lambda one: _row(session.call(admin.broker, one)), _description_lines
    )


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
@cluster_command
def drain(
    session: CommandSession,
    broker_id: int,
    scope: str,
    wait: bool,  # noqa: FBT001 a flag of the command line
    timeout_s: float,
) -> int:
    """Rid a broker of its leaderships (for maintenance) or of its replicas (to take it out).

    It stays so until `undrain`. The moves go on after the command has ended.
    """
    latest = session.call(admin.drain, broker_id, scope)

    def is_done() -> bool:
        nonlocal latest
        latest = session.call(admin.broker, broker_id)
        return latest.progress is None or latest.progress.is_done

    done = not wait or wait_until(is_done, timeout_s)
    row = _row(latest)
    session.show(row, _description_lines(row))
    if not done:
        click.echo(f"quorumlog: not drained within {timeout_s:g} s; it goes on", err=True)
    return 0 if done else 1


@broker.command()
@click.argument("broker_ids", metavar="BROKER...", nargs=-1, required=True, type=int)
@cluster_command
def undrain(session: CommandSession, broker_ids: tuple[int, ...]) -> int:
    """End a drain: the broker may lead and hold partitions again.

    Nothing moves back by itself but the leaderships it is preferred for.
    """
    return session.for_each(
        broker_ids, lambda one: _row(session.call(admin.drain, one, "none")), _description_lines
    )


@broker.command()
@click.argument("broker_ids", metavar="BROKER...", nargs=-1, required=True, type=int)
@cluster_command
def unregister(session: CommandSession, broker_ids: tuple[int, ...]) -> int:
    """Take brokers out for good. One that lives or holds replicas is refused: drain and stop it."""

    def remove(broker_id: int) -> dict[str, object]:
        session.call(admin.unregister, broker_id)
        return {"broker_id": broker_id}

    return session.for_each(broker_ids, remove, lambda row: f"unregistered {row['broker_id']}")


def _row(found: admin.BrokerDetails) -> dict[str, object]:
    progress = None if found.progress is None else asdict(found.progress)
    return asdict(found.info) | {"drain_progress": progress}


def _description_lines(row: Row) -> str:
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
