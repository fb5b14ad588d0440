"""The program's side of a consumer, once for `Consumer` and `AsyncConsumer`.

What a call of the program does is written as generators (`UserSteps`) of things to do: run a
callback, run steps with requests, or wait. The twins do them, blocking or awaiting, with the
shell's lock held by the generator only. Records are decoded a page at a time, in the calling
thread; while a decoded page lasts, `poll` takes its next record without a lock. It reads the clock
once, and goes the long way only from ``_due_s`` on, which the background sets to 0 if the program
has something to run.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from http_api.client import groups
from http_api.client.calls import Place
from http_api.client.client_errors import (
    ConfigError,
    OutcomeUnknownError,
    QuorumlogError,
    WakeupError,
)
from http_api.client.consumer import ends, offset_at
from http_api.client.polling import PolledPage
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.commits import (
    AsyncCommit,
    CommitCallback,
    Offsets,
    given_offsets,
    of_positions,
)
from http_api.client.sdk.consumer_settings import ConsumerConfig
from http_api.client.sdk.consumer_work import ConsumerWork
from http_api.client.sdk.membership import Subscription
from http_api.client.sdk.page_decoding import PageDecoder
from http_api.client.sdk.positions import (
    LogPosition,
    PartitionState,
    partitions_of,
    place_to_begin,
)
from http_api.client.sdk.present_pages import AsidePages, PresentPage, open_page
from http_api.client.sdk.record_types import (
    K,
    Record,
    TopicPartition,
    V,
)
from http_api.client.sdk.steps import ATTEMPT_LEAST_S, Shell, Steps
from raft_metadata.common.errors import Outcome

if TYPE_CHECKING:
    from http_api.client.admin import TopicInfo

T = TypeVar("T")

AnyRecord = Record[Any, Any]
RebalanceCallback = Callable[[Any, list[TopicPartition]], Any]
CLOSE_S: Final = 30.0
"""Longest time of a revocation's commits, and of the end of a subscription, unless one is given."""
LEAVE_S: Final = 5.0
LEAVE_SHARE: Final = 6
"""Of the time for the end of a subscription this part is left for leaving the group."""
USER_WORK: Final = "user"
"""Name of the requests that `wakeup` interrupts."""
ASIDE_SHARE: Final = 4
"""Decoded pages of paused partitions take this part of ``queued_max_bytes``, beside the queue."""
WAIT_SLICE_S: Final = 0.5
"""Longest wait before interrupted requests are looked at again."""


@dataclass(frozen=True, slots=True)
class RunCallback:
    """Call a function of the program; what it raises, or returns to await, is the caller's."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    is_guarded: bool
    """True: what it raises is logged; False: the program's call raises it."""


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Run steps with requests, without the lock, and go on with their result."""

    steps: Steps[Any]
    name: str = ""
    """Name by which the request under way can be interrupted."""


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Wait until a condition holds, at most for some seconds; None: without end."""

    is_true: Callable[[], bool]
    seconds: float | None


UserSteps = Generator[RunCallback | RunSteps | WaitUntil, Any, T]

_consumers: weakref.WeakSet[ConsumerBase[Any, Any]] = weakref.WeakSet()


def _attend_in_child() -> None:
    for consumer in list(_consumers):
        consumer.leave_short_path()


os.register_at_fork(after_in_child=_attend_in_child)


