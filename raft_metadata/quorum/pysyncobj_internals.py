"""Everything of pysyncobj 0.3.17 that is not its public interface, each piece with its reason.

The only module that names a private of the library. Importing it changes the library's modules
for the whole process (section "replacements"); nothing else in this project uses them. Because
private names give no promise, the exact files are checked before the first use.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import struct
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pysyncobj
import pysyncobj.journal
import pysyncobj.poller
import pysyncobj.serializer
import pysyncobj.syncobj
import pysyncobj.tcp_connection
import pysyncobj.tcp_server
import pysyncobj.transport
from pysyncobj.monotonic import monotonic as library_now
from pysyncobj.node import Node, TCPNode
from pysyncobj.poller import POLL_EVENT_TYPE
from pysyncobj.version import VERSION
from typing_extensions import override

from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.wire import MAX_HELLO_BYTES, Codec

PINNED_VERSION = "0.3.17"
PINNED_SHA256 = {
    "__init__.py": "4966a9dd893542b1b0e0fcef3d2ea44f2f40919d66b684992e5511be7503c036",
    "config.py": "fbbc7ff9f18e4d15a7fd563376e42f5bd192956879d4b810b056d5248b955698",
    "dns_resolver.py": "4b88da2b45e20fbb299fb7a21f2595369b6314700b687fb8858891999bce14e0",
    "encryptor.py": "db20725465efdfc6d7a3b5b2112f53bc5426d36c56312ebdf5fbcf05423a7c19",
    "fast_queue.py": "8477fe5fdf36d9766df933310d3d66ee953d1afc195b1e6482b3a1498fc517bd",
    "journal.py": "9cf1eaf6acc704581a4cf7d3de330a404403913107adc91c929778b7e3f35edf",
    "monotonic.py": "d116df70e1f81bcab1fb89191fe2fe18486bc25187401d73fd6101cfe686e0a3",
    "node.py": "e4a3f027cd8291f558334bb9c977e952f6b6989e7e1fa1588d3005ef0b990e2c",
    "pickle.py": "e9327780738065cec5d600484b936c91e7c13875206cb584d5ff7f5d0dc9c474",
    "pipe_notifier.py": "587d964bfa5d62320f3541cbb283ff3e282cb2db95e1b8cfd888dc3d53af82aa",
    "poller.py": "f69ac749fb410670282fd9520c5805ffc684c8a5f762a927127753d9be8551e6",
    "serializer.py": "4d39fde2f15000ad8f507ec229ebd4f6a86371b6f84d4dc1439a9cccd52857ee",
    "syncobj.py": "e8bdf06797085d734df86e24ab4802fe87893dff77268565ec036f7ad4a1cfe4",
    "tcp_connection.py": "7784ed8da031369fe36f805cb186a2e94a3bd6f10fed2dd59c8cc3713fd6331c",
    "tcp_server.py": "bde2f216c1a585029188d0438b44762e2e797dfc53bbce387839daaa46b9a60d",
    "transport.py": "0c9d89f9c4781ec9772df8011d7975a1a4a1a5f541357e12eae85a813e92b50b",
    "version.py": "0b8426a8b52ecf874193897d26c4214acbd85335145ea9ff17e27a22b1132943",
}

REGULAR = 0
NO_OP = 1
"""First byte of a command (``_COMMAND_TYPE``). The other two change membership and code version:
nobody can submit them here."""
LEADER = 2
ROLES = ("follower", "candidate", "leader")
"""``_RAFT_STATE`` in order."""
NOT_SERIALIZING, SERIALIZING, SERIALIZED, SERIALIZE_FAILED = 0, 1, 2, 3
"""``SERIALIZER_STATE``."""

__all__ = [
    "LEADER",
    "NO_OP",
    "REGULAR",
    "CappedConnection",
    "LoopPoller",
    "PinnedSyncObj",
    "PinnedTransport",
    "UnsupportedLibraryError",
    "VoterNode",
    "library_now",
    "verify_library",
    "voter_address",
]

_log = logging.getLogger("raft_metadata.quorum")


class UnsupportedLibraryError(RuntimeError):
    """The installed pysyncobj is not the one whose private parts were read."""


def verify_library(folder: Path | None = None) -> None:
    """Refuse any other version, and any changed file, of pysyncobj."""
    if VERSION != PINNED_VERSION:
        msg = f"pysyncobj {VERSION} is installed, exactly {PINNED_VERSION} is supported"
        raise UnsupportedLibraryError(msg)
    root = folder or Path(pysyncobj.__file__).parent
    for name, expected in PINNED_SHA256.items():
        found = hashlib.sha256((root / name).read_bytes()).hexdigest()
        if found != expected:
            msg = (
                f"{root / name} was changed: sha256 {found}, expected {expected}; "
                f"reinstall pysyncobj=={PINNED_VERSION}"
            )
            raise UnsupportedLibraryError(msg)


# -- the event loop


class LoopPoller(pysyncobj.poller.Poller):  # type: ignore[misc]  # untyped library
    """pysyncobj's poller on an asyncio (or uvloop) loop: no thread, no polling.

    Every event is followed by `on_event`, which asks for a tick. Owned by the loop's thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_event: Callable[[], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._loop = loop
        self._on_event = on_event
        self._on_error = on_error
        self._watched: dict[int, _Watch] = {}

    def subscribe(self, descr: int, callback: Callable[[int, int], None], mask: int) -> None:
        """See the library's `Poller`; ERROR needs no watching, it comes as READ and WRITE."""
        watch = self._watched.setdefault(descr, _Watch())
        watch.callback = callback
        wanted = mask & (POLL_EVENT_TYPE.READ | POLL_EVENT_TYPE.WRITE)
        added, removed = wanted & ~watch.mask, watch.mask & ~wanted
        watch.mask = wanted
        if added & POLL_EVENT_TYPE.READ:
            self._loop.add_reader(descr, self._fire, descr, watch, POLL_EVENT_TYPE.READ)
        if added & POLL_EVENT_TYPE.WRITE:
            self._loop.add_writer(descr, self._fire, descr, watch, POLL_EVENT_TYPE.WRITE)
        self._remove(descr, removed)

    def _fire(self, descr: int, watch: _Watch, event: int) -> None:
        # The descriptor may have been closed, and used again, earlier in this loop iteration.
        if self._watched.get(descr) is not watch or watch.callback is None:
            return
        try:
            watch.callback(descr, event)
        except Exception as error:  # noqa: BLE001 asyncio would only log it
            self._on_error(error)
        self._on_event()

    def _remove(self, descr: int, mask: int) -> None:
        for bit, remove in (
            (POLL_EVENT_TYPE.READ, self._loop.remove_reader),
            (POLL_EVENT_TYPE.WRITE, self._loop.remove_writer),
        ):
            if mask & bit:
                try:
                    remove(descr)
                except OSError:
                    # pysyncobj closes a socket before it unsubscribes.
                    _log.debug("descriptor was closed already fd=%d", descr)

    def unsubscribe(self, descr: int) -> None:
        """See the library's `Poller`."""
        watch = self._watched.pop(descr, None)
        if watch is not None:
            self._remove(descr, watch.mask)

    def poll(self, timeout: float) -> None:
        """Nothing to do: the loop calls."""


