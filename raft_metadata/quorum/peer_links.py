"""Connections between voters: one per pair, mutually authenticated, made again when lost.

The voter with the greater id dials. Both ends send a hello first, which must prove cluster, node
and directory (rule Q4). Until its hello is accepted a peer is a *stranger*: it may send one frame
of 1 KiB and has two seconds, handshake included. A frame is ``length u32 little-endian |
MessagePack``; length 0 is a keep-alive; the length is checked before the body is read.

`FilteredTransport` uses `PeerLinks` through the port `Links` of `transport.py`; a simulation has
another implementation of that port.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
from typing_extensions import override

from raft_metadata.common.frame_buffer import FrameBuffer, FrameTooLargeError
from raft_metadata.common.ids import NodeId
from raft_metadata.common.tls import TlsContexts, dns_names
from raft_metadata.quorum.config import QuorumConfig
from raft_metadata.quorum.data_dir import DataDir
from raft_metadata.quorum.transport import FilteredTransport
from raft_metadata.quorum.wire import (
    MAX_FRAME_BYTES,
    MAX_HELLO_BYTES,
    Codec,
    MalformedMessageError,
    Message,
    hello,
    validate_hello,
)


class RefusedPeerError(Exception):
    """Reason for refusing a peer. It is logged here and never sent to the peer."""


def certificate_name(node: NodeId) -> str:
    """Return the DNS name that a voter's certificate must carry."""
    return f"controller-{node}"


class PeerAuthenticator:
    """The hello of this voter and the check of its peers' hellos. Owned by the loop."""

    def __init__(self, home: DataDir) -> None:
        self._home = home

    def hello(self) -> Message:
        """Return the first message that this voter sends on a connection."""
        meta = self._home.meta
        return hello(meta.node_id, meta.cluster_id, meta.directory_id)

    def accept(
        self, received: object, *, dialled: NodeId | None, names: frozenset[str] | None
    ) -> NodeId:
        """Return the node id that a peer has proved to own; raise RefusedPeerError otherwise.

        `received` is the decoded first message of the peer. `dialled` is the voter that this side
        dialled, None on an accepted connection. `names` are the DNS names of the peer's verified
        certificate, None on a plain connection.
        """
        try:
            number, cluster_id, directory_id = validate_hello(received)
        except MalformedMessageError as error:
            raise RefusedPeerError(str(error)) from error
        node = NodeId(number)
        if not self._home.is_known_voter(node, cluster_id, directory_id):
            text = f"unknown voter {node} cluster={cluster_id!r} directory={directory_id!r}"
            raise RefusedPeerError(text)
        if dialled is None and node <= self._home.meta.node_id:
            # One connection per pair: the greater id dials.
            text = f"voter {node} does not dial us, we dial it"
            raise RefusedPeerError(text)
        if dialled is not None and node != dialled:
            text = f"dialled voter {dialled}, voter {node} answers"
            raise RefusedPeerError(text)
        if names is not None and certificate_name(node) not in names:
            # A good certificate of another node must not take this voter's place.
            text = f"says it is voter {node}, its certificate is for {sorted(names)}"
            raise RefusedPeerError(text)
        return node


KEEPALIVE_S = 0.5
"""Seconds without a sent frame after which a keep-alive is sent."""
MAX_UNSENT_BYTES = 16 * 1024 * 1024
"""Unsent bytes to one voter that close its connection. Appends and parts of a snapshot stop far
below it (`MAX_APPENDS_AHEAD_BYTES`), so a peer that reaches it does not read."""
READ_BYTES = 256 * 1024
"""Size of the read buffer of an identified voter; it doubles when a frame does not fit."""
KEPT_BYTES = 4 * 1024 * 1024
"""A larger read buffer is released when it is empty."""

_HEAD = struct.Struct("<I")
_ALIVE = _HEAD.pack(0)
_encoder = msgspec.msgpack.Encoder()


