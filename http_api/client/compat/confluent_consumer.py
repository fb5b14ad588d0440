"""`Consumer` with confluent-kafka's interface, over the SDK's.

`ConsumerDoor` is the SDK's consumer with the few questions that this interface asks in addition:
ends of partitions that were reached, cached watermarks, and changes of an assignment by hand.
`Consumer` translates arguments, errors, callbacks and settings. Differences from confluent-kafka:

- A rebalance is incremental, as with ``cooperative-sticky``: callbacks get what is added or taken.
  `Consumer.assign` in ``on_assign`` only sets where to start.
- Automatic commits happen at the start of a poll, and cover what earlier polls returned.
- `position` of a partition from which nothing was consumed yet is where it begins.
- Every read is of committed records; ``isolation.level`` changes nothing.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Final, Self

from http_api.client import admin
from http_api.client.calls import Call, Place
from http_api.client.client_errors import (
    ClosedError,
    CommitError,
    OffsetOutOfRangeError,
    QuorumlogError,
    WakeupError,
)
from http_api.client.compat.confluent_errors import (
    KafkaError,
    KafkaException,
    argument_error,
    event_error,
    kafka_error,
    kafka_exceptions,
)
from http_api.client.compat.confluent_messages import (
    OFFSET_END,
    OFFSET_INVALID,
    Message,
    TopicPartition,
    event,
    message_of,
    partition_of,
    sdk_partition,
)
from http_api.client.compat.confluent_metadata import ClusterMetadata, read_cluster
from http_api.client.compat.confluent_producer import question_s
from http_api.client.compat.confluent_settings import (
    OF_CONSUMER,
    client_settings,
    given_config,
    stats_json,
)
from http_api.client.compat.kafka_codes import LocalCode
from http_api.client.sdk import consumer as sdk
from http_api.client.sdk import record_types
from http_api.client.sdk.client_context import MS
from http_api.client.sdk.consumer_base import CLOSE_S
from http_api.client.sdk.record_types import Record
from http_api.contract.errors import RestCode
from raft_metadata.common.clock import SystemClock

RebalanceCallback = Callable[["Consumer", list[TopicPartition]], object]
BytesRecord = Record[bytes | None, bytes | None]
END_LOOK_S: Final = 0.1
"""Time between two looks for the end of a partition, with ``enable.partition.eof``."""
END_WAIT_MS: Final = 500
"""Wait of a fetch with ``enable.partition.eof``: its answer has the present end."""
MESSAGES_MAX: Final = 1_000_000
"""Most messages that one `Consumer.consume` may ask for."""
NOT_CONSUMED: Final = (OFFSET_INVALID, OFFSET_INVALID)
_now_ms: Final = SystemClock().wall_ms


class ConsumerDoor(sdk.Consumer[bytes | None, bytes | None]):
    """A consumer of the SDK with further questions. One thread uses it."""

    def fill(self, found: list[BytesRecord], most: int, timeout_s: float | None) -> None:
        """Add records to those of the present call until there are ``most``, or time is over.

        Ends early if the program has something to run, such as a rebalance: what is in hand must
        be returned before a partition is given up.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._enter(threading.get_ident())
        try:
            with self._shell.lock:
                while len(found) < most and self._due_s > 0.0:
                    if self._add_page(found, most):
                        continue
                    left_s = None if until_s is None else until_s - time.monotonic()
                    if left_s is not None and left_s <= 0:
                        break
                    self._shell.wait_until(self._has_more, left_s)
                self._last_batch = tuple(found)
        finally:
            self._leave()

    def _has_more(self) -> bool:
        return self._due_s == 0.0 or self._has_something()

    def places_at_end(self) -> list[tuple[Place, int, int | None]]:
        """Return partitions whose fetched records were all returned: position and known end."""
        with self._shell.lock:
            self._settle()
            return [
                (state.place, state.position.offset, state.high_watermark)
                for state in self._work.positions.states.values()
                if state.position is not None
                and not state.is_paused
                and not state.pages
                and (self._page is None or self._page.state is not state)
            ]

    def place_of_error(self) -> Place | None:
        """Return the partition whose reading has stopped with an error, and pause it."""
        with self._shell.lock:
            for state in self._work.positions.states.values():
                if state.error is not None and not state.is_paused:
                    state.is_paused = True
                    return state.place
        return None

    def cached_position(self, place: Place) -> tuple[int, int | None] | None:
        """Return position and epoch of an assigned partition; an invalid one if not known yet."""
        with self._shell.lock:
            self._settle()
            state = self._work.positions.states.get(place)
            if state is None:
                return None
            at = state.position
            return (OFFSET_INVALID, None) if at is None else (at.offset, at.epoch)

    def cached_ends(self, place: Place) -> tuple[int, int]:
        """Return the ends of a partition's log as the last fetch saw them."""
        with self._shell.lock:
            state = self._work.positions.states.get(place)
            if state is None or state.high_watermark is None:
                return NOT_CONSUMED
            low = OFFSET_INVALID if state.log_start is None else state.log_start
            return low, state.high_watermark

    def add(self, partitions: Iterable[record_types.TopicPartition]) -> None:
        """Read further partitions, beside those that are assigned by hand."""

        def begin() -> None:
            states = [self._new_state(one) for one in partitions]
            known = [one.place for one in states if one.place in self._work.positions.states]
            if known:
                topic, number = known[0]
                error = KafkaError(LocalCode.CONFLICT, f"{topic}-{number} is assigned already")
                raise KafkaException(error)
            for state in states:
                self._work.positions.add(state)
            if self._config.enable_auto_commit and self._config.group_id is not None:
                interval_s = self._config.auto_commit_interval_ms / MS
                self._commit_due_s = min(self._commit_due_s, self._now_s() + interval_s)
            self._due_s = 0.0
            self._work.refresh()

        self._now(begin)

    def remove(self, places: Iterable[Place]) -> None:
        """Commit what was returned of some partitions, if auto-commit is on, and read the rest."""
        gone = set(places)
        self._do(self._final_commit_steps(gone, self._now_s() + CLOSE_S))
        self._now(lambda: self._forget(gone))

    def member_id(self) -> str | None:
        """Return the id of this member; None while it is in no group."""
        member = self._work.membership
        return None if member.epoch is None else member.member_id

    def expected_offsets(self) -> dict[Place, int] | None:
        """Return the committed offsets of partitions assigned by hand; None for a subscriber."""
        work = self._work
        return work.positions.expected if work.membership.subscription is None else None

    def member_epoch(self) -> int:
        """Return the epoch of this member; -1 while it is in no group."""
        epoch = self._work.membership.epoch
        return -1 if epoch is None else epoch

    def ask(self, call: Call[Any], timeout_s: float) -> Any:
        """Make a call to the cluster and return its result."""
        return self._ask(self._work.run_call(call, timeout_s))

    def abandon(self) -> None:
        """End threads and connections without a commit; the group waits for the session's end."""
        if not self._context.is_forked and self._context.close():
            self._shell.stop()

    def use_logger(self, logger: Any) -> None:
        """Log to another logger than ``quorumlog.consumer`` from now on."""
        self._context.log = logger


