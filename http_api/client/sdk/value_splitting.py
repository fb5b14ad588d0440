"""Values that are too long for a record of their topic, split over several records. Pure.

`split_record` makes the records that `part_joining.py` makes one of: consecutive, of one partition,
with the same key, timestamp and headers. Each holds a piece of the value's bytes view as binary and
says in its headers to which value it belongs. The value has one outcome, that of its parts
together: a `SplitOutcome`.
"""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from typing_extensions import override

from http_api.client.client_errors import InvalidRecordError, QuorumlogError
from http_api.client.sdk.part_joining import (
    BYTES_MAX,
    PART,
    PART_BYTES,
    PART_CRC32,
    PART_FORMAT,
    PART_ID,
)
from http_api.client.sdk.record_batch import SendResult
from http_api.client.sdk.values import WORDS, Format, headers_text, stored_bytes
from raft_metadata.common.errors import Outcome

if TYPE_CHECKING:
    from http_api.client.metadata_calls import TopicLimits
    from http_api.client.sdk.record_fields import RecordFields
    from http_api.client.sdk.record_types import Receipt

PARTS_MAX: Final = 4_096
"""Parts of one value, each of which is a record."""
_BASE64_GROUP: Final = 4
_GROUP_BYTES: Final = 3


def split_record(
    fields: RecordFields, limits: TopicLimits, part_id: str, *, has_headers: bool
) -> list[RecordFields]:
    """Return the records that hold the parts of a value.

    Args:
        fields: The record with the whole value.
        limits: Those of the topic.
        part_id: An id that no other value has.
        has_headers: True if the record has a field ``headers``, perhaps an empty one.

    Raises:
        InvalidRecordError: The topic is compacted, which would keep the last part only; or the
            value has no bytes to split, too many of them, or too many parts.
    """
    key_format, value_format, text, view, timestamp_ms, value_length = fields
    whole = stored_bytes((value_format, text[:value_length])) or b""
    rest = text[value_length:]
    if limits.is_compacted:
        msg = f"a value of {len(whole)} bytes: a compacted topic can't keep the parts of a value"
        raise InvalidRecordError(msg)
    if len(whole) > BYTES_MAX:
        msg = f"a value of {len(whole)} bytes: expected {BYTES_MAX} at most, which readers join"
        raise InvalidRecordError(msg)
    own_headers = partial(_own_headers, part_id, whole, value_format)
    longest = _with_headers(rest, own_headers(PARTS_MAX, PARTS_MAX), has_headers=has_headers)
    room = limits.max_message_bytes - len(longest) - len(b'""')
    piece_bytes = room // _BASE64_GROUP * _GROUP_BYTES
    if piece_bytes * PARTS_MAX < len(whole) or piece_bytes <= 0:
        msg = (
            f"a value of {len(whole)} bytes: with max.message.bytes={limits.max_message_bytes} and "
            f"this key and headers it needs more than {PARTS_MAX} parts"
        )
        raise InvalidRecordError(msg)
    total = -(-len(whole) // piece_bytes)
    parts: list[RecordFields] = []
    for number in range(1, total + 1):
        piece = whole[(number - 1) * piece_bytes : number * piece_bytes]
        value = b'"' + binascii.b2a_base64(piece, newline=False) + b'"'
        more = _with_headers(rest, own_headers(number, total), has_headers=has_headers)
        parts.append((key_format, Format.BINARY, value + more, view, timestamp_ms, len(value)))
    return parts


def _own_headers(part_id: str, whole: bytes, found: Format, number: int, total: int) -> bytes:
    return headers_text(
        {
            PART_ID: part_id,
            PART: f"{number}/{total}",
            PART_BYTES: str(len(whole)),
            PART_CRC32: str(zlib.crc32(whole)),
            PART_FORMAT: WORDS[found],
        }
    )


def _with_headers(rest: bytes, more: bytes, *, has_headers: bool) -> bytes:
    """Return the fields of a record behind its value, with more headers at the end."""
    if not has_headers:
        return rest + b',"headers":' + more
    comma = b"" if rest.endswith(b"[]") else b","
    return rest[:-1] + comma + more[1:]


class SplitOutcome(SendResult):
    """The outcome of a value out of those of its parts, which settle in their order.

    A value is *not written* if one of its parts is not: readers never see it then.
    """

    __slots__ = ("awaiting", "parts_left")

    def __init__(self, parts: int, awaiting: Any) -> None:
        super().__init__()
        self.parts_left = parts
        self.awaiting: SendResult | Callable[..., object] | None = awaiting
        """The callback or `SendResult` that gets the outcome; None: nothing does."""

    @override
    def settle(self, receipt: Receipt, error: QuorumlogError | None) -> None:
        self.parts_left -= 1
        if error is not None and (self.error is None or error.outcome is Outcome.NOT_WRITTEN):
            self.error = error
        if self.parts_left:
            return
        if self.error is not None:
            receipt = msgspec.structs.replace(receipt, offset=-1)
        self.receipt = receipt
        if isinstance(self.awaiting, SendResult):
            self.awaiting.settle(receipt, self.error)

    @property
    def callback(self) -> Callable[..., object] | None:
        """A call of the program's callback, once the last part is settled; else None."""
        awaiting = self.awaiting
        if self.parts_left or awaiting is None or isinstance(awaiting, SendResult):
            return None
        return lambda _error, _receipt: awaiting(self.error, self.receipt)

    @property
    def silent_error(self) -> QuorumlogError | None:
        """The error of a value that nothing waits for, once its last part is settled."""
        return None if self.parts_left or self.awaiting is not None else self.error
