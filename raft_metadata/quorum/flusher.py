"""The thread that waits for the disk, so that the loop does not (rule M7).

A slow disk must delay acknowledgements, never heartbeats: elections would follow. There is one
hand-over in each direction: a piece of work that touches nothing the loop touches, and the news
that it is over, which the loop is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Work = Callable[[], None]


class Flusher(Protocol):
    """Runs pieces of work one after another. Owned by the journal; called on its loop."""

    def start(self, work: Work, done: Work) -> None:
        """Run `work` elsewhere, then `done` on the loop. `work` handles its own errors."""
        ...

    def wait(self) -> None:
        """Block until every `work` started has ended; their `done` may still come."""
        ...

    def close(self) -> None:
        """The same, and end the thread; `done` may still come, and must not mind."""
        ...


class InlineFlusher:
    """No thread: work is done before `start` returns. For opening a journal, and for tests."""

    def start(self, work: Work, done: Work) -> None:
        """See `Flusher`."""
        work()
        done()

    def wait(self) -> None:
        """See `Flusher`."""

    def close(self) -> None:
        """See `Flusher`."""


class ThreadFlusher:
    """One daemon thread, started with the first piece of work; it dies with the process."""

    def __init__(self, post: Callable[[Work], object]) -> None:
        self._post = post
        """``loop.call_soon_threadsafe``."""
        self._queue: SimpleQueue[tuple[Work, Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Work, done: Work) -> None:
        """See `Flusher`."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="raft-flusher", daemon=True)
            self._thread.start()
        self._queue.put((work, done))

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            work, done = job
            try:
                work()
            finally:
                # Also after what no work catches: the journal sees that nothing was finished, and
                # ends the process, where a dead thread would be a silent hang (rule Q6).
                self._post(done)

    def wait(self) -> None:
        """See `Flusher`."""
        if self._thread is not None:
            reached = threading.Event()
            self._queue.put((reached.set, _nothing))
            reached.wait()

    def close(self) -> None:
        """See `Flusher`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()


def _nothing() -> None:
    pass
