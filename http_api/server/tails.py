"""Tails: reads of records that do not end, over one partition or a whole topic.

A route that finds `wanted_tail` hands the request to `serve_tail`: it looks up where to begin,
from a token if there is one, and lets a `Tail` send. A tail pulls from the log: it reads up to
`PIECE_BYTES` of one partition, writes them with the place behind them, and reads on once the client
has taken enough. Nothing is kept for a client that reads slowly but the bytes it has not taken yet.
So a tail that breaks can go on at any broker from the last place that the client has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson
from aiohttp import hdrs, web

from broker.log.read_positions import PositionTruncatedError
from broker.server.requests import FetchRequest
from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.event_stream import EVENT_STREAM, LAST_EVENT_ID
from http_api.contract.grammar import Latest
from http_api.contract.media_types import NDJSON, TAIL_REPLIES, choose_reply
from http_api.contract.operations.fetch_operations import AFTER, FOLLOW, HEARTBEAT_MS
from http_api.contract.tail_tokens import ReadToken, TokenError, decode_token
from http_api.server.answers import EnvelopeRequestHandler, read_error, reply
from http_api.server.position_lookup import bound_of
from http_api.server.query_parameters import (
    ReadEnd,
    offset_epoch,
    read_end,
    read_start,
    seen_epoch,
    topic_id_of,
)
from http_api.server.request_parsing import (
    accept_of,
    bad_parameter,
    not_acceptable,
)
from http_api.server.streams import STREAM_S_MAX, StreamRegistry, StreamWriter
from http_api.server.tail_shapes import (
    EventTail,
    NdjsonTail,
    PartitionEventTail,
    RecordLines,
    TailForm,
)
from http_api.server.topic_reader import (
    PIECE_BYTES,
    ReadingPlace,
    ReadTopic,
    TopicReader,
    check_count,
    find_places,
)
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.ids import PartitionId, TopicId

if TYPE_CHECKING:
    from broker.server.requests import BrokerApis
    from http_api.contract.grammar import Position
    from http_api.server.answers import ApiContext
    from raft_metadata.image.metadata_image import TopicImage

_log = logging.getLogger("http_api.server")

UNSENT_BYTES_MAX: Final = 524_288
"""Bytes that wait for the client of a tail; then the log is not read for it until it takes some."""
TOPIC_ID_HEADER: Final = "Quorumlog-Topic-Id"
START_PARAMETERS: Final = ("offset", "timestamp", "after")
"""Names of which one says where a read begins."""
PAGE_PARAMETERS: Final = ("max_bytes", "timeout", "frames", "rack")
"""Parameters without a meaning for a tail."""
_INCLUDED: Final = frozenset({"tokens", "timestamp"})


def wanted_tail(request: web.Request, replies: Mapping[str, str]) -> str | None:
    """Return the media type of the tail that a request asks for; None: it asks for a page.

    ``replies`` maps what Accept may name to the types of the path's pages, and to Server-Sent
    Events, of which there are only tails.

    Raises:
        RestError: 406, a tail has no such type; 400/40002, a parameter belongs to the other kind.
    """
    query = request.query
    accept = accept_of(request)
    if FOLLOW.read(query):
        content_type = choose_reply(accept, TAIL_REPLIES)
        if content_type is None:
            raise not_acceptable(request, NDJSON, EVENT_STREAM)
    elif choose_reply(accept, replies) == EVENT_STREAM:
        content_type = EVENT_STREAM
    else:
        if HEARTBEAT_MS.name in query:
            raise _other_kind(HEARTBEAT_MS.name, "a tail: expected it beside 'follow=true'")
        return None
    for name in PAGE_PARAMETERS:
        if name in query:
            raise _other_kind(name, "a page: expected it without 'follow'")
    return content_type


def _other_kind(name: str, belongs: str) -> RestError:
    return RestError(400, RestCode.KAFKA_BAD_REQUEST, f"Parameter '{name}' belongs to {belongs}")


def tail_includes(query: Mapping[str, str]) -> frozenset[str]:
    """Return the additions that ``include`` names: ``tokens``, ``timestamp`` or both."""
    given = query.get("include")
    names = frozenset() if given is None else frozenset(given.split(","))
    if not names <= _INCLUDED:
        raise bad_parameter("include", given, "tokens, timestamp or tokens,timestamp")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFrom:
    """Start of a read: behind a token, else at a position."""

    token: ReadToken | None
    position: Position


def read_from(
    request: web.Request, partition: PartitionId | None, *, is_tail: bool = False
) -> ReadFrom:
    """Return where a request wants to begin; of a whole topic if ``partition`` is None.

    A page of a partition has to say it; everything else begins at the end. ``Last-Event-ID`` of a
    tail goes before the URL, so that a browser that connects again goes on.

    Raises:
        RestError: 400/40002, no start or several are given, or a token that is none of this path.
    """
    query = request.query
    last_id = request.headers.get(LAST_EVENT_ID) if is_tail else None
    if last_id:
        token = _token(f"Header '{LAST_EVENT_ID}'", last_id, partition)
        return ReadFrom(token=token, position=Latest())
    given = [name for name in START_PARAMETERS if name in query]
    if len(given) > 1:
        text = f"Parameters '{given[0]}' and '{given[1]}' are both given: expected one of them"
        raise RestError(400, RestCode.KAFKA_BAD_REQUEST, text)
    after = AFTER.read(query)
    if after is not None:
        token = _token("Parameter 'after'", after, partition)
        return ReadFrom(token=token, position=Latest())
    if not given and (is_tail or partition is None):
        return ReadFrom(token=None, position=Latest())
    return ReadFrom(token=None, position=read_start(query))


def _token(where: str, text: str, partition: PartitionId | None) -> ReadToken:
    try:
        token = decode_token(text)
    except TokenError as error:
        reason = f"expected a token as it was sent; {error}"
    else:
        if token.partition == partition:
            return token
        of = "a whole topic" if token.partition is None else f"partition {token.partition}"
        wanted = "a whole topic" if partition is None else f"partition {partition}"
        reason = f"it is the token of {of}, expected one of {wanted}"
    raise RestError(400, RestCode.KAFKA_BAD_REQUEST, f"{where} is '{excerpt(text)}': {reason}")


async def places_of_token(
    apis: BrokerApis,
    topic: TopicImage,
    token: ReadToken,
    end: ReadEnd | None,
) -> list[ReadingPlace]:
    """Return the places that a token names; partitions that have come since begin at 0.

    Raises:
        RestError: 400/40002, the topic has too many partitions by now.
    """
    first = token.partition or 0
    places = [
        ReadingPlace(PartitionId(number), place.offset, place.epoch)
        for number, place in enumerate(token.places, first)
    ]
    if token.partition is None:
        check_count(topic.name, len(topic.partitions))
        known = range(len(places), len(topic.partitions))
        places += [ReadingPlace(PartitionId(number), 0) for number in known]
    if end is not None:
        for each in places:
            look_up = FetchRequest(topic=topic.name, partition=each.partition)
            each.end = await bound_of(apis, end, look_up)
    return places


async def reader_of(
    context: ApiContext,
    query: Mapping[str, str],
    topic: TopicImage,
    partition: PartitionId | None,
    start: ReadFrom,
    *,
    first: int = 0,
) -> TopicReader:
    """Return a reader that begins at ``start``; of the whole topic without a partition.

    ``first`` is the number of the partition that is read first, modulo their count.

    Raises:
        KafkaError: the leader of a partition, needed for a look-up, does not answer at present.
        RestError: 400/40002, the read ends before it begins, or the topic has too many partitions.
    """
    apis, topic_id = context.apis, topic.topic_id
    end = read_end(query, start.position)
    if start.token is not None:
        places = await places_of_token(apis, topic, start.token, end)
        topic_id = TopicId(start.token.topic_id)
    elif partition is None:
        check_count(topic.name, len(topic.partitions))
        numbers = [PartitionId(number) for number in range(len(topic.partitions))]
        places = await find_places(apis, topic.name, numbers, start.position, end)
    else:
        places = await find_places(apis, topic.name, [partition], start.position, end)
        places[0].epoch = offset_epoch(query, start.position)
        places[0].seen_epoch = seen_epoch(query)
        topic_id = topic_id_of(query) or topic_id
    return TopicReader(
        apis,
        context.watches,
        ReadTopic(topic.name, topic_id),
        places,
        is_whole=partition is None,
        first=first % max(1, len(places)),
    )


async def serve_tail(
    context: ApiContext,
    request: web.Request,
    topic: TopicImage,
    partition: PartitionId | None,
    content_type: str,
    lines: RecordLines,
) -> web.StreamResponse:
    """Send records until a bound, an error, the end of this broker or of the client.

    Of the whole topic, if ``partition`` is None. ``lines`` makes the text of a record.

    Raises:
        RestError: 503/50302, there are too many streams; a bad parameter; the first read failed.
        KafkaError: the first read failed: nothing has been sent, so the status says it.
    """
    query = request.query
    heartbeat_ms = HEARTBEAT_MS.read(query)
    with_tokens = "tokens" in tail_includes(query)
    start = read_from(request, partition, is_tail=True)
    connection = request.protocol
    assert isinstance(connection, EnvelopeRequestHandler), "the listener's connections are ours"
    with context.streams.opened():
        reader = await reader_of(context, query, topic, partition, start)
        headers = {hdrs.CACHE_CONTROL: "no-store", TOPIC_ID_HEADER: reader.topic.topic_id}
        connection.when_lost = reader.cut_off
        try:
            if request.method == "HEAD":
                return reply(b"", content_type, headers=headers)
            form = _form(content_type, lines, reader, partition, with_tokens=with_tokens)
            writer = StreamWriter(request, content_type, headers, unsent_bytes_max=UNSENT_BYTES_MAX)
            await Tail(reader, form, writer, context.streams, heartbeat_ms / 1000).send()
            return await writer.end()
        finally:
            connection.when_lost = None
            reader.close()


def _form(
    content_type: str,
    lines: RecordLines,
    reader: TopicReader,
    partition: PartitionId | None,
    *,
    with_tokens: bool,
) -> TailForm:
    if content_type == NDJSON:
        return NdjsonTail(lines, with_tokens=with_tokens)
    return EventTail(lines) if partition is None else PartitionEventTail(lines, reader.token_at)


class Tail:
    """One stream of records. Owned by the handler of its request."""

    def __init__(
        self,
        reader: TopicReader,
        form: TailForm,
        writer: StreamWriter,
        streams: StreamRegistry,
        heartbeat_s: float,
    ) -> None:
        self._reader = reader
        self._form = form
        self._writer = writer
        self._streams = streams
        self._heartbeat_s = heartbeat_s
        self._beat_at_s = 0.0
        """Time of the next heartbeat, unless something else is sent before."""

    async def send(self) -> None:
        """Send until there is nothing more to send, and the reason for that last.

        Raises:
            ConnectionError: the client is gone, or takes nothing.
            Exception: the first read failed, and nothing has been sent.
        """
        form, token = self._form, self._reader.token
        try:
            reason = await self._send_records()
        except ConnectionError:
            raise
        except Exception as error:
            if not self._writer.has_begun:
                raise
            if not isinstance(error, KafkaError | RestError):
                _log.exception("tail failed topic=%s", self._reader.topic.name)
            await self._writer.write(form.error(_error_line(error)))
        else:
            await self._write(form.end(reason, token))

    async def _send_records(self) -> str:
        """Send records and heartbeats; return the reason why no more follow."""
        reader, form = self._reader, self._form
        loop = asyncio.get_running_loop()
        until_s = loop.time() + STREAM_S_MAX
        self._beat_at_s = loop.time() + self._heartbeat_s
        while True:
            found = await reader.read(PIECE_BYTES, self._is_due)
            if found is not None:
                partition, slices = found
                await self._write(form.records(slices, partition, reader.token))
                await asyncio.sleep(0)  # a client that reads fast holds nobody else up
            if reader.is_cut_off:
                raise ConnectionResetError
            if self._streams.is_stopping:
                return "shutdown"
            if reader.is_at_end:
                return "bound"
            left_s = until_s - loop.time()
            if left_s <= 0:
                return "max_age"
            if found is not None:
                continue
            if not self._writer.has_begun:
                await self._write(b"")
            silent_s = self._beat_at_s - loop.time()
            if silent_s <= 0:
                await self._write(form.heartbeat(reader.token))
            else:
                await reader.wait(self._streams.waits, min(silent_s, left_s))

    def _is_due(self) -> bool:
        """Return True if more than reading has to be done, though partitions may be unread."""
        if self._streams.is_stopping or self._reader.is_cut_off:
            return True
        return asyncio.get_running_loop().time() >= self._beat_at_s

    async def _write(self, piece: bytes) -> None:
        if not self._writer.has_begun:
            piece = self._form.opening(self._reader.opening_token) + piece
        await self._writer.write(piece)
        self._beat_at_s = asyncio.get_running_loop().time() + self._heartbeat_s


def _error_line(error: Exception) -> bytes:
    """Return the envelope of the error that ends a tail; a cut log names where it differs."""
    body = read_error(error)
    if isinstance(error, PositionTruncatedError):
        diverging = {
            "diverging_offset": error.divergence.offset,
            "diverging_epoch": error.divergence.epoch,
        }
        return orjson.dumps(orjson.loads(body) | diverging)
    return body
