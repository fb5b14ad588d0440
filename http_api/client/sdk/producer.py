"""`Producer`: writes records from any number of threads, batched, in order and once.

`produce` encodes a record and puts it into the open batch of its partition; worker threads send
batches and a thread of its own runs callbacks (`ProducerCore` decides, `BlockingShell` runs it).
"""

from __future__ import annotations

import atexit
import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from typing_extensions import Unpack, override

from http_api.client.client_errors import (
    OutcomeUnknownError,
    QuorumlogError,
)
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.producer_core import ProducerCore
from http_api.client.sdk.producer_settings import ProducerConfig, ProducerKeywords, is_idempotent
from http_api.client.sdk.producer_topics import TopicState
from http_api.client.sdk.producer_transactions import (
    ProducerTransaction,
    no_send,
    no_transactions,
)
from http_api.client.sdk.record_batch import SendResult
from http_api.client.sdk.record_fields import (
    RecordEncoder,
    check_partition,
    chosen_partition,
)
from http_api.client.sdk.record_types import (
    ConsumerGroupMetadata,
    Headers,
    NewRecord,
    Receipt,
    TopicPartition,
)
from http_api.client.sdk.settings import given_settings, read_settings
from http_api.client.sdk.steps import BlockingShell, Steps, stats_steps
from http_api.client.sdk.transaction_core import TransactionCore, TransactionPhase

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from http_api.client.transaction_calls import DecidedPosition, TransactionResult

T = TypeVar("T")

EXIT_FLUSH_S: Final = 10.0
"""Longest time for which the interpreter's exit waits for records to be written."""

OnDelivery = Callable[["QuorumlogError | None", Receipt], object]
"""Called once for a record, with the error or None; the receipt's offset is -1 with an error."""


class _BlockingResult(SendResult):
    """An outcome that one thread waits for, without waking any other."""

    __slots__ = ("_is_pending",)

    def __init__(self) -> None:
        super().__init__()
        self._is_pending = threading.Lock()
        self._is_pending.acquire()

    @override
    def settle(self, receipt: Receipt, error: QuorumlogError | None) -> None:
        super().settle(receipt, error)
        self._is_pending.release()

    def wait(self, timeout_s: float | None) -> bool:
        """Return True once the outcome is there, False after ``timeout_s`` seconds."""
        return self._is_pending.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))


_OPEN: Final[set[Producer]] = set()
"""Producers that were not closed; the interpreter's exit flushes them."""
_log = logging.getLogger("quorumlog.producer")


@atexit.register
def _close_all() -> None:
    for producer in list(_OPEN):
        try:
            producer.close(EXIT_FLUSH_S)
        except QuorumlogError as error:
            _log.error("records were not delivered at the end of the program: %s", error)


