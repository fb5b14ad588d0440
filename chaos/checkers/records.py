"""Checks of records: present, as sent, at their place, in order, with no copy too many.

Acknowledged records against the readings of the finished run, records seen by readers during the
run, records on disks, and the number of copies of each value. Behind them the check of the demo's
Spark query: its result against one computed here from the same flights.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from chaos.checkers.verdict import Verdict, shown, verdict
from chaos.history import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chaos.history import History, Line, Position, Reading


def check_present(history: History, readings: Sequence[Reading]) -> Verdict:
    """Check that every acknowledged record is served at its place by another broker.

    A reading counts only if its broker is not the one that the record was written through: two
    answers of one broker prove nothing about the cluster.
    """
    by_offset = [(reading.broker, _index(reading)) for reading in readings]
    faults: list[str] = []
    checked = missing = changed = unread = 0
    for ack in history.acknowledgements:
        others = [index for broker, index in by_offset if broker != ack.broker]
        for position in ack.positions:
            checked += 1
            if not others:
                unread += 1
                continue
            for index in others:
                line = index.get((position.partition, position.offset))
                if line is None:
                    missing += 1
                    faults.append(f"missing: {_place(position)} of row {position.row}")
                elif (line.key, line.value) != history.records[position.row]:
                    changed += 1
                    sent = history.records[position.row]
                    faults.append(
                        f"changed: {_place(position)} holds {shown(line.key + b' ' + line.value)}, "
                        f"sent was {shown(sent.key + b' ' + sent.value)}"
                    )
    if unread:
        faults.insert(0, f"{unread} records were read by no other broker than they went through")
    if not checked:
        faults.append("nothing was acknowledged, so nothing is proven")
    return verdict(
        "acknowledged records there, as sent, in place",
        f"{checked:,} checked, {missing} missing, {changed} changed",
        faults,
    )


def check_offsets(readings: Sequence[Reading]) -> Verdict:
    """Check that each partition is served from 0 on, without gaps, and that all readings agree."""
    faults: list[str] = []
    served = 0
    first: dict[int, list[Line]] = {}
    for reading in readings:
        for partition, lines in reading.partitions.items():
            served += len(lines)
            for expected, line in enumerate(lines):
                if line.offset != expected:
                    faults.append(
                        f"partition {partition} through broker {reading.broker}: offset "
                        f"{line.offset} where {expected} was due"
                    )
                    break
            if lines != first.setdefault(partition, lines):
                faults.append(f"partition {partition}: broker {reading.broker} serves another log")
    return verdict("offsets dense, readers agree", f"{served:,} records served", faults)


def check_order(history: History) -> Verdict:
    """Check that a key's acknowledged records are in the order sent, in one partition.

    Uses acknowledged positions, which `check_present` proves to be the real ones. A copy left by an
    attempt of unknown outcome is not checked here (see `check_repeats`).
    """
    per_key: dict[bytes, list[Position]] = {}
    for ack in history.acknowledgements:
        for position in ack.positions:
            per_key.setdefault(history.records[position.row].key, []).append(position)
    faults: list[str] = []
    for key, positions in per_key.items():
        positions.sort()
        partitions = {position.partition for position in positions}
        if len(partitions) > 1:
            faults.append(f"key {shown(key)} is in partitions {sorted(partitions)}")
            continue
        for before, after in pairwise(positions):
            if after.offset <= before.offset:
                faults.append(
                    f"key {shown(key)}: row {after.row} at {_place(after)} was sent after row "
                    f"{before.row} at {_place(before)}"
                )
                break
    return verdict("in order per key", f"{len(per_key)} keys", faults)


def check_partitioner(history: History, partitions: int) -> Verdict:
    """Check that a record's partition is crc32 of its key's JSON text modulo the partitions."""
    expected: dict[bytes, int] = {}
    faults: list[str] = []
    for ack in history.acknowledgements:
        for position in ack.positions:
            key = history.records[position.row].key
            if key not in expected:
                expected[key] = zlib.crc32(key) % partitions
                if position.partition != expected[key]:
                    faults.append(
                        f"key {shown(key)} went to {position.partition}, not {expected[key]}"
                    )
    return verdict("keys in their documented partition", f"{len(expected)} keys", faults)


def _index(reading: Reading) -> dict[tuple[int, int], Line]:
    return {
        (partition, line.offset): line
        for partition, lines in reading.partitions.items()
        for line in lines
    }


def _place(position: Position) -> str:
    return f"partition {position.partition} offset {position.offset}"


def readers_for(history: History, brokers: Iterable[int]) -> list[int]:
    """Return the fewest brokers to read through so that no record is read by its own broker only.

    A record's own broker is the one that it was written through. The result is one broker that
    nothing was written through, if there is one, else two.
    """
    choice = sorted(brokers)
    written: dict[int, int] = dict.fromkeys(choice, 0)
    for ack in history.acknowledgements:
        written[ack.broker] = written.get(ack.broker, 0) + len(ack.positions)
    choice.sort(key=lambda broker: (written[broker], broker))
    return choice[:1] if written[choice[0]] == 0 else choice[:2]


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
    unknown = _unacknowledged_records(history, unknown=True)
    refused = _unacknowledged_records(history, unknown=False)
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


def _unacknowledged_records(history: History, *, unknown: bool) -> list[Record]:
    return [
        history.records[row]
        for failure in history.unacknowledged
        if failure.unknown is unknown
        for row in failure.rows
    ]


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


# ---- the demo's Spark query

Row = tuple[str, int, int, int, float]
"""(carrier, month, flights, flights that departed, sum of their delays in minutes)."""


class _Flight(msgspec.Struct, gc=False):
    carrier: str | None = None
    month: int | None = None
    dep_delay: float | None = None


_decode_flight = msgspec.json.Decoder(_Flight).decode
_decode_row = msgspec.json.Decoder(dict[str, Any]).decode


def delays_per_carrier_and_month(flights: Iterable[Line]) -> set[Row]:
    """Return flights and delays per carrier and month; a record that is no flight is left out."""
    counts: dict[tuple[str, int], tuple[int, int, float]] = defaultdict(lambda: (0, 0, 0.0))
    for line in flights:
        flight = _decode_flight(line.value)
        if flight.carrier is None or flight.month is None:
            continue
        all_of, departed, delay = counts[flight.carrier, flight.month]
        late = flight.dep_delay
        counts[flight.carrier, flight.month] = (
            all_of + 1,
            departed + (late is not None),
            delay + (late or 0.0),
        )
    return {(carrier, month, *figures) for (carrier, month), figures in counts.items()}


def answered(results: Iterable[Line]) -> set[Row]:
    """Return the rows in the topic of results; a key's last record is valid."""
    last = {line.key: _decode_row(line.value) for line in results}
    return {
        (row["carrier"], row["month"], row["flights"], row["departed"], float(row["delay"]))
        for row in last.values()
    }


def check_delays(flights: Iterable[Line], results: Iterable[Line]) -> Verdict:
    """Check that the table equals the computed one: no flight missing, none counted twice."""
    expected, found = delays_per_carrier_and_month(flights), answered(results)
    faults = [f"expected {row}" for row in sorted(expected - found)]
    faults += [f"found {row}" for row in sorted(found - expected)]
    if not expected:
        faults.append("there were no flights: nothing was shown")
    counted = sum(row[2] for row in found)
    return verdict(
        "delays per carrier and month are exact",
        f"{len(found)} rows over {counted:,} flights, {len(expected ^ found)} differ",
        faults,
    )
