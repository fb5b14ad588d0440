"""A call of the public API as data: what to send, and how to read what comes back.

Nothing here does I/O: `http_api.client.transport` (blocking) and `http_api.client.async_client`
(asyncio) are two shells over the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import orjson

from http_api.contract.idempotence import claim_headers
from http_api.contract.media_types import JSON, ZSTD
from raft_metadata.common.errors import Outcome
from raft_metadata.common.ids import Claim

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 30.0


class ClientError(Exception):
    """Whatever a call can end in. ``outcome`` says what a write left behind."""

    outcome: Outcome = Outcome.NOT_WRITTEN
    retriable: bool = False


class ApiError(ClientError):
    """The broker answered with an error envelope."""

    def __init__(self, status: int, code: int, message: str, envelope: Mapping[str, Any]) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.path = ""
        """What was asked for, where that is known."""
        self.retriable = bool(envelope.get("retriable", status == 503))
        said = envelope.get("outcome")
        if said is not None:
            self.outcome = Outcome.UNKNOWN if said == "unknown" else Outcome.NOT_WRITTEN
        else:  # a 4xx wrote nothing; a 5xx that does not say may have
            self.outcome = Outcome.UNKNOWN if status >= 500 else Outcome.NOT_WRITTEN


class UnreachableError(ClientError):
    """No broker could be connected to: nothing was sent."""

    retriable = True


class OutcomeUnknownError(ClientError):
    """The connection broke or timed out after the request was sent: it may have been done."""

    outcome = Outcome.UNKNOWN


class ProtocolError(ClientError):
    """An answer that is not what the API promises: probably no quorumlog broker answers there."""

    outcome = Outcome.UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request, without the broker it goes to. ``timeout_s`` bounds one attempt."""

    method: str
    path: str
    """Quoted, with the query."""
    body: bytes | None = None
    content_type: str = JSON
    accept: str = JSON
    timeout_s: float = DEFAULT_TIMEOUT_S
    leader_key: tuple[str, int] | None = None
    """(topic, partition): goes straight to the leader where that is known."""
    also_parsed: tuple[int, ...] = ()
    """Statuses of 400 and more whose answers `Call.parse` reads itself."""
    repeatable: bool | None = None
    """Said twice is as good as said once. None: a GET is, nothing else."""
    claim: Claim | None = None
    """Under which producer id, epoch and sequence it writes."""
    decoded_max: int = 0
    """Takes an answer in zstd of at most so many bytes once it is decoded; 0: takes none."""

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent again whatever became of it (rule F1)."""
        return self.method == "GET" if self.repeatable is None else self.repeatable

    @property
    def headers(self) -> dict[str, str]:
        coding = ZSTD if self.decoded_max else "identity"
        headers = {"Accept": self.accept, "Accept-Encoding": coding}
        if self.body is not None:
            headers["Content-Type"] = self.content_type
        if self.claim is not None:
            headers |= claim_headers(self.claim)
        return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came back. Header names are lowercase."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def json(self) -> Any:
        """The decoded body; `ProtocolError` if it is none."""
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as error:
            msg = f"HTTP {self.status} without a JSON body: {self.body[:100]!r}"
            raise ProtocolError(msg) from error

    def resources(self) -> list[dict[str, Any]]:
        """The ``data`` of a v3 list; `ProtocolError` if it is none."""
        body = self.json()
        rows = body.get("data") if isinstance(body, dict) else None
        if not isinstance(rows, list):
            msg = f"expected a list of resources, got {self.body[:100]!r}"
            raise ProtocolError(msg)
        return rows


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request, and the function that reads its answer (a 2xx, or one of ``also_parsed``)."""

    request: Request
    parse: Callable[[Answer], T]


def path_of(*parts: object, query: Mapping[str, object] | None = None) -> str:
    """``/topics/T?a=1`` with every part quoted; a None in ``query`` is left out."""
    path = "".join(f"/{quote(str(part), safe=':-')}" for part in parts)
    kept = {key: value for key, value in (query or {}).items() if value is not None}
    return f"{path}?{urlencode(kept)}" if kept else path


def error_of(answer: Answer) -> ApiError:
    """The error an answer of 400 or more stands for."""
    try:
        envelope = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        envelope = None
    if not isinstance(envelope, dict):
        text = answer.body[:200].decode(errors="replace").strip()
        return ApiError(answer.status, answer.status, text or f"HTTP {answer.status}", {})
    code = envelope.get("error_code", answer.status)
    return ApiError(answer.status, int(code), str(envelope.get("message", "")), envelope)
