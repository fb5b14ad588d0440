"""Process-wide settings of a node: file limit, logging, allocator, garbage collector, loop, death.

A node started by ``quorumlog up`` ends within 2 s of its supervisor, by two mechanisms at once. On
Linux the kernel sends SIGKILL when the parent dies (`PR_SET_PDEATHSIG`); the request for it is made
after exec, so the parent is checked again afterwards: it may have died in between. On every system,
standard input is a pipe to which the supervisor never writes: end of file means that it has ended.
SIGKILL is safe for a node at any moment: everything acknowledged is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import logging
import os
import platform
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from typing_extensions import override

_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3
_KEEP_BYTES = 1 << 30
_TOP_PAD_BYTES = 64 << 20
_GC_THRESHOLDS = (50_000, 20, 50)
"""Collection thresholds: the young generation holds a burst of requests, the old one is hardly
ever collected."""
_SWITCH_INTERVAL_S = 0.0005

_Result = TypeVar("_Result")


def raise_open_file_limit() -> None:
    """Raise the soft limit to the hard one: every segment and client is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def keep_freed_memory() -> None:
    """Stop glibc from returning megabyte buffers to the kernel after every fetch.

    Otherwise a 1 MB body is mapped, faulted in page by page and unmapped again each time, which
    makes serving it 7 to 17 times slower.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_MMAP_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEEP_BYTES)
    mallopt(_M_TOP_PAD, _TOP_PAD_BYTES)


def freeze_collector() -> None:
    """Exclude all present objects from garbage collection; called once start-up is done.

    What is alive then lives as long as the process.
    """
    gc.collect()
    gc.freeze()


def shorten_thread_switches() -> None:
    """Let threads switch every half millisecond instead of every five; for a controller.

    Its loop releases the interpreter with every system call, several times in a commit, and each
    time it would wait for the thread that encodes a snapshot.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


def run_loop(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Run the node's one loop, on uvloop where it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    # Objects made at start-up (a snapshot, thousands of logs) are no garbage: with the default
    # thresholds the search for garbage takes longer than reading 100,000 partitions.
    gc.set_threshold(*_GC_THRESHOLDS)
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class _TextFormatter(logging.Formatter):
    """Log lines such as ``2026-01-31T12:00:00.123Z info broker-1 broker.log message key=value``."""

    def __init__(self, node: str) -> None:
        self.converter = time.gmtime
        super().__init__(
            fmt=f"%(asctime)s.%(msecs)03dZ %(level)s {node} %(name)s %(message)s",
            datefmt="%Y-%m-%dT%H:%M:%S",
        )

    @override
    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        return super().format(record)


class _JsonFormatter(_TextFormatter):
    """Log lines with one JSON object each, for log collectors."""

    def __init__(self, node: str) -> None:
        super().__init__(node)
        self._node = node

    @override
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{self.formatTime(record, self.datefmt)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self._node,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up_logging(node: str, level: str = "info", log_format: str = "text") -> None:
    """Log to standard error, which ``up`` redirects to ``logs/<node>.log``."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(node) if log_format == "json" else _TextFormatter(node))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


SUPERVISOR_VARIABLE = "QUORUMLOG_SUPERVISOR_PID"
_PR_SET_PDEATHSIG = 1


def end_with_supervisor(environment: Mapping[str, str]) -> None:
    """End this process with its supervisor, if a supervisor started it; else change nothing."""
    text = environment.get(SUPERVISOR_VARIABLE, "")
    if not text.isdigit():
        return
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(text):
        _end_now()
    threading.Thread(target=_wait_for_end_of_file, name="parent-death", daemon=True).start()


def _wait_for_end_of_file() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass
    _end_now()


def _end_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
