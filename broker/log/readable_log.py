"""The reading half of a partition's log, and its reaction to bytes that can't be read.

Fetches, followers and searches by time read here; the work is done in `log_reader`, `time_search`
and `page_cache`. A damaged batch or a read error takes the log offline and is reported, never
served (invariant L22).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import suppress
from typing import TYPE_CHECKING, Concatenate, NoReturn, ParamSpec, TypeVar

from broker.log import log_reader
from broker.log.disk import OUT_OF_DESCRIPTORS
from broker.log.log_directory import InDoubtError, UnreadableError
from broker.log.page_cache import ColdRange, cold_range
from broker.record.whole_batches import Lines
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.cut_segments import WriteError
    from broker.log.leader_epoch_cache import LeaderEpochCache
    from broker.log.log_directory import LogConfig, LogDirectory
    from broker.log.log_segments import LogSegments
    from broker.log.segment import OpenFiles, Segment
    from broker.log.time_search import TimeSearch
    from broker.record.batch import BatchSlice
    from broker.record.compression import Piece

P = ParamSpec("P")
T = TypeVar("T")


class ReadableLog(ABC):
    """The reading half of a `PartitionLog`, its only heir, which sets the attributes."""

    __slots__ = ()

    name: str
    generation: int
    log_start_offset: int
    log_end_offset: int
    config: LogConfig
    _shared: LogDirectory
    _epochs: LeaderEpochCache
    _stored: LogSegments | None

    if TYPE_CHECKING:

        @property
        def failed(self) -> BaseException | None: ...
        @failed.setter
        def failed(self, error: BaseException | None) -> None: ...

    @property
    @abstractmethod
    def segments(self) -> list[Segment]:
        """All segments, oldest first; the last one is written to. The caller must not change it."""

    @property
    def compacted_to(self) -> int:
        """The offset below which compaction may have removed records.

        0 if it never removed any (R7).
        """
        stored = self._stored
        ever = self.config.compaction is not None or (stored is not None and stored.cleaned.marks)
        return self.segments[-1].base_offset if ever and self.segments else 0

    def read(self, from_offset: int, max_bytes: int, up_to_offset: int) -> list[BatchSlice]:
        """Return records from ``from_offset`` up to, not including, ``up_to_offset``.

        See `log_reader.read`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, naming both ends.
            CorruptionError: a batch is damaged; the log is offline now.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return []
        return self._reading(log_reader.read, from_offset, max_bytes, up_to_offset)

    def read_lines(self, from_offset: int, max_bytes: int, up_to_offset: int) -> Lines:
        """Return only the lines of `read`, which is cheaper: see `log_reader.read_lines`.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return Lines((), from_offset)
        return self._reading(log_reader.read_lines, from_offset, max_bytes, up_to_offset)

    def read_packed(self, from_offset: int, max_bytes: int, up_to_offset: int) -> Sequence[Piece]:
        """Return the records of `read`.

        Compressed batches that are wanted whole stay as they are stored.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return []
        return self._reading(
            log_reader.read_pieces, from_offset, max_bytes, up_to_offset, packed=True
        )

    def cold_range(self, from_offset: int, max_bytes: int) -> ColdRange | None:
        """Return the range that such a read would wait for, or None: see `page_cache`."""
        return self._reading(cold_range, from_offset, max_bytes)

    def read_raw(self, from_offset: int, max_bytes: int, up_to_offset: int) -> bytes:
        """Return whole batches, for a follower that catches up: see `log_reader.read_raw`.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return b""
        return self._reading(log_reader.read_raw, from_offset, max_bytes, up_to_offset)

    def look_by_time(self, search: TimeSearch) -> bool:
        """Run the next step of a search by time; return True when it is over (`time_search`).

        Raises:
            CorruptionError: a batch is damaged; the log is offline now.
        """
        return self._reading(search.step, self.log_start_offset, self.generation)

    def _reading(
        self,
        function: Callable[Concatenate[OpenFiles, list[Segment], P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call a reading function; bytes that are damaged or unreadable take the log offline.

        Damaged bytes are never served; the records before them are, if there are any.
        """
        try:
            return function(self._shared.files, self.segments, *arguments, **options)
        except (CorruptionError, OSError) as error:
            if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
                self._storage_error(error, Outcome.NOT_WRITTEN)
            self._fail(error)
            if isinstance(error, OSError):
                raise
            before = self._before_damage(function, arguments, options)
            if before is None:
                raise UnreadableError(self.name, error) from error
            return before

    def _before_damage(
        self,
        function: Callable[..., T],
        arguments: tuple[object, ...],
        options: dict[str, object],
    ) -> T | None:
        """Return the records such a read finds before the damage.

        None if there are none, or it searches.

        Tries half as many bytes each time, so that only records from the damaged batch on are
        refused.
        """
        if len(arguments) != 3:  # (from_offset, max_bytes, up_to_offset)
            return None
        start, size, end = arguments
        left = size if isinstance(size, int) else 0
        while left > 1:
            left //= 2
            with suppress(CorruptionError):
                return function(self._shared.files, self.segments, start, left, end, **options)
        return None

    # epochs

    @property
    def epoch_entries(self) -> list[tuple[int, int]]:
        """All (leader epoch, start offset), oldest first."""
        return self._epochs.entries

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """Return the largest epoch <= ``epoch`` that has records here, and the offset behind them.

        (-1, log start) if there is none (KIP-320's OffsetForLeaderEpoch).
        """
        return self._epochs.end_offset_for(epoch, self.log_start_offset, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch of the record at ``offset``, -1 if there is none (rule R5)."""
        return self._epochs.epoch_of(offset) if offset < self.log_end_offset else -1

    # errors

    def _refuse(self) -> NoReturn:
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log {self.name} is offline: {self.failed}"
        )

    def _fail(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            doubtful = None if isinstance(error, OSError) else self.name
            self._shared.on_failed(doubtful, error)

    def _fail_in_doubt(self, error: OSError | CorruptionError) -> None:
        """Take the log offline: a change of its files stopped halfway."""
        self._fail(error if isinstance(error, OSError) else InDoubtError(str(error)))

    @abstractmethod
    def request_flush(self) -> None:
        """Request a sync; the durable end moves later."""

    def _not_cut(self, error: WriteError) -> NoReturn:
        """Raise the storage error of a truncation that was refused with the log unchanged.

        The sync that was under way is void, so a new one is requested.
        """
        self.request_flush()
        self._storage_error(error.cause, error.outcome)

    def _storage_error(self, error: BaseException, outcome: Outcome) -> NoReturn:
        if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
            self._shared.files.make_room()
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log {self.name}: {error}", outcome=outcome
        ) from error
