"""Replaces a damaged log by one that a start can open, and keeps the damaged one beside it.

    <root>/.salvage/<topic>-<partition>               the new log while it is being written
    <root>/.deleted/<topic id>:<partition>:salvaged   the damaged one, whole; never overwritten

A command-line tool that holds the broker's locks runs it. First the partition is marked in
``damaged``: from then on every start reports it unclean (rule R6), so that its loss is recorded in
the cluster's metadata, and it leads again only by an unclean election. Then the new log is written,
synced, and read back; then both directories exchange names in one step. A crash at any point leaves
the old log or the new one, and the next run finishes or discards what it finds.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, cast

from broker.log.checkpoints import encode_checkpoint, read_checkpoint, write_atomically
from broker.log.compaction import CleanState
from broker.log.directory_files import (
    CLEAN_SHUTDOWN_FILE,
    HIGH_WATERMARK_FILE,
    DirectoryFiles,
    text_of,
)
from broker.log.log_directory import PARTITION_FILE
from broker.log.producer_snapshot import snapshot_name, snapshot_offsets
from broker.log.quarantine import FOLDER
from broker.log.recovery import start_file
from broker.log.rewriting import SYNC_BYTES, WRITE_BYTES
from broker.log.salvage import Cover, Lost, Plan, Run, plan_salvage
from broker.log.swap import STATE_FILE, write_state
from broker.record.batch import build_header
from raft_metadata.common.errors import CorruptionError

if TYPE_CHECKING:
    from broker.log.disk import Disk
    from raft_metadata.common.ids import TopicId

SCRATCH = ".salvage"
UNFINISHED = "unfinished.tmp"
"""A file in the new log until it is in place; a start removes it like every other ``.tmp``."""
COPY_MARK = ":salvaged"
_NO_TIME = -1
_log = logging.getLogger("broker.log")


class Salvaged(NamedTuple):
    """The result of a salvage, or of its plan."""

    plan: Plan
    copy: str
    """Path of the kept damaged log; empty if none was replaced."""
    finished_earlier: str
    """Path of the log that an earlier, interrupted run had already replaced; empty: none."""


class Salvage:
    """The salvage of one partition's log, while no broker runs."""

    def __init__(
        self, disk: Disk, root: str, name: str, *, topic_id: TopicId | None = None
    ) -> None:
        """Prepare it. ``root``: the broker's log directory; ``name``: <topic>-<partition>."""
        self._disk = disk
        self._root = root
        self._name = name
        self._topic_id = topic_id
        self._live = f"{root}/{name}"
        self._scratch = f"{root}/{SCRATCH}/{name}"

    def plan(self) -> Plan:
        """Return what can be kept; nothing is changed.

        Raises:
            CorruptionError, OSError: see `plan_salvage`.
        """
        small = DirectoryFiles(self._disk, self._root)
        plan = self._read()
        watermarks = small.read_high_watermarks() if self._disk.exists(self._watermarks) else {}
        known, _ = watermarks.get(text_of(plan.key), (0, -1))
        if known > plan.log_end and plan.is_damaged:
            plan = self._read(known)
        plan.marked = small.read_damaged().get(plan.key, "")
        return plan

    def _read(self, high_watermark: int = 0) -> Plan:
        return plan_salvage(
            self._disk,
            self._live,
            clean_end=self._clean_end(),
            high_watermark=high_watermark,
            topic_id=self._topic_id,
        )

    def run(self) -> Salvaged:
        """Replace the damaged log, durably. A log that a start can open is left unchanged.

        Raises:
            CorruptionError: the log's identity can't be read, or the cluster's marks can't.
            OSError: the disk failed, or is full. The log is the old one, or the new one.
        """
        finished = self._finish_earlier()
        plan = self.plan()
        if not plan.is_damaged:
            return Salvaged(plan, "", finished)
        self._mark(plan)
        self._build(plan)
        self._check(plan)
        disk = self._disk
        disk.exchange(self._scratch, self._live)
        disk.sync_directory(self._root)
        disk.sync_directory(f"{self._root}/{SCRATCH}")
        return Salvaged(plan, self._keep_old(plan), finished)

    # remains of an interrupted run

    def _finish_earlier(self) -> str:
        """Discard an unfinished new log, or keep the old log that was already replaced.

        Return its path.
        """
        disk = self._disk
        if not disk.exists(self._scratch):
            return ""
        names = disk.names(self._scratch)
        if names and UNFINISHED not in names:
            return self._keep_old(self.plan())
        for name in names:
            if name != UNFINISHED:
                disk.unlink(f"{self._scratch}/{name}")
        disk.sync_directory(self._scratch)
        disk.remove_tree(self._scratch)
        disk.sync_directory(f"{self._root}/{SCRATCH}")
        return ""

    def _keep_old(self, plan: Plan) -> str:
        """Move the damaged log to the folder where it is kept.

        The new log loses its unfinished mark.
        """
        disk, folder = self._disk, f"{self._root}/{FOLDER}"
        disk.make_directory(folder)
        disk.sync_directory(self._root)
        first, number = f"{folder}/{text_of(plan.key)}{COPY_MARK}", 1
        copy = first
        while disk.exists(copy):
            number += 1
            copy = f"{first}-{number}"
        disk.rename(self._scratch, copy)
        disk.sync_directory(folder)
        disk.sync_directory(f"{self._root}/{SCRATCH}")
        disk.unlink(f"{self._live}/{UNFINISHED}")
        disk.sync_directory(self._live)
        return copy

    # steps

    def _mark(self, plan: Plan) -> None:
        """Mark the log as unclean, to be reported at every start; claim no clean end for it."""
        small = DirectoryFiles(self._disk, self._root)
        marks = small.read_damaged()
        marks[plan.key] = f"salvaged: {plan.offsets_lost} offsets lost{_ranges(plan.lost)}"
        small.write_damaged(marks)
        said = self._clean_shutdown()
        if said is not None and self._name in cast("dict[str, object]", said["logs"]):
            del cast("dict[str, object]", said["logs"])[self._name]
            write_atomically(self._disk, self._root, CLEAN_SHUTDOWN_FILE, encode_checkpoint(said))

    def _build(self, plan: Plan) -> None:
        disk, scratch = self._disk, self._scratch
        disk.unlink(f"{self._live}/{UNFINISHED}")
        disk.sync_directory(self._live)
        disk.make_directory(scratch)
        disk.close(disk.open(f"{scratch}/{UNFINISHED}", create=True))
        for directory in (scratch, f"{self._root}/{SCRATCH}", self._root):
            disk.sync_directory(directory)
        _Writer(disk, scratch).write(plan)
        self._write_small_files(plan)
        disk.sync_directory(scratch)

    def _write_small_files(self, plan: Plan) -> None:
        disk, scratch = self._disk, self._scratch
        identity = {
            "topic_id": plan.key.topic_id,
            "topic": plan.topic,
            "partition": plan.key.partition,
        }
        write_atomically(disk, scratch, PARTITION_FILE, encode_checkpoint(identity))
        name, data = start_file(0, plan.log_start)  # a start scans all of it
        write_atomically(disk, scratch, name, data)
        if plan.state_is_lost:
            write_state(disk, scratch, CleanState((), 0, plan.log_end))
        else:
            self._copy_small(STATE_FILE)
        intact = min([plan.log_end, *(lost.first_offset for lost in plan.lost)])
        for offset in snapshot_offsets(disk, self._live):
            if offset <= intact:
                self._copy_small(snapshot_name(offset))

    def _copy_small(self, name: str) -> None:
        data = self._disk.read_file(f"{self._live}/{name}")
        if data is not None:
            write_atomically(self._disk, self._scratch, name, data)

    def _check(self, plan: Plan) -> None:
        """Read back the new log before anything depends on it."""
        made = plan_salvage(self._disk, f"{self._root}/{SCRATCH}/{self._name}")
        if made.is_damaged or (made.log_start, made.log_end) != (plan.log_start, plan.log_end):
            msg = f"what was written to {self._scratch} can't be read back: nothing was replaced"
            raise CorruptionError(msg)

    # the broker's small files

    @property
    def _watermarks(self) -> str:
        return f"{self._root}/{HIGH_WATERMARK_FILE}"

    def _clean_shutdown(self) -> dict[str, object] | None:
        try:
            said = read_checkpoint(self._disk, f"{self._root}/{CLEAN_SHUTDOWN_FILE}")
        except (CorruptionError, ValueError):
            return None  # a start ignores a damaged file, too
        return said if isinstance(said, dict) else None

    def _clean_end(self) -> int | None:
        said = self._clean_shutdown()
        logs = {} if said is None else cast("dict[str, tuple[int, str]]", said["logs"])
        return logs[self._name][0] if self._name in logs else None


