"""Transactions of an `AIOKafkaProducer`, and the consumers whose offsets they commit.

aiokafka names a group and no member when offsets go into a transaction. Here the offsets have to be
compared (rule S8), or a process that lost its partitions commits what another one has read again:

- A consumer of this process in the group lends its member id and epoch; of several the one that
  the present task reads from. Once there was one, there has to be one: what it has read is not
  committed behind its end.
- For partitions that were assigned by hand, and without a consumer, the commit names the offset
  that it has to find: the one that the consumer went on from, or that was found at the first use.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self
from weakref import WeakSet

from http_api.client.client_errors import (
    ApiError,
    ClosedError,
    CommittingError,
    ConfigError,
    FencedError,
    QuorumlogError,
    TransactionStateError,
)
from http_api.client.compat.aiokafka_client import AIOKafkaClient
from http_api.client.compat.aiokafka_errors import (
    CommitFailedError,
    IllegalOperation,
    ProducerClosed,
    ProducerFenced,
    kafka_error,
)
from http_api.client.compat.aiokafka_reader import PartitionReader
from http_api.client.compat.aiokafka_types import OffsetAndMetadata, TopicPartition
from http_api.client.sdk.async_producer import AsyncProducer
from http_api.client.sdk.record_types import ConsumerGroupMetadata
from http_api.client.sdk.record_types import TopicPartition as SdkPartition
from http_api.contract.errors import RestCode

if TYPE_CHECKING:
    from types import TracebackType

GroupKey = tuple[str, str]
"""A cluster and a group in it."""

log: Final = logging.getLogger("quorumlog.producer")

_readers: Final[dict[GroupKey, WeakSet[PartitionReader]]] = {}
"""Running consumers of this process by their group. A group stays when its last consumer stops."""
_NOT_THE_OWNER: Final = {
    int(RestCode.ILLEGAL_STATE),
    int(RestCode.OFFSET_NOT_EXPECTED),
    int(RestCode.UNKNOWN_TOPIC_OR_PARTITION),  # stands for a member that is gone, too
}
"""Codes of a commit whose offsets are another process's affair by now."""


def note_started(group: GroupKey, reader: PartitionReader) -> None:
    """Know a consumer of this process as one of its group, until `note_stopped`."""
    _readers.setdefault(group, WeakSet()).add(reader)


def note_stopped(reader: PartitionReader) -> None:
    """Forget a consumer, but not that its group had one."""
    for readers in _readers.values():
        readers.discard(reader)


def producer_error(error: QuorumlogError) -> Exception:
    """Return the error that a producer of aiokafka raises for one of ours."""
    found: Exception
    match error:
        case ClosedError():
            found = ProducerClosed()
        case FencedError():
            found = ProducerFenced(str(error))
        case TransactionStateError():
            found = IllegalOperation(str(error))
        case ApiError() if error.code in _NOT_THE_OWNER and _is_of_commit(error):
            found = CommitFailedError(str(error))
        case _:
            return kafka_error(error)
    found.__cause__ = error
    return found


def _is_of_commit(error: ApiError) -> bool:
    return (error.path or "").partition("?")[0].endswith(":commit")


class TransactionalProducer(AsyncProducer):
    """An `AsyncProducer` of an adapter, which tells where a record of a transaction will be."""

    async def stage(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        headers: Any,
        timestamp_ms: int,
    ) -> int:
        """Take a record that nothing waits for into the open transaction; return its partition."""
        found = await self._take(topic, value, key, partition, headers, timestamp_ms, None)
        assert found is not None, "the producer has transactions"
        return found


