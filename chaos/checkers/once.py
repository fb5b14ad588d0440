"""Check for a workload that never sends a value twice: the number of copies of each value."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, shown, verdict
from chaos.history import Record

if TYPE_CHECKING:
    from chaos.history import History, Reading


def check_once(history: History, reading: Reading, unknown_max: float) -> Verdict:
    """Check copies: acknowledged exactly one, refused none, unknown at most one.

    Only for histories in which every record was sent once; any other is an error of the workload.
    More than the given share of unknown attempts fails, because it proves too little.
    """
    served = Counter(
        Record(line.key, line.value) for lines in reading.partitions.values() for line in lines
    )
    acknowledged = [
        history.records[position.row]
        for ack in history.acknowledgements
        for position in ack.positions
    ]
    unknown = _rows(history, unknown=True)
    refused = _rows(history, unknown=False)
    attempts = len(acknowledged) + len(unknown) + len(refused)
    faults = [
        f"the workload sent {shown(b' '.join(record))} {times} times"
        for record, times in Counter([*acknowledged, *unknown, *refused]).items()
        if times > 1
    ]
    repeated = [record for record, copies in served.items() if copies > 1]
    lost = [record for record in acknowledged if not served[record]]
    written = [record for record in refused if served[record]]
    faults += [f"{served[record]} times: {shown(b' '.join(record))}" for record in repeated]
    faults += [f"lost: {shown(b' '.join(record))}" for record in lost]
    faults += [f"called not written: {shown(b' '.join(record))}" for record in written]
    if not acknowledged:
        faults.append("nothing was acknowledged, so nothing is proven")
    if len(unknown) > unknown_max * attempts:
        faults.append(f"{len(unknown)} of {attempts} attempts are unknown")
    ran = sum(1 for record in unknown if served[record])
    return verdict(
        "sent once, there once",
        f"{len(acknowledged):,} acknowledged, {len(lost)} lost, {len(repeated)} repeated; "
        f"{len(unknown)} unknown, {ran} of them there; "
        f"{len(refused)} refused, {len(written)} of them there",
        faults,
    )


def _rows(history: History, *, unknown: bool) -> list[Record]:
    return [
        history.records[row]
        for failure in history.unacknowledged
        if failure.unknown is unknown
        for row in failure.rows
    ]
