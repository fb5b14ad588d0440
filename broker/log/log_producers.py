"""The producers of one log with their snapshots: what the PartitionLog keeps of them."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Protocol

from broker.log.checkpoints import place_file
from broker.log.cut_segments import WriteError, refusing
from broker.log.producer_snapshot import (
    Replay,
    encode_snapshot,
    snapshot_name,
    snapshot_offsets,
)
from raft_metadata.common.errors import CorruptionError, Outcome

if TYPE_CHECKING:
    from broker.log.flusher import FlushToken
    from broker.log.log_directory import LogDirectory
    from broker.log.producer_state import ProducerStates
    from broker.log.segment import Segment


HEADERS_PER_TURN = 500
"""Taken in one turn of the loop: 1 to 2 ms."""


class CutLog(Protocol):
    """What is asked of the log that is to be cut."""

    generation: int

    @property
    def directory(self) -> str: ...
    @property
    def segments(self) -> list[Segment]: ...


class _Replay(Replay):
    """The state below an offset; worth nothing once the log was cut or closed."""

    __slots__ = ("_log", "error", "generation", "is_over", "is_running")

    def __init__(self, shared: LogDirectory, log: CutLog, end_offset: int) -> None:
        super().__init__(shared.files, log.directory, log.segments, end_offset, shared.producers)
        self._log = log
        self.generation = log.generation
        self.is_running = self.is_over = False
        self.error: OSError | CorruptionError | None = None

    def turn(self) -> bool:
        """Read on; True: there is no more to be done. What fails is kept in ``error``."""
        if not self.is_over and self._log.generation == self.generation:
            try:
                self.is_over = self.step(self._log.segments, HEADERS_PER_TURN)
            except (OSError, CorruptionError) as error:
                self.error, self.is_over = error, True
        return self.is_over or self._log.generation != self.generation


class LogProducers:
    """Owned by its PartitionLog, made with the first batch that names a producer."""

    __slots__ = ("_replay", "_shared", "_unwritten", "states")

    def __init__(
        self,
        shared: LogDirectory,
        states: ProducerStates | None = None,
        unwritten: list[tuple[str, bytes]] | None = None,
    ) -> None:
        self._shared = shared
        self.states = shared.producers.states() if states is None else states
        self._replay: _Replay | None = None
        """What is read, or has been, for a cut that waits for it."""
        self._unwritten = unwritten or []
        """Snapshots of rolls that no flush has written yet: one for each, a truncation may go
        back to any of them."""

    def rolled(self, base_offset: int) -> None:
        """A segment begins here, and holds nothing yet."""
        name = snapshot_name(base_offset)
        if len(self.states) and not any(each[0] == name for each in self._unwritten):
            self._unwritten.append((name, encode_snapshot(self.states, base_offset)))

    def join(self, token: FlushToken, segments: list[Segment]) -> None:
        """What moves the recovery point is written behind the snapshots it relies on.

        Also where a segment was begun for a batch that found no room: nobody was told of that one,
        and what lies before it is sealed all the same.
        """
        if token.checkpoints:
            if segments and not segments[-1].size:
                self.rolled(segments[-1].base_offset)
            token.checkpoints[:0] = self._unwritten

    def written(self, token: FlushToken) -> None:
        """The checkpoints of this token are on the disk."""
        if self._unwritten and token.checkpoints:
            names = {name for name, _ in token.checkpoints}
            self._unwritten = [each for each in self._unwritten if each[0] not in names]

    def prepare_cut(self, log: CutLog, end_offset: int) -> None:
        """Before the log is cut here: know the state below, if it has to be read from the log.

        In turns of the loop, where it is long: a segment may hold 600,000 batches.

        Raises:
            WriteError: it is being read, or no descriptor is free: cut later. Nothing was changed.
            OSError, CorruptionError: it can't be read.
        """
        if self.states.reaches(end_offset):
            self._replay = None
            return
        replay = self._replay
        if replay is None or (replay.end, replay.generation) != (end_offset, log.generation):
            with refusing():
                replay = self._replay = _Replay(self._shared, log, end_offset)
        if self._shared.in_turns is None:
            while not replay.turn():
                pass
        elif not (replay.is_over or replay.turn()):
            if not replay.is_running:
                replay.is_running = True
                self._shared.in_turns(replay.turn)
            text = f"its producers are read up to offset {end_offset} before it is cut"
            cause = BlockingIOError(errno.EAGAIN, text)
            raise WriteError(cause, Outcome.NOT_WRITTEN, broken=False)
        if replay.error is not None:
            self._replay = None
            with refusing():
                raise replay.error

    def truncated(self, end_offset: int) -> None:
        """The log ends here now, as prepared. The state is cut back exactly (invariant T4)."""
        limit = snapshot_name(end_offset)
        self._unwritten = [each for each in self._unwritten if each[0] <= limit]
        if self._replay is None:
            self.states.truncate_to(end_offset)
        else:
            self.states, self._replay = self._replay.states, None

    def write_for_close(self, directory: str, segments: list[Segment], end_offset: int) -> None:
        """The state at the end, for a start that scans nothing; the one of the last close goes.

        Raises:
            OSError: the shutdown is not clean.
        """
        disk = self._shared.files.disk
        kept = {end_offset, *(segment.base_offset for segment in segments)}
        for offset in snapshot_offsets(disk, directory):
            if offset not in kept:
                disk.unlink(f"{directory}/{snapshot_name(offset)}")
        data = encode_snapshot(self.states, end_offset)
        for name, rolled in [*self._unwritten, (snapshot_name(end_offset), data)]:
            place_file(disk, directory, name, rolled, sync=False)