class PeerConnection(asyncio.BufferedProtocol):
    """A connection, dialled or accepted. Owned by `PeerLinks`; lives as long as its socket."""

    def __init__(self, links: PeerLinks, dialled: NodeId | None) -> None:
        self._links = links
        self.dialled = dialled
        self._loop = asyncio.get_running_loop()
        self.identified: asyncio.Future[None] = self._loop.create_future()
        """Done once the peer's hello is accepted, or the connection has ended with `node` None."""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.node: NodeId | None = None
        self._transport: asyncio.Transport | None = None
        self._has_ended = False
        self._received = FrameBuffer(
            _HEAD,
            max_frame_bytes=MAX_HELLO_BYTES,
            usual_bytes=_HEAD.size + MAX_HELLO_BYTES,
            kept_bytes=KEPT_BYTES,
        )
        self._received_at = self._sent_at = self._drained_at = 0.0
        self._sent_bytes = self._drained_bytes = 0

    def certificate_names(self) -> frozenset[str]:
        """Return the DNS names of the peer's verified certificate.

        Empty before the connection is made.
        """
        made = self._transport
        return frozenset() if made is None else dns_names(made.get_extra_info("peercert"))

    def identify_as(self, node: NodeId) -> None:
        """Bind the connection to voter `node` and allow frames of full size."""
        self.node = node
        self._received.max_frame_bytes = MAX_FRAME_BYTES
        self._received.usual_bytes = READ_BYTES
        if not self.identified.done():
            self.identified.set_result(None)

    # -- asyncio's side

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if self._has_ended:
            self._transport.abort()
            return
        sock: socket.socket | None = transport.get_extra_info("socket")
        if sock is not None:
            # Messages are small and frequent; none may wait for the peer's TCP acknowledgement.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received_at = self._sent_at = self._drained_at = self._loop.time()
        if self.dialled is not None:
            self.send(self._links.hello())

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received.room()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self._received.filled += nbytes
        self._received_at = self._loop.time()
        self._links.guarded(self._read_frames)

    @override
    def connection_lost(self, error: Exception | None) -> None:
        if not self._has_ended:
            why = repr(error) if error else "closed by the peer"
            self._links.guarded(partial(self.close, why))
        if not self.closed.done():
            self.closed.set_result(None)

    @override
    def resume_writing(self) -> None:
        self._links.on_drained()

    # -- frames

    def _read_frames(self) -> None:
        try:
            self._received.take(self._on_frame)
        except FrameTooLargeError as error:
            self.close(str(error))

    def _on_frame(self, _prefix: tuple[int, ...], frame: memoryview) -> None:
        is_keep_alive = not frame and self.node is not None
        if self._has_ended or is_keep_alive:
            return
        try:
            message = Codec.loads(frame)
        except MalformedMessageError as error:
            self.close(f"a frame of {len(frame)} bytes that is no message: {error}")
            return
        self._links.on_frame(self, message)

    # -- the links' side

    @property
    def unsent_bytes(self) -> int:
        """Number of bytes that the socket has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: Message) -> bool:
        """Queue a message and return whether the connection is still open."""
        frame = bytearray(_HEAD.size)
        _encoder.encode_into(message, frame, _HEAD.size)
        _HEAD.pack_into(frame, 0, len(frame) - _HEAD.size)
        return self._write(frame)

    def _write(self, frame: bytes | bytearray) -> bool:
        if self._has_ended or self._transport is None:
            return False
        self._transport.write(frame)
        self._sent_at = self._loop.time()
        self._sent_bytes += len(frame)
        if self.unsent_bytes > MAX_UNSENT_BYTES:
            self.close(f"does not read: {self.unsent_bytes} bytes unsent, limit {MAX_UNSENT_BYTES}")
        return not self._has_ended

    def keep_alive(self, now: float, silence_s: float, *, stalled: bool) -> str:
        """Send a keep-alive if due; return the reason to close the connection, or "".

        `stalled`: this process was stalled, so the peer's silence proves nothing (rule M7).
        """
        if now - self._sent_at >= KEEPALIVE_S:
            self._write(_ALIVE)
        drained = self._sent_bytes - self.unsent_bytes
        if stalled or drained != self._drained_bytes or not self.unsent_bytes:
            self._drained_bytes, self._drained_at = drained, now
        if stalled:
            self._received_at = now
        if now - self._received_at > silence_s:
            return f"silent for {now - self._received_at:.1f} s"
        if now - self._drained_at > silence_s:
            return f"has read nothing for {now - self._drained_at:.1f} s"
        return ""

    def finish(self) -> None:
        """Close the connection once everything queued is sent."""
        self._has_ended = True
        if self._transport is not None:
            self._transport.close()

    def close(self, why: str) -> None:
        """Close the connection at once; the first call notifies the owner."""
        first, self._has_ended = not self._has_ended, True
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.closed.set_result(None)
        if not self.identified.done():
            self.identified.set_result(None)
        if first:
            self._links.on_closed(self, why)


MAX_STRANGERS = 32
"""Most accepted connections without an accepted hello; five voters that reconnect at once need
four. One more closes the oldest: a voter sends its hello within milliseconds, so idle strangers
cannot lock it out."""
HELLO_TIMEOUT_S = 2.0
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
        introductions: PeerAuthenticator,
        tls: TlsContexts | None,
        owner: LinkOwner,
    ) -> None:
        self._config = config
        self._authenticator = introductions
        self._tls = tls
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._events: FilteredTransport | None = None
        self._listener: socket.socket | None = None
        self._live: dict[NodeId, PeerConnection] = {}
        self._open: set[PeerConnection] = set()
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch_timer: asyncio.TimerHandle | None = None
        self._watched_at = self._loop.time()
        self._silence_s = config.link_silence_s
        self._logged_refusals: dict[str, tuple[str, float]] = {}

    # -- life

    async def open(self, events: FilteredTransport) -> None:
        """Listen, and dial every voter with a smaller id.

        Raises OSError if the address cannot be bound.
        """
        self._events = events
        self._listener = await self._listen()
        self._run(self._accept(self._listener))
        for node in self._config.others:
            if node < self._config.node_id:
                self._run(self._keep_dialling(node))
        self._check_connections()

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

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(self._task(coroutine))

    def _task(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(coroutine)
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
            await asyncio.wait([each.closed for each in ending], timeout=CLOSE_TIMEOUT_S)
        for connection in ending:
            connection.close("")
        if ending:
            await asyncio.wait([each.closed for each in ending])

    def _new_connection(self, dialled: NodeId | None) -> PeerConnection:
        connection = PeerConnection(self, dialled)
        self._open.add(connection)
        connection.closed.add_done_callback(lambda _: self._open.discard(connection))
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
            self._strangers[self._task(self._accept_peer(accepted))] = None
            # The next connection may be there already; accepting it would not yield to the loop.
            await asyncio.sleep(0)

    async def _accept_peer(self, accepted: socket.socket) -> None:
        connection = self._new_connection(None)
        try:
            async with asyncio.timeout(HELLO_TIMEOUT_S):
                if self._tls is None:
                    await self._loop.connect_accepted_socket(lambda: connection, accepted)
                else:
                    await self._loop.connect_accepted_socket(
                        lambda: connection,
                        accepted,
                        ssl=self._tls.server,
                        ssl_handshake_timeout=2 * HELLO_TIMEOUT_S,
                    )
                await connection.identified
        except TimeoutError:
            self._log_refusal("a stranger", f"not introduced in {HELLO_TIMEOUT_S:.0f} s")
        except OSError as error:  # ssl.SSLError is one
            self._log_refusal("a stranger", repr(error))
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
                async with asyncio.timeout(HELLO_TIMEOUT_S):
                    await self._dial(connection, node)
                    await connection.identified
            except TimeoutError:
                self._log_refusal(f"voter {node}", f"no hello in {HELLO_TIMEOUT_S:.0f} s")
            except (OSError, UnicodeError) as error:  # TLS, and names that are none, too
                self._log_refusal(f"voter {node}", repr(error))
            finally:
                if connection.node is None:
                    connection.close("")
            if connection.node is not None:
                since = self._loop.time()
                await connection.closed
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
                ssl_handshake_timeout=2 * HELLO_TIMEOUT_S,
            )

    def _log_refusal(self, who: str, why: str) -> None:
        """Log a refused connection, at most once a minute for the same peer and reason."""
        now = self._loop.time()
        last_why, when = self._logged_refusals.get(who, ("", float("-inf")))
        if now - when >= (SAME_REFUSAL_LOGGED_EVERY_S if why == last_why else 1):
            self._logged_refusals[who] = (why, now)  # one entry a voter, one for all strangers
            _log.warning("no connection with=%s reason=%s", who, why)

    # -- called by connections

    def hello(self) -> Message:
        """Return the first message that this voter sends on a connection."""
        return self._authenticator.hello()

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
            node = self._authenticator.accept(
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
        connection.identify_as(node)
        self._logged_refusals.pop(f"voter {node}", None)
        _log.info("voter connected voter=%d", node)
        if self._events is not None:
            self._events.on_connected(node)

    def on_closed(self, connection: PeerConnection, why: str) -> None:
        """Forget a closed connection and report its voter as disconnected."""
        node = connection.node
        if node is None and why:
            who = "a stranger" if connection.dialled is None else f"voter {connection.dialled}"
            self._log_refusal(who, why)
        if node is None or self._live.get(node) is not connection:
            return
        del self._live[node]
        _log.info("voter disconnected voter=%d reason=%s", node, why)
        if self._events is not None:
            self._events.on_disconnected(node)

    def on_drained(self) -> None:
        """Let the owner send messages that waited for the buffer to drain."""
        self._owner.after_event()

    def _check_connections(self) -> None:
        """Check every live connection, twice a second.

        Send keep-alives; close connections whose peer is silent or does not read.
        """
        now = self._loop.time()
        # After a stall of this process the others' messages are still in the sockets (rule M7).
        stalled = now - self._watched_at > 2 * KEEPALIVE_S
        self._watched_at = now
        for connection in list(self._live.values()):
            self.guarded(partial(self._check_connection, connection, now, stalled=stalled))
        self._watch_timer = self._loop.call_later(KEEPALIVE_S, self._check_connections)

    def _check_connection(self, connection: PeerConnection, now: float, *, stalled: bool) -> None:
        why = connection.keep_alive(now, self._silence_s, stalled=stalled)
        if why:
            connection.close(why)
