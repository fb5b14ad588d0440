"""``quorumlog up`` as a user starts it: a process with a directory, watched from outside."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

READY_DEADLINE_S = 60.0
STOP_DEADLINE_S = 20.0
ROOT = Path(__file__).resolve().parents[2]

T = TypeVar("T")


def wait_for(what: str, look: Callable[[], T | None], timeout_s: float = 30.0) -> T:
    """The first thing ``look`` finds; AssertionError naming ``what`` when it never does."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not waited for does not."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0] not in "ZX"
    return False


def run_quorumlog(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "http_api.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=timeout_s,
    )


class Up:
    """One life of a supervisor. As a context it leaves no process behind, whatever happened."""

    def __init__(self, data_dir: Path, *arguments: str) -> None:
        self.data_dir = data_dir
        command = [sys.executable, "-m", "http_api.cli", "up", "--data-dir", str(data_dir)]
        self._errors = (data_dir.parent / f"{data_dir.name}.up.err").open("a+b")
        self._earlier = self._errors.seek(0, os.SEEK_END)
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=self._errors, cwd=ROOT
        )
        self.out: list[str] = []

    def __enter__(self) -> Up:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pids = [pid for pid in self.pids() if self._is_ours(pid)]
        self.process.kill()
        self.process.wait()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._errors.close()

    def _is_ours(self, pid: int) -> bool:
        """A pid in the file may be another process's by now."""
        with contextlib.suppress(OSError):
            return str(self.data_dir).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        return False

    def ready(self) -> Up:
        """Wait for the ready line; both lines are in ``out`` afterwards."""
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        text = b""

        def look() -> bool:
            nonlocal text
            assert self.process.stdout is not None
            text += self.process.stdout.read() or b""
            code = self.process.poll()
            assert code is None, f"up ended with {code}:\n{self.errors()}"
            return text.count(b"\n") >= 2

        wait_for("the ready line", look, READY_DEADLINE_S)
        self.out = text.decode().splitlines()
        return self

    @property
    def urls(self) -> list[str]:
        return self.out[0].removeprefix("quorumlog ready ").split()

    def errors(self) -> str:
        """What this life of the supervisor has logged."""
        return Path(self._errors.name).read_bytes()[self._earlier :].decode()

    def cluster(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.data_dir / "cluster.json").read_bytes())
        return content

    def nodes(self) -> Iterator[dict[str, Any]]:
        content = self.cluster()
        yield from (*content["controllers"], *content["brokers"])

    def pid(self, node_id: int) -> int | None:
        """The node's process, if it has one now."""
        found = next(node["pid"] for node in self.nodes() if node["id"] == node_id)
        return found if found is not None and is_alive(found) else None

    def pids(self) -> list[int]:
        with contextlib.suppress(OSError, ValueError):
            return [node["pid"] for node in self.nodes() if node["pid"] is not None]
        return []

    def kill(self, node_id: int, number: signal.Signals = signal.SIGKILL) -> int:
        """Signal a node's process; its pid."""
        pid = wait_for(f"node {node_id} to run", lambda: self.pid(node_id))
        os.kill(pid, number)
        return pid

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop and wait; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_DEADLINE_S)


def status_of(url: str) -> int | None:
    """The HTTP status of a GET; None if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, ValueError):
        return None
