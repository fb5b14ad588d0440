"""``quorumlog cluster health``: a verdict for people, and an exit code for scripts.

Reads the cluster's health once, or repeatedly with --watch, and prints it when it changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from http_api.cli.options import client_of, error_text, format_option, url_option
from http_api.client import admin
from http_api.client import metadata as calls
from http_api.client.calls import ApiError, ClientError
from http_api.client.transport import Client

EXIT_HEALTHY = 0
EXIT_DEGRADED = 1
EXIT_UNHEALTHY = 3
"""3, because 2 is wrong usage in every command."""
EXIT_NO_ANSWER = 69
EXITS = {"healthy": EXIT_HEALTHY, "degraded": EXIT_DEGRADED, "unhealthy": EXIT_UNHEALTHY}
ONE_TRY_S = 3.0
"""Seconds for which a call is retried before the verdict is that no broker answers."""


@click.command()
@click.option("--watch", is_flag=True, help="Ask again and again; print whatever changes.")
@click.option("--exit-when-healthy", is_flag=True, help="Watch until it is healthy, then end.")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    help="Seconds to watch at most; then the exit code says how it was at the end.",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two questions of a watch.",
)
@url_option
@format_option
def health(
    watch: bool,  # noqa: FBT001 a flag of the command line
    exit_when_healthy: bool,  # noqa: FBT001 a flag of the command line
    timeout_s: float | None,
    interval_s: float,
    url: str,
    form: str,
) -> int:
    """Say whether the cluster is well, and if not, why.

    Exit codes: 0 healthy, 1 degraded, 3 unhealthy, 69 nobody answers, 2 wrong usage.
    """
    if timeout_s is not None and not (watch or exit_when_healthy):
        msg = "--timeout goes with --watch or --exit-when-healthy"
        raise click.UsageError(msg)
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    shown: object = None
    with client_of(url) as client:
        while True:
            code, body, why = _ask(client, form)
            said = (code, None if body is None else [r["message"] for r in body["reasons"]])
            if said != shown:
                _print(body, why, form)
                shown = said
            done = exit_when_healthy and code == EXIT_HEALTHY
            late = until_s is not None and time.monotonic() + interval_s > until_s
            if done or late or not (watch or exit_when_healthy):
                return code
            time.sleep(interval_s)


def _ask(client: Client, form: str) -> tuple[int, dict[str, Any] | None, str]:
    """Read the health; return (exit code, the verdict or None, the error text if None)."""
    try:
        cluster_id = client.run(admin.cluster(), retry_s=ONE_TRY_S).cluster_id
        body = client.run(calls.health(cluster_id), retry_s=ONE_TRY_S)
        return EXITS[body["status"]], body, ""
    except ApiError as error:
        # A server answers, but not this call: an older broker, or another service.
        return EXIT_NO_ANSWER, None, error_text(error, form)
    except (ClientError, KeyError) as error:
        said = error_text(error, form) if isinstance(error, ClientError) else repr(error)
        return EXIT_NO_ANSWER, None, said


def _print(body: dict[str, Any] | None, why: str, form: str) -> None:
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
        f"{counts['at_min_isr_partitions']} at it"
    )
    lines = [
        str(body["status"]),
        f"active controller {controller}, {quorum} unreachable",
        f"{brokers}; {partitions}",
    ]
    for name, words in (
        ("reassigning_partitions", "partitions are being reassigned"),
        ("preferred_leader_imbalance", "partitions are not led by their preferred leader"),
    ):
        if counts[name]:
            lines.append(f"{counts[name]} {words}")
    lines += [f"{one['status']}: {one['code']}: {one['message']}" for one in body["reasons"]]
    return "\n".join(lines)
