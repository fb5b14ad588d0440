"""Looks of a terminal: colour and progress where a person waits, nothing anywhere else.

Commands call `styled` for words of their output and `Progress` around work that takes time. Colour
needs a terminal and no ``NO_COLOR`` (no-color.org); progress is drawn on standard error if that is
a terminal, and is erased when the work ends, however it ends. Nothing here changes a pipe, a file
or JSON by a byte.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from types import TracebackType
from typing import TextIO

import click
from typing_extensions import override

BAR_CHARS = 30
REDRAW_S = 0.1
"""Least time between two drawings of a bar."""
_ERASE_LINE = "\r\x1b[K"


def is_terminal(stream: TextIO) -> bool:
    """Return True if a stream is a terminal that understands control sequences."""
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


def has_colour(stream: TextIO) -> bool:
    """Return True if text on a stream may be coloured."""
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def styled(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Return a text in a colour if ``stream``, standard output by default, shows colours."""
    shown = has_colour(sys.stdout if stream is None else stream)
    return click.style(text, fg=colour, bold=True) if shown else text


class Progress:
    """A line on standard error about work that goes on: a bar, or a count without a known total.

    A context manager: the line is erased at the end, after an error and after Ctrl-C too.
    """

    def __init__(self, label: str, total: int | None = None, *, form: str = "text") -> None:
        """Prepare; ``form`` "json" draws nothing, as does anything but a terminal."""
        self._label = label
        self._total = total
        self._done = 0
        self._drawn_s = 0.0
        self._is_shown = form == "text" and is_terminal(sys.stderr)

    def __enter__(self) -> Progress:
        self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.erase()

    def erase(self) -> None:
        """Remove the line; it is drawn again only by a further change."""
        if self._is_shown:
            sys.stderr.write(_ERASE_LINE)
            sys.stderr.flush()

    def advance(self, count: int) -> None:
        """Add to the work that is done."""
        self.set(self._done + count)

    def set(self, done: int, total: int | None = None, label: str | None = None) -> None:
        """Set how much is done, and the total or the label where these have changed."""
        self._done = done
        self._total = self._total if total is None else total
        self._label = self._label if label is None else label
        if time.monotonic() - self._drawn_s >= REDRAW_S:
            self._draw()

    def _draw(self) -> None:
        if not self._is_shown:
            return
        self._drawn_s = time.monotonic()
        columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
        sys.stderr.write(_ERASE_LINE + self.text()[: columns - 1])
        sys.stderr.flush()

    def text(self) -> str:
        """Return the line as it is drawn."""
        if not self._total:
            return f"{self._label} {self._done}"
        share = min(1.0, self._done / self._total)
        filled = round(share * BAR_CHARS)
        bar = "█" * filled + "░" * (BAR_CHARS - filled)
        return f"{self._label} {bar} {share:4.0%}  {self._done} of {self._total}"


class _ErasingHandler(logging.StreamHandler[TextIO]):
    """Handler that removes a line of progress before each log line, so that they do not mix."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        return _ERASE_LINE + super().format(record)


def keep_log_lines_whole() -> None:
    """Have log lines on a terminal replace a line of progress instead of being added to it."""
    if not is_terminal(sys.stderr):
        return
    root = logging.getLogger()
    for handler in list(root.handlers):
        whole = _ErasingHandler(sys.stderr)
        whole.setFormatter(handler.formatter)
        root.removeHandler(handler)
        root.addHandler(whole)
