"""Brokers and controllers over real sockets: heartbeats, sessions, long polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp

from http_api.peer import controller_paths as paths
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import (
    MetadataOffset,
)
from raft_metadata.records.commands import (
    FetchMetadata,
    HeartbeatAnswer,
)
from tests.support.doors.http import believed_active, heartbeat_refusals
from tests.support.peer_controllers import (
    BROKER,
    CLUSTER,
    DELETE,
    EPOCH,
    HEARTBEAT,
    REGISTER,
    A,
    B,
    C,
    FakeController,
    channel,
    quorum,
    refused,
    serve,
)
from tests.support.tcp_relay import TcpRelay
from tests.support.waiting import until


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
            beats.set_content(HEARTBEAT, at_once=True)
            await until(lambda number=number: len(answers) == 3 * number)  # type: ignore[misc]
        assert sum(answer.is_active for answer in answers) == 5
        assert {relay.connections for relay in relays.values()} == {1}
        await controllers.execute(DELETE, 1_000)
        assert relays[B].connections == 2, "nothing else goes over a heartbeat's connection"
        assert believed_active(controllers) == B
        nodes.fakes[C].error = KafkaError(ErrorCode.STALE_BROKER_EPOCH)
        beats.set_content(HEARTBEAT, at_once=True)
        await until(lambda: C in heartbeat_refusals(controllers))
        assert heartbeat_refusals(controllers)[C].code is ErrorCode.STALE_BROKER_EPOCH
        # A link that swallows everything costs one heartbeat, and is dialled anew when it heals.
        relays[A].lose_answers = True
        nodes.fakes[C].error = None
        beats.set_content(HEARTBEAT, at_once=True)
        await until(lambda: not heartbeat_refusals(controllers))
        relays[A].lose_answers = False
        del answers[:]
        await until(lambda: relays[A].connections == 2 and len(answers) >= 3)


async def test_a_session_tells_every_controller_when_the_broker_is_gone() -> None:
    async with quorum() as nodes:
        async with channel(nodes.addresses) as controllers:
            await controllers.execute(REGISTER)
            await until(lambda: all(len(fake.sessions) == 1 for fake in nodes.fakes.values()))
        opened, closed = ("opened", BROKER, EPOCH), ("closed", BROKER, EPOCH)
        await until(lambda: all(f.sessions == [opened, closed] for f in nodes.fakes.values()))


async def test_a_session_that_breaks_is_reopened_within_the_grace() -> None:
    async with (
        quorum() as nodes,
        TcpRelay(nodes.addresses[A]) as relay,
        channel(nodes.addresses, dial={A: relay.address}) as controllers,
    ):
        await controllers.execute(REGISTER)
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
        await controllers.execute(REGISTER)
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
