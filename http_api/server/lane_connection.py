"""A connection of the public listener, with the fast lane in front of aiohttp's request handling.

aiohttp's C parser reads every request. What `FastLane` knows how to answer is then answered from
here: no task, no request and response objects, which cost more than an append. Everything else goes
the usual way, from the very queue it stands in. Requests of a connection are answered in their
order: the lane takes one only while aiohttp's own handler of the connection waits for work, and
that handler is woken only while the lane is idle.

A client says the same head over and over. One that the parser has read before, byte for byte, with
its body behind it and nothing else, is not read again: what it means is known. The body may come
in packets of its own, as Python's clients send it. Such a request is shown to the parser only if it
has to take the usual way after all.

This is the one place that uses aiohttp's private names (aiohttp is pinned; `PRIVATE_NAMES` is
checked at import). The switch is ``http_fast_lane`` of config.toml; contract tests run either way.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Final

from aiohttp import web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpVersion11
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader
from aiohttp.web_protocol import _ErrInfo
from typing_extensions import override

from http_api.server.error_middleware import EnvelopeRequestHandler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp.http_parser import RawRequestMessage

    from http_api.server.fast_lane import FastLane, KnownHead

_log = logging.getLogger("http_api.server")

HELD_BYTES_MAX = 4 << 20
"""A longer body is read the usual way: what a connection may hold in memory stays bounded."""
HELD_S_MAX = 5.0
"""So is a body that has not come within this time; there it has its own limit."""
_UNKNOWN: Final = -1
PRIVATE_NAMES: Final = {
    web.RequestHandler: (
        "_buffer_paused", "_close", "_force_close", "_handler_waiter", "_keepalive_timeout",
        "_max_msg_queue_size", "_message_tail", "_messages", "_msg_queue_resume_size",
        "_next_keepalive_close_time", "_parser", "_pause_reading_for_buffer",
        "_pause_transport_reading", "_paused", "_payload_parser", "_process_keepalive",
        "_request_count", "_request_in_progress", "_resume_reading_if_drained",
        "_resume_transport_reading", "_upgraded", "_waiter",
    ),
    StreamReader: ("_buffer",),
    BaseProtocol: (),
}  # fmt: skip
for _owner, _names in PRIVATE_NAMES.items():
    for _name in _names:
        assert hasattr(_owner, _name), f"aiohttp has changed: {_owner.__name__}.{_name} is gone"


class LaneConnection(EnvelopeRequestHandler):
    """See the module. Owned by its transport.

    The request being answered stays at the head of ``_messages`` until its answer is written, so it
    can take the usual way at any time before that.
    """

    def __init__(self, lane: FastLane | None, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._lane = lane
        self._lane_waits = False
        """The head of the queue was appended; its acknowledgement is awaited."""
        self._lane_holds: asyncio.TimerHandle | None = None
        """The body of the head of the queue is still arriving."""
        self._lane_pumps = False
        self._lane_due = 0
        """Bytes until the parser has whole requests and nothing more; `_UNKNOWN`: can't be told."""
        self._lane_unparsed: Sequence[bytes] = ()
        """The request that waits, in pieces, if the parser has not seen it."""
        self._lane_later = b""
        """What came behind it."""
        self._lane_known: KnownHead | None = None
        """Of a request whose body is still arriving, unseen by the parser."""
        self._lane_pieces: list[bytes] = []
        """What has come of it: the head, then pieces of the body."""
        self._lane_missing = 0

    # what the transport says

    @override
    def data_received(self, data: bytes) -> None:
        if (
            self._lane is None
            or self._force_close
            or self._close
            or self._payload_parser is not None
            or self._upgraded
        ):
            self._lane_due = _UNKNOWN
            super().data_received(data)
        elif self._lane_unparsed or self._lane_later:
            if data:
                self._lane_later += data
                self._pause_transport_reading()
        elif self._lane_known is not None:
            if data:
                self._take_piece(self._lane, self._lane_known, data)
        elif self._lane_due or not self._take_known(self._lane, data):
            self._parse(self._lane, data)
            self._pump()

    def _take_known(self, lane: FastLane, data: bytes) -> bool:
        """Take a request whose head was parsed before; False: parse it."""
        end = data.find(b"\r\n\r\n") + 4
        known = lane.heads.get(data[:end])
        if known is None or self._lane_waits or self._messages or self._paused:
            return False
        missing = end + known.length - len(data)
        if missing < 0 or known.length > HELD_BYTES_MAX or not self._is_ours():
            return False
        if not missing:
            return self._append_known(lane, known, (data,), data[end:])
        self._lane_known, self._lane_pieces = known, [data[:end], data[end:]]
        self._lane_missing = missing
        self._lane_holds = self._loop.call_later(HELD_S_MAX, self._held_too_long)
        return True

    def _take_piece(self, lane: FastLane, known: KnownHead, data: bytes) -> None:
        """More of the body that is arriving; with the last of it, it is appended."""
        self._lane_pieces.append(data)
        self._lane_missing -= len(data)
        if self._lane_missing > 0:
            return
        pieces, whole = self._lane_pieces, not self._lane_missing
        self._let_go()
        if not (
            whole
            and not self._paused
            and self._is_ours()
            and self._append_known(lane, known, pieces, b"".join(pieces[1:]))
        ):
            self._parse(lane, b"".join(pieces))
            self._pump()

    def _append_known(
        self, lane: FastLane, known: KnownHead, pieces: Sequence[bytes], body: bytes
    ) -> bool:
        """Append a body; ``pieces``: the whole request. False: nothing was done, parse it."""
        self._lane_waits = self._request_in_progress = True
        self._lane_unparsed = pieces
        try:
            taken = lane.append(known.path, known.stored_as, body, None, self._produced)
        except Exception as error:  # noqa: BLE001 as in `_pump`
            self._lane_failed(error)
            return True
        if taken:
            self._request_count += 1
        else:
            self._lane_waits = self._request_in_progress = False
            self._lane_unparsed = ()
        return taken

    def _parse(self, lane: FastLane, data: bytes) -> None:
        """As aiohttp's own, but nobody is woken."""
        assert self._parser is not None
        try:
            messages, upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError as error:
            refused = _ErrInfo(status=400, exc=error, message=error.message)
            messages, upgraded, tail = [(refused, EMPTY_PAYLOAD)], False, b""
        if self._lane_due > 0:
            self._lane_due = max(self._lane_due - len(data), _UNKNOWN)
        elif not self._lane_due and data:
            self._lane_due = _due(lane, data, [message for message, _ in messages])
        if messages:
            self._request_count += len(messages)
            self._messages.extend(messages)
            if not self._buffer_paused and len(self._messages) >= self._max_msg_queue_size:
                self._pause_reading_for_buffer()
        self._upgraded = upgraded
        if upgraded and tail:
            self._message_tail = tail

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._loop.call_soon(self._pump)

    @override
    def connection_lost(self, exc: BaseException | None) -> None:
        self._let_go()
        self._lane_unparsed, self._lane_later = (), b""
        super().connection_lost(exc)

    @override
    def _process_keepalive(self) -> None:
        if self._lane_waits or self._lane_holds is not None:  # then it is not idle
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        super()._process_keepalive()

    # one request after the other

    def _is_ours(self) -> bool:
        """Whether aiohttp's handler of this connection waits for work and knows of none."""
        waiter = self._waiter
        return waiter is not None and not waiter.done()

    def _pump(self) -> None:
        """Answer what stands in the queue, until something has to be waited for."""
        if self._lane_pumps:
            return
        self._lane_pumps = True  # reading on may bring new requests: they are taken by this loop
        try:
            # Whose it is, is asked each time: what is refused at once has woken the other handler.
            while self._messages and not self._lane_waits and self._is_ours():
                if self._paused or self._force_close:
                    return  # the client does not read: nothing more is answered meanwhile
                message, payload = self._messages[0]
                if self._upgraded or isinstance(message, _ErrInfo):
                    self._usual_way()  # also of what stands before the one that asks to upgrade
                    return
                if self._take(message, payload):
                    continue
                if self._lane_holds is None:
                    self._usual_way()
                return
        except Exception as error:  # noqa: BLE001 the transport would only print it
            self._lane_failed(error)
        finally:
            self._lane_pumps = False

    def _take(self, message: RawRequestMessage, payload: StreamReader) -> bool:
        """Answer, or begin to; False: it is not for the lane, or its body is still arriving."""
        lane = self._lane
        assert lane is not None
        if message.should_close or message.upgrade or message.chunked:
            return False
        if message.version != HttpVersion11:
            return False  # HTTP/1.0 is told that its connection is kept
        if message.method == "POST" and payload is not EMPTY_PAYLOAD:
            path = lane.produce_path(message.path)
            if path is None:
                return False
            headers = lane.headers(message.raw_headers)
            if headers is None or payload.exception() is not None:
                return False
            if not payload.is_eof():
                self._hold(message)
                return False
            self._let_go()
            chunks = payload._buffer  # noqa: SLF001 read without taking: it may go the usual way
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            self._lane_waits = self._request_in_progress = True
            if lane.produce(path, headers, body, self._produced):
                return True
            self._lane_waits = self._request_in_progress = False
            return False
        if message.method == "GET" and payload is EMPTY_PAYLOAD:
            headers = lane.headers(message.raw_headers)
            try:
                pieces = None if headers is None else lane.fetch(message.path, headers)
            except Exception:  # noqa: BLE001 nothing was done: the usual way meets and tells it
                pieces = None
            if pieces is not None:
                assert self.transport is not None
                self.transport.writelines(pieces)
                self._answered()
                return True
        return False

    def _produced(self, answer: bytes | None) -> None:
        """The answer to the produce that waits; None: the usual way finds one."""
        try:
            if self.transport is None:
                self._answered()  # to nobody
                return
            if answer is None:
                self._lane_waits = self._request_in_progress = False
                self._show_parser()
                self._usual_way()
                return
            self.transport.write(answer)
            self._answered()
            if self._messages and not self._lane_pumps:
                self._loop.call_soon(self._pump)
        except Exception as failure:  # noqa: BLE001 called where a high watermark moves: see there
            self._lane_failed(failure)

    def _answered(self) -> None:
        """The request that was begun is done with: the head of the queue, or an unparsed one."""
        self._lane_waits = self._request_in_progress = False
        self._let_stop()
        if self._parser is None:
            return  # the connection is gone
        if self._lane_unparsed:
            self._lane_unparsed = ()
            self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
            if self._lane_later:
                self._loop.call_soon(self._go_on)
            return
        self._messages.popleft()
        self._parser.message_consumed()
        self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()

    def _show_parser(self) -> None:
        """The request that was taken unparsed has to go the usual way."""
        pieces, self._lane_unparsed = self._lane_unparsed, ()
        if pieces:
            assert self._lane is not None
            self._request_count -= 1  # it is counted again
            self._parse(self._lane, b"".join(pieces))
            if self._lane_later:
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """With what came while an unparsed request was waiting."""
        if self._lane_unparsed or not self._lane_later or self.transport is None:
            return
        later, self._lane_later = self._lane_later, b""
        if not self._reading_paused and not self._buffer_paused:
            self._resume_transport_reading()
        self.data_received(later)

    def _usual_way(self) -> None:
        """Wake aiohttp's handler: it takes the queue from its head on."""
        self._let_go()
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        elif self.transport is not None:
            self.force_close()  # the listener stops: that handler has ended
            self._let_stop()

    def _let_stop(self) -> None:
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)  # `shutdown` waits for it

    def _lane_failed(self, error: Exception) -> None:
        """A bug. What was appended may be kept, so nothing is said but that the connection ends."""
        _log.error("fast lane failed", exc_info=error)
        self._lane_waits = self._request_in_progress = False
        self._lane_unparsed, self._lane_later = (), b""
        self.force_close()
        self._let_stop()

    # a body that arrives in pieces

    def _hold(self, message: RawRequestMessage) -> None:
        if self._lane_holds is not None:
            return
        length = message.headers.get("Content-Length", "")
        if length.isdecimal() and int(length) <= HELD_BYTES_MAX:
            self._lane_holds = self._loop.call_later(HELD_S_MAX, self._held_too_long)

    def _held_too_long(self) -> None:
        self._lane_holds = None
        if self._lane_known is not None:
            assert self._lane is not None
            pieces = self._lane_pieces
            self._let_go()
            self._parse(self._lane, b"".join(pieces))
        self._usual_way()

    def _let_go(self) -> None:
        """Nothing is held any more."""
        self._lane_known, self._lane_pieces, self._lane_missing = None, [], 0
        if self._lane_holds is not None:
            self._lane_holds.cancel()
            self._lane_holds = None


def _due(lane: FastLane, data: bytes, messages: list[RawRequestMessage | _ErrInfo]) -> int:
    """What a parser that knew of nothing still has to get, now that it has this; the head is kept.

    Only where this began with one request can it be told (RFC 9112, 6.3: by its Content-Length).
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
