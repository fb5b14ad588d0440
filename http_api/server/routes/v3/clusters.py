"""``/v3/clusters`` and its direct children: features, access rules, producer ids.

`V3Routes` is the base of all routes under ``/v3/clusters/C``: what they hold, and the checks common
to every path, of the cluster id and Accept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.contract import v3
from http_api.contract.errors import RestCode, RestError, excerpt
from http_api.contract.idempotence import producer_id
from http_api.contract.media_types import JSON, V3_REPLIES, choose_reply
from http_api.contract.resources import Features
from http_api.contract.v3 import Links
from http_api.server.answers import json_reply
from http_api.server.request_parsing import (
    MAX_ADMIN_BODY_BYTES,
    accept_of,
    check_fields,
    flag,
    integer,
    not_acceptable,
    read_json_object,
    read_optional_json_object,
    wrong_kind,
)
from raft_metadata.records.commands import UpgradeMetadata
from raft_metadata.records.feature_levels import FIRST_LEVEL, SUPPORTED_FEATURE_LEVEL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from http_api.server.answers import ApiContext
    from http_api.server.routing import PathRouter


ALL = "-"
"""Segment of a path that means all topics, partitions or brokers."""


class V3Routes:
    """Base of the routes below this cluster's path. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._limits = context.limits
        self._body_bytes_max = min(context.limits.max_body_bytes, MAX_ADMIN_BODY_BYTES)
        self._links = Links(context.advertised_url, context.apis.cluster_id)

    def _enter(
        self, request: web.Request, cluster: str, replies: Mapping[str, str] = V3_REPLIES
    ) -> Links:
        """Return the links of this cluster; 404 for another cluster id, 406 for another Accept."""
        if cluster != self._apis.cluster_id:
            raise RestError(404, RestCode.NOT_FOUND, f"Cluster {excerpt(cluster)} cannot be found.")
        if choose_reply(accept_of(request), replies) is None:
            raise not_acceptable(request, *replies)
        return self._links


_UPGRADE = ("metadata_version", "validate_only")


class ClusterRoutes(V3Routes):
    """The cluster, its features, its access rules."""

    def add_to(self, router: PathRouter) -> None:
        cluster = "/v3/clusters/{cluster}"
        router.add("GET", "/v3/clusters", self.list_clusters, JSON)
        router.add("GET", cluster, self.describe, JSON)
        router.add("GET", cluster + "/features", self.features, JSON)
        router.add("PATCH", cluster + "/features", self.upgrade, JSON)
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            router.add(method, cluster + "/acls", self.no_access_rules, JSON)
        router.add("POST", cluster + "/acls:batch", self.no_access_rules, JSON)

    async def list_clusters(self, request: web.Request) -> web.Response:
        """Answer a list of exactly one cluster: this one."""
        links = self._enter(request, self._apis.cluster_id)
        data = [v3.cluster(links, self._apis.controller_id)]
        return json_reply(v3.clusters(links.base_url, data), JSON)

    async def describe(self, request: web.Request, cluster: str) -> web.Response:
        """Answer the cluster, with the id of the active controller."""
        links = self._enter(request, cluster)
        return json_reply(v3.cluster(links, self._apis.controller_id), JSON)

    async def features(self, request: web.Request, cluster: str) -> web.Response:
        """Answer the finalized and the supported levels of ``metadata.version``."""
        links = self._enter(request, cluster)
        return json_reply(self._features(links, self._apis.image.feature_level), JSON)

    async def upgrade(self, request: web.Request, cluster: str) -> web.Response:
        """Raise ``metadata.version``, never lower it; null: to the highest level of every node."""
        links = self._enter(request, cluster)
        fields = await read_json_object(request, self._body_bytes_max)
        check_fields(fields, _UPGRADE)
        if "metadata_version" not in fields:
            expected = "a level, or null for the highest that every node can follow"
            raise wrong_kind("metadata_version", None, expected)
        command = UpgradeMetadata(
            level=integer(fields, "metadata_version"), validate_only=flag(fields, "validate_only")
        )
        upgraded = await self._apis.admin(command)
        body = self._features(links, upgraded.level)
        return json_reply(body | {"metadata_version_before": upgraded.level_before}, JSON)

    def _features(self, links: v3.Links, level: int) -> v3.JsonObject:
        brokers = self._apis.image.brokers.values()
        found = Features(
            metadata_version=level,
            supported_min=FIRST_LEVEL,
            supported_max=SUPPORTED_FEATURE_LEVEL,
            brokers={broker.broker_id: broker.feature_level_max for broker in brokers},
        )
        return v3.features(links, found)

    async def no_access_rules(self, request: web.Request, cluster: str) -> web.Response:
        """Refuse access rules as Kafka without an authorizer does."""
        self._enter(request, cluster)
        raise RestError(400, RestCode.KAFKA_BAD_REQUEST, v3.NO_AUTHORIZER)


class ProducerIdRoutes(V3Routes):
    """Producer ids of the v3 API."""

    def add_to(self, router: PathRouter) -> None:
        router.add("POST", "/v3/clusters/{cluster}/producer-ids", self.create, JSON)

    async def create(self, request: web.Request, cluster: str) -> web.Response:
        """Answer a new producer id each time: a lost answer only wastes an id."""
        links = self._enter(request, cluster)
        check_fields(await read_optional_json_object(request, self._body_bytes_max), ())
        return json_reply(producer_id(links, await self._apis.producer_id()), JSON)
