"""Decompression of zstd answers, within the size limit that the request set.

Called by both clients on every answer. The broker states the full length in a header; a body that
yields fewer bytes has lost frames on its way and is an error.
"""

from __future__ import annotations

from dataclasses import replace

from http_api.client.calls import Answer, ProtocolError, Request
from http_api.contract.media_types import DECODED_LENGTH_HEADER, ZSTD

WINDOW_BYTES_MAX = 1 << 23
"""Largest zstd window in bytes that a sender may require of a receiver (RFC 9659)."""


def decoded(answer: Answer, request: Request) -> Answer:
    """Return the answer without content coding; raises `ProtocolError` if that is not possible.

    An answer is refused if its coding was not requested, if its stated length is missing or above
    `Request.decoded_max`, or if decoding yields another number of bytes than stated. So an answer
    that was cut short, or that lost all frames but the first in a proxy, is never taken as
    complete.
    """
    coding = answer.headers.get("content-encoding", "identity").strip().lower()
    if coding == "identity":
        return answer
    if coding != ZSTD or not request.decoded_max:
        msg = f"HTTP {answer.status} in coding {coding!r}, which was not asked for"
        raise ProtocolError(msg)
    if not answer.body:
        return answer
    said = answer.headers.get(DECODED_LENGTH_HEADER.lower(), "")
    if not (said.isascii() and said.isdigit()) or int(said) > request.decoded_max:
        msg = f"a zstd answer of {said[:20]!r} bytes, expected {request.decoded_max} at most"
        raise ProtocolError(msg)
    return replace(answer, body=_frames(answer.body, int(said)))


def _frames(body: bytes, length: int) -> bytes:
    import zstandard  # imported on first use, because loading it takes a while

    reader = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).stream_reader(
        body, read_across_frames=True
    )
    try:
        found = bytes(reader.read(length + 1))
    except zstandard.ZstdError as error:
        msg = f"a zstd answer that can't be decoded: {error}"
        raise ProtocolError(msg) from error
    if len(found) != length:
        more = "more" if len(found) > length else f"only {len(found)}"
        msg = f"a zstd answer of {length} bytes holds {more}"
        raise ProtocolError(msg)
    return found
