"""``GET /topics/T/partitions/P/records``: the direct fetch, without any state on the server.

`records` negotiates the type, requests a `FetchResult` from the broker and renders it. A start that
the ends of the log decide (``earliest``, ``latest``, ``-N``) costs a request for the ends first.
Stored lines are sent unchanged (NDJSON: a join; array: a join and one same-length replace), stored
zstd frames too if the client accepts them. Only the v2 record shape and ``include=timestamp`` cost
work per record; ``include=batches`` adds time and formats once per batch. The fast lane uses the
same helpers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aiohttp import hdrs, web

from broker.record.batch import BatchError, RecordFormat
from broker.record.compression import fits_one_frame, framed, framed_as_single
from broker.record.lines import BATCH_BYTES_MAX
from broker.record.render import (
    batch_line,
    lines_to_array,
    lines_with_batches,
    render_v2,
    splice_timestamps,
)
from broker.record.values import RecordNotJsonError
from broker.server.local_partitions import split_packed
from broker.server.requests import UNKNOWN_EPOCH, FetchRequest
from http_api.contract.errors import RestCode, RestError
from http_api.contract.grammar import AtOffset, FromTime
from http_api.contract.media_types import (
    DECODED_LENGTH_HEADER,
    FETCH_REPLIES,
    LINES,
    NDJSON,
    READ_REPLIES,
    V2_BINARY,
    V2_JSON,
    ZSTD,
    accepts_zstd,
    choose_reply,
)
from http_api.contract.operations import fetch_operations as declared
from http_api.contract.operations.shared import ISOLATION
from http_api.server.access_log import ASKED_WAIT_MS
from http_api.server.answer_coding import MAY_GZIP
from http_api.server.answers import ERROR_TYPE, reply
from http_api.server.image_lookup import find_topic, partition_not_found, topic_not_found
from http_api.server.position_lookup import (
    before_bound,
    fetch_or_404,
    last_epoch,
    read_page,
)
from http_api.server.query_parameters import offset_epoch, read_end, seen_epoch, topic_id_of
from http_api.server.request_parsing import (
    accept_of,
    bad_parameter,
    not_acceptable,
    partition_id,
    topic_name,
)
from http_api.server.request_site import broker_url
from http_api.server.tail_shapes import stored_lines, timed_lines
from http_api.server.tails import read_from, serve_tail, tail_includes, wanted_tail
from raft_metadata.common.ids import TopicId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from broker.config import BrokerLimits
    from broker.record.batch import BatchSlice
    from broker.server.requests import BrokerApis, FetchResult
    from http_api.contract.grammar import Position
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter
    from raft_metadata.common.ids import PartitionId, TopicName
    from raft_metadata.image.metadata_image import TopicImage


MANY_FRAMES = "many"
"""Value of ``frames``: the reader decodes several zstd frames in a row."""
SEPARATE_WRITE_BYTES = 65_536
"""Bodies of this size or more are written apart from their headers: joining would copy the body,
which costs more than a second system call."""


class FetchRoutes:
    """Reads of the v2 API. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._apis = context.apis
        self._limits = context.limits

    def add_to(self, router: PathRouter) -> None:
        router.serve(declared.RECORDS, self.records)

    def records(
        self, request: web.Request, topic: str, partition: str
    ) -> Awaitable[web.StreamResponse]:
        """Answer records from a position on, as a page or as a tail.

        A page waits for the first record up to ``timeout``.
        """
        name, number = topic_name(topic), partition_id(partition)
        ISOLATION.read(request.query)
        tail_type = wanted_tail(request, READ_REPLIES)
        if tail_type is None:
            return self._page(request, name, number)
        return self._tail(request, name, number, tail_type)

    async def _tail(
        self, request: web.Request, name: TopicName, number: PartitionId, tail_type: str
    ) -> web.StreamResponse:
        timed = "timestamp" in tail_includes(request.query)
        image = await existing_partition(self._apis, name, number)
        lines = timed_lines if timed else stored_lines
        return await serve_tail(self._context, request, image, number, tail_type, lines)

    async def _page(
        self, request: web.Request, name: TopicName, number: PartitionId
    ) -> web.StreamResponse:
        content_type = choose_reply(accept_of(request), FETCH_REPLIES)
        if content_type is None:
            raise not_acceptable(request, V2_JSON, V2_BINARY, NDJSON, LINES)
        request[ERROR_TYPE] = content_type
        include = _include(request.query, content_type)
        packed = _takes_frames(request, content_type, include)
        many = _reads_many(request.query)
        fetch, position = fetch_request(request, name, number, self._limits)
        if packed:
            max_bytes = readable_bytes(fetch.max_bytes, many=many)
            fetch = replace(fetch, packed=True, max_bytes=max_bytes)
        request[ASKED_WAIT_MS] = fetch.max_wait_ms
        end = read_end(request.query, position)
        image = await existing_partition(self._apis, name, number)
        fetch, result, bound = await read_page(self._apis, position, end, fetch)
        if result.packed and not many:
            result = in_one_frame(result)
        try:
            body, coding = _body(result, content_type, fetch, include, many=many)
        except BatchError:  # a rotten batch: read as lines, it is reported as a damaged log
            result = await fetch_or_404(self._apis, replace(fetch, packed=False))
            if bound is not None:
                result = before_bound(result, bound)
            body, coding = _body(result, content_type, fetch, include, many=many)
        headers = self._headers(result, content_type, image) | coding
        if fetch.rack is not None:
            headers |= self._served_by(result)
        if bound is not None:
            headers |= _bound_headers(result, bound)
        return await _send(request, body, headers)

    def _headers(self, result: FetchResult, content_type: str, topic: TopicImage) -> dict[str, str]:
        """Return the headers from which a reader continues, and finds the leader next time."""
        headers = {
            hdrs.CONTENT_TYPE: content_type,
            "Quorumlog-High-Watermark": str(result.high_watermark),
            "Quorumlog-Log-Start-Offset": str(result.log_start_offset),
            "Quorumlog-Next-Offset": str(result.next_offset),
            "Quorumlog-Leader": str(result.leader_id),
            "Quorumlog-Leader-Epoch": str(result.leader_epoch),
            "Quorumlog-Topic-Id": topic.topic_id,
        }
        url = broker_url(self._apis.image, result.leader_id)
        if url is not None:
            headers["Quorumlog-Leader-Url"] = url
        if result.next_leader_epoch != UNKNOWN_EPOCH:
            headers["Quorumlog-Next-Leader-Epoch"] = str(result.next_leader_epoch)
        return headers

    def _served_by(self, result: FetchResult) -> dict[str, str]:
        """Return the headers that name the broker which served a reader that named its rack."""
        served_by = result.leader_id if result.served_by is None else result.served_by
        headers = {"Quorumlog-Served-By": str(served_by)}
        url = broker_url(self._apis.image, served_by)
        if url is not None:
            headers["Quorumlog-Served-By-Url"] = url
        return headers


