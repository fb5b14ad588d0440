"""zstd compression of a batch's lines (`compression.type`): packed, bounded, unpacked. Pure.

A leader packs the lines of a batch into one frame (`pack`), which holds their size in its header;
the batch names Kafka's codec number (attribute bits 6 to 8). `lines_of` is the only way from stored
bytes to lines. Responses reuse stored frames (`framed`, `framed_as_single`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import zstandard

from broker.record.batch import (
    COMPRESSION_MASK,
    COMPRESSION_SHIFT,
    BatchError,
    BatchHeader,
    BatchSlice,
)
from broker.record.lines import BATCH_BYTES_MAX, BATCH_LINES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_log = logging.getLogger("broker.record")

ZSTD = 4
"""Kafka's number of the zstd codec (KIP-110)."""
LEVEL = 1
"""zstd level. 1 to 4 cost 2 ms a megabyte and give the same size; 5 and above block the event loop
for 7 to 1,000 ms a megabyte and save a tenth to a third (docs/performance.md)."""
MIN_LINES_BYTES = 512
"""Shorter lines are stored unpacked: they would shrink by a third at most, for twice the work."""
WINDOW_BYTES_MAX = 1 << 23
"""Largest window that any reader of `Content-Encoding: zstd` must support (RFC 9659)."""
_RAW_FRAME = 1 << 20
_RAW_BLOCK = 1 << 17
"""Largest block of a frame (RFC 8878, 3.1.1.2)."""
_RAW_HEAD = b"\x28\xb5\x2f\xfd\xa0"
"""Magic; one segment, its size in four bytes, no checksum, no dictionary."""

_compressors: list[zstandard.ZstdCompressor] = []
_decompressors: list[zstandard.ZstdDecompressor] = []
"""Idle contexts: creating one costs four times as much as a small batch. A context serves one
caller at a time (it releases the interpreter lock), so each caller takes one out and puts it
back."""


class PackedSlice(NamedTuple):
    """All records of one batch, still compressed: for a reader that passes the frame on."""

    header: BatchHeader
    frame: bytes | memoryview
    first_offset: int
    next_offset: int
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    lines_size: int
    """Bytes of lines in the frame, from its header."""

    @classmethod
    def whole(cls, header: BatchHeader, frame: bytes | memoryview) -> PackedSlice:
        """Return a whole batch as it is stored. BatchError as `unpacked_size`."""
        size, base = unpacked_size(frame), header.base_offset
        return cls(header, frame, base, header.next_offset, header.count, size)

    @classmethod
    def received(cls, piece: BatchSlice) -> PackedSlice:
        """Return a slice from a peer whose lines are a frame. BatchError as `whole`."""
        return cls(*piece, unpacked_size(piece.lines))

    def as_sent(self) -> BatchSlice:
        """Return the inverse of `received`; the sender must also state that it is a frame."""
        return BatchSlice(self.header, self.frame, self.first_offset, self.next_offset, self.count)


Piece = BatchSlice | PackedSlice


def pack(lines: bytes | memoryview) -> bytes | None:
    """Return these lines as one frame to be stored; None if that is not shorter.

    The frame is read back before use: acknowledged records exist in this frame alone, on all
    replicas, and may be passed on for years before a client unpacks it. If it does not give the
    same lines, which only a fault of memory or of the library explains, the lines are stored.
    """
    return None if len(lines) < MIN_LINES_BYTES else compress_if_shorter(lines)


def compress_if_shorter(lines: bytes | memoryview) -> bytes | None:
    """Return the lines as one frame that was read back; None if it is not shorter, or wrong."""
    frame = compress(lines)
    if len(frame) >= len(lines):
        return None
    try:
        same = decompress(frame) == lines
    except BatchError:
        same = False
    if not same:
        _log.error("%d bytes of lines were compressed wrongly: stored as they are", len(lines))
        return None
    return frame


def compress(lines: bytes | memoryview) -> bytes:
    """Return the lines as one frame, by a compressor that no other thread uses meanwhile."""
    try:
        context = _compressors.pop()
    except IndexError:
        context = zstandard.ZstdCompressor(level=LEVEL, write_checksum=False)
    frame = context.compress(lines)
    _compressors.append(context)
    return frame


def decompress(frame: bytes | memoryview) -> bytes:
    """Return the content of one frame, at most the size in its header. BatchError if broken."""
    try:
        context = _decompressors.pop()
    except IndexError:
        context = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
    try:
        lines = context.decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        msg = f"broken zstd frame: {error}"
        raise BatchError(msg) from None
    _decompressors.append(context)
    return lines


def unpacked_size(frame: bytes | memoryview) -> int:
    """Return the number of bytes of lines that a frame's header states.

    Raises:
        BatchError: it is no frame, or states no size, or more than a batch may hold.
    """
    try:
        size = zstandard.frame_content_size(frame)
    except zstandard.ZstdError as error:
        msg = f"no zstd frame: {error}"
        raise BatchError(msg) from None
    if not 0 < size <= BATCH_LINES_MAX:
        msg = f"a zstd frame of {size} bytes of lines, expected 1 to {BATCH_LINES_MAX}"
        raise BatchError(msg)
    return size


