"""Group commit: one thread syncs everything that logs have written since its last round.

A log requests a flush (`request`). When no round is running, each requesting log returns a token
(`begin_flush`), the thread syncs the files of all tokens, and the event loop completes the round
(`end_flush`). There is no linger time: the running sync is the linger, and requests that come
meanwhile share the next round. Measured with 32 producers: 6 times the commits of a sync per batch,
and the event loop stays responsive.
"""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import sys
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raft_metadata.common.disk import OUT_OF_DESCRIPTORS, TRANSIENT_ERRNOS, replace_file
from raft_metadata.common.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.log.segment import Segment
    from raft_metadata.common.disk import Disk

SYNC_FILES_MAX = 3
"""Dirty files up to which each is synced; beyond, one syncfs is cheaper (64: 1.9, not 13 ms)."""
_log = logging.getLogger("broker.log")


class Flushable(Protocol):
    """The part of a log that the flusher uses."""

    name: str

    @property
    def directory(self) -> str: ...

    def request_flush(self) -> None: ...

    def begin_flush(self) -> FlushToken | None:
        """Return a token of everything written so far, or None if there is nothing to sync."""
        ...

    def end_flush(self, token: FlushToken, *, synced: bool) -> None:
        """Complete the round; move the durable end if the token's generation is still valid."""
        ...


@dataclass(slots=True)
class FlushToken:
    """The files of one log to sync, with the log's truncation generation.

    A sync of them proves records up to ``end_offset``, if the log is still of that generation (Q3).
    """

    log: Flushable
    generation: int
    end_offset: int
    segments: list[Segment] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    """Small files created since the last flush, to be synced by name."""
    directories: list[str] = field(default_factory=list)
    """Directories in which names were created, innermost first (rule Q6)."""
    checkpoints: list[tuple[str, bytes]] = field(default_factory=list)
    """(name, bytes) to write into the log's directory once the data is synced."""
    log_start: int = -1
    """The log start that ``checkpoints`` make durable; -1: none."""
    unsealed_from: int = sys.maxsize
    """Base offset of the first segment that these checkpoints seal; maxsize: none."""
    sealed: Sequence[Segment] = ()
    """The segments whose index files are among the checkpoints."""
    checkpoints_failed: bool = False
    """True if the disk was too full for the checkpoints: a later flush writes them."""


