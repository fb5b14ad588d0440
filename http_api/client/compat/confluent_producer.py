"""`Producer` with confluent-kafka's interface, over the SDK's.

`Producer` translates arguments, errors and settings, and runs callbacks of a `PolledProducer`.
Differences from confluent-kafka:

- A key lands by its crc32, as with librdkafka's default partitioner; Java producers use murmur2. An
  empty key is hashed, too. Other partitioners are refused.
- Writes are idempotent unless ``enable.idempotence=False`` is set.
- A record that failed and has no callback is logged, and passed to ``error_cb``.
- In a transaction messages have offsets, and callbacks run, at its end; the first message of a
  topic waits for the topic's look-up. ``transaction.timeout.ms`` means nothing.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import RLock
from types import TracebackType
from typing import Any, Final, Self

from http_api.client.client_errors import (
    BufferFullError,
    ClosedError,
    FencedError,
    InvalidRecordError,
    QuorumlogError,
    TransactionStateError,
)
from http_api.client.compat.confluent_errors import (
    KafkaError,
    KafkaException,
    event_error,
    kafka_error,
    kafka_exceptions,
)
from http_api.client.compat.confluent_messages import ANY_PARTITION, Message, report_of
from http_api.client.compat.confluent_metadata import ClusterMetadata, read_cluster
from http_api.client.compat.confluent_settings import (
    OF_PRODUCER,
    client_settings,
    given_config,
    stats_json,
)
from http_api.client.compat.kafka_codes import LocalCode
from http_api.client.compat.polled_producer import PolledProducer, Report, report_error
from http_api.client.sdk.record_types import (
    ConsumerGroupMetadata,
    Receipt,
    Record,
    TopicPartition,
)
from raft_metadata.common.clock import SystemClock

DeliveryCallback = Callable[[KafkaError | None, Message], object]
QUESTION_S: Final = 60.0
"""Longest wait for an answer where the program sets no limit."""
EVENTS_MAX: Final = 1_000
"""Most errors and statistics that wait for a poll; the oldest are dropped."""
DEFAULTS: Final = {"delivery_timeout_ms": 300_000, "buffer_memory": 1 << 30}
"""librdkafka's defaults where the SDK has others."""
_MS: Final = 1_000
_now_ms: Final = SystemClock().wall_ms


