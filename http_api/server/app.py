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
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from aiohttp import hdrs, web
from aiohttp.web_urldispatcher import UrlMappingMatchInfo

from broker.config import ACCESS_OFF, BrokerTimeouts
from broker.server.requests import PASSED_TO
from http_api.contract.foreign_pages import ANY_HOST, TrustedHosts
from http_api.contract.forwarding import NO_PROXIES, TrustedProxies
from http_api.contract.origins import AllowedOrigins, preflight_headers
from http_api.server.access_log import (
    BEGAN_S,
    FORWARDED_TO,
    OPERATION,
    AccessLog,
    RouteLog,
    RouteLogger,
)
from http_api.server.answer_coding import MAY_GZIP, add_vary, gzipped, may_gzip
from http_api.server.answers import (
    ERROR_TYPE,
    MAX_HEADERS,
    PRODUCED_TOPIC,
    SERVER,
    ApiContext,
    RequestIds,
    error_middleware,
)
from http_api.server.connection_limits import ConnectionGate, Doorkeeper, open_files_max
from http_api.server.fast_lane import FastLane
from http_api.server.lane_connection import LaneConnection
from http_api.server.live_settings import LiveSettings
from http_api.server.partition_watches import PartitionWatches
from http_api.server.query_parameters import (
    IGNORED_PARAMETERS_HEADER,
    check_parameters,
    ignored_header,
)
from http_api.server.request_parsing import continue_unless_too_large
from http_api.server.request_site import client_host, enter_request
from http_api.server.routes.api_document import DocumentRoutes
from http_api.server.routes.broker_state import OpsRoutes, StateRoutes
from http_api.server.routes.v2.consumer_instances import ConsumerRoutes
from http_api.server.routes.v2.fetch_records import FetchRoutes
from http_api.server.routes.v2.produce_records import ProduceRoutes
from http_api.server.routes.v2.topic_metadata import MetadataRoutes
from http_api.server.routes.v2.topic_records import TopicReadRoutes
from http_api.server.routes.v3.brokers import BrokerRoutes
from http_api.server.routes.v3.cluster_metadata import ClusterMetadataRoutes
from http_api.server.routes.v3.clusters import ClusterRoutes
from http_api.server.routes.v3.configs import ConfigRoutes
from http_api.server.routes.v3.consumer_groups import ConsumerGroupRoutes
from http_api.server.routes.v3.group_members import GroupMemberRoutes
from http_api.server.routes.v3.group_repairs import GroupRepairRoutes
from http_api.server.routes.v3.partitions import PartitionRoutes, ReassignmentRoutes
from http_api.server.routes.v3.record_lists import RecordListRoutes
from http_api.server.routes.v3.records import RecordRoutes
from http_api.server.routes.v3.records_poll import PollRoutes
from http_api.server.routes.v3.topics import TopicRoutes
from http_api.server.routes.v3.transactions import TransactionRoutes
from http_api.server.routing import PathRouter, RouteGroup
from http_api.server.streams import StreamRegistry
from raft_metadata.common.clock import SystemClock
from raft_metadata.common.standstills import Standstills

if TYPE_CHECKING:
    from broker.config import AccessLogConfig, BrokerLimits
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
TIMEOUTS: Final = BrokerTimeouts()
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
IGNORED = web.RequestKey("ignored", tuple[str, ...])
"""Names of a request's query parameters that have no effect."""
CONTEXT: web.AppKey[ApiContext] = web.AppKey("context")
"""The broker that answers, and its limits."""
HANDLER: web.AppKey[Handler] = web.AppKey("handler")
"""The handler of every request of the app."""
LANE: web.AppKey[FastLane | None] = web.AppKey("lane")
"""The app's fast lane; None: aiohttp handles every request."""


