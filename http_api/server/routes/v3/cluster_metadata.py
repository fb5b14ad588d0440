"""``/v3/clusters/C/quorum``, ``…:health``, ``…/metadata/log``, ``…/metadata/image``: reads only.

Each handler renders one answer of the broker's `metadata` interface.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import orjson
from aiohttp import web

from http_api.contract import v3
from http_api.contract.errors import RestCode, RestError
from http_api.contract.media_types import JSON, NDJSON
from http_api.contract.operations import cluster_operations as declared
from http_api.server.access_log import ASKED_WAIT_MS
from http_api.server.answers import json_reply
from http_api.server.quorum_shapes import quorum as quorum_shape
from http_api.server.routes.v3.clusters import V3Routes
from raft_metadata.common.ids import MetadataOffset
from raft_metadata.image.facts import FactConverter
from raft_metadata.image.image_view import UnknownPathError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from broker.server.metadata_requests import MetadataLogPage
    from http_api.server.routing import PathRouter
    from raft_metadata.image.facts import Fact


MAX_REFUSAL_CHARS = 4_096
"""Longest message of a refused path; it lists the names that exist there."""
FACTS_PER_TURN = 100
"""Facts encoded before the loop runs other tasks: about 5 ms of work."""
LOG_REPLIES: Mapping[str, str] = {NDJSON: NDJSON}


class ClusterMetadataRoutes(V3Routes):
    """Quorum, health, metadata log and image."""

    def add_to(self, router: PathRouter) -> None:
        self._serve(router, declared.QUORUM, self.quorum)
        self._serve(router, declared.HEALTH, self.health)
        self._serve(router, declared.LOG, self.log, LOG_REPLIES)
        for operation in declared.IMAGE:
            self._serve(router, operation, self.image)

    async def quorum(self, request: web.Request) -> v3.JsonObject:
        """Answer leader, voters and observers of the quorum; 503 when no controller answers."""
        view = await self._apis.metadata.quorum()
        return quorum_shape(
            self._links,
            view.told_by,
            is_from_leader=view.is_from_leader,
            urls={int(node): url for node, url in view.urls.items()},
            answers={int(node): state for node, state in view.controllers.items()},
        )

    async def health(self, request: web.Request) -> v3.JsonObject:
        """Answer the cluster's health, always with 200: poor health is no failed request."""
        found = await self._apis.metadata.health()
        reasons = [
            v3.health_reason(
                reason.code, reason.status.value, reason.message, reason.count, reason.examples
            )
            for reason in found.reasons
        ]
        return v3.health(
            self._links,
            found.status.value,
            reasons,
            found.counts,
            found.controller_id,
            found.metadata_offset,
        )

    async def image(self, request: web.Request, *path: str) -> web.Response:
        """Answer one place of this broker's metadata image, with all that is below it."""
        try:
            next_offset, value = await self._apis.metadata.image_at(path)
        except UnknownPathError as error:
            text = str(error)[:MAX_REFUSAL_CHARS].encode(errors="replace").decode()
            raise RestError(404, RestCode.NOT_FOUND, text) from None
        return json_reply(value, JSON, headers={declared.NEXT_OFFSET.name: str(next_offset)})

    async def log(self, request: web.Request) -> web.StreamResponse:
        """Answer the metadata log from ``offset`` on as NDJSON, a fact a line; wait at its end."""
        query = request.query
        offset = MetadataOffset(declared.LOG_OFFSET.read(query))
        timeout_ms = declared.LOG_TIMEOUT.read(query)
        facts_max = declared.LOG_MAX.read(query)
        before = self._apis.image
        request[ASKED_WAIT_MS] = timeout_ms
        page = await self._apis.metadata.log(offset, timeout_ms)
        converter = FactConverter(
            self._apis.image, before if before.next_offset == offset else None
        )
        next_offset = _next_offset(page, offset, facts_max)
        response = web.StreamResponse(
            headers={
                "Content-Type": NDJSON,
                declared.NEXT_OFFSET.name: str(next_offset),
                declared.END_OFFSET.name: str(page.end_offset),
            }
        )
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        lines: list[bytes] = []
        for fact in _facts(converter, page, offset, next_offset):
            lines.append(orjson.dumps(fact))
            if len(lines) >= FACTS_PER_TURN:
                await response.write(b"\n".join(lines) + b"\n")
                lines.clear()
                await asyncio.sleep(0)
        if lines:
            await response.write(b"\n".join(lines) + b"\n")
        await response.write_eof()
        return response


def _next_offset(page: MetadataLogPage, offset: int, facts_max: int) -> int:
    """Return the offset at which to continue after this answer."""
    if page.instead is not None:
        return page.instead.next_offset
    end = max((batch.base_offset + len(batch.records) for batch in page.batches), default=offset)
    return min(end, offset + facts_max)


def _facts(
    converter: FactConverter, page: MetadataLogPage, offset: int, next_offset: int
) -> Iterator[Fact]:
    """Yield the facts from ``offset`` up to ``next_offset``; the first batch may begin earlier.

    A snapshot in place of the log yields all its facts.
    """
    if page.instead is not None:
        yield from converter.snapshot_facts(page.instead)
        return
    for batch in page.batches:
        for fact in converter.batch_facts(batch):
            if fact["offset"] >= next_offset:
                return
            if fact["offset"] >= offset:
                yield fact