class _EventQueue:
    """Errors and statistics that wait for a poll, the oldest dropped beyond `EVENTS_MAX`."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[Any], Any], Any]] = deque(maxlen=EVENTS_MAX)
        self.notify: Callable[[], None] = lambda: None

    def __bool__(self) -> bool:
        return bool(self.waiting)

    def put(self, callback: Callable[[Any], Any], argument: object) -> None:
        """Queue a call, and wake a thread that polls."""
        self.waiting.append((callback, argument))
        self.notify()

    def run(self) -> int:
        """Make the calls that wait, and return their number."""
        done = 0
        while self.waiting:
            callback, argument = self.waiting.popleft()
            done += 1
            callback(argument)
        return done


class Producer:
    """Producer whose callbacks run inside `poll` and `flush`. Any thread may use it."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        """Read the settings; nothing is sent before the first record.

        Args:
            config: Settings by librdkafka's names, and ``error_cb``, ``stats_cb``, ``on_delivery``,
                ``logger``.
            **keywords: Further settings, with underscores.

        Raises:
            KafkaException: A setting is unknown or can't be honoured (``_INVALID_ARG``).
        """
        settings = client_settings(given_config(config, keywords, "Producer"), OF_PRODUCER)
        callbacks = settings.callbacks
        self._on_delivery = callbacks.get("on_delivery")
        self._reports_errors_only = settings.reports_errors_only
        self._error_callback = callbacks.get("error_cb")
        self._credentials = settings.credentials
        self._messages_max = settings.messages_max
        self._room = 0
        self._events = _EventQueue()
        self._reports: deque[Report] = deque()
        """Batches whose callbacks are to be run; only the thread that serves takes from it."""
        self._serving = RLock()
        self._is_closed = False
        sdk_settings = {**DEFAULTS, **settings.sdk}
        sdk_settings |= {"value_format": "binary", "key_format": "binary", "max_block_ms": 0}
        self._is_transactional = sdk_settings.get("transactional_id") is not None
        if self._is_transactional:
            sdk_settings["max_block_ms"] = round(QUESTION_S * _MS)
        _add_callbacks(sdk_settings, callbacks, self._events)
        with kafka_exceptions("Producer"):
            self._sdk = PolledProducer(sdk_settings)
        self._sdk.has_events = self._events.__bool__
        self._events.notify = self._sdk.notify
        weakref.finalize(self, _abandon, self._sdk).atexit = False
        self._known, self._take, self._put = self._sdk.known, self._sdk.take, self._sdk.put
        if settings.logger is not None:
            self._sdk.use_logger(settings.logger)

    # records

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = ANY_PARTITION,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Take a message; it is sent with others, and its report comes from `poll` or `flush`.

        Args:
            topic: The topic; created by its first message, if the cluster allows it.
            value: Bytes, or a text that is encoded as UTF-8.
            key: The same; messages of one key go to one partition.
            partition: Number of the partition; -1: by the key, else one after the other.
            callback: The same as ``on_delivery``.
            on_delivery: Called with (error or None, message).
            timestamp: Milliseconds since 1970; 0: now.
            headers: Pairs or a dict of names and bytes, texts or None.

        Raises:
            BufferError: The queue is full: `poll`, and try again.
            KafkaException: The arguments are wrong.
            RuntimeError: The producer is closed.
        """
        if self._room <= 0:
            self._make_room()
        awaiting = on_delivery or callback or self._on_delivery
        if awaiting is not None and self._is_transactional:
            awaiting = self._ends_in_transaction(awaiting, time.monotonic())
        put = self._take if topic in self._known else self._put
        try:
            put(
                topic,
                value,
                key,
                None if partition == ANY_PARTITION else partition,
                headers,
                timestamp or _now_ms(),
                awaiting,
            )
        except QuorumlogError as error:
            raise _produce_error(error) from error
        self._room -= 1

    def _make_room(self) -> None:
        """Count the room again; raise BufferError if there is none."""
        self._room = self._messages_max - len(self._sdk)
        if self._room <= 0:
            self._sdk.push()
            raise _queue_full()

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = ANY_PARTITION,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Take several messages of one topic, and return the number of those that were taken.

        A message is a dict with ``value``, ``key``, ``partition``, ``timestamp`` and ``callback``.
        One that is not taken gets ``_error``, a `KafkaError`.
        """
        given: object = messages
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            msg = "messages must be a list of dicts"
            raise TypeError(msg)
        taken = 0
        for one in messages:
            try:
                self.produce(
                    topic,
                    one.get("value"),
                    one.get("key"),
                    one.get("partition", partition),
                    one.get("callback") or one.get("on_delivery") or on_delivery or callback,
                    timestamp=one.get("timestamp", 0),
                )
            except BufferError:
                one["_error"] = KafkaError(LocalCode.QUEUE_FULL)
            except KafkaException as error:
                one["_error"] = error.args[0]
            else:
                taken += 1
        return taken

    def poll(self, timeout: float | None = -1) -> int:
        """Run the callbacks that are due, and return their number.

        Waits up to ``timeout`` seconds for one (-1 or None: without end). An exception of a
        callback is raised from here; the callbacks behind it run in the next call.
        """
        if timeout == 0 and not (
            self._sdk.has_reports or self._reports or self._events.waiting or self._is_closed
        ):
            return 0
        self._check_open()
        return self._serve(_seconds(timeout))

    def _serve(self, timeout_s: float | None) -> int:
        """Run what is due; wait for something first if nothing is."""
        if self._reports or self._events:
            timeout_s = 0
        taken = self._sdk.take_reports(timeout_s)
        with self._serving:
            self._reports.extend(taken)
            return self._run_reports() + self._events.run()

    def _run_reports(self) -> int:
        done = 0
        only_errors = self._reports_errors_only
        while self._reports:
            report = self._reports[0]
            batch, error, latency_s = report.batch, report.error, report.latency_s
            for at, callback, key, value, timestamp_ms in report.rest:
                if only_errors and error is None:
                    continue
                done += 1
                offset = batch.base_offset + at if batch.base_offset >= 0 else -1001
                record = Record(
                    batch.topic,
                    batch.partition,
                    offset,
                    timestamp_ms or 0,
                    "create",
                    [],
                    _as_bytes(key),
                    _as_bytes(value),
                    -1,
                )
                callback(error, report_of(record, error, latency_s))
            if self._reports and self._reports[0] is report:  # else a callback's poll was here
                self._reports.popleft()
                self._sdk.end_report(report)
        return done

    def flush(self, timeout: float | None = -1) -> int:
        """Wait until every message has an outcome; run the callbacks; return how many have none.

        ``timeout`` is in seconds; -1 or None: without end.
        """
        self._check_open()
        limit_s = _seconds(timeout)
        until_s = None if limit_s is None else time.monotonic() + limit_s
        while True:
            self._sdk.push()
            self._serve(0)
            if not len(self._sdk):
                break
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            self._sdk.wait_settled(left_s)
        self._note_silent_failure()
        self._serve(0)
        return len(self)

    def purge(
        self,
        in_queue: bool = True,
        in_flight: bool = True,
        blocking: bool = True,
    ) -> None:
        """Fail the messages that wait; their reports, with ``_PURGE_…``, come from `poll`.

        ``in_queue`` stands for those that no request can have yet, ``in_flight`` for the others.
        ``blocking`` has no effect.
        """
        self._check_open()
        if not (in_queue or in_flight):
            return
        reports = self._sdk.purge(in_queue=in_queue, in_flight=in_flight)
        with self._serving:
            self._reports.extend(reports)
        self._sdk.take_failure()

    def __len__(self) -> int:
        """Return the number of messages without an outcome, or whose callback has not run."""
        return len(self._sdk)

    def __bool__(self) -> bool:
        return True

    def _note_silent_failure(self) -> None:
        failure = self._sdk.take_failure()
        if failure is not None:
            self._sdk.log.error("%s", failure)
            if self._error_callback is not None:
                error = report_error(failure.first)
                told = KafkaError(error.code(), str(failure), retriable=error.retriable())
                self._events.put(self._error_callback, told)

    # questions

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """Return the cluster's brokers and topics, or one topic; costs a request for each topic.

        Raises:
            KafkaException: No broker answers within ``timeout`` seconds.
        """
        self._check_open()
        wait_s = question_s(timeout)
        with kafka_exceptions("Producer"):
            return read_cluster(lambda call: self._sdk.ask(call, wait_s), topic)

    def cluster_id(self, timeout: float | None = -1) -> str:
        """Return the cluster's id; raises `KafkaException` if no broker answers in time."""
        from http_api.client import admin

        self._check_open()
        with kafka_exceptions("Producer"):
            return str(self._sdk.ask(admin.cluster(), question_s(timeout)).cluster_id)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replace user and password for new connections; used with ``sasl.mechanisms=PLAIN``."""
        self._credentials.replace(username, password)

    # transactions

    def init_transactions(self, timeout: float | None = -1) -> None:
        """Fence the producer's former life; waits up to ``timeout`` seconds, -1: a minute."""
        self._in_transaction("init_transactions")
        with self._transaction_errors():
            self._sdk.init_transactions(_limit(timeout))

    def begin_transaction(self) -> None:
        """Begin a transaction: what is produced from here on is in it."""
        self._in_transaction("begin_transaction")
        with self._transaction_errors():
            self._sdk.begin_transaction()

    def send_offsets_to_transaction(
        self, positions: Any, group_metadata: Any, timeout: float | None = -1
    ) -> None:
        """Commit a consumer's offsets with the open transaction.

        Args:
            positions: What `Consumer.position` returned.
            group_metadata: What `Consumer.consumer_group_metadata` returned.
            timeout: Seconds; -1: a minute.
        """
        self._in_transaction("send_offsets_to_transaction")
        with self._transaction_errors():
            offsets = [
                TopicPartition(one.topic, one.partition, one.offset, metadata=one.metadata or "")
                for one in positions
                if one.offset >= 0
            ]
            self._sdk.send_offsets_to_transaction(
                offsets, _metadata_of(group_metadata), _limit(timeout)
            )

    def commit_transaction(self, timeout: float | None = -1) -> None:
        """Commit the open transaction, and run its callbacks; it may be repeated."""
        self._in_transaction("commit_transaction")
        with self._transaction_errors():
            self._sdk.commit_transaction(_limit(timeout))

    def abort_transaction(self, timeout: float | None = -1) -> None:
        """Abort the open transaction, and run its callbacks."""
        self._in_transaction("abort_transaction")
        with self._transaction_errors():
            self._sdk.abort_transaction(_limit(timeout))

    def _in_transaction(self, call: str) -> None:
        """Raise unless the producer has a transactional id."""
        self._check_open()
        if not self._is_transactional:
            text = f"{call} requires transactional.id to be configured"
            raise KafkaException(KafkaError(KafkaError._NOT_CONFIGURED, text))  # noqa: SLF001 librdkafka's name

    @contextmanager
    def _transaction_errors(self) -> Iterator[None]:
        """Raise errors of the SDK as librdkafka says them."""
        try:
            yield
        except FencedError as error:
            fenced = KafkaError(KafkaError._FENCED, str(error), fatal=True)  # noqa: SLF001 librdkafka's name
            raise KafkaException(fenced) from error
        except QuorumlogError as error:
            is_state = isinstance(error, TransactionStateError)
            found = kafka_error(error, number=LocalCode.STATE if is_state else None)
            must_abort = not is_state and not error.retriable and self._sdk.has_open_transaction
            raise KafkaException(
                KafkaError(
                    found.code(),
                    str(error),
                    retriable=error.retriable,
                    txn_requires_abort=must_abort,
                )
            ) from error

    def _ends_in_transaction(self, callback: DeliveryCallback, began_s: float) -> Any:
        """Return the SDK's callback that calls the program's, at the end of its transaction."""

        def on_delivery(error: QuorumlogError | None, receipt: Receipt) -> None:
            failure = None if error is None else report_error(error)
            if failure is None and self._reports_errors_only:
                return
            known = receipt.offset is not None and receipt.offset >= 0
            record = Record(
                receipt.topic,
                receipt.partition,
                receipt.offset if known and receipt.offset is not None else -1001,
                receipt.timestamp or 0,
                "create",
                [],
                _as_bytes(receipt.key),
                _as_bytes(receipt.value),
                -1,
            )
            callback(failure, report_of(record, failure, time.monotonic() - began_s))

        return on_delivery

    # the end

    def close(self) -> bool:
        """Flush without a limit, run the callbacks, and end; return True. Not from a callback."""
        if self._is_closed:
            return True
        try:
            self.flush()
        finally:
            self._is_closed = True
            self._sdk.close(0)
        return True

    def _check_open(self) -> None:
        if self._is_closed:
            msg = "Producer has been closed"
            raise RuntimeError(msg)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _add_callbacks(
    sdk_settings: dict[str, Any],
    callbacks: Mapping[str, Callable[..., Any]],
    events: _EventQueue,
) -> None:
    """Have the SDK queue errors and statistics; nothing of it refers to the `Producer`."""
    on_error, on_stats = callbacks.get("error_cb"), callbacks.get("stats_cb")
    client_id = sdk_settings.get("client_id")
    if on_error is not None:
        sdk_settings["on_error"] = lambda error: events.put(on_error, event_error(error))
    if on_stats is not None:
        sdk_settings["on_stats"] = lambda metrics: events.put(
            on_stats, stats_json("producer", client_id, _now_ms(), metrics)
        )