class Producer:
    """Writes records to topics; any number of threads may use one.

    ``Producer("host:8082", linger_ms=20)`` or ``Producer({"bootstrap.servers": …})``; settings are
    those of `ProducerConfig`. As a context it flushes at the end of the block.

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
        self._shell = BlockingShell(self._context)
        self._lock = self._shell.lock
        random = Random(secrets.randbits(64))
        self._core = ProducerCore(
            config, self._context, self._shell.now_s, random, is_idempotent=has_sequences
        )
        self._transactions = None
        if config.transactional_id is not None:
            self._transactions = TransactionCore(config, self._context, self._shell.now_s)
        self._fields = RecordEncoder(config).fields
        self._sealed_bytes_max = self._core.sealed_bytes_max
        self._choose = config.partitioner if callable(config.partitioner) else None
        self._runs_callbacks = False
        self._has_ended = threading.Event()
        """Set at the end of the first `close`."""
        if config.on_stats is not None and config.stats_interval_ms:
            stats = stats_steps(self._shell, config.on_stats, config.stats_interval_ms, self._stats)
            self._shell.start("stats", lambda: stats)
        _OPEN.add(self)

    def produce(
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
        """Take a record into the buffer, to be sent with others; returns before it is written.

        A record goes to ``partition``, else to that of its key, else where the ``partitioner`` puts
        it. Records of one partition are written in the order of the calls. Blocks while the buffer
        is full, and on the first use of a topic, each for up to ``max_block_ms``.

        Args:
            topic: The topic; it is created by its first record, unless the settings forbid it.
            value: None, bytes, or anything that is JSON; see ``value_format``.
            key: None, bytes, or anything that is JSON; see ``key_format``.
            partition: Number of the partition.
            headers: Pairs or a mapping of names and ``bytes``, ``str`` (as UTF-8) or None.
            timestamp: Milliseconds since 1970, or a datetime with a time zone.
            on_delivery: Called once, on a thread of the producer, in the order of the records of
                the partition, with ``(error or None, receipt)``. What it raises is logged.
            callback: Another name of ``on_delivery``.

        Raises:
            InvalidRecordError: The record can't be written as it is given.
            BufferFullError: The buffer stayed full for ``max_block_ms``.
            QuorumlogError: The topic could not be looked up or created.
            ClosedError: The producer is closed, or this is a forked process.
        """
        self._take(topic, value, key, partition, headers, timestamp, on_delivery or callback)

    def send(
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
        """Write a record at once and return its receipt; takes what `produce` takes.

        Raises:
            QuorumlogError: The record was not written, or (``outcome``) that is not known.
            OutcomeUnknownError: Not known within ``timeout`` seconds; it may still be written.
            TransactionStateError: The producer has transactions: a receipt comes with the commit.
        """
        if self._transactions is not None:
            raise no_send()
        result = _BlockingResult()
        self._take(topic, value, key, partition, headers, timestamp, result)
        if not result.wait(timeout):
            msg = f"the record for {topic} has no outcome yet after {timeout} s"
            raise OutcomeUnknownError(msg)
        return result.result()

    def _take(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Headers | None,
        timestamp: int | datetime | None,
        awaiting: OnDelivery | SendResult | None,
    ) -> None:
        """Encode a record, wait for room, and put it into the batch of its partition."""
        context, core = self._context, self._core
        if not context.is_usable:
            context.check_open()
        fields = self._fields(value, key, headers, timestamp)
        state = core.topics.by_name.get(topic)
        if state is None:
            state = self._learn(topic)
        parts = None
        if state.limits is not None:
            parts = core.parts_of(state.limits, fields, has_headers=headers is not None)
        if partition is not None:
            check_partition(partition)
        elif self._choose is not None:
            record = NewRecord(topic=topic, key=key, value=value, headers=headers)
            candidates, count = state.candidates, state.partitions
            partition = chosen_partition(self._choose, record, candidates, count)
        with self._lock:
            if self._transactions is not None:
                self._wait_for_transaction(self._transactions)
                self._transactions.put(state, partition, fields, awaiting, key, value, parts)
                self._transactions.bring_stagers(self._shell)
                return
            if core.buffered_bytes >= self._sealed_bytes_max:
                self._wait_for_room()
            if not context.is_usable:  # closed meanwhile: nothing would send the record
                context.check_open()
            core.put(state, partition, fields, awaiting, key, value, parts)
            if awaiting is not None and not self._runs_callbacks:
                self._run_callbacks(awaiting)
            if core.has_news:
                core.bring_worker(self._shell)

    def _run_callbacks(self, awaiting: OnDelivery | SendResult) -> None:
        """Start the thread of callbacks with the first one; the lock is held."""
        if not isinstance(awaiting, SendResult):
            self._runs_callbacks = True
            self._shell.start("callbacks", lambda: self._core.callback_steps(self._shell))

    def _learn(self, topic: str) -> TopicState:
        if not isinstance(topic, str) or not topic:
            msg = f"topic {topic!r}: expected a name"
            raise TypeError(msg)
        return self._shell.run(self._core.topics.learn(topic, self._config.max_block_ms / MS))

    def _wait_for_room(self) -> None:
        """Wait until the buffer has room; the lock is held."""
        core, context = self._core, self._context
        core.seal_all()
        core.bring_worker(self._shell)
        is_ready = self._shell.wait_until(
            lambda: core.buffered_bytes < self._sealed_bytes_max or not context.is_usable,
            self._config.max_block_ms / MS,
        )
        context.check_open()
        if not is_ready:
            raise core.buffer_full()

    def _wait_for_transaction(self, core: TransactionCore) -> None:
        """Wait until the open transaction takes a record; the lock is held."""
        self._context.check_open()
        core.check_open()
        core.check_room()
        if core.is_full:
            self._shell.wait_until(
                lambda: not (core.is_full and core.can_make_room and self._context.is_usable),
                self._config.max_block_ms / MS,
            )
            self._context.check_open()
            core.check_open()
            if core.is_full:
                raise self._core.buffer_full()

    def _stats(self) -> dict[str, Any]:
        return self._core.metrics()

    def flush(self, timeout: float | None = None) -> int:
        """Send everything now, wait for the outcomes of all earlier calls, and run their callbacks.

        In a transaction it waits until what is to be staged is staged; outcomes come with the end.
        Returns the number of records not settled yet: 0, unless ``timeout`` seconds passed.

        Raises:
            DeliveryError: Records without a callback failed since the last flush.
            ClosedError: The producer is closed, or this is a forked process.
        """
        self._context.check_open()
        if self._shell.is_own_thread():
            msg = "flush waits for callbacks, so a callback can't call it"
            raise RuntimeError(msg)
        if self._transactions is not None:
            self._shell.run(self._transactions.flush_steps(self._shell, timeout))
            return 0
        return self._flush(timeout)

    def _flush(self, timeout: float | None) -> int:
        core = self._core
        is_callback = self._shell.is_own_thread()
        with self._lock:
            batches = core.incomplete()
            core.seal_all()
            core.bring_worker(self._shell)
            self._shell.wait_until(
                lambda: core.is_idle if is_callback else core.has_completed(batches), timeout
            )
            failure, left = core.take_failure(), core.unsettled
        if failure is not None:
            raise failure
        return left

    def poll(self, timeout: float = 0) -> int:
        """Wait up to ``timeout`` seconds for an outcome; return 0.

        Callbacks run on a thread of their own, so this is not needed. It is here for programs that
        were written for other clients.
        """
        self._context.check_open()
        if timeout > 0:
            with self._lock:
                before = self._core.unsettled
                self._shell.wait_until(lambda: self._core.unsettled < before, timeout)
        return 0

    def partitions_for(self, topic: str) -> list[int]:
        """Return the partition numbers of a topic, which is created if it may be.

        Raises:
            QuorumlogError: It could not be looked up.
        """
        self._context.check_open()
        state = self._core.topics.by_name.get(topic) or self._learn(topic)
        return list(range(state.partitions))

    def metrics(self) -> dict[str, Any]:
        """Return counts since the producer was made, and what waits in it."""
        with self._lock:
            more = {} if self._transactions is None else self._transactions.metrics()
            return self._core.metrics() | more

    def __len__(self) -> int:
        """Return the number of records without an outcome, or whose callback has not run."""
        with self._lock:
            return self._core.unsettled + self._waiting()

    def _waiting(self) -> int:
        """Return the number of records of the open transaction."""
        return 0 if self._transactions is None else self._transactions.waiting

    def close(self, timeout: float | None = None) -> None:
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
            if not self._shell.is_own_thread():  # the first call waits for this one's callback
                self._has_ended.wait(timeout)
            return
        error: QuorumlogError | None = None
        try:
            if self._transactions is not None:
                self._shell.run(self._transactions.close_steps(timeout))
            self._flush(timeout)
        except QuorumlogError as failure:
            error = failure
        finally:
            with self._lock:
                self._core.give_up()
            self._shell.stop()
            _OPEN.discard(self)
            self._has_ended.set()
        with self._lock:
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

    def init_transactions(self, timeout: float | None = None) -> None:
        """Begin the producer's life: fence the one before, and learn its fate; see `last`.

        The first transaction does it, too. ``timeout`` is in seconds; None here and in the calls
        below: ``transaction_timeout_ms``.

        Raises:
            QuorumlogError: The id's home does not answer in time.
        """
        self._run_transaction(self._transactional().init_steps(timeout))

    def begin_transaction(self) -> None:
        """Begin a transaction: what is produced from here on is in it.

        Raises:
            TransactionStateError: The one before has no end yet.
            FencedError: A newer producer has the transactional id.
        """
        self._run_transaction(self._transactional().begin_steps(None))

    def send_offsets_to_transaction(
        self,
        offsets: Iterable[TopicPartition],
        group_metadata: ConsumerGroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets of a consumer's group with the open transaction.

        Args:
            offsets: The next offset of each partition, as `Consumer.position` returns them.
            group_metadata: What `Consumer.consumer_group_metadata` returns.
            timeout: Seconds.

        Raises:
            ConfigError: The transactions belong to another group.
        """
        core = self._transactional()
        self._run_transaction(core.offsets_steps(offsets, group_metadata, timeout))

    def commit_transaction(self, timeout: float | None = None) -> TransactionResult | None:
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
        return self._run_transaction(core.commit_steps(self._shell, timeout))

    def abort_transaction(self, timeout: float | None = None) -> None:
        """Abort the open transaction: no row of it is ever read.

        Raises:
            CommittingError: It was committed before, by a commit whose answer was lost.
            FencedError: A newer producer has the transactional id; this one is over.
            QuorumlogError: It is not known if it is aborted; repeat it.
        """
        self._run_transaction(self._transactional().abort_steps(timeout))

    def transaction(self, timeout: float | None = None) -> ProducerTransaction:
        """Return a context that begins a transaction, commits it, or aborts on an exception."""
        self._transactional()
        return ProducerTransaction(self, timeout)

    @property
    def has_open_transaction(self) -> bool:
        """True between the begin of a transaction and its commit or abort."""
        return self._transactional().state is TransactionPhase.OPEN

    def _transactional(self) -> TransactionCore:
        if self._transactions is None:
            raise no_transactions()
        return self._transactions

    def _run_transaction(self, steps: Steps[T]) -> T:
        self._context.check_open()
        return self._shell.run(steps)

    def __enter__(self) -> Self:
        self._context.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
