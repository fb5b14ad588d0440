"""Files of a log directory that belong to no open log: small state files, and the quarantine.

    <log directory>/clean-shutdown, high-watermark, damaged
    <log directory>/.deleted/<topic id>:<partition>            deleted, or damaged
    <log directory>/.deleted/<topic id>:<partition>:removed    the replica moved to another broker
    <log directory>/.deleted/<topic id>:<partition>:2          damaged once more

The `LogManager` reads the small files at start and writes them while it runs and at the end; the
offline salvage reads and marks them too. Each is replaced whole (`checkpoints`). The consequences
of a damaged one differ: no clean shutdown, high watermarks that start at 0, and, for ``damaged``
itself, a refusal to start. The directory of a deleted or damaged log is moved to the quarantine at
once, and unlinked later or never.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, NamedTuple, cast

from broker.log.checkpoints import encode_checkpoint, read_checkpoint
from raft_metadata.common.disk import replace_file
from raft_metadata.common.errors import CorruptionError
from raft_metadata.common.ids import BrokerEpoch, PartitionId, TopicId, TopicIdPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.log.partition_log import PartitionLog
    from raft_metadata.common.disk import Disk


CLEAN_SHUTDOWN_FILE = "clean-shutdown"
HIGH_WATERMARK_FILE = "high-watermark"
DAMAGED_FILE = "damaged"
_log = logging.getLogger("broker.log")


class CleanShutdown(NamedTuple):
    """The record of the last clean shutdown: broker epoch, and (log end, topic id) by log name."""

    broker_epoch: BrokerEpoch
    logs: dict[str, tuple[int, TopicId]]


class DirectoryFiles:
    """Reader and writer of the small files under ``root``.

    Used on the event loop, except for `write_high_watermarks`, which any thread may call.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root
        self._watermarks_lock = threading.Lock()

    # clean-shutdown

    def write_clean_shutdown(self, record: CleanShutdown) -> None:
        content = {"broker_epoch": record.broker_epoch, "logs": record.logs}
        replace_file(
            self._disk, f"{self._root}/{CLEAN_SHUTDOWN_FILE}", [encode_checkpoint(content)]
        )

    def take_clean_shutdown(self) -> CleanShutdown | None:
        """Return the record of the last clean shutdown; delete the file before any change (R11)."""
        path = f"{self._root}/{CLEAN_SHUTDOWN_FILE}"
        try:
            content = read_checkpoint(self._disk, path)
        except CorruptionError as error:
            _log.warning("clean shutdown marker ignored reason=%s", error)
            content = None
        self._disk.unlink(path)
        self._disk.sync_directory(self._root)
        if not isinstance(content, dict):
            return None
        logs = {name: (end, TopicId(topic_id)) for name, (end, topic_id) in content["logs"].items()}
        return CleanShutdown(BrokerEpoch(content["broker_epoch"]), logs)

    # high-watermark

    def write_high_watermarks(self, data: bytes) -> None:
        """Write the result of `encode_high_watermarks`; any thread may call it."""
        with self._watermarks_lock:
            replace_file(self._disk, f"{self._root}/{HIGH_WATERMARK_FILE}", [data])

    def read_high_watermarks(self) -> dict[str, tuple[int, int]]:
        """Return (high watermark, epoch of the record below it) by log.

        None if the file is damaged.

        A high watermark may be too low, never too high. So the caller must ignore one whose epoch
        differs from the log's: after an unclean election the log holds other records there, of
        which fewer may be committed (rule R8).
        """
        try:
            content = read_checkpoint(self._disk, f"{self._root}/{HIGH_WATERMARK_FILE}")
        except CorruptionError as error:
            _log.warning("high watermarks start at 0 reason=%s", error)
            return {}
        rows = cast("dict[str, list[int] | int]", content or {})
        return {key: (row[0], row[1]) for key, row in rows.items() if isinstance(row, list)}

    # damaged

    def write_damaged(self, unclean: dict[TopicIdPartition, str]) -> None:
        content = [[key.topic_id, key.partition, why] for key, why in unclean.items()]
        replace_file(self._disk, f"{self._root}/{DAMAGED_FILE}", [encode_checkpoint(content)])

    def read_damaged(self) -> dict[TopicIdPartition, str]:
        """Return the reasons to report at every registration until they are recorded (rule R6).

        Raises:
            CorruptionError: the file is damaged.
        """
        content = read_checkpoint(self._disk, f"{self._root}/{DAMAGED_FILE}")
        rows = cast("list[tuple[str, int, str]]", content or [])
        return {
            TopicIdPartition(TopicId(topic_id), PartitionId(partition)): why
            for topic_id, partition, why in rows
        }


def encode_high_watermarks(logs: Iterable[tuple[TopicIdPartition, PartitionLog]]) -> bytes:
    """Encode each log's high watermark with the leader epoch of the record below it.

    The epoch shows later if the log still holds the same records there.
    """
    return encode_checkpoint(
        {
            text_of(key): (log.high_watermark, log.epoch_at(log.high_watermark - 1))
            for key, log in logs
            if log.high_watermark
        }
    )


def text_of(key: TopicIdPartition) -> str:
    """Return the name of a replica's log in these files and in quarantine."""
    return f"{key.topic_id}:{key.partition}"


FOLDER = ".deleted"
DAMAGED_COPIES_MAX = 3
"""Damaged copies kept of one replica. Each may hold records that no other replica has. A disk that
damages a fourth copy must be replaced, and would otherwise fill up with copies."""
_NAME_BYTES_MAX = 255


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
