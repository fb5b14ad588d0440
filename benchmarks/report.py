"""Rows, budgets and the table they are printed in."""

from __future__ import annotations

import math
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit for a measured figure: at least or at most ``number``.

    With `of_floor` the number is the ratio to the floor, what the machine does without the product.
    """

    number: float
    unit: str
    at_least: bool
    of_floor: bool = False

    def met(self, value: float) -> bool:
        """Return True if the value is within the limit."""
        return value >= self.number if self.at_least else value <= self.number

    @override
    def __str__(self) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.number:,g}{' × floor' if self.of_floor else self.unit}"


def ratio_at_least(number: float) -> Budget:
    """Return a budget of at least this part of the floor."""
    return Budget(number, "", at_least=True, of_floor=True)


def at_most(number: float, unit: str) -> Budget:
    """Return a budget of at most this number."""
    return Budget(number, unit, at_least=False)


def at_least(number: float, unit: str) -> Budget:
    """Return a budget of at least this number."""
    return Budget(number, unit, at_least=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measurement.

    `value` is compared with the budget: the ratio where the budget is one, else the figure itself
    (in the budget's unit).
    """

    what: str
    product: str
    floor: str = ""
    value: float | None = None
    budget: Budget | None = None
    note: str = ""

    @property
    def missed(self) -> bool:
        """True if there is a budget and it is not met."""
        return self.budget is not None and (self.value is None or not self.budget.met(self.value))

    def cells(self) -> list[str]:
        """The row's cells in the table."""
        ratio = ""
        if self.budget is not None and self.budget.of_floor and self.value is not None:
            ratio = f"{self.value:.2f}"
        mark = "" if self.budget is None else ("MISSED" if self.missed else "met")
        budget = "" if self.budget is None else str(self.budget)
        return [self.what, self.product, self.floor, ratio, budget, mark, self.note]


NO_FIGURE = "not measured"
"""Figure of a row that could not be measured; the exit status is then 1."""

HEAD = ["what", "product", "floor", "ratio", "budget", "", "note"]


def table(rows: Iterable[Row]) -> str:
    """Return a Markdown table with its columns aligned."""
    lines = [HEAD, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    lines.insert(1, ["-" * width for width in widths])
    padded = [
        [cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in padded)


def missed(rows: Sequence[Row]) -> str:
    """Return one sentence per missed budget, or a sentence that all were met."""
    lines = [
        f"MISSED: {row.what}: "
        + (f"{row.value:.2f}" if row.value is not None else "not measured")
        + f", budget {row.budget}"
        for row in rows
        if row.missed
    ]
    judged = sum(1 for row in rows if row.budget is not None)
    return "\n".join(lines) or f"all {judged} budgets met"


def machine() -> str:
    """Return a description of the machine and its load."""
    model = next(
        (
            line.partition(": ")[2]
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_kb = int(Path("/proc/meminfo").read_text().split()[1])
    packages = []
    for name in ("aiohttp", "msgspec", "orjson", "uvloop", "isal"):
        try:
            packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            packages.append(f"no {name}")
    load = " ".join(f"{number:.2f}" for number in os.getloadavg())
    return (
        f"{os.cpu_count()} × {model}, {memory_kb / (1 << 20):.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}, {', '.join(packages)}; "
        f"load average before the run {load}. Everything runs on this machine; "
        "ratios compare within one run only."
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of a non-empty sequence."""
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]
