"""``GET …/topics/T/records`` and ``…/partitions/P/records`` of v3: records as lists, or as a tail.

The same reads as those of v2, in v3's shapes: a page is a ``KafkaRecordList``, whose
``metadata.next`` is the URL to read on with, null where the bound of the read is reached. A tail
has the records of such a list, one a line or one an event.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode

import orjson

from broker.record.render import render_v3
from http_api.contract.media_types import JSON, TAIL_REPLIES, V3_READ_REPLIES, V3_REPLIES
from http_api.contract.operations import tail_operations as declared
from http_api.contract.operations.shared import ISOLATION
from http_api.contract.tail_tokens import Place, ReadToken, encode_token
from http_api.server.access_log import ASKED_WAIT_MS
from http_api.server.answers import reply
from http_api.server.position_lookup import read_page
from http_api.server.query_parameters import read_end
from http_api.server.request_parsing import (
    bad_parameter,
    check_accept,
    partition_id,
    topic_name,
)
from http_api.server.routes.v2.fetch_records import existing_partition, fetch_request
from http_api.server.routes.v2.topic_records import (
    existing_topic,
    topic_page,
)
from http_api.server.routes.v3.clusters import V3Routes
from http_api.server.tail_shapes import v3_lines
from http_api.server.tails import TOPIC_ID_HEADER, serve_tail, tail_includes, wanted_tail

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from aiohttp import web

    from http_api.server.answers import ApiContext
    from http_api.server.routes.v2.topic_records import Found
    from http_api.server.routing import PathRouter

_KEPT: Final = ("end_timestamp", "max_bytes", "timeout", "rack")
"""Parameters of a page that hold for the next one, too."""
_REPLIES: Final = {**V3_REPLIES, **TAIL_REPLIES}


class RecordListRoutes(V3Routes):
    """Reads of the v3 API. Owner: the app; holds only the turn of partitions."""

    def __init__(self, context: ApiContext) -> None:
        super().__init__(context)
        self._context = context
        self._turns = itertools.count()

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.V3_TOPIC, self.of_topic, _REPLIES)
        self._serve(router, declared.V3_PARTITION, self.of_partition, _REPLIES)

    async def of_topic(self, request: web.Request, topic: str) -> web.StreamResponse:
        """Answer records of all partitions, as a list or as a tail."""
        name = topic_name(topic)
        tail_type = _wanted_tail(request)
        image = await existing_topic(self._apis, name)
        if tail_type is not None:
            return await serve_tail(self._context, request, image, None, tail_type, v3_lines)
        found, headers = await topic_page(self._context, request, image, next(self._turns))
        is_over = "Quorumlog-End-Reached" in headers
        after = None if is_over else {"after": headers[declared.NEXT], **_kept(request.query)}
        return self._list(found, ("topics", name, "records"), after, headers)

    async def of_partition(
        self, request: web.Request, topic: str, partition: str
    ) -> web.StreamResponse:
        """Answer records of one partition, as a list or as a tail."""
        name, number = topic_name(topic), partition_id(partition)
        tail_type = _wanted_tail(request)
        if tail_type is not None:
            image = await existing_partition(self._apis, name, number)
            return await serve_tail(self._context, request, image, number, tail_type, v3_lines)
        query = request.query
        fetch, position = fetch_request(request, name, number, self._limits)
        request[ASKED_WAIT_MS] = fetch.max_wait_ms
        end = read_end(query, position)
        image = await existing_partition(self._apis, name, number)
        fetch, result, bound = await read_page(self._apis, position, end, fetch)
        topic_id = fetch.topic_id or image.topic_id
        place = Place(result.next_offset, result.next_leader_epoch)
        token = encode_token(ReadToken(topic_id, (place,), number))
        after = {"after": token, **_kept(query)}
        if bound is not None:
            after["end_offset"] = str(bound)
        is_over = bound is not None and result.next_offset >= bound
        path = ("topics", name, "partitions", str(number), "records")
        headers = {TOPIC_ID_HEADER: topic_id}
        return self._list([(number, result.slices)], path, None if is_over else after, headers)

    def _list(
        self,
        found: Sequence[Found],
        path: Sequence[str],
        after: Mapping[str, str] | None,
        headers: Mapping[str, str],
    ) -> web.Response:
        """Return a ``KafkaRecordList``; ``after`` are the parameters of the next page's URL."""
        url = self._links.url(*path)
        following = None if after is None else f"{url}?{urlencode(after)}"
        head = {"kind": "KafkaRecordList", "metadata": {"self": url, "next": following}, "data": []}
        texts = [
            text
            for number, slices in found
            for piece in slices
            for text in render_v3(piece, number)
        ]
        body = orjson.dumps(head)[:-2] + b",".join(texts) + b"]}"
        return reply(body, JSON, headers=headers)


def _wanted_tail(request: web.Request) -> str | None:
    ISOLATION.read(request.query)
    tail_type = wanted_tail(request, V3_READ_REPLIES)
    if tail_type is None:
        check_accept(request, V3_REPLIES)
        if "include" in request.query:
            raise bad_parameter("include", request.query["include"], "it beside 'follow=true' only")
    elif tail_includes(request.query) - {"tokens"}:
        raise bad_parameter("include", request.query["include"], "tokens")
    return tail_type


def _kept(query: Mapping[str, str]) -> dict[str, str]:
    return {name: query[name] for name in _KEPT if name in query}
