"""Cutting a stream of concatenated JSON objects into the texts of its objects. Pure.

The v3 path for records reads a request body piece by piece: objects follow each other with or
without white space in between, and a piece may end anywhere, inside a string or a character too.
`ObjectSplitter` looks only for strings and braces, which is enough to find where an object ends;
whether its text is JSON is found by the decoder that gets it.
"""

from __future__ import annotations

import re

_SPACE = re.compile(rb"[ \t\r\n]*+")
_TO_BRACE = re.compile(rb'(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
"""All before a brace, or before a string that has not ended yet."""
_IN_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_OPENING = b"{"
_SHOWN_BYTES_MAX = 20


class JsonStreamError(Exception):
    """The stream can't be continued: what follows is no object, or one over the limit."""

    def __init__(self, message: str, *, is_too_large: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.is_too_large = is_too_large


class ObjectSplitter:
    """The objects of one stream. Owned by the request that reads it.

    Holds at most one unfinished object and what was fed last. Invariant: `take` returns the same
    objects however the stream is cut into pieces, and looks at no byte more than twice.
    """

    __slots__ = ("_at", "_depth", "_in_string", "_object_bytes_max", "_start", "_text")

    def __init__(self, object_bytes_max: int) -> None:
        self._object_bytes_max = object_bytes_max
        self._text = bytearray()
        self._start = 0
        """Start of the present object in `_text`."""
        self._at = 0
        """Position in `_text` to look on from."""
        self._depth = 0
        self._in_string = False

    def feed(self, piece: bytes) -> None:
        """Add the next piece of the stream."""
        del self._text[: self._start]
        self._at -= self._start
        self._start = 0
        self._text += piece

    def take(self, most: int) -> list[bytes]:
        """Return the next complete objects, in order, at most ``most``; empty: more must be fed.

        Raises:
            JsonStreamError: there is no object before what can't be continued. Nothing may be
                taken after it.
        """
        found: list[bytes] = []
        while len(found) < most:
            try:
                text = self._next()
            except JsonStreamError:
                if found:
                    break  # it is raised again by the next call
                raise
            if text is None:
                break
            found.append(text)
        return found

    def check_end(self) -> None:
        """Raise JsonStreamError if the stream may not end here: inside an object."""
        if self._depth:
            msg = "the stream ends inside an object: expected its closing '}'"
            raise JsonStreamError(msg)

    def _next(self) -> bytes | None:
        """Return the next complete object, or None if it has not arrived."""
        text = self._text
        if not self._depth:
            self._at = _SPACE.match(text, self._at).end()  # type: ignore[union-attr] # as below
            self._start = self._at
            if self._at == len(text):
                return None
            if text[self._at : self._at + 1] != _OPENING:
                shown = text[self._at : self._at + _SHOWN_BYTES_MAX].decode(errors="replace")
                msg = f"expected an object that begins with '{{', got {shown!r}"
                raise JsonStreamError(msg)
        end = self._end_of_object()
        length = (len(text) if end is None else end) - self._start
        if length > self._object_bytes_max:
            msg = f"an object of the stream is over max_body_bytes={self._object_bytes_max}"
            raise JsonStreamError(msg, is_too_large=True)
        if end is None:
            return None
        found = bytes(text[self._start : end])
        self._start = end
        return found

    def _end_of_object(self) -> int | None:
        """Return where the present object ends, or None if the text ends before it."""
        text, at = self._text, self._at
        while True:
            pattern = _IN_STRING if self._in_string else _TO_BRACE
            at = pattern.match(text, at).end()  # type: ignore[union-attr] # it matches nothing, too
            match text[at : at + 1]:
                case b"{":
                    self._depth += 1
                case b"}":
                    self._depth -= 1
                case b'"':
                    self._in_string = not self._in_string
                case _:  # the end, or in a string a backslash that needs what follows it
                    self._at = at
                    return None
            at += 1
            if not self._depth:
                self._at = at
                return at
