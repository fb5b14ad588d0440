"""``quorumlog metadata dump | get``: the metadata log as readable facts, any part of the image.

Facts come from a broker, or with --dir from the folder of a stopped controller.
`line_of` formats a fact as a line for people, with a function for each type of fact;
`raft_metadata.image.facts` defines the facts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from http_api.cli.options import examples, print_json
from http_api.cli.session import CommandSession, cluster_command
from http_api.client import cluster_state as calls
from http_api.node.exits import EXIT_LOCKED, EXIT_STORAGE, EXIT_USAGE, NodeExit
from raft_metadata.common.errors import CorruptionError, StorageError

if TYPE_CHECKING:
    from raft_metadata.quorum.offline import StoppedControllerLog

Fact = Mapping[str, Any]

LOG_FOLDER = "log"
"""Folder of a broker that holds its partitions; a controller has none."""
NO_LEADER = -1
"""Broker id in a fact that stands for no leader."""


def line_of(fact: Fact) -> str:
    """Return a fact as a line: offset, controller epoch, time, and the change.

    ``1042 e3 2026-11-21T12:01:07.123Z partition orders-2: leader 1 -> 3 epoch 4 isr [3,2]``.
    """
    format_change = FORMATTERS.get(str(fact.get("type")), _unknown_type)
    return f"{_position(fact)} {format_change(fact)}".rstrip()


def _position(fact: Fact) -> str:
    if fact.get("snapshot"):
        return "snapshot"
    return f"{fact['offset']} e{fact['epoch']} {fact.get('time') or '-'}"


def _partition(fact: Fact) -> str:
    before: Fact = fact.get("before") or {}
    words = [f"partition {_topic(fact)}-{fact['partition']}:"]
    words.append(_change_of("leader", _leader(before.get("leader")), _leader(fact["leader"])))
    words.append(f"epoch {fact['leader_epoch']}")
    words += [_change_of(name, _ids(before.get(name)), _ids(fact[name])) for name in ("isr", "elr")]
    replicas = _ids(fact.get("replicas"))
    if replicas is not None and (not before or _ids(before.get("replicas")) != replicas):
        words.append(_change_of("replicas", _ids(before.get("replicas")), replicas))
    words += [f"{name} {_ids(fact[name])}" for name in ("adding", "removing") if fact.get(name)]
    if fact.get("last_known_elr"):
        words.append(f"last_known_elr {_ids(fact['last_known_elr'])}")
    if fact.get("unclean"):
        words.append("UNCLEAN election: acknowledged records may be gone")
    return " ".join(words)


def _change_of(name: str, before: str | None, now: str | None) -> str:
    if before is None or before == now:
        return f"{name} {now}"
    return f"{name} {before} -> {now}"


def _leader(broker_id: int | None) -> str | None:
    if broker_id is None:
        return None
    return "none" if broker_id == NO_LEADER else str(broker_id)


def _ids(brokers: Sequence[int] | None) -> str | None:
    return None if brokers is None else "[" + ",".join(map(str, brokers)) + "]"


def _topic(fact: Fact) -> str:
    """Return the topic's name, or its id if the name is not known any more."""
    return str(fact.get("topic") or fact.get("topic_id"))


def _broker_registered(fact: Fact) -> str:
    words = f"broker {fact['broker_id']}: registered at {fact['http']} epoch {fact['broker_epoch']}"
    if fact.get("rack"):
        words += f" rack {fact['rack']}"
    ranges = fact["unclean_ranges"]
    if ranges:
        among = sum(last - first + 1 for _, first, last in ranges)
        words += f", all replicas among {among} partitions unclean"
    return words


def _broker_changed(fact: Fact) -> str:
    before: Fact = fact.get("before") or {}
    state = _change_of("state", before.get("state"), fact["state"])
    return f"broker {fact['broker_id']}: {state}" + ("" if fact["settled"] else ", not settled")


def _config(fact: Fact) -> str:
    owner = fact["resource_type"]
    name = fact.get("topic") or fact["resource_name"]
    before: Fact = fact.get("before") or {}
    where = f"{owner} {name}".rstrip()
    if fact["value"] is None:
        return f"config of {where}: {fact['name']} reset to its default"
    if before.get("value") is None:
        return f"config of {where}: {fact['name']} = {fact['value']}"
    return f"config of {where}: {fact['name']} = {before['value']} -> {fact['value']}"


def _quota(fact: Fact) -> str:
    who = ",".join(f"{part[0]}={part[1] or '<default>'}" for part in fact["entity"])
    value = "removed" if fact["value"] is None else f"= {fact['value']:g}"
    return f"quota of {who}: {fact['key']} {value}"


def _acl(fact: Fact) -> str:
    return (
        f"acl {fact['acl_id']}: {fact['permission']} {fact['principal']} {fact['operation']} on "
        f"{fact['resource_type']} {fact['resource_name']} ({fact['pattern_type']}) "
        f"from {fact['host']}"
    )


def _unknown_type(fact: Fact) -> str:
    """Return all fields of a fact whose type this version does not know."""
    shown = {"offset", "epoch", "time", "type", "snapshot"}
    rest = " ".join(f"{key}={value}" for key, value in fact.items() if key not in shown)
    return f"{fact.get('type')}: {rest}"