def lines_of(header: BatchHeader, stored: bytes | memoryview) -> bytes | memoryview:
    """Return the lines of a batch, given the bytes stored behind its header.

    Takes no more memory than `unpacked_size`, which is bounded.

    Raises:
        BatchError: an unknown codec; a frame that is broken, holds more or less than it states, has
            bytes behind it, or does not end with a whole line.
    """
    codec = (header.attributes & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if not codec or not header.count:
        return stored
    if codec != ZSTD:
        msg = f"compression codec {codec} is not known, expected 0 (none) or {ZSTD} (zstd)"
        raise BatchError(msg)
    unpacked_size(stored)
    lines = decompress(stored)
    if not lines.endswith(b"\n"):
        msg = "a zstd frame that does not end with a whole line"
        raise BatchError(msg)
    return lines


def stored_as(header: BatchHeader, lines: bytes, count: int) -> tuple[BatchHeader, bytes]:
    """Return header and payload of a batch that keeps ``count`` records, compressed if it was so.

    Length and attributes fit the payload; `rebuilt` sets crc and local part. Lines below the usual
    minimum are compressed again if they were shorter as a part of the old frame: cleaning never
    makes a log longer.
    """
    frame = None
    if header.is_compressed:
        frame = pack(lines) if len(lines) <= header.length else compress_if_shorter(lines)
    if frame is not None:
        return header._replace(length=len(frame), count=count), frame
    attributes = header.attributes & ~COMPRESSION_MASK
    return header._replace(length=len(lines), count=count, attributes=attributes), lines


class FramedBody(NamedTuple):
    """A body of zstd frames, and how many bytes it holds unpacked."""

    parts: list[bytes | memoryview]
    lines_size: int


def framed(pieces: Iterable[Piece], before: Callable[[Piece], bytes] | None = None) -> FramedBody:
    """Return the lines of these pieces, in order, as consecutive zstd frames (RFC 8878, 3.1).

    Stored frames are used as they are; records sliced out of a compressed batch are compressed
    again, stored lines are framed uncompressed. ``before``: bytes put in front of each piece's
    lines.
    """
    parts: list[bytes | memoryview] = []
    plain: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if before is not None:
            plain.append(before(piece))
            size += len(plain[-1])
        if isinstance(piece, PackedSlice):
            size += piece.lines_size
            frames: list[bytes | memoryview] = [piece.frame]
        else:
            size += len(piece.lines)
            if not piece.header.is_compressed or len(piece.lines) > BATCH_BYTES_MAX:
                plain.append(piece.lines)
                continue
            frames = _as_frames(piece.lines, shorten=True)
        if plain:
            parts += _as_frames(b"".join(plain), shorten=False)
            plain = []
        parts += frames
    if plain:
        parts += _as_frames(b"".join(plain), shorten=False)
    return FramedBody(parts, size)


def fits_one_frame(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """Return the first of these pieces that `framed_as_single` may put together, at least one."""
    size = 0
    for number, piece in enumerate(pieces):
        size += piece.lines_size if isinstance(piece, PackedSlice) else len(piece.lines)
        if number and size > BATCH_BYTES_MAX:
            return pieces[:number]
    return pieces


def framed_as_single(
    pieces: Sequence[Piece], before: Callable[[Piece], bytes] | None = None
) -> FramedBody:
    """Return the result of `framed` in a single frame: the stored one if it is all, else a new one.

    For readers that may not support a second frame. Takes as much work as unpacking and packing all
    of it, 2 ms a megabyte: `fits_one_frame` bounds that.

    Raises:
        BatchError: a frame is broken.
    """
    first = pieces[0]
    if len(pieces) == 1 and before is None and isinstance(first, PackedSlice):
        return FramedBody([first.frame], first.lines_size)
    parts: list[bytes | memoryview] = []
    for piece in pieces:
        if before is not None:
            parts.append(before(piece))
        if isinstance(piece, PackedSlice):
            parts.append(lines_of(piece.header, piece.frame))
        else:
            parts.append(piece.lines)
    whole = b"".join(parts)
    return FramedBody([compress(whole)], len(whole))


def _as_frames(lines: bytes | memoryview, *, shorten: bool) -> list[bytes | memoryview]:
    """Return lines as zstd frames of their own, compressed only if ``shorten``.

    Uncompressed frames cost only a copy, and 33 bytes a megabyte.
    """
    if shorten and len(lines) >= MIN_LINES_BYTES:
        return [compress(lines)]
    parts: list[bytes | memoryview] = []
    for start in range(0, len(lines), _RAW_FRAME):
        content = lines[start : start + _RAW_FRAME]
        parts.append(_RAW_HEAD + len(content).to_bytes(4, "little"))
        for at in range(0, len(content), _RAW_BLOCK):
            block = content[at : at + _RAW_BLOCK]
            last = at + _RAW_BLOCK >= len(content)
            parts.append((len(block) << 3 | last).to_bytes(3, "little"))
            parts.append(block)
    return parts
