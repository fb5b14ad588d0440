"""Requests between brokers that no task waits for: written together, each answered alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from broker.ports import PeerCall, PeerRequest
from http_api.peer.peer_channel import TcpPeerChannel
from http_api.peer.peer_server import PeerLimits
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from tests.support.doors.http import transport_to
from tests.support.peer_rpc import DIRECT, ECHO, TWO, WAIT, Services, channel, refused, serving
from tests.support.tcp_relay import TcpRelay
from tests.support.waiting import until

NOT_LEADER = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "leader=3", outcome=Outcome.NOT_WRITTEN)


class Posted:
    """Posts, and notes each answer."""

    def __init__(self, peers: TcpPeerChannel, address: str) -> None:
        self.peers = peers
        self.address = address
        self.told: list[tuple[int, bytes, KafkaError | None]] = []

    async def connect(self) -> None:
        await self.peers.call(TWO, self.address, ECHO, b"warm", 1_000)

    def post(
        self, *bodies: bytes, kind: int = DIRECT, timeout_ms: int = 5_000
    ) -> Sequence[PeerCall] | None:
        def told(number: int) -> PeerRequest:
            def answered(body: bytes, error: KafkaError | None) -> None:
                self.told.append((number, body, error))

            return PeerRequest(kind, bodies[number], timeout_ms, answered)

        return self.peers.post(TWO, self.address, [told(number) for number in range(len(bodies))])

    async def until_told(self, count: int) -> list[tuple[int, bytes, KafkaError | None]]:
        await until(lambda: len(self.told) >= count)
        return self.told

    async def only_error(self) -> KafkaError:
        [(_, _, error)] = await self.until_told(1)
        assert error is not None
        return error


async def test_each_of_those_posted_together_is_answered_alone_and_in_any_order() -> None:
    """A slow partition holds up nobody else's answer."""
    services = Services()
    async with serving(services) as server, channel() as peers:
        posted = Posted(peers, server.address)
        await posted.connect()
        assert posted.post(b"slow", b"quick", b"bad") is not None
        await until(lambda: len(services.directly) == 3)
        assert [body for body, _ in services.directly] == [b"slow", b"quick", b"bad"], "in order"
        (_, slow), (_, quick), (_, bad) = services.directly
        quick(b"q", None)
        bad(b"", NOT_LEADER)
        told = await posted.until_told(2)
        assert [(number, body) for number, body, _ in told] == [(1, b"q"), (2, b"")]
        assert told[1][2] is not None
        assert (told[1][2].code, told[1][2].outcome) == (NOT_LEADER.code, Outcome.NOT_WRITTEN)
        slow(b"s", None)
        assert (await posted.until_told(3))[2] == (0, b"s", None)


async def test_any_kind_may_be_posted_and_bodies_of_any_size() -> None:
    async with serving(Services()) as server, channel() as peers:
        posted = Posted(peers, server.address)
        await posted.connect()
        bodies = [b"x" * size for size in (0, 1, 100_000, 3_000_000)]
        assert posted.post(*bodies, kind=ECHO) is not None
        told = await posted.until_told(4)
        assert sorted(told) == [(number, body, None) for number, body in enumerate(bodies)]


async def test_rule_f1_what_no_connection_takes_now_was_not_done() -> None:
    services = Services()
    async with (
        serving(services) as server,
        channel(max_frame_bytes=1_000, max_requests_in_flight=2) as peers,
    ):
        posted = Posted(peers, server.address)
        assert posted.post(b"x") is None, "nobody has dialled"
        await posted.connect()
        assert posted.post(b"x", b"y" * 1_000) is None, "one is too large"
        assert posted.post(b"x", b"y", b"z") is None, "too many"
        assert posted.post(b"x", b"y") is not None
        error = await refused(peers.call(TWO, server.address, ECHO, b"", 1_000))
        assert (error.code, error.outcome) == (ErrorCode.QUEUE_FULL, Outcome.NOT_WRITTEN)
        await until(lambda: len(services.directly) == 2)
        assert not posted.told


async def test_rule_f1_a_posted_request_whose_answer_is_lost_has_an_unknown_outcome() -> None:
    services = Services()
    async with serving(services) as server, TcpRelay(server.address) as relay, channel() as peers:
        posted = Posted(peers, relay.address)
        await posted.connect()
        relay.lose_answers = True
        assert posted.post(b"once", timeout_ms=100) is not None
        await until(lambda: len(services.directly) == 1)
        services.directly[0][1](b"", None)
        error = await posted.only_error()
        assert (error.code, error.outcome) == (ErrorCode.REQUEST_TIMED_OUT, Outcome.UNKNOWN)
        relay.lose_answers = False
        assert posted.post(b"more") is None, "a silent connection is not used again"
        await posted.connect()
        assert relay.connections == 2


