"""Hashes by which controllers check that they agree, without sending their state (invariant R12).

The hash of a state is a chain over the batches that led to it: ``h = blake2b(h + batch)``. Nodes
that accepted the same batches in the same order have the same chain; the head of a snapshot carries
the chain to a node that receives the snapshot instead of the batches. `image_hash` covers the
content of the image itself, however it was reached.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from hashlib import blake2b

from raft_metadata.common.ids import MetadataOffset
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.snapshot import image_records
from raft_metadata.records.commands import MetadataBatch
from raft_metadata.records.records import FeatureLevelRecord
from raft_metadata.records.serde import encode_record

HASH_BYTES = 16
REMEMBERED_BATCHES_MAX = 4_096
"""Accepted batches whose hash is kept: some minutes of a busy cluster, half a megabyte."""

_START = bytes(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class HashAt:
    """The hash of the state after entry ``index`` of the Raft log."""

    index: int
    next_offset: MetadataOffset
    value: str | None
    """Hexadecimal; None: this node started from a snapshot that carried no chain."""


class HashChain:
    """The hash chain at the newest batch and at some earlier ones. Owned by its state machine.

    A batch that begins with a `FeatureLevelRecord`, as the first one of every log does, starts a
    new chain. So nodes that started from snapshots of a version without chains, and have None,
    agree with the others again once ``metadata.version`` is raised.
    """

    def __init__(self, *, remembered_max: int = REMEMBERED_BATCHES_MAX) -> None:
        self.value: bytes | None = _START
        self._remembered: deque[tuple[int, MetadataOffset, bytes | None]] = deque(
            [(0, MetadataOffset(0), _START)], maxlen=remembered_max
        )

    def accepted(self, index: int, batch: MetadataBatch, next_offset: MetadataOffset) -> None:
        """Extend the chain by an accepted batch; ``batch.encoded`` is the same on every node."""
        before = _START if isinstance(batch.records[0], FeatureLevelRecord) else self.value
        if before is not None:
            self.value = blake2b(before + batch.encoded, digest_size=HASH_BYTES).digest()
        self._remembered.append((index, next_offset, self.value))

    def replaced(self, index: int, next_offset: MetadataOffset, value: bytes | None) -> None:
        """Continue from a snapshot's chain and forget the earlier hashes."""
        self.value = value
        self._remembered.clear()
        self._remembered.append((index, next_offset, value))

    def at(self, index: int) -> HashAt | None:
        """Return the hash after the applied entry ``index``, or None if it is no longer kept."""
        place = bisect_right(self._remembered, index, key=lambda row: row[0])
        if place == 0:
            return None
        _, next_offset, value = self._remembered[place - 1]
        return HashAt(index, next_offset, None if value is None else value.hex())


def image_hash(image: MetadataImage) -> str:
    """Return the hash of the whole content of an image.

    It takes a second for 100,000 partitions, so it must not run on an event loop.
    """
    found = blake2b(b"%d %d" % (image.next_offset, image.epoch), digest_size=HASH_BYTES)
    for record in image_records(image):
        found.update(encode_record(record))
    return found.hexdigest()