async def existing_partition(
    apis: BrokerApis, topic: TopicName, partition: PartitionId
) -> TopicImage:
    """Return the topic of a partition that exists, or raise 404/40402."""
    image = await find_topic(apis, topic, partition)
    if image is None:
        raise RestError(404, RestCode.PARTITION_NOT_FOUND, topic_not_found(topic))
    if not 0 <= partition < image.partitions_count:
        text = partition_not_found(topic, partition)
        raise RestError(404, RestCode.PARTITION_NOT_FOUND, text)
    return image


def fetch_request(
    request: web.Request, topic: TopicName, partition: PartitionId, limits: BrokerLimits
) -> tuple[FetchRequest, Position]:
    """Return the fetch that a page needs, and its position.

    The fetch has no start where the ends of the log decide it.

    Raises:
        RestError: 400/40002, a bad parameter.
    """
    query = request.query
    start = read_from(request, partition)
    position, epoch, topic_id = start.position, UNKNOWN_EPOCH, topic_id_of(query)
    if start.token is not None:
        [(offset, epoch)] = start.token.places
        position, topic_id = AtOffset(offset), TopicId(start.token.topic_id)
    fetch = FetchRequest(
        topic=topic,
        partition=partition,
        offset=position.offset if isinstance(position, AtOffset) else None,
        timestamp_ms=position.timestamp_ms if isinstance(position, FromTime) else None,
        max_bytes=declared.MAX_BYTES.read(query, limits),
        max_wait_ms=declared.TIMEOUT.read(query, limits),
        rack=_rack(request),
        leader_epoch=max(epoch, offset_epoch(query, start.position)),
        seen_epoch=seen_epoch(query),
        topic_id=topic_id,
    )
    return fetch, position


def _bound_headers(result: FetchResult, bound: int) -> dict[str, str]:
    reached = {"Quorumlog-End-Reached": "true"} if result.next_offset >= bound else {}
    return {"Quorumlog-End-Offset": str(bound)} | reached


def readable_bytes(max_bytes: int, *, many: bool) -> int:
    """Return the bytes to read for a client that accepts zstd: at most one frame, unless ``many``.

    Bytes that do not fit into the one frame would be thrown away.
    """
    return max_bytes if many else min(max_bytes, BATCH_BYTES_MAX)


