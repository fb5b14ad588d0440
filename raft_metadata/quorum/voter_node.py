"""A voter under the type by which pysyncobj knows nodes."""

from __future__ import annotations

from pysyncobj.node import Node
from typing_extensions import override

from raft_metadata.common.ids import NodeId


class VoterNode(Node):  # type: ignore[misc]  # untyped library
    """Its identity is its node id; the library stores it in the vote. It knows no address."""

    def __init__(self, node_id: NodeId) -> None:
        super().__init__(voter_address(node_id))
        self.node_id = node_id

    @override
    def __hash__(self) -> int:
        # Not the string's, which differs in every process: the library iterates over sets of
        # voters, and a simulated history must repeat with its seed.
        return hash(self.node_id)


def voter_address(node_id: NodeId) -> str:
    """The library's name of a voter. Stands in ``vote.json``, so it never changes."""
    return f"voter-{node_id:010d}:0"


def voter_of(address: str | None) -> NodeId | None:
    """The inverse; None for any other word, such as that of a vote that was lost."""
    number = (address or "").removeprefix("voter-").removesuffix(":0")
    return NodeId(int(number)) if number.isdecimal() else None
