"""Plain HTTP client of a run, as any user would write it: aiohttp, JSON, no retries.

Loads, readers and the runner share one `Http`. Two fields of the documented error body decide what
an answer means for the data, ``retriable`` and ``outcome`` (interfaces §4), and nothing else does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec
import orjson

from chaos.deadline import within
from chaos.history import Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from chaos.history import Record

JSON_V2 = "application/vnd.kafka.json.v2+json"
V2 = "application/vnd.kafka.v2+json"
NDJSON = "application/x-ndjson"
CONNECTION_LIMIT = 0
"""No limit: a request that waited for a connection here would look like a slow server."""
HTTP_OK = 200
HTTP_FIRST_ERROR = 400
HTTP_FIRST_SERVER_ERROR = 500


@dataclass(frozen=True, slots=True)
class Stored:
    """Acknowledgement of a record, with its place in the log."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Failure of a record, which is not acknowledged.

    `unknown` false: surely not written. `retriable` false: the same request cannot succeed.
    """

    unknown: bool
    retriable: bool
    reason: str


class CallError(Exception):
    """A call other than a produce got an error, or no answer."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class StoredLine(msgspec.Struct, gc=False):
    """A record as brokers store and serve it; other fields of its JSON object are ignored."""

    offset: int
    value: msgspec.Raw
    key: msgspec.Raw = msgspec.Raw(b"null")

    def line(self) -> Line:
        """Return the record with key and value text untouched."""
        return Line(self.offset, bytes(self.key), bytes(self.value))


_decode_lines = msgspec.json.Decoder(StoredLine).decode_lines
_decode_array = msgspec.json.Decoder(list[StoredLine]).decode


def produce_body(records: Iterable[Record]) -> bytes:
    """Return a v2 produce request whose keys and values are the given JSON texts."""
    parts = [b'{"key":%b,"value":%b}' % (record.key, record.value) for record in records]
    return b'{"records":[' + b",".join(parts) + b"]}"


def classify_produce(status: int, body: bytes, count: int) -> list[Stored | Failed]:
    """Return the result of each of `count` records in a produce answer, in request order.

    An unreadable answer is unknown, except a 4xx, which was refused before the append.
    """
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError:
        answer = None
    if not isinstance(answer, dict):
        answer = {}
    offsets = answer.get("offsets")
    if not isinstance(offsets, list) or len(offsets) != count:
        failure = _failure(status, answer, answer)
        return [failure] * count
    results: list[Stored | Failed] = []
    for entry in offsets:
        if status == HTTP_OK and entry.get("error_code") is None:
            results.append(Stored(entry["partition"], entry["offset"]))
        else:
            results.append(_failure(status, entry, answer))
    return results


def _failure(status: int, entry: dict[str, Any], answer: dict[str, Any]) -> Failed:
    reason = entry.get("error") or entry.get("message") or answer.get("message") or "no reason"
    if HTTP_FIRST_ERROR <= status < HTTP_FIRST_SERVER_ERROR:
        return Failed(unknown=False, retriable=False, reason=f"{status} {reason}")
    outcome = entry.get("outcome", answer.get("outcome", "unknown"))
    retriable = entry.get("retriable", answer.get("retriable", True))
    return Failed(outcome != "not_written", bool(retriable), f"{status} {reason}")


def lines_of_ndjson(body: bytes) -> list[Line]:
    """Return the stored lines of a direct fetch, key and value text untouched."""
    return [stored.line() for stored in _decode_lines(body)]


def lines_of_array(body: bytes) -> list[Line]:
    """Return the records of a v2 json fetch, key and value text untouched."""
    return [stored.line() for stored in _decode_array(body)]


def id_of(link: Mapping[str, str]) -> int:
    """Return the id at the end of a v3 link: ``related`` ends in ``/replicas/<id>``."""
    return int(link["related"].rpartition("/")[2])


