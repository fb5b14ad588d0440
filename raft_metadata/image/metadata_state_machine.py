"""The quorum's state machine: accepts or rejects batches, keeps the image and its history.

Every controller runs it over the same committed entries and reaches the same image: it uses no
clock and no randomness, and iterates over no set. A batch carries the metadata offset and the
controller epoch at which it was decided, so every node rejects a decision that was overtaken.

`HashChain` is what two controllers compare to find that they agree, without sending an image
(invariant R12).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import orjson

from raft_metadata.common.ids import ControllerEpoch, MetadataOffset
from raft_metadata.image.metadata_delta import (
    MetadataDelta,
    MetadataPublisher,
    delta_between,
    publish,
)
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.snapshot import image_from_records, image_records
from raft_metadata.records.commands import MetadataBatch
from raft_metadata.records.quorum_view import StateHash
from raft_metadata.records.records import MetadataRecord
from raft_metadata.records.serde import decode_batch, encode_batch, encode_record

HASH_BYTES = 16
REMEMBERED_BATCHES_MAX = 4_096
"""Accepted batches whose hash is kept: some minutes of a busy cluster, half a megabyte."""

_START = bytes(HASH_BYTES)


class HashChain:
    """The hash chain at the newest batch and at some earlier ones. Owned by its state machine."""

    def __init__(self, *, remembered_max: int = REMEMBERED_BATCHES_MAX) -> None:
        self.value = _START
        self._remembered: deque[tuple[int, MetadataOffset, bytes]] = deque(
            [(0, MetadataOffset(0), _START)], maxlen=remembered_max
        )

    def extend(self, index: int, batch: MetadataBatch, next_offset: MetadataOffset) -> None:
        """Extend the chain by an accepted batch; ``batch.encoded`` is the same on every node."""
        self.value = blake2b(self.value + batch.encoded, digest_size=HASH_BYTES).digest()
        self._remembered.append((index, next_offset, self.value))

    def reset(self, index: int, next_offset: MetadataOffset, value: bytes) -> None:
        """Continue from a snapshot's chain and forget the earlier hashes."""
        self.value = value
        self._remembered.clear()
        self._remembered.append((index, next_offset, value))

    def at(self, index: int) -> StateHash | None:
        """Return the hash after the applied entry ``index``, or None if it is no longer kept."""
        place = bisect_right(self._remembered, index, key=lambda row: row[0])
        if place == 0:
            return None
        _, next_offset, value = self._remembered[place - 1]
        return StateHash(index=index, next_offset=next_offset, value=value.hex())


def image_hash(image: MetadataImage) -> str:
    """Return the hash of the whole content of an image.

    It takes a second for 100,000 partitions, so it must not run on an event loop.
    """
    found = blake2b(b"%d %d" % (image.next_offset, image.epoch), digest_size=HASH_BYTES)
    for record in image_records(image):
        found.update(encode_record(record))
    return found.hexdigest()


HISTORY_BATCHES_MAX = 50_000
"""Accepted batches kept for brokers that lag; a broker farther behind is sent a snapshot."""
HISTORY_BYTES_MAX = 16_777_216
"""JSON bytes of the batches kept; decoded they take about three times as much memory."""
SNAPSHOT_CHUNK_RECORDS = 2_000
"""Records in a snapshot chunk, which is about half a megabyte."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The result for a batch that became records ``base_offset .. next_offset - 1``."""

    base_offset: MetadataOffset
    next_offset: MetadataOffset


@dataclass(frozen=True, slots=True)
class Rejected:
    """The result for a batch that changed nothing and took no offset (rules M1, M2)."""

    reason: str


@dataclass(frozen=True, slots=True)
class CapturedState:
    """A state to write a snapshot of; immutable, so that a thread may read it."""

    image: MetadataImage
    index: int
    term: int
    chain: bytes
    """The value of the `HashChain` at ``index``."""


