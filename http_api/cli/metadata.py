"""``quorumlog metadata dump | get``: the metadata log as readable facts, any part of the image.

Facts come from a broker, or with --dir from the folder of a stopped controller (`offline_dump`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from http_api.cli.fact_lines import line_of
from http_api.cli.options import client_of, format_option, print_json, says_errors, url_option
from http_api.client import admin
from http_api.client import metadata as calls
from http_api.client.transport import Client

FOLLOW_WAIT_MS = 20_000
"""Milliseconds that each long poll of ``--follow`` waits for a fact."""


@click.group()
def metadata() -> None:
    """Read the metadata log and the image it leads to."""


@metadata.command()
@click.option("--from", "start", type=click.IntRange(min=0), default=0, help="First offset.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more at the end, until interrupted.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Read the folder of a stopped controller instead of asking a broker.",
)
@click.option(
    "--force", is_flag=True, help="With --dir: read it although a running controller writes there."
)
@url_option
@format_option
@says_errors
def dump(
    start: int,
    follow: bool,  # noqa: FBT001 a flag of the command line
    directory: Path | None,
    force: bool,  # noqa: FBT001 a flag of the command line
    url: str,
    form: str,
) -> None:
    """Print the log as one fact a line: offset, epoch, time, what happened.

    Where --from is older than what the controllers keep, the facts of a snapshot come first.
    """
    if directory is not None:
        if follow:
            msg = "--dir reads what is there once: it can't be combined with --follow"
            raise click.UsageError(msg)
        _dump_directory(directory, start, form, force=force)
        return
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        _dump_log(client, cluster_id, start, form, follow=follow)


def _dump_log(client: Client, cluster_id: str, start: int, form: str, *, follow: bool) -> None:
    offset = start
    while True:
        page = client.run(calls.log(cluster_id, offset, wait_ms=FOLLOW_WAIT_MS if follow else 0))
        _print(page.facts, form)
        offset = page.next_offset
        if not follow and (not page.facts or offset >= page.end_offset):
            return


def _dump_directory(directory: Path, start: int, form: str, *, force: bool) -> None:
    """Print the facts in a controller's folder.

    The quorum's files are imported here, because no other command needs them.
    """
    from http_api.cli.offline_dump import facts_of, open_log

    log = open_log(directory, even_if_locked=force)
    _print(facts_of(log, start), form)
    note = (
        f"controller {log.node_id} of cluster {log.cluster_id}: snapshot up to entry "
        f"{log.snapshot_index}, journal up to entry {log.last_index} of term {log.last_term}; "
        "only a running quorum knows which of the newest entries are committed"
    )
    if log.torn_bytes:
        note += f"; {log.torn_bytes} torn bytes at the end are left out"
    click.echo(note, err=True)


def _print(facts: Iterable[Mapping[str, Any]], form: str) -> None:
    for fact in facts:
        click.echo(json.dumps(fact, ensure_ascii=False) if form == "json" else line_of(fact))


@metadata.command()
@click.argument("path", default="/")
@url_option
@format_option
@says_errors
def get(path: str, url: str, form: str) -> None:
    """Print any place of the image as JSON: /brokers/1, /topics/orders/partitions/0/isr, /features.

    Without PATH the whole image. A path that is not there names what there is.
    """
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(calls.image(cluster_id, [part for part in path.split("/") if part]))
    if form == "json":
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        print_json(found)
