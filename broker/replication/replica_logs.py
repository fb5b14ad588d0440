"""Opens, quarantines and purges the logs of this broker's replicas, as the image requires.

The `ReplicaManager` calls `open` for an assigned partition, `set_aside` for one that is no longer
assigned, and `quarantine_some` and `due_for_purge` with every tick. A log is removed only for a
recorded fact: its topic was deleted, or its replica was reassigned to another broker (rule M5). A
damaged log is quarantined only once the controller has recorded the damage (rule R6).
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from broker.replication.events import note_repaired
from raft_metadata.common.disk import TRANSIENT_ERRNOS
from raft_metadata.common.ids import IncarnationId, PartitionId, TopicIdPartition
from raft_metadata.records.partition_set import NO_PARTITIONS, PartitionSet

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.log.log_directory import LogConfig
    from broker.log.log_manager import LogManager
    from broker.log.partition_log import PartitionLog
    from broker.replication.events import EventSink
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage


QUARANTINED_AT_ONCE = 50
"""Logs quarantined in one tick; more would hold the event loop longer than a heartbeat interval."""
PURGE_CHECK_MS = 10_000
"""Interval of the search for quarantined logs whose grace period is over."""
REMOVED_MARK = ":removed"
"""End of a quarantined log's name if its replica was reassigned and its topic still exists."""

_log = logging.getLogger("broker.replication")


