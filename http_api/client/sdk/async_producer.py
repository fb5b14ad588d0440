"""`AsyncProducer`: the asyncio twin of `Producer`, with the same names and settings.

What waits is awaited; there is no thread. `ProducerCore` decides, `AsyncShell` runs it in tasks of
the event loop in which the producer is first used.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Self, TypeVar

from typing_extensions import Unpack, override

from http_api.client.client_errors import OutcomeUnknownError, QuorumlogError
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.producer_core import ProducerCore
from http_api.client.sdk.producer_settings import ProducerConfig, ProducerKeywords, is_idempotent
from http_api.client.sdk.producer_topics import TopicState
from http_api.client.sdk.producer_transactions import (
    AsyncProducerTransaction,
    no_send,
    no_transactions,
)
from http_api.client.sdk.record_batch import SendResult
from http_api.client.sdk.record_fields import RecordEncoder, check_partition, chosen_partition
from http_api.client.sdk.record_types import (
    ConsumerGroupMetadata,
    Headers,
    NewRecord,
    Receipt,
    TopicPartition,
)
from http_api.client.sdk.settings import given_settings, read_settings
from http_api.client.sdk.steps import AsyncShell, Steps, stats_steps
from http_api.client.sdk.transaction_core import TransactionCore, TransactionPhase

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from http_api.client.transaction_calls import DecidedPosition, TransactionResult

T = TypeVar("T")

OnDelivery = Callable[["QuorumlogError | None", Receipt], "Awaitable[object] | object"]
"""Called once for a record, with the error or None; a coroutine is awaited."""


class _AsyncResult(SendResult):
    """An outcome that one task awaits."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        super().__init__()
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @override
    def settle(self, receipt: Receipt, error: QuorumlogError | None) -> None:
        super().settle(receipt, error)
        if not self.future.done():
            self.future.set_result(None)


