"""Requests that can be served here and now: the broker's side of the HTTP server's fast lane.

The HTTP server calls `DirectRequests` first and `BrokerApis` for all that is left to it. A produce
for a partition led here is gathered with the others of this turn of the event loop that have the
same `AppendBatchKey`, appended with them as one batch, and answered with its own offsets. One for
another leader goes to `ForwardedProduces`. A fetch is served if its records are here now.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.record.batch import RecordFormat
from broker.record.lines import key_view
from broker.server.forwarded_produce import ForwardedProduces, is_refused_for_producers
from broker.server.local_partitions import Append, AppendBatchKey, LocalPartitions, TurnBudget
from broker.server.produce import is_keyless
from broker.server.requests import FINAL, UNKNOWN_EPOCH
from raft_metadata.common.errors import ErrorCode, KafkaError, Outcome
from raft_metadata.common.ids import NO_LEADER, PartitionId, TopicIdPartition, TopicName
from raft_metadata.common.internal_topics import INTERNAL_TOPICS, UNREADABLE_TOPICS
from raft_metadata.common.record_placement import partition_for_key

if TYPE_CHECKING:
    from broker.config import BrokerConfig
    from broker.record.lines import ProduceRecord
    from broker.server.local_partitions import Answered, GatheredProduce
    from broker.server.metadata_loader import MetadataLoader
    from broker.server.produce import KeylessPlacement
    from broker.server.requests import DirectProduce, FetchResult
    from broker.server.topics import LiveConfigs
    from raft_metadata.image.metadata_image import MetadataImage, TopicImage


_log = logging.getLogger("broker.server")

CUT_OUT_BYTES_MIN: Final = 1_024
"""Bytes from which the records' text is cut out of the body; below, encoding anew is as fast."""
RECORD_BYTES_MIN: Final = len(b'{"key":null,"value":null},')
"""Bytes that a record takes once it is encoded anew. If records are shorter than that on average, a
body of 300 KB holds 100,000 of them, and their batch is several times as large as it should be."""
GATHERED_BYTES_MAX: Final = 64 << 10
"""Bytes of bodies gathered for one append; more is written at once. A batch is read, checked and
cleaned as a whole, and larger ones save nothing."""


@dataclass(slots=True)
class _Gathered:
    """Records in order, and the requests to which they belong."""

    records: list[ProduceRecord] = field(default_factory=list)
    waiting: list[GatheredProduce] = field(default_factory=list)
    body_bytes: int = 0


class GatheredAppends:
    """Appends that arrived in this turn of the loop, at most one request of each client.

    Owned by `DirectRequests`, on the broker's loop. Empty at the end of each turn.
    """

    def __init__(self, local: LocalPartitions) -> None:
        self._local = local
        self._gathered: dict[AppendBatchKey, _Gathered] = {}

    def add(
        self,
        batch_key: AppendBatchKey,
        records: Sequence[ProduceRecord],
        body_bytes: int,
        answered: Answered,
    ) -> None:
        """Append these bare records in this turn; call ``answered(partition, base, error)`` once.

        ``answered`` must not raise. After an error of outcome NOT_WRITTEN nothing was done with the
        records, and the request may be repeated.
        """
        gathered = self._gathered.get(batch_key)
        if gathered is None:
            if not self._gathered:
                asyncio.get_running_loop().call_soon(self._write_all)
            gathered = self._gathered[batch_key] = _Gathered()
        gathered.waiting.append((len(gathered.records), answered))
        gathered.records += records
        gathered.body_bytes += body_bytes
        if gathered.body_bytes >= GATHERED_BYTES_MAX:
            del self._gathered[batch_key]
            self._write(batch_key, gathered)

    def _write_all(self) -> None:
        gathered, self._gathered = self._gathered, {}
        for batch_key, each in gathered.items():
            self._write(batch_key, each)

    def _write(self, batch_key: AppendBatchKey, gathered: _Gathered) -> None:
        append = Append(
            partition=batch_key.place,
            records=gathered.records,
            key_format=batch_key.stored_as,
            value_format=batch_key.stored_as,
            acks=batch_key.acks,
            timeout_ms=batch_key.timeout_ms,
        )
        try:
            self._local.append_directly(append, gathered.waiting)
        except KafkaError as error:
            self._refuse(batch_key, gathered, error)
        except Exception as error:  # noqa: BLE001 a bug: each request is answered
            _log.exception("append failed partition=%s", batch_key.place)
            text = f"{type(error).__name__}: see the log of the broker"
            unknown = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, text, outcome=Outcome.UNKNOWN)
            self._refuse(batch_key, gathered, unknown)

    def _refuse(self, batch_key: AppendBatchKey, gathered: _Gathered, error: KafkaError) -> None:
        for _, answered in gathered.waiting:
            answered(batch_key.place.partition, -1, error)


class _Route(NamedTuple):
    """A partition with a known leader, and the limits that its topic sets for records."""

    place: TopicIdPartition
    is_led_here: bool
    max_message_bytes: int
    is_compacted: bool
    limits_times: bool


