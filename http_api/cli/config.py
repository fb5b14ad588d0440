"""``quorumlog config list | describe | set | reset``, of a topic, a broker or the cluster.

The first words of a command name the resource (`topic orders`, `broker 1`, `cluster`); the rest are
names or NAME=VALUE arguments.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from http_api.cli.options import dry_run_option, examples, parse_configs
from http_api.cli.session import Columns, CommandSession, Row, cluster_command
from http_api.client import admin
from http_api.client.admin import ConfigInfo, ConfigPlace
from http_api.client.client_errors import ApiError
from http_api.contract.grammar import GrammarError, parse_broker

PLACE = "{topic TOPIC | broker BROKER | cluster}"
PLACE_OR_ALL = "{topic TOPIC | broker BROKER | brokers | cluster}"


@click.group()
def config() -> None:
    """List, describe, set and reset configs.

    Whose: `topic TOPIC`, `broker BROKER` or `cluster` (all brokers, and the defaults of topics).
    """


@examples(
    "quorumlog config list topic orders",
    "quorumlog config list cluster --changed",
    "quorumlog config list brokers --format json",
)
@config.command("list")
@click.argument("words", metavar=PLACE_OR_ALL, nargs=-1, required=True)
@click.option("--changed", is_flag=True, help="Show only values that are not the default.")
@cluster_command
def list_configs(session: CommandSession, words: tuple[str, ...], changed: bool) -> None:  # noqa: FBT001 a flag
    """List the values in force, and where each is set."""
    place, rest = _parse_place(words, writing=False)
    _refuse_words(rest)
    found = session.call(admin.configs, place)
    several: Columns = {"BROKER": "broker_id"} if words[0] == "brokers" else {}
    session.show_rows(
        (_row(one) for one in found if not (changed and one.is_default)), {**several, **COLUMNS}
    )


@examples(
    "quorumlog config describe topic orders retention.ms",
    "quorumlog config describe cluster",
)
@config.command()
@click.argument("words", metavar=f"{PLACE} [NAME...]", nargs=-1, required=True)
@cluster_command
def describe(session: CommandSession, words: tuple[str, ...]) -> int:
    """Show configs with meaning, range, and where they are set."""
    place, names = _parse_place(words, writing=True)
    if not names:
        found = [_row(one) for one in session.call(admin.configs, place)]
        session.show(found, "\n".join(map(_description_lines, found)))
        return 0
    return session.for_each(
        names, lambda name: _row(session.call(admin.config, place, name)), _description_lines
    )


@examples(
    "quorumlog config set topic weblog retention.ms=1h segment.bytes=64MiB",
    "quorumlog config set broker broker-1 segment.ms=1d --dry-run",
)
@config.command("set")
@click.argument("words", metavar=f"{PLACE} NAME=VALUE...", nargs=-1, required=True)
@dry_run_option
@cluster_command
def set_configs(session: CommandSession, words: tuple[str, ...], dry_run: bool) -> None:  # noqa: FBT001 a flag
    """Set configs: all of them, or none if one is refused.

    A value in milliseconds or bytes takes a unit: 1h, 7d, 64MiB.
    """
    place, texts = _parse_place(words, writing=True)
    _require_words(texts, "NAME=VALUE", "retention.ms=1h")
    _alter(session, place, dict(parse_configs(texts, "set")), dry_run=dry_run)


@examples("quorumlog config reset topic weblog retention.ms")
@config.command()
@click.argument("words", metavar=f"{PLACE} NAME...", nargs=-1, required=True)
@dry_run_option
@cluster_command
def reset(session: CommandSession, words: tuple[str, ...], dry_run: bool) -> None:  # noqa: FBT001 a flag
    """Remove values, so that the next source or the default holds."""
    place, names = _parse_place(words, writing=True)
    _require_words(names, "NAME", "retention.ms")
    _alter(session, place, dict.fromkeys(names), dry_run=dry_run)


UNITS = {"in milliseconds": "1h, 7d", "in bytes": "64KiB, 1GB"}
"""End of the text with which the cluster refuses a number → units that this command takes."""


def _alter(
    session: CommandSession, place: ConfigPlace, changes: dict[str, str | None], *, dry_run: bool
) -> None:
    try:
        session.call(admin.alter_configs, place, changes, validate_only=dry_run)
    except ApiError as error:
        for end, units in UNITS.items():
            if str(error).endswith(end):
                error.args = (f"{error}, or with a unit: {units}",)
        raise
    could = "could be " if dry_run else ""
    session.show(
        [{"name": name, "value": value, "dry_run": dry_run} for name, value in changes.items()],
        "\n".join(
            f"{could}reset {name}" if value is None else f"{could}set {name}={value}"
            for name, value in changes.items()
        ),
    )


def _parse_place(words: tuple[str, ...], *, writing: bool) -> tuple[ConfigPlace, tuple[str, ...]]:
    """Return the resource that ``words`` begin with, and the words after it."""
    kind, rest = words[0], words[1:]
    if kind == "cluster":
        return admin.OF_CLUSTER, rest
    if kind == "brokers" and not writing:
        return admin.OF_BROKERS, rest
    if kind == "topic" and rest:
        return admin.of_topic(rest[0]), rest[1:]
    if kind == "broker" and rest:
        try:
            return admin.of_broker(parse_broker(rest[0])), rest[1:]
        except GrammarError as error:
            msg = f"broker {error}"
            raise click.UsageError(msg) from error
    msg = f"{' '.join(words[:2])!r}: expected {PLACE if writing else PLACE_OR_ALL}"
    if kind not in {"topic", "broker"}:
        context = click.get_current_context()
        meant = f"config {context.info_name} topic {' '.join(words)}"
        msg += f"; did you mean `{meant}`?"
    raise click.UsageError(msg)


def _require_words(words: tuple[str, ...], what: str, example: str) -> None:
    if not words:
        msg = f"expected {what}, one or several, as in {example}"
        raise click.UsageError(msg)


def _refuse_words(words: tuple[str, ...]) -> None:
    if words:
        msg = f"unexpected {words[0]!r}; `config describe` shows single configs"
        raise click.UsageError(msg)


def _row(one: ConfigInfo) -> dict[str, object]:
    return asdict(one) | {
        "synonyms": [{"value": value, "source": source} for value, source in one.synonyms]
    }


def _update(row: Row) -> str:
    return "read-only" if row["is_read_only"] else str(row["update"])


COLUMNS: Columns = {"NAME": "name", "VALUE": "value", "SOURCE": "source", "UPDATE": _update}


def _description_lines(row: Row) -> str:
    return "\n".join(
        [
            f"{row['name']}={row['value']} ({_update(row)})",
            f"  {row['meaning']}",
            f"  expected {row['expected']}",
            *(f"  {one['source']} {one['value']}" for one in row["synonyms"]),
        ]
    )
