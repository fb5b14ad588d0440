"""``quorumlog log dump | chain | salvage``: a broker's log files on the disk.

`dump` and `chain` work on a running node or a stopped one, through `broker.log.inspection` and
`broker.log.hash_chain`, and change nothing; a path may be a segment file, a partition's folder, a
log folder or a node's folder. `salvage` makes a log that a broker can open from the rest of a
damaged one: it locks the broker's folder, plans (`broker.log.salvage`), checks that the disk has
room, replaces the log, and prints the offsets that were lost and the command that brings the
partition back. Modules of `broker` are imported when a command runs.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from http_api.cli.options import examples, format_option, print_client_errors, print_json
from http_api.node.exits import EXIT_LOCKED, EXIT_STORAGE, NodeExit

if TYPE_CHECKING:
    from broker.log.hash_chain import SegmentPlace
    from broker.log.inspection import FoundBatch, InspectionReport
    from broker.log.salvage import Salvage, SalvagePlan, SalvageResult
    from broker.record.batch import BatchHeader


_RECOVERY = (
    "replicas that hold more lead, and fill this one. If there is none, have it lead with what it "
    "has:"
)
SMALL_FILES_BYTES = 1_048_576
"""Bytes that must be free in addition to the batches, for checkpoints and directories."""


@examples("quorumlog log salvage quorumlog-data/broker-3/log/orders-0 --dry-run")
@click.command()
@click.argument(
    "folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False)
)
@click.option("--dry-run", is_flag=True, help="Print what would be lost, and change nothing.")
@click.option("--topic-id", help="Name the topic's id, where its partition.json can't be read.")
@format_option
@print_client_errors
def salvage(
    folder: Path,
    dry_run: bool,  # noqa: FBT001 a flag of the command line
    topic_id: str | None,
    form: str,
) -> int:
    """Make a damaged log one that a broker can open.

    DIR is a partition's folder. The broker must not run (exit code 75, naming its pid). Sound
    batches stay as they are, at their offsets; damaged ones are covered by empty batches, or cut if
    nothing sound follows. The lost offsets are printed. The damaged log is kept, which needs as
    much room as the rest takes. A log that a start can open is not changed.

    Afterwards the broker reports the partition as unclean, so that it is not counted as a replica
    that holds everything. If no other replica holds the data, an unclean election brings it back.
    """
    from raft_metadata.common.errors import CorruptionError

    folder = folder.resolve()
    with ExitStack() as stack:
        try:
            work = _open_salvage(stack, folder, topic_id)
            plan = work.plan()
            if dry_run:
                _print_plan(plan, None, form)
                return 0
            _check_room(plan, folder)
            done = work.run()
        except (CorruptionError, OSError) as error:
            raise NodeExit(EXIT_STORAGE, f"{error}; nothing was replaced") from error
        _print_plan(done.plan, done, form)
    return 0


def _open_salvage(stack: ExitStack, folder: Path, topic_id: str | None) -> Salvage:
    """Lock the node as its broker would and return the salvage of ``folder``.

    Raises `NodeExit` with the pid of a process that holds the lock.
    """
    from broker.log.log_manager import LOCK_FILE
    from broker.log.salvage import Salvage
    from http_api.node.node_folder import META_FILE, PID_FILE, FolderLock
    from raft_metadata.common.disk import Disk
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


def _print_plan(plan: SalvagePlan, done: SalvageResult | None, form: str) -> None:
    """Print a plan and its result; ``done`` is None for a dry run."""
    if form == "json":
        print_json(_plan_facts(plan, done))
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
                f"the broker reports it as unclean ({plan.marked}): {_RECOVERY}\n  {_command(plan)}"
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
            f"the broker reports this partition as unclean at its next start: {_RECOVERY}\n"
            f"  {_command(plan)}"
        )


def _command(plan: SalvagePlan) -> str:
    return f"quorumlog elect unclean {plan.topic}:{plan.key.partition} --yes"


def _plan_facts(plan: SalvagePlan, done: SalvageResult | None) -> dict[str, object]:
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


Command = TypeVar("Command", bound=Callable[..., Any])

CHECKS_MAX = 3
"""Most times that files are checked: a running node may truncate, roll or remove them meanwhile."""
_FORMATS = ("json", "binary", "string")


def _exit_on_storage_error(command: Command) -> Command:
    """Wrap a command so that unreadable files end it with exit code 74, as they end a node."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from raft_metadata.common.errors import CorruptionError

        try:
            return command(*args, **kwargs)
        except BrokenPipeError:
            raise
        except (CorruptionError, OSError) as error:
            raise NodeExit(EXIT_STORAGE, str(error)) from error

    return wrapped  # type: ignore[return-value] # same signature by functools.wraps


