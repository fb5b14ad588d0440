"""Reader of a partition's files on one broker's disk, by their documented form only.

The runner compares its result with what brokers serve. Only two facts are used: the place of
segments (interfaces §2), and that each record is one line ``{"offset":N,…,"value":V}`` (§3). The
binary headers between the lines are skipped unread, so no mistake is shared with the code that
wrote them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from chaos.history import Line

if TYPE_CHECKING:
    from pathlib import Path

_STORED_LINE = re.compile(rb'\{"offset":\d+,[^\n]*\}\n')


class _Stored(msgspec.Struct, gc=False):
    offset: int
    value: msgspec.Raw
    key: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Stored).decode


def lines_on_disk(data_dir: Path, broker: int, topic: str, partition: int) -> list[Line] | None:
    """Return all records of a replica in the order of its files; None if the broker has no replica.

    A line that is still being written is incomplete and left out; a later call returns it.
    """
    folder = data_dir / f"broker-{broker}" / "log" / f"{topic}-{partition}"
    if not folder.is_dir():
        return None
    lines = []
    for segment in sorted(folder.glob("*.log")):
        for found in _STORED_LINE.finditer(segment.read_bytes()):
            stored = _decode(found[0])
            lines.append(Line(stored.offset, bytes(stored.key), bytes(stored.value)))
    return lines
