"""Speculative image of an active controller: the committed one plus batches in flight (rule M2).

`ActiveController` creates one `Speculation` for each term that it leads and drops it at the first
batch that fails. Decisions read `image`; `append` hands their records to the quorum.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import ControllerEpoch, MetadataOffset
from raft_metadata.controller.controller import Records, Urgency
from raft_metadata.image.metadata_delta import MetadataDelta
from raft_metadata.image.metadata_image import MetadataImage
from raft_metadata.image.metadata_state_machine import Accepted, Rejected
from raft_metadata.records.records import MetadataRecord
from raft_metadata.records.serde import encode_record, join_batch


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """A batch that was handed to the quorum, and the future of its outcome."""

    future: asyncio.Future[object]
    urgency: Urgency


class Speculation:
    """The image that an active controller decides on during one term.

    Owned by it, dropped on failure.

    ``submit`` hands a batch to the quorum in a term; ``on_appended`` is called for each, with the
    image that it leads to. ``on_failed`` is called when a batch turns out not to be in the log:
    every later decision rests on it and is void. ``on_answered`` is called for each batch that is
    in the log. `in_flight` holds the unanswered batches, oldest first.
    """

    def __init__(
        self,
        term: int,
        image: MetadataImage,
        *,
        batch_bytes_max: int,
        wall_ms: Callable[[], int],
        submit: Callable[[bytes, int], asyncio.Future[object]],
        on_appended: Callable[[MetadataDelta, MetadataImage], None],
        on_answered: Callable[[], None],
        on_failed: Callable[[Speculation, KafkaError], None],
    ) -> None:
        self.term = term
        self.image = image
        self.in_flight: deque[Batch] = deque()
        self._batch_bytes_max = batch_bytes_max
        self._wall_ms = wall_ms
        self._submit = submit
        self._on_appended = on_appended
        self._on_answered = on_answered
        self._on_failed = on_failed

    def bulk_in_flight(self) -> int:
        """Return the number of batches in flight with urgency BULK (consequences and growth)."""
        return sum(batch.urgency is Urgency.BULK for batch in self.in_flight)

    def append(self, records: Records, urgency: Urgency) -> list[Batch]:
        """Hand records to the quorum in batches that fit, and advance `image` by each.

        Raises the quorum's refusal of the *first* batch: nothing was appended then. A later batch
        that is refused is left out together with all after it: the records of a decision are valid
        up to any of its batches, and the rest is decided again from the image.
        """
        batches: list[Batch] = []
        time_ms = self._wall_ms()
        for part in _parts(records, self._batch_bytes_max):
            base = self.image.next_offset
            delta = MetadataDelta(self.image)
            next_offset = MetadataOffset(base + delta.replay_all(part.records, base))
            image = delta.apply(next_offset, ControllerEpoch(self.term))
            payload = join_batch(base, self.term, part.encoded, time_ms=time_ms)
            future = self._submit(payload, self.term)
            if future.done() and (refusal := failure(future)) is not None:
                if not batches:
                    raise refusal
                break
            self.image = image
            batches.append(self._follow(Batch(future, urgency)))
            self._on_appended(delta, image)
        return batches

    def _follow(self, batch: Batch) -> Batch:
        def answered(future: asyncio.Future[object]) -> None:
            self.in_flight.remove(batch)
            error = failure(future)
            if error is None:
                self._on_answered()
            else:
                self._on_failed(self, error)

        self.in_flight.append(batch)
        batch.future.add_done_callback(answered)
        return batch


@dataclass(frozen=True, slots=True)
class _Part:
    """Records that fit into one batch, and their JSON."""

    records: Records
    encoded: tuple[bytes, ...]


def _parts(records: Records, bytes_max: int) -> Iterator[_Part]:
    """Split a decision into batches by the size of their JSON."""
    taken: list[MetadataRecord] = []
    encoded: list[bytes] = []
    size = 0
    for record in records:
        text = encode_record(record)
        if taken and size + len(text) > bytes_max:
            yield _Part(tuple(taken), tuple(encoded))
            taken, encoded, size = [], [], 0
        taken.append(record)
        encoded.append(text)
        size += len(text) + 1
    yield _Part(tuple(taken), tuple(encoded))


def failure(future: asyncio.Future[object]) -> KafkaError | None:
    """Return why the batch of this completed future is not in the log, or None if it is."""
    if future.cancelled():
        return KafkaError(ErrorCode.OUTCOME_UNKNOWN, "the quorum stopped")
    error = future.exception()
    if isinstance(error, KafkaError):
        return error
    if error is not None:
        return KafkaError(ErrorCode.OUTCOME_UNKNOWN, f"the quorum failed: {error!r}")
    result = future.result()
    if isinstance(result, Accepted):
        return None
    assert isinstance(result, Rejected), result
    # Every node applies and rejects it alike, so it is surely not in the metadata log (rule M3).
    return KafkaError(ErrorCode.NOT_CONTROLLER, result.reason, outcome=Outcome.NOT_WRITTEN)


def check_committed(batches: Sequence[Batch]) -> None:
    """Raise KafkaError unless all batches of a decision are committed.

    The outcome is certain only if all of them failed in the same way (rule M3).
    """
    failures = [failure(batch.future) for batch in batches]
    first = next((failure for failure in failures if failure is not None), None)
    if first is None:
        return
    if all(failure is not None and failure.outcome is first.outcome for failure in failures):
        raise first
    raise KafkaError(ErrorCode.OUTCOME_UNKNOWN, f"part of the change was made: {first.message}")
