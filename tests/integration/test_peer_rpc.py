"""Requests between brokers over real sockets on loopback."""

from __future__ import annotations

import asyncio
import random
import struct

import orjson
import pytest

from http_api.peer.frames import (
    MAX_FRAME_BYTES,
    Hello,
    Plane,
    encode_hello,
    request_head,
    take_hello,
)
from http_api.peer.peer_channel import TcpPeerChannel
from http_api.peer.peer_server import PeerLimits
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import BrokerId, ClusterId
from tests.support.peer_rpc import (
    BREAK,
    CLUSTER,
    ECHO,
    FAIL,
    LATE,
    ONE,
    SWELL,
    TWO,
    WAIT,
    Services,
    channel,
    refused,
    serving,
)
from tests.support.tcp_relay import TcpRelay
from tests.support.waiting import until


async def test_answers_come_back_to_their_requests_in_any_order() -> None:
    services = Services()
    async with serving(services) as server, channel() as peers:
        slow = asyncio.get_running_loop().create_task(
            peers.call(TWO, server.address, WAIT, b"slow", 5_000)
        )
        await until(lambda: len(services.ran) == 1)
        bodies = [b"x" * size for size in (0, 1, 100, 70_000, 3_000_000)]
        answers = await asyncio.gather(
            *(peers.call(TWO, server.address, ECHO, body, 5_000) for body in bodies)
        )
        assert answers == bodies
        assert not slow.done()
        services.release.set()
        assert await slow == b"slow"


async def test_errors_cross_with_code_message_and_outcome() -> None:
    async with serving(Services()) as server, channel() as peers:
        error = await refused(peers.call(TWO, server.address, FAIL, b"", 1_000))
        assert error.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert error.message == "leader=3 epoch=7"
        assert error.outcome is Outcome.NOT_WRITTEN
        error = await refused(peers.call(TWO, server.address, BREAK, b"", 1_000))
        assert error.code is ErrorCode.UNKNOWN_SERVER_ERROR
        assert error.outcome is Outcome.UNKNOWN


async def test_rule_f1_no_connection_is_surely_not_written() -> None:
    async with serving(Services()) as server:
        address = server.address
    async with channel() as peers:
        for _ in range(3):
            error = await refused(peers.call(TWO, address, ECHO, b"", 1_000))
            assert error.code is ErrorCode.NETWORK_EXCEPTION
            assert error.outcome is Outcome.NOT_WRITTEN


async def test_rule_f1_a_lost_answer_is_unknown_and_the_request_ran_once() -> None:
    services = Services()
    async with serving(services) as server, TcpRelay(server.address) as relay, channel() as peers:
        assert await peers.call(TWO, relay.address, ECHO, b"warm", 1_000) == b"warm"
        relay.lose_answers = True
        error = await refused(peers.call(TWO, relay.address, ECHO, b"once", 200))
        assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.UNKNOWN)
        relay.lose_answers = False
        assert await peers.call(TWO, relay.address, ECHO, b"after", 1_000) == b"after"
        assert [body for _, body in services.ran] == [b"warm", b"once", b"after"]
        assert relay.connections == 2, "a silent connection is not used again"


async def test_the_other_side_that_waits_out_the_time_out_is_still_heard() -> None:
    async with serving(Services()) as server, channel() as peers:
        assert await peers.call(TWO, server.address, LATE, b"200", 200) == b"200"


async def test_rule_f1_a_connection_cut_after_the_write_is_unknown() -> None:
    services = Services()
    async with serving(services) as server, TcpRelay(server.address) as relay, channel() as peers:
        call = asyncio.get_running_loop().create_task(
            peers.call(TWO, relay.address, WAIT, b"w", 5_000)
        )
        await until(lambda: len(services.ran) == 1)
        relay.cut()
        error = await refused(call)
        assert (error.code, error.outcome) == (ErrorCode.NETWORK_EXCEPTION, Outcome.UNKNOWN)
        services.release.set()
        assert await peers.call(TWO, relay.address, ECHO, b"again", 1_000) == b"again"
        assert len(services.ran) == 2