class _Writer:
    """The segments of the new log, each synced before it is closed."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._fd = -1
        self._size = self._unsynced = 0

    def write(self, plan: Plan) -> None:
        """Write a segment for each old file of which something is kept."""
        source = ""
        try:
            for piece in plan.pieces:
                if self._fd < 0 or (isinstance(piece, Run) and source and piece.file != source):
                    self._roll(piece.first_offset)
                if isinstance(piece, Run):
                    source = piece.file
                    self._copy(piece)
                else:
                    self._append(_empty_batch(piece))
        finally:
            self._close()

    def _roll(self, offset: int) -> None:
        self._close()
        self._fd = self._disk.open(f"{self._directory}/{offset:020d}.log", create=True)
        self._size = 0

    def _close(self) -> None:
        if self._fd >= 0:
            self._disk.sync_file(self._fd)
            self._disk.close(self._fd)
        self._fd = -1

    def _copy(self, run: Run) -> None:
        disk, done = self._disk, 0
        fd = disk.open(run.file)
        try:
            while done < run.size:
                data = disk.read(fd, min(WRITE_BYTES, run.size - done), run.position + done)
                if not data:
                    msg = f"{run.file} ends at {run.position + done}: it changed meanwhile"
                    raise CorruptionError(msg)
                self._append(data)
                done += len(data)
        finally:
            disk.close(fd)

    def _append(self, data: bytes) -> None:
        self._disk.write(self._fd, data, self._size)
        self._size += len(data)
        self._unsynced += len(data)
        if self._unsynced >= SYNC_BYTES:
            self._disk.sync_data(self._fd)
            self._unsynced = 0


def _empty_batch(cover: Cover) -> bytes:
    """Return an empty batch that proves nothing durable: the leader it names never wrote it."""
    return build_header(
        b"",
        durable_end=0,
        base_offset=cover.first_offset,
        count=0,
        last_offset_delta=cover.next_offset - cover.first_offset - 1,
        leader_epoch=cover.epoch,
        append_timestamp=cover.append_ms,
        base_timestamp=_NO_TIME,
        max_timestamp=_NO_TIME,
        attributes=0,
    )


def _ranges(lost: list[Lost]) -> str:
    """Return `` 3..7, 12..12``, the first ten ranges."""
    shown = [f"{each.first_offset}..{each.last_offset}" for each in lost[:10]]
    more = ", …" if len(lost) > len(shown) else ""
    return f" {', '.join(shown)}{more}" if shown else ""
