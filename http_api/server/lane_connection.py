"""A connection of the public listener, with the fast lane in front of aiohttp's request handling.

aiohttp's C parser reads every request. A request that `FastLane` can answer is answered from here:
without a task and without request and response objects, which cost more than an append. Every other
request stays in the same queue for aiohttp's handler. Requests of a connection are answered in
their order: the lane takes one only while aiohttp's handler of the connection waits for work, and
that handler is woken only while the lane is idle.

A client sends the same head many times. If the head equals, byte for byte, one that was parsed
before, and only its body follows, the request is not parsed again, because its meaning is known.
The body may arrive in packets of its own, as Python's clients send it. Such a request is given to
the parser only if aiohttp must handle it after all.

A connection is closed if it sends nothing at first, or begins a head and does not end it in time.
Only what arrives while no request is under way counts as a head: an idle connection is kept for
``keepalive_timeout``, and what is sent ahead is looked at when its turn comes.

Beside one line of `app.py`, this is the one place that uses aiohttp's private names (aiohttp is
pinned; `PRIVATE_NAMES` is checked at import). The switch is ``http_fast_lane`` of config.toml;
contract tests run either way.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import _ErrInfo
from typing_extensions import override

from http_api.server.answers import EnvelopeRequestHandler
from http_api.server.connection_limits import ReaderWatch

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

    from aiohttp.http_parser import RawRequestMessage

    from broker.config import BrokerTimeouts
    from http_api.server.access_log import AccessLog, RouteLog
    from http_api.server.fast_lane import FastLane, KnownHead

_log = logging.getLogger("http_api.server")

ARRIVING_BODY_BYTES_MAX = 4 << 20
"""Longest body that waits here for its end; aiohttp reads a longer one. Bounds a connection's
memory."""
ARRIVING_BODY_S_MAX = 5.0
"""Longest wait for a body's end; then aiohttp reads it, where another limit holds."""
_UNKNOWN: Final = -1
_STATUS_AT: Final = len("HTTP/1.1 ")
_SUCCESS: Final = ord("2")
"""First character of the status of an answer that only `unlogged_ms` may log."""
PRIVATE_NAMES: Final = {
    web.RequestHandler: (
        "_buffer_paused", "_close", "_force_close", "_handle_request", "_handler_waiter",
        "_keepalive_handle", "_keepalive_timeout",
        "_max_msg_queue_size", "_message_tail", "_messages", "_msg_queue_resume_size",
        "_next_keepalive_close_time", "_parser", "_pause_reading_for_buffer",
        "_pause_transport_reading", "_paused", "_payload_parser", "_process_keepalive",
        "_request_count", "_request_in_progress", "_resume_reading_if_drained",
        "_resume_transport_reading", "_upgraded", "_waiter",
    ),
    StreamReader: ("_buffer",),
    BaseProtocol: (),
    web.Request: ("_match_info",),  # set by `app.py`
}  # fmt: skip
for _owner, _names in PRIVATE_NAMES.items():
    for _name in _names:
        assert hasattr(_owner, _name), f"aiohttp has changed: {_owner.__name__}.{_name} is gone"


class Phase(Enum):
    """Phases of the lane's request that need nothing remembered."""

    IDLE = "idle"
    """The lane has no request under way; aiohttp's handler may have some."""
    QUEUED_PRODUCE = "queued produce"
    """The request at the head of the queue is appended, its acknowledgement awaited."""


IDLE: Final = Phase.IDLE
QUEUED_PRODUCE: Final = Phase.QUEUED_PRODUCE


@dataclass(slots=True)
class QueuedBody:
    """The request at the head of the queue, a produce whose body is still arriving."""

    timer: asyncio.TimerHandle


@dataclass(slots=True)
class UnparsedBody:
    """A produce whose head is known and unparsed, and whose body is still arriving."""

    known: KnownHead
    pieces: list[bytes]
    """The received pieces: the head, then pieces of the body."""
    missing: int
    """Bytes of the body that have not arrived; negative if too many have."""
    timer: asyncio.TimerHandle


@dataclass(slots=True)
class UnparsedProduce:
    """A produce that was appended unparsed; its acknowledgement is awaited."""

    pieces: Sequence[bytes]
    """The whole request, for aiohttp if the lane can't answer it after all."""


