"""Looks of a terminal: shown there, and not in a pipe, with NO_COLOR or in JSON."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from http_api.cli.terminal import Progress, styled
form, end = sys.argv[1:]
print(styled("healthy", "green"))
try:
    with Progress("orders:", 4, form=form) as progress:
        progress.advance(2)
        if end == "error":
            raise ValueError
except ValueError:
    pass
print("done")
"""


def run_on_a_terminal(form: str, end: str, environment: dict[str, str]) -> str:
    """What the program shows on a terminal that is both of its outputs."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, form, end],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", **environment},
    ) as process:
        os.close(terminal)
        shown = b""
        try:
            while chunk := os.read(controller, 4096):
                shown += chunk
        except OSError:  # the end of a terminal whose other side is closed
            pass
        os.close(controller)
    assert process.returncode == 0
    return shown.decode()


@pytest.mark.parametrize("end", ["well", "error"])
def test_a_terminal_shows_colour_and_a_bar_that_is_erased(end: str) -> None:
    shown = run_on_a_terminal("text", end, {})
    assert "\x1b[32m" in shown
    assert "orders: ░" in shown
    assert shown.endswith("\r\x1b[Kdone\r\n")


def test_no_color_is_obeyed_and_json_has_no_bar() -> None:
    assert run_on_a_terminal("json", "well", {"NO_COLOR": "1"}) == "healthy\r\ndone\r\n"


def test_a_terminal_without_control_sequences_shows_neither() -> None:
    assert run_on_a_terminal("text", "well", {"TERM": "dumb"}) == "healthy\r\ndone\r\n"


def test_a_pipe_gets_neither() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "text", "well"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TERM": "xterm"},
    )
    assert (done.stdout, done.stderr) == ("healthy\ndone\n", "")
