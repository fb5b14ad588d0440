"""`AIOKafkaProducer` over our `AsyncProducer`: programs for aiokafka write to quorumlog.

Differences from aiokafka on Kafka:
- A key lands in the partition of its crc32, not of its murmur2, so another partition than with a
  Kafka client. A ``partitioner`` of the program decides for every record, as there.
- Without ``acks`` records are written to all in-sync replicas, once and in order, as if
  ``enable_idempotence=True``; so is ``acks="all"``. With ``acks`` 1 or 0 one request a partition is
  under way, and none that may have been written is repeated.
- Batches grow to 256 KiB at least, whatever ``max_batch_size`` is, which limits a `BatchBuilder`.
  One that is sent lands in order, but others' records may stand between its own.
- In a transaction rows have no offsets before the commit: the futures of `send` complete at its
  end, and `send_and_wait` returns at once, with the offset -1. Offsets that go into a transaction
  are of one group, and compared, which aiokafka leaves out (see `aiokafka_transactions`).
  ``transaction_timeout_ms`` limits a start, a commit and an abort; a transaction may stay open
  longer. `stop` aborts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from typing_extensions import override

from http_api.client.client_errors import InvalidRecordError, QuorumlogError
from http_api.client.compat.aiokafka_batches import (
    BATCH_HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    BatchBuilder,
    Headers,
    checked_bytes,
    content_bytes,
)
from http_api.client.compat.aiokafka_client import AIOKafkaClient, StartedBlock, made_of
from http_api.client.compat.aiokafka_errors import (
    IllegalArgumentError,
    IllegalOperation,
    IllegalStateError,
    MessageSizeTooLargeError,
    ProducerClosed,
    kafka_error,
)
from http_api.client.compat.aiokafka_settings import bounded, common_settings, running_loop
from http_api.client.compat.aiokafka_transactions import (
    ProducerTransactions,
    TransactionalProducer,
    TransactionContext,
    producer_error,
)
from http_api.client.compat.aiokafka_types import (
    CREATE_TIME,
    OffsetAndMetadata,
    RecordMetadata,
    TopicPartition,
    checked_offsets,
)
from http_api.client.sdk.record_types import Receipt
from http_api.client.sdk.settings import DAY_MS
from raft_metadata.common.clock import SystemClock

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

    from http_api.client.compat.aiokafka_types import AbstractTokenProvider
    from http_api.client.sdk.record_types import NewRecord

Serializer = Callable[[Any], "bytes | None"]
Partitioner = Callable[["bytes | None", "list[int]", "list[int]"], int]
Sent = asyncio.Future[RecordMetadata]

_now_ms: Final = SystemClock().wall_ms
_missing: Final = object()
"""Stands for ``acks`` that a program does not set."""
COMPRESSIONS: Final = ("gzip", "snappy", "lz4", "zstd", None)
BATCH_BYTES: Final = 262_144
LINGER_MS_MIN: Final = 1
"""Shortest wait of a batch: without one, records that are sent at once would be a batch each."""
_SIZE_MARGIN: Final = 128
"""Bytes within which the size of a record is counted exactly."""


class DefaultPartitioner:
    """Stands for quorumlog's own way: by crc32 of the key, else a partition with a leader."""


_DEFAULT_PARTITIONER: Final = DefaultPartitioner()


