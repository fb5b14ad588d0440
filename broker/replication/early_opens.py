"""Opens of followers whose image is ahead of this leader's: kept until it catches up (rule R9)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

from broker.replication.frames import Refused, partition_of
from broker.replication.leader_link import UNANSWERED_RETRY_MS
from raft_metadata.common.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from broker.replication.frames import Key, Open
    from broker.replication.replica import Replica
    from raft_metadata.common.ids import BrokerId
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration

MAX_UNKNOWN_OPENS = 20_000
"""Partitions that followers may ask for before this image holds them; then they are refused."""
UNKNOWN_OPEN_MS = 2 * UNANSWERED_RETRY_MS
"""Whoever still wants an answer has asked again by then: an older open is nobody's any more."""
LOOKED_AT_ONCE = 500
"""Opens that one tick holds against the image: a millisecond."""


@dataclass(slots=True)
class _Waiting:
    """For one partition that this broker does not host."""

    asked_ms: int
    opens: dict[BrokerId, Open] = field(default_factory=dict)
    was_there: bool = False
    """The image held the partition already: once it does not, the partition was deleted."""


class EarlyOpens:
    """Owned by the `ReplicaManager`: which opens wait for the image, by partition and follower."""

    def __init__(self, broker_id: BrokerId) -> None:
        self._broker_id = broker_id
        self._unknown: dict[Key, _Waiting] = {}
        """For partitions that this image does not hold here yet; who was looked at goes last."""
        self._known: dict[Replica, None] = {}
        """Replicas whose `Partition.early_opens` holds some, in order of arrival."""

    def keep_unknown(
        self, image: MetadataImage, key: Key, follower: BrokerId, message: Open, now_ms: int
    ) -> Refused | None:
        """No replica here: it waits for the image, or is told why not.

        The follower's image may be ahead: a new topic shall not wait for a second question.
        """
        registration = image.partition(*partition_of(key))
        code = None
        if registration is not None and self._is_elsewhere(registration, message):
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif key not in self._unknown and len(self._unknown) >= MAX_UNKNOWN_OPENS:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code is not None:
            return Refused(message.request, message.leader_epoch, code.number)
        waiting = self._unknown.setdefault(key, _Waiting(now_ms))
        waiting.asked_ms = now_ms
        waiting.was_there |= registration is not None
        waiting.opens[follower] = message
        return None

    def _is_elsewhere(self, registration: PartitionRegistration, message: Open) -> bool:
        """The image is at the epoch that the follower meant, or past it, and nothing is here."""
        here = self._broker_id in registration.replicas
        return not here and registration.leader_epoch >= message.leader_epoch

    def forget_some(self, image: MetadataImage, now_ms: int) -> None:
        """Drop what no image will ever answer; with every tick, some in their turn.

        A partition that was deleted, or whose epoch in question came without a replica here. What
        the image can't tell, as a topic deleted before the follower asked, goes with its age.
        """
        for key in list(islice(self._unknown, LOOKED_AT_ONCE)):
            waiting = self._unknown.pop(key)
            registration = image.partition(*partition_of(key))
            if registration is not None:
                waiting.was_there = True
                for follower, message in list(waiting.opens.items()):
                    if self._is_elsewhere(registration, message):
                        del waiting.opens[follower]
            elif waiting.was_there:
                continue
            if waiting.opens and now_ms - waiting.asked_ms < UNKNOWN_OPEN_MS:
                self._unknown[key] = waiting

    def note(self, replica: Replica) -> None:
        """The partition has kept one itself."""
        self._known[replica] = None

    def found(self, replica: Replica) -> None:
        """The partition is there now: it takes what was kept for it."""
        kept = self._unknown.pop(replica.key, None)
        if kept is not None:
            replica.partition.early_opens = kept.opens
            self.note(replica)

    def drop(self, replica: Replica) -> None:
        """No replica here any more."""
        self._known.pop(replica, None)

    def take(self) -> Iterator[tuple[Replica, BrokerId, Open]]:
        """All that wait at partitions that are there: each is to be asked anew, once."""
        known, self._known = self._known, {}
        for replica in known:
            opens, replica.partition.early_opens = replica.partition.early_opens, {}
            for follower, message in opens.items():
                yield replica, follower, message
