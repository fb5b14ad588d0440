"""Brokers and controllers over HTTP on loopback: the channel against real listeners."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, TypeVar, cast

import aiohttp
import pytest
from aiohttp.abc import AbstractStreamWriter

from http_api.peer import controller_link
from http_api.peer import controller_paths as paths
from http_api.peer.controller_channel import HttpControllerChannel
from http_api.peer.controller_server import ControllerServer
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
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
    TopicIdPartition,
    TopicName,
)
from raft_metadata.records.admin import (
    AdminCommand,
    Altered,
    DrainBroker,
    Election,
    ElectLeaders,
    LeadersElected,
)
from raft_metadata.records.commands import (
    AlterPartition,
    AlterPartitions,
    AttemptAnswer,
    BrokerHeartbeat,
    BrokerRegistered,
    CreateTopic,
    DeleteTopic,
    FetchMetadata,
    FetchMetadataAnswer,
    HeartbeatAnswer,
    IsrMember,
    MetadataBatch,
    PartitionAltered,
    PartitionsAltered,
    RegisterBroker,
    TopicCreated,
    TopicDeleted,
)
from raft_metadata.records.records import BrokerState, DrainScope, TopicRecord
from raft_metadata.records.serde import from_json
from tests.support.tcp_relay import TcpRelay
from tests.support.waiting import until

CLUSTER = ClusterId("AAAAAAAAAAAAAAAAAAAAAA")
A, B, C = NodeId(101), NodeId(102), NodeId(103)
BROKER, EPOCH = BrokerId(1), BrokerEpoch(12)
_T = TypeVar("_T")


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

    async def _command(self, command: object, answer: _T) -> _T:
        self.asked.append(command)
        if self.gated:
            await self.open_gate.wait()
        if self.error is not None:
            raise self.error
        if self.leader_id != self.node_id:
            raise KafkaError(ErrorCode.NOT_CONTROLLER)
        return answer

    async def register_broker(self, command: RegisterBroker) -> BrokerRegistered:
        return await self._command(command, BrokerRegistered(broker_epoch=EPOCH))

    async def alter_partition(self, command: AlterPartition) -> PartitionAltered:
        answer = PartitionAltered(
            leader_epoch=command.leader_epoch,
            partition_epoch=PartitionEpoch(command.partition_epoch + 1),
            isr=tuple(each.broker_id for each in command.new_isr),
        )
        return await self._command(command, answer)

    async def alter_partitions(self, command: AlterPartitions) -> PartitionsAltered:
        refused = AttemptAnswer(error=ErrorCode.INELIGIBLE_REPLICA.number, message="no")
        return await self._command(
            command, PartitionsAltered(answers=(refused,) * len(command.attempts))
        )

    async def create_topic(self, command: CreateTopic) -> TopicCreated:
        answer = TopicCreated(
            topic_id=command.topic_id,
            partitions_count=command.partitions_count or 1,
            replication_factor=1,
            next_offset=MetadataOffset(9),
        )
        return await self._command(command, answer)

    async def delete_topic(self, command: DeleteTopic) -> TopicDeleted:
        answer = TopicDeleted(topic_id=TopicId("T" * 22), next_offset=MetadataOffset(10))
        return await self._command(command, answer)

    async def ask(self, command: AdminCommand[_T]) -> _T:
        answer: Any = Altered(next_offset=MetadataOffset(11))
        if isinstance(command, ElectLeaders):
            answer = LeadersElected(results=(), next_offset=MetadataOffset(12))
        return await self._command(command, cast(_T, answer))

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
        )

    def session_opened(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        self.sessions.append(("opened", broker_id, broker_epoch))

    def session_closed(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        self.sessions.append(("closed", broker_id, broker_epoch))

    def status(self) -> Mapping[str, object]:
        return {"node_id": self.node_id, "leader_id": self.leader_id, "by_id": {1: 2}}


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
    server = ControllerServer(bind, node_id=fake.node_id, cluster_id=CLUSTER, controller=fake)
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
    unclean_partitions=(TopicIdPartition(TopicId("T" * 22), PartitionId(2)),),
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


async def test_every_command_arrives_as_it_was_sent() -> None:
    async with quorum(leader=C) as nodes, channel(nodes.addresses) as controllers:
        assert (await controllers.register_broker(REGISTER)).broker_epoch == EPOCH
        assert controllers.believed_active == C, "the hint of NOT_CONTROLLER is followed"
        altered = await controllers.alter_partition(ALTER)
        assert altered.partition_epoch == 8
        assert altered.isr == (BROKER,)
        several = await controllers.alter_partitions(ALTERS)
        assert [answer.message for answer in several.answers] == ["no", "no"]
        assert (await controllers.create_topic(CREATE, 1_000)).partitions_count == 2
        assert (await controllers.delete_topic(DELETE, 1_000)).next_offset == 10
        fetch = FetchMetadata(
            cluster_id=CLUSTER, broker_id=BROKER, from_offset=MetadataOffset(0), max_wait_ms=100
        )
        answer = await controllers.fetch_metadata(B, fetch)
        assert answer.leader_id == C
        assert isinstance(answer.batches[0].records[0], TopicRecord)
        assert nodes.fakes[C].asked == [REGISTER, ALTER, ALTERS, CREATE, DELETE]
        assert nodes.fakes[B].asked == [fetch]


async def test_without_a_hint_each_controller_is_asked_in_turn_until_one_is_active() -> None:
    async with quorum(leader=None) as nodes, channel(nodes.addresses) as controllers:
        call = asyncio.get_running_loop().create_task(controllers.create_topic(CREATE, 3_000))
        await until(lambda: len(nodes.asked(CreateTopic)) >= 4)
        assert set(nodes.asked(CreateTopic)) == {A, B, C}
        nodes.elect(B)
        assert (await call).topic_id == CREATE.topic_id


async def test_no_active_controller_until_the_deadline_is_surely_not_written() -> None:
    async with quorum(leader=None) as nodes, channel(nodes.addresses) as controllers:
        error = await refused(controllers.delete_topic(DELETE, 300))
        assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.NOT_WRITTEN)
        assert len(nodes.asked(DeleteTopic)) < 30, "it pauses between rounds"


async def test_refusals_of_the_active_controller_reach_the_caller_at_once() -> None:
    async with quorum() as nodes, channel(nodes.addresses) as controllers:
        nodes.fakes[A].error = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "t is there")
        error = await refused(controllers.create_topic(CREATE, 1_000))
        assert error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert error.message == "t is there"
        assert error.outcome is Outcome.NOT_WRITTEN
        assert len(nodes.fakes[A].asked) == 1


async def test_rule_f1_a_delete_whose_answer_is_lost_is_unknown_and_ran_once() -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        relay.lose_answers = True
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            error = await refused(controllers.delete_topic(DELETE, 300))
            assert error.outcome is Outcome.UNKNOWN
            assert nodes.asked(DeleteTopic) == [A]


async def test_rule_f1_a_delete_whose_connection_breaks_is_unknown_and_ran_once() -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        nodes.fakes[A].gated = True
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            call = asyncio.get_running_loop().create_task(controllers.delete_topic(DELETE, 3_000))
            await until(lambda: nodes.asked(DeleteTopic) == [A])
            relay.cut()
            error = await refused(call)
            assert (error.code, error.outcome) == (ErrorCode.NETWORK_EXCEPTION, Outcome.UNKNOWN)
            assert nodes.asked(DeleteTopic) == [A]
            nodes.fakes[A].open_gate.set()


async def test_rule_f2_a_broken_kept_alive_connection_never_repeats_a_command() -> None:
    """aiohttp repeats idempotent methods on such a connection; a POST must surface instead."""
    async with (
        quorum() as nodes,
        TcpRelay(nodes.addresses[A]) as relay,
        channel(nodes.addresses, dial={A: relay.address}) as controllers,
    ):
        await controllers.delete_topic(DELETE, 1_000)
        assert relay.connections == 1
        nodes.fakes[A].gated = True
        call = asyncio.get_running_loop().create_task(controllers.delete_topic(DELETE, 3_000))
        await until(lambda: len(nodes.asked(DeleteTopic)) == 2)
        assert relay.connections == 1, "the kept-alive connection is used"
        relay.cut()
        assert (await refused(call)).outcome is Outcome.UNKNOWN
        assert nodes.asked(DeleteTopic) == [A, A]
        nodes.fakes[A].open_gate.set()


async def test_rule_f1_a_connection_found_closing_took_nothing_and_another_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A controller that is being stopped closes the connection that we have just picked."""
    closing = ["the first"]

    async def closed_under_us(
        self: aiohttp.BytesPayload, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if closing and writer.transport is not None:
            closing.pop()
            writer.transport.abort()
        await original(self, writer, content_length)

    original = controller_link._Command.write_with_length
    monkeypatch.setattr(controller_link._Command, "write_with_length", closed_under_us)
    async with quorum() as nodes, channel(nodes.addresses) as controllers:
        await controllers.ask(DRAIN, timeout_ms=2000)
        assert not closing
        assert nodes.asked(DrainBroker).count(A) == 1


async def test_rule_f1_a_create_is_repeated_under_the_same_topic_id() -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        nodes.fakes[A].gated = True
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            call = asyncio.get_running_loop().create_task(controllers.create_topic(CREATE, 3_000))
            await until(lambda: nodes.asked(CreateTopic) == [A])
            nodes.elect(B)
            relay.cut()
            assert (await call).topic_id == CREATE.topic_id
            assert nodes.fakes[B].asked == [CREATE]
            nodes.fakes[A].open_gate.set()


async def test_rule_m3_a_create_refused_after_an_unknown_attempt_stays_unknown() -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        nodes.fakes[A].gated = True
        nodes.fakes[B].error = KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR)
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            call = asyncio.get_running_loop().create_task(controllers.create_topic(CREATE, 3_000))
            await until(lambda: nodes.asked(CreateTopic) == [A])
            relay.cut()
            error = await refused(call)
            assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
            assert error.outcome is Outcome.UNKNOWN
            nodes.fakes[A].open_gate.set()


