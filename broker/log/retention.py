"""How much of a log's beginning may go: Kafka's retention.ms and retention.bytes. Pure.

Whole segments only, oldest first, and never past the high watermark (invariant L24, KAFKA-5634). A
segment's age is counted from the newest append time in it, by the clock of the leader that took
the batch, not by the producers' timestamps (rule R10).

A time that can't be right is a clock's error. Such a segment is as old as this broker has known it,
by monotonic time: never older than it is, and not kept until a wrong time comes (`DoubtedTimes`).
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from broker.log.offset_index import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.log.segment import Segment

UNLIMITED = -1
_NO_AGES: Mapping[str, int] = MappingProxyType({})


class RetentionConfig(NamedTuple):
    """What a topic's configuration says; -1: no limit."""

    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED


class _Doubted(NamedTuple):
    next_offset: int
    size: int
    since_ms: int
    """Monotonic."""
    is_behind: bool


class DoubtedTimes:
    """Segments whose append times can't be right, and since when they are known here.

    One that has not come yet, or that is before that of the segment in front by more than clocks
    may differ (and stays in doubt when that one is gone). Only while nothing is added to them: who
    finds one that is written to rolls it. Owned by `LogTrimming`.
    """

    def __init__(self, difference_max_ms: int) -> None:
        self._difference_max_ms = difference_max_ms
        self._known: dict[str, _Doubted] = {}
        """By the segment's path."""
        self._found: dict[str, _Doubted] = {}

    def ages(
        self, segments: Sequence[Segment], now_ms: int, monotonic_ms: int
    ) -> Mapping[str, int]:
        """How old those are at least, by path."""
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
                doubted = _Doubted(segment.next_offset, segment.size, since_ms, is_behind)
                self._known[segment.path] = self._found[segment.path] = doubted
                ages = ages or {}
                ages[segment.path] = monotonic_ms - since_ms
        return _NO_AGES if ages is None else ages

    def forget_others(self) -> None:
        """Behind a round over all logs: what was not found in it is gone, or right."""
        self._known, self._found = self._found, {}


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
    ages: Mapping[str, int] = _NO_AGES,
) -> Retained | None:
    """The new log start, or None where nothing may go. ``ages``: see `DoubtedTimes`.

    By size, a segment goes only if what is left still holds ``retention_bytes``: as Kafka does it.
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
    return Retained(start, gone == len(segments), ",".join(sorted(why)))
