"""Reading of a controller's folder, or its ``raft`` folder, for `quorumlog metadata dump --dir`.

A module of its own because it imports the quorum's files, which no other command needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from http_api.node.exits import EXIT_LOCKED, EXIT_STORAGE, EXIT_USAGE, NodeExit
from http_api.node.formatting import RAFT_FOLDER
from raft_metadata.common.errors import CorruptionError, StorageError
from raft_metadata.image.facts import Fact, FactConverter
from raft_metadata.quorum.offline import InUseError, StoppedControllerLog, read_offline_log
from raft_metadata.records.serde import UnreadableRecordError

LOG_FOLDER = "log"
"""Folder of a broker that holds its partitions; a controller has none."""


def open_log(directory: Path, *, even_if_locked: bool) -> StoppedControllerLog:
    """Read the log in a folder; `NodeExit` 74 if unreadable, 75 while a controller uses it."""
    raft_dir = directory / RAFT_FOLDER
    if not raft_dir.exists() and (directory / LOG_FOLDER).is_dir():
        text = f"--dir {directory}: expected a controller's folder, this is a broker's"
        raise NodeExit(EXIT_USAGE, f"{text}: `quorumlog log dump` reads those")
    try:
        return read_offline_log(
            raft_dir if raft_dir.exists() else directory, even_if_locked=even_if_locked
        )
    except InUseError as error:
        text = f"{error}: stop it, ask a broker instead, or say --force"
        raise NodeExit(EXIT_LOCKED, text) from error
    except (StorageError, CorruptionError, UnreadableRecordError) as error:
        raise NodeExit(EXIT_STORAGE, str(error)) from error


def facts_of(log: StoppedControllerLog, start: int) -> Iterator[Fact]:
    """Yield the facts from offset ``start``; first a snapshot's, if the journal begins later."""
    converter = FactConverter(log.image, log.before)
    if log.snapshot_index and start < log.before.next_offset:
        yield from converter.snapshot_facts(log.before)
    for batch in log.batches:
        yield from (fact for fact in converter.batch_facts(batch) if fact["offset"] >= start)
