"""Restart leg of the demo: every process is killed at once, and the same command restarts all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chaos.checkers.verdict import verdict
from chaos.deadline import within
from chaos.demo.context import TOPIC, endpoints, read_and_judge
from chaos.history import Record
from chaos.http import JSON_V2
from chaos.workloads import Load

if TYPE_CHECKING:
    from chaos.demo.context import DemoContext

COME_BACK_LIMIT_S = 30.0


async def play(stage: DemoContext) -> None:
    """Kill all, start again, write once per key, and read everything back."""
    count = stage.cluster.kill_everything()
    stage.screen.say(f"killed all {count} processes at once; starting again")
    began = time.monotonic()
    ready_s = await stage.cluster.start()
    records = stage.history.records
    first = len(records)
    keys = list(dict.fromkeys(record.key for record in records))
    records.extend(Record(key, b'{"after": "restart"}') for key in keys)
    load = Load(
        stage.http,
        stage.history,
        TOPIC,
        endpoints(stage.now()),
        rows=range(first, len(records)),
        rows_per_second=1e6,
        clock=stage.clock,
    )
    async with within(COME_BACK_LIMIT_S * 2, "every key is written after the restart"):
        await load.run()
    writes_s = time.monotonic() - began
    late = writes_s > COME_BACK_LIMIT_S
    stage.judge(
        verdict(
            "comes back after kill -9 of all",
            f"{count} processes killed; ready after {ready_s:.1f} s, a write for each of "
            f"{len(keys)} keys acknowledged after {writes_s:.1f} s, "
            f"limit {COME_BACK_LIMIT_S:g} s",
            [f"{writes_s:.1f} s"] if late else [],
        )
    )
    await read_and_judge(stage, JSON_V2, "after kill -9 of all: ")
