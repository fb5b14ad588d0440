"""Directory and end of a run: the directory is removed after a success, kept and named otherwise.

Both entries (`make demo`, `quorumlog chaos run`) call `play`: an interrupt ends the run and leaves
no process; a failure of the system under test becomes a FAIL line; a bug in this package is raised.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chaos.checkers.verdict import Verdict
from chaos.cluster import ClusterError
from chaos.deadline import TooLateError
from chaos.history import History
from chaos.http import CallError
from chaos.load import LoadError
from chaos.net.toxiproxy_api import NetworkError
from chaos.screen import INTERRUPTED

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from chaos.history import Record
    from chaos.screen import Screen

HISTORY_FILE = "history.ndjson"
FAILURES = (ClusterError, CallError, LoadError, NetworkError, TooLateError, OSError, KeyError)
"""Errors by which the system under test can end a run; any other is a bug in this package."""
PASSED, FAILED = 0, 1


def catch_signals() -> None:
    """Turn SIGINT and SIGTERM into KeyboardInterrupt.

    Set explicitly, because a shell starts background jobs with SIGINT ignored, which is inherited.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


@dataclass(slots=True)
class Run:
    """A run in one directory. `verdicts` are the results of its checks so far."""

    directory: Path
    history: History
    screen: Screen
    verdicts: list[Verdict] = field(default_factory=list)

    def judge(self, one: Verdict) -> None:
        """Append a verdict and show it."""
        self.verdicts.append(one)
        self.screen.verdict(one)

    @property
    def passed(self) -> bool:
        """True if there is at least one verdict and all of them passed."""
        return bool(self.verdicts) and all(one.passed for one in self.verdicts)


def make_directory(home: Path) -> Path:
    """Create a new directory for this run below `home`."""
    home.mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="run-", dir=home))


def play(
    directory: Path,
    records: list[Record],
    screen: Screen,
    story: Callable[[Run], Awaitable[object]],
    clean_up: Callable[[], object],
) -> tuple[int, Run]:
    """Play a story in its directory; return exit status and run. `clean_up` has run on return."""
    with (directory / HISTORY_FILE).open("wb") as file:
        run = Run(directory, History(records, file.write), screen)
        try:
            asyncio.run(_as_coroutine(story, run))
            return (PASSED if run.passed else FAILED), run
        except KeyboardInterrupt:
            screen.say("interrupted")
            return INTERRUPTED, run
        except (*FAILURES, ExceptionGroup) as error:
            for reason in reasons(error):
                run.judge(Verdict("the run came to its end", passed=False, figures=reason))
            return FAILED, run
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            clean_up()


async def _as_coroutine(story: Callable[[Run], Awaitable[object]], run: Run) -> None:
    await story(run)


def reasons(error: BaseException) -> list[str]:
    """Return the leaves of an exception group, or the error itself, as printable lines."""
    if isinstance(error, BaseExceptionGroup):
        return [line for inner in error.exceptions for line in reasons(inner)]
    return [f"{type(error).__name__}: {error}"]


def remove(directory: Path) -> None:
    """Remove the directory of a successful run, and its parent if that is empty then."""
    shutil.rmtree(directory)
    with suppress(OSError):
        directory.parent.rmdir()
