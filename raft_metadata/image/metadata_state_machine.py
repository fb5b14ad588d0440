"""What the quorum applies to: accepts or rejects a batch, keeps the image and its recent history.

Every controller runs it over the same committed entries and reaches the same image: no clock, no
chance, no set is iterated. A batch carries the metadata offset and the controller epoch it was
decided at, so that a decision that was overtaken changes nothing, on any node alike.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import orjson

from raft_metadata.common.ids import ControllerEpoch, MetadataOffset
from raft_metadata.image.metadata_delta import MetadataDelta, delta_between
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.publisher import MetadataPublisher, publish
from raft_metadata.image.snapshot import image_from_records, image_records
from raft_metadata.image.state_hash import HashChain
from raft_metadata.records.commands import MetadataBatch
from raft_metadata.records.records import MetadataRecord
from raft_metadata.records.serde import decode_batch, encode_batch

HISTORY_BATCHES_MAX = 50_000
"""Accepted batches kept for brokers that lag; an older one is sent a snapshot."""
HISTORY_BYTES_MAX = 16_777_216
"""And at most this many bytes of them as JSON; parsed they take about three times as much."""
SNAPSHOT_CHUNK_RECORDS = 2_000
"""Records per snapshot chunk: about half a megabyte."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The batch is now records ``base_offset .. next_offset - 1``."""

    base_offset: MetadataOffset
    next_offset: MetadataOffset


@dataclass(frozen=True, slots=True)
class Rejected:
    """The batch changed nothing and took no offset: surely not appended (rules M1, M2)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Frozen:
    """A state to write a snapshot of; immutable, so that a thread may read it."""

    image: MetadataImage
    index: int
    term: int
    chain: bytes | None = None
    """See `HashChain`."""


class MetadataStateMachine:
    """The image at the last applied entry. Owned by the thread that applies; not thread-safe.

    Implements the quorum's ``StateMachine``. ``index`` and ``term`` are Raft's and kept beside the
    metadata offset, which counts accepted records only (rule M1).
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
        """Tell it of every change from now on; it starts with a delta from the empty image."""
        delta = delta_between(MetadataImage(), self.image)
        publisher.on_metadata_update(delta, self.image)
        self._publishers.append(publisher)

    # ---- StateMachine

    def apply(self, index: int, term: int, payload: bytes) -> Accepted | Rejected:
        """Fold one committed entry, or reject it on every node alike (rules M1, M2).

        Raises only if the payload can't be read or breaks an invariant: the node must end.
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
        self.hashes.accepted(index, batch, next_offset)
        self._turn_to(delta, delta.apply(next_offset, ControllerEpoch(term)))
        return Accepted(base, next_offset)

    def freeze(self) -> Frozen:
        """The present state, for `chunks`."""
        return Frozen(self.image, self.index, self.term, self.hashes.value)

    def chunks(self, frozen: object) -> Iterator[bytes]:
        """A frozen state as pieces of JSON; called on any thread."""
        assert isinstance(frozen, Frozen), frozen
        image = frozen.image
        chain = None if frozen.chain is None else frozen.chain.hex()
        yield orjson.dumps(
            {"next_offset": image.next_offset, "epoch": image.epoch, "state_hash": chain}
        )
        records = image_records(image)
        while chunk := tuple(islice(records, SNAPSHOT_CHUNK_RECORDS)):
            yield encode_batch(image.next_offset, image.epoch, chunk)

    def thaw(self, chunks: Sequence[bytes], index: int, term: int) -> None:
        """Replace the state by a snapshot's. Raises if it can't be read or would go back."""
        head = orjson.loads(chunks[0])
        records: list[MetadataRecord] = []
        for chunk in chunks[1:]:
            records.extend(decode_batch(chunk).records)
        image = image_from_records(
            records, MetadataOffset(head["next_offset"]), ControllerEpoch(head["epoch"])
        )
        assert image.next_offset >= self.image.next_offset, "a snapshot never goes back"
        self.index, self.term = index, term
        chain = head.get("state_hash")  # older versions wrote none
        self.hashes.replaced(
            index, image.next_offset, None if chain is None else bytes.fromhex(chain)
        )
        # The history would have a gap before the snapshot.
        self._history.clear()
        self._history_bytes = 0
        self._turn_to(delta_between(self.image, image), image)

    # ---- history

    def batches_from(
        self, offset: MetadataOffset, bytes_max: int, *, inside: bool = False
    ) -> tuple[MetadataBatch, ...] | None:
        """Accepted batches from ``offset`` on, at least one if there is any, else a page of them.

        None when ``offset`` is too old, or not where a batch begins: send a snapshot. With
        ``inside`` the batch that holds ``offset`` is the first. ``offset`` must not lie beyond the
        image.
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
        # From the right: most readers are near the end, and a deque is slow in its middle.
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
        self._history.append(batch)
        self._history_bytes += len(batch.encoded)
        while (
            len(self._history) > self._history_batches_max
            or self._history_bytes > self._history_bytes_max
        ):
            self._history_bytes -= len(self._history.popleft().encoded)

    def _turn_to(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.image = image
        publish(self._publishers, delta, image)
