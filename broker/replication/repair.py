"""Damaged replicas of a running broker: reported to the controllers, emptied, filled again.

The log manager reports damage that it finds in an open log. `Repairs.report` gives heartbeats the
damaged replicas; the controllers then hand over leadership and remove the replica from the ISR
under a new leader epoch. When an image shows that, `apply_to_damaged` quarantines the log, and the
replica is filled from the leader. The last good copy is never emptied (rules Q5, R4, R6; ADR 0009).
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from broker.log.directory_files import DAMAGED_COPIES_MAX, FOLDER, text_of
from broker.log.log_directory import InDoubtError
from broker.replication import events
from broker.replication.frames import key_of
from broker.replication.leader_state import LeaderState
from raft_metadata.common.disk import TRANSIENT_ERRNOS
from raft_metadata.common.ids import LeaderEpoch, PartitionEpoch
from raft_metadata.records.commands import DamagedReplica, replica_partition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Set

    from broker.log.log_manager import LogManager
    from broker.replication.events import EventJournal
    from broker.replication.frames import Key
    from broker.replication.replica import Replica
    from raft_metadata.common.ids import BrokerEpoch, BrokerId, TopicId, TopicIdPartition
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage


LOOK_AGAIN_MS = 500
"""Interval of further attempts for a log that could not be quarantined, as on a full disk."""
REPORTED_REPLICAS_MAX = 10_000
"""Most damaged replicas in a heartbeat: 2 MB, and 20 ms each time the report changes."""
LOOKED_AT_ONCE = 50
"""Logs refused at start that are checked in one tick; more would hold the event loop."""
LOG_AGAIN_MS = 600_000
"""Interval at which a replica that stays damaged is logged again."""
LOG_AFTER_MS = 10_000
"""Time before damage is logged as lasting; a repair that is possible takes less."""
TOO_MANY_COPIES = f"{DAMAGED_COPIES_MAX} damaged copies of it are kept in log/{FOLDER}, remove one"

_log = logging.getLogger("broker.replication")


class RepairHost(Protocol):
    """The part of the `ReplicaManager` that the repairs call."""

    image: MetadataImage

    @property
    def broker_epoch(self) -> BrokerEpoch | None: ...
    def replica(self, partition: TopicIdPartition) -> Replica | None: ...
    def stand_down(self, replica: Replica) -> None: ...
    def release(self, replica: Replica) -> None: ...
    def apply_partition(self, topic: TopicImage, key: Key) -> None: ...


class Repairs:
    """The damaged replicas of this broker.

    Owned by the `ReplicaManager`, on its event loop, which calls `look` with every tick and
    `apply_to_damaged` with every image that concerns one.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        logs: LogManager,
        events: EventJournal,
        unopenable: Set[TopicIdPartition],
        host: RepairHost,
    ) -> None:
        """Begin without damaged replicas.

        ``unopenable``: damaged logs that can't be opened even if no replica has more.
        """
        self._me = broker_id
        self._logs = logs
        self._events = events
        self._unopenable = unopenable
        self._host = host
        self.damaged: dict[Key, Replica] = {}
        self._reasons: dict[Key, BaseException] = {}
        self._looked_ms = 0
        self._report: tuple[Mapping[TopicId, TopicImage], tuple[DamagedReplica, ...]] | None = None
        """The topics of an image and the report computed from them; None if it must be computed."""
        self._logged_ms: dict[Key, int] = {}

    # finding damage

    def look(self, now_ms: int) -> None:
        """Take over the damage found since the last tick; try again for replicas that wait."""
        for name, error in self._logs.take_found_damage():
            where = self._logs.key_by_name(name)
            if where is None:
                continue
            replica = self._host.replica(where)
            events.note_lost(self._events, where, replica, error)
            if replica is not None and self._logs.was_open(where):
                self._found(replica, error)
        waiting = self.damaged or self._logs.offline
        if waiting and now_ms - self._looked_ms >= LOOK_AGAIN_MS:
            self._looked_ms, self._report = now_ms, None
            self._look_at_refused()
            for key, replica in list(self.damaged.items()):
                self._look_at(replica)
                if key in self.damaged:
                    self._log_lasting_damage(key, replica, now_ms)
            self._log_refused_logs(now_ms)

    def _found(self, replica: Replica, error: BaseException) -> None:
        self._report = None
        self.damaged[replica.key] = replica
        self._reasons[replica.key] = error
        if not isinstance(replica.partition.role, LeaderState) or not self._can_lead(replica.key):
            self._host.stand_down(replica)  # it must acknowledge nothing more
        self._look_at(replica)

    def _look_at_refused(self) -> None:
        """Try again to repair logs that were refused at start.

        The disk may have room by now, or an operator may have made some.
        """
        image = self._host.image
        refused = (where for where in self._logs.offline if not self._logs.was_open(where))
        for where in list(islice(refused, LOOKED_AT_ONCE)):
            if image.partition(*where) is not None:
                key = key_of(where.topic_id, where.partition)
                if key not in self.damaged:
                    self._host.apply_partition(image.topics[where.topic_id], key)

    def _look_at(self, replica: Replica) -> None:
        """Apply the present image to a damaged replica."""
        topic = self._host.image.topics.get(replica.partition.id.topic_id)
        if topic is not None and self._host.broker_epoch is not None:
            self._host.apply_partition(topic, replica.key)

    def _can_lead(self, key: Key) -> bool:
        """Return True if the log can be led with; not if a change of it stopped halfway."""
        where, logs = self.damaged[key].partition.id, self._logs
        is_open = logs.was_open(where) or logs.is_served_damaged(where)
        return is_open and not isinstance(self._reasons[key], InDoubtError)

    def _log_lasting_damage(self, key: Key, replica: Replica, now_ms: int) -> None:
        """Log a damaged replica that only an operator can restore."""
        if self._take_log_turn(key, now_ms):
            offline = self._logs.offline.get(replica.partition.id)
            is_full = offline is not None and offline.has_too_many_copies
            _log.error("damaged replica can't be filled again: %s log=%s leads=%s error=%s",
                TOO_MANY_COPIES if is_full else "no sound replica leads",
                replica.log.name,
                isinstance(replica.partition.role, LeaderState),
                self._reasons[key],
            )  # fmt: skip

    def _log_refused_logs(self, now_ms: int) -> None:
        """Log the logs refused at start that a leader could fill if an operator made room."""
        for where in self._logs.partitions_with_too_many_copies():
            key = key_of(where.topic_id, where.partition)
            if key not in self.damaged and self._take_log_turn(key, now_ms):
                _log.error("damaged replica can't be filled again: %s copies=log/%s/%s error=%s",
                    TOO_MANY_COPIES, FOLDER, text_of(where), self._logs.offline[where].error,
                )  # fmt: skip

    def _take_log_turn(self, key: Key, now_ms: int) -> bool:
        told_ms = self._logged_ms.setdefault(key, now_ms - LOG_AGAIN_MS + LOG_AFTER_MS)
        if now_ms - told_ms < LOG_AGAIN_MS:
            return False
        self._logged_ms[key] = now_ms
        return True

    # reports

    def report(self) -> tuple[DamagedReplica, ...]:
        """Return the damaged replicas for heartbeats, sorted, at most `REPORTED_REPLICAS_MAX`.

        Damage found since the start comes first. The report is computed anew when damage or the
        image changed, and every `LOOK_AGAIN_MS`.
        """
        if not (self.damaged or self._logs.offline):
            return ()
        image = self._host.image
        if self._report is None or self._report[0] is not image.topics:
            self._report = (
                image.topics,
                tuple(sorted(self._damaged_now(image), key=replica_partition)),
            )
        return self._report[1]

    def _damaged_now(self, image: MetadataImage) -> Iterator[DamagedReplica]:
        for key, replica in islice(self.damaged.items(), REPORTED_REPLICAS_MAX):
            where, epoch = replica.partition.id, replica.partition.role.epoch
            yield _failed(image, where, epoch, can_lead=self._can_lead(key))
        found = {replica.partition.id for replica in self.damaged.values()}
        refused = (where for where in self._logs.offline if where not in found)
        for where in islice(refused, max(0, REPORTED_REPLICAS_MAX - len(found))):
            can_lead = where not in self._unopenable
            yield _failed(image, where, LeaderEpoch(-1), can_lead=can_lead)

    def reasons(self) -> dict[TopicIdPartition, str]:
        """Return the damaged replicas with their errors, those included that serve what is left."""
        found = {where: str(offline.error) for where, offline in self._logs.offline.items()}
        for key, replica in self.damaged.items():
            found[replica.partition.id] = str(self._reasons[key])
        for where in self._logs.partitions_with_too_many_copies():
            found[where] += f"; not filled again: {TOO_MANY_COPIES}"
        return found

    # repair

    def apply_to_damaged(self, key: Key, registration: PartitionRegistration) -> bool:
        """Apply an image to a damaged replica; return False if it can take a role like any other.

        On False its log may have been replaced, and must be opened.
        """
        replica = self.damaged.get(key)
        if replica is None:
            return False
        self._report = None
        if self._me not in registration.replicas:
            self.forget(key)
            return False
        try:
            return self._settle(replica, registration)
        except OSError as error:
            if error.errno not in TRANSIENT_ERRNOS:
                raise
            _log.warning(
                "damaged log not replaced yet, tried again later log=%s error=%s",
                replica.log.name,
                error,
            )
            return True

    def _settle(self, replica: Replica, registration: PartitionRegistration) -> bool:
        key, role = replica.key, replica.partition.role
        is_deposed = registration.leader != self._me and registration.leader_epoch > role.epoch
        if is_deposed and isinstance(role, LeaderState):
            # Before the marks, which a full disk may prevent (rule G3).
            self._host.stand_down(replica)
        self._logs.save_damage_marks()
        if registration.leader == self._me:
            if not self._can_lead(key):
                return True
            if registration.isr == (self._me,) and not registration.elr:
                self._use(replica)
            else:
                self._give_up(replica)
            return False
        self._give_up(replica)
        is_out = self._me not in registration.isr and self._me not in registration.elr
        if not (is_out and registration.has_leader and registration.leader_epoch > role.epoch):
            return True
        if not self._logs.reset_damaged(*replica.partition.id):
            return True
        _log.warning("damaged log set aside, replica filled again log=%s leader=%d reason=%s",
            replica.log.name, registration.leader, self._reasons[key],
        )  # fmt: skip
        events.note_repaired(self._events, replica.partition.id, self._reasons[key])
        self._host.release(replica)
        return False

    def _use(self, replica: Replica) -> None:
        """Serve the readable rest of a damaged log, because no other replica has more."""
        if self._logs.was_open(replica.partition.id):
            self._logs.use_damaged(*replica.partition.id)
            _log.error("damaged replica is the last one, it stays in service log=%s error=%s",
                replica.log.name, self._reasons[replica.key],
            )  # fmt: skip

    def _give_up(self, replica: Replica) -> None:
        """Take a served damaged log offline, because other replicas can lead again."""
        if self._logs.is_served_damaged(replica.partition.id):
            self._logs.take_offline(replica.partition.id, self._reasons[replica.key])

    def forget(self, key: Key) -> None:
        """Forget a replica that is no longer hosted here."""
        self._report = None
        self.damaged.pop(key, None)
        self._reasons.pop(key, None)
        self._logged_ms.pop(key, None)


def _failed(
    image: MetadataImage, where: TopicIdPartition, epoch: LeaderEpoch, *, can_lead: bool
) -> DamagedReplica:
    """Return the report of one damaged replica, for the partition as this broker's image has it."""
    known = image.partition(*where)
    return DamagedReplica(
        topic_id=where.topic_id,
        partition=where.partition,
        leader_epoch=epoch,
        can_lead=can_lead,
        partition_epoch=PartitionEpoch(-1) if known is None else known.partition_epoch,
    )