async def test_a_black_hole_costs_the_connect_timeout_once_for_all_callers() -> None:
    async with serving(Services()) as server, TcpRelay(server.address) as relay:
        relay.lose_requests = True
        async with channel(connect_timeout_ms=150) as peers:
            began = asyncio.get_running_loop().time()
            errors = await asyncio.gather(
                *(refused(peers.call(TWO, relay.address, ECHO, b"", 2_000)) for _ in range(20))
            )
            assert asyncio.get_running_loop().time() - began < 1.0
            assert {each.outcome for each in errors} == {Outcome.NOT_WRITTEN}
            assert relay.connections == 1


async def test_a_caller_waits_no_longer_than_it_said() -> None:
    async with serving(Services()) as server, TcpRelay(server.address) as relay:
        relay.lose_requests = True
        async with channel(connect_timeout_ms=5_000) as peers:
            async with asyncio.timeout(1):
                error = await refused(peers.call(TWO, relay.address, ECHO, b"", 100))
            assert error.outcome is Outcome.NOT_WRITTEN


async def test_a_broker_that_comes_back_is_reached_again() -> None:
    services = Services()
    async with channel() as peers:
        async with serving(services) as server:
            address = server.address
            assert await peers.call(TWO, address, ECHO, b"1", 1_000) == b"1"
        assert (await refused(peers.call(TWO, address, ECHO, b"", 500))).code is (
            ErrorCode.NETWORK_EXCEPTION
        )
        async with serving(services, bind=address):
            assert await peers.call(TWO, address, ECHO, b"2", 1_000) == b"2"
        # Its address may be another one.
        async with serving(services) as server:
            assert await peers.call(TWO, server.address, ECHO, b"3", 1_000) == b"3"


async def test_an_eager_caller_of_a_dead_broker_is_slowed_down() -> None:
    async with TcpRelay("127.0.0.1:1") as relay, channel() as peers:
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() - began < 0.3:
            await refused(peers.call(TWO, relay.address, ECHO, b"", 1_000))
        assert relay.connections <= 5


async def test_the_dial_table_overrides_the_advertised_address() -> None:
    async with (
        serving(Services()) as server,
        TcpRelay(server.address) as relay,
        channel(dial={TWO: relay.address}) as peers,
    ):
        assert await peers.call(TWO, "192.0.2.1:9", ECHO, b"x", 1_000) == b"x"
        assert relay.bytes_to_target > 0


async def test_another_cluster_or_addressee_is_refused_with_the_reason() -> None:
    services = Services()
    async with serving(services) as server:
        foreign = TcpPeerChannel(broker_id=ONE, cluster_id=ClusterId("B" * 22))
        error = await refused(foreign.call(TWO, server.address, ECHO, b"", 1_000))
        assert error.code is ErrorCode.INCONSISTENT_CLUSTER_ID
        assert error.outcome is Outcome.NOT_WRITTEN
        await foreign.stop()
        async with channel() as peers:
            error = await refused(peers.call(BrokerId(3), server.address, ECHO, b"", 1_000))
            assert error.code is ErrorCode.INVALID_REQUEST
            assert "broker 2, not 3" in error.message
        assert services.ran == []


