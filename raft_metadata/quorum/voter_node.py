"""Voters as pysyncobj node objects, and the names under which the library stores them.

`raft_node.py` makes one `VoterNode` for each voter; the vote file and `raft_state` translate
between names and node ids with `voter_address` and `voter_of`.
"""

from __future__ import annotations

from pysyncobj.node import Node
from typing_extensions import override

from raft_metadata.common.ids import NodeId


class VoterNode(Node):  # type: ignore[misc]  # untyped library
    """A voter, identified by its node id, which the library stores in the vote.

    It has no address.
    """

    def __init__(self, node_id: NodeId) -> None:
        super().__init__(voter_address(node_id))
        self.node_id = node_id

    @override
    def __hash__(self) -> int:
        # A string's hash differs in every process. The library iterates over sets of voters, and a
        # simulated history must repeat with its seed.
        return hash(self.node_id)


def voter_address(node_id: NodeId) -> str:
    """Return the library's name of a voter. It is stored in ``vote.json``, so it never changes."""
    return f"voter-{node_id:010d}:0"


def voter_of(address: str | None) -> NodeId | None:
    """Return the voter that `address` names; None for other texts, such as that of a lost vote."""
    number = (address or "").removeprefix("voter-").removesuffix(":0")
    return NodeId(int(number)) if number.isdecimal() else None
