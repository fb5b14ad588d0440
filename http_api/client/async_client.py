"""Asyncio client over aiohttp, for programs with many requests under way at once.

Runs the `Call`s of the other modules like `transport.Client`: `routes.attempts_at` decides which
broker an attempt is sent to and whether to retry, this module sends and sleeps.
"""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import Iterable, Sequence
from types import SimpleNamespace, TracebackType
from typing import TypeVar

import aiohttp
from yarl import URL

from http_api.client.calls import Answer, Call, Request, decode_answer
from http_api.client.client_errors import ClosedError, QuorumlogError
from http_api.client.network import ClientNetwork, server_address, tune_socket
from http_api.client.produce_calls import JsonRecord, RecordOutcome, produce_attempts
from http_api.client.routes import (
    AttemptError,
    Attempts,
    LostError,
    NotSentError,
    Routes,
    attempts_at,
)
from http_api.client.transport import DEFAULT_RETRY_S, UNAUTHORIZED
from raft_metadata.common.record_placement import Partitioner

T = TypeVar("T")

LARGE_BODY_BYTES = 1 << 20
"""Size above which aiohttp warns of a body that is given as bytes."""


class AsyncClient:
    """Client that runs calls against a cluster over pooled connections.

    Used as an async context by the tasks of one event loop. aiohttp sends a request again by itself
    only if the request may be repeated (rule F2). Headers are made anew when a connection is, and
    then used for all connections.
    """

    def __init__(
        self,
        urls: Iterable[str] | Routes,
        *,
        retry_s: float = DEFAULT_RETRY_S,
        connections: int = 100,
        network: ClientNetwork | None = None,
    ) -> None:
        self.routes = urls if isinstance(urls, Routes) else Routes(urls)
        self._retry_s = retry_s
        self._connections = connections
        self._network = network or ClientNetwork()
        self._headers: dict[str, str] = {}
        """Headers of every request, made anew with each connection."""
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False
        self._lanes: dict[tuple[str, int | None], asyncio.Lock] = {}

    async def __aenter__(self) -> AsyncClient:
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(self._make_headers)
        tracing.on_connection_create_end.append(_note_connection)
        tracing.on_connection_reuseconn.append(_note_connection)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections,
                use_dns_cache=False,  # brokers that all moved are found by their names
                socket_factory=_tuned_socket,
            ),
            auto_decompress=False,  # `decode_answer` decodes within a limit
            cookie_jar=aiohttp.DummyCookieJar(),  # as `Client`, which has none
            skip_auto_headers=("User-Agent",),
            trace_configs=[tracing],
        )
        self._is_closed = False
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def run(self, call: Call[T], *, retry_s: float | None = None) -> T:
        """Run a call as `Client.run` does and return its result; raises `QuorumlogError`.

        Calls about a partition go to its leader once that is known. An attempt is repeated, for up
        to ``retry_s`` seconds, only if it certainly had no effect or may be repeated.
        """
        now_s = asyncio.get_running_loop().time
        retry_s = self._retry_s if retry_s is None else retry_s
        return await self.drive(attempts_at(call, self.routes, now_s, retry_s=retry_s))

    async def drive(self, attempts: Attempts[T]) -> T:
        """Make the attempts one by one and return their result; raises `QuorumlogError`."""
        try:
            attempt = next(attempts)
            while True:
                if attempt.wait_s:
                    await asyncio.sleep(attempt.wait_s)
                try:
                    answer = await self.send(attempt.url, attempt.request)
                except (AttemptError, QuorumlogError) as error:
                    attempt = attempts.throw(error)
                else:
                    attempt = attempts.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def produce(
        self,
        topic: str,
        records: Sequence[JsonRecord],
        *,
        partition: int | None = None,
        acks: str = "all",
        retry_s: float = DEFAULT_RETRY_S,
        partitioner: Partitioner = Partitioner.STICKY,
    ) -> list[RecordOutcome]:
        """Write records and return one outcome per record, in order, as `producer.send` does.

        Records that were certainly not written are sent again for up to ``retry_s`` seconds. At
        most one request is under way per topic and partition (per topic if ``partition`` is None),
        because without idempotence nothing else keeps records in order (rule F1).
        """
        now_s = asyncio.get_running_loop().time
        async with self._lanes.setdefault((topic, partition), asyncio.Lock()):
            attempts = produce_attempts(
                topic,
                records,
                self.routes,
                now_s,
                partition=partition,
                acks=acks,
                retry_s=retry_s,
                partitioner=partitioner,
            )
            return await self.drive(attempts)

    async def send(self, url: str, request: Request) -> Answer:
        """Send a request once and return the answer, decoded.

        Raises:
            AttemptError: There is no complete answer.
            ProtocolError: The answer can't be decoded.
            ConfigError: The headers or a file of the security can't be used.
            ClosedError: The client was closed.
        """
        answer = await self._send_once(url, request)
        if answer.status == UNAUTHORIZED and self._network.has_new_headers:
            self._headers = self._network.connection_headers()
            answer = await self._send_once(url, request)  # a 401 did nothing
        return decode_answer(answer, request)

    async def _send_once(self, url: str, request: Request) -> Answer:
        session = self._session
        if session is None:
            if self._is_closed:
                msg = "the client is closed"
                raise ClosedError(msg)
            msg = "use AsyncClient as an async context"
            raise RuntimeError(msg)
        under_way = _RequestUnderWay()
        try:
            return await self._exchange(session, url, request, under_way)
        except QuorumlogError:
            raise
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            is_slow = isinstance(error, TimeoutError)
            reason = "timed out" if is_slow else str(error) or repr(error)
            kind = LostError if under_way.is_connected else NotSentError
            raise kind(reason) from error

    async def _exchange(
        self,
        session: aiohttp.ClientSession,
        url: str,
        request: Request,
        under_way: _RequestUnderWay,
    ) -> Answer:
        scheme = server_address(url)[0]
        connect_s = min(self._network.connect_timeout_s, request.timeout_s)
        body = request.body
        may_repeat = request.method == "GET" and request.may_repeat  # others as `Client` does
        async with session.request(
            request.method,
            URL(url + request.path, encoded=True),
            # a large body as bytes would cause a ResourceWarning
            data=io.BytesIO(body) if body is not None and len(body) > LARGE_BODY_BYTES else body,
            headers=self._headers | request.headers,
            ssl=self._network.tls_context() if scheme == "https" else True,
            timeout=aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=connect_s),
            allow_redirects=False,
            trace_request_ctx=under_way,
            middlewares=(under_way.take,) if may_repeat else (under_way.take_once,),
        ) as response:
            body = await response.read()
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(status=response.status, headers=headers, body=body)

    async def _make_headers(
        self, _session: aiohttp.ClientSession, trace: SimpleNamespace, _params: object
    ) -> None:
        """Make the headers for a connection that is being opened, and for the request in hand."""
        self._headers = self._network.connection_headers()
        under_way: _RequestUnderWay = trace.trace_request_ctx
        under_way.change_headers(self._headers)


def _tuned_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    tune_socket(sock)
    return sock


class _RequestUnderWay:
    """One attempt inside of aiohttp: its request, and whether it has got a connection."""

    def __init__(self) -> None:
        self.is_connected = False
        """True once bytes of the request may have been sent."""
        self._request: aiohttp.ClientRequest | None = None

    def change_headers(self, headers: dict[str, str]) -> None:
        """Give the request the headers of its new connection."""
        if self._request is not None:
            self._request.headers.update(headers)

    async def take(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Pass the request on. aiohttp may send it again."""
        self._request = request
        return await send(request)

    async def take_once(
        self, request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Pass the request on, so that aiohttp sends no GET, PUT or DELETE again."""
        self._request = request
        try:
            return await send(request)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            # aiohttp repeats after these two, and not after their base class
            raise aiohttp.ClientConnectionError(str(error) or repr(error)) from error


async def _note_connection(
    _session: aiohttp.ClientSession, trace: SimpleNamespace, _params: object
) -> None:
    under_way: _RequestUnderWay = trace.trace_request_ctx
    under_way.is_connected = True
