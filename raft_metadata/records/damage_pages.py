"""A heartbeat that names more damaged replicas than one may, in pages.

A page says all that is damaged in a range of places, so whoever hears it replaces what it knew of
that range: nobody is forgotten while others are named, and however many wait for ever, each has its
turn. Every controller is sent its own sequence of pages; one that was not answered is sent again.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

from raft_metadata.common.ids import TopicIdPartition
from raft_metadata.records.commands import FAILED_REPLICAS_MAX, BrokerHeartbeat, FailedReplica


def place_of(failed: FailedReplica) -> TopicIdPartition:
    """Whose replica it is; pages are in the order of these."""
    return TopicIdPartition(failed.topic_id, failed.partition)


def next_page(beat: BrokerHeartbeat, after: TopicIdPartition | None) -> BrokerHeartbeat:
    """What goes into one heartbeat of all that ``beat`` says, which is sorted by `place_of`.

    ``after``: `BrokerHeartbeat.failed_up_to` of the page before, None to begin anew.
    """
    if after is None and len(beat.failed) <= FAILED_REPLICAS_MAX:
        return beat
    start = 0 if after is None else bisect_right(beat.failed, after, key=place_of)
    page = beat.failed[start : start + FAILED_REPLICAS_MAX]
    is_last = start + FAILED_REPLICAS_MAX >= len(beat.failed)
    up_to = None if is_last else place_of(page[-1])
    return replace(beat, failed=page, failed_after=after, failed_up_to=up_to)