class _Watch:
    __slots__ = ("callback", "mask")

    def __init__(self) -> None:
        self.callback: Callable[[int, int], None] | None = None
        self.mask = 0


# -- one connection


class CappedConnection(pysyncobj.tcp_connection.TcpConnection):  # type: ignore[misc]  # untyped
    """A connection that reads no more than it was asked for.

    Stock trusts a signed 32-bit length before anybody has said who they are, inflates what it
    gets without limit, and unpickles it. Here a frame is ``length u32 | MessagePack``.
    """

    _TcpConnection__readBuffer: bytes
    max_frame_bytes = MAX_HELLO_BYTES
    """Raised by the transport once the peer is a known voter."""

    def send(self, message: object) -> None:
        """Encode and queue; what the socket did not take is sent as soon as it can be.

        Stock waits for the next heartbeat, because it never asks for writability again.
        """
        data = Codec.dumps(message)
        self._TcpConnection__writeBuffer += struct.pack("<I", len(data)) + data
        self._TcpConnection__trySendBuffer()
        self.watch_leftovers()

    def watch_leftovers(self) -> None:
        """Ask for writability while something waits."""
        if self.getSendBufferSize() and self.fileno() is not None:
            self._TcpConnection__poller.subscribe(
                self.fileno(),
                self._TcpConnection__processConnection,
                POLL_EVENT_TYPE.READ | POLL_EVENT_TYPE.WRITE | POLL_EVENT_TYPE.ERROR,
            )

    def _TcpConnection__processRead(self) -> bool:  # noqa: N802 the library's name
        if len(self._TcpConnection__readBuffer) > self.max_frame_bytes:
            return False  # parse first; the kernel keeps the rest
        return bool(super()._TcpConnection__processRead())

    def _TcpConnection__processParseMessage(self) -> object:  # noqa: N802 the library's name
        buffer = self._TcpConnection__readBuffer
        if len(buffer) < 4:
            return None
        (length,) = struct.unpack_from("<I", buffer)
        if length > self.max_frame_bytes:
            _log.warning("refused a frame bytes=%d limit=%d", length, self.max_frame_bytes)
            self.disconnect()
            return None
        if len(buffer) - 4 < length:
            return None
        self._TcpConnection__readBuffer = buffer[4 + length :]
        try:
            message = Codec.loads(buffer[4 : 4 + length])
        except Exception as error:  # noqa: BLE001 a peer's bytes must not reach further
            _log.warning("refused a frame bytes=%d error=%s", length, error)
            self.disconnect()
            return None
        # None means "no whole message yet" to the caller.
        return {} if message is None else message