async def test_what_operators_ask_finds_the_active_controller_and_waits_for_one() -> None:
    async with quorum(leader=C) as nodes, channel(nodes.addresses) as controllers:
        assert (await controllers.ask(DRAIN, 1_000)).next_offset == 11
        assert nodes.fakes[C].asked == [DRAIN]
        assert (await controllers.ask(ELECT, 1_000)).next_offset == 12
        nodes.elect(None)
        asking = controllers.ask(DRAIN, 3_000)
        call = asyncio.get_running_loop().create_task(asking)
        await until(lambda: set(nodes.asked(DrainBroker)) == {A, B, C})
        nodes.elect(B)
        assert (await call).next_offset == 11
        nodes.elect(None)
        error = await refused(controllers.ask(DRAIN, 200))
        assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.NOT_WRITTEN)


@pytest.mark.parametrize("is_repeatable", [False, True])
async def test_rule_f1_what_operators_ask_is_repeated_only_where_it_says_so(
    is_repeatable: bool,
) -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        nodes.fakes[A].gated = True
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            command: Any = ELECT if is_repeatable else DRAIN
            call = asyncio.get_running_loop().create_task(controllers.ask(command, 3_000))
            await until(lambda: nodes.asked(type(command)) == [A])
            nodes.elect(B)
            relay.cut()
            if is_repeatable:
                assert (await call).next_offset == 12
                assert nodes.fakes[B].asked == [command]
            else:
                error = await refused(call)
                assert (error.code, error.outcome) == (ErrorCode.NETWORK_EXCEPTION, Outcome.UNKNOWN)
                assert nodes.asked(type(command)) == [A]
            nodes.fakes[A].open_gate.set()


