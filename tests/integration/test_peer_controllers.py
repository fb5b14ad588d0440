"""Brokers and controllers over HTTP on loopback: the channel against real listeners."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractStreamWriter

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import (
    MetadataOffset,
)
from raft_metadata.records.commands import (
    AlterPartitions,
    BrokerHeartbeat,
    CreateTopic,
    DeleteTopic,
    DrainBroker,
    FetchMetadata,
)
from raft_metadata.records.records import TopicRecord
from tests.support.doors.http import believed_active, call_before_commands
from tests.support.peer_controllers import (
    ALTERS,
    BROKER,
    CLUSTER,
    CREATE,
    DELETE,
    DRAIN,
    ELECT,
    EPOCH,
    HEARTBEAT,
    REGISTER,
    A,
    B,
    C,
    channel,
    quorum,
    refused,
)
from tests.support.tcp_relay import TcpRelay
from tests.support.waiting import until


async def test_every_command_arrives_as_it_was_sent() -> None:
    async with quorum(leader=C) as nodes, channel(nodes.addresses) as controllers:
        assert (await controllers.execute(REGISTER)).broker_epoch == EPOCH
        assert believed_active(controllers) == C, "the hint of NOT_CONTROLLER is followed"
        first, second = (await controllers.execute(ALTERS)).answers
        assert first.altered is not None
        assert (first.altered.partition_epoch, first.altered.isr) == (8, (BROKER,))
        assert second.message == "no"
        assert (await controllers.execute(CREATE, 1_000)).partitions_count == 2
        assert (await controllers.execute(DELETE, 1_000)).next_offset == 10
        fetch = FetchMetadata(
            cluster_id=CLUSTER, broker_id=BROKER, from_offset=MetadataOffset(0), max_wait_ms=100
        )
        answer = await controllers.fetch_metadata(B, fetch)
        assert answer.leader_id == C
        assert isinstance(answer.batches[0].records[0], TopicRecord)
        assert nodes.fakes[C].asked == [REGISTER, ALTERS, CREATE, DELETE]
        assert nodes.fakes[B].asked == [fetch]


async def test_without_a_hint_each_controller_is_asked_in_turn_until_one_is_active() -> None:
    async with quorum(leader=None) as nodes, channel(nodes.addresses) as controllers:
        call = asyncio.get_running_loop().create_task(controllers.execute(CREATE, 3_000))
        await until(lambda: len(nodes.asked(CreateTopic)) >= 4)
        assert set(nodes.asked(CreateTopic)) == {A, B, C}
        nodes.elect(B)
        assert (await call).topic_id == CREATE.topic_id


async def test_no_active_controller_until_the_deadline_is_surely_not_written() -> None:
    async with quorum(leader=None) as nodes, channel(nodes.addresses) as controllers:
        error = await refused(controllers.execute(DELETE, 300))
        assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.NOT_WRITTEN)
        assert len(nodes.asked(DeleteTopic)) < 30, "it pauses between rounds"


async def test_refusals_of_the_active_controller_reach_the_caller_at_once() -> None:
    async with quorum() as nodes, channel(nodes.addresses) as controllers:
        nodes.fakes[A].error = KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "t is there")
        error = await refused(controllers.execute(CREATE, 1_000))
        assert error.code is ErrorCode.TOPIC_ALREADY_EXISTS
        assert error.message == "t is there"
        assert error.outcome is Outcome.NOT_WRITTEN
        assert len(nodes.fakes[A].asked) == 1


async def test_rule_f1_a_delete_whose_answer_is_lost_is_unknown_and_ran_once() -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        relay.lose_answers = True
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            error = await refused(controllers.execute(DELETE, 300))
            assert error.outcome is Outcome.UNKNOWN
            assert nodes.asked(DeleteTopic) == [A]


async def test_rule_f1_a_delete_whose_connection_breaks_is_unknown_and_ran_once() -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        nodes.fakes[A].gated = True
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            call = asyncio.get_running_loop().create_task(controllers.execute(DELETE, 3_000))
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
        await controllers.execute(DELETE, 1_000)
        assert relay.connections == 1
        nodes.fakes[A].gated = True
        call = asyncio.get_running_loop().create_task(controllers.execute(DELETE, 3_000))
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

    def close_it(writer: AbstractStreamWriter) -> None:
        if closing and writer.transport is not None:
            closing.pop()
            writer.transport.abort()

    call_before_commands(monkeypatch, close_it)
    async with quorum() as nodes, channel(nodes.addresses) as controllers:
        await controllers.execute(DRAIN, timeout_ms=2000)
        assert not closing
        assert nodes.asked(DrainBroker).count(A) == 1


async def test_rule_f1_a_create_is_repeated_under_the_same_topic_id() -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        nodes.fakes[A].gated = True
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            call = asyncio.get_running_loop().create_task(controllers.execute(CREATE, 3_000))
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
            call = asyncio.get_running_loop().create_task(controllers.execute(CREATE, 3_000))
            await until(lambda: nodes.asked(CreateTopic) == [A])
            relay.cut()
            error = await refused(call)
            assert error.code is ErrorCode.INVALID_REPLICATION_FACTOR
            assert error.outcome is Outcome.UNKNOWN
            nodes.fakes[A].open_gate.set()


async def test_an_operators_request_finds_the_active_controller_or_waits_for_one() -> None:
    async with quorum(leader=C) as nodes, channel(nodes.addresses) as controllers:
        assert (await controllers.execute(DRAIN, 1_000)).next_offset == 11
        assert nodes.fakes[C].asked == [DRAIN]
        assert (await controllers.execute(ELECT, 1_000)).next_offset == 12
        nodes.elect(None)
        asking = controllers.execute(DRAIN, 3_000)
        call = asyncio.get_running_loop().create_task(asking)
        await until(lambda: set(nodes.asked(DrainBroker)) == {A, B, C})
        nodes.elect(B)
        assert (await call).next_offset == 11
        nodes.elect(None)
        error = await refused(controllers.execute(DRAIN, 200))
        assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.NOT_WRITTEN)


@pytest.mark.parametrize("is_repeatable", [False, True])
async def test_rule_f1_what_operators_ask_is_repeated_only_where_it_says_so(
    is_repeatable: bool,
) -> None:
    async with quorum() as nodes, TcpRelay(nodes.addresses[A]) as relay:
        nodes.fakes[A].gated = True
        async with channel(nodes.addresses, dial={A: relay.address}) as controllers:
            command: Any = ELECT if is_repeatable else DRAIN
            call = asyncio.get_running_loop().create_task(controllers.execute(command, 3_000))
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


async def test_rule_m3_alter_partitions_goes_once_to_one_controller() -> None:
    async with quorum(leader=B) as nodes, channel(nodes.addresses) as controllers:
        error = await refused(controllers.execute(ALTERS))
        assert (error.code, error.outcome) == (ErrorCode.NOT_CONTROLLER, Outcome.NOT_WRITTEN)
        assert nodes.asked(AlterPartitions) == [A]
        await controllers.execute(ALTERS)
        assert nodes.asked(AlterPartitions) == [A, B], "the next attempt knows better"


async def test_a_dead_or_black_holed_controller_is_passed_over() -> None:
    async with quorum(leader=C) as nodes, TcpRelay(nodes.addresses[B]) as relay:
        relay.lose_requests = True
        # Nothing is listening at A; B takes the connection and says nothing.
        addresses = {**nodes.addresses, A: "127.0.0.1:1", B: relay.address}
        async with channel(addresses, heartbeat_interval_ms=200) as controllers:
            began = asyncio.get_running_loop().time()
            with controllers.heartbeats(lambda _answer, _sent_ms: None) as beats:
                beats.set_content(HEARTBEAT, at_once=True)
                await until(lambda: believed_active(controllers) == C)
            assert asyncio.get_running_loop().time() - began < 1.0
            assert set(nodes.asked(BrokerHeartbeat)) == {C}
            fetch = FetchMetadata(
                cluster_id=CLUSTER, broker_id=BROKER, from_offset=MetadataOffset(0), max_wait_ms=0
            )
            error = await refused(controllers.fetch_metadata(A, fetch))
            assert error.code is ErrorCode.NETWORK_EXCEPTION


async def test_a_command_without_any_connection_until_its_deadline_is_surely_not_written() -> None:
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
            error = await refused(controllers.execute(DRAIN, timeout_ms))
            assert error.outcome is Outcome.NOT_WRITTEN, (timeout_ms, error)
            assert error.code is ErrorCode.REQUEST_TIMED_OUT
    for each in [silent, *held]:
        each.close()
