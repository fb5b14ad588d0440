"""Retention: Kafka's retention.ms and retention.bytes, decided for one log. Pure.

Only whole segments are removed, oldest first, and never past the high watermark (invariant L24,
KAFKA-5634). A segment's age counts from the newest append time in it, by the clock of the leader
that appended the batch, not by the producers' timestamps (rule R10).

A time that can't be right is a clock's error. The age of such a segment is the time this broker has
known it, by monotonic time: never more than its true age, and finite (`DoubtedTimes`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from broker.log.index import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.log.segment import Segment

UNLIMITED = -1
_NO_AGES: Mapping[str, int] = MappingProxyType({})


class RetentionConfig(NamedTuple):
    """A topic's retention limits; -1: no limit."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED


class _DoubtedTime(NamedTuple):
    next_offset: int
    size: int
    since_ms: int
    """Monotonic time in ms at which the segment was found."""
    is_behind: bool


class DoubtedTimes:
    """Segments whose append times can't be right, each with the time since it is known here.

    Either the time is in the future, or it is before the previous segment's by more than clocks may
    differ (and it stays doubted when that segment is removed). Valid only while nothing is appended
    to the segment: the caller rolls one that is being written to. Owned by `LogTrimming`.
    """

    def __init__(self, difference_max_ms: int) -> None:
        self._difference_max_ms = difference_max_ms
        self._known: dict[str, _DoubtedTime] = {}
        """Doubted times by the segment's path."""
        self._found: dict[str, _DoubtedTime] = {}

    def ages(
        self, segments: Sequence[Segment], now_ms: int, monotonic_ms: int
    ) -> Mapping[str, int]:
        """Return the minimum age in ms of each doubted segment, by path."""
        ages, before_ms = None, NO_TIMESTAMP
        for segment in segments:
            newest_ms = segment.newest_append_ms
            is_ahead = newest_ms > now_ms + self._difference_max_ms
            is_behind = newest_ms < before_ms - self._difference_max_ms and segment.size > 0
            if not is_ahead:
                before_ms = max(before_ms, newest_ms)
            if not (is_ahead or is_behind or self._known):
                continue
            known = self._known.get(segment.path)
            if known is not None and known[:2] != (segment.next_offset, segment.size):
                known = None
            is_behind = is_behind or (known is not None and known.is_behind)
            if is_ahead or is_behind:
                since_ms = monotonic_ms if known is None else known.since_ms
                doubted = _DoubtedTime(segment.next_offset, segment.size, since_ms, is_behind)
                self._known[segment.path] = self._found[segment.path] = doubted
                ages = ages or {}
                ages[segment.path] = monotonic_ms - since_ms
        return _NO_AGES if ages is None else ages

    def forget_others(self) -> None:
        """End a round over all logs: forget segments not found in it (removed, or right now)."""
        self._known, self._found = self._found, {}


class RetentionDecision(NamedTuple):
    """A new log start, and the reason for it."""

    log_start: int
    roll_first: bool
    """True if the active segment is removed too: write to a new one first."""
    why: str


def decide(
    segments: Sequence[Segment],
    log_start: int,
    high_watermark: int,
    config: RetentionConfig,
    now_ms: int,
    ages: Mapping[str, int] = _NO_AGES,
) -> RetentionDecision | None:
    """Return the new log start, or None if nothing may be removed. ``ages``: see `DoubtedTimes`.

    By size, a segment is removed only if the rest still holds ``retention_bytes``, as in Kafka.
    """
    excess = sum(segment.size for segment in segments) - config.retention_bytes
    by_size = config.retention_bytes >= 0
    by_time = config.retention_ms >= 0
    gone, why = 0, set[str]()
    for segment in segments:
        if segment.next_offset > high_watermark or not segment.size:
            break
        age_ms = ages.get(segment.path, now_ms - segment.newest_append_ms)
        if by_time and age_ms > config.retention_ms:
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
    return RetentionDecision(start, gone == len(segments), ",".join(sorted(why)))