async def test_rule_m3_alter_partition_is_one_attempt_to_one_controller() -> None:
    async with quorum(leader=B) as nodes, channel(nodes.addresses) as controllers:
        error = await refused(controllers.alter_partition(ALTER))
        assert (error.code, error.outcome) == (ErrorCode.NOT_CONTROLLER, Outcome.NOT_WRITTEN)
        assert nodes.asked(AlterPartition) == [A]
        await controllers.alter_partition(ALTER)
        assert nodes.asked(AlterPartition) == [A, B], "the next attempt knows better"


async def test_a_dead_or_black_holed_controller_is_passed_over() -> None:
    async with quorum(leader=C) as nodes, TcpRelay(nodes.addresses[B]) as relay:
        relay.lose_requests = True
        # Nothing is listening at A; B takes the connection and says nothing.
        addresses = {**nodes.addresses, A: "127.0.0.1:1", B: relay.address}
        async with channel(addresses, heartbeat_interval_ms=200) as controllers:
            began = asyncio.get_running_loop().time()
            with controllers.heartbeats(lambda _answer, _sent_ms: None) as beats:
                beats.say(HEARTBEAT, at_once=True)
                await until(lambda: controllers.believed_active == C)
            assert asyncio.get_running_loop().time() - began < 1.0
            assert set(nodes.asked(BrokerHeartbeat)) == {C}
            fetch = FetchMetadata(
                cluster_id=CLUSTER, broker_id=BROKER, from_offset=MetadataOffset(0), max_wait_ms=0
            )
            error = await refused(controllers.fetch_metadata(A, fetch))
            assert error.code is ErrorCode.NETWORK_EXCEPTION


