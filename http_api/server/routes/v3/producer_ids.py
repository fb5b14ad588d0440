"""``POST …/producer-ids``: an id under which writes may be sent again without duplicates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.contract.idempotence import producer_id
from http_api.contract.media_types import JSON
from http_api.server.bodies import MAX_ADMIN_BODY_BYTES, read_optional_json_object
from http_api.server.body_fields import check_fields
from http_api.server.context import json_reply
from http_api.server.routes.v3.cluster_path import ClusterPath

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.server.context import ApiContext
    from http_api.server.routing import Router


class ProducerIdRoutes:
    """Producer ids of the v3 API. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._body_bytes_max = min(context.limits.max_body_bytes, MAX_ADMIN_BODY_BYTES)
        self._path = ClusterPath(context)

    def add_to(self, router: Router) -> None:
        router.add("POST", "/v3/clusters/{cluster}/producer-ids", self.create, JSON)

    async def create(self, request: web.Request, cluster: str) -> web.Response:
        """Answer a new producer id each time: a lost answer only wastes an id."""
        links = self._path.enter(request, cluster)
        check_fields(await read_optional_json_object(request, self._body_bytes_max), ())
        return json_reply(producer_id(links, await self._apis.producer_id()), JSON)
