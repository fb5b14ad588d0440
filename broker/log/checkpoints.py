"""Small files that are replaced whole: a line of JSON and a line with its checksum.

Every other module of this package that keeps state beside the segments uses it. The files are
replaced and checked by `raft_metadata.common.disk`: after a crash the old file or the new one
exists, and a damaged one is never taken for an empty one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from raft_metadata.common.disk import checked_body, with_checksum
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from raft_metadata.common.disk import Disk


class TornError(CorruptionError):
    """The file holds nothing: it was not synced, and a crash came before its bytes were written."""


def encode_checkpoint(content: object) -> bytes:
    """Return the bytes of a checkpoint file with this content."""
    return with_checksum(orjson.dumps(content))


def decode_checkpoint(data: bytes, path: str) -> object:
    """Return the content of a checkpoint file.

    Raises:
        CorruptionError: the file is damaged; names it.
        TornError: the file holds nothing.
    """
    if not data.strip(b"\0"):
        msg = f"checkpoint {path} is torn"
        raise TornError(msg)
    return orjson.loads(checked_body(data, path))


def read_checkpoint(disk: Disk, path: str) -> object | None:
    """Return the content of a checkpoint file, or None if it does not exist.

    Raises:
        CorruptionError: the file is damaged.
    """
    data = disk.read_file(path)
    return None if data is None else decode_checkpoint(data, path)
