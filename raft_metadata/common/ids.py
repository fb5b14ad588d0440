"""Identifiers as distinct types, so that one is never passed for another."""

from __future__ import annotations

import base64
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)
"""A broker or controller; unique over both kinds."""
BrokerId = NewType("BrokerId", int)
ClusterId = NewType("ClusterId", str)
"""22 characters, made once by `up`."""
DirectoryId = NewType("DirectoryId", str)
"""22 characters: one data directory. A disk that was replaced has another one (rule R6)."""
IncarnationId = NewType("IncarnationId", str)
"""22 characters: one life of a broker process."""
TopicId = NewType("TopicId", str)
"""22 characters: one life of a topic name."""
TopicName = NewType("TopicName", str)
PartitionId = NewType("PartitionId", int)
GroupId = NewType("GroupId", str)
InstanceId = NewType("InstanceId", str)
"""A consumer instance of one group; also its member id there."""

MetadataOffset = NewType("MetadataOffset", int)
"""Dense counter of accepted metadata records (rule M1); the first record has offset 0."""
ControllerEpoch = NewType("ControllerEpoch", int)
"""The Raft term of the active controller that decided something."""
BrokerEpoch = NewType("BrokerEpoch", int)
"""Metadata offset of the broker's registration record: grows with every registration."""
LeaderEpoch = NewType("LeaderEpoch", int)
PartitionEpoch = NewType("PartitionEpoch", int)

NO_LEADER = BrokerId(-1)
UNKNOWN_BROKER_EPOCH = BrokerEpoch(-1)
RANDOM_ID_BYTES = 16


class TopicPartition(NamedTuple):
    """A partition by its topic's name, as clients say it."""

    topic: TopicName
    partition: PartitionId


class TopicIdPartition(NamedTuple):
    """A partition by its topic's id, as nodes say it: never confuses two lives of a name."""

    topic_id: TopicId
    partition: PartitionId


def id_from_bytes(random_bytes: bytes) -> str:
    """Render 16 random bytes as the 22-character URL-safe id used for every generated id.

    A leading "-" is avoided, so that an id can be an argument of a command line.
    """
    if len(random_bytes) != RANDOM_ID_BYTES:
        msg = f"expected {RANDOM_ID_BYTES} random bytes, got {len(random_bytes)}"
        raise ValueError(msg)
    text = base64.urlsafe_b64encode(random_bytes).rstrip(b"=").decode()
    return "A" + text[1:] if text.startswith("-") else text
