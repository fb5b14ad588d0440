"""``quorumlog log dump | chain | salvage``: read and check a broker's log files on the disk.

Works on a running node or a stopped one, through `broker.log.inspection` and
`broker.log.hash_chain`, which are imported when a command runs. A path may be a segment file, a
partition's folder, a log folder or a node's folder. Only salvage changes files.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from http_api.cli.log_salvage import salvage
from http_api.cli.options import format_option, says_errors
from http_api.node.exits import EXIT_STORAGE, NodeExit

if TYPE_CHECKING:
    from broker.log.hash_chain import SegmentPlace
    from broker.log.inspection import FoundBatch, InspectionReport

Command = TypeVar("Command", bound=Callable[..., Any])

LOOKS = 3
"""Most times that files are checked: a running node may truncate, roll or remove them meanwhile."""
_FORMATS = ("json", "binary", "string")


def _says_storage_errors(command: Command) -> Command:
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
    """Read and check a broker's files, on a running node or a stopped one.

    Nothing is changed, but by salvage.
    """


log.add_command(salvage)


@log.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True))
@click.option("--verify", is_flag=True, help="Check everything; exit code 1 where it is damaged.")
@click.option(
    "--records/--no-records",
    default=None,
    help="Print the records of each batch, too.  [default: of a segment file]",
)
@click.option("--from", "start", type=click.IntRange(min=0), default=0, help="First offset.")
@click.option("--limit", type=click.IntRange(min=1), help="Print at most so many batches.")
@format_option
@says_errors
@_says_storage_errors
def dump(
    path: Path,
    verify: bool,  # noqa: FBT001 a flag of the command line
    records: bool | None,  # noqa: FBT001 a flag of the command line
    start: int,
    limit: int | None,
    form: str,
) -> int:
    """Print the batches in PATH: a segment file, a partition's, log or node's folder.

    With --verify: crcs, offsets, epochs and indexes are checked, in a folder checkpoints and what
    segments say of each other, too, and only what was found is printed. A torn tail, which the next
    start cuts, is no damage. In JSON an object a line.
    """
    if verify:
        if records or limit is not None or start:
            msg = "--verify checks all of it: it can't be combined with --records, --from, --limit"
            raise click.UsageError(msg)
        return _verify(path, form)
    left = limit if limit is not None else 1 << 62
    are_wanted = path.is_file() if records is None else records
    for place in _places(path):
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
            click.echo(json.dumps(_facts(found, records=records), ensure_ascii=False))
            continue
        click.echo(_line(found))
        if records:
            for line in _lines(found):
                click.echo(f"  {line.decode(errors='replace')}")
    if position != place.size:
        click.echo(f"no batch at position {position} of {place.size} in {place.path}", err=True)
    return printed


def _lines(found: FoundBatch) -> list[bytes]:
    return found.lines.split(b"\n")[:-1]


def _facts(found: FoundBatch, *, records: bool) -> dict[str, object]:
    from broker.record.batch import is_stamped

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
    if found.problem:
        facts["problem"] = found.problem
    if records and not found.problem:
        facts["records"] = [json.loads(line) for line in _lines(found)]
    return facts


def _format(bits: int) -> str:
    return dict(enumerate(_FORMATS)).get(bits & 0b11, "?")


def _line(found: FoundBatch) -> str:
    facts, header = _facts(found, records=False), found.header
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
        f"producer {producer}",
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


def _places(path: Path) -> Iterator[SegmentPlace]:
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
        reports = [_looked_at(path.parent, lambda: check_segment(path, end))]
    else:
        reports = [_checked(folder) for folder in _folders(path)]
    for report in reports:
        _print_report(report, form)
    return 1 if any(report.is_damaged for report in reports) else 0


def _checked(folder: Path) -> InspectionReport:
    from broker.log.inspection import check_folder

    end = _clean_end(folder)
    return _looked_at(folder, lambda: check_folder(folder, end))


def _looked_at(folder: Path, check: Callable[[], InspectionReport]) -> InspectionReport:
    """Return the report of ``check``, repeated if it finds damage while files were changing."""
    for _ in range(LOOKS - 1):
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


@log.command()
@click.argument("path", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--from", "start", type=click.IntRange(min=0), help="Lowest base offset.")
@click.option("--to", "end", type=click.IntRange(min=0), help="Where it ends; default: the end.")
@format_option
@says_errors
@_says_storage_errors
def chain(path: Path, start: int | None, end: int | None, form: str) -> int:
    """The hash chain of a partition's folder: equal on all replicas that hold the same.

    What a broker says at /broker/v1/state?chain=true, from the disk. A torn tail is left out.
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
