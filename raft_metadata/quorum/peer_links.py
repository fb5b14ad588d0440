"""Connections between voters: one per pair, mutually authenticated, made again when lost.

The voter with the greater id dials. Both ends send a hello first. Until its hello is accepted a
peer is a *stranger*: it may send one frame of 1 KiB and has two seconds, handshake included.
`FilteredTransport` uses `PeerLinks` through the port `Links` of `transport.py`; a simulation has
another implementation of that port.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from raft_metadata.common.ids import NodeId
from raft_metadata.common.tls import TlsContexts
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.introductions import (
    Introductions,
    RefusedPeerError,
    certificate_name,
)
from raft_metadata.quorum.peer_connection import KEEPALIVE_S, PeerConnection
from raft_metadata.quorum.transport import LinkEvents
from raft_metadata.quorum.wire import Message

MAX_STRANGERS = 32
"""Most accepted connections without an accepted hello; five voters that reconnect at once need
four. One more closes the oldest: a voter sends its hello within milliseconds, so idle strangers
cannot lock it out."""
INTRODUCTION_TIMEOUT_S = 2.0
"""Time limit for TCP, handshake and hello together, on either end."""
FIRST_RETRY_S = 0.05
LAST_RETRY_S = 0.5
"""Pause between two dials of an unreachable voter: doubles from the first value to the last."""
ACCEPT_RETRY_S = 0.2
"""Pause after a failed accept(), for example without free descriptors. asyncio's own server would
close the listener for good."""
LISTEN_BACKLOG = 64
CLOSE_TIMEOUT_S = 0.25
"""Time limit for sending queued messages when the voter stops."""
SAME_REFUSAL_LOGGED_EVERY_S = 60.0

_log = logging.getLogger("raft_metadata.quorum")


@dataclass(frozen=True, slots=True)
class LinkOwner:
    """Callbacks from the links to their owner; called on the loop."""

    after_event: Callable[[], None]
    """Called after a message, a connection or its loss: the Raft core may have work."""
    on_error: Callable[[Exception], None]
    """Called if the handler of an event raised half way."""


class PeerLinks:
    """All connections of one voter. Owned by `MetadataQuorum`, on its loop; opened and closed once.

    Invariants: at most one live connection per voter; no message is passed on from, or sent to, a
    peer whose hello was not accepted; every task and socket ends with `close`.
    """

    def __init__(
        self,
        config: QuorumConfig,
        introductions: Introductions,
        tls: TlsContexts | None,
        owner: LinkOwner,
    ) -> None:
        self._config = config
        self._introductions = introductions
        self._tls = tls
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._events: LinkEvents | None = None
        self._listener: socket.socket | None = None
        self._live: dict[NodeId, PeerConnection] = {}
        self._open: set[PeerConnection] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch_timer: asyncio.TimerHandle | None = None
        self._watched_at = self._loop.time()
        self._silence_s = config.link_silence_s
        self._told: dict[str, tuple[str, float]] = {}

    # -- life

    async def open(self, events: LinkEvents) -> None:
        """Listen, and dial every voter with a smaller id.

        Raises OSError if the address cannot be bound.
        """
        self._events = events
        self._listener = await self._listen()
        self._run(self._accept(self._listener))
        for node in self._config.others:
            if node < self._config.node_id:
                self._run(self._keep_dialling(node))
        self._watch()

    async def _listen(self) -> socket.socket:
        host, port = self._config.address_to_bind
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(LISTEN_BACKLOG)
        except BaseException:
            listener.close()
            raise
        return listener

    def _run(self, story: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(self._task(story))

    def _task(self, story: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(story)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._strangers.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._owner.on_error(error)

    async def close(self) -> None:
        """Stop listening, send what is queued, and close every connection."""
        self._events = None
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        tasks = [*self._tasks, *self._strangers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        for connection in self._live.values():
            connection.finish()
        self._live.clear()
        ending = list(self._open)
        if ending:
            await asyncio.wait([each.lost for each in ending], timeout=CLOSE_TIMEOUT_S)
        for connection in ending:
            connection.close("")
        if ending:
            await asyncio.wait([each.lost for each in ending])

    def _new_connection(self, dialled: NodeId | None) -> PeerConnection:
        connection = PeerConnection(self, dialled)
        self._open.add(connection)
        connection.lost.add_done_callback(lambda _: self._open.discard(connection))
        return connection

    # -- called by the filter (`transport.Links`)

    def send(self, node: NodeId, message: Message) -> bool:
        """Queue a message; return False without an open connection."""
        connection = self._live.get(node)
        return connection is not None and connection.send(message)

    def drop(self, node: NodeId) -> None:
        """Close the connection to a voter; it is made again."""
        connection = self._live.get(node)
        if connection is not None:
            connection.close("dropped by this voter")

    def backlog_bytes(self, node: NodeId) -> int:
        """Return the number of bytes queued for a voter."""
        connection = self._live.get(node)
        return 0 if connection is None else connection.unsent_bytes

    # -- accepting

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await self._loop.sock_accept(listener)
            except OSError as error:
                _log.warning("accept failed error=%r retry_s=%.1f", error, ACCEPT_RETRY_S)
                await asyncio.sleep(ACCEPT_RETRY_S)
                continue
            if len(self._strangers) >= MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                self._tasks.add(oldest)  # until it has ended
                del self._strangers[oldest]
                oldest.cancel()
            self._strangers[self._task(self._welcome(accepted))] = None
            # The next connection may be there already; accepting it would not yield to the loop.
            await asyncio.sleep(0)

    async def _welcome(self, accepted: socket.socket) -> None:
        connection = self._new_connection(None)
        try:
            async with asyncio.timeout(INTRODUCTION_TIMEOUT_S):
                if self._tls is None:
                    await self._loop.connect_accepted_socket(lambda: connection, accepted)
                else:
                    await self._loop.connect_accepted_socket(
                        lambda: connection,
                        accepted,
                        ssl=self._tls.server,
                        ssl_handshake_timeout=2 * INTRODUCTION_TIMEOUT_S,
                    )
                await connection.introduced
        except TimeoutError:
            self._refused("a stranger", f"not introduced in {INTRODUCTION_TIMEOUT_S:.0f} s")
        except OSError as error:  # ssl.SSLError is one
            self._refused("a stranger", repr(error))
        finally:
            if connection.node is None:
                connection.close("")
                accepted.close()

    # -- dialling

    async def _keep_dialling(self, node: NodeId) -> None:
        wait_s = FIRST_RETRY_S
        while True:
            connection = self._new_connection(node)
            try:
                async with asyncio.timeout(INTRODUCTION_TIMEOUT_S):
                    await self._dial(connection, node)
                    await connection.introduced
            except TimeoutError:
                self._refused(f"voter {node}", f"no hello in {INTRODUCTION_TIMEOUT_S:.0f} s")
            except (OSError, UnicodeError) as error:  # TLS, and names that are none, too
                self._refused(f"voter {node}", repr(error))
            finally:
                if connection.node is None:
                    connection.close("")
            if connection.node is not None:
                since = self._loop.time()
                await connection.lost
                if self._loop.time() - since > LAST_RETRY_S:
                    wait_s = FIRST_RETRY_S
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LAST_RETRY_S)

    async def _dial(self, connection: PeerConnection, node: NodeId) -> None:
        host, port = self._config.address_to_dial(node)  # a name is resolved on a thread
        if self._tls is None:
            await self._loop.create_connection(lambda: connection, host, port)
        else:
            await self._loop.create_connection(
                lambda: connection,
                host,
                port,
                ssl=self._tls.client,
                server_hostname=certificate_name(node),
                ssl_handshake_timeout=2 * INTRODUCTION_TIMEOUT_S,
            )

    def _refused(self, who: str, why: str) -> None:
        """Log a refused connection, at most once a minute for the same peer and reason."""
        now = self._loop.time()
        last_why, when = self._told.get(who, ("", float("-inf")))
        if now - when >= (SAME_REFUSAL_LOGGED_EVERY_S if why == last_why else 1):
            self._told[who] = (why, now)  # one entry a voter, one for all strangers
            _log.warning("no connection with=%s reason=%s", who, why)

    # -- called by connections (`peer_connection.ConnectionOwner`)

    def hello(self) -> Message:
        """Return the first message that this voter sends on a connection."""
        return self._introductions.hello()

    def guarded(self, handle: Callable[[], None]) -> None:
        """Run an event's handler and pass its exception to the owner.

        asyncio would only log the exception and continue.
        """
        try:
            handle()
        except Exception as error:  # noqa: BLE001 sorted by the owner
            self._owner.on_error(error)
        self._owner.after_event()

    def on_frame(self, connection: PeerConnection, message: object) -> None:
        """Handle a decoded frame; from a stranger only a hello counts."""
        if connection.node is not None:
            if self._events is not None:
                self._events.on_message(connection.node, message)
            return
        try:
            node = self._introductions.accept(
                message,
                dialled=connection.dialled,
                names=None if self._tls is None else connection.certificate_names(),
            )
        except RefusedPeerError as refusal:
            connection.close(str(refusal))
            return
        if connection.dialled is None:
            connection.send(self.hello())
        old = self._live.get(node)
        if old is not None:
            # The peer reconnected before the end of its old connection was noticed.
            old.close("replaced by a new one")
        self._live[node] = connection
        connection.introduce(node)
        self._told.pop(f"voter {node}", None)
        _log.info("voter connected voter=%d", node)
        if self._events is not None:
            self._events.on_connected(node)

    def on_closed(self, connection: PeerConnection, why: str) -> None:
        """Forget a closed connection and report its voter as disconnected."""
        node = connection.node
        if node is None and why:
            who = "a stranger" if connection.dialled is None else f"voter {connection.dialled}"
            self._refused(who, why)
        if node is None or self._live.get(node) is not connection:
            return
        del self._live[node]
        _log.info("voter disconnected voter=%d reason=%s", node, why)
        if self._events is not None:
            self._events.on_disconnected(node)

    def on_drained(self) -> None:
        """Let the owner send messages that waited for the buffer to drain."""
        self._owner.after_event()

    def _watch(self) -> None:
        """Check every live connection, twice a second.

        Send keep-alives; close connections whose peer is silent or does not read.
        """
        now = self._loop.time()
        # After a stall of this process the others' messages are still in the sockets (rule M7).
        stalled = now - self._watched_at > 2 * KEEPALIVE_S
        self._watched_at = now
        for connection in list(self._live.values()):
            self.guarded(partial(self._judge, connection, now, stalled=stalled))
        self._watch_timer = self._loop.call_later(KEEPALIVE_S, self._watch)

    def _judge(self, connection: PeerConnection, now: float, *, stalled: bool) -> None:
        why = connection.judge(now, self._silence_s, stalled=stalled)
        if why:
            connection.close(why)
