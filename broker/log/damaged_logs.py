"""The half of a `LogManager` that handles logs whose bytes are damaged or lost.

Such a log is offline: it takes no more bytes, and is reported at every registration until the
controller has recorded it (rules Q5, R6). Then its directory is quarantined whole, for its
operator, and the replica begins anew, empty (`reset_damaged`); or, if no replica has more, the log
is used as it is (`use_damaged`).
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from broker.log.directory_files import DirectoryFiles
from broker.log.disk import PASSING
from broker.log.log_directory import InDoubtError
from broker.log.quarantine import Quarantine
from broker.log.segment_removals import SegmentRemovals
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.log.disk import Disk
    from broker.log.partition_log import PartitionLog

_log = logging.getLogger("broker.log")


class DamagedLogs(ABC):
    """Offline, damaged and quarantined logs of a `LogManager`, its only heir; on the event loop."""

    def __init__(self, disk: Disk, root: str, remove_delay_ms: int) -> None:
        self.offline: dict[TopicIdPartition, StorageError] = {}
        """Offline partitions: not served from this disk, not in ISR or ELR (rules Q5, R6)."""
        self.damaged: dict[TopicIdPartition, PartitionLog] = {}
        """Offline logs that were open when their damage was found; a subset of ``offline``."""
        self.in_use: set[TopicIdPartition] = set()
        """Logs that are damaged and used as they are (`use_damaged`); not in ``offline``."""
        self.too_many_copies: set[TopicIdPartition] = set()
        """Offline logs not quarantined at the last try: `DAMAGED_COPIES_MAX` copies exist."""
        self.lost: list[tuple[str, BaseException]] = []
        """(log name, error) of damage found in open logs and not yet taken by `take_lost`."""
        self.unclean: dict[TopicIdPartition, str] = {}
        """Partitions to report at every registration until `forget_unclean`; durable (rule R6)."""
        self.failed: BaseException | None = None
        self.removals = SegmentRemovals(disk, remove_delay_ms)
        self._logs: dict[TopicIdPartition, PartitionLog] = {}
        self._keys: dict[str, TopicIdPartition] = {}
        self._small = DirectoryFiles(disk, root)
        self._quarantine = Quarantine(disk, root)
        self._is_noted = True
        """True if the file ``damaged`` on the disk equals ``unclean``."""

    @abstractmethod
    def _fail_all(self, error: BaseException) -> None:
        """Take all logs of this directory offline (rule Q2)."""

    # found

    def _refuse(self, name: str, key: TopicIdPartition, error: CorruptionError) -> None:
        _log.error("partition offline log=%s error=%s", name, error)
        self._keys[name] = key
        self.offline[key] = error
        self.unclean[key] = str(error)
        self._is_noted = False
        self.note_damage()

    def note_damage(self) -> None:
        """Write ``unclean`` to the disk, if it has changed.

        Raises:
            OSError: the disk failed, or is full; then it must be called again.
        """
        if not self._is_noted:
            self._small.write_damaged(self.unclean)
            self._is_noted = True

    def _on_log_failed(self, name: str | None, error: BaseException) -> None:
        """Take one log offline whose durable bytes are damaged; all (None) if the disk failed."""
        if name is None:
            self._fail_all(error)
            return
        key = self._keys[name]
        log = self._logs.get(key)
        if log is None:
            return
        if key in self.in_use and not isinstance(error, InDoubtError):
            log.failed = self.failed  # only this read is refused; the rest of the log is served
            return
        self.lost.append((name, error))
        self.give_up(key, error)

    def identity(self, name: str) -> TopicIdPartition | None:
        """Return the key of the log of this name; None if it was deleted since."""
        return self._keys.get(name)

    def give_up(self, key: TopicIdPartition, error: BaseException) -> None:
        """Take this open log offline as damaged: it takes no more bytes and is reported."""
        log = self._logs.pop(key)
        log.failed = log.failed or error
        self.damaged[key] = log
        self.in_use.discard(key)
        damage = error if isinstance(error, CorruptionError) else CorruptionError(str(error))
        try:
            self._refuse(log.name, key, damage)
        except OSError as full:
            if full.errno not in PASSING:
                self._fail_all(full)

    def take_lost(self) -> list[tuple[str, BaseException]]:
        """Return the damage found in open logs since the last call."""
        lost, self.lost = self.lost, []
        return lost

    # resolved

    def reset_damaged(self, topic_id: TopicId, partition: PartitionId) -> bool:
        """Quarantine a damaged log, so that an empty one can be filled from a peer.

        To be called only once the controller has recorded the damage: the mark in ``unclean`` is
        removed too. A crash in between leaves the mark without a directory, which is reported
        again. Returns False if as many damaged copies of this replica as are kept exist already.

        Raises:
            OSError: not possible now; the next call does the rest.
        """
        key = TopicIdPartition(topic_id, partition)
        if key not in self.offline:
            return True
        name = self._name_of(key)
        if self._quarantine.has_yet_to_move(name):
            place = self._quarantine.place_for_damaged(key)
            if place is None:
                self.too_many_copies.add(key)
                return False
            self._close_damaged(key)
            self._quarantine.move(name, place)
        self._quarantine.sync()
        self.forget_unclean(topic_id, partition)
        self.note_damage()
        del self.offline[key], self._keys[name]
        self.too_many_copies.discard(key)
        return True

    def use_damaged(self, topic_id: TopicId, partition: PartitionId) -> None:
        """Serve this damaged open log as it is, as no replica has more: it takes bytes again.

        The mark in ``unclean`` is removed: a start may open the log as it is, and finds unreadable
        batches again.

        Raises:
            OSError: the mark could not be removed; must be called again.
        """
        key = TopicIdPartition(topic_id, partition)
        log = self.damaged[key]
        self.forget_unclean(topic_id, partition)
        self.note_damage()
        del self.damaged[key], self.offline[key]
        log.failed = self.failed
        self._logs[key] = log
        self.in_use.add(key)
        self.removals.note(log)
        log.request_flush()

    def forget_unclean(self, topic_id: TopicId, partition: PartitionId) -> None:
        """Stop reporting this partition: the broker's image shows it recorded (rule R6)."""
        key = TopicIdPartition(topic_id, partition)
        if self.unclean.pop(key, None) is not None:
            self._is_noted = False
            self.note_damage()

    def _close_damaged(self, key: TopicIdPartition) -> None:
        log = self.damaged.pop(key, None)
        if log is not None:
            log.close()
            self.removals.forget(log)

    # quarantine

    def purge(self, names: Iterable[str]) -> None:
        """Unlink these quarantined directories: their grace period is over."""
        self._quarantine.purge(names)

    def quarantined(self) -> list[str]:
        """Return the names that `purge` may take: ``<topic id>:<partition><mark>`` of each log."""
        return self._quarantine.names()

    def _set_aside(self, name: str, quarantined: str) -> bool:
        """Move the directory to quarantine, not yet durably; return False if there was none."""
        self._keys.pop(name, None)
        return self._quarantine.move(name, quarantined)

    def _name_of(self, key: TopicIdPartition) -> str:
        return next(name for name, other in self._keys.items() if other == key)
