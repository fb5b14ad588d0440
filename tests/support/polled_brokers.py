"""Brokers in one process that lead partitions of one replica each, and poll one another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from broker.config import BrokerConfig, BrokerLimits
from broker.log.log_manager import LogManager
from broker.ports import PeerRequest
from broker.record.batch import RecordFormat
from broker.record.lines import decode_records
from broker.replication.replica_manager import ReplicaManager
from broker.server.fetch import FollowerReads
from broker.server.local_partitions import Append, LocalPartitions
from broker.server.local_polls import LocalPolls
from broker.server.peer_codec import PeerRequestKind
from broker.server.peer_requests import PeerRequests
from broker.server.poll_routing import PollRouting
from broker.server.requests import ACKS_LEADER, UNKNOWN_EPOCH, PollRequest, PollRow
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.faults import ProcessFaultHandler
from raft_metadata.common.ids import (
    BrokerId,
    ClusterId,
    IncarnationId,
    MetadataOffset,
    PartitionId,
    TopicId,
    TopicIdPartition,
    TopicName,
)
from raft_metadata.image.metadata_image import MetadataImage, TopicImage
from tests.support.registered import broker, disk, partition

TOPIC = TopicId("A" * 22)
NAME = TopicName("t")
NO_LEADER = -1


def image(
    leaders: Sequence[int], *, version: int = 1, epoch: int = 1, topic_id: TopicId = TOPIC
) -> MetadataImage:
    """Topic t with a partition for each of ``leaders``, which is its only replica too."""
    partitions = tuple(
        partition((max(leader, 1),), leader, epoch, set_at=10 + version) for leader in leaders
    )
    topic = TopicImage(
        name=NAME, topic_id=topic_id, partitions_count=len(leaders), partitions=partitions
    )
    return MetadataImage(
        next_offset=MetadataOffset(20 + version),
        brokers={BrokerId(number): broker(number) for number in (1, 2, 3)},
        topics={topic_id: topic},
        topic_ids={NAME: topic_id},
    )


class Peers:
    """`PeerChannel` of one broker to the others, in this process; each request is a task."""

    def __init__(self) -> None:
        self.services: dict[int, PeerRequests] = {}
        self.dead: set[int] = set()
        self.hung: set[int] = set()
        self.asked: list[tuple[int, PeerRequestKind]] = []

    async def call(
        self, broker_id: BrokerId, peer: str, kind: int, body: bytes, timeout_ms: int
    ) -> bytes:
        self.asked.append((broker_id, PeerRequestKind(kind)))
        if broker_id in self.dead:
            raise KafkaError(ErrorCode.NETWORK_EXCEPTION, f"broker {broker_id} is dead")
        if broker_id in self.hung:
            await asyncio.sleep(timeout_ms / 1000)
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT)
        answering = asyncio.ensure_future(self.services[broker_id].answer(kind, body, timeout_ms))
        return await asyncio.shield(answering)  # a caller that gives up ends nothing at the peer

    def post(self, broker_id: BrokerId, peer: str, requests: Sequence[PeerRequest]) -> object:
        for each in requests:
            self.asked.append((broker_id, PeerRequestKind(each.kind)))
            if broker_id not in self.dead | self.hung:
                self.tasks.append(
                    asyncio.ensure_future(
                        self.services[broker_id].answer(each.kind, each.body, each.timeout_ms)
                    )
                )
        return ()

    tasks: list[asyncio.Future[bytes]] = []  # noqa: RUF012 kept so that they are not collected


class Loader:
    """The broker's image, as it is set."""

    def __init__(self) -> None:
        self.image = MetadataImage()
        self.loaded = asyncio.Event()
        self.loaded.set()


class PolledBroker:
    """One broker: its replicas, and polls of all partitions through it."""

    def __init__(self, number: int, directory: Path, limits: BrokerLimits) -> None:
        self.config = BrokerConfig(
            broker_id=BrokerId(number),
            cluster_id=ClusterId("c"),
            directory_id=disk(number),
            data_dir=directory,
            advertised_http="",
            advertised_peer="",
            limits=limits,
        )
        clock, faults = SystemClock(), ProcessFaultHandler()
        nobody = cast("Any", None)  # no task runs: neither controllers nor peers are ever asked
        self.logs = LogManager(directory, on_failed=lambda error: faults.fatal("log", error))
        self.logs.open()
        self.logs.start(asyncio.get_running_loop())
        self.manager = ReplicaManager(
            self.config, IncarnationId(f"life-{number}"), self.logs, nobody, nobody, clock, faults
        )
        self.local = LocalPartitions(self.config, self.manager, clock, lambda: True)
        reads = FollowerReads(self.config, self.manager, nobody, clock, lambda: True)
        self.polls = LocalPolls(self.config, self.local, reads, self.manager, clock)
        self.peers, self.loader = Peers(), Loader()
        self.caught_up = 0
        self.hears_controllers = True
        self.routing = PollRouting(
            self.config, self.polls, reads, cast("Any", self.loader), cast("Any", self.peers),
            clock, self.catch_up, lambda count: b"\1" * count,
        )  # fmt: skip
        self.services = PeerRequests(
            self.local,
            self.manager,
            nobody,
            nobody,
            nobody,
            nobody,
            nobody,
            reads,
            self.polls,
            nobody,
        )

    async def catch_up(self) -> bool:
        self.caught_up += 1
        return self.hears_controllers

    def follow(self, new: MetadataImage) -> None:
        """Take an image: roles first, then the polls under way."""
        self.manager.on_metadata_update(new)
        self.loader.image = new
        self.routing.image_changed()

    async def append(self, number: int, *values: object) -> int:
        """Write records to a partition led here; they are committed once this returns."""
        place = TopicIdPartition(TOPIC, PartitionId(number))
        text = ",".join(f'{{"value":{value}}}' for value in values)
        append = Append(
            partition=place,
            records=decode_records(f'{{"records":[{text}]}}'.encode()),
            key_format=RecordFormat.JSON,
            value_format=RecordFormat.JSON,
            acks=ACKS_LEADER,
            timeout_ms=5_000,
        )
        base = await self.local.append(append)
        replica = self.manager.replica(place)
        assert replica is not None
        while replica.partition.high_watermark < base + len(values):
            await self.local.until_high_watermark(
                place,
                replica.partition.role.epoch,
                base + len(values),  # type: ignore[union-attr]
            )
        return base

    def waiters(self) -> int:
        """Number of watches that stand at replicas here."""
        return sum(len(replica.fetch_waiters or ()) for replica in self.manager.replicas())


def rows(offsets: Mapping[int, int], *, leader_epoch: int = UNKNOWN_EPOCH) -> list[PollRow]:
    """A row of topic t for each partition."""
    return [
        PollRow(NAME, PartitionId(number), offset, leader_epoch)
        for number, offset in offsets.items()
    ]


def poll_of(offsets: Mapping[int, int], **options: Any) -> PollRequest:
    """A poll of topic t: partition → offset."""
    return PollRequest(rows=rows(offsets), **options)


@asynccontextmanager
async def polled_brokers(
    directory: Path, count: int = 2, limits: BrokerLimits | None = None
) -> AsyncIterator[list[PolledBroker]]:
    """Brokers 1 to ``count``, joined; each has no image yet."""
    brokers = [
        PolledBroker(number, directory / str(number), limits or BrokerLimits())
        for number in range(1, count + 1)
    ]
    for one in brokers:
        one.peers.services = {other.config.broker_id: other.services for other in brokers}
    yield brokers
    for one in brokers:
        one.logs.close(None)
