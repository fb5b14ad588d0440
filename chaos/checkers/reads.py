"""Checks of records seen during a run, and of records on disks, against the final reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, shown, verdict
from chaos.history import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.history import History, Reading


def check_seen_stays(history: History, reading: Reading) -> Verdict:
    """Check that a record once read at an offset stays there unchanged, without gaps in the tail.

    Includes answers of a deposed leader: records that it serves must be committed all the same. A
    4xx for an offset that exists would send a client back to the start, so it fails too.
    """
    final = {
        partition: {line.offset: line for line in lines}
        for partition, lines in reading.partitions.items()
    }
    faults: list[str] = []
    seen = 0
    for look in history.observations:
        where = f"partition {look.partition} through broker {look.broker}"
        if look.refusal:
            faults.append(f"{where}: offset {look.offset} refused: {look.refusal}")
        for expected, line in enumerate(look.lines, start=look.offset):
            seen += 1
            there = final.get(look.partition, {}).get(line.offset)
            if line.offset != expected:
                faults.append(f"{where}: offset {line.offset} where {expected} was due")
            if there is None:
                faults.append(f"{where}: offset {line.offset} was seen and is gone")
            elif there != line:
                faults.append(
                    f"{where}: offset {line.offset} was {shown(line.key + b' ' + line.value)}, "
                    f"is {shown(there.key + b' ' + there.value)}"
                )
    if not seen:
        faults.append("nothing was read while the run went on")
    return verdict(
        "what was seen stays",
        f"{seen:,} records in {len(history.observations):,} reads",
        faults,
    )


def check_unknown_ran(history: History, reading: Reading) -> Verdict:
    """Check that some attempts of unknown outcome are in the log.

    Their requests ran, and the answers were lost. In a run that loses replies, none would mean that
    the fault hit something else.
    """
    unknown = {
        history.records[row]
        for failure in history.unacknowledged
        if failure.unknown
        for row in failure.rows
    }
    served = {
        Record(line.key, line.value) for lines in reading.partitions.values() for line in lines
    }
    ran = len(unknown & served)
    return verdict(
        "lost replies were told as unknown",
        f"{len(unknown)} unknown, {ran} of them had been written",
        [] if ran else ["no attempt of unknown outcome had been written"],
    )


def check_replicas(
    served: Reading, disks: Sequence[Reading], replicas: Mapping[int, int]
) -> Verdict:
    """Check that every replica's disk holds exactly the served records.

    Args:
        served: the records that a broker served.
        disks: per broker, the lines in its files, for the partitions it has.
        replicas: partition → number of replicas it must have.
    """
    faults: list[str] = []
    compared = 0
    for partition, wanted in replicas.items():
        lines = served.partitions.get(partition, [])
        holders = [disk for disk in disks if partition in disk.partitions]
        if len(holders) != wanted:
            faults.append(f"partition {partition} has {len(holders)} replicas, not {wanted}")
        for disk in holders:
            held = disk.partitions[partition]
            compared += len(held)
            if held == lines:
                continue
            at = next(
                (n for n, (a, b) in enumerate(zip(held, lines, strict=False)) if a != b),
                min(len(held), len(lines)),
            )
            faults.append(
                f"partition {partition} on broker {disk.broker}: {len(held)} lines on disk, "
                f"{len(lines)} served, the first difference at {at}"
            )
    if not compared:
        faults.append("no replica held anything")
    return verdict("all replicas hold the same", f"{compared:,} records on disks", faults)
