"""Server-Sent Events: the text of a stream that a browser's ``EventSource`` reads. Pure.

An event is lines of fields, ended by an empty line. Lines end at CR, LF or both, so data is cut
there and each part gets a ``data:`` field of its own; the reader joins them by LF again. Stored
records hold neither (rule R12) and are one field each. An ``id`` is kept by the reader and sent
back as ``Last-Event-ID`` when it connects again, also if it came without an event.
"""

from __future__ import annotations

from typing import Final

EVENT_STREAM: Final = "text/event-stream"
"""Media type of the stream."""
LAST_EVENT_ID: Final = "Last-Event-ID"
RETRY_MS: Final = 1_000
"""Time after which a reader whose connection broke is to connect again."""


def event(data: bytes, *, name: str | None = None, event_id: str | None = None) -> bytes:
    """Return one event; without a name it is a ``message`` to the reader.

    ``event_id`` and ``name`` hold no line break and no NUL.
    """
    head = id_field(event_id) if event_id is not None else b""
    if name is not None:
        head += b"event: %b\n" % name.encode()
    if b"\n" not in data and b"\r" not in data:
        return b"%bdata: %b\n\n" % (head, data)
    lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return head + b"".join([b"data: %b\n" % line for line in lines]) + b"\n"


def id_field(event_id: str) -> bytes:
    """Return the field that sets the id to connect again with."""
    return b"id: %b\n" % event_id.encode()


def opening(event_id: str) -> bytes:
    """Return the beginning of a stream: when to connect again, and with which id."""
    return b"retry: %d\n%b\n" % (RETRY_MS, id_field(event_id))


def heartbeat(event_id: str) -> bytes:
    """Return a comment and an id: bytes that show the stream is alive, and no event."""
    return b":\n%b\n" % id_field(event_id)
