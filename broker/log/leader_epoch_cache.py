"""The start offset of each leader epoch in a log, to find the last offset two replicas agree on.

KIP-101 and KIP-320. Truncation compares (epoch, end offset), never high watermarks.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

NO_EPOCH = -1


class LeaderEpochCache:
    """Strictly growing (epoch, start offset) pairs of one log; owned by its PartitionLog.

    An epoch that starts at the log end holds no record: `last_epoch` and `end_offset_for` skip it,
    because it does not survive a restart and no follower can hold a record of it.
    """

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: list[tuple[int, int]] | None = None) -> None:
        self._epochs = array("q", [epoch for epoch, _ in entries or ()])
        self._starts = array("q", [start for _, start in entries or ()])

    @property
    def entries(self) -> list[tuple[int, int]]:
        """All (epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that records from ``start_offset`` on have this epoch.

        A known epoch changes nothing.

        Epochs noted at or behind this offset held no record (an elected leader that never wrote)
        and are removed first. Otherwise they would claim the records of an *older* epoch that a
        follower receives later (a leader that was deposed before its first append, then follows).

        Raises:
            ValueError: an epoch lower than that of the records before this offset.
        """
        while self._epochs and self._starts[-1] >= start_offset and self._epochs[-1] != epoch:
            self._epochs.pop()
            self._starts.pop()
        if self._epochs:
            if epoch == self._epochs[-1]:
                return
            if epoch < self._epochs[-1]:
                msg = (
                    f"epoch {epoch} at offset {start_offset} is behind epoch "
                    f"{self._epochs[-1]} at offset {self._starts[-1]}"
                )
                raise ValueError(msg)
        self._epochs.append(epoch)
        self._starts.append(start_offset)

    @property
    def newest(self) -> int:
        """The newest epoch noted, with or without a record; NO_EPOCH if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def last_epoch(self, log_end_offset: int) -> int:
        """Return the epoch of the last record, NO_EPOCH in an empty log."""
        index = bisect_left(self._starts, log_end_offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def epoch_of(self, offset: int) -> int:
        """Return the epoch of the record at this offset, NO_EPOCH before the first known one."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def end_offset_for(
        self, epoch: int, log_start_offset: int, log_end_offset: int
    ) -> tuple[int, int]:
        """Return the largest epoch <= ``epoch`` that has records here, and the offset behind them.

        (NO_EPOCH, log start) if there is none.
        """
        index = bisect_right(self._epochs, epoch) - 1
        while index >= 0 and self._starts[index] >= log_end_offset:
            index -= 1
        if index < 0:
            return NO_EPOCH, log_start_offset
        following = index + 1
        end = self._starts[following] if following < len(self._starts) else log_end_offset
        return self._epochs[index], min(end, log_end_offset)

    def truncate_from_start(self, start_offset: int) -> None:
        """Move the log start: the epoch of the record at ``start_offset`` begins there now.

        As in Kafka; a rebuild from the remaining records gives the same result (invariant L11).
        """
        first = bisect_right(self._starts, start_offset) - 1
        if first >= 0:
            del self._epochs[:first]
            del self._starts[:first]
            self._starts[0] = start_offset

    def from_start(self, start_offset: int) -> LeaderEpochCache:
        """Return a copy on which `truncate_from_start` was called."""
        copy = LeaderEpochCache(self.entries)
        copy.truncate_from_start(start_offset)
        return copy

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that start at or behind this offset."""
        keep = bisect_left(self._starts, end_offset)
        del self._epochs[keep:]
        del self._starts[keep:]
