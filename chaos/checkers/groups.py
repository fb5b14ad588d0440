"""Checks of a scenario's group: no record is skipped, no acknowledged commit is lost."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.history import History


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
