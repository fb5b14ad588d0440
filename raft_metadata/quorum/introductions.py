"""Acceptance of peers: what a connection must prove before it acts as a voter (rule Q4).

`PeerLinks` sends this voter's hello and passes the peer's to `Introductions.accept`. Pure except
for the durable voter list in `DataDir`, which changes when an operator accepts a voter on another
disk.
"""

from __future__ import annotations

from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.data_dir import DataDir
from raft_metadata.quorum.wire import MalformedMessageError, Message, checked_hello, hello


class RefusedPeerError(Exception):
    """Reason for refusing a peer. It is logged here and never sent to the peer."""


def certificate_name(node: NodeId) -> str:
    """Return the DNS name that a voter's certificate must carry."""
    return f"controller-{node}"


class Introductions:
    """The hello of this voter and the check of its peers' hellos. Owned by the loop."""

    def __init__(self, home: DataDir) -> None:
        self._home = home

    def hello(self) -> Message:
        """Return the first message that this voter sends on a connection."""
        meta = self._home.meta
        return hello(meta.node_id, meta.cluster_id, meta.directory_id)

    def accept(
        self, said: object, *, dialled: NodeId | None, names: frozenset[str] | None
    ) -> NodeId:
        """Return the node id that a peer has proved to own; raise RefusedPeerError otherwise.

        `said` is the decoded first message of the peer. `dialled` is the voter that this side
        dialled, None on an accepted connection. `names` are the DNS names of the peer's verified
        certificate, None on a plain connection.
        """
        try:
            number, cluster_id, directory_id = checked_hello(said)
        except MalformedMessageError as error:
            raise RefusedPeerError(str(error)) from error
        node = NodeId(number)
        if not self._home.knows(node, cluster_id, directory_id):
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
