"""Configuration of one voter of the metadata quorum. Times are milliseconds, sizes are bytes.

The node builds a `QuorumConfig`, which validates itself; the constants are fixed limits of the
quorum, not configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raft_metadata.common.ids import ClusterId, DirectoryId, NodeId
from raft_metadata.common.tls import TlsFiles

MAX_PAYLOAD_BYTES = 512 * 1024
"""Largest metadata batch. Half of an append message: an entry that does not fit in one message
would take pysyncobj's "transmission" path, which this project refuses (`wire.py`)."""
MAX_QUEUED = 20_000
"""Most payloads submitted and not yet appended; about a third of a second of work."""
MAX_UNCOMMITTED = 20_000
"""Most entries appended and not yet committed; bounds memory while a majority is slow."""
STEP_DOWN_MARGIN_MS = 50
"""Subtracted from `leader_fallback_ms`: the library checks it once per tick (heartbeat / 4), so
the earlier limit keeps the configured time."""
MIN_LINK_SILENCE_S = 2.0
"""A connection that received nothing for this long, or for four election timeouts if that is
longer, counts as dead."""
MIN_HEARTBEATS_PER_ELECTION_TIMEOUT = 3
"""Lower bound that pysyncobj asserts; below it one lost heartbeat starts an election."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """Configuration of one voter.

    Identified by node, cluster and directory id, never by an address.

    ``voters`` holds every voter with its advertised ``host:port``, this one included. ``dial`` is
    this node's own address for a target and overrides the advertised one, so that a fault proxy can
    sit on any single link (the voter with the greater id dials the other). ``bind`` is the only
    address listened on. ``voter_directories`` are the directory ids that the cluster was formatted
    with; after formatting, ``raft/meta.json`` is authoritative, because a voter may have rejoined
    (rule Q4).
    """

    node_id: NodeId
    cluster_id: ClusterId
    directory_id: DirectoryId
    raft_dir: Path
    bind: str
    voters: Mapping[NodeId, str]
    dial: Mapping[NodeId, str] = field(default_factory=dict)
    voter_directories: Mapping[NodeId, DirectoryId] = field(default_factory=dict)
    election_timeout_ms: int = 500
    """Minimum election timeout; each voter draws a value between it and twice it. After an append
    of its leader a voter refuses pre-votes for this long."""
    heartbeat_ms: int = 100
    leader_fallback_ms: int = 1000
    """A leader that a majority has not answered for this long steps down."""
    snapshot_min_entries: int = 10_000
    snapshot_max_interval_ms: int = 300_000
    snapshot_max_journal_bytes: int = 32 * 1024 * 1024
    """Journal size that forces a snapshot: the whole journal is kept in memory."""

    tls: TlsFiles | None = None
    """Mutual TLS between voters, with certificates that name their nodes; None for plain
    connections, as on loopback."""

    feature_level_max: int = 1
    """Highest ``metadata.version`` this process can follow; sent to the other voters."""
    reserve_bytes: int = 8 * 1024 * 1024
    """Disk space reserved for the next start: opening rewrites the journal, which a full disk does
    not allow. 0 reserves none."""

    def __post_init__(self) -> None:
        """Refuse impossible values; the error names the field, its value and what was expected."""
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
        """Every voter but this one, in ascending order."""
        return tuple(sorted(node for node in self.voters if node != self.node_id))

    def address_to_dial(self, node: NodeId) -> tuple[str, int]:
        """Return the (host, port) at which this node reaches `node`."""
        return _split(self.dial.get(node, self.voters[node]))

    @property
    def address_to_bind(self) -> tuple[str, int]:
        """The (host, port) at which this node listens."""
        return _split(self.bind)

    @property
    def link_silence_s(self) -> float:
        """Seconds a connection may be silent; at least the longest election timeout."""
        return max(MIN_LINK_SILENCE_S, 4 * self.election_timeout_ms / 1000)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _refuse(name: str, value: object, expected: str) -> None:
    msg = f"quorum config: {name} is {value!r}, expected {expected}"
    raise ValueError(msg)
