"""Doors into `raft_metadata.quorum`: voters without a loop, their connections, the controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sized

    from raft_metadata.controller.controller import Records
    from raft_metadata.quorum.active_controller import ActiveController
    from raft_metadata.quorum.elections import PreVote
    from raft_metadata.quorum.journal import ThreadFlusher
    from raft_metadata.quorum.metadata_quorum import MetadataQuorum
    from raft_metadata.quorum.peer_links import PeerConnection, PeerLinks
    from raft_metadata.quorum.raft_node import RaftNode
    from raft_metadata.quorum.speculation import Speculation
    from raft_metadata.records.commands import Command


# ---------------------------------------------------------------- voters


def raft_node_of(quorum: MetadataQuorum) -> RaftNode:
    """Return the node of a running voter, to break one of its callbacks."""
    assert quorum._node is not None
    return quorum._node


def install_voter(
    quorum: MetadataQuorum, raft: Any, disk: Any, loop: asyncio.AbstractEventLoop
) -> None:
    """Give a voter its node, disk and loop as `start` does, which would open files and sockets."""
    quorum._node, quorum._files, quorum._loop = raft, disk, loop


def pre_vote_of(raft: RaftNode) -> PreVote:
    """Return a node's pre-votes: a test grants them to have a candidate at once."""
    return raft._pre_vote


def join_thread(flusher: ThreadFlusher, timeout_s: float) -> None:
    """Wait for the end of a flusher's thread."""
    assert flusher._thread is not None
    flusher._thread.join(timeout_s)


# ---------------------------------------------------------------- connections


def connections_of(links: PeerLinks) -> Iterable[PeerConnection]:
    """Return the open connections to voters: the options of their sockets matter."""
    return links._live.values()


def transport_of(connection: PeerConnection) -> asyncio.Transport:
    """Return the transport of an open connection."""
    assert connection._transport is not None
    return connection._transport


def strangers_of(links: PeerLinks) -> Sized:
    """Return the connections that have not said who they are: their number is bounded."""
    return links._strangers


def set_silence_max(links: PeerLinks, seconds: float) -> None:
    """Shorten the time after which a silent connection is dropped: the least by config is long."""
    links._silence_s = seconds


def bytes_received(connection: PeerConnection) -> int:
    """Return the bytes of a frame that is not whole yet."""
    return connection._received.filled


def buffer_size(connection: PeerConnection) -> int:
    """Return the size of a connection's buffer: a stranger gets a small one."""
    return connection._received.size


# ---------------------------------------------------------------- the active controller


def take_wake(controller: ActiveController) -> bool:
    """Return whether a controller wants its next turn now, once: a world has no task for it."""
    if not controller._wake.is_set():
        return False
    controller._wake.clear()
    return True


def fetches_waiting(controller: ActiveController) -> int:
    """Return the number of fetches of metadata that wait for a newer image."""
    return controller._feed.waiting


def records_decided(
    controller: ActiveController, speculation: Speculation, command: Command[Any]
) -> Records:
    """Return the records of a command that is not followed by its consequences."""
    records, _ = controller._core.decide(speculation.image, command, {})
    return records
