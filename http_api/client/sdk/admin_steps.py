"""Steps of one call of an `Admin` or `AsyncAdmin`: its deadline, its requests, and its results.

An `AdminCall` is made for each call of a method. The modules `admin_topic_steps`,
`admin_group_steps` and `admin_cluster_steps` decide with it what to request: `request` makes one
request within the deadline, `each` makes the requests of a plural call one after the other and
gathers results and errors by name. Arguments are checked before the first request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from http_api.client import admin
from http_api.client.calls import Call, Place
from http_api.client.client_errors import AdminError, ApiError, QuorumlogError
from http_api.client.routes import Attempt
from http_api.client.sdk.admin_resources import check_integer, check_name
from http_api.client.sdk.client_context import MS, ClientContext
from http_api.client.sdk.record_types import TopicPartition
from http_api.client.sdk.steps import Step, Steps, changed, steps_of

K = TypeVar("K")
T = TypeVar("T")

LEAST_REQUEST_S: Final = 0.1
"""Least seconds that a request may take, when the call's time is nearly over."""


@dataclass(slots=True)
class AdminCounts:
    """Counts of an admin's work since it was made, as `metrics` shows them."""

    calls: int = 0
    failed_calls: int = 0
    requests: int = 0
    lost_requests: int = 0
    """Requests without an answer: not sent, broken or timed out."""

    def snapshot(self) -> dict[str, Any]:
        """Return the counts by name."""
        return {
            "calls": self.calls,
            "failed_calls": self.failed_calls,
            "requests": self.requests,
            "lost_requests": self.lost_requests,
        }


def timeout_seconds(timeout: float | None, api_timeout_ms: int) -> float:
    """Return the seconds that a call may take; raises `TypeError` or `ValueError`."""
    if timeout is None:
        return api_timeout_ms / MS
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        msg = f"timeout {timeout!r}: expected seconds, or None"
        raise TypeError(msg)
    if not timeout > 0:
        msg = f"timeout {timeout!r}: expected more than 0 seconds"
        raise ValueError(msg)
    return timeout


class AdminCall:
    """One call of an admin's method: owned by its steps, until its deadline."""

    def __init__(
        self,
        context: ClientContext,
        counts: AdminCounts,
        now_s: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._context = context
        self._counts = counts
        self._now_s = now_s
        self._deadline_s = now_s() + timeout_s

    def counted(self, steps: Steps[T]) -> Steps[T]:
        """Run a method's steps, and count the call and its failure."""
        self._counts.calls += 1
        try:
            result = yield from steps
        except Exception:
            self._counts.failed_calls += 1
            raise
        return result

    def cluster_id(self) -> Steps[str]:
        """Return the cluster's id; only the first call of an admin makes a request for it."""
        known = self._context.routes.cluster_id
        if known is not None:
            return known
        found = yield from self.request(admin.cluster())
        return found.cluster_id

    def request(self, call: Call[T]) -> Steps[T]:
        """Make attempts at a call until the deadline, and return its result.

        Raises:
            QuorumlogError: The broker refused it, no broker answered in time, or the deadline had
                passed before the first attempt.
        """
        left_s = self._deadline_s - self._now_s()
        if left_s <= 0:
            error = QuorumlogError("not requested: the timeout of the call was over before")
            error.retriable = True
            raise error
        steps = steps_of(call, self._context, self._now_s, left_s)
        return (yield from changed(steps, self._limited, self._count_loss))

    def _count_loss(self, error: Exception) -> None:
        self._counts.lost_requests += 1
        self._context.log.info("request without an answer error=%s", error)

    def _limited(self, step: Step) -> Step:
        """Return an attempt that ends at the deadline, or after ``request_timeout_ms``.

        Raises:
            ClosedError: The admin was closed since the last attempt.
        """
        self._context.check_open()
        if not isinstance(step, Attempt):
            return step
        self._counts.requests += 1
        left_s = max(LEAST_REQUEST_S, self._deadline_s - self._now_s() - step.wait_s)
        limit_s = min(left_s, self._context.config.request_timeout_ms / MS)
        if step.request.timeout_s <= limit_s:
            return step
        return replace(step, request=replace(step.request, timeout_s=limit_s))

    def each(self, names: Iterable[K], steps_for: Callable[[K], Steps[T]]) -> Steps[dict[K, T]]:
        """Run the steps for each name, one after the other, and return their results by name.

        Raises:
            AdminError: Some names failed; the others were done all the same.
        """
        done: dict[K, T] = {}
        failed: dict[K, QuorumlogError] = {}
        for name in names:
            try:
                done[name] = yield from steps_for(name)
            except QuorumlogError as error:
                failed[name] = error
        if failed:
            raise AdminError(done, failed)
        return done

    def together(self, names: Sequence[K], call: Call[T]) -> Steps[T]:
        """Make one request that does all names or none.

        Raises:
            AdminError: It failed, with the same error for every name.
        """
        try:
            return (yield from self.request(call))
        except QuorumlogError as error:
            raise AdminError({}, dict.fromkeys(names, error)) from error


# arguments


def list_of_names(what: str, names: Iterable[str]) -> list[str]:
    """Return the names of a list, each once; raises `TypeError` or `ValueError`."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        msg = f"{what}s {names!r}: expected a list of names"
        raise TypeError(msg)
    return list(dict.fromkeys(check_name(what, name) for name in names))


def list_of(kind: type[T], values: Iterable[T]) -> list[T]:
    """Return the values of a list; raises `TypeError` unless all are of the kind."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        msg = f"{values!r}: expected a list of {kind.__name__}"
        raise TypeError(msg)
    found = list(values)
    for one in found:
        if not isinstance(one, kind):
            msg = f"{one!r}: expected a {kind.__name__}"
            raise TypeError(msg)
    return found


def mapping_of(kind: type[K], values: Mapping[K, T], what: str) -> dict[K, T]:
    """Return a mapping as a dict; raises `TypeError` unless its keys are of the kind."""
    given: object = values
    if not isinstance(given, Mapping):
        msg = f"{given!r}: expected a mapping of {kind.__name__} to {what}"
        raise TypeError(msg)
    list_of(kind, list(values))
    return dict(values)


def place_of(partition: TopicPartition) -> Place:
    """Return topic and partition number; raises `TypeError` or `ValueError`."""
    topic = check_name("topic", partition.topic)
    return topic, check_integer(f"topic {topic}: partition", partition.partition, 0)


def list_of_partitions(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions of a list, each once; raises `TypeError` or `ValueError`."""
    found = list_of(TopicPartition, partitions)
    for one in found:
        place_of(one)
    return list(dict.fromkeys(found))


def is_missing(error: QuorumlogError) -> bool:
    """Return True if a broker answered that the resource does not exist."""
    return isinstance(error, ApiError) and error.status == 404