async def test_nobody_to_connect_to_until_the_deadline_is_surely_not_written() -> None:
    """However little time is left for the last attempt: a doubt would be one for nothing."""
    silent = socket.create_server(("127.0.0.1", 0), backlog=0)
    held = [socket.create_connection(silent.getsockname())]
    for _ in range(8):  # its backlog is full: later connections wait for ever
        waiting = socket.socket()
        waiting.setblocking(False)
        waiting.connect_ex(silent.getsockname())
        held.append(waiting)
    address = f"127.0.0.1:{silent.getsockname()[1]}"
    async with channel({A: address, B: address}, connect_timeout_ms=30) as controllers:
        for timeout_ms in (40, 70, 95, 130, 155):
            error = await refused(controllers.ask(DRAIN, timeout_ms))
            assert error.outcome is Outcome.NOT_WRITTEN, (timeout_ms, error)
            assert error.code is ErrorCode.REQUEST_TIMED_OUT
    for each in [silent, *held]:
        each.close()


async def test_heartbeats_reach_every_controller_over_connections_of_their_own() -> None:
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(quorum(leader=B))
        relays = {
            node_id: await stack.enter_async_context(TcpRelay(address))
            for node_id, address in nodes.addresses.items()
        }
        dial = {node_id: relay.address for node_id, relay in relays.items()}
        controllers = await stack.enter_async_context(
            channel(dict.fromkeys(dial, "192.0.2.1:1"), dial=dial, heartbeat_interval_ms=1_000)
        )
        answers: list[HeartbeatAnswer] = []
        beats = stack.enter_context(
            controllers.heartbeats(lambda answer, _: answers.append(answer))
        )
        for number in range(1, 6):
            beats.say(HEARTBEAT, at_once=True)
            await until(lambda number=number: len(answers) == 3 * number)  # type: ignore[misc]
        assert sum(answer.is_active for answer in answers) == 5
        assert {relay.connections for relay in relays.values()} == {1}
        await controllers.delete_topic(DELETE, 1_000)
        assert relays[B].connections == 2, "nothing else goes over a heartbeat's connection"
        assert controllers.believed_active == B
        nodes.fakes[C].error = KafkaError(ErrorCode.STALE_BROKER_EPOCH)
        beats.say(HEARTBEAT, at_once=True)
        await until(lambda: C in controllers.heartbeat_refusals)
        assert controllers.heartbeat_refusals[C].code is ErrorCode.STALE_BROKER_EPOCH
        # A link that swallows everything costs one heartbeat, and is dialled anew when it heals.
        relays[A].lose_answers = True
        nodes.fakes[C].error = None
        beats.say(HEARTBEAT, at_once=True)
        await until(lambda: not controllers.heartbeat_refusals)
        relays[A].lose_answers = False
        del answers[:]
        await until(lambda: relays[A].connections == 2 and len(answers) >= 3)