class ProducerTransactions:
    """Transactions of one producer. Tasks may call at once: their calls take turns."""

    def __init__(self, producer: TransactionalProducer, client: AIOKafkaClient) -> None:
        self._producer = producer
        self._client = client
        self._turn = asyncio.Lock()
        self._by_hand: dict[str, ConsumerGroupMetadata] = {}
        """For groups without a consumer here: the offsets that the next commit has to find."""
        self._ending: asyncio.Task[None] | None = None
        """The last commit or abort, which goes on if the program gives up waiting for it."""

    @property
    def is_open(self) -> bool:
        """True from the begin of a transaction to its end, also if it can only be aborted."""
        return self._producer.has_open_transaction

    async def begin_life(self) -> None:
        """Fence the former producer with the same id."""
        async with self._call():
            await self._producer.init_transactions()

    async def begin(self) -> None:
        """Begin a transaction."""
        async with self._call():
            await self._producer.begin_transaction()

    async def flush(self) -> None:
        """Wait until all that is to be staged is staged."""
        async with self._call():
            await self._producer.flush()

    async def commit(self) -> None:
        """Commit the open transaction; it goes on if this call is cancelled."""
        await self._to_its_end(self._commit())

    async def abort(self) -> None:
        """Abort the open transaction; it goes on if this call is cancelled."""
        await self._to_its_end(self._abort())

    async def wait(self) -> None:
        """Wait for a commit or abort that nothing waits for any more."""
        async with self._turn:
            return

    async def send_offsets(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group_id: str
    ) -> None:
        """Commit offsets of a group with the open transaction."""
        async with self._call():
            group = await self._group(group_id, offsets)
            rows = [
                SdkPartition(*place, one.offset, metadata=one.metadata)
                for place, one in offsets.items()
            ]
            await self._producer.send_offsets_to_transaction(rows, group)

    async def _group(
        self, group_id: str, partitions: Mapping[TopicPartition, object]
    ) -> ConsumerGroupMetadata:
        """Return what the offsets of these partitions are compared with."""
        readers = _readers.get((self._client.cluster_id, group_id))
        if readers is not None:
            group = _lent(group_id, list(readers))
        else:
            group = self._by_hand.setdefault(group_id, ConsumerGroupMetadata(group_id))
        if group.member_id is None:
            unknown = [one for one in partitions if one not in group.expected]
            if unknown:
                group.expected.update(await self._client.committed(group_id, unknown))
        return group

    async def _commit(self) -> None:
        async with self._call():
            try:
                await self._producer.commit_transaction()
            except CommittingError as error:  # whoever repeats it would write it twice
                log.warning("transaction is committed, to be read later reason=%s", error)

    async def _abort(self) -> None:
        async with self._call():
            await self._producer.abort_transaction()

    async def _to_its_end(self, call: Coroutine[Any, Any, None]) -> None:
        self._ending = asyncio.get_running_loop().create_task(call)
        await asyncio.shield(self._ending)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        """Wait for this call's turn; raise the library's error for one of ours."""
        async with self._turn:
            try:
                yield
            except QuorumlogError as error:
                raise producer_error(error) from error


class TransactionContext:
    """A block whose end commits a transaction, and which an exception aborts."""

    def __init__(self, find: Callable[[], ProducerTransactions]) -> None:
        self._find = find

    async def __aenter__(self) -> Self:
        await self._find().begin()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        transactions = self._find()
        if exc_type is None:
            try:
                await transactions.commit()
            except Exception:
                if transactions.is_open:  # it was refused, and nothing of it is in doubt
                    await self._abort(transactions)
                raise
        else:
            await self._abort(transactions)

    async def _abort(self, transactions: ProducerTransactions) -> None:
        """Abort; a producer that is fenced lets the exception of its block out, as there."""
        try:
            await transactions.abort()
        except ProducerFenced:
            return


def _lent(group_id: str, readers: Sequence[PartitionReader]) -> ConsumerGroupMetadata:
    """Return the membership of the consumer that has read what is committed.

    Another one's would do for offsets of partitions that it got meanwhile, and reads again.
    """
    if len(readers) > 1:
        readers = [one for one in readers if one.is_read_here]
        if len(readers) != 1:
            msg = f"several consumers in group {group_id!r}: send offsets in the task that reads"
            raise IllegalOperation(msg)
    if not readers:
        msg = f"the consumer in group {group_id!r} is stopped: offsets are not committed behind it"
        raise CommitFailedError(msg)
    try:
        return readers[0].consumer_group_metadata()
    except ConfigError:
        raise
    except QuorumlogError as error:
        raise CommitFailedError(str(error)) from error