class AsyncProducer:
    """Writes records to topics, from the tasks of one event loop.

    Settings are those of `ProducerConfig`. As an async context it flushes at the end of the block.

    Raises:
        ConfigError: A setting is unknown or wrong; nothing is connected yet.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Mapping[str, object] | None = None,
        /,
        **settings: Unpack[ProducerKeywords],
    ) -> None:
        given = given_settings(bootstrap_servers, settings)
        config = read_settings(ProducerConfig, given)
        has_sequences = is_idempotent(config, is_given="enable_idempotence" in given)
        self._config = config
        self._context = ClientContext("producer", config)
        self._shell = AsyncShell(self._context)
        random = Random(secrets.randbits(64))
        self._core = ProducerCore(
            config, self._context, self._shell.now_s, random, is_idempotent=has_sequences
        )
        self._transactions = None
        if config.transactional_id is not None:
            self._transactions = TransactionCore(config, self._context, self._shell.now_s)
        self._fields = RecordEncoder(config).fields
        self._choose = config.partitioner if callable(config.partitioner) else None
        self._runs_callbacks = False
        self._runs_stats = False
        self._has_filled_batch = False
        self._learning: dict[str, asyncio.Lock] = {}
        self._has_ended = asyncio.Event()
        """Set at the end of the first `close`."""

    async def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        *,
        headers: Headers | None = None,
        timestamp: int | datetime | None = None,
        on_delivery: OnDelivery | None = None,
        callback: OnDelivery | None = None,
    ) -> None:
        """Take a record into the buffer, as `Producer.produce` does; waits for room only.

        Cancelling the wait leaves the record out; one that was taken is written.

        Raises:
            InvalidRecordError: The record can't be written as it is given.
            BufferFullError: The buffer stayed full for ``max_block_ms``.
            QuorumlogError: The topic could not be looked up or created.
            ClosedError: The producer is closed, or this is a forked process.
        """
        awaiting = on_delivery or callback
        await self._take(topic, value, key, partition, headers, timestamp, awaiting)

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        *,
        headers: Headers | None = None,
        timestamp: int | datetime | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Write a record at once and return its receipt, as `Producer.send` does.

        Raises:
            QuorumlogError: The record was not written, or (``outcome``) that is not known.
            OutcomeUnknownError: Not known within ``timeout`` seconds; it may still be written.
            TransactionStateError: The producer has transactions: a receipt comes with the commit.
        """
        if self._transactions is not None:
            raise no_send()
        result = _AsyncResult()
        await self._take(topic, value, key, partition, headers, timestamp, result)
        try:
            async with asyncio.timeout(timeout):
                await result.future
        except TimeoutError:
            msg = f"the record for {topic} has no outcome yet after {timeout} s"
            raise OutcomeUnknownError(msg) from None
        return result.result()

    async def _take(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers | None,
        timestamp: int | datetime | None,
        awaiting: OnDelivery | SendResult | None,
    ) -> int | None:
        """Encode a record, wait for room, and put it into the batch of its partition.

        Returns the partition in a transaction, else None.
        """
        context, core = self._context, self._core
        context.check_open()
        fields = self._fields(value, key, headers, timestamp)
        state = core.topics.by_name.get(topic)
        if state is None:
            state = await self._learn(topic)
        parts = None
        if state.limits is not None:
            parts = core.parts_of(state.limits, fields, has_headers=headers is not None)
        if partition is not None:
            check_partition(partition)
        elif self._choose is not None:
            record = NewRecord(topic=topic, key=key, value=value, headers=headers)
            candidates, count = state.candidates, state.partitions
            partition = chosen_partition(self._choose, record, candidates, count)
        if self._has_filled_batch:
            self._has_filled_batch = False
            await asyncio.sleep(0)  # let the workers run, even if the program never waits
        if self._transactions is not None:
            await self._wait_for_transaction(self._transactions)
            place = self._transactions.put(state, partition, fields, awaiting, key, value, parts)
            self._transactions.bring_stagers(self._shell)
            return place
        while core.buffered_bytes >= core.sealed_bytes_max:
            await self._wait_for_room()
        context.check_open()
        core.put(state, partition, fields, awaiting, key, value, parts)
        if awaiting is not None and not isinstance(awaiting, SendResult):
            self._run_callbacks()
        if core.has_news:
            self._has_filled_batch = True
            core.bring_worker(self._shell)
        return None

    def _run_callbacks(self) -> None:
        if not self._runs_callbacks:
            self._runs_callbacks = True
            self._shell.start("callbacks", lambda: self._core.callback_steps(self._shell))

    async def _learn(self, topic: str) -> TopicState:
        """Look up a topic, once for all tasks that wait for it."""
        if not isinstance(topic, str) or not topic:
            msg = f"topic {topic!r}: expected a name"
            raise TypeError(msg)
        async with self._learning.setdefault(topic, asyncio.Lock()):
            known = self._core.topics.by_name.get(topic)
            if known is None:
                retry_s = self._config.max_block_ms / MS
                known = await self._shell.run(self._core.topics.learn(topic, retry_s))
        self._learning.pop(topic, None)
        config = self._config
        if config.on_stats is not None and config.stats_interval_ms and not self._runs_stats:
            self._runs_stats = True
            stats = stats_steps(
                self._shell, config.on_stats, config.stats_interval_ms, self.metrics
            )
            self._shell.start("stats", lambda: stats)
        return known

    async def _wait_for_room(self) -> None:
        core, context = self._core, self._context
        core.seal_all()
        core.bring_worker(self._shell)
        is_ready = await self._shell.wait_until(
            lambda: core.buffered_bytes < core.sealed_bytes_max or not context.is_usable,
            self._config.max_block_ms / MS,
        )
        context.check_open()
        if not is_ready:
            raise core.buffer_full()

    async def _wait_for_transaction(self, core: TransactionCore) -> None:
        """Wait until the open transaction takes a record."""
        self._context.check_open()
        core.check_open()
        core.check_room()
        if core.is_full:
            await self._shell.wait_until(
                lambda: not (core.is_full and core.can_make_room and self._context.is_usable),
                self._config.max_block_ms / MS,
            )
            self._context.check_open()
            core.check_open()
            if core.is_full:
                raise self._core.buffer_full()

    async def flush(self, timeout: float | None = None) -> int:
        """Send everything now, wait for the outcomes of all earlier calls and for their callbacks.

        In a transaction it waits until what is to be staged is staged; outcomes come with the end.
        Returns the number of records not settled yet: 0, unless ``timeout`` seconds passed.

        Raises:
            DeliveryError: Records without a callback failed since the last flush.
            ClosedError: The producer is closed, or this is a forked process.
        """
        self._context.check_open()
        if self._shell.is_own_task():
            msg = "flush waits for callbacks, so a callback can't call it"
            raise RuntimeError(msg)
        if self._transactions is not None:
            await self._shell.run(self._transactions.flush_steps(self._shell, timeout))
            return 0
        return await self._flush(timeout)

    async def _flush(self, timeout: float | None) -> int:
        core = self._core
        is_callback = self._shell.is_own_task()
        batches = core.incomplete()
        core.seal_all()
        if batches:
            core.bring_worker(self._shell)
        await self._shell.wait_until(
            lambda: core.is_idle if is_callback else core.has_completed(batches), timeout
        )
        failure = core.take_failure()
        if failure is not None:
            raise failure
        return core.unsettled

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic, which is created if it may be.

        Raises:
            QuorumlogError: It could not be looked up.
        """
        self._context.check_open()
        state = self._core.topics.by_name.get(topic) or await self._learn(topic)
        return list(range(state.partitions))

    def metrics(self) -> dict[str, Any]:
        """Return counts since the producer was made, and what waits in it."""
        more = {} if self._transactions is None else self._transactions.metrics()
        return self._core.metrics() | more

    def __len__(self) -> int:
        """Return the number of records without an outcome, or whose callback has not run."""
        waiting = 0 if self._transactions is None else self._transactions.waiting
        return self._core.unsettled + waiting

    async def close(self, timeout: float | None = None) -> None:
        """Flush for up to ``timeout`` seconds, then end; a second call only waits for the first.

        Records that have no outcome then fail, with ``outcome`` ``"unknown"`` where they may have
        been written. In a callback it does not wait for other callbacks. An open transaction is
        aborted.

        Raises:
            DeliveryError: Records without a callback failed since the last flush.
        """
        if self._context.is_forked:
            return
        if not self._context.close():
            if not self._shell.is_own_task():  # the first call waits for this one's callback
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(timeout):
                        await self._has_ended.wait()
            return
        error: QuorumlogError | None = None
        try:
            if self._transactions is not None:
                await self._shell.run(self._transactions.close_steps(timeout))
            await self._flush(timeout)
        except QuorumlogError as failure:
            error = failure
        finally:
            self._core.give_up()
            try:
                await self._shell.stop()
            finally:
                self._has_ended.set()
        error = error or self._core.take_failure()
        if error is not None:
            raise error

    # transactions

    @property
    def last(self) -> DecidedPosition | None:
        """Fate of the newest position of the producer's life before this one.

        None if nothing was decided, and before the first use in a transaction.
        """
        return self._transactional().last

    async def init_transactions(self, timeout: float | None = None) -> None:
        """Begin the producer's life: fence the one before, and learn its fate; see `last`.

        The first transaction does it, too. ``timeout`` is in seconds; None here and in the calls
        below: ``transaction_timeout_ms``.

        Raises:
            QuorumlogError: The id's home does not answer in time.
        """
        await self._run_transaction(self._transactional().init_steps(timeout))

    async def begin_transaction(self) -> None:
        """Begin a transaction: what is produced from here on is in it.

        Raises:
            TransactionStateError: The one before has no end yet.
            FencedError: A newer producer has the transactional id.
        """
        await self._run_transaction(self._transactional().begin_steps(None))

    async def send_offsets_to_transaction(
        self,
        offsets: Iterable[TopicPartition],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets of a consumer's group with the open transaction.

        Args:
            offsets: The next offset of each partition, as `AsyncConsumer.position` returns them.
            group_metadata: What `AsyncConsumer.consumer_group_metadata` returns.
            timeout: Seconds.

        Raises:
            ConfigError: The transactions belong to another group.
        """
        core = self._transactional()
        await self._run_transaction(core.offsets_steps(offsets, group_metadata, timeout))

    async def commit_transaction(self, timeout: float | None = None) -> TransactionResult | None:
        """Commit the open transaction, and run the callbacks of its records.

        It may be repeated until its outcome is known. Returns the broker's answer; None for an
        empty transaction.

        Raises:
            CommittingError: It is committed, and not all can be read within ``timeout`` seconds.
            OutcomeUnknownError: Not known in time: repeat it, or abort.
            FencedError: A newer producer has the transactional id; this one is over.
            QuorumlogError: It was refused: abort, unless the error is ``retriable``.
        """
        core = self._transactional()
        return await self._run_transaction(core.commit_steps(self._shell, timeout))

    async def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the open transaction: no row of it is ever read.

        Raises:
            CommittingError: It was committed before, by a commit whose answer was lost.
            FencedError: A newer producer has the transactional id; this one is over.
            QuorumlogError: It is not known if it is aborted; repeat it.
        """
        await self._run_transaction(self._transactional().abort_steps(timeout))

    def transaction(self, timeout: float | None = None) -> AsyncProducerTransaction:
        """Return a context that begins a transaction, commits it, or aborts on an exception."""
        self._transactional()
        return AsyncProducerTransaction(self, timeout)

    @property
    def has_open_transaction(self) -> bool:
        """True between the begin of a transaction and its commit or abort."""
        return self._transactional().state is TransactionPhase.OPEN

    def _transactional(self) -> TransactionCore:
        if self._transactions is None:
            raise no_transactions()
        return self._transactions

    async def _run_transaction(self, steps: Steps[T]) -> T:
        self._context.check_open()
        return await self._shell.run(steps)

    async def __aenter__(self) -> Self:
        self._context.check_open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
