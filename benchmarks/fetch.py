"""Direct fetch of 1 MB answers per CPU-second beside sendfile, and a consumer in Python."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.load import produce_body, render_get, render_post
from benchmarks.processes import ROOT, Load, Measured, child, run_load
from benchmarks.product import JSON_V2, target
from benchmarks.report import Row, at_least, ratio_at_least

if TYPE_CHECKING:
    from benchmarks.product import Product
    from benchmarks.report import Budget

TOPIC = "fetch"
ANSWER_BYTES = 1 << 20
CONNECTIONS = 4
FILL_REQUESTS = 600
FILL_RECORDS = 100
START_OFFSET = 50
"""Offset in the middle of a batch, a usual start for a reader with its own page size."""
SHAPES = {
    "NDJSON": ("application/x-ndjson", "", ratio_at_least(0.6)),
    "NDJSON as the SDK asks": ("application/x-ndjson", "&include=batches", None),
    "array of lines": ("application/vnd.quorumlog.lines+json", "", ratio_at_least(0.45)),
    "v2 records": (JSON_V2, "", None),
}
"""Name of a shape → its Accept, further query parameters, budget."""
TURN_S = 0.5
"""Length of a shape's turn. The machine's other load changes from second to second, so only runs
close to each other give a ratio that does not depend on it."""
GOOD_ANSWER = '"offset":'
CONSUMER_BUDGET = at_least(300_000, " records/s")


async def fill(product: Product) -> None:
    """Write about 9 MB to one partition, in batches of 100."""
    await product.create_topic(TOPIC, flush="os")
    leader = await product.leader(TOPIC)
    path = f"/topics/{TOPIC}/partitions/0"
    body = produce_body(FILL_RECORDS, 100, 1)
    load = Load(
        targets=[target(leader)],
        requests=[render_post(path, body, JSON_V2)],
        connections=1,
        seconds=1.0,
        warm_up_s=0.0,
        expect='"error_code":null',
    )
    done = 0
    while done < FILL_REQUESTS:
        run = run_load(load, {})
        if run.problem:
            raise RuntimeError(run.problem)
        done += run.figures["requests"]


async def per_cpu_second(product: Product, seconds: float, rounds: int) -> list[Row]:
    """Return MB of answers per CPU-second of the leader, fetched directly; medians of many turns.

    The floor has its turn before the shapes have theirs; a ratio is of one such turn.
    """
    leader = await product.leader(TOPIC)
    assert leader.pid is not None
    limits: list[float] = []
    turns = max(3, round(rounds * seconds / TURN_S))
    shapes: dict[str, list[Measured]] = {name: [] for name in SHAPES}
    with tempfile.NamedTemporaryFile(dir=ROOT / ".cache") as file:
        file.write(b'{"offset":1,"key":"k","value":1}\n' * (ANSWER_BYTES // 32))
        file.flush()
        with child("benchmarks.sendfile_server", file.name, ANSWER_BYTES) as server:
            for _ in range(turns):
                address = f"127.0.0.1:{server.words[0]}"
                run = _fetch_run(address, server.pid, "/", "*/*")
                limits.append(_mb_per_cpu_s(run))
                path = (
                    f"/topics/{TOPIC}/partitions/0/records"
                    f"?offset={START_OFFSET}&max_bytes={ANSWER_BYTES}"
                )
                for name, (accept, besides, _budget) in SHAPES.items():
                    shapes[name].append(
                        _fetch_run(target(leader), leader.pid, path + besides, accept)
                    )
    return [_fetch_row(name, runs, limits) for name, runs in shapes.items()]


def _fetch_run(address: str, pid: int, path: str, accept: str) -> Measured:
    load = Load(
        targets=[address],
        requests=[render_get(path, accept)],
        connections=CONNECTIONS,
        seconds=TURN_S,
        expect=GOOD_ANSWER,
        warm_up_s=0.2,
    )
    return run_load(load, {"server": pid})


def _mb_per_cpu_s(run: Measured) -> float:
    return float(run.figures["body_bytes"] / 1e6 / max(run.cpu_s["server"], 0.01))


def _fetch_row(name: str, runs: list[Measured], limits: list[float]) -> Row:
    speeds = [_mb_per_cpu_s(run) for run in runs]
    ratio = statistics.median(
        speed / max(limit, 1.0) for speed, limit in zip(speeds, limits, strict=True)
    )
    last = runs[-1].figures
    wall = last["body_bytes"] / 1e6 / last["elapsed_s"]
    size = last["body_bytes"] / max(1, last["requests"])
    note = f"{wall:,.0f} MB/s on the wall, {size / 1e6:.2f} MB an answer"
    return Row(
        what=f"fetch 1 MB, {name}, per CPU-second",
        product=f"{statistics.median(speeds):,.0f} MB",
        floor=f"{statistics.median(limits):,.0f} (sendfile)",
        value=ratio,
        budget=SHAPES[name][2],
        note="; ".join([note, *dict.fromkeys(run.problem for run in runs if run.problem)]),
    )


async def consumer(product: Product, seconds: float) -> list[Row]:
    """Measure one Python process that decodes every value: by offset, and as a group's member."""
    leader = await product.leader(TOPIC)
    alone = _reader("benchmarks.consumer_read", leader.url, seconds)
    member = _reader("benchmarks.group_read", leader.url, seconds)
    return [
        _reader_row("consumer, one Python process (SDK), values decoded", alone, CONSUMER_BUDGET),
        _reader_row("group read, one member (SDK), decoded, committed per MB", member, None),
    ]


def _reader(module: str, url: str, seconds: float) -> dict[str, float]:
    answer = subprocess.run(
        [sys.executable, "-m", module, url, TOPIC, str(seconds)],
        cwd=Path(ROOT),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    figures: dict[str, float] = json.loads(answer)
    return figures


def _reader_row(what: str, figures: dict[str, float], budget: Budget | None) -> Row:
    speed = figures["records"] / figures["elapsed_s"]
    return Row(
        what=what,
        product=f"{speed:,.0f} records/s",
        value=speed,
        budget=budget,
        note=f"{figures['cpu_s'] / max(1, figures['records']) * 1e6:.2f} µs CPU per record",
    )
