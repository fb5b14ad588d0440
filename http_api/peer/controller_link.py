"""HTTP connections of one broker to one controller; each request is sent once (rules F1, F2).

The controller channel and the heartbeat thread have links of their own. A failed `post` reports
whether the request may have arrived: NOT_WRITTEN only if nothing was sent, or the controller
answered so.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, suppress
from io import BytesIO
from typing import TypeVar

import aiohttp
import orjson
from aiohttp.abc import AbstractStreamWriter
from typing_extensions import override

from http_api.peer import controller_paths as paths
from http_api.peer.frames import error_from_body
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import ClusterId, NodeId
from raft_metadata.records.serde import from_json, to_json

IDLE_CONNECTION_S = 30.0
"""Idle connections are closed from this side first (the server's `KEEPALIVE_TIMEOUT_S` is longer),
so that a command is rarely written to a connection the other side is closing."""

CONNECT_SHARE = 0.8
"""Share of a command's time that its connection may take."""
LARGE_BODY_BYTES = 262_144
"""Size beyond which a body is sent in pieces, and decoded off the loop."""

_A = TypeVar("_A")


class RefusedError(KafkaError):
    """Error answered by a controller, and the controller it believes active, or None."""

    def __init__(self, error: KafkaError, leader_id: NodeId | None) -> None:
        super().__init__(error.code, error.message, outcome=error.outcome)
        self.leader_id = leader_id


class _NeverSentError(Exception):
    """The connection was found closing before the first byte of the command was written."""


class _Command(aiohttp.BytesPayload):
    """Request body that distinguishes "nothing was written" from "it may have arrived"."""

    @override
    async def write_with_length(
        self, writer: AbstractStreamWriter, content_length: int | None
    ) -> None:
        if writer.transport is None or writer.transport.is_closing():
            raise _NeverSentError
        await super().write_with_length(writer, content_length)


class ControllerLink:
    """Connections to one controller. Owner: the controller channel or the heartbeat thread.

    Heartbeats have a connection of their own; the rest shares a pool. aiohttp's client repeats
    idempotent methods on a broken kept-alive connection, and follows redirects: only POST is used
    here, and redirects are refused.
    """

    def __init__(
        self, node_id: NodeId, address: str, *, cluster_id: ClusterId, connect_timeout_ms: int
    ) -> None:
        self.node_id = node_id
        self._base = f"http://{address}"
        self._headers = {
            "Content-Type": "application/json",
            paths.CLUSTER_HEADER: cluster_id,
            paths.ADDRESSEE_HEADER: str(node_id),
        }
        self._connect_timeout_s = connect_timeout_ms / 1000
        self._pool: aiohttp.ClientSession | None = None
        self._urgent: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Make the clients; needs a running loop, opens no connection."""
        self._pool = _client(limit=0)
        self._urgent = _client(limit=1)

    async def close(self) -> None:
        """Close every connection; requests under way end with an unknown outcome."""
        for client in (self._pool, self._urgent):
            if client is not None:
                await client.close()

    async def post(
        self,
        path: str,
        command: object,
        answer: type[_A],
        timeout_ms: int,
        *,
        urgent: bool = False,
        max_answer_bytes: int = paths.MAX_ANSWER_BYTES,
    ) -> _A:
        """Send ``command`` once and decode its answer.

        Raises RefusedError when the controller answered with an error; KafkaError NETWORK_EXCEPTION
        NOT_WRITTEN when there was no connection, or only one that was closing; else
        NETWORK_EXCEPTION or REQUEST_TIMED_OUT with outcome UNKNOWN, because the command may have
        been taken.
        """
        client = self._urgent if urgent else self._pool
        assert client is not None, "open() comes first"
        total_s = timeout_ms / 1000
        # A connection that takes all the time must fail as a connection: then nothing was written.
        connect_s = min(self._connect_timeout_s, total_s * CONNECT_SHARE)
        timeout = aiohttp.ClientTimeout(total=total_s, connect=connect_s)
        try:
            async with client.post(
                self._base + path,
                data=_payload(to_json(command)),
                headers=self._headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                body = await _read(response, max_answer_bytes)
                status = response.status
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._call_error(
                ErrorCode.NETWORK_EXCEPTION, "not reachable", error, Outcome.NOT_WRITTEN
            ) from error
        except TimeoutError as error:
            what = f"no answer within {timeout_ms} ms"
            raise self._call_error(
                ErrorCode.REQUEST_TIMED_OUT, what, error, Outcome.UNKNOWN
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            never_sent = isinstance(error.__cause__, _NeverSentError)
            outcome = Outcome.NOT_WRITTEN if never_sent else Outcome.UNKNOWN
            raise self._call_error(
                ErrorCode.NETWORK_EXCEPTION, "connection lost", error, outcome
            ) from error
        if status != 200:
            raise self._refusal(status, body)
        try:
            if len(body) <= LARGE_BODY_BYTES:
                return from_json(body, answer)
            # A snapshot of 100,000 partitions, say: the loop goes on meanwhile.
            return await asyncio.to_thread(from_json, body, answer)
        except KafkaError as error:
            # The command was taken, but its answer can't be read.
            raise self._call_error(
                ErrorCode.OUTCOME_UNKNOWN, "unreadable answer", error, Outcome.UNKNOWN
            ) from error

    def session(
        self, query: dict[str, str], body: AsyncIterator[bytes], read_timeout_s: float
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Start a request that stays open as long as ``body`` yields."""
        assert self._pool is not None, "open() comes first"
        return self._pool.post(
            self._base + paths.SESSION,
            params=query,
            data=body,
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(
                total=None, connect=self._connect_timeout_s, sock_read=read_timeout_s
            ),
            allow_redirects=False,
        )

    def _refusal(self, status: int, body: bytes) -> KafkaError:
        with suppress(ValueError):
            parsed = orjson.loads(body)
            error = error_from_body(parsed)
            leader_id = parsed.get("leader_id")
            return RefusedError(error, NodeId(leader_id) if isinstance(leader_id, int) else None)
        return KafkaError(
            ErrorCode.OUTCOME_UNKNOWN,
            f"controller {self.node_id} ({self._base}) answered {status} without an error body",
            outcome=Outcome.UNKNOWN,
        )

    def _call_error(
        self, code: ErrorCode, what: str, error: Exception, outcome: Outcome
    ) -> KafkaError:
        detail = f": {error}" if str(error) else ""  # a time-out has nothing to add
        text = f"controller {self.node_id} ({self._base}): {what}{detail}"
        return KafkaError(code, text, outcome=outcome)


def _payload(body: bytes) -> _Command | BytesIO:
    """Wrap large bodies as files: aiohttp writes those in pieces, and warns of large bytes."""
    return _Command(body) if len(body) <= LARGE_BODY_BYTES else BytesIO(body)


def _client(*, limit: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(
        limit=limit, limit_per_host=0, keepalive_timeout=IDLE_CONNECTION_S, ttl_dns_cache=10
    )
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    )


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """Return the body, never more than the limit; ClientPayloadError when it is longer."""
    if (response.content_length or 0) > limit:
        raise aiohttp.ClientPayloadError(f"answer over {limit} bytes")
    received = bytearray()
    async for chunk in response.content.iter_any():
        received += chunk
        if len(received) > limit:
            raise aiohttp.ClientPayloadError(f"answer over {limit} bytes")
    return bytes(received)
