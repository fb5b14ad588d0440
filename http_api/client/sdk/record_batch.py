"""Batches of a producer, and the queue of one partition's batches. Pure; the core's lock is held.

`produce` fills an open batch; once it is large or old enough it is sealed and queued in its
partition's sender, which may join it with others. A batch is settled once, with the offset of its
first record or an error; one that holds a refused record is taken apart. The queue hands settled
batches on in the order in which they were filled, whatever the order of the answers.

A batch is one growing text: keeping an object for each record costs more than all the rest. Only
records whose outcome is awaited, by a callback or by `send`, have an `AwaitedRecord`. Where a batch
is taken apart, its records are found by reading the text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
from typing_extensions import override

from http_api.client.client_errors import QuorumlogError
from http_api.client.sdk.plain_sender import PlainSender
from http_api.client.sdk.record_types import Receipt
from http_api.client.sdk.values import Format
from raft_metadata.common.errors import KafkaError
from raft_metadata.common.sequenced_sender import InFlightBatch, PendingProduce, SequencedSender

PIPELINED_BYTES_MIN: Final = 524_288
"""Queued text with which a partition gets another request beside one under way."""
RECORD_START: Final = b'},{"value":'
"""Stands before the text of each record, and ends the one before it."""
_FIRST: Final = 2
"""Bytes of the first `RECORD_START` that end no record."""
_records_of = msgspec.json.Decoder(list[msgspec.Raw]).decode


class SendResult:
    """The outcome that one call of `send` waits for; the twins wait in ways of their own."""

    __slots__ = ("error", "receipt")

    def __init__(self) -> None:
        self.receipt: Receipt | None = None
        self.error: QuorumlogError | None = None

    def settle(self, receipt: Receipt, error: QuorumlogError | None) -> None:
        """Take the outcome; called once, under the shell's lock."""
        self.receipt, self.error = receipt, error

    def result(self) -> Receipt:
        """Return the receipt of a settled send, or raise its error."""
        if self.error is not None:
            raise self.error
        assert self.receipt is not None
        return self.receipt


AwaitedRecord = tuple[int, Any, Any, Any, "int | None"]
"""An awaited outcome: index of the record in its batch; the ``on_delivery`` callback, or the
`SendResult` of a `send`; and for the receipt, key, value and timestamp. A plain tuple, as there may
be one for each record."""


