"""Doors into `broker.replication`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.log.retention import DoubtedTimes
    from broker.replication.log_start_manager import LogTrimming


def doubted_times_of(trimming: LogTrimming) -> DoubtedTimes:
    """Return the ages that retention keeps of segments whose append times it doubts."""
    return trimming._doubted