def build_app(
    apis: BrokerApis,
    limits: BrokerLimits,
    advertised_url: str,
    debug_state: BrokerDebugState | None = None,
    trusted: TrustedHosts = ANY_HOST,
    proxies: TrustedProxies = NO_PROXIES,
    standstills: Standstills | None = None,
) -> web.Application:
    """Return the app with every route of the public listener, in front of ``apis``.

    Answers name this broker as ``advertised_url`` (``http://host:port``), those to requests from
    ``proxies`` as the proxy reports. ``debug_state`` gives the debug state of this broker; None:
    its paths are not served. Requests of web pages are served under the names in ``trusted`` only.
    ``standstills``: those of this process; None: none is noticed.
    """
    streams = StreamRegistry(limits.max_streams)
    watches = PartitionWatches(apis)
    context = ApiContext(
        apis,
        limits,
        advertised_url.rstrip("/"),
        streams,
        LiveSettings(apis),
        watches,
        standstills or Standstills(SystemClock()),
        trusted,
        proxies,
    )
    ids = RequestIds()
    router = PathRouter()
    for routes in _routes(context):
        routes.add_to(router)
    if debug_state is not None:
        StateRoutes(debug_state).add_to(router)
    DocumentRoutes(context).add_to(router)

    app = web.Application(client_max_size=limits.max_body_bytes)
    dispatch = _dispatcher(context, router)
    app.router.add_route("*", "/{path:.*}", dispatch)

    async def sign(request: web.Request, response: web.StreamResponse) -> None:
        response.headers["X-Request-Id"] = ids.of(request.headers.get("X-Request-Id"))
        response.headers["Server"] = SERVER
        if (produced := request.get(PRODUCED_TOPIC)) is not None:
            response.headers.update(produced.headers(apis.image))
        ignored = request.get(IGNORED)
        if ignored:
            response.headers[IGNORED_PARAMETERS_HEADER] = ignored_header(ignored)
        origins = context.settings.current().origins
        if origins:
            _add_cors_headers(request, response, origins)

    async def end_streams(_: web.Application) -> None:
        streams.stop()

    async def end_watches(_: web.Application) -> None:
        await watches.stop()

    app.on_response_prepare.append(sign)
    app.on_shutdown.append(end_streams)
    app[CONTEXT] = context
    app[HANDLER] = _handler(app, dispatch)
    app.on_cleanup.append(end_watches)
    app[LANE] = FastLane(context, ids, SystemClock()) if limits.http_fast_lane else None
    return app


def _dispatcher(context: ApiContext, router: PathRouter) -> Handler:
    """Return the way of every request: its checks, its route, and the coding of its answer."""
    expect = continue_unless_too_large(context.limits.max_body_bytes, router.takes_any_length)

    async def dispatch(request: web.Request) -> web.StreamResponse:
        settings = context.settings.current()
        headers, method = request.headers, request.method
        if headers.get(hdrs.EXPECT):
            refusal = await expect(request)
            if refusal is not None:
                return refusal
        if not request.rel_url.raw_path.startswith("/"):
            raise web.HTTPNotFound
        forwarded = enter_request(request, context.proxies)
        context.trusted.check(
            method,
            headers.getall("Host", ()),
            headers.getall("Origin", ()),
            forwarded=forwarded,
            allowed=settings.origins,
        )
        if method == "OPTIONS" and settings.origins and _is_preflight(request):
            methods = router.methods(request.rel_url.raw_path)
            return web.Response(status=204, headers=preflight_headers(methods))
        route, parameters = router.resolve(method, request.rel_url.raw_path)
        request[OPERATION] = route.operation
        request[ERROR_TYPE] = route.reply_type
        request[BEGAN_S] = asyncio.get_running_loop().time()
        passed_to: list[int] = []
        request[FORWARDED_TO] = passed_to
        PASSED_TO.set(passed_to)
        if may_gzip(settings, carries_records=route.operation.carries_records):
            request[MAY_GZIP] = True
        if request.rel_url.raw_query_string:
            ignored = check_parameters(
                [name for name, _ in request.query.items()],
                route.parameters,
                settings.ignored_parameters,
            )
            if ignored:
                request[IGNORED] = ignored
        return await gzipped(request, await route.handler(request, *parameters))

    return dispatch


