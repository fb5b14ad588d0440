"""The dialling end of a connection between brokers: requests under way, by number.

`TcpPeerChannel` owns the connections. A request is awaited by a task of its own (`request`), or its
answer goes to a function (`post`): those that are posted together leave as one write, and one timer
serves all of them.
"""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import TYPE_CHECKING, cast

from typing_extensions import override

from http_api.peer.frames import (
    FrameReader,
    FrameType,
    ProtocolViolationError,
    Refusal,
    Request,
    request_head,
)
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.ports import Answered, PeerRequest
    from http_api.peer.frames import Frame
    from raft_metadata.common.ids import BrokerId

ANSWER_GRACE_MS = 250
"""Time after the time-out in which an answer is still taken: the other side has the same time-out,
and then reports what the request left behind."""
SWEEP_STEP_S = 0.01
"""Longest delay of a posted request's time-out."""

_log = logging.getLogger("peer.channel")


class PostedCall:
    """`broker.ports.PeerCall`: a posted request under way. Owned by its connection."""

    __slots__ = ("answered", "deadline", "hastened", "owner", "sent_at", "timeout_ms")

    def __init__(
        self, owner: RpcConnection, answered: Answered, timeout_ms: int, sent_at: float
    ) -> None:
        self.owner = owner
        self.answered = answered
        self.timeout_ms = timeout_ms
        self.sent_at = sent_at
        self.deadline = sent_at + (timeout_ms + ANSWER_GRACE_MS) / 1000
        self.hastened = False

    def hasten(self, left_ms: int) -> None:
        deadline = asyncio.get_running_loop().time() + left_ms / 1000
        if deadline < self.deadline:
            self.deadline, self.hastened = deadline, True
            self.owner.schedule_sweep(deadline)


class ConnectionState(Enum):
    """The states of a connection; each may only be followed by one below it."""

    OPEN = "takes requests"
    RETIRED = "takes no new requests, and closes with its last answer"
    LOST = "every request was resolved"


