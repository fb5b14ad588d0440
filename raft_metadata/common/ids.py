"""Identifiers as distinct types, so that the type checker refuses one in place of another.

Also the producer id, epoch and sequence of a write, by which a repeat is recognized (KIP-98).
"""

from __future__ import annotations

import base64
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", int)
"""The id of a broker or controller; unique over both kinds."""
BrokerId = NewType("BrokerId", int)
ClusterId = NewType("ClusterId", str)
"""22 characters, generated once by `up`."""
DirectoryId = NewType("DirectoryId", str)
"""22 characters that identify one data directory; a replaced disk has another id (rule R6)."""
IncarnationId = NewType("IncarnationId", str)
"""22 characters that identify one run of a broker process."""
TopicId = NewType("TopicId", str)
"""22 characters that identify a topic from its creation to its deletion; never reused."""
TopicName = NewType("TopicName", str)
PartitionId = NewType("PartitionId", int)
GroupId = NewType("GroupId", str)
InstanceId = NewType("InstanceId", str)
"""A consumer instance of one group; also its member id in that group."""

MetadataOffset = NewType("MetadataOffset", int)
"""Gapless counter of accepted metadata records; the first record has offset 0 (rule M1)."""
ControllerEpoch = NewType("ControllerEpoch", int)
"""The Raft term of the active controller that wrote a record."""
BrokerEpoch = NewType("BrokerEpoch", int)
"""Metadata offset of the broker's registration record; grows with every registration."""
LeaderEpoch = NewType("LeaderEpoch", int)
PartitionEpoch = NewType("PartitionEpoch", int)

NO_LEADER = BrokerId(-1)
UNKNOWN_BROKER_EPOCH = BrokerEpoch(-1)
RANDOM_ID_BYTES = 16


class TopicPartition(NamedTuple):
    """A partition identified by its topic's name, as in clients' requests."""

    topic: TopicName
    partition: PartitionId


class TopicIdPartition(NamedTuple):
    """A partition identified by its topic's id, as in requests between nodes.

    A topic that was deleted and created again under the same name has another id.
    """

    topic_id: TopicId
    partition: PartitionId


def id_from_bytes(random_bytes: bytes) -> str:
    """Render 16 random bytes as the 22-character URL-safe id used for every generated id.

    A leading "-" becomes "A", so that an id can be an argument of a command line. Raises ValueError
    for any other number of bytes.
    """
    if len(random_bytes) != RANDOM_ID_BYTES:
        msg = f"expected {RANDOM_ID_BYTES} random bytes, got {len(random_bytes)}"
        raise ValueError(msg)
    text = base64.urlsafe_b64encode(random_bytes).rstrip(b"=").decode()
    return "A" + text[1:] if text.startswith("-") else text


BATCHES_REMEMBERED = 5
"""Batches of each producer that a log remembers, so as many requests may be in flight.

Kafka's ``ProducerStateEntry.NUM_BATCHES_TO_RETAIN``."""
SEQUENCES = 1 << 31
"""Number of distinct sequences: they run from 0 to 2^31 - 1, then begin again at 0."""
EPOCH_MAX = (1 << 15) - 1
FIRST_RESERVED_PRODUCER_ID = 1 << 62
"""Producer ids from here on are made by the cluster itself (`broker.record.numbering`); the
controllers allocate smaller ones, and no client may send these."""


class Claim(NamedTuple):
    """Producer id and producer epoch of a produce, and the sequence of its first record."""

    producer_id: int
    epoch: int
    sequence: int


def is_reserved(producer_id: int) -> bool:
    """Return whether a producer id is one of those that no client may send."""
    return producer_id >= FIRST_RESERVED_PRODUCER_ID


def next_sequence(sequence: int, count: int = 1) -> int:
    """Return the sequence that is ``count`` after this one, wrapping to 0 after 2^31 - 1."""
    return (sequence + count) % SEQUENCES
