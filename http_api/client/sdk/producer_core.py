"""The deciding core of `Producer` and `AsyncProducer`: batches, topics, work, and settlement. Pure.

`append` puts a record into the open batch of its partition. A batch that is full, old enough or
flushed is sealed into its `BatchQueue`. Workers run `work_steps`: each takes the next batch due
of any partition, or a topic to look up again, makes the request and reports the answer. Settled
batches come back through `_settle`, which frees their memory, answers `send`, and queues callbacks
for `callback_steps`.

The shell's lock is held wherever this runs. Time is an argument, or that of the shell.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

from http_api.client.calls import Call
from http_api.client.client_errors import (
    BufferFullError,
    DeliveryError,
    InvalidRecordError,
    OutcomeUnknownError,
    QuorumlogError,
)
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.delivery import (
    delivery_error,
    produce_call,
    report_answer,
    report_error,
)
from http_api.client.sdk.plain_sender import PlainSender
from http_api.client.sdk.producer_topics import ProducerTopics, TopicState
from http_api.client.sdk.record_batch import (
    RECORD_START,
    AwaitedRecord,
    BatchQueue,
    RecordBatch,
    SendResult,
)
from http_api.client.sdk.record_fields import RecordFields
from http_api.client.sdk.record_types import Receipt
from http_api.client.sdk.steps import CallBacks, Pause, Steps, steps_of
from http_api.client.sdk.value_splitting import SplitOutcome, split_record
from raft_metadata.common.errors import ErrorCode
from raft_metadata.common.record_placement import (
    Partitioner,
    partition_for_key,
)
from raft_metadata.common.sequenced_sender import InFlightBatch, SequencedSender

if TYPE_CHECKING:
    from http_api.client.metadata_calls import TopicLimits
    from http_api.client.sdk.producer_settings import ProducerConfig
    from http_api.client.sdk.steps import Shell

T = TypeVar("T")

WORKERS: Final = "worker"
WORKERS_MAX: Final = 64
LEADER_REQUESTS_MAX: Final = 2
"""Requests to one leader under way at once; so one that hangs holds up no other leader's."""
"""Requests of one producer under way at once."""
EXPIRY_MS: Final = 200
"""Time between two looks for records whose deadline has passed."""
OPEN_SHARE: Final = 4
"""Open batches take at most one part in so many of the buffer, sealed ones the rest."""
_PAST_MS: Final = 0
_FUTURE_MS: Final = 1 << 62
DELIVERY_BYTES: Final = 200
"""Memory of an awaited record beside its text: its `AwaitedRecord`, key, value and callback."""


@dataclass(frozen=True, slots=True)
class _SendBatch:
    queue: BatchQueue
    batch: InFlightBatch
    leader: str


@dataclass(frozen=True, slots=True)
class _LookUp:
    topic: TopicState


@dataclass(frozen=True, slots=True)
class _NewProducerId:
    sender: SequencedSender


Work = _SendBatch | _LookUp | _NewProducerId


@dataclass(slots=True)
class ProducerCounts:
    """Counts since the producer was made, for `metrics`."""

    records_sent: int = 0
    records_failed: int = 0
    requests: int = 0
    failed_requests: int = 0
    bytes_sent: int = 0


@dataclass(slots=True)
class Workers:
    """The workers of a producer."""

    count: int = 0
    idle: int = 0
    timer_ms: int | None = None
    """Earliest time at which an idle one wakes by itself; None: none does."""