class AIOKafkaProducer(StartedBlock):
    """Writes records, from the tasks of the event loop that it is made in."""

    _made = 0

    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        bootstrap_servers: str | Sequence[str] = "localhost",
        client_id: str | None = None,
        metadata_max_age_ms: int = 300_000,
        request_timeout_ms: int = 40_000,
        api_version: str | None = None,
        acks: Any = _missing,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        compression_type: str | None = None,
        max_batch_size: int = 16_384,
        partitioner: Partitioner | DefaultPartitioner = _DEFAULT_PARTITIONER,
        max_request_size: int = 1_048_576,
        linger_ms: int = 0,
        retry_backoff_ms: int = 100,
        security_protocol: str = "PLAINTEXT",
        ssl_context: ssl.SSLContext | None = None,
        connections_max_idle_ms: int = 540_000,
        enable_idempotence: bool = False,
        transactional_id: str | None = None,
        transaction_timeout_ms: int = 60_000,
        sasl_mechanism: str = "PLAIN",
        sasl_plain_password: str | None = None,
        sasl_plain_username: str | None = None,
        sasl_kerberos_service_name: str = "kafka",
        sasl_kerberos_domain_name: str | None = None,
        sasl_oauth_token_provider: AbstractTokenProvider | None = None,
    ) -> None:
        given = {name: value for name, value in locals().items() if name != "self"}
        self._loop = running_loop(loop)
        AIOKafkaProducer._made += 1
        given["client_id"] = client_id or f"aiokafka-producer-{AIOKafkaProducer._made}"
        common = common_settings(given)
        own = producer_settings(given)
        if not isinstance(partitioner, DefaultPartitioner):
            own["partitioner"] = partial(_chosen, partitioner, self._counts_of)
        self._key_serializer, self._value_serializer = key_serializer, value_serializer
        self._max_batch_size, self._max_request_size = max_batch_size, max_request_size
        self._counts: dict[str, int] = {}
        """Partitions by topic, as far as records named one of them or a function chooses."""
        self._chooses = "partitioner" in own
        self._producer: TransactionalProducer = made_of(TransactionalProducer, common | own)
        self.client = AIOKafkaClient.of_settings(common)
        self._transactions: ProducerTransactions | None = None
        if transactional_id is not None:
            self._transactions = ProducerTransactions(self._producer, self.client)
        self._is_started = self._is_stopped = False

    def _counts_of(self, topic: str) -> int:
        return self._counts[topic]

    @override
    async def start(self) -> None:
        """Look for a broker; with a ``transactional_id``, fence the producer that had it before.

        Raises:
            KafkaConnectionError: No broker answers.
        """
        await self.client.bootstrap()
        if self._transactions is not None:
            await self._transactions.begin_life()
        self._is_started = True

    @override
    async def stop(self) -> None:
        """Wait for the outcomes of all records, and close; an open transaction is aborted."""
        if self._is_stopped:
            return
        self._is_stopped = True
        try:
            if self._transactions is not None:
                await self._transactions.wait()
            await self._producer.close()
        finally:
            await self.client.close()

    async def flush(self) -> None:
        """Send everything, and wait until all futures have a result.

        In a transaction it waits until its rows are staged; futures have results at the end.
        """
        self._check_running()
        if self._transactions is not None:
            await self._transactions.flush()
        else:
            await self._producer.flush()

    async def partitions_for(self, topic: str) -> set[int]:
        """Return the partitions of a topic, which is created if the cluster allows it."""
        self._check_running()
        try:
            return set(await self._producer.partitions_for(topic))
        except QuorumlogError as error:
            raise kafka_error(error) from error

    def _check_running(self) -> None:
        if self._is_stopped:
            raise ProducerClosed
        if not self._is_started:
            msg = "the producer is not started: await start() first"
            raise IllegalStateError(msg)

    # records

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> Sent:
        """Take a record into the buffer, and return the future of its metadata.

        Waits for room in the buffer, at most ``request_timeout_ms``. Cancelling the future leaves
        the record on its way; cancelling this call leaves the record out. In a transaction the
        future completes at its commit, with the offset -1 where it is not known, or at its abort.

        Raises:
            IllegalOperation: The producer has transactions, and none is open.
            TypeError: Key, value, timestamp or headers are of the wrong type.
            MessageSizeTooLargeError: The record is larger than ``max_request_size``.
            KafkaTimeoutError: There is no room in time.
            ProducerClosed: The producer is stopped.
        """
        assert value is not None or key is not None, "Need at least one: key or value"
        if self._is_stopped or not self._is_started:
            self._check_running()
        key, value = self._serialized(key, value, headers)
        if partition is not None or self._chooses:
            await self._check_partition(topic, partition)
        future = SentRecord(loop=self._loop)
        if self._transactions is not None:
            future.add_done_callback(_note_seen)
        try:
            await self._producer.produce(
                topic,
                value,
                key,
                partition,
                headers=headers or None,
                timestamp=_now_ms() if timestamp_ms is None else timestamp_ms,
                on_delivery=future,
            )
        except QuorumlogError as error:
            _fail(error)
        return future

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Write a record and return its metadata; raises `KafkaError` if it was not written.

        While no other record is on its way it is sent at once, else with the others. In a
        transaction it returns once the record is taken, with the offset -1: it is written, and has
        an offset, from the commit on. Raises what `send` raises, too.
        """
        transactions = self._transactions
        if transactions is None and len(self._producer):
            future = await self.send(topic, value, key, partition, timestamp_ms, headers)
            return await future
        assert value is not None or key is not None, "Need at least one: key or value"
        self._check_running()
        key, value = self._serialized(key, value, headers)
        if partition is not None or self._chooses:
            await self._check_partition(topic, partition)
        timestamp_ms = _now_ms() if timestamp_ms is None else timestamp_ms
        try:
            if transactions is not None:
                rest = (partition, headers or None, timestamp_ms)
                found = await self._producer.stage(topic, value, key, *rest)
                return _metadata(Receipt(topic, found, None, timestamp_ms, key, value))
            receipt = await self._producer.send(
                topic,
                value,
                key,
                partition,
                headers=headers or None,
                timestamp=timestamp_ms,
            )
        except QuorumlogError as error:
            _fail(error)
        return _metadata(receipt)

    def _serialized(
        self, key: Any, value: Any, headers: Headers | None
    ) -> tuple[bytes | None, bytes | None]:
        """Return key and value as bytes; raise TypeError or MessageSizeTooLargeError."""
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        if type(value) is not bytes:
            checked_bytes(value)
        if type(key) is not bytes:
            checked_bytes(key)
        size = len(key or b"") + len(value or b"")
        if size + _SIZE_MARGIN > self._max_request_size or headers:
            size = BATCH_HEADER_BYTES + RECORD_OVERHEAD_BYTES
            size += content_bytes(key, value, headers or ())
            if size > self._max_request_size:
                msg = f"the message is {size} bytes, more than max_request_size"
                raise MessageSizeTooLargeError(msg)
        return key, value

    async def _check_partition(self, topic: str, partition: int | None) -> None:
        """Learn the number of partitions; raise AssertionError for one that is not there."""
        count = self._counts.get(topic, 0)
        if partition is None or partition >= count:
            count = self._counts[topic] = len(await self.partitions_for(topic))
        assert partition is None or 0 <= partition < count, "Unrecognized partition"

    # batches

    def create_batch(self) -> BatchBuilder:
        """Return an empty batch of up to ``max_batch_size`` bytes, to be filled and sent."""
        return BatchBuilder(
            self._max_batch_size,
            0,
            key_serializer=self._key_serializer,
            value_serializer=self._value_serializer,
        )

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Sent:
        """Take the records of a batch into the buffer; return the future of the first's metadata.

        The future has a result once all of them are written, or the error of the first that is not.

        Raises:
            IllegalOperation: The producer has transactions, and none is open.
            IllegalArgumentError: The batch has no records.
            KafkaTimeoutError: There is no room in time.
            ProducerClosed: The producer is stopped.
        """
        self._check_running()
        batch.close()
        if not batch.records:
            msg = "the batch has no records"
            raise IllegalArgumentError(msg)
        await self._check_partition(topic, partition)
        outcome = _BatchOutcome(self._loop.create_future(), len(batch.records))
        if self._transactions is not None:
            outcome.future.add_done_callback(_note_seen)
        try:
            for one in batch.records:
                await self._producer.produce(
                    topic,
                    one.value,
                    one.key,
                    partition,
                    headers=one.headers or None,
                    timestamp=one.timestamp_ms,
                    on_delivery=outcome,
                )
        except QuorumlogError as error:
            _fail(error)
        return outcome.future

    # transactions

    async def begin_transaction(self) -> None:
        """Begin a transaction: what is sent from here on is in it.

        Raises:
            IllegalOperation: There is no ``transactional_id``, or the one before has no end yet.
            ProducerFenced: A newer producer has the ``transactional_id``.
        """
        await self._transactional().begin()

    async def commit_transaction(self) -> None:
        """Commit the open transaction; cancelling this call does not end the commit.

        Raises:
            CommitFailedError: Its offsets are another process's affair by now: abort.
            KafkaTimeoutError: It is not known in time if it is committed: repeat this, or abort.
            ProducerFenced: A newer producer has the ``transactional_id``.
            KafkaError: It was refused: abort.
        """
        await self._transactional().commit()

    async def abort_transaction(self) -> None:
        """Abort the open transaction: no row of it is ever read. Without one nothing happens.

        Raises:
            ProducerFenced: A newer producer has the ``transactional_id``.
            KafkaError: It was committed before, by a commit whose answer was lost.
        """
        await self._transactional().abort()

    def transaction(self) -> TransactionContext:
        """Return a context that begins a transaction, commits it, or aborts on an exception."""
        return TransactionContext(self._transactional)

    async def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata],
        group_id: str,
    ) -> None:
        """Commit offsets of a consumer's group with the open transaction.

        Raises:
            IllegalOperation: No transaction is open.
            ValueError: The group is no name, or the offsets no mapping of partitions to offsets.
            KafkaConfigurationError: The transactions belong to another group, or the consumer
                commits by itself.
            CommitFailedError: The consumer is no member of its group now.
        """
        transactions = self._transactional()
        if not transactions.is_open:
            msg = "Not in the middle of a transaction"
            raise IllegalOperation(msg)
        if not group_id or not isinstance(group_id, str):
            raise ValueError(group_id)
        await transactions.send_offsets(checked_offsets(offsets), group_id)

    def _transactional(self) -> ProducerTransactions:
        self._check_running()
        if self._transactions is None:
            msg = "You need to configure transaction_id to use transactions"
            raise IllegalOperation(msg)
        return self._transactions

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.stop()


class SentRecord(asyncio.Future[RecordMetadata]):
    """Future of a record, and its own callback: an object less a record for the collector."""

    __slots__ = ()

    def __call__(self, error: QuorumlogError | None, receipt: Receipt) -> None:
        """Take the outcome."""
        _settle(self, error, receipt)


class _BatchOutcome:
    """Outcome of a batch: called with each record's, it settles the batch's future."""

    def __init__(self, future: Sent, count: int) -> None:
        self.future = future
        self._left = count
        self._first: Receipt | None = None
        self._error: QuorumlogError | None = None

    def __call__(self, error: QuorumlogError | None, receipt: Receipt) -> None:
        self._left -= 1
        self._first = self._first or receipt
        self._error = self._error or error
        if self._left == 0:
            _settle(self.future, self._error, self._first)


def _fail(error: QuorumlogError) -> NoReturn:
    """Raise the error that the library, or the program's partitioner, would raise."""
    if isinstance(error, InvalidRecordError):
        raise error.__cause__ or TypeError(str(error))
    raise producer_error(error) from error


