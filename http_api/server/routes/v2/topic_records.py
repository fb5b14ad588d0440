"""``GET /topics/T/records``: a whole topic, in pages that a token continues, or as a tail.

A page holds some records of each partition in turn, and ``Quorumlog-Next`` is the token of what
comes behind it. Nothing is kept here between two pages. The v3 twin of this path is in
`routes/v3/record_lists.py`.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from aiohttp import web

from broker.record.batch import BatchSlice, RecordFormat
from broker.record.render import render_v2
from broker.record.values import RecordNotJsonError
from http_api.contract.errors import RestCode, RestError
from http_api.contract.media_types import (
    FETCH_REPLIES,
    LINES,
    NDJSON,
    READ_REPLIES,
    V2_BINARY,
    V2_JSON,
    choose_reply,
)
from http_api.contract.operations import tail_operations as declared
from http_api.contract.operations.fetch_operations import MAX_BYTES, TIMEOUT
from http_api.contract.operations.shared import ISOLATION
from http_api.server.access_log import ASKED_WAIT_MS
from http_api.server.answers import ERROR_TYPE, reply
from http_api.server.image_lookup import find_topic, topic_not_found
from http_api.server.request_parsing import (
    accept_of,
    bad_parameter,
    not_acceptable,
    topic_name,
)
from http_api.server.routes.v2.fetch_records import unreadable
from http_api.server.tail_shapes import of_partition, stored_lines, timed_lines
from http_api.server.tails import (
    TOPIC_ID_HEADER,
    read_from,
    reader_of,
    serve_tail,
    tail_includes,
    wanted_tail,
)
from http_api.server.topic_reader import read_pages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from broker.config import BrokerLimits
    from broker.server.requests import BrokerApis
    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter
    from raft_metadata.common.ids import PartitionId, TopicName
    from raft_metadata.image.metadata_image import TopicImage

Found = tuple["PartitionId", "Sequence[BatchSlice]"]


class TopicReadRoutes:
    """Reads of whole topics in the v2 API. Owner: the app; holds only the turn of partitions."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._turns = itertools.count()
        """Number of the partition that the next page begins with, so that all have their turn."""

    def add_to(self, router: PathRouter) -> None:
        router.serve(declared.RECORDS, self.records)

    async def records(self, request: web.Request, topic: str) -> web.StreamResponse:
        """Answer records of all partitions, as a page or as a tail."""
        name = topic_name(topic)
        ISOLATION.read(request.query)
        tail_type = wanted_tail(request, READ_REPLIES)
        if tail_type is not None:
            timed = "timestamp" in tail_includes(request.query)
            lines = of_partition(timed_lines if timed else stored_lines)
            image = await existing_topic(self._context.apis, name)
            return await serve_tail(self._context, request, image, None, tail_type, lines)
        content_type = choose_reply(accept_of(request), FETCH_REPLIES)
        if content_type is None:
            raise not_acceptable(request, V2_JSON, V2_BINARY, NDJSON, LINES)
        request[ERROR_TYPE] = content_type
        include = request.query.get("include")
        if include not in {None, "timestamp"}:
            raise bad_parameter("include", include, "timestamp")
        image = await existing_topic(self._context.apis, name)
        found, headers = await topic_page(self._context, request, image, next(self._turns))
        body = _body(found, content_type, name, timed=include is not None)
        return reply(body, content_type, headers=headers)


async def existing_topic(apis: BrokerApis, name: TopicName) -> TopicImage:
    """Return a topic that exists, or raise 404/40401."""
    image = await find_topic(apis, name)
    if image is None:
        raise RestError(404, RestCode.TOPIC_NOT_FOUND, topic_not_found(name))
    return image


def page_limits(query: Mapping[str, str], limits: BrokerLimits) -> tuple[int, int]:
    """Return the bytes of a page, and the milliseconds to wait for a first record."""
    return MAX_BYTES.read(query, limits), TIMEOUT.read(query, limits)


async def topic_page(
    context: ApiContext, request: web.Request, topic: TopicImage, turn: int
) -> tuple[list[Found], dict[str, str]]:
    """Return a page of a whole topic, and its headers; ``turn`` says which partition comes first.

    Raises as the first read of a tail.
    """
    query = request.query
    max_bytes, wait_ms = page_limits(query, context.limits)
    request[ASKED_WAIT_MS] = wait_ms
    start = read_from(request, None)
    reader = await reader_of(context, query, topic, None, start, first=turn)
    try:
        found = await read_pages(reader, context.streams.waits, max_bytes, wait_ms)
        headers = {TOPIC_ID_HEADER: reader.topic.topic_id, declared.NEXT: reader.token()}
        if reader.is_at_end:
            headers["Quorumlog-End-Reached"] = "true"
    finally:
        reader.close()
    return found, headers


def _body(found: Sequence[Found], content_type: str, topic: TopicName, *, timed: bool) -> bytes:
    if content_type in {NDJSON, LINES}:
        lines_of = of_partition(timed_lines if timed else stored_lines)
        lines = b"".join(
            [lines_of(piece, partition) for partition, slices in found for piece in slices]
        )
        if content_type == NDJSON:
            return lines
        return b"[" + lines[:-1].replace(b"\n", b",") + b"]"
    door = RecordFormat.JSON if content_type == V2_JSON else RecordFormat.BINARY
    rendered = []
    for partition, slices in found:
        try:
            rendered += [
                render_v2(piece, topic=topic, partition=partition, door=door) for piece in slices
            ]
        except RecordNotJsonError as error:
            raise unreadable(error, topic, partition) from None
    return b"[" + b",".join(rendered) + b"]"
