"""`BatchBuilder` of aiokafka: records of one partition that a program sends together.

A builder keeps the records as they were given, and counts the bytes that Kafka's record format
would take, by which it is full. `AIOKafkaProducer` makes and sends it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from raft_metadata.common.clock import SystemClock

Headers = Sequence[tuple[str, "bytes | None"]]
BATCH_HEADER_BYTES: Final = 61
"""Bytes of the fields before the records of a batch."""
RECORD_OVERHEAD_BYTES: Final = 21
"""Most bytes of a record's fields beside its key, value and headers."""


def varint_bytes(number: int) -> int:
    """Return the bytes of a signed number in Kafka's zigzag encoding."""
    zigzag = number << 1 if number >= 0 else (-number << 1) - 1
    return max(1, (zigzag.bit_length() + 6) // 7)


def content_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the bytes of key, value and headers in a record, with their lengths."""
    size = varint_bytes(len(headers))
    for half in (key, value):
        size += 1 if half is None else varint_bytes(len(half)) + len(half)
    for name, content in headers:
        name_bytes = len(name.encode())
        size += varint_bytes(name_bytes) + name_bytes
        size += 1 if content is None else varint_bytes(len(content)) + len(content)
    return size


def checked_bytes(half: object) -> None:
    """Raise TypeError, as aiokafka does, for a key or value that is no bytes."""
    if half is not None and not isinstance(half, bytes | bytearray | memoryview):
        msg = f"a bytes-like object is required, not '{type(half).__name__}'"
        raise TypeError(msg)


@dataclass(frozen=True, slots=True)
class BatchedRecord:
    """A record of a builder."""

    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: Headers


@dataclass(frozen=True, slots=True)
class BatchedMetadata:
    """Place of a record in its batch, and the bytes that it takes."""

    offset: int
    size: int
    timestamp: int
    crc: None = None


class BatchBuilder:
    """A batch that a program fills with `append` and sends with ``send_batch``."""

    def __init__(
        self,
        batch_size: int,
        compression_type: int,
        *,
        is_transactional: int = 0,
        key_serializer: Callable[[Any], bytes | None] | None = None,
        value_serializer: Callable[[Any], bytes | None] | None = None,
    ) -> None:
        """Begin empty; it is full at ``batch_size`` bytes."""
        self._bytes_max = batch_size
        self._key_serializer, self._value_serializer = key_serializer, value_serializer
        self.records: list[BatchedRecord] = []
        """Records in order, as they are sent."""
        self._size = BATCH_HEADER_BYTES
        self._is_closed = False

    def append(
        self, *, timestamp: int | None, key: Any, value: Any, headers: Headers | None = ()
    ) -> BatchedMetadata | None:
        """Add a record; return its metadata, or None if the batch is full or closed.

        Args:
            timestamp: Milliseconds since 1970; None: now.
            key: Bytes, or what the serializer of keys takes.
            value: Bytes, or what the serializer of values takes.
            headers: Names with bytes.

        Raises:
            TypeError: The key or the value is no bytes.
        """
        if self._is_closed:
            return None
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        checked_bytes(key)
        checked_bytes(value)
        record = BatchedRecord(
            key, value, SystemClock().wall_ms() if timestamp is None else timestamp, headers or ()
        )
        size = self._bytes_of(record)
        if self.records and self._size + size > self._bytes_max:
            self.close()
            return None
        self.records.append(record)
        self._size += size
        return BatchedMetadata(len(self.records) - 1, size, record.timestamp_ms)

    def _bytes_of(self, record: BatchedRecord) -> int:
        first = self.records[0] if self.records else record
        body = 1 + varint_bytes(record.timestamp_ms - first.timestamp_ms)
        body += varint_bytes(len(self.records))
        body += content_bytes(record.key, record.value, record.headers)
        return body + varint_bytes(body)

    def close(self) -> None:
        """Add nothing any more."""
        self._is_closed = True

    def closed(self) -> bool:
        """Return True if nothing can be added."""
        return self._is_closed

    def size(self) -> int:
        """Return the bytes that the batch takes in Kafka's format."""
        return self._size

    def record_count(self) -> int:
        """Return the number of records."""
        return len(self.records)
