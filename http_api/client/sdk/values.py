"""Keys and values: from Python to the JSON text of a produce, and back from stored lines. Pure.

Everything travels as JSON text with a format beside it: ``json`` (the text is the value),
``string`` (a JSON string that stands for its UTF-8 bytes) or ``binary`` (base64). By default None
is null, ``bytes`` are binary, and everything else is JSON; reading gives back what was written.

JSON is written by orjson with its defaults: enumerations by their values, dataclasses as objects,
``datetime``, ``date`` and ``time`` in RFC 3339, ``UUID`` as text; readers get these as JSON.
Refused is what JSON can't give back: infinities and NaN, integers above 64 bits, texts with half a
surrogate pair, keys of objects that are no ``str``, more than 254 levels, and other classes.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from typing import Any, Final

import orjson

from http_api.client.client_errors import InvalidRecordError
from http_api.client.sdk.record_types import Headers

HEADERS_MAX: Final = 10_000


class Format(IntEnum):
    """Format of a key or value. `ANY` is that of a null, which fits into every batch."""

    ANY = 0
    JSON = 1
    STRING = 2
    BINARY = 3


NULL: Final = b"null"
WORDS: Final = {Format.JSON: "json", Format.STRING: "string", Format.BINARY: "binary"}
FORMATS: Final = ("auto", "json", "string", "binary")
"""Words of ``key_format`` and ``value_format``."""
_dumps: Final = orjson.dumps
_b2a_base64: Final = binascii.b2a_base64
Encoded = tuple[Format, bytes]
Encode = Callable[[Any], Encoded]
"""Returns the format and the JSON text of a key or value; raises `InvalidRecordError`."""


_ANY: Final = Format.ANY
_JSON: Final = Format.JSON
_BINARY: Final = Format.BINARY
_BYTES: Final = (bytes, bytearray, memoryview)
_PLAIN: Final = frozenset({str, int, bool})
"""Classes whose values are JSON without a further look, except for lone surrogates."""


def encode_auto(value: Any) -> Encoded:
    """Encode None as null, bytes as binary, and everything else as JSON."""
    if value is None:
        return _ANY, NULL
    if isinstance(value, _BYTES):
        return _BINARY, _base64(value)
    return _JSON, json_text(value)


def json_text(value: Any) -> bytes:
    """Return a value as JSON text; raises `InvalidRecordError` for what JSON has no text for."""
    try:
        text = _dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        msg = f"not a JSON value: {error}"
        raise InvalidRecordError(msg) from error
    if value.__class__ not in _PLAIN and NULL in text:  # orjson writes infinities and NaN as null
        _refuse_non_finite(value, text)
    return text


def _refuse_non_finite(value: Any, text: bytes) -> None:
    """Raise `InvalidRecordError` if something else than None was written as null.

    Compares the value with what its text gives back, so nothing that orjson writes can be missed;
    linear in the length of the text.
    """
    rest = [(value, orjson.loads(text))]
    while rest:
        given, written = rest.pop()
        if isinstance(given, Enum):
            given = given.value
        if written is None:
            if given is not None:
                msg = f"not a JSON value: {given} has no JSON number"
                raise InvalidRecordError(msg)
        elif isinstance(written, list):
            rest.extend(zip(given, written, strict=True))
        elif isinstance(written, dict):
            if isinstance(given, dict):
                rest.extend(zip(given.values(), written.values(), strict=True))
            else:  # a dataclass
                rest.extend((getattr(given, name), one) for name, one in written.items())


def _base64(value: bytes | bytearray | memoryview) -> bytes:
    if isinstance(value, memoryview) and not value.c_contiguous:
        value = bytes(value)
    return b'"%b"' % _b2a_base64(value, newline=False)


def _encode_json(value: Any) -> Encoded:
    """Encode as JSON; bytes are JSON text already, and are checked.

    Space around the text is left out and line breaks become spaces, as brokers do it, so that a key
    has the same bytes here and there.
    """
    if value is None:
        return Format.ANY, NULL
    if not isinstance(value, bytes | bytearray | memoryview):
        return Format.JSON, json_text(value)
    text = bytes(value)
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError as error:
        msg = f"format json: not JSON text: {error}"
        raise InvalidRecordError(msg) from error
    text = text.strip(b" \t\r\n").replace(b"\n", b" ").replace(b"\r", b" ")
    return (Format.ANY if text == NULL else Format.JSON), text


def _encode_string(value: Any) -> Encoded:
    if value is None:
        return Format.ANY, NULL
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            msg = f"format string: not UTF-8: {error}"
            raise InvalidRecordError(msg) from error
    if not isinstance(value, str):
        msg = f"format string: expected str or bytes, got {type(value).__name__}"
        raise InvalidRecordError(msg)
    return Format.STRING, json_text(value)


def _encode_binary(value: Any) -> Encoded:
    if value.__class__ is bytes:
        return _BINARY, b'"%b"' % _b2a_base64(value, newline=False)
    if value is None:
        return _ANY, NULL
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            msg = f"format binary: not a text in UTF-8: {error}"
            raise InvalidRecordError(msg) from error
    if not isinstance(value, _BYTES):
        msg = f"format binary: expected bytes or str, got {type(value).__name__}"
        raise InvalidRecordError(msg)
    return _BINARY, _base64(value)


_ENCODERS: Final[Mapping[str, Encode]] = {
    "auto": encode_auto,
    "json": _encode_json,
    "string": _encode_string,
    "binary": _encode_binary,
}


def encoder(half: str, format_word: str, serializer: Callable[[Any], object] | None) -> Encode:
    """Return the function that encodes keys or values.

    Args:
        half: ``key`` or ``value``, for error texts.
        format_word: One of `FORMATS`.
        serializer: Called before the format is applied. It returns bytes, a text or None.
    """
    by_format = _ENCODERS[format_word]
    if serializer is None:
        return by_format

    def encode(value: Any) -> Encoded:
        try:
            made = serializer(value)
        except Exception as error:
            msg = f"the {half}_serializer failed: {error!r}"
            raise InvalidRecordError(msg) from error
        if made is not None and not isinstance(made, bytes | str):
            msg = f"the {half}_serializer returned {type(made).__name__}: expected bytes or str"
            raise InvalidRecordError(msg)
        return by_format(made)

    return encode


def stored_bytes(encoded: Encoded) -> bytes | None:
    """Return the bytes view of an encoded key or value: what the partition of a key is made of."""
    found, text = encoded
    if found is Format.ANY:
        return None
    if found is Format.JSON:
        return None if text == NULL else text
    if found is Format.STRING:
        return str(orjson.loads(text)).encode()
    return binascii.a2b_base64(text[1:-1])


def headers_text(headers: Headers) -> bytes:
    """Return headers as the JSON text of a record's field; raises `InvalidRecordError`."""
    pairs: Any  # callers without a type checker give anything
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        msg = f"headers: expected pairs or a mapping, got {type(headers).__name__}"
        raise InvalidRecordError(msg)
    rows = []
    for pair in pairs:
        try:
            name, value = pair
        except (TypeError, ValueError):
            msg = f"headers: expected pairs of name and value, got {pair!r}"
            raise InvalidRecordError(msg) from None
        is_text = isinstance(pair, str)  # one of two letters would pass as a pair
        if is_text or not isinstance(name, str) or not isinstance(value, str | bytes | None):
            msg = f"header {name!r}: expected a str as name, and bytes, str or None as value"
            raise InvalidRecordError(msg)
        rows.append({"key": name, "value": _header_value(name, value)})
    if len(rows) > HEADERS_MAX:
        msg = f"{len(rows)} headers: expected {HEADERS_MAX} at most"
        raise InvalidRecordError(msg)
    return json_text(rows)


def _header_value(name: str, value: str | bytes | None) -> str | None:
    if value is None:
        return None
    try:
        stored = value.encode() if isinstance(value, str) else value
    except UnicodeEncodeError as error:
        msg = f"header {name!r}: not a text in UTF-8: {error}"
        raise InvalidRecordError(msg) from error
    return binascii.b2a_base64(stored, newline=False).decode()
