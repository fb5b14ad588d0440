"""Reads of one partition: at its leader, or at a follower in the reader's rack (KIP-392).

`RoutedBrokerApis` calls `ReadRouting` for every fetch and look-up of offsets; the read is served
here, or forwarded once with a time limit. `FollowerReads` chooses a follower for readers that name
their rack, and serves such reads for other brokers; it is enabled by ``replica.selector`` = rack.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from broker.log.read_positions import find_divergence
from broker.replication.partition import Following, OpenSession
from broker.server import peer_codec
from broker.server.local_partitions import (
    LocalPartitions,
    Read,
    Reads,
    ServingReplica,
    check_seen,
)
from broker.server.peer_codec import PeerRequestKind
from broker.server.requests import UNKNOWN_EPOCH, note_passed_to
from raft_metadata.common.configs.table import REPLICA_SELECTOR
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.internal_topics import read_refusal
from raft_metadata.image.metadata_image import broker_layers
from raft_metadata.records.records import BrokerState

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.ports import PeerChannel
    from broker.replication.replica import Replica
    from broker.replication.replica_manager import ReplicaManager
    from broker.server.requests import FetchRequest, FetchResult, OffsetsResult
    from broker.server.router import LeaderRouter
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, PartitionId, TopicId, TopicIdPartition, TopicName
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration

    Existing = Callable[[TopicName, PartitionId], Awaitable[TopicIdPartition]]

LEADER_MOVE_MS: Final = 300
"""Least time for a read to find a leader, even if it does not wait for records: a planned move of a
leader takes tens of milliseconds."""
LEADER_WAIT_MS: Final = 2_000
"""Time to find a leader for a look-up of a partition's ends, which names no time of its own. After
a leader's death the next one follows within a session of 1,200 ms and an election."""
ANSWER_GRACE_MS: Final = 1_000
"""Time beyond the requested wait in which a leader's answer has to be read and to arrive. A leader
that hangs delays a read by no more than this."""
TIME_LOOKUP_MS: Final = 5_000
"""`ANSWER_GRACE_MS` of a look-up by time, which may have to read much of the log."""
ANSWER_MARGIN_MS: Final = 1_000
"""Time beyond the requested wait for a follower's answer; after that the leader serves the read."""


