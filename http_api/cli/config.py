"""``quorumlog config list | describe | set | reset``, of a topic, a broker or the cluster.

The first words of a command name the resource (`topic orders`, `broker 1`, `cluster`); the rest are
names or NAME=VALUE arguments. Calls are those of `http_api.client.admin`.
"""

from __future__ import annotations

from dataclasses import asdict

import click

from http_api.cli.options import (
    client_of,
    dry_run_option,
    format_option,
    parse_pairs,
    print_client_errors,
    print_json,
    print_table,
    run_for_each,
    url_option,
)
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
@url_option
@format_option
@print_client_errors
def list_configs(words: tuple[str, ...], changed: bool, url: str, form: str) -> None:  # noqa: FBT001 a flag
    """List what is in force, and who said so."""
    place, rest = _parse_place(words, writing=False)
    _refuse_words(rest)
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        found = client.run(admin.configs(cluster_id, place))
    shown = [one for one in found if not (changed and one.is_default)]
    if form == "json":
        print_json([_row(one) for one in shown])
        return
    several = words[0] == "brokers"
    rows: list[tuple[object, ...]] = [
        (
            *((one.broker_id,) if several else ()),
            *(one.name, one.value, one.source, "read-only" if one.is_read_only else one.update),
        )
        for one in shown
    ]
    headings = ("NAME", "VALUE", "SOURCE", "UPDATE")
    print_table(("BROKER", *headings) if several else headings, rows)


@config.command()
@click.argument("words", metavar=f"{PLACE} NAME...", nargs=-1, required=True)
@url_option
@format_option
@print_client_errors
def describe(words: tuple[str, ...], url: str, form: str) -> int:
    """Show configs with all that was said, what they mean, and what they may be."""
    place, names = _parse_place(words, writing=True)
    _require_words(names, "NAME")
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id

        def read(name: str) -> dict[str, object]:
            return _row(client.run(admin.config(cluster_id, place, name)))

        return run_for_each(names, read, form, _description_lines)


@config.command("set")
@click.argument("words", metavar=f"{PLACE} NAME=VALUE...", nargs=-1, required=True)
@dry_run_option
@url_option
@format_option
@print_client_errors
def set_configs(words: tuple[str, ...], dry_run: bool, url: str, form: str) -> None:  # noqa: FBT001 a flag
    """Set configs: all of them, or none where one is refused."""
    place, texts = _parse_place(words, writing=True)
    _require_words(texts, "NAME=VALUE")
    _alter(place, dict(parse_pairs(texts, "set")), url, form, dry_run=dry_run)


@config.command()
@click.argument("words", metavar=f"{PLACE} NAME...", nargs=-1, required=True)
@dry_run_option
@url_option
@format_option
@print_client_errors
def reset(words: tuple[str, ...], dry_run: bool, url: str, form: str) -> None:  # noqa: FBT001 a flag
    """Reset configs to what the cluster, the node's file or the default says."""
    place, names = _parse_place(words, writing=True)
    _require_words(names, "NAME")
    _alter(place, dict.fromkeys(names), url, form, dry_run=dry_run)


def _alter(
    place: ConfigPlace, changes: dict[str, str | None], url: str, form: str, *, dry_run: bool
) -> None:
    with client_of(url) as client:
        cluster_id = client.run(admin.cluster()).cluster_id
        client.run(admin.alter_configs(cluster_id, place, changes, validate_only=dry_run))
    if form == "json":
        print_json(
            [{"name": name, "value": value, "dry_run": dry_run} for name, value in changes.items()]
        )
        return
    could = "could be " if dry_run else ""
    for name, value in changes.items():
        click.echo(f"{could}reset {name}" if value is None else f"{could}set {name}={value}")


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


def _description_lines(row: dict[str, object]) -> str:
    synonyms = row["synonyms"]
    assert isinstance(synonyms, list)
    update = "read-only" if row["is_read_only"] else row["update"]
    return "\n".join(
        [
            f"{row['name']}={row['value']} ({update})",
            f"  {row['meaning']}",
            f"  expected {row['expected']}",
            *(f"  {one['source']} {one['value']}" for one in synonyms),
        ]
    )
