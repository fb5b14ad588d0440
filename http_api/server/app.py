"""The public HTTP listener of a broker: the app, and the server that owns its connections.

`broker_node.py` calls `build_app` with the broker's interface and runs the result in an
`HttpServer`. A request is first offered to the fast lane (`lane_connection.py`). Otherwise aiohttp
passes it through the error middleware to `dispatch`, which resolves the route, checks the names of
its query parameters and calls its handler. Every answer gets ``X-Request-Id`` and ``Server``.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from typing import TYPE_CHECKING

from aiohttp import web

from http_api.contract.foreign_pages import ANY_HOST, TrustedHosts
from http_api.contract.operations.declaration import Operation
from http_api.server.answers import (
    ERROR_TYPE,
    MAX_HEADERS,
    SERVER,
    ApiContext,
    RequestIds,
    error_middleware,
)
from http_api.server.fast_lane import FastLane
from http_api.server.lane_connection import LaneConnection
from http_api.server.query_parameters import (
    IGNORED_PARAMETERS_HEADER,
    check_parameters,
    ignored_header,
)
from http_api.server.request_parsing import continue_unless_too_large
from http_api.server.routes.api_document import DocumentRoutes
from http_api.server.routes.broker_state import OpsRoutes, StateRoutes
from http_api.server.routes.v2.consumer_instances import ConsumerRoutes
from http_api.server.routes.v2.fetch_records import FetchRoutes
from http_api.server.routes.v2.produce_records import ProduceRoutes
from http_api.server.routes.v2.topic_metadata import MetadataRoutes
from http_api.server.routes.v3.brokers import BrokerRoutes
from http_api.server.routes.v3.cluster_metadata import ClusterMetadataRoutes
from http_api.server.routes.v3.clusters import ClusterRoutes
from http_api.server.routes.v3.configs import ConfigRoutes
from http_api.server.routes.v3.consumer_groups import ConsumerGroupRoutes
from http_api.server.routes.v3.partitions import PartitionRoutes, ReassignmentRoutes
from http_api.server.routes.v3.records import RecordRoutes
from http_api.server.routes.v3.topics import TopicRoutes
from http_api.server.routing import PathRouter, RouteGroup
from http_api.server.streams import StreamRegistry
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    from broker.config import BrokerLimits
    from broker.server.debug_state import BrokerDebugState
    from broker.server.requests import BrokerApis

_log = logging.getLogger("http_api.server")

READ_BUFFER_BYTES = 4_194_304
"""Body bytes buffered before the socket is paused: 20 % faster at 1 MB bodies than aiohttp's
64 KB."""
SHUTDOWN_GRACE_S = 3.0
"""Time for requests in flight at `HttpServer.stop` to finish; then they are cancelled."""
KEEPALIVE_S = 75.0
BACKLOG = 1_024
OPERATION = web.RequestKey("operation", Operation)
"""Declaration of the route that handles a request; missing where no route does."""
IGNORED = web.RequestKey("ignored", tuple[str, ...])
"""Names of a request's query parameters that have no effect."""
LANE: web.AppKey[FastLane | None] = web.AppKey("lane")
"""The app's fast lane; None: aiohttp handles every request."""


