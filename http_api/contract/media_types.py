"""Media types: what a body may be called, what an answer is called, and how Accept chooses."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

V2 = "application/vnd.kafka.v2+json"
V2_JSON = "application/vnd.kafka.json.v2+json"
V2_BINARY = "application/vnd.kafka.binary.v2+json"
JSON = "application/json"
NDJSON = "application/x-ndjson"
"""Stored lines as they are."""
LINES = "application/vnd.quorumlog.lines+json"
"""Stored lines as one JSON array."""
TEXT = "text/plain; charset=utf-8"

ZSTD = "zstd"
"""The one content coding there is: topics with ``compression.type=zstd``, read as NDJSON."""
DECODED_LENGTH_HEADER = "Quorumlog-Decoded-Length"
"""Bytes of a zstd answer once decoded: a reader that gets fewer has lost frames."""

MAX_ACCEPT_RANGES = 32
"""More media ranges than this in one Accept header are not looked at; browsers send about eight."""


class EmbeddedFormat(Enum):
    """How keys and values are embedded in a request body."""

    JSON = "json"
    BINARY = "binary"
    AVRO = "avro"
    JSONSCHEMA = "jsonschema"
    PROTOBUF = "protobuf"


_SCHEMA_FORMATS = (EmbeddedFormat.AVRO, EmbeddedFormat.JSONSCHEMA, EmbeddedFormat.PROTOBUF)

PRODUCE_FORMATS: Mapping[str, EmbeddedFormat] = {
    V2_JSON: EmbeddedFormat.JSON,
    "application/vnd.kafka.json.v1+json": EmbeddedFormat.JSON,
    JSON: EmbeddedFormat.JSON,
    V2_BINARY: EmbeddedFormat.BINARY,
    "application/vnd.kafka.binary.v1+json": EmbeddedFormat.BINARY,
    V2: EmbeddedFormat.BINARY,
    "application/vnd.kafka.v1+json": EmbeddedFormat.BINARY,
    "application/vnd.kafka+json": EmbeddedFormat.BINARY,
    "application/octet-stream": EmbeddedFormat.BINARY,
    **{
        f"application/vnd.kafka.{embedded.value}.{version}+json": embedded
        for embedded in _SCHEMA_FORMATS
        for version in ("v1", "v2")
    },
}
"""Content-Type of a produce request → embedded format. ``application/json`` is json: a value read
as base64 by mistake would be changed silently, the other way round nothing is lost."""

V2_REPLIES: Mapping[str, str] = {V2: V2, JSON: V2}
"""What an Accept may name on v2 paths → the type of the answer."""
CONSUMER_REPLIES: Mapping[str, str] = {
    **V2_REPLIES,
    **{f"application/vnd.kafka.{embedded.value}.v2+json": V2 for embedded in EmbeddedFormat},
}
"""The same on a consumer instance's paths: clients name the instance's format there, too."""
V3_REPLIES: Mapping[str, str] = {JSON: JSON}
FETCH_REPLIES: Mapping[str, str] = {
    V2_JSON: V2_JSON,
    JSON: V2_JSON,
    V2_BINARY: V2_BINARY,
    NDJSON: NDJSON,
    LINES: LINES,
}


def embedded_type(embedded: str) -> str:
    """The v2 type of records in this format."""
    return f"application/vnd.kafka.{embedded}.v2+json"


def accepted_formats(accept: str | None) -> frozenset[str]:
    """Formats of records an Accept takes. A type that names none (and a wildcard) takes all."""
    names = [embedded.value for embedded in EmbeddedFormat]
    return frozenset(
        name
        for name in names
        if choose_reply(accept, {embedded_type(name): "", V2: "", JSON: ""}) is not None
    )


def essence(header: str) -> str:
    """The media type without parameters, lowercase."""
    return header.partition(";")[0].strip().lower()


def produce_format(content_type: str | None) -> EmbeddedFormat | None:
    """The embedded format a produce body is in, or None if it can't be taken."""
    if content_type is None:
        return None
    known = PRODUCE_FORMATS.get(content_type)
    return known if known is not None else PRODUCE_FORMATS.get(essence(content_type))


def takes_zstd(accept_encoding: str | None) -> bool:
    """Whether an Accept-Encoding names zstd, and likes nothing that is sent otherwise better.

    A wildcard does not: who knows zstd says so (RFC 9110, 12.5.3).
    """
    if not accept_encoding or ZSTD not in accept_encoding.lower():
        return False
    said = {
        essence(part): _quality(part)
        for part in accept_encoding.split(",", MAX_ACCEPT_RANGES)[:MAX_ACCEPT_RANGES]
    }
    return said.get(ZSTD, 0.0) > 0 and said.get(ZSTD, 0.0) >= said.get("identity", 0.0)


def choose_reply(accept: str | None, offered: Mapping[str, str]) -> str | None:
    """The type to answer with, or None when Accept takes nothing of ``offered``.

    ``offered`` maps what Accept may name to what the answer is called; its first entry is what a
    wildcard gets. Quality decides, then how exact the range is, then the order in the header.
    """
    if not accept or accept == "*/*":
        return next(iter(offered.values()))
    exact = offered.get(accept)
    if exact is not None:
        return exact
    best: tuple[float, int, int] | None = None
    chosen: str | None = None
    refused = _refused(accept)
    for position, part in enumerate(accept.split(",", MAX_ACCEPT_RANGES)[:MAX_ACCEPT_RANGES]):
        media_range = essence(part)
        name, specificity = _first_match(media_range, offered, refused)
        quality = _quality(part)
        if name is None or quality <= 0:
            continue
        rank = (quality, specificity, -position)
        if best is None or rank > best:
            best, chosen = rank, offered[name]
    return chosen


def _first_match(
    media_range: str, offered: Mapping[str, str], refused: frozenset[str]
) -> tuple[str | None, int]:
    """The offered type this range takes, and how exact the range is (2 exact, 0 everything)."""
    if media_range in offered:
        return media_range, 2
    if not media_range.endswith("/*"):
        return None, 0
    prefix = "" if media_range == "*/*" else media_range[:-1]
    for name in offered:
        if name.startswith(prefix) and name not in refused:
            return name, 1 if prefix else 0
    return None, 0


def _refused(accept: str) -> frozenset[str]:
    """Types named with ``q=0``: a wildcard beside them does not bring them back."""
    if "q=0" not in accept:
        return frozenset()
    return frozenset(essence(part) for part in accept.split(",") if _quality(part) <= 0)


def _quality(media_range: str) -> float:
    """The ``q`` parameter: 1 when absent, 0 when it is no number."""
    for parameter in media_range.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