async def test_too_much_in_flight_is_refused_and_surely_not_run() -> None:
    services = Services()
    limits = PeerLimits(max_requests_in_flight=2, max_bytes_in_flight=1_000)
    async with serving(services, limits=limits) as server, channel() as peers:
        loop = asyncio.get_running_loop()
        waiting = [
            loop.create_task(peers.call(TWO, server.address, WAIT, b"", 5_000)) for _ in range(2)
        ]
        await until(lambda: len(services.ran) == 2)
        error = await refused(peers.call(TWO, server.address, ECHO, b"", 1_000))
        assert (error.code, error.outcome) == (ErrorCode.QUEUE_FULL, Outcome.NOT_WRITTEN)
        services.release.set()
        await asyncio.gather(*waiting)
        error = await refused(peers.call(TWO, server.address, ECHO, b"x" * 1_001, 1_000))
        assert error.code is ErrorCode.QUEUE_FULL
        assert await peers.call(TWO, server.address, ECHO, b"y", 1_000) == b"y"
        assert len(services.ran) == 3


async def test_requests_and_answers_over_the_frame_limit_are_refused_not_sent() -> None:
    services = Services()
    limits = PeerLimits(max_frame_bytes=1_000)
    async with (
        serving(services, limits=limits) as server,
        channel(max_frame_bytes=1_000) as peers,
    ):
        error = await refused(peers.call(TWO, server.address, ECHO, b"x" * 1_000, 1_000))
        assert (error.code, error.outcome) == (ErrorCode.MESSAGE_TOO_LARGE, Outcome.NOT_WRITTEN)
        assert services.ran == []
        assert len(await peers.call(TWO, server.address, ECHO, b"x" * 985, 1_000)) == 985
        error = await refused(peers.call(TWO, server.address, SWELL, b"x" * 900, 1_000))
        assert (error.code, error.outcome) == (ErrorCode.MESSAGE_TOO_LARGE, Outcome.UNKNOWN)


async def test_stop_ends_handlers_and_callers_hear_unknown() -> None:
    services = Services()
    async with channel() as peers:
        async with serving(services) as server:
            call = asyncio.get_running_loop().create_task(
                peers.call(TWO, server.address, WAIT, b"", 5_000)
            )
            await until(lambda: len(services.ran) == 1)
        assert services.cancelled == 1
        assert (await refused(call)).outcome is Outcome.UNKNOWN


async def test_a_cancelled_caller_leaves_the_connection_whole() -> None:
    services = Services()
    async with serving(services) as server, channel() as peers:
        call = asyncio.get_running_loop().create_task(
            peers.call(TWO, server.address, WAIT, b"late", 5_000)
        )
        await until(lambda: len(services.ran) == 1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        services.release.set()
        assert await peers.call(TWO, server.address, ECHO, b"x", 1_000) == b"x"


async def test_a_slow_reader_is_asked_no_more_until_it_reads() -> None:
    """Answers that nobody reads must not pile up in the server."""
    services = Services()
    async with serving(services) as server:
        host, port = server.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1_024)
        writer.write(
            hello() + b"".join(request(number, ECHO, b"x" * 900_000) for number in range(40))
        )
        await until(lambda: len(services.ran) >= 1)
        await asyncio.sleep(0.2)
        assert len(services.ran) < 40
        total = 0
        async with asyncio.timeout(10):
            while total < 40 * 900_000:
                total += len(await reader.read(1 << 20))
        assert len(services.ran) == 40
        writer.close()


def hello(cluster: str = CLUSTER, to: int = TWO, plane: Plane = Plane.RPC) -> bytes:
    return encode_hello(
        Hello(cluster_id=ClusterId(cluster), from_broker=ONE, to_broker=BrokerId(to), plane=plane)
    )


def request(number: int, kind: int, body: bytes) -> bytes:
    return request_head(number, kind, 1_000, len(body)) + body


