"""Pages of a heartbeat that has more damaged replicas than one heartbeat may list.

A page lists all damaged replicas in a range of partitions, so its receiver replaces everything it
knew about that range: no replica is dropped while others are listed, and each is listed in turn,
however many there are. A broker sends every controller its own sequence of pages and repeats a page
that was not answered.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from raft_metadata.common.ids import TopicIdPartition
from raft_metadata.records.commands import FAILED_REPLICAS_MAX, BrokerHeartbeat, FailedReplica


def place_of(failed: FailedReplica) -> TopicIdPartition:
    """Return the partition of a damaged replica; pages are sorted by it."""
    return TopicIdPartition(failed.topic_id, failed.partition)


def next_page(beat: BrokerHeartbeat, after: TopicIdPartition | None) -> BrokerHeartbeat:
    """Return the heartbeat with the next page of the damaged replicas that ``beat`` lists.

    ``beat.failed`` holds all of them, sorted by `place_of`. ``after`` is
    `BrokerHeartbeat.failed_up_to` of the page before, or None to begin anew.
    """
    if after is None and len(beat.failed) <= FAILED_REPLICAS_MAX:
        return beat
    start = 0 if after is None else bisect_right(beat.failed, after, key=place_of)
    page = beat.failed[start : start + FAILED_REPLICAS_MAX]
    is_last = start + FAILED_REPLICAS_MAX >= len(beat.failed)
    up_to = None if is_last else place_of(page[-1])
    return replace(beat, failed=page, failed_after=after, failed_up_to=up_to)
