"""`Consumer`: reads records, alone or as a member of a group, from blocking calls.

A consumer is used by one thread at a time; only `Consumer.wakeup` may come from any. It owns a
thread for heartbeats, one for asynchronous commits, one for starts that are looked up, one per
broker that it fetches from, and one that looks whether these still lead. All deciding code is
`consumer_base` and `consumer_work`, shared with `AsyncConsumer`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, assert_never

from typing_extensions import Unpack, override

from http_api.client.client_errors import ConfigError
from http_api.client.sdk.client_context import ClientContext
from http_api.client.sdk.commits import CommitCallback
from http_api.client.sdk.consumer_base import (
    CLOSE_S,
    LEAVE_S,
    USER_WORK,
    ConsumerBase,
    RebalanceCallback,
    RunCallback,
    RunSteps,
    UserSteps,
    WaitUntil,
)
from http_api.client.sdk.consumer_settings import ConsumerKeywords, consumer_config
from http_api.client.sdk.positions import partitions_of
from http_api.client.sdk.record_types import ConsumerGroupMetadata, K, Record, TopicPartition, V
from http_api.client.sdk.steps import BlockingShell, Steps

if TYPE_CHECKING:
    from http_api.client.admin import TopicInfo

T = TypeVar("T")

WAKE_LOCK_S: Final = 0.01
"""Longest wait of `wakeup` for the lock; without it the waiting thread looks again by itself."""


class Consumer(ConsumerBase[K, V]):
    """Consumer of one thread: `subscribe` or `assign`, then `poll`, `consume` or iterate.

    Use it as a context: the end of the block commits and leaves the group. A block that ends by an
    exception commits only what earlier calls than the last returned. Errors that heal by themselves
    are logged and passed to ``on_error``; the others are raised from the next call.
    """

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | Mapping[str, object] | None = None,
        /,
        **settings: Unpack[ConsumerKeywords],
    ) -> None:
        """Read the settings; nothing is sent before the first `subscribe` or `assign`.

        Args:
            bootstrap_servers: Brokers, or all settings in one mapping with Kafka's dotted names.
            **settings: Those of `ConsumerConfig`.

        Raises:
            ConfigError: A setting is unknown, of the wrong kind, or contradicts another one.
        """
        config = consumer_config(bootstrap_servers, settings)
        context = ClientContext("consumer", config)
        self._shell = BlockingShell(context)
        super().__init__(config, context, self._shell)

    # reading

    def poll(self, timeout: float | None = 1.0) -> Record[K, V] | None:
        """Return the next record, or None if none comes within ``timeout`` seconds (None: never).

        Callbacks run in here: rebalances, results of commits, ``on_error``. While a fetched page
        lasts, a call takes less than a microsecond and no lock.

        Raises:
            UnreadableRecordError: The record can't be decoded; ``seek(error.next)`` skips it.
            OffsetOutOfRangeError: With ``auto_offset_reset="none"`` only.
            FencedError: Another process took this one's static member id.
            WakeupError: `wakeup` was called.
            QuorumlogError: Brokers refuse the credentials or the subscription.
        """
        last = self._last
        try:
            now_s = time.monotonic()
            if now_s < self._due_s:
                record = next(self._records, None)
                if record is not None:
                    self._polled_s = now_s
                    self._last = record
                    return record
        except BaseException:  # an interrupt
            with self._shell.lock:
                self._undo_short_call(last)
            raise
        return self._read(self._poll_steps(timeout))

    def consume(self, num_messages: int = 500, timeout: float | None = 1.0) -> list[Record[K, V]]:
        """Return up to ``num_messages`` records, as soon as there is one; [] after ``timeout`` s.

        It does not wait for more than the first: a record that is held back while others are
        awaited could belong to a partition that is revoked meanwhile. Raises what `poll` raises.
        """
        if num_messages < 1:
            msg = f"num_messages={num_messages}: expected 1 or more"
            raise ConfigError(msg)
        last = self._last
        try:
            now_s = time.monotonic()
            if now_s < self._due_s:
                records = list(islice(self._records, num_messages))
                if records:
                    self._polled_s = now_s
                    self._last_batch = (records[0], records[-1])
                    self._last = records[-1]
                    return records
        except BaseException:  # an interrupt
            with self._shell.lock:
                self._undo_short_call(last)
            raise
        return self._read(self._consume_steps(num_messages, timeout))

    def _read(self, steps: UserSteps[T]) -> T:
        self._is_taking = False
        try:
            return self._do(steps)
        except BaseException:
            if self._is_taking:  # a forked child must not wait for the lock
                with self._shell.lock:
                    self._undo_call()
            raise

    def __iter__(self) -> Self:
        """Iterate over records without end; each step is a `poll` that waits."""
        return self

    def __next__(self) -> Record[K, V]:
        """Return the next record; wait for it without a limit. Raises what `poll` raises."""
        while True:
            record = self.poll(None)
            if record is not None:
                return record
            if self._context.is_closed:  # by a callback
                raise StopIteration

    def wakeup(self) -> None:
        """End the wait of the consumer's thread, or its next one, with `WakeupError`.

        Any thread may call it, and a signal's handler. It ends `poll`, `consume`, iteration,
        `position`, and a synchronous `commit`, whose outcome is unknown then; not `close`.

        Raises:
            ClosedError: The consumer is closed.
        """
        self._context.check_open()
        self._is_woken = True
        self._due_s = 0.0
        if not self._is_closing:
            self._shell.interrupt(USER_WORK)
        if self._shell.lock.acquire(timeout=WAKE_LOCK_S):  # a signal's thread may hold it already
            try:
                self._shell_notify()
            finally:
                self._shell.lock.release()

    # subscription and assignment

    def subscribe(
        self,
        topics: Sequence[str] | str,
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group for these topics, in place of any former subscription or assignment.

        Args:
            topics: Names, or one pattern that begins with ``^``.
            on_assign: Called with (consumer, partitions) that are added; a `seek` in it holds.
            on_revoke: Called with partitions that go; a `commit` in it still holds.
            on_lost: Called with partitions that are gone already; without it ``on_revoke`` is.

        Raises:
            ConfigError: No group_id is set, or no topics are given.
        """
        callbacks = {"on_assign": on_assign, "on_revoke": on_revoke, "on_lost": on_lost}
        self._do(self._subscribe_steps(topics, callbacks))

    def unsubscribe(self) -> None:
        """Leave the group, after the automatic commit and ``on_revoke``; drop any assignment."""
        self._do(self._unsubscribe_steps())

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group's help; each from its offset if it has one.

        Without an offset a partition starts at the group's commit, else by ``auto_offset_reset``.
        """
        self._do(self._assign_steps(partitions))

    def unassign(self) -> None:
        """Read nothing any more; the same as `unsubscribe`."""
        self._do(self._unsubscribe_steps())

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this consumer reads now, sorted."""
        return self._now(lambda: partitions_of(self._work.positions.states))

    # commits

    def commit(
        self,
        record: Record[Any, Any] | None = None,
        offsets: Iterable[TopicPartition] | None = None,
        asynchronous: bool = False,  # noqa: FBT001, FBT002 confluent-kafka's signature
        callback: CommitCallback | None = None,
        timeout: float | None = 60.0,
        *,
        message: Record[Any, Any] | None = None,
    ) -> list[TopicPartition] | None:
        """Commit behind a record, at offsets, or behind all that was returned; return the offsets.

        A synchronous commit is repeated until its outcome is known, for ``timeout`` seconds (None:
        without end). An asynchronous one returns None at once and is sent once, in order;
        ``callback(error, offsets)`` runs in a later call. ``message`` is the same as ``record``.

        Raises:
            ConfigError: No group_id is set, or an offset is missing.
            CommitError: Partitions are not this consumer's any more; see ``refused``.
            QuorumlogError: The outcome is not known in time.
        """
        chosen = record if message is None else message
        return self._do(
            self._commit_steps(chosen, offsets, callback, timeout, asynchronous=asynchronous)
        )

    def store_offsets(
        self,
        record: Record[Any, Any] | None = None,
        offsets: Iterable[TopicPartition] | None = None,
        *,
        message: Record[Any, Any] | None = None,
    ) -> None:
        """Store what the next commit without arguments, or the automatic one, commits.

        Raises:
            ConfigError: ``enable_auto_offset_store`` is on, or the partition is not assigned.
        """
        chosen = record if message is None else message
        self._now(lambda: self._store(chosen, offsets))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Return the group's commits; offset None where there is none. ``timeout`` in seconds."""
        return self._ask(self._committed_rows(partitions, self._retry_s(timeout)))

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """Return what a producer's transaction needs to commit offsets for this consumer.

        A member is named with its present epoch, so take it anew for each transaction. Where
        partitions were assigned by hand, the committed offset that this consumer went on from
        stands in its place.

        Raises:
            ConfigError: Without ``group_id``, or with ``enable_auto_commit``.
            QuorumlogError: The consumer is no member of its group now.
        """
        return self._now(lambda: self._work.group_metadata(self._check_group()))

    # positions

    def seek(self, partition: TopicPartition, offset: int | None = None) -> None:
        """Go on at an offset, ``partition.offset`` unless ``offset`` is given; sends nothing.

        Raises:
            ConfigError: The partition is not assigned, or there is no offset.
        """
        self._now(lambda: self._seek(partition, offset))

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions until `resume`; they stay assigned."""
        self._now(lambda: self._pause(partitions, is_paused=True))

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of these partitions again, from where they were paused."""
        self._now(lambda: self._pause(partitions, is_paused=False))

    def position(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Return the next offset of each assigned partition; wait until its start is known."""
        return self._do(self._position_steps(partitions, timeout))

    def offsets_for_times(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Return the first offset at or after each ``offset`` in ms; the end if none is later."""
        return self._ask(self._rows_at_times(partitions, self._retry_s(timeout)))

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = None
    ) -> tuple[int, int]:
        """Return the first offset of a partition's log, and its high watermark."""
        return self._ask(self._watermarks(partition, self._retry_s(timeout)))

    def list_topics(
        self, topic: str | None = None, timeout: float | None = None
    ) -> dict[str, TopicInfo]:
        """Return one topic, or all of them, by name; `ApiError` 40403 for an unknown one."""
        return self._ask(self._topics(topic, self._retry_s(timeout)))

    # the end

    def close(self, timeout: float | None = CLOSE_S) -> None:
        """Commit what was returned if auto-commit is on, run ``on_revoke``, leave; stop threads.

        A second call does nothing, nor does a call in a forked child; one after an interrupt leaves
        the group if the first did not. In a callback it takes effect at the end of the call that
        runs the callback, which returns no record then. What a callback raises is raised when all
        is done. Committing and leaving take ``timeout`` seconds at most (None: until the commit's
        outcome is known), and the end of connections that are being made a few more.
        """
        self._close(timeout, has_failed=False)

    def _close(self, timeout_s: float | None = CLOSE_S, *, has_failed: bool) -> None:
        if self._begin_close(threading.get_ident(), timeout_s, has_failed=has_failed):
            self._finish_close()
        elif self._is_leave_due and not self._count_calls():  # a signal may call it at any time
            self._shell.run(self._leave_group(self._now_s() + LEAVE_S))

    def _finish_close(self) -> None:
        try:
            self._run_steps(self._close_steps())
        finally:
            self._note_end()
            self._shell.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(has_failed=error is not None)

    # doing

    def _do(self, steps: UserSteps[T]) -> T:
        try:
            return self._run_steps(steps)
        finally:
            if self._is_close_due:
                self._finish_close()

    def _run_steps(self, steps: UserSteps[T]) -> T:
        """Do what the steps yield, in the calling thread, and return their result."""
        self._enter(threading.get_ident())
        value: Any = None
        error: BaseException | None = None
        try:
            while True:
                with self._shell.lock:
                    step = steps.throw(error) if error is not None else steps.send(value)
                value, error = None, None
                try:
                    match step:
                        case RunCallback():
                            error = self._call_back(step)
                        case RunSteps(background, name):
                            value = self._shell.run(background, name)
                        case WaitUntil(is_true, seconds):
                            with self._shell.lock:
                                self._shell.wait_until(is_true, seconds)
                        case _:
                            assert_never(step)
                except Exception as failure:  # noqa: BLE001 the steps decide about it
                    error = failure
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            try:
                with self._shell.lock:
                    steps.close()
            finally:
                self._leave()

    @override
    def _count_calls(self) -> int:
        count, frame = 0, sys._getframe(1)  # noqa: SLF001 its documented name
        while (outer := frame.f_back) is not None:
            count += frame.f_code in _CALLS and frame.f_locals.get("self") is self
            frame = outer
        return count

    def _call_back(self, step: RunCallback) -> BaseException | None:
        """Run a callback; return what it raises, for the steps to decide about."""
        with self._in_callback():
            self._begun = step
            try:
                step.function(*step.arguments)
            except BaseException as error:
                if not step.is_guarded or not isinstance(error, Exception):
                    return error
                self._context.log.exception("callback failed callback=%r", step.function)
        return None

    def _ask(self, steps: Steps[T]) -> T:
        self._enter(threading.get_ident())
        try:
            return self._shell.run(steps)
        finally:
            self._leave()

    def _now(self, change: Callable[[], T]) -> T:
        self._enter(threading.get_ident())
        try:
            with self._shell.lock:
                return change()
        finally:
            self._leave()


_CALLS: Final = {
    one.__code__
    for one in (Consumer._run_steps, Consumer._ask, Consumer._now, Consumer._finish_close)  # noqa: SLF001
}
"""Code between whose begin and end a consumer is in use."""
