"""What every path under ``/v3/clusters/C`` checks first."""

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
    """Checks the cluster id and Accept; gives the links of the answer."""

    def __init__(self, context: ApiContext) -> None:
        self._apis = context.apis
        self._links = Links(context.advertised_url, context.apis.cluster_id)

    def enter(
        self, request: web.Request, cluster: str, replies: Mapping[str, str] = V3_REPLIES
    ) -> Links:
        """The links of this cluster, or 404 for another one, 406 for another Accept."""
        if cluster != self._apis.cluster_id:
            raise RestError(404, RestCode.NOT_FOUND, f"Cluster {shown(cluster)} cannot be found.")
        if choose_reply(accept_of(request), replies) is None:
            raise not_acceptable(request, *replies)
        return self._links
