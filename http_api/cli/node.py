"""``quorumlog controller`` and ``controller rejoin``, and the options that start any node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from http_api.cli.options import format_option, print_json, set_option


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
