"""Doors into `broker.log`: the flusher's thread, memory of indexes, a cleaner without a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from broker.log.flusher import Flushable, FlushToken, LogFlusher
from broker.log.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence

    import pytest

    from broker.log.cleaner import Cleaning, LogCleaner, Pace
    from broker.log.index import IndexMemory, OffsetIndex
    from broker.log.log_directory import LogDirectory
    from broker.log.log_manager import LogManager
    from broker.log.producer_state import ProducerStates
    from broker.log.segment import OpenFiles
    from raft_metadata.common.disk import Disk


# ---------------------------------------------------------------- the manager and its services


def log_directory_of(manager: LogManager) -> LogDirectory:
    """Return the services that an open manager shares with its logs: tests step or replace them."""
    return manager._opened()


def flusher_of(manager: LogManager) -> LogFlusher:
    """Return the flusher of an open manager: tests without a thread run its rounds by hand."""
    return manager._opened().flusher


def open_files_of(manager: LogManager) -> OpenFiles:
    """Return the cache of open files: tests close files in it and shrink its index memory."""
    return manager._files


def are_damage_marks_saved(manager: LogManager) -> bool:
    """Return True if the disk has all damage marks; the simulated disk must not see a read."""
    return manager._marks.is_saved


def fail_all_logs(manager: LogManager, error: BaseException) -> None:
    """Fail the whole disk as a checkpoint does whose error ends the broker's own task."""
    manager._fail_all(error)


def batches_to_undo(states: ProducerStates) -> int:
    """Return how many uncommitted batches are remembered: what is committed must be dropped."""
    return len(states._undo)


def forbid_producer_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where producer state is read from headers on the event loop."""

    def refuse(*_: object) -> ProducerStates:
        raise AssertionError("the loop waits while a segment's headers are read")

    monkeypatch.setattr("broker.log.log_producers._Replay", refuse)


# ---------------------------------------------------------------- indexes in memory


def index_bytes_in_memory(segment: Segment) -> int:
    """Return the memory that a segment's index takes: only the broker's total is public."""
    held = [each for each in (segment._index, segment._stored_index) if each is not None]
    return sum(each.held_bytes for each in held)


def segments_with_index_in_memory(indexes: IndexMemory) -> list[object]:
    """Return the segments that are accounted for, least recently used first: none may be gone."""
    return list(indexes._held)


_REBUILD_INDEX = Segment._rebuild_index  # as it is before `forbid_index_rebuild`


def index_from_headers(segment: Segment, disk: Disk, fd: int) -> OffsetIndex:
    """Return a segment's index as its headers give it, to compare the index in use with."""
    return _REBUILD_INDEX(segment, disk, fd)


def forbid_index_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test where a whole segment is read because its index is missing."""

    def refuse(segment: Segment, *_: object) -> OffsetIndex:
        raise AssertionError(f"the headers of {segment.path} are read")

    monkeypatch.setattr(Segment, "_rebuild_index", refuse)


# ---------------------------------------------------------------- the cleaner


def set_pace_of_pass(cleaning: Cleaning, pace: Pace) -> None:
    """Replace the pace of a pass, to stop it after so many pieces of work."""
    cleaning._pace = pace


def drive_cleaner(
    cleaner: LogCleaner, drive: Callable[[Iterator[Callable[[], None]]], Coroutine[Any, Any, None]]
) -> None:
    """Run the steps of each pass by ``drive`` instead of the cleaner's thread."""
    cleaner._drive = drive  # type: ignore[method-assign, assignment]


def set_pace_of_cleaner(cleaner: LogCleaner, pace: Pace) -> None:
    """Replace the limit of bytes per second, which waits on a real clock."""
    cleaner._rate = pace  # type: ignore[assignment]


# ---------------------------------------------------------------- the flusher's thread


class FlusherThread:
    """A stand-in for a flusher's thread, its queue and its event: works when it is told to."""

    def __init__(self, flusher: Any) -> None:
        self.flusher = flusher
        self.tokens: Any = None
        flusher._thread = flusher._queue = flusher._round_over = self

    @property
    def in_flight(self) -> list[FlushToken]:
        """The tokens of the round that has begun and is not yet reported."""
        tokens: list[FlushToken] = self.flusher._in_flight
        return tokens

    @property
    def is_idle(self) -> bool:
        """True if no round is under way or waits to be reported."""
        return self.tokens is None and not self.flusher._finished

    def put(self, tokens: Any) -> None:
        self.tokens = tokens

    def work(self) -> None:
        tokens, self.tokens = self.tokens, None
        if tokens is not None:
            self.flusher._finished.append(self.flusher._work(tokens))

    def wait(self) -> None:
        """Finish the round under way, for which the loop waits in `LogFlusher.drain`."""
        self.work()

    def clear(self) -> None: ...

    def join(self) -> None:
        self.work()

    def step(self) -> None:
        if self.tokens is not None:
            self.work()
        elif self.flusher._finished:
            self.flusher._collect()
            self.flusher._kick()
        else:
            self.flusher._kick()

    def detach(self) -> None:
        """Leave the flusher without a thread: it runs its last round on the caller's."""
        self.flusher._thread = None


class StepFlusher(LogFlusher):
    """A flusher whose round begins, syncs and reports in separate steps of a state machine."""

    worked = False
    result: BaseException | None = None

    def begin(self) -> None:
        self._in_flight = self._take()
        self.worked = False

    def work(self) -> None:
        if self._in_flight and not self.worked:
            self.result = self._work(self._in_flight)
            self.worked = True

    def report(self) -> None:
        self.work()
        tokens, self._in_flight = self._in_flight, []
        self._finish(tokens, self.result)

    @override
    def drain(self, log: Flushable) -> None:
        self._wanted.pop(log, None)
        if any(token.log is log for token in self._in_flight):
            self.work()

    @property
    def tokens(self) -> Sequence[FlushToken]:
        return self._in_flight
