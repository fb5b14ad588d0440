"""Records on standard output, as ``quorumlog consume`` prints them.

A record is a line of text, or an object of JSON with all that is known of it. What a tail or a
group hands over is printed and flushed before more is read, so that no token and no commit covers
a record that was not printed. A tail and a group bring records with their types; `shown_half` turns
these into the form of a page, in which keys and values are JSON, or base64 with ``--binary``.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

import click
import msgspec
import orjson

from http_api.client.consumer import Record
from http_api.client.topic_tail import TailRecord, Typed

_NULL = b"null"


class RecordOutput:
    """Standard output in one format. Owned by one command."""

    def __init__(self, form: str, separator: str | None, *, binary: bool) -> None:
        """Take ``separator``, printed between key and value; None: values only."""
        self._form = form
        self._separator = separator
        self._binary = binary

    def print_some(self, reads: Iterable[list[Record]], count: int | None) -> None:
        """Print records as they are read, at most ``count`` in all."""
        left = count
        for records in reads:
            some = records if left is None else records[:left]
            self.print(some)
            if left is not None:
                left -= len(some)
                if left == 0:
                    return

    def print(self, records: list[Record]) -> None:
        """Print these records."""
        out = sys.stdout.buffer
        for record in records:
            if self._form == "json":
                out.write(msgspec.json.encode(record) + b"\n")
                continue
            line = self._text(record.value)
            if self._separator is not None and bytes(record.key) != _NULL:
                line = self._text(record.key) + self._separator.encode() + line
            out.write(line + b"\n")
        out.flush()

    def _text(self, raw: msgspec.Raw) -> bytes:
        """Return the text of a JSON string, its decoded bytes if binary, else its JSON."""
        text = bytes(raw)
        if not text.startswith(b'"'):
            return text
        decoded: str = orjson.loads(text)
        return base64.b64decode(decoded) if self._binary else decoded.encode()


def shown_record(record: TailRecord, topic: str, *, binary: bool) -> Record:
    """Return a record of a tail as a page would hold it.

    Raises:
        click.ClickException: bytes that are not JSON, without ``binary``.
    """
    headers = [{"key": each["name"], "value": each["value"]} for each in record.headers]
    place = f"{topic}:{record.partition_id} at offset {record.offset}"
    return Record(
        topic=topic,
        partition=record.partition_id,
        offset=record.offset,
        key=shown_half("key", record.key, place, binary=binary),
        value=shown_half("value", record.value, place, binary=binary),
        timestamp=milliseconds_of(record.timestamp),
        headers=headers or None,
    )


def shown_half(half: str, typed: Typed, place: str, *, binary: bool) -> msgspec.Raw:
    """Return a key or value (``half``) of the record at ``place`` as a page would hold it.

    Raises:
        click.ClickException: bytes that are not JSON, without ``binary``.
    """
    text = _base64_of(typed) if binary else _json_of(typed)
    if text is None:
        msg = f"the {half} of {place} is not JSON; try --binary"
        raise click.ClickException(msg)
    return msgspec.Raw(text)


def encode_headers(
    headers: Iterable[tuple[str, bytes | None]],
) -> list[dict[str, str | None]] | None:
    """Return headers with their values in base64; None if there are none."""
    rows: list[dict[str, str | None]] = [
        {"key": name, "value": None if value is None else base64.b64encode(value).decode()}
        for name, value in headers
    ]
    return rows or None


def _json_of(typed: Typed) -> bytes | None:
    """Return a key or value as JSON; None for bytes that are none."""
    text = bytes(typed.data)
    if typed.type != "BINARY" or text == _NULL:
        return text
    view = binascii.a2b_base64(orjson.loads(text))
    try:
        orjson.loads(view)
    except orjson.JSONDecodeError:
        return None
    return view.strip()


def _base64_of(typed: Typed) -> bytes:
    """Return the bytes that a key or value means, as base64 in a JSON string."""
    text = bytes(typed.data)
    if typed.type == "BINARY" or text == _NULL:
        return text
    view = text if typed.type == "JSON" else orjson.loads(text).encode()
    return b'"' + binascii.b2a_base64(view, newline=False) + b'"'


@lru_cache(maxsize=1_024)
def milliseconds_of(timestamp: str) -> int:
    """Return a record's time in v3's spelling as milliseconds since 1970."""
    if timestamp.startswith("@"):
        return int(timestamp[1:])
    return round(datetime.fromisoformat(timestamp).timestamp() * 1_000)