def in_one_frame(result: FetchResult) -> FetchResult:
    """Return as much of a compressed result as fits into one frame.

    Many readers silently stop after the first frame (docs/decisions/0008). Given the end of the
    last frame as next offset, they would skip records they never saw.
    """
    kept = fits_one_frame(result.packed)
    slices, packed = split_packed(kept)
    return replace(
        result,
        slices=slices,
        packed=packed,
        next_offset=kept[-1].next_offset,
        next_leader_epoch=last_epoch(kept),
    )


def _body(
    result: FetchResult, content_type: str, fetch: FetchRequest, include: str | None, *, many: bool
) -> tuple[bytes, dict[str, str]]:
    """Return the body, and the headers that describe its coding.

    Raises:
        BatchError: as `framed_once`.
        RestError: 422 for a record that the requested type cannot show.
    """
    if result.packed:
        form = framed if many else framed_as_single
        found = form(result.packed, batch_line if include == "batches" else None)
        return b"".join(found.parts), zstd_headers(found.lines_size)
    try:
        body = _render(result.slices, content_type, fetch, include)
    except RecordNotJsonError as error:
        raise unreadable(error, fetch.topic, fetch.partition) from None
    return body, {hdrs.VARY: hdrs.ACCEPT_ENCODING} if content_type == NDJSON else {}


def zstd_headers(lines_size: int) -> dict[str, str]:
    """Return the headers of a body of zstd frames that decode to ``lines_size`` bytes."""
    return {
        hdrs.CONTENT_ENCODING: ZSTD,
        hdrs.VARY: hdrs.ACCEPT_ENCODING,
        DECODED_LENGTH_HEADER: str(lines_size),
    }


def _reads_many(query: Mapping[str, str]) -> bool:
    return declared.FRAMES.read_optional(query) == MANY_FRAMES


def _takes_frames(request: web.Request, content_type: str, include: str | None) -> bool:
    """Return True if stored frames can be the answer: unchanged lines, and zstd is accepted."""
    if content_type != NDJSON or include == "timestamp":
        return False
    return accepts_zstd(",".join(request.headers.getall(hdrs.ACCEPT_ENCODING, ())))


def _rack(request: web.Request) -> str | None:
    """Return the reader's rack: ``rack=R``, else the header ``Quorumlog-Rack``, else None."""
    if declared.RACK.name in request.query:
        return declared.RACK.read(request.query)
    return declared.RACK_HEADER.read(request.headers)


def _include(query: Mapping[str, str], content_type: str) -> str | None:
    """Return the requested addition to the records: ``timestamp``, ``batches`` or None."""
    include = declared.INCLUDE.read_optional(query)
    if include is not None and include.startswith("tokens"):
        raise bad_parameter("include", include, "it beside 'follow=true' only")
    if include == "batches" and content_type != NDJSON:
        raise bad_parameter("include", include, f"it together with 'Accept: {NDJSON}'")
    return include


def _render(
    slices: Sequence[BatchSlice], content_type: str, fetch: FetchRequest, include: str | None
) -> bytes:
    if content_type in {NDJSON, LINES}:
        if not slices:
            return b"" if content_type == NDJSON else b"[]"
        if include == "batches":
            return lines_with_batches(slices)
        if include == "timestamp":
            lines = b"".join([splice_timestamps(piece) for piece in slices])
            if content_type == NDJSON:
                return lines
            return b"[" + lines[:-1].replace(b"\n", b",") + b"]"
        if content_type == LINES:
            return lines_to_array(slices)
        return b"".join([piece.lines for piece in slices])
    door = RecordFormat.JSON if content_type == V2_JSON else RecordFormat.BINARY
    rendered = [
        render_v2(piece, topic=fetch.topic, partition=fetch.partition, door=door)
        for piece in slices
    ]
    return b"[" + b",".join(rendered) + b"]"


def unreadable(error: RecordNotJsonError, topic: TopicName, partition: PartitionId) -> RestError:
    """Return the refusal of a record that the requested type can't show."""
    return RestError(
        422,
        RestCode.JSON_CONVERSION,
        f"{error.message} of partition {partition} of topic {topic}: "
        f"send 'Accept: {V2_BINARY}' to read it as base64",
    )


async def _send(request: web.Request, body: bytes, headers: dict[str, str]) -> web.StreamResponse:
    if len(body) < SEPARATE_WRITE_BYTES or request.method == "HEAD" or MAY_GZIP in request:
        content_type = headers.pop(hdrs.CONTENT_TYPE)
        return reply(body, content_type, headers=headers)
    headers[hdrs.CONTENT_LENGTH] = str(len(body))
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    await response.write(body)
    await response.write_eof()
    return response
