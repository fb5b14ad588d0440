"""Tokens of reads that go on: the place behind what a reader has, in one opaque word. Pure.

A tail sends a token behind what it has sent, a page of a whole topic one in its header. Sent back
as ``after`` or ``Last-Event-ID``, to any broker and after any restart, it is where reading goes on.
It names the topic by its id, and of each partition the next offset with the epoch of that offset
(KIP-320), so that a log that was cut or replaced meanwhile is noticed.

    TOPIC_ID ~ base64url(numbers, then crc32 of TOPIC_ID and numbers)

The numbers are LEB128: first 0 for a whole topic or P + 1 for partition P alone, then offset and
epoch + 1 of each partition. The checksum finds a token that was cut or mistyped; it is no secret.
"""

from __future__ import annotations

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

OFFSET_MAX: Final = 10**18 - 1
"""Largest offset that any path takes."""
EPOCH_MAX: Final = (1 << 31) - 1
UNKNOWN_EPOCH: Final = -1
PARTITIONS_MAX: Final = 256
"""Most partitions in one token, and so of a topic that is read as a whole: about 3 KB of text."""
CHARACTERS_MAX: Final = 6_000
_CHECKSUM_BYTES = 4
_TOKEN = re.compile(r"([A-Za-z0-9_-]{22})~([A-Za-z0-9_-]{8,})")


class Place(NamedTuple):
    """The next offset to read in a partition, and the epoch of that offset; -1: unknown."""

    offset: int
    epoch: int = UNKNOWN_EPOCH


class TokenError(ValueError):
    """A text that is no token; the message says what is wrong, without the text."""


@dataclass(frozen=True, slots=True)
class ReadToken:
    """Places in a topic: of partitions 0 to N-1, or of one partition alone."""

    topic_id: str
    places: tuple[Place, ...]
    partition: int | None = None
    """The one partition whose place this is; None: ``places`` are those of the whole topic."""


def encode_token(token: ReadToken) -> str:
    """Return a token's text, of `[A-Za-z0-9._~-]` only."""
    first = 0 if token.partition is None else token.partition + 1
    numbers = [first]
    for offset, epoch in token.places:
        numbers += (offset, epoch + 1)
    return _text(token.topic_id, b"".join(map(_leb128, numbers)))


def decode_token(text: str) -> ReadToken:
    """Return the token that a text holds.

    Raises:
        TokenError: it is no token, or was changed on its way.
    """
    found = _TOKEN.fullmatch(text) if len(text) <= CHARACTERS_MAX else None
    if found is None:
        msg = "its form is not that of a token"
        raise TokenError(msg)
    topic_id, coded = found[1], found[2]
    data = urlsafe_b64decode(coded + "=" * (-len(coded) % 4)) if len(coded) % 4 != 1 else b""
    packed = data[:-_CHECKSUM_BYTES]
    if _text(topic_id, packed) != text:
        msg = "its checksum is wrong: it was cut or changed"
        raise TokenError(msg)
    first, *rest = _numbers(packed)
    places = tuple(
        Place(offset, coded_epoch - 1)
        for offset, coded_epoch in zip(rest[::2], rest[1::2], strict=True)
    )
    _check(first, places)
    return ReadToken(topic_id, places, None if first == 0 else first - 1)


def _check(first: int, places: Sequence[Place]) -> None:
    most = PARTITIONS_MAX if first == 0 else 1
    if not 1 <= len(places) <= most or first > EPOCH_MAX:
        msg = f"it names {len(places)} partitions, expected 1 to {most}"
        raise TokenError(msg)
    for offset, epoch in places:
        if offset > OFFSET_MAX or epoch > EPOCH_MAX:
            msg = f"it names offset {offset} of epoch {epoch}, beyond what a log can hold"
            raise TokenError(msg)


def _text(topic_id: str, packed: bytes) -> str:
    checksum = zlib.crc32(packed, zlib.crc32(topic_id.encode()))
    data = packed + checksum.to_bytes(_CHECKSUM_BYTES, "big")
    return f"{topic_id}~{urlsafe_b64encode(data).decode().rstrip('=')}"


def _leb128(number: int) -> bytes:
    """Return a number in groups of 7 bits, the lowest first; the last has no high bit."""
    coded = bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    coded.append(number)
    return bytes(coded)


def _numbers(packed: Iterable[int]) -> list[int]:
    """Return the numbers in LEB128 groups; an odd count, so that each place is whole."""
    numbers: list[int] = []
    number = shift = 0
    for byte in packed:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number)
            number = shift = 0
    if shift or len(numbers) % 2 != 1:
        msg = "it ends inside of a place"
        raise TokenError(msg)
    return numbers
