"""Calls what has become due, so many in a loop turn: 20,000 answers at once would hold the loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

CALLS_PER_TURN = 200
"""Each writes an answer of about 25 µs: 5 ms, then others have their turn."""


class Slices:
    """Owned by whoever calls, on the loop. What is called first is called first.

    The first `CALLS_PER_TURN` of a turn are called at once: those few that are due as a rule wait
    for nothing.
    """

    __slots__ = ("_left", "_scheduled", "_waiting")

    def __init__(self) -> None:
        self._left = CALLS_PER_TURN
        self._scheduled = False
        self._waiting: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def call(self, function: Callable[..., None], *arguments: Any) -> None:
        """Now, or in a turn that has room for it."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._next_turn)
        if self._left > 0 and not self._waiting:
            self._left -= 1
            function(*arguments)
        else:
            self._waiting.append((function, arguments))

    def _next_turn(self) -> None:
        self._scheduled, self._left = False, CALLS_PER_TURN
        if not self._waiting:
            return
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._next_turn)
        while self._waiting and self._left > 0:
            self._left -= 1
            function, arguments = self._waiting.popleft()
            function(*arguments)
