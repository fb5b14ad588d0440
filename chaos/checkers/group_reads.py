"""Checks of the demo's group: records delivered to its members against the content of the topic."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.history import Reading

Place = tuple[int, int]
"""Place of a record: (partition, offset)."""


class Delivery(NamedTuple):
    """A record in a member's answer. `digest` is a crc32 of its key's and its value's text."""

    at_ms: int
    partition: int
    offset: int
    digest: int


def check_all_delivered(
    held: Reading, digests: Mapping[Place, int], members: Mapping[str, Sequence[Delivery]]
) -> Verdict:
    """Check that every record of the reading reached a member as sent, and nothing else did."""
    delivered: dict[Place, set[int]] = defaultdict(set)
    for deliveries in members.values():
        for one in deliveries:
            delivered[one.partition, one.offset].add(one.digest)
    places = [
        (partition, line.offset) for partition, lines in held.partitions.items() for line in lines
    ]
    missing = [place for place in places if place not in delivered]
    changed = [place for place, found in delivered.items() if found != {digests.get(place)}]
    faults = [f"partition {p} offset {o} was delivered to nobody" for p, o in missing]
    faults += [f"partition {p} offset {o} was delivered changed" for p, o in changed]
    if not places:
        faults.append("the topic is empty: nothing was shown")
    return verdict(
        "every record reached the group, as sent",
        f"{len(places):,} records, {len(missing)} missing, {len(changed)} changed",
        faults,
    )


def check_one_owner(members: Mapping[str, Sequence[Delivery]], killed: str) -> Verdict:
    """Check that no record reached two living members, and that each read partitions in order.

    The killed member's last records were not committed yet, and its successor reads them again, as
    at least once allows. They are counted. Any other record that came twice had two owners.
    """
    living: dict[Place, str] = {}
    faults: list[str] = []
    for member, deliveries in members.items():
        ends: dict[int, int] = {}
        for one in deliveries:
            if one.offset < ends.get(one.partition, 0):
                faults.append(f"{member} went back to {one.partition}/{one.offset}")
            ends[one.partition] = one.offset + 1
            if member != killed:
                other = living.setdefault((one.partition, one.offset), member)
                if other != member:
                    faults.append(f"{one.partition}/{one.offset} reached {other} and {member}")
    again = sum((one.partition, one.offset) in living for one in members[killed])
    return verdict(
        "no partition owned by two",
        f"{again:,} records of the killed member read again by its successors, "
        f"{len(faults)} by two living ones or out of order",
        faults,
    )


def check_taken_over(
    members: Mapping[str, Sequence[Delivery]],
    killed: str,
    partition: int,
    at_ms: int,
    limit_ms: int,
) -> Verdict:
    """Check that another member continued the killed member's partition within the limit."""
    before = [one for one in members[killed] if one.partition == partition]
    after = [
        (one.at_ms, member)
        for member, deliveries in members.items()
        if member != killed
        for one in deliveries
        if one.partition == partition and one.at_ms >= at_ms
    ]
    name = "another member takes over"
    if not before or not after:
        what = "never owned" if not before else "was not taken over from"
        return verdict(name, f"partition {partition}", [f"{killed} {what} partition {partition}"])
    first_ms, successor = min(after)
    gap_ms = first_ms - at_ms
    return verdict(
        name,
        f"{killed} killed at offset {before[-1].offset + 1:,} of partition {partition}, "
        f"{successor} went on after {gap_ms / 1000:.1f} s, limit {limit_ms / 1000:g} s",
        [f"{gap_ms} ms"] if gap_ms > limit_ms else [],
    )
