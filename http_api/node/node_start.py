"""Steps that broker and controller processes share: open the folder, await signals, exit.

`opened_node` surrounds the whole life of a node; `stop_signal`, `run_or_end_process` and
`until_stopped` run its main task.

The set-up of the process comes first: limits, signals, logging, and the end with the parent.
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
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from typing_extensions import override

from http_api.node.exits import (
    EXIT_BROKEN_INVARIANT,
    EXIT_KILLED,
    EXIT_STORAGE,
    NodeConfigError,
    NodeExit,
    port_in_use,
)
from http_api.node.node_config import NodeConfig, load_node_config
from http_api.node.node_folder import PID_FILE, FolderLock, NodeMeta, read_meta
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, StorageError
from raft_metadata.common.faults import FaultHandler

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


def collect_rarely() -> None:
    """Let the collector run after 50,000 new objects and not after 700.

    Objects made at start-up (a snapshot, thousands of logs) are no garbage: with the default
    thresholds the search for garbage takes longer than reading 100,000 partitions.
    """
    gc.set_threshold(*_GC_THRESHOLDS)


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
    collect_rarely()
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


_log = logging.getLogger("node")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedNode:
    """A node whose folder is locked and verified as its own (rule Q4)."""

    config: NodeConfig
    meta: NodeMeta
    insecure: bool


@contextlib.contextmanager
def opened_node(
    path: Path, overrides: Sequence[str], role: str, *, insecure: bool, json_log: bool
) -> Iterator[OpenedNode]:
    """Read the configuration, lock the folder, read its identity; nothing else is touched yet."""
    raise_open_file_limit()
    config = load_node_config(path, os.environ, overrides, insecure=insecure)
    if config.role != role:
        msg = f"{path}: node.role = {config.role!r}, expected {role!r} for this command"
        raise NodeConfigError(msg)
    set_up_logging(config.name, config.log_level, "json" if json_log else config.log_format)
    if not config.data_dir.is_dir():
        msg = f"{config.data_dir} is missing: this node was never formatted, or its disk is gone"
        raise NodeExit(EXIT_STORAGE, msg, is_damage=True)
    lock = FolderLock(config.data_dir / PID_FILE)
    lock.acquire(config.name)
    try:
        meta = read_meta(config.data_dir, config.cluster_id, config.node_id)
        with node_exits():
            yield OpenedNode(config=config, meta=meta, insecure=insecure)
    finally:
        lock.release()


@contextlib.contextmanager
def node_exits() -> Iterator[None]:
    """Turn every failure of a node into its exit code (interfaces.md §1)."""
    try:
        yield
    except (NodeExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        first = _root_error(error)
        if isinstance(first, NodeExit):
            raise first from None
        ending = exit_for(first)
        if not isinstance(ending, NodeConfigError):  # its message is complete
            # A damaged file is no bug and needs no stack trace: its message is complete, too.
            trace = None if isinstance(first, StorageError) else first
            _log.critical("node failed error=%r", first, exc_info=trace)
        raise ending from error


def exit_for(error: BaseException) -> NodeExit:
    """Return the exit for an error that no other code has handled."""
    if isinstance(error, KafkaError) and error.code is ErrorCode.INVALID_CONFIG:
        return NodeConfigError(error.message)
    if isinstance(error, (StorageError, OSError)):
        return NodeExit(EXIT_STORAGE, str(error), is_damage=isinstance(error, CorruptionError))
    return NodeExit(EXIT_BROKEN_INVARIANT, f"{type(error).__name__}: {error}")


def _root_error(error: BaseException) -> BaseException:
    """Return the first error in nested groups; later ones are its consequences."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextlib.contextmanager
def binding(address: object, holder: str) -> Iterator[None]:
    """Raise an exit that names the listener if it cannot be opened (exit 69)."""
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise port_in_use(str(address), holder, error) from error


@contextlib.asynccontextmanager
async def stop_signal() -> AsyncIterator[asyncio.Event]:
    """Yield an event that the first SIGINT or SIGTERM sets; the second ends the process at once."""
    loop = asyncio.get_running_loop()
    stop_requested = asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop_requested.is_set():
            os._exit(EXIT_KILLED)
        _log.info("stopping signal=%s", number.name)
        stop_requested.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop_requested
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def run_or_end_process(run: Coroutine[Any, Any, None], faults: FaultHandler) -> None:
    """Run the node's main task; if it fails, end the process at once, without an orderly stop.

    An orderly stop would leave the proof of a clean end behind, for a state that is not proven.
    """
    try:
        await run
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 every one is fatal
        faults.fatal("a background task failed", _root_error(error))


async def until_stopped(stop_requested: asyncio.Event, running: asyncio.Task[None]) -> None:
    """Return at the stop signal; raise the error that ended ``running`` before it."""
    waiting = asyncio.get_running_loop().create_task(stop_requested.wait())
    try:
        await asyncio.wait({waiting, running}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    if running.done() and not stop_requested.is_set():
        running.result()
        msg = "the node ended by itself"
        raise RuntimeError(msg)
