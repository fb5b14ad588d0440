"""Rule R7 between replicas: nobody misses a tombstone, and shows the key's old value again.

Each replica compacts its own log, in its own time. Two things keep a tombstone's effect:

- It is dropped only below ``replicated_to``, what every assigned replica holds: the leader works
  that out, its pushes carry it to the followers.
- A replica that was filled in part by one leader may go on with another, which compacted more: it
  may hold a value whose tombstone is gone there (a replica that was just assigned, one that came
  back behind a leader that had not known of it). So each log remembers how far tombstones were
  dropped from it, durably and beforehand, and a follower that ends below that starts over: what it
  holds is all below the leader's high watermark, and it is no member of the ISR. Who is filled from
  below that never held those tombstones: it remembers as much, for the followers it may have.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.replication.frames import START_OVER, Diverging, Open

if TYPE_CHECKING:
    from broker.replication.log_start import Followed
    from broker.replication.partition_state import LeaderState
    from broker.replication.replica_log import ReplicaLog
    from raft_metadata.common.ids import BrokerId

_log = logging.getLogger("broker.replication")


def asked_to_start_over(
    role: LeaderState, follower: BrokerId, log: ReplicaLog, message: Open
) -> Diverging | None:
    """The answer to a follower that may hold values whose tombstones are gone here.

    Never to a member of the ISR: its log ends at or behind the high watermark, and nothing is
    dropped above that.
    """
    empty = message.last_epoch < 0
    if empty or message.log_end >= log.dropped_to or follower in role.maximal_isr():
        return None
    return Diverging(message.request, role.epoch, START_OVER, log.log_start_offset)


def inherit(log: ReplicaLog, dropped_to: int) -> None:
    """Before a session begins: of what this log is filled with now, tombstones are gone.

    KafkaError: it can't be written now; the leader is asked again.
    """
    if log.log_end_offset < dropped_to:
        log.note_dropped(dropped_to)


def start_over(partition: Followed, message: Diverging) -> None:
    """Be empty from the leader's log start on. The one time a high watermark goes back cleanly."""
    _log.info(
        "starts over topic_id=%s partition=%d from=%d to=%d leader_epoch=%d",
        partition.id.topic_id, partition.id.partition, partition.log.log_end_offset, message.end,
        message.leader_epoch,
    )  # fmt: skip
    partition.log.start_over(message.end)
    partition.high_watermark = message.end


def has_started_over(
    partition: Followed, message: Diverging, end: int, *, is_unclean: bool
) -> bool:
    """Whether nothing of this log stays: as the leader says, or ``is_unclean`` and cut to ``end``.

    After an unclean election: compaction let go of records below the cut because of newer ones,
    which the new leader does not have. It may still hold the older ones: this replica lacks both.
    """
    if message.at_epoch != START_OVER:
        if not (is_unclean and end < min(partition.log.compacted_to, partition.log.log_end_offset)):
            return False
        message = message._replace(end=0)
    start_over(partition, message)
    return True
