"""The flusher of a simulated process: its thread is an actor that works when it is told to."""

from __future__ import annotations

from typing import Any


class PowerCut(BaseException):
    """The power went at this very call of the disk."""


class FlusherThread:
    """Stands where the flusher's thread, its queue and its event are: works when told to."""

    def __init__(self, flusher: Any) -> None:
        self.flusher = flusher
        self.tokens: Any = None
        flusher._thread = flusher._queue = flusher._round_over = self

    def put(self, tokens: Any) -> None:
        self.tokens = tokens

    def work(self) -> None:
        tokens, self.tokens = self.tokens, None
        if tokens is not None:
            self.flusher._finished.append(self.flusher._work(tokens))

    def wait(self) -> None:
        """The loop waits for the round under way: `LogFlusher.drain`."""
        self.work()

    def clear(self) -> None: ...

    def join(self) -> None:
        self.work()

    def step(self) -> None:
        if self.tokens is not None:
            self.work()
        elif self.flusher._finished:
            self.flusher._collect()
            self.flusher._kick()
        else:
            self.flusher._kick()