class LastingServer(pysyncobj.tcp_server.TcpServer):  # type: ignore[misc]  # untyped library
    """A listener that comes back. Stock closes it for good when one accept() fails (EMFILE)."""

    lost = False
    _closed = False

    def unbind(self) -> None:
        """Called by the library after a failed accept; `close` is for good."""
        if self._closed:
            return
        _log.warning("listener lost")
        super().unbind()
        self.lost = True

    def close(self) -> None:
        """Stop listening."""
        super().unbind()
        self._closed = True

    def bind(self) -> None:
        """Listen, again if need be."""
        super().bind()
        self.lost = self._closed = False


# -- a voter's address


class VoterNode(TCPNode):  # type: ignore[misc]  # untyped library
    """A voter. Its identity is made of its node id; only the socket address is looked up.

    The library compares `address` strings to decide who dials (the greater one) and stores the
    id in the vote, so both are the node id, padded to order as a number does.
    """

    def __init__(self, node_id: NodeId, dialled: tuple[str, int] | None) -> None:
        Node.__init__(self, voter_address(node_id))
        self.node_id = node_id
        self._dialled = dialled

    @override
    def __hash__(self) -> int:
        # Not the string's, which differs in every process: the library iterates over sets of
        # voters, and a simulated history must repeat with its seed.
        return hash(self.node_id)

    @property
    def address(self) -> str:
        """The identity again, under the name the transport uses."""
        return str(self.id)

    @property
    def ip(self) -> str | None:
        """Where to dial; a name is resolved (and cached) by the library."""
        if self._dialled is None:
            return None
        resolved = pysyncobj.node.globalDnsResolver().resolve(self._dialled[0])
        return None if resolved is None else str(resolved)

    @property
    def port(self) -> int:
        """Where to dial."""
        return 0 if self._dialled is None else self._dialled[1]


def voter_address(node_id: NodeId) -> str:
    """The library's name of a voter; "host:port" in form only."""
    return f"voter-{node_id:010d}:0"


# -- the transport


class PinnedTransport(pysyncobj.transport.TCPTransport):  # type: ignore[misc]  # untyped library
    """TCPTransport with its protected parts under names of ours."""

    _ready: bool

    def _maybeBind(self) -> None:  # noqa: N802 the library's name
        # Stock swallows the error and tries again in a busy loop, for ever; the caller of start()
        # must hear at once that its port is taken.
        if self._ready and not self._server.lost:
            return
        try:
            self._server.bind()
        except OSError as error:
            self._server.close()
            if not self._ready:
                raise
            _log.warning("listener not back yet error=%r", error)
            return
        self._ready = True
        self._bindOverEvent.set()

    def _createServer(self) -> None:  # noqa: N802 the library's name
        try:
            super()._createServer()
        except Exception as error:
            msg = f"no such address to bind: {self._syncObj.conf.bindAddress}"
            raise OSError(msg) from error

    def destroy(self) -> None:
        """Stop listening, let go of every connection."""
        self._server.close()
        super().destroy()

    def connection_of(self, node: VoterNode) -> CappedConnection | None:
        """The present connection to a voter."""
        connection = self._connections.get(node)
        return connection if isinstance(connection, CappedConnection) else None

    def backlog_bytes(self, node: VoterNode) -> int:
        """What waits to be sent to a voter."""
        connection = self.connection_of(node)
        return 0 if connection is None else int(connection.getSendBufferSize())

    def voter(self, address: str) -> VoterNode | None:
        """The other voter of that name."""
        node = self._nodeAddrToNode.get(address)
        return node if isinstance(node, VoterNode) else None

    def deliver(self, node: VoterNode, message: dict[str, Any]) -> None:
        """Hand a message to the library's Raft core."""
        if self._onMessageReceivedCallback is not None:
            self._onMessageReceivedCallback(node, message)

    @property
    def unknown_connections(self) -> set[CappedConnection]:
        """Those that have not said who they are."""
        connections: set[CappedConnection] = self._unknownConnections
        return connections


