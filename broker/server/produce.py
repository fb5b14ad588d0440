"""Produces on their way to the leaders of their partitions.

`RoutedBrokerApis` calls `refusals` for the records that the topic's configs refuse, and
`ProduceRouting.place` for the others of each partition; `KeylessPlacement` gives keyless records
their partitions. These go to the leader here, in order
through `ForwardedProduces` to a leader elsewhere, or under a client's own sequence to either.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.record.lines import oversized
from broker.record.values import NULL
from broker.server import peer_codec
from broker.server.forwarded_produce import (
    ATTEMPT_MS_MAX,
    ATTEMPT_MS_MIN,
    ATTEMPTS,
    ForwardedProduces,
    PlacedRecords,
    is_refused_for_producers,
)
from broker.server.local_partitions import Append, LocalPartitions
from broker.server.peer_codec import PeerRequestKind
from broker.server.requests import check_producer_id, note_passed_to
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.record_placement import (
    KeylessRotation,
    Partitioner,
    keyless_candidates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from broker.record.lines import ProduceRecord
    from broker.server.requests import ProduceRequest, RecordResult
    from broker.server.router import LeaderRouter
    from broker.server.topics import LiveConfigs, TimestampLimits
    from raft_metadata.common.clock import Clock
    from raft_metadata.common.ids import BrokerId, TopicId
    from raft_metadata.image.metadata_image import MetadataImage, PartitionRegistration, TopicImage


REFUSED_WHOLE = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.POLICY_VIOLATION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TIMESTAMP,
    }
)
"""Refusals of a producer's claim, which concern the request and not single records."""
_NULL_LENGTH = len(NULL)
ROTATIONS_MAX: Final = 10_000
"""Most topics whose rotation a broker keeps; beyond, all of them begin anew."""


def is_keyless(record: ProduceRecord) -> bool:
    """Return whether the record has no key, or null, so that compaction can't replace it."""
    key = record.key
    return len(key) == _NULL_LENGTH and bytes(key) == NULL


def refusals(
    records: Sequence[ProduceRecord],
    configs: LiveConfigs,
    image: MetadataImage,
    topic: TopicImage,
    now_ms: int,
) -> dict[int, KafkaError]:
    """Return the errors of the records that the topic's configs refuse, by index.

    ``now_ms``: the timestamp that a record without one would get; it depends on more than one clock
    (rule R10).
    """
    limit = configs.max_message_bytes(image, topic.topic_id)
    refused = {
        index: KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"the record is larger than {limit} bytes")
        for index in oversized(records, limit)
    }
    if configs.is_compacted(image, topic.topic_id):
        for index, record in enumerate(records):
            if index not in refused and is_keyless(record):
                refused[index] = KafkaError(
                    ErrorCode.INVALID_RECORD,
                    f"topic {topic.name} is compacted (cleanup.policy), so every record needs a "
                    "key: this one has none",
                )
    timestamps = configs.timestamp_limits(image, topic.topic_id)
    if timestamps is not None and not records[0].is_bare:
        for index, record in enumerate(records):
            why = _timestamp_refusal(record.timestamp, timestamps, now_ms)
            if why and index not in refused:
                refused[index] = KafkaError(ErrorCode.INVALID_TIMESTAMP, why)
    return refused


def _timestamp_refusal(timestamp: int | None, limits: TimestampLimits, now_ms: int) -> str:
    """Return why the topic takes no record with this timestamp; empty if it takes it."""
    if timestamp is None:
        return ""
    if now_ms - timestamp > limits.before_max_ms:
        limit = f"{limits.before_max_ms} ms before it (message.timestamp.before.max.ms)"
    elif timestamp - now_ms > limits.after_max_ms:
        limit = f"{limits.after_max_ms} ms after it (message.timestamp.after.max.ms)"
    else:
        return ""
    return f"timestamp {timestamp}: now is {now_ms}, the topic takes at most {limit}"


class _TopicRotation(NamedTuple):
    """The rotation of one topic, and the partitions that take part by this image of it."""

    image: TopicImage
    candidates: Sequence[int]
    rotation: KeylessRotation


