"""The producers of one log with their snapshots: what the PartitionLog keeps of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.log.checkpoints import place_file
from broker.log.producer_snapshot import (
    encode_snapshot,
    producers_at,
    snapshot_name,
    snapshot_offsets,
)

if TYPE_CHECKING:
    from broker.log.flusher import FlushToken
    from broker.log.log_directory import LogDirectory
    from broker.log.producer_state import ProducerStates
    from broker.log.segment import Segment


class LogProducers:
    """Owned by its PartitionLog, made with the first batch that names a producer."""

    __slots__ = ("_shared", "_unwritten", "states")

    def __init__(
        self,
        shared: LogDirectory,
        states: ProducerStates | None = None,
        unwritten: list[tuple[str, bytes]] | None = None,
    ) -> None:
        self._shared = shared
        self.states = shared.producers.states() if states is None else states
        self._unwritten = unwritten or []
        """Snapshots of rolls that no flush has written yet: one for each, a truncation may go
        back to any of them."""

    def rolled(self, base_offset: int) -> None:
        """A segment begins here, and holds nothing yet."""
        if len(self.states):
            data = encode_snapshot(self.states, base_offset)
            self._unwritten.append((snapshot_name(base_offset), data))

    def join(self, token: FlushToken) -> None:
        """What moves the recovery point is written behind the snapshots it relies on."""
        if token.checkpoints:
            token.checkpoints[:0] = self._unwritten

    def written(self, token: FlushToken) -> None:
        """The checkpoints of this token are on the disk."""
        if self._unwritten and token.checkpoints:
            names = {name for name, _ in token.checkpoints}
            self._unwritten = [each for each in self._unwritten if each[0] not in names]

    def truncated(self, directory: str, segments: list[Segment], end_offset: int) -> None:
        """The log ends here now. The state is cut back exactly (invariant T4).

        Raises:
            OSError, CorruptionError: it has to be read from the log, and can't be.
        """
        limit = snapshot_name(end_offset)
        self._unwritten = [each for each in self._unwritten if each[0] <= limit]
        if not self.states.truncate_to(end_offset):
            shared = self._shared
            self.states = producers_at(
                shared.files, directory, segments, end_offset, shared.producers
            )

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
