"""Checks of availability: gaps in acknowledgements after a fault, and enough load around it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from chaos.history import Acknowledgement, Fault, History


@dataclass(frozen=True, slots=True)
class Gap:
    """Milliseconds in which a partition acknowledged nothing although a record waited."""

    ms: int
    partition: int


def windows(history: History) -> list[tuple[Fault, int | None]]:
    """Return each fault with the time of the next one (None: until the end)."""
    ends: list[int | None] = [fault.at_ms for fault in history.faults[1:]]
    return list(zip(history.faults, [*ends, None], strict=False))


def longest_produce_gap(history: History, since_ms: int, until_ms: int | None) -> Gap:
    """Return the longest gap that ended in the window, over all partitions.

    A partition's gap ends with an acknowledgement and begins with the one before, or when the
    record was due if that is later: time counts only while a record waits. Rows that were never
    acknowledged end no gap; `check_load` reports them.
    """
    last: dict[int, int] = {}
    longest = Gap(0, -1)
    for ack in sorted(history.acknowledgements, key=_answered):
        in_window = ack.answered_ms >= since_ms and (until_ms is None or ack.answered_ms < until_ms)
        for partition in {position.partition for position in ack.positions}:
            waited = ack.answered_ms - max(ack.due_ms, last.get(partition, ack.due_ms))
            last[partition] = ack.answered_ms
            if in_window and waited > longest.ms:
                longest = Gap(waited, partition)
    return longest


def check_produce_gap(
    history: History, fault: Fault, until_ms: int | None, limit_ms: int
) -> Verdict:
    """Check that writes continued within the limit after the fault."""
    gap = longest_produce_gap(history, fault.at_ms, until_ms)
    faults = [] if gap.ms <= limit_ms else [f"partition {gap.partition}: {gap.ms} ms"]
    if not any(ack.answered_ms > fault.at_ms for ack in history.acknowledgements):
        faults.append("nothing was acknowledged after the fault")
    return verdict(
        f"writes go on: {fault.name}",
        f"longest gap between acknowledgements {gap.ms / 1000:.2f} s, "
        f"limit {limit_ms / 1000:g} s; {fault.target}; {fault.evidence}",
        faults,
    )


def check_metadata_gap(
    history: History, fault: Fault, until_ms: int | None, limit_ms: int
) -> Verdict:
    """Check that metadata writes continued within the limit after the fault."""
    answers = [write.answered_ms for write in history.metadata_writes if write.ok]
    before = [at for at in answers if at <= fault.at_ms]
    after = [at for at in answers if at > fault.at_ms and (until_ms is None or at < until_ms)]
    marks = [before[-1] if before else fault.at_ms, *after]
    longest = max((b - a for a, b in zip(marks, after, strict=False)), default=0)
    faults = [] if longest <= limit_ms else [f"{longest} ms without a metadata write"]
    if not before or not after:
        faults.append(f"{len(before)} metadata writes before the fault, {len(after)} after it")
    return verdict(
        f"metadata writes go on: {fault.name}",
        f"longest gap between metadata writes {longest / 1000:.2f} s, limit {limit_ms / 1000:g} s; "
        f"{len(after)} after it; {fault.target}; {fault.evidence}",
        faults,
    )


def check_load(history: History, min_load_after_fault_ms: int) -> Verdict:
    """Check that enough was acknowledged for the other checks to mean something.

    All input rows must be, and after each fault there must be load for long enough, on every
    partition that had any before it. A run in which everything is unknown or refused is
    inconclusive and fails.
    """
    rows = {position.row for ack in history.acknowledgements for position in ack.positions}
    faults: list[str] = []
    if len(rows) != len(history.records):
        faults.append(f"{len(history.records) - len(rows)} rows were never acknowledged")
    seen = [
        (ack.answered_ms, {position.partition for position in ack.positions})
        for ack in history.acknowledgements
    ]
    last = max((at for at, _ in seen), default=0)
    shortest: int | None = None
    for fault, until in windows(history):
        before = {p for at, partitions in seen if at < fault.at_ms for p in partitions}
        after = {
            p
            for at, partitions in seen
            if at > fault.at_ms and (until is None or at < until)
            for p in partitions
        }
        if before - after:
            faults.append(f"after {fault.name}: nothing on partitions {sorted(before - after)}")
        followed = (last if until is None else until) - fault.at_ms
        shortest = followed if shortest is None else min(shortest, followed)
        if followed < min_load_after_fault_ms:
            faults.append(f"only {followed} ms of load after {fault.name}")
    refused = sum(1 for failure in history.unacknowledged if not failure.unknown)
    unknown = len(history.unacknowledged) - refused
    return verdict(
        "everything sent was acknowledged in the end",
        f"{len(rows):,} of {len(history.records):,} rows in {len(seen):,} answers, {refused} "
        f"refused, {unknown} unknown; at least {(shortest or 0) / 1000:.1f} s of load per fault",
        faults,
    )


def _answered(ack: Acknowledgement) -> int:
    return ack.answered_ms