@click.group()
def log() -> None:
    """Read, check and rescue the log files of a broker.

    The node may run or be stopped. Only salvage changes anything.
    """


log.add_command(salvage)


@examples(
    "quorumlog log dump quorumlog-data/broker-1/log --limit 5",
    "quorumlog log dump quorumlog-data/broker-1/log --verify",
)
@log.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--verify", is_flag=True, help="Check everything; exit code 1 if it is damaged.")
@click.option(
    "--records/--no-records",
    default=None,
    help="Print the records of each batch, too.  [default: for a segment file]",
)
@click.option(
    "--from", "start", type=click.IntRange(min=0), default=0, help="Begin at this offset."
)
@click.option("--limit", type=click.IntRange(min=1), help="Print at most so many batches.")
@format_option
@print_client_errors
@_exit_on_storage_error
def dump(
    path: Path,
    verify: bool,  # noqa: FBT001 a flag of the command line
    records: bool | None,  # noqa: FBT001 a flag of the command line
    start: int,
    limit: int | None,
    form: str,
) -> int:
    """Print the batches in a file or folder.

    PATH is a segment file, a partition's folder, a log folder or a node's folder. With --verify:
    crcs, offsets, epochs and indexes are checked, in a folder the checkpoints and the order of the
    segments too, and only findings are printed. A torn tail, which the next start cuts, is no
    damage. JSON is one object a line.
    """
    if verify:
        if records or limit is not None or start:
            msg = "--verify checks all of it: it can't be combined with --records, --from, --limit"
            raise click.UsageError(msg)
        return _verify(path, form)
    left = limit if limit is not None else 1 << 62
    are_wanted = path.is_file() if records is None else records
    for place in _segments_at(path):
        if not left:
            break
        left -= _dump_segment(place, start, left, form, records=are_wanted)
    return 0


def _dump_segment(place: SegmentPlace, start: int, most: int, form: str, *, records: bool) -> int:
    from broker.log.inspection import batches_in

    printed = 0
    if form == "text":
        click.echo(place.path)
    position = 0
    for found in batches_in(place):
        position = found.position + found.header.size
        if found.header.next_offset <= start:
            continue
        if printed == most:
            return printed
        printed += 1
        if form == "json":
            click.echo(json.dumps(_batch_facts(found, records=records), ensure_ascii=False))
            continue
        click.echo(_line(found))
        if records:
            for line in _lines(found):
                click.echo(f"  {_shown(found, line)}")
    if position != place.size:
        click.echo(f"no batch at position {position} of {place.size} in {place.path}", err=True)
    return printed


def _lines(found: FoundBatch) -> list[bytes]:
    return found.lines.split(b"\n")[:-1]


def _shown(found: FoundBatch, line: bytes) -> str:
    """Return a record as text: those of transactions in words, all others as they are stored."""
    words = _words(found, line)
    if words is None:
        return line.decode(errors="replace")
    return f"offset {json.loads(line)['offset']}: {words}"


def _words(found: FoundBatch, line: bytes) -> str | None:
    from broker.transactions.record_words import words_of

    topic, _, _ = Path(found.file).parent.name.rpartition("-")
    return words_of(topic, line)


