"""Content of a producer's open transaction: chunks, offsets, and awaited outcomes. Pure.

Records of a topic go into its open chunk, one growing text. A chunk is sealed when it is full, when
the kind of text changes, and at the commit; it is numbered then, so chunks of a topic are numbered
in the order in which its records were sent. Keys and values that are not all JSON are written as
base64 of their bytes, as one chunk has one kind.
"""

from __future__ import annotations

import binascii
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from http_api.client.calls import Place
from http_api.client.client_errors import ConfigError, QuorumlogError
from http_api.client.sdk.record_batch import SendResult
from http_api.client.sdk.record_fields import RecordFields
from http_api.client.sdk.record_types import ConsumerGroupMetadata, Receipt, TopicPartition
from http_api.client.sdk.value_splitting import SplitOutcome
from http_api.client.sdk.values import NULL, Format, stored_bytes
from http_api.client.transaction_calls import (
    OffsetToCommit,
    TransactionContent,
    TransactionResult,
    TransactionRows,
)

INLINE_BYTES_MAX: Final = 65_536
"""Text of a transaction that travels with its commit; a larger one is staged."""
INLINE_CHUNKS_MAX: Final = 100
"""Chunks of a transaction that travels with its commit: each is an entry of its body."""
AWAITED_BYTES: Final = 300
"""Memory of an awaited record beside its key and value."""
_JSON_KINDS: Final = frozenset({Format.ANY, Format.JSON})
_fields_of = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
Delivery = tuple[Any, tuple["QuorumlogError | None", Receipt]]
"""A callback of the program, and its arguments."""


@dataclass(slots=True, eq=False)
class TransactionChunk:
    """Records of one topic: open until it is sealed."""

    topic: str
    binary: bool | None = None
    """True if keys and values are base64, False for JSON, None while all of them are null."""
    text: bytearray = field(default_factory=bytearray)
    """The records with commas between them."""
    rows: int = 0
    keyless_partition: int | None = None
    """Partition of the chunk's records without a partition and a key."""
    number: int | None = None
    """Its sequence; None while it is open."""
    is_staged: bool = False

    @property
    def records(self) -> TransactionRows:
        """The records as a request takes them."""
        return TransactionRows(self.topic, b"[" + bytes(self.text) + b"]", bool(self.binary))


@dataclass(frozen=True, slots=True)
class AwaitedOutcome:
    """A record whose outcome is awaited until the end of its transaction."""

    awaiting: Any
    key: Any
    value: Any
    timestamp_ms: int | None
    place: Place
    index: int
    """Number of the record among those of its partition, from 0."""
    chunk: TransactionChunk