def build_app(
    apis: BrokerApis,
    limits: BrokerLimits,
    advertised_url: str,
    debug_state: BrokerDebugState | None = None,
    trusted: TrustedHosts = ANY_HOST,
) -> web.Application:
    """Return the app with every route of the public listener, in front of ``apis``.

    Answers name this broker as ``advertised_url`` (``http://host:port``). ``debug_state`` gives the
    debug state of this broker; None: its paths are not served. Requests of web pages are served
    under the names in ``trusted`` only.
    """
    streams = StreamRegistry(limits.max_streams)
    context = ApiContext(apis, limits, advertised_url.rstrip("/"), streams, trusted)
    ids = RequestIds()
    router = PathRouter()
    for routes in _routes(context):
        routes.add_to(router)
    if debug_state is not None:
        StateRoutes(debug_state).add_to(router)
    DocumentRoutes(context).add_to(router)

    async def dispatch(request: web.Request) -> web.StreamResponse:
        headers = request.headers
        trusted.check(request.method, headers.getall("Host", ()), headers.getall("Origin", ()))
        route, parameters = router.resolve(request.method, request.rel_url.raw_path)
        request[OPERATION] = route.operation
        request[ERROR_TYPE] = route.reply_type
        if request.rel_url.raw_query_string:
            names = [name for name, _ in request.query.items()]
            request[IGNORED] = check_parameters(names, route.parameters)
        return await route.handler(request, *parameters)

    app = web.Application(middlewares=[error_middleware], client_max_size=limits.max_body_bytes)
    app.router.add_route(
        "*",
        "/{path:(?s:.*)}",  # also a path with a line break: our router refuses it
        dispatch,
        expect_handler=continue_unless_too_large(limits.max_body_bytes, router.takes_any_length),
    )

    async def sign(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["X-Request-Id"] = ids.of(request.headers.get("X-Request-Id"))
        response.headers["Server"] = SERVER
        ignored = request.get(IGNORED)
        if ignored:
            response.headers[IGNORED_PARAMETERS_HEADER] = ignored_header(ignored)

    async def end_streams(_: web.Application) -> None:
        streams.stop()

    app.on_response_prepare.append(sign)
    app.on_shutdown.append(end_streams)
    app[LANE] = FastLane(context, ids, SystemClock()) if limits.http_fast_lane else None
    return app


def _routes(context: ApiContext) -> tuple[RouteGroup, ...]:
    """Return the routes of the public listener."""
    return (
        ProduceRoutes(context),
        FetchRoutes(context),
        MetadataRoutes(context),
        ConsumerRoutes(context),
        ClusterRoutes(context),
        BrokerRoutes(context),
        ConfigRoutes(context),
        TopicRoutes(context),
        PartitionRoutes(context),
        RecordRoutes(context),
        ReassignmentRoutes(context),
        ConsumerGroupRoutes(context),
        ClusterMetadataRoutes(context),
        OpsRoutes(context),
    )


class InsecureBindError(Exception):
    """A listener without TLS and authentication is configured to face a network (decision D11)."""


class HttpServer:
    """Listener of the app; owns its connections and their handlers until `stop`.

    Owner: the node, one per broker. `start` and `stop` are called once each, on one loop.
    """

    def __init__(
        self,
        app: web.Application,
        limits: BrokerLimits,
        *,
        insecure: bool = False,
        shutdown_grace_s: float = SHUTDOWN_GRACE_S,
    ) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=shutdown_grace_s
        )
        self._lane = app[LANE]
        self._limits = limits
        self._insecure = insecure
        self._server: asyncio.Server | None = None

    async def start(self, bind: str) -> str:
        """Listen on ``host:port`` (port 0 picks a free one) and return the address that was bound.

        Raises:
            InsecureBindError: the host is not loopback and ``insecure`` is not set.
            OSError: the port is in use.
        """
        host, port = split_bind(bind)
        if not self._insecure and not is_loopback(host):
            raise InsecureBindError(
                f"refusing to bind {bind}: it is not a loopback address, and this listener has "
                "neither TLS nor authentication yet; bind 127.0.0.1, or say --insecure"
            )
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(self._connection, host, port, backlog=BACKLOG)
        except OSError:
            await self._runner.cleanup()
            raise
        bound = self._server.sockets[0].getsockname()
        address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        _log.info("listening address=%s", address)
        return address

    async def stop(self) -> None:
        """Stop listening, let requests in flight finish within the grace, then cancel them."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._runner.cleanup()

    def _connection(self) -> LaneConnection:
        server = self._runner.server
        assert server is not None, "the runner is set up before anything connects"
        return LaneConnection(
            self._lane,
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=self._limits.max_header_bytes,
            max_field_size=self._limits.max_header_bytes,
            max_headers=MAX_HEADERS,
            read_bufsize=READ_BUFFER_BYTES,
        )


def split_bind(bind: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port`` into (host, port).

    Raises:
        ValueError: the text has another form.
    """
    host, separator, port = bind.rpartition(":")
    if not separator or not port.isdecimal():
        msg = f"bind address '{bind}': expected host:port"
        raise ValueError(msg)
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach ``host``; an empty host means every interface."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