def _batch_facts(found: FoundBatch, *, records: bool) -> dict[str, object]:
    from broker.record.batch import is_stamped
    from raft_metadata.common.ids import is_reserved

    header = found.header
    facts: dict[str, object] = {
        "file": found.file,
        "position": found.position,
        "size": header.size,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.count,
        "leader_epoch": header.leader_epoch,
        "append_timestamp": header.append_timestamp,
        "base_timestamp": header.base_timestamp,
        "max_timestamp": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "attributes": header.attributes,
        "key_format": _format(header.attributes),
        "value_format": _format(header.attributes >> 2),
        "compression": "zstd" if header.is_compressed else "none",
        "lines_size": len(found.lines),
        "durable_end": header.durable_end,
        "stamp_ok": is_stamped(header),
        "crc": f"{header.crc:08x}",
        "crc_ok": not found.problem,
    }
    if is_reserved(header.producer_id):
        facts["completed"] = _completed(header)
    if found.problem:
        facts["problem"] = found.problem
    if records and not found.problem:
        facts["records"] = [json.loads(line) for line in _lines(found)]
        words = [_words(found, line) for line in _lines(found)]
        if any(words):
            facts["words"] = words
    return facts


def _format(bits: int) -> str:
    return dict(enumerate(_FORMATS)).get(bits & 0b11, "?")


def _completed(header: BatchHeader) -> str:
    """Return who completed the rows of a batch under a reserved producer id, and their numbers."""
    from broker.record.numbering import numbering_text, row_number

    first = row_number(header.producer_epoch, header.base_sequence)
    last = first + header.last_offset_delta
    return f"{numbering_text(header.producer_id)} as rows {first}..{last}"


def _line(found: FoundBatch) -> str:
    facts, header = _batch_facts(found, records=False), found.header
    producer = "-"
    if header.producer_id >= 0:
        producer = f"{header.producer_id}/{header.producer_epoch}/{header.base_sequence}"
    parts = [
        f"@{found.position}",
        f"offsets {header.base_offset}..{header.last_offset}",
        f"count {header.count}",
        f"epoch {header.leader_epoch}",
        _time(header.append_timestamp),
        f"created {_time(header.base_timestamp)}..{_time(header.max_timestamp)}",
        str(facts.get("completed", f"producer {producer}")),
        f"{facts['key_format']}/{facts['value_format']}",
        f"{header.size} bytes",
        f"durable_end {header.durable_end}" + ("" if facts["stamp_ok"] else " (bad stamp)"),
        f"BAD: {found.problem}" if found.problem else f"crc {facts['crc']} ok",
    ]
    parts += ["transactional"] if header.is_transactional else []
    parts += ["control"] if header.is_control else []
    parts += [f"zstd of {len(found.lines)} bytes"] if header.is_compressed else []
    return "  ".join(parts)


def _time(milliseconds: int) -> str:
    try:
        when = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- finding segments at a path


def _segments_at(path: Path) -> Iterator[SegmentPlace]:
    from broker.log.hash_chain import places_in

    if path.is_file():
        yield _segment_place(path)
        return
    for folder in _folders(path):
        yield from places_in(folder)


def _segment_place(path: Path) -> SegmentPlace:
    from broker.log.hash_chain import SegmentPlace

    if path.suffix != ".log" or not path.stem.isdecimal():
        msg = f"{path}: expected a segment file like {0:020d}.log, or a folder"
        raise click.UsageError(msg)
    return SegmentPlace(str(path), int(path.stem), path.stat().st_size)


def _folders(path: Path) -> list[Path]:
    """Return the partition folders at a path: itself, or those in a log folder or node folder."""
    if _is_partition(path):
        return [path]
    root = path / "log" if (path / "log").is_dir() else path
    found = [each for each in sorted(root.iterdir()) if each.is_dir() and _is_partition(each)]
    quarantine = root / ".deleted"
    if quarantine.is_dir():
        found += [each for each in sorted(quarantine.iterdir()) if _is_partition(each)]
    if not found and not (root / "lock").exists():
        msg = f"{path}: no partition's files here: expected a segment file, a partition's folder, "
        raise click.UsageError(msg + "a broker's log folder or a broker's folder")
    return found


