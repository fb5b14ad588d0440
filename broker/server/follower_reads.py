"""Reads from a replica in the reader's rack (KIP-392): opt-in by ``replica.selector`` = rack.

A follower serves below its own high watermark only (invariant L20), and only while it is sure of
its standing: validated by the leader of the present epoch, in the ISR and unfenced as its image
says, and known to an active controller less than a session ago. Whatever it can't tell (below its
log start, beyond its log end) is the leader's to decide, and so is every look-up by time.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.replication.partition import Following
from broker.server import forwarding
from broker.server.local_partitions import Read
from broker.server.reads import Reads, Standing
from raft_metadata.common.configs.table import REPLICA_SELECTOR
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.image.metadata_image import broker_layers
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.config import BrokerConfig
    from broker.ports import PeerChannel
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from broker.server.requests import FetchRequest, FetchResult
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, TopicIdPartition
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration

ANSWER_MARGIN_MS = 1_000
"""A replica that is this late with an answer is not waited for: the leader is asked."""


class FollowerReads:
    """Owned by the broker, on its loop. Stateless but for the count of reads that wait here."""

    def __init__(
        self,
        config: BrokerConfig,
        manager: ReplicaManager,
        peers: PeerChannel,
        clock: Clock,
        is_proven: Callable[[], bool],
    ) -> None:
        """``is_proven``: an active controller knew this broker less than a session ago."""
        self._me = config.broker_id
        self._static = config.static()
        self._limits = config.limits
        self._manager = manager
        self._peers = peers
        self._clock = clock
        self._is_proven = is_proven
        self._reads = Reads(config.limits.max_parked_fetches, clock)

    # the broker that was asked

    async def fetch(
        self, request: FetchRequest, partition: TopicIdPartition, max_wait_ms: int
    ) -> FetchResult | None:
        """What a replica in the reader's rack serves; None: the leader is to be asked."""
        image = self._manager.image
        registration = image.partition(*partition)
        if registration is None or request.rack is None or request.offset is None:
            return None
        if broker_layers(image, self._me, self._static).word(REPLICA_SELECTOR) != "rack":
            return None
        near = choose(image, partition, registration, request.rack, self._me)
        if near is None:
            return None
        read = Read(
            partition=partition,
            offset=request.offset,
            timestamp_ms=None,
            max_bytes=max(1, min(request.max_bytes, self._limits.max_fetch_bytes)),
            max_wait_ms=max_wait_ms,
            packed=request.packed,
        )
        try:
            if near == self._me:
                return await self.serve(read)
            return await self._ask(image, near, read)
        except (KafkaError, TimeoutError):
            return None  # whatever was the matter there, the leader knows

    async def _ask(self, image: MetadataImage, near: BrokerId, read: Read) -> FetchResult:
        peer = image.brokers[near].peer
        body, timeout_ms = forwarding.encode_fetch(read), read.max_wait_ms + ANSWER_MARGIN_MS
        async with asyncio.timeout(timeout_ms / 1000):
            answer = await self._peers.call(near, peer, forwarding.FETCH_NEAR, body, timeout_ms)
        return forwarding.decode_fetch(answer)

    # the broker that serves

    async def serve(self, read: Read) -> FetchResult:
        """Read from a replica that is followed here; wait for the first record as long as asked.

        OFFSET_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER: the leader is to be asked.
        """
        offset = -1 if read.offset is None else read.offset
        deadline_ms = self._clock.monotonic_ms() + read.max_wait_ms

        def standing() -> Standing:
            replica, role = self._in_sync(read.partition)
            return Standing(replica, role.leader, role.epoch)

        found = await self._reads.read(
            offset, read.max_bytes, deadline_ms, standing, _check_range, packed=read.packed
        )
        return replace(found, served_by=self._me)

    def _in_sync(self, place: TopicIdPartition) -> tuple[Replica, Following]:
        """The replica here, while it may serve; between this check and the read is no await."""
        replica = self._manager.replica(place)
        image = self._manager.image
        registration, mine = image.partition(*place), image.brokers.get(self._me)
        if replica is None or registration is None or mine is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        role = replica.partition.role
        serves = (
            isinstance(role, Following)
            and role.session is not None
            and role.epoch == registration.leader_epoch
            and self._me in registration.isr
            and mine.broker_epoch == self._manager.broker_epoch
            and mine.state is BrokerState.UNFENCED
            and self._is_proven()
        )
        if not serves or not isinstance(role, Following):
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not in sync here, or not proven")
        return replica, role


def _check_range(replica: Replica, offset: int) -> None:
    if not replica.log.log_start_offset <= offset <= replica.log.log_end_offset:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the leader decides")


def choose(
    image: MetadataImage,
    partition: TopicIdPartition,
    registration: PartitionRegistration,
    rack: str,
    me: BrokerId,
) -> BrokerId | None:
    """A live in-sync follower in that rack, this broker first; None where the leader is to serve.

    That is where the leader is in that rack itself, and where nobody is. Pure.
    """
    near = [
        replica
        for replica in registration.replicas
        if replica in registration.isr
        and (broker := image.brokers.get(replica)) is not None
        and broker.rack == rack
        and broker.state is BrokerState.UNFENCED
    ]
    if not near or registration.leader in near or not registration.has_leader:
        return None
    return me if me in near else near[partition.partition % len(near)]