class Http:
    """An HTTP client session. Owned by the run; `async with`."""

    def __init__(self) -> None:
        connector = aiohttp.TCPConnector(limit=CONNECTION_LIMIT)
        self._session = aiohttp.ClientSession(connector=connector)

    async def __aenter__(self) -> Http:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def produce(
        self, url: str, topic: str, records: list[Record], timeout_ms: int
    ) -> list[Stored | Failed]:
        """Send records once; failures of network or broker are returned, never raised."""
        target = f"{url}/topics/{topic}?timeout={timeout_ms}"
        # The server's deadline expires first; the client's is for a server that does not answer.
        ours = aiohttp.ClientTimeout(total=timeout_ms / 1000 + 2)
        body = produce_body(records)
        try:
            async with self._session.post(
                target, data=body, headers={"Content-Type": JSON_V2}, timeout=ours
            ) as answer:
                return classify_produce(answer.status, await answer.read(), len(records))
        except aiohttp.ClientConnectorError as error:
            failure = Failed(unknown=False, retriable=True, reason=f"not connected: {error}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            failure = Failed(unknown=True, retriable=True, reason=f"no answer: {error!r}")
        return [failure] * len(records)

    async def get_json(self, url: str, timeout_s: float = 5.0) -> Any:
        """Return the decoded body of a successful GET; raise `CallError` otherwise."""
        return orjson.loads(await self._call("GET", url, None, timeout_s))

    async def post_json(self, url: str, body: object, timeout_s: float = 15.0) -> Any:
        """Return the decoded body of a successful POST; raise `CallError` otherwise."""
        return orjson.loads(await self._call("POST", url, orjson.dumps(body), timeout_s))

    async def post_v2(self, url: str, body: object, timeout_s: float = 15.0) -> bytes:
        """POST with the REST Proxy's media type; return the body, which may be empty."""
        return await self._call("POST", url, orjson.dumps(body), timeout_s, {"Content-Type": V2})

    async def get_accepting(self, url: str, accept: str, timeout_s: float = 5.0) -> bytes:
        """Return the body of a successful GET in this media type; raise `CallError` otherwise."""
        return await self._call("GET", url, None, timeout_s, {"Accept": accept})

    async def delete(self, url: str, timeout_s: float = 15.0) -> None:
        """Send a DELETE; raise `CallError` unless it succeeds."""
        await self._call("DELETE", url, None, timeout_s)

    async def _call(
        self,
        method: str,
        url: str,
        body: bytes | None,
        timeout_s: float,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        if headers is None and body is not None:
            headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                text = await answer.read()
                if answer.status >= HTTP_FIRST_ERROR:
                    msg = f"{method} {url}: {answer.status} {text[:300]!r}"
                    raise CallError(msg, answer.status)
                return text
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            msg = f"{method} {url}: {str(error) or type(error).__name__}"
            raise CallError(msg) from error

    async def read_partition(
        self, url: str, topic: str, partition: int, *, accept: str, max_bytes: int
    ) -> list[Line]:
        """Return all records below the high watermark, by direct fetches from offset 0."""
        lines: list[Line] = []
        offset, high_watermark = 0, None
        while high_watermark is None or offset < high_watermark:
            page, high_watermark = await self.fetch(
                url, topic, partition, offset, accept=accept, max_bytes=max_bytes
            )
            if not page and offset < high_watermark:
                place = f"{url}/topics/{topic}/partitions/{partition}"
                msg = f"{place}: nothing from {offset} on, high watermark {high_watermark}"
                raise CallError(msg)
            if page:
                lines.extend(page)
                offset = page[-1].offset + 1
        return lines

    async def fetch(
        self,
        url: str,
        topic: str,
        partition: int,
        offset: int,
        *,
        accept: str = NDJSON,
        max_bytes: int = 1 << 20,
        timeout_ms: int = 1000,
        deadline_s: float = 30.0,
    ) -> tuple[list[Line], int]:
        """Return the lines of one direct fetch and the high watermark.

        Raise `CallError` unless it is 200.
        """
        target = (
            f"{url}/topics/{topic}/partitions/{partition}/records"
            f"?offset={offset}&max_bytes={max_bytes}&timeout={timeout_ms}"
        )
        try:
            async with self._session.get(
                target,
                headers={"Accept": accept},
                timeout=aiohttp.ClientTimeout(total=deadline_s),
            ) as answer:
                body = await answer.read()
                if answer.status != HTTP_OK:
                    msg = f"GET {target}: {answer.status} {body[:300]!r}"
                    raise CallError(msg, answer.status)
                high_watermark = int(answer.headers["Quorumlog-High-Watermark"])
        except (aiohttp.ClientError, TimeoutError, OSError, KeyError) as error:
            msg = f"GET {target}: {str(error) or type(error).__name__}"
            raise CallError(msg) from error
        page = lines_of_ndjson(body) if accept == NDJSON else lines_of_array(body)
        return page, high_watermark

    async def wait_ready(self, url: str, deadline_s: float) -> None:
        """Wait until the broker's ``/readyz`` answers 200."""
        async with within(deadline_s, f"{url}/readyz answers 200"):
            while True:
                try:
                    await self._call("GET", f"{url}/readyz", None, 2.0)
                except CallError:
                    await asyncio.sleep(0.05)
                else:
                    return
