"""Paths, headers and limits that both ends of the controllers' HTTP plane share.

Commands are ``POST /controller/v1/<name>`` (`command_path`) with a JSON body of
``raft_metadata.records.serde``; the other paths are requests to one controller.
Everything but the pages for people is a POST, since aiohttp's client silently repeats idempotent
methods on a broken kept-alive connection (rule F2).
"""

from __future__ import annotations

from typing import Any

from raft_metadata.records.commands import COMMAND_NAMES, Command

PREFIX = "/controller/v1/"
HEARTBEAT = PREFIX + "heartbeat"
FETCH_METADATA = PREFIX + "fetch-metadata"
SESSION = PREFIX + "session"
STATUS = PREFIX + "status"
STATE = PREFIX + "state"
"""GET, for people and checkers: a `ControllerState` in JSON."""
DESCRIBE_QUORUM = PREFIX + "describe-quorum"
VOTERS = PREFIX + "voters"
"""GET: the directory id of every voter, as this controller knows it (rule Q4)."""
ACCEPT_VOTER = PREFIX + "accept-voter"
"""POST of an operator: a voter lost its disk, ``{"node_id", "directory_id"}`` (rule Q4)."""

CLUSTER_HEADER = "Quorumlog-Cluster-Id"
ADDRESSEE_HEADER = "Quorumlog-Addressee"
"""The controller id that the sender means to dial: a wrong address is noticed at once."""

MAX_COMMAND_BYTES = 4_194_304
"""4 MiB: ten times a registration with as many unclean ranges as may be, 383 KiB."""
MAX_ANSWER_BYTES = 4_194_304
MAX_METADATA_ANSWER_BYTES = 268_435_456
"""256 MiB: a snapshot of 100,000 partitions is about 30 MB."""
MAX_METADATA_WAIT_MS = 60_000
"""Longest wait of a fetch-metadata; one with a longer wait is answered then."""
SESSION_PING_MS = 1_000
"""The controller sends a line this often; after three missed the broker opens a new session."""


def command_path(kind: type[Command[Any]]) -> str:
    """Return the path of a command."""
    return PREFIX + COMMAND_NAMES[kind]
