"""The producers of one log with their snapshots, through appends, rolls, flushes and truncations.

The `PartitionLog` creates a `LogProducers` with the first batch that names a producer. A roll takes
a snapshot of the state (`rolled`), the next flush writes it (`join`, `written`), a truncation first
makes the state below its end available (`prepare_truncation`) and then takes it (`truncated`).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol

from broker.log.producer_snapshot import (
    Replay,
    encode_snapshot,
    snapshot_name,
    snapshot_offsets,
)
from broker.log.segments import WriteError, refuse_if_transient
from raft_metadata.common.disk import place_file
from raft_metadata.common.errors import CorruptionError, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from broker.log.flusher import FlushToken
    from broker.log.log_directory import LogDirectory
    from broker.log.producer_state import ProducerStates
    from broker.log.segment import Segment


REPLAY_HEADERS_PER_TURN = 500
"""Batch headers read per turn of the event loop: 1 to 2 ms."""


class TruncatableLog(Protocol):
    """The part of a `PartitionLog` that a replay before a truncation needs."""

    generation: int

    @property
    def directory(self) -> str: ...
    @property
    def segments(self) -> list[Segment]: ...


class _Replay(Replay):
    """Producer states below an offset, read in turns; void once the log was truncated or closed."""

    __slots__ = ("_log", "error", "generation", "is_over", "is_running")

    def __init__(
        self,
        shared: LogDirectory,
        log: TruncatableLog,
        end_offset: int,
        unwritten: Iterable[tuple[str, bytes]],
    ) -> None:
        super().__init__(
            shared.files, log.directory, log.segments, end_offset, shared.producers,
            unwritten=unwritten,
        )  # fmt: skip
        self._log = log
        self.generation = log.generation
        self.is_running = self.is_over = False
        self.error: OSError | CorruptionError | None = None

    def turn(self) -> bool:
        """Read the next headers; return True when none are left. A failure is kept in ``error``."""
        if not self.is_over and self._log.generation == self.generation:
            try:
                self.is_over = self.step(self._log.segments, REPLAY_HEADERS_PER_TURN)
            except (OSError, CorruptionError) as error:
                self.error, self.is_over = error, True
        return self.is_over or self._log.generation != self.generation


class LogProducers:
    """Producer states of one log and their unwritten snapshots.

    Owned by its PartitionLog, on the event loop, from the first batch that names a producer on.
    """

    __slots__ = ("_replay", "_shared", "_told", "_unwritten", "states")

    def __init__(
        self,
        shared: LogDirectory,
        states: ProducerStates | None = None,
        unwritten: list[tuple[str, bytes]] | None = None,
    ) -> None:
        self._shared = shared
        self.states = shared.producers.states() if states is None else states
        self._replay: _Replay | None = None
        """The replay that a pending truncation waits for, running or complete; None: none."""
        self._told: _Replay | None = None
        """The replay of what a replica is to be told that begins anew; None: none."""
        self._unwritten = unwritten or []
        """(name, bytes) of snapshots taken at rolls and not yet written by a flush: one per roll,
        because a truncation may go back to any of them."""

    def rolled(self, base_offset: int) -> None:
        """Take a snapshot: an empty segment begins at ``base_offset``."""
        name = snapshot_name(base_offset)
        if not any(each[0] == name for each in self._unwritten):
            self._unwritten.append((name, encode_snapshot(self.states, base_offset)))

    def join(self, token: FlushToken, segments: list[Segment]) -> None:
        """Add the unwritten snapshots to the token, before the checkpoints that rely on them.

        The segments before an empty active one are sealed too, even if the batch it was rolled for
        found no room on the disk and no roll was reported here.
        """
        if token.checkpoints:
            if segments and not segments[-1].size:
                self.rolled(segments[-1].base_offset)
            token.checkpoints[:0] = self._unwritten

    def written(self, token: FlushToken) -> None:
        """Forget the snapshots that the checkpoints of this token have written."""
        if self._unwritten and token.checkpoints:
            names = {name for name, _ in token.checkpoints}
            self._unwritten = [each for each in self._unwritten if each[0] not in names]

    def prepare_truncation(self, log: TruncatableLog, end_offset: int) -> None:
        """Make the state below ``end_offset`` available before the log is truncated there.

        If the state has to be read from the log, it is read in turns of the event loop: a segment
        may hold 600,000 batches.

        Raises:
            WriteError: the read is still running, or no descriptor is free: truncate later. Nothing
                was changed.
            OSError, CorruptionError: the log can't be read.
        """
        if self.states.reaches(end_offset):
            self._replay = None
            return
        replay = self._replay
        if replay is None or (replay.end, replay.generation) != (end_offset, log.generation):
            with refuse_if_transient():
                replay = self._replay = _Replay(self._shared, log, end_offset, self._unwritten)
        if not self._is_read(replay):
            text = f"its producers are read up to offset {end_offset} before it is cut"
            cause = BlockingIOError(errno.EAGAIN, text)
            raise WriteError(cause, Outcome.NOT_WRITTEN, broken=False)
        if replay.error is not None:
            self._replay = None
            with refuse_if_transient():
                raise replay.error

    def _is_read(self, replay: _Replay) -> bool:
        """Return whether the replay is over; else it goes on in turns of the event loop."""
        if self._shared.call_each_turn is None:
            while not replay.turn():
                pass
        elif not (replay.is_over or replay.turn()):
            if not replay.is_running:
                replay.is_running = True
                self._shared.call_each_turn(replay.turn)
            return False
        return True

    def as_of(
        self, log: TruncatableLog, end_offset: int, log_start: int, boundary: Callable[[], int]
    ) -> ProducerStates | None:
        """Return the state below ``end_offset``, or below an offset between ``log_start`` and it.

        None: it is being read from the log, or the log can't be read now; ask again later.
        ``boundary``: returns where the batch begins that holds ``end_offset``.
        """
        found = self.states.as_of(end_offset)
        if found is not None:
            self._told = None
            return found
        told = self._told
        try:
            if told is None or told.generation != log.generation or told.end < log_start:
                told = self._told = _Replay(self._shared, log, boundary(), self._unwritten)
            if not self._is_read(told):
                return None
        except (WriteError, OSError, CorruptionError):
            self._told = None
            return None
        if told.error is not None or not told.is_over:
            self._told = None
            return None
        return told.states

    def truncated(self, end_offset: int) -> None:
        """Take the prepared state, exact at ``end_offset``, the new log end (invariant T4)."""
        limit = snapshot_name(end_offset)
        self._unwritten = [each for each in self._unwritten if each[0] <= limit]
        if self._replay is None:
            self.states.truncate_to(end_offset)
        else:
            self.states, self._replay = self._replay.states, None

    def write_for_close(self, directory: str, segments: list[Segment], end_offset: int) -> None:
        """Write the state at the log's end, so that the next start scans nothing.

        The snapshot of the last close is removed. Where the last segment is empty one may stand at
        the end already, of batches that are all deleted: it is replaced by a synced one, because
        power may fail before the shutdown syncs all.

        Raises:
            OSError: the shutdown is not clean.
        """
        disk = self._shared.files.disk
        kept = {end_offset, *(segment.base_offset for segment in segments)}
        for offset in snapshot_offsets(disk, directory):
            if offset not in kept:
                disk.unlink(f"{directory}/{snapshot_name(offset)}")
        data = encode_snapshot(self.states, end_offset)
        is_empty = not segments or segments[-1].base_offset == end_offset
        for name, rolled in [*self._unwritten, (snapshot_name(end_offset), data)]:
            is_last = is_empty and name == snapshot_name(end_offset)
            place_file(disk, f"{directory}/{name}", [rolled], sync=is_last)
