"""The programs of `kafka_programs` beside the SDK: through `quorumlog.compat`, and against Kafka.

Part of the section ``client``; the transactions, of that section. Kafka is measured only if `make
kafka` fetched it. Its cluster runs while quorumlog's is there and idle, as that one is while Kafka
is measured.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from benchmarks.kafka_cluster import PYTHON, is_fetched, kafka_running
from benchmarks.processes import ROOT
from benchmarks.report import Row, ratio_at_least

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PROGRAMS: Final = ROOT / "benchmarks" / "kafka_programs.py"
COMPAT: Final = "quorumlog.compat.confluent_kafka"
COMPAT_RATIO: Final = 0.6
"""Part of what a program reaches by confluent-kafka that it reaches through the SDK, too."""
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
    """Return the rows; ``own_per_s`` is what the SDK's own programs reached, by mode.

    The budget of the programs through `quorumlog.compat` is a part of what they reach by
    confluent-kafka against Kafka.
    """
    _run(sys.executable, COMPAT, "create", urls, topic, 0.0)
    through_compat = _figures(sys.executable, COMPAT, urls, topic, seconds, rounds)
    by_kafka = _kafka_figures(seconds, rounds) if is_fetched() else {}
    rows = []
    for mode, what in MODES.items():
        if mode in by_kafka:
            rows.append(_beside(f"SDK {what}", own_per_s[mode], by_kafka[mode]))
    for mode, what in MODES.items():
        per_s, cpu_us = through_compat[mode]
        note = f"{per_s / own_per_s[mode]:.2f} × the SDK's own; {cpu_us:.1f} µs of CPU a record"
        row = Row(what=f"compat, {what}", product=f"{per_s:,.0f} records/s", note=note)
        if mode in by_kafka:
            kafka_per_s, _ = by_kafka[mode]
            row = replace(
                row,
                floor=f"{kafka_per_s:,.0f} records/s",
                value=per_s / kafka_per_s,
                budget=ratio_at_least(COMPAT_RATIO),
            )
        rows.append(row)
    if not by_kafka:
        rows.append(Row(what="confluent-kafka", product="", note="`make kafka` fetches it"))
    return rows


class KafkaTransactions(NamedTuple):
    """Transactions of a record on each of two partitions, by confluent-kafka against Kafka."""

    one_p50_ms: float
    """Of one producer, from its begin to its commit."""
    many_per_s: float


def kafka_transactions(producers: int, seconds: float, rounds: int) -> KafkaTransactions | None:
    """Measure one producer, and some at once; None if Kafka was not fetched."""
    if not is_fetched():
        return None
    topic = "transactions"
    with kafka_running() as servers:
        _run(PYTHON, "confluent_kafka", "create", servers, topic, 0.0)
        runs: dict[int, list[dict[str, Any]]] = {1: [], producers: []}
        for number, found in runs.items():
            mode = f"transact-{number}"
            _run(PYTHON, "confluent_kafka", mode, servers, topic, WARM_UP_S)
            for _ in range(rounds):
                found.append(_run(PYTHON, "confluent_kafka", mode, servers, topic, seconds))
    return KafkaTransactions(
        one_p50_ms=statistics.median(each["p50_ms"] for each in runs[1]),
        many_per_s=statistics.median(
            each["transactions"] / each["elapsed_s"] for each in runs[producers]
        ),
    )


def _beside(what: str, own_per_s: float, by_kafka: tuple[float, float]) -> Row:
    per_s, cpu_us = by_kafka
    return Row(
        what=what,
        product=f"{own_per_s:,.0f} records/s",
        floor=f"{per_s:,.0f} records/s",
        note=f"{own_per_s / per_s:.1f} × confluent-kafka and Kafka, which syncs nothing; that "
        f"client takes {cpu_us:.1f} µs of CPU a record",
    )


def _kafka_figures(seconds: float, rounds: int) -> dict[str, tuple[float, float]]:
    topic = "client"
    with kafka_running() as servers:
        _run(PYTHON, "confluent_kafka", "create", servers, topic, 0.0)
        for mode in MODES:
            _run(PYTHON, "confluent_kafka", mode, servers, topic, WARM_UP_S)
        return _figures(PYTHON, "confluent_kafka", servers, topic, seconds, rounds)


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
