"""Decisions about a call's attempts: which broker gets the next one, and whether to retry.

Both clients keep one `Routes`, and make the attempts that `attempts_at` yields for a call: each is
a request, a broker, and a pause before it. Any broker serves any call (decision D7), so the first
one that answers is kept. An answer names the leader of its partition (``Quorumlog-Leader-Url``),
and the next call for that partition is sent to it. A write is sent again only if it certainly was
not carried out (rule F1). No I/O; the time is an argument.

A leader's URL is used only where the given URLs lead to brokers themselves: never from https to
http, and not if a given URL has a path, which is a proxy's. One that can't be reached is left aside
for `LEFT_ASIDE_S`; meanwhile any broker passes its requests on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, TypeVar
from urllib.parse import urlsplit

from http_api.client.calls import Answer, Call, Request, error_of
from http_api.client.client_errors import (
    OutcomeUnknownError,
    ProtocolError,
    QuorumlogError,
    UnreachableError,
)
from http_api.client.network import server_address
from raft_metadata.common.errors import Outcome

T = TypeVar("T")

LEADER_URL_HEADER = "quorumlog-leader-url"
"""Header with the URL of the partition's leader."""
SERVED_BY_URL_HEADER = "quorumlog-served-by-url"
"""Header with the URL of the replica that served a fetch with a rack."""
FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 1.0
MAX_LEADERS_KEPT = 10_000
LEFT_ASIDE_S = 60.0
"""Seconds for which a leader that can't be reached gets no requests."""
REBOOTSTRAP_S = 10.0
"""Seconds of failures without an answer after which the given URLs are asked first again."""


class Routes:
    """Brokers and partition leaders that a client knows; its threads may share it.

    With ``checks_cluster`` each broker is asked for its cluster's id before it is used, and one of
    another cluster than the first is not used.
    """

    def __init__(
        self,
        urls: Iterable[str],
        *,
        follow_leaders: bool = True,
        checks_cluster: bool = False,
        rebootstrap_s: float = REBOOTSTRAP_S,
    ) -> None:
        self._given = tuple(dict.fromkeys(url.strip().rstrip("/") for url in urls if url.strip()))
        if not self._given:
            msg = "expected the URL of at least one broker"
            raise ValueError(msg)
        self._urls = list(self._given)
        self._has_prefix = any(urlsplit(url).path for url in self._given)
        self._is_secure = any(url.startswith("https:") for url in self._given)
        self._follows = follow_leaders and not self._has_prefix
        self._checks_cluster = checks_cluster
        self._rebootstrap_s = rebootstrap_s
        self._lock = Lock()
        self._leaders: dict[tuple[str, int], str] = {}
        self._left_aside: dict[str, float] = {}
        """Leaders that could not be reached, by the time until which they are not tried."""
        self._checked: set[str] = set()
        self._failing_since_s: float | None = None
        """Time of the first failure since the last answer; None if there is none."""
        self.cluster_id: str | None = None
        """Id of the cluster, once a broker has been checked."""
        self.has_answered = False

    @property
    def urls(self) -> tuple[str, ...]:
        """Every known broker; the latest one to answer a call without a partition comes first."""
        return tuple(self._urls)

    def add(self, urls: Iterable[str]) -> None:
        """Add brokers to try after all that are known already."""
        with self._lock:
            for url in urls:
                if url not in self._urls:
                    self._urls.append(url)

    def add_brokers(self, urls: Iterable[str]) -> None:
        """Add the cluster's own brokers, if requests may go to other brokers than those given."""
        self.add([url for url in urls if self.may_follow(url)])

    def may_follow(self, url: str) -> bool:
        """Return True if a URL that an answer names may get requests."""
        if not self._follows:
            return False
        try:
            scheme, _, _, path = server_address(url)
        except ValueError:
            return False
        return path in {"", "/"} and (scheme == "https" or not self._is_secure)

    def learn_leader(self, topic: str, partition: int, url: str) -> None:
        """Remember the URL of a partition's leader, unless it may not be followed."""
        if not self.may_follow(url):
            return
        with self._lock:
            if len(self._leaders) >= MAX_LEADERS_KEPT:
                self._leaders.clear()
            self._leaders[topic, partition] = url.rstrip("/")

    def leader(self, topic: str, partition: int) -> str | None:
        """Return the URL of a partition's leader, if it is known."""
        return self._leaders.get((topic, partition))

    def candidates(self, request: Request, now_s: float) -> list[str]:
        """Return the brokers to try, in order: the leader if known, then the others.

        If all requests failed for `rebootstrap_s`, the given URLs come first again, before
        those that answers named, and every broker is checked anew.
        """
        with self._lock:
            failing_s = self._failing_since_s
            if failing_s is not None and now_s - failing_s > self._rebootstrap_s:
                named = [url for url in self._urls if url not in self._given]
                self._urls = [*self._given, *named]
                self._leaders.clear()
                self._left_aside.clear()
                self._checked.clear()
                self._failing_since_s = now_s
            leader = None if request.leader_key is None else self._leaders.get(request.leader_key)
            if leader is not None and self._left_aside.get(leader, now_s) > now_s:
                leader = None
            others = [url for url in self._urls if url != leader]
            return others if leader is None else [leader, *others]

    def receive_answer(self, request: Request, url: str, answer: Answer, now_s: float) -> None:
        """Learn from an answer: move its broker to the front, or remember the leader it names."""
        self.has_answered = True
        with self._lock:
            self._failing_since_s = None
            if self._left_aside:
                self._left_aside.pop(url, None)
            if url in self._urls and self._urls[0] != url and request.leader_key is None:
                self._urls.remove(url)
                self._urls.insert(0, url)
        leader = answer.headers.get(SERVED_BY_URL_HEADER) or answer.headers.get(LEADER_URL_HEADER)
        if leader and request.leader_key is not None:
            self.learn_leader(*request.leader_key, leader)

    def report_failure(self, request: Request, url: str) -> None:
        """Forget a leader that did not answer, and move its broker to the end."""
        key = request.leader_key
        with self._lock:
            if key is not None and self._leaders.get(key) == url:
                del self._leaders[key]
        self.demote(url)

    def report_unreachable(self, url: str, now_s: float) -> None:
        """Leave a broker aside as a leader, because it accepts no connection or is no broker.

        Any other one passes its requests on.
        """
        with self._lock:
            self._left_aside[url] = now_s + LEFT_ASIDE_S
            self._report_silence(url, now_s)

    def report_lost(self, url: str, now_s: float) -> None:
        """Check a broker anew before its next request, as another one may have its address."""
        with self._lock:
            self._report_silence(url, now_s)

    def _report_silence(self, url: str, now_s: float) -> None:
        self._checked.discard(url)
        if self._failing_since_s is None:
            self._failing_since_s = now_s

    def demote(self, url: str) -> None:
        """Try this broker after all others from now on."""
        with self._lock:
            if url in self._urls:
                self._urls.remove(url)
                self._urls.append(url)

    def needs_check(self, url: str) -> bool:
        """Return True if this broker has to be asked for its cluster's id first."""
        return self._checks_cluster and url not in self._checked

    def check(self, url: str, cluster_id: str) -> None:
        """Take a broker's cluster id; raises `NotSentError` if it is another cluster's."""
        with self._lock:
            if self.cluster_id is None:
                self.cluster_id = cluster_id
            if cluster_id != self.cluster_id:
                msg = f"it belongs to cluster {cluster_id}, expected {self.cluster_id}"
                raise NotSentError(msg)
            self._checked.add(url)


