"""Decisions about a call's attempts: which broker gets the next one, and whether to retry.

Both clients keep one `Routes`, and make the attempts that `attempts_at` yields for a call: each is
a request, a broker, and a pause before it. Any broker serves any call (decision D7), so the first
one that answers is kept. An answer names the leader of its partition (``Quorumlog-Leader-Url``),
and the next call for that partition is sent to it. A write is sent again only if it certainly was
not carried out (rule F1). No I/O; the time is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import TypeVar

from http_api.client.calls import Answer, Call, Request, error_of
from http_api.client.client_errors import OutcomeUnknownError, QuorumlogError, UnreachableError
from raft_metadata.common.errors import Outcome

T = TypeVar("T")

LEADER_URL_HEADER = "quorumlog-leader-url"
"""Header with the URL of the partition's leader."""
SERVED_BY_URL_HEADER = "quorumlog-served-by-url"
"""Header with the URL of the replica that served a fetch with a rack."""
FIRST_BACKOFF_S = 0.05
LAST_BACKOFF_S = 1.0
MAX_LEADERS_KEPT = 10_000


class Routes:
    """Brokers and partition leaders that a client knows. Owned by one client; not thread-safe."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = list(dict.fromkeys(url.strip().rstrip("/") for url in urls if url.strip()))
        if not self._urls:
            msg = "expected the URL of at least one broker"
            raise ValueError(msg)
        self._leaders: dict[tuple[str, int], str] = {}
        self.has_answered = False

    @property
    def urls(self) -> tuple[str, ...]:
        """Every known broker; the latest one to answer a call without a partition comes first."""
        return tuple(self._urls)

    def add(self, urls: Iterable[str]) -> None:
        """Add brokers to try after all that are known already."""
        for url in urls:
            if url not in self._urls:
                self._urls.append(url)

    def learn_leader(self, topic: str, partition: int, url: str) -> None:
        """Remember the URL of a partition's leader."""
        if len(self._leaders) >= MAX_LEADERS_KEPT:
            self._leaders.clear()
        self._leaders[topic, partition] = url.rstrip("/")

    def candidates(self, request: Request) -> list[str]:
        """Return the brokers to try, in order: the leader if known, then the others."""
        leader = None if request.leader_key is None else self._leaders.get(request.leader_key)
        others = [url for url in self._urls if url != leader]
        return others if leader is None else [leader, *others]

    def receive_answer(self, request: Request, url: str, answer: Answer) -> None:
        """Learn from an answer: move its broker to the front, or remember the leader it names."""
        self.has_answered = True
        if url in self._urls and self._urls[0] != url and request.leader_key is None:
            self._urls.remove(url)
            self._urls.insert(0, url)
        leader = answer.headers.get(SERVED_BY_URL_HEADER) or answer.headers.get(LEADER_URL_HEADER)
        if leader and request.leader_key is not None:
            self.learn_leader(*request.leader_key, leader)

    def report_failure(self, request: Request, url: str) -> None:
        """Forget a leader that did not answer, and move its broker to the end."""
        if request.leader_key is not None:
            self._leaders.pop(request.leader_key, None)
        self.demote(url)

    def demote(self, url: str) -> None:
        """Try this broker after all others from now on."""
        if url in self._urls:
            self._urls.remove(url)
            self._urls.append(url)


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
            answer = yield Attempt(exchange.url, call.request, wait_s)
        except NotSentError as error:
            wait_s = exchange.report_not_sent(str(error), now_s())
        except LostError as error:
            wait_s = exchange.report_lost(str(error), now_s())
        else:
            again_s = exchange.receive_answer(answer, now_s())
            if again_s is None:
                return call.parse(answer)
            wait_s = again_s


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
        self._candidates = routes.candidates(request)
        self._refusals: dict[str, str] = {}

    @property
    def url(self) -> str:
        """Broker to send the next attempt to."""
        return self._candidates[0]

    def receive_answer(self, answer: Answer, now_s: float) -> float | None:
        """Take an HTTP answer; return None if final, else the seconds until the next attempt."""
        self._routes.receive_answer(self._request, self.url, answer)
        if answer.status < 400 or answer.status in self._request.parsed_error_statuses:
            return None
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
        return self._next_broker(self._unreachable(), now_s, allowed=self._routes.has_answered)

    def report_lost(self, reason: str, now_s: float) -> float:
        """Take a missing or partial answer; only a request that may be repeated is sent again."""
        msg = f"no answer from {self.url}: {reason}"
        error = OutcomeUnknownError(msg)
        if not self._request.may_repeat:
            self._routes.report_failure(self._request, self.url)
            raise error
        return self._next_broker(error, now_s, allowed=True)

    def _next_broker(self, error: QuorumlogError, now_s: float, *, allowed: bool) -> float:
        self._routes.report_failure(self._request, self.url)
        del self._candidates[0]
        if self._candidates:
            return 0.0
        if not allowed:
            raise self._unreachable()
        return self._next_round(error, now_s)

    def _next_round(self, error: QuorumlogError, now_s: float) -> float:
        wait_s = self._backoff.next_s(now_s)
        if wait_s is None:
            raise error
        self._candidates = self._routes.candidates(self._request)
        return wait_s

    def _unreachable(self) -> UnreachableError:
        tried = ", ".join(f"{url} ({reason})" for url, reason in self._refusals.items())
        return UnreachableError(f"no broker answers: {tried}")
