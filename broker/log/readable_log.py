"""What a partition's log answers to readers, and what becomes of a log that can't be read."""

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
    """The reading half of a `PartitionLog`."""

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
        """Oldest first, the last one being written. Not to be changed."""

    @property
    def compacted_to(self) -> int:
        """Below it records may be gone because of newer ones below it; 0: none ever was (R7)."""
        stored = self._stored
        ever = self.config.compaction is not None or (stored is not None and stored.cleaned.marks)
        return self.segments[-1].base_offset if ever and self.segments else 0

    def read(self, from_offset: int, max_bytes: int, up_to_offset: int) -> list[BatchSlice]:
        """Records from one offset up to another: see `log_reader.read`.

        Raises:
            KafkaError: OFFSET_OUT_OF_RANGE, naming both ends.
            CorruptionError: a batch is damaged; the log has failed.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return []
        return self._reading(log_reader.read, from_offset, max_bytes, up_to_offset)

    def read_lines(self, from_offset: int, max_bytes: int, up_to_offset: int) -> Lines:
        """The lines of `read` alone, which takes less: see `log_reader.read_lines`.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return Lines((), from_offset)
        return self._reading(log_reader.read_lines, from_offset, max_bytes, up_to_offset)

    def read_packed(self, from_offset: int, max_bytes: int, up_to_offset: int) -> Sequence[Piece]:
        """As `read`; batches that are compressed and wanted whole come as they are stored.

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
        """What such a read would wait for, to be warmed first: see `page_cache`."""
        return self._reading(cold_range, from_offset, max_bytes)

    def read_raw(self, from_offset: int, max_bytes: int, up_to_offset: int) -> bytes:
        """Whole batches, for a follower that catches up: see `log_reader.read_raw`.

        Raises:
            KafkaError, CorruptionError: as `read`.
        """
        log_reader.check_range(from_offset, self.log_start_offset, self.log_end_offset)
        if from_offset >= up_to_offset:
            return b""
        return self._reading(log_reader.read_raw, from_offset, max_bytes, up_to_offset)

    def look_by_time(self, search: TimeSearch) -> bool:
        """The next step of a search by time; whether it is over (`time_search`).

        Raises:
            CorruptionError: a batch is damaged; the log has failed.
        """
        return self._reading(search.step, self.log_start_offset, self.generation)

    def _reading(
        self,
        function: Callable[Concatenate[OpenFiles, list[Segment], P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Read; bytes that rotted, or can't be read, fail the log: they are never served."""
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
        """What such a read finds before it meets damage; None where it stands at it, or searches.

        Half as much each time: only what is asked for from the damaged batch on is refused.
        """
        if len(arguments) != 3:  # from an offset, so many bytes, up to another
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
        """(leader epoch, start offset), oldest first."""
        return self._epochs.entries

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """The largest epoch <= the given one that has records here, and the offset behind them.

        (-1, log start) where there is none (KIP-320's OffsetForLeaderEpoch).
        """
        return self._epochs.end_offset_for(epoch, self.log_start_offset, self.log_end_offset)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of the record at this offset, -1 where there is none (rule R5)."""
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
        """A change of the files stopped on the way."""
        self._fail(error if isinstance(error, OSError) else InDoubtError(str(error)))

    @abstractmethod
    def request_flush(self) -> None:
        """Ask the flusher; the durable end moves later."""

    def _not_cut(self, error: WriteError) -> NoReturn:
        """The disk is full, and all is as before; but what is being synced has to be again."""
        self.request_flush()
        self._storage_error(error.cause, error.outcome)

    def _storage_error(self, error: BaseException, outcome: Outcome) -> NoReturn:
        if isinstance(error, OSError) and error.errno in OUT_OF_DESCRIPTORS:
            self._shared.files.make_room()
        raise KafkaError(
            ErrorCode.KAFKA_STORAGE_ERROR, f"log {self.name}: {error}", outcome=outcome
        ) from error
