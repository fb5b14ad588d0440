"""Did a group skip a record, and did a commit that was acknowledged come back as less?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chaos.history import History


def check_nothing_skipped(history: History, committed: Mapping[int, int]) -> Verdict:
    """Every record below what the group has committed was given to one of its members.

    Given twice is a member's own doing: it goes back to the last commit when it is in doubt.
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
    """What the group has committed in the end is no less than any commit that was acknowledged.

    Members commit in order, each partition has one owner at a time, and a member that has lost a
    partition is refused: so an older commit never overwrites a newer one.
    """
    highest: dict[int, int] = {}
    faults: list[str] = []
    for commit in history.group_commits:
        highest[commit.partition] = max(highest.get(commit.partition, 0), commit.next_offset)
    faults += [
        f"partition {partition}: {end} was acknowledged, {committed.get(partition)} is committed"
        for partition, end in highest.items()
        if committed.get(partition, -1) < end
    ]
    if not history.group_commits:
        faults.append("no commit was acknowledged")
    return verdict(
        "group: commits stay", f"{len(history.group_commits):,} acknowledged commits", faults
    )


def check_read_on(since_ms: int, history: History, least: int) -> Verdict:
    """After the fault the group went on: so many records were given to it, and committed."""
    given = sum(len(read.offsets) for read in history.group_reads if read.answered_ms >= since_ms)
    commits = sum(1 for commit in history.group_commits if commit.answered_ms >= since_ms)
    faults = [] if given >= least and commits else [f"{given} records, {commits} commits"]
    return verdict(
        "group: reads on after the fault",
        f"{given:,} records in {commits:,} commits, at least {least}",
        faults,
    )
