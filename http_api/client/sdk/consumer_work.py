"""Background work of a consumer: fetching, membership and commits, as steps for either shell.

One worker fetches from each broker that leads wanted partitions, with all of them in one waiting
``records:poll``; another asks any broker for partitions whose leader is not known, which an answer
names. One worker compares what these wait for with another broker's news. One looks up where
partitions start, while there is such a one. One sends heartbeats, and one asynchronous commits.
Everything here runs under the shell's lock; what the program has to run itself (callbacks, errors)
is kept for its next call, and ``attend`` makes that call leave its short path.
"""

from __future__ import annotations

import math
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, assert_never

from http_api.client import groups
from http_api.client.calls import HAS_ZSTD, Call, Place
from http_api.client.client_errors import (
    ApiError,
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    FencedError,
    OutcomeUnknownError,
    QuorumlogError,
    UnreachableError,
)
from http_api.client.consumer import ends
from http_api.client.polling import Polled, PolledPage, PollPosition, poll
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.commits import (
    MEMBER_FENCED,
    CommitQueue,
    Holds,
    Offsets,
    commit_call,
    commit_error,
    not_owned,
    results_of,
    split_held,
)
from http_api.client.sdk.consumer_settings import WAIT_MS_MAX, ConsumerConfig
from http_api.client.sdk.membership import (
    ConsumerMembership,
    HeartbeatDuty,
    IdleDuty,
    JoinDuty,
    LaterDuty,
    LeaveDuty,
    member_settings,
)
from http_api.client.sdk.positions import (
    ANY_BROKER,
    FetchPlan,
    LogPosition,
    PartitionState,
    ReadPositions,
)
from http_api.client.sdk.record_types import ConsumerGroupMetadata, TopicPartition
from http_api.client.sdk.steps import (
    ATTEMPT_LEAST_S,
    Pause,
    Shell,
    Step,
    Steps,
    changed,
    limited,
    steps_of,
)

T = TypeVar("T")

FETCH_WORKERS_MAX: Final = 16
"""Most brokers that are asked directly; the others' partitions are asked for through any."""
FETCH_RETRY_S: Final = 5.0
NEWS_EVERY_S: Final = 3.0
"""A request that waits for longer is compared with what another broker knows, so often."""
NEWS_ROWS_MAX: Final = 1_000
"""Most partitions that are compared at once; more are compared in turn."""
FIRST_WAIT_MS: Final = 1_000
"""Wait of a request with a new position, which a leader may refuse only at the end of the wait."""
AGAIN_S: Final = 1.0
"""Pause after an error, before the work is tried again."""
REPORT_AGAIN_S: Final = 30.0
"""Time in which an error that stays the same is reported once."""
REPORTS_MAX: Final = 10_000
INTERRUPT_AGAIN_S: Final = 0.1
EPOCH_WAIT_S: Final = 2.0
"""Longest wait for the heartbeat that tells a newer member epoch to a refused commit."""
BEAT_MARGIN_SHARE: Final = 6
"""A heartbeat is sent to another broker when its answer is late by this part of the session."""
BEAT_MARGIN_LEAST_S: Final = 0.5
SILENCE_LEAST_S: Final = 15.0
"""Joins and heartbeats are repeated for at least this time, in which a coordinator takes over."""
CHECK_S: Final = 0.5
"""Longest wait before ``check`` is called again: a signal's handler can't always notify."""
GROUP_WORK: Final = "group"
COMMIT_WORK: Final = "commits"
START_WORK: Final = "starts"
NEWS_WORK: Final = "news"
START_FIRST_S: Final = 1.0
"""Longest wait for the first answer about a partition's start; others wait behind it."""
START_S: Final = 5.0
"""The same when it has been asked for before."""
START_AGAIN_S: Final = 0.5


class _OverError(QuorumlogError):
    """A call is not needed any more."""


@dataclass(slots=True, eq=False)
class FetchWorker:
    """Fetching from one broker. ``versions`` are those of the request under way, if one is."""

    name: str
    broker: str
    versions: dict[Place, int] = field(default_factory=dict)
    rows: tuple[PollPosition, ...] = ()
    """Positions that the request under way asks for."""
    is_waiting: bool = False
    sent_s: float = 0.0
    accepted: set[tuple[Place, int]] = field(default_factory=set)
    """Partitions, with versions, whose position the last answer did not refuse."""
    stale_s: float | None = None
    """Time of the last interrupt of the request under way."""


