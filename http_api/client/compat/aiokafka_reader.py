"""The `AsyncConsumer` below an `AIOKafkaConsumer`, with what the library shows beyond ours.

It reads of chosen partitions only, waits for a first assignment, looks up records by time, and
lets several tasks call it: `AIOKafkaConsumer` orders those calls that exclude each other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final
from weakref import ref

from typing_extensions import override

from http_api.client.calls import Place
from http_api.client.client_errors import WakeupError
from http_api.client.consumer import record_at
from http_api.client.polling import PolledPage
from http_api.client.sdk.async_consumer import AsyncConsumer
from http_api.client.sdk.consumer_base import (
    AnyRecord,
    RunCallback,
    UserSteps,
    WaitUntil,
)
from http_api.client.sdk.positions import PartitionState
from http_api.client.sdk.record_types import TopicPartition
from raft_metadata.common.clock import SystemClock

JOIN_SLICE_S: Final = 0.5


class PartitionReader(AsyncConsumer[Any, Any]):
    """An `AsyncConsumer` of bytes for one adapter."""

    def __init__(self, on_rebalanced: Callable[[], Any], settings: Mapping[str, Any]) -> None:
        """``on_rebalanced`` runs behind each rebalance, and may be a coroutine."""
        super().__init__(settings)
        self._on_rebalanced = on_rebalanced
        self._wanted: frozenset[Place] | None = None
        """Partitions to return records of; None: all."""
        self._is_called_off = False
        """True if the task that reads, or the next one, has to let another task act."""
        self._read_by: ref[asyncio.Task[Any]] | None = None
        self._seen_ms: dict[Place, int] = {}
        """Time of the last page of each partition."""

    @override
    def _enter(self, user: object) -> None:
        self._context.check_open()  # the adapter decides which calls may overlap

    @override
    def _leave(self) -> None:
        """Count no calls, as `_enter` does."""

    @property
    @override
    def _is_close_due(self) -> bool:
        return False  # the adapter closes it in a call of its own

    # reading

    def note_reading(self) -> None:
        """Note that the present task reads."""
        task = asyncio.current_task()
        self._read_by = None if task is None else ref(task)

    @property
    def is_read_here(self) -> bool:
        """True if the present task read last."""
        return self._read_by is not None and self._read_by() is asyncio.current_task()

    def call_off(self) -> None:
        """End the wait of the task that reads, or the next one, with `WakeupError`.

        Unlike `wakeup` it ends no commit of another task.
        """
        self._is_called_off = True
        self._attend()

    @override
    def _attend_steps(self) -> UserSteps[None]:
        if self._is_called_off:
            self._is_called_off = False
            msg = "another task changes the subscription"
            raise WakeupError(msg)
        yield from super()._attend_steps()

    def take_ready(self) -> AnyRecord | None:
        """Return the next record of the present page, without waiting; None: go the long way."""
        now_s = time.monotonic()
        if now_s < self._due_s and self._wanted is None:
            record = next(self._records, None)
            if record is not None:
                self._polled_s = now_s
                self._last = record
            return record
        return None

    def take_ready_page(self, most: int) -> list[AnyRecord]:
        """Return the rest of the present page, without waiting; []: go the long way."""
        now_s = time.monotonic()
        if now_s < self._due_s and self._wanted is None:
            records = list(islice(self._records, most))
            if records:
                self._polled_s = now_s
                self._last, self._last_batch = records[-1], tuple(records)
            return records
        return []

    def select(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Return records of these partitions only, from the next call on; none: of all."""
        self._wanted = frozenset(partitions) or None
        self._settle()
        page = self._page
        if page is not None and not self._wants(page.state.place):
            self._set_aside(page.state.place)
            self._last, self._last_batch = None, ()

    def _wants(self, place: Place) -> bool:
        return self._wanted is None or place in self._wanted

    @override
    def _next_page(self) -> bool:
        if self._wanted is None:
            return super()._next_page()
        states = self._work.positions.states
        others = [one for one in states.values() if not self._wants(one.place)]
        others = [one for one in others if not one.is_paused]
        for state in others:  # their pages wait for their turn
            state.is_paused = True
        try:
            return super()._next_page()
        finally:
            for state in others:
                state.is_paused = False

    @override
    def _may_read(self, state: PartitionState) -> bool:
        return self._wants(state.place) and super()._may_read(state)

    @override
    def _open_page(self, state: PartitionState, page: PolledPage) -> None:
        self._seen_ms[state.place] = SystemClock().wall_ms()
        super()._open_page(state, page)

    @override
    def _has_something(self) -> bool:
        if self._is_called_off:
            return True
        if self._wanted is None:
            return super()._has_something()
        has_page = any(
            state.pages and not state.is_paused and self._wants(state.place)
            for state in self._work.positions.states.values()
        )
        is_waited_for = self._aside.first(self._may_read) is not None
        is_attended = self._is_woken or self._work.has_news
        has_error = self._work.positions.take_error() is not None
        return is_attended or has_page or is_waited_for or has_error

    # assignment

    @override
    def _rebalance_steps(self) -> UserSteps[None]:
        has_change = self._work.membership.has_change
        yield from super()._rebalance_steps()
        if has_change:
            yield RunCallback(self._on_rebalanced, (), is_guarded=False)

    async def join(self) -> None:
        """Wait until the group has answered, and what it assigns is taken.

        Raises:
            WakeupError: `call_off` was called.
            QuorumlogError: The group refuses this member.
        """
        await self._do(self._join_steps())

    def _join_steps(self) -> UserSteps[None]:
        member = self._work.membership
        while member.subscription is not None and (member.epoch is None or member.has_change):
            yield from self._attend_steps()
            yield WaitUntil(lambda: self._is_called_off or self._work.has_news, JOIN_SLICE_S)

    # questions

    def paused_places(self) -> set[Place]:
        """Return the assigned partitions that are paused."""
        states = self._work.positions.states.values()
        return {state.place for state in states if state.is_paused}

    def high_watermark(self, place: Place) -> int | None:
        """Return the high watermark of the last answer about a partition; None: none yet."""
        state = self._work.positions.states.get(place)
        return None if state is None else state.high_watermark

    def seen_ms(self, place: Place) -> int | None:
        """Return the time at which the last page of a partition was opened; None: none was."""
        return self._seen_ms.get(place)

    def failed_places(self) -> dict[Place, int | None]:
        """Return the partitions whose reading has stopped, with the offset; None: no start."""
        failed = [one for one in self._work.positions.states.values() if one.error is not None]
        return {one.place: one.position.offset if one.position else None for one in failed}

    async def record_at(
        self, place: Place, timestamp_ms: int, timeout: float | None = None
    ) -> tuple[int, int] | None:
        """Return offset and timestamp of the first record at or after a time; None: none is."""
        call = record_at(*place, timestamp_ms)
        return await self._ask(self._work.run_call(call, self._retry_s(timeout)))


def sdk_partitions(partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
    """Return the library's partitions as those of our classes."""
    return [TopicPartition(topic, partition) for topic, partition in partitions]
