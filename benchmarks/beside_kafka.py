"""The programs of `kafka_programs` beside the SDK: through `quorumlog.compat`, and against Kafka.

Part of the section ``client``. Kafka is measured only if `make kafka` fetched it. Its cluster runs
while quorumlog's is there and idle, as that one is while Kafka is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

from benchmarks.kafka_cluster import PYTHON, is_fetched, kafka_running
from benchmarks.processes import ROOT
from benchmarks.report import Row, ratio_at_least

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROGRAMS: Final = ROOT / "benchmarks" / "kafka_programs.py"
COMPAT: Final = "quorumlog.compat.confluent_kafka"
COMPAT_RATIO: Final = 0.6
"""Part of the SDK's own throughput that a program for confluent-kafka reaches through it."""
MODES: Final = {
    "plain": "produce, no key, no callback",
    "keyed": "produce, keyed, with on_delivery",
    "consume": "consume, one consumer",
    "poll": "poll, one consumer",
}
CHILD_S: Final = 120.0
WARM_UP_S: Final = 8.0
"""Run of each program that is not counted, as Java compiles what runs often."""


def measure(
    urls: str, topic: str, own_per_s: Mapping[str, float], seconds: float, rounds: int
) -> list[Row]:
    """Return the rows; ``own_per_s`` is what the SDK's own programs reached, by mode."""
    rows = []
    through_compat = _figures(sys.executable, COMPAT, urls, topic, seconds, rounds)
    for mode, what in MODES.items():
        per_s, cpu_us = through_compat[mode]
        ratio = per_s / own_per_s[mode]
        rows.append(
            Row(
                what=f"compat, {what}",
                product=f"{per_s:,.0f} records/s",
                floor=f"{own_per_s[mode]:,.0f} records/s",
                value=ratio,
                budget=ratio_at_least(COMPAT_RATIO),
                note=f"beside the SDK's own; {cpu_us:.1f} µs of CPU a record",
            )
        )
    return [*rows, *_beside_kafka(own_per_s, seconds, rounds)]


def _beside_kafka(own_per_s: Mapping[str, float], seconds: float, rounds: int) -> list[Row]:
    if not is_fetched():
        return [Row(what="SDK beside confluent-kafka", product="", note="`make kafka` fetches it")]
    topic = "client"
    with kafka_running() as servers:
        _run(PYTHON, "confluent_kafka", "create", servers, topic, 0.0)
        for mode in MODES:
            _run(PYTHON, "confluent_kafka", mode, servers, topic, WARM_UP_S)
        kafka = _figures(PYTHON, "confluent_kafka", servers, topic, seconds, rounds)
    rows = []
    for mode, what in MODES.items():
        per_s, cpu_us = kafka[mode]
        note = (
            f"{own_per_s[mode] / per_s:.1f} × confluent-kafka and Kafka, which syncs nothing; its "
            f"client takes {cpu_us:.1f} µs of CPU a record"
        )
        own = f"{own_per_s[mode]:,.0f} records/s"
        rows.append(
            Row(what=f"SDK {what}", product=own, floor=f"{per_s:,.0f} records/s", note=note)
        )
    return rows


def _figures(
    python: str | Path, library: str, servers: str, topic: str, seconds: float, rounds: int
) -> dict[str, tuple[float, float]]:
    """Return records a second and µs of the program's CPU a record by mode: medians."""
    found: dict[str, tuple[float, float]] = {}
    for mode in MODES:
        runs = [_run(python, library, mode, servers, topic, seconds) for _ in range(rounds)]
        per_s = statistics.median(each["records"] / each["elapsed_s"] for each in runs)
        cpu_us = statistics.median(each["cpu_s"] / each["records"] for each in runs) * 1e6
        found[mode] = per_s, cpu_us
    return found


def _run(
    python: str | Path, library: str, mode: str, servers: str, topic: str, seconds: float
) -> dict[str, Any]:
    command = [str(python), str(PROGRAMS), library, mode, servers, topic, str(seconds)]
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=CHILD_S + seconds,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures
