"""A fault handler for tests: it raises where a process would end."""

from __future__ import annotations

from typing import NoReturn


class Died(Exception):
    """What the handler raises."""


class RaisingFaults:
    """A FaultHandler; also remembers, in case somebody swallowed it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, BaseException | None]] = []

    def fatal(self, what: str, error: BaseException | None = None) -> NoReturn:
        self.seen.append((what, error))
        raise Died(what) from error
