"""`AsyncConsumer`: reads records, alone or as a member of a group, in one event loop.

It has the methods of `Consumer`; those that wait are awaited, and callbacks may be coroutines. One
task uses it at a time. It has no thread: heartbeats, commits and fetching are tasks. To cancel a
call that waits loses no record. All deciding code is shared with `Consumer`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, assert_never

from typing_extensions import Unpack

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
from http_api.client.sdk.steps import AsyncShell, Steps

if TYPE_CHECKING:
    from http_api.client.admin import TopicInfo

T = TypeVar("T")


class AsyncConsumer(ConsumerBase[K, V]):
    """Consumer of one task: `subscribe` or `assign`, then `poll`, `consume` or iterate.

    Use it as an async context: the end of the block commits and leaves the group. A block that ends
    by an exception commits only what earlier calls than the last returned. Errors that heal by
    themselves are logged and passed to ``on_error``; the others are raised from the next call.
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
        self._shell = AsyncShell(context)
        super().__init__(config, context, self._shell)

    # reading

    async def poll(self, timeout: float | None = 1.0) -> Record[K, V] | None:
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
            self._undo_short_call(last)
            raise
        return await self._read(self._poll_steps(timeout))

    async def consume(
        self, num_messages: int = 500, timeout: float | None = 1.0
    ) -> list[Record[K, V]]:
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
            self._undo_short_call(last)
            raise
        return await self._read(self._consume_steps(num_messages, timeout))

    async def _read(self, steps: UserSteps[T]) -> T:
        self._is_taking = False
        try:
            found = await self._do(steps)
            if not found:
                await asyncio.sleep(0)  # a loop of polls without a wait must let fetching go on
        except BaseException:
            self._undo_call()
            raise
        return found

    def __aiter__(self) -> Self:
        """Iterate over records without end; each step is a `poll` that waits."""
        return self

    async def __anext__(self) -> Record[K, V]:
        """Return the next record; wait for it without a limit. Raises what `poll` raises."""
        while True:
            record = await self.poll(None)
            if record is not None:
                return record
            if self._context.is_closed:  # by a callback
                raise StopAsyncIteration

    def wakeup(self) -> None:
        """End the wait of the task that reads, or its next one, with `WakeupError`.

        It ends `poll`, `consume`, iteration, `position`, and a synchronous `commit`, whose outcome
        is unknown then; not `close`.

        Raises:
            ClosedError: The consumer is closed.
        """
        self._context.check_open()
        self._is_woken = True
        if not self._is_closing:
            self._shell.interrupt(USER_WORK)
        self._attend()

    # subscription and assignment

    async def subscribe(
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
        await self._do(self._subscribe_steps(topics, callbacks))

    async def unsubscribe(self) -> None:
        """Leave the group, after the automatic commit and ``on_revoke``; drop any assignment."""
        await self._do(self._unsubscribe_steps())

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group's help; each from its offset if it has one.

        Without an offset a partition starts at the group's commit, else by ``auto_offset_reset``.
        """
        await self._do(self._assign_steps(partitions))

    async def unassign(self) -> None:
        """Read nothing any more; the same as `unsubscribe`."""
        await self._do(self._unsubscribe_steps())

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this consumer reads now, sorted."""
        return self._now(lambda: partitions_of(self._work.positions.states))

    # commits

    async def commit(
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
        return await self._do(
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

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Return the group's commits; offset None where there is none. ``timeout`` in seconds."""
        return await self._ask(self._committed_rows(partitions, self._retry_s(timeout)))

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

    async def position(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Return the next offset of each assigned partition; wait until its start is known."""
        return await self._do(self._position_steps(partitions, timeout))

    async def offsets_for_times(
        self, partitions: Iterable[TopicPartition], timeout: float | None = None
    ) -> list[TopicPartition]:
        """Return the first offset at or after each ``offset`` in ms; the end if none is later."""
        return await self._ask(self._rows_at_times(partitions, self._retry_s(timeout)))

    async def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float | None = None
    ) -> tuple[int, int]:
        """Return the first offset of a partition's log, and its high watermark."""
        return await self._ask(self._watermarks(partition, self._retry_s(timeout)))

    async def list_topics(
        self, topic: str | None = None, timeout: float | None = None
    ) -> dict[str, TopicInfo]:
        """Return one topic, or all of them, by name; `ApiError` 40403 for an unknown one."""
        return await self._ask(self._topics(topic, self._retry_s(timeout)))

    # the end

    async def close(self, timeout: float | None = CLOSE_S) -> None:
        """Commit what was returned if auto-commit is on, run ``on_revoke``, leave; stop its tasks.

        A second call does nothing, nor does a call in a forked child; one after a cancelled one
        leaves the group if that did not. In a callback it takes effect at the end of the call that
        runs the callback, which returns no record then. What a callback raises is raised when all
        is done. Committing and leaving take ``timeout`` seconds at most (None: until the commit's
        outcome is known), and the end of connections that are being made a few more.
        """
        await self._close(timeout, has_failed=False)

    async def _close(self, timeout_s: float | None = CLOSE_S, *, has_failed: bool) -> None:
        if self._begin_close(_task(), timeout_s, has_failed=has_failed):
            await self._finish_close()
        elif self._is_leave_due:
            await self._shell.run(self._leave_group(self._now_s() + LEAVE_S))

    async def _finish_close(self) -> None:
        try:
            await self._run_steps(self._close_steps())
        finally:
            self._note_end()
            await self._shell.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._close(has_failed=error is not None)

    # doing

    async def _do(self, steps: UserSteps[T]) -> T:
        try:
            return await self._run_steps(steps)
        finally:
            if self._is_close_due:
                await self._finish_close()

    async def _run_steps(self, steps: UserSteps[T]) -> T:
        """Do what the steps yield, in the calling task, and return their result."""
        self._enter(asyncio.current_task())
        value: Any = None
        error: BaseException | None = None
        try:
            while True:
                step = steps.throw(error) if error is not None else steps.send(value)
                value, error = None, None
                try:
                    match step:
                        case RunCallback():
                            error = await self._call_back(step)
                        case RunSteps(background, name):
                            value = await self._shell.run(background, name)
                        case WaitUntil(is_true, seconds):
                            await self._shell.wait_until(is_true, seconds)
                        case _:
                            assert_never(step)
                except Exception as failure:  # noqa: BLE001 the steps decide about it
                    error = failure
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            steps.close()
            self._leave()

    async def _call_back(self, step: RunCallback) -> BaseException | None:
        """Run a callback; return what it raises, for the steps to decide about."""
        with self._in_callback():
            self._begun = step
            try:
                result = step.function(*step.arguments)
                if inspect.isawaitable(result):
                    await result
            except BaseException as error:
                if not step.is_guarded or not isinstance(error, Exception):
                    return error
                self._context.log.exception("callback failed callback=%r", step.function)
        return None

    async def _ask(self, steps: Steps[T]) -> T:
        self._enter(asyncio.current_task())
        try:
            return await self._shell.run(steps)
        finally:
            self._leave()

    def _now(self, change: Callable[[], T]) -> T:
        self._enter(_task())
        try:
            return change()
        finally:
            self._leave()


def _task() -> object:
    """Return the calling task; None outside of a loop, where no call of another task waits."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
