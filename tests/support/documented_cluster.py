"""The cluster that a documentation page tells its reader to start, for tests that run the page."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_TIMEOUT_S = 20


@contextmanager
def quorumlog_up(command: Path, directory: Path) -> Iterator[list[str]]:
    """`quorumlog up` as installed, in that directory, on free ports; the brokers' URLs."""
    with (directory / "up.log").open("w") as log:
        up = subprocess.Popen(
            [command, "up", "--port", "0"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert up.stdout is not None
        with up.stdout:
            ready = up.stdout.readline()
            assert ready.startswith("quorumlog ready "), (directory / "up.log").read_text()
            yield ready.split()[2:]
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()
