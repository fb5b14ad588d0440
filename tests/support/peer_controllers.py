"""Controllers that follow a script, behind the real servers of the peer plane; and commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from http_api.peer.controller_channel import HttpControllerChannel
from http_api.peer.controller_server import ControllerServer
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    BrokerEpoch,
    BrokerId,
    ClusterId,
    ControllerEpoch,
    DirectoryId,
    IncarnationId,
    LeaderEpoch,
    MetadataOffset,
    NodeId,
    PartitionEpoch,
    PartitionId,
    TopicId,
    TopicName,
)
from raft_metadata.records.commands import A as Answer
from raft_metadata.records.commands import (
    AlterAnswer,
    AlterPartition,
    AlterPartitionAnswer,
    AlterPartitions,
    BrokerHeartbeat,
    BrokerRegistered,
    Command,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    Election,
    ElectLeaders,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
    IsrMember,
    LeadersElected,
    MetadataBatch,
    PartitionAltered,
    PartitionsAltered,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
)
from raft_metadata.records.partition_set import PartitionRange
from raft_metadata.records.records import BrokerState, DrainScope, TopicRecord

CLUSTER = ClusterId("AAAAAAAAAAAAAAAAAAAAAA")
A, B, C = NodeId(101), NodeId(102), NodeId(103)
BROKER, EPOCH = BrokerId(1), BrokerEpoch(12)


@dataclass
class FakeController:
    """Follows a script; remembers what it was asked."""

    node_id: NodeId
    leader_id: NodeId | None = None
    asked: list[object] = field(default_factory=list)
    sessions: list[tuple[str, int, int]] = field(default_factory=list)
    error: KafkaError | None = None
    committed: int = 5
    records: int = 1
    open_gate: asyncio.Event = field(default_factory=asyncio.Event)
    gated: bool = False

    async def execute(self, command: Command[Answer]) -> Answer:
        self.asked.append(command)
        if self.gated:
            await self.open_gate.wait()
        if self.error is not None:
            raise self.error
        if self.leader_id != self.node_id:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return cast(Answer, _answer_to(command))

    async def fetch_metadata(self, request: FetchMetadata) -> FetchMetadataAnswer:
        self.asked.append(request)
        if request.from_offset >= self.committed:
            await asyncio.sleep(request.max_wait_ms / 1000)
        record = TopicRecord(name=TopicName("t"), topic_id=TopicId("T" * 22), partitions_count=1)
        return FetchMetadataAnswer(
            leader_id=self.leader_id,
            epoch=ControllerEpoch(3),
            leader_contact_age_ms=4,
            end_offset=MetadataOffset(self.committed),
            batches=(
                MetadataBatch(
                    base_offset=request.from_offset,
                    epoch=ControllerEpoch(3),
                    records=(record,) * self.records,
                ),
            ),
        )

    def heartbeat(self, command: BrokerHeartbeat) -> HeartbeatAnswer:
        self.asked.append(command)
        if self.error is not None:
            raise self.error
        return HeartbeatAnswer(
            is_active=self.leader_id == self.node_id,
            state=BrokerState.UNFENCED,
            should_shut_down=False,
            committed_offset=MetadataOffset(self.committed),
            wall_ms=SystemClock().wall_ms(),
        )

    def session_opened(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        self.sessions.append(("opened", broker_id, broker_epoch))

    def session_closed(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        self.sessions.append(("closed", broker_id, broker_epoch))

    def status(self) -> Mapping[str, object]:
        return {"node_id": self.node_id, "leader_id": self.leader_id, "by_id": {1: 2}}


def _answer_to(command: Command[Any]) -> object:
    """What an active controller answers; the first attempt of many is accepted, no other."""
    match command:
        case RegisterBroker():
            return BrokerRegistered(broker_epoch=EPOCH)
        case AlterPartitions():
            first = command.attempts[0]
            altered = PartitionAltered(
                leader_epoch=first.leader_epoch,
                partition_epoch=PartitionEpoch(first.partition_epoch + 1),
                isr=tuple(each.broker_id for each in first.new_isr),
            )
            refused = AlterPartitionAnswer(error=ErrorCode.INELIGIBLE_REPLICA.number, message="no")
            others = (refused,) * (len(command.attempts) - 1)
            return PartitionsAltered(answers=(AlterPartitionAnswer(altered=altered), *others))
        case CreateTopic():
            return TopicCreated(
                topic_id=command.topic_id,
                partitions_count=command.partitions_count or 1,
                replication_factor=1,
                next_offset=MetadataOffset(9),
            )
        case DeleteTopic():
            return TopicDeleted(topic_id=TopicId("T" * 22), next_offset=MetadataOffset(10))
        case ElectLeaders():
            return LeadersElected(results=(), next_offset=MetadataOffset(12))
        case _:
            return AlterAnswer(next_offset=MetadataOffset(11))


@dataclass
class Quorum:
    fakes: dict[NodeId, FakeController]
    servers: dict[NodeId, ControllerServer]

    @property
    def addresses(self) -> dict[NodeId, str]:
        return {node_id: server.address for node_id, server in self.servers.items()}

    def elect(self, leader: NodeId | None) -> None:
        for fake in self.fakes.values():
            fake.leader_id = leader

    def asked(self, kind: type) -> list[NodeId]:
        return [
            node_id
            for node_id, fake in self.fakes.items()
            for each in fake.asked
            if isinstance(each, kind)
        ]


async def serve(fake: FakeController, bind: str = "127.0.0.1:0") -> ControllerServer:
    unused = cast("Any", None)
    server = ControllerServer(
        bind,
        node_id=fake.node_id,
        cluster_id=CLUSTER,
        controller=fake,
        voters=unused,
        view=unused,
    )
    await server.start()
    return server


@asynccontextmanager
async def quorum(leader: NodeId | None = A) -> AsyncIterator[Quorum]:
    fakes = {node_id: FakeController(node_id, leader) for node_id in (A, B, C)}
    servers = {node_id: await serve(fake) for node_id, fake in fakes.items()}
    try:
        yield Quorum(fakes, servers)
    finally:
        for server in servers.values():
            await server.stop()


@asynccontextmanager
async def channel(
    controllers: Mapping[NodeId, str], **options: object
) -> AsyncIterator[HttpControllerChannel]:
    made = HttpControllerChannel(
        controllers=controllers,
        cluster_id=CLUSTER,
        **options,  # type: ignore[arg-type]
    )
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


async def refused(call: Awaitable[object]) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        await call
    return caught.value


REGISTER = RegisterBroker(
    broker_id=BROKER,
    cluster_id=CLUSTER,
    incarnation_id=IncarnationId("I" * 22),
    directory_id=DirectoryId("D" * 22),
    http="127.0.0.1:8082",
    peer="127.0.0.1:9082",
    unclean_ranges=(PartitionRange(TopicId("T" * 22), PartitionId(2), PartitionId(2)),),
    feature_level_max=1,
    min_insync_replicas=1,
)
HEARTBEAT = BrokerHeartbeat(broker_id=BROKER, broker_epoch=EPOCH, metadata_offset=MetadataOffset(5))
ALTER = AlterPartition(
    broker_id=BROKER,
    broker_epoch=EPOCH,
    topic_id=TopicId("T" * 22),
    partition=PartitionId(0),
    leader_epoch=LeaderEpoch(3),
    partition_epoch=PartitionEpoch(7),
    new_isr=(IsrMember(broker_id=BROKER, broker_epoch=EPOCH),),
)
ALTERS = AlterPartitions(attempts=(ALTER, ALTER))
CREATE = CreateTopic(
    name=TopicName("t"),
    topic_id=TopicId("T" * 22),
    partitions_count=2,
    replicas_assignments={0: (BROKER,), 1: (BROKER,)},
    configs={"retention.ms": "1", "flush": None},
)
DELETE = DeleteTopic(name=TopicName("t"))
DRAIN = DrainBroker(broker_id=BROKER, scope=DrainScope.LEADERS)
ELECT = ElectLeaders(election=Election.PREFERRED)