class ConsumerGroupMetadata:
    """Place of a consumer in its group, for transactional producers; opaque to programs."""

    __slots__ = ("expected", "group_id", "member_epoch", "member_id")

    def __init__(
        self,
        group_id: str,
        member_id: str | None,
        member_epoch: int,
        expected: dict[Place, int] | None = None,
    ) -> None:
        self.expected = expected
        """Committed offsets that are compared where no member is named; None: it has to be one."""
        self.group_id = group_id
        self.member_id = member_id
        self.member_epoch = member_epoch


class CallbackErrors:
    """Exceptions of callbacks, for the present call of the program to raise."""

    def __init__(self) -> None:
        self._raised: list[BaseException] = []
        self.wake: Callable[[], None] = lambda: None
        """Ends the wait of the present call."""

    def run(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a callback, and keep what it raises."""
        try:
            function(*arguments)
        except BaseException as error:  # noqa: BLE001 the program's call raises it
            self._raised.append(error)
            self.wake()

    def take(self) -> None:
        """Raise the first of what was kept, and forget the others."""
        if self._raised:
            error = self._raised[0]
            self._raised.clear()
            raise error


class Consumer:
    """Consumer of one thread. Callbacks run inside `poll`, `consume`, `close` and `unsubscribe`."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        """Read the settings; nothing is sent before `subscribe` or `assign`.

        Args:
            config: Settings by librdkafka's names, and ``error_cb``, ``stats_cb``, ``on_commit``,
                ``logger``. ``group.id`` is needed.
            **keywords: Further settings, with underscores.

        Raises:
            KafkaException: A setting is unknown or can't be honoured (``_INVALID_ARG``).
            ValueError: ``group.id`` is not set.
        """
        settings = client_settings(given_config(config, keywords, "Consumer"), OF_CONSUMER)
        self._group_id = settings.sdk.get("group_id")
        if not self._group_id:
            msg = "Failed to create consumer: group.id must be set"
            raise ValueError(msg)
        self._client_id = settings.sdk.get("client_id")
        self._credentials = settings.credentials
        self._reports_end = settings.reports_partition_end
        self._told_ends: dict[Place, int] = {}
        """Positions at which the end of a partition was reported."""
        self._stopped: set[Place] = set()
        """Partitions that stopped with an error, until a `seek` or an `assign`."""
        self._waiting: deque[Message] = deque()
        """Events to return from the next calls."""
        self._raised = CallbackErrors()
        self._rebalance: list[record_types.TopicPartition] | None = None
        """Partitions of the callback that runs now; None: none does."""
        sdk_settings = {**settings.sdk, "key_deserializer": "bytes", "value_deserializer": "bytes"}
        if self._reports_end:
            sdk_settings.setdefault("fetch_max_wait_ms", END_WAIT_MS)
        self._take_callbacks(settings.callbacks, sdk_settings)
        with kafka_exceptions("Consumer"):
            self._sdk = ConsumerDoor(**sdk_settings)
        self._raised.wake = self._sdk.wakeup
        weakref.finalize(self, self._sdk.abandon).atexit = False
        if settings.logger is not None:
            self._sdk.use_logger(settings.logger)

    def _take_callbacks(
        self, callbacks: Mapping[str, Callable[..., Any]], sdk_settings: dict[str, Any]
    ) -> None:
        """Have the SDK run the callbacks; what they raise is kept for the present call."""
        client_id, guarded = self._client_id, self._raised.run
        on_error, on_stats = callbacks.get("error_cb"), callbacks.get("stats_cb")
        on_commit = callbacks.get("on_commit")
        if on_error is not None:
            sdk_settings["on_error"] = lambda error: guarded(on_error, event_error(error))
        if on_stats is not None:
            sdk_settings["on_stats"] = lambda metrics: guarded(
                on_stats, stats_json("consumer", client_id, _now_ms(), metrics)
            )
        if on_commit is not None:
            sdk_settings["on_commit"] = lambda error, offsets: guarded(
                on_commit,
                None if error is None else commit_failure(error),
                [committed_row(one) for one in offsets],
            )

    # reading

    def poll(self, timeout: float | None = -1) -> Message | None:
        """Return the next message or event, or None after ``timeout`` seconds (-1: never).

        An event is a message whose `Message.error` is not None: something that stops a partition,
        or its end. Callbacks run in here; what they raise is raised from here.

        Raises:
            RuntimeError: The consumer is closed.
        """
        if self._waiting or self._reports_end:
            return self._poll_with_events(timeout)
        try:
            record = self._sdk.poll(None if timeout is None or timeout < 0 else timeout)
        except WakeupError:
            record = None
        except QuorumlogError as error:
            return self._event_of(error)
        if record is None:  # else the next call raises it, and no record is lost
            self._raised.take()
            return None
        return message_of(record)

    def _poll_with_events(self, timeout: float | None) -> Message | None:
        """Poll in slices, and look for ends of partitions in between."""
        until_s = None if timeout is None or timeout < 0 else time.monotonic() + timeout
        slice_s = 0.0
        while True:
            if self._waiting:
                return self._waiting.popleft()
            try:
                record = self._sdk.poll(slice_s)
            except WakeupError:
                record = None
            except QuorumlogError as error:
                return self._event_of(error)
            if record is not None:
                return message_of(record)
            self._raised.take()
            self._look_for_ends()
            left_s = END_LOOK_S if until_s is None else until_s - time.monotonic()
            if left_s <= 0 and not self._waiting:
                return None
            slice_s = min(left_s, END_LOOK_S)

    def _look_for_ends(self) -> None:
        """Queue an event for each partition whose end was reached since the last look."""
        if not self._reports_end:
            return
        for place, offset, known_end in self._sdk.places_at_end():
            if self._told_ends.get(place) == offset:
                continue
            end = known_end
            if end is None or offset > end:  # no fetch of this partition was answered yet
                try:
                    _, end = self._sdk.get_watermark_offsets(record_types.TopicPartition(*place))
                except QuorumlogError:
                    continue
            if offset >= end:
                self._told_ends[place] = offset
                error = KafkaError(LocalCode.PARTITION_EOF, "Broker: No more messages")
                self._waiting.append(event(error, *place, offset))

    def _event_of(self, error: QuorumlogError) -> Message:
        """Return an error of the SDK as an event; it stops a partition once, not at every poll."""
        if isinstance(error, ClosedError):
            raise _closed() from error
        if isinstance(error, OffsetOutOfRangeError):
            place = self._sdk.place_of_error()
            if place is not None:
                self._stopped.add(place)
                found = KafkaError(LocalCode.AUTO_OFFSET_RESET, str(error))
                return event(found, *place)
        return event(kafka_error(error))

    def consume(self, num_messages: int = 1, timeout: float | None = -1) -> list[Message]:
        """Return up to ``num_messages`` messages and events; waits for all of them.

        Returns what there is after ``timeout`` seconds (-1: never), or if callbacks are to run.

        Raises:
            RuntimeError: The consumer is closed.
            ValueError: ``num_messages`` is above one million, or negative.
        """
        if not 0 <= num_messages <= MESSAGES_MAX:
            msg = "num_messages must be between 0 and 1000000 (1M)"
            raise ValueError(msg)
        limit_s = None if timeout is None or timeout < 0 else timeout
        if num_messages == 0:
            return []
        if self._waiting or self._reports_end:
            return self._consume_with_events(num_messages, limit_s)
        until_s = None if limit_s is None else time.monotonic() + limit_s
        try:
            records = self._sdk.consume(num_messages, limit_s)
            if records and len(records) < num_messages:
                left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                self._sdk.fill(records, num_messages, left_s)
        except WakeupError:
            records = []
        except QuorumlogError as error:
            return [self._event_of(error)]
        if not records:
            self._raised.take()
        return [message_of(one) for one in records]

    def _consume_with_events(self, most: int, limit_s: float | None) -> list[Message]:
        until_s = None if limit_s is None else time.monotonic() + limit_s
        found: list[Message] = []
        while len(found) < most:
            left_s = -1 if until_s is None else max(0.0, until_s - time.monotonic())
            message = self._poll_with_events(left_s)
            if message is None:
                break
            found.append(message)
        return found

    # subscription and assignment

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group for these topics, in place of any former subscription.

        A name that begins with ``^`` is a regular expression; it matches names that begin so,
        unless it ends with ``$``. Callbacks get (consumer, partitions); ``on_lost`` without a
        function is ``on_revoke``.

        Raises:
            KafkaException: The topics are no list of names.
            RuntimeError: The consumer is closed.
        """
        given: object = topics
        if not isinstance(given, list | tuple) or not all(isinstance(one, str) for one in given):
            msg = "expected list of topic unicode strings"
            raise TypeError(msg)
        self._forget_events()
        with kafka_exceptions("Consumer"):
            self._sdk.subscribe(
                subscription_of(topics),
                on_assign=self._assigning(on_assign),
                on_revoke=self._revoking(on_revoke),
                on_lost=self._revoking(on_lost or on_revoke),
            )

    def _assigning(self, callback: RebalanceCallback | None) -> Callable[..., Any]:
        """Return the SDK's callback; it holds no reference, so a dropped consumer can end."""
        method = weakref.WeakMethod(self._begin_partitions)

        def assign(_: object, partitions: list[record_types.TopicPartition]) -> None:
            begin = method()
            if begin is not None:
                begin(callback, partitions)

        return assign

    def _revoking(self, callback: RebalanceCallback | None) -> Callable[..., Any]:
        method = weakref.WeakMethod(self._end_partitions)

        def revoke(_: object, partitions: list[record_types.TopicPartition]) -> None:
            end = method()
            if end is not None:
                end(callback, partitions)

        return revoke

    def _begin_partitions(
        self, callback: RebalanceCallback | None, partitions: list[record_types.TopicPartition]
    ) -> None:
        for one in partitions:
            self._told_ends.pop((one.topic, one.partition), None)
        self._run_rebalance(callback, partitions)

    def _end_partitions(
        self, callback: RebalanceCallback | None, partitions: list[record_types.TopicPartition]
    ) -> None:
        self._run_rebalance(callback, partitions)
        gone = {(one.topic, one.partition) for one in partitions}
        self._stopped -= gone
        self._waiting = deque(
            one for one in self._waiting if (one.topic(), one.partition()) not in gone
        )

    def _run_rebalance(
        self, callback: RebalanceCallback | None, partitions: list[record_types.TopicPartition]
    ) -> None:
        if callback is None:
            return
        self._rebalance = partitions
        try:
            callback(self, [partition_of(one) for one in partitions])
        finally:
            self._rebalance = None

    def _forget_events(self) -> None:
        self._told_ends.clear()
        self._stopped.clear()
        self._waiting.clear()

    def unsubscribe(self) -> None:
        """Leave the group, after ``on_revoke``."""
        self._forget_events()
        with kafka_exceptions("Consumer"):
            self._sdk.unsubscribe()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read these partitions, each from its offset, else from the group's commit.

        In ``on_assign`` it sets where the added partitions start; those that are left out of the
        list are paused.
        """
        rows = partitions_of(partitions)
        if self._rebalance is not None:
            self._start_added(rows)
            return
        self._forget_events()
        with kafka_exceptions("Consumer"):
            self._sdk.assign(rows)

    def _start_added(self, rows: list[record_types.TopicPartition]) -> None:
        """Begin the partitions of a rebalance where the callback says."""
        added = self._rebalance or []
        with kafka_exceptions("Consumer"):
            for one in rows:
                if one.offset is not None and one in added:
                    self._sdk.seek(one)
            assigned = self._sdk.assignment()
            left_out = [one for one in added if one not in rows and one in assigned]
            self._sdk.pause(left_out)

    def unassign(self) -> None:
        """Read nothing any more; in ``on_revoke`` it does nothing."""
        if self._rebalance is None:
            self._forget_events()
            with kafka_exceptions("Consumer"):
                self._sdk.unassign()

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read further partitions; in ``on_assign``, set where the added ones start."""
        rows = partitions_of(partitions)
        if self._rebalance is not None:
            with kafka_exceptions("Consumer"):
                for one in rows:
                    if one.offset is not None and one in self._rebalance:
                        self._sdk.seek(one)
            return
        with kafka_exceptions("Consumer"):
            self._sdk.add(rows)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Read some partitions no more; in ``on_revoke`` it does nothing."""
        if self._rebalance is not None:
            return
        places = [(one.topic, one.partition) for one in partitions]
        assigned = {(one.topic, one.partition) for one in self.assignment()}
        for topic, number in places:
            if (topic, number) not in assigned:
                msg = f"{topic}-{number} is not assigned"
                raise KafkaException(KafkaError(LocalCode.INVALID_ARG, msg))
            self._told_ends.pop((topic, number), None)
            self._stopped.discard((topic, number))
        with kafka_exceptions("Consumer"):
            self._sdk.remove(places)

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this consumer reads, sorted."""
        with kafka_exceptions("Consumer"):
            return [partition_of(one) for one in self._sdk.assignment()]

    # commits

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[TopicPartition] | None:
        """Commit behind a message, at offsets, or behind all that was returned.

        An asynchronous commit returns None at once; ``on_commit`` gets its result in a later call.
        A synchronous one waits until its outcome is known, at most a minute, and returns the
        offsets, each with an ``error`` if it was refused.

        Raises:
            KafkaException: Nothing is to be committed (``_NO_OFFSET``), or all of it failed.
            RuntimeError: The consumer is closed.
        """
        rows = offsets_of(message, offsets)
        try:
            done = self._sdk.commit(offsets=rows, asynchronous=asynchronous)
        except CommitError as error:
            failed = [committed_row(one) for one in error.refused]
            if rows is None or len(failed) == len(rows):
                raise KafkaException(commit_failure(error)) from error
            refused = {(one.topic, one.partition): one for one in failed}
            return [refused.get((one.topic, one.partition), partition_of(one)) for one in rows]
        except ClosedError as error:
            raise _closed() from error
        except QuorumlogError as error:
            raise KafkaException(kafka_error(error)) from error
        self._raised.take()
        if asynchronous:
            return None
        if not done:
            raise KafkaException(KafkaError(LocalCode.NO_OFFSET))
        return [partition_of(one) for one in done or []]

    def store_offsets(
        self, message: Message | None = None, offsets: list[TopicPartition] | None = None
    ) -> None:
        """Store what the next commit without arguments, or the automatic one, commits.

        Raises:
            KafkaException: ``enable.auto.offset.store`` is on, or a partition is not assigned.
        """
        rows = offsets_of(message, offsets)
        if rows is None:
            msg = "expected either message or offsets"
            raise ValueError(msg)
        with kafka_exceptions("Consumer"):
            assigned = self._sdk.assignment()
            if any(one not in assigned for one in rows):
                raise KafkaException(KafkaError(LocalCode.UNKNOWN_PARTITION))
            self._sdk.store_offsets(offsets=rows)

    def committed(
        self, partitions: list[TopicPartition], timeout: float | None = -1
    ) -> list[TopicPartition]:
        """Return the group's commits; `OFFSET_INVALID` where there is none."""
        with kafka_exceptions("Consumer", LocalCode.TIMED_OUT):
            found = self._sdk.committed(partitions_of(partitions), question_s(timeout))
        return [partition_of(one) for one in found]

    # positions

    def seek(self, partition: TopicPartition) -> None:
        """Go on at the partition's offset, which may be `OFFSET_BEGINNING` or `OFFSET_END`.

        Raises:
            KafkaException: The partition is not assigned (``_STATE``), or has no offset.
        """
        one = sdk_partition(partition)
        if one.offset is None:
            raise argument_error(f"{partition!r}: expected an offset")
        place = (one.topic, one.partition)
        with kafka_exceptions("Consumer"):
            if one not in self._sdk.assignment():
                msg = f"{one.topic}-{one.partition} is not assigned"
                raise KafkaException(KafkaError(LocalCode.STATE, msg))
            self._sdk.seek(one)
            if place in self._stopped:
                self._stopped.discard(place)
                self._sdk.resume([one])
        self._told_ends.pop(place, None)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Return no messages of these partitions until `resume`."""
        with kafka_exceptions("Consumer"):
            self._sdk.pause(partitions_of(partitions))

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Return messages of these partitions again, from where they were paused."""
        with kafka_exceptions("Consumer"):
            self._sdk.resume(partitions_of(partitions))

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the next offset of each partition; `OFFSET_INVALID` if it is not known yet."""
        self._check_open()
        found = []
        for one in partitions:
            at = self._sdk.cached_position((one.topic, one.partition))
            offset, epoch = (OFFSET_INVALID, None) if at is None else at
            found.append(TopicPartition(one.topic, one.partition, offset, leader_epoch=epoch))
        return found

    def offsets_for_times(
        self, partitions: list[TopicPartition], timeout: float | None = -1
    ) -> list[TopicPartition]:
        """Return the first offset at or after each ``offset`` in milliseconds; -1 if none is."""
        wait_s = question_s(timeout)
        with kafka_exceptions("Consumer", LocalCode.TIMED_OUT):
            rows = self._sdk.offsets_for_times(partitions_of(partitions), wait_s)
            found = [partition_of(one) for one in rows]
            for row, one in zip(found, rows, strict=True):
                _, end = self._sdk.get_watermark_offsets(one, wait_s)
                if row.offset >= end:
                    row.offset = OFFSET_END
        return found

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float | None = -1,
        cached: bool = False,
    ) -> tuple[int, int] | None:
        """Return the first offset of a partition's log and its high watermark.

        ``cached``: as the last fetch saw them, without a request; `OFFSET_INVALID` if none did.
        """
        self._check_open()
        if cached:
            return self._sdk.cached_ends((partition.topic, partition.partition))
        with kafka_exceptions("Consumer", LocalCode.TIMED_OUT):
            one = sdk_partition(partition)
            return self._sdk.get_watermark_offsets(one, question_s(timeout))

    # questions

    def list_topics(self, topic: str | None = None, timeout: float | None = -1) -> ClusterMetadata:
        """Return the cluster's brokers and topics, or one topic; costs a request for each topic."""
        wait_s = question_s(timeout)
        with kafka_exceptions("Consumer"):
            return read_cluster(lambda call: self._sdk.ask(call, wait_s), topic)

    def cluster_id(self, timeout: float | None = -1) -> str:
        """Return the cluster's id; raises `KafkaException` if no broker answers in time."""
        with kafka_exceptions("Consumer"):
            return str(self._sdk.ask(admin.cluster(), question_s(timeout)).cluster_id)

    def memberid(self) -> str | None:
        """Return the id of this member; None while it is in no group."""
        self._check_open()
        return self._sdk.member_id()

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """Return this consumer's place in its group, for ``send_offsets_to_transaction``."""
        self._check_open()
        assert self._group_id is not None
        return ConsumerGroupMetadata(
            self._group_id,
            self._sdk.member_id(),
            self._sdk.member_epoch(),
            self._sdk.expected_offsets(),
        )

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replace user and password for new connections; used with ``sasl.mechanisms=PLAIN``."""
        self._credentials.replace(username, password)

    # the end

    def _check_open(self) -> None:
        with kafka_exceptions("Consumer"):
            self._sdk.assignment()

    def close(self) -> None:
        """Commit if auto-commit is on, run ``on_revoke``, and leave; a second call does nothing."""
        self._forget_events()
        with kafka_exceptions("Consumer"):
            self._sdk.close()
        self._raised.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _closed() -> RuntimeError:
    return RuntimeError("Consumer closed")


def partitions_of(partitions: Iterable[TopicPartition]) -> list[record_types.TopicPartition]:
    """Return a program's list in the SDK's terms; raises `TypeError` for anything else."""
    given: Any = partitions
    if not isinstance(given, list | tuple | set) or not all(
        isinstance(one, TopicPartition) for one in given
    ):
        msg = "expected list of TopicPartition"
        raise TypeError(msg)
    return [sdk_partition(one) for one in given]


def offsets_of(
    message: Message | None, offsets: list[TopicPartition] | None
) -> list[record_types.TopicPartition] | None:
    """Return what a commit names; None: neither a message nor offsets."""
    if message is not None and offsets is not None:
        msg = "message and offsets are mutually exclusive"
        raise ValueError(msg)
    if message is None:
        return None if offsets is None else _valid(partitions_of(offsets))
    failure = message.error()
    if failure is not None:
        raise argument_error(
            f"the message is an event and has no offset to commit: {failure.str()}"
        )
    record = message.record
    epoch, offset = message.leader_epoch(), message.offset()
    if offset is None:
        return []
    return [
        record_types.TopicPartition(
            record.topic, record.partition, record.offset + 1, leader_epoch=epoch
        )
    ]


def _valid(rows: list[record_types.TopicPartition]) -> list[record_types.TopicPartition]:
    """Return the rows with an offset to commit; others are ignored, as by the library."""
    return [one for one in rows if one.offset is not None and one.offset >= 0]


def committed_row(one: record_types.TopicPartition) -> TopicPartition:
    """Return an offset of a commit, with its error if it was refused."""
    found = partition_of(one)
    if one.error is not None:
        found.error = commit_failure(one.error)
    return found


def commit_failure(error: QuorumlogError) -> KafkaError:
    """Return the error of a commit: that of its first refused partition, if there is one."""
    if isinstance(error, CommitError) and error.refused and error.refused[0].error is not None:
        return commit_failure(error.refused[0].error)
    is_fenced = error.code == RestCode.ILLEGAL_STATE
    return kafka_error(error, number=KafkaError.ILLEGAL_GENERATION if is_fenced else None)


def subscription_of(topics: list[str]) -> list[str] | str:
    """Return names, or one expression for names and expressions of librdkafka's kind together."""
    if not any(one.startswith("^") for one in topics):
        return list(topics)
    parts = []
    for one in topics:
        body = re.escape(one) if not one.startswith("^") else one[1:]
        if not one.startswith("^"):
            parts.append(body)
        elif body.endswith("$") and not body.endswith("\\$"):
            parts.append(body[:-1])
        else:
            parts.append(body if body.endswith(".*") else f"{body}.*")
    return f"^{parts[0]}" if len(parts) == 1 else f"^(?:{'|'.join(parts)})"
