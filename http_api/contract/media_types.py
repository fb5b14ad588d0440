"""Media types of bodies and answers, and how the Accept headers choose among them.

Servers look up the format of a request body and choose the type of an answer here; clients use the
names. Also here: the two content codings.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from http_api.contract.event_stream import EVENT_STREAM

if TYPE_CHECKING:
    from collections.abc import Mapping

V2 = "application/vnd.kafka.v2+json"
V2_JSON = "application/vnd.kafka.json.v2+json"
V2_BINARY = "application/vnd.kafka.binary.v2+json"
V2_TEXT = "application/vnd.kafka.text.v2+json"
_V2_OLD = ("application/vnd.kafka.v1+json", "application/vnd.kafka+json")
"""Spellings of `V2` with an older version, and without one."""
JSON = "application/json"
NDJSON = "application/x-ndjson"
"""Stored lines, unchanged."""
LINES = "application/vnd.quorumlog.lines+json"
"""Stored lines as one JSON array."""
PAGES = "application/vnd.quorumlog.pages"
"""Pages of many partitions, each a line about it and the bytes that the line counts."""
TEXT = "text/plain; charset=utf-8"
_ANY_JSON = "*/json"
"""A media range that some clients send for JSON."""

ZSTD = "zstd"
"""Content coding of topics with ``compression.type=zstd`` that are read as NDJSON."""
GZIP = "gzip"
"""Content coding of other answers: see ``http.gzip``."""
DECODED_LENGTH_HEADER = "Quorumlog-Decoded-Length"
"""Header with the decoded bytes of a zstd answer; a client that gets fewer has lost frames."""

MAX_ACCEPT_RANGES = 32
"""Media ranges of an Accept header beyond this number are ignored; browsers send about eight."""


class EmbeddedFormat(Enum):
    """Format of the keys and values inside a request body."""

    JSON = "json"
    BINARY = "binary"
    TEXT = "text"
    AVRO = "avro"
    JSONSCHEMA = "jsonschema"
    PROTOBUF = "protobuf"


def _spellings(embedded: EmbeddedFormat) -> tuple[str, ...]:
    """Return the media types of records in this format: v2, v1 and without a version."""
    name = f"application/vnd.kafka.{embedded.value}"
    return f"{name}.v2+json", f"{name}.v1+json", f"{name}+json"


PRODUCE_FORMATS: Mapping[str, EmbeddedFormat] = {
    **{name: embedded for embedded in EmbeddedFormat for name in _spellings(embedded)},
    JSON: EmbeddedFormat.JSON,
    V2: EmbeddedFormat.BINARY,
    **dict.fromkeys(_V2_OLD, EmbeddedFormat.BINARY),
    "application/octet-stream": EmbeddedFormat.BINARY,
}
"""Content-Type of a produce request → embedded format. ``application/json`` is json, because a
value read as base64 by mistake would be changed silently; the opposite mistake loses nothing."""

V2_REPLIES: Mapping[str, str] = dict.fromkeys(
    (
        *(V2, JSON),
        *_V2_OLD,
        *(name for embedded in EmbeddedFormat for name in _spellings(embedded)),
    ),
    V2,
)
"""Types that Accept may name on v2 paths, also with an embedded format → the type of the answer."""
RECORD_REPLIES: Mapping[str, str] = {
    name: _spellings(embedded)[0] for embedded in EmbeddedFormat for name in _spellings(embedded)
}
"""Types that Accept may name for the records of an instance → the type of the answer."""
V3_REPLIES: Mapping[str, str] = {JSON: JSON}
FETCH_REPLIES: Mapping[str, str] = {
    V2_JSON: V2_JSON,
    JSON: V2_JSON,
    **dict.fromkeys(_spellings(EmbeddedFormat.JSON), V2_JSON),
    **dict.fromkeys(_spellings(EmbeddedFormat.BINARY), V2_BINARY),
    NDJSON: NDJSON,
    LINES: LINES,
}
READ_REPLIES: Mapping[str, str] = {**FETCH_REPLIES, EVENT_STREAM: EVENT_STREAM}
"""The same where records are read: the last one is a stream without an end of its own."""
V3_READ_REPLIES: Mapping[str, str] = {**V3_REPLIES, EVENT_STREAM: EVENT_STREAM}
TAIL_REPLIES: Mapping[str, str] = {NDJSON: NDJSON, EVENT_STREAM: EVENT_STREAM}
"""Types of a stream of records."""


def embedded_type(embedded: str) -> str:
    """Return the v2 media type of records in this format."""
    return f"application/vnd.kafka.{embedded}.v2+json"


def accepted_formats(accept: str | None) -> frozenset[str]:
    """Return the record formats that an Accept header allows.

    A type that names no format, and a wildcard, allow all of them.
    """
    general = dict.fromkeys((V2, JSON, *_V2_OLD), "")
    return frozenset(
        embedded.value
        for embedded in EmbeddedFormat
        if choose_reply(accept, dict.fromkeys(_spellings(embedded), "") | general) is not None
    )


def essence(header: str) -> str:
    """Return the media type without parameters, in lower case."""
    return header.partition(";")[0].strip().lower()


def produce_format(content_type: str | None) -> EmbeddedFormat | None:
    """Return the embedded format of a produce body, or None if its type is not supported."""
    if content_type is None:
        return None
    known = PRODUCE_FORMATS.get(content_type)
    return known if known is not None else PRODUCE_FORMATS.get(essence(content_type))


def accepts_zstd(accept_encoding: str | None) -> bool:
    """Return True if zstd may be sent; see `accepts_coding`."""
    return accepts_coding(accept_encoding, ZSTD)


def accepts_coding(accept_encoding: str | None, coding: str) -> bool:
    """Return True if an Accept-Encoding names the coding and gives identity no higher quality.

    A wildcard is not enough: a client that decodes a coding names it (RFC 9110, 12.5.3).
    """
    if not accept_encoding or coding not in accept_encoding.lower():
        return False
    said = {
        essence(part): _quality(part)
        for part in accept_encoding.split(",", MAX_ACCEPT_RANGES)[:MAX_ACCEPT_RANGES]
    }
    quality = said.get(coding, 0.0)
    return quality > 0 and quality >= said.get("identity", 0.0)


def choose_reply(accept: str | None, offered: Mapping[str, str]) -> str | None:
    """Return the media type of the answer, or None if Accept allows none of ``offered``.

    ``offered`` maps the types that Accept may name to the type of the answer; a wildcard gets the
    first entry. The highest quality wins, then the most exact range, then the earliest in the
    header.
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
    """Return the offered type that a range matches, and its exactness (2 exact, 0 any type)."""
    if media_range in offered:
        return media_range, 2
    if media_range == _ANY_JSON:
        return (JSON, 1) if JSON in offered and JSON not in refused else (None, 0)
    if not media_range.endswith("/*"):
        return None, 0
    prefix = "" if media_range == "*/*" else media_range[:-1]
    for name, answer in offered.items():
        if name.startswith(prefix) and name not in refused and answer not in refused:
            return name, 1 if prefix else 0
    return None, 0


def _refused(accept: str) -> frozenset[str]:
    """Return the types with ``q=0``, which a wildcard in the same header does not allow."""
    if "q=0" not in accept:
        return frozenset()
    return frozenset(essence(part) for part in accept.split(",") if _quality(part) <= 0)


def _quality(media_range: str) -> float:
    """Return the ``q`` parameter: 1 if absent, 0 if it is not a number."""
    for parameter in media_range.split(";")[1:]:
        name, _, value = parameter.strip().partition("=")
        if name.strip().lower() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0
