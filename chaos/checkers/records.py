"""Checks of acknowledged records: present, as sent, at the acknowledged place, in order."""

from __future__ import annotations

import zlib
from itertools import pairwise
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, shown, verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
