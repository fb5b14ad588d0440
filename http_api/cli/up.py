"""``quorumlog up``: format and run a whole cluster on this machine.

A module of its own because it imports the supervisor, which no other command needs.
"""

from __future__ import annotations

import os
from pathlib import Path

import click

from http_api.cli.options import examples, format_option, set_option
from http_api.cli.terminal import Progress, keep_log_lines_whole
from http_api.node.cluster_file import DEFAULT_PORT
from http_api.node.cluster_plan import DEFAULT_BROKERS, DEFAULT_CONTROLLERS, UpOptions
from http_api.node.local_cluster import run_format, run_up
from http_api.node.node_start import raise_open_file_limit, set_up_logging
from raft_metadata.common.clock import SystemClock


@examples(
    "quorumlog up",
    "quorumlog up --controllers 1 --brokers 1 --port 0 --data-dir ./one",
    "quorumlog up --set broker.session.timeout.ms=3000",
)
@click.command()
@click.option(
    "--controllers",
    type=int,
    help="Run 1, 3, 5 or 7 controllers.  [default: as many as the directory holds, else "
    f"{DEFAULT_CONTROLLERS}]",
)
@click.option(
    "--brokers",
    type=int,
    help="Run so many brokers; more than the directory holds are added.  [default: as many as it "
    f"holds, else {DEFAULT_BROKERS}]",
)
@click.option(
    "--port",
    type=int,
    help="Serve HTTP at port P for broker 1, P+i-1 for broker i; peers use P+1000, controllers "
    f"P+2000 and P+3000. 0 picks free ports.  [default: as before, else {DEFAULT_PORT}]",
)
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("quorumlog-data"),
    show_default=True,
    help="Keep everything in this directory; the same one is continued.",
)
@click.option("--no-restart", is_flag=True, help="Do not start a node again that has died.")
@click.option(
    "--format-only",
    is_flag=True,
    help="Make the folders, start nothing: each config.toml can be edited before the first start.",
)
@set_option
@format_option
def up(
    controllers: int | None,
    brokers: int | None,
    port: int | None,
    data_dir: Path,
    no_restart: bool,  # noqa: FBT001 a flag of the command line
    format_only: bool,  # noqa: FBT001
    overrides: tuple[str, ...],
    form: str,
) -> int:
    """Run a whole local cluster: controllers and brokers, on this machine only.

    Prints `quorumlog ready URL…` and the line `export QUORUMLOG_URL=…` once it serves. Ctrl-C stops
    it cleanly, a second one kills. A node that dies is started again. --set affects only nodes that
    are made now; for others edit config.toml.
    """
    raise_open_file_limit()
    set_up_logging("up")
    options = UpOptions(
        data_dir=data_dir.absolute(),
        controllers=controllers,
        brokers=brokers,
        port=port,
        restart=not no_restart,
        overrides=overrides,
    )
    if format_only:
        return run_format(options, os.environ, form)
    with Progress("brokers ready:", form=form) as progress:
        keep_log_lines_whole()

        def waiting(ready: int, brokers: int) -> None:
            progress.set(ready, brokers)
            if ready == brokers:
                progress.erase()

        return run_up(options, SystemClock(), os.environ, form, waiting)
