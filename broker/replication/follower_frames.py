"""What a follower does with a frame of a leader; a frame that is not of the present is dropped."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.replication.event_notes import Standing, note_truncation
from broker.replication.frames import Diverging, Frame, Push, Refused, Valid
from broker.replication.partition import Following
from raft_metadata.common.errors import KafkaError

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.replication.events import EventSink
    from broker.replication.follower_stream import FollowerStream
    from broker.replication.leader_link import LeaderLink
    from broker.replication.replica import Replica
    from raft_metadata.common.faults import FaultHandler

_log = logging.getLogger("broker.replication")


def take_frame(
    replica: Replica,
    link: LeaderLink,
    stream: FollowerStream,
    frame: Frame,
    faults: FaultHandler,
    events: EventSink,
) -> None:
    """Apply a frame of ``stream``'s leader if this replica follows it now (rule R4)."""
    partition, role = replica.partition, replica.partition.role
    if not isinstance(role, Following) or role.leader != stream.leader:
        return
    match frame:
        case Push():
            _take_push(replica, link, stream, frame)
        case Valid():
            if _tried(replica, link, lambda: partition.on_valid(frame)):
                replica.log.request_flush()
                stream.queue_ack(replica)
        case Diverging():
            before = Standing(partition)
            again = False
            try:
                again = _tried(replica, link, lambda: partition.on_diverging(frame))
            except AssertionError as error:
                faults.fatal("truncation below the high watermark", error)
            note_truncation(events, partition, before)
            if again:
                link.open(replica)
        case Refused():
            partition.on_refused(frame)  # asked again by the tick, as the image says then
        case _:
            pass  # a leader sends no others


def _tried(replica: Replica, link: LeaderLink, step: Callable[[], bool]) -> bool:
    """A log that can't be cut or started over just now (the disk is full) is tried again later."""
    try:
        return step()
    except KafkaError as error:
        _log.warning("answer not taken log=%s leader=%d error=%s",
            replica.log.name, link.leader, error,
        )  # fmt: skip
        replica.partition.drop_session()
        link.watch(replica)
        return False


def _take_push(replica: Replica, link: LeaderLink, stream: FollowerStream, push: Push) -> None:
    """Append it. What one partition can't take ends its session, not the others' stream."""
    partition = replica.partition
    try:
        taken = partition.on_push(push)
    except (KafkaError, ValueError) as error:
        _log.warning("push refused log=%s leader=%d error=%s", replica.log.name, link.leader, error)
        partition.drop_session()
        link.watch(replica)
        return
    if taken is False:
        link.open(replica)
    elif taken and len(push.batches) and not partition.settings.by_durable:
        stream.queue_ack(replica)