async def say(address: str, data: bytes) -> bytes:
    """Send bytes to a listener and read what it says until it hangs up."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(3):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


PICKLE = b"\x80\x04\x95\x1e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94."


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        PICKLE,
        struct.pack(">I", len(PICKLE)) + PICKLE,
        b"QLPP\xff\xff" + b"{" * 65_535,
        b"QLPP\x00\x04null",
        b"QLPP\x00\x02[]",
        b"QLPP\x00\x04\x80\x04\x95\x1e",
        hello()[:6] + b"\xff" * 200,
        hello().replace(b'"version":1', b'"version":9'),
        hello().replace(b'"to":2', b'"to":"2'),
        hello(plane=Plane.RPC).replace(b"rpc", b"xyz"),
        hello() + struct.pack(">IBQ", MAX_FRAME_BYTES + 1, 1, 1),
        hello() + struct.pack(">IBQ", 0xFFFFFFFF, 1, 1) + b"x" * 1_000,
        hello() + struct.pack(">IBQ", 0, 1, 1),
        hello() + struct.pack(">IBQ", 9, 1, 1),
        hello() + struct.pack(">IBQ", 9, 2, 1),
        hello() + struct.pack(">IBQ", 100, 77, 1),
    ],
)
async def test_hostile_bytes_are_shown_the_door(data: bytes) -> None:
    services = Services()
    async with serving(services) as server:
        answer = await say(server.address, data)
        assert len(answer) < 1_000
        assert services.ran == []
        async with channel() as peers:
            assert await peers.call(TWO, server.address, ECHO, b"alive", 1_000) == b"alive"


async def test_random_bytes_never_stop_the_listener() -> None:
    chance = random.Random(20_261_121)
    services = Services()
    limits = PeerLimits(hello_timeout_ms=100)
    async with serving(services, limits=limits) as server:
        for _ in range(60):
            noise = chance.randbytes(chance.randrange(1, 2_000))
            prefix = chance.choice([b"", b"QLPP", b"QL", hello(), hello() + b"\x00\x00\x00"])
            host, port = server.address.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(prefix + noise)
            writer.close()
        async with channel() as peers:
            assert await peers.call(TWO, server.address, ECHO, b"alive", 1_000) == b"alive"


async def test_half_a_hello_is_closed_after_a_time() -> None:
    async with serving(Services(), limits=PeerLimits(hello_timeout_ms=50)) as server:
        assert await say(server.address, hello()[:20]) == b""
        assert await say(server.address, b"") == b""


async def test_the_answer_to_a_refused_hello_names_the_reason() -> None:
    async with serving(Services()) as server:
        received = bytearray(await say(server.address, hello(cluster="another")))
        body = take_hello(received)
        assert body is not None
        assert body["error"] == ErrorCode.INCONSISTENT_CLUSTER_ID.number
        assert orjson.dumps(body)
        assert b"another" in orjson.dumps(body)


async def test_connections_are_counted_and_bounded() -> None:
    limits = PeerLimits(max_connections=3)
    async with serving(Services(), limits=limits) as server:
        host, port = server.address.split(":")
        kept = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
        for _, writer in kept:
            writer.write(hello())
        for reader, _ in kept:
            assert await reader.read(4) == b"QLPP"
        assert await say(server.address, hello()) == b""
        kept.pop()[1].close()
        async with channel() as peers, asyncio.timeout(5):
            while True:
                try:
                    assert await peers.call(TWO, server.address, ECHO, b"x", 1_000) == b"x"
                    break
                except KafkaError:
                    continue
        for _, writer in kept:
            writer.close()


async def test_a_lying_server_ends_only_its_own_connection() -> None:
    """Bytes that are no answer close the connection; the request is then unknown."""

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(b'QLPP\x00\x0b{"ok":true}')
        await reader.read(1_000)
        writer.write(struct.pack(">IBQ", 0xFFFFFFF0, 2, 1) + b"x" * 100)
        await reader.read()
        writer.close()

    liar = await asyncio.start_server(lie, "127.0.0.1", 0)
    address = f"127.0.0.1:{liar.sockets[0].getsockname()[1]}"
    async with channel() as peers:
        error = await refused(peers.call(TWO, address, ECHO, b"", 2_000))
        assert error.code is ErrorCode.NETWORK_EXCEPTION
        assert error.outcome is Outcome.UNKNOWN
    liar.close()