class Backoff:
    """Pauses between attempts, each twice as long as the one before, up to a deadline."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self._next_s = FIRST_BACKOFF_S

    def next_s(self, now_s: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None if it would be too late."""
        if now_s + self._next_s > self._deadline_s:
            return None
        wait_s = self._next_s
        self._next_s = min(2 * wait_s, LAST_BACKOFF_S)
        return wait_s


class AttemptError(Exception):
    """Base of the two ways in which an attempt can end without an answer."""


class NotSentError(AttemptError):
    """The request certainly did not reach the broker."""


class LostError(AttemptError):
    """The request was sent, at least in part, and no complete answer came."""


class InterruptedAttemptError(LostError):
    """The client itself ended the request; its broker did nothing wrong."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request to send to one broker, ``wait_s`` seconds from now."""

    url: str
    request: Request
    wait_s: float


Attempts = Generator[Attempt, Answer, T]
"""Attempts to make one after the other, and the result that they lead to.

The client sends the `Answer` of each into the generator, or throws the `AttemptError` or
`QuorumlogError` that it ended with; at last the generator returns the result or raises a
`QuorumlogError`.
"""


def attempts_at(
    call: Call[T],
    routes: Routes,
    now_s: Callable[[], float],
    *,
    retry_s: float,
    wait_s: float = 0.0,
) -> Attempts[T]:
    """Yield attempts at a call, for up to ``retry_s`` seconds, and return its result.

    The first is made after ``wait_s`` seconds.
    """
    exchange = Exchange(routes, call.request, now_s(), retry_s)
    while True:
        try:
            if routes.needs_check(exchange.url):
                yield from _check_cluster(routes, exchange.url, wait_s, call.request.timeout_s)
                wait_s = 0.0
            answer = yield Attempt(exchange.url, call.request, wait_s)
        except NotSentError as error:
            wait_s = exchange.report_not_sent(str(error), now_s())
        except InterruptedAttemptError as error:
            msg = f"the request to {exchange.url} was interrupted"
            raise OutcomeUnknownError(msg) from error
        except LostError as error:
            wait_s = exchange.report_lost(str(error), now_s())
        else:
            again_s = exchange.receive_answer(answer, now_s())
            if again_s is None:
                return call.parse(answer)
            wait_s = again_s