@pytest.mark.parametrize("by", ["cut", "stop"])
async def test_rule_f1_posted_requests_of_a_lost_connection_are_unknown_once(by: str) -> None:
    services = Services()
    async with serving(services) as server, TcpRelay(server.address) as relay, channel() as peers:
        posted = Posted(peers, relay.address)
        await posted.connect()
        assert posted.post(b"a", b"b", timeout_ms=60) is not None
        await until(lambda: len(services.directly) == 2)
        if by == "cut":
            relay.cut()
        else:
            await peers.stop()
        told = await posted.until_told(2)
        assert {error and error.outcome for _, _, error in told} == {Outcome.UNKNOWN}
        for _, answered in services.directly:
            answered(b"late", None)
        await asyncio.sleep(0.4)  # their own time is over, too
        assert len(posted.told) == 2


async def test_a_posted_request_is_waited_for_no_longer_than_it_is_told() -> None:
    services = Services()
    async with serving(services) as server, channel() as peers:
        posted = Posted(peers, server.address)
        await posted.connect()
        calls = posted.post(b"a", b"b")
        assert calls is not None
        calls[1].hasten(60_000)
        calls[1].hasten(20)
        [(number, _, error)] = await posted.until_told(1)
        assert number == 1
        assert error is not None
        assert error.outcome is Outcome.UNKNOWN
        services.directly[1][1](b"late", None)
        services.directly[0][1](b"good", None)
        assert (await posted.until_told(2))[1] == (0, b"good", None)
        assert len(posted.told) == 2
        assert posted.post(b"c") is not None, "the connection was not suspected of anything"


async def test_those_that_are_answered_directly_count_as_under_way_until_then() -> None:
    services = Services()
    limits = PeerLimits(max_requests_in_flight=2, max_bytes_in_flight=1_000)
    async with serving(services, limits=limits) as server, channel() as peers:
        posted = Posted(peers, server.address)
        await posted.connect()
        assert posted.post(b"a", b"b" * 900, b"c") is not None
        error = await posted.only_error()
        assert (error.code, error.outcome) == (ErrorCode.QUEUE_FULL, Outcome.NOT_WRITTEN)
        for body, answered in services.directly:
            answered(body, None)
        await posted.until_told(3)
        assert posted.post(b"d" * 1_001) is not None
        assert (await posted.until_told(4))[3][2] is not None, "over the bytes"
        assert posted.post(b"e") is not None
        await until(lambda: len(services.directly) == 3)


async def test_a_direct_answer_that_fails_or_comes_twice_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    services = Services()
    async with serving(services) as server, channel() as peers:
        posted = Posted(peers, server.address)
        await posted.connect()
        assert posted.post(b"broken") is not None
        error = await posted.only_error()
        assert (error.code, error.outcome) == (ErrorCode.UNKNOWN_SERVER_ERROR, Outcome.UNKNOWN)
        assert posted.post(b"a") is not None
        await until(lambda: len(services.directly) == 1)
        for _ in range(2):
            services.directly[0][1](b"x", None)
        await posted.until_told(2)
        assert "answered twice" in caplog.text
        assert posted.post(b"b") is not None
        await until(lambda: len(services.directly) == 2)


async def test_a_broker_that_does_not_read_gets_direct_answers_once_it_does() -> None:
    """Answers wait here, at most as many as were under way; then both kinds of requests go on."""
    services = Services()
    async with serving(services) as server, channel() as peers:
        posted = Posted(peers, server.address)
        await posted.connect()
        count, answer = 40, b"x" * 500_000
        assert posted.post(*[b"a"] * count) is not None
        await until(lambda: len(services.directly) == count)
        transport = transport_to(peers, TWO)
        transport.pause_reading()
        for _, answered in services.directly:
            answered(answer, None)
        await asyncio.sleep(0.05)
        assert len(posted.told) < count
        transport.resume_reading()
        told = await posted.until_told(count)
        assert [number for number, *_ in told] == list(range(count))
        waiting = asyncio.get_running_loop().create_task(
            peers.call(TWO, server.address, WAIT, b"w", 1_000)
        )
        services.release.set()
        assert await waiting == b"w"
