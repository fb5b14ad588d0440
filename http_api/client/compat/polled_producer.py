"""`PolledProducer`: the SDK's producer for an interface that never waits and runs callbacks itself.

It differs in two things. Callbacks wait until the owner takes them, a settled batch at a time; no
thread runs them. And a record of a topic that is not known yet is held until the topic is looked
up or created in the background, or until its time is over; so `put` never makes a request.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from typing_extensions import override

from http_api.client.calls import Call
from http_api.client.client_errors import (
    ApiError,
    DeliveryError,
    OutcomeUnknownError,
    QuorumlogError,
)
from http_api.client.compat.confluent_errors import KafkaError, kafka_error
from http_api.client.compat.kafka_codes import LocalCode, kafka_number
from http_api.client.sdk import producer as sdk
from http_api.client.sdk.delivery import delivery_error
from http_api.client.sdk.record_batch import AwaitedRecord, RecordBatch
from http_api.client.sdk.record_fields import RecordFields, check_partition
from http_api.client.sdk.steps import CallBacks, Pause, Steps, steps_of

LOOK_UP_S: Final = 1.0
"""Time for one attempt at looking a topic up, and between two."""
MS: Final = 1_000


@dataclass(slots=True, eq=False)
class Report:
    """A settled batch whose callbacks are to be run, and those that have not run yet."""

    batch: RecordBatch
    rest: Iterator[AwaitedRecord]
    count: int
    error: KafkaError | None
    latency_s: float
    was_held: bool = False
    """True for records that never reached the core: their topic could not be looked up."""


@dataclass(slots=True)
class HeldTopic:
    """Records that wait for the look-up of their topic, in order; each with what `put` needs."""

    began_s: float
    records: list[tuple[int | None, RecordFields, Any, Any, Any]] = field(default_factory=list)


class PolledProducer(sdk.Producer):
    """A producer of the SDK whose outcomes wait until they are taken. Any thread may use it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__(None, **settings)
        self._runs_callbacks = True  # by `take_reports`: no thread is started for them
        self.has_events: Callable[[], bool] = lambda: False
        """Returns True if the owner has something else to run; a wait for reports ends then."""
        self.known: Final[set[str]] = set()
        """Topics that were looked up, and whose held records were passed on."""
        self.take: Final[Callable[..., None]] = self._take
        """Takes a record of a known topic; the arguments are those of `put`."""
        self._held: dict[str, HeldTopic] = {}
        self._held_count = 0
        """Held records, and those that failed so and whose callbacks have not run."""
        self._held_reports: deque[Report] = deque()
        self._held_failure: DeliveryError | None = None

    # records

    def put(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Any,
        timestamp: int,
        awaiting: Any,
    ) -> None:
        """Take a record of any topic, and hold it if the topic is not known.

        Raises what the SDK's `produce` does.
        """
        waits = self._transactions is not None  # for the look-up: nothing may be held back
        if waits or not self._hold(topic, value, key, partition, headers, timestamp, awaiting):
            self._take(topic, value, key, partition, headers, timestamp, awaiting)

    def _hold(
        self,
        topic: object,
        value: Any,
        key: Any,
        partition: int | None,
        headers: Any,
        timestamp: int,
        awaiting: Any,
    ) -> bool:
        """Hold a record for the look-up of its topic; return False if the topic is known."""
        if not isinstance(topic, str) or not topic:
            msg = f"argument 1 must be str, not {type(topic).__name__}"
            raise TypeError(msg)
        self._context.check_open()
        if partition is not None:
            check_partition(partition)
        fields = self._fields(value, key, headers, timestamp)
        with self._lock:
            held = self._held.get(topic)
            if held is None:
                if topic in self._core.topics.by_name:
                    self.known.add(topic)
                    return False
                held = self._held[topic] = HeldTopic(self._shell.now_s())
                self._shell.start(f"topic {topic}", partial(self._look_up_steps, topic, held))
            held.records.append((partition, fields, awaiting, key, value))
            self._held_count += 1
        return True

    def _look_up_steps(self, topic: str, held: HeldTopic) -> Steps[None]:
        """Look a topic up until its first record's time is over; then pass its records on."""
        until_s = held.began_s + self._config.delivery_timeout_ms / MS
        failure: QuorumlogError | None = None
        while not self._shell.is_stopping:
            left_s = until_s - self._shell.now_s()
            try:
                yield from self._core.topics.learn(topic, max(0.0, min(left_s, LOOK_UP_S)))
            except QuorumlogError as error:
                is_refused = isinstance(error, ApiError) and error.status < 500
                if failure is None:
                    yield CallBacks([(self._context.report, (error,))])
                failure = error
                if is_refused or left_s <= 0:
                    break
                yield Pause(min(left_s, LOOK_UP_S))
            else:
                failure = None
                break
        del self._held[topic]
        if topic in self._core.topics.by_name and failure is None:
            state = self._core.topics.by_name[topic]
            self._held_count -= len(held.records)
            for number, fields, awaiting, key, value in held.records:
                self._core.put(state, number, fields, awaiting, key, value)
            self._core.bring_worker(self._shell)
            self.known.add(topic)
        else:
            self._fail_held(topic, held, failure or QuorumlogError("the producer was closed"))
        self._shell.notify()

    def _fail_held(self, topic: str, held: HeldTopic, failure: QuorumlogError) -> None:
        """Report held records as failed; the lock is held."""
        batch = RecordBatch(topic, -1, round(held.began_s * MS), 0)
        awaited: list[AwaitedRecord] = [
            (at, awaiting, key, value, fields[4])
            for at, (_, fields, awaiting, key, value) in enumerate(held.records)
            if awaiting is not None
        ]
        silent = len(held.records) - len(awaited)
        self._held_count -= silent
        if silent:
            self._held_failure = DeliveryError(silent, failure)
        if awaited:
            error, latency_s = report_error(failure), self._shell.now_s() - held.began_s
            report = Report(batch, iter(awaited), len(awaited), error, latency_s, was_held=True)
            self._held_reports.append(report)
        held.records = []

    @override
    def __len__(self) -> int:
        """Return the number of records without an outcome, or whose callback has not run."""
        with self._lock:
            return self._unsettled()

    def _unsettled(self) -> int:
        return self._core.unsettled + self._held_count

    # reports

    @property
    def has_reports(self) -> bool:
        """True if `take_reports` would return something at once."""
        return self._core.has_reports or bool(self._held_reports)

    def take_reports(self, timeout_s: float | None) -> list[Report]:
        """Return settled batches with callbacks; wait for one, or for all to be settled."""
        with self._lock:
            if timeout_s is None or timeout_s > 0:
                self._shell.wait_until(
                    lambda: self.has_reports or self.has_events() or not self._context.is_usable,
                    timeout_s,
                )
            return self._taken()

    def _taken(self) -> list[Report]:
        reports = [self._report(*taken) for taken in self._core.take_reports()]
        reports += self._held_reports
        self._held_reports.clear()
        return reports

    def _report(self, batch: RecordBatch, awaited: list[AwaitedRecord]) -> Report:
        error = None if batch.error is None else report_error(delivery_error(batch.error))
        latency_s = (self._core.now_ms() - batch.opened_ms) / MS
        return Report(batch, iter(awaited), len(awaited), error, latency_s)

    def end_report(self, report: Report) -> None:
        """Count the callbacks of a batch as run."""
        with self._lock:
            if report.was_held:
                self._held_count -= report.count
            else:
                self._core.end_report(report.batch, report.count)
            self._shell.notify()

    def push(self) -> None:
        """Send what was taken without waiting for more."""
        with self._lock:
            self._core.seal_all()
            self._core.bring_worker(self._shell)

    def wait_settled(self, timeout_s: float | None) -> None:
        """Wait until there is a report, or every record has an outcome."""
        with self._lock:
            had_held = bool(self._held)
            self._shell.wait_until(
                lambda: (
                    self.has_reports
                    or self.has_events()
                    or self._is_settled()
                    or (had_held and not self._held)
                ),  # they are in open batches now: `push`
                timeout_s,
            )

    def _is_settled(self) -> bool:
        return self._core.is_idle and not self._held

    def purge(self, *, in_queue: bool, in_flight: bool) -> list[Report]:
        """Settle records as purged, and return all reports; those of earlier outcomes come first.

        A request that is under way is not taken back: its records may be written.
        """
        core = self._core
        with self._lock:
            reports = self._taken()
            core.purge(takes_open=in_queue, takes_sealed=in_flight)
            for topic, held in self._held.items() if in_queue else ():
                self._fail_held(topic, held, QuorumlogError("purged"))
            for report in self._taken():
                failure = report.batch.error
                is_doubtful = failure is not None and isinstance(
                    delivery_error(failure), OutcomeUnknownError
                )
                code = LocalCode.PURGE_INFLIGHT if is_doubtful else LocalCode.PURGE_QUEUE
                report.error = KafkaError(code)
                reports.append(report)
            core.bring_worker(self._shell)
        return reports

    def take_failure(self) -> DeliveryError | None:
        """Return the error about failed records that nothing reports."""
        with self._lock:
            failure, self._held_failure = self._held_failure, None
            return failure or self._core.take_failure()

    # the rest

    @property
    def log(self) -> logging.Logger:
        """The logger of this producer."""
        return self._context.log

    def use_logger(self, logger: logging.Logger) -> None:
        """Log to another logger than ``quorumlog.producer`` from now on."""
        self._context.log = logger

    def notify(self) -> None:
        """Wake a thread that waits for reports; called without the lock."""
        with self._lock:
            self._shell.notify()

    def ask(self, call: Call[Any], timeout_s: float) -> Any:
        """Make a call to the cluster and return its result."""
        self._context.check_open()
        return self._shell.run(steps_of(call, self._context, self._shell.now_s, timeout_s))

    @override
    def _flush(self, timeout: float | None) -> int:
        """Wait for outcomes only: callbacks that nothing polls for any more do not run."""
        self.push()
        with self._lock:
            self._shell.wait_until(lambda: not self._held, timeout)
        self.push()
        with self._lock:
            self._shell.wait_until(self._is_settled, timeout)
            return self._unsettled()


def report_error(error: QuorumlogError) -> KafkaError:
    """Return the error of a delivery report: ``_MSG_TIMED_OUT`` where the time was over."""
    if error.retriable or kafka_number(error) == LocalCode.TIMED_OUT:
        text = f"Local: Message timed out: {error}"
        return KafkaError(LocalCode.MSG_TIMED_OUT, text, retriable=error.retriable)
    return kafka_error(error)