async def test_a_session_tells_every_controller_when_the_broker_is_gone() -> None:
    async with quorum() as nodes:
        async with channel(nodes.addresses) as controllers:
            await controllers.register_broker(REGISTER)
            await until(lambda: all(len(fake.sessions) == 1 for fake in nodes.fakes.values()))
        opened, closed = ("opened", BROKER, EPOCH), ("closed", BROKER, EPOCH)
        await until(lambda: all(f.sessions == [opened, closed] for f in nodes.fakes.values()))


async def test_a_session_that_breaks_is_reopened_within_the_grace() -> None:
    async with (
        quorum() as nodes,
        TcpRelay(nodes.addresses[A]) as relay,
        channel(nodes.addresses, dial={A: relay.address}) as controllers,
    ):
        await controllers.register_broker(REGISTER)
        sessions = nodes.fakes[A].sessions
        await until(lambda: len(sessions) == 1)
        connections = relay.connections
        began = asyncio.get_running_loop().time()
        relay.cut()
        # Where the new connection overtakes the end of the old one, nothing is closed.
        await until(lambda: relay.connections > connections and len(sessions) != 2)
        assert asyncio.get_running_loop().time() - began < 0.25
        assert sessions[-1][0] == "opened"


async def test_sessions_that_overlap_close_once_the_last_is_gone() -> None:
    """A reconnect may arrive before the old connection is known to be broken."""
    fake = FakeController(A, A)
    server = await serve(fake)
    headers = {paths.CLUSTER_HEADER: CLUSTER}
    url = f"http://{server.address}{paths.SESSION}?broker_id=1&broker_epoch=12"
    never = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"\n"
        await never.wait()

    async with aiohttp.ClientSession() as client:
        first = await client.post(url, data=body(), headers=headers)
        second = await client.post(url, data=body(), headers=headers)
        assert fake.sessions == [("opened", 1, 12)]
        first.close()
        third = await client.post(url, data=body(), headers=headers)
        await asyncio.sleep(0.05)
        assert fake.sessions == [("opened", 1, 12)]
        second.close()
        third.close()
        await until(lambda: fake.sessions == [("opened", 1, 12), ("closed", 1, 12)])
    await server.stop()


async def test_a_stopping_controller_answers_long_polls_and_closes_sessions_at_once() -> None:
    async with quorum() as nodes, channel(nodes.addresses) as controllers:
        await controllers.register_broker(REGISTER)
        await until(lambda: len(nodes.fakes[B].sessions) == 1)
        fetch = FetchMetadata(
            cluster_id=CLUSTER, broker_id=BROKER, from_offset=MetadataOffset(99), max_wait_ms=9_000
        )
        poll = asyncio.get_running_loop().create_task(controllers.fetch_metadata(B, fetch))
        await until(lambda: nodes.asked(FetchMetadata) == [B])
        async with asyncio.timeout(1.5):
            await nodes.servers[B].stop()
        assert (await refused(poll)).code is ErrorCode.METADATA_STALE_SOURCE
        assert nodes.fakes[B].sessions == [("opened", BROKER, EPOCH)], "a judge that leaves is mute"


async def test_many_long_polls_wait_side_by_side() -> None:
    async with quorum() as nodes, channel(nodes.addresses) as controllers:
        fetch = FetchMetadata(
            cluster_id=CLUSTER, broker_id=BROKER, from_offset=MetadataOffset(99), max_wait_ms=300
        )
        polls = [controllers.fetch_metadata(A, fetch) for _ in range(50)]
        async with asyncio.timeout(2):
            answers = await asyncio.gather(*polls)
        assert len(answers) == 50


async def test_a_large_answer_is_decoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 MB of a snapshot would else hold a broker's loop for half a second."""
    threads: list[int] = []

    def noted(body: bytes, kind: type[_T]) -> _T:
        threads.append(threading.get_ident())
        return from_json(body, kind)

    monkeypatch.setattr(controller_link, "from_json", noted)
    fetch = FetchMetadata(
        cluster_id=CLUSTER, broker_id=BROKER, from_offset=MetadataOffset(0), max_wait_ms=0
    )
    async with quorum() as nodes, channel(nodes.addresses) as controllers:
        await controllers.fetch_metadata(A, fetch)
        nodes.fakes[A].records = 3_000
        answer = await controllers.fetch_metadata(A, fetch)
        assert len(answer.batches[0].records) == 3_000
        here = threading.get_ident()
        assert [thread == here for thread in threads] == [True, False]


