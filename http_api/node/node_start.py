"""Steps that broker and controller processes share: open the folder, await signals, exit.

`opened_node` surrounds the whole life of a node; `stop_signal`, `run_or_end_process` and
`until_stopped` run its main task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from http_api.node.exits import (
    EXIT_BROKEN_INVARIANT,
    EXIT_KILLED,
    EXIT_STORAGE,
    ConfigError,
    NodeExit,
    port_in_use,
)
from http_api.node.node_config import NodeConfig, load_node_config
from http_api.node.node_folder import PID_FILE, FolderLock, NodeMeta, read_meta
from http_api.node.process_setup import raise_open_file_limit, set_up_logging
from raft_metadata.common.errors import CorruptionError, ErrorCode, KafkaError, StorageError
from raft_metadata.common.faults import FaultHandler

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
        raise ConfigError(msg)
    set_up_logging(config.name, config.log_level, "json" if json_log else config.log_format)
    if not config.data_dir.is_dir():
        msg = f"{config.data_dir} is missing: this node was never formatted, or its disk is gone"
        raise NodeExit(EXIT_STORAGE, msg, is_damage=True)
    lock = FolderLock(config.data_dir / PID_FILE)
    lock.acquire(config.name)
    try:
        meta = read_meta(config.data_dir, config.cluster_id, config.node_id)
        with _node_exits():
            yield OpenedNode(config=config, meta=meta, insecure=insecure)
    finally:
        lock.release()


@contextlib.contextmanager
def _node_exits() -> Iterator[None]:
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
        if not isinstance(ending, ConfigError):  # its message is complete
            # A damaged file is no bug and needs no stack trace: its message is complete, too.
            trace = None if isinstance(first, StorageError) else first
            _log.critical("node failed error=%r", first, exc_info=trace)
        raise ending from error


def exit_for(error: BaseException) -> NodeExit:
    """Return the exit for an error that no other code has handled."""
    if isinstance(error, KafkaError) and error.code is ErrorCode.INVALID_CONFIG:
        return ConfigError(error.message)
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
