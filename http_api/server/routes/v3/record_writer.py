"""Writing the records of a v3 request, in order, and what becomes of each.

Records of the same formats that have arrived together are one request to the broker. Under a
producer's sequence (rule F1) each record is the next number of it. A stream that is sent again may
be cut elsewhere than the first time, so a request that the leader can't place as a whole is split
until its parts are known or new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker.server.produce import REFUSED_WHOLE
from broker.server.requests import ProduceRequest
from http_api.contract.errors import RestCode
from http_api.server.image_lookup import find_topic, partition_not_found
from http_api.server.routes.v3.record_entries import RecordEntry, RefusedEntry, runs
from raft_metadata.common.errors import ErrorCode, KafkaError
from raft_metadata.common.ids import Claim, next_sequence
from raft_metadata.common.record_placement import Partitioner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.record.batch import RecordFormat
    from broker.server.requests import BrokerApis
    from raft_metadata.common.ids import TopicName


@dataclass(frozen=True, slots=True)
class WrittenRecord:
    """A record that is written; ``offset`` is -1 with acks=0."""

    partition: int
    offset: int
    timestamp_ms: int | None
    """None: the leader set it."""


Outcome = WrittenRecord | RefusedEntry | KafkaError


class EntryWriter:
    """Writes the records of one request. Owned by its handler; one call of `write` at a time."""

    def __init__(
        self,
        apis: BrokerApis,
        topic: TopicName,
        acks: int,
        timeout_ms: int,
        claim: Claim | None,
        partitioner: Partitioner = Partitioner.STICKY,
    ) -> None:
        self._apis = apis
        self._topic = topic
        self._acks = acks
        self._timeout_ms = timeout_ms
        self._claim = claim
        self._partitioner = partitioner
        self.is_over = False
        """True once nothing more can be written: under a sequence, a record was not written."""

    async def write(self, entries: Sequence[RecordEntry | RefusedEntry]) -> list[Outcome]:
        """Write the records, in order; return what became of each.

        Fewer are returned if a record of a sequence is not written: none behind it is tried.
        """
        checked = await self._without_missing_partitions(entries)
        if self._claim is not None:
            refused = [i for i, entry in enumerate(checked) if not isinstance(entry, RecordEntry)]
            checked = checked[: refused[0] + 1] if refused else checked
        accepted = [entry for entry in checked if isinstance(entry, RecordEntry)]
        self._place_keyless(accepted)
        times = self._times(accepted)
        results: list[WrittenRecord | KafkaError] = []
        for key_format, value_format, first, end in runs(accepted):
            if self.is_over:
                break
            some = accepted[first:end]
            formats = key_format, value_format
            if self._claim is None:
                results += await self._produce(some, times[first:end], formats, None)
            else:
                results += await self._produce_claimed(some, times[first:end], formats)
        written = iter(results)
        outcomes: list[Outcome] = []
        for entry in checked:
            found = next(written, None) if isinstance(entry, RecordEntry) else entry
            if found is None:
                break
            outcomes.append(found)
        if self._claim is not None and outcomes:
            self.is_over |= not isinstance(checked[len(outcomes) - 1], RecordEntry)
        return outcomes

    async def _without_missing_partitions(
        self, entries: Sequence[RecordEntry | RefusedEntry]
    ) -> Sequence[RecordEntry | RefusedEntry | KafkaError]:
        """Return the entries, those refused that name a partition which is not there.

        Where no controller answers, it may be there: the refusal is LEADER_NOT_AVAILABLE then.
        """
        named = [e.partition for e in entries if isinstance(e, RecordEntry) and e.partition]
        if not named:
            return entries
        unproven: KafkaError | None = None
        try:
            topic = await find_topic(self._apis, self._topic, max(named))
        except KafkaError as error:
            topic, unproven = self._apis.image.topic(self._topic), error
        if topic is None or max(named) < topic.partitions_count:
            return entries
        refused: list[RecordEntry | RefusedEntry | KafkaError] = []
        for entry in entries:
            partition = entry.partition if isinstance(entry, RecordEntry) else None
            if partition is not None and partition >= topic.partitions_count:
                text = partition_not_found(self._topic, partition)
                refused.append(unproven or RefusedEntry(RestCode.PARTITION_NOT_FOUND, text))
            else:
                refused.append(entry)
        return refused

    def _place_keyless(self, entries: Sequence[RecordEntry]) -> None:
        """Give each keyless record its partition: one batch, however many requests write it."""
        topic = self._apis.image.topic(self._topic)
        if topic is None or self._claim is not None:
            return
        next_keyless = self._apis.next_keyless(topic, self._partitioner)
        for entry in entries:
            if entry.partition is None and entry.key_format is None:
                entry.partition = next_keyless()

    def _times(self, entries: Sequence[RecordEntry]) -> list[int | None]:
        """Return the time of each record; it is set where the client set none.

        Under a sequence it is left to the leader, because a repeat keeps its first time.
        """
        topic = self._apis.image.topic(self._topic)
        now_ms = None
        if topic is not None:
            now_ms = self._apis.record_time_ms(topic)
            if now_ms is None:
                return [None] * len(entries)
        for entry in entries:
            if entry.record.timestamp is None and self._claim is None:
                entry.record.timestamp = now_ms
        return [entry.record.timestamp for entry in entries]

    async def _produce(
        self,
        entries: Sequence[RecordEntry],
        times: Sequence[int | None],
        formats: tuple[RecordFormat, RecordFormat],
        claim: Claim | None,
    ) -> list[WrittenRecord | KafkaError]:
        """Write records of the same formats as one request."""
        records = []
        for entry in entries:
            entry.record.partition = entry.partition
            records.append(entry.record)
        request = ProduceRequest(
            topic=self._topic,
            records=records,
            key_format=formats[0],
            value_format=formats[1],
            acks=self._acks,
            timeout_ms=self._timeout_ms,
            claim=claim,
        )
        try:
            results = await self._apis.produce(request)
        except KafkaError as error:
            return [error] * len(entries)
        outcomes: list[WrittenRecord | KafkaError] = []
        for result, time_ms in zip(results, times, strict=True):
            if result.error is not None:
                outcomes.append(result.error)
            else:
                assert result.partition is not None, "a written record has a partition"
                assert result.offset is not None, "a written record has an offset"
                outcomes.append(WrittenRecord(result.partition, result.offset, time_ms))
        return outcomes

    async def _produce_claimed(
        self,
        entries: Sequence[RecordEntry],
        times: Sequence[int | None],
        formats: tuple[RecordFormat, RecordFormat],
    ) -> list[WrittenRecord | KafkaError]:
        """Write records as the next ones of the sequence.

        In halves, if the leader can't place them as a whole: a part may be there already, and one
        record that is refused may not keep those before it from being written.
        """
        claim = self._claim
        assert claim is not None, "the stream has a sequence"
        outcomes = await self._produce(entries, times, formats, claim)
        first, count = outcomes[0], len(entries)
        code = first.code if isinstance(first, KafkaError) else None
        if code is None or (count == 1 and code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._claim = claim._replace(sequence=next_sequence(claim.sequence, count))
        elif count > 1 and code in _DIVISIBLE:
            half = count // 2
            outcomes = await self._produce_claimed(entries[:half], times[:half], formats)
            if not self.is_over:
                outcomes += await self._produce_claimed(entries[half:], times[half:], formats)
        else:
            self.is_over = True
        return outcomes


_DIVISIBLE = REFUSED_WHOLE - {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.POLICY_VIOLATION}
"""Refusals of several records of a sequence that need not hold for each of them."""