class OpenTransaction:
    """One transaction from its begin to its end; its owner holds the shell's lock."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._open: dict[str, TransactionChunk] = {}
        """The open chunk of each topic, the oldest first."""
        self.sealed: list[TransactionChunk] = []
        self.told = 0
        """Sealed chunks of which the stagers were told."""
        self.to_stage: deque[TransactionChunk] = deque()
        self.under_way = 0
        """Chunks that are being staged."""
        self.bytes = 0
        """Text of all records."""
        self.held_bytes = 0
        """Text that is not staged, and awaited records."""
        self.open_bytes = 0
        """Text of open chunks."""
        self.rows = 0
        self.is_staging = False
        """True once chunks may be staged: nothing travels with the commit any more."""
        self.was_sent = False
        """True once a request named the transaction's position."""
        self.failure: QuorumlogError | None = None
        """Error for which it can only be aborted."""
        self.offsets: dict[Place, OffsetToCommit] = {}
        self.group: ConsumerGroupMetadata | None = None
        self.content: TransactionContent | None = None
        """Content of the commit and of each repeat; None before the first."""
        self._awaited: list[AwaitedOutcome] = []
        self._counts: dict[Place, int] = {}
        """Records by partition."""
        self._first_chunks: dict[Place, TransactionChunk] = {}

    @property
    def awaited(self) -> int:
        """Records whose outcome is awaited."""
        return len(self._awaited)

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to commit."""
        return not self.rows and not self.offsets

    @property
    def fits_inline(self) -> bool:
        """True if all of it may travel with the commit."""
        chunks = len(self.sealed) + len(self._open)
        return self.bytes < INLINE_BYTES_MAX and chunks <= INLINE_CHUNKS_MAX

    def chunk_for(self, topic: str, fields: RecordFields) -> TransactionChunk:
        """Return the open chunk that a record of these fields goes into."""
        binary = needs_base64(fields)
        chunk = self._open.get(topic)
        if chunk is not None and binary is not None:
            if chunk.binary is None:
                chunk.binary = binary
            elif chunk.binary is not binary:
                self.seal(chunk)
                chunk = None
        if chunk is None:
            chunk = self._open[topic] = TransactionChunk(topic, binary)
        return chunk

    def add(
        self,
        chunk: TransactionChunk,
        partition: int | None,
        fields: RecordFields,
        awaiting: Any,
        key: Any,
        value: Any,
    ) -> None:
        """Add a record to an open chunk, which is sealed once it is full, or to the next one.

        A chunk is larger than its limit only if it is one record.

        Without a partition the broker chooses; then no outcome may be awaited.
        """
        text = base64_text(fields) if chunk.binary else fields[2]
        place_text = b"" if partition is None else b',"partition":%d' % partition
        record = b'{"value":' + text + place_text + b"}"
        if chunk.rows and len(chunk.text) + 1 + len(record) > self._chunk_bytes:
            self.seal(chunk)
            chunk = self._open[chunk.topic] = TransactionChunk(chunk.topic, chunk.binary)
        if chunk.rows:
            chunk.text += b","
        chunk.text += record
        chunk.rows += 1
        self.rows += 1
        size = len(record) + 1
        self.bytes += size
        self.held_bytes += size
        self.open_bytes += size
        if partition is not None:
            self._count(chunk, (chunk.topic, partition), fields, awaiting, key, value)
        if len(chunk.text) >= self._chunk_bytes:
            self.seal(chunk)

    def _count(
        self,
        chunk: TransactionChunk,
        place: Place,
        fields: RecordFields,
        awaiting: Any,
        key: Any,
        value: Any,
    ) -> None:
        """Count a record in its partition, and note who awaits its outcome."""
        index = self._counts.get(place, 0)
        self._counts[place] = index + 1
        if not index:
            self._first_chunks[place] = chunk
        if awaiting is not None:
            self._awaited.append(
                AwaitedOutcome(awaiting, key, value, fields[4], place, index, chunk)
            )
            self.held_bytes += AWAITED_BYTES + fields[5]

    def seal(self, chunk: TransactionChunk) -> None:
        """Number a chunk; from then on it does not change."""
        del self._open[chunk.topic]
        chunk.number = len(self.sealed)
        self.sealed.append(chunk)
        self.to_stage.append(chunk)
        self.open_bytes -= len(chunk.text) + chunk.rows

    def seal_all(self) -> None:
        """Seal every open chunk."""
        for chunk in list(self._open.values()):
            self.seal(chunk)

    def note_staged(self, chunk: TransactionChunk) -> None:
        """Let go of a chunk's text: its stage has it."""
        chunk.is_staged = True
        self.held_bytes -= len(chunk.text) + chunk.rows
        chunk.text = bytearray()

    def add_offsets(self, offsets: Iterable[TopicPartition], group: ConsumerGroupMetadata) -> None:
        """Take the offsets that the commit moves; a later one of a partition replaces an earlier.

        Raises:
            ConfigError: A partition comes without an offset.
        """
        found = {}
        for one in offsets:
            if one.offset is None or one.offset < 0:
                msg = f"{one!r}: expected the offset to go on from"
                raise ConfigError(msg)
            place = (one.topic, one.partition)
            expected = None if group.member_id is not None else group.expected.get(place)
            found[place] = OffsetToCommit(
                topic=one.topic,
                partition=one.partition,
                offset=one.offset,
                expected=expected,
                metadata=one.metadata,
                leader_epoch=one.leader_epoch,
            )
        self.offsets |= found
        self.group = group

    def freeze(self, attempt_id: str) -> TransactionContent:
        """Return what the commit says; the same at every call."""
        if self.content is None:
            member = None
            if self.group is not None and self.group.member_id is not None:
                member = (self.group.member_id, self.group.member_epoch or 0)
            staged = self.is_staging and bool(self.sealed)
            self.content = TransactionContent(
                topics=() if staged else tuple(chunk.records for chunk in self.sealed),
                attempts=((attempt_id, len(self.sealed), self.rows),) if staged else (),
                offsets=tuple(self.offsets.values()),
                member=member,
            )
        return self.content

    def note_offsets(self) -> None:
        """Tell the consumer of its new offsets, which are committed; once, as it goes on then."""
        if self.group is not None and self.group.member_id is None:
            self.group.expected.update({place: one.offset for place, one in self.offsets.items()})
        self.group = None

    def committed(self, result: TransactionResult | None) -> Iterator[Delivery]:
        """Return the callbacks of a commit; None: its answer says no offsets.

        The consumer is told of its new offsets.
        """
        self.note_offsets()
        bases: Mapping[Place, int | None] = {}
        if result is not None:
            bases = {(one.topic or "", one.partition): one.base_offset for one in result.partitions}
        for one in self._taken():
            base = bases.get(one.place)
            is_certain = not self.is_staging or one.chunk is self._first_chunks[one.place]
            offset = base + one.index if base is not None and is_certain else None
            yield from _delivery(one, offset, None)

    def failed(self, error: QuorumlogError) -> Iterator[Delivery]:
        """Return the callbacks of an abort, or of an outcome that stays unknown."""
        self.to_stage.clear()
        for one in self._taken():
            yield from _delivery(one, -1, error)

    def _taken(self) -> list[AwaitedOutcome]:
        taken, self._awaited = self._awaited, []
        return taken


