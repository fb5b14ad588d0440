"""Plain HTTP client of a run, as any user would write it: aiohttp, JSON, no retries.

Loads, readers and the runner share one `Http`. Two fields of the documented error body decide what
an answer means for the data, ``retriable`` and ``outcome`` (interfaces §4), and nothing else does.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp
import msgspec
import orjson

from chaos.deadline import within
from chaos.history import Line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import TracebackType

    from chaos.history import Record

JSON = "application/json"
JSON_V2 = "application/vnd.kafka.json.v2+json"
V2 = "application/vnd.kafka.v2+json"
NDJSON = "application/x-ndjson"
READ_MAX_BYTES = 4 << 20
"""Bytes of an answer when a whole partition is read."""
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


class HttpReply(NamedTuple):
    """Answer of any status, its body decoded; `status` is 0 without one."""

    status: int
    body: dict[str, Any]
    is_sent: bool = True
    """False if surely no broker got the request."""
    reason: str = ""

    @property
    def code(self) -> int:
        """The ``error_code`` of an error; 0 of any other answer."""
        code = self.body.get("error_code")
        return code if isinstance(code, int) else 0


class Answer(NamedTuple):
    """Body and headers of a successful answer."""

    body: bytes
    headers: Mapping[str, str]


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


def lines_of(body: bytes, accept: str) -> list[Line]:
    """Return the records of a fetch in this media type, key and value text untouched."""
    decode = _decode_lines if accept == NDJSON else _decode_array
    return [stored.line() for stored in decode(body)]


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

    async def ask(
        self, method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> HttpReply:
        """Return the answer to one request, whatever it is; never raise for network or broker."""
        ours = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.request(
                method, url, data=body, headers=headers, timeout=ours
            ) as answer:
                status, text = answer.status, await answer.read()
        except aiohttp.ClientConnectorError as error:
            return HttpReply(0, {}, is_sent=False, reason=f"not connected: {error}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return HttpReply(0, {}, reason=f"no answer: {error!r}")
        try:
            found = orjson.loads(text)
        except orjson.JSONDecodeError:
            found = None
        decoded = found if isinstance(found, dict) else {}
        return HttpReply(status, decoded, reason=str(decoded.get("message", "")))

    async def get_json(self, url: str, timeout_s: float = 5.0) -> Any:
        """Return the decoded body of a successful GET; raise `CallError` otherwise."""
        return orjson.loads((await self.call("GET", url, timeout_s=timeout_s)).body)

    async def post_json(self, url: str, body: object, timeout_s: float = 15.0) -> Any:
        """Return the decoded body of a successful POST; raise `CallError` otherwise."""
        return orjson.loads((await self.call("POST", url, body, timeout_s=timeout_s)).body)

    async def create_topic(
        self,
        topics_url: str,
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        timeout_s: float = 15.0,
    ) -> None:
        """Create a topic below a ``…/topics`` URL of v3; raise `CallError` unless it succeeds."""
        body = {
            "topic_name": name,
            "partitions_count": partitions,
            "replication_factor": replication_factor,
        }
        await self.call("POST", topics_url, body, timeout_s=timeout_s)

    async def join_group(
        self,
        group_url: str,
        name: str,
        topic: str,
        settings: Mapping[str, object],
        timeout_s: float,
    ) -> None:
        """Create a consumer instance that starts at the earliest record, and subscribe it."""
        body = {"name": name, "format": "json", "auto.offset.reset": "earliest", **settings}
        await self.call("POST", group_url, body, content_type=V2, timeout_s=timeout_s)
        path = f"{group_url}/instances/{name}/subscription"
        await self.call("POST", path, {"topics": [topic]}, content_type=V2, timeout_s=timeout_s)

    async def committed_offsets(self, group_url: str, topic: str) -> dict[int, int]:
        """Return a group's committed offsets by partition, as v3 reports them below its URL."""
        listed = await self.get_json(f"{group_url}/offsets", 3.0)
        return {
            row["partition_id"]: row["offset"]
            for row in listed["data"]
            if row["topic_name"] == topic
        }

    async def call(
        self,
        method: str,
        url: str,
        body: object = None,
        *,
        content_type: str = JSON,
        accept: str = "*/*",
        timeout_s: float,
    ) -> Answer:
        """Return the answer to one request; raise `CallError` unless its status is below 400."""
        headers = {"Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            async with self._session.request(
                method,
                url,
                data=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                text = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            msg = f"{method} {url}: {str(error) or type(error).__name__}"
            raise CallError(msg) from error
        if answer.status >= HTTP_FIRST_ERROR:
            msg = f"{method} {url}: {answer.status} {text[:300]!r}"
            raise CallError(msg, answer.status)
        return Answer(text, answer.headers)

    async def read_topic(
        self, url: str, topic: str, partitions: int, *, accept: str = NDJSON
    ) -> dict[int, list[Line]]:
        """Return all records of a topic by partition, as one broker serves them."""
        return {
            partition: await self.read_partition(url, topic, partition, accept=accept)
            for partition in range(partitions)
        }

    async def read_partition(
        self, url: str, topic: str, partition: int, *, accept: str = NDJSON
    ) -> list[Line]:
        """Return all records below the high watermark, by direct fetches from offset 0."""
        lines: list[Line] = []
        offset, high_watermark = 0, None
        while high_watermark is None or offset < high_watermark:
            page, high_watermark = await self.fetch(
                url, topic, partition, offset, accept=accept, max_bytes=READ_MAX_BYTES
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
        """Return the lines of one direct fetch and the high watermark; raise `CallError`."""
        target = (
            f"{url}/topics/{topic}/partitions/{partition}/records"
            f"?offset={offset}&max_bytes={max_bytes}&timeout={timeout_ms}"
        )
        answer = await self.call("GET", target, accept=accept, timeout_s=deadline_s)
        high_watermark = answer.headers.get("Quorumlog-High-Watermark")
        if high_watermark is None:
            msg = f"GET {target}: no high watermark"
            raise CallError(msg)
        return lines_of(answer.body, accept), int(high_watermark)

    async def wait_ready(self, url: str, deadline_s: float) -> None:
        """Wait until the broker's ``/readyz`` answers 200."""
        async with within(deadline_s, f"{url}/readyz answers 200"):
            while True:
                try:
                    await self.call("GET", f"{url}/readyz", timeout_s=2.0)
                except CallError:
                    await asyncio.sleep(0.05)
                else:
                    return
