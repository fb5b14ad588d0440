"""A run: its directory, its screen, its end.

Both entries (`make demo`, `quorumlog chaos run`) call `play_in_directory`: an interrupt ends the
run and leaves no process; a failure of the system under test becomes a FAIL line; a bug in this
package is raised. The directory is removed after a success, kept and named otherwise. `Screen`
shows a progress bar on a terminal and plain lines everywhere else.
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

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from chaos.checkers.verdict import Verdict
from chaos.cluster import ClusterError
from chaos.deadline import TooLateError
from chaos.history import History
from chaos.http import CallError
from chaos.net.toxiproxy import NetworkError
from chaos.workloads import LoadError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from chaos.history import Record


PLAIN_LINE_EVERY_MS = 5000
INTERRUPTED = 130


class Screen:
    """The output of a run; nothing else in a run prints."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print one line."""
        self._console.print(text, markup=False)

    def verdict(self, verdict: Verdict) -> None:
        """Print a PASS or FAIL line with figures, and below a FAIL its examples."""
        style, word = ("green", "PASS") if verdict.passed else ("bold red", "FAIL")
        self._console.print(f"[{style}]{word}[/]", end="  ")
        self.say(f"{verdict.name}: {verdict.figures}")
        for example in () if verdict.passed else verdict.examples:
            self.say(f"      {example}")

    def bar(self, total: int) -> Bar:
        """Return a progress bar for a known number of records."""
        return Bar(self._console, total)


class Bar:
    """Progress of the load; a context manager."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._last_line_ms: int | None = None
        self._progress: Progress | None = None
        if console.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )
            self._task = self._progress.add_task("flights", total=total)

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, now_ms: int) -> None:
        """Show the progress at `now_ms`.

        Plain lines are printed every few seconds and at the end.
        """
        if self._progress is not None:
            self._progress.update(self._task, completed=done)
            return
        last = self._last_line_ms
        if last is None or now_ms - last >= PLAIN_LINE_EVERY_MS or done == self._total:
            self._last_line_ms = now_ms
            share = 100 * done // max(1, self._total)
            self._console.print(f"  {done:,} of {self._total:,} acknowledged ({share} %)")


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


def play_in_directory(
    directory: Path,
    records: list[Record],
    screen: Screen,
    story: Callable[[Run], Coroutine[object, object, None]],
    clean_up: Callable[[], object],
) -> tuple[int, Run]:
    """Play a story in its directory; return exit status and run. `clean_up` has run on return."""
    with (directory / HISTORY_FILE).open("wb") as file:
        run = Run(directory, History(records, file.write), screen)
        try:
            asyncio.run(story(run))
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