def _abandon(producer: PolledProducer) -> None:
    """End a producer that the program dropped; one with unsettled messages ends at exit."""
    if not len(producer):
        producer.close(0)


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else timeout


def question_s(timeout: float | None) -> float:
    """Return the seconds in which a question is to be answered; -1 stands for a minute."""
    return QUESTION_S if timeout is None or timeout < 0 else timeout


def _as_bytes(given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    return given.encode() if isinstance(given, str) else bytes(given)  # type: ignore[call-overload]


def _queue_full() -> BufferError:
    return BufferError("Local: Queue full")


def _produce_error(error: QuorumlogError) -> Exception:
    """Return what `produce` raises for an error of the SDK."""
    if isinstance(error, BufferFullError):
        return _queue_full()
    if isinstance(error, ClosedError):
        return RuntimeError(f"Producer has been closed: {error}")
    if isinstance(error, InvalidRecordError):
        is_kind = "expected bytes or str" in str(error) or str(error).startswith("header")
        return TypeError(str(error)) if is_kind else KafkaException(kafka_error(error))
    return KafkaException(kafka_error(error))


def _limit(timeout: float | None) -> float | None:
    """Return a time limit as the SDK takes it."""
    return None if timeout is None or timeout < 0 else timeout


def _metadata_of(given: Any) -> ConsumerGroupMetadata:
    """Return a consumer's metadata as the SDK's producers take it."""
    if given.member_id is None and given.expected is not None:
        return ConsumerGroupMetadata(given.group_id, expected=given.expected)
    return ConsumerGroupMetadata(given.group_id, given.member_id or "", max(given.member_epoch, 0))