class ReplicaLogs:
    """The logs of assigned, removed and damaged replicas.

    Owned by the `ReplicaManager`, which calls it only with images that contain this incarnation's
    registration.
    """

    def __init__(
        self, config: BrokerConfig, incarnation_id: IncarnationId, logs: LogManager
    ) -> None:
        self._config = config
        self._incarnation_id = incarnation_id
        self._logs = logs
        self._to_quarantine: dict[TopicIdPartition, bool] = {}
        """Logs that wait to be quarantined; True if their topic still exists."""
        self.unopenable: set[TopicIdPartition] = set()
        """Damaged logs that could not be opened when no other replica had more."""
        self._looked_ms = 0
        self._quarantined: dict[str, int] = {}
        """Quarantined logs, and the time at which this process first saw each (monotonic, ms)."""

    def open(
        self,
        image: MetadataImage,
        topic: TopicImage,
        number: PartitionId,
        config: LogConfig,
        events: EventSink | None = None,
    ) -> PartitionLog | None:
        """Return the log of an assigned partition; None while it is offline (rule Q5).

        A replica that was removed from this broker and is assigned again starts empty: its old log
        is quarantined first and never counts as in sync. A repair is noted in ``events``.
        """
        partition_id = TopicIdPartition(topic.topic_id, number)
        if partition_id in self._to_quarantine:
            self._quarantine([partition_id])
        self._logs.identify(topic.name, number, topic.topic_id)
        offline = self._logs.offline.get(partition_id)
        if offline is not None:
            if not self._set_damaged_aside(image, partition_id):
                return self._open_refused(image, partition_id, config)
            if events is not None:
                note_repaired(events, partition_id, offline.error)
        holder = self._logs.holder(topic.name, number)
        if holder is not None and holder != topic.topic_id:
            # A name has one topic id at a time, so the topic of the other id was deleted (M5).
            self._logs.delete([TopicIdPartition(holder, number)])
        return self._logs.get_or_create(topic.name, number, topic.topic_id, config)

    def _set_damaged_aside(self, image: MetadataImage, partition_id: TopicIdPartition) -> bool:
        """Quarantine a damaged log, to be filled from the leader; return True if that is done.

        It is done only once the controller has recorded the damage (rules Q5, R6), and only if
        another replica leads: these bytes may be the last copy.
        """
        registration = image.partition(*partition_id)
        if partition_id not in self._recorded_damage(image) or registration is None:
            return False
        if self._logs.was_open(partition_id):
            return False  # damage found after the start is handled by `Repairs`
        if not registration.has_leader or registration.leader == self._config.broker_id:
            return False
        try:
            return self._logs.reset_damaged(*partition_id)
        except OSError as error:
            if error.errno not in TRANSIENT_ERRNOS:
                raise
            _log.warning(
                "damaged log not replaced yet, tried again later log=%s error=%s",
                partition_id,
                error,
            )
            return False  # `Repairs` tries again

    def _open_refused(
        self, image: MetadataImage, partition_id: TopicIdPartition, config: LogConfig
    ) -> PartitionLog | None:
        """Open a damaged log if an unclean election made this the only replica; None if that fails.

        Tried once for a log. It blocks the event loop for as long as recovery of this log takes.
        """
        registration = image.partition(*partition_id)
        me = self._config.broker_id
        leads = registration is not None and registration.isr == (me,) == (registration.leader,)
        if not leads or partition_id in self.unopenable or self._logs.was_open(partition_id):
            return None
        if not self._logs.open_offline(*partition_id):
            self.unopenable.add(partition_id)
            return None
        _log.error("a damaged replica leads with the records that it has log=%s", partition_id)
        log = self._logs.get(*partition_id)
        if log is not None:
            log.config = config
        return log

    def _recorded_damage(self, image: MetadataImage) -> PartitionSet:
        """Return the damage that this incarnation reported and the controller recorded (R6)."""
        mine = image.brokers.get(self._config.broker_id)
        if mine is None or not mine.settled or mine.incarnation_id != self._incarnation_id:
            return NO_PARTITIONS
        return mine.unclean_partitions

    def forget_recorded_damage(self, image: MetadataImage) -> None:
        """Remove the marks of recorded damage whose logs are no longer here (rule R6).

        A damaged log that is still here keeps its mark until it is quarantined.
        """
        recorded = self._recorded_damage(image)
        for partition_id in list(self._logs.unclean) if recorded else ():
            if partition_id in recorded and partition_id not in self._logs.offline:
                self._logs.forget_unclean(*partition_id)

    def set_aside_strays(self, image: MetadataImage) -> None:
        """Set aside replicas that were deleted or reassigned while this broker was down.

        Called with the first image that contains the own registration. That image is newer than
        everything on this disk: a topic that it lacks was deleted, a partition without this broker
        was reassigned (rule M5).
        """
        here = [TopicIdPartition(log.topic_id, log.partition) for log in self._logs.logs()]
        for where in [*here, *self._logs.offline]:
            registration = image.partition(*where)
            if where.topic_id not in image.topics:
                self.set_aside(where, topic_lives=False)
            elif registration and self._config.broker_id not in registration.replicas:
                self.set_aside(where, topic_lives=True)

    def set_aside(self, partition_id: TopicIdPartition, *, topic_lives: bool) -> None:
        """Have a log quarantined with the next ticks; ``topic_lives``: its topic still exists."""
        self._to_quarantine[partition_id] = topic_lives

    def quarantine_some(self) -> None:
        """Quarantine the next logs that were set aside; called with every tick."""
        if self._to_quarantine:
            self._quarantine(list(islice(self._to_quarantine, QUARANTINED_AT_ONCE)))

    def _quarantine(self, partitions: list[TopicIdPartition]) -> None:
        lives = [self._to_quarantine.pop(where) for where in partitions]
        for topic_lives in (False, True):
            some = [
                each for each, live in zip(partitions, lives, strict=True) if live is topic_lives
            ]
            if some:
                self._logs.delete(some, mark=REMOVED_MARK if topic_lives else "")

    def due_for_purge(self, image: MetadataImage, now_ms: int) -> list[str]:
        """Return quarantined logs whose grace period is over (rule M5); none before the next check.

        A damaged log in quarantine stays for the operator for as long as its topic exists.
        """
        if now_ms - self._looked_ms < PURGE_CHECK_MS:
            return []
        self._looked_ms = now_ms
        grace_ms = self._config.limits.topic_delete_grace_ms
        names = self._logs.quarantined()
        self._quarantined = {name: self._quarantined.get(name, now_ms) for name in names}
        return [
            name
            for name, since_ms in self._quarantined.items()
            if now_ms - since_ms >= grace_ms
            and (name.endswith(REMOVED_MARK) or name.split(":")[0] not in image.topics)
        ]

    async def purge(self, names: list[str]) -> None:
        """Unlink these logs off the event loop; a failure is logged and tried again later."""
        try:
            await asyncio.to_thread(self._logs.purge, names)
            _log.info("deleted logs unlinked count=%d", len(names))
        except OSError as error:
            _log.warning("deleted logs not unlinked, tried again later error=%s", error)
