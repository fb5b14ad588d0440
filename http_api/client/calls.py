"""Calls of the public API as data: a request, and the function that reads its answer.

The modules about topics, groups, configs and so on build `Call`s; `transport.Client` (blocking)
and `async_client.AsyncClient` (asyncio) run them and decompress each answer with `decode_answer`.
Their errors are those of `http_api.client.client_errors`. Nothing here does I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

import orjson

from http_api.client.client_errors import ApiError, ProtocolError, api_error
from http_api.contract.idempotence import claim_headers
from http_api.contract.media_types import DECODED_LENGTH_HEADER, JSON, ZSTD
from raft_metadata.common.ids import Claim

T = TypeVar("T")

Place = tuple[str, int]
"""(topic, partition)."""

DEFAULT_TIMEOUT_S = 30.0

HAS_ZSTD: Final = find_spec("zstandard") is not None
"""True if zstandard is installed: compressed answers are accepted only then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request, without the broker that it is sent to. ``timeout_s`` limits each attempt."""

    method: str
    path: str
    """Path and query, quoted."""
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    timeout_s: float = DEFAULT_TIMEOUT_S
    leader_key: tuple[str, int] | None = None
    """(topic, partition) whose leader gets the request, if the client knows that leader."""
    parsed_error_statuses: tuple[int, ...] = ()
    """Statuses of 400 or more whose answers are passed to `Call.parse` instead of raised."""
    repeatable: bool | None = None
    """True if sending the request twice has the effect of sending it once. None: only if a GET."""
    claim: Claim | None = None
    """Producer id, epoch and sequence of an idempotent write; None for any other request."""
    decoded_max: int = 0
    """Largest decoded size in bytes of a zstd answer; 0: no compressed answer is accepted."""
    more_headers: Mapping[str, str] = field(default_factory=dict)
    """Headers beside those that the other fields make."""

    @property
    def may_repeat(self) -> bool:
        """Return True if sending the request again is harmless whatever became of it (rule F1)."""
        return self.method == "GET" if self.repeatable is None else self.repeatable

    @property
    def headers(self) -> dict[str, str]:
        coding = ZSTD if self.decoded_max and HAS_ZSTD else "identity"
        headers = {"Accept": self.accept, "Accept-Encoding": coding}
        if self.body is not None:
            headers["Content-Type"] = self.content_type
        if self.claim is not None:
            headers |= claim_headers(self.claim)
        headers.update(self.more_headers)
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP answer. Header names are in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """Return the body decoded from JSON; raises `ProtocolError` if it is not JSON."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            msg = f"HTTP {self.status} without a JSON body: {self.body[:100]!r}"
            raise ProtocolError(msg) from error

    def resources(self) -> list[dict[str, Any]]:
        """Return the ``data`` of a v3 list; raises `ProtocolError` if the body is no such list."""
        body = self.json()
        rows = body.get("data") if isinstance(body, dict) else None
        if not isinstance(rows, list):
            msg = f"expected a list of resources, got {self.body[:100]!r}"
            raise ProtocolError(msg)
        return rows


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and the function that reads its answer.

    `parse` gets a 2xx answer, or one whose status `Request.parsed_error_statuses` lists.
    """

    request: Request
    parse: Callable[[Answer], T]


def path_of(*parts: object, query: Mapping[str, object] | None = None) -> str:
    """Return ``/topics/T?a=1`` with every part quoted; None values of ``query`` are left out."""
    path = "".join(f"/{quote(str(part), safe=':-')}" for part in parts)
    kept = {key: value for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(kept)}" if kept else path


def v3_path(cluster_id: str, *parts: object, query: Mapping[str, object] | None = None) -> str:
    """Return the path of a resource below the cluster in the v3 API."""
    return path_of("v3", "clusters", cluster_id, *parts, query=query)


def read_one(request: Request, read: Callable[[Any], T]) -> Call[T]:
    """Return the call whose result is read from one JSON object."""
    return Call(request, lambda answer: read(answer.json()))


def read_list(request: Request, read: Callable[[Any], T]) -> Call[list[T]]:
    """Return the call whose result is read from each row of a v3 list."""
    return Call(request, lambda answer: [read(row) for row in answer.resources()])


def read_nothing(request: Request) -> Call[None]:
    """Return the call whose answer carries nothing but its status."""
    return Call(request, lambda _: None)


def error_of(answer: Answer) -> ApiError:
    """Return the error that an answer of 400 or more describes."""
    try:
        envelope = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        envelope = None
    if not isinstance(envelope, dict):
        text = answer.body[:200].decode(errors="replace").strip()
        return api_error(answer.status, answer.status, text or f"HTTP {answer.status}", {})
    code = envelope.get("error_code")
    code = code if isinstance(code, int) else answer.status
    message = str(envelope.get("message") or f"HTTP {answer.status}")
    error = api_error(answer.status, code, message, envelope)
    diverging = answer.headers.get("quorumlog-diverging-offset", "")
    if diverging.isascii() and diverging.isdigit():
        error.diverging_offset = int(diverging)
    return error


ZSTD_WINDOW_BYTES_MAX = 1 << 23
"""Largest zstd window in bytes that a sender may require of a receiver (RFC 9659)."""


def decode_answer(answer: Answer, request: Request) -> Answer:
    """Return the answer without content coding; raises `ProtocolError` if that is not possible.

    An answer is refused if its coding was not requested, if its stated length is missing or above
    `Request.decoded_max`, or if decoding yields another number of bytes than stated. So an answer
    that was cut short, or that lost all frames but the first in a proxy, is never taken as
    complete.
    """
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    if coding == "identity":
        return answer
    if coding != ZSTD or not request.decoded_max:
        msg = f"HTTP {answer.status} in coding {coding!r}, which was not asked for"
        raise ProtocolError(msg)
    if not answer.body:
        return answer
    said = answer.headers.get(DECODED_LENGTH_HEADER.lower(), "")
    if not (said.isascii() and said.isdigit()) or int(said) > request.decoded_max:
        msg = f"a zstd answer of {said[:20]!r} bytes, expected {request.decoded_max} at most"
        raise ProtocolError(msg)
    length = int(said)
    body = decompress_frames(answer.body, length)
    if len(body) != length:
        msg = f"a zstd answer of {length} bytes holds only {len(body)}"
        raise ProtocolError(msg)
    return replace(answer, body=body)


def decompress_frames(body: bytes, length_max: int) -> bytes:
    """Return the bytes of consecutive zstd frames; `ProtocolError` over ``length_max`` of them."""
    import zstandard  # imported on first use, because loading it takes a while

    reader = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX).stream_reader(
        body, read_across_frames=True
    )
    try:
        found = bytes(reader.read(length_max + 1))
    except zstandard.ZstdError as error:
        msg = f"a zstd answer that can't be decoded: {error}"
        raise ProtocolError(msg) from error
    if len(found) > length_max:
        msg = f"a zstd answer of {length_max} bytes holds more"
        raise ProtocolError(msg)
    return found
