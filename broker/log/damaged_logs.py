"""The half of a `LogManager` that deals with logs whose bytes turned out to be wrong or gone.

Such a log is offline: it takes no more bytes, and is said at every registration, until the
controllers have recorded it (rules Q5, R6). Then it is set aside whole, for its operator, and the
replica begins anew, empty; or it is used as it is, where nobody has more.
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
    """See the module. Loop only."""

    def __init__(self, disk: Disk, root: str, remove_delay_ms: int) -> None:
        self.offline: dict[TopicIdPartition, StorageError] = {}
        """Partitions that can't be served from this disk: out of ISR and ELR (rules Q5, R6)."""
        self.damaged: dict[TopicIdPartition, PartitionLog] = {}
        """Of these, the logs that were open when it was found."""
        self.in_use: set[TopicIdPartition] = set()
        """Damaged, and used as they are: `use_damaged`."""
        self.too_many_copies: set[TopicIdPartition] = set()
        """Could not be set aside for `DAMAGED_COPIES_MAX` alone, when that was tried last."""
        self.lost: list[tuple[str, BaseException]] = []
        """Logs, by name, whose damage was found while they were open, and nobody was told of."""
        self.unclean: dict[TopicIdPartition, str] = {}
        """Partitions to report at every registration until `forget_unclean`: durable (rule R6)."""
        self.failed: BaseException | None = None
        self.removals = SegmentRemovals(disk, remove_delay_ms)
        self._logs: dict[TopicIdPartition, PartitionLog] = {}
        self._keys: dict[str, TopicIdPartition] = {}
        self._small = DirectoryFiles(disk, root)
        self._quarantine = Quarantine(disk, root)
        self._is_noted = True
        """Whether ``unclean`` is on the disk as it is."""

    @abstractmethod
    def _fail_all(self, error: BaseException) -> None:
        """Rule Q2: no log of this directory is believed any more."""

    # found

    def _refuse(self, name: str, key: TopicIdPartition, error: CorruptionError) -> None:
        _log.error("partition offline log=%s error=%s", name, error)
        self._keys[name] = key
        self.offline[key] = error
        self.unclean[key] = str(error)
        self._is_noted = False
        self.note_damage()

    def note_damage(self) -> None:
        """Write the marks, if they are not as on the disk.

        Raises:
            OSError: the disk failed, or is full; then it is to be called again.
        """
        if not self._is_noted:
            self._small.write_damaged(self.unclean)
            self._is_noted = True

    def _on_log_failed(self, name: str | None, error: BaseException) -> None:
        """One log's durable bytes are gone, or (None) the disk is in doubt."""
        if name is None:
            self._fail_all(error)
            return
        key = self._keys[name]
        log = self._logs.get(key)
        if log is None:
            return
        if key in self.in_use and not isinstance(error, InDoubtError):
            log.failed = self.failed  # what is asked for is refused, the rest goes on
            return
        self.lost.append((name, error))
        self.give_up(key, error)

    def identity(self, name: str) -> TopicIdPartition | None:
        """Whose log has this name; None: it has gone since."""
        return self._keys.get(name)

    def give_up(self, key: TopicIdPartition, error: BaseException) -> None:
        """This open log is damaged: it takes no more bytes, and is reported from now on."""
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
        """What was found since this was asked last."""
        lost, self.lost = self.lost, []
        return lost

    # done with

    def reset_damaged(self, topic_id: TopicId, partition: PartitionId) -> bool:
        """Set a damaged log aside, so that an empty one can be filled from a peer; if it can be.

        Only once the controller has recorded it: the mark goes with it. A crash in between leaves
        the mark without a directory, which is reported once more. False: as many damaged copies of
        this replica as are kept are there already.

        Raises:
            OSError: not now; what is left to do is done when it is called again.
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
        """What is readable of this open log counts, as nobody has more: it takes bytes again.

        The mark goes: a start may open it as it is, and what can't be read is found again.

        Raises:
            OSError: the mark could not be taken away; to be called again.
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
        """The broker's image shows it recorded: it need not be reported again (rule R6)."""
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
        """What `purge` may take: ``<topic id>:<partition><mark>`` of each deleted log."""
        return self._quarantine.names()

    def _set_aside(self, name: str, quarantined: str) -> bool:
        """Move the directory aside, not yet durable; whether there was one."""
        self._keys.pop(name, None)
        return self._quarantine.move(name, quarantined)

    def _name_of(self, key: TopicIdPartition) -> str:
        return next(name for name, other in self._keys.items() if other == key)
