"""``quorumlog log salvage``: make a log that a broker can open from the rest of a damaged one.

Locks the broker's folder, plans (`broker.log.salvage`), checks that the disk has room, replaces the
log, and prints the offsets that were lost and the command that brings the partition back.
"""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from http_api.cli.options import format_option, says_errors
from http_api.node.exits import EXIT_LOCKED, EXIT_STORAGE, NodeExit

if TYPE_CHECKING:
    from broker.log.salvage import Salvage, SalvagePlan, SalvageResult

_HOW_BACK = (
    "replicas that hold more lead, and fill this one. If there is none, have it lead with what it "
    "has:"
)
SMALL_FILES_BYTES = 1_048_576
"""Bytes that must be free in addition to the batches, for checkpoints and directories."""


@click.command()
@click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("-n", "--dry-run", is_flag=True, help="Say what would be lost, change nothing.")
@click.option("--topic-id", help="Whose log it is, where its own partition.json can't be read.")
@format_option
@says_errors
def salvage(
    folder: Path,
    dry_run: bool,  # noqa: FBT001 a flag of the command line
    topic_id: str | None,
    form: str,
) -> int:
    """Make a log that can be opened of what is left in DIR, a partition's folder.

    The broker must not run (exit code 75, naming its pid). Sound batches stay as they are, at their
    offsets; damaged ones are covered by empty batches, or cut where nothing sound follows. What is
    lost is said offset by offset. The damaged log is kept beside, which needs as much room as what
    is left takes. A log that a start can open is left alone.

    Afterwards the broker reports the partition as unclean, so that nobody counts on it, and the
    cluster records it; where no other replica holds the data, an unclean election brings it back.
    """
    from raft_metadata.common.errors import CorruptionError

    folder = folder.resolve()
    with ExitStack() as stack:
        try:
            work = _opened(stack, folder, topic_id)
            plan = work.plan()
            if dry_run:
                _print(plan, None, form)
                return 0
            _check_room(plan, folder)
            done = work.run()
        except (CorruptionError, OSError) as error:
            raise NodeExit(EXIT_STORAGE, f"{error}; nothing was replaced") from error
        _print(done.plan, done, form)
    return 0


def _opened(stack: ExitStack, folder: Path, topic_id: str | None) -> Salvage:
    """Lock the node as its broker would and return the salvage of ``folder``.

    Raises `NodeExit` with the pid of a process that holds the lock.
    """
    from broker.log.disk import Disk
    from broker.log.log_manager import LOCK_FILE
    from broker.log.salvage import Salvage
    from http_api.node.node_folder import META_FILE, PID_FILE, FolderLock
    from raft_metadata.common.ids import TopicId

    root, node = folder.parent, folder.parent.parent
    name, _, number = folder.name.rpartition("-")
    if not (name and number.isdecimal() and (root / LOCK_FILE).exists()):
        msg = f"{folder}: expected a partition's folder in a broker's, like broker-1/log/orders-0"
        raise click.UsageError(msg)
    if (node / META_FILE).exists():
        lock = FolderLock(node / PID_FILE)
        lock.acquire(str(node))
        stack.callback(lock.release)
    disk = Disk()
    descriptor = disk.open(str(root / LOCK_FILE))
    stack.callback(disk.close, descriptor)
    try:
        disk.lock(descriptor)
    except BlockingIOError as error:
        msg = f"{root} is locked by a running process"
        raise NodeExit(EXIT_LOCKED, msg) from error
    known = None if topic_id is None else TopicId(topic_id)
    return Salvage(disk, str(root), folder.name, topic_id=known)


def _check_room(plan: SalvagePlan, folder: Path) -> None:
    needed, free = plan.size + SMALL_FILES_BYTES, shutil.disk_usage(folder).free
    if plan.is_damaged and free < needed:
        msg = (
            f"what is left of {folder} takes {needed} bytes beside the damaged log, which is "
            f"kept, and {free} are free: nothing was changed"
        )
        raise NodeExit(EXIT_STORAGE, msg)


def _print(plan: SalvagePlan, done: SalvageResult | None, form: str) -> None:
    """Print a plan and its result; ``done`` is None for a dry run."""
    if form == "json":
        click.echo(json.dumps(_facts(plan, done), indent=2, ensure_ascii=False))
        return
    if done is not None and done.finished_earlier:
        text = f"a salvage that was interrupted is finished: {done.finished_earlier} is kept"
        click.echo(text)
    for lost in plan.lost:
        click.echo(
            f"lost: offsets {lost.first_offset} to {lost.last_offset} "
            f"({lost.last_offset + 1 - lost.first_offset})"
        )
        for place in lost.bytes:
            click.echo(f"  {place.file} bytes {place.start} to {place.end}")
        if not lost.bytes:
            click.echo("  nothing stands in their place")
        if not lost.is_covered:
            click.echo(f"  the log ends at {plan.log_end}: new records get these offsets again")
    for note in plan.notes:
        click.echo(f"note: {note}")
    if not plan.is_damaged:
        click.echo(
            f"{plan.directory}: offsets {plan.log_start} to {plan.log_end}: "
            "it can be opened, nothing was changed"
        )
        if plan.marked:
            click.echo(
                f"the broker reports it as unclean ({plan.marked}): {_HOW_BACK}\n  {_command(plan)}"
            )
        return
    verb = "would be" if done is None else "is"
    click.echo(
        f"{plan.directory}: {verb} a log from offset {plan.log_start} to {plan.log_end}, "
        f"{plan.size} bytes, {plan.offsets_lost} offsets lost"
    )
    if done is not None:
        click.echo(
            f"the damaged log is kept in {done.copy}\n"
            f"the broker reports this partition as unclean at its next start: {_HOW_BACK}\n"
            f"  {_command(plan)}"
        )


def _command(plan: SalvagePlan) -> str:
    return f"quorumlog elect unclean --topic {plan.topic} --partition {plan.key.partition} --yes"


def _facts(plan: SalvagePlan, done: SalvageResult | None) -> dict[str, object]:
    return {
        "folder": plan.directory,
        "topic": plan.topic,
        "partition": plan.key.partition,
        "topic_id": plan.key.topic_id,
        "is_damaged": plan.is_damaged,
        "dry_run": done is None,
        "log_start": plan.log_start,
        "log_end": plan.log_end,
        "bytes": plan.size,
        "offsets_lost": plan.offsets_lost,
        "lost": [
            {
                "first_offset": lost.first_offset,
                "last_offset": lost.last_offset,
                "count": lost.last_offset + 1 - lost.first_offset,
                "is_covered": lost.is_covered,
                "places": [place._asdict() for place in lost.bytes],
            }
            for lost in plan.lost
        ],
        "notes": plan.notes,
        "copy": None if done is None or not done.copy else done.copy,
        "finished_earlier": None if done is None else done.finished_earlier or None,
        "next_command": _command(plan) if plan.is_damaged or plan.marked else None,
    }
