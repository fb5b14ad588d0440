"""Asyncio client over aiohttp, for programs with many requests under way at once.

Runs the `Call`s of the other modules like `transport.Client`: `routes.attempts_at` decides which
broker an attempt is sent to and whether to retry, this module sends and sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TypeVar

import aiohttp
from yarl import URL

from http_api.client.calls import Answer, Call, Request, decode_answer
from http_api.client.client_errors import QuorumlogError
from http_api.client.network import ClientNetwork
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


class AsyncClient:
    """Client that runs calls against a cluster over pooled connections.

    Used as an async context by the tasks of one event loop. aiohttp sends a request again by itself
    only if the request may be repeated (rule F2).
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
        self._headers: dict[str, str] | None = None
        """Headers of every request; None: to be made anew for the next one."""
        self._session: aiohttp.ClientSession | None = None
        self._lanes: dict[tuple[str, int | None], asyncio.Lock] = {}

    async def __aenter__(self) -> AsyncClient:
        is_tls = any(url.startswith("https:") for url in self.routes.urls)
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(self._forget_headers)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._connections,
                use_dns_cache=False,  # brokers that all moved are found by their names
                ssl=self._network.tls_context() if is_tls else True,
            ),
            auto_decompress=False,  # `decode_answer` decodes within a limit
            skip_auto_headers=("User-Agent",),
            trace_configs=[tracing],
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

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

    async def _forget_headers(self, *_: object) -> None:
        self._headers = None

    async def send(self, url: str, request: Request) -> Answer:
        """Send a request once and return the answer, decoded.

        Raises:
            AttemptError: There is no complete answer.
            ProtocolError: The answer can't be decoded.
        """
        answer = await self._send_once(url, request)
        if answer.status == UNAUTHORIZED and self._network.has_new_headers:
            self._headers = None
            answer = await self._send_once(url, request)  # a 401 did nothing
        return decode_answer(answer, request)

    async def _send_once(self, url: str, request: Request) -> Answer:
        if self._session is None:
            msg = "use AsyncClient as an async context"
            raise RuntimeError(msg)
        if self._headers is None:
            self._headers = self._network.connection_headers()
        timeout = aiohttp.ClientTimeout(
            total=request.timeout_s, sock_connect=self._network.connect_timeout_s
        )
        try:
            async with self._session.request(
                request.method,
                URL(url + request.path, encoded=True),
                data=request.body,
                headers=self._headers | request.headers,
                timeout=timeout,
                allow_redirects=False,
                middlewares=() if request.may_repeat else (_without_repeats,),
            ) as response:
                body = await response.read()
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Answer(status=response.status, headers=headers, body=body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSentError(str(error)) from error
        except ValueError as error:  # no URL
            msg = "expected http://host:port or https://host:port"
            raise NotSentError(msg) from error
        except TimeoutError as error:
            msg = "timed out"
            raise LostError(msg) from error
        except (aiohttp.ClientError, OSError) as error:
            raise LostError(str(error) or repr(error)) from error


async def _without_repeats(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Turn a broken connection into `LostError`, so that aiohttp repeats no GET or DELETE."""
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise LostError(str(error) or repr(error)) from error
