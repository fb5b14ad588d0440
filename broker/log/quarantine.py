"""Directories of logs that are out of use: moved aside at once, unlinked later or never.

<log directory>/.deleted/<topic id>:<partition>            deleted, or damaged
<log directory>/.deleted/<topic id>:<partition>:removed    the replica was given to another broker
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
"""Of one replica. Each may hold what no other replica has; a disk that damages a fourth one has to
be replaced, and would else be filled up with copies."""
_NAME_BYTES_MAX = 255
_log = logging.getLogger("broker.log")


class Quarantine:
    """Owned by the `LogManager`. Nothing that is moved is durably so before `sync`."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._folder = f"{root}/{FOLDER}"

    def names(self) -> list[str]:
        """What is in it."""
        return self._disk.names(self._folder) if self._disk.exists(self._folder) else []

    def purge(self, names: Iterable[str]) -> None:
        """Unlink these."""
        for name in names:
            self._disk.remove_tree(f"{self._folder}/{name}")

    def has_yet_to_move(self, name: str) -> bool:
        """Whether a log's directory is where it was."""
        return self._disk.exists(f"{self._root}/{name}")

    def move(self, name: str, quarantined: str) -> bool:
        """Move a log's directory aside under another name; whether there was one."""
        if not self.has_yet_to_move(name):
            return False
        quarantined = quarantined[:_NAME_BYTES_MAX]
        self._disk.make_directory(self._folder)
        if self._disk.exists(f"{self._folder}/{quarantined}"):
            self._disk.remove_tree(f"{self._folder}/{quarantined}")
        self._disk.rename(f"{self._root}/{name}", f"{self._folder}/{quarantined}")
        return True

    def sync(self) -> None:
        """What was moved stays so."""
        if self._disk.exists(self._folder):
            self._disk.sync_directory(self._folder)
        self._disk.sync_directory(self._root)

    def place_for_damaged(self, key: TopicIdPartition) -> str | None:
        """A name that destroys no copy that is kept already; None: there are enough of them."""
        kept = set(self.names())
        text = text_of(key)
        places = [text, *(f"{text}:{number}" for number in range(2, DAMAGED_COPIES_MAX + 1))]
        return next((place for place in places if place not in kept), None)
