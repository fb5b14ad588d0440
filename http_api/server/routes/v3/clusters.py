"""``/v3/clusters`` and its direct children: features, access rules, producer ids.

`V3Routes` is the base of all routes under ``/v3/clusters/C``: what they hold, and the checks common
to every path, of the cluster id and Accept.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NoReturn, TypeVar

from http_api.contract import v3
from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.idempotence import producer_id
from http_api.contract.media_types import JSON, V3_REPLIES
from http_api.contract.operations import cluster_operations as declared
from http_api.contract.operations.declaration import fields_of
from http_api.contract.resources import Features
from http_api.server.answers import json_reply
from http_api.server.pages import page_of
from http_api.server.request_parsing import (
    MAX_ADMIN_BODY_BYTES,
    check_accept,
    check_fields,
    flag,
    integer,
    read_json_object,
    read_optional_json_object,
    wrong_kind,
)
from http_api.server.request_site import links_of_request
from raft_metadata.records.commands import UpgradeMetadata
from raft_metadata.records.feature_levels import FIRST_LEVEL, SUPPORTED_FEATURE_LEVEL

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from aiohttp import web

    from http_api.contract.operations.declaration import Operation
    from http_api.contract.v3 import Links
    from http_api.server.answers import ApiContext
    from http_api.server.pages import PageKey
    from http_api.server.routing import Handler, PathRouter

T = TypeVar("T")

ALL = "-"
"""Segment of a path that means all topics, partitions or brokers."""


V3Handler = Callable[..., Awaitable["v3.JsonObject | web.StreamResponse"]]
"""Signature ``async handler(request, *parameters)``; an object is the answer's JSON."""


class V3Routes:
    """Base of the routes below this cluster's path. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._apis = context.apis
        self._limits = context.limits
        self._body_bytes_max = min(context.limits.max_body_bytes, MAX_ADMIN_BODY_BYTES)
        self._context = context

    @property
    def _links(self) -> Links:
        """Links for the client of the present request."""
        return links_of_request(self._context)

    def _serve(
        self,
        router: PathRouter,
        operation: Operation,
        handler: V3Handler,
        replies: Mapping[str, str] = V3_REPLIES,
    ) -> None:
        """Serve an operation below this cluster; 404 for another cluster, 406 for another Accept.

        ``replies`` maps the types that Accept may name to those of the answers.
        """
        router.serve(operation, self._checked(handler, replies))

    def _checked(self, handler: V3Handler, replies: Mapping[str, str]) -> Handler:
        async def handle(
            request: web.Request, cluster: str, *parameters: str
        ) -> web.StreamResponse:
            if cluster != self._apis.cluster_id:
                text = f"Cluster {excerpt(cluster)} cannot be found."
                raise RestError(404, RestCode.NOT_FOUND, text)
            check_accept(request, replies)
            answer = await handler(request, *parameters)
            return json_reply(answer, JSON) if isinstance(answer, dict) else answer

        return handle

    def _page(
        self,
        request: web.Request,
        kind: str,
        items: Iterable[T],
        *,
        key: Callable[[T], PageKey],
        shape: Callable[[T], v3.JsonObject],
        path: tuple[object, ...],
    ) -> v3.JsonObject:
        """Answer a list, or the page of it that the query names; ``path`` lies below the cluster.

        ``key`` gives the names and numbers by which the list is ordered, ``shape`` the resource.
        """
        url = self._links.url(*path)
        page = page_of(request.query, url, items, key)
        data = [shape(item) for item in page.items]
        return self._links.collection(kind, data, *path, next_url=page.next_url)


class ClusterRoutes(V3Routes):
    """The cluster, its features, access rules and producer ids."""

    def add_to(self, router: PathRouter) -> None:
        router.serve(declared.LIST, self.list_clusters)
        self._serve(router, declared.DESCRIBE, self.describe)
        self._serve(router, declared.FEATURES, self.features)
        self._serve(router, declared.UPGRADE, self.upgrade)
        self._serve(router, declared.PRODUCER_ID, self.producer_id)
        for operation in declared.ACCESS_RULES:
            self._serve(router, operation, self.no_access_rules)

    async def list_clusters(self, request: web.Request) -> web.Response:
        """Answer a list of exactly one cluster: this one."""
        check_accept(request, V3_REPLIES)
        url = f"{self._links.base_url}/v3/clusters"
        page = page_of(
            request.query, url, [self._apis.cluster_id], lambda cluster_id: (cluster_id,)
        )
        data = [v3.cluster(self._links, self._apis.controller_id) for _ in page.items]
        return json_reply(v3.clusters(self._links.base_url, data), JSON)

    async def describe(self, request: web.Request) -> v3.JsonObject:
        """Answer the cluster, with the id of the active controller."""
        return v3.cluster(self._links, self._apis.controller_id)

    async def features(self, request: web.Request) -> v3.JsonObject:
        """Answer the finalized and the supported levels of ``metadata.version``."""
        return self._features(self._apis.image.feature_level)

    async def upgrade(self, request: web.Request) -> v3.JsonObject:
        """Raise ``metadata.version``, never lower it; null: to the highest level of every node."""
        fields = await read_json_object(request, self._body_bytes_max, '{"metadata_version":…}')
        check_fields(fields, fields_of(declared.UPGRADE))
        if "metadata_version" not in fields:
            expected = "a level, or null for the highest that every node can follow"
            raise wrong_kind("metadata_version", None, expected)
        command = UpgradeMetadata(
            level=integer(fields, "metadata_version"), validate_only=flag(fields, "validate_only")
        )
        upgraded = await self._apis.admin(command)
        body = self._features(upgraded.level)
        return body | {"metadata_version_before": upgraded.level_before}

    def _features(self, level: int) -> v3.JsonObject:
        brokers = self._apis.image.brokers.values()
        found = Features(
            metadata_version=level,
            supported_min=FIRST_LEVEL,
            supported_max=SUPPORTED_FEATURE_LEVEL,
            brokers={broker.broker_id: broker.feature_level_max for broker in brokers},
        )
        return v3.features(self._links, found)

    async def no_access_rules(self, request: web.Request) -> NoReturn:
        """Refuse access rules as Kafka without an authorizer does."""
        raise RestError(400, RestCode.KAFKA_BAD_REQUEST, v3.NO_AUTHORIZER)

    async def producer_id(self, request: web.Request) -> v3.JsonObject:
        """Answer a new producer id each time: a lost answer only wastes an id."""
        check_fields(await read_optional_json_object(request, self._body_bytes_max, "{}"), ())
        return producer_id(self._links, await self._apis.producer_id())
