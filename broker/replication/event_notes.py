"""How the changes of a broker's replicas are told: to the log for people, to the event journal."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.replication.events import EventKind, EventSink, role_name
from broker.replication.partition import Following
from broker.replication.partition_state import LeaderState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.log.log_manager import LogManager
    from broker.replication.partition import Partition, Role
    from broker.replication.partition_state import Proposal
    from broker.replication.replica import Replica
    from raft_metadata.common.ids import BrokerId, TopicIdPartition

ROLE_LINES_PER_IMAGE = 20
"""Changes of roles logged one by one; of a greater number of them, how many there are."""

_log = logging.getLogger("broker.replication")


class RoleNotes:
    """Owned by the `ReplicaManager`: tells what an image made of its replicas."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._changed = 0

    def begin(self) -> None:
        """An image is being followed."""
        self._changed = 0

    def end(self, next_offset: int, led: int, hosted: int) -> None:
        """It has been followed up to this metadata offset."""
        if self._changed > ROLE_LINES_PER_IMAGE:
            _log.info("roles changed count=%d next_offset=%d led=%d of=%d",
                self._changed, next_offset, led, hosted,
            )  # fmt: skip

    def applied(self, replica: Replica, before: Standing) -> None:
        """The image may have changed the role, or the ISR under the same role."""
        role = replica.partition.role
        if role is not before.role:
            self._role_changed(replica)
        elif isinstance(role, LeaderState) and role.partition_epoch != before.partition_epoch:
            note_isr(self._events, replica.partition, before, "image")

    def _role_changed(self, replica: Replica) -> None:
        partition, log = replica.partition, replica.log
        role = partition.role
        facts = _role_facts(role)
        self._events.note(
            EventKind.ROLE_CHANGED, partition.id, role.epoch,
            role=role_name(role), log_start=log.log_start_offset, log_end=log.log_end_offset,
            durable_end=log.durable_end, high_watermark=partition.high_watermark, **facts,
        )  # fmt: skip
        self._changed += 1
        if self._changed <= ROLE_LINES_PER_IMAGE:
            _log.info(
                "role changed log=%s topic_id=%s role=%s leader_epoch=%d log_end=%d "
                "high_watermark=%d",
                log.name, log.topic_id, role_name(role), role.epoch,
                log.log_end_offset, partition.high_watermark,
            )  # fmt: skip


def _role_facts(role: Role) -> dict[str, int | list[int]]:
    if isinstance(role, LeaderState):
        return {
            "epoch_start": role.epoch_start,
            "isr": sorted(role.isr),
            "partition_epoch": role.partition_epoch,
        }
    if isinstance(role, Following):
        return {"leader": role.leader, "unclean_epoch": role.unclean_epoch}
    return {}


class Standing:
    """How a partition stood before something was done to it: what changed is told afterwards."""

    __slots__ = ("high_watermark", "isr", "log_end", "partition_epoch", "role")

    def __init__(self, partition: Partition) -> None:
        role = self.role = partition.role
        self.log_end = partition.log.log_end_offset
        self.high_watermark = partition.high_watermark
        self.isr: Iterable[int] = ()
        self.partition_epoch = -1
        if isinstance(role, LeaderState):
            self.isr, self.partition_epoch = role.isr, role.partition_epoch


def note_isr(events: EventSink, partition: Partition, before: Standing, reason: str) -> None:
    """A committed ISR became known to the leader."""
    role = partition.role
    if not isinstance(role, LeaderState) or role.partition_epoch == before.partition_epoch:
        return
    events.note(
        EventKind.ISR_CHANGED, partition.id, role.epoch,
        old=sorted(before.isr), new=sorted(role.isr), reason=reason,
        partition_epoch=role.partition_epoch, high_watermark=partition.high_watermark,
    )  # fmt: skip


def note_proposal(
    events: EventSink, partition: Partition, proposal: Proposal, kind: EventKind, **facts: str
) -> None:
    """An attempt to change the ISR was sent, or answered otherwise than with a committed one."""
    events.note(
        kind, partition.id, proposal.leader_epoch,
        attempt=proposal.attempt, isr=[broker for broker, _ in proposal.isr],
        partition_epoch=proposal.partition_epoch, reason=proposal.reason, **facts,
    )  # fmt: skip


def note_truncation(events: EventSink, partition: Partition, before: Standing) -> None:
    """Told only if there was one. ``unclean``: below the high watermark, as an operator allowed."""
    end = partition.log.log_end_offset
    if end >= before.log_end:
        return
    events.note(
        EventKind.TRUNCATED, partition.id, partition.role.epoch,
        **{"from": before.log_end}, to=end, high_watermark=before.high_watermark,
        unclean=end < before.high_watermark, reason="diverging",
    )  # fmt: skip


def note_start(events: EventSink, broker_id: BrokerId, logs: LogManager) -> None:
    """A life of this broker begins, with what it found on its disk (rules Q5, R6)."""
    events.note(
        EventKind.STARTED, None, -1,
        broker_id=broker_id, clean=logs.clean_broker_epoch is not None,
        logs=sum(1 for _ in logs.logs()), offline=len(logs.offline),
    )  # fmt: skip
    for partition, reason in logs.unclean.items():
        events.note(EventKind.UNCLEAN, partition, -1, reason=reason)


def note_log_start(events: EventSink, replica: Replica) -> None:
    """Records at the start were let go; it is durable."""
    log = replica.log
    events.note(
        EventKind.LOG_START, replica.partition.id, replica.partition.role.epoch,
        role=role_name(replica.partition.role), new=log.log_start_offset,
        log_end=log.log_end_offset, high_watermark=replica.partition.high_watermark,
    )  # fmt: skip


def note_lost(
    events: EventSink, where: TopicIdPartition, replica: Replica | None, error: object
) -> None:
    """Durable bytes of an open log are gone."""
    epoch = -1 if replica is None else replica.partition.role.epoch
    events.note(EventKind.LOG_FAILED, where, epoch, reason=str(error))


def note_repaired(events: EventSink, partition: TopicIdPartition, damage: object) -> None:
    """A damaged log was set aside; an empty one is filled from the leader."""
    events.note(EventKind.REPAIRED, partition, -1, reason=str(damage))
