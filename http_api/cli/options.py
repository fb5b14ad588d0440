"""Options, error texts and output formats that the commands share."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, assert_never
from urllib.parse import unquote

import click
from typing_extensions import override

from http_api.client.admin import brokers, cluster
from http_api.client.client_errors import ApiError, QuorumlogError
from http_api.client.consumer import PartitionEnds, offset_at
from http_api.client.transport import DEFAULT_URL, Client
from http_api.contract import grammar
from http_api.contract.errors import RestCode
from http_api.contract.grammar import (
    AtOffset,
    Earliest,
    FromTime,
    LastRecords,
    Latest,
    Position,
)
from raft_metadata.common.errors import Outcome

Command = TypeVar("Command", bound=Callable[..., Any])

POLL_S = 0.5
"""Seconds between two polls of ``--wait``."""
WAIT_MS = 600_000

URL_VARIABLE = "QUORUMLOG_URL"
ALL_TOPICS = "-"
"""In a path: all topics."""
_NOT_FOUND = frozenset(
    {
        RestCode.TOPIC_NOT_FOUND,
        RestCode.PARTITION_NOT_FOUND,
        RestCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)


class GrammarType(click.ParamType):  # type: ignore[type-arg] # generic in newer versions
    """Type of an argument or option that a function of `http_api.contract.grammar` parses."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    @override
    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> object:
        if not isinstance(value, str):
            return value  # a default
        try:
            return self._parse(value)
        except grammar.GrammarError as error:
            self.fail(str(error), param, ctx)


TOPIC = GrammarType("topic", grammar.parse_topic)
SELECTION = GrammarType("topic[:p,…]", grammar.parse_selection)
PARTITIONS = GrammarType("topic:p[,p…]", grammar.parse_partitions)
PARTITION = GrammarType("topic:p", grammar.parse_partition)
RECORD = GrammarType("topic:p:offset", grammar.parse_record)
POSITION = GrammarType("position", grammar.parse_position)
DURATION_MS = GrammarType("duration", grammar.parse_duration_ms)
"""Milliseconds, as an int; a bare number is in seconds."""
SIZE_BYTES = GrammarType("size", grammar.parse_size_bytes)
BROKER = GrammarType("broker", grammar.parse_broker)
BROKERS = GrammarType("broker,broker…", grammar.parse_brokers)


def examples(*lines: str) -> Callable[[click.Command], click.Command]:
    """Add examples to the end of a command's help; put it above ``@group.command()``.

    Each line is a whole shell command that runs as it is against the cluster of
    ``tests/integration/test_command_examples.py``, which runs every one of them.
    """

    def add(command: click.Command) -> click.Command:
        command.epilog = "\b\n" + "\n".join(["Examples:", *(f"  {line}" for line in lines)])
        return command

    return add


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Print the result as text or as JSON.",
)
url_option = click.option(
    "--url",
    "--bootstrap",
    "url",
    envvar=URL_VARIABLE,
    default=DEFAULT_URL,
    show_default=True,
    show_envvar=True,
    help="Ask these brokers, separated by commas, one after the other.",
)
wait_option = click.option("--wait", is_flag=True, help="Wait until it is done.")
timeout_option = click.option(
    "--timeout",
    "timeout_ms",
    type=DURATION_MS,
    default=WAIT_MS,
    show_default="10m",
    help="With --wait: exit 1 after this long.",
)
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Check whether it can be done, and change nothing."
)
broker_arguments = click.argument(
    "broker_ids", metavar="BROKER...", nargs=-1, required=True, type=BROKER
)
set_option = click.option(
    "--set",
    "overrides",
    metavar="KEY=VALUE",
    multiple=True,
    help="Override a setting of config.toml; may be repeated.",
)


def client_of(url: str) -> Client:
    """Return a client for the brokers in ``--url``; the scheme may be missing."""
    urls = [part.strip() for part in url.split(",") if part.strip()]
    if not urls:
        msg = f"--url {url!r}: expected http://host:port"
        raise click.UsageError(msg)
    return Client([part if "://" in part else f"http://{part}" for part in urls])


def learn_brokers(client: Client) -> None:
    """Add all brokers to the client, so that a long command survives the broker in --url."""
    found = client.run(cluster())
    client.routes.add_brokers(broker.url for broker in client.run(brokers(found.cluster_id)))


def print_client_errors(command: Command) -> Command:
    """Wrap a command so that it prints a `QuorumlogError`, as a line or as JSON; exit code 1."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except QuorumlogError as error:
            click.echo(error_text(error, kwargs.get("form", "text")), err=True)
            return 1
        except BrokenPipeError:
            # The reader of our output has closed it: no failure, and nothing to flush at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    return wrapped  # type: ignore[return-value] # same signature by functools.wraps


def error_text(error: QuorumlogError, form: str) -> str:
    """Return the text of an error, and for a write whether its outcome is known."""
    code = error.code if isinstance(error, ApiError) else None
    message = _not_found_text(error) or str(error)
    if form == "json":
        content = {"error_code": code, "message": message, "outcome": error.outcome.value}
        return json.dumps(content)
    text = f"quorumlog: {message}"
    if code is not None:
        text += f" (error {code})"
    if error.outcome is Outcome.UNKNOWN:
        text += "\nquorumlog: it is not known whether this was done"
    return text


def _not_found_text(error: QuorumlogError) -> str | None:
    """Return what was not found, by the path of the request; None for another error.

    Confluent's message names no topic, and a command may have named several.
    """
    if not isinstance(error, ApiError) or error.code not in _NOT_FOUND:
        return None
    _, found, place = error.path.partition("?")[0].partition("/topics/")
    topic, *more = map(unquote, place.split("/"))
    if not found or topic == ALL_TOPICS:
        return None
    if more[:1] == ["partitions"] and more[1:] and error.code == RestCode.PARTITION_NOT_FOUND:
        return f"Partition '{topic}:{more[1].partition(':')[0]}' not found"
    return f"Topic '{topic}' not found"


def wait_until(is_done: Callable[[], bool], timeout_ms: int) -> bool:
    """Call ``is_done`` until it returns True; return False if it does not within the time."""
    deadline_s = time.monotonic() + timeout_ms / 1000
    while not is_done():
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(POLL_S, left_s))
    return True


def resolve_position(
    client: Client, topic: str, partition: int, position: Position, limits: PartitionEnds
) -> int:
    """Return the offset of a position in a partition; an offset is returned as it is."""
    match position:
        case Earliest():
            return limits.beginning
        case Latest():
            return limits.end
        case AtOffset():
            return position.offset
        case LastRecords():
            return max(limits.beginning, limits.end - position.count)
        case FromTime():
            return client.run(offset_at(topic, partition, position.timestamp_ms))
        case _:
            assert_never(position)


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return ``KEY=VALUE`` arguments as a dict."""
    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            msg = f"{option} {text!r}: expected NAME=VALUE, as in retention.ms=1h"
            raise click.UsageError(msg)
        found[key] = value
    return found


def parse_configs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Return ``NAME=VALUE`` configs as a dict, with units of times and sizes expanded."""
    found = parse_pairs(texts, option)
    try:
        return {name: grammar.expand_config_value(name, value) for name, value in found.items()}
    except grammar.GrammarError as error:
        msg = f"{option} {error}"
        raise click.UsageError(msg) from error


def print_json(value: object) -> None:
    """Print a value as an indented JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))
