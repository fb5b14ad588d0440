"""Directories of logs that are out of use: moved aside at once, unlinked later or never.

<log directory>/.deleted/<topic id>:<partition>            deleted, or damaged
<log directory>/.deleted/<topic id>:<partition>:removed    the replica moved to another broker
<log directory>/.deleted/<topic id>:<partition>:2          damaged once more
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from broker.log.directory_files import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.log.disk import Disk
    from raft_metadata.common.ids import TopicIdPartition

FOLDER = ".deleted"
DAMAGED_COPIES_MAX = 3
"""Damaged copies kept of one replica. Each may hold records that no other replica has. A disk that
damages a fourth copy must be replaced, and would otherwise fill up with copies."""
_NAME_BYTES_MAX = 255
_log = logging.getLogger("broker.log")


class Quarantine:
    """The quarantine folder, owned by the `LogManager`. A move is durable only after `sync`."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._folder = f"{root}/{FOLDER}"

    def names(self) -> list[str]:
        """Return the names of the quarantined directories."""
        return self._disk.names(self._folder) if self._disk.exists(self._folder) else []

    def purge(self, names: Iterable[str]) -> None:
        """Unlink these directories."""
        for name in names:
            self._disk.remove_tree(f"{self._folder}/{name}")

    def has_yet_to_move(self, name: str) -> bool:
        """Return True if a log's directory is still in its original place."""
        return self._disk.exists(f"{self._root}/{name}")

    def move(self, name: str, quarantined: str) -> bool:
        """Move a log's directory to quarantine under a new name; return False if there was none."""
        if not self.has_yet_to_move(name):
            return False
        quarantined = quarantined[:_NAME_BYTES_MAX]
        self._disk.make_directory(self._folder)
        if self._disk.exists(f"{self._folder}/{quarantined}"):
            self._disk.remove_tree(f"{self._folder}/{quarantined}")
        self._disk.rename(f"{self._root}/{name}", f"{self._folder}/{quarantined}")
        return True

    def sync(self) -> None:
        """Make all moves so far durable."""
        if self._disk.exists(self._folder):
            self._disk.sync_directory(self._folder)
        self._disk.sync_directory(self._root)

    def place_for_damaged(self, key: TopicIdPartition) -> str | None:
        """Return a name that overwrites no kept copy; None if `DAMAGED_COPIES_MAX` copies exist."""
        kept = set(self.names())
        text = text_of(key)
        places = [text, *(f"{text}:{number}" for number in range(2, DAMAGED_COPIES_MAX + 1))]
        return next((place for place in places if place not in kept), None)
