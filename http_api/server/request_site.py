"""Address at which the client of a request sees this broker, and the URLs of the answer.

`app.py` calls `enter_request` before a request's handler. From then on `base_url`,
`links_of_request` and `broker_url` answer for that request, in its own task and in the tasks it
starts. Behind a trusted proxy URLs begin with what the proxy reports, and brokers are not named by
URL: that would lead past the proxy.

The fast lane has no task of a request; it leaves forwarded requests to the routes.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

from http_api.contract.v3 import Links

if TYPE_CHECKING:
    from aiohttp import web

    from http_api.contract.forwarding import Forwarded, TrustedProxies
    from http_api.server.answers import ApiContext
    from raft_metadata.common.ids import BrokerId
    from raft_metadata.image.metadata_image import MetadataImage

_FORWARDED: ContextVar[Forwarded | None] = ContextVar("forwarded", default=None)
"""Report of the trusted proxy that forwarded the present request; None: it was not forwarded."""


def peer_host(transport_peer: object) -> str:
    """Return the IP address of a connection's other end, from its ``peername``."""
    if isinstance(transport_peer, tuple) and transport_peer:
        return str(transport_peer[0]).partition("%")[0]  # without the zone of a link-local one
    return ""


def enter_request(request: web.BaseRequest, proxies: TrustedProxies) -> Forwarded | None:
    """Make this the present request of the running task; return its trusted proxy's report."""
    forwarded = forwarded_of(request, proxies)
    if forwarded is not None:
        _FORWARDED.set(forwarded)
    return forwarded


def forwarded_of(request: web.BaseRequest, proxies: TrustedProxies) -> Forwarded | None:
    """Return the report of the trusted proxy that forwarded a request, or None."""
    if not proxies.includes(_peer(request)):
        return None
    return proxies.forwarded_by(list(request.headers.items()))


def client_host(request: web.BaseRequest, proxies: TrustedProxies) -> str:
    """Return the IP address of a request's client: as a trusted proxy reports it, else the peer."""
    forwarded = forwarded_of(request, proxies)
    if forwarded is not None and forwarded.client is not None:
        return forwarded.client
    return _peer(request)


def _peer(request: web.BaseRequest) -> str:
    """Return the IP address of the connection's other end, also once it is closed."""
    return peer_host((request.remote,) if request.remote else None)


def is_forwarded() -> bool:
    """Return True if a trusted proxy forwarded the present request."""
    return _FORWARDED.get() is not None


def base_url(context: ApiContext) -> str:
    """Return the URL in front of every path for the client of the present request; no slash."""
    forwarded = _FORWARDED.get()
    if forwarded is None:
        return context.advertised_url
    return forwarded.base_url(context.advertised_url)


def links_of_request(context: ApiContext) -> Links:
    """Return the links of the v3 API for the client of the present request."""
    return Links(base_url(context), context.apis.cluster_id)


def leader_url(image: MetadataImage, leader: BrokerId) -> str | None:
    """Return the broker's URL, or None if the image does not know the broker."""
    broker = image.brokers.get(leader)
    return None if broker is None else f"http://{broker.http}"


def broker_url(image: MetadataImage, broker: BrokerId) -> str | None:
    """Return the URL of a broker for the client of the present request.

    None if the image does not know the broker, or a proxy forwarded the request.
    """
    return None if is_forwarded() else leader_url(image, broker)