def _handler(app: web.Application, dispatch: Handler) -> Handler:
    """Return the handler of every request, in place of aiohttp's own.

    That one resolves a route, though here is only one, and holds a kilobyte for each request that
    waits.
    """
    (route,) = app.router.routes()
    match = UrlMappingMatchInfo({}, route)
    match.add_app(app)
    match.freeze()

    def handle(request: web.Request) -> Awaitable[web.StreamResponse]:
        request._match_info = match  # noqa: SLF001 by it, aiohttp finds the app's signals
        return error_middleware(request, dispatch)

    return handle


def _is_preflight(request: web.Request) -> bool:
    return "Origin" in request.headers and "Access-Control-Request-Method" in request.headers


def _add_cors_headers(
    request: web.Request, response: web.StreamResponse, origins: AllowedOrigins
) -> None:
    """Add the headers that let the page read an answer; a request without a page has none."""
    given = request.headers.getall("Origin", ())
    if len(given) != 1:
        return
    if origins.varies:
        add_vary(response, "Origin")
    response.headers.update(origins.answer_headers(given[0], list(response.headers)))


def _routes(context: ApiContext) -> tuple[RouteGroup, ...]:
    """Return the routes of the public listener."""
    return (
        ProduceRoutes(context),
        FetchRoutes(context),
        TopicReadRoutes(context),
        MetadataRoutes(context),
        ConsumerRoutes(context),
        ClusterRoutes(context),
        BrokerRoutes(context),
        ConfigRoutes(context),
        TopicRoutes(context),
        TransactionRoutes(context),
        PartitionRoutes(context),
        RecordRoutes(context),
        RecordListRoutes(context),
        PollRoutes(context),
        ReassignmentRoutes(context),
        ConsumerGroupRoutes(context),
        GroupMemberRoutes(context),
        GroupRepairRoutes(context),
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
        timeouts: BrokerTimeouts = TIMEOUTS,
        access: AccessLogConfig | None = None,
        insecure: bool = False,
        shutdown_grace_s: float = SHUTDOWN_GRACE_S,
    ) -> None:
        if access is not None and access.mode == ACCESS_OFF:
            access = None
        self._access = None if access is None else AccessLog(access, SystemClock())
        self._routes_log = (
            None
            if self._access is None
            else RouteLog(self._access, partial(client_host, proxies=app[CONTEXT].proxies))
        )
        self._runner = web.AppRunner(
            app, access_log=None, handle_signals=False, shutdown_timeout=shutdown_grace_s
        )
        self._handler = cast(
            "Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]", app[HANDLER]
        )
        self._lane = app[LANE]
        self._limits = limits
        self._timeouts = timeouts
        self._standstills = app[CONTEXT].standstills
        self.gate = ConnectionGate(limits, app[CONTEXT].proxies, open_files_max())
        """Count of the open connections."""
        self._closed = self.gate.leave
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
        assert self._runner.server is not None
        self._runner.server.request_handler = self._handler
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: Doorkeeper(self.gate, self._standstills, self.connection_for),
                host,
                port,
                backlog=BACKLOG,
            )
        except OSError:
            await self._runner.cleanup()
            raise
        self._standstills.when_noticed(self._cut_all)
        if self._access is not None:
            self._access.start()
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
        self.gate.stop()
        if self._access is not None:
            await asyncio.to_thread(self._access.stop)

    def _cut_all(self) -> None:
        """Abort all connections: what they hold was sent before a standstill (rule S12)."""
        server = self._runner.server
        for connection in [] if server is None else server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    def connection_for(self, host: str) -> LaneConnection:
        """Return the handler of a connection from this IP address, which the gate let in."""
        server = self._runner.server
        assert server is not None, "the runner is set up before anything connects"
        return LaneConnection(
            self._lane,
            server,
            timeouts=self._timeouts,
            closed=self._closed,
            host=host,
            access=self._access,
            loop=asyncio.get_running_loop(),
            access_log=self._routes_log,
            access_log_class=RouteLogger,
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