class ConsumerWork:
    """State and background steps of one consumer."""

    def __init__(
        self,
        config: ConsumerConfig,
        context: ClientContext,
        shell: Shell,
        attend: Callable[[], None],
        polled_s: Callable[[], float],
    ) -> None:
        self.config, self.context, self.shell = config, context, shell
        self._attend, self._polled_s = attend, polled_s
        self.reports: deque[Exception] = deque()
        """Errors that healed by themselves, for ``on_error`` in the program's next call."""
        self.failure: QuorumlogError | None = None
        """An error that does not heal, to be raised from the program's next poll."""
        self.positions = ReadPositions(
            reset=config.auto_offset_reset,
            queued_max_bytes=config.queued_max_bytes,
            fetch_max_bytes=config.fetch_max_bytes,
            max_partition_bytes=config.max_partition_fetch_bytes,
            report=self.report,
        )
        self.membership = ConsumerMembership(config, self._new_member_id())
        self.queue = CommitQueue()
        self.is_joining = False
        self._is_beating = False
        self._join_due_s = 0.0
        """Time before which no other join is sent."""
        self._reported: dict[str, float] = {}
        """Time of the last report of each error."""
        self.requests = 0
        """Number of fetches and heartbeats sent."""
        self.fetched_bytes = 0
        self._workers: dict[str, FetchWorker] = {}
        self._compared = 0
        """Number of the row behind those that were compared last with another broker's."""
        self._started: set[str] = set()

    def _new_member_id(self) -> str:
        return f"{self.config.client_id or self.context.kind}-{uuid.uuid4().hex}"

    @property
    def has_news(self) -> bool:
        """True if a call of the program has more to do than to return records."""
        return (
            bool(self.queue.results)
            or bool(self.reports)
            or self.failure is not None
            or self.shell.failure is not None
            or self.membership.has_change
        )

    def report(self, error: Exception) -> None:
        """Log what heals by itself, and keep it for ``on_error``; the same once in a while only."""
        now_s = self.shell.now_s()
        fact = " ".join([type(error).__name__, *sorted(str(error).split())])  # brokers in any order
        if now_s < self._reported.get(fact, -math.inf) + REPORT_AGAIN_S:
            return
        if len(self._reported) >= REPORTS_MAX:
            self._reported.clear()
        self._reported[fact] = now_s
        self.context.log.warning("%s", error)
        if self.config.on_error is not None:
            self.reports.append(error)
        self._attend()

    def _fail(self, error: QuorumlogError) -> None:
        """Raise an error from the next poll if it does not heal, else report it."""
        if isinstance(error, AuthenticationError | AuthorizationError | ConfigError | FencedError):
            self.failure = error
            self._attend()
        else:
            self.report(error)

    def cluster_id(self, retry_s: float = FETCH_RETRY_S) -> Steps[str]:
        """Return the cluster's id, asking a broker for it the first time."""
        known = self.context.routes.cluster_id
        if known is not None:
            return known
        from http_api.client import admin  # takes long to import, and is rarely needed

        found = yield from self.run_call(admin.cluster(), retry_s)
        return found.cluster_id

    def run_call(
        self, call: Call[T], retry_s: float, check: Callable[[], None] = lambda: None
    ) -> Steps[T]:
        """Run a call, retried for some seconds, with attempts that do not last longer.

        With 0 seconds there is one attempt, which has the time that its call says.
        """
        steps = steps_of(call, self.context, self.shell.now_s, retry_s)
        if retry_s <= 0:
            return steps
        return limited(steps, self.shell.now_s, self.shell.now_s() + retry_s, check)

    def check_background(self) -> None:
        """Raise a `QuorumlogError` if an error has ended background work."""
        failure = self.shell.failure
        if failure is not None:
            msg = f"background work of this consumer failed: {failure!r}"
            raise QuorumlogError(msg) from failure

    # fetching

    def refresh(self) -> None:
        """Start workers that are needed, and interrupt requests that miss a wanted partition."""
        if self.shell.is_stopping:
            return
        now_s = self.shell.now_s()
        self.positions.is_full = False
        if self.positions.unresolved(now_s):
            self._start(START_WORK, self._find_starts)
        wanted = self.positions.leaders()
        for broker in wanted - self._workers.keys():
            if len(self._workers) >= FETCH_WORKERS_MAX and broker != ANY_BROKER:
                self.positions.forget_leader(broker, 0.0)
                continue
            worker = FetchWorker(f"fetch-{len(self._workers)}", broker)
            self._workers[broker] = worker
            self.shell.start(worker.name, partial(self._fetch, worker))
            self._start(NEWS_WORK, self._look_elsewhere)
        for worker in self._workers.values():
            if worker.is_waiting and self._is_stale(worker, now_s):
                self._interrupt(worker, now_s)
        self.shell.notify()

    def _interrupt(self, worker: FetchWorker, now_s: float) -> None:
        if worker.stale_s is None or now_s - worker.stale_s >= INTERRUPT_AGAIN_S:
            worker.stale_s = now_s
            self.shell.interrupt(worker.name)

    def _is_stale(self, worker: FetchWorker, now_s: float) -> bool:
        if worker.stale_s is not None:
            return True
        plan = self.positions.plan(worker.broker, now_s)
        if not isinstance(plan, FetchPlan):
            return False
        return any(worker.versions.get(one) != found for one, found in plan.versions.items())

    def _fetch(self, worker: FetchWorker) -> Steps[None]:
        while not self.shell.is_stopping:
            try:
                self.positions.make_room()
                plan = self.positions.plan(worker.broker, self.shell.now_s())
                if isinstance(plan, FetchPlan):
                    yield from self._fetch_once(worker, plan)
                else:
                    yield Pause(plan)
            except QuorumlogError as error:
                self._fail(error)
                self.positions.forget_leader(worker.broker, self.shell.now_s())
                self.shell.notify()
                yield from self._rest(AGAIN_S)

    def _rest(self, seconds: float) -> Steps[None]:
        """Wait that long whatever is notified meanwhile, unless the shell stops."""
        until_s = self.shell.now_s() + seconds
        while not self.shell.is_stopping:
            left_s = until_s - self.shell.now_s()
            if left_s <= 0:
                return
            yield Pause(left_s)

    def _fetch_once(self, worker: FetchWorker, plan: FetchPlan) -> Steps[None]:
        cluster_id = yield from self.cluster_id()
        is_known = worker.accepted.issuperset(plan.versions.items())
        longest_ms = WAIT_MS_MAX if is_known else FIRST_WAIT_MS
        call = poll(
            cluster_id,
            plan.rows,
            wait_ms=min(self.config.fetch_max_wait_ms, longest_ms),
            min_bytes=min(self.config.fetch_min_bytes, self.config.max_partition_fetch_bytes),
            max_bytes=plan.max_bytes,
            max_partition_bytes=min(self.config.max_partition_fetch_bytes, plan.max_bytes),
            rack=self.config.rack,
            zstd=HAS_ZSTD,
        )
        worker.versions, worker.is_waiting, worker.stale_s = plan.versions, True, None
        worker.rows, worker.sent_s = plan.rows, self.shell.now_s()
        self.positions.reserved[worker.broker] = plan.max_bytes
        self.requests += 1
        try:
            found = yield from self._send(worker, call)
        finally:
            worker.is_waiting = False
            self.positions.reserved.pop(worker.broker, None)
        if found is None:
            worker.versions = {}
            return
        now_s = self.shell.now_s()
        worker.accepted = set(plan.versions.items())
        for one in found:
            if isinstance(one, PolledPage):
                self.fetched_bytes += len(one.body)
                self.positions.receive_page(plan, one)
            else:
                place = (one.topic, one.partition)
                worker.accepted.discard((place, plan.versions.get(place, -1)))
                self.positions.receive_refusal(plan, one, now_s)
        if self.positions.take_error() is not None:
            self._attend()
        self.refresh()

    def _send(self, worker: FetchWorker, call: Call[list[Polled]]) -> Steps[list[Polled] | None]:
        """Send to the worker's broker first; None: interrupted."""
        if worker.broker != ANY_BROKER:  # no topic has such a name
            key = (f"@{worker.broker}", 0)
            self.context.routes.learn_leader(*key, worker.broker)
            call = Call(replace(call.request, leader_key=key), call.parse)
        return self._until_over(
            call, FETCH_RETRY_S, lambda: worker.stale_s is not None or self.shell.is_stopping
        )

    def _until_over(
        self, call: Call[T], retry_s: float, is_over: Callable[[], bool]
    ) -> Steps[T | None]:
        """Run a call; None: its request was ended, and ``is_over`` says that it is not needed."""

        def check(step: Step) -> Step:
            if is_over():
                raise _OverError
            return step

        steps = steps_of(call, self.context, self.shell.now_s, retry_s)
        try:
            return (yield from changed(steps, check))
        except (_OverError, OutcomeUnknownError, UnreachableError):
            if is_over():
                return None
            raise

    def _look_elsewhere(self) -> Steps[None]:
        """Notice brokers that keep a request although others serve its partitions now.

        One that was stopped, or cut off, answers nothing, so its successor would be found only when
        the request times out. Where news come with the same answer as always, nothing changes.
        """
        while not self.shell.is_stopping:
            yield Pause(NEWS_EVERY_S, NEWS_WORK)  # in a group, as each page notifies the others
            until_s = self.shell.now_s() - NEWS_EVERY_S
            workers = [
                one for one in self._workers.values() if one.is_waiting and one.sent_s <= until_s
            ]
            if not workers or self.shell.is_stopping:
                continue
            sent = {worker.name: worker.sent_s for worker in workers}
            rows = self._rows_to_compare(workers)
            try:
                cluster_id = yield from self.cluster_id()
                call = poll(cluster_id, rows, wait_ms=0, news_only=True, rack=self.config.rack)
                self.requests += 1
                found = yield from self.run_call(call, FETCH_RETRY_S)
            except QuorumlogError as error:  # fetches that fail are reported
                self.context.log.info("no news of waiting partitions reason=%s", error)
                continue
            for worker in workers:
                if worker.is_waiting and worker.sent_s == sent[worker.name]:
                    self._take_news(worker, found)

    def _rows_to_compare(self, workers: list[FetchWorker]) -> list[PollPosition]:
        rows = {(row.topic, row.partition): row for worker in workers for row in worker.rows}
        places = sorted(rows)
        first = self._compared % max(len(places), 1)
        chosen = (places[first:] + places[:first])[:NEWS_ROWS_MAX]
        self._compared = first + len(chosen)
        return [rows[place] for place in chosen]

    def _take_news(self, worker: FetchWorker, found: list[Polled]) -> None:
        """Read on elsewhere if another broker serves what this worker waits for."""
        served = [self.positions.receive_news(worker.broker, worker.versions, one) for one in found]
        if not any(served):
            return
        self.context.log.warning(
            "a request is given up, others serve its partitions broker=%s", worker.broker or "any"
        )
        now_s = self.shell.now_s()
        worker.versions.clear()  # an answer that comes all the same is dropped
        worker.rows = ()
        if worker.broker != ANY_BROKER:
            self.positions.forget_leader(worker.broker, now_s)
        self._interrupt(worker, now_s)
        self.refresh()

    def _find_starts(self) -> Steps[None]:
        """Look up starts until all are known; a later need starts this anew."""
        while not self.shell.is_stopping:
            try:
                now_s = self.shell.now_s()
                if self.positions.unresolved(now_s):
                    yield from self._resolve_starts(now_s)
                elif self.positions.unresolved(math.inf):
                    yield Pause(START_AGAIN_S)
                else:
                    break
            except QuorumlogError as error:
                self._fail(error)
                yield from self._rest(AGAIN_S)
        self._started.discard(START_WORK)

    def _resolve_starts(self, now_s: float) -> Steps[None]:
        """Look up where partitions begin that have neither an offset nor a commit yet.

        Those that could not be looked up before come last, so that they hold up no others.
        """
        states = sorted(self.positions.unresolved(now_s), key=lambda state: state.retry_s)
        group = self.config.group_id
        by_commit = [state for state in states if state.start is None]
        if by_commit and group is not None:
            cluster_id = yield from self.cluster_id()
            versions = [state.version for state in by_commit]
            call = groups.group_offsets(cluster_id, group)
            rows = yield from self.run_call(call, FETCH_RETRY_S)
            commits = {(one.topic, one.partition): one for one in rows if one.is_committed}
            for state, version in zip(by_commit, versions, strict=True):
                row = commits.get(state.place)
                if state.version != version:
                    continue
                offset = None if row is None else row.offset
                self.positions.expected[state.place] = -1 if offset is None else offset
                if row is not None and offset is not None:
                    position = LogPosition(offset, row.leader_epoch)
                    state.move(position)
                    state.committed = position
        for state in states:
            if self.positions.states.get(state.place) is state and state.position is None:
                yield from self._resolve_start(state)
        self.refresh()

    def _resolve_start(self, state: PartitionState) -> Steps[None]:
        version = state.version
        call = ends(state.topic, state.partition)
        timeout_s = START_S if state.retry_s else START_FIRST_S
        call = Call(replace(call.request, timeout_s=timeout_s), call.parse)
        try:
            found = yield from self.run_call(call, 0.0)
        except (ApiError, OutcomeUnknownError) as error:  # perhaps no leader; the others go on
            state.retry_s = self.shell.now_s() + AGAIN_S
            self._fail(error)
            return
        if state.version == version:
            self.positions.resolve(state, found.beginning, found.end)
            if state.error is not None:
                self._attend()

    # membership

    def group_metadata(self, group_id: str) -> ConsumerGroupMetadata:
        """Return what a transaction needs to commit offsets for this consumer.

        Raises:
            ConfigError: The consumer commits by itself, too, beside any transaction.
            QuorumlogError: It subscribed, and is no member of its group now.
        """
        if self.config.enable_auto_commit:
            msg = "offsets of a transaction need the consumer's setting enable_auto_commit=False"
            raise ConfigError(msg)
        if self.membership.subscription is None:
            return ConsumerGroupMetadata(group_id, expected=self.positions.expected)
        member = self.membership.member()
        if member is None:
            error = QuorumlogError(f"this consumer is no member of group {group_id!r} now: poll")
            error.retriable = True
            raise error
        return ConsumerGroupMetadata(group_id, *member)

    def start_group(self) -> None:
        """Start heartbeats, once."""
        self._join_due_s = 0.0
        self._start(GROUP_WORK, self._keep_membership)
        self.shell.notify()

    def _start(self, name: str, steps: Callable[[], Steps[None]]) -> None:
        if name not in self._started:
            self._started.add(name)
            self.shell.start(name, steps)

    def _keep_membership(self) -> Steps[None]:
        while not self.shell.is_stopping:
            now_s, member = self.shell.now_s(), self.membership
            duty = member.duty(now_s, self._polled_s(), self._new_member_id())
            joins, subscription = member.joins, member.subscription
            try:
                match duty:
                    case IdleDuty():
                        yield Pause(None)
                    case LaterDuty(seconds):
                        yield Pause(seconds)
                    case JoinDuty(member_id) if now_s >= self._join_due_s:
                        self._join_due_s = now_s + AGAIN_S
                        yield from self._join(member_id)
                    case JoinDuty():
                        yield Pause(self._join_due_s - now_s)
                    case HeartbeatDuty():
                        yield from self._beat(duty)
                    case LeaveDuty(member_id):
                        yield from self._leave_late(member_id)
                    case _:
                        assert_never(duty)
            except QuorumlogError as error:
                if member.joins == joins and member.subscription is subscription:
                    yield from self._fail_membership(error, duty)
            if member.has_change:
                self._attend()
            self.shell.notify()

    def _fail_membership(
        self,
        error: QuorumlogError,
        duty: JoinDuty | HeartbeatDuty | LeaveDuty | IdleDuty | LaterDuty,
    ) -> Steps[None]:
        member = self.membership
        if member.subscription is None or self.shell.is_stopping:
            return
        if member.receive_error(error):
            self.context.log.warning("membership lost group=%s: %s", self.config.group_id, error)
            return
        is_refused = isinstance(error, ApiError) and error.status < 500
        if isinstance(duty, HeartbeatDuty) and not is_refused:
            member.lose(may_join=True)  # no answer for a whole session: others may own it all
            self.report(error)
        elif isinstance(duty, JoinDuty) and is_refused:
            member.subscribe(member.subscription)  # join again at the next poll
            self.failure = error
            self._attend()
        else:
            self._fail(error)
        yield from self._rest(AGAIN_S)

    def _join(self, member_id: str) -> Steps[None]:
        member, subscription = self.membership, self.membership.subscription
        assert subscription is not None
        assert self.config.group_id is not None
        cluster_id = yield from self.cluster_id()
        settings = member_settings(self.config, subscription)
        call = groups.join(cluster_id, self.config.group_id, member_id, settings)
        self.requests += 1
        self.is_joining = True
        try:
            longest_s = max(self.config.session_timeout_ms / MS, SILENCE_LEAST_S)
            found = yield from self.run_call(call, longest_s)
        finally:
            self.is_joining = False
        if member.subscription is subscription and not self.shell.is_stopping:
            member.receive(found, (), 0.0, self.shell.now_s())  # no heartbeat yet
        else:  # unsubscribed or closed meanwhile
            call_back = groups.leave(cluster_id, self.config.group_id, member_id)
            yield from self.run_call(call_back, 0.0)

    def _beat(self, duty: HeartbeatDuty) -> Steps[None]:
        assert self.config.group_id is not None
        cluster_id = yield from self.cluster_id()
        call = groups.heartbeat(
            cluster_id,
            self.config.group_id,
            duty.member_id,
            member_epoch=duty.epoch,
            owned=duty.owned,
            wait_ms=duty.wait_ms,
        )
        session_s = self.config.session_timeout_ms / MS
        margin_s = max(session_s / BEAT_MARGIN_SHARE, BEAT_MARGIN_LEAST_S)
        call = Call(replace(call.request, timeout_s=duty.wait_ms / MS + margin_s), call.parse)
        self.requests += 1
        joins = self.membership.joins
        member = self.membership

        def is_over() -> bool:
            return self.shell.is_stopping or member.epoch is None or member.joins != joins

        self._is_beating, sent_s = True, self.shell.now_s()
        try:
            found = yield from self._until_over(call, max(session_s, SILENCE_LEAST_S), is_over)
        finally:
            self._is_beating = False
        if found is not None and not is_over():
            member.receive(found, duty.owned, sent_s, self.shell.now_s())

    def end_membership(self) -> None:
        """End requests of a membership that the program has ended."""
        if self._is_beating or self.is_joining:
            self.shell.interrupt(GROUP_WORK)
        self.shell.notify()

    def _leave_late(self, member_id: str) -> Steps[None]:
        """Leave because the program has not polled for ``max_poll_interval_ms``."""
        self.membership.lose(may_join=False)
        text = f"no poll for max_poll_interval_ms={self.config.max_poll_interval_ms}"
        self.context.log.warning(
            "left group=%s until the next poll: %s", self.config.group_id, text
        )
        self._attend()
        yield from self.leave(member_id, retry_s=FETCH_RETRY_S)

    def leave(self, member_id: str, *, retry_s: float) -> Steps[None]:
        """Leave the group; a static member keeps its seat for its session."""
        assert self.config.group_id is not None
        cluster_id = yield from self.cluster_id()
        is_static = self.config.group_instance_id is not None
        call = groups.leave(cluster_id, self.config.group_id, member_id, keep_seat=is_static)
        try:
            yield from self.run_call(call, retry_s)
        except ApiError as error:
            if error.status != 404:
                raise

    # commits

    def start_commits(self) -> None:
        """Send the queued asynchronous commits."""
        self._start(COMMIT_WORK, self._send_commits)
        self.shell.notify()

    def _send_commits(self) -> Steps[None]:
        while True:
            if not self.queue.has_waiting:
                if self.shell.is_stopping:
                    return
                yield Pause(None)
                continue
            failure: QuorumlogError | None = None
            try:
                yield from self.cluster_id()
            except QuorumlogError as error:
                failure = error
            offsets = self.queue.take(self.membership.holds)
            if offsets and failure is None:
                call = self._commit_call(offsets, repeatable=False)
                holds = self.membership.holds(offsets)
                try:
                    yield from self.run_call(call, 0.0)
                    self._receive_commit(offsets, holds)
                except QuorumlogError as error:
                    failure = error
            self.queue.settle(failure)
            if self.queue.results:
                self._attend()
            self.shell.notify()

    def _commit_call(self, offsets: Offsets, *, repeatable: bool) -> Call[None]:
        """Return the call for partitions that are held now, with the epoch of now."""
        cluster_id, group = self.context.routes.cluster_id, self.config.group_id
        assert cluster_id is not None
        assert group is not None
        member = self.membership.member()
        assert member is not None or self.membership.subscription is None
        return commit_call(cluster_id, group, offsets, member, repeatable=repeatable)

    def _receive_commit(self, offsets: Offsets, holds: Holds) -> None:
        mine, _ = split_held(offsets, holds, self.membership.holds(offsets))
        self.positions.receive_commit(
            {
                place: LogPosition(one.offset, one.leader_epoch)
                for place, one in mine.items()
                if one.offset is not None
            }
        )

    def drain_commits(
        self, until_s: float, check: Callable[[], None] = lambda: None
    ) -> Steps[bool]:
        """Wait until the asynchronous commits have ended; return False if they have not in time.

        Raises:
            QuorumlogError: The background work that sends them has failed.
        """
        while not self.queue.is_idle:
            check()
            self.check_background()
            left_s = self._left_s(until_s)
            if left_s <= 0:
                return False
            yield Pause(min(left_s, CHECK_S))
        return True

    def commit_until_known(
        self, offsets: Offsets, until_s: float, check: Callable[[], None] = lambda: None
    ) -> Steps[list[TopicPartition]]:
        """Commit, and repeat it until its outcome is known, or until a time.

        Args:
            offsets: What to commit, at least one.
            until_s: Time of the shell; infinite: without end.
            check: Called before each attempt; what it raises ends the commit.

        Raises:
            CommitError: Partitions are not owned any more, or the group refused them.
            QuorumlogError: The outcome is not known in time.
        """
        member = self.membership
        holds = member.holds(offsets)
        if not (yield from self.drain_commits(until_s, check)):
            msg = "nothing was committed: an earlier asynchronous commit is still under way"
            error = QuorumlogError(msg)
            error.retriable = True
            raise error
        if holds:
            yield from self.cluster_id(self._left_s(until_s))
        mine, refused = split_held(offsets, holds, member.holds(offsets))
        failure: QuorumlogError | None = None
        while mine:
            epoch, answers = member.epoch, member.answers
            call = self._commit_call(mine, repeatable=True)
            try:
                left_s = max(self._left_s(until_s), ATTEMPT_LEAST_S)
                yield from self.run_call(call, left_s, check)
                self._receive_commit(mine, holds)
                break
            except ApiError as error:
                if error.status >= 500:
                    raise
                failure = error
            if failure.code != MEMBER_FENCED or epoch is None:
                self._lose_by(failure)
                break
            yield from self._await_heartbeat(answers, until_s)
            if member.epoch == epoch or self._left_s(until_s) <= 0:
                break
            failure = None
            mine, _ = split_held(mine, holds, member.holds(mine))
            refused = {place: one for place, one in offsets.items() if place not in mine}
        errors: dict[Place, QuorumlogError | None] = {one: not_owned() for one in refused}
        if failure is not None:
            errors |= dict.fromkeys(mine, failure)
        rows = results_of(offsets, errors)
        failed = [one for one in rows if one.error is not None]
        if failed:
            raise commit_error(failed)
        return rows

    def _lose_by(self, error: QuorumlogError) -> None:
        if self.membership.receive_error(error):
            self._attend()

    def _left_s(self, until_s: float) -> float:
        return max(0.0, until_s - self.shell.now_s())

    def _await_heartbeat(self, answers: int, until_s: float) -> Steps[None]:
        """Wait for the next heartbeat's answer, which tells a newer epoch."""
        end_s = self.shell.now_s() + min(EPOCH_WAIT_S, self._left_s(until_s))
        while self.membership.answers == answers and self.membership.epoch is not None:
            left_s = end_s - self.shell.now_s()
            if left_s <= 0:
                return
            yield Pause(left_s)