def _is_partition(path: Path) -> bool:
    return (path / "partition.json").exists() or any(path.glob("[0-9]*.log"))


# -- checking


def _verify(path: Path, form: str) -> int:
    if path.is_file():
        from broker.log.inspection import check_segment

        _segment_place(path)
        end = _clean_end(path.parent)
        reports = [_check_unchanged(path.parent, lambda: check_segment(path, end))]
    else:
        reports = [_check_folder(folder) for folder in _folders(path)]
    for report in reports:
        _print_report(report, form)
    return 1 if any(report.is_damaged for report in reports) else 0


def _check_folder(folder: Path) -> InspectionReport:
    from broker.log.inspection import check_folder

    end = _clean_end(folder)
    return _check_unchanged(folder, lambda: check_folder(folder, end))


def _check_unchanged(folder: Path, check: Callable[[], InspectionReport]) -> InspectionReport:
    """Return the report of ``check``, repeated if it finds damage while files were changing."""
    for _ in range(CHECKS_MAX - 1):
        before = _listing(folder)
        report = check()
        if not report.is_damaged or _listing(folder) == before:
            return report
    return check()


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    found = []
    for path in sorted(folder.iterdir()):
        status = path.stat()
        found.append((path.name, status.st_ino, status.st_size))
    return found


def _clean_end(folder: Path) -> int | None:
    """Return the log end that a clean shutdown recorded for this partition, or None."""
    from broker.log.inspection import clean_ends

    return clean_ends(folder.parent).get(folder.name)


def _print_report(report: InspectionReport, form: str) -> None:
    if form == "json":
        content = {
            "folder": report.folder,
            "is_damaged": report.is_damaged,
            "segments": report.segments,
            "batches": report.batches,
            "records": report.records,
            "bytes": report.size,
            "log_start": report.start,
            "log_end": report.end,
            "findings": [finding._asdict() for finding in report.findings],
        }
        click.echo(json.dumps(content, ensure_ascii=False))
        return
    for finding in report.findings:
        where = finding.file
        if finding.position is not None:
            where += f" position {finding.position}"
        if finding.offset is not None:
            where += f" offset {finding.offset}"
        click.echo(f"{finding.level}: {where}: {finding.text}")
    verdict = "DAMAGED" if report.is_damaged else "sound"
    click.echo(
        f"{report.folder}: {verdict}: offsets {report.start} to {report.end}, {report.segments} "
        f"segments, {report.batches} batches, {report.records} records, {report.size} bytes"
    )


@examples("quorumlog log chain quorumlog-data/broker-1/log/orders-0")
@log.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--from", "start", type=click.IntRange(min=0), help="Begin at this base offset.")
@click.option(
    "--to", "end", type=click.IntRange(min=0), help="End before this offset.  [default: the end]"
)
@format_option
@print_client_errors
@_exit_on_storage_error
def chain(path: Path, start: int | None, end: int | None, form: str) -> int:
    """Print the hash chain of a partition's folder.

    It is equal on all replicas that hold the same batches, and equal to the chain that a broker
    returns at /broker/v1/state?chain=true. A torn tail is left out.
    """
    from broker.log.hash_chain import ChainRangeError, LogHashChain
    from broker.log.inspection import check_folder

    if not _is_partition(path):
        msg = f"{path}: expected a partition's folder"
        raise click.UsageError(msg)
    report = check_folder(path)
    end = report.end if end is None else end
    if end > report.end:
        msg = f"--to {end}: the log ends at {report.end}"
        raise click.UsageError(msg)
    if start is not None and start > end:
        msg = f"--from {start}: expected at most {end}, where the chain is to end"
        raise click.UsageError(msg)
    try:
        found = LogHashChain().value(report.good, start, end)
    except ChainRangeError as error:
        raise click.UsageError(str(error)) from error
    if form == "json":
        content = {"first": found.first, "from": found.start, "to": found.end, "value": found.value}
        click.echo(json.dumps(content))
    else:
        click.echo(f"{found.value}  from {found.start} to {found.end}, first {found.first}")
    return 1 if report.is_damaged else 0
