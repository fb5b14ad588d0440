"""Display of a run: a progress bar on a terminal, plain lines everywhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from types import TracebackType

    from chaos.checkers.verdict import Verdict

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