class ProducerCore:
    """State of one producer, under its shell's lock."""

    def __init__(
        self,
        config: ProducerConfig,
        context: ClientContext,
        now_s: Callable[[], float],
        random: Random,
        *,
        is_idempotent: bool,
    ) -> None:
        self._config = config
        self._context = context
        self._now_s = now_s
        self._random = random
        self.topics = ProducerTopics(config, context, now_s, random, takes_id=is_idempotent)
        self.buffered_bytes = 0
        """Size of the sealed batches that are not settled, and of all awaited records."""
        self._sealed_records = 0
        """Records in sealed batches without an outcome, or whose callback has not run."""
        self.sealed_bytes_max = config.buffer_memory - config.buffer_memory // OPEN_SHARE
        """Value of `buffered_bytes` at which `produce` blocks."""
        self._batch_bytes = config.batch_size
        """Size at which a batch is full: less than the setting where many are open."""
        self._is_sticky = config.partitioner == Partitioner.STICKY.value
        self._open: dict[RecordBatch, TopicState] = {}
        """Open batches, the oldest first."""
        self._queues: dict[tuple[str, int], BatchQueue] = {}
        self._active: dict[BatchQueue, None] = {}
        """Queues with batches, the one that was given out the longest ago first."""
        self._incomplete: set[RecordBatch] = set()
        """Batches not settled, or whose callbacks have not run."""
        self._senders_without_id: set[SequencedSender] = set()
        self._next_expiry_ms = 0
        self._under_way: Counter[str] = Counter()
        """Requests under way by the URL of the leader; empty: it was not known."""
        self._completed: deque[tuple[RecordBatch, list[AwaitedRecord]]] = deque()
        """Settled batches whose callbacks are to be run."""
        self._failure: DeliveryError | None = None
        """About records without a callback that failed since `take_failure`."""
        self.counts = ProducerCounts()
        """Counts for `metrics`."""
        self.has_news = False
        """True if a worker may have to act, or to wake earlier, since the shell was notified."""
        self._has_settled = False
        """True if a batch was settled since the shell was notified."""
        self._workers = Workers()

    def now_ms(self) -> int:
        """Return the monotonic time in milliseconds."""
        return round(self._now_s() * MS)

    # records

    def put(
        self,
        topic: TopicState,
        partition: int | None,
        fields: RecordFields,
        awaiting: object,
        key: Any,
        value: Any,
        parts: Sequence[RecordFields] | None = None,
    ) -> None:
        """Put a record into the open batch of its partition, which is sealed once it is full.

        Args:
            topic: The record's topic.
            partition: Its partition; None: by its key, else the next in turn.
            fields: What is written.
            awaiting: The callback or `SendResult` that gets the outcome; None: nothing does.
            key: For the receipt, the key as the program gave it.
            value: For the receipt, the value as the program gave it.
            parts: What `parts_of` returned, to be written in place of the fields; None: the fields.
        """
        if parts is not None:
            self._put_parts(topic, partition, parts, awaiting, key, value)
            return
        key_format, value_format, text, view, timestamp_ms, _ = fields
        batch: RecordBatch | None
        if partition is None and view is None:
            batch = topic.keyless
            if batch is None or batch.queue is not None or not self._is_sticky:
                batch = self._next_keyless(topic)
        else:
            if partition is None:
                assert view is not None
                partition = partition_for_key(view, topic.partitions)
            batch = topic.open.get(partition)
            if batch is None:
                batch = self._open_batch(topic, partition)
        if (
            batch.value_format is not value_format or batch.key_format is not key_format
        ) and not batch.takes(key_format, value_format):
            self.seal(topic, batch)
            batch = self._open_batch(topic, batch.partition)
            batch.takes(key_format, value_format)
        buffer = batch.buffer
        buffer += RECORD_START
        buffer += text
        batch.count += 1
        if awaiting is not None:
            batch.awaited.append((batch.count - 1, awaiting, key, value, timestamp_ms))
            self.buffered_bytes += DELIVERY_BYTES
            if isinstance(awaiting, SendResult):
                self.seal(topic, batch)
                return
        if len(buffer) >= self._batch_bytes:
            self.seal(topic, batch)

    def parts_of(
        self, limits: TopicLimits, fields: RecordFields, *, has_headers: bool
    ) -> Sequence[RecordFields] | None:
        """Return the parts of a value that is too long for one record of its topic, else None.

        Needs no lock.

        Raises:
            InvalidRecordError: It can't be split either, or it is larger than the buffer.
        """
        size = len(fields[2])
        if size <= limits.max_message_bytes:
            return None
        if size > self._config.buffer_memory:
            msg = f"a record of {size} bytes: buffer_memory={self._config.buffer_memory}"
            raise InvalidRecordError(msg)
        part_id = f"{self._random.getrandbits(64):016x}"
        return split_record(fields, limits, part_id, has_headers=has_headers)

    def _put_parts(
        self,
        topic: TopicState,
        partition: int | None,
        parts: Sequence[RecordFields],
        awaiting: object,
        key: Any,
        value: Any,
    ) -> None:
        """Put the parts of a value into one partition."""
        if partition is None:
            view = parts[0][3]
            if view is None:
                partition = self._next_keyless(topic).partition
            else:
                partition = partition_for_key(view, topic.partitions)
        outcome = SplitOutcome(len(parts), awaiting)
        for part in parts[:-1]:
            self.put(topic, partition, part, outcome, None, None)
        self.put(topic, partition, parts[-1], outcome, key, value)

    def _next_keyless(self, topic: TopicState) -> RecordBatch:
        """Return the open batch that the next record without a partition and a key goes into."""
        number = topic.rotation.next_of(topic.candidates)
        topic.keyless = topic.open.get(number) or self._open_batch(topic, number)
        return topic.keyless

    def _open_batch(self, topic: TopicState, partition: int) -> RecordBatch:
        now_ms = self.now_ms()
        deadline_ms = now_ms + self._config.delivery_timeout_ms
        batch = topic.open[partition] = RecordBatch(topic.name, partition, now_ms, deadline_ms)
        self._open[batch] = topic
        self._limit_batches()
        self._incomplete.add(batch)
        self.has_news = True
        return batch

    def seal(self, topic: TopicState, batch: RecordBatch) -> None:
        """End the filling of a batch and queue it to be sent."""
        del topic.open[batch.partition]
        del self._open[batch]
        self._limit_batches()
        if not batch.count:
            self._incomplete.discard(batch)
            return
        place = (topic.name, batch.partition)
        queue = self._queues.get(place)
        if queue is None:
            queue = self._queues[place] = BatchQueue(*place, self._new_sender(), self._settle)
        queue.add(batch)
        self._sealed_records += batch.count
        self.buffered_bytes += batch.size_bytes
        self._active[queue] = None
        self.has_news = True

    def _limit_batches(self) -> None:
        share = self._config.buffer_memory // OPEN_SHARE // (len(self._open) or 1)
        self._batch_bytes = min(self._config.batch_size, share)

    def seal_due(self, now_ms: int) -> None:
        """Seal the open batches that have waited for ``linger_ms``."""
        until_ms = now_ms - self._config.linger_ms
        while self._open:
            batch, topic = next(iter(self._open.items()))
            if batch.opened_ms > until_ms:
                return
            self.seal(topic, batch)

    def seal_all(self) -> None:
        """Seal every open batch, whatever its age."""
        for batch, topic in list(self._open.items()):
            self.seal(topic, batch)

    def _new_sender(self) -> SequencedSender | PlainSender:
        producer_id = self.topics.producer_id
        return PlainSender() if producer_id is None else SequencedSender(producer_id)

    def _steps(self, call: Call[T], retry_s: float) -> Steps[T]:
        return steps_of(call, self._context, self._now_s, retry_s)

    # work

    def next_work(self, now_ms: int) -> Work | None:
        """Return what a worker should do next, marked as under way, or None."""
        self.seal_due(now_ms)
        if now_ms >= self._next_expiry_ms:
            self._expire(now_ms)
        if self._senders_without_id:
            return _NewProducerId(self._senders_without_id.pop())
        topic = self.topics.next_look_up()
        if topic is not None:
            return _LookUp(topic)
        for queue in self._active:
            leader = self._context.routes.leader(queue.topic, queue.partition) or ""
            if self._under_way[leader] >= LEADER_REQUESTS_MAX:
                continue
            batch = queue.due(now_ms, self._config.max_in_flight)
            if batch is not None:
                del self._active[queue]
                self._active[queue] = None
                return _SendBatch(queue, batch, leader)
        return None

    def _due_ms(self, now_ms: int) -> int | None:
        """Return the time at which there may be work without anything else happening, or None."""
        due = [each.not_before_ms for each in self._active if each.not_before_ms > now_ms]
        if self._open:
            due.append(next(iter(self._open)).opened_ms + self._config.linger_ms)
        return min(due, default=None)

    def _expire(self, now_ms: int) -> None:
        self._next_expiry_ms = now_ms + EXPIRY_MS
        for queue in list(self._active):
            sender = queue.sender
            sender.expire(now_ms)
            if isinstance(sender, SequencedSender) and sender.needs_producer_id:
                self._senders_without_id.add(sender)
            self._forget_if_idle(queue)
        self.topics.refresh(now_ms)

    def _forget_if_idle(self, queue: BatchQueue) -> None:
        if queue.sender.is_idle:
            self._active.pop(queue, None)

    def work_steps(self, shell: Shell) -> Steps[None]:
        """Do what is due, until the producer stops; several workers run these steps."""
        while not shell.is_stopping:
            now_ms = self.now_ms()
            work = self.next_work(now_ms)
            if self._has_settled:  # time was over for some records
                self._has_settled = False
                shell.notify()
            due_ms = self._due_ms(now_ms)
            if work is not None:
                if len(self._active) > 1 or self._needs_timer(due_ms):
                    self.bring_worker(shell)
                try:
                    yield from self._do(work)
                except Exception:  # a worker that ended would never be replaced
                    self._context.log.exception("work failed work=%r", work)
                shell.notify()
                self._has_settled = False
                continue
            if self._active:
                due_ms = min(due_ms or self._next_expiry_ms, self._next_expiry_ms)
            pause_s = None
            if due_ms is not None and self._needs_timer(due_ms):
                self._workers.timer_ms = due_ms
                pause_s = max(0.0, (due_ms - now_ms) / MS)
            self._workers.idle += 1
            yield Pause(pause_s, WORKERS)
            self._workers.idle -= 1
            if pause_s is not None and self._workers.timer_ms == due_ms:
                self._workers.timer_ms = None

    def _needs_timer(self, due_ms: int | None) -> bool:
        """Return True if no idle worker wakes by itself at this time."""
        return due_ms is not None and (
            self._workers.timer_ms is None or self._workers.timer_ms > due_ms
        )

    def bring_worker(self, shell: Shell) -> None:
        """Wake an idle worker, or start another one, to look at what is due."""
        self.has_news = False
        if self._workers.idle:
            shell.notify_one(WORKERS)
        elif self._workers.count < WORKERS_MAX:
            self._workers.count += 1
            shell.start(f"{WORKERS}-{self._workers.count}", lambda: self.work_steps(shell))

    def _do(self, work: Work) -> Steps[None]:
        match work:
            case _SendBatch(queue, batch, leader):
                self._under_way[leader] += 1
                try:
                    yield from self._send(queue, batch)
                finally:
                    self._under_way[leader] -= 1
            case _LookUp(topic):
                try:
                    yield from self.topics.learn(topic.name, 0.0)
                except QuorumlogError as error:
                    text = "look-up failed topic=%s reason=%s"
                    self._context.log.warning(text, topic.name, error)
            case _NewProducerId(sender):
                try:  # after a failure `_expire` tries again
                    spare = yield from self.topics.new_producer_id(0.0)
                except QuorumlogError as error:
                    self._context.log.warning("no new producer id reason=%s", error)
                else:
                    sender.spare_producer_id = spare
                    sender.expire(self.now_ms())

    def _send(self, queue: BatchQueue, batch: InFlightBatch) -> Steps[None]:
        call = produce_call(
            queue.topic,
            queue.partition,
            batch,
            self._config.acks,
            left_ms=batch.deadline_ms - self.now_ms(),
            request_timeout_ms=self._config.request_timeout_ms,
        )
        self.counts.requests += 1
        try:
            answer = yield from self._steps(call, 0.0)
        except QuorumlogError as error:
            is_written = False
            queue.end_attempt()
            report_error(queue, batch, error)
        except BaseException:  # a bug, or the end of its thread: the batch must not hang
            queue.end_attempt()
            report_error(queue, batch, OutcomeUnknownError("the attempt was interrupted"))
            raise
        else:
            queue.end_attempt()
            is_written = report_answer(queue, batch, answer)
            self.topics.note_answer(queue.topic, answer.topic_id, answer.partitions)
        if is_written:
            queue.has_written()
            self.counts.bytes_sent += len(batch.text)
        else:
            self.counts.failed_requests += 1
            self._failed(queue, batch)
        self._forget_if_idle(queue)

    def _failed(self, queue: BatchQueue, batch: InFlightBatch) -> None:
        config = self._config
        queue.pause(self.now_ms(), config.retry_backoff_ms, config.retry_backoff_max_ms)
        error = batch.error
        text = "produce failed topic=%s partition=%d records=%d outcome=%s reason=%s"
        outcome = None if error is None else error.outcome
        self._context.log.info(text, queue.topic, queue.partition, batch.count, outcome, error)
        if error is not None and error.code is ErrorCode.MESSAGE_TOO_LARGE:
            self.topics.note_refused_size(queue.topic)
        is_gone = error is not None and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        self.topics.note_failure(queue.topic, is_gone=is_gone)

    # outcomes

    def _settle(self, batch: RecordBatch) -> None:
        """Take a settled batch: free its memory, answer `send`, and queue its callbacks."""
        self._has_settled = True
        self.buffered_bytes -= batch.size_bytes + DELIVERY_BYTES * len(batch.awaited)
        error = None if batch.error is None else delivery_error(batch.error)
        awaited = batch.awaited
        if awaited and isinstance(awaited[-1][1], SendResult):  # a send ends its batch
            awaited = [*awaited[:-1], *self._settle_send(batch, awaited[-1], error)]
        if error is None:
            self.counts.records_sent += batch.count
        else:
            self.counts.records_failed += batch.count
            self._note_silent_failure(batch.count - len(batch.awaited), error)
        self._sealed_records -= batch.count - len(awaited)
        if awaited:
            self._completed.append((batch, awaited))
        else:
            self._complete(batch)

    def _settle_send(
        self, batch: RecordBatch, awaited: AwaitedRecord, error: QuorumlogError | None
    ) -> Sequence[AwaitedRecord]:
        """Settle what ends a batch: a `send`, or a part of a value, whose callback may be due."""
        at, result, key, value, timestamp_ms = awaited
        result.settle(_receipt(batch, awaited), error)
        if not isinstance(result, SplitOutcome):
            return ()
        silent = result.silent_error
        if silent is not None:
            self._note_silent_failure(1, silent)
        callback = result.callback
        return () if callback is None else ((at, callback, key, value, timestamp_ms),)

    def _note_silent_failure(self, count: int, error: QuorumlogError) -> None:
        if count:
            before = self._failure
            count += 0 if before is None else before.count
            self._failure = DeliveryError(count, error if before is None else before.first)

    def _complete(self, batch: RecordBatch) -> None:
        origin = batch.origin
        origin.parts_left -= 1
        if origin.parts_left == 0:
            self._incomplete.discard(origin)

    def callback_steps(self, shell: Shell) -> Steps[None]:
        """Run callbacks, in order, until the producer stops and none is left."""
        while self._completed or not shell.is_stopping:
            if not self._completed:
                yield Pause(None)
                continue
            batch, awaited = self._completed.popleft()
            error = None if batch.error is None else delivery_error(batch.error)
            yield CallBacks((each[1], (error, _receipt(batch, each))) for each in awaited)
            self.end_report(batch, len(awaited))
            shell.notify()

    @property
    def has_reports(self) -> bool:
        """True if `take_reports` would return something; a quick look, without the lock."""
        return bool(self._completed)

    def take_reports(self) -> Sequence[tuple[RecordBatch, list[AwaitedRecord]]]:
        """Take the settled batches whose callbacks are to be run, in place of `callback_steps`.

        The taker runs them, and calls `end_report` for each batch.
        """
        taken = tuple(self._completed)
        self._completed.clear()
        return taken

    def end_report(self, batch: RecordBatch, count: int) -> None:
        """Note that the ``count`` callbacks of a settled batch have run."""
        self._sealed_records -= count
        self._complete(batch)

    def purge(self, *, takes_open: bool, takes_sealed: bool) -> None:
        """Settle records that are left as failed; those that come later are written as ever.

        No request can have the records of open batches; it may have those of sealed ones.
        """
        if takes_open:
            for batch in self._open:
                batch.deadline_ms = _PAST_MS
            self.seal_all()
        for queue in list(self._active):
            queue.sender.expire(_FUTURE_MS if takes_sealed else _PAST_MS)
        self.has_news = True

    @property
    def unsettled(self) -> int:
        """Number of records without an outcome, or whose callback has not run."""
        return self._sealed_records + sum(batch.count for batch in self._open)

    @property
    def is_idle(self) -> bool:
        """True if every record has an outcome, even if callbacks are still to run."""
        return not self._open and not self._active

    def metrics(self) -> dict[str, Any]:
        """Return counts since the start, and what waits."""
        return {
            **asdict(self.counts),
            "records_waiting": self.unsettled,
            "buffered_bytes": self.buffered_bytes,
            "topics": len(self.topics.by_name),
            "workers": self._workers.count,
        }

    def buffer_full(self) -> BufferFullError:
        """Return the error for a buffer that stayed full."""
        return BufferFullError(
            f"the buffer was full for max_block_ms={self._config.max_block_ms}: "
            f"{self.unsettled} records with {self.buffered_bytes} bytes wait"
        )

    def incomplete(self) -> frozenset[RecordBatch]:
        """Return the batches that a flush has to wait for."""
        return frozenset(self._incomplete)

    def has_completed(self, batches: frozenset[RecordBatch]) -> bool:
        """Return True if none of these batches is left."""
        return self._incomplete.isdisjoint(batches)

    def take_failure(self) -> DeliveryError | None:
        """Return the error about records without a callback that failed since the last call."""
        failure, self._failure = self._failure, None
        return failure

    def give_up(self) -> None:
        """Settle every record that is left, because the producer is closed."""
        self.seal_all()
        for queue in list(self._active):
            queue.sender.give_up()
        self._active.clear()


def _receipt(batch: RecordBatch, awaited: AwaitedRecord) -> Receipt:
    at, _, key, value, timestamp_ms = awaited
    offset = batch.base_offset
    return Receipt(
        batch.topic,
        batch.partition,
        offset + at if offset >= 0 else offset,
        timestamp_ms,
        key,
        value,
    )