def _delivery(
    one: AwaitedOutcome, offset: int | None, error: QuorumlogError | None
) -> Iterator[Delivery]:
    topic, partition = one.place
    receipt = Receipt(topic, partition, offset, one.timestamp_ms, one.key, one.value)
    awaiting = one.awaiting
    if isinstance(awaiting, SendResult):
        awaiting.settle(receipt, error)
        if not isinstance(awaiting, SplitOutcome) or awaiting.parts_left:
            return
        receipt, error, awaiting = awaiting.receipt or receipt, awaiting.error, awaiting.awaiting
    if callable(awaiting):
        yield awaiting, (error, receipt)


def needs_base64(fields: RecordFields) -> bool | None:
    """Return True if a record can't be written as JSON; None: it fits both ways."""
    key_format, value_format = fields[0], fields[1]
    if key_format is Format.ANY and value_format is Format.ANY:
        return None
    return not (key_format in _JSON_KINDS and value_format in _JSON_KINDS)


def base64_text(fields: RecordFields) -> bytes:
    """Return a record's text with key and value as base64 of the bytes that are stored."""
    key_format, value_format, text, _, _, value_length = fields
    value = _base64(value_format, text[:value_length])
    if key_format is Format.ANY and b'"key":' not in text[value_length:]:
        return value + text[value_length:]
    rest = _fields_of(b'{"value":%b}' % text)
    rest["value"] = msgspec.Raw(value)
    if "key" in rest:
        rest["key"] = msgspec.Raw(_base64(key_format, bytes(rest["key"])))
    return msgspec.json.encode(rest).removeprefix(b'{"value":')[:-1]


def _base64(kind: Format, text: bytes) -> bytes:
    stored = stored_bytes((kind, text))
    return NULL if stored is None else b'"%b"' % binascii.b2a_base64(stored, newline=False)
