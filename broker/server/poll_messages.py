"""Polls of many partitions as data: rows asked for, pages found, their peer messages. Pure.

A client's `PollRequest` becomes one `PollLeg` for each broker that serves some of its rows; the
broker answers it with `LegPages`. `poll_routing` makes the legs and puts the pages together,
`local_polls` serves a leg, and the functions here carry legs between brokers.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from broker.log.read_positions import PositionTruncatedError
from broker.server.peer_codec import (
    decode_fetch,
    encode_fetched,
    join_body,
    split_body,
    truncated_fields,
    truncated_in,
)
from broker.server.requests import EPOCHS_MAX, PollPage
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import PartitionId, TopicId, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORWARDED_PAGE_BYTES: Final = 8 << 20
"""Most bytes of lines that a page brings from another broker, besides a single longer record. With
one record a batch they are three times as much in a frame of at most 72 MiB."""
FORWARDED_BYTES: Final = 40 << 20
"""Room for the pages of a leg that another broker serves, as they are sent."""


class PlacedRow(NamedTuple):
    """A row of a request whose topic is known."""

    row: int
    """Index of the row in the client's request."""
    place: TopicIdPartition
    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PollLeg:
    """The rows of a poll that one broker serves, in the request's order."""

    rows: Sequence[PlacedRow]
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_partition_bytes: int
    news_only: bool
    packed: bool
    from_follower: bool = False
    """The broker serves the rows as an in-sync follower (KIP-392), not as their leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LegPages:
    """The answer to a `PollLeg`."""

    pages: Sequence[PollPage]
    unserved: Mapping[int, KafkaError] = field(default_factory=dict)
    """Row → temporary error because of which it could not be served so far."""


class PollId(NamedTuple):
    """Name of a leg that another broker serves, so that its wait can be ended early."""

    broker: int
    """The broker that asks."""
    number: int
    """Counted by that broker from a random start."""


def is_final(error: KafkaError) -> bool:
    """Return whether an error of a row stays until the client sends another row."""
    return not error.code.retriable or error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def pages_in_room(pages: Sequence[PollPage], max_bytes: int) -> list[PollPage]:
    """Return the pages that fit, in the order of their rows: at least the first with records.

    Behind the first page that does not fit, none with records is taken: where small pages passed
    it, a large one might never have its turn.
    """
    kept: list[PollPage] = []
    used, is_full = 0, False
    for page in sorted(pages, key=lambda page: page.row):
        size = page.size
        if size and (is_full or (used and used + size > max_bytes)):
            is_full = True
            continue
        used += size
        kept.append(page)
    return kept


def epochs_between(
    entries: Sequence[tuple[int, int]], start: int, end: int
) -> list[tuple[int, int]]:
    """Return (epoch, first offset) of each epoch with offsets in [start, end), the first ones.

    ``entries``: all (epoch, start offset) of the log, oldest first.
    """
    found: list[tuple[int, int]] = []
    at = bisect_right(entries, start, key=lambda entry: entry[1]) - 1
    for epoch, begins in entries[max(at, 0) :]:
        first = max(begins, start)
        if first >= end:
            break
        if found and found[-1][1] == first:
            found.pop()  # an epoch in which nothing was written
        elif len(found) == EPOCHS_MAX:
            break
        found.append((epoch, first))
    return found


def encode_leg(leg: PollLeg, poll_id: PollId) -> bytes:
    """Encode a POLL body. Rows name their topic by its index in ``topics``."""
    topics: dict[TopicId, int] = {}
    rows = [
        (
            row.row,
            topics.setdefault(row.place.topic_id, len(topics)),
            row.place.partition,
            row.offset,
            row.leader_epoch,
        )
        for row in leg.rows
    ]
    return join_body(
        {
            "poll_id": list(poll_id),
            "max_wait_ms": leg.max_wait_ms,
            "min_bytes": leg.min_bytes,
            "max_bytes": leg.max_bytes,
            "max_partition_bytes": leg.max_partition_bytes,
            "news_only": leg.news_only,
            "packed": leg.packed,
            "from_follower": leg.from_follower,
            "topics": list(topics),
            "rows": rows,
        }
    )


def leg_in(head: dict[str, Any]) -> tuple[PollLeg, PollId]:
    """Return the leg of a POLL body's head, and its name."""
    topics = [TopicId(topic) for topic in head["topics"]]
    rows = [
        PlacedRow(row, TopicIdPartition(topics[topic], PartitionId(partition)), offset, epoch)
        for row, topic, partition, offset, epoch in head["rows"]
    ]
    leg = PollLeg(
        rows=rows,
        max_wait_ms=head["max_wait_ms"],
        min_bytes=head["min_bytes"],
        max_bytes=head["max_bytes"],
        max_partition_bytes=head["max_partition_bytes"],
        news_only=head["news_only"],
        packed=head["packed"],
        from_follower=head["from_follower"],
    )
    return leg, PollId(*head["poll_id"])


def encode_end_poll(poll_id: PollId) -> bytes:
    """Encode an END_POLL body: the leg of this name answers at once."""
    return join_body({"poll_id": list(poll_id)})


def poll_id_in(head: dict[str, Any]) -> PollId:
    """Return the name of the leg that an END_POLL body ends."""
    return PollId(*head["poll_id"])


def encode_leg_pages(answer: LegPages) -> bytes:
    """Encode the answer to POLL: the pages' results, one behind the other, behind the head."""
    pages, errors, bodies = [], [], []
    for page in answer.pages:
        if isinstance(page.found, KafkaError):
            errors.append((page.row, True, _error_fields(page.found)))
            continue
        bodies.append(encode_fetched(page.found))
        pages.append((page.row, len(bodies[-1]), page.epochs))
    errors += [(row, False, _error_fields(error)) for row, error in answer.unserved.items()]
    return join_body({"pages": pages, "errors": errors}, *bodies)


def decode_leg_pages(body: bytes, rows: Mapping[int, PlacedRow]) -> LegPages:
    """Decode the answer to a POLL of these rows."""
    head, payload = split_body(body)
    pages: list[PollPage] = []
    at = 0
    for row, length, epochs in head["pages"]:
        found = decode_fetch(payload[at : at + length])
        topic_id = rows[row].place.topic_id
        pages.append(PollPage(row, topic_id, found, tuple(map(tuple, epochs))))
        at += length
    unserved: dict[int, KafkaError] = {}
    for row, is_final_error, fields in head["errors"]:
        error = _error_in(fields)
        if is_final_error:
            pages.append(PollPage(row, rows[row].place.topic_id, error))
        else:
            unserved[row] = error
    return LegPages(pages=pages, unserved=unserved)


def _error_fields(error: KafkaError) -> dict[str, Any]:
    if isinstance(error, PositionTruncatedError):
        return truncated_fields(error)
    return {"code": error.code.number, "message": error.message}


def _error_in(fields: dict[str, Any]) -> KafkaError:
    if "divergence" in fields:
        return truncated_in(fields)
    return KafkaError(ErrorCode.from_number(fields["code"]), fields["message"])