def _settle(future: Sent, error: QuorumlogError | None, receipt: Receipt) -> None:
    if future.done():  # cancelled by the program
        return
    if error is not None:
        future.set_exception(producer_error(error))
    else:
        future.set_result(_metadata(receipt))


@lru_cache(1_024)
def _place(topic: str, partition: int) -> TopicPartition:
    """Return a partition, one object for all of its records."""
    return TopicPartition(topic, partition)


def _metadata(receipt: Receipt) -> RecordMetadata:
    topic, partition = receipt.topic, receipt.partition
    place = _place(topic, partition)
    offset = -1 if receipt.offset is None else receipt.offset
    return RecordMetadata(topic, partition, place, offset, receipt.timestamp, CREATE_TIME, None)


def _chosen(
    partitioner: Partitioner,
    counts_of: Callable[[str], int],
    record: NewRecord,
    available: Sequence[int],
) -> int:
    """Return the partition that the program's function chooses."""
    return partitioner(record.key, list(range(counts_of(record.topic))), list(available))


def _note_seen(future: Sent) -> None:
    """Count an error as seen: the end of the transaction has told it."""
    if not future.cancelled():
        future.exception()


def producer_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of our producer alone; raises ValueError for what aiokafka refuses."""
    acks, compression = given["acks"], given["compression_type"]
    if acks not in (0, 1, -1, "all", _missing):
        msg = f"acks={acks!r}: expected 0, 1 or 'all'"
        raise ValueError(msg)
    if compression not in COMPRESSIONS:
        msg = f"compression_type={compression!r}: expected one of {COMPRESSIONS}"
        raise ValueError(msg)
    is_transactional = given["transactional_id"] is not None
    if (given["enable_idempotence"] or is_transactional) and acks in (0, 1):
        msg = f"acks={acks} not supported if enable_idempotence=True"
        raise ValueError(msg)
    return {
        "acks": "all" if acks is _missing else acks,
        "batch_size": min(max(given["max_batch_size"], BATCH_BYTES), 8 << 20),
        "linger_ms": max(given["linger_ms"], LINGER_MS_MIN),
        "delivery_timeout_ms": given["request_timeout_ms"],
        "max_block_ms": given["request_timeout_ms"],
        "retry_backoff_ms": given["retry_backoff_ms"],
        "transactional_id": given["transactional_id"],
        "transaction_timeout_ms": bounded(given["transaction_timeout_ms"], 1, DAY_MS),
    }
