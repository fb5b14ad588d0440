"""The thread that waits for the disk so that the event loop does not (rule M7).

A slow disk must delay acknowledgements, never heartbeats, because late heartbeats cause elections.
The journal hands over one piece of work at a time. Work touches nothing that the loop touches; its
`done` callback is posted back to the loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol

Work = Callable[[], None]


class Flusher(Protocol):
    """A port that runs pieces of work one after another.

    Owned by the journal and called on its loop.
    """

    def start(self, work: Work, done: Work) -> None:
        """Run `work` elsewhere, then `done` on the loop. `work` handles its own errors."""
        ...

    def wait(self) -> None:
        """Block until every `work` started has ended; their `done` may still be pending."""
        ...

    def close(self) -> None:
        """Wait for started work and end the thread.

        A `done` may still follow and must be harmless.
        """
        ...


class InlineFlusher:
    """A flusher without a thread, for opening a journal and for tests."""

    def start(self, work: Work, done: Work) -> None:
        """Run `work`, then `done`, before returning."""
        work()
        done()

    def wait(self) -> None:
        """Return at once: no work is ever pending."""

    def close(self) -> None:
        """Return at once: there is no thread to end."""


class ThreadFlusher:
    """A daemon thread, started with the first piece of work; ends with `close` or the process."""

    def __init__(self, post: Callable[[Work], object]) -> None:
        self._post = post
        """Posts a callback to the loop: ``loop.call_soon_threadsafe``."""
        self._queue: SimpleQueue[tuple[Work, Work] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Work, done: Work) -> None:
        """Queue `work` for the thread; `done` is posted to the loop after it."""
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
                # Posted even after an exception that `work` does not catch: the journal then sees
                # unfinished work and ends the process; a dead thread would hang it (rule Q6).
                self._post(done)

    def wait(self) -> None:
        """Block until the thread has finished all work queued so far."""
        if self._thread is not None:
            reached = threading.Event()
            self._queue.put((reached.set, _nothing))
            reached.wait()

    def close(self) -> None:
        """Finish the queued work, end the thread and join it."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._queue.put(None)
            thread.join()


def _nothing() -> None:
    pass
