"""Cost of a cluster that serves no requests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from benchmarks.processes import cpu_seconds, memory_mb
from benchmarks.product import server_pids
from benchmarks.report import Row, at_most

if TYPE_CHECKING:
    from benchmarks.product import Product

MEMORY_BUDGET = at_most(60, " MB")


async def measure(product: Product, seconds: float) -> list[Row]:
    """Measure each process's memory after a while without topics, and the CPU used meanwhile."""
    pids = server_pids(product.now())
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    await asyncio.sleep(seconds)
    rows = []
    for kind in ("broker", "controller"):
        names = [name for name in pids if name.startswith(kind)]
        sizes = [memory_mb(pids[name]) for name in names]
        cpu = sum(cpu_seconds(pids[name]) - before[name] for name in names)
        resident = max(rss for rss, _ in sizes)
        rows.append(
            Row(
                what=f"idle {kind}, memory after {seconds:g} s",
                product=f"{resident:.0f} MB",
                value=resident,
                budget=MEMORY_BUDGET,
                note=f"largest of {len(names)}; proportional {max(p for _, p in sizes):.0f} MB; "
                f"CPU of all {len(names)}: {cpu / seconds * 100:.1f} % of a core",
            )
        )
    return rows