class DirectRequests:
    """Implementation of `broker.server.requests.DirectApis`, on the broker's loop.

    Owned by `RoutedBrokerApis`. Keeps routes as long as the image stays the same.
    """

    def __init__(
        self,
        config: BrokerConfig,
        local: LocalPartitions,
        loader: MetadataLoader,
        configs: LiveConfigs,
        forwarded: ForwardedProduces,
        keyless: KeylessPlacement,
    ) -> None:
        self._broker_id = config.broker_id
        self._longest_ms = config.limits.max_produce_timeout_ms
        self._local = local
        self._loader = loader
        self._configs = configs
        self._gathered = GatheredAppends(local)
        self._forwarded = forwarded
        self._keyless = keyless
        self._answers = TurnBudget()
        self._routed_by: MetadataImage | None = None
        self._routes: dict[tuple[TopicName, PartitionId], _Route] = {}
        """Routes by the image in `_routed_by`; at most one for each partition."""

    def produce(self, request: DirectProduce, answered: Answered) -> bool:
        route, body_bytes = self._route(request), len(request.body)
        # All keys, values and headers together are smaller than the body: no record is too large.
        if route is None or body_bytes > route.max_message_bytes:
            return False
        if route.is_compacted and any(is_keyless(record) for record in request.records):
            return False
        is_bare = request.records[0].is_bare
        if route.limits_times and not is_bare:
            return False
        place = route.place
        timeout_ms = max(1, min(request.timeout_ms, self._longest_ms))
        if route.is_led_here and is_bare and body_bytes < GATHERED_BYTES_MAX:
            batch_key = AppendBatchKey(place, request.stored_as, request.acks, timeout_ms)
            self._gathered.add(batch_key, request.records, body_bytes, answered)
            return True
        append = Append(
            partition=place,
            records=request.records,
            key_format=request.stored_as,
            value_format=request.stored_as,
            acks=request.acks,
            timeout_ms=timeout_ms,
        )
        if not route.is_led_here:
            answered_forward = partial(
                self._answers.call, _tell_forwarded, answered, place.partition
            )
            return self._forwarded.take(append, answered_forward, records_text(request))
        try:
            self._local.append_directly(append, [(0, answered)])
        except KafkaError as error:
            if error.outcome is Outcome.NOT_WRITTEN:
                return False  # `BrokerApis.produce` tries again, and reports a lasting refusal
            answered(place.partition, -1, error)
        return True

    def _route(self, request: DirectProduce) -> _Route | None:
        """Return the route of all records; None if they have several partitions or no leader."""
        image = self._loader.image
        if image is not self._routed_by:
            self._routed_by, self._routes = image, {}
        if request.partition is not None:
            place = (request.topic, request.partition)
            if place in self._routes:
                return self._routes[place]
        topic = image.topic(request.topic)
        if topic is None or not topic.is_complete or request.topic in INTERNAL_TOPICS:
            return None
        number = self._partition_of_all(topic, request)
        if number is None or not 0 <= number < topic.partitions_count:
            return None
        place = (request.topic, number)
        leader = topic.partitions[number].leader
        if place not in self._routes and leader != NO_LEADER:
            self._routes[place] = _Route(
                TopicIdPartition(topic.topic_id, number),
                leader == self._broker_id,
                self._configs.max_message_bytes(image, topic.topic_id),
                self._configs.is_compacted(image, topic.topic_id),
                self._configs.timestamp_limits(image, topic.topic_id) is not None,
            )
        return self._routes.get(place)

    def _partition_of_all(self, topic: TopicImage, request: DirectProduce) -> PartitionId | None:
        """Return the partition of all records; None if each record would have to be examined."""
        if request.partition is not None:
            return request.partition
        count = topic.routed_count
        if count == 1 and request.records[0].is_bare:
            return PartitionId(0)
        first = request.records[0]
        if len(request.records) > 1 or first.partition is not None:
            return None
        key = key_view(first, request.stored_as)
        # As `partition_of`, whose argument `next_keyless` would cost more than the rest.
        place = self._keyless.next_of(topic) if key is None else partition_for_key(key, count)
        return PartitionId(place)

    def fetch(
        self,
        topic: TopicName,
        partition: PartitionId,
        offset: int,
        max_bytes: int,
        *,
        packed: bool = False,
        bare: bool = False,
        leader_epoch: int = UNKNOWN_EPOCH,
        seen_epoch: int = UNKNOWN_EPOCH,
    ) -> tuple[FetchResult, TopicImage] | None:
        image = self._loader.image.topic(topic)
        if topic in UNREADABLE_TOPICS:
            return None  # `BrokerApis.fetch` refuses it
        if image is None or not image.is_complete or not partition < image.partitions_count:
            return None
        if image.partitions[partition].leader != self._broker_id:
            return None
        place = TopicIdPartition(image.topic_id, partition)
        result = self._local.fetch_directly(
            place,
            offset,
            max_bytes,
            packed=packed,
            bare=bare,
            leader_epoch=leader_epoch,
            seen_epoch=seen_epoch,
        )
        return None if result is None else (result, image)


def records_text(request: DirectProduce) -> bytes | None:
    """Return the records as the text of the body's array; None if it can't be cut out safely.

    A body of bare records holds nothing else. If it has a single closing bracket it holds a single
    array: no second one of the same name, and none in a value.
    """
    body = request.body
    least = max(CUT_OUT_BYTES_MIN, RECORD_BYTES_MIN * len(request.records))
    if len(body) < least or request.stored_as is not RecordFormat.JSON:
        return None  # keys and values may have been converted
    if not request.records[0].is_bare:
        return None
    end = body.find(b"]")
    if end != body.rfind(b"]") or b"\n" in body or b"\r" in body:
        return None
    return body[body.index(b"[") + 1 : end]


def _tell_forwarded(
    answered: Answered, partition: PartitionId, base: int, error: KafkaError | None
) -> None:
    """Report the outcome of a forwarded produce to `answered`.

    An error of the forward is final, because all leaders were tried until the deadline. The
    exception is a refusal for the number of producers: then `BrokerApis.produce` may send it
    without an id.
    """
    final = error is not None and not is_refused_for_producers(error)
    answered(partition, FINAL if final else base, error)
