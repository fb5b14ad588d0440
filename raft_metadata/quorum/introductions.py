"""Who may take a voter's place (rule Q4): what a connection must prove before it may say anything.

Both ends say who they are and look at what the other says. Pure but for the durable truth in
`DataDir`, which changes when an operator accepts a voter on another disk.
"""

from __future__ import annotations

from raft_metadata.common.ids import NodeId
from raft_metadata.quorum.data_dir import DataDir
from raft_metadata.quorum.wire import MalformedMessageError, Message, checked_hello, hello


class RefusedPeerError(Exception):
    """The reason, for the log: the peer is told nothing."""


def certificate_name(node: NodeId) -> str:
    """The DNS name that a voter's certificate must carry."""
    return f"controller-{node}"


class Introductions:
    """Owned by the loop, for the life of the voter."""

    def __init__(self, home: DataDir) -> None:
        self._home = home

    def hello(self) -> Message:
        """What this voter says first."""
        meta = self._home.meta
        return hello(meta.node_id, meta.cluster_id, meta.directory_id)

    def accept(
        self, said: object, *, dialled: NodeId | None, names: frozenset[str] | None
    ) -> NodeId:
        """Who a peer is; RefusedPeerError unless it proved it.

        `dialled` is whom we dialled, None where the peer dialled us; `names` those of its verified
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
