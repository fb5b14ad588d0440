"""Frame of every command that calls a cluster: connect, call, print a result in one of two forms.

`cluster_command` adds --url and --format to a function and passes it a `CommandSession`. The
result of a command is JSON, as a rule a list of objects; its text is a table, whose columns name
fields of these objects, or a sentence about each.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from http_api.cli.options import (
    client_of,
    error_text,
    format_option,
    print_client_errors,
    print_json,
    url_option,
)
from http_api.client import admin
from http_api.client.calls import Call
from http_api.client.client_errors import ApiError
from http_api.client.transport import Client

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

UNKNOWN = "-"
"""Text of a value that is unknown or absent."""

Row = Mapping[str, Any]
"""A JSON object of a command's result."""
Columns = Mapping[str, str | Callable[[Row], object]]
"""Heading of a column → the field that it shows, or the function that returns its cell."""


class CommandSession:
    """Client of a cluster and form of the output, for one run of a command."""

    def __init__(self, client: Client, form: str) -> None:
        self.client = client
        self.form = form

    @functools.cached_property
    def cluster(self) -> admin.ClusterInfo:
        """The cluster at --url, read on first use."""
        return self.client.run(admin.cluster())

    def run(self, call: Call[T]) -> T:
        """Run a call and return its result; raises `QuorumlogError`."""
        return self.client.run(call)

    def call(
        self, make: Callable[Concatenate[str, P], Call[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run the call that ``make`` returns for this cluster's id and these arguments."""
        return self.client.run(make(self.cluster.cluster_id, *args, **kwargs))

    def show(self, value: object, text: str) -> None:
        """Print a result: the value as JSON, or its text."""
        if self.form == "json":
            print_json(value)
        else:
            click.echo(text)

    def show_rows(self, rows: Iterable[Row], columns: Columns) -> None:
        """Print a result as a JSON list or as a table."""
        rows = list(rows)
        self.show(rows, table(rows, columns))

    def for_each(
        self, names: Iterable[T], act: Callable[[T], Row], sentence: Callable[[Row], str]
    ) -> int:
        """Call ``act`` for every name and print the results; return the exit code.

        A name that fails does not stop the next, but makes the exit code 1.
        """
        done: list[Row] = []
        failed = False
        for name in names:
            try:
                row = act(name)
            except ApiError as error:
                click.echo(error_text(error, self.form), err=True)
                failed = True
                continue
            done.append(row)
            if self.form == "text":
                click.echo(sentence(row))
        if self.form == "json":
            print_json(done)
        return 1 if failed else 0


def cluster_command(command: Callable[Concatenate[CommandSession, P], R]) -> Callable[..., R]:
    """Add --url and --format to a command, and pass it a `CommandSession` as its first argument."""

    @url_option
    @format_option
    @print_client_errors
    @functools.wraps(command)
    def connected(*args: P.args, **kwargs: P.kwargs) -> R:
        form = str(kwargs.pop("form"))
        with client_of(str(kwargs.pop("url"))) as client:
            return command(CommandSession(client, form), *args, **kwargs)

    return connected


def table(rows: Iterable[Row], columns: Columns) -> str:
    """Return rows as columns under headings, each as wide as its longest cell."""
    lines = [
        list(columns),
        *(
            [cell_text(row[c] if isinstance(c, str) else c(row)) for c in columns.values()]
            for row in rows
        ),
    ]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def cell_text(value: object) -> str:
    """Return a value as text: an absent one as ``-``, several with commas between them."""
    if value is None:
        return UNKNOWN
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value)


def or_blank(field: str) -> Callable[[Row], object]:
    """Return the function for a column that is blank if the field is absent, empty or 0."""
    return lambda row: row[field] or ""


def or_dash(field: str) -> Callable[[Row], object]:
    """Return the function for a column that is ``-`` if the field is absent or empty."""
    return lambda row: row[field] or None