class KeylessPlacement:
    """The partitions of records without a partition and a key, in turn for each topic.

    Owned by `RoutedBrokerApis`, which shares it with `DirectRequests`, on the broker's loop. Keeps
    at most `ROTATIONS_MAX` rotations.
    """

    def __init__(self, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._topics: dict[TopicId, _TopicRotation] = {}

    def next_of(self, topic: TopicImage) -> int:
        """Return the partition of a request that holds one keyless record."""
        found = self._topics.get(topic.topic_id)
        if found is None or found.image is not topic:
            found = self._rotation_of(topic)
        return found.rotation.next_of(found.candidates)

    def for_request(self, topic: TopicImage, partitioner: Partitioner) -> Callable[[], int]:
        """Return the function that gives each keyless record of a request its partition."""
        found = self._rotation_of(topic)
        return found.rotation.for_batch(found.candidates, partitioner)

    def _rotation_of(self, topic: TopicImage) -> _TopicRotation:
        found = self._topics.get(topic.topic_id)
        if found is not None and found.image is topic:
            return found
        if found is not None:
            rotation = found.rotation
        else:
            if len(self._topics) >= ROTATIONS_MAX:
                self._topics.clear()
            rotation = KeylessRotation(int.from_bytes(self._random_bytes(4), "little"))
        places = [one.has_leader for one in topic.partitions[: topic.routed_count]]
        found = _TopicRotation(topic, keyless_candidates(places), rotation)
        self._topics[topic.topic_id] = found
        return found


class ProduceRouting:
    """Routing of one partition's records to its leader.

    Owned by `RoutedBrokerApis`, on its loop. Stateless.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        local: LocalPartitions,
        router: LeaderRouter,
        forwarded: ForwardedProduces,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._local = local
        self._router = router
        self._forwarded = forwarded
        self._clock = clock

    async def place(self, append: Append, deadline_ms: int) -> list[PlacedRecords]:
        """Have the present leader append the records, until the deadline; in pieces, if large.

        Raises:
            KafkaError: no record was written, or nothing certain is known of any of them.
        """
        if append.claim is not None:
            return [
                PlacedRecords(len(append.records), await self._append_claimed(append, deadline_ms))
            ]

        async def attempt(
            registration: PartitionRegistration, timeout_ms: int
        ) -> list[PlacedRecords]:
            now = replace(append, timeout_ms=timeout_ms)
            if registration.leader == self._broker_id:
                base = await self._local.append(now)
            else:
                if await self._forwarded.acquire_producer_id(append.acks):
                    note_passed_to(registration.leader)
                    placed = await self._forwarded.append(append, deadline_ms)
                    if not _all_refused_for_producers(placed):
                        return placed
                body = peer_codec.encode_append(now)
                answer = await self._router.forward(
                    append.partition, registration, PeerRequestKind.APPEND, body, timeout_ms
                )
                base = peer_codec.decode_base_offset(answer)
            return [PlacedRecords(len(append.records), base)]

        return await self._router.routed(
            append.partition, attempt, deadline_ms, repeat_unknown=False
        )

    async def _append_claimed(self, append: Append, deadline_ms: int) -> int:
        """Append under a client's id; repeat attempts of unknown outcome until the deadline.

        The leader recognises a repeat. After an attempt of unknown outcome only another attempt's
        answer is certain (rule F1).
        """
        doubts: list[KafkaError] = []

        async def attempt(registration: PartitionRegistration, timeout_ms: int) -> int:
            try:
                if registration.leader == self._broker_id:
                    return await self._local.append(replace(append, timeout_ms=timeout_ms))
                share_ms = min(max(timeout_ms // ATTEMPTS, ATTEMPT_MS_MIN), ATTEMPT_MS_MAX)
                now = replace(append, timeout_ms=min(timeout_ms, share_ms))
                body = peer_codec.encode_claimed(now, peer_codec.encode_records(append.records))
                repeat = append.refused is not None
                kind = PeerRequestKind.REPEAT_CLAIMED if repeat else PeerRequestKind.APPEND_CLAIMED
                answer = await self._router.forward(
                    append.partition, registration, kind, body, now.timeout_ms
                )
                return peer_codec.decode_base_offset(answer)
            except KafkaError as error:
                if append.refused is not None and error.code is ErrorCode.INVALID_RECORD:
                    raise append.refused from None
                raise

        try:
            return await self._router.routed(
                append.partition, attempt, deadline_ms, repeat_unknown=True, doubts=doubts
            )
        except KafkaError:
            if doubts:
                raise doubts[-1] from None
            raise


def _all_refused_for_producers(placed: Sequence[PlacedRecords]) -> bool:
    """Return whether every piece was refused for the number of producers; none is written."""
    return all(each.error is not None and is_refused_for_producers(each.error) for each in placed)


def check_claimed(request: ProduceRequest, topic: TopicImage) -> None:
    """Refuse a sequence whose records would not be found in one and the same partition by a retry.

    Also one under a reserved producer id (rule S4).

    Raises:
        KafkaError: INVALID_REQUEST; nothing was written.
    """
    if request.claim is not None:
        check_producer_id(request.claim.producer_id)
    if request.partition is not None or topic.partitions_count == 1:
        return
    named = {record.partition for record in request.records}
    if topic.routed_count == 1 and None in named:  # it grows: records without one go to the first
        named = named - {None} | {0}
    if len(named) != 1 or None in named:
        text = (
            f"a sequence belongs to one partition, topic {topic.name} has "
            f"{topic.partitions_count}: expected POST /topics/{topic.name}/partitions/P, or the "
            "same explicit partition in every record"
        )
        raise KafkaError(ErrorCode.INVALID_REQUEST, text)


def refused_whole(results: Sequence[RecordResult | None]) -> KafkaError | None:
    """Return the error with which all records of a sequence are refused; None if none is refused.

    A record that is refused alone would leave a gap. The leader has the last word, because it alone
    knows whether the request repeats what was written before.
    """
    for number, result in enumerate(results):
        if result is not None and result.error is not None:
            error = result.error
            text = f"record {number}: {error.message}; under a sequence all are refused with it"
            return KafkaError(error.code, text, outcome=Outcome.NOT_WRITTEN)
    return None
