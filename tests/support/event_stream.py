"""A reader of Server-Sent Events that takes them as a browser does (HTML, section 9.2)."""

from __future__ import annotations


class EventReader:
    """The reader's side: bytes in as they come, events out. Owned by one stream's reader.

    ``last_id`` is what to connect again with.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._name = ""
        self._id = ""
        self.last_id = ""
        self.retry_ms: int | None = None

    def feed(self, piece: bytes) -> list[tuple[str, bytes]]:
        """Return the (name, data) of each event that ``piece`` completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events: list[tuple[str, bytes]] = []
        for line in lines:
            if line:
                self._take_field(line)
                continue
            self.last_id = self._id
            if self._data:
                events.append((self._name or "message", b"\n".join(self._data)))
            self._data, self._name = [], ""
        return events

    def _take_field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                self._data.append(value)
            case b"id":
                self._id = value.decode()
            case b"event":
                self._name = value.decode()
            case b"retry":
                self.retry_ms = int(value)
            case _:
                pass  # a comment, whose field name is empty
