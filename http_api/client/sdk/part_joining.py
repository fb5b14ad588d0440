"""Values that a producer split over several records, joined to one on the reading side. Pure.

A producer with ``large_messages="split"`` writes a long value as consecutive records of a
partition, each with the headers ``ql-part-id``, ``ql-part`` (``3/17``), ``ql-part-bytes`` and
``ql-part-crc32`` of the whole. Each part holds a piece of the value's bytes view. The header
``ql-part-format`` names the format of the whole, binary if it is missing.

A `PartJoiner` belongs to one partition. It keeps at most `BYTES_MAX` bytes of at most
`UNFINISHED_MAX` values; the oldest beyond is given up, and comes as an unreadable record. It also
remembers where complete values lie, so that a place between the parts of one, or at its last part,
can be gone back to. Parts of a value that began before all that was read are left out: the parts of
a value are in order, so its first one never comes.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from http_api.client.sdk.consumer_settings import AS_STORED
from http_api.client.sdk.record_types import Record

PART_ID: Final = "ql-part-id"
PART: Final = "ql-part"
PART_BYTES: Final = "ql-part-bytes"
PART_CRC32: Final = "ql-part-crc32"
PART_FORMAT: Final = "ql-part-format"
BYTES_MAX: Final = 64 << 20
UNFINISHED_MAX: Final = 16
SPANS_MAX: Final = 1_000
"""Most ended values of a partition whose places are known."""
_OWN: Final = frozenset({PART_ID, PART, PART_BYTES, PART_CRC32, PART_FORMAT})

AnyRecord = Record[Any, Any]


def is_part(headers: list[tuple[str, bytes | None]]) -> bool:
    """Return True if a record with these headers is a part of a split value."""
    return any(name == PART_ID for name, _ in headers)


@dataclass(slots=True, eq=False)
class _Unfinished:
    """Parts of one value, by their number from 1."""

    first_offset: int
    total: int
    parts: dict[int, bytes] = field(default_factory=dict)
    size: int = 0

    @property
    def has_begun(self) -> bool:
        """False if its first part lies before all that was read."""
        return 1 in self.parts


class PartJoiner:
    """Unfinished values of one partition, oldest first."""

    def __init__(self, deserializer: Callable[[bytes], Any] | str | None = None) -> None:
        self._deserializer = deserializer
        self._unfinished: dict[bytes, _Unfinished] = {}
        self._spans: dict[int, int] = {}
        """First and last offsets of values that are complete, or were given up."""
        self.end = 0
        """Offset behind all that was read."""

    def first_needed(self, offset: int) -> int:
        """Return the place to go on from later, to get all values that end at an offset or behind.

        It lies before the offset if that is behind the first part of such a value.
        """
        begun = [
            one.first_offset
            for one in self._unfinished.values()
            if one.has_begun and one.first_offset < offset
        ]
        return min((self._begin(offset), *begun))

    def _begin(self, offset: int) -> int:
        """Return the first part of the ended values around an offset; itself if there are none."""
        around = (first for first, last in self._spans.items() if first < offset <= last)
        return min(around, default=offset)

    def restart(self, offset: int) -> int:
        """Return the place to read from, to get all values that end at an offset or behind.

        What is kept of unfinished values before that place is not read again.
        """
        begin = self._begin(offset)
        if offset > self.end:  # their other parts may lie in between
            self._unfinished.clear()
        elif begin < offset:
            self._unfinished = {
                name: one for name, one in self._unfinished.items() if one.first_offset < begin
            }
        return begin

    def _note(self, first: int, last: int) -> None:
        self._spans[first] = last
        if len(self._spans) > SPANS_MAX:
            del self._spans[next(iter(self._spans))]

    def join(self, records: list[AnyRecord]) -> list[AnyRecord]:
        """Return the records with each complete value in place of its last part.

        Other parts are kept, and left out. A part that came before replaces itself.
        """
        found: list[AnyRecord] = []
        for record in records:
            if not is_part(record.headers):
                found.append(record)
                continue
            headers = dict(record.headers)
            joined = self._add(record, headers)
            if joined is not None:
                found.append(joined)
            found += self._give_up(record)
        return found

    def _add(self, record: AnyRecord, headers: dict[str, bytes | None]) -> AnyRecord | None:
        place = _numbers(headers.get(PART))
        part_id = headers.get(PART_ID)
        value = record.value.encode() if isinstance(record.value, str) else record.value
        if place is None or part_id is None or not isinstance(value, bytes):
            return _as_unreadable(record, value)
        number, total = place
        one = self._unfinished.get(part_id)
        if one is None or one.total != total:
            one = self._unfinished[part_id] = _Unfinished(record.offset, total)
        one.size += len(value) - len(one.parts.get(number, b""))
        one.parts[number] = value
        if len(one.parts) < total:
            return None
        del self._unfinished[part_id]
        self._note(one.first_offset, record.offset)
        whole = b"".join(one.parts[at] for at in range(1, total + 1))
        is_whole = headers.get(PART_BYTES) in {None, b"%d" % len(whole)} and _is_crc(
            headers.get(PART_CRC32), whole
        )
        if not is_whole:
            return _as_unreadable(record, whole)
        try:
            decoded = self._decode(whole, headers.get(PART_FORMAT))
        except Exception:  # noqa: BLE001 a program's function may raise anything
            return _as_unreadable(record, whole)
        return _replaced(record, decoded, record.unreadable)

    def _decode(self, whole: bytes, format_word: bytes | None) -> Any:
        if self._deserializer == AS_STORED:
            return whole
        if self._deserializer is not None:
            assert not isinstance(self._deserializer, str)
            return self._deserializer(whole)
        if format_word == b"json":
            return msgspec.json.decode(whole)
        return whole.decode() if format_word == b"string" else whole

    def _give_up(self, record: AnyRecord) -> list[AnyRecord]:
        given_up = []
        while len(self._unfinished) > UNFINISHED_MAX or (
            sum(one.size for one in self._unfinished.values()) > BYTES_MAX
        ):
            oldest = min(self._unfinished, key=self._age)
            one = self._unfinished.pop(oldest)
            if not one.has_begun:
                continue
            self._note(one.first_offset, record.offset)
            held = b"".join(one.parts[number] for number in sorted(one.parts))
            given_up.append(_as_unreadable(record, held))
        return given_up

    def _age(self, part_id: bytes) -> tuple[bool, int]:
        one = self._unfinished[part_id]
        return one.has_begun, one.first_offset


def _numbers(text: bytes | None) -> tuple[int, int] | None:
    number, slash, total = (text or b"").partition(b"/")
    if not slash or not number.isdigit() or not total.isdigit():
        return None
    return (int(number), int(total)) if 1 <= int(number) <= int(total) else None


def _is_crc(text: bytes | None, whole: bytes) -> bool:
    if text is None:
        return True
    crc = zlib.crc32(whole)
    return text.lower() in {b"%d" % crc, b"%08x" % crc, b"%x" % crc}


def _replaced(record: AnyRecord, value: Any, unreadable: tuple[str, ...]) -> AnyRecord:
    headers = [pair for pair in record.headers if pair[0] not in _OWN]
    return Record(
        record.topic,
        record.partition,
        record.offset,
        record.timestamp,
        record.timestamp_type,
        headers,
        record.key,
        value,
        record.leader_epoch,
        unreadable,
    )


def _as_unreadable(record: AnyRecord, value: Any) -> AnyRecord:
    return _replaced(record, value, tuple(dict.fromkeys((*record.unreadable, "value"))))
