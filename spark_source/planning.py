"""Division of ranges into Spark tasks. Pure: the same ranges and options give the same tasks.

Each Python task costs tens of milliseconds, so small ranges share one; a long range is divided only
if an option requests it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark_source.offsets import Range
    from spark_source.options import SourceOptions


def tasks(found: Sequence[Range], options: SourceOptions) -> list[tuple[Range, ...]]:
    """Return the ranges of each task; every offset is in exactly one of them."""
    pieces = list(found)
    if options.max_records_per_partition is not None:
        pieces = _cut(pieces, options.max_records_per_partition)
    total = sum(one.size for one in pieces)
    wanted = -(-total // options.rows_per_task)
    if options.min_partitions is not None and total:
        wanted = max(wanted, options.min_partitions)
        if len(pieces) < options.min_partitions:
            pieces = _cut(pieces, max(1, total // options.min_partitions))
    if options.max_records_per_partition is not None:
        wanted = max(wanted, -(-total // options.max_records_per_partition))
    return _share(pieces, min(len(pieces), max(1, wanted)))


def _cut(pieces: Sequence[Range], size: int) -> list[Range]:
    """Divide the ranges into pieces of at most ``size`` offsets."""
    return [
        replace(one, start=at, end=min(at + size, one.end), from_earliest=one.from_earliest)
        for one in pieces
        for at in range(one.start, one.end, size)
    ]


def _share(pieces: Sequence[Range], count: int) -> list[tuple[Range, ...]]:
    """Distribute the ranges over ``count`` tasks, largest first, each to the smallest task."""
    if not pieces:
        return []
    loads = [0] * count
    shares: list[list[Range]] = [[] for _ in range(count)]
    for one in sorted(pieces, key=lambda one: (-one.size, one.topic, one.partition, one.start)):
        least = loads.index(min(loads))
        loads[least] += one.size
        shares[least].append(one)
    return [
        tuple(sorted(share, key=lambda one: (one.topic, one.partition, one.start)))
        for share in shares
        if share
    ]
