"""The two forms of a tail, NDJSON and Server-Sent Events, over lines of v2 or v3. Pure.

A tail (`tails.py`) asks its form for the bytes of each thing it sends: the beginning, a flush of
records, a heartbeat, the end, an error. The records' text comes from a `RecordLines`: the stored
lines of v2, with the partition in front where a whole topic is read, or the shape of v3. A control
line begins differently from every record, so a reader tells them apart by their first field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from typing_extensions import override

from broker.record.render import in_partition, offset_of_line, render_v3, splice_timestamps
from http_api.contract.event_stream import event, heartbeat, opening

if TYPE_CHECKING:
    from broker.record.batch import BatchSlice
    from raft_metadata.common.ids import PartitionId

RecordLines = Callable[["BatchSlice", "PartitionId"], bytes]
"""Return the records of a slice as text, each a line with a line feed behind it."""
TokenText = Callable[[], str]
"""Return the token behind all that the tail has sent, with what it sends now."""
PlaceText = Callable[[int, int], str]
"""Return the token behind a record of a tail of one partition, from offset + 1 and its epoch."""


def stored_lines(piece: BatchSlice, _partition: PartitionId) -> bytes:
    """Return the lines as they are stored."""
    return bytes(piece.lines)


def timed_lines(piece: BatchSlice, _partition: PartitionId) -> bytes:
    """Return the stored lines, each with its timestamp."""
    return splice_timestamps(piece)


def of_partition(lines: RecordLines) -> RecordLines:
    """Return a `RecordLines` that puts the partition in front of each of these lines."""
    return lambda piece, partition: in_partition(lines(piece, partition), partition)


def v3_lines(piece: BatchSlice, partition: PartitionId) -> bytes:
    """Return the records in the shape of v3."""
    return b"".join([text + b"\n" for text in render_v3(piece, partition)])


class TailForm(Protocol):
    """Bytes of what a tail sends."""

    def opening(self, token: TokenText) -> bytes:
        """Return what a tail begins with."""
        ...

    def records(
        self, slices: Sequence[BatchSlice], partition: PartitionId, token: TokenText
    ) -> bytes:
        """Return a flush: records, and behind them where a reader would go on."""
        ...

    def heartbeat(self, token: TokenText) -> bytes:
        """Return what shows that the tail is alive."""
        ...

    def end(self, reason: str, token: TokenText) -> bytes:
        """Return the last thing of a tail that ends without an error."""
        ...

    def error(self, body: bytes) -> bytes:
        """Return the last thing of a tail that ends with an error, the JSON of its envelope."""
        ...


class NdjsonTail:
    """Lines of JSON. A token is a line of its own, if they are requested; never an id."""

    def __init__(self, lines: RecordLines, *, with_tokens: bool) -> None:
        self._lines = lines
        self._with_tokens = with_tokens

    def opening(self, token: TokenText) -> bytes:
        return self._token_line(token)

    def records(
        self, slices: Sequence[BatchSlice], partition: PartitionId, token: TokenText
    ) -> bytes:
        texts = [self._lines(piece, partition) for piece in slices]
        return b"".join((*texts, self._token_line(token)))

    def heartbeat(self, token: TokenText) -> bytes:
        return self._token_line(token) or b"\n"

    def end(self, reason: str, token: TokenText) -> bytes:
        return self._token_line(token)

    def error(self, body: bytes) -> bytes:
        return body + b"\n"

    def _token_line(self, token: TokenText) -> bytes:
        return b'{"next":"%b"}\n' % token().encode() if self._with_tokens else b""


class EventTail:
    """Server-Sent Events of a whole topic: the last record of a flush bears the token as its id."""

    def __init__(self, lines: RecordLines) -> None:
        self._lines = lines

    def opening(self, token: TokenText) -> bytes:
        return opening(token())

    def records(
        self, slices: Sequence[BatchSlice], partition: PartitionId, token: TokenText
    ) -> bytes:
        texts = [
            text for piece in slices for text in self._lines(piece, partition).split(b"\n")[:-1]
        ]
        return b"".join((*map(event, texts[:-1]), event(texts[-1], event_id=token())))

    def heartbeat(self, token: TokenText) -> bytes:
        return heartbeat(token())

    def end(self, reason: str, token: TokenText) -> bytes:
        return event(b'{"reason":"%b"}' % reason.encode(), name="end", event_id=token())

    def error(self, body: bytes) -> bytes:
        return event(body, name="error")


class PartitionEventTail(EventTail):
    """Server-Sent Events of one partition: every record has the id behind it."""

    def __init__(self, lines: RecordLines, id_behind: PlaceText) -> None:
        super().__init__(lines)
        self._id_behind = id_behind

    @override
    def records(
        self, slices: Sequence[BatchSlice], partition: PartitionId, token: TokenText
    ) -> bytes:
        events = []
        for piece in slices:
            epoch = piece.header.leader_epoch
            texts = self._lines(piece, partition).split(b"\n")[:-1]
            for offset, text in zip(record_offsets(piece), texts, strict=True):
                events.append(event(text, event_id=self._id_behind(offset + 1, epoch)))
        return b"".join(events)


def record_offsets(piece: BatchSlice) -> Sequence[int]:
    """Return the offset of each record of a slice; compaction may have left holes (rule R7)."""
    if piece.header.is_dense:
        return range(piece.first_offset, piece.first_offset + piece.count)
    return [offset_of_line(line, 0) for line in bytes(piece.lines).split(b"\n")[:-1]]
