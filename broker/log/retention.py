"""How much of a log's beginning may go: Kafka's retention.ms and retention.bytes. Pure.

Whole segments only, oldest first, and never past the high watermark (invariant L24, KAFKA-5634). A
segment's age is counted from the newest append time in it, by the clock of the leader that took
the batch, not by the producers' timestamps (rule R10).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.log.segment import Segment

UNLIMITED = -1


class RetentionConfig(NamedTuple):
    """What a topic's configuration says; -1: no limit."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED


class Retained(NamedTuple):
    """Where the log is to begin, and why."""

    log_start: int
    roll_first: bool
    """The active segment goes too: write to a new one first."""
    why: str


def decide(
    segments: Sequence[Segment],
    log_start: int,
    high_watermark: int,
    config: RetentionConfig,
    now_ms: int,
) -> Retained | None:
    """The new log start, or None where nothing may go.

    By size, a segment goes only if what is left still holds ``retention_bytes``: as Kafka does it.
    """
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    by_size = config.retention_bytes >= 0
    by_time = config.retention_ms >= 0
    gone, why = 0, set[str]()
    for segment in segments:
        if segment.next_offset > high_watermark or not segment.size:
            break
        if by_time and now_ms - segment.newest_append_ms > config.retention_ms:
            why.add("retention.ms")
        elif by_size and excess >= segment.size:
            why.add("retention.bytes")
        else:
            break
        excess -= segment.size
        gone += 1
    if not gone:
        return None
    start = segments[gone - 1].next_offset
    if start <= log_start:
        return None
    return Retained(start, gone == len(segments), ",".join(sorted(why)))
