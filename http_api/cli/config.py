"""``quorumlog config list | describe | set | reset``, of a topic, a broker or the cluster.

The first words of a command name the resource (`topic orders`, `broker 1`, `cluster`); the rest are
names or NAME=VALUE arguments.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from http_api.cli.options import dry_run_option, parse_pairs
from http_api.cli.session import Columns, CommandSession, Row, cluster_command
from http_api.client import admin
from http_api.client.admin import ConfigInfo, ConfigPlace

PLACE = "{topic TOPIC | broker BROKER | cluster}"
PLACE_OR_ALL = "{topic TOPIC | broker BROKER | brokers | cluster}"


@click.group()
def config() -> None:
    """List, describe, set and reset configs.

    Whose: `topic TOPIC`, `broker BROKER` or `cluster` (all brokers, and the defaults of topics).
    """


@config.command("list")
@click.argument("words", metavar=PLACE_OR_ALL, nargs=-1, required=True)
@click.option("--changed", is_flag=True, help="Only what is not the default.")
@cluster_command
def list_configs(session: CommandSession, words: tuple[str, ...], changed: bool) -> None:  # noqa: FBT001 a flag
    """List what is in force, and who said so."""
    place, rest = _parse_place(words, writing=False)
    _refuse_words(rest)
    found = session.call(admin.configs, place)
    several: Columns = {"BROKER": "broker_id"} if words[0] == "brokers" else {}
    session.show_rows(
        (_row(one) for one in found if not (changed and one.is_default)), {**several, **COLUMNS}
    )


@config.command()
@click.argument("words", metavar=f"{PLACE} NAME...", nargs=-1, required=True)
@cluster_command
def describe(session: CommandSession, words: tuple[str, ...]) -> int:
    """Show configs with all that was said, what they mean, and what they may be."""
    place, names = _parse_place(words, writing=True)
    _require_words(names, "NAME")
    return session.for_each(
        names, lambda name: _row(session.call(admin.config, place, name)), _description_lines
    )


@config.command("set")
@click.argument("words", metavar=f"{PLACE} NAME=VALUE...", nargs=-1, required=True)
@dry_run_option
@cluster_command
def set_configs(session: CommandSession, words: tuple[str, ...], dry_run: bool) -> None:  # noqa: FBT001 a flag
    """Set configs: all of them, or none where one is refused."""
    place, texts = _parse_place(words, writing=True)
    _require_words(texts, "NAME=VALUE")
    _alter(session, place, dict(parse_pairs(texts, "set")), dry_run=dry_run)


@config.command()
@click.argument("words", metavar=f"{PLACE} NAME...", nargs=-1, required=True)
@dry_run_option
@cluster_command
def reset(session: CommandSession, words: tuple[str, ...], dry_run: bool) -> None:  # noqa: FBT001 a flag
    """Reset configs to what the cluster, the node's file or the default says."""
    place, names = _parse_place(words, writing=True)
    _require_words(names, "NAME")
    _alter(session, place, dict.fromkeys(names), dry_run=dry_run)


def _alter(
    session: CommandSession, place: ConfigPlace, changes: dict[str, str | None], *, dry_run: bool
) -> None:
    session.call(admin.alter_configs, place, changes, validate_only=dry_run)
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
        if not (rest[0].isascii() and rest[0].isdecimal()):
            msg = f"broker {rest[0]!r}: expected a broker id"
            raise click.UsageError(msg)
        return admin.of_broker(int(rest[0])), rest[1:]
    msg = f"{' '.join(words[:2])!r}: expected {PLACE if writing else PLACE_OR_ALL}"
    raise click.UsageError(msg)


def _require_words(words: tuple[str, ...], what: str) -> None:
    if not words:
        msg = f"expected {what}, one or several"
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
