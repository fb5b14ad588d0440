"""The call that reads many partitions at once and waits for the first that has a page.

`poll` returns it as a `Call`; nothing here does I/O and nothing remembers a position. The answer
holds a `PolledPage` for each partition with records or news, and a `PollRefusal` for each that
could not be read. A reader of many partitions sends those first that were answered the longest ago:
pages come in the order of the positions, as far as the room goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from http_api.client.calls import Answer, Call, Request, decompress_frames, v3_path
from http_api.client.client_errors import ProtocolError
from http_api.client.consumer import NETWORK_MARGIN_S, OVER_BYTES
from http_api.contract.media_types import NDJSON, PAGES, ZSTD

if TYPE_CHECKING:
    from collections.abc import Sequence

WAIT_MS_DEFAULT = 1_000
MAX_BYTES_DEFAULT = 8 << 20
MAX_PARTITION_BYTES_DEFAULT = 1 << 20
POSITIONS_MAX = 10_000
"""Most positions of one poll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollPosition:
    """The next offset to read of a partition, and what is known of the record before it."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    """Epoch of the offset: of the record right before it; None if it is not known."""
    topic_id: str | None = None
    """The topic that is meant, another one of its name is refused; None: whichever it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolledPage:
    """Records, or news, of one partition; the next poll goes on at ``next_offset``."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    """The offset that was asked for."""
    next_offset: int
    next_leader_epoch: int | None
    """Epoch of ``next_offset``; None if it is not known."""
    leader_epoch: int
    leader_url: str | None
    high_watermark: int
    log_start_offset: int
    records: int
    body: bytes
    """Stored lines with a line about each batch, as in `consumer.StoredPage`; empty with news."""
    epochs: tuple[tuple[int, int], ...] = ()
    """With ``news_only``: (epoch, first offset) of what lies before ``next_offset``, at most 16,
    the first ones."""
    served_by_url: str | None = None
    """With ``rack``: URL of the replica that served the page, to be asked next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PollRefusal:
    """Refusal to read a partition from its position."""

    topic: str
    partition: int
    offset: int
    error_code: int
    message: str
    retriable: bool
    """True if the same position may be read later."""
    topic_id: str | None = None
    diverging_offset: int | None = None
    """With 40950: where the log differs from what was read."""
    diverging_epoch: int | None = None


Polled = PolledPage | PollRefusal


def poll(  # noqa: PLR0913 the fields of the body
    cluster_id: str,
    positions: Sequence[PollPosition],
    *,
    wait_ms: int = WAIT_MS_DEFAULT,
    min_bytes: int = 1,
    max_bytes: int = MAX_BYTES_DEFAULT,
    max_partition_bytes: int = MAX_PARTITION_BYTES_DEFAULT,
    news_only: bool = False,
    rack: str | None = None,
    zstd: bool = False,
) -> Call[list[Polled]]:
    """Return the call that reads these partitions; it waits up to ``wait_ms`` for the first page.

    With ``zstd`` batches that are stored compressed come compressed, and are decoded here.
    ``news_only``: only where each partition ends, no records. ``rack``: as for `consumer.fetch`.
    """
    body = {
        "partitions": [_row(position) for position in positions],
        "wait_ms": wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "max_partition_bytes": max_partition_bytes,
        "news_only": news_only,
        "rack": rack,
        "zstd": zstd,
    }
    request = Request(
        method="POST",
        path=v3_path(cluster_id, "records:poll"),
        body=orjson.dumps(body),
        accept=PAGES if zstd else NDJSON,
        timeout_s=wait_ms / 1000 + NETWORK_MARGIN_S,
        repeatable=True,
    )
    decoded_max = max_partition_bytes + OVER_BYTES
    return Call(request, lambda answer: list(_pages(answer, decoded_max)))


def _row(position: PollPosition) -> dict[str, Any]:
    row: dict[str, Any] = {
        "topic_name": position.topic,
        "partition_id": position.partition,
        "offset": position.offset,
    }
    if position.leader_epoch is not None:
        row["leader_epoch"] = position.leader_epoch
    if position.topic_id is not None:
        row["topic_id"] = position.topic_id
    return row


def _pages(answer: Answer, decoded_max: int) -> list[Polled]:
    """Return the pages of an answer; raise `ProtocolError` if it is cut or has another form."""
    body = answer.body
    found: list[Polled] = []
    at = 0
    try:
        while at < len(body):
            end = body.index(b"\n", at)
            head = orjson.loads(body[at:end])["page"]
            at = end + 1 + head["bytes"]
            if at > len(body):
                break
            found.append(_page(head, body[end + 1 : at], decoded_max))
    except (ValueError, KeyError, TypeError) as error:
        msg = f"a page of a poll at byte {at} is not in the form of one: {error}"
        raise ProtocolError(msg) from error
    if at != len(body):
        msg = f"a poll of {len(body)} bytes names {at}"
        raise ProtocolError(msg)
    return found


def _page(head: dict[str, Any], body: bytes, decoded_max: int) -> Polled:
    if "error_code" in head:
        return PollRefusal(
            topic=head["topic_name"],
            partition=head["partition_id"],
            offset=head["offset"],
            error_code=head["error_code"],
            message=head["message"],
            retriable=head["retriable"],
            topic_id=head["topic_id"],
            diverging_offset=head.get("diverging_offset"),
            diverging_epoch=head.get("diverging_epoch"),
        )
    if head["coding"] == ZSTD:
        body = decompress_frames(body, decoded_max)
    return PolledPage(
        topic=head["topic_name"],
        topic_id=head["topic_id"],
        partition=head["partition_id"],
        offset=head["offset"],
        next_offset=head["next_offset"],
        next_leader_epoch=head["next_leader_epoch"],
        leader_epoch=head["leader_epoch"],
        leader_url=head["leader_url"],
        high_watermark=head["high_watermark"],
        log_start_offset=head["log_start_offset"],
        records=head["records"],
        body=body,
        epochs=tuple((epoch, first) for epoch, first in head.get("epochs", ())),
        served_by_url=head.get("served_by_url"),
    )
