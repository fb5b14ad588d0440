"""`make bench`: every figure beside its budget and, in the same run, the benchmark's own floor.

A missed budget is only reported: the exit status is 0 unless something could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from subprocess import SubprocessError
from typing import TYPE_CHECKING

from benchmarks import (
    client,
    doors,
    failover,
    fetch,
    group_churn,
    groups,
    growth,
    idle,
    polls,
    produce,
    spark,
    tails,
    transactions,
)
from benchmarks.product import product
from benchmarks.report import NO_FIGURE, Row, machine, missed, table
from chaos.cluster import ClusterError
from chaos.deadline import TooLateError
from chaos.http import CallError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.product import Product

NOT_MEASURED = (
    CallError,
    ClusterError,
    TooLateError,
    RuntimeError,
    OSError,
    KeyError,
    TypeError,
    SubprocessError,
)
"""Errors by which a misbehaving cluster shows itself to the benchmarks."""
SECTIONS = (
    "idle", "produce", "latency", "spread", "fetch", "consumer", "client", "doors", "growth",
    "failover", "transactions", "spark",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Options:
    """Durations and numbers of rounds."""

    sections: tuple[str, ...]
    seconds: float
    rounds: int
    trials: int
    idle_s: float
    churn_s: float
    scale: float
    quick: bool


async def run(options: Options) -> list[Row]:
    """Run all chosen sections on one fresh cluster, idle first."""
    rows: list[Row] = []
    async with product("--set", f"max.connections.per.ip={doors.CONNECTIONS}") as cluster:
        for section in SECTIONS:
            if section in options.sections:
                print(f"measuring {section} …", file=sys.stderr, flush=True)
                try:
                    found = await measure(section, cluster, options)
                except* NOT_MEASURED as errors:
                    found = [Row(what=section, product=NO_FIGURE, note=f"{first(errors)!r}"[:300])]
                print(table(found), file=sys.stderr, flush=True)
                rows += found
    return rows


def first(error: BaseException) -> BaseException:
    """Return the first error of a group, and of groups in it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def measure(  # noqa: C901 a branch a section
    section: str, cluster: Product, options: Options
) -> list[Row]:
    """Return one section's rows."""
    match section:
        case "idle":
            return await idle.measure(cluster, options.idle_s)
        case "produce":
            return await produce.throughput(cluster, options.seconds, options.rounds)
        case "latency":
            return await produce.latency(cluster, options.seconds)
        case "spread":
            return await produce.spread(cluster, options.seconds)
        case "fetch":
            await fetch.fill(cluster)
            return await fetch.per_cpu_second(cluster, options.seconds, options.rounds)
        case "consumer":
            if "fetch" not in options.sections:
                await fetch.fill(cluster)
            return await fetch.consumer(cluster, options.seconds)
        case "client":
            return await client.measure(cluster, options.seconds, options.rounds)
        case "doors":
            return [
                *await doors.measure(cluster, options.seconds, options.rounds),
                *await group_churn.measure(cluster, options.churn_s),
                *await tails.measure(cluster),
                *await polls.run(),
                groups.uniform(),
            ]
        case "growth":
            return await growth.measure(cluster, options.seconds, options.rounds, options.scale)
        case "failover":
            return await failover.measure(cluster, options.trials)
        case "transactions":
            return await transactions.measure(
                cluster, options.seconds, options.rounds, options.trials
            )
        case "spark":
            return await spark.measure(cluster, options.rounds, quick=options.quick)
        case _:
            raise ValueError(section)


def parse(arguments: Sequence[str] | None) -> Options:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 s a cell, one round, two trials")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, help="this section; may be said again"
    )
    parser.add_argument("--seconds", type=float, help="per cell and round")
    parser.add_argument("--rounds", type=int, help="of product and floor in turn, for the median")
    parser.add_argument("--trials", type=int, help="of each fault")
    parser.add_argument(
        "--scale", type=float, help="of the section growth; 1: 4 GB and 5,000 partitions"
    )
    said = parser.parse_args(arguments)
    return Options(
        sections=tuple(said.only or SECTIONS),
        seconds=said.seconds or (2.0 if said.quick else 3.0),
        rounds=said.rounds or (1 if said.quick else 3),
        trials=said.trials or (2 if said.quick else 10),
        idle_s=5.0 if said.quick else 60.0,
        churn_s=15.0 if said.quick else 120.0,
        scale=said.scale or (0.05 if said.quick else 1.0),
        quick=said.quick,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = parse(arguments)
    note = machine()
    rows = asyncio.run(run(options))
    print(note)
    print()
    print(table(rows))
    print()
    print(missed(rows))
    return 1 if any(row.product == NO_FIGURE for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