class RpcConnection(asyncio.Protocol):
    """The dialling end of one connection on plane ``rpc``.

    Lifetime: from the accepted hello to the loss of the connection, which resolves every request
    still waiting.
    """

    def __init__(self, broker_id: BrokerId, max_frame_bytes: int, max_in_flight: int) -> None:
        self._broker_id = broker_id
        self._reader = FrameReader(
            frozenset({FrameType.ANSWER, FrameType.REFUSAL}), max_frame_bytes
        )
        self._max_in_flight = max_in_flight
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._posted: dict[int, PostedCall] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._sweep_at = 0.0
        self._next_id = 1
        self._transport: asyncio.Transport | None = None
        self._state = ConnectionState.OPEN
        self._lost_reason = "the connection closes"
        self._received_at = 0.0
        self.writable = asyncio.Event()
        self.writable.set()

    @property
    def usable(self) -> bool:
        """True if new requests may be written."""
        return (
            self._state is ConnectionState.OPEN
            and self._transport is not None
            and not self._transport.is_closing()
        )

    @property
    def room(self) -> int:
        """Number of further requests that may be under way."""
        return self._max_in_flight - len(self._waiting) - len(self._posted)

    async def request(self, kind: int, body: bytes, timeout_ms: int) -> bytes:
        """Write one request and await its answer, for ``timeout_ms`` and a little grace."""
        if not self.usable:
            raise unreachable(self._broker_id, self._lost_reason)
        if self.room <= 0:
            in_flight = len(self._waiting) + len(self._posted)
            raise KafkaError(
                ErrorCode.QUEUE_FULL,
                f"{in_flight} requests to broker {self._broker_id} are in flight",
                outcome=Outcome.NOT_WRITTEN,
            )
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        request_id = self._next_id
        self._next_id += 1
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[request_id] = answer
        sent_at = loop.time()
        # From here on the request may have been read by the other side (rule F1).
        self._transport.writelines([request_head(request_id, kind, timeout_ms, len(body)), body])
        patience_s = (timeout_ms + ANSWER_GRACE_MS) / 1000
        timer = loop.call_later(patience_s, self._expire, answer, timeout_ms, sent_at)
        try:
            return await answer
        finally:
            timer.cancel()
            del self._waiting[request_id]
            self._close_if_retired()

    def post(self, requests: Sequence[PeerRequest]) -> Sequence[PostedCall]:
        """Write these requests in one go; each is answered once, later. There must be `room`."""
        assert self._transport is not None
        sent_at = asyncio.get_running_loop().time()
        calls: dict[int, PostedCall] = {}
        pieces: list[bytes] = []
        for kind, body, timeout_ms, answered in requests:
            calls[self._next_id] = PostedCall(self, answered, timeout_ms, sent_at)
            pieces += (request_head(self._next_id, kind, timeout_ms, len(body)), body)
            self._next_id += 1
        # From here on the requests may have been read by the other side (rule F1).
        self._transport.writelines(pieces)
        self._posted |= calls
        self.schedule_sweep(min(call.deadline for call in calls.values()))
        return list(calls.values())

    def schedule_sweep(self, deadline: float) -> None:
        """Check posted requests for their time-outs at this loop time, or before."""
        if self._sweep is not None:
            if self._sweep_at <= deadline:
                return
            self._sweep.cancel()
        self._sweep_at = deadline
        self._sweep = asyncio.get_running_loop().call_at(deadline, self._expire_posted)

    def _expire_posted(self) -> None:
        """End posted requests whose time is over, with an unknown outcome."""
        self._sweep = None
        now = asyncio.get_running_loop().time()
        late = [(number, call) for number, call in self._posted.items() if call.deadline <= now]
        for number, _ in late:
            del self._posted[number]
        for _, call in late:
            call.answered(b"", self._timeout_error(call.timeout_ms))
            if not call.hastened:
                self._retire_if_silent(call.sent_at)
        if self._posted:
            soonest = min(call.deadline for call in self._posted.values())
            self.schedule_sweep(max(soonest, now + SWEEP_STEP_S))
        self._close_if_retired()

    def retire(self, reason: str) -> None:
        """Take no new requests; close once the last one has its answer."""
        if self._state is ConnectionState.OPEN:
            _log.info("peer connection retired broker=%d reason=%s", self._broker_id, reason)
            self._state = ConnectionState.RETIRED
        self._close_if_retired()

    def close(self, reason: str) -> None:
        """Close now; requests in flight end with an unknown outcome."""
        self._resolve_lost(reason)
        if self._transport is not None:
            self._transport.abort()

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop has classes of its own

    @override
    def data_received(self, data: bytes) -> None:
        self._received_at = asyncio.get_running_loop().time()
        try:
            frames = self._reader.feed(data)
        except ProtocolViolationError as error:
            _log.warning("peer connection closed broker=%d reason=%s", self._broker_id, error)
            self.close(str(error))
            return
        for frame in frames:
            self._resolve(frame)
        self._close_if_retired()

    def _resolve(self, frame: Frame) -> None:
        assert not isinstance(frame, Request)
        call = self._posted.pop(frame.request_id, None)
        if call is not None:
            if isinstance(frame, Refusal):
                call.answered(b"", frame.error)
            else:
                call.answered(frame.body, None)
            return
        waiting = self._waiting.get(frame.request_id)
        # The caller may have timed out or may have been cancelled.
        if waiting is None or waiting.done():
            return
        if isinstance(frame, Refusal):
            waiting.set_exception(frame.error)
        else:
            waiting.set_result(frame.body)

    @override
    def pause_writing(self) -> None:
        self.writable.clear()

    @override
    def resume_writing(self) -> None:
        self.writable.set()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._resolve_lost(str(exc) if exc else "closed by the other side")

    def _resolve_lost(self, reason: str) -> None:
        if self._state is ConnectionState.LOST:
            return
        self._state, self._lost_reason = ConnectionState.LOST, reason
        self.writable.set()
        if self._sweep is not None:
            self._sweep.cancel()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._connection_error(reason))
        posted, self._posted = self._posted, {}
        for call in posted.values():
            call.answered(b"", self._connection_error(reason))

    def _connection_error(self, reason: str) -> KafkaError:
        return KafkaError(
            ErrorCode.NETWORK_EXCEPTION,
            f"connection to broker {self._broker_id} lost: {reason}",
            outcome=Outcome.UNKNOWN,
        )

    def _timeout_error(self, timeout_ms: int) -> KafkaError:
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"broker {self._broker_id} did not answer within {timeout_ms} ms",
            outcome=Outcome.UNKNOWN,
        )

    def _expire(self, answer: asyncio.Future[bytes], timeout_ms: int, sent_at: float) -> None:
        if not answer.done():
            answer.set_exception(self._timeout_error(timeout_ms))
            self._retire_if_silent(sent_at)

    def _retire_if_silent(self, sent_at: float) -> None:
        if self._received_at < sent_at:
            # Perhaps a black hole: the next request dials anew, earlier ones may wait here.
            self.retire("silent")

    def _close_if_retired(self) -> None:
        idle = not self._waiting and not self._posted
        if self._state is ConnectionState.RETIRED and idle and self._transport is not None:
            # Not closed: what it has not sent would still arrive, long after its time-out (S12).
            self._transport.abort()


def unreachable(broker_id: BrokerId, reason: str) -> KafkaError:
    """Return the error for a request of which no byte was handed to a connection."""
    return KafkaError(
        ErrorCode.NETWORK_EXCEPTION,
        f"broker {broker_id} is not reachable: {reason}",
        outcome=Outcome.NOT_WRITTEN,
    )
