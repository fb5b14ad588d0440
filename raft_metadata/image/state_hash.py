"""What two controllers compare to know that they agree (invariant R12), without sending a state.

The hash of a state is a chain over the batches that led to it: ``h = blake2b(h + batch)``. Whoever
accepted the same batches in the same order has the same chain, and a snapshot's head carries it to
whoever was sent the snapshot instead. `image_hash` is the other half: over what the image says now,
however it came about.
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
"""Accepted batches whose hash is kept: minutes of a busy cluster, half a megabyte."""

_START = bytes(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class HashAt:
    """The state that entry ``index`` of the Raft log and all before it lead to."""

    index: int
    next_offset: MetadataOffset
    value: str | None
    """Hexadecimal. None: this node came from a snapshot that carried no chain."""


class HashChain:
    """The chain at the newest batch, and at some before. Owned by its state machine.

    A batch that begins with a `FeatureLevelRecord`, as the first one of every log does, starts a
    new chain. So nodes that came from snapshots of a version without chains, and have None, agree
    with the others again once ``metadata.version`` is raised.
    """

    def __init__(self, *, remembered_max: int = REMEMBERED_BATCHES_MAX) -> None:
        self.value: bytes | None = _START
        self._remembered: deque[tuple[int, MetadataOffset, bytes | None]] = deque(
            [(0, MetadataOffset(0), _START)], maxlen=remembered_max
        )

    def accepted(self, index: int, batch: MetadataBatch, next_offset: MetadataOffset) -> None:
        """One more batch with records, ``batch.encoded`` as every node has it."""
        before = _START if isinstance(batch.records[0], FeatureLevelRecord) else self.value
        if before is not None:
            self.value = blake2b(before + batch.encoded, digest_size=HASH_BYTES).digest()
        self._remembered.append((index, next_offset, self.value))

    def replaced(self, index: int, next_offset: MetadataOffset, value: bytes | None) -> None:
        """The state is a snapshot's now; what was before it is forgotten."""
        self.value = value
        self._remembered.clear()
        self._remembered.append((index, next_offset, value))

    def at(self, index: int) -> HashAt | None:
        """The hash after entry ``index``, which must have been applied; None: too long ago."""
        place = bisect_right(self._remembered, index, key=lambda row: row[0])
        if place == 0:
            return None
        _, next_offset, value = self._remembered[place - 1]
        return HashAt(index, next_offset, None if value is None else value.hex())


def image_hash(image: MetadataImage) -> str:
    """Over all that the image says; a second for 100,000 partitions, so not on a loop."""
    found = blake2b(b"%d %d" % (image.next_offset, image.epoch), digest_size=HASH_BYTES)
    for record in image_records(image):
        found.update(encode_record(record))
    return found.hexdigest()
