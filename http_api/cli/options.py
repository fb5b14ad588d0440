"""Options many commands share, and how their errors are said."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from http_api.client.calls import ApiError, ClientError
from http_api.client.transport import DEFAULT_URL, Client
from raft_metadata.common.errors import Outcome

Command = TypeVar("Command", bound=Callable[..., Any])

URL_VARIABLE = "QUORUMLOG_URL"

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to print the result.",
)
url_option = click.option(
    "--url",
    "--bootstrap",
    "url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    help="One or several brokers, separated by commas.",
)
set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a setting; may be repeated.",
)


def client_of(url: str) -> Client:
    """A client for the brokers in ``--url``; a scheme may be left out."""
    urls = [part.strip() for part in url.split(",") if part.strip()]
    if not urls:
        msg = f"--url {url!r}: expected http://host:port"
        raise click.UsageError(msg)
    return Client([part if "://" in part else f"http://{part}" for part in urls])


def says_errors(command: Command) -> Command:
    """A `ClientError` becomes one line on standard error (or one JSON object) and exit code 1."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ClientError as error:
            click.echo(error_text(error, kwargs.get("form", "text")), err=True)
            return 1
        except BrokenPipeError:
            # whoever read our output has had enough: no failure, and nothing to flush at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    return wrapped  # type: ignore[return-value] # same signature by functools.wraps


def error_text(error: ClientError, form: str) -> str:
    """What went wrong and, for a write, what is certain about it."""
    code = error.code if isinstance(error, ApiError) else None
    if form == "json":
        content = {"error_code": code, "message": str(error), "outcome": error.outcome.value}
        return json.dumps(content)
    text = f"quorumlog: {error}"
    if code is not None:
        text += f" (error {code})"
    if error.outcome is Outcome.UNKNOWN:
        text += "\nquorumlog: it is not known whether this was done"
    return text


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(headings: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Columns as wide as they need to be; the last one is not padded."""
    lines = [headings, *(tuple(str(cell) for cell in row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def ids(numbers: tuple[int, ...]) -> str:
    """Broker ids as a column; blank when there are none."""
    return ",".join(str(number) for number in numbers)
