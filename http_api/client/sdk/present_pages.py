"""Decoded pages: the one whose records are being returned, and those that wait aside. Pure.

A page is put aside when its partition is paused, or not asked for, while records of it are left. It
is opened again before any other page of the partition, without being fetched or decoded twice, so a
program may pause and resume as often as it likes. A page aside is void as soon as its partition's
position moves otherwise (`PartitionState.version`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from http_api.client.client_errors import QuorumlogError
from http_api.client.polling import PolledPage
from http_api.client.sdk.consumer_settings import ConsumerConfig
from http_api.client.sdk.page_decoding import PageDecoder, unreadable_error
from http_api.client.sdk.part_joining import PartJoiner, is_part
from http_api.client.sdk.positions import LogPosition, PartitionState
from http_api.client.sdk.record_types import Record


@dataclass(frozen=True, slots=True)
class PresentPage:
    """The decoded page whose records are being returned."""

    state: PartitionState
    version: int
    """Version of the state when the page was decoded: another one makes the page void."""
    end: LogPosition
    """Position behind the page, or at the record that ``error`` is about."""
    error: QuorumlogError | None
    size_bytes: int
    """Size of the page as it was fetched."""

    @property
    def is_void(self) -> bool:
        """True if the position of its partition has moved by something else than its records."""
        return self.state.version != self.version


@dataclass(frozen=True, slots=True)
class AsidePage:
    """A page with the records that are left of it."""

    page: PresentPage
    records: Iterator[Record[Any, Any]]


class AsidePages:
    """Pages that wait aside, the oldest first; at most one of a partition."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: size of all, as they were fetched; the oldest are dropped beyond."""
        self._bytes_max = bytes_max
        self._pages: list[AsidePage] = []

    def put(self, page: PresentPage, records: Iterator[Record[Any, Any]]) -> None:
        """Add a page; those that have no room are fetched again, from their positions."""
        pages = [one for one in self._pages if not one.page.is_void]
        pages.append(AsidePage(page, records))
        self._pages = pages
        size_bytes = sum(one.page.size_bytes for one in pages)
        for one in pages:
            if size_bytes <= self._bytes_max:
                break
            size_bytes -= one.page.size_bytes
            one.page.state.rewind()

    def first(self, is_wanted: Callable[[PartitionState], bool]) -> AsidePage | None:
        """Return the oldest page of a partition that may be read; it stays here until `remove`."""
        if not self._pages:
            return None
        found = (one for one in self._pages if not one.page.is_void and is_wanted(one.page.state))
        return next(found, None)

    def remove(self, page: AsidePage) -> None:
        """Take a page away, and those that are void."""
        self._pages = [one for one in self._pages if one is not page and not one.page.is_void]


def open_page(
    config: ConsumerConfig, decoder: PageDecoder, state: PartitionState, page: PolledPage
) -> tuple[PresentPage, list[Record[Any, Any]]]:
    """Decode a page of a partition; return its records from the position on, joined if split.

    Raises:
        ProtocolError: It is no page.
    """
    decoded = decoder.decode(page.topic, page.partition, page.body)
    records = decoded.records
    unreadable = bool(decoded.unreadable)
    if config.large_messages == "join" and decoded.has_headers:
        if state.joiner is None and any(is_part(one.headers) for one in records):
            state.joiner = PartJoiner(config.value_deserializer)
        if state.joiner is not None:
            records = state.joiner.join(records)
            unreadable = True  # joining may find some
    if state.joiner is not None:
        state.joiner.end = max(state.joiner.end, page.next_offset)
    first = state.position.offset if state.position is not None else 0
    if records and records[0].offset < first:  # a batch is fetched whole
        records = [one for one in records if one.offset >= first]
    end: LogPosition = LogPosition(page.next_offset, page.next_leader_epoch)
    error: QuorumlogError | None = None
    if unreadable and config.on_unreadable == "raise":
        at = next((n for n, one in enumerate(records) if one.unreadable), None)
        if at is not None:
            end, error = LogPosition(records[at].offset), unreadable_error(records[at])
            records = records[:at]
    return PresentPage(state, state.version, end, error, len(page.body)), records
