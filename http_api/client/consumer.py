"""Calls that read records of a partition by offset, without a consumer group.

`fetch` returns decoded records, `fetch_lines` and `fetch_stored` return many records as stored
JSON lines for quicker readers, `ends` and `offset_at` find offsets. A fetch is sent to the
partition's leader if the client knows it, or with a rack to the replica that serves this rack. Each
function returns a `Call`; nothing here does I/O and nothing remembers a position.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec
import orjson

from http_api.client.calls import Answer, Call, Request, path_of
from http_api.client.client_errors import ProtocolError
from http_api.contract.media_types import LINES, NDJSON, V2, V2_BINARY, V2_JSON

DEFAULT_WAIT_MS = 1_000
DEFAULT_MAX_BYTES = 1_048_576
NETWORK_MARGIN_S = 10.0
OVER_BYTES = 1 << 27
"""Bytes allowed beyond ``max_bytes``: a first record may be longer, up to 64 MiB as a line."""
_LINES_PER_BATCH = 4
"""Factor by which lines about batches can exceed records, if each batch has one short record."""


class Record(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A record. ``key`` and ``value`` are the JSON text as stored (base64 text if read as binary).

    ``headers`` are ``{"key", "value"}`` objects, None unless the producer set some.
    ``timestamp`` is in milliseconds.
    """

    topic: str
    partition: int
    offset: int
    key: msgspec.Raw
    value: msgspec.Raw
    timestamp: int | None = None
    headers: list[dict[str, str | None]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEnds:
    """Both ends of a partition; ``end`` is the next offset that a reader gets."""

    beginning: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPage:
    """Records in offset order, possibly none; the next fetch starts at ``next_offset``."""

    records: list[Record]
    next_offset: int
    high_watermark: int
    log_start_offset: int
    leader_epoch: int
    next_leader_epoch: int | None = None
    """Epoch of ``next_offset``: of the record right before it; None if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesPage:
    """Stored lines as a JSON array: the fastest way to decode many values."""

    body: bytes
    next_offset: int
    high_watermark: int
    leader_epoch: int

    def records(self) -> list[dict[str, Any]]:
        """Return the decoded records: ``{"offset", "key", "value"}`` and what the producer set."""
        rows: list[dict[str, Any]] = orjson.loads(self.body)
        return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPage:
    """Stored lines exactly as in the log; a line about each batch precedes its lines.

    ``{"batch":{"offset","next_offset","count","timestamp","key_format","value_format",
    "leader_epoch"}}``, then
    ``count`` lines ``{"offset","timestamp"?,"headers"?,"key","value"}``. Formats: json (the text
    is the value), string, binary (base64).
    """

    body: bytes
    next_offset: int
    high_watermark: int
    log_start_offset: int
    topic_id: str
    next_leader_epoch: int | None = None
    """Epoch of ``next_offset``: of the record right before it; None if it is not known."""


_decode_records = msgspec.json.Decoder(list[Record]).decode


def decode_records(answer: Answer) -> list[Record]:
    """Return the records of an answer; raises `ProtocolError` if its body is no list of them."""
    try:
        return _decode_records(answer.body)
    except msgspec.MsgspecError as error:
        msg = f"expected records, got {answer.body[:100]!r}"
        raise ProtocolError(msg) from error


def fetch(  # noqa: PLR0913 what a fetch may say
    topic: str,
    partition: int,
    offset: int,
    *,
    wait_ms: int = DEFAULT_WAIT_MS,
    max_bytes: int = DEFAULT_MAX_BYTES,
    binary: bool = False,
    rack: str | None = None,
    leader_epoch: int | None = None,
    topic_id: str | None = None,
) -> Call[FetchPage]:
    """Return the call that reads from ``offset`` and waits up to ``wait_ms`` for a first record.

    ``leader_epoch`` and ``topic_id``: as for `fetch_stored`.

    ``rack`` is the rack of the reader. With ``replica.selector`` = rack an in-sync replica of that
    rack answers, up to the high watermark that the replica knows, slightly behind the leader's.
    """
    accept = V2_BINARY if binary else V2_JSON
    request = _fetch_request(
        topic, partition, offset, wait_ms, max_bytes, accept, rack=rack,
        leader_epoch=leader_epoch,
        topic_id=topic_id,
    )  # fmt: skip

    def parse(answer: Answer) -> FetchPage:
        return FetchPage(
            records=decode_records(answer),
            next_offset=_header(answer, "next-offset"),
            high_watermark=_header(answer, "high-watermark"),
            log_start_offset=_header(answer, "log-start-offset"),
            leader_epoch=_header(answer, "leader-epoch"),
            next_leader_epoch=_next_leader_epoch(answer),
        )

    return Call(request, parse)


def fetch_lines(
    topic: str,
    partition: int,
    offset: int,
    *,
    wait_ms: int = DEFAULT_WAIT_MS,
    max_bytes: int = DEFAULT_MAX_BYTES,
    rack: str | None = None,
) -> Call[LinesPage]:
    """Return the call that reads like `fetch`, without topic and partition in each record."""
    request = _fetch_request(topic, partition, offset, wait_ms, max_bytes, LINES, rack=rack)

    def parse(answer: Answer) -> LinesPage:
        return LinesPage(
            body=answer.body,
            next_offset=_header(answer, "next-offset"),
            high_watermark=_header(answer, "high-watermark"),
            leader_epoch=_header(answer, "leader-epoch"),
        )

    return Call(request, parse)


def fetch_stored(
    topic: str,
    partition: int,
    offset: int | str,
    *,
    wait_ms: int = DEFAULT_WAIT_MS,
    max_bytes: int = DEFAULT_MAX_BYTES,
    rack: str | None = None,
    leader_epoch: int | None = None,
    topic_id: str | None = None,
) -> Call[StoredPage]:
    """Return the call that reads like `fetch`, for readers that decode many records at once.

    Batches that are stored compressed are sent compressed and decoded by the client. ``offset`` may
    be ``earliest`` or ``latest``. With ``leader_epoch``, the epoch of the offset, and ``topic_id``,
    another log or topic than the one that was read before is refused with 409 (KIP-320).
    """
    request = _fetch_request(
        topic, partition, offset, wait_ms, max_bytes, NDJSON, rack=rack,
        include="batches",
        frames="many",  # `content_coding` reads many frames
        leader_epoch=leader_epoch,
        topic_id=topic_id,
    )  # fmt: skip
    request = replace(request, decoded_max=_LINES_PER_BATCH * max_bytes + OVER_BYTES)

    def parse(answer: Answer) -> StoredPage:
        return StoredPage(
            body=answer.body,
            next_offset=_header(answer, "next-offset"),
            high_watermark=_header(answer, "high-watermark"),
            log_start_offset=_header(answer, "log-start-offset"),
            topic_id=answer.headers.get("quorumlog-topic-id", ""),
            next_leader_epoch=_next_leader_epoch(answer),
        )

    return Call(request, parse)


def ends(topic: str, partition: int) -> Call[PartitionEnds]:
    """Return the call that reads both ends of a partition from its leader."""

    def parse(answer: Answer) -> PartitionEnds:
        found = answer.json()
        return PartitionEnds(beginning=found["beginning_offset"], end=found["end_offset"])

    path = path_of("topics", topic, "partitions", partition, "offsets")
    return Call(Request(method="GET", path=path, accept=V2), parse)


def offset_at(topic: str, partition: int, timestamp_ms: int) -> Call[int]:
    """Return the call that finds the first offset at or after ``timestamp_ms``, else the end."""
    query = {"timestamp": timestamp_ms, "timeout": 0, "max_bytes": 1}
    request = Request(
        method="GET",
        path=path_of("topics", topic, "partitions", partition, "records", query=query),
        accept=V2_BINARY,
        leader_key=(topic, partition),
    )

    def parse(answer: Answer) -> int:
        records = answer.json()
        return int(records[0]["offset"]) if records else _header(answer, "next-offset")

    return Call(request, parse)


def record_at(topic: str, partition: int, timestamp_ms: int) -> Call[tuple[int, int] | None]:
    """Return the call that finds offset and time of the first record at or after a time, if any."""
    return Call(offset_at(topic, partition, timestamp_ms).request, _offset_and_time)


def last_record(topic: str, partition: int) -> Call[tuple[int, int] | None]:
    """Return the call that finds offset and time of the last record; None if it was removed."""
    request = _fetch_request(topic, partition, -1, 0, 1, V2_BINARY)
    return Call(request, _offset_and_time)


def _offset_and_time(answer: Answer) -> tuple[int, int] | None:
    records = answer.json()
    return (int(records[0]["offset"]), int(records[0]["timestamp"])) if records else None


def _fetch_request(
    topic: str,
    partition: int,
    offset: int | str,
    wait_ms: int,
    max_bytes: int,
    accept: str,
    *,
    rack: str | None = None,
    **more: object,
) -> Request:
    query: dict[str, object] = {
        "offset": offset,
        "timeout": wait_ms,
        "max_bytes": max_bytes,
        "rack": rack,
        **more,
    }
    return Request(
        method="GET",
        path=path_of("topics", topic, "partitions", partition, "records", query=query),
        accept=accept,
        timeout_s=wait_ms / 1000 + NETWORK_MARGIN_S,
        # The replica that serves a rack is cached like a leader, under a name no topic can have.
        leader_key=(topic if rack is None else f"{topic}@{rack}", partition),
    )


def _next_leader_epoch(answer: Answer) -> int | None:
    if "quorumlog-next-leader-epoch" not in answer.headers:
        return None
    return _header(answer, "next-leader-epoch")


def _header(answer: Answer, name: str) -> int:
    text = answer.headers.get(f"quorumlog-{name}", "")
    try:
        return int(text)
    except ValueError:
        msg = f"expected a Quorumlog-{name.title()} header, got {text!r}"
        raise ProtocolError(msg) from None