async def test_another_cluster_or_addressee_is_refused() -> None:
    async with quorum() as nodes:
        foreign = HttpControllerChannel(controllers=nodes.addresses, cluster_id=ClusterId("B" * 22))
        await foreign.start()
        error = await refused(foreign.delete_topic(DELETE, 500))
        assert error.code is ErrorCode.INCONSISTENT_CLUSTER_ID
        with foreign.heartbeats(lambda _answer, _sent_ms: None) as beats:
            beats.say(HEARTBEAT, at_once=True)
            await until(lambda: set(foreign.heartbeat_refusals) == {A, B, C})
        await foreign.stop()
        async with channel({B: nodes.addresses[A]}) as crossed:
            error = await refused(crossed.delete_topic(DELETE, 500))
            assert error.code is ErrorCode.INVALID_REQUEST
            assert "controller 101" in error.message
        assert nodes.asked(object) == []


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (paths.REGISTER_BROKER, b"", 400),
        (paths.REGISTER_BROKER, b"{}", 400),
        (paths.HEARTBEAT, b"\x80\x04\x95\x1e", 400),
        (paths.HEARTBEAT, b"[" * 100_000, 400),
        (paths.HEARTBEAT, b'{"broker_id":"x","broker_epoch":1,"metadata_offset":2}', 400),
        (paths.CREATE_TOPIC, BytesIO(b"x" * (paths.MAX_COMMAND_BYTES + 1)), 413),
        (paths.FETCH_METADATA, b"null", 400),
        (paths.SESSION, b"", 400),
        ("/controller/v1/none-such", b"{}", 404),
        (paths.STATUS, b"{}", 405),
    ],
)
async def test_hostile_bodies_are_refused_in_the_common_shape(
    path: str, body: bytes | BytesIO, status: int
) -> None:
    fake = FakeController(A, A)
    server = await serve(fake)
    async with aiohttp.ClientSession(headers={paths.CLUSTER_HEADER: CLUSTER}) as client:
        async with client.post(f"http://{server.address}{path}", data=body) as response:
            assert response.status == status
            answer = await response.json()
        assert set(answer) >= {"error", "name", "message", "outcome"}
        assert answer["outcome"] == "not_written"
        assert fake.asked == []
        async with client.get(f"http://{server.address}/healthz") as response:
            assert response.status == 200
    await server.stop()


async def test_hostile_bytes_do_not_stop_the_listener() -> None:
    fake = FakeController(A, A)
    server = await serve(fake)
    host, port = server.address.split(":")
    for data in (
        b"\x80\x04\x95\x1e\x00\x00\x00\x00",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"POST /controller/v1/heartbeat HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"POST /controller/v1/heartbeat HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        async with asyncio.timeout(3):
            assert b" 4" in await reader.readline()
        writer.close()
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://{server.address}/") as response,
    ):
        assert await response.json() == {}
    assert fake.asked == []
    await server.stop()


async def test_pages_say_who_leads() -> None:
    fake = FakeController(A, None)
    server = await serve(fake)
    async with aiohttp.ClientSession(f"http://{server.address}") as client:
        async with client.get("/readyz") as response:
            assert response.status == 503
            assert "[-]quorum" in await response.text()
        fake.leader_id = B
        async with client.get("/readyz") as response:
            assert response.status == 200
        async with client.get(paths.STATUS) as response:
            assert (await response.json())["leader_id"] == B
    await server.stop()


async def test_an_answer_nobody_can_read_is_unknown() -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(2_000)
        writer.write(answer)
        await writer.drain()
        writer.close()

    liar = await asyncio.start_server(lie, "127.0.0.1", 0)
    address = f"127.0.0.1:{liar.sockets[0].getsockname()[1]}"
    async with channel({A: address}) as controllers:
        for answer in (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
            b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n[]",
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 2\r\n\r\nno",
            b"HTTP/1.1 307 Temporary\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
            b"SSH-2.0-x\r\n",
        ):
            error = await refused(controllers.delete_topic(DELETE, 1_000))
            assert error.outcome is Outcome.UNKNOWN, answer
    liar.close()
