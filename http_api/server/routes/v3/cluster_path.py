"""Checks common to every path under ``/v3/clusters/C``: the cluster id and Accept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from http_api.contract.errors import RestCode, RestError, shown
from http_api.contract.media_types import V3_REPLIES, choose_reply
from http_api.contract.v3 import Links
from http_api.server.bodies import accept_of, not_acceptable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import web

    from http_api.server.context import ApiContext


class ClusterPath:
    """The path prefix of this cluster; checks requests and supplies the links of answers."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._links = Links(context.advertised_url, context.apis.cluster_id)

    def enter(
        self, request: web.Request, cluster: str, replies: Mapping[str, str] = V3_REPLIES
    ) -> Links:
        """Return the links of this cluster; 404 for another cluster id, 406 for another Accept."""
        if cluster != self._apis.cluster_id:
            raise RestError(404, RestCode.NOT_FOUND, f"Cluster {shown(cluster)} cannot be found.")
        if choose_reply(accept_of(request), replies) is None:
            raise not_acceptable(request, *replies)
        return self._links
