"""The part that all classes of the SDK share: ways to the cluster, being open, and callbacks.

A `ClientContext` belongs to one object of the SDK. It makes the `Routes`, the `ClientNetwork` and
the blocking or asyncio clients from the settings, and refuses use after `close` and in a forked
child, where connections and threads of the parent must not be used.
"""

from __future__ import annotations

import inspect
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from http_api.client.client_errors import ClosedError
from http_api.client.network import ClientNetwork
from http_api.client.routes import Routes
from http_api.client.transport import Client

if TYPE_CHECKING:
    from http_api.client.async_client import AsyncClient
    from http_api.client.sdk.settings import CommonConfig

MS: Final = 1_000


_CONTEXTS: Final[weakref.WeakSet[ClientContext]] = weakref.WeakSet()


def _mark_forked() -> None:
    for context in _CONTEXTS:
        context.is_usable = False


os.register_at_fork(after_in_child=_mark_forked)


class ClientContext:
    """Being open, closed or forked, and the shared routes of one object of the SDK.

    Any thread may use it.
    """

    def __init__(self, kind: str, config: CommonConfig) -> None:
        """Begin open; ``kind`` is the word in log names and errors, such as ``producer``."""
        self.kind = kind
        self.config = config
        self.log = logging.getLogger(f"quorumlog.{kind}")
        self.network = ClientNetwork(
            security=config.security,
            headers=config.headers,
            client_id=config.client_id,
            connect_timeout_s=config.connect_timeout_ms / MS,
        )
        self.routes = Routes(
            config.bootstrap_servers,
            follow_leaders=config.follow_leaders,
            checks_cluster=True,
            rebootstrap_s=config.rebootstrap_trigger_ms / MS,
        )
        self.is_usable = True
        """False after `close` and in a forked child: a quick look before `check_open`."""
        self._pid = os.getpid()
        self._is_closed = False
        self._lock = threading.Lock()
        _CONTEXTS.add(self)

    @property
    def is_closed(self) -> bool:
        """True once `close` was called."""
        return self._is_closed

    @property
    def is_forked(self) -> bool:
        """True in a child of the process that made this object."""
        return os.getpid() != self._pid

    def check_process(self) -> None:
        """Raise `ClosedError` in a forked child; cheap enough for each call."""
        if self.is_forked:
            msg = (
                f"this {self.kind} belongs to process {self._pid} and this is its child "
                f"{os.getpid()}: make a new one after fork"
            )
            raise ClosedError(msg)

    def check_open(self) -> None:
        """Raise `ClosedError` after `close`, and in a forked child."""
        self.check_process()
        if self._is_closed:
            msg = f"this {self.kind} is closed"
            raise ClosedError(msg)

    def close(self) -> bool:
        """Mark as closed; return True on the first call, and never in a forked child."""
        self.is_usable = False
        if self.is_forked:
            return False
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        return not was_closed

    def client(self) -> Client:
        """Return a blocking client for one thread; the caller closes it."""
        return Client(self.routes, network=self.network)

    def async_client(self, connections: int = 100) -> AsyncClient:
        """Return an asyncio client; the caller enters and leaves it."""
        from http_api.client.async_client import AsyncClient

        return AsyncClient(self.routes, network=self.network, connections=connections)

    def report(self, error: Exception) -> None:
        """Log what heals by itself, and pass it to ``on_error``."""
        self.log.warning("%s", error)
        if self.config.on_error is not None:
            self.call_back(self.config.on_error, error)

    async def call_back_async(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call a program's callback, and await what it returns if that can be awaited."""
        import asyncio

        try:
            result = callback(*arguments)
            if result is not None and inspect.isawaitable(result):
                await result
        except BaseException as error:  # one that ended the task would end all later callbacks
            task = asyncio.current_task()
            is_cancelled = isinstance(error, asyncio.CancelledError)
            if is_cancelled and task is not None and task.cancelling():
                raise
            self.log.exception("callback failed callback=%r", callback)

    def call_back_all(self, calls: Iterable[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        """Call a program's callbacks; log what each raises, as no caller could handle it."""
        for callback, arguments in calls:
            try:
                callback(*arguments)
            except BaseException:  # one that ended the thread would end all later callbacks
                self.log.exception("callback failed callback=%r", callback)

    def call_back(self, callback: Callable[..., Any], *arguments: Any) -> None:
        """Call one callback of a program; log what it raises."""
        self.call_back_all([(callback, arguments)])
