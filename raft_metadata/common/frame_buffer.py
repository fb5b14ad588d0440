"""Received bytes of a connection until they are whole frames. Pure.

A frame begins with a prefix whose first field is the length of what follows. The replication
streams and the connections between voters own a `FrameBuffer` each: the event loop receives into
`room`, and `take` hands views of what is complete over, so that no byte is copied on the way. The
rest of an incomplete frame moves to the front. Memory grows with the bytes that really came, never
with a length that was announced, and a length over the limit is refused before its body is read.

Requests between brokers have a reader of their own (`http_api.peer.frames.FrameReader`): it checks
the type of a frame before its body is read, and is fed with the bytes that the event loop made,
from which the body of a request that came whole is copied once. The hellos differ, too: a voter's
is a frame of its protocol; a broker's begins with a magic number, so that another protocol is
refused after four bytes.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable


class FrameTooLargeError(ValueError):
    """A peer announced a frame over the limit; the connection must be closed."""


class FrameBuffer:
    """The receive buffer of one connection, owned by its protocol.

    It doubles when an incomplete frame fills it, and has its usual size again once it is empty.
    """

    __slots__ = (
        "_head_bytes", "_kept_bytes", "_unpack", "_view", "filled", "max_frame_bytes",
        "usual_bytes",
    )  # fmt: skip

    def __init__(
        self,
        prefix: struct.Struct,
        *,
        max_frame_bytes: int,
        usual_bytes: int,
        kept_bytes: int,
    ) -> None:
        """Create an empty buffer; one of up to ``kept_bytes`` is not given up when it is empty."""
        self.max_frame_bytes = max_frame_bytes
        """Longest accepted frame without its prefix; may change from one frame to the next."""
        self.usual_bytes = usual_bytes
        self.filled = 0
        """Bytes that were received and not taken; the owner adds what it received into `room`."""
        self._head_bytes = prefix.size
        self._unpack = prefix.unpack_from
        self._kept_bytes = kept_bytes
        self._view = memoryview(bytearray(usual_bytes))

    @property
    def size(self) -> int:
        """Size of the buffer in bytes."""
        return len(self._view)

    def room(self) -> memoryview:
        """Return the free part of the buffer, to receive into; it is never empty."""
        if self.filled == len(self._view):
            self._move(0, 2 * len(self._view))
        return self._view[self.filled :]

    def take(
        self,
        on_frame: Callable[[tuple[int, ...], memoryview], None],
        most: int = sys.maxsize,
    ) -> bool:
        """Hand whole frames over, at most ``most``; return True if that limit ended it.

        ``on_frame`` receives the fields of the prefix and the rest of a frame, a view which is
        valid during the call. Raises FrameTooLargeError, and what ``on_frame`` raises; the
        connection must then be closed.
        """
        view, filled, head = self._view, self.filled, self._head_bytes
        at = 0
        while filled - at >= head and most:
            fields = self._unpack(view, at)
            if fields[0] > self.max_frame_bytes:
                msg = f"frame of {fields[0]} bytes, at most {self.max_frame_bytes} allowed"
                raise FrameTooLargeError(msg)
            body = at + head
            end = body + fields[0]
            if end > filled:
                break
            on_frame(fields, view[body:end])
            at = end
            most -= 1
        rest, size = filled - at, len(view)
        if size < self.usual_bytes or (not rest and size > self._kept_bytes):
            self._move(at, self.usual_bytes)
        elif at:
            if rest:
                view[:rest] = view[at:filled]
            self.filled = rest
        return not most

    def _move(self, used: int, size: int) -> None:
        """Replace the buffer, which can't be resized while the event loop has a view of it."""
        rest = self.filled - used
        fresh = memoryview(bytearray(size))
        fresh[:rest] = self._view[used : self.filled]
        self._view, self.filled = fresh, rest