_CLUSTER: Final = Request(method="GET", path="/v3/clusters")


def _check_cluster(routes: Routes, url: str, wait_s: float, timeout_s: float) -> Attempts[None]:
    """Ask a broker for its cluster's id before the request itself is sent to it.

    Raises:
        InterruptedAttemptError: The client ended the request.
        NotSentError: It does not answer, or is no broker of this cluster.
        ApiError: It refuses the credentials.
    """
    request = replace(_CLUSTER, timeout_s=min(_CLUSTER.timeout_s, timeout_s))
    try:
        answer = yield Attempt(url, request, wait_s)
        if answer.status in {401, 403}:
            raise error_of(answer)
        if answer.status >= 500:
            error = error_of(answer)
            if error.code != answer.status:  # a broker's own code, for example while it starts
                routes.has_answered = True
            msg = f"HTTP {answer.status}: {error}"
            raise NotSentError(msg)
        rows = answer.resources() if answer.status < 300 else []
    except InterruptedAttemptError:
        raise
    except (LostError, ProtocolError) as error:
        raise NotSentError(str(error)) from error
    found = rows[0].get("cluster_id") if len(rows) == 1 and isinstance(rows[0], dict) else None
    if not isinstance(found, str) or not found:
        msg = f"no quorumlog broker, HTTP {answer.status} with {answer.body[:100]!r}"
        raise NotSentError(msg)
    routes.check(url, found)


class Exchange:
    """Attempts at one call: chooses each broker, and decides whether and when to retry.

    `attempts_at` has the request sent to `url` and calls exactly one of `receive_answer`,
    `report_not_sent` and `report_lost`. They return the seconds to wait before the next attempt, or
    None if the answer is final, or raise a `QuorumlogError`.
    """

    def __init__(self, routes: Routes, request: Request, now_s: float, retry_s: float) -> None:
        self._routes = routes
        self._request = request
        self._backoff = Backoff(now_s + retry_s)
        self._candidates = routes.candidates(request, now_s)
        self._refusals: dict[str, str] = {}
        """Brokers that gave no answer, with the reasons."""
        self._is_outcome_unknown = False
        """True once an attempt was lost: the request may have taken effect."""

    @property
    def url(self) -> str:
        """Broker to send the next attempt to."""
        return self._candidates[0]

    def receive_answer(self, answer: Answer, now_s: float) -> float | None:
        """Take an HTTP answer; return None if final, else the seconds until the next attempt."""
        self._routes.receive_answer(self._request, self.url, answer, now_s)
        if 200 <= answer.status < 300 or answer.status in self._request.parsed_error_statuses:
            return None
        if answer.status < 400:
            msg = f"HTTP {answer.status} from {self.url}: expected a broker, which never redirects"
            raise ProtocolError(msg)
        error = error_of(answer)
        error.path = self._request.path
        surely_not_done = error.outcome is Outcome.NOT_WRITTEN or self._request.may_repeat
        if answer.status < 500 or not error.retriable or not surely_not_done:
            raise error
        self._routes.report_failure(self._request, self.url)
        return self._next_round(error, now_s)

    def report_not_sent(self, reason: str, now_s: float) -> float:
        """Take a failed connection, by which nothing arrived; return the seconds to wait."""
        self._refusals[self.url] = reason
        self._routes.report_unreachable(self.url, now_s)
        may_wait = self._routes.has_answered or self._is_outcome_unknown
        return self._next_broker(now_s, may_wait=may_wait)

    def report_lost(self, reason: str, now_s: float) -> float:
        """Take a missing or partial answer; only a request that may be repeated is sent again."""
        self._refusals[self.url] = reason
        self._is_outcome_unknown = True
        self._routes.report_lost(self.url, now_s)
        if not self._request.may_repeat:
            self._routes.report_failure(self._request, self.url)
            msg = f"no answer from {self.url}: {reason}"
            raise OutcomeUnknownError(msg)
        return self._next_broker(now_s, may_wait=True)

    def _next_broker(self, now_s: float, *, may_wait: bool) -> float:
        self._routes.report_failure(self._request, self.url)
        del self._candidates[0]
        if self._candidates:
            return 0.0
        if not may_wait:
            raise self._silence()
        return self._next_round(self._silence(), now_s)

    def _next_round(self, error: QuorumlogError, now_s: float) -> float:
        wait_s = self._backoff.next_s(now_s)
        if wait_s is None:
            if self._is_outcome_unknown and error.retriable:
                error.outcome = Outcome.UNKNOWN  # by an attempt before, whatever this one did
            raise error
        self._candidates = self._routes.candidates(self._request, now_s)
        return wait_s

    def _silence(self) -> QuorumlogError:
        """Return the error that names every broker that was tried, with its reason."""
        tried = ", ".join(f"{url} ({reason})" for url, reason in self._refusals.items())
        msg = f"no broker answers: {tried}"
        return OutcomeUnknownError(msg) if self._is_outcome_unknown else UnreachableError(msg)