class LogFlusher:
    """Owner of the flusher thread.

    Every method is called on the loop (or, without one, one thread).

    Before `start` nothing runs by itself, and `flush_all` does a round on the caller's thread:
    recovery, tools and tests use that. Any failure, of a sync or of this code, is final: nothing is
    synced, and so nothing acknowledged, ever again, and ``on_failed`` is called (rules Q2, Q6).
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        on_failed: Callable[[BaseException], None],
        on_cache_lost: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_cache_lost`` is called at once, on the thread, when a sync has failed."""
        self._disk = disk
        self._on_failed = on_failed
        self._on_cache_lost = on_cache_lost
        # Opened once and kept: syncfs reports the errors since its descriptor was opened.
        self._filesystem = disk.open_directory(root)
        self._wanted: dict[Flushable, None] = {}
        self._in_flight: list[FlushToken] = []
        self._queue: queue.SimpleQueue[list[FlushToken] | None] = queue.SimpleQueue()
        self._finished: deque[BaseException | None] = deque()
        self._round_over = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = -1
        self.sync_files_max = SYNC_FILES_MAX
        self.failed: BaseException | None = None
        self.rounds = 0

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread; results come back through an eventfd, 0.05 ms more than a bare sync."""
        self._event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        loop.add_reader(self._event, self._on_event)
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="flusher", daemon=True)
        self._thread.start()
        self._kick()

    def close(self) -> None:
        """Finish the round that runs and end the thread. Logs must not request flushes any more."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        if self._loop is not None:
            self._loop.remove_reader(self._event)
            self._collect()
            os.close(self._event)
            self._loop = None
        if self._filesystem >= 0:
            self._disk.close(self._filesystem)
            self._filesystem = -1

    def request(self, log: Flushable) -> None:
        """Sync this log soon. Its ``on_durable`` is called when its durable end has moved."""
        self._wanted[log] = None
        if not self._in_flight and self._thread is not None:
            self._kick()

    def drain(self, log: Flushable) -> None:
        """Wait until the thread no longer uses this log's files, which the caller may change then.

        Blocks the event loop for at most one round; truncations and deletions are rare. The result
        of the round still arrives as an event, and is void if the generation has moved (rule Q3).
        """
        self._wanted.pop(log, None)
        if any(token.log is log for token in self._in_flight):
            self._round_over.wait()

    def flush_all(self) -> None:
        """Run a round on this thread: everything requested is durable on return.

        Raises:
            StorageError: a sync failed; the flusher stays failed.
        """
        while self._in_flight:  # collecting a round may start the next one
            self._round_over.wait()
            self._collect()
        tokens = self._take()
        error = self._work(tokens) if self.failed is None else self.failed
        self._finish(tokens, error)
        if self.failed is not None:
            msg = f"the log directory is offline: {self.failed}"
            raise StorageError(msg) from self.failed

    # on the loop

    def _take(self) -> list[FlushToken]:
        wanted, self._wanted = self._wanted, {}
        tokens = []
        try:
            for log in wanted:
                token = log.begin_flush()
                if token is not None:
                    tokens.append(token)
        except Exception as error:  # noqa: BLE001 what was begun would later prove unsynced bytes (Q6)
            self._poison(error)
            return []
        return tokens

    def _kick(self) -> None:
        if self._in_flight or self.failed is not None or self._thread is None:
            return
        tokens = self._take()
        if tokens:
            self._in_flight = tokens
            self._round_over.clear()
            self._queue.put(tokens)

    def _on_event(self) -> None:
        os.eventfd_read(self._event)
        self._collect()
        self._kick()

    def _collect(self) -> None:
        while self._finished:
            error = self._finished.popleft()
            tokens, self._in_flight = self._in_flight, []
            if error is None and self._wanted:
                self._kick()  # the disk works while callbacks run
            self._finish(tokens, error)

    def _finish(self, tokens: Sequence[FlushToken], error: BaseException | None) -> None:
        self.rounds += 1
        for token in tokens:
            try:
                token.log.end_flush(token, synced=error is None)
            except Exception as broken:  # noqa: BLE001 one log's bug may not hang the others (Q6)
                _log.exception("durable callback failed log=%s", token.log.name)
                error = error or broken
        if error is not None:
            self._poison(error)

    def _poison(self, error: BaseException) -> None:
        if self.failed is None:
            self.failed = error
            _log.error("flusher failed, nothing is acknowledged any more error=%s", error)
            self._on_failed(error)

    # on the thread

    def _run(self) -> None:
        while True:
            tokens = self._queue.get()
            if tokens is None:
                return
            self._finished.append(self._work(tokens))
            self._round_over.set()
            os.eventfd_write(self._event, 1)

    def _work(self, tokens: Sequence[FlushToken]) -> BaseException | None:
        """Sync all files of the tokens; return the failure, or None. Never raises (rule Q6)."""
        try:
            files = 0
            for token in tokens:
                files += len(token.descriptors) + len(token.paths) + len(token.directories)
            if files > self.sync_files_max:
                self._disk.sync_filesystem(self._filesystem)
            else:
                try:
                    for token in tokens:
                        self._sync_each(token)
                except OSError as error:
                    if error.errno not in OUT_OF_DESCRIPTORS:
                        raise
                    self._disk.sync_filesystem(self._filesystem)  # needs no further descriptor
            for token in tokens:
                if token.checkpoints:
                    self._write_checkpoints(token)
        except BaseException as error:  # noqa: BLE001 handed over, then reported (rule Q6)
            self._on_cache_lost()
            return error
        return None

    def _write_checkpoints(self, token: FlushToken) -> None:
        """Write the token's checkpoints.

        They only save the next start a scan: a full disk delays them.
        """
        try:
            for name, data in token.checkpoints:
                replace_file(self._disk, f"{token.log.directory}/{name}", [data])
        except OSError as error:
            if error.errno not in TRANSIENT_ERRNOS:
                raise
            _log.warning("checkpoints postponed log=%s error=%s", token.log.name, error)
            token.checkpoints_failed = True

    def _sync_each(self, token: FlushToken) -> None:
        for fd in token.descriptors:
            self._disk.sync_data(fd)
        for path in token.paths:
            fd = self._disk.open(path)
            try:
                self._disk.sync_file(fd)
            finally:
                self._disk.close(fd)
        for directory in token.directories:
            self._disk.sync_directory(directory)
