"""``/v3/clusters`` and its brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.contract import v3
from http_api.contract.errors import RestCode, RestError
from http_api.contract.media_types import JSON
from http_api.server.context import json_reply
from http_api.server.parameters import broker_id
from http_api.server.routes.v3.cluster_path import ClusterPath
from http_api.server.topics import live_brokers

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.server.context import ApiContext
    from http_api.server.routing import Router
    from raft_metadata.image.metadata_image import BrokerRegistration


class ClusterRoutes:
    """The cluster and its brokers. Owner: the app; holds no state of its own."""

    def __init__(self, context: ApiContext) -> None:
        self._context = context
        self._apis = context.apis
        self._path = ClusterPath(context)

    def add_to(self, router: Router) -> None:
        router.add("GET", "/v3/clusters", self.list_clusters, JSON)
        router.add("GET", "/v3/clusters/{cluster}", self.describe, JSON)
        router.add("GET", "/v3/clusters/{cluster}/brokers", self.list_brokers, JSON)
        router.add("GET", "/v3/clusters/{cluster}/brokers/{broker}", self.broker, JSON)

    async def list_clusters(self, request: web.Request) -> web.Response:
        """Always one."""
        links = self._path.enter(request, self._apis.cluster_id)
        data = [v3.cluster(links, self._apis.controller_id)]
        return json_reply(v3.clusters(links.base_url, data), JSON)

    async def describe(self, request: web.Request, cluster: str) -> web.Response:
        """The cluster, with the id of the active controller."""
        links = self._path.enter(request, cluster)
        return json_reply(v3.cluster(links, self._apis.controller_id), JSON)

    async def list_brokers(self, request: web.Request, cluster: str) -> web.Response:
        """The brokers that are alive."""
        links = self._path.enter(request, cluster)
        data = [_broker(links, broker) for broker in live_brokers(self._apis.image)]
        return json_reply(links.collection("KafkaBroker", data, "brokers"), JSON)

    async def broker(self, request: web.Request, cluster: str, broker: str) -> web.Response:
        """One broker."""
        links = self._path.enter(request, cluster)
        wanted = broker_id(broker)
        for registration in live_brokers(self._apis.image):
            if registration.broker_id == wanted:
                return json_reply(_broker(links, registration), JSON)
        raise RestError(404, RestCode.NOT_FOUND, f"Broker {wanted} cannot be found.")


def _broker(links: v3.Links, broker: BrokerRegistration) -> v3.JsonObject:
    return v3.broker(links, broker.broker_id, broker.http, broker.rack)
