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
    BROKER,
    broker_arguments,
    examples,
    format_option,
    print_json,
    set_option,
    timeout_option,
    wait_option,
    wait_until,
)
from http_api.cli.partition import partition_cell
from http_api.cli.session import Columns, CommandSession, Row, cluster_command, or_blank
from http_api.cli.terminal import Progress
from http_api.client import admin

NAMED_MAX = 5
"""Most partitions that are named for one reason to wait."""


def _config_option(*, required: bool) -> Callable[[Callable[..., int]], Callable[..., int]]:
    return click.option(
        "--config",
        "path",
        type=click.Path(path_type=Path, dir_okay=False),
        required=required,
        help="Read the node's settings from this config.toml.",
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
    """Run one controller in the foreground, or let one rejoin.

    With --config it runs; --format json writes its log as JSON lines.
    """
    if context.invoked_subcommand is not None:
        return 0
    if path is None:
        msg = "expected --config FILE, or a command: rejoin"
        raise click.UsageError(msg, context)
    from http_api.node.controller_node import run_controller

    return run_controller(path, overrides, insecure=insecure, json_log=form == "json")


@examples("quorumlog controller rejoin --config quorumlog-data/controller-101/config.toml")
@controller.command()
@_config_option(required=True)
@format_option
def rejoin(path: Path, form: str) -> int:
    """Format the folder of a controller that lost its disk.

    The controller may then join again. All other controllers must be running: each records the new
    directory, and the controller asks each for its term before it takes part. Under `quorumlog up`
    it then starts by itself.
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
    """Run one broker in the foreground; list, describe, drain brokers.

    With --config it runs, and --format json writes its log as JSON lines. The commands below talk
    to a cluster at --url.
    """
    if context.invoked_subcommand is not None:
        return 0
    if path is None:
        msg = "expected --config FILE, or a command: list, describe, drain, undrain, unregister"
        raise click.UsageError(msg, context)
    from http_api.node.broker_node import run_broker

    return run_broker(path, overrides, insecure=insecure, json_log=form == "json")


@examples("quorumlog broker list", "quorumlog broker list --all --format json")
@broker.command("list")
@click.option("-a", "--all", "include_all", is_flag=True, help="Show brokers that are down, too.")
@cluster_command
def list_brokers(session: CommandSession, include_all: bool) -> None:  # noqa: FBT001 a flag
    """List the brokers with their state and their partitions."""
    found = session.call(admin.brokers, include_all=include_all)
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


@examples("quorumlog broker describe broker-1")
@broker.command()
@broker_arguments
@cluster_command
def describe(session: CommandSession, broker_ids: tuple[int, ...]) -> int:
    """Show brokers, and how far their drains are."""
    return session.for_each(
        broker_ids, lambda one: _row(session.call(admin.broker, one)), _description_lines
    )


@examples("quorumlog broker drain broker-3 --wait")
@broker.command()
@click.argument("broker_id", metavar="BROKER", type=BROKER)
@click.option(
    "--scope",
    type=click.Choice(["leaders", "replicas"]),
    default="leaders",
    show_default=True,
    help="Move its leaderships away, for maintenance, or its replicas too, to take it out.",
)
@wait_option
@timeout_option
@cluster_command
def drain(
    session: CommandSession,
    broker_id: int,
    scope: str,
    wait: bool,  # noqa: FBT001 a flag of the command line
    timeout_ms: int,
) -> int:
    """Move leaderships, or all replicas, away from a broker.

    It stays so until `undrain`. The moves go on after the command has ended.
    """
    latest = session.call(admin.drain, broker_id, scope)
    with Progress("drained", form=session.form) as progress:

        def is_done() -> bool:
            nonlocal latest
            latest = session.call(admin.broker, broker_id)
            progress.set(*_moved(latest))
            return latest.progress is None or latest.progress.is_done

        progress.set(*_moved(latest))
        done = not wait or wait_until(is_done, timeout_ms)
    row = _row(latest)
    # Without --wait the moves have only begun: reasons are no news yet.
    session.show(row, _description_lines(row, with_reasons=wait))
    if not done:
        click.echo(f"quorumlog: not drained within {timeout_ms / 1000:g} s; it goes on", err=True)
    return 0 if done else 1


def _moved(found: admin.BrokerDetails) -> tuple[int, int]:
    """Return how many partitions a drain has moved, of those that the broker had or still has."""
    progress = found.progress
    if progress is None:
        return 0, 0
    left = progress.leaders_left + progress.replicas_left
    return max(0, found.info.replica_count - left), found.info.replica_count


@examples("quorumlog broker undrain broker-3")
@broker.command()
@broker_arguments
@cluster_command
def undrain(session: CommandSession, broker_ids: tuple[int, ...]) -> int:
    """End drains: the brokers may lead and hold partitions again.

    Only the leaderships for which a broker is preferred move back by themselves.
    """
    return session.for_each(
        broker_ids, lambda one: _row(session.call(admin.drain, one, "none")), _description_lines
    )


@examples("quorumlog broker unregister broker-4")
@broker.command()
@broker_arguments
@cluster_command
def unregister(session: CommandSession, broker_ids: tuple[int, ...]) -> int:
    """Take brokers out for good.

    A broker that is alive, or that holds replicas, is refused: drain it and stop it first.
    """

    def remove(broker_id: int) -> dict[str, object]:
        session.call(admin.unregister, broker_id)
        return {"broker_id": broker_id}

    return session.for_each(broker_ids, remove, lambda row: f"unregistered {row['broker_id']}")


def _row(found: admin.BrokerDetails) -> dict[str, object]:
    progress = None if found.progress is None else asdict(found.progress)
    return asdict(found.info) | {"drain_progress": progress}


def _description_lines(row: Row, *, with_reasons: bool = True) -> str:
    """Return a line about the broker, one about its drain, and one for each reason to wait."""
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
        waiting: dict[str, list[str]] = {}
        for one in progress["stuck"] if with_reasons else ():
            waiting.setdefault(one["reason"], []).append(partition_cell(one))
        lines += [f"{_few(places)}: {reason}" for reason, places in waiting.items()]
    return "\n".join(lines)


def _few(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more
