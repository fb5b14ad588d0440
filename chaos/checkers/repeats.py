"""Check of copies: those from a client's retries, and those made by the system."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, shown, verdict
from chaos.history import Record

if TYPE_CHECKING:
    from chaos.history import History, Reading


def check_repeats(history: History, reading: Reading) -> Verdict:
    """Check that every served record was sent, and has no more copies than retries allow.

    For each record: copies served ≤ times acknowledged + attempts of unknown outcome. One more is
    the system's own duplicate, or an attempt reported as `not_written` that was written: a failure.
    So is a record that was never sent. Copies above the acknowledged ones, within that bound, are
    the client's own retries, which are counted only.
    """
    acknowledged: Counter[Record] = Counter()
    unknown: Counter[Record] = Counter()
    sent = set(history.records)
    for ack in history.acknowledgements:
        acknowledged.update(history.records[position.row] for position in ack.positions)
    for failure in history.unacknowledged:
        if failure.unknown:
            unknown.update(history.records[row] for row in failure.rows)
    served: Counter[Record] = Counter(
        Record(line.key, line.value) for lines in reading.partitions.values() for line in lines
    )
    faults: list[str] = []
    by_client = by_system = strangers = 0
    for record, copies in served.items():
        if record not in sent:
            strangers += copies
            faults.append(f"nobody sent {shown(record[0] + b' ' + record[1])}")
            continue
        allowed = acknowledged[record] + unknown[record]
        by_client += max(0, min(copies, allowed) - acknowledged[record])
        if copies > allowed:
            by_system += copies - allowed
            faults.append(
                f"{copies} copies, {acknowledged[record]} acknowledged, {unknown[record]} unknown: "
                f"{shown(record[0] + b' ' + record[1])}"
            )
    attempts = sum(1 for failure in history.unacknowledged if failure.unknown)
    return verdict(
        "no repeats but the client's own",
        f"{by_client} by client retry after {attempts} unknown answers, {by_system} by the system, "
        f"{strangers} never sent",
        faults,
    )
