"""Records as a program gives them, made into the text with which they are written. Pure.

Both producers use it before they take their lock: what is wrong with a record raises here.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from http_api.client.client_errors import InvalidRecordError
from http_api.client.sdk.record_types import Headers, NewRecord
from http_api.client.sdk.values import NULL, Encode, Format, encoder, headers_text, stored_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from http_api.client.sdk.producer_settings import ProducerConfig

TIMESTAMP_MS_MAX: Final = (1 << 63) - 1
PARTITION_MAX: Final = (1 << 31) - 1
_ANY: Final = Format.ANY
_JSON: Final = Format.JSON


RecordFields = tuple[Format, Format, bytes, "bytes | None", "int | None", int]
"""A record ready to be placed: formats of key and value; the JSON text between ``{"value":`` and
``}``; the bytes view of the key, by which the record is placed, or None; the timestamp in ms, or
None; the length of the value, with which the text begins. A plain tuple, as one is made for each
record."""


class RecordEncoder:
    """The formats and serializers of one producer."""

    __slots__ = ("_encode_key", "_encode_value")

    def __init__(self, config: ProducerConfig) -> None:
        self._encode_key: Encode = encoder("key", config.key_format, config.key_serializer)
        self._encode_value: Encode = encoder("value", config.value_format, config.value_serializer)

    def fields(
        self,
        value: Any,
        key: Any,
        headers: Headers | None,
        timestamp: int | datetime | None,
    ) -> RecordFields:
        """Return the fields of a record; raises `InvalidRecordError`, naming what is wrong."""
        value_format, text = self._encode_value(value)
        if key is None and headers is None and timestamp is None:
            return _ANY, value_format, text, None, None, len(text)
        value_length = len(text)
        key_format, view = _ANY, None
        if key is not None:
            key_format, key_text = self._encode_key(key)
            if key_format is not _JSON or key_text == NULL:
                view = stored_bytes((key_format, key_text))
            else:
                view = key_text
            text += b',"key":' + key_text
        timestamp_ms = None
        if timestamp is not None:
            timestamp_ms = milliseconds(timestamp)
            text += b',"timestamp":%d' % timestamp_ms
        if headers is not None:
            text += b',"headers":' + headers_text(headers)
        return key_format, value_format, text, view, timestamp_ms, value_length


def milliseconds(timestamp: object) -> int:
    """Return a time as milliseconds since 1970; raises `InvalidRecordError`."""
    if type(timestamp) is int and 0 <= timestamp <= TIMESTAMP_MS_MAX:
        return timestamp
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            msg = f"timestamp {timestamp!r}: expected a datetime with a time zone"
            raise InvalidRecordError(msg)
        timestamp = round(timestamp.timestamp() * 1_000)
    if not isinstance(timestamp, int) or isinstance(timestamp, bool):
        msg = f"timestamp {timestamp!r}: expected milliseconds since 1970, or a datetime"
        raise InvalidRecordError(msg)
    if not 0 <= timestamp <= TIMESTAMP_MS_MAX:
        msg = f"timestamp {timestamp}: expected 0 to {TIMESTAMP_MS_MAX} milliseconds"
        raise InvalidRecordError(msg)
    return timestamp


def check_partition(partition: object) -> int:
    """Return the number of a partition that a record names; raises `InvalidRecordError`."""
    if not isinstance(partition, int) or isinstance(partition, bool):
        msg = f"partition {partition!r}: expected a number"
        raise InvalidRecordError(msg)
    if not 0 <= partition <= PARTITION_MAX:
        msg = f"partition {partition}: expected 0 to {PARTITION_MAX}"
        raise InvalidRecordError(msg)
    return partition


def chosen_partition(
    choose: Callable[[NewRecord, Sequence[int]], int],
    record: NewRecord,
    candidates: Sequence[int],
    partitions: int,
) -> int:
    """Return the partition that a program's partitioner chooses; raises `InvalidRecordError`."""
    try:
        number = choose(record, tuple(candidates))
    except Exception as error:
        msg = f"the partitioner failed: {error!r}"
        raise InvalidRecordError(msg) from error
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < partitions:
        msg = f"the partitioner returned {number!r}: expected 0 to {partitions - 1}"
        raise InvalidRecordError(msg)
    return number