class ConsumerBase(Generic[K, V]):
    """State of one consumer on the program's side, and everything that does not wait."""

    def __init__(self, config: ConsumerConfig, context: ClientContext, shell: Shell) -> None:
        self._config, self._context = config, context
        self._records: Iterator[AnyRecord] = iter(())
        """Decoded records of the present page that were not returned yet."""
        self._page: PresentPage | None = None
        self._aside = AsidePages(config.queued_max_bytes // ASIDE_SHARE)
        self._last: AnyRecord | None = None
        """The record that was returned last; None: none since the last long way."""
        self._last_batch: Sequence[AnyRecord] = ()
        """Records that the last `consume` returned, or the first and last of one page, if ``_last``
        ends them."""
        self._is_taking = False
        """True while the present call may have taken records that it has not returned yet."""
        self._call_from: dict[PartitionState, LogPosition | None] = {}
        """Positions before the present call of the partitions that it has moved."""
        self._due_s = 0.0
        """Time from which a poll goes the long way."""
        self._polled_s = time.monotonic()
        self._commit_due_s = math.inf
        has_stats = config.on_stats is not None and config.stats_interval_ms > 0
        self._stats_due_s = (
            time.monotonic() + config.stats_interval_ms / MS if has_stats else math.inf
        )
        self._is_woken = self._is_in_callback = False
        self._is_closing = False
        """True from the call of `close`; one in a callback is put off until the call's end."""
        self._has_failed = False
        """True if the block of the consumer ended by an exception."""
        self._to_leave: str | None = None
        """Member id under which the group is to be left; None: it was left, or never joined."""
        self._close_timeout_s: float | None = CLOSE_S
        self._close_until_s = math.inf
        """Time until which commits may last while the consumer is being closed."""
        self._held: list[tuple[PartitionState, bool]] = []
        """Partitions of a revocation under way, and whether the program had paused them."""
        self._begun: RunCallback | None = None
        """The callback that was called last."""
        self._user: object = None
        self._depth = 0
        self._callbacks: dict[str, RebalanceCallback | None] = {}
        self._decoder = PageDecoder(
            config.key_deserializer,
            config.value_deserializer,
            joins=config.large_messages == "join",
        )
        self._work = ConsumerWork(config, context, shell, self._attend, lambda: self._polled_s)
        self._shell_notify, self._now_s = shell.notify, shell.now_s
        _consumers.add(self)

    # attention

    def _attend(self) -> None:
        """Make the program's next call go the long way, and wake one that waits."""
        self._due_s = 0.0
        self._shell_notify()

    def leave_short_path(self) -> None:
        """Make the next call look at everything; in a forked child it raises `ClosedError`."""
        self._due_s = 0.0

    def _set_due(self) -> None:
        self._due_s = min(self._commit_due_s, self._stats_due_s)
        is_busy = self._is_in_callback or self._work.has_news
        if is_busy or self._is_woken or self._context.is_closed:  # a signal may wake it just now
            self._due_s = 0.0

    def _enter(self, user: object) -> None:
        """Begin a call of the program; raise `QuorumlogError` if another one is under way."""
        self._context.check_open()
        self._forget_ended_calls(user, begun=1)
        if self._depth and self._user != user:
            kind = type(self).__name__
            msg = f"this {kind} is used by another thread or task now: one at a time may use it"
            raise QuorumlogError(msg)
        self._user = user
        self._depth += 1

    def _leave(self) -> None:
        self._depth -= 1

    def _forget_ended_calls(self, user: object, *, begun: int) -> None:
        """Forget calls that an interrupt has ended before they could say so themselves.

        ``begun``: number of calls that have begun and did not `_enter` yet.
        """
        if self._depth and self._user == user:
            self._depth = min(self._depth, self._count_calls() - begun)
        if not self._depth:
            self._is_in_callback = False

    def _count_calls(self) -> int:
        """Return how many calls of this consumer are under way in the present thread or task."""
        return self._depth + 1  # an asyncio program is interrupted at its awaits only

    @contextlib.contextmanager
    def _in_callback(self) -> Iterator[None]:
        """Refuse reading, and put off `close`, while a callback of the program runs."""
        before, self._is_in_callback = self._is_in_callback, True
        self._due_s = 0.0
        try:
            yield
        finally:
            self._is_in_callback = before

    def _refuse_in_callback(self) -> None:
        if self._is_in_callback:
            msg = (
                "a callback can't read from its consumer or change its subscription: "
                "return from it first"
            )
            raise QuorumlogError(msg)

    def _begin_close(
        self, user: object, timeout_s: float | None, *, has_failed: bool = False
    ) -> bool:
        """Return True if the consumer is to be closed now, and not at the end of a call."""
        if self._context.is_closed or self._context.is_forked:
            return False
        self._forget_ended_calls(user, begun=0)
        if self._depth and self._user != user:
            self._enter(user)
        if not self._is_closing or not self._depth:
            self._close_timeout_s = timeout_s
            self._has_failed = self._has_failed or has_failed
            self._is_closing = True
        return not self._depth

    @property
    def _is_leave_due(self) -> bool:
        """True if an interrupt has ended `close` before it had left the group."""
        is_over = self._context.is_closed and not self._context.is_forked
        return is_over and self._to_leave is not None

    @property
    def _is_close_due(self) -> bool:
        """True if a callback has closed the consumer, and the call that ran it has ended."""
        return self._is_closing and not self._depth and not self._context.is_closed

    def _take_wakeup(self) -> None:
        """Raise `WakeupError` if `wakeup` was called, unless the consumer is being closed."""
        if self._is_woken and not self._is_closing:
            self._is_woken = False
            msg = "wakeup was called"
            raise WakeupError(msg)

    # positions of what was returned

    def _settle(self) -> None:
        """Move the position of the present page's partition behind the last returned record."""
        last, page = self._last, self._page
        if page is None:
            return
        state = page.state
        if page.is_void:  # the background has moved the position since
            self._page, self._records = None, iter(())
        elif last is not None and (last.topic, last.partition) == state.place:
            epoch = last.leader_epoch if last.leader_epoch >= 0 else None
            self._move(state, LogPosition(last.offset + 1, epoch))

    def _move(self, state: PartitionState, position: LogPosition) -> None:
        """Set a position by what was returned, or by the end of a page."""
        self._call_from.setdefault(state, state.position)
        state.position = position

    def _end_page(self) -> None:
        """Move behind the present page, which is used up."""
        page = self._page
        if page is None:
            return
        state = page.state
        if not page.is_void:
            if state.position is None or page.end.offset >= state.position.offset:
                self._move(state, page.end)  # else it was read again for its parts
            if page.error is not None:
                state.error = page.error
        self._page, self._records = None, iter(())

    def _drop_page(self, places: Iterable[Place]) -> None:
        """Return no more of the present page if it is of one of these partitions."""
        self._settle()
        if self._page is not None and self._page.state.place in set(places):
            self._page, self._records = None, iter(())

    def _undo_short_call(self, last: AnyRecord | None) -> None:
        """Have what a call took of the present page, behind the ``last`` one, fetched again."""
        self._last = last
        self._settle()
        self._call_from.clear()
        self._is_taking = True
        self._undo_call()

    def _undo_call(self) -> None:
        """Have what a call took, and could not return, fetched again."""
        if not self._is_taking:
            return
        self._last, self._last_batch = None, ()
        for state, position in self._call_from.items():
            state.position, state.error = position, None
        moved = set(self._call_from)
        if self._page is not None:
            moved.add(self._page.state)
        self._page, self._records, self._is_taking = None, iter(()), False
        for state in moved:
            if self._work.positions.states.get(state.place) is state:
                state.rewind()
        self._work.refresh()

    def _set_aside(self, place: Place) -> None:
        """Return no more of the present page for a while if it is of this partition."""
        self._settle()
        page = self._page
        if page is not None and page.state.place == place:
            self._aside.put(page, self._records)  # before it is taken away: an interrupt loses none
            self._page, self._records = None, iter(())

    def _may_read(self, state: PartitionState) -> bool:
        return state.is_readable

    def _open_aside(self) -> bool:
        """Go on with a page that was put aside; return False if there is none to read now."""
        found = self._aside.first(self._may_read)
        if found is None:
            return False
        self._page, self._records = found.page, found.records
        self._aside.remove(found)
        return True

    def _next_page(self) -> bool:
        """Open or decode the page that is next in turn; return False if none waits."""
        taken: tuple[PartitionState, PolledPage] | None = None
        try:
            while True:
                if not self._open_aside():
                    taken = self._work.positions.next_page()
                    if taken is None:
                        return False
                    self._open_page(*taken)
                    if self._work.positions.is_full:  # there is room again
                        self._work.refresh()
                record = next(self._records, None)
                if record is not None:
                    self._records = itertools.chain((record,), self._records)
                    return True
                self._end_page()
        except BaseException:  # such as an interrupt of a deserializer
            page, self._page, self._records = self._page, None, iter(())
            if page is not None:
                page.state.rewind()
            if taken is not None:
                taken[0].rewind()
            raise

    def _open_page(self, state: PartitionState, page: PolledPage) -> None:
        self._page, records = open_page(self._config, self._decoder, state, page)
        self._records = iter(records)

    # the long way of poll, consume and iteration

    def _poll_steps(self, timeout_s: float | None) -> UserSteps[AnyRecord | None]:
        """Return the next record; None: none in time, or a callback has closed the consumer."""
        self._refuse_in_callback()
        until_s = None if timeout_s is None else self._now_s() + timeout_s
        self._settle()
        self._last, self._last_batch = None, ()
        while True:
            self._is_taking = False
            self._call_from.clear()
            yield from self._attend_steps()
            if self._is_closing:
                return None
            self._is_taking = True
            record = next(self._records, None)
            if record is None:
                self._end_page()
                self._is_taking = False  # nothing was
                error = self._work.positions.take_error()
                if error is not None:
                    raise error.with_traceback(None)  # it is raised again until a seek
                if self._next_page():
                    self._is_taking = True
                    record = next(self._records, None)
            if record is not None:
                self._last = record
                self._set_due()
                return record
            if self._work.positions.take_error() is not None:
                continue
            left_s = None if until_s is None else until_s - self._now_s()
            if left_s is not None and left_s <= 0:
                self._set_due()
                return None
            self._work.refresh()
            slice_s = WAIT_SLICE_S if left_s is None else min(left_s, WAIT_SLICE_S)
            until_commit_s = max(0.0, self._commit_due_s - self._now_s())
            yield WaitUntil(self._has_something, min(slice_s, until_commit_s))

    def _consume_steps(self, most: int, timeout_s: float | None) -> UserSteps[list[AnyRecord]]:
        """Return what there is as soon as there is one record, at most some records."""
        first = yield from self._poll_steps(timeout_s)
        if first is None:
            return []
        found = [first, *itertools.islice(self._records, most - 1)]
        self._last = found[-1]
        while len(found) < most and self._due_s > 0.0:
            if not self._add_page(found, most):
                break
        self._last_batch = tuple(found)
        return found

    def _add_page(self, found: list[AnyRecord], most: int) -> bool:
        """Add records of the next page to those of a call; return False if there is none."""
        self._settle()
        self._end_page()
        try:
            if not self._next_page():
                return False
        except Exception:  # noqa: BLE001 the next call raises it, as it reads the page again
            return False
        found += itertools.islice(self._records, most - len(found))
        self._last = found[-1]
        return True

    def _has_something(self) -> bool:
        return (
            self._is_woken
            or self._work.has_news
            or self._work.positions.has_page()
            or self._aside.first(self._may_read) is not None
            or self._work.positions.take_error() is not None
        )

    def _attend_steps(self) -> UserSteps[None]:
        """Run what the background left to the program: callbacks, errors, rebalances, commits."""
        now_s = self._polled_s = self._now_s()
        self._take_wakeup()
        work = self._work
        yield from self._callback_steps()
        work.check_background()
        if work.failure is not None:
            failure, work.failure = work.failure, None
            raise failure
        if now_s >= self._commit_due_s:
            self._commit_due_s = now_s + self._config.auto_commit_interval_ms / MS
            self._commit_automatically()
        if work.membership.subscription is not None:
            work.membership.poll()
            if work.membership.epoch is None and not work.membership.is_lost:
                self._shell_notify()
            yield from self._rebalance_steps()
        if now_s >= self._stats_due_s and self._config.on_stats is not None:
            self._stats_due_s = now_s + self._config.stats_interval_ms / MS
            yield RunCallback(self._config.on_stats, (self.metrics(),), is_guarded=True)

    def _callback_steps(self) -> UserSteps[None]:
        work = self._work
        while work.queue.results:
            result = work.queue.results.popleft()
            yield RunCallback(result.callback, (result.error, result.offsets), is_guarded=True)
        while work.reports and self._config.on_error is not None:
            yield RunCallback(self._config.on_error, (work.reports.popleft(),), is_guarded=True)

    def _rebalance_steps(self) -> UserSteps[None]:
        work, member = self._work, self._work.membership
        if self._held:
            self._hold_no_more()
        if member.is_lost:
            yield from self._lose_steps()
        if member.error is not None:
            raise member.error
        revoked = member.revoked() if member.epoch is not None else []
        if revoked:
            yield from self._revoke_steps(revoked, self._now_s() + CLOSE_S)
        added = member.added()
        if added:
            places = [(one.topic, one.partition) for one in added]
            try:
                for one in added:
                    at = None if one.offset is None else LogPosition(one.offset, one.leader_epoch)
                    state = PartitionState(one.topic, one.partition, at, topic_id=one.topic_id)
                    state.committed = at if one.is_committed else None
                    work.positions.add(state)
                member.take(places)
                error = yield from self._call_steps("on_assign", places)
                if error is not None and not isinstance(error, Exception):
                    raise error
            except BaseException:  # an interrupt: the next call runs on_assign, with its seeks
                member.take_back(places)
                self._forget(places)
                raise
            if self._config.enable_auto_commit and math.isinf(self._commit_due_s):
                self._commit_due_s = self._now_s() + self._config.auto_commit_interval_ms / MS
            work.refresh()
            if error is not None:
                raise error

    def _call_steps(self, name: str, places: list[Place]) -> UserSteps[BaseException | None]:
        """Run a callback about partitions, if there is one; return what it raises."""
        callback = self._callbacks.get(name)
        if callback is None or not places:
            return None
        step = RunCallback(callback, (self, partitions_of(places)), is_guarded=False)
        try:
            yield step
        except GeneratorExit:
            raise
        except BaseException as error:
            if self._begun is not step:  # an interrupt before it
                raise
            return error
        return None

    def _lose_steps(self) -> UserSteps[None]:
        """Forget what was owned by a membership that is over, and run ``on_lost``."""
        self._forget(self._work.membership.owned)
        lost = self._work.membership.take_loss()
        self._shell_notify()
        name = "on_lost" if self._callbacks.get("on_lost") is not None else "on_revoke"
        error = yield from self._call_steps(name, lost)
        if error is not None:
            raise error

    def _revoke_steps(self, revoked: list[Place], until_s: float) -> UserSteps[None]:
        """Commit what was returned of partitions, run ``on_revoke``, and give them up.

        After an interrupt the next call begins anew, if they are still revoked.
        """
        if self._held:
            self._hold_no_more()
        states = [self._work.positions.states.get(place) for place in revoked]
        self._held = [(one, one.is_paused) for one in states if one is not None]
        self._drop_page(revoked)
        for state, _ in self._held:  # nothing more of it is returned
            state.is_paused = True
        yield from self._final_commit_steps(set(revoked), until_s)
        error = yield from self._call_steps("on_revoke", revoked)
        try:
            yield RunSteps(self._work.drain_commits(until_s))  # those that wait end here
            if error is not None:
                raise error
        finally:
            self._forget(revoked)
            self._work.membership.give_up(revoked)
            self._held = []
            with contextlib.suppress(RuntimeError):  # an interrupt may have kept it from the lock
                self._shell_notify()

    def _hold_no_more(self) -> None:
        """Read partitions on whose revocation an interrupt has ended, or give them up at last."""
        places = [state.place for state, _ in self._held]
        self._drop_page(places)
        for state, was_paused in self._held:
            if self._work.positions.states.get(state.place) is state:
                state.is_paused = was_paused
                state.rewind()  # as its present page was dropped
                places.remove(state.place)
        self._work.membership.give_up(places)  # these were forgotten
        self._held = []
        self._work.refresh()

    def _forget(self, places: Iterable[Place]) -> None:
        places = list(places)
        self._drop_page(places)
        for place in places:
            self._work.positions.remove(place)

    # commits

    def _commit_automatically(self) -> None:
        """Queue the commit of everything that earlier polls returned."""
        if self._config.group_id is None:
            return
        stored_only = not self._config.enable_auto_offset_store
        positions = self._work.positions.to_commit(stored_only=stored_only)
        holds = self._work.membership.holds(positions)
        positions = {place: one for place, one in positions.items() if place in holds}
        if positions and self._work.queue.is_idle:
            on_commit = self._config.on_commit
            callbacks = () if on_commit is None else (on_commit,)
            self._work.queue.put(AsyncCommit(of_positions(positions), callbacks, holds))
            self._work.start_commits()

    def _final_commit_steps(self, places: set[Place] | None, until_s: float) -> UserSteps[None]:
        """Commit what was returned, of these partitions or all, if auto-commit is on; or log."""
        if not self._config.enable_auto_commit or self._config.group_id is None:
            return
        stored_only = not self._config.enable_auto_offset_store
        positions = self._work.positions.to_commit(stored_only=stored_only)
        offsets = of_positions(
            {place: one for place, one in positions.items() if places is None or place in places}
        )
        if not offsets:
            return
        failure: QuorumlogError | None = None
        try:
            rows = yield RunSteps(self._work.commit_until_known(offsets, until_s))
        except QuorumlogError as error:
            failure, rows = error, list(offsets.values())
            self._work.report(error)
        if self._config.on_commit is not None:
            yield RunCallback(self._config.on_commit, (failure, rows), is_guarded=True)

    def _commit_steps(
        self,
        record: AnyRecord | None,
        offsets: Iterable[TopicPartition] | None,
        callback: CommitCallback | None,
        timeout_s: float | None,
        *,
        asynchronous: bool,
    ) -> UserSteps[list[TopicPartition] | None]:
        self._check_group()
        self._settle()
        given = self._given_offsets(record, offsets)
        if given is None:
            stored_only = not self._config.enable_auto_offset_store
            given = of_positions(self._work.positions.to_commit(stored_only=stored_only))
        self._work.positions.note_own_commit(given)
        if asynchronous:
            callbacks = [one for one in (callback, self._config.on_commit) if one is not None]
            holds = self._work.membership.holds(given)
            self._work.queue.put(AsyncCommit(given, tuple(callbacks), holds))
            self._work.start_commits()
            yield from self._callback_steps()
            return None
        if callback is not None:
            msg = "a callback needs asynchronous=True: a synchronous commit returns its result"
            raise ConfigError(msg)
        rows: list[TopicPartition] = []
        try:
            if given:
                until_s = self._close_until_s
                if timeout_s is not None:
                    until_s = min(until_s, self._now_s() + timeout_s)
                steps = self._work.commit_until_known(given, until_s, self._take_wakeup)
                rows = yield RunSteps(steps, USER_WORK)
        except OutcomeUnknownError as error:
            if not self._is_woken or self._is_closing:
                raise
            self._is_woken = False
            msg = "wakeup was called; the commit may have been made"
            woken = WakeupError(msg)
            woken.outcome = error.outcome
            raise woken from error
        except WakeupError as error:
            error.outcome = Outcome.UNKNOWN  # of an attempt before
            raise
        finally:
            self._set_due()
        yield from self._callback_steps()
        return rows

    def _given_offsets(
        self, record: AnyRecord | None, offsets: Iterable[TopicPartition] | None
    ) -> Offsets | None:
        """Return what a call names, but nothing between the parts of a value that ends behind."""
        given = given_offsets(record, offsets)
        for place, one in (given or {}).items():
            state = self._work.positions.states.get(place)
            if state is None or given is None or one.offset is None:
                continue
            first = state.before_parts(LogPosition(one.offset)).offset
            if first < one.offset:
                given[place] = TopicPartition(*place, first, metadata=one.metadata)
        return given

    def _check_group(self) -> str:
        if self._config.group_id is None:
            msg = "commits and subscriptions need the setting group_id"
            raise ConfigError(msg)
        return self._config.group_id

    def _store(self, record: AnyRecord | None, offsets: Iterable[TopicPartition] | None) -> None:
        if self._config.enable_auto_offset_store:
            msg = "store_offsets needs the setting enable_auto_offset_store=False"
            raise ConfigError(msg)
        self._settle()
        given = self._given_offsets(record, offsets)
        for place, one in (given or {}).items():
            state = self._state(TopicPartition(*place))
            assert one.offset is not None
            state.stored = LogPosition(one.offset, one.leader_epoch)
        if given is None:
            for state in self._work.positions.states.values():
                state.stored = state.to_commit()

    def _rewind_last_call(self) -> None:
        """Take back what the last call returned: a commit covers what earlier calls returned."""
        last = self._last
        batch: Sequence[AnyRecord] = () if last is None else (last,)
        if self._last_batch and self._last_batch[-1] is last:
            batch = self._last_batch
        self._settle()
        for record in reversed(batch):
            state = self._work.positions.states.get((record.topic, record.partition))
            if state is not None and state.position is not None:
                state.take_back(record.offset)
        self._last, self._page, self._records = None, None, iter(())

    # assignment

    def _subscribe_steps(
        self, topics: Sequence[str] | str, callbacks: dict[str, RebalanceCallback | None]
    ) -> UserSteps[None]:
        self._check_group()
        if isinstance(topics, str):
            subscription = Subscription(None, topics) if topics.startswith("^") else None
            if subscription is None:
                msg = (
                    f"topics={topics!r}: expected a list of names, or a pattern that begins with ^"
                )
                raise ConfigError(msg)
        else:
            names = tuple(dict.fromkeys(topics))
            if not names or not all(isinstance(one, str) and one for one in names):
                msg = f"topics={topics!r}: expected at least one name"
                raise ConfigError(msg)
            patterns = [one for one in names if one.startswith("^")]
            if patterns and len(names) > 1:
                msg = f"topics={topics!r}: expected names, or one pattern"
                raise ConfigError(msg)
            subscription = Subscription(None, names[0]) if patterns else Subscription(names, None)
        yield from self._unsubscribe_steps()
        self._callbacks = callbacks
        self._polled_s = self._now_s()
        self._work.membership.subscribe(subscription)
        self._work.membership.poll()
        self._work.start_group()
        self._due_s = 0.0

    def _unsubscribe_steps(self, timeout_s: float = CLOSE_S) -> UserSteps[None]:
        """Leave the group, or the manual assignment, after a commit and ``on_revoke``.

        Raises what ``on_revoke`` raises, when all is done.
        """
        self._refuse_in_callback()
        work, member = self._work, self._work.membership
        end_s = self._now_s() + timeout_s
        until_s = end_s if math.isinf(end_s) else end_s - timeout_s / LEAVE_SHARE
        self._settle()
        if member.subscription is None:
            if work.positions.states:
                yield from self._final_commit_steps(None, until_s)
            yield RunSteps(work.drain_commits(until_s))
            self._forget(list(work.positions.states))
            yield RunSteps(self._leave_group(end_s))
            return
        self._note_membership()
        owned = sorted(member.owned)
        ending = self._lose_steps() if member.epoch is None else self._revoke_steps(owned, until_s)
        error = (yield from _error_of(ending)) if owned else None
        self._forget(list(work.positions.states))
        self._note_membership()
        member.leave()
        member.subscribe(None)
        self._commit_due_s = math.inf
        work.end_membership()
        yield RunSteps(self._leave_group(end_s))
        if error is not None:
            raise error

    def _note_membership(self) -> None:
        """Note that the group is to be left, even if an interrupt ends the present call."""
        if self._work.membership.epoch is not None or self._work.is_joining:
            self._to_leave = self._work.membership.member_id

    def _note_end(self) -> None:
        """Refuse all further use; if the group was not left, the next `close` leaves it."""
        if self._work.membership.epoch is not None:
            self._note_membership()
        self._context.close()
        self._due_s = 0.0

    def _leave_group(self, end_s: float) -> Steps[None]:
        """Leave the group if that is due; at ``end_s``, give it up."""
        if self._to_leave is None:
            return
        left_s = max(min(LEAVE_S, end_s - self._now_s()), ATTEMPT_LEAST_S)
        try:
            yield from self._work.leave(self._to_leave, retry_s=left_s)
        except QuorumlogError as failure:
            self._work.report(failure)  # the session ends by itself
        self._to_leave = None

    def _assign_steps(self, partitions: Iterable[TopicPartition]) -> UserSteps[None]:
        states = [self._new_state(one) for one in partitions]
        yield from self._unsubscribe_steps()
        for state in states:
            self._work.positions.add(state)
        if self._config.enable_auto_commit and self._config.group_id is not None:
            self._commit_due_s = self._now_s() + self._config.auto_commit_interval_ms / MS
        self._due_s = 0.0
        self._work.refresh()

    def _new_state(self, one: TopicPartition) -> PartitionState:
        position, start = place_to_begin(one, one.offset)
        if position is None and start is None and self._config.group_id is None:
            start = self._work.positions.start_of_reset()
        self._work.positions.expected.pop((one.topic, one.partition), None)
        return PartitionState(one.topic, one.partition, position, start)

    def _state(self, one: TopicPartition) -> PartitionState:
        state = self._work.positions.states.get((one.topic, one.partition))
        if state is None:
            msg = f"{one.topic}-{one.partition} is not assigned to this consumer"
            raise ConfigError(msg)
        return state

    def _seek(self, one: TopicPartition, offset: int | None) -> None:
        place = one.offset if offset is None else offset
        if place is None:
            msg = f"seek to {one!r}: expected an offset"
            raise ConfigError(msg)
        state = self._state(one)
        position, start = place_to_begin(one, place)
        self._drop_page([state.place])
        state.move(position, start)
        self._work.refresh()
        self._set_due()

    def _pause(self, partitions: Iterable[TopicPartition], *, is_paused: bool) -> None:
        for one in partitions:
            state = self._state(one)
            if is_paused and not state.is_paused:
                self._set_aside(state.place)
            state.is_paused = is_paused
        self._work.refresh()

    def _position_steps(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None
    ) -> UserSteps[list[TopicPartition]]:
        """Return positions, looking up those that are not known yet."""
        self._settle()
        found = []
        seconds = self._config.api_timeout_ms / MS if timeout_s is None else timeout_s
        for one in partitions:
            state = self._state(one)
            until_s = self._now_s() + seconds
            while not _is_resolved(state) and (left_s := until_s - self._now_s()) > 0:
                self._take_wakeup()
                yield WaitUntil(partial(self._has_position, state), min(left_s, WAIT_SLICE_S))
            if state.error is not None and state.position is None:
                raise state.error
            at = state.position
            if at is None:
                msg = f"the position of {one.topic}-{one.partition} is not known in time"
                raise QuorumlogError(msg)
            found.append(TopicPartition(one.topic, one.partition, at.offset, leader_epoch=at.epoch))
        return found

    def _has_position(self, state: PartitionState) -> bool:
        return (self._is_woken and not self._is_closing) or _is_resolved(state)

    # questions to the cluster

    def _committed_rows(
        self, partitions: Iterable[TopicPartition], retry_s: float
    ) -> Steps[list[TopicPartition]]:
        group = self._check_group()
        cluster_id = yield from self._work.cluster_id(retry_s)
        rows = yield from self._work.run_call(groups.group_offsets(cluster_id, group), retry_s)
        commits = {(one.topic, one.partition): one for one in rows if one.is_committed}
        found = []
        for one in partitions:
            row = commits.get((one.topic, one.partition))
            offset = None if row is None else row.offset
            metadata = "" if row is None else row.metadata
            epoch = None if row is None else row.leader_epoch
            found.append(
                TopicPartition(
                    one.topic, one.partition, offset, metadata=metadata, leader_epoch=epoch
                )
            )
        return found

    def _rows_at_times(
        self, partitions: Iterable[TopicPartition], retry_s: float
    ) -> Steps[list[TopicPartition]]:
        found = []
        for one in partitions:
            if one.offset is None or one.offset < 0:
                msg = f"{one!r}: expected a time in milliseconds as its offset"
                raise ConfigError(msg)
            call = offset_at(one.topic, one.partition, one.offset)
            offset = yield from self._work.run_call(call, retry_s)
            found.append(TopicPartition(one.topic, one.partition, offset))
        return found

    def _watermarks(self, one: TopicPartition, retry_s: float) -> Steps[tuple[int, int]]:
        found = yield from self._work.run_call(ends(one.topic, one.partition), retry_s)
        return found.beginning, found.end

    def _topics(self, topic: str | None, retry_s: float) -> Steps[dict[str, TopicInfo]]:
        from http_api.client import admin  # takes long to import, and is rarely needed

        cluster_id = yield from self._work.cluster_id(retry_s)
        if topic is not None:
            one = yield from self._work.run_call(admin.topic(cluster_id, topic), retry_s)
            return {one.name: one}
        rows = yield from self._work.run_call(admin.topics(cluster_id), retry_s)
        return {one.name: one for one in rows}

    def _retry_s(self, timeout_s: float | None) -> float:
        return self._config.api_timeout_ms / MS if timeout_s is None else timeout_s

    # the end

    def _close_steps(self) -> UserSteps[None]:
        """End everything; then raise what a callback raised."""
        if self._has_failed:
            self._rewind_last_call()
        timeout_s = math.inf if self._close_timeout_s is None else self._close_timeout_s
        self._close_until_s = self._now_s() + timeout_s
        first: BaseException | None = None
        for steps in (
            self._unsubscribe_steps(timeout_s),
            self._drain_steps(self._close_until_s),
            self._callback_steps(),
        ):
            error = yield from _error_of(steps)
            first = first or error
        if first is not None:
            raise first

    def _drain_steps(self, until_s: float) -> UserSteps[None]:
        try:
            yield RunSteps(self._work.drain_commits(until_s))
        finally:
            msg = "the consumer was closed before the commit's outcome was known"
            self._work.queue.abandon(OutcomeUnknownError(msg))

    # what does not wait

    def metrics(self) -> dict[str, Any]:
        """Return counters and sizes as of now, for logs and dashboards; costs microseconds."""
        work = self._work
        states = list(work.positions.states.values())
        return {
            "assigned_partitions": len(states),
            "fetch_and_heartbeat_requests": work.requests,
            "fetched_bytes": work.fetched_bytes,
            "queued_bytes": sum(state.queued_bytes for state in states),
            "queued_pages": sum(len(state.pages) for state in states),
            "member_id": work.membership.member_id,
            "member_epoch": work.membership.epoch,
            "joins": work.membership.joins,
            "lag": {
                f"{state.topic}-{state.partition}": state.high_watermark - state.position.offset
                for state in states
                if state.high_watermark is not None and state.position is not None
            },
        }


def _error_of(steps: UserSteps[None]) -> UserSteps[BaseException | None]:
    """Return what steps raise, to be raised when other things are done; None if nothing."""
    try:
        yield from steps
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 raised by the caller
        return error
    return None


def _is_resolved(state: PartitionState) -> bool:
    return state.position is not None or state.error is not None