class RecordBatch(PendingProduce):
    """Records of one partition: open until `seal`, then in a `BatchQueue` until settled."""

    __slots__ = (
        "awaited",
        "base_offset",
        "buffer",
        "error",
        "is_settled",
        "key_format",
        "opened_ms",
        "origin",
        "partition",
        "parts_left",
        "queue",
        "size_bytes",
        "topic",
        "value_format",
    )

    def __init__(self, topic: str, partition: int, opened_ms: int, deadline_ms: int) -> None:
        super().__init__(b"", 0, (), deadline_ms, self._settled)
        self.topic = topic
        self.partition = partition
        self.opened_ms = opened_ms
        self.key_format = Format.ANY
        self.value_format = Format.ANY
        self.buffer = bytearray()
        """Open: for each record, `RECORD_START` and its text. Its length is the batch's size."""
        self.size_bytes = 0
        """Size once sealed, for which the producer's buffer has room until it is settled."""
        self.awaited: list[AwaitedRecord] = []
        """Awaited records, in order."""
        self.queue: BatchQueue | None = None
        """The queue that holds it; None while it is open."""
        self.origin = self
        """The batch that this one is a part of, or itself."""
        self.parts_left = 1
        """Parts of an origin that are not complete yet; itself, unless it was taken apart."""
        self.is_settled = False
        self.base_offset = -1
        """Offset of the first record once settled without an error; -1 with ``acks=0``."""
        self.error: KafkaError | None = None

    def takes(self, key_format: Format, value_format: Format) -> bool:
        """Return True if a record of these formats fits; from then on the batch has them."""
        mine, theirs = self.key_format, self.value_format
        if (mine and key_format and mine is not key_format) or (
            theirs and value_format and theirs is not value_format
        ):
            return False
        self.key_format = mine or key_format
        self.value_format = theirs or value_format
        return True

    def seal(self, queue: BatchQueue) -> None:
        """End the filling: make the text that is sent."""
        self.queue = queue
        self.size_bytes = len(self.buffer)
        self.buffer += b"}"
        self.text = bytes(memoryview(self.buffer)[_FIRST:])
        self.buffer = bytearray()
        self.kind = (self.key_format or Format.JSON, self.value_format or Format.JSON)

    def _settled(self, base_offset: int, error: KafkaError | None) -> None:
        self.is_settled, self.base_offset, self.error = True, base_offset, error
        if self.queue is not None:
            self.queue.hand_on()

    @override
    def split(self, at: int | None) -> Sequence[PendingProduce]:
        """Return the records around that at ``at``, or both halves, sealed in this one's place."""
        count = self.count
        if count < 2 or self.queue is None:
            return ()
        cuts = [0, count // 2, count] if at is None else sorted({0, at, at + 1, count})
        try:
            parts = self.parts(cuts)
        except (RecursionError, msgspec.MsgspecError):  # JSON text of the program, too deep
            return ()
        self.queue.replace(self, parts)
        return parts

    def parts(self, cuts: Sequence[int]) -> Sequence[RecordBatch]:
        """Return new open batches with the records between each two of these indexes."""
        records = _records_of(b"[" + self.text + b"]")
        return [self._part(first, records[first:stop]) for first, stop in pairwise(cuts)]

    def _part(self, first: int, records: Sequence[msgspec.Raw]) -> RecordBatch:
        stop = first + len(records)
        part = RecordBatch(self.topic, self.partition, self.opened_ms, self.deadline_ms)
        part.origin = self.origin
        part.key_format, part.value_format = self.key_format, self.value_format
        part.buffer += b"}," + b",".join([bytes(record) for record in records])[:-1]
        part.count = len(records)
        part.awaited = [(at - first, *rest) for at, *rest in self.awaited if first <= at < stop]
        return part


class BatchQueue:
    """Sealed batches of one partition that are not handed on yet, and their sender."""

    __slots__ = (
        "_failures",
        "_hand_on",
        "_order",
        "_queued_bytes",
        "_under_way",
        "not_before_ms",
        "partition",
        "sender",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        sender: SequencedSender | PlainSender,
        hand_on: Callable[[RecordBatch], None],
    ) -> None:
        """``hand_on`` gets each settled batch, in the order in which they were filled."""
        self.topic = topic
        self.partition = partition
        self.sender = sender
        self.not_before_ms = 0
        """Time before which nothing is sent, after a failure."""
        self._failures = 0
        self._queued_bytes = 0
        """Text of batches that were not given out yet, roughly."""
        self._under_way = 0
        self._hand_on = hand_on
        self._order: deque[RecordBatch] = deque()

    def add(self, batch: RecordBatch) -> None:
        """Seal a batch and queue it."""
        batch.seal(self)
        self._order.append(batch)
        self._queued_bytes += len(batch.text)
        self.sender.add(batch)

    def replace(self, batch: RecordBatch, parts: Sequence[RecordBatch]) -> None:
        """Put sealed parts in the place of a batch that was taken apart."""
        at = self._order.index(batch)
        del self._order[at]
        batch.origin.parts_left += len(parts) - 1
        for offset, part in enumerate(parts):
            part.seal(self)
            self._order.insert(at + offset, part)

    def hand_on(self) -> None:
        """Hand on all settled batches up to the first one that is not."""
        while self._order and self._order[0].is_settled:
            self._hand_on(self._order.popleft())

    def due(self, now_ms: int, in_flight_max: int) -> InFlightBatch | None:
        """Return the next batch to send, marked as under way, or None.

        A request beside others is worth it only if it is large: those that wait are joined.
        """
        if now_ms < self.not_before_ms:
            return None
        if self._under_way and (
            self._under_way >= in_flight_max or self._queued_bytes < PIPELINED_BYTES_MIN
        ):
            return None
        batch = self.sender.due()
        if batch is not None:
            self._under_way += 1
            self._queued_bytes = max(0, self._queued_bytes - len(batch.text))
        return batch

    def end_attempt(self) -> None:
        """Note that a batch of `due` was answered, or lost; the sender is told next."""
        self._under_way -= 1

    def has_written(self) -> None:
        """Note a success: the next failure begins with the first pause again."""
        self._failures = 0

    def pause(self, now_ms: int, first_ms: int, most_ms: int) -> None:
        """Send nothing for a while after a failure; each pause is twice as long as the last."""
        self.not_before_ms = now_ms + min(first_ms << min(self._failures, 20), most_ms)
        self._failures += 1