class ReadRouting:
    """Reads on the broker that received them.

    Owned by `RoutedBrokerApis`, on its loop. Stateless.
    """

    def __init__(
        self,
        config: BrokerConfig,
        local: LocalPartitions,
        existing: Existing,
        router: LeaderRouter,
        follower_reads: FollowerReads,
        clock: Clock,
        catch_up: Callable[[], Awaitable[bool]],
    ) -> None:
        """Take two functions.

        ``existing`` finds a partition or raises UNKNOWN_TOPIC_OR_PARTITION; ``catch_up`` waits a
        limited time for the active controller's newest image, and returns whether it is here.
        """
        self._catch_up = catch_up
        self._broker_id = config.broker_id
        self._limits = config.limits
        self._local = local
        self._existing = existing
        self._router = router
        self._follower_reads = follower_reads
        self._clock = clock

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """Read from the leader, or from a follower if the request names a rack."""
        limits = self._limits
        refusal = read_refusal(request.topic)
        if refusal is not None:
            raise refusal
        partition = await self._meant(request)
        await self._know_epoch(partition, max(request.seen_epoch, request.leader_epoch))
        max_wait_ms = max(0, min(request.max_wait_ms, limits.max_fetch_wait_ms))
        wait_until_ms = self._clock.monotonic_ms() + max_wait_ms
        patience_ms = max(max_wait_ms, request.leader_wait_ms, LEADER_MOVE_MS)
        deadline_ms = self._clock.monotonic_ms() + patience_ms
        if request.rack is not None:
            found = await self._follower_reads.fetch(request, partition, max_wait_ms)
            if found is not None:
                return found
        while True:
            found = await self._read(request, partition, wait_until_ms, deadline_ms)
            left_ms = wait_until_ms - self._clock.monotonic_ms()
            if found.slices or found.packed or found.leader_id != self._broker_id or left_ms <= 0:
                return found
            replica = self._local.unchanged_since(partition, found)
            if replica is None:
                continue
            del found  # the read waits here, without the frames of the way to the leader
            await self._local.wait(replica, left_ms)
            news = self._read_now(request, partition)
            if news is not None:
                return news

    def _read_now(self, request: FetchRequest, partition: TopicIdPartition) -> FetchResult | None:
        """Return records that are here now: thousands of reads may have waited for them."""
        assert request.offset is not None, "a look-up by time waits where it is led"
        return self._local.fetch_directly(
            partition,
            request.offset,
            max(1, min(request.max_bytes, self._limits.max_fetch_bytes)),
            packed=request.packed,
            leader_epoch=request.leader_epoch,
            seen_epoch=request.seen_epoch,
        )

    async def _read(
        self,
        request: FetchRequest,
        partition: TopicIdPartition,
        wait_until_ms: int,
        deadline_ms: int,
    ) -> FetchResult:
        """Read at the leader. Only a leader elsewhere, or a look-up by time, waits for records."""
        limits = self._limits

        async def attempt(registration: PartitionRegistration, _timeout_ms: int) -> FetchResult:
            is_here = registration.leader == self._broker_id
            waits = not is_here or request.offset is None
            wait_ms = max(0, wait_until_ms - self._clock.monotonic_ms()) if waits else 0
            read = Read(
                partition=partition,
                offset=request.offset,
                timestamp_ms=request.timestamp_ms,
                max_bytes=max(1, min(request.max_bytes, limits.max_fetch_bytes)),
                max_wait_ms=wait_ms,
                packed=request.packed,
                leader_epoch=request.leader_epoch,
                seen_epoch=request.seen_epoch,
            )
            if is_here:
                return await self._local.fetch(read)
            grace_ms = ANSWER_GRACE_MS if request.timestamp_ms is None else TIME_LOOKUP_MS
            body = peer_codec.encode_fetch(read)
            answer = await self._router.forward(
                partition, registration, PeerRequestKind.FETCH, body, wait_ms + grace_ms, grace_ms=0
            )
            return peer_codec.decode_fetch(answer)

        return await self._router.routed(partition, attempt, deadline_ms, repeat_unknown=True)

    async def offsets(
        self, topic: TopicName, partition: PartitionId, seen_epoch: int = UNKNOWN_EPOCH
    ) -> OffsetsResult:
        """Return both ends of a partition, as its leader reports them."""
        place = await self._existing(topic, partition)
        await self._know_epoch(place, seen_epoch)
        deadline_ms = self._clock.monotonic_ms() + LEADER_WAIT_MS

        async def attempt(registration: PartitionRegistration, _timeout_ms: int) -> OffsetsResult:
            if registration.leader == self._broker_id:
                return self._local.offsets(place, seen_epoch)
            body = peer_codec.encode_offsets(place, seen_epoch)
            answer = await self._router.forward(
                place, registration, PeerRequestKind.OFFSETS, body, ANSWER_GRACE_MS, grace_ms=0
            )
            return peer_codec.decode_offsets(answer)

        return await self._router.routed(place, attempt, deadline_ms, repeat_unknown=True)

    async def _meant(self, request: FetchRequest) -> TopicIdPartition:
        """Return the partition that a request means.

        Raises:
            KafkaError: TOPIC_CHANGED, another topic has the name; LEADER_NOT_AVAILABLE if this
                broker's image may only be older than the topic that is meant.
        """
        partition = await self._existing(request.topic, request.partition)
        if request.topic_id in {None, partition.topic_id}:
            return partition
        is_newest = await self._catch_up()
        partition = await self._existing(request.topic, request.partition)
        if partition.topic_id != request.topic_id:
            if not is_newest:
                raise unproven_topic(request.topic, partition.topic_id)
            text = (
                f"topic {request.topic} has the id {partition.topic_id}, not {request.topic_id}: "
                "it was deleted and created again"
            )
            raise KafkaError(ErrorCode.TOPIC_CHANGED, text)
        return partition

    async def _know_epoch(self, partition: TopicIdPartition, epoch: int) -> None:
        """Wait for the newest image if this one knows only an older leader epoch (rule R8)."""
        known = self._router.leader_epoch(partition)
        if known is not None and known < epoch:
            await self._catch_up()


def unproven_topic(topic: TopicName, topic_id: TopicId) -> KafkaError:
    """Return the error of a broker that can't tell which topic has a name now (rule R8)."""
    text = f"topic {topic} had the id {topic_id} when a controller was last heard of here"
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)


def unproven_absence(topic: TopicName) -> KafkaError:
    """Return the error of a broker that can't tell whether a topic or partition exists (rule R8).

    A reader would take its absence for the loss of all its records.
    """
    text = f"no controller answers: topic {topic} may exist, or may have grown"
    return KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, text)


