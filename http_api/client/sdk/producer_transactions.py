"""`with producer.transaction() as txn`: a transaction as a block, for both producers.

The end of the block commits, an exception aborts. If the commit is refused, the transaction is
aborted, too, and the refusal raised; if its outcome is not known, the producer's
`commit_transaction` may be repeated, which says the same again.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from http_api.client.client_errors import QuorumlogError, TransactionStateError

if TYPE_CHECKING:
    from types import TracebackType

    from http_api.client.sdk.record_types import ConsumerGroupMetadata, TopicPartition
    from http_api.client.transaction_calls import TransactionResult

_log: Final = logging.getLogger("quorumlog.producer")


class _Transactional(Protocol):
    """Methods of a `Producer` that a block needs; the producer makes the blocks itself."""

    @property
    def has_open_transaction(self) -> bool: ...
    @property
    def produce(self) -> Callable[..., None]: ...
    def begin_transaction(self) -> None: ...
    def send_offsets_to_transaction(
        self,
        offsets: Iterable[TopicPartition],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None: ...
    def commit_transaction(self, timeout: float | None = None) -> TransactionResult | None: ...
    def abort_transaction(self, timeout: float | None = None) -> None: ...


class _AsyncTransactional(Protocol):
    """The same of an `AsyncProducer`."""

    @property
    def has_open_transaction(self) -> bool: ...
    @property
    def produce(self) -> Callable[..., Awaitable[None]]: ...
    async def begin_transaction(self) -> None: ...
    async def send_offsets_to_transaction(
        self,
        offsets: Iterable[TopicPartition],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None: ...
    async def commit_transaction(
        self, timeout: float | None = None
    ) -> TransactionResult | None: ...
    async def abort_transaction(self, timeout: float | None = None) -> None: ...


def no_transactions() -> TransactionStateError:
    """Return the error of a producer that has no transactional id."""
    msg = "the producer has no transactions: expected the setting transactional_id"
    return TransactionStateError(msg)


def no_send() -> TransactionStateError:
    """Return the error of a `send` whose receipt would not come before the commit."""
    msg = "send waits for a receipt, which a transaction has at its commit: use produce"
    return TransactionStateError(msg)


class ProducerTransaction:
    """A transaction of a `Producer`, used as a context once."""

    def __init__(self, producer: _Transactional, timeout_s: float | None) -> None:
        self._producer = producer
        self._timeout_s = timeout_s
        self.result: TransactionResult | None = None
        """Answer of the commit; None before, and for an empty transaction."""

    def produce(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> None:
        """Add a record; takes what `Producer.produce` takes."""
        self._producer.produce(topic, value, key, **options)

    def send_offsets(
        self, offsets: Iterable[TopicPartition], group_metadata: ConsumerGroupMetadata
    ) -> None:
        """Commit offsets with the transaction; see `Producer.send_offsets_to_transaction`."""
        self._producer.send_offsets_to_transaction(offsets, group_metadata, self._timeout_s)

    def __enter__(self) -> Self:
        self._producer.begin_transaction()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self.result = self._producer.commit_transaction(self._timeout_s)
            except QuorumlogError:
                if self._producer.has_open_transaction:
                    self._abort()
                raise
        else:
            self._abort()

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(self._timeout_s)
        except QuorumlogError as failure:
            _log.warning("transaction is not known to be aborted: %s", failure)


class AsyncProducerTransaction:
    """A transaction of an `AsyncProducer`, used as a context once."""

    def __init__(self, producer: _AsyncTransactional, timeout_s: float | None) -> None:
        self._producer = producer
        self._timeout_s = timeout_s
        self.result: TransactionResult | None = None
        """Answer of the commit; None before, and for an empty transaction."""

    async def produce(self, topic: str, value: Any = None, key: Any = None, **options: Any) -> None:
        """Add a record; takes what `AsyncProducer.produce` takes."""
        await self._producer.produce(topic, value, key, **options)

    async def send_offsets(
        self, offsets: Iterable[TopicPartition], group_metadata: ConsumerGroupMetadata
    ) -> None:
        """Commit offsets with the transaction."""
        await self._producer.send_offsets_to_transaction(offsets, group_metadata, self._timeout_s)

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            try:
                self.result = await self._producer.commit_transaction(self._timeout_s)
            except QuorumlogError:
                if self._producer.has_open_transaction:
                    await self._abort()
                raise
        else:
            await self._abort()

    async def _abort(self) -> None:
        try:
            await self._producer.abort_transaction(self._timeout_s)
        except QuorumlogError as failure:
            _log.warning("transaction is not known to be aborted: %s", failure)
