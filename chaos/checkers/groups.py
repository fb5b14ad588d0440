"""Checks of consumer groups: no record is skipped, no acknowledged commit is lost, one owner each.

The first checks judge a scenario's group by its reads and commits in the history, the others the
demo's group by the records delivered to its members.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chaos.history import History, Reading


def check_nothing_skipped(history: History, committed: Mapping[int, int]) -> Verdict:
    """Check that every record below the group's committed offset was delivered to a member.

    A repeated delivery is a member's own doing: after a failure it returns to the last commit.
    """
    given: dict[int, set[int]] = {}
    copies = 0
    for read in history.group_reads:
        seen = given.setdefault(read.partition, set())
        copies += sum(1 for offset in read.offsets if offset in seen)
        seen.update(read.offsets)
    faults: list[str] = []
    for partition, end in committed.items():
        skipped = sorted(set(range(end)) - given.get(partition, set()))
        if skipped:
            faults.append(
                f"partition {partition}: {len(skipped)} records up to {end} were given to nobody, "
                f"the first at {skipped[0]}"
            )
    if not any(committed.values()):
        faults.append("the group committed nothing")
    return verdict(
        "group: nothing skipped",
        f"{sum(committed.values()):,} records in {len(committed)} partitions, {copies:,} given "
        "again after a doubt",
        faults,
    )


def check_commits_stay(history: History, committed: Mapping[int, int]) -> Verdict:
    """Check that an acknowledged commit is never undone, in the end or for any later read.

    Members commit in order, each partition has one owner at a time, and a member that has lost a
    partition is refused. So an older commit never overwrites a newer one, and no read that was sent
    after a commit was acknowledged returns a record below it, to any member.
    """
    commits: dict[int, list[tuple[int, int]]] = {}
    for commit in history.group_commits:
        known = commits.setdefault(commit.partition, [])
        highest = max(commit.next_offset, known[-1][1] if known else 0)
        known.append((commit.answered_ms, highest))
    faults = [
        f"partition {partition}: {known[-1][1]} was acknowledged, "
        f"{committed.get(partition)} is committed"
        for partition, known in commits.items()
        if committed.get(partition, -1) < known[-1][1]
    ]
    for read in history.group_reads:
        known = commits.get(read.partition, [])
        earlier = bisect_left(known, (read.sent_ms, -1))
        if earlier and read.offsets[0] < known[earlier - 1][1]:
            faults.append(
                f"partition {read.partition}: {read.member} was given {read.offsets[0]} after "
                f"{known[earlier - 1][1]} had been committed"
            )
    if not history.group_commits:
        faults.append("no commit was acknowledged")
    return verdict(
        "group: commits stay", f"{len(history.group_commits):,} acknowledged commits", faults
    )


def check_read_on(since_ms: int, history: History, least: int) -> Verdict:
    """Check that the group received at least `least` records after the fault, and committed."""
    given = sum(len(read.offsets) for read in history.group_reads if read.answered_ms >= since_ms)
    commits = sum(1 for commit in history.group_commits if commit.answered_ms >= since_ms)
    faults = [] if given >= least and commits else [f"{given} records, {commits} commits"]
    return verdict(
        "group: reads on after the fault",
        f"{given:,} records in {commits:,} commits, at least {least}",
        faults,
    )


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
