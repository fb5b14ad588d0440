"""The asyncio client, over aiohttp: for programs with many requests under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TypeVar

import aiohttp

from http_api.client.calls import Answer, Call, ClientError, Request
from http_api.client.content_coding import decoded
from http_api.client.producer import NewRecord, ProduceExchange, RecordOutcome
from http_api.client.routes import Exchange, Routes
from http_api.client.transport import CONNECT_TIMEOUT_S, DEFAULT_RETRY_S, LostError, NotSentError

T = TypeVar("T")


class AsyncClient:
    """Runs calls against a cluster. Used as an async context by tasks of one loop.

    Only what may be repeated is ever re-sent by aiohttp itself (rule F2).
    """

    def __init__(
        self, urls: Iterable[str], *, retry_s: float = DEFAULT_RETRY_S, connections: int = 100
    ) -> None:
        self.routes = Routes(urls)
        self._retry_s = retry_s
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None
        self._lanes: dict[tuple[str, int | None], asyncio.Lock] = {}

    async def __aenter__(self) -> AsyncClient:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections),
            auto_decompress=False,  # by us, within a bound (`content_coding`)
            skip_auto_headers=("User-Agent",),
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
        """As `Client.run`: send, follow the leader, try again what surely did nothing."""
        now_s = asyncio.get_running_loop().time
        retry_s = self._retry_s if retry_s is None else retry_s
        exchange = Exchange(self.routes, call.request, now_s(), retry_s)
        while True:
            try:
                answer = await self._send(exchange.url, call.request)
            except NotSentError as error:
                wait_s = exchange.not_sent(str(error), now_s())
            except LostError as error:
                wait_s = exchange.lost(str(error), now_s())
            else:
                again_s = exchange.answered(answer, now_s())
                if again_s is None:
                    return call.parse(answer)
                wait_s = again_s
            await asyncio.sleep(wait_s)

    async def produce(
        self,
        topic: str,
        records: Sequence[NewRecord],
        *,
        partition: int | None = None,
        acks: str = "all",
        retry_s: float = DEFAULT_RETRY_S,
    ) -> list[RecordOutcome]:
        """As `producer.send`: write, try again what surely was not written, tell the outcomes.

        One request is under way per topic and partition (per topic, where none is given): without
        idempotence that is what keeps order (rule F1).
        """
        now_s = asyncio.get_running_loop().time
        async with self._lanes.setdefault((topic, partition), asyncio.Lock()):
            exchange = ProduceExchange(
                topic, records, partition=partition, deadline_s=now_s() + retry_s
            )
            while True:
                try:
                    outcomes = await self.run(exchange.call(acks=acks), retry_s=0.0)
                except ClientError as error:
                    wait_s = exchange.failed(error, now_s())
                else:
                    wait_s = exchange.took(outcomes, now_s())
                if wait_s is None:
                    return exchange.outcomes
                await asyncio.sleep(wait_s)

    async def _send(self, url: str, request: Request) -> Answer:
        if self._session is None:
            msg = "use AsyncClient as an async context"
            raise RuntimeError(msg)
        timeout = aiohttp.ClientTimeout(total=request.timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._session.request(
                request.method,
                url + request.path,
                data=request.body,
                headers=request.headers,
                timeout=timeout,
                allow_redirects=False,
                middlewares=() if request.may_repeat else (_only_once,),
            ) as response:
                body = await response.read()
                headers = {name.lower(): value for name, value in response.headers.items()}
                answer = Answer(status=response.status, headers=headers, body=body)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise NotSentError(str(error)) from error
        except aiohttp.InvalidURL as error:
            msg = "expected http://host:port"
            raise NotSentError(msg) from error
        except TimeoutError as error:
            msg = "timed out"
            raise LostError(msg) from error
        except (aiohttp.ClientError, OSError) as error:
            raise LostError(str(error) or repr(error)) from error
        return decoded(answer, request)


async def _only_once(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Hide a broken connection from aiohttp, which sends a GET or DELETE again after one."""
    try:
        return await send(request)
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise LostError(str(error) or repr(error)) from error
