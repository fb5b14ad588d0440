"""Check of a reader's position against the epochs of a log (KIP-320). Pure.

A reader names the offset that it reads next and the epoch of that offset: the leader epoch of the
record right before it. After an unclean election a log may be shorter than what was read, or hold
other records in the same place; `find_divergence` distinguishes the two and finds where they begin.
`LocalPartitions` calls it before a read that names an epoch, and `next_epoch` behind every read.

The check looks for the record before the position, not for the epoch in the cache of epochs: where
compaction removed records, nothing is known about the record that was there (rule R7).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

from broker.log.leader_epoch_cache import NO_EPOCH
from raft_metadata.common.errors import ErrorCode, KafkaError


class DivergenceCause(Enum):
    """Reason why what was read is not what the log holds."""

    TRUNCATED = "truncated"
    """The reader's epoch ends in this log before the position: what was read behind is gone."""
    DIVERGED = "diverged"
    """Another record stands right before the position: the log of another replica took its place.
    """


class Divergence(NamedTuple):
    """Place from which on what was read may differ from what the log holds."""

    cause: DivergenceCause
    offset: int
    epoch: int
    """Truncated: the largest epoch up to the reader's that has records here, or -1; diverged: the
    epoch of the record before the position."""

    @property
    def is_truncated(self) -> bool:
        """True if reading may go on at ``offset`` without a gap."""
        return self.cause is DivergenceCause.TRUNCATED


class PositionTruncatedError(KafkaError):
    """A read from a position that the log does not hold any more, or holds with other records."""

    def __init__(self, position: int, epoch: int, divergence: Divergence) -> None:
        at = f"offset {position} behind a record of leader epoch {epoch}"
        if divergence.cause is DivergenceCause.TRUNCATED:
            found = f"the log was truncated: that epoch ends here at offset {divergence.offset}"
        else:
            found = (
                "the log diverged: another record stands before that offset, of leader epoch "
                f"{divergence.epoch}, which starts at offset {divergence.offset}"
            )
        super().__init__(ErrorCode.LOG_TRUNCATED, f"{at}: {found}")
        self.position = position
        self.epoch = epoch
        self.divergence = divergence


class EpochLog(Protocol):
    """Port to a log whose epochs are known; `PartitionLog` implements it."""

    @property
    def log_start_offset(self) -> int: ...
    @property
    def log_end_offset(self) -> int: ...
    @property
    def epoch_entries(self) -> list[tuple[int, int]]: ...
    def epoch_at(self, offset: int) -> int: ...
    def end_of_epoch(self, epoch: int) -> tuple[int, int]: ...
    def holds_record(self, from_offset: int, before_offset: int) -> bool: ...


def next_epoch(log: EpochLog, offset: int) -> int:
    """Return the epoch of an offset: that of the record right before it; -1 if it is not known."""
    return NO_EPOCH if offset <= log.log_start_offset else log.epoch_at(offset - 1)


def find_divergence(log: EpochLog, offset: int, epoch: int) -> Divergence | None:
    """Return why a position is not one of this log, or None if it is, or may be.

    ``epoch`` is that of the record right before ``offset``, as the reader knows it. At or below the
    log start nothing is known of that record.
    """
    if offset <= log.log_start_offset or next_epoch(log, offset) == epoch:
        return None
    floor, end = log.end_of_epoch(epoch)
    truncated = Divergence(DivergenceCause.TRUNCATED, end, floor)
    if offset > log.log_end_offset:
        return truncated
    held = _epoch_of_record_before(log, offset)
    if held is None or held == epoch:
        return None
    if held < epoch and not log.holds_record(offset - 1, offset):
        return None  # a hole of compaction: a record of the reader's epoch may have been there
    if end < offset:
        return truncated
    start = max(log.log_start_offset, _start_of_epoch(log, held))
    return Divergence(DivergenceCause.DIVERGED, start, held)


def _epoch_of_record_before(log: EpochLog, offset: int) -> int | None:
    """Return the epoch of the last record below an offset; None if there is no record."""
    end = offset
    for epoch, start in reversed(log.epoch_entries):
        if start >= end:
            continue
        if log.holds_record(max(start, log.log_start_offset), end):
            return epoch
        end = start
    return None


def _start_of_epoch(log: EpochLog, epoch: int) -> int:
    return next(start for known, start in log.epoch_entries if known == epoch)