class MetadataStateMachine:
    """The image at the last applied entry. Owned by the thread that applies; not thread-safe.

    Implements the quorum's ``StateMachine``. ``index`` and ``term`` are Raft's; the metadata offset
    is separate and counts accepted records only (rule M1).
    """

    def __init__(
        self,
        *,
        history_batches_max: int = HISTORY_BATCHES_MAX,
        history_bytes_max: int = HISTORY_BYTES_MAX,
    ) -> None:
        self.image = MetadataImage()
        self.index = 0
        self.term = 0
        self.hashes = HashChain()
        self._history: deque[MetadataBatch] = deque()
        self._history_bytes = 0
        self._history_batches_max = history_batches_max
        self._history_bytes_max = history_bytes_max
        self._publishers: list[MetadataPublisher] = []

    def add_publisher(self, publisher: MetadataPublisher) -> None:
        """Notify a publisher of every change; its first delta starts from the empty image."""
        delta = delta_between(MetadataImage(), self.image)
        publisher.on_metadata_update(delta, self.image)
        self._publishers.append(publisher)

    # ---- StateMachine

    def apply(self, index: int, term: int, payload: bytes) -> Accepted | Rejected:
        """Apply one committed entry, or reject it on every node alike (rules M1, M2).

        Raises only if the payload can't be read or breaks an invariant: then the node must end.
        """
        batch = decode_batch(payload)
        self.index, self.term = index, term
        base, expected = batch.base_offset, self.image.next_offset
        if base != expected:
            return Rejected(f"base offset {base} is not the next offset {expected}")
        if batch.epoch != term:
            return Rejected(f"controller epoch {batch.epoch} is not the entry's term {term}")
        if not batch.records:
            return Accepted(base, base)
        delta = MetadataDelta(self.image)
        next_offset = MetadataOffset(base + delta.replay_all(batch.records, base))
        self._remember(batch)
        self.hashes.extend(index, batch, next_offset)
        self._replace_image(delta, delta.apply(next_offset, ControllerEpoch(term)))
        return Accepted(base, next_offset)

    def capture(self) -> CapturedState:
        """Return the present state, for `chunks`."""
        return CapturedState(self.image, self.index, self.term, self.hashes.value)

    def chunks(self, captured: object) -> Iterator[bytes]:
        """Yield a captured state as pieces of JSON; may be called on any thread."""
        assert isinstance(captured, CapturedState), captured
        image = captured.image
        chain = captured.chain.hex()
        yield orjson.dumps(
            {"next_offset": image.next_offset, "epoch": image.epoch, "state_hash": chain}
        )
        records = image_records(image)
        while chunk := tuple(islice(records, SNAPSHOT_CHUNK_RECORDS)):
            yield encode_batch(image.next_offset, image.epoch, chunk)

    def restore(self, chunks: Sequence[bytes], index: int, term: int) -> None:
        """Replace the state by that of a snapshot.

        Raises if the snapshot can't be read or is older than the state.
        """
        head = orjson.loads(chunks[0])
        records: list[MetadataRecord] = []
        for chunk in chunks[1:]:
            records.extend(decode_batch(chunk).records)
        image = image_from_records(
            records, MetadataOffset(head["next_offset"]), ControllerEpoch(head["epoch"])
        )
        assert image.next_offset >= self.image.next_offset, "a snapshot never goes back"
        self.index, self.term = index, term
        self.hashes.reset(index, image.next_offset, bytes.fromhex(head["state_hash"]))
        # Batches before the snapshot would leave a gap in the history.
        self._history.clear()
        self._history_bytes = 0
        self._replace_image(delta_between(self.image, image), image)

    # ---- history

    def batches_from(
        self, offset: MetadataOffset, bytes_max: int, *, inside: bool = False
    ) -> tuple[MetadataBatch, ...] | None:
        """Return a page of accepted batches from ``offset`` on; at least one batch if there is any.

        Returns None if ``offset`` is too old or is not the start of a batch: then send a snapshot.
        With ``inside`` the batch that holds ``offset`` is the first. ``offset`` must not be beyond
        the image.
        """
        assert offset <= self.image.next_offset, offset
        if offset == self.image.next_offset:
            return ()
        start = bisect_left(self._history, offset, key=lambda batch: batch.base_offset)
        exact = start < len(self._history) and self._history[start].base_offset == offset
        if inside and not exact and start > 0:
            start, offset = start - 1, self._history[start - 1].base_offset
        if start == len(self._history) or self._history[start].base_offset != offset:
            return None
        # Copy from the right: most readers are near the end, and a deque is slow in its middle.
        newest = list(islice(reversed(self._history), len(self._history) - start))
        page: list[MetadataBatch] = []
        size = 0
        for batch in reversed(newest):
            size += len(batch.encoded)
            if page and size > bytes_max:
                break
            page.append(batch)
        return tuple(page)

    def _remember(self, batch: MetadataBatch) -> None:
        """Add a batch to the history and drop the oldest ones beyond its limits."""
        self._history.append(batch)
        self._history_bytes += len(batch.encoded)
        while (
            len(self._history) > self._history_batches_max
            or self._history_bytes > self._history_bytes_max
        ):
            self._history_bytes -= len(self._history.popleft().encoded)

    def _replace_image(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Make this the present image and notify all publishers."""
        self.image = image
        publish(self._publishers, delta, image)
