"""Background work of a consumer: fetching, membership and commits, as steps for either shell.

One worker fetches from each broker that leads wanted partitions, with all of them in one waiting
``records:poll``; another asks any broker for partitions whose leader is not known, which an answer
names. One sends heartbeats, and one asynchronous commits. Everything here runs under the shell's
lock; what the program has to run itself (callbacks, errors) is kept for its next call, and
``attend`` makes that call leave its short path.
"""

from __future__ import annotations

import importlib.util
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar, assert_never

from http_api.client import groups
from http_api.client.calls import Call, Place
from http_api.client.client_errors import (
    ApiError,
    AuthenticationError,
    AuthorizationError,
    ConfigError,
    FencedError,
    QuorumlogError,
)
from http_api.client.consumer import ends
from http_api.client.polling import Polled, PolledPage, poll
from http_api.client.routes import AttemptError, LostError
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.commits import (
    NOT_OWNED,
    CommitQueue,
    Offsets,
    commit_call,
    commit_error,
    results_of,
    split_owned,
)
from http_api.client.sdk.consumer_settings import WAIT_MS_MAX, ConsumerConfig
from http_api.client.sdk.membership import (
    MEMBER_FENCED,
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
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.sdk.steps import Pause, Shell, Steps, steps_of

T = TypeVar("T")

FETCH_WORKERS_MAX: Final = 16
"""Most brokers that are asked directly; the others' partitions are asked for through any."""
FETCH_RETRY_S: Final = 5.0
FIRST_WAIT_MS: Final = 1_000
"""Wait of a request with a new position, which a leader may refuse only at the end of the wait."""
AGAIN_S: Final = 1.0
"""Pause after an error, before the work is tried again."""
INTERRUPT_AGAIN_S: Final = 0.1
EPOCH_WAIT_S: Final = 2.0
"""Longest wait for the heartbeat that tells a newer member epoch to a refused commit."""
GROUP_WORK: Final = "group"
COMMIT_WORK: Final = "commits"


@dataclass(slots=True, eq=False)
class FetchWorker:
    """Fetching from one broker. ``versions`` are those of the request under way, if one is."""

    name: str
    broker: str
    versions: dict[Place, int] = field(default_factory=dict)
    is_waiting: bool = False
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
        self.requests = 0
        """Number of fetches and heartbeats sent."""
        self.fetched_bytes = 0
        self._workers: dict[str, FetchWorker] = {}
        self._started: set[str] = set()
        self._zstd = importlib.util.find_spec("zstandard") is not None

    def _new_member_id(self) -> str:
        return f"{self.config.client_id or self.context.kind}-{uuid.uuid4().hex}"

    @property
    def has_news(self) -> bool:
        """True if a call of the program has more to do than to return records."""
        return (
            bool(self.queue.results)
            or bool(self.reports)
            or self.failure is not None
            or self.membership.has_change
        )

    def report(self, error: Exception) -> None:
        """Log what heals by itself, and keep it for ``on_error``."""
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

        found = yield from steps_of(admin.cluster(), self.context, self.shell.now_s, retry_s)
        return found.cluster_id

    def run_call(self, call: Call[T], retry_s: float) -> Steps[T]:
        """Run a call, retried for some seconds."""
        return steps_of(call, self.context, self.shell.now_s, retry_s)

    # fetching

    def refresh(self) -> None:
        """Start workers that are needed, and interrupt requests that miss a wanted partition."""
        if self.shell.is_stopping:
            return
        now_s = self.shell.now_s()
        wanted = self.positions.leaders()
        if self.positions.unresolved(now_s):
            wanted.add(ANY_BROKER)
        for broker in wanted - self._workers.keys():
            if len(self._workers) >= FETCH_WORKERS_MAX and broker != ANY_BROKER:
                self.positions.forget_leader(broker, 0.0)
                continue
            worker = FetchWorker(f"fetch-{len(self._workers)}", broker)
            self._workers[broker] = worker
            self.shell.start(worker.name, partial(self._fetch, worker))
        for worker in self._workers.values():
            if worker.is_waiting and self._is_stale(worker, now_s):
                is_first = worker.stale_s is None
                if is_first or now_s - (worker.stale_s or 0.0) >= INTERRUPT_AGAIN_S:
                    worker.stale_s = now_s
                    self.shell.interrupt(worker.name)
        self.shell.notify()

    def _is_stale(self, worker: FetchWorker, now_s: float) -> bool:
        if worker.stale_s is not None:
            return True
        if worker.broker == ANY_BROKER and self.positions.unresolved(now_s):
            return True
        plan = self.positions.plan(worker.broker, now_s)
        if not isinstance(plan, FetchPlan):
            return False
        return any(worker.versions.get(one) != found for one, found in plan.versions.items())

    def _fetch(self, worker: FetchWorker) -> Steps[None]:
        while not self.shell.is_stopping:
            try:
                if worker.broker == ANY_BROKER:
                    yield from self._resolve_starts()
                plan = self.positions.plan(worker.broker, self.shell.now_s())
                if isinstance(plan, FetchPlan):
                    yield from self._fetch_once(worker, plan)
                else:
                    yield Pause(plan)
            except QuorumlogError as error:
                self._fail(error)
                self.positions.forget_leader(worker.broker, self.shell.now_s())
                self.shell.notify()
                yield Pause(AGAIN_S)

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
            zstd=self._zstd,
        )
        worker.versions, worker.is_waiting, worker.stale_s = plan.versions, True, None
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
        steps = self.run_call(call, retry_s)
        try:
            step = next(steps)
            while True:
                try:
                    answer = yield step
                except LostError as error:
                    if is_over():
                        return None
                    step = steps.throw(error)
                except (AttemptError, QuorumlogError) as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    def _resolve_starts(self) -> Steps[None]:
        """Look up where partitions begin that have neither an offset nor a commit yet."""
        states = self.positions.unresolved(self.shell.now_s())
        if not states:
            return
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
                if row is not None and row.offset is not None and state.version == version:
                    position = LogPosition(row.offset, row.leader_epoch)
                    state.move(position)
                    state.committed = position
        for state in states:
            if self.positions.states.get(state.place) is state and state.position is None:
                yield from self._resolve_start(state)
        self.refresh()

    def _resolve_start(self, state: PartitionState) -> Steps[None]:
        version = state.version
        try:
            found = yield from self.run_call(ends(state.topic, state.partition), FETCH_RETRY_S)
        except ApiError as error:  # perhaps no such topic yet; the others go on
            state.retry_s = self.shell.now_s() + AGAIN_S
            self._fail(error)
            return
        if state.version == version:
            self.positions.resolve(state, found.beginning, found.end)
            if state.error is not None:
                self._attend()

    # membership

    def start_group(self) -> None:
        """Start heartbeats, once."""
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
            joins = member.joins
            try:
                match duty:
                    case IdleDuty():
                        yield Pause(None)
                    case LaterDuty(seconds):
                        yield Pause(seconds)
                    case JoinDuty(member_id):
                        yield from self._join(member_id)
                    case HeartbeatDuty():
                        yield from self._beat(duty)
                    case LeaveDuty(member_id):
                        yield from self._leave_late(member_id)
                    case _:
                        assert_never(duty)
            except QuorumlogError as error:
                yield from self._fail_membership(error, duty, joins)
            if member.has_change:
                self._attend()
            self.shell.notify()

    def _fail_membership(
        self,
        error: QuorumlogError,
        duty: JoinDuty | HeartbeatDuty | LeaveDuty | IdleDuty | LaterDuty,
        joins: int,
    ) -> Steps[None]:
        member = self.membership
        if member.subscription is None or member.joins != joins or self.shell.is_stopping:
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
        yield Pause(AGAIN_S)

    def _join(self, member_id: str) -> Steps[None]:
        member, subscription = self.membership, self.membership.subscription
        assert subscription is not None
        assert self.config.group_id is not None
        cluster_id = yield from self.cluster_id()
        settings = member_settings(self.config, subscription)
        call = groups.join(cluster_id, self.config.group_id, member_id, settings)
        self.requests += 1
        found = yield from self.run_call(call, self.config.session_timeout_ms / MS)
        if member.subscription is subscription and not self.shell.is_stopping:
            member.receive(found, (), self.shell.now_s())
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
        self.requests += 1
        joins = self.membership.joins
        member = self.membership

        def is_over() -> bool:
            return self.shell.is_stopping or member.epoch is None or member.joins != joins

        found = yield from self._until_over(call, self.config.session_timeout_ms / MS, is_over)
        if found is not None and not is_over():
            member.receive(found, duty.owned, self.shell.now_s())

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
            mine, refused = self._owned_of(self.queue.take())
            errors: dict[Place, QuorumlogError] = {one: commit_refusal() for one in refused}
            failure: QuorumlogError | None = None
            try:
                if mine:
                    yield from self._commit_once(mine, retry_s=0.0, repeatable=False)
            except QuorumlogError as error:
                failure = error
            self.queue.settle(errors, failure)
            if self.queue.results:
                self._attend()
            self.shell.notify()

    def _commit_once(self, offsets: Offsets, *, retry_s: float, repeatable: bool) -> Steps[None]:
        assert self.config.group_id is not None
        cluster_id = yield from self.cluster_id()
        call = commit_call(
            cluster_id,
            self.config.group_id,
            offsets,
            self.membership.member(),
            repeatable=repeatable,
        )
        yield from self.run_call(call, retry_s)
        self.positions.receive_commit(
            {
                place: LogPosition(one.offset, one.leader_epoch)
                for place, one in offsets.items()
                if one.offset is not None
            }
        )

    def _owned_of(self, offsets: Offsets) -> tuple[Offsets, Offsets]:
        member = self.membership
        return split_owned(offsets, None if member.subscription is None else member.owned)

    def commit_until_known(
        self, offsets: Offsets, timeout_s: float | None
    ) -> Steps[list[TopicPartition]]:
        """Commit, and repeat it until its outcome is known, at most ``timeout_s`` seconds.

        Raises:
            CommitError: Partitions are not owned any more, or the group refused them.
            QuorumlogError: The outcome is not known in time.
        """
        until_s = None if timeout_s is None else self.shell.now_s() + timeout_s
        while not self.queue.is_idle:
            left_s = self._left_s(until_s)
            if left_s <= 0:
                break
            yield Pause(left_s)
        mine, refused = self._owned_of(offsets)
        failure: QuorumlogError | None = None
        while mine:
            epoch, answers = self.membership.epoch, self.membership.answers
            try:
                yield from self._commit_once(mine, retry_s=self._left_s(until_s), repeatable=True)
                break
            except ApiError as error:
                if error.status >= 500:
                    raise
                failure = error
            if failure.code != MEMBER_FENCED or epoch is None:
                self._lose_by(failure)
                break
            yield from self._await_heartbeat(answers)
            if self.membership.epoch == epoch or self._left_s(until_s) <= 0:
                break
            failure = None
            mine, more = self._owned_of(mine)
            refused = refused | more
        errors: dict[Place, QuorumlogError] = {one: commit_refusal() for one in refused}
        if failure is not None:
            errors |= dict.fromkeys(mine, failure)
        rows = results_of(offsets, errors, None)
        failed = [one for one in rows if one.error is not None]
        if failed:
            raise commit_error(failed)
        return rows

    def _lose_by(self, error: QuorumlogError) -> None:
        if self.membership.receive_error(error):
            self._attend()

    def _left_s(self, until_s: float | None) -> float:
        forever_s = 1e9
        return forever_s if until_s is None else max(0.0, until_s - self.shell.now_s())

    def _await_heartbeat(self, answers: int) -> Steps[None]:
        """Wait for the next heartbeat's answer, which tells a newer epoch."""
        until_s = self.shell.now_s() + EPOCH_WAIT_S
        while self.membership.answers == answers and self.membership.epoch is not None:
            left_s = until_s - self.shell.now_s()
            if left_s <= 0:
                return
            yield Pause(left_s)


def commit_refusal() -> QuorumlogError:
    """Return the error of a partition that this consumer does not own."""
    error = QuorumlogError(NOT_OWNED)
    error.code = MEMBER_FENCED
    return error