# -- the Raft core


class PinnedSyncObj(pysyncobj.SyncObj):  # type: ignore[misc]  # untyped library
    """SyncObj with the private parts we read, write or replace under names of ours."""

    # Pre-vote and the fence decide when the library's own election may run.
    @property
    def election_deadline(self) -> float:
        """When the library stands for election, in its monotonic seconds."""
        return float(self._SyncObj__raftElectionDeadline)

    @election_deadline.setter
    def election_deadline(self, when: float) -> None:
        self._SyncObj__raftElectionDeadline = when

    @property
    def transfer_in_progress(self) -> bool:
        """The leader asked us to take over: no pre-vote then."""
        return bool(self._SyncObj__transferInProgress)

    @property
    def connected_to_anyone(self) -> bool:
        """Also true where there is nobody else."""
        return bool(self._SyncObj__connectedToAnyone())

    @property
    def role(self) -> str:
        """One of `ROLES`."""
        return ROLES[self._SyncObj__raftState]

    @property
    def transport(self) -> Any:
        """The transport it made."""
        return self._SyncObj__transport

    def adopt_term(self, term: int, voted_for: str) -> None:
        """A rejoining voter: durable, and in this term its vote counts as given."""
        self._SyncObj__setCurrentTerm(term, voted_for)

    # A follower whose disk was replaced has acknowledged nothing.
    def forget_match(self, node: VoterNode) -> None:
        """Take back what this follower acknowledged."""
        self._SyncObj__raftMatchIndex[node] = 0

    def match_index(self, node: VoterNode) -> int:
        """What this follower acknowledged, as a leader knows it."""
        return int(self._SyncObj__raftMatchIndex.get(node, 0))

    def last_answer(self, node: VoterNode) -> float | None:
        """When this follower last answered us as leader."""
        when = self._SyncObj__lastResponseTime.get(node)
        return None if when is None else float(when)

    # Stock sends empty messages to a follower that waits for a snapshot for a whole heartbeat
    # period (15,086 measured). One that is paused counts as disconnected until the call ends.
    def pause(self, node: VoterNode) -> None:
        """Send nothing more to this follower in this turn."""
        connected = self._SyncObj__connectedNodes
        if node in connected:
            connected.discard(node)
            self._paused.add(node)

    _paused: set[VoterNode]

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802 the library's name
        super()._SyncObj__sendAppendEntries()
        self._SyncObj__connectedNodes |= self._paused
        self._paused.clear()

    def send_append_entries(self) -> None:
        """Once per drained queue, instead of once per heartbeat or once per command."""
        self._SyncObj__sendAppendEntries()

    # Stock applies again what raised, and again for ever; it knows no index and no term.
    @abstractmethod
    def apply_committed(self) -> None:
        """Apply what is committed and not applied; sets `applied_index`."""

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802 the library's name
        self.apply_committed()
        return False

    @property
    def applied_index(self) -> int:
        """Index of the last applied entry."""
        return int(self._SyncObj__raftLastApplied)

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    # Stock leaves the commit index behind after it installed a snapshot.
    def raise_commit_index(self, index: int) -> None:
        """What a snapshot holds is committed."""
        self._SyncObj__raftCommitIndex = max(self.raftCommitIndex, index)

    # Stock loads the snapshot at the first tick and swallows every error, which leaves an empty
    # state machine. The file was verified before; here only the journal's head is compared.
    def load_snapshot(self, *, present: bool) -> None:
        """Before the first tick."""
        self._SyncObj__needLoadDumpFile = False
        if present:
            self._SyncObj__loadDumpFile(clearJournal=False)

    # The queue is ours: leader only, bounded, no forwarding.
    @abstractmethod
    def append_queued(self) -> None:
        """Append what waits, if leading; then sync."""

    def _checkCommandsToApply(self) -> None:  # noqa: N802 the library's name
        self.append_queued()


# -- replacements of names inside the library's modules

pysyncobj.tcp_connection.pickle = Codec
pysyncobj.syncobj.pickle = Codec
# A journal, a snapshot store and a poller come in as objects through fields of SyncObjConf.
pysyncobj.syncobj.createJournal = lambda journal: journal
pysyncobj.syncobj.Serializer = lambda _path, _bytes, _fork, store, _load, _check: store
pysyncobj.syncobj.createPoller = lambda poller: poller
# Both ends of a connection.
pysyncobj.transport.TcpConnection = CappedConnection
pysyncobj.tcp_server.TcpConnection = CappedConnection
pysyncobj.transport.TcpServer = LastingServer
