"""Answers in zstd: decoded within a bound that was set when they were asked for."""

from __future__ import annotations

from dataclasses import replace

from http_api.client.calls import Answer, ProtocolError, Request
from http_api.contract.media_types import DECODED_LENGTH_HEADER, ZSTD

WINDOW_BYTES_MAX = 1 << 23
"""Nobody may need more (RFC 9659)."""


def decoded(answer: Answer, request: Request) -> Answer:
    """The answer with its body as it is meant; `ProtocolError` where that can't be had.

    The broker says how long it is: one that is cut short, or has lost frames on its way through a
    reader that knows only the first, is never taken for all there was.
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
    import zstandard  # not for those who never meet it: it takes a while to load

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
