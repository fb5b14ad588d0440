"""What a voter of the metadata quorum has to be told. Times are milliseconds, sizes are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raft_metadata.common.ids import ClusterId, DirectoryId, NodeId
from raft_metadata.common.tls import TlsFiles

MAX_PAYLOAD_BYTES = 512 * 1024
"""One metadata batch. Half of an append message: an entry that does not fit in one message would
take pysyncobj's "transmission" path, which is refused here (`wire.py`)."""
MAX_QUEUED = 20_000
"""Payloads submitted and not yet appended; about a third of a second of work."""
MAX_UNCOMMITTED = 20_000
"""Entries appended and not yet committed: bounds memory while a majority is slow."""
STEP_DOWN_MARGIN_MS = 50
"""The fall-back is looked at once per tick (heartbeat / 4); this much earlier makes the promised
time hold."""
MIN_LINK_SILENCE_S = 2.0
"""A connection on which nothing came for so long is dead, or four election time-outs if longer."""
MIN_HEARTBEATS_PER_ELECTION_TIMEOUT = 3
"""pysyncobj asserts it; below that one lost heartbeat starts an election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """One voter. Identity is the node id (with cluster and directory id), never an address.

    ``voters`` holds every voter with its advertised ``host:port``, this one too; ``dial`` is this
    node's own way to a target and overrides the advertised address, so that a fault proxy can
    stand on any single link (the voter with the greater id dials the other). ``bind`` is the
    only address listened on. ``voter_directories`` is what the cluster was formatted with; once
    formatted, ``raft/meta.json`` is the truth, because a voter may have rejoined since (rule Q4).
    """

    node_id: NodeId
    cluster_id: ClusterId
    directory_id: DirectoryId
    raft_dir: Path
    bind: str
    voters: Mapping[NodeId, str]
    dial: Mapping[NodeId, str] = field(default_factory=dict)
    voter_directories: Mapping[NodeId, DirectoryId] = field(default_factory=dict)
    fsync: bool = True
    """Only tests switch it off: acknowledged entries are then lost with the power."""
    election_timeout_ms: int = 500
    """The least one; each voter draws from it to twice it. Also how long a voter that heard its
    leader refuses to help depose it."""
    heartbeat_ms: int = 100
    leader_fallback_ms: int = 1000
    """A leader without a majority's answers for this long stops calling itself leader."""
    snapshot_min_entries: int = 10_000
    snapshot_max_interval_ms: int = 300_000
    snapshot_max_journal_bytes: int = 32 * 1024 * 1024
    """A snapshot is also taken when the journal outgrows this: all of it is kept in memory."""

    tls: TlsFiles | None = None
    """Mutual TLS between voters; a certificate names its node. None: plain, for loopback."""

    feature_level_max: int = 1
    """The highest ``metadata.version`` this process can follow; the others are told."""
    reserve_bytes: int = 8 * 1024 * 1024
    """Kept free for the next start: opening writes the journal anew, which a full disk would not
    allow. 0 keeps none."""

    def __post_init__(self) -> None:
        """Refuse what could not work, naming the field, its value and what was expected."""
        if self.node_id not in self.voters:
            _refuse("voters", sorted(self.voters), f"to hold this node's id {self.node_id}")
        if self.heartbeat_ms <= 0:
            _refuse("heartbeat_ms", self.heartbeat_ms, "above 0")
        if self.election_timeout_ms <= MIN_HEARTBEATS_PER_ELECTION_TIMEOUT * self.heartbeat_ms:
            _refuse("election_timeout_ms", self.election_timeout_ms, "above 3 x heartbeat_ms")
        if self.leader_fallback_ms <= 2 * self.heartbeat_ms + STEP_DOWN_MARGIN_MS:
            _refuse("leader_fallback_ms", self.leader_fallback_ms, "above 2 x heartbeat_ms + 50")
        if self.snapshot_min_entries <= 1:
            _refuse("snapshot_min_entries", self.snapshot_min_entries, "at least 2")
        for name, address in (("bind", self.bind), *self._addresses()):
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit():
                _refuse(name, address, "host:port")

    def _addresses(self) -> list[tuple[str, str]]:
        advertised = [(f"voters[{node}]", address) for node, address in self.voters.items()]
        return advertised + [(f"dial[{node}]", address) for node, address in self.dial.items()]

    @property
    def others(self) -> tuple[NodeId, ...]:
        """Every voter but this one, in order."""
        return tuple(sorted(node for node in self.voters if node != self.node_id))

    def address_to_dial(self, node: NodeId) -> tuple[str, int]:
        """Where this node reaches `node`: (host, port)."""
        return _split(self.dial.get(node, self.voters[node]))

    @property
    def address_to_bind(self) -> tuple[str, int]:
        """Where this node listens: (host, port)."""
        return _split(self.bind)

    @property
    def link_silence_s(self) -> float:
        """How long a connection may be silent; at least the longest election time-out."""
        return max(MIN_LINK_SILENCE_S, 4 * self.election_timeout_ms / 1000)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _refuse(name: str, value: object, expected: str) -> None:
    msg = f"quorum config: {name} is {value!r}, expected {expected}"
    raise ValueError(msg)