FORMATTERS: Mapping[str, Callable[[Fact], str]] = {
    "snapshot": lambda fact: (
        f"of everything below offset {fact['next_offset']}, epoch {fact['controller_epoch']}"
    ),
    "partition": _partition,
    "partition_change": _partition,
    "topic": lambda fact: f"topic {fact['name']}: created, {fact['partitions_count']} partitions",
    "partitions_count": lambda fact: (
        f"topic {_topic(fact)}: grows to {fact['partitions_count']} partitions"
    ),
    "remove_topic": lambda fact: f"topic {_topic(fact)}: deleted",
    "register_broker": _broker_registered,
    "broker_registration_change": _broker_changed,
    "broker_drain": lambda fact: f"broker {fact['broker_id']}: drain {fact['scope']}",
    "unregister_broker": lambda fact: f"broker {fact['broker_id']}: unregistered",
    "config": _config,
    "producer_ids": lambda fact: (
        f"producer ids below {fact['next_producer_id']}: handed to broker {fact['broker_id']}"
    ),
    "feature_level": lambda fact: f"metadata.version {fact['level']}",
    "client_quota": _quota,
    "acl": _acl,
    "remove_acl": lambda fact: f"acl {fact['acl_id']}: removed",
    "user_scram": lambda fact: f"user {fact['name']}: {fact['mechanism']} password set",
    "remove_user_scram": lambda fact: f"user {fact['name']}: {fact['mechanism']} password removed",
}


FOLLOW_WAIT_MS = 20_000
"""Milliseconds that each long poll of ``--follow`` waits for a fact."""


@click.group()
def metadata() -> None:
    """Read the metadata log, and the image that it leads to."""


@examples("quorumlog metadata dump", "quorumlog metadata dump --from 10 --format json")
@metadata.command()
@click.option(
    "--from", "start", type=click.IntRange(min=0), default=0, help="Begin at this offset."
)
@click.option("-f", "--follow", is_flag=True, help="Wait for more at the end, until interrupted.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Read the folder of a stopped controller instead of asking a broker.",
)
@click.option(
    "--force", is_flag=True, help="With --dir: read it while a running controller writes there."
)
@cluster_command
def dump(
    session: CommandSession,
    start: int,
    follow: bool,  # noqa: FBT001 a flag of the command line
    directory: Path | None,
    force: bool,  # noqa: FBT001 a flag of the command line
) -> None:
    """Print the metadata log, one fact a line: offset, epoch, time, change.

    If --from is older than the log that the controllers keep, the facts of a snapshot come first.
    """
    if directory is not None:
        if follow:
            msg = "--dir reads what is there once: it can't be combined with --follow"
            raise click.UsageError(msg)
        _dump_directory(directory, start, session.form, force=force)
        return
    _dump_log(session, start, follow=follow)


def _dump_log(session: CommandSession, start: int, *, follow: bool) -> None:
    offset = start
    while True:
        page = session.call(calls.log, offset, wait_ms=FOLLOW_WAIT_MS if follow else 0)
        _print_facts(page.facts, session.form)
        offset = page.next_offset
        if not follow and (not page.facts or offset >= page.end_offset):
            return


def _read_directory(directory: Path, *, even_if_locked: bool) -> StoppedControllerLog:
    """Read the log in a folder; `NodeExit` 74 if unreadable, 75 while a controller uses it."""
    # Imported here: no other command needs the quorum's files.
    from http_api.node.formatting import RAFT_FOLDER
    from raft_metadata.quorum.offline import InUseError, read_offline_log
    from raft_metadata.records.serde import UnreadableMetadataError

    raft_dir = directory / RAFT_FOLDER
    if not raft_dir.exists() and (directory / LOG_FOLDER).is_dir():
        text = f"--dir {directory}: expected a controller's folder, this is a broker's"
        raise NodeExit(EXIT_USAGE, f"{text}: `quorumlog log dump` reads those")
    try:
        return read_offline_log(
            raft_dir if raft_dir.exists() else directory, even_if_locked=even_if_locked
        )
    except InUseError as error:
        text = f"{error}: stop it, ask a broker instead, or say --force"
        raise NodeExit(EXIT_LOCKED, text) from error
    except (StorageError, CorruptionError, UnreadableMetadataError) as error:
        raise NodeExit(EXIT_STORAGE, str(error)) from error


def _dump_directory(directory: Path, start: int, form: str, *, force: bool) -> None:
    """Print the facts in a controller's folder, or in its ``raft`` folder."""
    log = _read_directory(directory, even_if_locked=force)
    _print_facts(log.facts(start), form)
    note = (
        f"controller {log.node_id} of cluster {log.cluster_id}: snapshot up to entry "
        f"{log.snapshot_index}, journal up to entry {log.last_index} of term {log.last_term}; "
        "only a running quorum knows which of the newest entries are committed"
    )
    if log.torn_bytes:
        note += f"; {log.torn_bytes} torn bytes at the end are left out"
    click.echo(note, err=True)


def _print_facts(facts: Iterable[Mapping[str, Any]], form: str) -> None:
    for fact in facts:
        click.echo(json.dumps(fact, ensure_ascii=False) if form == "json" else line_of(fact))


@examples("quorumlog metadata get", "quorumlog metadata get /topics/orders/partitions/0/isr")
@metadata.command()
@click.argument("path", default="/")
@cluster_command
def get(session: CommandSession, path: str) -> None:
    """Print any place of the image as JSON.

    Places are /brokers/1, /topics/orders/partitions/0/isr, /features and so on.

    Without PATH the whole image. A path that is not there names what there is.
    """
    found = session.call(calls.image, [part for part in path.split("/") if part])
    if session.form == "json":
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        print_json(found)