class FollowerReads:
    """Reads from in-sync followers: their choice for a reader, and the service on a follower.

    Owned by the `BrokerServer`, on its loop. Stateless but for the number of reads that wait here.
    """

    def __init__(
        self,
        config: BrokerConfig,
        manager: ReplicaManager,
        peers: PeerChannel,
        clock: Clock,
        check_proof: Callable[[], bool],
    ) -> None:
        """Take ``check_proof``: an active controller knew this broker less than a session ago."""
        self._me = config.broker_id
        self._static = config.static()
        self._limits = config.limits
        self._manager = manager
        self._peers = peers
        self._clock = clock
        self._is_proven = check_proof
        self._reads = Reads(config.limits.max_parked_fetches, clock)

    # on the broker that received the request

    async def fetch(
        self, request: FetchRequest, partition: TopicIdPartition, max_wait_ms: int
    ) -> FetchResult | None:
        """Read from a replica in the reader's rack; return None if the leader has to serve."""
        image = self._manager.image
        registration = image.partition(*partition)
        if registration is None or request.rack is None or request.offset is None:
            return None
        if not self.is_enabled(image):
            return None
        follower = choose_follower(image, partition, registration, request.rack, self._me)
        if follower is None:
            return None
        read = Read(
            partition=partition,
            offset=request.offset,
            timestamp_ms=None,
            max_bytes=max(1, min(request.max_bytes, self._limits.max_fetch_bytes)),
            max_wait_ms=max_wait_ms,
            packed=request.packed,
            leader_epoch=request.leader_epoch,
            seen_epoch=request.seen_epoch,
        )
        try:
            if follower == self._me:
                return await self.serve(read)
            return await self._ask(image, follower, read)
        except (KafkaError, TimeoutError):
            return None  # whatever failed there, the leader can serve the read

    def is_enabled(self, image: MetadataImage) -> bool:
        """Return whether readers that name their rack may be served by followers."""
        return broker_layers(image, self._me, self._static).word(REPLICA_SELECTOR) == "rack"

    async def _ask(self, image: MetadataImage, follower: BrokerId, read: Read) -> FetchResult:
        peer = image.brokers[follower].peer
        body, timeout_ms = peer_codec.encode_fetch(read), read.max_wait_ms + ANSWER_MARGIN_MS
        note_passed_to(follower)
        async with asyncio.timeout(timeout_ms / 1000):
            answer = await self._peers.call(
                follower, peer, PeerRequestKind.FETCH_FOLLOWER, body, timeout_ms
            )
        return peer_codec.decode_fetch(answer)

    # on the follower that serves

    async def serve(self, read: Read) -> FetchResult:
        """Read from a replica that follows here; wait for its first record as long as requested.

        Raises OFFSET_NOT_AVAILABLE or NOT_LEADER_OR_FOLLOWER if the leader has to serve.
        """
        offset = -1 if read.offset is None else read.offset
        deadline_ms = self._clock.monotonic_ms() + read.max_wait_ms

        def serving_replica() -> ServingReplica:
            replica, role = self.in_sync(read.partition)
            check_seen(role.epoch, read.seen_epoch)
            return ServingReplica(replica, role.leader, role.epoch)

        def check(replica: Replica, at: int) -> None:
            check_position(replica, at, read.leader_epoch if at == read.offset else UNKNOWN_EPOCH)

        found = await self._reads.read(
            offset,
            read.max_bytes,
            deadline_ms,
            serving_replica,
            check,
            leader_epoch=read.leader_epoch,
            packed=read.packed,
        )
        return replace(found, served_by=self._me)

    def in_sync(self, place: TopicIdPartition) -> tuple[Replica, Following]:
        """Return the replica here and its role, if it may serve now.

        Nothing is awaited between this check and the read. Raises NOT_LEADER_OR_FOLLOWER.
        """
        replica = self._manager.replica(place)
        image = self._manager.image
        registration, mine = image.partition(*place), image.brokers.get(self._me)
        if replica is None or registration is None or mine is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        match replica.partition.role:
            case Following(session=OpenSession(), epoch=registration.leader_epoch) as role if (
                self._me in registration.isr
                and mine.broker_epoch == self._manager.broker_epoch
                and mine.state is BrokerState.UNFENCED
                and self._is_proven()
            ):
                return replica, role
            case _:
                reason = "not proven to be in sync here"
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, reason)


def check_position(replica: Replica, offset: int, epoch: int) -> None:
    """Raise OFFSET_NOT_AVAILABLE where a follower can't serve: the leader decides.

    ``epoch``: that of the record before the offset, as the reader knows it.
    """
    is_here = replica.log.log_start_offset <= offset <= replica.log.log_end_offset
    if is_here and epoch != UNKNOWN_EPOCH:
        is_here = find_divergence(replica.log, offset, epoch) is None
    if not is_here:
        raise KafkaError(ErrorCode.OFFSET_NOT_AVAILABLE, "the leader decides")


def choose_follower(
    image: MetadataImage,
    partition: TopicIdPartition,
    registration: PartitionRegistration,
    rack: str,
    me: BrokerId,
) -> BrokerId | None:
    """Return a live in-sync follower in that rack, this broker first; None if the leader serves.

    The leader serves if it is in that rack itself, or if no such follower exists. Pure.
    """
    followers = [
        replica
        for replica in registration.replicas
        if replica in registration.isr
        and (broker := image.brokers.get(replica)) is not None
        and broker.rack == rack
        and broker.state is BrokerState.UNFENCED
    ]
    if not followers or registration.leader in followers or not registration.has_leader:
        return None
    return me if me in followers else followers[partition.partition % len(followers)]
