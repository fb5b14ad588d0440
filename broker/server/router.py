"""Requests to the leader of a partition, here or one hop away, within a deadline.

Reads, produces, deletions and groups route through it. An attempt that surely did nothing is
repeated until the deadline, at the leader that the image names by then; one of unknown outcome is
repeated only if the caller asks for it, because a second one does no harm (rule F1). A forward that
is under way when its partition gets a newer leader epoch is given up soon, because the old leader
may never answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from broker.server.requests import note_passed_to
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import LeaderEpoch, TopicIdPartition
from raft_metadata.common.sequenced_sender import RETRIABLE_REFUSALS

if TYPE_CHECKING:
    from broker.ports import PeerChannel
    from broker.server.metadata_loader import MetadataLoader
    from raft_metadata.common.clock import Clock
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration

T = TypeVar("T")
Attempt = Callable[["PartitionRegistration", int], Awaitable[T]]
"""One attempt with a leader, and the milliseconds left for it."""

DEPOSED_GRACE_MS = 500
"""Time for a leader that was deposed meanwhile to answer."""
FORWARD_GRACE_MS = 1_000
"""Time beyond a forward's time-out for the leader's answer, unless the caller names another."""
REROUTE_PAUSE_MS = 100
"""Longest pause before a refused attempt is made again; a new image ends it at once."""


class LeaderRouter:
    """Router of requests to partitions' leaders.

    Owned by `RoutedBrokerApis`, on its loop. Stateless but for the forwards under way.
    """

    def __init__(self, loader: MetadataLoader, peers: PeerChannel, clock: Clock) -> None:
        self._loader = loader
        self._peers = peers
        self._clock = clock
        self._forwards: dict[TopicIdPartition, set[asyncio.Timeout]] = defaultdict(set)

    async def routed(
        self,
        partition: TopicIdPartition,
        attempt: Attempt[T],
        deadline_ms: int,
        *,
        repeat_unknown: bool,
        doubts: list[KafkaError] | None = None,
    ) -> T:
        """Call `attempt` with the present leader until one attempt succeeds.

        With ``repeat_unknown`` that includes attempts of unknown outcome; for a write ``doubts``
        takes their errors, so that the caller does not report it as not written. Raises
        LEADER_NOT_AVAILABLE at `deadline_ms`, on the monotonic clock.
        """
        last = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the partition has no leader")
        while True:
            image = self._loader.image
            registration = image.partition(*partition)
            if registration is None and partition.topic_id not in image.topics:
                raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the topic was deleted")
            remaining_ms = deadline_ms - self._clock.monotonic_ms()
            if registration is not None and registration.has_leader:
                try:
                    return await attempt(registration, max(1, remaining_ms))
                except KafkaError as error:
                    if not _is_repeatable(error, repeat_unknown=repeat_unknown):
                        raise
                    last = error
                    if error.outcome is Outcome.UNKNOWN:
                        code = ErrorCode.LEADER_NOT_AVAILABLE
                        last = KafkaError(code, error.message, outcome=Outcome.NOT_WRITTEN)
                        if doubts is not None:
                            doubts.append(error)
            if deadline_ms - self._clock.monotonic_ms() <= 0:
                text = f"no leader took the request in time: {last.message}"
                raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text, outcome=last.outcome)
            await self._pause(deadline_ms)

    def leader_epoch(self, partition: TopicIdPartition) -> LeaderEpoch | None:
        """Return the leader epoch that this broker's image has of a partition, or None."""
        registration = self._loader.image.partition(*partition)
        return None if registration is None else registration.leader_epoch

    async def _pause(self, deadline_ms: int) -> None:
        """Wait for a new image, `REROUTE_PAUSE_MS` or the deadline, whichever comes first."""
        pause_ms = min(REROUTE_PAUSE_MS, max(1, deadline_ms - self._clock.monotonic_ms()))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_ms / 1000):
                await self._loader.changed()

    async def forward(
        self,
        partition: TopicIdPartition,
        registration: PartitionRegistration,
        kind: int,
        body: bytes,
        timeout_ms: int,
        *,
        grace_ms: int = FORWARD_GRACE_MS,
    ) -> bytes:
        """Send a request to the leader in `registration`, once, and return the body of its answer.

        The answer is awaited for `timeout_ms` and `grace_ms`; if a newer leader epoch appears
        meanwhile, for `DEPOSED_GRACE_MS` only.
        """
        leader = self._loader.image.brokers.get(registration.leader)
        if leader is None:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "the leader is not registered")
        forwards = self._forwards[partition]
        scope = asyncio.timeout((timeout_ms + grace_ms) / 1000)
        try:
            async with scope:
                forwards.add(scope)
                note_passed_to(leader.broker_id)
                return await self._peers.call(leader.broker_id, leader.peer, kind, body, timeout_ms)
        except TimeoutError:
            text = f"broker {leader.broker_id}, the leader, did not answer within {timeout_ms} ms"
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, text) from None
        finally:
            forwards.discard(scope)
            if not forwards:
                self._forwards.pop(partition, None)

    def image_changed(self, before: MetadataImage, image: MetadataImage) -> None:
        """Await answers of leaders that a newer epoch replaced for `DEPOSED_GRACE_MS` at most."""
        soon = asyncio.get_running_loop().time() + DEPOSED_GRACE_MS / 1000
        for partition, scopes in self._forwards.items():
            old, new = before.partition(*partition), image.partition(*partition)
            if old is None or new is None or new.leader_epoch <= old.leader_epoch:
                continue
            for scope in scopes:
                when = scope.when()
                if when is None or when > soon:
                    scope.reschedule(soon)


def _is_repeatable(error: KafkaError, *, repeat_unknown: bool) -> bool:
    """Return whether an attempt that failed like this may be made again."""
    if error.outcome is Outcome.NOT_WRITTEN:
        return error.code in RETRIABLE_REFUSALS
    # The leader has forgotten where the duplicate stands: another attempt can't tell either.
    return repeat_unknown and error.code is not ErrorCode.DUPLICATE_SEQUENCE_NUMBER