LaneState = Phase | QueuedBody | UnparsedBody | UnparsedProduce
TRANSITIONS: Final[Mapping[Phase | type, frozenset[Phase | type]]] = {
    IDLE: frozenset({QueuedBody, UnparsedBody, UnparsedProduce, QUEUED_PRODUCE}),
    QueuedBody: frozenset({IDLE}),
    UnparsedBody: frozenset({IDLE}),
    UnparsedProduce: frozenset({IDLE}),
    QUEUED_PRODUCE: frozenset({IDLE}),
}
"""The states that may follow a state. A body that is complete passes through `IDLE`, because the
lane may not be able to take the request, and aiohttp's handler takes it then."""


class RequestQueue(list[Any]):
    """Requests of a connection that wait to be handled, at most 32; empty as a rule.

    It stands for aiohttp's deque, which takes 700 bytes even if it is empty.
    """

    __slots__ = ()

    def popleft(self) -> Any:
        """Remove and return the first request."""
        return self.pop(0)


class LaneConnection(EnvelopeRequestHandler):
    """A client's connection. Owned by its transport.

    A parsed request stays at the head of ``_messages`` until its answer is written, so aiohttp can
    handle it instead at any time before that.
    """

    __slots__ = (
        "_access", "_awaits_first_byte", "_closed", "_deadline", "_host", "_lane", "_lane_answers",
        "_lane_began_s", "_lane_buffered", "_lane_is_pumping", "_lane_parser_needs", "_lane_state",
        "_reader_watch", "_routes_log", "_timeouts",
    )  # fmt: skip

    def __init__(
        self,
        lane: FastLane | None,
        manager: web.Server,
        *,
        timeouts: BrokerTimeouts,
        closed: Callable[[str], None],
        host: str = "",
        access: AccessLog | None = None,
        **options: Any,
    ) -> None:
        """Take ``host``, the client's address; ``closed(host)`` is called once, at the end.

        ``access`` logs what the lane answers, None: nothing is logged.
        """
        super().__init__(manager, **options)
        self._messages = cast("deque[Any]", RequestQueue())
        self._lane = lane
        self._timeouts = timeouts
        self._closed = closed
        self._deadline: asyncio.TimerHandle | None = None
        """Runs until the first byte of the connection, or while a head is incomplete."""
        self._awaits_first_byte = True
        self._host = host
        self._routes_log: RouteLog | None = options.get("access_log")
        self._access = access
        self._lane_began_s = 0.0
        """`time.monotonic` when the lane took its present request; only with an access log."""
        self._reader_watch = ReaderWatch(timeouts.answer_progress_ms)
        self._lane_state: LaneState = IDLE
        self._lane_parser_needs = 0
        """Bytes until the parser holds only whole requests; `_UNKNOWN`: cannot be computed."""
        self._lane_buffered = b""
        """Bytes received behind an unparsed produce, until the turn after its answer."""
        self._lane_is_pumping = False
        self._lane_answers = 0
        """Answers that the lane has given to requests that were parsed."""

    def _leave(self) -> LaneState:
        """Move to `IDLE`, and return the state that ends."""
        ended = self._lane_state
        self._lane_state = IDLE
        self._request_in_progress = False
        if isinstance(ended, (QueuedBody, UnparsedBody)):
            ended.timer.cancel()
        return ended

    def _awaits_acknowledgement(self) -> bool:
        """Return True while a produce of the lane is appended and not answered."""
        state = self._lane_state
        return state is QUEUED_PRODUCE or isinstance(state, UnparsedProduce)

    # called by the transport

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._set_deadline(self._timeouts.first_byte_ms)

    @override
    def data_received(self, data: bytes) -> None:
        lane = self._lane
        if (
            lane is None
            or self._force_close
            or self._close
            or self._payload_parser is not None
            or self._upgraded
        ):
            self._lane_parser_needs = _UNKNOWN
            self._receive(super().data_received, data)
        elif isinstance(self._lane_state, UnparsedProduce) or self._lane_buffered:
            if data:
                self._lane_buffered += data
                self._pause_transport_reading()
        elif isinstance(self._lane_state, UnparsedBody):
            if data:
                self._take_piece(lane, self._lane_state, data)
        elif self._lane_parser_needs or not self._take_known(lane, data):
            self._receive(partial(self._parse_and_pump, lane), data)
        elif self._deadline is not None:
            self._clear_deadline()

    def _receive(self, parse: Callable[[bytes], None], data: bytes) -> None:
        """Parse ``data``; begin or end the wait for the rest of a head."""
        seen, answered = self._request_count, self._lane_answers
        parse(data)
        if self._request_count != seen:
            if self._deadline is not None:
                self._clear_deadline()
        elif self._lane_answers == answered and self._is_idle() and data.strip(b"\r\n"):
            self._head_began()  # it ended no body: then a request was under way, or was answered

    def _parse_and_pump(self, lane: FastLane, data: bytes) -> None:
        self._parse(lane, data)
        self._pump()

    def _take_known(self, lane: FastLane, data: bytes) -> bool:
        """Take a request whose head was parsed before; False: it must be parsed."""
        end = data.find(b"\r\n\r\n") + 4
        known = lane.heads.get(data[:end])
        if known is None or self._lane_state is not IDLE or self._messages or self._paused:
            return False
        missing = end + known.length - len(data)
        if missing < 0 or known.length > ARRIVING_BODY_BYTES_MAX or not self._is_handler_idle():
            return False
        if not missing:
            return self._append_known(lane, known, (data,), data[end:])
        timer = self._loop.call_later(ARRIVING_BODY_S_MAX, self._body_timed_out)
        self._lane_state = UnparsedBody(known, [data[:end], data[end:]], missing, timer)
        return True

    def _take_piece(self, lane: FastLane, body: UnparsedBody, data: bytes) -> None:
        """Add a piece of the arriving body; once it is complete, append it."""
        body.pieces.append(data)
        body.missing -= len(data)
        if body.missing > 0:
            return
        self._leave()
        if not (
            body.missing == 0
            and not self._paused
            and self._is_handler_idle()
            and self._append_known(lane, body.known, body.pieces, b"".join(body.pieces[1:]))
        ):
            self._parse(lane, b"".join(body.pieces))
            self._pump()

    def _append_known(
        self, lane: FastLane, known: KnownHead, pieces: Sequence[bytes], body: bytes
    ) -> bool:
        """Append a body of a known head; False: nothing was done, the request must be parsed.

        ``pieces`` is the whole request, ``body`` its body.
        """
        # In progress for aiohttp's shutdown, too, until it is answered.
        self._lane_state, self._request_in_progress = UnparsedProduce(pieces), True
        if self._access is not None:
            self._lane_began_s = monotonic()
        try:
            taken = lane.append(known.path, known.stored_as, body, None, self._answer)
        except Exception as error:  # noqa: BLE001 as in `_pump`
            self._lane_failed(error)
            return True
        if taken:
            self._request_count += 1
        else:
            self._leave()
        return taken

    def _parse(self, lane: FastLane, data: bytes) -> None:
        """Parse ``data`` into the queue like aiohttp's own method, without waking its handler."""
        assert self._parser is not None
        try:
            messages, upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError as error:
            refused = _ErrInfo(status=400, exc=error, message=error.message)
            messages, upgraded, tail = [(refused, EMPTY_PAYLOAD)], False, b""
        if self._lane_parser_needs > 0:
            self._lane_parser_needs = max(self._lane_parser_needs - len(data), _UNKNOWN)
        elif not self._lane_parser_needs and data:
            self._lane_parser_needs = _parser_needs(
                lane, data, [message for message, _ in messages]
            )
        if messages:
            self._request_count += len(messages)
            self._messages.extend(messages)
            if not self._buffer_paused and len(self._messages) >= self._max_msg_queue_size:
                self._pause_reading_for_buffer()
        self._upgraded = upgraded
        if upgraded and tail:
            self._message_tail = tail

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        if self.transport is not None:
            self._reader_watch.start(self.transport)

    @override
    def resume_writing(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self._reader_watch.stop()  # else the rest is watched until it is taken
        super().resume_writing()
        self._loop.call_soon(self._pump)

    @override
    def force_close(self) -> None:
        transport = self.transport
        super().force_close()
        if transport is not None:
            self._reader_watch.start(transport)

    @override
    def _handle_request(
        self,
        request: web.BaseRequest,
        start_time: float | None,
        request_handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    ) -> Coroutine[Any, Any, tuple[web.StreamResponse, bool]]:
        if self._keepalive_handle is not None:  # it takes 670 bytes; the answer sets it again
            self._keepalive_handle.cancel()
            self._keepalive_handle = None
        return super()._handle_request(request, start_time, request_handler)

    @override
    async def start(self) -> None:
        await super().start()
        if self.transport is not None:  # closed behind its last answer
            self._reader_watch.start(self.transport)

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self._stop_awaiting_body()
        self._clear_deadline()
        if isinstance(self._lane_state, UnparsedProduce):
            self._lane_state.pieces = ()  # the answer may take long
        self._lane_buffered = b""
        super().connection_lost(exc)
        self._reader_watch.stop()
        self._closed(self._host)

    @override
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, ConnectionError) and self._routes_log is not None:
            self._routes_log.left(request, self._loop.time())
        return super().handle_error(request, status, exc, message)

    # silent clients

    def _is_idle(self) -> bool:
        """Return True while no request is under way, and none waits."""
        return self._lane_state is IDLE and not self._messages and self._is_handler_idle()

    def _head_began(self) -> None:
        """Begin to wait for the rest of a head, unless that wait has begun."""
        if self._deadline is None or self._awaits_first_byte:
            self._awaits_first_byte = False
            self._set_deadline(self._timeouts.header_ms)

    def _set_deadline(self, after_ms: int) -> None:
        self._clear_deadline()
        self._deadline = self._loop.call_later(after_ms / 1000, self._overdue)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _overdue(self) -> None:
        self._deadline = None
        if self._is_idle():  # else a request began unseen, and other limits hold
            _log.debug("connection closed: no complete request head in time")
            self.force_close()

    @override
    def _process_keepalive(self) -> None:
        if self._lane_state is not IDLE:
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()

    # answering the queue, one request after the other

    def _is_handler_idle(self) -> bool:
        """Return True while aiohttp's handler of this connection waits and is not yet woken."""
        waiter = self._waiter
        return waiter is not None and not waiter.done()

    def _pump(self) -> None:
        """Answer the requests in the queue, until one has to be waited for."""
        if self._lane_is_pumping:
            return
        self._lane_is_pumping = True  # resumed reading may add requests: this loop takes them
        try:
            # `_is_handler_idle` is checked each time: a refused request has woken aiohttp's
            # handler.
            while self._messages and not self._awaits_acknowledgement() and self._is_handler_idle():
                if self._paused or self._force_close:
                    return  # the client does not read: answer nothing more until it does
                message, payload = self._messages[0]
                if self._upgraded or isinstance(message, _ErrInfo):
                    self._pass_to_aiohttp()  # also for requests before the one with the upgrade
                    return
                if self._take(message, payload):
                    continue
                if not isinstance(self._lane_state, QueuedBody):
                    self._pass_to_aiohttp()
                return
        except Exception as error:  # noqa: BLE001 the transport would only print the error
            self._lane_failed(error)
        finally:
            self._lane_is_pumping = False

    def _take(self, message: RawRequestMessage, payload: StreamReader) -> bool:
        """Answer a request or begin to; False: aiohttp must handle it, or its body is arriving."""
        lane = self._lane
        assert lane is not None
        if message.should_close or message.upgrade or message.chunked:
            return False
        if self._access is not None:
            self._lane_began_s = monotonic()
        if message.version != HttpVersion11:
            return False  # an HTTP/1.0 answer states that the connection is kept
        if message.method == "POST" and payload is not EMPTY_PAYLOAD:
            path = lane.produce_path(message.path)
            if path is None:
                return False
            headers = lane.headers(message.raw_headers)
            if headers is None or payload.exception() is not None:
                return False
            if not payload.is_eof():
                self._await_body(message)
                return False
            self._stop_awaiting_body()
            chunks = payload._buffer  # noqa: SLF001 read without consuming: aiohttp may need it
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._lane_state, self._request_in_progress = QUEUED_PRODUCE, True
            if lane.produce(path, headers, body, self._answer):
                return True
            self._leave()
            return False
        if message.method == "GET" and payload is EMPTY_PAYLOAD:
            headers = lane.headers(message.raw_headers)
            try:
                pieces = None if headers is None else lane.fetch(message.path, headers)
            except Exception:  # noqa: BLE001 nothing was done: the route meets and reports it
                pieces = None
            if pieces is not None:
                self._answer(pieces)
                return True
        return False

    def _answer(self, pieces: Sequence[bytes | memoryview] | None) -> None:
        """Write the answer to the current request and finish it; None: aiohttp must handle it."""
        try:
            if self.transport is not None:  # else the client has disconnected
                if pieces is None:
                    self._parse_unparsed()
                    self._pass_to_aiohttp()
                    return
                self.transport.writelines(pieces)
                if self._access is not None:
                    took_ms = (monotonic() - self._lane_began_s) * 1000
                    if took_ms > self._access.unlogged_ms or pieces[0][_STATUS_AT] != _SUCCESS:
                        self._log_answer(self._access, pieces, took_ms)
                self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            finished = self._leave()
            self._allow_shutdown()
            if self._parser is None:
                return  # the connection is closed
            if isinstance(finished, UnparsedProduce):
                if self._lane_buffered:
                    self._loop.call_soon(self._process_buffered)
            else:
                self._lane_answers += 1
                self._messages.popleft()
                self._parser.message_consumed()
                if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
                    self._resume_reading_if_drained()
            if self._messages and not self._lane_is_pumping:
                self._loop.call_soon(self._pump)
        except Exception as failure:  # noqa: BLE001 the caller moves a high watermark: never raise
            self._lane_failed(failure)

    def _log_answer(
        self, access: AccessLog, answer: Sequence[bytes | memoryview], duration_ms: float
    ) -> None:
        """Log the request that is answered now."""
        head = answer[0]
        assert isinstance(head, bytes), "the lane begins its answers with a head"
        status = int(head[9:12])
        assert self._lane is not None
        state = self._lane_state
        if isinstance(state, UnparsedProduce):
            request = b"".join(state.pieces[:1])
            method, target, _ = request.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
            head_bytes = request.find(b"\r\n\r\n") + 4
            bytes_in = sum(map(len, state.pieces)) - head_bytes
        else:
            message = self._messages[0][0]
            assert not isinstance(message, _ErrInfo), "the lane answers requests only"
            method, target = message.method, message.path
            bytes_in = int(message.headers.get("Content-Length", "0"))
        access.add(
            self._lane.entry_of(
                method, target, status, answer,
                bytes_in=bytes_in, duration_ms=duration_ms, host=self._host,
                wall_ms=access.now_ms(),
            )
        )  # fmt: skip

    def _parse_unparsed(self) -> None:
        """Leave a produce of the lane to aiohttp; parse it if it was appended unparsed."""
        given_up = self._leave()
        if isinstance(given_up, UnparsedProduce):
            assert self._lane is not None
            self._request_count -= 1  # it is counted again
            self._parse(self._lane, b"".join(given_up.pieces))
            if self._lane_buffered:
                self._loop.call_soon(self._process_buffered)

    def _process_buffered(self) -> None:
        """Process the bytes that arrived while an unparsed request was waiting."""
        if isinstance(self._lane_state, UnparsedProduce) or not self._lane_buffered:
            return
        if self.transport is None:
            return
        later, self._lane_buffered = self._lane_buffered, b""
        if not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()
        self.data_received(later)

    def _pass_to_aiohttp(self) -> None:
        """Wake aiohttp's handler, which handles the queue from its head on."""
        self._stop_awaiting_body()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        elif self.transport is not None:
            self.force_close()  # the listener stops, so that handler has ended
            self._allow_shutdown()

    def _allow_shutdown(self) -> None:
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)  # `shutdown` waits for it

    def _lane_failed(self, error: Exception) -> None:
        """Log a bug and close the connection unanswered: the records may have been appended."""
        _log.error("fast lane failed", exc_info=error)
        self._leave()
        self._lane_buffered = b""
        self.force_close()
        self._allow_shutdown()

    # a body that arrives in pieces

    def _await_body(self, message: RawRequestMessage) -> None:
        """Await the rest of the body of the queue's head, if it is not too long to wait for."""
        if self._lane_state is not IDLE:
            return
        length = message.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) <= ARRIVING_BODY_BYTES_MAX:
            timer = self._loop.call_later(ARRIVING_BODY_S_MAX, self._body_timed_out)
            self._lane_state = QueuedBody(timer)

    def _body_timed_out(self) -> None:
        """Leave a body that does not end in time to aiohttp, where another limit holds."""
        body = self._leave()
        if isinstance(body, UnparsedBody):
            assert self._lane is not None
            self._parse(self._lane, b"".join(body.pieces))
        self._pass_to_aiohttp()

    def _stop_awaiting_body(self) -> None:
        if isinstance(self._lane_state, (QueuedBody, UnparsedBody)):
            self._leave()


def _parser_needs(lane: FastLane, data: bytes, messages: list[RawRequestMessage | _ErrInfo]) -> int:
    """Return the bytes the parser still needs after ``data``, or `_UNKNOWN`; remember the head.

    Computable only if ``data`` begins with exactly one request (by its Content-Length, RFC 9112,
    section 6.3).
    """
    if len(messages) != 1 or data[0] in b"\r\n":  # a parser skips blank lines in front (2.2)
        return _UNKNOWN
    message = messages[0]
    if isinstance(message, _ErrInfo) or message.chunked or message.upgrade:
        return _UNKNOWN
    length = message.headers.get("Content-Length", "0")
    if not (length.isascii() and length.isdecimal()):
        return _UNKNOWN
    end = data.find(b"\r\n\r\n") + 4
    if not message.should_close and message.version == HttpVersion11:
        lane.learn(data[:end], message.method, message.path, message.raw_headers, int(length))
    return max(end + int(length) - len(data), _UNKNOWN)
