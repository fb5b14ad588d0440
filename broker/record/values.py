"""The meaning of one key or value: its bytes view, its base64.

A stored key or value is JSON text. The *bytes view* (interfaces, section 3) is the data that the
client meant by it, the same in every format: partitioning and conversion use it.
"""

from __future__ import annotations

import binascii

import orjson

from broker.record.batch import RecordFormat
from raft_metadata.common.errors import ErrorCode, KafkaError

NULL = b"null"
_QUOTE = 0x22
SHOWN_BYTES_MAX = 100
"""Bytes of a refused value that an error message repeats."""


class UnprocessableRecordsError(KafkaError):
    """The body is JSON, but no valid produce request (HTTP status 422, not 400)."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message)


class RecordNotJsonError(KafkaError):
    """A stored record that can't be returned in the requested format (42203 over HTTP).

    Its bytes are not JSON, or, in the format text, not UTF-8.
    """

    def __init__(self, offset: int, what: str, form: str = "json") -> None:
        super().__init__(
            ErrorCode.INVALID_REQUEST,
            f"{what} deserialization error for format {form} at offset {offset}",
        )
        self.offset = offset
        self.what = what


def bytes_view(text: bytes, record_format: RecordFormat) -> bytes | None:
    """Return the client's bytes behind this JSON text; None for null (a tombstone).

    json: the text itself, quotes included. string: UTF-8. binary: the decoded base64.

    Raises:
        KafkaError: INVALID_REQUEST, not a string or not base64 where the format requires it.
    """
    if text == NULL:
        return None
    if record_format is RecordFormat.JSON:
        return text
    if record_format is RecordFormat.BINARY:
        return decode_base64(text)
    return _string_of(text).encode()


def decode_base64(text: bytes) -> bytes:
    """Return the bytes of a JSON string that holds strict base64 (RFC 4648, padded, one line).

    Raises:
        KafkaError: INVALID_REQUEST, with the text clients know from other REST proxies.
    """
    if text[0] == _QUOTE:
        inner = text[1:-1]
        if b"\\" in inner:
            inner = _string_of(text).encode()
        try:
            return binascii.a2b_base64(inner, strict_mode=True)
        except binascii.Error:
            pass
        shown = inner.decode(errors="replace")
    else:
        shown = text.decode(errors="replace")
    if len(shown) > SHOWN_BYTES_MAX:
        shown = shown[:SHOWN_BYTES_MAX] + "…"
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"Bad Request: data={shown} is not a base64 string."
    )


def encode_base64(view: bytes) -> bytes:
    """Return these bytes as the JSON text that a binary record is stored as."""
    return b'"' + binascii.b2a_base64(view, newline=False) + b'"'


def check_binary(text: bytes) -> bytes:
    r"""Return the text to store for a binary key or value: plain base64 in quotes, or null.

    A legal JSON escape (``"\/"``) is resolved, so that stored base64 never holds one.

    Raises:
        KafkaError: INVALID_REQUEST, as `decode_base64`.
    """
    if text == NULL:
        return text
    decoded = decode_base64(text)
    return text if b"\\" not in text else encode_base64(decoded)


def is_json(view: bytes) -> bool:
    """Return True if a client's JSON library will read these bytes."""
    try:
        orjson.loads(view)
    except orjson.JSONDecodeError:
        return False
    return True


def _string_of(text: bytes) -> str:
    value = orjson.loads(text)
    if not isinstance(value, str):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"expected a JSON string, got {text[:SHOWN_BYTES_MAX].decode(errors='replace')}",
        )
    return value
